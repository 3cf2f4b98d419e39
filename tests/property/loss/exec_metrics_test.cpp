// labels: lanes, long
// The set of metrics changes neither the loss nor the gradient, and a smaller set has the same bits
// in the metrics that it keeps. After its first call, no target allocates with its workspace.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/exec_cases.hpp"

namespace exec_metrics_test {

namespace {

using exec_cases::Case;
using exec_cases::Form;
using gdpo::LossMetrics;
using gdpo::Metric;
using loss_product::Data;
using loss_product::Outcome;

/// The loss, the gradient and what every set of metrics keeps are the same.
void check_same(const Outcome& few, const Outcome& all) {
  CHECK(difference(few.gradient, all.gradient) == "");
  for (const auto member :
       {&gdpo::LossResult::loss, &gdpo::LossResult::policy_loss, &gdpo::LossResult::kl_loss}) {
    CHECK(same_bits(few.result.*member, all.result.*member));
  }
  const LossMetrics &a = few.result.metrics, &b = all.result.metrics;
  CHECK(same_bits(a.advantage.mean, b.advantage.mean));
  CHECK(same_bits(a.completion_length.row_sum, b.completion_length.row_sum));
  CHECK(a.rows == b.rows);
  CHECK(a.degenerate_rows == b.degenerate_rows);
  CHECK(a.non_finite.logp.count == b.non_finite.logp.count);
}
/// metrics::Means keeps the sums, counts and row statistics of its metrics; it leaves out ranges
/// over tokens and the other metrics.
void check_means(const LossMetrics& means, const LossMetrics& all) {
  for (int q = 0; q < gdpo::detail::metrics_of_tokens; ++q) {
    const gdpo::detail::metric::Facts& facts = gdpo::detail::metric::list[q];
    const Metric &a = means.*facts.member, &b = all.*facts.member;
    if (facts.kept_by == gdpo::detail::metric::All) {
      CHECK(a.rows == 0);
      continue;
    }
    for (const auto number : {&Metric::sum, &Metric::count, &Metric::row_sum, &Metric::rows,
                              &Metric::row_min, &Metric::row_max}) {
      CHECK(same_bits(a.*number, b.*number));
    }
  }
}
/// metrics::None keeps none of the metrics of tokens.
void check_none(const LossMetrics& none) {
  for (int q = 0; q < gdpo::detail::metrics_of_tokens; ++q) {
    CHECK((none.*gdpo::detail::metric::list[q].member).rows == 0);
  }
}

template <class S, class Loss>
void check_metrics(const Loss& loss) {
  const auto means = gdpo::with_metrics<gdpo::metrics::Means>(loss);
  const auto none = gdpo::with_metrics<gdpo::metrics::None>(loss);
  gdpo::LossWorkspace<S> workspace;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const int rows = seed < 40 ? 1 + random.below(6) : 300, width = 1 + random.below(70);
    const Form form = exec_cases::all_forms[seed % 5];
    INFO("seed " << seed << ", " << rows << " rows of " << width << ", form "
                 << static_cast<int>(form));
    const Case<S> c(random, exec_cases::random_data(random, rows, width), form);
    const Outcome all = c.on(gdpo::simd, loss, workspace),
                  with_means = c.on(gdpo::simd, means, workspace),
                  with_none = c.on(gdpo::simd, none, workspace);
    check_same(with_means, all);
    check_same(with_none, all);
    check_means(with_means.result.metrics, all.result.metrics);
    check_none(with_none.result.metrics);
    CHECK(exec_cases::difference_but_nan(c.on(gdpo::seq, means, workspace), with_means) == "");
    CHECK(exec_cases::difference_but_nan(c.on(gdpo::seq, none, workspace), with_none) == "");
  }
}

// ---- the sums and ranges of what follows from the log ratios ----

using naive_loss::real;

/// One of the kinds of log ratios that ratio_batch() draws.
enum class Draw { Far, Near, Wide, Lost, Same };
constexpr Draw all_draws[] = {Draw::Far, Draw::Near, Draw::Wide, Draw::Lost, Draw::Same};

/// A batch whose log ratios are multiples of 1/64, so that float has them exactly.
Data ratio_batch(Random& random, Draw draw, int rows, int width) {
  Data d;
  d.rows = rows, d.width = width;
  const bool masked = random.chance(0.5), segments = random.chance(0.5);
  const double same = random.below(129) - 64;
  for (int i = 0; i < rows; ++i) {
    for (int t = 0; t < width; ++t) {
      double x = 0;  // times 64
      switch (draw) {
        case Draw::Far:
          x = -15 * 64;
          break;
        case Draw::Near:
          x = random.below(65) - 32;
          break;
        case Draw::Wide:
          x = random.below(100 * 64 + 1) - 80 * 64;
          break;
        case Draw::Lost:  // each ratio but the first of a lane is just below half an ulp of 1
          x = t % 1024 < 16 ? 0 : -1066;
          break;
        case Draw::Same:
          x = same;
      }
      const double logp = -random.below(641) / 64.0;
      d.logp.push_back(logp), d.old_logp.push_back(logp - x / 64);
      d.ref_logp.push_back(logp);
      if (masked) d.mask.push_back(random.chance(0.8));
      if (segments) d.segments.push_back(t / 50);
    }
    d.advantages.push_back(random.pick({-1.5, 0.5, 2.0}));
  }
  return d;
}

/// The sum over tokens, the sum over rows of the means, and the range of one number.
struct Expected {
  real sum = 0, row_sum = 0, min = naive_loss::off, max = -naive_loss::off;
  void add(real x, real tokens) {
    sum += x, row_sum += x / tokens;
    min = std::fmin(min, x), max = std::fmax(max, x);
  }
};
struct ExpectedRatios {
  Expected ratio, k1, k3;
};
/// The ratios and estimates in long double. `bounds` are those of the level's map.
ExpectedRatios expected_ratios(const Data& d, bool of_segment, const naive_loss::Bounds& bounds) {
  naive_loss::Settings s;
  s.level = of_segment ? naive_loss::Level::Sequence : naive_loss::Level::Token;
  ExpectedRatios e;
  for (int i = 0; i < d.rows; ++i) {
    const std::vector<std::vector<int>> segments = naive_loss::segments(s, d, i);
    std::size_t tokens = 0;
    for (const auto& segment : segments) tokens += segment.size();
    const real n = static_cast<real>(tokens);
    for (const auto& segment : segments) {
      real sum = 0;
      for (const int t : segment) {
        const real x = naive_loss::clamp(
            static_cast<real>(d.logp[d.at(i, t)]) - static_cast<real>(d.old_logp[d.at(i, t)]),
            bounds.lo, bounds.hi);
        sum += x;
        e.k1.add(-x, n), e.k3.add(naive_loss::exp_less_line(x), n);
      }
      const real ratio = std::exp(sum / static_cast<real>(segment.size()));
      for (std::size_t k = 0; k < segment.size(); ++k) e.ratio.add(ratio, n);
    }
  }
  return e;
}

/// Sums of terms above 0 are exact to 1e-6 of themselves, and their means lie in their range.
void check_positive(const Metric& m, const Expected& e, bool ranges, double exact) {
  const auto near = [&](double x, real y) {
    return std::fabs(static_cast<real>(x) - y) <= exact * y + 1e-30;
  };
  CHECK(near(m.sum, e.sum));
  CHECK(near(m.row_sum, e.row_sum));
  if (!ranges || m.count == 0) return;
  CHECK((near(m.min, e.min) && near(m.max, e.max)));
  CHECK(m.min * (1 - exact) <= m.mean());
  CHECK(m.mean() <= m.max * (1 + exact));
  CHECK(m.row_max <= m.max * (1 + exact));
}
/// `map` holds the bounds of the level's map.
template <class S, class Loss>
void check_ratios(const Loss& loss, const naive_loss::Bounds& map = {}) {
  constexpr bool of_segment = decltype(loss.level)::of_segment;
  const auto means = gdpo::with_metrics<gdpo::metrics::Means>(loss);
  gdpo::LossWorkspace<S> workspace;
  std::uint64_t seed = 0;
  for (const Draw draw : all_draws) {
    for (const int width : {1, 15, 16, 130, 1100, 3000}) {
      Random random(++seed);
      INFO("seed " << seed << ", draw " << static_cast<int>(draw) << ", width " << width);
      const Data d = ratio_batch(random, draw, 3, width);
      const Case<S> c(random, d, Form::Padded);
      const ExpectedRatios e = expected_ratios(d, of_segment, map);
      const auto check = [&](const LossMetrics& m, bool ranges) {
        check_positive(m.ratio, e.ratio, ranges, 1e-6);
        if (!ranges || m.ratio.count == 0) return;
        CHECK(m.approx_kl_k1.min == static_cast<double>(e.k1.min));
        CHECK(m.approx_kl_k1.max == static_cast<double>(e.k1.max));
        CHECK(m.approx_kl_k3.min == Approx(static_cast<double>(e.k3.min)).epsilon(1e-6));
        CHECK(m.approx_kl_k3.max == Approx(static_cast<double>(e.k3.max)).epsilon(1e-6));
      };
      const Outcome all = c.on(gdpo::simd, loss, workspace);
      check(all.result.metrics, true);
      check(c.on(gdpo::simd, means, workspace).result.metrics, false);
      CHECK(exec_cases::difference_but_nan(c.on(gdpo::seq, loss, workspace), all) == "");
    }
  }
}

}  // namespace

