# Runs examples/update_step on 1, 2 and 3 ranks with the settings that move most: each run has to
# print the same lines, the policy has to learn, and every key that open-instruct logs has to be
# there.
#   cmake "-DLAUNCH=<mpiexec>;<option for the number of ranks>" -DSTEP=<program>
#     -P update_step.cmake
cmake_minimum_required(VERSION 3.22)

set(settings --steps 30 --epochs 2 --mini-batches 3 --refresh 5 --kl-target 0.02)
foreach(ranks IN ITEMS 1 2 3)
  execute_process(COMMAND ${LAUNCH} ${ranks} ${STEP} ${settings}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ranks} ranks: status ${status}, output\n${output}${errors}")
  endif()
  if(ranks EQUAL 1)
    set(whole "${output}")
  elseif(NOT output STREQUAL whole)
    message(SEND_ERROR "${ranks} ranks: given\n${output}\nwanted\n${whole}")
  endif()
endforeach()

string(REGEX MATCHALL "[^\n]+" lines "${whole}")
list(LENGTH lines count)
list(GET lines 0 first)
list(GET lines 29 last)
if(NOT count EQUAL 31)
  message(SEND_ERROR "${count} lines, wanted 31:\n${whole}")
endif()
foreach(key IN ITEMS loss/kl_avg loss/policy_avg loss/total_avg lr objective/kl0_avg
    objective/kl1_avg objective/kl2_avg objective/kl3_avg optim/grad_norm packed_ratio
    policy/clipfrac_avg policy/entropy_avg real_batch_size_ratio scores unsolved_batch_size_ratio
    val/advantages_max val/advantages_mean val/advantages_min val/ratio val/ratio_var
    val/sequence_lengths val/sequence_lengths_max val/sequence_lengths_min val/stop_rate)
  string(JSON value ERROR_VARIABLE missing GET "${last}" ${key})
  if(missing)
    message(SEND_ERROR "no number ${key} in\n${last}")
  endif()
endforeach()
string(JSON before GET "${first}" scores)
string(JSON after GET "${last}" scores)
if(NOT after GREATER before)
  message(SEND_ERROR "scores fell from ${before} to ${after}")
endif()

execute_process(COMMAND ${LAUNCH} 2 ${STEP} --alpha 1.5
  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE errors)
if(status EQUAL 0 OR NOT errors MATCHES
    "update_step: gdpo::update::Refresh: tau: given 1.5; needed: 0 to 1\n")
  message(SEND_ERROR "--alpha 1.5: status ${status}, errors\n${errors}")
endif()
