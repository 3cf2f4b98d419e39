# gdpo_add_output_test(<name> <exit status> <regex> <command>...)
#
# Adds a test that runs the command. It passes if the command ends with this exit status, or one of
# several ("0|3"), and its output matches the regular expression. ctest's own
# PASS_REGULAR_EXPRESSION looks at the output only, so a program that crashes after printing it
# would pass. ctest runs this file as a script:
#   cmake -DCOMMAND=<list> -DSTATUS=<number> -DPRINTS=<regex> -P GdpoOutput.cmake

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(GDPO_OUTPUT_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

  function(gdpo_add_output_test name status prints)
    add_test(NAME ${name}
      COMMAND ${CMAKE_COMMAND} "-DCOMMAND=${ARGN}" -DSTATUS=${status} "-DPRINTS=${prints}"
        -P ${GDPO_OUTPUT_SCRIPT})
  endfunction()
  return()
endif()

execute_process(COMMAND ${COMMAND}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT status MATCHES "^(${STATUS})$")
  message(FATAL_ERROR "exit status ${status}, wanted ${STATUS}")
endif()
if(NOT output MATCHES "${PRINTS}")
  message(FATAL_ERROR "what it prints does not match\n  ${PRINTS}")
endif()
