# gdpo_add_header_tests(<target>)
#
# An executable whose linking proves, for every header under include/gdpo (those apart that only nvcc compiles, gdpo/cuda.hpp and
# gdpo/cuda/device/on.hpp, and with/openmp.hpp where OpenMP was not found):
#   alone    it compiles as the first include of a translation unit: it includes what it uses;
#   twice    including it again changes nothing;
#   linked   no header defines something that clashes when two translation units include it;
#   no Eigen it needs none (the umbrella gdpo.hpp and the adapters of with/ apart);
#   hostile  all headers survive the macros that windows.h, complex.h and friends define.
#
# The hostile macros are defined after the standard and Eigen headers, never before them: min(a, b) as a macro breaks
# libstdc++ and Eigen themselves, so no user can be in that position. tests/support/hostile_macros.hpp includes
# those headers first; a gdpo header that uses a new standard header fails there until the list has it, so the list cannot rot.
# A include guard lets each header's text through once a translation unit, hence one hostile unit serves all headers.
#
# In the lines of the matrix (GDPO_TEST_LINE) there is the hostile unit only: whether a header includes what it uses does not depend
# on flags, and a translation unit a header is an eighth of the time of such a line.

function(gdpo_add_header_tests target)
  set(include_dir ${PROJECT_SOURCE_DIR}/include)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${include_dir} ${include_dir}/gdpo/*.hpp)
  list(REMOVE_ITEM headers gdpo/cuda.hpp gdpo/cuda/device/on.hpp)
  if(NOT OpenMP_CXX_FOUND)
    list(REMOVE_ITEM headers gdpo/with/openmp.hpp)
  endif()

  set(unit_dir ${CMAKE_CURRENT_BINARY_DIR}/${target}_units)
  set(units)
  set(adapter_units)
  set(hostile "#include \"${PROJECT_SOURCE_DIR}/tests/support/hostile_macros.hpp\"\n")
  foreach(header IN LISTS headers)
    string(APPEND hostile "#include <${header}>\n")
    if(GDPO_TEST_LINE)
      continue()
    endif()
    string(REPLACE "/" "_" unit ${header})
    string(REGEX REPLACE "\\.hpp$" ".cpp" unit ${unit_dir}/${unit})
    set(unit_text "#include <${header}>\n#include <${header}>\n")
    if(header MATCHES "^gdpo/(gdpo[.]hpp|with/)")
      list(APPEND adapter_units ${unit})
    else()
      list(APPEND units ${unit})
      string(APPEND unit_text "#if defined(EIGEN_WORLD_VERSION)\n#error <${header}> includes Eigen\n#endif\n")
    endif()
    gdpo_write_if_different(${unit} "${unit_text}")
  endforeach()
  gdpo_write_if_different(${unit_dir}/hostile.cpp "${hostile}")
  gdpo_write_if_different(${unit_dir}/main.cpp "int main() { return 0; }\n")

  # Their only folder is include/. Where the compiler's own path has Eigen, the #error in them notices it.
  set(objects)
  if(units)
    add_library(${target}_alone OBJECT ${units})
    target_include_directories(${target}_alone PRIVATE ${include_dir})
    target_compile_options(${target}_alone PRIVATE $<TARGET_PROPERTY:gdpo_dev,INTERFACE_COMPILE_OPTIONS>)
    target_compile_options(${target}_alone PRIVATE $<$<NOT:$<CXX_COMPILER_ID:MSVC>>:-O0>)
    set(objects $<TARGET_OBJECTS:${target}_alone>)
  endif()
  add_executable(${target} ${objects} ${adapter_units} ${unit_dir}/hostile.cpp ${unit_dir}/main.cpp)
  target_link_libraries(${target} PRIVATE gdpo_dev nlohmann_json::nlohmann_json Threads::Threads)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  endif()
  target_compile_options(${target} PRIVATE $<$<NOT:$<CXX_COMPILER_ID:MSVC>>:-O0>)  # nothing is executed
endfunction()

# Writes a generated source, keeping its time stamp where nothing changed.
function(gdpo_write_if_different path content)
  if(EXISTS ${path})
    file(READ ${path} old)
    if(old STREQUAL content)
      return()
    endif()
  endif()
  file(WRITE ${path} "${content}")
endfunction()
