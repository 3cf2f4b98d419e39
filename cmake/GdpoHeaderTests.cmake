# gdpo_add_header_tests(<target>)
#
# Adds an executable. If it builds and links, this holds for every header under include/gdpo, except
# gdpo/cuda.hpp and gdpo/cuda/device/on.hpp, which only nvcc compiles, with/nccl.hpp and those of
# LibTorch and PyTorch (with/torch*), which other tests compile, and with/openmp.hpp, with/mpi.hpp
# and with/dlpack.hpp if OpenMP, MPI or the header of DLPack was not found:
#   alone     It compiles as the first include of a translation unit, so it includes what it uses.
#   twice     Including it again changes nothing.
#   linked    It defines nothing that clashes when two translation units include it.
#   no Eigen  It includes no Eigen; gdpo.hpp and the adapters in with/ are excepted.
#   hostile   It survives the macros that windows.h, complex.h and others define.
#
# The hostile macros are defined after the standard and Eigen headers. A macro min(a, b) before them
# breaks libstdc++ and Eigen themselves, so no user can have that. tests/support/hostile_macros.hpp
# includes those headers first. A gdpo header that includes another standard header fails there
# until the list has it, so the list stays complete. An include guard lets a header through once in
# a translation unit, so one hostile unit serves all headers.
#
# One unit for each header takes as long as a tenth of all tests, so the matrix alone has them
# (GDPO_TEST_LINE is "matrix"). Every other build, each line of the matrix among them, has the
# hostile unit only.

