# Runs examples/mpi_trainer on 1, 2, 3, 4 and 8 ranks: each run has to print the same lines. Then it
# stops after 9 steps, and resumes on another number of ranks.
#   cmake "-DLAUNCH=<mpiexec>;<option for the number of ranks>" -DTRAINER=<program> -P trainer.cmake
cmake_minimum_required(VERSION 3.22)

# Runs the trainer on so many ranks and sets `output` and `status` of the caller.
function(gdpo_train ranks)
  execute_process(COMMAND ${LAUNCH} ${ranks} ${TRAINER} ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  set(status "${status}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()
function(gdpo_expect what given wanted)
  if(NOT given STREQUAL wanted)
    message(SEND_ERROR "${what}: given\n${given}\nwanted\n${wanted}")
  endif()
endfunction()

gdpo_train(1)
set(whole "${output}")
if(NOT status EQUAL 0 OR NOT whole MATCHES "step 19 .*\nparameters [0-9.]+\n$")
  message(FATAL_ERROR "one rank: status ${status}, output\n${whole}${errors}")
endif()
foreach(ranks IN ITEMS 2 3 4 8)
  gdpo_train(${ranks})
  gdpo_expect("${ranks} ranks" "${output}" "${whole}")
endforeach()

set(checkpoint ${CMAKE_CURRENT_BINARY_DIR}/mpi_trainer.checkpoint)
gdpo_train(3 --steps 9 --checkpoint ${checkpoint})
string(REGEX REPLACE "parameters [^\n]*\n$" "" begun "${output}")
gdpo_train(2 --resume ${checkpoint})
gdpo_expect("stopped on 3 ranks and resumed on 2" "${begun}${output}" "${whole}")
file(REMOVE ${checkpoint})

gdpo_train(2 --resume ${checkpoint})
if(status EQUAL 0 OR NOT errors MATCHES
    "mpi_trainer: rank 0: gdpo::dist::agree: rank 0 of 2: cannot read a checkpoint from ")
  message(SEND_ERROR "no checkpoint: status ${status}, output\n${output}${errors}")
endif()
