# Programs built with flags that users build with, each from one file: parts of -ffast-math, and no
# exceptions. The matrix has them, and the lines that optimize.

# gdpo_add_flag_test(<name> "<files>" <flags>...)
function(gdpo_add_flag_test name patterns)
  file(GLOB files CONFIGURE_DEPENDS ${patterns})
  foreach(file IN LISTS files)
    get_filename_component(stem ${file} NAME_WE)
    add_executable(${name}_${stem} ${file})
    target_link_libraries(${name}_${stem} PRIVATE gdpo_dev)
    target_include_directories(${name}_${stem} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_compile_options(${name}_${stem} PRIVATE ${ARGN})
    add_test(NAME ${name}.${stem} COMMAND ${name}_${stem})
    set_tests_properties(${name}.${stem} PROPERTIES LABELS core)
    add_dependencies(gdpo_core_tests ${name}_${stem})
  endforeach()
endfunction()
if(NOT without_numbers)
  gdpo_add_flag_test(fast_math "fast_math/*.cpp" -O2 -ffast-math)
  # Parts of -ffast-math for which the library has code of its own, or which alone would break a
  # compensated sum.
  gdpo_add_flag_test(finite_math "fast_math/logits.cpp" -O2 -ffinite-math-only)
  gdpo_add_flag_test(associative_math "fast_math/logits.cpp;fast_math/statistics.cpp"
    -O2 -fassociative-math -fno-signed-zeros -fno-trapping-math)

  # Objects compiled with these flags can stand in one program, because they share no function of
  # the library (odr/symbols.cmake).
  add_library(gdpo_no_math_flags OBJECT fast_math/logits.cpp)
  target_link_libraries(gdpo_no_math_flags PRIVATE gdpo_dev)
  target_include_directories(gdpo_no_math_flags PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_options(gdpo_no_math_flags PRIVATE -O2)
  add_dependencies(gdpo_core_tests gdpo_no_math_flags)
  set(objects "$<TARGET_OBJECTS:gdpo_no_math_flags>" "$<TARGET_OBJECTS:fast_math_logits>"
    "$<TARGET_OBJECTS:finite_math_logits>")
  # Clang defines no macro for -fassociative-math, so the library cannot tell that it was given.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND objects "$<TARGET_OBJECTS:associative_math_logits>")
  endif()
  list(JOIN objects "\" \"" objects)
  set(programs ${CMAKE_CURRENT_BINARY_DIR}/math_flags.cmake)
  file(GENERATE OUTPUT ${programs}
    CONTENT "gdpo_bits_program(math_flags \"\" \"\" \"${objects}\")\n")
  add_test(NAME odr.math_flags COMMAND ${CMAKE_COMMAND} -DPROGRAMS=${programs} -DNM=${CMAKE_NM}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/odr/symbols.cmake)
  set_tests_properties(odr.math_flags PROPERTIES LABELS core)
endif()
if(NOT GDPO_TEST_LINE STREQUAL "lanes")
  gdpo_add_flag_test(no_exceptions "no_exceptions/*.cpp" -fno-exceptions -fno-rtti)
endif()
