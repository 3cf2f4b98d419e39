# What the runner gives on the shipped records, function by function: no case fails, and exactly the
# listed numbers of cases pass. The test fails where a case becomes unsupported, where one passes
# that did not, and where a function disappears. Recordings of releases are counted by file, and
# each case that is not compared must have its reason in tests/conformance/gaps.cpp.
#   cmake -DRUNNER=<program> -DEXEC=<seq|simd|parallel|grid> -DGOLDEN=<directory>
#     -DREPORT=<file to write> -P supported.cmake
cmake_minimum_required(VERSION 3.22)

# Recordings of releases: "<file> <cases that pass> <cases that are listed in gaps.cpp>".
set(released
    "areal_1.0.4.advantage 59 2"
    "areal_1.0.4.aggregate 14 0"
    "areal_1.0.4.kl 18 0"
    "areal_1.0.4.loss 65 2"
    "liger_0.8.5.aggregate 3 1"
    "liger_0.8.5.kl 3 0"
    "liger_0.8.5.loss 96 2"
    "ms_swift_4.6.0.advantage 100 0"
    "ms_swift_4.6.0.loss 114 0"
    "openrlhf_0.11.2.advantage 60 0"
    "openrlhf_0.11.2.aggregate 11 0"
    "openrlhf_0.11.2.kl 33 0"
    "openrlhf_0.11.2.loss 70 0"
    "prime_rl_559b447.advantage 23 0"
    "prime_rl_559b447.loss 27 0"
    "skyrl_0.3.0.advantage 42 0"
    "skyrl_0.3.0.aggregate 39 0"
    "skyrl_0.3.0.kl 12 0"
    "skyrl_0.3.0.loss 100 0"
    "torchrl_0.14.1.advantage 8 2"
    "torchrl_0.14.1.kl 3 0"
    "torchrl_0.14.1.loss 32 0"
    "trinity_0.6.0.advantage 90 2"
    "trinity_0.6.0.aggregate 8 0"
    "trinity_0.6.0.kl 18 0"
    "trinity_0.6.0.loss 88 0"
    "trl_1.16.0.advantage 76 0"
    "trl_1.16.0.aggregate 11 1"
    "trl_1.16.0.loss 136 2"
    "unsloth_zoo_2026.10.9.aggregate 29 0"
    "unsloth_zoo_2026.10.9.logp 0 8"
    "unsloth_zoo_2026.10.9.loss 83 0"
    "verl_0.9.1.advantage 119 0"
    "verl_0.9.1.aggregate 80 0"
    "verl_0.9.1.kl 31 0"
    "verl_0.9.1.loss 122 0")

# Functions of which every case passes: "<source> <function> <cases that pass>".
set(supported
    "grpo_tutorial grpo_loss_plain 4"
    "grpo_tutorial grpo_step 3"
    "liger k3_loss_fn 7"
    "ms_swift compute_advantages 63"
    "ms_swift compute_std_for_dynamic_sampling 3"
    "nvlabs_gdpo GRPOTrainer._generate_and_score_completions(advantages) 48"
    "nvlabs_gdpo compute_advantage(gdpo) 9"
    "nvlabs_gdpo compute_advantage(grpo) 8"
    "nvlabs_gdpo compute_advantage(grpo_no_std) 8"
    "nvlabs_gdpo compute_grpo_bn_outcome_advantage 11"
    "nvlabs_gdpo compute_grpo_no_std_bn_outcome_advantage 10"
    "nvlabs_gdpo compute_grpo_no_std_outcome_advantage 10"
    "nvlabs_gdpo compute_grpo_outcome_advantage 11"
    "nvlabs_gdpo masked_mean 2"
    "nvlabs_gdpo masked_whiten 4"
    "nvlabs_gdpo kl_penalty 20"
    "nvlabs_gdpo GRPOTrainer._compute_loss 56"
    "nvlabs_gdpo compute_policy_loss 17"
    "omnisafe CPPOPID._compute_adv_surrogate 3"
    "omnisafe PPOLag._compute_adv_surrogate 3"
    "omnisafe Lagrange.update_lagrange_multiplier 15"
    "omnisafe PIDLagrangian.pid_update 27"
    "open_instruct DataPreparationActor(advantages) 19"
    "open_instruct masked_mean 7"
    "open_instruct estimate_kl 7"
    "open_instruct compute_grpo_loss+masked_mean 61"
    "nemo_rl GRPOAdvantageEstimator.compute_advantage 31"
    "nemo_rl GeneralizedAdvantageEstimator.compute_advantage 12"
    "openrlhf AdaptiveKLController 1"
    "openrlhf ValueLoss.forward 4"
    "openrlhf aggregate_loss 8"
    "openrlhf compute_approx_kl 12"
    "openrlhf PolicyLoss.forward 50"
    "slime RolloutManager._post_process_rewards 29"
    "slime chunked_gae 2"
    "slime vanilla_gae 2"
    "trl GRPOTrainer._generate_and_score_completions(advantages) 54"
    "trl GRPOTrainer.get_off_policy_mask 7"
    "verl compute_gdpo_outcome_advantage 31"
    "verl compute_grpo_outcome_advantage 21"
    "verl compute_grpo_vectorized_outcome_advantage 13"
    "verl compute_reinforce_plus_plus_baseline_outcome_advantage 9"
    "verl compute_rloo_outcome_advantage 9"
    "verl compute_rloo_vectorized_outcome_advantage 9"
    "verl compute_gae_advantage_return 4"
    "verl compute_gpg_outcome_advantage 9"
    "verl compute_grpo_passk_outcome_advantage 11"
    "verl compute_opo_outcome_advantage 9"
    "verl compute_reinforce_plus_plus_outcome_advantage 4"
    "verl compute_value_loss 4"
    "verl agg_loss 21"
    "verl masked_mean 3"
    "verl masked_whiten 6"
    "verl compute_rewards 1"
    "verl kl_penalty 39"
    "verl compute_policy_loss 3"
    "verl compute_policy_loss_cispo 15"
    "verl compute_policy_loss_clip_cov 6"
    "verl compute_policy_loss_gspo 16"
    "verl compute_policy_loss_kl_cov 6"
    "verl compute_policy_loss_vanilla 52"
    "verl AdaptiveKLController 2"
    "verl compute_policy_loss_dppo_kl 6"
    "verl compute_policy_loss_dppo_tv 6"
    "verl compute_policy_loss_gpg 6"
    "verl compute_policy_loss_reinforce 12"
    "liger LigerFusedLinearGRPOFunction.ppo_loss_fn 61"
    "ms_swift GRPOTrainer._compute_loss_and_metrics 117"
    "ms_swift MegatronGRPOTrainer.loss_func 8"
    "ms_swift compute_sdar_loss 9"
    "verl compute_policy_loss_dro 6"
    "verl compute_policy_loss_geo_mean 6"
    "verl compute_policy_loss_sapo 8"
    "ms_swift apply_rlsd_reweight 8"
    "ms_swift expand_advantage_to_per_token 4"
    "nemo_rl masked_mean 7"
    "nemo_rl calculate_kl 21"
    "nemo_rl ClippedPGLossFn.__call__ 78"
    "openrlhf masked_normalize 4"
    "slime compute_approx_kl 12"
    "slime loss_function(policy_loss) 64"
    "trl GRPOTrainer.get_gamma_weights 7"
    "ms_swift compute_advantages_dynamic 42"
    "nemo_rl GDPOAdvantageEstimator.compute_advantage 21"
    "nemo_rl RawRewardAdvantageEstimator.compute_advantage 3"
    "nemo_rl ReinforcePlusPlusAdvantageEstimator.compute_advantage 29"
    "nemo_rl calculate_baseline_and_std_per_prompt 14"
    "openrlhf RemoteExperienceMaker.compute_advantages_and_returns 61"
    "slime compute_advantages_and_returns 21"
    "verl compute_multi_turn_optimal_token_baseline_advantage 9"
    "verl compute_optimal_token_baseline_advantage 9"
    "verl compute_remax_outcome_advantage 4")
