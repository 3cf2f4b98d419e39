// labels: lanes, sanitizers
// The report of a gate: its formulas in long double, and the laws of its bits. Partition and order
// of merges, packing and what masked places hold change none; what is closed is what prepare()
// gives the weight 0.
#include <gdpo/prepass.hpp>
#include <limits>

#include "support/catch.hpp"
#include "support/generators.hpp"

namespace gate_report_laws_test {

namespace {

namespace prepass = gdpo::prepass;
using gdpo::GateReport, gdpo::GateReportSettings;
using prepass::Estimator, prepass::Statistic, prepass::When;
using real = long double;

constexpr double nan_ = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();

struct Token {
  double old, rollout;
  bool valid;
};
struct Row {
  std::vector<Token> tokens;
  double advantage;
};
using Rows = std::vector<Row>;

/// Rows of up to 8 tokens with holes, some empty. The numbers are exact in float.
Rows random_rows(Random& random, double wild) {
  Rows rows;
  const double spread = random.pick({0.0, 0.01, 0.5, 5.0});
  const auto stored = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  for (int i = random.below(7); i >= 0; --i) {
    Row row{{}, random.pick({-1.0, 0.0, 0.5})};
    const double p = random.pick({0.0, 0.6, 1.0, 1.0});
    for (int n = random.below(9); n > 0; --n) {
      Token t{};
      t.old = stored(-3 * random.uniform());
      t.rollout = stored(t.old + spread * (random.uniform() + random.uniform() - 1));
      t.valid = random.chance(p);
      if (random.chance(wild)) t.rollout = random.pick({nan_, -inf, inf});
      row.tokens.push_back(t);
    }
    rows.push_back(row);
  }
  return rows;
}

prepass::Gate random_gate(Random& random) {
  prepass::Gate g;
  g.estimator = random.pick({Estimator::Ratio, Estimator::K1, Estimator::K2, Estimator::K3});
  g.statistic = random.pick({Statistic::Token, Statistic::Token, Statistic::SequenceMean,
                             Statistic::SequenceSum, Statistic::SequenceMax});
  g.when = random.pick({When::Always, When::NegativeAdvantage, When::Outward});
  g.min = random.pick({-inf, -0.1, 0.9}), g.max = random.pick({inf, 1.1, 2.0});
  if (random.chance(0.3)) g.clamp = {-1, 1};
  g.count_eps = random.pick({0.0, 0.5});
  return g;
}

/// The rows as arrays, padded or packed. Masked places hold what `random` picks, numbers or not.
template <class S>
class Arrays {
 public:
  gdpo::TokenBatch<S> batch;

