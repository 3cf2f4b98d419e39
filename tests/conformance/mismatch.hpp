// Recorded statistics of the mismatch of sampler and trainer, compared with a mismatch report.
#pragma once

#include <gdpo/mismatch.hpp>
#include <string>
#include <vector>

#include "comparison.hpp"
#include "token_inputs.hpp"

namespace conformance {

// The report of the tokens, padded; packed it must have the same bits.
gdpo::MismatchReport mismatch_of(const TokenInputs& in, const gdpo::MismatchSettings& settings,
                                 Comparison& comparison);

// Compares what a trainer logs with the report under its keys. `folder` is left out of the names
// that the record does not have it in.
void compare_mismatch(const gdpo::MismatchReport& report, gdpo::MismatchKeys keys,
                      const std::string& folder, Comparison& comparison,
                      gdpo::index_t positions = 0);

// What verl logs of a correction of the tokens: rollout_is_* of `weights`, if the correction has
// weights, and of the mismatch. `folder` as above.
void compare_verl_weights(const Json& correction, const TokenInputs& in,
                          const std::vector<double>& weights, const std::string& folder,
                          Comparison& comparison);
// verl's shares of tokens and rows that rejections have masked: where `kept` is 0.
void compare_verl_rejected(const TokenInputs& in, const std::vector<double>& kept,
                           const std::string& prefix, Comparison& comparison);

// The statistics beside a recorded correction, whose weights are `weights`: verl's rollout_is_*,
// SkyRL's is_ratio_* of the tokens as they were recorded.
void compare_correction(const Case& recorded, const TokenInputs& in,
                        const std::vector<double>& weights, Comparison& comparison);

// The statistics beside a recorded loss, by its trainer: ms-swift's rollout_correction/*, SkyRL's
// is_ratio_*, OpenRLHF's vllm_kl, NeMo-RL's errors.
void compare_mismatch_of_loss(const Case& recorded, const TokenInputs& in,
                              const std::vector<double>& weights, Comparison& comparison);

}  // namespace conformance
