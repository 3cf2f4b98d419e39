// labels: sanitizers
// The factor of dist::grad_scale, against the arithmetic of each training engine, run step by step:
// with the factor the optimizer gets the plain sum of the gradients, and without it something else.
#include <gdpo/dist/grad_scale.hpp>
#include <gdpo/loss.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace grad_scale_test {

namespace {

using gdpo::index_t;
using gdpo::dist::Engine;
using gdpo::dist::grad_scale;
using Vector = std::vector<double>;

/// A number of ranks, of micro-batches or of tokens as a divisor.
double real(int n) { return static_cast<double>(n); }

void multiply(Vector& x, double factor) {
  for (double& v : x) v *= factor;
}
void add(Vector& x, const Vector& y) {
  if (x.empty()) x.assign(y.size(), 0.0);
  for (std::size_t p = 0; p < y.size(); ++p) x[p] += y[p];
}
/// What every rank of an all-reduce, or all shards of a reduce-scatter together, hold: the sum.
Vector all_reduce(const std::vector<Vector>& of_rank) {
  Vector sum;
  for (const Vector& x : of_rank) add(sum, x);
  return sum;
}

/// An optimizer step: the gradient of each loss call by five parameters. Ranks data x context; the
/// ranks of one context-parallel group have consecutive numbers.
struct Step {
  int data = 1, context = 1, micro = 1;
  /// What Accelerate and DeepSpeed were configured with; more than micro in a short last step.
  int configured = 1;
  std::vector<std::vector<Vector>> gradient;  // [rank][micro-batch][parameter]
  std::vector<std::vector<int>> tokens;       // [rank][micro-batch]

