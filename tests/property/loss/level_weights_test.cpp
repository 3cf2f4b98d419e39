// labels: lanes, sanitizers
// TokenBatch::level_log_weights: the weights that join the ratio of a segment, against the oracle
// at the levels that read them, and what must not change a bit.
#include "support/catch.hpp"
#include "support/loss_calls.hpp"
#include "support/message.hpp"

namespace level_weights_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;
using naive_loss::real;
using Bounds = naive_loss::Bounds;

constexpr double lowest = -18.420680743952367, nan_ = std::numeric_limits<double>::quiet_NaN(),
                 infinite = std::numeric_limits<double>::infinity();

using Clamp = gdpo::map::Clamp;
using Sum = gdpo::statistic::Sum;
using Weighted = gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>;
template <class Level>
using Loss = gdpo::PolicyLoss<Level, gdpo::surrogate::Ratio, Weighted>;
/// The level of VESPO, whose ratio is a weight.
using Sequence = gdpo::level::Sequence<Clamp, Sum>;
using WeightedLogps = gdpo::PolicyLoss<Sequence, gdpo::surrogate::Reinforce, gdpo::kl::None,
                                       gdpo::Aggregate, gdpo::Factors<gdpo::factor::ClippedRatio>>;

/// Settings of a loss, with the bounds of VESPO at its level.
template <class L>
naive_loss::Settings settings(Random& random) {
  using Level = decltype(L::level);
  naive_loss::Settings s;
  s.level =
      Level::straight_through ? naive_loss::Level::SequenceToken : naive_loss::Level::Sequence;
  if (std::is_same_v<decltype(Level::map), Clamp>) s.map = naive_loss::Map::Clamp;
  if (std::is_same_v<decltype(Level::statistic), Sum>) s.statistic = naive_loss::Statistic::Sum;
  if (std::is_same_v<decltype(L::surrogate), gdpo::surrogate::Reinforce>)
    s.surrogate = naive_loss::Reinforce{}, s.detached = naive_loss::ClippedRatio{};
  s.kl.resize(1);
  s.kl[0].rule = naive_loss::Rule::ImportanceWeighted;
  loss_product::random_settings(random, s);
  if (std::is_same_v<decltype(L::kl), gdpo::kl::None>) s.kl.clear();
  s.map_bounds = {-20, 20}, s.level_bounds = {lowest, 20}, s.over = naive_loss::Over::Rows;
  return s;
}

/// Log weights of this size, and NaN where the mask is 0. Some rows are far below the lower bound
/// of the level.
void weigh(Random& random, Data& d, double size, bool single = false) {
  d.level_log_weights.clear();
  for (int i = 0; i < d.rows; ++i) {
    const double shift = random.chance(0.2) ? -25 : 0;
    for (int t = 0; t < d.width; ++t) {
      const double x = shift + size * (2 * random.uniform() - 1);
      d.level_log_weights.push_back(!d.valid(i, t) ? nan_
                                    : single       ? static_cast<double>(static_cast<float>(x))
                                                   : x);
    }
  }
}

template <class L>
void check_against_oracle() {
  int compared = 0, held = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive_loss::Settings s = settings<L>(random);
    Data data =
        loss_product::random_tokens(random, random.pick({1, 3}), random.pick({1, 7, 40}), 0.2);
    weigh(random, data, 0.3);
    loss_product::fit(s, data);
    if (naive_loss::count(data).tokens == 0) continue;
    const naive_loss::Result expected = naive_loss::loss(s, data);
    const Outcome got = loss_product::call<double>(loss_product::loss_of<L>(s), data);
    CHECK(loss_product::mismatch(s, data, expected, got, tolerance::unit) == "");
    ++compared, held += expected.sums.bounded > 0;
  }
  CHECK(compared > 100);
  CHECK(held > 15);
}

/// One row of one segment, with one advantage and a mask.
Data row(const std::vector<double>& log_ratios, const std::vector<double>& log_weights) {
  Data d;
  d.rows = 1, d.width = static_cast<int>(log_ratios.size());
  d.logp = log_ratios, d.old_logp.assign(log_ratios.size(), 0);
  d.level_log_weights = log_weights;
  d.advantages = {-1};
  return d;
}
WeightedLogps weighted(Bounds bounds = {lowest, 20}) {
  WeightedLogps loss;
  loss.level.bounds = {bounds.lo, bounds.hi};
  loss.aggregate = gdpo::aggregate::token_sum();
  return loss;
}

}  // namespace