  Arrays(const Rows& rows, bool packed, Random random) {
    const auto count = static_cast<gdpo::index_t>(rows.size());
    std::size_t width = 1;
    for (const Row& row : rows) width = (std::max)(width, row.tokens.size());
    offsets_.push_back(0);
    for (const Row& row : rows) {
      const std::size_t length = packed ? row.tokens.size() : width;
      for (std::size_t t = 0; t < length; ++t) {
        const bool valid = t < row.tokens.size() && row.tokens[t].valid;
        const double junk = random.pick({nan_, inf, -inf, 1e30, 0.0});
        old_.push_back(static_cast<S>(valid ? row.tokens[t].old : junk));
        rollout_.push_back(static_cast<S>(valid ? row.tokens[t].rollout : junk));
        mask_.push_back(valid);
      }
      advantages_.push_back(row.advantage);
      offsets_.push_back(static_cast<std::int64_t>(old_.size()));
    }
    const auto n = static_cast<gdpo::index_t>(old_.size()), w = static_cast<gdpo::index_t>(width);
    const auto view = [&](const auto& v) {
      using View = gdpo::TokenView<std::decay_t<decltype(v[0])>>;
      return packed ? View(gdpo::view(v.data(), n)) : View(gdpo::view(v.data(), count, w));
    };
    batch.old_logp = view(old_), batch.rollout_logp = view(rollout_), batch.mask = view(mask_);
    if (packed) batch.offsets = gdpo::view(offsets_);
    batch.advantages = gdpo::view(advantages_);
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

 private:
  std::vector<S> old_, rollout_;
  std::vector<double> advantages_;
  std::vector<unsigned char> mask_;
  std::vector<std::int64_t> offsets_;
};

template <class S>
GateReport report_of(const Rows& rows, const prepass::Gate& gate,
                     const GateReportSettings& settings, bool packed, std::uint64_t seed) {
  const Arrays<S> arrays(rows, packed, Random(seed));
  return gdpo::gate_report(arrays.batch, gate, settings);
}

/// The name of the first number that differs; empty if none does.
std::string differs(const GateReport& a, const GateReport& b) {
#define GDPO_X(name, ...) \
  if (a.name != b.name) return #name;
  GDPO_GATE_COUNTS(GDPO_X)
  GDPO_GATE_EXTREMES(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                                                                     \
  if (!std::equal(std::begin(a.name.limb), std::end(a.name.limb), std::begin(b.name.limb)) || \
      a.name.special != b.name.special)                                                       \
    return #name;
  GDPO_GATE_SUMS(GDPO_X)
#undef GDPO_X
  for (const gdpo::detail::GateMetric& m : gdpo::detail::gate_metrics)
    if (gdpo::math::bits_of(m.of(a)) != gdpo::math::bits_of(m.of(b))) return m.name;
  return "";
}

// ---- the formulas ----

real estimate(const prepass::Gate& g, const Token& token) {
  real x = static_cast<real>(token.old) - static_cast<real>(token.rollout);
  if (x == x)
    x = (std::max)((std::min)(x, static_cast<real>(g.clamp.hi)), static_cast<real>(g.clamp.lo));
  switch (g.estimator) {
    case Estimator::K1:
      return -x;
    case Estimator::K2:
      return x * x / 2;
    case Estimator::K3:
      return std::exp(x) - 1 - x;
    default:
      return x;
  }
}
/// The numbers y of the valid tokens of a row.
std::vector<real> numbers(const prepass::Gate& g, const Row& row) {
  std::vector<real> y;
  for (const Token& t : row.tokens)
    if (t.valid) y.push_back(estimate(g, t));
  if (g.statistic != Statistic::Token && !y.empty()) {
    real sum = 0, most = y[0];
    for (const real v : y) sum += v, most = (std::max)(most, v);
    const real n = static_cast<real>(y.size()) + static_cast<real>(g.count_eps);
    const real shared = g.statistic == Statistic::SequenceMean  ? sum / n
                        : g.statistic == Statistic::SequenceSum ? sum
                                                                : most;
    std::fill(y.begin(), y.end(), shared);
  }
  if (g.estimator == Estimator::Ratio)
    for (real& v : y) v = std::exp(v);
  return y;
}
struct Sums {
  real n, mean, square;
};
Sums sums_of(const std::vector<real>& x, real eps) {
  Sums s{static_cast<real>(x.size()), 0, 0};
  for (const real v : x) s.mean += v, s.square += v * v;
  if (!x.empty()) s.mean /= s.n + eps, s.square /= s.n + eps;
  return s;
}
real deviation(const Sums& s, real of_sample = 1) {
  return std::sqrt((std::max)(real(0), (s.square - s.mean * s.mean) * of_sample));
}
/// Whether a number is so close to a bound that its rounding decides.
bool at_a_bound(const prepass::Gate& g, const std::vector<real>& y) {
  return std::any_of(y.begin(), y.end(), [&](real v) {
    return std::fabs(v - static_cast<real>(g.min)) < 1e-12L ||
           std::fabs(v - static_cast<real>(g.max)) < 1e-12L;
  });
}

}  // namespace

TEST_CASE("the numbers follow their formulas", "[gate_report]") {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    Random random(seed);
    const Rows rows = random_rows(random, 0);
    const prepass::Gate g = random_gate(random);
    const GateReportSettings settings{random.pick({0.0, 1e-8, 0.5}), random.chance(0.5)};
    const GateReport r = report_of<double>(rows, g, settings, random.chance(0.5), seed);
    INFO("seed " << seed);
    const bool shared = g.statistic != Statistic::Token;
    const real eps = static_cast<real>(settings.count_eps), center = r.center;
    std::vector<real> tokens, cut, of_rows;
    bool close = false;
    for (const Row& row : rows) {
      const std::vector<real> y = numbers(g, row);
      close = close || at_a_bound(g, y);
      for (const real v : y) {
        tokens.push_back(v);
        cut.push_back(
            (std::max)((std::min)(v, static_cast<real>(g.max)), static_cast<real>(g.min)));
      }
      if (y.empty() && settings.empty_rows) of_rows.push_back(center);
      if (!y.empty()) of_rows.push_back(sums_of(y, shared ? 0 : eps).mean);
    }
    if (close || at_a_bound(g, of_rows)) continue;
    ++compared;
    // Squares lose half of the digits where the numbers are nearly equal.
    const auto near_to = [](double got, real wanted, real scale) {
      return std::fabs(static_cast<real>(got) - wanted) <= 1e-13L * (scale + std::fabs(wanted));
    };
    const Sums all = sums_of(tokens, eps), bounded = sums_of(cut, eps), row = sums_of(of_rows, 0);
    CHECK(near_to(r.token_mean(), all.mean, 1));
    CHECK(near_to(r.bounded_mean(), bounded.mean, 1));
    CHECK(near_to(r.row_mean(), row.mean, 1));
    const auto same_std = [&](double got, const Sums& s, real of_sample) {
      const real wanted = deviation(s, of_sample);
      return std::fabs(static_cast<real>(got) * got - wanted * wanted) <=
             1e-13L * (1 + s.square * of_sample);
    };
    CHECK(same_std(r.token_std(), all, 1));
    CHECK(same_std(r.bounded_std(), bounded, 1));
    if (row.n > 1) CHECK(same_std(r.row_std(), row, row.n / (row.n - 1)));
    const auto share = [&](const std::vector<real>& x, bool high, real with_eps) {
      const auto part = std::count_if(x.begin(), x.end(), [&](real v) {
        return high ? v > static_cast<real>(g.max) : v < static_cast<real>(g.min);
      });
      return x.empty() ? 0 : static_cast<real>(part) / (static_cast<real>(x.size()) + with_eps);
    };
    CHECK(near_to(r.token_fraction_low(), share(tokens, false, eps), 1));
    CHECK(near_to(r.token_fraction_high(), share(tokens, true, eps), 1));
    CHECK(near_to(r.row_fraction_low(), share(of_rows, false, 0), 1));
    CHECK(near_to(r.row_fraction_high(), share(of_rows, true, 0), 1));
    if (tokens.empty()) continue;
    CHECK(near_to(r.token_min(), *std::min_element(tokens.begin(), tokens.end()), 1));
    CHECK(near_to(r.row_max(), *std::max_element(of_rows.begin(), of_rows.end()), 1));
  }
  CHECK(compared > 500);
}

TEST_CASE("bits depend on no layout, masked place, partition or order", "[gate_report]") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    Rows rows = random_rows(random, 0.05);
    const prepass::Gate g = random_gate(random);
    const GateReportSettings settings{random.pick({0.0, 1e-8}), random.chance(0.5)};
    INFO("seed " << seed);
    const GateReport r = report_of<double>(rows, g, settings, false, seed);
    CHECK(differs(r, report_of<double>(rows, g, settings, true, seed + 1)) == "");
    CHECK(differs(r, report_of<float>(rows, g, settings, false, seed + 2)) == "");
    const auto middle = static_cast<std::ptrdiff_t>(rows.size()) / 2;
    const Rows first(rows.begin(), rows.begin() + middle), rest(rows.begin() + middle, rows.end());
    const GateReport a = report_of<double>(first, g, settings, true, seed),
                     b = report_of<double>(rest, g, settings, false, seed);
    CHECK(differs(r, merge(a, b)) == "");
    CHECK(differs(r, merge(b, a)) == "");
    std::reverse(rows.begin(), rows.end());
    CHECK(differs(r, report_of<double>(rows, g, settings, false, seed)) == "");
  }
}

TEST_CASE("closed is what prepare() gives the weight 0", "[gate_report]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const Rows rows = random_rows(random, 0.1);
    const prepass::Gate g = random_gate(random);
    const GateReport r = report_of<double>(rows, g, {}, true, seed);
    const Arrays<double> arrays(rows, true, Random(seed));
    gdpo::PrepassMemory<double> memory;
    gdpo::prepare(arrays.batch, memory, g);
    gdpo::index_t closed = 0, valid = 0;
    std::size_t k = 0;
    for (const Row& row : rows) {
      for (const Token& t : row.tokens) {
        valid += t.valid, closed += t.valid && memory.weights[k] == 0;
        ++k;
      }
    }
    INFO("seed " << seed);
    CHECK(r.closed == closed);
    CHECK(r.measured + r.non_finite == valid);
    CHECK(r.closed_low + r.closed_high <= r.closed);
  }
}

}  // namespace gate_report_laws_test
