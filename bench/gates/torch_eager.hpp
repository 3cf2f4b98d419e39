#pragma once
// What a trainer's eager code takes for the same work, on the same memory, through LibTorch's C++ interface. No header of torch
// here: torch_eager.cpp is compiled where LibTorch is found, torch_absent.cpp elsewhere.
#include <memory>

#include "../naive.hpp"

namespace gates {

struct LogitsBatch {
  std::ptrdiff_t rows, tokens;
  const float* logits;          // (rows, tokens)
  const std::int64_t* targets;  // (rows)
  const float* upstream;        // (rows) dL/dlogp
};

/// A graph kept between calls, so that its backward pass can be timed alone.
struct TorchGraph {
  virtual ~TorchGraph() = default;
  /// dlogits (rows, tokens); null: computed, not copied out.
  virtual void backward(float* dlogits) = 0;
};

struct Torch {
  const char* version;
  void (*use_threads)(int threads);
  /// Autograd and metrics. gradient: null: computed, not copied out.
  naive::GrpoSums (*grpo)(const naive::GrpoBatch& batch, float* gradient);
  /// The gradient written out by hand, no graph and no metrics but the loss.
  double (*grpo_by_hand)(const naive::GrpoBatch& batch, float* gradient);
  /// (prompts * K, C) -> (prompts * K)
  void (*gdpo_advantages)(const float* rewards, std::ptrdiff_t prompts, std::ptrdiff_t K,
                          std::ptrdiff_t C, float* out);
  /// log_softmax, gather, entropy.
  void (*token_logprobs)(const LogitsBatch& batch, float* logp, float* entropy);
  /// gather - logsumexp.
  void (*token_logprobs_by_logsumexp)(const LogitsBatch& batch, float* logp);
  std::unique_ptr<TorchGraph> (*graph)(const LogitsBatch& batch);
  /// token_logprobs and its backward pass.
  void (*forward_backward)(const LogitsBatch& batch, float* logp, float* entropy, float* dlogits);
};

/// Null: LibTorch was not found when this program was built.
const Torch* torch();

}  // namespace gates
