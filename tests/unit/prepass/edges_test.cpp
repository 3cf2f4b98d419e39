// labels: lanes, sanitizers
// Pre-passes by hand: numbers, bounds that are closed or off, empty and truncated batches, weights
// that the batch has already, and a user's own pre-pass.
#include <gdpo/gdpo.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/presets/verl.hpp>
#include <limits>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace edges_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::Reach;
constexpr double nan_ = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();

/// A batch of two rows of three tokens, with the arrays that a test fills.
struct Two {
  std::vector<double> logp = std::vector<double>(6, -1.0), old, rollout, ref, weights, kl_weights,
                      entropies, per_token;
  std::vector<double> advantages{1, -1}, flags;
  std::vector<int> mask;
  gdpo::PrepassMemory<double> memory;
  std::vector<double> gradient = std::vector<double>(6, 77.0);

  gdpo::TokenBatch<double> batch() const {
    gdpo::TokenBatch<double> b;
    const auto set = [](auto& to, const auto& from) {
      if (!from.empty()) to = gdpo::view(from.data(), 2, 3);
    };
    set(b.logp, logp), set(b.old_logp, old), set(b.rollout_logp, rollout), set(b.ref_logp, ref);
    set(b.weights, weights), set(b.kl_weights, kl_weights), set(b.entropies, entropies),
        set(b.mask, mask);
    set(b.token_advantages, per_token);
    if (per_token.empty()) b.advantages = gdpo::view(advantages);
    return b;
  }
  template <class... Passes>
  gdpo::TokenBatch<double> prepare(const Passes&... passes) {
    return gdpo::prepare(batch(), memory, passes...);
  }
  /// The weights of the surrogate that the pre-passes give.
  template <class... Passes>
  std::vector<double> weights_of(const Passes&... passes) {
    prepare(passes...);
    return memory.weights;
  }
  template <class Loss>
  gdpo::LossResult run(const Loss& loss, const gdpo::TokenBatch<double>& b) {
    return loss(b, gdpo::count(b), gdpo::view(gradient.data(), 2, 3));
  }
};
using Numbers = std::vector<double>;

prepass::Gate gate_of(prepass::Estimator estimator, prepass::Pair pair,
                      prepass::Statistic statistic) {
  prepass::Gate gate;
  gate.estimator = estimator, gate.pair = pair, gate.statistic = statistic;
  return gate;
}

}  // namespace

TEST_CASE("every completion truncated: an empty batch, not an error", "[prepass]") {
  Two x;
  x.ref = Numbers(6, -2.0);
  x.flags = {1, 1};
  const auto prepared = x.prepare(prepass::Overlong{gdpo::view(x.flags)});
  const gdpo::Normalizer n = gdpo::count(prepared);
  CHECK(n.tokens == 0);
  CHECK(n.non_empty_rows == 0);
  CHECK(n.rows == 2);
  const auto check = [&](const auto& loss) {
    x.gradient.assign(6, 77.0);
    const gdpo::LossResult r = x.run(loss, prepared);
    CHECK(same_bits(r.loss, 0.0));
    CHECK(same_bits(r.policy_loss, 0.0));
    CHECK(same_bits(r.kl_loss, 0.0));
    CHECK(difference(x.gradient, Numbers(6, 0.0)) == "");
    CHECK(r.metrics.empty_rows == 2);
    CHECK(r.metrics.completion_length.row_sum == 6);  // the lengths are those sampled
  };
  check(gdpo::grpo_loss);
  check(gdpo::dapo_loss);
  check(gdpo::gspo_loss);
  check(gdpo::verl::gspo_loss);
  auto dr_grpo = gdpo::dr_grpo_loss;
  dr_grpo.aggregate.constant = 64;
  check(dr_grpo);

  // Other micro-batches of the step may have tokens: their counts divide, and this one adds 0.
  gdpo::Normalizer step = n;
  step.tokens = 100, step.rows = 10;
  CHECK(same_bits(gdpo::grpo_loss(prepared, step).loss, 0.0));
}

TEST_CASE("Overlong: what stays in the denominator depends on the reach", "[prepass]") {
  // Ratio 1 everywhere, so a token's loss is -A: -1 in row 0, +1 in row 1, which is truncated.
  Two x;
  x.ref = Numbers(6, -1.0);
  x.ref[3] = -1.5;  // k3 = e^-0.5 - 0.5
  x.flags = {0, 3};
  const double k3 = std::exp(-0.5) - 0.5;
  const auto loss = [&](Reach reach, gdpo::Over over) {
    gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<>> l;
    l.kl.beta = 1;
    l.aggregate.over = over;
    return x.run(l, x.prepare(prepass::Overlong{gdpo::view(x.flags), reach}));
  };
  gdpo::LossResult r = loss(Reach::None, gdpo::Over::Rows);
  CHECK(r.policy_loss == Approx(0).margin(tolerance::formula));
  CHECK(r.kl_loss == Approx(k3 / 6).epsilon(tolerance::formula));
  r = loss(Reach::Surrogate, gdpo::Over::NonEmptyRows);
  CHECK(r.policy_loss == Approx(-0.5).epsilon(tolerance::formula));
  CHECK(r.kl_loss == Approx(k3 / 6).epsilon(tolerance::formula));
  CHECK(r.normalizer.tokens == 6);
  r = loss(Reach::SurrogateAndKl, gdpo::Over::NonEmptyRows);
  CHECK(r.policy_loss == Approx(-0.5).epsilon(tolerance::formula));
  CHECK(same_bits(r.kl_loss, 0.0));
  CHECK(r.metrics.completion_length.row_sum == 6);
  r = loss(Reach::Mask, gdpo::Over::NonEmptyRows);
  CHECK(r.policy_loss == Approx(-1).epsilon(tolerance::formula));
  CHECK(same_bits(r.kl_loss, 0.0));
  CHECK(r.normalizer.tokens == 3);
  CHECK(r.normalizer.non_empty_rows == 1);
  CHECK(r.metrics.completion_length.row_sum == 6);  // as sampled, whatever the reach
  CHECK(r.metrics.completion_length.row_min == 3);
  CHECK(r.metrics.empty_rows == 1);
  r = loss(Reach::Mask, gdpo::Over::Rows);  // the row is still one of the batch
  CHECK(r.policy_loss == Approx(-0.5).epsilon(tolerance::formula));
}

