// labels: lanes, sanitizers
// Reach::Level: the logs of weights that prepare() writes, against their formula in long double,
// and the loss of a prepared batch.
#include <gdpo/loss.hpp>
#include <gdpo/prepass.hpp>
#include <gdpo/presets/trl.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace level_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::Reach;
using prepass::Statistic;
using real = long double;

constexpr double nan_ = std::numeric_limits<double>::quiet_NaN(),
                 infinite = std::numeric_limits<double>::infinity();
const real lowest = std::log(1e-8L);

/// A padded batch with masks and segments; nonsense where the mask is 0.
struct Batch {
  int rows, width;
  std::vector<double> logp, old, rollout, given;
  std::vector<double> advantages;
  std::vector<unsigned char> mask;
  std::vector<std::int64_t> segments;

  explicit Batch(Random& random) : rows(random.pick({1, 4})), width(random.pick({1, 6, 20})) {
    const bool segmented = random.chance(0.5), has_given = random.chance(0.4);
    const double spread = random.pick({0.3, 3.0, 30.0});
    for (int k = 0; k < rows * width; ++k) {
      mask.push_back(random.chance(0.7));
      logp.push_back(-2 * random.uniform());
      old.push_back(logp.back() + 0.1 * (random.uniform() - 0.5));
      rollout.push_back(random.chance(0.05) ? nan_
                                            : old.back() + spread * (random.uniform() - 0.5));
      if (has_given) given.push_back(random.uniform() - 0.5);
      if (segmented) segments.push_back(random.chance(0.2) ? random.below(3) : k / width);
      if (mask.back()) continue;
      old.back() = rollout.back() = nan_;
    }
    for (int i = 0; i < rows; ++i) advantages.push_back(random.uniform() - 0.5);
  }
  gdpo::TokenBatch<double> operator()() const {
    gdpo::TokenBatch<double> b;
    const auto view = [&](const auto& v) { return gdpo::view(v.data(), rows, width); };
    b.logp = view(logp), b.old_logp = view(old), b.rollout_logp = view(rollout);
    b.mask = view(mask), b.advantages = gdpo::view(advantages);
    if (!given.empty()) b.level_log_weights = view(given);
    if (!segments.empty()) b.segments = view(segments);
    return b;
  }
  std::size_t at(int i, int t) const { return static_cast<std::size_t>(i * width + t); }
  /// Calls f(positions) for each segment; with `whole`, for each row.
  template <class F>
  void for_each_segment(bool whole, const F& f) const {
    for (int i = 0; i < rows; ++i) {
      std::vector<std::size_t> run;
      std::int64_t id = 0;
      for (int t = 0; t < width; ++t) {
        const std::size_t k = at(i, t);
        if (!mask[k]) continue;
        const std::int64_t own = whole || segments.empty() ? 0 : segments[k];
        if (!run.empty() && own != id) f(run), run.clear();
        run.push_back(k), id = own;
      }
      if (!run.empty()) f(run);
    }
  }
};

/// The log of a weight within its bounds.
real log_of(real weight) {
  const real log = std::log(weight);  // of 0: -infinity
  return log < lowest ? lowest : log > 20 ? 20 : log;
}
/// The weights of Importance at each token, clipped to `clip`; 0 where a rollout log-prob is NaN.
std::vector<real> importance(const Batch& b, Statistic statistic, gdpo::Bounds clip) {
  std::vector<real> w(b.logp.size(), nan_);
  const auto clipped = [&](real x) {
    const real ratio = std::isnan(x) ? 0 : std::exp(x);
    return std::isnan(x) ? real{0} : ratio < clip.lo ? clip.lo : ratio > clip.hi ? clip.hi : ratio;
  };
  b.for_each_segment(statistic == Statistic::SequenceSum, [&](const auto& run) {
    real sum = 0;
    for (const std::size_t k : run)
      sum += static_cast<real>(b.old[k]) - static_cast<real>(b.rollout[k]);
    for (const std::size_t k : run) {
      const real own = static_cast<real>(b.old[k]) - static_cast<real>(b.rollout[k]);
      w[k] = clipped(statistic == Statistic::Token ? own : sum);
    }
  });
  return w;
}
/// What the batch then has: at each valid token, or at the first one of each segment.
std::vector<real> expected(const Batch& b, const std::vector<real>& w, bool shared) {
  std::vector<real> logs(b.logp.size(), 0);
  b.for_each_segment(false, [&](const auto& run) {
    for (const std::size_t k : run) {
      logs[k] = b.given.empty() ? 0 : static_cast<real>(b.given[k]);
      if (!shared || k == run[0]) logs[k] += log_of(w[k]);
    }
  });
  return logs;
}
/// Compares them at valid tokens. exp and log lose a few units of 2^-53 of a weight each, which is
/// a few units of 2^-53 in its log, whose own rounding is 20 times that at most.
std::string difference_of(const Batch& b, const std::vector<double>& got,
                          const std::vector<real>& want) {
  for (std::size_t k = 0; k < want.size(); ++k) {
    if (!b.mask[k]) continue;
    if (std::fabs(static_cast<real>(got[k]) - want[k]) <= 512 * tolerance::unit) continue;
    char text[96];
    std::snprintf(text, sizeof text, "[%zu]: %.17g, expected %.17Lg", k, got[k], want[k]);
    return text;
  }
  return "";
}

