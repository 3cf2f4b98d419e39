# gdpo_leave_out(<what> <package>...)
#
# Reports that a part of this project (tests, benchmarks, examples) is left out, because these
# packages, given by their CMake names, were not found. A user's build goes on without the part.
# With GDPO_ALL_PARTS, as in `cmake/dev test`, configuring fails, so that nothing is left out
# unnoticed.

option(GDPO_ALL_PARTS
  "Stop where a package is missing that a test, a benchmark or an example can use" OFF)

function(gdpo_leave_out what)
  list(JOIN ARGN ", " packages)
  if(GDPO_ALL_PARTS)
    message(SEND_ERROR "${what}: not found: ${packages}. "
      "Install it, or configure without GDPO_ALL_PARTS to leave this out.")
  else()
    message(STATUS "Left out: ${what}; not found: ${packages}")
  endif()
endfunction()

# gdpo_find(<list variable> <package> <arguments of find_package>...)
#
# Looks for a package, and appends its name to the list if it is not found.
macro(gdpo_find missing package)
  find_package(${package} QUIET ${ARGN})
  if(NOT ${package}_FOUND)
    list(APPEND ${missing} ${package})
  endif()
endmacro()