TEST_CASE("the length of a completion is that of its sampling, however often the batch is prepared",
          "[prepass]") {
  for (const bool masked : {false, true}) {
    INFO("masked " << masked);
    Two x;
    if (masked) x.mask = {1, 1, 0, 1, 1, 1};
    x.entropies = {1, 2, 3, 4, 5, 6};
    x.flags = {0, 1};
    prepass::TopEntropy top;
    top.quantile = 1;
    top.reach = Reach::Mask;
    const auto once = x.prepare(prepass::Overlong{gdpo::view(x.flags)});
    gdpo::PrepassMemory<double> another;
    const auto check = [&](const gdpo::TokenBatch<double>& batch) {
      const gdpo::LossMetrics m = x.run(gdpo::dapo_loss, batch).metrics;
      CHECK(m.completion_length.row_sum == (masked ? 5 : 6));
      CHECK(m.completion_length.row_min == (masked ? 2 : 3));
    };
    check(once);
    check(gdpo::prepare(once, another, top));
    check(gdpo::prepare(once, x.memory, top));  // which ends the use of `once`
  }
}

TEST_CASE("groups that taught nothing, from the report of the advantages", "[prepass]") {
  const std::vector<double> rewards{2, 2, 1, 0};
  gdpo::GroupReport report;
  const auto groups = gdpo::groups_of(2);
  const std::vector<double> advantages =
      gdpo::advantages(gdpo::view(rewards.data(), 4, 1), groups, gdpo::Grpo{}, &report);
  const auto degenerate = gdpo::per_row(groups, 4, report.degenerate);
  std::vector<float> logp(8, -1.0f), ref(8, -2.0f);
  const std::vector<float> weights{1, 2, 1, 1, 1, 1, 1, 1};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 4, 2);
  batch.ref_logp = gdpo::view(ref.data(), 4, 2);
  batch.weights = gdpo::view(weights.data(), 4, 2);
  batch.advantages = gdpo::view(advantages);
  gdpo::PrepassMemory<float> memory;
  prepass::DegenerateGroups drop{gdpo::view(degenerate)};
  CHECK(drop.reach == Reach::None);
  CHECK(gdpo::count(gdpo::prepare(batch, memory, drop)).tokens == 8);
  CHECK(memory.weights.empty());  // off: nothing is copied

  drop.reach = Reach::Surrogate;
  auto prepared = gdpo::prepare(batch, memory, drop);
  CHECK(difference(memory.weights, std::vector<float>{0, 0, 0, 0, 1, 1, 1, 1}) == "");
  CHECK(gdpo::count(prepared).tokens == 8);
  CHECK(gdpo::grpo_loss(prepared, gdpo::count(prepared)).kl_loss ==
        gdpo::grpo_loss(batch, gdpo::count(batch)).kl_loss);

  drop.reach = Reach::Mask;
  prepared = gdpo::prepare(batch, memory, drop);
  CHECK(gdpo::count(prepared).tokens == 4);
  CHECK(gdpo::count(prepared).non_empty_rows == 2);
}

TEST_CASE("TopEntropy: the quantiles of torch.quantile", "[prepass]") {
  Two x;
  x.entropies = {5, 1, 3, 2, 4, 9};
  x.mask = {1, 1, 1, 1, 1, 0};
  const auto threshold = [&](double quantile) {
    prepass::TopEntropy top;
    top.quantile = quantile;
    return x.prepare(top).entropy_threshold;
  };
  // The numbers of torch.quantile(tensor([5., 1., 3., 2., 4.]), q), which interpolates the sorted
  // values at position q (n - 1).
  CHECK(threshold(0) == 1);
  CHECK(threshold(0.25) == 2);
  CHECK(threshold(0.5) == 3);
  CHECK(threshold(0.6) == Approx(3.4).epsilon(tolerance::formula));
  CHECK(threshold(0.8) == Approx(4.2).epsilon(tolerance::formula));
  CHECK(threshold(1) == 5);

  prepass::TopEntropy top;
  top.quantile = 0.5;
  Numbers w = x.weights_of(top);
  w.pop_back();                        // masked
  CHECK(w == Numbers{1, 0, 1, 0, 1});  // the threshold itself stays in
  top.quantile = 0.8;                  // TRL: top_entropy_quantile = 0.2
  w = x.weights_of(top);
  CHECK(Numbers(w.begin(), w.end() - 1) == Numbers{1, 0, 0, 0, 0});
  const auto prepared = x.prepare(top);
  const gdpo::LossResult r = x.run(gdpo::dapo_loss, prepared);
  CHECK(r.metrics.entropy_threshold == prepared.entropy_threshold);
  CHECK(r.metrics.to_map().at("entropy/threshold") == prepared.entropy_threshold);
  CHECK(r.normalizer.tokens == 5);

  top.threshold = 2.5;  // a threshold of the whole step, from the caller
  w = x.weights_of(top);
  CHECK(Numbers(w.begin(), w.end() - 1) == Numbers{1, 0, 1, 0, 1});
  CHECK(x.prepare(top).entropy_threshold == 2.5);
}