prepass::Importance weight(Statistic statistic, gdpo::Bounds clip = {}) {
  prepass::Importance pass;
  pass.statistic = statistic, pass.clip = clip, pass.reach = Reach::Level;
  return pass;
}
prepass::Gate gate(Statistic statistic, double max) {
  prepass::Gate pass;
  pass.statistic = statistic, pass.max = max, pass.reach = Reach::Level;
  return pass;
}

}  // namespace

TEST_CASE("reach Level: the logs of weights of tokens, segments and rows are those of the formula",
          "[prepass][level]") {
  int dropped = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Batch b(random);
    const auto statistic =
        random.pick({Statistic::Token, Statistic::SegmentSum, Statistic::SequenceSum});
    const gdpo::Bounds clip = random.chance(0.5) ? gdpo::Bounds{0.1, 3} : gdpo::Bounds{};
    std::vector<real> w = importance(b, statistic, clip);
    gdpo::PrepassMemory<double> memory;
    const auto pass = weight(statistic, clip);
    gdpo::prepare(b(), memory, pass);
    CHECK(difference_of(b, memory.level_log_weights,
                        expected(b, w, statistic != Statistic::Token)) == "");

    // With a mask of tokens, each token has a weight of its own; with one of the same statistic
    // there is still one number. Outside the bounds the weight is 0, and its log the lower bound.
    for (const Statistic of_gate : {statistic, Statistic::Token}) {
      const std::vector<real> ratio = importance(b, of_gate, {});
      std::vector<real> masked = w;
      bool unsure = false;
      for (std::size_t k = 0; k < masked.size(); ++k) {
        unsure = unsure || std::fabs(ratio[k] - 1.25L) < 1e-9L;
        const bool missing = of_gate == Statistic::Token && b.mask[k] && std::isnan(b.rollout[k]);
        if (ratio[k] > 1.25L || missing) masked[k] = 0, dropped += b.mask[k];
      }
      if (unsure) continue;
      const bool shared = statistic != Statistic::Token && of_gate == statistic;
      gdpo::prepare(b(), memory, prepass::MaskedImportance{pass, {gate(of_gate, 1.25), {}}});
      CHECK(difference_of(b, memory.level_log_weights, expected(b, masked, shared)) == "");
    }
  }
  CHECK(dropped > 100);
}

TEST_CASE("reach Level: pre-passes of the mask go first, calls add, and surrogates keep theirs",
          "[prepass][level]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Batch b(random);
    std::vector<unsigned char> truncated;
    for (int i = 0; i < b.rows; ++i) truncated.push_back(random.chance(0.3));
    auto token_gate = gate(Statistic::Token, 1.1);
    token_gate.reach = Reach::Mask;
    gdpo::PrepassMemory<double> memory, second, third;
    const auto of_row = weight(Statistic::SequenceSum), of_token = weight(Statistic::Token);
    const auto once =
        gdpo::prepare(b(), memory, of_row, prepass::Overlong{gdpo::view(truncated)}, token_gate);
    CHECK_FALSE(once.weights);
    CHECK_FALSE(once.kl_weights);
    Batch left = b;
    left.mask = memory.mask;
    CHECK(difference_of(left, memory.level_log_weights,
                        expected(left, importance(left, Statistic::SequenceSum, {}), true)) == "");

    // A second call adds its logs, in the same memory or in another.
    left.given = memory.level_log_weights;
    const std::vector<real> both = expected(left, importance(left, Statistic::Token, {}), false);
    const bool other = random.chance(0.5);
    gdpo::prepare(once, other ? second : memory, of_token);
    CHECK(difference_of(left, (other ? second : memory).level_log_weights, both) == "");

    // Of one call the weights are multiplied: a weight 0 of a token is one weight 0.
    gdpo::prepare(b(), third, of_row, of_token);
    std::vector<real> product = importance(b, Statistic::SequenceSum, {});
    const std::vector<real> factor = importance(b, Statistic::Token, {});
    for (std::size_t k = 0; k < product.size(); ++k)
      product[k] = product[k] == 0 || factor[k] == 0 ? 0 : product[k] * factor[k];
    CHECK(difference_of(b, third.level_log_weights, expected(b, product, false)) == "");
  }
}

