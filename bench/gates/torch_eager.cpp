// Eager PyTorch as trainers write it: every operator makes an array of the size of the batch.
#include "torch_eager.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

namespace {

using at::Tensor;
using gates::LogitsBatch;

template <class T>
Tensor of(const T* data, at::IntArrayRef shape) {
  return at::from_blob(const_cast<T*>(data), shape, c10::CppTypeToScalarType<T>::value);
}
void copy_out(const Tensor& from, float* to) {
  if (to)
    std::memcpy(to, from.contiguous().data_ptr<float>(),
                static_cast<std::size_t>(from.numel()) * sizeof(float));
}

struct GrpoTensors {
  Tensor logp, old_logp, ref_logp, mask, advantages;
  explicit GrpoTensors(const naive::GrpoBatch& b)
      : logp(of(b.logp, {b.rows, b.width})),
        old_logp(of(b.old_logp, {b.rows, b.width})),
        ref_logp(of(b.ref_logp, {b.rows, b.width})),
        mask(of(b.mask, {b.rows, b.width}).to(at::kFloat)),
        advantages(of(b.advantages, {b.rows}).unsqueeze(1)) {}
};

naive::GrpoSums grpo(const naive::GrpoBatch& b, float* gradient) {
  GrpoTensors t(b);
  t.logp.requires_grad_(true);
  const Tensor log_ratio = t.logp - t.old_logp, ratio = at::exp(log_ratio);
  const Tensor clipped_ratio = at::clamp(ratio, 1 - b.low, 1 + b.high);
  const Tensor unclipped = ratio * t.advantages, clipped = clipped_ratio * t.advantages;
  const Tensor x = t.ref_logp - t.logp, kl = at::exp(x) - x - 1;
  const Tensor token_loss = -at::min(unclipped, clipped) + b.beta * kl;
  const Tensor loss = ((token_loss * t.mask).sum(-1) / t.mask.sum(-1).clamp(1.0)).mean();
  loss.backward();

  naive::GrpoSums sums;
  {
    const at::NoGradGuard no_grad;
    const Tensor tokens = t.mask.sum().clamp(1.0);
    const auto mean = [&](const Tensor& values) {
      return ((values * t.mask).sum() / tokens).item<double>();
    };
    const Tensor is_low = (ratio < 1 - b.low) & (t.advantages < 0);
    const Tensor is_high = (ratio > 1 + b.high) & (t.advantages > 0);
    sums = {loss.item<double>(), mean(kl), mean((is_low | is_high).to(at::kFloat)),
            mean((ratio - 1) - log_ratio), mean(ratio)};
  }
  copy_out(t.logp.grad(), gradient);
  return sums;
}

double grpo_by_hand(const naive::GrpoBatch& b, float* gradient) {
  const at::NoGradGuard no_grad;
  const GrpoTensors t(b);
  const Tensor ratio = at::exp(t.logp - t.old_logp);
  const Tensor unclipped = ratio * t.advantages,
               clipped = at::clamp(ratio, 1 - b.low, 1 + b.high) * t.advantages;
  const Tensor x = t.ref_logp - t.logp, e = at::exp(x);
  const Tensor weights = t.mask / (t.mask.sum(-1, true).clamp(1.0) * b.rows);
  const Tensor loss = ((b.beta * (e - x - 1) - at::min(unclipped, clipped)) * weights).sum();
  const Tensor slope = b.beta * (1 - e) - at::where(clipped < unclipped, 0.0, unclipped);
  Tensor out = of(gradient, {b.rows, b.width});
  at::mul_out(out, slope, weights);
  return loss.item<double>();
}

void gdpo_advantages(const float* rewards, std::ptrdiff_t prompts, std::ptrdiff_t K,
                     std::ptrdiff_t C, float* out) {
  const at::NoGradGuard no_grad;
  const Tensor grouped = of(rewards, {prompts, K, C});
  const Tensor normalized = (grouped - grouped.mean(1, true)) / grouped.std(1, true, true);
  const Tensor sums = normalized.sum(-1).flatten();
  copy_out((sums - sums.mean()) / sums.std(), out);
}

struct Forward {
  Tensor logp, entropy;
};
Tensor logits_of(const LogitsBatch& b) { return of(b.logits, {b.rows, b.tokens}); }
Tensor targets_of(const LogitsBatch& b) { return of(b.targets, {b.rows, 1}); }
Forward forward(const LogitsBatch& b, const Tensor& logits) {
  const Tensor all = at::log_softmax(logits, -1);
  const Tensor logp = all.gather(-1, targets_of(b)).squeeze(-1);
  const at::NoGradGuard no_grad;
  return {logp, -(at::exp(all) * all).sum(-1)};
}

void token_logprobs(const LogitsBatch& b, float* logp, float* entropy) {
  const at::NoGradGuard no_grad;
  const Forward result = forward(b, logits_of(b));
  copy_out(result.logp, logp);
  copy_out(result.entropy, entropy);
}

void token_logprobs_by_logsumexp(const LogitsBatch& b, float* logp) {
  const at::NoGradGuard no_grad;
  const Tensor logits = logits_of(b);
  copy_out(logits.gather(-1, targets_of(b)).squeeze(-1) - at::logsumexp(logits, -1), logp);
}

struct Graph : gates::TorchGraph {
  Tensor logits, upstream, logp;
  explicit Graph(const LogitsBatch& b)
      : logits(logits_of(b).requires_grad_(true)),
        upstream(of(b.upstream, {b.rows})),
        logp(forward(b, logits).logp) {}
  void backward(float* dlogits) override {
    copy_out(torch::autograd::grad({logp}, {logits}, {upstream}, /*retain_graph=*/true)[0],
             dlogits);
  }
};

void forward_backward(const LogitsBatch& b, float* logp, float* entropy, float* dlogits) {
  const Tensor logits = logits_of(b).requires_grad_(true);
  const Forward result = forward(b, logits);
  result.logp.backward(of(b.upstream, {b.rows}));
  copy_out(result.logp.detach(), logp);
  copy_out(result.entropy, entropy);
  copy_out(logits.grad(), dlogits);
}

}  // namespace

const gates::Torch* gates::torch() {
  static const Torch table{GDPO_GATES_TORCH_VERSION,
                           [](int threads) { at::set_num_threads(threads); },
                           grpo,
                           grpo_by_hand,
                           ::gdpo_advantages,
                           ::token_logprobs,
                           ::token_logprobs_by_logsumexp,
                           [](const LogitsBatch& b) -> std::unique_ptr<gates::TorchGraph> {
                             return std::make_unique<Graph>(b);
                           },
                           ::forward_backward};
  return &table;
}