TEST_CASE("TopEntropy: equal, one, none, and entropies that are not numbers", "[prepass]") {
  Two x;
  prepass::TopEntropy top;
  top.quantile = 0.9;
  x.entropies = Numbers(6, 0.1);
  CHECK(x.weights_of(top) == Numbers(6, 1.0));  // all are equal, so none is below

  x.entropies = {nan_, 3, nan_, 1, nan_, nan_};
  top.quantile = 0.5;
  CHECK(x.prepare(top).entropy_threshold == 2);
  CHECK(x.memory.weights == Numbers{0, 1, 0, 0, 0, 0});

  x.mask = {0, 1, 0, 0, 0, 0};
  CHECK(x.prepare(top).entropy_threshold == 3);
  CHECK(x.memory.weights[1] == 1);

  x.mask = std::vector<int>(6, 0);
  auto prepared = x.prepare(top);
  CHECK(prepared.entropy_threshold == inf);
  CHECK(x.run(gdpo::dapo_loss, prepared).loss == 0);

  x.mask.clear();
  x.entropies = Numbers(6, nan_);
  for (const Reach reach : {Reach::Surrogate, Reach::Mask}) {
    top.reach = reach;
    prepared = x.prepare(top);
    CHECK(prepared.entropy_threshold == inf);
    CHECK(same_bits(x.run(gdpo::dapo_loss, prepared).policy_loss, 0.0));
    CHECK(gdpo::count(prepared).tokens == (reach == Reach::Mask ? 0 : 6));
  }
}

TEST_CASE("TopEntropy: an infinite entropy is the largest, and spoils no other quantile",
          "[prepass]") {
  Two x;
  x.entropies = {1, 2, 3, 4, 5, inf};
  prepass::TopEntropy top;
  top.quantile = 0.8;  // exactly the fifth value
  CHECK(x.prepare(top).entropy_threshold == 5);
  CHECK(x.memory.weights == Numbers{0, 0, 0, 0, 1, 1});
}

TEST_CASE("Gate: closed intervals, and what is infinite is off", "[prepass]") {
  using prepass::Estimator, prepass::Pair, prepass::Statistic;
  Two x;
  x.old = {-1, -1, -1, -1, -1, -1};
  x.rollout = {-1.5, -1.25, -1, -0.75, -0.5, -2};  // old - rollout = .5 .25 0 -.25 -.5 1
  prepass::Gate gate = gate_of(Estimator::K1, Pair::Mismatch, Statistic::Token);
  gate.min = -0.25, gate.max = 0.25;  // of K1, which is -x
  CHECK(x.weights_of(gate) == Numbers{0, 1, 1, 1, 0, 0});
  gate.min = -inf;
  CHECK(x.weights_of(gate) == Numbers{1, 1, 1, 1, 0, 1});
  gate.min = -0.25, gate.max = inf;
  CHECK(x.weights_of(gate) == Numbers{0, 1, 1, 1, 1, 0});
  gate.estimator = Estimator::K2;
  gate.min = -inf, gate.max = 0.03125;  // x^2 / 2 at .25
  CHECK(x.weights_of(gate) == Numbers{0, 1, 1, 1, 0, 0});
  gate.estimator = Estimator::Ratio;
  gate.min = 1, gate.max = inf;
  CHECK(x.weights_of(gate) == Numbers{1, 1, 1, 0, 0, 1});
  gate.min = -inf, gate.max = std::exp(0.5);
  CHECK(x.weights_of(gate) == Numbers{1, 1, 1, 1, 1, 0});
  gate.clamp = {-inf, 0.5};  // the log ratio is clamped first
  CHECK(x.weights_of(gate) == Numbers(6, 1.0));
  gate.clamp = {};

  gate.estimator = Estimator::RatioDeviation;
  gate.max = 1 - std::exp(-0.5);  // |e^x - 1| at x = -0.5; at 0.5 it is larger
  CHECK(x.weights_of(gate)[0] == 0);
  CHECK(x.weights_of(gate)[3] == 1);
  gate.estimator = Estimator::K3;
  gate.max = 0.12;  // K3 is 0.1487 at 0.5 and 0.1065 at -0.5
  CHECK(x.weights_of(gate) == Numbers{0, 1, 1, 1, 1, 0});

  // Without bounds every gate is open.
  gate = gate_of(Estimator::Ratio, Pair::Mismatch, Statistic::Token);
  x.rollout = {nan_, inf, -inf, 0, 0, 0};
  CHECK(x.weights_of(gate) == Numbers(6, 1.0));
  gate.max = 1e9;
  CHECK(x.weights_of(gate) == Numbers{0, 1, 0, 1, 1, 1});
}

TEST_CASE("Gate: statistics of a row in which something is NaN", "[prepass]") {
  using prepass::Estimator, prepass::Pair, prepass::Statistic;
  for (std::size_t place = 0; place < 3; ++place) {
    Two x;
    x.rollout = Numbers(6, -1.0);
    x.rollout[place] = nan_;
    for (const Statistic statistic :
         {Statistic::SequenceMean, Statistic::SequenceSum, Statistic::SequenceMax}) {
      INFO("NaN at " << place << ", statistic " << static_cast<int>(statistic));
      prepass::Gate gate = gate_of(Estimator::K2, Pair::Mismatch, statistic);
      gate.max = 10;
      CHECK(x.weights_of(gate) == Numbers{0, 0, 0, 1, 1, 1});
    }
    x.mask = std::vector<int>(6, 1);
    x.mask[place] = 0;
    prepass::Gate gate = gate_of(Estimator::K2, Pair::Mismatch, Statistic::SequenceMax);
    gate.max = 10;
    CHECK(x.weights_of(gate)[(place + 1) % 3] == 1);
  }
}

