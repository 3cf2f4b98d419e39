# gdpo_add_snippets(<file>...)
#
# Builds what the documentation shows: every ```cpp block of a page (*.md), or of a `///` comment of
# a header, that follows one of these comments:
#   <!-- build: name -->        The block is compiled (name.cpp).
#   <!-- build: name run -->    It is also linked into a program and run as the test snippet.name.
#                               If it has comments "// prints ...", it must print what they say.
#   <!-- build: name cuda -->   name.cu is written for tests/cuda, where nvcc compiles it.
#   <!-- build: name mpi -->    The block is compiled if MPI is found.
#   <!-- build: name torch -->  The block is compiled if LibTorch is found.
# The matrix (GDPO_TEST_LINE) has the last three kinds, every other build the first two.
# A block of a page is a whole file. A block of a header is the body of main() in a file that
# includes that header and some of the standard library, so it shows the calls without the frame.

# Reads a page, or a header without the "/// " of its comments.
function(gdpo_read_page file variable)
  file(READ ${file} text)
  if(file MATCHES "[.]hpp$")
    string(REGEX REPLACE "(^|\n)/// ?" "\\1" text "${text}")
  endif()
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

# Makes the whole file that a block of a header stands for.
function(gdpo_frame_snippet file kind code variable)
  string(REGEX REPLACE "^.*/include/" "" header ${file})
  string(REGEX REPLACE "\n" "\n  " code "  ${code}")
  set(function "int main()")
  if(kind STREQUAL "cuda")
    set(function "void example()")
  endif()
  set(${variable} "#include <algorithm>\n#include <cmath>\n#include <cstdio>\n#include <vector>\n\
#include <${header}>\n\n${function} {\n${code}\n}\n" PARENT_SCOPE)
endfunction()

function(gdpo_add_snippet file name kind code)
  set(matrix FALSE)
  if(GDPO_TEST_LINE STREQUAL "matrix")
    set(matrix TRUE)
  endif()
  if((kind MATCHES "^(cuda|mpi|torch)$" AND NOT matrix) OR (kind MATCHES "^(|run)$" AND matrix))
    return()
  endif()
  if(file MATCHES "[.]hpp$")
    gdpo_frame_snippet(${file} "${kind}" "${code}" code)
  endif()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/snippets/${name})
  if(kind STREQUAL "cuda")
    gdpo_write_if_different(${source}.cu "${code}")
    set_property(GLOBAL APPEND PROPERTY GDPO_CUDA_SNIPPETS ${source}.cu)
    return()
  endif()
  # Their tests leave these out with a message.
  if((kind STREQUAL "mpi" AND NOT TARGET MPI::MPI_CXX)
      OR (kind STREQUAL "torch" AND NOT TARGET torch))
    return()
  endif()
  string(APPEND source .cpp)
  gdpo_write_if_different(${source} "${code}")
  if(NOT kind STREQUAL "run")
    add_library(snippet_${name} OBJECT ${source})
    if(kind STREQUAL "mpi")
      target_link_libraries(snippet_${name} PRIVATE MPI::MPI_CXX)
    elseif(kind STREQUAL "torch")
      gdpo_link_torch(snippet_${name})
    endif()
  else()
    add_executable(snippet_${name} ${source})
    string(REGEX MATCHALL "// prints [^\n]+" printed "${code}")
    list(TRANSFORM printed REPLACE "^// prints " "")
    list(TRANSFORM printed REPLACE "([][+.*()^$?|\\])" "\\\\\\1")
    list(JOIN printed ".*" printed)
    gdpo_add_output_test(snippet.${name} 0 "${printed}" $<TARGET_FILE:snippet_${name}>)
    set_tests_properties(snippet.${name} PROPERTIES LABELS pages)
  endif()
  target_link_libraries(snippet_${name} PRIVATE gdpo_dev)
  # Its time is the compiler's.
  target_compile_options(snippet_${name} PRIVATE $<$<NOT:$<CXX_COMPILER_ID:MSVC>>:-O0>)
endfunction()

function(gdpo_add_snippets)
  foreach(file IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    gdpo_read_page(${file} rest)
    while(rest MATCHES "<!-- build: *([a-z0-9_]+) ?(run|cuda|mpi|torch)? *-->\r?\n")
      set(marker "${CMAKE_MATCH_0}")
      set(name ${CMAKE_MATCH_1})
      set(kind "${CMAKE_MATCH_2}")

      string(FIND "${rest}" "${marker}" begin)
      string(LENGTH "${marker}" length)
      math(EXPR begin "${begin} + ${length}")
      string(SUBSTRING "${rest}" ${begin} -1 rest)
      if(NOT rest MATCHES "^```cpp\r?\n")
        message(FATAL_ERROR
          "${file}: the line after \"<!-- build: ${name} ... -->\" must begin a ```cpp block")
      endif()
      string(LENGTH "${CMAKE_MATCH_0}" length)
      string(FIND "${rest}" "\n```" end)
      math(EXPR size "${end} + 1 - ${length}")
      string(SUBSTRING "${rest}" ${length} ${size} code)
      string(SUBSTRING "${rest}" ${end} -1 rest)
      gdpo_add_snippet(${file} ${name} "${kind}" "${code}")
    endwhile()
  endforeach()
endfunction()
