# gdpo_add_nested_test(<name> SOURCE <dir> [OPTIONS -D...] [TARGETS ...] [LABEL <regex>]
#   [BUILD_ONLY])
#
# Adds a test that configures another build of SOURCE, in a folder of its own and with this build's
# generator and packages. It builds TARGETS (default: all) and runs the tests of that build: those
# with LABEL if it is given, and none with BUILD_ONLY. Such builds are incremental.
#
# ctest runs this file as a script, with half of the machine's processors (at least one), so that
# two such tests, or one and a long compilation, leave no processor idle.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(GDPO_NESTED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

  # gdpo_write_inherited(<file> [<variable>...]) writes an initial cache for other builds: these
  # variables, and which compiler and packages this build has. It is a file because lists do not
  # survive a command line.
  function(gdpo_write_inherited file)
    set(cache "")
    foreach(variable IN LISTS ARGN ITEMS CMAKE_CXX_COMPILER CMAKE_MAKE_PROGRAM
        CMAKE_TOOLCHAIN_FILE CMAKE_PREFIX_PATH Eigen3_DIR GDPO_ALL_PARTS)
      if(${variable})
        string(APPEND cache "set(${variable} [==[${${variable}}]==] CACHE STRING \"\")\n")
      endif()
    endforeach()
    file(WRITE ${file} "${cache}")
  endfunction()

  function(gdpo_add_nested_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "BUILD_ONLY" "SOURCE;LABEL" "OPTIONS;TARGETS")

    gdpo_write_inherited(${CMAKE_CURRENT_BINARY_DIR}/nested.cmake)
    cmake_host_system_information(RESULT jobs QUERY NUMBER_OF_LOGICAL_CORES)
    math(EXPR jobs "(${jobs} + 1) / 2")

    string(REPLACE "." "/" folder ${name})
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND}
      -DSOURCE=${arg_SOURCE} -DBINARY=${CMAKE_CURRENT_BINARY_DIR}/${folder}
      -DCTEST=${CMAKE_CTEST_COMMAND}
      "-DCONFIGURE=-G;${CMAKE_GENERATOR};-C;${CMAKE_CURRENT_BINARY_DIR}/nested.cmake;${arg_OPTIONS}"
      "-DTARGETS=${arg_TARGETS}" -DLABEL=${arg_LABEL} -DBUILD_ONLY=${arg_BUILD_ONLY}
      -P ${GDPO_NESTED_SCRIPT})
    set_tests_properties(${name} PROPERTIES PROCESSORS ${jobs} TIMEOUT 3600 ENVIRONMENT
      "CMAKE_BUILD_PARALLEL_LEVEL=${jobs};CTEST_PARALLEL_LEVEL=${jobs}")
  endfunction()
  return()
endif()

set(targets)
if(TARGETS)
  set(targets --target ${TARGETS})
endif()
set(tests)
if(LABEL)
  set(tests --label-regex ${LABEL})
endif()
execute_process(COMMAND ${CMAKE_COMMAND} ${CONFIGURE} -S ${SOURCE} -B ${BINARY}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} ${targets} COMMAND_ERROR_IS_FATAL ANY)
if(NOT BUILD_ONLY)
  execute_process(COMMAND ${CTEST} --test-dir ${BINARY} --output-on-failure --no-tests=error
    ${tests} COMMAND_ERROR_IS_FATAL ANY)
endif()