TEST_CASE("the sum of the ratios is exact, and their mean lies in their range",
          "[loss][exec][metrics]") {
  using gdpo::PolicyLoss, gdpo::level::Token, gdpo::map::Clamp;
  check_ratios<float>(gdpo::grpo_loss);
  check_ratios<double>(gdpo::grpo_loss);
  PolicyLoss<Token<Clamp>> clamped;
  clamped.level.map = {-10, 5};
  check_ratios<float>(clamped, {-10, 5});
  check_ratios<float>(gdpo::gspo_loss);
#if defined(GDPO_TEST_FULL_PRODUCT)
  check_ratios<double>(clamped, {-10, 5});
  check_ratios<double>(gdpo::gspo_loss);
  check_ratios<float>(gdpo::gspo_token_loss);
  check_ratios<double>(gdpo::gspo_token_loss);
#endif
}

TEST_CASE("metrics All, Means and None: the same loss and gradient", "[loss][exec][metrics]") {
  check_metrics<float>(gdpo::grpo_loss);
}

#if defined(GDPO_TEST_FULL_PRODUCT)
TEST_CASE("the same at levels of segments, with two KL terms, in double", "[loss][exec][metrics]") {
  check_metrics<float>(gdpo::gspo_loss);
  check_metrics<double>(
      gdpo::PolicyLoss<gdpo::level::SequenceToken<gdpo::map::Clamp>, gdpo::surrogate::Ratio,
                       gdpo::Kls<gdpo::Kl<gdpo::kl::K2>,
                                 gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>>>{});
}
#endif

TEST_CASE("after a first call of a shape, no target allocates", "[loss][exec][workspace]") {
  for (const Form form : {Form::Padded, Form::StridedGradient, Form::SixteenBits, Form::Packed}) {
    Random random(50);
    const Case<float> c(random, exec_cases::random_data(random, 700, 40), form);
    std::vector<float> gradient;
    const gdpo::TokenOut<float> out = c.out(gradient);
    const auto check = [&](const auto& exec, const std::string& name) {
      gdpo::LossWorkspace<float> workspace;
      const auto call = [&] {
        return gdpo::grpo_loss(exec, c.batch(), c.normalizer(), out, workspace);
      };
      call();
      const long before = counted::allocations;
      for (int k = few_rounds ? 3 : 0; k < 5; ++k) call();
      const long after = counted::allocations;
      INFO("form " << static_cast<int>(form) << ", " << name);
      CHECK(after == before);
    };
    check(gdpo::seq, "seq");
    check(gdpo::simd, "simd");
    for (int n = 1; n <= 7; n += few_rounds ? 3 : 1)
      check(gdpo::parallel(executors::pool(n)), "pool of " + std::to_string(n));
  }
}

}  // namespace exec_metrics_test
