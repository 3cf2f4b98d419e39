# The functions below are supported: every recorded case of them passes, none is left out.
#   cmake -DRUNNER=<program> -DGOLDEN=<directory> -DREPORT=<file to write> -P supported.cmake
cmake_minimum_required(VERSION 3.22)

set(supported
    "ms_swift compute_advantages 63"
    "nvlabs_gdpo GRPOTrainer._generate_and_score_completions(advantages) 48"
    "nvlabs_gdpo compute_advantage(gdpo) 9"
    "nvlabs_gdpo compute_advantage(grpo) 8"
    "nvlabs_gdpo compute_advantage(grpo_no_std) 8"
    "nvlabs_gdpo compute_grpo_bn_outcome_advantage 11"
    "nvlabs_gdpo compute_grpo_no_std_bn_outcome_advantage 10"
    "nvlabs_gdpo compute_grpo_no_std_outcome_advantage 10"
    "nvlabs_gdpo compute_grpo_outcome_advantage 11"
    "open_instruct DataPreparationActor(advantages) 19"
    "trl GRPOTrainer._generate_and_score_completions(advantages) 54"
    "verl compute_gdpo_outcome_advantage 31"
    "verl compute_grpo_outcome_advantage 21"
    "verl compute_grpo_vectorized_outcome_advantage 13"
    "verl compute_reinforce_plus_plus_baseline_outcome_advantage 9"
    "verl compute_rloo_outcome_advantage 9"
    "verl compute_rloo_vectorized_outcome_advantage 9")

execute_process(COMMAND "${RUNNER}" "${GOLDEN}" --kind advantage --json "${REPORT}" RESULT_VARIABLE status
                OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "exit status ${status}")
endif()

file(READ "${REPORT}" report)
string(JSON count LENGTH "${report}" functions)
math(EXPR last "${count} - 1")
set(complete)
foreach(k RANGE ${last})
  foreach(member source function passed failed unsupported)
    string(JSON ${member} GET "${report}" functions ${k} ${member})
  endforeach()
  if(failed EQUAL 0 AND unsupported EQUAL 0)
    list(APPEND complete "${source} ${function} ${passed}")
  endif()
endforeach()
string(REPLACE "[" "(" complete "${complete}")  # brackets keep CMake from splitting a list
string(REPLACE "]" ")" complete "${complete}")
foreach(entry IN LISTS supported)
  if(NOT entry IN_LIST complete)
    message(FATAL_ERROR "not all of its cases pass: ${entry}")
  endif()
endforeach()
