# Reading the lines of a program of GdpoBits.cmake, for compare.cmake and compare_trees.cmake.

# Runs a program and sets lines (what it wrote), count (how many lines), status (its exit status)
# and complaints (what it wrote to stderr).
macro(gdpo_run_bits_program program emulator)
  execute_process(COMMAND ${emulator} ${program} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE complaints)
  string(REGEX MATCHALL "[^\n]+" lines "${output}")
  list(LENGTH lines count)
endmacro()

# Reads a line "<kind> <hash> <object> <result>" (results.hpp has the kinds) into variables of these
# names. The program's name is put before the object. An emulated machine has a C library of its
# own, so the program's name is appended to kinds for which the C library matters.
macro(gdpo_read_bits_line line name emulator)
  string(REGEX MATCH "^([a-z_]+) ([0-9a-f]+) ([a-z0-9]+) (.+)$" matched "${line}")
  set(kind ${CMAKE_MATCH_1})
  set(hash ${CMAKE_MATCH_2})
  set(object "${name} ${CMAKE_MATCH_3}")
  set(result "${CMAKE_MATCH_4}")
  if(kind MATCHES "^libm" AND NOT "${emulator}" STREQUAL "")
    string(APPEND kind "_${name}")
  endif()
endmacro()