# Lists the headers that this machine compiles, and looks for what their adapters need.
macro(gdpo_find_headers)
  set(include_dir ${PROJECT_SOURCE_DIR}/include)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${include_dir} ${include_dir}/gdpo/*.hpp)
  list(REMOVE_ITEM headers gdpo/cuda.hpp gdpo/cuda/device/on.hpp gdpo/with/nccl.hpp)
  list(FILTER headers EXCLUDE REGEX "^gdpo/with/torch")
  if(NOT OpenMP_CXX_FOUND)
    list(REMOVE_ITEM headers gdpo/with/openmp.hpp)
  endif()
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    list(REMOVE_ITEM headers gdpo/with/mpi.hpp)
  endif()
  if(NOT TARGET gdpo_dlpack)
    list(REMOVE_ITEM headers gdpo/with/dlpack.hpp)
  endif()
endmacro()

function(gdpo_add_header_tests target)
  gdpo_find_headers()

  set(unit_dir ${CMAKE_CURRENT_BINARY_DIR}/${target}_units)
  set(units)
  set(adapter_units)
  set(hostile "#include \"${PROJECT_SOURCE_DIR}/tests/support/hostile_macros.hpp\"\n")
  if(MPI_CXX_FOUND)
    string(PREPEND hostile "#include <mpi.h>\n")  # stands before the macros as well
  endif()
  if(TARGET gdpo_dlpack)
    string(PREPEND hostile "#include <dlpack/dlpack.h>\n")  # the same
  endif()
  foreach(header IN LISTS headers)
    string(APPEND hostile "#include <${header}>\n")
    if(NOT GDPO_TEST_LINE STREQUAL "matrix")
      continue()
    endif()
    string(REPLACE "/" "_" unit ${header})
    string(REGEX REPLACE "\\.hpp$" ".cpp" unit ${unit_dir}/${unit})
    set(unit_text "#include <${header}>\n#include <${header}>\n")
    if(header MATCHES "^gdpo/(gdpo[.]hpp|with/)")
      list(APPEND adapter_units ${unit})
    else()
      list(APPEND units ${unit})
      string(APPEND unit_text
        "#if defined(EIGEN_WORLD_VERSION)\n#error <${header}> includes Eigen\n#endif\n")
    endif()
    gdpo_write_if_different(${unit} "${unit_text}")
  endforeach()
  gdpo_write_if_different(${unit_dir}/hostile.cpp "${hostile}")
  gdpo_write_if_different(${unit_dir}/main.cpp "int main() { return 0; }\n")

  # These units search include/ only. If the compiler's own path has Eigen, their #error notices it.
  set(objects)
  if(units)
    add_library(${target}_alone OBJECT ${units})
    target_include_directories(${target}_alone PRIVATE ${include_dir})
    target_compile_options(${target}_alone PRIVATE
      $<TARGET_PROPERTY:gdpo_dev,INTERFACE_COMPILE_OPTIONS>)
    target_compile_options(${target}_alone PRIVATE $<$<NOT:$<CXX_COMPILER_ID:MSVC>>:-O0>)
    set(objects $<TARGET_OBJECTS:${target}_alone>)
  endif()
  add_executable(${target} ${objects} ${adapter_units} ${unit_dir}/hostile.cpp ${unit_dir}/main.cpp)
  target_link_libraries(${target} PRIVATE gdpo_dev nlohmann_json::nlohmann_json Threads::Threads)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  endif()
  if(MPI_CXX_FOUND)
    target_link_libraries(${target} PRIVATE MPI::MPI_CXX)
  endif()
  if(TARGET gdpo_dlpack)
    target_link_libraries(${target} PRIVATE gdpo_dlpack)
  endif()
  # Nothing is executed, so nothing is optimized.
  target_compile_options(${target} PRIVATE $<$<NOT:$<CXX_COMPILER_ID:MSVC>>:-O0>)
endfunction()

# gdpo_add_include_order_tests()
#
# Adds tests that compile headers in other orders than that of their names, in which
# gdpo_add_header_tests includes them (tests/include_order/). Every change compiles few files:
#   headers.orders        all headers, reversed and in a random order
#   headers.door_orders   the front doors alone, so that no adapter hides what they lack
# With GDPO_TEST_ALL:
#   headers.many_orders   all headers in many random orders
#   headers.door_pairs    each front door after each other one
function(gdpo_add_include_order_tests)
  if(MSVC)
    return()  # the script asks for the options of g++ and clang++
  endif()
  gdpo_find_headers()
  set(compile ${CMAKE_CXX_COMPILER} ${CMAKE_CXX${CMAKE_CXX_STANDARD}_STANDARD_COMPILE_OPTION})
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${OpenMP_CXX_FLAGS}")
  set(folders $<TARGET_PROPERTY:Eigen3::Eigen,INTERFACE_INCLUDE_DIRECTORIES>
    $<TARGET_PROPERTY:nlohmann_json::nlohmann_json,INTERFACE_INCLUDE_DIRECTORIES>
    ${MPI_CXX_INCLUDE_DIRS} ${GDPO_DLPACK_INCLUDE})
  set(doors ${headers})
  list(FILTER doors INCLUDE REGEX "^gdpo/[a-z]+[.]hpp$")
  set(own_doors ${doors})
  list(REMOVE_ITEM own_doors gdpo/gdpo.hpp)  # it includes the others, and Eigen

  # gdpo_add_order_test(<name> <list of headers> <option of the script>...)
  function(gdpo_add_order_test name list)
    add_test(NAME headers.${name} COMMAND ${CMAKE_COMMAND} "-DCOMPILE=${compile};${flags}"
      -DINCLUDE=${include_dir} "-DFOLDERS=${folders}" "-DHEADERS=${${list}}"
      -DWORK=${CMAKE_CURRENT_BINARY_DIR}/include_order/${name} ${ARGN}
      -P ${PROJECT_SOURCE_DIR}/tests/include_order/include_order.cmake)
  endfunction()
  gdpo_add_order_test(orders headers -DORDERS=reversed,random)
  gdpo_add_order_test(door_orders own_doors -DORDERS=reversed,random)
  if(GDPO_TEST_ALL)
    string(REPEAT "random," 19 many)
    gdpo_add_order_test(many_orders headers -DORDERS=${many}random)
    gdpo_add_order_test(door_pairs doors -DPAIRS=ON)
  endif()
endfunction()

# Writes a generated file, but keeps it and its time stamp if its content is the same.
function(gdpo_write_if_different path content)
  if(EXISTS ${path})
    file(READ ${path} old)
    if(old STREQUAL content)
      return()
    endif()
  endif()
  file(WRITE ${path} "${content}")
endfunction()
