# Checks that objects compiled with different flags share no function of the library. Where several
# objects define the same inline function, the linker keeps one of them. If the objects were
# compiled for different instruction sets, the one that is kept may not run on an older processor;
# if they were compiled with different parts of -ffast-math, it may lose a NaN that the others keep.
# The library's code is therefore in a namespace that names the instruction set and these flags.
# This test fails for each symbol of the library that two objects share, except
# - the tags seq and simd, and invalid_input and communication_error, which have to be one type each
#   (their functions only make and destroy the exception of std that they are);
# - in unoptimized objects, the constructors and destructors that the compiler makes for plain data.
# Functions of the standard library are shared too, which nothing here can prevent: who builds such
# a program links the object for the oldest processor first.
#   cmake -DPROGRAMS=<list of programs> -DNM=<nm> -P symbols.cmake
cmake_minimum_required(VERSION 3.22)

set(errors "(13invalid_input|19communication_error)")
set(allowed "_Z(N4gdpo(3seq|4simd)E|N4gdpo${errors}(C|D).*|T[ISV]N4gdpo${errors}E)")
set(made_by_the_compiler "_ZN4gdpo.*(C[12]|D[012])Ev")

function(gdpo_bits_program name emulator program)
  if(name STREQUAL "unoptimized")
    set(allowed "(${allowed}|${made_by_the_compiler})")
  endif()
  set(all)
  set(ours)
  set(shared)
  set(sum 0)
  foreach(object IN LISTS ARGN)
    execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE output
      COMMAND_ERROR_IS_FATAL ANY)
    # Weak symbols, which several objects may define.
    string(REGEX MATCHALL " [WVu] [^\n]+" symbols "${output}")
    list(TRANSFORM symbols REPLACE "^ . " "")
    list(REMOVE_DUPLICATES symbols)
    list(LENGTH symbols count)
    if(count EQUAL 0)
      message(SEND_ERROR "${object}: no weak symbol; is ${NM} the right program?")
    endif()
    math(EXPR sum "${sum} + ${count}")
    list(APPEND all ${symbols})
    # The symbols of gdpo; not those of std that have something of gdpo as an argument.
    list(FILTER symbols INCLUDE REGEX "^_Z[A-Z]*4gdpo")
    list(APPEND ours ${symbols})
  endforeach()
  # An object has each symbol once here, so what stands twice is of two objects.
  list(SORT ours)
  set(previous)
  foreach(symbol IN LISTS ours)
    if(symbol STREQUAL previous AND NOT symbol MATCHES "^${allowed}$")
      list(APPEND shared ${symbol})
    endif()
    set(previous ${symbol})
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
