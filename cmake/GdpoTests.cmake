# gdpo_add_tests(<kind> [WITHOUT <file>...])
#
# Adds the tests in the files tests/<kind>/<room>/<what>_test.cpp, where <room> is a folder of
# include/gdpo. Each file is a test of ctest, <kind>.<room>.<what>, with the labels core, <kind>,
# <room>, and those of its first line, which says where it runs beside this build:
#   // labels: <label>, ...
#     lanes       for AVX2 and AVX-512 too: what it tests depends on the instruction set
#     sanitizers  under the sanitizers too: it can show a mistake with memory. Tests that link the
#                 products of support/ are not among them, because these take a quarter of the
#                 line's time; `cmake/dev check-all` runs all.
#     races       under ThreadSanitizer, in the matrix alone
#     long        it takes seconds to run, so it begins first
#     none        nowhere else
# A file without that line, or with another label, is an error, so that nothing is left out or run
# twice unnoticed. After a change of labels, configure again.
#
# The files of a room are one executable, gdpo_<kind>_<room>, and are compiled several at once: what
# they share of the library is then compiled once. So each file has its code in a namespace of its
# own. With GDPO_TEST_SPLIT each file is an executable: a first result comes sooner, all of them
# later.

option(GDPO_TEST_SPLIT "Make each test file an executable, to build and run few of them" OFF)

set(gdpo_test_labels lanes sanitizers races long none)

# Sets the variable to the labels of a test file.
function(gdpo_read_labels file variable)
  file(STRINGS ${file} line LIMIT_COUNT 1)
  string(REGEX REPLACE "^// labels: " "" labels "${line}")
  string(REPLACE ", " ";" labels "${labels}")
  foreach(label IN LISTS labels)
    if(NOT label IN_LIST gdpo_test_labels OR NOT line MATCHES "^// labels: ")
      list(JOIN gdpo_test_labels ", " known)
      message(FATAL_ERROR "${file}: given \"${line}\"; needed: a first line \"// labels: ...\" "
        "with one or more of ${known}")
    endif()
  endforeach()
  set(${variable} "${labels}" PARENT_SCOPE)
endfunction()

# Links a target with the sources of support/ and fuzz/ that its file calls.
function(gdpo_link_support target file)
  file(STRINGS ${file} includes REGEX "^#include [<\"](support|fuzz)/")
  set(headers support/product.hpp support/loss_product.hpp fuzz/call.hpp)
  set(libraries gdpo_estimator_product gdpo_loss_product gdpo_fuzz_calls)
  foreach(header library IN ZIP_LISTS headers libraries)
    if(includes MATCHES "[<\"]${header}[>\"]")
      target_link_libraries(${target} PRIVATE ${library})
    endif()
  endforeach()
endfunction()

# Adds an executable of test files, or adds files to it.
function(gdpo_add_test_files target)
  if(NOT TARGET ${target})
    add_executable(${target})
    target_link_libraries(${target} PRIVATE gdpo_test_support gdpo_test_sanitizers)
    target_precompile_headers(${target} REUSE_FROM gdpo_test_support)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
  endif()
  target_sources(${target} PRIVATE ${ARGN})
  foreach(file IN LISTS ARGN)
    gdpo_link_support(${target} ${file})
  endforeach()
endfunction()

function(gdpo_add_tests kind)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "WITHOUT")
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${kind}/*/*_test.cpp)
  list(TRANSFORM arg_WITHOUT PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${kind}/)
  list(REMOVE_ITEM files ${arg_WITHOUT})
  foreach(file IN LISTS files)
    gdpo_read_labels(${file} labels)
    if("races" IN_LIST labels
        OR (GDPO_TEST_LINE STREQUAL "lanes" AND NOT "lanes" IN_LIST labels)
        OR (GDPO_TEST_LINE STREQUAL "sanitizers" AND NOT GDPO_TEST_ALL
            AND NOT "sanitizers" IN_LIST labels))
      continue()
    endif()
    get_filename_component(stem ${file} NAME_WE)
    get_filename_component(folder ${file} DIRECTORY)
    get_filename_component(room ${folder} NAME)
    string(REGEX REPLACE "_test$" "" what ${stem})

    set(target gdpo_${kind}_${room})
    if(GDPO_TEST_SPLIT)
      string(APPEND target _${what})
    endif()
    gdpo_add_test_files(${target} ${file})
    add_dependencies(gdpo_core_tests ${target})
    list(REMOVE_ITEM labels none)
    add_test(NAME ${kind}.${room}.${what}
      COMMAND ${target} --filenames-as-tags "[#${stem}]" ${no_tests_is_an_error})
    set_tests_properties(${kind}.${room}.${what} PROPERTIES
      LABELS "core;${kind};${room};${labels}")
    if("long" IN_LIST labels)
      set_tests_properties(${kind}.${room}.${what} PROPERTIES COST 100)
    endif()
  endforeach()
endfunction()
