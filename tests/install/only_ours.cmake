# Fails unless the installed tree holds exactly one file, the consumer.
file(GLOB_RECURSE files RELATIVE ${PREFIX} ${PREFIX}/*)
if(NOT files MATCHES "^bin/consumer(\\.exe)?$")
  message(FATAL_ERROR "installed: ${files}; expected only bin/consumer")
endif()
