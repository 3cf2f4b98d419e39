# Runs the tests again as C++20, with the other compiler, under the sanitizers, and for wider
# instruction sets.
#
# Each line of the matrix is a build of its own under tests/matrix/, which the test matrix.<name>
# makes and runs. It is optimized only as far as it has to be, so that the whole matrix stays quick.
# Its flags come after those given to this build. Together with `cmake/dev test` the matrix runs, if
# this compiler is g++ and clang++ links sanitizers:
#   `cmake/dev test`   everything as C++17, the conformance runner as C++20, by the compiler that
#                      CXX names
#   g++ as C++20       every header for AVX-512; with GDPO_TEST_ALL, what depends on instruction
#                      sets
#   clang++ as C++20   the core tests that are about memory, sanitized; with GDPO_TEST_ALL, every
#                      test, the examples and the benchmarks
#   clang++ as C++17   what depends on instruction sets, for AVX2 and for AVX-512: it compiles in a
#                      third of g++'s time. Bits of g++ for them are in GdpoBits.cmake.

# gdpo_add_matrix_test(<name> LINE <line> [COMPILER <c++>] [STANDARD <n>] [FLAGS "..."]
#   [BUILD_ONLY] [ALSO EXAMPLES|BENCH ...])
#
# Adds a line, which runs its core tests (GDPO_TEST_LINE in tests/CMakeLists.txt). With ALSO it runs
# every test, and builds these parts too.
function(gdpo_add_matrix_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "BUILD_ONLY" "LINE;COMPILER;STANDARD;FLAGS" "ALSO")
  set(options -DCMAKE_BUILD_TYPE= "-DCMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS} ${arg_FLAGS}"
    -DGDPO_WERROR=${GDPO_WERROR} -DGDPO_INSTALL=OFF -DGDPO_TEST_LINE=${arg_LINE}
    -DGDPO_TEST_ALL=${GDPO_TEST_ALL})
  foreach(part EXAMPLES BENCH)
    if(part IN_LIST arg_ALSO)
      list(APPEND options -DGDPO_BUILD_${part}=ON)
    else()
      list(APPEND options -DGDPO_BUILD_${part}=OFF)
    endif()
  endforeach()
  if(arg_COMPILER)
    list(APPEND options -DCMAKE_CXX_COMPILER=${arg_COMPILER})
  endif()
  if(arg_STANDARD)
    list(APPEND options -DCMAKE_CXX_STANDARD=${arg_STANDARD})
  endif()
  set(selection)
  if(NOT arg_ALSO)
    set(selection TARGETS gdpo_core_tests LABEL "^core$")
  endif()
  if(arg_BUILD_ONLY AND NOT GDPO_TEST_ALL)
    set(selection TARGETS gdpo_headers gdpo_accuracy BUILD_ONLY)
  elseif(arg_BUILD_ONLY)
    list(APPEND selection BUILD_ONLY)
  endif()
  gdpo_add_nested_test(matrix.${name} SOURCE ${PROJECT_SOURCE_DIR} OPTIONS ${options} ${selection})
  set_tests_properties(matrix.${name} PROPERTIES LABELS matrix COST 2000)  # it begins first
endfunction()

# Adds a line for an x86-64 level. If this machine's processor cannot run its tests, they are only
# compiled: with GDPO_TEST_ALL all of them, else every header and the program of accuracy/. This
# build itself, without such a flag, is for SSE2.
include(CheckCXXSourceRuns)
function(gdpo_add_matrix_level name level)
  set(options)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(features ${gdpo_features_${level}})
    list(TRANSFORM features REPLACE "(.+)" "__builtin_cpu_supports(\"\\1\")")
    list(JOIN features " && " condition)
    string(MAKE_C_IDENTIFIER GDPO_RUNS_${level} variable)
    check_cxx_source_runs("int main() { return ${condition} ? 0 : 1; }" ${variable})
    if(NOT ${variable})
      message(WARNING "This processor has no ${level}: "
        "matrix.${name} only compiles.")
      set(options BUILD_ONLY)
    endif()
    set(flags "-O1 -march=${level}")
  else()
    message(WARNING "${CMAKE_SYSTEM_PROCESSOR} is not x86-64: "
      "matrix.${name} is not built for ${level}.")
    set(flags -O1)
  endif()
  gdpo_add_matrix_test(${name} LINE lanes FLAGS ${flags} ${options} ${ARGN})
endfunction()
set(gdpo_features_x86-64-v3 avx2 bmi bmi2 fma)
set(gdpo_features_x86-64-v4 avx512f avx512bw avx512cd avx512dq avx512vl)

set(headers_only)
if(NOT GDPO_TEST_ALL)
  set(headers_only BUILD_ONLY)
endif()
gdpo_add_matrix_level(cxx20-x86-64-v4 x86-64-v4 STANDARD 20 ${headers_only})

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(other clang++)
else()
  set(other g++)
endif()
find_program(GDPO_OTHER_COMPILER ${other})

# The line of the sanitizers uses clang++ if that links them, and is then also the line of clang++
# as C++20. It is not optimized, so nothing is forced inline (gdpo/core/config.hpp). Its reports
# name functions; the preset asan gives lines too.
set(sanitizers "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer")
find_program(GDPO_CLANG NAMES clang++)
set(clang_sanitizes FALSE)
if(GDPO_CLANG)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/sanitized.cpp "int main() {}\n")
  execute_process(COMMAND ${GDPO_CLANG} -fsanitize=address,undefined sanitized.cpp -o sanitized
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  if(result EQUAL 0)
    set(clang_sanitizes TRUE)
  endif()
endif()
set(also)
if(GDPO_TEST_ALL)
  set(also ALSO EXAMPLES BENCH)
endif()
if(clang_sanitizes)
  gdpo_add_matrix_test(sanitizers LINE sanitizers COMPILER ${GDPO_CLANG} STANDARD 20
    FLAGS "-O0 ${sanitizers}" ${also})
else()
  gdpo_leave_out("sanitizers by clang, for which g++ does" "clang++ -fsanitize=address,undefined")
  gdpo_add_matrix_test(sanitizers LINE sanitizers FLAGS "-O1 ${sanitizers}" ${also})
endif()

if(GDPO_OTHER_COMPILER)
  if(NOT (clang_sanitizes AND other STREQUAL "clang++"))
    gdpo_add_matrix_test(${other} LINE other COMPILER ${GDPO_OTHER_COMPILER} STANDARD 20
      FLAGS -O1 ALSO EXAMPLES BENCH)
  endif()
  foreach(level IN ITEMS v3 v4)
    gdpo_add_matrix_level(${other}-x86-64-${level} x86-64-${level}
      COMPILER ${GDPO_OTHER_COMPILER})
  endforeach()
else()
  message(WARNING "${other} not found: matrix.${other} will fail. "
    "Install it.")
  add_test(NAME matrix.${other} COMMAND ${CMAKE_COMMAND} -E false)
  set_tests_properties(matrix.${other} PROPERTIES LABELS matrix)
endif()