  int ranks() const { return data * context; }
  std::size_t size() const { return gradient.size(); }
  int all_tokens() const {
    int sum = 0;
    for (const auto& of_rank : tokens) {
      for (const int n : of_rank) sum += n;
    }
    return sum;
  }
  Vector plain_sum() const {
    Vector sum;
    for (const auto& of_rank : gradient) {
      for (const Vector& g : of_rank) add(sum, g);
    }
    return sum;
  }
  /// Gradient of one call whose loss was multiplied by `factor`.
  Vector backward(std::size_t rank, std::size_t m, double factor) const {
    Vector g = gradient[rank][m];
    multiply(g, factor);
    return g;
  }
  /// The gradients of a rank, added up by its micro-batches.
  Vector accumulated(std::size_t rank, double factor) const {
    Vector g;
    for (std::size_t m = 0; m < gradient[rank].size(); ++m) add(g, backward(rank, m, factor));
    return g;
  }
  std::vector<Vector> all_accumulated(double factor) const {
    std::vector<Vector> g;
    for (std::size_t r = 0; r < size(); ++r) g.push_back(accumulated(r, factor));
    return g;
  }
};

/// Gradients of calls with 0 to 40 tokens, already divided by the tokens of the whole step.
Step random_step(Random& random, int ranks, int micro) {
  Step s;
  do {
    s.context = 1 + random.below(ranks);
  } while (ranks % s.context != 0);
  s.data = ranks / s.context, s.micro = micro, s.configured = micro;
  for (int r = 0; r < ranks; ++r) {
    s.tokens.emplace_back();
    for (int m = 0; m < micro; ++m) s.tokens.back().push_back(random.below(41));
  }
  s.tokens[0][0] += 1;  // so that there is something to divide by
  const double count = real(s.all_tokens());
  for (const auto& of_rank : s.tokens) {
    s.gradient.emplace_back();
    for (const int tokens : of_rank) {
      Vector g(5, 0.0);
      for (int t = 0; t < tokens; ++t) {
        // The last parameter has no cancellation; the others have signs.
        for (std::size_t p = 0; p < 4; ++p) g[p] += (4 * random.uniform() - 2) / count;
        g[4] += random.uniform() / count;
      }
      s.gradient.back().push_back(g);
    }
  }
  return s;
}

/// The scale of a mixed-precision loss; the optimizer divides by it again.
double random_loss_scale(Random& random) { return random.pick({1.0, 1024.0, 65536.0}); }

// ---- one function for each engine: what its optimizer is given ----

/// DDP: each bucket is multiplied by 1 / ranks while it is filled, then summed. Without no_sync()
/// that happens after each micro-batch, to the mean so far plus the new gradient.
Vector ddp(const Step& s, double factor, bool no_sync) {
  const double inverse = 1.0 / real(s.ranks());
  if (no_sync) {
    std::vector<Vector> buckets = s.all_accumulated(factor);
    for (Vector& b : buckets) multiply(b, inverse);
    return all_reduce(buckets);
  }
  std::vector<Vector> grads(s.size());
  for (std::size_t m = 0; m < s.gradient[0].size(); ++m) {
    std::vector<Vector> buckets;
    for (std::size_t r = 0; r < s.size(); ++r) {
      add(grads[r], s.backward(r, m, factor));
      buckets.push_back(grads[r]);
      multiply(buckets.back(), inverse);
    }
    std::fill(grads.begin(), grads.end(), all_reduce(buckets));
  }
  return grads[0];
}

/// FSDP1, and FSDP2 with float16 reductions: divides by a power of two near the root of the number
/// of ranks before the reduce-scatter and by the rest after it, at each micro-batch; the shards
/// accumulate. Otherwise FSDP2 lets the collective average; `averages` false is
/// set_gradient_divide_factor(1).
Vector fsdp(const Step& s, double factor, bool in_collective, bool averages = true) {
  double before = 1;
  const double ranks = averages ? real(s.ranks()) : 1.0;
  while (!in_collective && std::fmod(ranks, before) == 0 && ranks / before > before) before *= 2;
  Vector shards;
  for (std::size_t m = 0; m < s.gradient[0].size(); ++m) {
    std::vector<Vector> unsharded;
    for (std::size_t r = 0; r < s.size(); ++r) {
      unsharded.push_back(s.backward(r, m, factor));
      multiply(unsharded.back(), 1 / before);
    }
    Vector reduced = all_reduce(unsharded);
    multiply(reduced, 1 / (ranks / before));
    add(shards, reduced);
  }
  return shards;
}

enum class Zero { Stage0, Stage2, Stage3 };

/// DeepSpeed. Stages 0 to 2 multiply by 1 / predivide before and by predivide / data-parallel size
/// after the all-reduce, or divide before (prescale_gradients, reduce_scatter). Stage 3 divides by
/// all ranks of the group and reduce-scatters. The sequence-parallel ranks are in the group.
Vector deepspeed(Random& random, const Step& s, double loss, Zero stage, bool averages = true) {
  const double mixed = random_loss_scale(random), group = real(s.ranks()),
               data = group / real(s.context);
  const bool before = random.chance(0.5);
  const double predivide = s.context == 1 && random.chance(0.5) ? 2.0 : 1.0;
  const auto reduced = [&](std::vector<Vector> buckets) {
    for (Vector& b : buckets) {
      if (!averages) continue;
      if (stage == Zero::Stage3) {
        multiply(b, 1 / group);
      } else {
        multiply(b, before ? 1 / data : 1 / predivide);
      }
    }
    Vector sum = all_reduce(buckets);
    if (averages && stage != Zero::Stage3 && !before && predivide != group) {
      multiply(sum, predivide / data);
    }
    return sum;
  };
  Vector gradient;
  if (stage == Zero::Stage0) {
    gradient = reduced(s.all_accumulated(loss * mixed));
  } else {  // the gradients are reduced and partitioned at every micro-batch
    for (std::size_t m = 0; m < s.gradient[0].size(); ++m) {
      std::vector<Vector> buckets;
      for (std::size_t r = 0; r < s.size(); ++r) buckets.push_back(s.backward(r, m, loss * mixed));
      add(gradient, reduced(buckets));
    }
  }
  multiply(gradient, 1 / mixed);
  return gradient;
}

/// What reduces the gradients below Accelerate and the Trainer. They divide by the accumulation
/// steps once: Accelerate leaves that to DeepSpeed, and the Trainer, which divides the loss itself,
/// passes scale_wrt_gas=False.
Vector below(Random& random, const Step& s, double loss) {
  switch (random.below(3)) {
    case 0:
      return ddp(s, loss, random.chance(0.5));
    case 1:
      return fsdp(s, loss, random.chance(0.5));
    default:
      return deepspeed(random, s, loss, Zero::Stage3);
  }
}

/// What the loss function of a Megatron engine returns beside the loss.
enum class Returns { Two, Three, PerToken };

/// Megatron-Core. forward_step_calc_loss, backward into main_grad, the reduction with its scaling
/// before (or average_in_collective), finalize_model_grads, unscaling by the optimizer.
Vector megatron(Random& random, const Step& s, double scale, Returns returns,
                const std::vector<std::vector<int>>& tokens) {
  const double mixed = random_loss_scale(random), group = real(s.ranks());
  const bool average_in_collective = returns != Returns::PerToken && random.chance(0.5);
  std::vector<Vector> main_grad(s.size());
  int total = 0;
  for (std::size_t r = 0; r < s.size(); ++r) {
    for (std::size_t m = 0; m < s.gradient[r].size(); ++m) {
      double loss = scale;
      if (returns == Returns::Two) loss *= real(s.context);
      if (returns == Returns::Three) loss /= real((std::max)(tokens[r][m], 1));
      if (returns != Returns::PerToken) loss /= real(s.micro);
      add(main_grad[r], s.backward(r, m, loss * mixed));
      total += tokens[r][m];
    }
    if (returns != Returns::PerToken && !average_in_collective) {
      multiply(main_grad[r], 1 / group);
    }
  }
  Vector gradient = all_reduce(main_grad);
  if (average_in_collective) multiply(gradient, 1 / group);
  if (returns == Returns::PerToken && total > 0) multiply(gradient, 1 / real(total));
  multiply(gradient, 1 / mixed);
  return gradient;
}
std::vector<std::vector<int>> ones(const Step& s) {
  return {s.size(), std::vector<int>(static_cast<std::size_t>(s.micro), 1)};
}

/// verl. On FSDP every sequence-parallel rank computes the loss of the whole rows, and the backward
/// of Ulysses' gather multiplies the slice of the rank by their number. On Megatron verl multiplies
/// the loss by the micro-batches, or by the tokens of the step over dp_size.
Vector verl(Random& random, const Step& s, double scale) {
  switch (random.below(3)) {
    case 0:
      return fsdp(s, scale * real(s.context), random.chance(0.5));
    case 1:
      return megatron(random, s, scale * real(s.micro), Returns::Two, ones(s));
    default:
      return megatron(random, s, scale * real(s.all_tokens()) / real(s.data), Returns::PerToken,
                      s.tokens);
  }
}

/// An engine's run of a step and the arguments of grad_scale for it.
struct Run {
  int world, accumulation;
  Vector gradient;
};

/// Runs the step. A new enumerator needs its case here.
Run run(Engine engine, Random random, Step s, bool with_factor) {
  const bool alternative = random.chance(0.5);
  const bool fixed_number =
      engine == Engine::Accelerate || engine == Engine::DeepSpeed || engine == Engine::DeepSpeedSum;
  if (fixed_number) s.configured = s.micro + random.below(3);
  const Zero stage = random.pick({Zero::Stage0, Zero::Stage2, Zero::Stage3});
  const bool context_counts = engine != Engine::Megatron && engine != Engine::Verl &&
                              (stage == Zero::Stage3 || (engine != Engine::DeepSpeed &&
                                                         engine != Engine::DeepSpeedUnscaled));
  Run r{context_counts ? s.ranks() : s.data, s.configured, {}};
  const double scale = with_factor ? grad_scale(r.world, r.accumulation, engine) : 1.0,
               steps = real(s.configured);
  switch (engine) {
    case Engine::Sum:
      r.gradient =
          alternative ? all_reduce(s.all_accumulated(scale)) : fsdp(s, scale, false, false);
      break;
    case Engine::Ddp:
      r.gradient = ddp(s, scale, alternative);
      break;
    case Engine::Fsdp:
      r.gradient = fsdp(s, scale, alternative);
      break;
    case Engine::Accelerate:
    case Engine::HuggingFace:
      r.gradient = below(random, s, scale / steps);
      break;
    case Engine::DeepSpeed:
      r.gradient = deepspeed(random, s, scale / steps, stage);
      break;
    case Engine::DeepSpeedUnscaled:
      r.gradient = deepspeed(random, s, scale, stage);
      break;
    case Engine::DeepSpeedSum:
      r.gradient =
          deepspeed(random, s, scale / steps, alternative ? Zero::Stage0 : Zero::Stage2, false);
      break;
    case Engine::HuggingFaceScaled:
      r.gradient = below(random, s, scale);
      break;
    case Engine::HuggingFaceItems: {
      // The Trainer multiplies by the processes over the tensor-parallel size.
      const int tensor = 1 + random.below(2), processes = s.ranks() * tensor;
      r.gradient = below(random, s, scale * real(processes / tensor));
      break;
    }
    case Engine::Megatron:
      r.gradient = megatron(random, s, scale, Returns::Two, ones(s));
      break;
    case Engine::MegatronTokens:
      r.gradient = megatron(random, s, scale, Returns::Three, ones(s));
      break;
    case Engine::MegatronPerToken:
      r.gradient = megatron(random, s, scale, Returns::PerToken, ones(s));
      break;
    case Engine::Verl:
      r.gradient = verl(random, s, scale);
      break;
  }
  return r;
}

const std::vector<Engine> engines = [] {
  std::vector<Engine> all;
  for (int e = 0; e <= static_cast<int>(Engine::Verl); ++e) all.push_back(static_cast<Engine>(e));
  return all;
}();

/// Sum of the magnitudes of what each entry of the plain sum is made of.
Vector magnitudes(const Step& s) {
  Vector sum(5, 0.0);
  for (const auto& of_rank : s.gradient) {
    for (const Vector& g : of_rank) {
      for (std::size_t p = 0; p < g.size(); ++p) sum[p] += std::abs(g[p]);
    }
  }
  return sum;
}

/// At most 64 gradients are added, and each goes through about ten products and quotients, so that
/// the error is below 100 roundings of 2^-53 of the magnitudes, 1.1e-14 of them.
constexpr double few_roundings = 1e-12;

}  // namespace

