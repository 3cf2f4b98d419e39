# gdpo_add_compile_fail_test(<file.cpp>)
#
# Adds a test that compiles a file which misuses the library. It passes if the compiler refuses the
# file and its message has the text of the file's first line,
#   // expect: <text>
# so users who make that mistake get a readable message. ctest runs this file as a script:
#   cmake -DCOMMAND=<compile command> -DFILE=<file> -P GdpoCompileFail.cmake

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(GDPO_COMPILE_FAIL_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

  function(gdpo_add_compile_fail_test file)
    get_filename_component(name ${file} NAME_WE)
    separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS}")
    set(includes "$<TARGET_PROPERTY:gdpo,INTERFACE_INCLUDE_DIRECTORIES>")
    set(system_includes "$<TARGET_PROPERTY:Eigen3::Eigen,INTERFACE_INCLUDE_DIRECTORIES>")
    set(command ${CMAKE_CXX_COMPILER} ${flags}
      ${CMAKE_CXX${CMAKE_CXX_STANDARD}_STANDARD_COMPILE_OPTION} -fsyntax-only
      -I$<JOIN:${includes},$<SEMICOLON>-I> -isystem$<JOIN:${system_includes},$<SEMICOLON>-isystem>)
    add_test(NAME compile_fail.${name}
      COMMAND ${CMAKE_COMMAND} "-DCOMMAND=${command}" -DFILE=${file} -P ${GDPO_COMPILE_FAIL_SCRIPT})
    set_tests_properties(compile_fail.${name} PROPERTIES LABELS compile_fail)
  endfunction()
  return()
endif()

file(STRINGS ${FILE} first_line LIMIT_COUNT 1)
if(NOT first_line MATCHES "^// expect: (.+)$")
  message(FATAL_ERROR
    "${FILE}: the first line must be \"// expect: <text that the compiler prints>\"")
endif()
set(expected "${CMAKE_MATCH_1}")

execute_process(COMMAND ${COMMAND} ${FILE}
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result STREQUAL "0")
  message(FATAL_ERROR "${FILE} compiles, but it must not.")
endif()
string(FIND "${output}" "${expected}" position)
if(position EQUAL -1)
  message(FATAL_ERROR
    "${FILE} is refused, but the compiler does not say\n  ${expected}\nIt says\n${output}")
endif()
