# Checks that nvcc compiles SOURCE without a warning, and that for each architecture every kernel
# keeps its variables in registers (no stack frame, no spills). Kernels whose names match VECTORS
# must read numbers of 32 bits four at a time. The front end runs once, for the first architecture;
# ptxas makes the code of every architecture from that PTX.
#   cmake -DNVCC=nvcc -DSOURCE=file.cu "-DARCHS=80;90" -DSTANDARD=17 -DFLAGS=<list> -DWORK=<folder>
#     [-DVECTORS=<regex>] -P check_ptx.cmake
cmake_minimum_required(VERSION 3.22)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
list(GET ARCHS 0 lowest)
list(JOIN ARCHS ",sm_" codes)
list(JOIN ARCHS ", sm_" names)
execute_process(
  COMMAND ${NVCC} ${FLAGS} -std=c++${STANDARD}
    -gencode "arch=compute_${lowest},code=[sm_${codes}]" -Werror all-warnings
    -Xptxas -v -keep -keep-dir ${WORK} -c ${SOURCE} -o ${WORK}/object.o
  WORKING_DIRECTORY ${WORK} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
# nvcc does not take warnings of the host's compiler for errors, so they are searched for.
if(NOT result EQUAL 0 OR output MATCHES "warning:")
  message("${output}")
  message(FATAL_ERROR
    "${SOURCE} does not compile for sm_${names} as C++${STANDARD} without a warning")
endif()

# ptxas prints for every kernel
#   ptxas info : Compiling entry function 'NAME' for 'sm_90'
#   ptxas info : Function properties for NAME
#       0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
# and the last two lines also for functions that are no kernels.
string(REPLACE ";" "," lines "${output}")
string(REPLACE "\n" ";" lines "${lines}")
set(arch "?")
set(function "?")
set(errors "")
foreach(line IN LISTS lines)
  if(line MATCHES "Compiling entry function '([^']*)' for 'sm_([0-9]+)'")
    set(function ${CMAKE_MATCH_1})
    set(arch ${CMAKE_MATCH_2})
    list(APPEND kernels_${arch} ${function})
  elseif(line MATCHES "Function properties for *'?([A-Za-z0-9_$]+)")
    set(function ${CMAKE_MATCH_1})
  elseif(line MATCHES "bytes stack frame")
    list(APPEND reported_${arch} ${function})
    if(NOT line MATCHES " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
      string(APPEND errors "sm_${arch}: ${function} ${line}\n")
    endif()
  endif()
endforeach()
foreach(arch IN LISTS ARCHS)
  list(LENGTH kernels_${arch} count)
  list(LENGTH kernels_${lowest} expected)
  list(LENGTH reported_${arch} reported)
  if(count EQUAL 0 OR NOT count EQUAL expected OR reported LESS count)
    message(FATAL_ERROR
      "ptxas reports ${reported} functions of ${count} kernels for sm_${arch}:\n${output}")
  endif()
endforeach()

if(VECTORS)
  file(GLOB ptx ${WORK}/*.ptx)
  set(inside FALSE)
  set(vectors 0)
  set(matching 0)
  file(STRINGS "${ptx}" lines REGEX "\\.entry |ld\\.global[a-zA-Z0-9_.:]*\\.v4\\.[fbus]32")
  foreach(line IN LISTS lines)
    if(line MATCHES "\\.entry ")
      if(inside AND of_kernel EQUAL 0)
        string(APPEND errors "no ld.global.v4 in ${name}\n")
      endif()
      set(inside FALSE)
      if(line MATCHES "${VECTORS}")
        set(inside TRUE)
        set(of_kernel 0)
        string(REGEX REPLACE ".*\\.entry ([A-Za-z0-9_$]*).*" "\\1" name "${line}")
        math(EXPR matching "${matching} + 1")
      endif()
    elseif(inside)
      math(EXPR of_kernel "${of_kernel} + 1")
      math(EXPR vectors "${vectors} + 1")
    endif()
  endforeach()
  if(inside AND of_kernel EQUAL 0)
    string(APPEND errors "no ld.global.v4 in ${name}\n")
  endif()
  if(matching EQUAL 0)
    string(APPEND errors "no kernel's name matches ${VECTORS}\n")
  endif()
  set(said ", ${vectors} ld.global.v4 in the ${matching} kernels that match ${VECTORS}")
endif()
if(errors)
  find_program(CXXFILT c++filt)
  if(CXXFILT)
    file(WRITE ${WORK}/errors "${errors}")
    execute_process(COMMAND ${CXXFILT} INPUT_FILE ${WORK}/errors OUTPUT_VARIABLE errors)
  endif()
  message("${errors}")
  message(FATAL_ERROR "${SOURCE}: not every kernel is as it must be (above)")
endif()
message("sm_${names}, C++${STANDARD}: ${count} kernels without stack and spills${said}")
file(REMOVE_RECURSE ${WORK})