# Functions of which some cases are unsupported: "<source> <function> <pass> <unsupported>".
set(partly_supported
    "trl GRPOTrainer._compute_loss 154 7"
    "verl compute_policy_loss_bypass_mode 14 1")

execute_process(COMMAND "${RUNNER}" "${GOLDEN}" --exec ${EXEC} --json "${REPORT}"
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "exit status ${status}")
endif()

file(READ "${REPORT}" report)
string(JSON passed_in_float GET "${report}" float passed)
get_filename_component(directory "${GOLDEN}" NAME)
if(directory STREQUAL "released")
  string(JSON count LENGTH "${report}" files)
  math(EXPR last "${count} - 1")
  set(found)
  foreach(k RANGE ${last})
    foreach(member file passed unsupported unlisted)
      string(JSON ${member} GET "${report}" files ${k} ${member})
    endforeach()
    list(APPEND found "${file} ${passed} ${unsupported}")
    if(NOT unlisted EQUAL 0)
      message(SEND_ERROR "${file}: ${unlisted} cases are not compared, and gaps.cpp has no reason")
    endif()
  endforeach()
  if(NOT EXEC STREQUAL "seq")
    list(APPEND released "kernels of float 1266 0")
    list(APPEND found "kernels of float ${passed_in_float} 0")
  endif()
  set(missing ${released})
  set(unlisted ${found})
  list(REMOVE_ITEM missing ${found})
  list(REMOVE_ITEM unlisted ${released})
  if(missing OR unlisted)
    list(JOIN missing "\n  " missing)
    list(JOIN unlisted "\n  " unlisted)
    message(FATAL_ERROR "listed in supported.cmake and not found:\n  ${missing}\n"
      "found and not listed:\n  ${unlisted}")
  endif()
  return()
endif()
string(JSON count LENGTH "${report}" functions)
math(EXPR last "${count} - 1")
set(found)
foreach(k RANGE ${last})
  foreach(member source function passed failed unsupported)
    string(JSON ${member} GET "${report}" functions ${k} ${member})
  endforeach()
  if(unsupported EQUAL 0)
    set(unsupported)
  else()
    set(unsupported " ${unsupported}")
  endif()
  if(passed GREATER 0)
    list(APPEND found "${source} ${function} ${passed}${unsupported}")
  endif()
endforeach()
# Losses also run in float, on every target but seq, where only the kernels of double are run.
if(NOT EXEC STREQUAL "seq")
  list(APPEND supported "kernels of float 1178")
endif()
if(passed_in_float GREATER 0)
  list(APPEND found "kernels of float ${passed_in_float}")
endif()
# CMake does not split a list inside square brackets, so they become parentheses.
string(REPLACE "[" "(" found "${found}")
string(REPLACE "]" ")" found "${found}")
set(missing ${supported} ${partly_supported})
set(unlisted ${found})
list(REMOVE_ITEM missing ${found})
list(REMOVE_ITEM unlisted ${supported} ${partly_supported})
if(missing OR unlisted)
  list(JOIN missing "\n  " missing)
  list(JOIN unlisted "\n  " unlisted)
  message(FATAL_ERROR "listed in supported.cmake and not found:\n  ${missing}\n"
    "found and not listed:\n  ${unlisted}")
endif()
