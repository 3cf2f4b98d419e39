// The set of metrics changes neither the loss nor the gradient, and a smaller set has the same bits
// in the metrics that it keeps. After its first call, no target allocates with its workspace.
#include "support/allocations.hpp"
#include "support/catch.hpp"
#include "support/exec_cases.hpp"

namespace {

using exec_cases::Case;
using exec_cases::Form;
using gdpo::LossMetrics;
using gdpo::Metric;
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
    const gdpo::detail::MetricFacts facts = gdpo::detail::facts_of(q);
    const Metric &a = means.*facts.member, &b = all.*facts.member;
    if (facts.kept_by == gdpo::detail::KeptBy::All) {
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
    CHECK((none.*gdpo::detail::facts_of(q).member).rows == 0);
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

}  // namespace

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
        return gdpo::grpo_loss(exec, c.batch(), c.normaliser(), out, workspace);
      };
      call();
      const long before = counted::allocations;
      for (int k = sanitized ? 3 : 0; k < 5; ++k) call();
      const long after = counted::allocations;
      INFO("form " << static_cast<int>(form) << ", " << name);
      CHECK(after == before);
    };
    check(gdpo::seq, "seq");
    check(gdpo::simd, "simd");
    for (int n = 1; n <= 7; n += sanitized ? 3 : 1)
      check(gdpo::parallel(executors::pool(n)), "pool of " + std::to_string(n));
  }
}
