#pragma once
// The same work as a trainer's eager PyTorch code does it, on the same memory, through the C++
// interface of LibTorch. This header includes none of torch: torch_eager.cpp is compiled where
// LibTorch is found, torch_absent.cpp elsewhere.
#include <memory>

#include "../naive.hpp"

namespace gates {

struct LogitsBatch {
  std::ptrdiff_t rows, tokens;
  const float* logits;          // (rows, tokens)
  const std::int64_t* targets;  // (rows)
  const float* upstream;        // (rows) dloss/dlogp
};

/// An autograd graph that is kept between calls, so that its backward pass can be timed alone.
struct TorchGraph {
  virtual ~TorchGraph() = default;
  /// dlogits is (rows, tokens). If it is null, the gradient is computed but not copied out.
  virtual void backward(float* dlogits) = 0;
};

/// What LibTorch offers to the experiments.
struct Torch {
  const char* version;
  void (*use_threads)(int threads);
  /// The GRPO loss by autograd, with metrics. If `gradient` is null, it is computed but not copied
  /// out.
  naive::GrpoSums (*grpo)(const naive::GrpoBatch& batch, float* gradient);
  /// The GRPO loss with its gradient written out by hand: no graph and no metrics.
  double (*grpo_by_hand)(const naive::GrpoBatch& batch, float* gradient);
  /// GDPO advantages: rewards (prompts * K, C) to out (prompts * K).
  void (*gdpo_advantages)(const float* rewards, std::ptrdiff_t prompts, std::ptrdiff_t K,
                          std::ptrdiff_t C, float* out);
  /// Log-probs and entropies by log_softmax and gather.
  void (*token_logprobs)(const LogitsBatch& batch, float* logp, float* entropy);
  /// Log-probs as gather - logsumexp.
  void (*token_logprobs_by_logsumexp)(const LogitsBatch& batch, float* logp);
  std::unique_ptr<TorchGraph> (*graph)(const LogitsBatch& batch);
  /// token_logprobs, and its backward pass.
  void (*forward_backward)(const LogitsBatch& batch, float* logp, float* entropy, float* dlogits);
};

/// PyTorch's part, or null if LibTorch was not found when this program was built.
const Torch* torch();

}  // namespace gates