TEST_CASE("the weights of the ratio: loss, gradient and metrics are those of the formulas",
          "[loss][level]") {
  check_against_oracle<Loss<Sequence>>();
  check_against_oracle<Loss<gdpo::level::Sequence<>>>();
  check_against_oracle<Loss<gdpo::level::SequenceToken<Clamp, Sum>>>();
  check_against_oracle<Loss<gdpo::level::SequenceToken<>>>();
  check_against_oracle<WeightedLogps>();
}

TEST_CASE("the weights of the ratio: gradients are central differences with them held fixed",
          "[loss][level][gradient]") {
  // The frozen form of the oracle, in long double: an error of h^2 |f'''| / 6 < 1e-9 |f'''|.
  const real h = 0x1p-14L;
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const bool token = random.chance(0.5);
    naive_loss::Settings s = token ? settings<Loss<gdpo::level::SequenceToken<Clamp, Sum>>>(random)
                                   : settings<Loss<Sequence>>(random);
    s.level_bounds = {-0.5, 0.6};
    Data data = loss_product::random_tokens(random, 3, 6, 0.1);
    weigh(random, data, 0.3);
    loss_product::fit(s, data);
    if (naive_loss::count(data).tokens == 0) continue;
    const auto differences = naive_loss::differences(s, data, naive_loss::count(data), h, 4 * h);
    const Outcome got =
        token ? loss_product::call<double>(
                    loss_product::loss_of<Loss<gdpo::level::SequenceToken<Clamp, Sum>>>(s), data)
              : loss_product::call<double>(loss_product::loss_of<Loss<Sequence>>(s), data);
    real largest = 1e-3L;
    for (const real g : differences)
      largest = std::isnan(g) ? largest : std::fmax(largest, std::fabs(g));
    for (std::size_t k = 0; k < differences.size(); ++k) {
      if (std::isnan(differences[k])) continue;  // near a kink
      ++compared;
      CHECK(std::fabs(static_cast<real>(got.gradient[k]) - differences[k]) <= 1e-7L * largest);
    }
  }
  CHECK(compared > 500);
}

TEST_CASE("the weights of the ratio by hand: two clamps, and no gradient where one of them holds",
          "[loss][level]") {
  gdpo::PolicyLoss<Sequence, gdpo::surrogate::Ratio, gdpo::kl::None> loss;
  loss.surrogate.low = loss.surrogate.high = infinite, loss.level.bounds = {-1, 2};
  loss.aggregate = gdpo::aggregate::token_sum();
  struct Expected {
    std::vector<double> log_ratios, log_weights;
    double log_ratio;
    bool held;
  };
  const Expected cases[] = {
      {{0.5, 0.25}, {0.25, -0.5}, 0.5, false}, {{0.5, 0.25}, {0, 0}, 0.75, false},
      {{0.5, 1}, {0.5, 0}, 2, false},       // at the bound itself
      {{0.5, 1}, {0.5, 0.25}, 2, true},     // the second clamp
      {{2, 1}, {-0.5, -0.25}, 1.25, true},  // the first one
      {{-2, -1}, {0.5, 2}, 1.5, true},      // the first one, from below
      {{0.5, 0.25}, {-infinite, 1}, -1, true}, {{0.5, 0.25}, {infinite, 1}, 2, true}};
  for (const Expected& e : cases) {
    const Outcome got = loss_product::call<double>(loss, row(e.log_ratios, e.log_weights));
    const double r = std::exp(e.log_ratio);
    INFO("log ratio " << e.log_ratio << ", held " << e.held);
    CHECK(std::fabs(got.result.loss - 2 * r) <= tolerance::formula * r);
    for (const double g : got.gradient)
      CHECK(std::fabs(g - (e.held ? 0 : 2 * r)) <= tolerance::formula * r);
    CHECK(got.result.metrics.log_ratio_bounded.sum == (e.held ? 2 : 0));
    const bool bad = std::isinf(e.log_weights[0]);
    CHECK(got.result.metrics.non_finite.weights.count == (bad ? 1 : 0));
  }
}

TEST_CASE("the weights of the ratio: each segment has its own", "[loss][level]") {
  Data d = row({0.5, 0.25, -0.25, 0.125, 1}, {0.25, 7, -0.5, 1, nan_});
  d.mask = {1, 0, 1, 1, 0}, d.segments = {1, 2, 1, 2, 2};
  const Outcome got = loss_product::call<double>(weighted(), d);
  const double a = std::exp(0.0), b = std::exp(1.125);  // 0.5 - 0.25 + 0.25 - 0.5; 0.125 + 1
  CHECK(std::fabs(got.gradient[0] - a) <= tolerance::formula);
  CHECK(std::fabs(got.gradient[2] - a) <= tolerance::formula);
  CHECK(std::fabs(got.gradient[3] - b) <= 4 * tolerance::formula);
  CHECK(got.gradient[1] == 0);
  CHECK(got.gradient[4] == 0);
  CHECK(got.result.metrics.non_finite.weights.count == 0);
}