TEST_CASE("Gate: a NaN difference is harmful whatever the update does; infinite ones have a sign",
          "[prepass]") {
  Two x;
  x.old = Numbers(6, -1.0);
  x.rollout = {nan_, -inf, inf, nan_, -inf, inf};  // old - rollout: NaN, inf, -inf
  x.per_token = {1, 1, 1, 0, -1, -1};
  prepass::Gate gate;
  gate.min = 0.5, gate.max = 2;
  gate.when = prepass::When::Outward;
  CHECK(x.weights_of(gate) == Numbers{0, 0, 1, 0, 1, 0});
}

TEST_CASE("Gate: occasions", "[prepass]") {
  using prepass::Estimator, prepass::Pair, prepass::Statistic, prepass::When;
  Two x;
  x.old = {-1, -1, -1, -1, -1, -1};
  x.logp = {-0.5, -1.5, -1, -0.5, -1.5, -1};  // logp - old: .5 -.5 0 .5 -.5 0
  x.per_token = {1, 1, 1, -1, -1, 0};
  prepass::Gate gate = gate_of(Estimator::RatioDeviation, Pair::Update, Statistic::Token);
  gate.max = 0.1;
  CHECK(x.weights_of(gate) == Numbers{0, 0, 1, 0, 0, 1});
  gate.when = When::Outward;
  CHECK(x.weights_of(gate) == Numbers{0, 1, 1, 1, 0, 1});
  x.per_token[0] = 0;  // outside the bounds, but A = 0 pushes nowhere
  CHECK(x.weights_of(gate) == Numbers{1, 1, 1, 1, 0, 1});
  x.per_token[0] = 1;
  gate.when = When::NegativeAdvantage;
  CHECK(x.weights_of(gate) == Numbers{1, 1, 1, 0, 0, 1});
  x.per_token = {1, 1, 1, 4, -1, 0};  // the mean of row 1 is 1
  gate.advantage = prepass::GateAdvantage::Token;
  CHECK(x.weights_of(gate) == Numbers{1, 1, 1, 1, 0, 1});
  gate.advantage = prepass::GateAdvantage::Row;
  CHECK(x.weights_of(gate) == Numbers(6, 1.0));
  x.mask = {1, 1, 1, 0, 1, 1};  // without the 4 that mean is negative
  CHECK(x.weights_of(gate)[4] == 0);
  gate.when = When::Outward;  // by the mean of row 1, which pushes it down
  CHECK(x.weights_of(gate)[4] == 0);
  x.mask.clear();  // with the 4 the mean pushes row 1 up
  CHECK(x.weights_of(gate) == Numbers{0, 1, 1, 0, 1, 1});
}

TEST_CASE("Gate: Drift without rollout_logp is against old_logp, and without that nothing drifts",
          "[prepass]") {
  using prepass::Estimator, prepass::Pair, prepass::Statistic;
  Two x;
  prepass::Gate gate = gate_of(Estimator::K2, Pair::Drift, Statistic::Token);
  gate.max = 0.1;
  CHECK(x.weights_of(gate) == Numbers(6, 1.0));
  x.old = {-1, -3, -1, -1, -1, -1};
  CHECK(x.weights_of(gate) == Numbers{1, 0, 1, 1, 1, 1});
  x.rollout = {-3, -1, -1, -1, -1, -1};
  CHECK(x.weights_of(gate) == Numbers{0, 1, 1, 1, 1, 1});
  gate.pair = Pair::Mismatch;  // old - rollout
  CHECK(x.weights_of(gate) == Numbers{0, 0, 1, 1, 1, 1});
}

TEST_CASE("the off-policy sequence mask drops rows that are punished and have drifted",
          "[prepass]") {
  Two x;
  x.logp = {-2, -1, -1, -2, -1, -1};
  x.rollout = {-0.5, -1, -1, -0.5, -1, -1};  // the mean of rollout - logp is 0.5 in both rows
  prepass::Gate gate = prepass::off_policy_sequence_mask(0.4);
  CHECK(gate.reach == Reach::Surrogate);
  CHECK(x.weights_of(gate) == Numbers{1, 1, 1, 0, 0, 0});  // A = 1 stays, A = -1 goes
  gate = prepass::off_policy_sequence_mask(0.5);           // exactly at the threshold: stays
  CHECK(x.weights_of(gate) == Numbers(6, 1.0));
  x.rollout = {-3, -1, -1, -4, -1, -1};  // rollout - logp is below 0: stays, however far
  CHECK(x.weights_of(prepass::off_policy_sequence_mask(0.4)) == Numbers(6, 1.0));

  x.rollout = {-0.5, -1, -1, -0.5, -1, -1};
  const auto prepared =
      x.prepare(prepass::off_policy_sequence_mask(0.4, Reach::Mask, prepass::GateAdvantage::Row));
  CHECK(gdpo::count(prepared).tokens == 3);
  CHECK(gdpo::count(prepared).non_empty_rows == 1);
}

