#pragma once
#include <torch/csrc/stable/library.h>

#include <cstdint>

/// The operators that are compiled for several instruction sets, as PyTorch calls them.
struct Losses {
  using Operator = void(StableIValue *, std::uint64_t, std::uint64_t);
  Operator *policy_loss, *token_logprobs, *token_logprobs_backward, *policy_loss_from_logits,
      *policy_loss_from_logits_in_place, *contrastive_loss;
};

extern const Losses losses_baseline;  ///< For every processor of the architecture.
extern const Losses losses_v3;        ///< For x86-64-v3: AVX2 and FMA.
extern const Losses losses_v4;        ///< For x86-64-v4: AVX-512.
