# Where several objects have one function, the linker takes one of them. If they were compiled for different instruction sets, that one
# may not run on an older processor; where they were compiled with parts of -ffast-math, it may lose a NaN that the others keep. So
# the code of the library is in a namespace that names the instruction set and these flags, and this test fails for each symbol of
# it that two objects share. What they may share:
#   the tags seq and simd, and invalid_input, which has to be one type (made and destroyed by std::invalid_argument);
#   in unoptimised objects, the constructors and destructors that the compiler makes for plain data.
# Functions of the standard library are shared too: whoever builds such a program links the object for the oldest processor first.
#   cmake -DPROGRAMS=<list of programs> -DNM=<nm> -P symbols.cmake
cmake_minimum_required(VERSION 3.22)

set(allowed "_Z(N4gdpo(3seq|4simd)E|N4gdpo13invalid_input(C|D).*|T[ISV]N4gdpo13invalid_inputE)")
set(made_by_the_compiler "_ZN4gdpo.*(C[12]|D[012])Ev")

function(gdpo_bits_program name emulator program)
  if(name STREQUAL "unoptimised")
    set(allowed "(${allowed}|${made_by_the_compiler})")
  endif()
  set(all)
  set(ours)
  set(shared)
  set(sum 0)
  foreach(object IN LISTS ARGN)
    execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL " [WVu] [^\n]+" symbols "${output}")  # weak: several objects may have them
    list(TRANSFORM symbols REPLACE "^ . " "")
    list(REMOVE_DUPLICATES symbols)
    list(LENGTH symbols count)
    if(count EQUAL 0)
      message(SEND_ERROR "${object}: no weak symbol; is ${NM} the right program?")
    endif()
    math(EXPR sum "${sum} + ${count}")
    list(APPEND all ${symbols})
    list(FILTER symbols INCLUDE REGEX "^_Z[A-Z]*4gdpo")  # not those of std with something of gdpo as argument
    foreach(symbol IN LISTS symbols)
      if(symbol IN_LIST ours AND NOT symbol MATCHES "^${allowed}$")
        list(APPEND shared ${symbol})
      endif()
    endforeach()
    list(APPEND ours ${symbols})
  endforeach()
  list(REMOVE_DUPLICATES shared)
  foreach(symbol IN LISTS shared)
    message(SEND_ERROR "${name}: several objects have ${symbol}")
  endforeach()
  list(REMOVE_DUPLICATES all)
  list(LENGTH all different)
  list(LENGTH ours count)
  message("${name}: ${sum} symbols, ${different} different ones; ${count} are the library's")
endfunction()
include(${PROGRAMS})