TEST_CASE("Importance: truncated weights of tokens and sequences", "[prepass]") {
  using prepass::Statistic;
  Two x;
  x.old = {-1, -1, -1, -1, -1, -1};
  x.rollout = {-2, -1, -0.5, -1.5, -1.5, -1.5};  // old - rollout: 1 0 -.5 | .5 .5 .5
  prepass::Importance w;
  const auto check = [&](const Numbers& expected) {
    // exp and a sum of three: some roundings of values of order 5.
    CHECK(deviation(x.weights_of(w), expected, tolerance::formula) == "");
  };
  check({std::exp(1.0), 1, std::exp(-0.5), std::exp(0.5), std::exp(0.5), std::exp(0.5)});
  w.clip = {-inf, 2};  // TRL token_truncate
  check({2, 1, std::exp(-0.5), std::exp(0.5), std::exp(0.5), std::exp(0.5)});
  w.statistic = Statistic::SequenceSum;  // sequence_truncate
  check({std::exp(0.5), std::exp(0.5), std::exp(0.5), 2, 2, 2});
  w.clip = {};
  check({std::exp(0.5), std::exp(0.5), std::exp(0.5), std::exp(1.5), std::exp(1.5), std::exp(1.5)});
  w.statistic = Statistic::SequenceMean;
  check({std::exp(0.5 / 3), std::exp(0.5 / 3), std::exp(0.5 / 3), std::exp(0.5), std::exp(0.5),
         std::exp(0.5)});
  w.count_eps = 2;
  check({std::exp(0.1), std::exp(0.1), std::exp(0.1), std::exp(0.3), std::exp(0.3), std::exp(0.3)});
  w.statistic = Statistic::SequenceMax;
  check({std::exp(1.0), std::exp(1.0), std::exp(1.0), std::exp(0.5), std::exp(0.5), std::exp(0.5)});
  w.clamp = {-0.25, 0.25};
  check(Numbers(6, std::exp(0.25)));
  w.clip = {0.5, 1.2};
  check(Numbers(6, 1.2));
}

TEST_CASE("Importance: NaN, and an infinity that no clip holds, drop the token", "[prepass]") {
  Two x;
  x.old = Numbers(6, -1.0);
  x.rollout = {nan_, -inf, inf, -1, -1, -1};  // log ratio NaN, inf, -inf, 0
  prepass::Importance w;
  CHECK(x.weights_of(w) == Numbers{0, 0, 0, 1, 1, 1});
  const gdpo::LossResult r = x.run(gdpo::dapo_loss, x.prepare(w));
  CHECK(r.loss == Approx(0.5).epsilon(tolerance::formula));  // three tokens of -A = 1 over six
  // The loss does not read rollout_logp; prepare has counted what is not finite there.
  CHECK(r.metrics.non_finite.rollout_logp.count == 3);
  CHECK(r.metrics.non_finite.rollout_logp.token == 0);
  CHECK(r.metrics.non_finite.weights.count == 0);
  w.clip = {-inf, 2};
  CHECK(x.weights_of(w) == Numbers{0, 2, 0, 1, 1, 1});
  w.clip = {0.5, inf};
  CHECK(x.weights_of(w) == Numbers{0, 0, 0.5, 1, 1, 1});
  w.clip = {0.5, 2};
  CHECK(x.weights_of(w) == Numbers{0, 2, 0.5, 1, 1, 1});
  w.statistic = prepass::Statistic::SequenceMean;  // that of a row with a NaN is NaN
  CHECK(x.weights_of(w) == Numbers{0, 0, 0, 1, 1, 1});
  w.statistic = prepass::Statistic::Token;
  w.clip = {};
  w.clamp = {-10, 10};  // a log ratio within bounds has a finite weight; NaN has none
  const Numbers expected{0, std::exp(10.0), std::exp(-10.0), 1, 1, 1};
  CHECK(deviation(x.weights_of(w), expected, 32 * std::exp(10.0) * tolerance::unit) == "");
}

TEST_CASE("Importance: the log ratio is bounded token by token, or as the row's statistic",
          "[prepass]") {
  using prepass::Statistic;
  Two x;
  x.old = Numbers(6, -1.0);
  x.rollout = {-41, -1, 1, nan_, -1, -1};  // log ratio 40, 0, -2
  prepass::Importance w;
  w.statistic = Statistic::SequenceSum;
  w.clamp = {-10, 10};
  CHECK(x.weights_of(w) == Numbers{std::exp(10.0), std::exp(10.0), std::exp(10.0), 0, 0, 0});
  w.clamp = {};
  w.token_clamp = {-1, 10};  // 10, 0, -1; the bounds give NaN no value
  CHECK(x.weights_of(w) == Numbers{std::exp(9.0), std::exp(9.0), std::exp(9.0), 0, 0, 0});
  CHECK(gdpo::ms_swift::sequence_truncate.token_clamp.hi == 20);
  w.token_clamp = {1, -1};
  CHECK_THROWS_AS(x.prepare(w), gdpo::invalid_input);
}

