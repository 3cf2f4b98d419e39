# With GDPO_CUDA: enables the language CUDA and makes the target gdpo_cuda_dev, which carries the
# warnings of this project's own CUDA targets, as gdpo_dev does for C++. The exported target
# gdpo::cuda carries no warnings and no architecture.

if(NOT GDPO_CUDA)
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90 100)  # CMake passes them on, also those it does not know
endif()
if(NOT CMAKE_CUDA_STANDARD)
  set(CMAKE_CUDA_STANDARD ${CMAKE_CXX_STANDARD})
endif()
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the runtime that gdpo::cuda links
list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})  # the loader may not search this folder
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR
    "gdpo needs CUDA 12 or 13; ${CMAKE_CUDA_COMPILER} is of ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}; "
  "other versions are not tested")

add_library(gdpo_cuda_dev INTERFACE)
target_link_libraries(gdpo_cuda_dev INTERFACE gdpo::cuda)
target_compile_options(gdpo_cuda_dev INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${GDPO_WERROR}>>:-Werror=all-warnings>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;$<$<BOOL:${GDPO_WERROR}>:-Werror>>)

# `cmake/dev gpu` builds this target. Every target that needs a device is added to it.
add_custom_target(gdpo_gpu)