TEST_CASE("with grad_scale the step of every engine is the plain sum", "[dist]") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int micro = 1; micro <= 8; ++micro) {
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        for (const Engine engine : engines) {
          INFO("engine " << static_cast<int>(engine) << ", ranks " << ranks << ", micro-batches "
                         << micro << ", seed " << seed);
          Random random(seed + 100 * static_cast<std::uint64_t>(ranks * 8 + micro));
          const Step s = random_step(random, ranks, micro);
          const Vector sum = s.plain_sum(), magnitude = magnitudes(s);
          const Run with = run(engine, random, s, true), without = run(engine, random, s, false);
          const double factor = grad_scale(with.world, with.accumulation, engine);
          for (std::size_t p = 0; p < sum.size(); ++p) {
            const double error = std::abs(with.gradient[p] - sum[p]);
            if (error > few_roundings * magnitude[p])
              FAIL_CHECK("parameter " << p << ": " << error);
            // Without the factor the engine falls short by exactly that factor.
            const double short_by = std::abs(without.gradient[p] * factor - sum[p]);
            if (short_by > few_roundings * magnitude[p]) FAIL_CHECK("short by " << short_by);
          }
          // The last parameter is a sum of positive numbers: it is 1 / factor of what it should be.
          if (factor > 1) CHECK(without.gradient[4] < 0.51 * sum[4]);
        }
      }
    }
  }
}

