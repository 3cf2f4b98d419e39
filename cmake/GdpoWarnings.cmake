# gdpo_dev: the warnings of this project's own targets. The exported target gdpo::gdpo carries none of it.
# gdpo_command_line(<file.cpp>): a file that reads a command line with CLI11, which takes the optimiser longer than it ever runs.

option(GDPO_WERROR "Treat warnings in gdpo's own targets as errors" ON)

add_library(gdpo_dev INTERFACE)
target_link_libraries(gdpo_dev INTERFACE gdpo::gdpo)
if(MSVC)
  target_compile_options(gdpo_dev INTERFACE /W4 /permissive- $<$<BOOL:${GDPO_WERROR}>:/WX>)
else()
  target_compile_options(gdpo_dev INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${GDPO_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_FLAGS MATCHES "-march=|-fsanitize=")
    # g++ 12 reports Eigen's own packets as uninitialised under AVX-512 and under the sanitizers.
    target_compile_options(gdpo_dev INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

function(gdpo_command_line file)
  if(NOT MSVC)
    set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
  endif()
endfunction()