TEST_CASE("MissingRollout::NoDifference: a rollout_logp of NaN gives the ratio 1", "[prepass]") {
  using prepass::Estimator, prepass::Pair, prepass::Statistic;
  const prepass::MissingRollout ratio_1 = prepass::MissingRollout::NoDifference;
  Two x;
  x.old = Numbers(6, -1.0);
  x.rollout = {nan_, -2, -1, nan_, nan_, -1};  // log ratio: none, 1, 0; none, none, 0
  prepass::Importance w;
  w.missing = ratio_1;
  const double e = gdpo::math::exp_parts(1.0).exp;
  CHECK(x.weights_of(w) == Numbers{1, e, 1, 1, 1, 1});
  w.statistic = Statistic::SequenceSum;  // tokens without a difference add 0
  CHECK(x.weights_of(w) == Numbers{e, e, e, 1, 1, 1});
  CHECK(x.run(gdpo::dapo_loss, x.prepare(w)).metrics.non_finite.rollout_logp.count == 3);

  prepass::Gate gate = gate_of(Estimator::Ratio, Pair::Mismatch, Statistic::Token);
  gate.max = 2;
  CHECK(x.weights_of(gate) == Numbers{0, 0, 1, 0, 0, 1});
  gate.missing = ratio_1;
  CHECK(x.weights_of(gate) == Numbers{1, 0, 1, 1, 1, 1});
  gate.statistic = Statistic::SequenceSum;
  CHECK(x.weights_of(gate) == Numbers{0, 0, 0, 1, 1, 1});

  // Only a missing rollout_logp is excused, and only where the gate compares with it.
  x.old = Numbers{-1, nan_, -1, -1, -1, -1};
  CHECK(x.weights_of(w) == Numbers{0, 0, 0, 1, 1, 1});
  gate = gate_of(Estimator::K1, Pair::Update, Statistic::Token);
  gate.max = 5;
  gate.missing = ratio_1;
  CHECK(x.weights_of(gate) == Numbers{1, 0, 1, 1, 1, 1});

  // With TRL's off-policy mask a row is judged by the tokens that have a rollout_logp.
  x.old = Numbers(6, -1.0);
  const auto mask = [&](prepass::MissingRollout missing) {
    return x.weights_of(prepass::off_policy_sequence_mask(0.5, Reach::Surrogate,
                                                          prepass::GateAdvantage::Token, missing));
  };
  x.advantages = {-1, -1};
  CHECK(mask(prepass::MissingRollout::Drop) == Numbers{0, 0, 0, 0, 0, 0});
  CHECK(mask(ratio_1) == Numbers{1, 1, 1, 1, 1, 1});
}

TEST_CASE(
    "Importance: what a float cannot hold is an infinite weight, which the loss drops and counts",
    "[prepass]") {
  const std::vector<float> logp{-1, -1}, rollout{-201, -1};
  const std::vector<double> advantages{1};
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 1, 2), batch.rollout_logp = gdpo::view(rollout.data(), 1, 2);
  batch.advantages = gdpo::view(advantages);
  gdpo::PrepassMemory<float> memory;
  const auto prepared = gdpo::prepare(batch, memory, prepass::Importance{});
  CHECK(memory.weights == std::vector<float>{std::numeric_limits<float>::infinity(), 1});
  const gdpo::LossResult r = gdpo::dapo_loss(prepared, gdpo::count(prepared));
  CHECK(r.loss == -0.5);
  CHECK(r.metrics.non_finite.weights.count == 1);
}

TEST_CASE("weights that were there multiply, and a 0 of either drops whatever the other is",
          "[prepass]") {
  Two x;
  x.flags = {0, 1};
  x.weights = {0.5, 0, 2, nan_, inf, 3};
  x.kl_weights = {3, 3, 3, nan_, 3, 3};
  const prepass::Overlong drop{gdpo::view(x.flags), Reach::SurrogateAndKl};
  x.prepare(drop);
  CHECK(x.memory.weights == Numbers{0.5, 0, 2, 0, 0, 0});
  CHECK(x.memory.kl_weights == Numbers{3, 3, 3, 0, 0, 0});

  x.rollout = {-2, nan_, -1, -1, -1, -1};
  x.weights = {0, 0, 2, 1, 1, 1};
  prepass::Importance importance;
  importance.clip = {-inf, 2};
  CHECK(x.weights_of(importance, drop) == Numbers{0, 0, 2, 0, 0, 0});
  CHECK(x.weights_of(drop, importance, importance) == Numbers{0, 0, 2, 0, 0, 0});
}

TEST_CASE("those of the mask come first, whatever the order they are named in", "[prepass]") {
  // A pre-pass of entropies takes its threshold from the tokens that pre-passes of the mask
  // leave. If both reach the mask, neither sees what the other drops.
  Two x;
  x.entropies = {1, 2, 3, 4, 5, 6};
  x.flags = {0, 1};
  prepass::TopEntropy top;
  top.quantile = 0.5;
  const prepass::Overlong overlong{gdpo::view(x.flags)};
  for (const bool first : {true, false}) {
    const auto prepared = first ? x.prepare(overlong, top) : x.prepare(top, overlong);
    CHECK(prepared.entropy_threshold == 2);
    CHECK(Numbers(x.memory.weights.begin(), x.memory.weights.begin() + 3) == Numbers{0, 1, 1});
  }
  top.reach = Reach::Mask;
  for (const bool first : {true, false}) {
    const auto prepared = first ? x.prepare(overlong, top) : x.prepare(top, overlong);
    CHECK(prepared.entropy_threshold == 3.5);  // of all six tokens
    CHECK(gdpo::count(prepared).tokens == 0);
  }
}

TEST_CASE("without pre-passes, and with all of them off, the batch is as it was", "[prepass]") {
  Two x;
  x.mask = {1, 0, 1, 1, 1, 1};
  x.weights = {2, nan_, 1, 1, 1, 1};
  x.flags = {1, 1};
  const auto same = [&](const gdpo::TokenBatch<double>& prepared) {
    const gdpo::LossResult a = x.run(gdpo::dapo_loss, x.batch());
    const Numbers gradient = x.gradient;
    const gdpo::LossResult b = x.run(gdpo::dapo_loss, prepared);
    CHECK(same_bits(a.loss, b.loss));
    CHECK(difference(gradient, x.gradient) == "");
    CHECK(gdpo::count(prepared).tokens == 5);
  };
  prepass::TopEntropy top;
  top.reach = Reach::None;  // entropies are not needed then
  same(x.prepare(top, prepass::Overlong{gdpo::view(x.flags), Reach::None},
                 prepass::DegenerateGroups{}));
  const prepass::Gate open;
  x.rollout = Numbers(6, -1.0);
  same(x.prepare(open));
}

