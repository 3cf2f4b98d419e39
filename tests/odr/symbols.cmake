# Of the symbols that objects for different instruction sets have in common, the linker takes one. So the code of the library is
# in a namespace that names the instruction set, and none of it is among them: this test fails for each that is. Templates of
# the standard library are: whoever builds such a program links the object for the oldest processor first.
#   cmake -DPROGRAMS=<list of programs> -DNM=<nm> -P symbols.cmake
cmake_minimum_required(VERSION 3.22)

function(gdpo_bits_program name emulator program)
  set(common)
  set(seen)
  foreach(object IN LISTS ARGN)
    execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL " [WVu] [^\n]+" symbols "${output}")  # weak ones: functions and data that several objects may have
    list(LENGTH symbols count)
    if(count EQUAL 0)
      message(SEND_ERROR "${object}: no weak symbol; is ${NM} the right program?")
    endif()
    set(own ${symbols})
    list(REMOVE_DUPLICATES own)
    foreach(symbol IN LISTS own)
      if(symbol IN_LIST seen)
        list(APPEND common "${symbol}")
      endif()
    endforeach()
    list(APPEND seen ${own})
  endforeach()
  list(REMOVE_DUPLICATES common)
  list(LENGTH common all)
  # The name begins in gdpo, not in std with something of gdpo as argument.
  list(FILTER common INCLUDE REGEX "^ . _Z[A-Z]*4gdpo")
  list(LENGTH common ours)
  message("${name}: ${all} symbols in common, ${ours} of them the library's")
  foreach(symbol IN LISTS common)
    message(SEND_ERROR "${name}: in common:${symbol}")
  endforeach()
endfunction()
include(${PROGRAMS})
