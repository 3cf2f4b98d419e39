# Builds the program of this folder with nvcc, and runs it.
#   cmake -DNVCC=nvcc -DFLAGS=<list> -DWORK=<folder> -P check.cmake
cmake_minimum_required(VERSION 3.22)

file(MAKE_DIRECTORY ${WORK})
get_filename_component(nvcc ${NVCC} REALPATH)
get_filename_component(toolkit ${nvcc}/../.. ABSOLUTE)
execute_process(
  COMMAND ${NVCC} ${FLAGS} -std=c++17 -gencode arch=compute_90,code=sm_90
    -cudart shared -Xlinker -rpath=${toolkit}/lib64 -Werror all-warnings
    ${CMAKE_CURRENT_LIST_DIR}/main.cu ${CMAKE_CURRENT_LIST_DIR}/runtime.cpp -o ${WORK}/host_side
  WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/host_side COMMAND_ERROR_IS_FATAL ANY)
