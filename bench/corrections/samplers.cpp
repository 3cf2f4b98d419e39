#include "samplers.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace corrections {
namespace {

constexpr int updates = 4;

/// The nearest bfloat16, halves to even.
double rounded_to_bfloat16(double x) {
  const auto number = static_cast<float>(x);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  bits = (bits + 0x7fffU + ((bits >> 16U) & 1U)) & 0xffff0000U;
  float out = 0;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

/// The logits as an engine of low precision computes them.
Table noisy(const Table& logits, double sd, Random& random) {
  Table out = logits;
  for (double& z : out) z = rounded_to_bfloat16(z + sd * random.normal());
  return out;
}

/// The logits before the last updates. Most of an update is noise, as with small batches: it goes
/// in a random direction, and a fifth as far along the gradient.
Table before_updates(const Task& task, double norm, Random& random) {
  Task old = task;
  for (int step = 0; step < updates; ++step) {
    old.policy = softmax(old.logits);
    const Table gradient = expected_gradient(old, old.policy, 0.5);
    Table other{};
    for (double& x : other) x = random.normal();
    old.logits = plus(old.logits, -0.2 * norm / std::sqrt(dot(gradient, gradient)), gradient);
    old.logits = plus(old.logits, -norm / std::sqrt(dot(other, other)), other);
  }
  return old.logits;
}

/// The smallest sets of tokens with at least this probability, scaled to 1.
Table truncated(const Table& p, double top_p) {
  Table out{};
  for (std::size_t c = 0; c < contexts; ++c) {
    std::array<std::size_t, vocabulary> order{};
    for (std::size_t a = 0; a < vocabulary; ++a) order[a] = a;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return p[at(c, a)] > p[at(c, b)]; });
    double sum = 0;
    std::size_t kept = 0;
    while (kept < vocabulary && sum < top_p) sum += p[at(c, order[kept++])];
    for (std::size_t k = 0; k < kept; ++k) out[at(c, order[k])] = p[at(c, order[k])] / sum;
  }
  return out;
}

}  // namespace

Table Engine::mean() const {
  Table kernel{};
  for (const State& s : states) kernel = plus(kernel, s.share, s.sampled);
  return kernel;
}

Table Engine::weighed(const Table& policy) const {
  Table kernel{};
  for (const State& s : states) {
    for (std::size_t k = 0; k < kernel.size(); ++k) {
      if (s.sampled[k] > 0) kernel[k] += s.share * s.sampled[k] * policy[k] / s.reported[k];
    }
  }
  return kernel;
}

const std::vector<Sampler>& all_samplers() {
  static const std::vector<Sampler> all = [] {
    std::vector<Sampler> list;
    const auto add = [&](const char* name, const char* description,
                         std::size_t length) -> Sampler& {
      list.push_back({name, description, length});
      return list.back();
    };
    add("bf16", "the engine's logits are rounded to bfloat16, with small errors", 64).noise = 0.02;
    add("bf16_long", "bf16 in sequences of 256 tokens", 256).noise = 0.02;
    Sampler& fixed = add("bf16_fixed", "bf16 with one error for each context instead of many", 64);
    fixed.noise = 0.02, fixed.errors = 1;
    for (const bool is_long : {false, true}) {
      Sampler& s = is_long ? add("flips_long", "flips in sequences of 256 tokens", 256)
                           : add("flips",
                                 "bf16, and one token in a hundred has quite different logits, as "
                                 "after another choice of experts",
                                 64);
      s.noise = 0.02, s.flips = 0.01, s.flip_noise = 1.5;
    }
    add("stale", "four small updates that the engine has not seen", 64).stale = 0.3;
    add("stale_long", "stale in sequences of 256 tokens", 256).stale = 0.3;
    add("stale_far", "four large updates that the engine has not seen", 64).stale = 1.2;
    add("top_p_95", "top-p 0.95; the engine reports log-probs over the kept tokens", 64).top_p =
        0.95;
    Sampler& full = add("top_p_95_full", "top-p 0.95; it reports log-probs over all tokens", 64);
    full.top_p = 0.95, full.reports_all = true;
    add("top_p_90", "top-p 0.9; the engine reports log-probs over the kept tokens", 64).top_p = 0.9;
    return list;
  }();
  return all;
}

Engine make_engine(const Sampler& sampler, const Task& task, Random random) {
  Engine engine;
  const auto add = [&](double share, const Table& logits) {
    const Table p = softmax(logits), kept = truncated(p, sampler.top_p);
    engine.states.push_back({share, kept, sampler.reports_all ? p : kept});
  };
  const Table logits =
      sampler.stale > 0 ? before_updates(task, sampler.stale, random) : task.logits;
  if (sampler.noise <= 0) {
    add(1, logits);
    return engine;
  }
  const double each = 1.0 / static_cast<double>(sampler.errors);
  for (std::size_t k = 0; k < sampler.errors; ++k)
    add((1 - sampler.flips) * each, noisy(logits, sampler.noise, random));
  for (std::size_t k = 0; k < sampler.errors && sampler.flips > 0; ++k)
    add(sampler.flips * each, noisy(logits, sampler.flip_noise, random));
  return engine;
}

}  // namespace corrections