TEST_CASE("grad_scale by hand", "[dist]") {
  using E = Engine;
  for (const E e : {E::Sum, E::HuggingFaceItems}) CHECK(grad_scale(4, 3, e) == 1);
  CHECK(grad_scale(4, 3, E::DeepSpeedSum) == 3);
  for (const E e : {E::Ddp, E::Fsdp, E::DeepSpeedUnscaled, E::HuggingFaceScaled, E::Verl}) {
    CHECK(grad_scale(4, 3, e) == 4);
  }
  for (const E e : {E::Accelerate, E::DeepSpeed, E::HuggingFace, E::Megatron, E::MegatronTokens,
                    E::MegatronPerToken}) {
    CHECK(grad_scale(4, 3, e) == 12);
  }
  // One rank and one micro-batch: no engine divides by anything.
  for (const E e : engines) CHECK(grad_scale(1, 1, e) == 1);
  // The product does not overflow.
  CHECK(grad_scale(index_t{1} << 40, index_t{1} << 40, E::DeepSpeed) == 0x1p80);
}

TEST_CASE("a Megatron loss function that returns true counts has its own factors", "[dist]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Step s = random_step(random, 1 + random.below(8), 1 + random.below(8));
    const Vector sum = s.plain_sum(), magnitude = magnitudes(s);
    const Vector per_token = megatron(random, s, real(s.all_tokens()), Returns::PerToken, s.tokens);
    // Each call has its count as a further factor here.
    const double factor = grad_scale(s.ranks(), s.micro, Engine::MegatronTokens);
    for (std::size_t r = 0; r < s.size(); ++r) {
      for (std::size_t m = 0; m < s.tokens[r].size(); ++m)
        multiply(s.gradient[r][m], real(s.tokens[r][m]));
    }
    const Vector tokens = megatron(random, s, factor, Returns::Three, s.tokens);
    for (std::size_t p = 0; p < sum.size(); ++p) {
      CHECK(std::abs(per_token[p] - sum[p]) <= few_roundings * magnitude[p]);
      CHECK(std::abs(tokens[p] - sum[p]) <= few_roundings * magnitude[p]);
    }
  }
}

