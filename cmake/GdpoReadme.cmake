# gdpo_add_readme_tests(<file.md>)
#
# Builds what the documentation shows: every ```cpp block that follows the comment
#   <!-- build: name -->        is compiled as it stands (name.cpp),
#   <!-- build: name run -->    is linked into an executable and run as the test readme.<name> as well.

function(gdpo_add_readme_tests file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} rest)
  while(rest MATCHES "<!-- build: *([a-z0-9_]+)( run)? *-->\r?\n")
    set(marker "${CMAKE_MATCH_0}")
    set(name ${CMAKE_MATCH_1})
    set(run "${CMAKE_MATCH_2}")

    string(FIND "${rest}" "${marker}" begin)
    string(LENGTH "${marker}" length)
    math(EXPR begin "${begin} + ${length}")
    string(SUBSTRING "${rest}" ${begin} -1 rest)
    if(NOT rest MATCHES "^```cpp\r?\n")
      message(FATAL_ERROR "${file}: \"${marker}\" must stand on the line before a ```cpp block")
    endif()
    string(LENGTH "${CMAKE_MATCH_0}" length)
    string(FIND "${rest}" "\n```" end)
    math(EXPR end "${end} + 1 - ${length}")
    string(SUBSTRING "${rest}" ${length} ${end} code)
    string(SUBSTRING "${rest}" ${length} -1 rest)

    set(source ${CMAKE_CURRENT_BINARY_DIR}/readme/${name}.cpp)
    gdpo_write_if_different(${source} "${code}")
    if(run)
      add_executable(readme_${name} ${source})
      add_test(NAME readme.${name} COMMAND readme_${name})
      set_tests_properties(readme.${name} PROPERTIES LABELS readme)
    else()
      add_library(readme_${name} OBJECT ${source})
    endif()
    target_link_libraries(readme_${name} PRIVATE gdpo_dev)
  endwhile()
endfunction()