namespace {

/// A user's own pre-pass: every second token of a row counts half, and the last row is dropped.
struct Alternate {
  Reach reach = Reach::Surrogate;
  double half = 0.5;
  template <class S>
  void operator()(const gdpo::PrepassArgs<S>& args) const {
    for (gdpo::index_t i = 0; i < args.rows.size(); ++i) {
      const gdpo::TokenRow<S> row = args.rows(i);
      for (gdpo::index_t t = 0; t < row.length; ++t) {
        if (!row.valid(t)) continue;
        args.weights_of(i)[t] = i + 1 == args.rows.size() ? 0.0 : t % 2 ? half : 1.0;
      }
    }
  }
  void check(const char* function) const {
    if (half < 0) throw gdpo::invalid_input(std::string(function) + ": Alternate::half");
  }
};
/// A pre-pass that drops nothing and counts the tokens that are left.
struct Counting {
  int* tokens;
  Reach reach = Reach::Surrogate;
  template <class S>
  void operator()(const gdpo::PrepassArgs<S>& args) const {
    *tokens = 0;
    for (gdpo::index_t k = 0; k < args.rows.positions(); ++k) REQUIRE(args.weights[k] == 1);
    for (gdpo::index_t i = 0; i < args.rows.size(); ++i)
      *tokens += static_cast<int>(args.rows(i).count());
  }
};

}  // namespace

TEST_CASE("a pre-pass of the user's own", "[prepass]") {
  Two x;
  CHECK(x.weights_of(Alternate{}) == Numbers{1, 0.5, 1, 0, 0, 0});
  x.weights = {1, 1, 4, 1, 1, 1};
  CHECK(x.weights_of(Alternate{}, Alternate{}) == Numbers{1, 0.25, 4, 0, 0, 0});
  int tokens = -1;
  auto prepared = x.prepare(Counting{&tokens}, Alternate{Reach::Mask});
  CHECK(tokens == 3);
  CHECK(gdpo::count(prepared).tokens == 3);  // a weight of 0.5 in the denominator keeps the token
  CHECK(x.memory.weights[1] == 1);           // and its weight is 1
  prepared = x.prepare(Alternate{}, Counting{&tokens, Reach::Mask});
  CHECK(tokens == 6);
  CHECK_THROWS_AS(x.prepare(Alternate{Reach::Surrogate, -1}), gdpo::invalid_input);
  // Settings are checked even where the pre-pass is off.
  CHECK_THROWS_AS(x.prepare(Alternate{Reach::None, -1}), gdpo::invalid_input);
}

TEST_CASE("a second prepare goes on from the first, in the same memory or in another",
          "[prepass]") {
  Two x;
  x.mask = {1, 1, 1, 1, 0, 1};
  x.weights = {2, 1, 1, 1, 1, 1};
  x.entropies = {1, 2, 3, 4, 5, 6};
  x.flags = {0, 1};
  prepass::TopEntropy top;
  top.quantile = 0.5;
  const auto same = [&](const auto& first, const auto&... second) {
    gdpo::PrepassMemory<double> another, third;
    const gdpo::TokenBatch<double> apart =
        gdpo::prepare(gdpo::prepare(x.batch(), another, first), third, second...);
    const gdpo::LossResult a = x.run(gdpo::grpo_loss, apart);
    const Numbers gradient = x.gradient;
    const gdpo::TokenBatch<double> together = gdpo::prepare(x.prepare(first), x.memory, second...);
    const gdpo::LossResult b = x.run(gdpo::grpo_loss, together);
    CHECK(a.normalizer.tokens == b.normalizer.tokens);
    CHECK(apart.entropy_threshold == together.entropy_threshold);
    CHECK(same_bits(a.loss, b.loss));
    CHECK(difference(gradient, x.gradient) == "");
  };
  x.ref = Numbers(6, -1.25);
  const prepass::Overlong overlong{gdpo::view(x.flags)};
  for (const Reach one : {Reach::Surrogate, Reach::SurrogateAndKl, Reach::Mask}) {
    for (const Reach two : {Reach::Surrogate, Reach::SurrogateAndKl, Reach::Mask}) {
      INFO("reaches " << static_cast<int>(one) << ", " << static_cast<int>(two));
      prepass::TopEntropy other = top;
      top.reach = one, other.reach = two;
      other.quantile = 0.3;
      same(top, other);
      // If both reach the mask, both see the mask as given.
      same(other, overlong, top);
      same(prepass::Overlong{gdpo::view(x.flags), two}, Alternate{one}, top);
    }
  }
}

TEST_CASE("a batch without rows or without tokens", "[prepass]") {
  const std::vector<float> none;
  const std::vector<int> flags, no_offsets{0};
  gdpo::PrepassMemory<float> memory;
  prepass::TopEntropy top;
  const auto run = [&](const gdpo::TokenBatch<float>& batch, const std::vector<int>& column) {
    for (const Reach reach : {Reach::Surrogate, Reach::SurrogateAndKl, Reach::Mask}) {
      top.reach = reach;
      prepass::Gate gate;
      gate.reach = reach;
      prepass::Importance importance;
      if (reach != Reach::Mask) importance.reach = reach;
      const auto prepared = gdpo::prepare(
          batch, memory, prepass::Overlong{gdpo::view(column), reach}, top, gate, importance);
      CHECK(gdpo::count(prepared).tokens == 0);
      CHECK(same_bits(gdpo::dapo_loss(prepared, gdpo::count(prepared)).loss, 0.0));
      CHECK(prepared.entropy_threshold == inf);
    }
  };
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(none.data(), 0, 7);
  run(batch, flags);
  batch.logp = gdpo::view(none.data(), 3, 0);
  run(batch, {0, 1, 0});
  batch.logp = gdpo::view(none);
  batch.offsets = gdpo::view(no_offsets);
  run(batch, flags);
  const std::vector<int> empty_rows{0, 0, 0};
  batch.offsets = gdpo::view(empty_rows);
  run(batch, {1, 0});
}