TEST_CASE("reach Level: MeanOne divides the weights of the ratio by their mean",
          "[prepass][level]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Batch b(random);
    const bool of_rows = random.chance(0.5);
    const Statistic statistic = of_rows ? Statistic::SequenceSum : Statistic::Token;
    const gdpo::Bounds clip{0.1, 3};
    std::vector<real> w = importance(b, statistic, clip);
    real sum = 0, count = 0;
    b.for_each_segment(true, [&](const auto& run) {
      for (const std::size_t k : run) {
        sum += w[k] / (of_rows ? static_cast<real>(run.size()) : 1);
        count += 1 / (of_rows ? static_cast<real>(run.size()) : 1);
      }
    });
    for (real& x : w) x = sum > 0 ? x * count / sum : x;
    gdpo::PrepassMemory<double> memory;
    gdpo::prepare(
        b(), memory, weight(statistic, clip),
        prepass::MeanOne{of_rows ? prepass::MeanOf::Rows : prepass::MeanOf::Tokens, Reach::Level});
    CHECK(difference_of(b, memory.level_log_weights, expected(b, w, of_rows)) == "");
  }
}

/// A pre-pass of the caller's own, whose weights are not ratios.
struct Own {
  std::vector<double> weights;
  Reach reach = Reach::Level;
  template <class S>
  void operator()(const gdpo::PrepassArgs<S>& args) const {
    std::copy(weights.begin(), weights.end(), args.weights);
  }
};
/// The same as one number.
struct OwnShared : Own {
  bool is_shared() const { return true; }
};

TEST_CASE("reach Level: weights of one's own, and those that are no number", "[prepass][level]") {
  const std::vector<float> logp(6, -1);
  gdpo::TokenBatch<float> batch;
  batch.logp = gdpo::view(logp.data(), 1, 6);
  gdpo::PrepassMemory<float> memory;
  const Own own{{2, 0, infinite, nan_, 1e-9, 1}};
  gdpo::prepare(batch, memory, own);
  const auto& logs = memory.level_log_weights;
  const auto low = static_cast<float>(lowest);
  CHECK(logs[0] == static_cast<float>(std::log(2.0)));
  CHECK(logs[1] == low);
  CHECK(logs[2] == 20);
  CHECK(std::isnan(logs[3]));
  CHECK(logs[4] == low);
  CHECK(logs[5] == 0);
  gdpo::prepare(batch, memory, OwnShared{own});
  CHECK(logs[0] == static_cast<float>(std::log(2.0)));
  for (std::size_t k = 1; k < 6; ++k) CHECK(logs[k] == 0);
}

TEST_CASE("reach Level: the ratio of a prepared batch has the weight once", "[prepass][level]") {
  // Three tokens; the log ratio of the update is 0.3, that of the samplers 0.6.
  const std::vector<double> logp{-1, -1, -1}, old{-1.1, -1.1, -1.1}, rollout{-1.3, -1.3, -1.3},
      advantages{1};
  gdpo::TokenBatch<double> batch;
  batch.logp = gdpo::view(logp.data(), 1, 3), batch.old_logp = gdpo::view(old.data(), 1, 3);
  batch.rollout_logp = gdpo::view(rollout.data(), 1, 3);
  batch.advantages = gdpo::view(advantages);
  gdpo::PolicyLoss<gdpo::level::Sequence<gdpo::map::Clamp, gdpo::statistic::Sum>,
                   gdpo::surrogate::Ratio, gdpo::kl::None>
      loss;
  loss.level.bounds = {-18.420680743952367, 20};
  for (const Statistic statistic : {Statistic::Token, Statistic::SequenceSum}) {
    gdpo::PrepassMemory<double> memory;
    const auto prepared = gdpo::prepare(batch, memory, weight(statistic));
    const auto r = loss(prepared, gdpo::count(prepared));
    CHECK(std::fabs(r.metrics.ratio.mean() - std::exp(0.9)) <= tolerance::formula);
  }
  // Outside the mask the weight of the row is 0: the ratio is at the lower bound plus 0.3.
  gdpo::PrepassMemory<double> memory;
  auto mask = gdpo::trl::sequence_mask;
  mask.first.reach = mask.rest.first.reach = Reach::Level;
  mask.rest.first.max = mask.first.clip.hi = 1.5;
  const auto prepared = gdpo::prepare(batch, memory, mask);
  const auto r = loss(prepared, gdpo::count(prepared));
  CHECK(std::fabs(r.metrics.ratio.mean() - 1e-8 * std::exp(0.3)) <= 1e-8 * 64 * tolerance::formula);
  CHECK(prepared.mask.data() == nullptr);
}

}  // namespace level_test