TEST_CASE("the weights of the ratio: NaN, and sums that are none, reach the tokens of the segment",
          "[loss][level][nonfinite]") {
  for (const auto& bad : {std::vector<double>{0, nan_, 0, 0}, {0, infinite, -infinite, 0}}) {
    Data d = row({0.5, 0.25, -0.25, 0.125}, bad);
    d.segments = {1, 1, 1, 2};
    const Outcome got = loss_product::call<double>(weighted(), d);
    CHECK(std::isnan(got.result.loss));
    for (int t = 0; t < 3; ++t) CHECK(std::isnan(got.gradient[static_cast<std::size_t>(t)]));
    CHECK(std::fabs(got.gradient[3] - std::exp(0.125)) <= 4 * tolerance::formula);
    const gdpo::NonFinite& counted = got.result.metrics.non_finite.weights;
    CHECK(counted.count == (std::isnan(bad[1]) ? 1 : 2));
    CHECK(counted.row == 0);
    CHECK(counted.token == 1);
    // A weight 0 takes the token out, also of a ratio that is NaN.
    d.weights = {0, 0, 0, 1};
    CHECK(std::fabs(loss_product::call<double>(weighted(), d).result.loss -
                    0.125 * std::exp(0.125)) <= tolerance::formula * 8);
  }
}

TEST_CASE("the weights of the ratio: masked places, packing, tags and zeros change no bit",
          "[loss][level][poison]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive_loss::Settings s = settings<Loss<Sequence>>(random);
    const int width = random.pick({5, 17, 70});
    Data d = loss_product::random_tokens(random, 3, width, 0.1, true);
    if (d.mask.empty()) d.mask.assign(d.logp.size(), 1);
    const std::vector<int> lengths{width, random.below(width), random.below(width)};
    for (int i = 0; i < d.rows; ++i) {
      for (int t = lengths[static_cast<std::size_t>(i)]; t < width; ++t) d.mask[d.at(i, t)] = 0;
    }
    weigh(random, d, 0.2, true);
    loss_product::fit(s, d);
    s.padded_width = false, s.constant = 100;
    const auto loss = loss_product::loss_of<Loss<Sequence>>(s);
    const Outcome want = loss_product::call<float>(loss, d);

    Data other = d;
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (!d.mask[k]) other.level_log_weights[k] = random.pick({infinite, -1e30, 5.0});
    }
    CHECK(loss_product::difference_of(loss_product::call<float>(loss, other), want) == "");

    const Outcome packed = loss_product::call_packed<float, std::int64_t>(loss, d, lengths);
    CHECK(same_bits(packed.result.loss, want.result.loss));
    CHECK(difference(loss_product::numbers(packed.result), loss_product::numbers(want.result)) ==
          "");

    const loss_product::Arrays<float> arrays(d);
    const auto batch = arrays.batch();
    std::vector<float> gradient(d.logp.size());
    gdpo::LossWorkspace<float> workspace;
    const auto r = loss(gdpo::simd, batch, gdpo::count(batch),
                        gdpo::view(gradient.data(), d.rows, d.width), workspace);
    CHECK(difference(loss_product::numbers(r), loss_product::numbers(want.result)) == "");
    CHECK(difference(gradient, want.gradient) == "");

    Data none = d, zeros = d;
    none.level_log_weights.clear();
    for (std::size_t k = 0; k < d.mask.size(); ++k)
      zeros.level_log_weights[k] = d.mask[k] ? 0 : nan_;
    CHECK(loss_product::difference_of(loss_product::call<float>(loss, none),
                                      loss_product::call<float>(loss, zeros)) == "");
  }
}

TEST_CASE("the weights of the ratio at level::Token are refused", "[loss][level][errors]") {
  const Data d = row({0.5, 0.25}, {0, 0});
  CHECK(message_of([&] { loss_product::call<double>(gdpo::grpo_loss, d); }) ==
        "gdpo::PolicyLoss: batch.level_log_weights: given an array, at level::Token; needed: none: "
        "they weigh the ratio of a segment; at level::Token weights do (Reach::Surrogate)");
}

}  // namespace level_weights_test
