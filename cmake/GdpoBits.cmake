# Tests whether compilers and flags change a bit of a result, and whether objects for several
# instruction sets can be linked into one program.
#
# Each compiler compiles tests/bits/results.cpp for several instruction sets and links the objects
# into one program, which runs those that the processor supports. tests/bits/named.cpp takes as long
# to compile again, so only a few instruction sets have it, and only with GDPO_TEST_ALL. The tests
# are
#   bits   compares the results of all objects (tests/bits/compare.cmake),
#   odr    compares the symbols of the objects of a program (tests/odr/symbols.cmake).
# The flags are a cover and not the product: each value of a flag is used with each compiler, and
# each instruction set has two values of it. Every change compiles a part of the cover, in which
# each compiler makes an object without FMA and one with FMA that fuses; GDPO_TEST_ALL compiles it
# whole.
#
# The instruction sets:
#   sse2   x86-64 without FMA
#   avx2   AVX2 without FMA
#   fma    FMA in the registers of SSE2
#   v3     x86-64-v3, that is AVX2 and FMA
#   v4     x86-64-v4, that is AVX-512
#   neon   aarch64, run by qemu-aarch64

# The condition, in C++, on which an object may run.

set(gdpo_runs_sse2 "true")
set(gdpo_runs_avx2 "__builtin_cpu_supports(\"avx2\")")
set(gdpo_runs_fma "__builtin_cpu_supports(\"fma\")")
set(gdpo_runs_v3 "${gdpo_runs_avx2} && ${gdpo_runs_fma} && __builtin_cpu_supports(\"bmi2\")")
set(gdpo_runs_v4 "${gdpo_runs_v3} && __builtin_cpu_supports(\"avx512f\") && \
__builtin_cpu_supports(\"avx512bw\") && __builtin_cpu_supports(\"avx512cd\") && \
__builtin_cpu_supports(\"avx512dq\") && __builtin_cpu_supports(\"avx512vl\")")
set(gdpo_runs_neon "true")

set(gdpo_bits_dir ${CMAKE_CURRENT_BINARY_DIR}/bits)
set(gdpo_bits_programs "")
set(gdpo_bits_files)

# gdpo_add_bits(<name> <compiler> [SOURCE <file>] [RUN <emulator>] [LINK <flags>]
#   [OBJECTS "<instruction set> <flags>" ...] [ALSO "<instruction set> <flags>" ...])
#
# Adds a program with one object for each entry of OBJECTS, and of ALSO with GDPO_TEST_ALL; none
# without an entry.
function(gdpo_add_bits name compiler)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "SOURCE;RUN;LINK" "OBJECTS;ALSO")
  if(GDPO_TEST_ALL)
    list(APPEND arg_OBJECTS ${arg_ALSO})
  endif()
  if(NOT arg_OBJECTS)
    return()
  endif()
  # Where several objects have the same inline function of the standard library, the linker keeps
  # the first. So the oldest processors, whose code runs on all, stand first.
  set(oldest_first)
  foreach(set IN ITEMS sse2 fma avx2 v3 v4 neon)
    set(entries ${arg_OBJECTS})
    list(FILTER entries INCLUDE REGEX "^${set} ")
    list(APPEND oldest_first ${entries})
  endforeach()
  if(NOT arg_SOURCE)
    set(arg_SOURCE results.cpp)
  endif()
  set(folder ${gdpo_bits_dir}/${name})
  set(source ${PROJECT_SOURCE_DIR}/tests/bits)
  set(options -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    -I${PROJECT_SOURCE_DIR}/include -I${folder})
  if(GDPO_WERROR)
    list(APPEND options -Werror)
  endif()
  set(list "")
  set(objects)
  foreach(entry IN LISTS oldest_first)
    separate_arguments(flags UNIX_COMMAND "${entry}")
    list(POP_FRONT flags set)
    string(APPEND list "GDPO_OBJECT(${set}, ${gdpo_runs_${set}})\n")
    set(object ${folder}/${set}.o)
    add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${source}/${arg_SOURCE}
      COMMAND ${compiler} ${options} ${flags} -DGDPO_BITS=gdpo_bits_${set} -MD -MF ${object}.d
        -MT ${object} -c ${source}/${arg_SOURCE} -o ${object}
      COMMENT "Bits: ${name}, ${entry}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  gdpo_write_if_different(${folder}/objects.inc "${list}")
  set(program ${folder}/bits)
  add_custom_command(OUTPUT ${program}
    COMMAND ${compiler} ${options} -pthread ${arg_LINK} ${source}/main.cpp ${objects} -o ${program}
    DEPENDS ${source}/main.cpp ${source}/results.hpp ${folder}/objects.inc ${objects}
    COMMENT "Bits: ${name}" VERBATIM)
  add_custom_target(gdpo_bits_${name} ALL DEPENDS ${program})
  set(gdpo_bits_files ${gdpo_bits_files} ${program} PARENT_SCOPE)
  list(JOIN objects " " objects)
  string(APPEND gdpo_bits_programs
    "gdpo_bits_program(${name} \"${arg_RUN}\" ${program} ${objects})\n")
  set(gdpo_bits_programs "${gdpo_bits_programs}" PARENT_SCOPE)