TEST_CASE("rank 3, 16-bit storage, strides and column order make no difference", "[prepass]") {
  // bfloat16 holds all of these values. The batch is given as (4, 3), as (2, 2, 3), in bfloat16 and
  // in column order.
  const std::vector<float> logp{-1, -2, -0.5f, -1.5f, -1, -1, -2, -2, -3, -0.25f, -1, -1};
  const std::vector<float> rollout{-1, -1, -0.5f, -1, -2, -1, -2, -1.5f, -3, -0.5f, -1, -4};
  const std::vector<float> entropies{0.5f, 1, 2, 1.5f, 0.25f, 0, 3, 1, 1, 0.5f, 2, 2};
  std::vector<int> mask{1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1};
  const std::vector<double> advantages{1, -1, 2, -2};
  prepass::Gate gate = prepass::off_policy_sequence_mask(0.25);
  prepass::Importance importance;
  importance.clip = {0, 2};
  importance.reach = Reach::SurrogateAndKl;
  prepass::TopEntropy top;
  top.quantile = 0.3;
  top.reach = Reach::Mask;
  const auto run = [&](const gdpo::TokenBatch<float>& batch) {
    gdpo::PrepassMemory<float> memory;
    const auto prepared = gdpo::prepare(batch, memory, gate, importance, top);
    CHECK(prepared.mask.rank() == batch.logp.rank());
    std::vector<double> all{gdpo::dapo_loss(prepared, gdpo::count(prepared)).loss,
                            prepared.entropy_threshold};
    for (std::size_t k = 0; k < 12; ++k) {
      all.push_back(memory.mask[k]);
      if (mask[k]) all.insert(all.end(), {memory.weights[k], memory.kl_weights[k]});
    }
    return all;
  };
  gdpo::TokenBatch<float> flat;
  flat.advantages = gdpo::view(advantages);
  flat.logp = gdpo::view(logp.data(), 4, 3), flat.rollout_logp = gdpo::view(rollout.data(), 4, 3);
  flat.entropies = gdpo::view(entropies.data(), 4, 3), flat.mask = gdpo::view(mask.data(), 4, 3);
  const Numbers expected = run(flat);

  gdpo::TokenBatch<float> cube = flat;
  cube.logp = gdpo::view(logp.data(), 2, 2, 3),
  cube.rollout_logp = gdpo::view(rollout.data(), 2, 2, 3);
  cube.entropies = gdpo::view(entropies.data(), 2, 2, 3),
  cube.mask = gdpo::view(mask.data(), 2, 2, 3);
  CHECK(difference(run(cube), expected) == "");

  const auto bfloat = [](const std::vector<float>& from) {
    std::vector<gdpo::BFloat16> to;
    for (const float x : from)
      to.push_back({static_cast<std::uint16_t>(gdpo::math::bits_of(x) >> 16)});
    return to;
  };
  const auto b_logp = bfloat(logp), b_rollout = bfloat(rollout), b_entropies = bfloat(entropies);
  gdpo::TokenBatch<float> narrow = flat;
  narrow.logp = gdpo::view(b_logp.data(), 4, 3),
  narrow.rollout_logp = gdpo::view(b_rollout.data(), 4, 3);
  narrow.entropies = gdpo::view(b_entropies.data(), 4, 3);
  CHECK(difference(run(narrow), expected) == "");

  const auto column_order = [](const auto& from) {
    auto to = from;
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t t = 0; t < 3; ++t) to[4 * t + i] = from[3 * i + t];
    }
    return to;
  };
  const auto c_logp = column_order(logp), c_rollout = column_order(rollout),
             c_entropies = column_order(entropies);
  const auto c_mask = column_order(mask);
  const auto strided = [](const auto& v) {
    return gdpo::View<const std::decay_t<decltype(v[0])>, 2>{v.data(), {4, 3}, {1, 4}};
  };
  gdpo::TokenBatch<float> columns = flat;
  columns.logp = strided(c_logp), columns.rollout_logp = strided(c_rollout);
  columns.entropies = strided(c_entropies), columns.mask = strided(c_mask);
  CHECK(difference(run(columns), expected) == "");
}

TEST_CASE("a statistic over a group whose number is NaN is NaN: the row is dropped", "[prepass]") {
  using prepass::Statistic;
  Two x;
  x.old = Numbers(6, -1.0), x.rollout = Numbers(6, -6.0);
  const std::vector<double> groups{nan_, 1};
  prepass::Importance weight;
  weight.statistic = Statistic::GroupMean, weight.clip.hi = 2, weight.groups = gdpo::view(groups);
  CHECK(x.weights_of(weight) == Numbers{0, 0, 0, 2, 2, 2});
  prepass::Gate gate;
  gate.statistic = Statistic::GroupMean, gate.max = 1000, gate.groups = gdpo::view(groups);
  CHECK(x.weights_of(gate) == Numbers{0, 0, 0, 1, 1, 1});
}

TEST_CASE("MeanOne divides nothing where the mean is at most `least`, or its inverse is infinite",
          "[prepass]") {
  Two x;
  x.weights = Numbers(6, 1e-9);
  prepass::MeanOne pass;
  // 1e-9 times the rounded 1e9: two roundings.
  CHECK(std::abs(x.weights_of(pass)[0] - 1) <= 4 * tolerance::unit);
  pass.least = 1e-8;
  CHECK(x.weights_of(pass)[0] == 1e-9);
  pass.least = 0;
  x.weights = Numbers(6, 5e-324);
  CHECK(x.weights_of(pass)[0] == 5e-324);
}

}  // namespace edges_test