TEST_CASE("grad_scale in aggregate.scale: micro-batches on ranks give the whole batch", "[dist]") {
  // 12 rows of 6 tokens, some masked, on 3 ranks with 2 micro-batches of 2 rows each. The model has
  // one parameter per feature, and logp is linear in it, so that the gradient of the parameter is
  // the sum of dlogp times the feature.
  const int ranks = 3, micro = 2, rows = 2, width = 6, all_rows = ranks * micro * rows;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Vector logp, old_logp, feature, advantages;
    std::vector<unsigned char> mask;
    for (int i = 0; i < all_rows; ++i) {
      const int length = i == 0 ? width : random.below(width + 1);
      advantages.push_back(2 * random.uniform() - 1);
      for (int t = 0; t < width; ++t) {
        mask.push_back(t < length);
        old_logp.push_back(-2 * random.uniform());
        logp.push_back(old_logp.back() + 0.4 * random.uniform() - 0.2);
        feature.push_back(2 * random.uniform() - 1);
      }
    }
    const auto batch_of = [&](int first, int n) {
      gdpo::TokenBatch<double> b;
      b.logp = gdpo::view(logp.data() + first * width, n, width);
      b.old_logp = gdpo::view(old_logp.data() + first * width, n, width);
      b.mask = gdpo::view(mask.data() + first * width, n, width);
      b.advantages = gdpo::view(advantages.data() + first, n);
      return b;
    };
    const auto parameter_gradient = [&](const auto& loss, const gdpo::Normalizer& n, int first,
                                        int count) {
      Vector dlogp(static_cast<std::size_t>(count * width));
      loss(batch_of(first, count), n, gdpo::view(dlogp.data(), count, width));
      double sum = 0;
      for (std::size_t k = 0; k < dlogp.size(); ++k)
        sum += dlogp[k] * feature[static_cast<std::size_t>(first * width) + k];
      return sum;
    };
    auto loss = gdpo::dapo_loss;
    const gdpo::Normalizer step = gdpo::count(batch_of(0, all_rows));
    const double whole = parameter_gradient(loss, step, 0, all_rows);

    gdpo::Normalizer counts;
    for (int c = 0; c < ranks * micro; ++c) counts += gdpo::count(batch_of(c * rows, rows));
    loss.aggregate.scale = grad_scale(ranks, micro, Engine::HuggingFace);
    Step s;
    s.data = ranks, s.micro = micro;
    for (int r = 0; r < ranks; ++r) {
      s.gradient.emplace_back();
      for (int m = 0; m < micro; ++m) {
        s.gradient.back().push_back(
            {parameter_gradient(loss, counts, (r * micro + m) * rows, rows)});
      }
    }
    // The Trainer divides the loss by the micro-batches, and DDP averages.
    const Vector gradient = ddp(s, 1 / real(micro), true);
    // The magnitudes: 72 tokens of at most 1.3 / 6 each, since the step has 6 tokens or more.
    CHECK(std::abs(gradient[0] - whole) <= 1e-13 * 72 * 1.3 / 6);
    CHECK(std::abs(whole) > 1e-6);
  }
}

TEST_CASE("grad_scale refuses numbers of ranks and micro-batches below 1", "[dist]") {
  for (const Engine e : engines) {  // also those that do not divide by them
    CHECK(message_of([&] { grad_scale(0, 1, e); }) ==
          "gdpo::dist::grad_scale: world: given 0; needed: a number of ranks of at least 1");
    CHECK(message_of([&] { grad_scale(-8, 0, e); }) ==
          "gdpo::dist::grad_scale: world: given -8; needed: a number of ranks of at least 1");
    CHECK(message_of([&] { grad_scale(2, 0, e); }) ==
          "gdpo::dist::grad_scale: accumulation: given 0; needed: a number of micro-batches of at "
          "least 1");
    CHECK(message_of([&] { grad_scale(2, -1, e); }) ==
          "gdpo::dist::grad_scale: accumulation: given -1; needed: a number of micro-batches of at "
          "least 1");
  }
  CHECK(
      message_of([] { grad_scale(2, 1, static_cast<Engine>(99)); }) ==
      "gdpo::dist::grad_scale: engine: given 99, which is no enumerator; needed: one of sum, ddp, "
      "fsdp, accelerate, deepspeed, deepspeed_unscaled, deepspeed_sum, huggingface, "
      "huggingface_scaled, huggingface_items, megatron, megatron_tokens, megatron_per_token, verl");
}

}  // namespace grad_scale_test
