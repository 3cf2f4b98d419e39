# Runs a tool at the command line, for the scripts of tests:
#   run(STATUS arguments...)   runs it, expects this exit status, and sets out and err
#   expect(out|err text)       expects this text in out or err
#   expect_no_complaint()      expects nothing in err but how far a loop has come, which a tool says
#                              once a loop takes more than a second
#   expect_files(names...)     expects exactly these files in the working folder
#   set(input file)            makes this file the standard input
# A script that includes this file is run as cmake -DPROGRAM=tool -DWORK=folder -P script.cmake.
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
get_filename_component(tool ${PROGRAM} NAME)
set(input /dev/null)

macro(run status)
  execute_process(COMMAND ${PROGRAM} ${ARGN} WORKING_DIRECTORY ${WORK} INPUT_FILE ${input}
    RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT result STREQUAL "${status}")
    message(FATAL_ERROR "${tool} ${ARGN}: status ${result} instead of ${status}\n${out}${err}")
  endif()
endmacro()

function(expect what text)
  string(FIND "${${what}}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "standard ${what} does not contain '${text}':\n${${what}}")
  endif()
endfunction()

function(expect_no_complaint)
  set(left "( [(](under )?[0-9]+ %[)], [0-9,]+ (s|min) left)?")
  string(REGEX REPLACE "\n[^:\n]+: [0-9][^:\n]* (row|run)s?${left}" "" complaint "\n${err}")
  string(STRIP "${complaint}" complaint)
  if(complaint)
    message(FATAL_ERROR "standard error is not empty: ${complaint}")
  endif()
endfunction()

function(expect_files)
  file(GLOB files RELATIVE ${WORK} ${WORK}/*)
  set(wanted ${ARGN})
  list(SORT wanted)
  if(NOT files STREQUAL wanted)
    message(FATAL_ERROR "files: ${files} instead of ${wanted}")
  endif()
endfunction()