endfunction()

# Sets the variable to this build's compiler if that is of the kind `id`, else to the program
# `name`.
function(gdpo_find_compiler variable id name)
  if(CMAKE_CXX_COMPILER_ID STREQUAL id)
    set(${variable} ${CMAKE_CXX_COMPILER} CACHE FILEPATH "")
  else()
    find_program(${variable} ${name})
  endif()
  if(NOT ${variable})
    message(WARNING "${name} not found: the bits of its builds are not tested.")
  endif()
endfunction()
gdpo_find_compiler(GDPO_BITS_GXX GNU g++)
gdpo_find_compiler(GDPO_BITS_CLANG Clang clang++)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  if(GDPO_BITS_GXX)
    gdpo_add_bits(gcc ${GDPO_BITS_GXX}
      OBJECTS "sse2 -O2" "v3 -march=x86-64-v3 -O3 -ffp-contract=fast"
      ALSO "avx2 -mavx2 -O1 -ffp-contract=fast"
           "fma -mfma -O2 -ffp-contract=off"
           "v4 -march=x86-64-v4 -O2")
    gdpo_add_bits(gcc_named ${GDPO_BITS_GXX} SOURCE named.cpp
      ALSO "v4 -march=x86-64-v4 -O2" "sse2 -O1")
  endif()
  if(GDPO_BITS_CLANG)
    gdpo_add_bits(clang ${GDPO_BITS_CLANG}
      OBJECTS "sse2 -O1" "fma -mfma -O3 -ffp-contract=fast"
      ALSO "v3 -march=x86-64-v3 -O2 -ffp-contract=off"
           "v4 -march=x86-64-v4 -O3")
    gdpo_add_bits(clang_named ${GDPO_BITS_CLANG} SOURCE named.cpp
      ALSO "v3 -march=x86-64-v3 -O1")
    # This program is not run. Nothing is inlined in it, so its objects have the most symbols.
    gdpo_add_bits(unoptimized ${GDPO_BITS_CLANG} OBJECTS "sse2 -O0" "v3 -march=x86-64-v3 -O0")
  endif()
else()
  message(WARNING "${CMAKE_SYSTEM_PROCESSOR} is not x86-64: "
    "the bits of its instruction sets are not tested.")
endif()

find_program(GDPO_AARCH64_GXX aarch64-linux-gnu-g++)
find_program(GDPO_QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(GDPO_AARCH64_GXX AND GDPO_QEMU_AARCH64)
  gdpo_add_bits(aarch64 ${GDPO_AARCH64_GXX} RUN ${GDPO_QEMU_AARCH64} LINK -static
    OBJECTS "neon -O2")
else()
  message(STATUS "aarch64-linux-gnu-g++ and qemu-aarch64 not found: NEON is not tested")
endif()

if(gdpo_bits_programs)
  gdpo_write_if_different(${gdpo_bits_dir}/programs.cmake "${gdpo_bits_programs}")
  # `cmake/dev test` builds what the command line of a chosen test names, hence NEEDS.
  add_test(NAME bits COMMAND ${CMAKE_COMMAND} -DPROGRAMS=${gdpo_bits_dir}/programs.cmake
    "-DNEEDS=${gdpo_bits_files}" -P ${PROJECT_SOURCE_DIR}/tests/bits/compare.cmake)
  add_test(NAME odr COMMAND ${CMAKE_COMMAND} -DPROGRAMS=${gdpo_bits_dir}/programs.cmake
    -DNM=${CMAKE_NM} "-DNEEDS=${gdpo_bits_files}" -P ${PROJECT_SOURCE_DIR}/tests/odr/symbols.cmake)
  set_tests_properties(bits odr PROPERTIES LABELS bits)
endif()
