# What compare.cmake and compare_trees.cmake have in common: the lines of a program of GdpoBits.cmake.

# Runs the program. lines: what it wrote; count: how many; status, complaints: how it ended, and what it wrote to stderr.
macro(gdpo_run_bits_program program emulator)
  execute_process(COMMAND ${emulator} ${program} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE complaints)
  string(REGEX MATCHALL "[^\n]+" lines "${output}")
  list(LENGTH lines count)
endmacro()

# A line "<kind> <hash> <object> <result>" (results.hpp has the kinds), as variables of these names. object: with the program's
# name before it. kind: of a foreign machine, whose C library is its own, with that name behind it where the library counts.
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
