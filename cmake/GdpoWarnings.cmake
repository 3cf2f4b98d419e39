# The target gdpo_dev carries the warnings of this project's own targets. The exported target
# gdpo::gdpo carries none of them.

option(GDPO_WERROR "Treat warnings in gdpo's own targets as errors" ON)

add_library(gdpo_dev INTERFACE)
target_link_libraries(gdpo_dev INTERFACE gdpo::gdpo)
if(MSVC)
  target_compile_options(gdpo_dev INTERFACE /W4 /permissive- $<$<BOOL:${GDPO_WERROR}>:/WX>)
else()
  target_compile_options(gdpo_dev INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${GDPO_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_FLAGS MATCHES "-march=|-fsanitize=")
    # Under AVX-512 and under the sanitizers, g++ 12 warns that Eigen's own packets may be
    # uninitialized.
    target_compile_options(gdpo_dev INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

# gdpo_optimize_less(<target>)
#
# Says that a program's time is that of its compiler: it is optimized less.
function(gdpo_optimize_less target)
  if(NOT MSVC)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()
