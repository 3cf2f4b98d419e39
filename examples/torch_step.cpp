// Trains a small policy of LibTorch: advantages and loss are the library's, all else is LibTorch's.
//
// A prompt is a digit. The policy answers it with four digits, one after the other, and is rewarded
// twice: for the share of them that repeat the prompt, and if none of them is above the one before.
// Each step
//   1. samples completions of every prompt,
//   2. computes GDPO's advantages from their rewards,
//   3. takes two steps of Adam on DAPO's loss, whose gradient the library brings to autograd.
// Only the second of these two has ratios other than 1. The program prints the mean rewards, and
// the loss of a batch before and after its two updates. It fails unless the rewards have risen, and
// the updates have lowered the losses of their batches.
//
// Build and run: in CMake, find_package(Torch REQUIRED) and link torch and Eigen3::Eigen.
#include <torch/torch.h>

#include <cstdio>
#include <gdpo/with/torch.hpp>

namespace {

constexpr int prompts = 8, completions = 16, width = 4, digits = 10;
constexpr int rows = prompts * completions;

/// The logits of the next digit, given the prompt, the digit before (or none) and the position.
struct PolicyImpl : torch::nn::Module {
  PolicyImpl() {
    register_module("inner", inner);
    register_module("outer", outer);
  }
  torch::Tensor forward(const torch::Tensor& prompt, const torch::Tensor& before,
                        const torch::Tensor& position) {
    const torch::Tensor x =
        torch::cat({torch::one_hot(prompt, digits), torch::one_hot(before, digits + 1),
                    torch::one_hot(position, width)},
                   -1);
    return outer(torch::tanh(inner(x.to(torch::kFloat))));
  }
  torch::nn::Linear inner{digits + digits + 1 + width, 64}, outer{64, digits};
};
TORCH_MODULE(Policy);

/// Completions of all prompts, (rows, width), digit by digit.
torch::Tensor sample(Policy& policy, const torch::Tensor& prompt) {
  const torch::NoGradGuard guard;
  torch::Tensor before = torch::full({rows}, digits, torch::kLong);
  std::vector<torch::Tensor> sampled;
  for (int t = 0; t < width; ++t) {
    const torch::Tensor logits = policy(prompt, before, torch::full({rows}, t, torch::kLong));
    before = torch::multinomial(torch::softmax(logits, -1), 1).squeeze(1);
    sampled.push_back(before);
  }
  return torch::stack(sampled, 1);
}

/// The log-probs of the completions, (rows, width), as the model computes them for training.
torch::Tensor log_probs(Policy& policy, const torch::Tensor& prompt, const torch::Tensor& ids) {
  const torch::Tensor none = torch::full({rows, 1}, digits, torch::kLong);
  const torch::Tensor before = torch::cat({none, ids.slice(1, 0, width - 1)}, 1);
  const torch::Tensor position = torch::arange(width, torch::kLong).expand({rows, width});
  const torch::Tensor logits = policy(prompt.unsqueeze(1).expand({rows, width}), before, position);
  return torch::log_softmax(logits, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1);
}

}  // namespace

int main() {
  torch::manual_seed(1);
  Policy policy;
  torch::optim::Adam optimizer(policy->parameters(), torch::optim::AdamOptions(0.005));
  const torch::Tensor prompt = torch::arange(prompts, torch::kLong).repeat_interleave(completions);
  // The library runs on the threads that LibTorch has.
  const auto exec = gdpo::parallel(gdpo::TorchThreads{});

  constexpr int steps = 25;
  double first = 0, last = 0, lowered = 0;
  for (int step = 0; step < steps; ++step) {
    const torch::Tensor ids = sample(policy, prompt);
    const torch::Tensor repeats = ids.eq(prompt.unsqueeze(1)).to(torch::kFloat).mean(1);
    const torch::Tensor falls =
        ids.slice(1, 1).le(ids.slice(1, 0, width - 1)).all(1).to(torch::kFloat);
    const torch::Tensor rewards = torch::stack({repeats, falls}, 1);

    gdpo::Gdpo estimator;
    estimator.weights = {1, 0.5};
    gdpo::TorchBatch batch;
    batch.advantages = gdpo::advantages(exec, rewards, gdpo::groups_of(completions), estimator);
    batch.logp = log_probs(policy, prompt, ids);
    batch.old_logp = batch.logp.detach();  // the policy is still the one that sampled
    const gdpo::Normalizer counts = gdpo::count(batch);

    gdpo::TorchLoss loss;
    double before = 0;
    for (int update = 0; update < 2; ++update) {
      loss = gdpo::torch_loss(exec, gdpo::dapo_loss, batch, counts);
      if (update == 0) before = loss.result.loss;
      optimizer.zero_grad();
      loss.loss.backward();
      optimizer.step();
      batch.logp = log_probs(policy, prompt, ids);
    }
    const double after = gdpo::torch_loss(exec, gdpo::dapo_loss, batch, counts).result.loss;
    lowered += before - after;

    last = repeats.mean().item<double>();
    if (step == 0) first = last;
    if (step % 6 == 0) {
      std::printf("step %2d  repeats %.3f  falls %.3f  loss %8.5f -> %8.5f  clipped %.2f\n", step,
                  last, falls.mean().item<double>(), before, after,
                  loss.result.metrics.clip_fraction.mean());
    }
  }
  return last > first + 0.2 && lowered > 0 ? 0 : 1;
}
