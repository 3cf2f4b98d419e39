// labels: lanes, sanitizers
// KL terms on single tokens: estimators, gradient rules, clamps and their bounds, and several terms
// at once.
#include "support/catch.hpp"
#include "support/loss_calls.hpp"
#include "support/tally.hpp"

namespace kl_test {

namespace {

using namespace gdpo::kl;

/// A token with logp - ref_logp = d; the old, teacher and rollout log-probs are below logp by 2 d,
/// 3 d and 4 d.
gdpo::Token<double> token(double d, double ratio = 1) {
  gdpo::Token<double> t{};
  t.logp = -2;
  t.ref_logp = -2 - d;
  t.old_logp = -2 - 2 * d, t.teacher_logp = -2 - 3 * d, t.rollout_logp = -2 - 4 * d;
  t.ratio = ratio;
  t.log_ratio = std::log(ratio);
  return t;
}
template <class Term>
void check(const Term& term, double value, double d_log_ratio, double d_logp) {
  CHECK(term.value == Approx(value).epsilon(1e-14).margin(1e-300));
  CHECK(term.d_log_ratio == Approx(d_log_ratio).epsilon(1e-14).margin(1e-300));
  CHECK(term.d_logp == Approx(d_logp).epsilon(1e-14).margin(1e-300));
}

/// K3 and its derivative at d = 0.5.
constexpr double d = 0.5;
const double k3 = std::exp(-d) - 1 + d, d_k3 = 1 - std::exp(-d);

/// A user's own estimator: d^4.
struct Quartic {
  template <class V>
  Estimate<V> operator()(const EstimateArgs<V>& a) const {
    using gdpo::math::constant, gdpo::math::mul;
    const V x = a.other_minus_logp, square = mul(x, x), value = mul(square, square);
    const V d_logp = mul(constant<V>(-4.0), mul(square, x));
    return {value, d_logp, value + d_logp};
  }
};

/// A user's own gradient rule, with both derivatives: ImportanceWeighted without its own_ratio.
struct Weighted {
  template <class V>
  gdpo::Term<V> operator()(const GradientArgs<V>& a) const {
    return ImportanceWeighted{}(a);
  }
};

}  // namespace

TEST_CASE("estimators: value and derivative", "[kl]") {
  check(gdpo::Kl<K1>{}(token(d)), 0.5, 0, 1);
  check(gdpo::Kl<Abs>{}(token(d)), 0.5, 0, 1);
  check(gdpo::Kl<K2>{}(token(d)), 0.125, 0, 0.5);
  check(gdpo::Kl<K3>{}(token(d)), k3, 0, d_k3);
  check(gdpo::Kl<K1>{}(token(-d)), -0.5, 0, 1);
  check(gdpo::Kl<Abs>{}(token(-d)), 0.5, 0, -1);
  check(gdpo::Kl<K2>{}(token(-d)), 0.125, 0, -0.5);
  check(gdpo::Kl<K3>{}(token(-d)), std::exp(d) - 1 - d, 0, 1 - std::exp(d));
  check(gdpo::Kl<Abs>{}(token(0)), 0, 0, 0);
  check(gdpo::Kl<K3>{}(token(0)), 0, 0, 0);
  check(gdpo::Kl<Quartic>{}(token(d)), 0.0625, 0, 0.5);
  check(gdpo::Kl<Quartic>{}(token(-d)), 0.0625, 0, -0.5);
  check(gdpo::Kl<Quartic, ScoreFunction>{}(token(d)), 0.0625, 0, 0.5625);
}

TEST_CASE("gradient rules", "[kl]") {
  check(gdpo::Kl<K3, StraightThroughK2>{}(token(d)), k3, 0, d);
  check(gdpo::Kl<K1, StraightThroughK2>{}(token(d)), d, 0, d);
  check(gdpo::Kl<K3, ScoreFunction>{}(token(d)), k3, 0, d);  // k3 + d_k3 = d
  check(gdpo::Kl<K1, ScoreFunction>{}(token(d)), d, 0, 1 + d);
  check(gdpo::Kl<K3, ImportanceWeighted>{}(token(d, 2)), 2 * k3, 2 * k3, 2 * d_k3);
  check(gdpo::Kl<K3, ImportanceWeighted>{}.own_ratio(token(d, 2)), 2 * k3, 0, 2 * d);
  check(gdpo::Kl<K1, ImportanceWeighted>{}.own_ratio(token(d, 2)), 2 * d, 0, 2 * (1 + d));
}

TEST_CASE("against: which policy", "[kl]") {
  gdpo::Kl<K1> kl;
  for (const auto& [against, times] : {std::pair{gdpo::Against::Ref, 1},
                                       {gdpo::Against::Old, 2},
                                       {gdpo::Against::Teacher, 3},
                                       {gdpo::Against::Rollout, 4}}) {
    kl.against = against;
    check(kl(token(d)), times * d, 0, 1);
  }
}

TEST_CASE("input bounds hold other - logp; no gradient outside, and the ends are inside", "[kl]") {
  // The clamped number is other - logp = -d, so a negative d reaches the upper bound.
  const auto bounded = [](auto kl) {
    kl.input = {-0.25, 0.5};
    return kl;
  };
  check(bounded(gdpo::Kl<K2>{})(token(0.25)), 0.03125, 0, 0.25);
  check(bounded(gdpo::Kl<K2>{})(token(0.5)), 0.03125, 0, 0);
  check(bounded(gdpo::Kl<K2>{})(token(-0.5)), 0.125, 0, -0.5);
  check(bounded(gdpo::Kl<K2>{})(token(-2)), 0.125, 0, 0);
  CHECK(bounded(gdpo::Kl<K2>{})(token(-2)).outside);
  CHECK(!bounded(gdpo::Kl<K2>{})(token(-0.5)).outside);
  check(bounded(gdpo::Kl<K2, StraightThroughK2>{})(token(-2)), 0.125, 0, -2);  // of the unclamped d
  // Only the value is left.
  check(bounded(gdpo::Kl<K2, ScoreFunction>{})(token(-2)), 0.125, 0, 0.125);
  check(bounded(gdpo::Kl<K2, ImportanceWeighted>{})(token(-2, 4)), 0.5, 0.5, 0);
  check(bounded(gdpo::Kl<K2, ImportanceWeighted>{}).own_ratio(token(-2, 4)), 0.5, 0, 0.5);
}

TEST_CASE("output bounds hold the value; no gradient outside, and the ends are inside", "[kl]") {
  const auto bounded = [](auto kl) {
    kl.output = {-0.25, 0.5};
    return kl;
  };
  check(bounded(gdpo::Kl<K1>{})(token(0.5)), 0.5, 0, 1);
  check(bounded(gdpo::Kl<K1>{})(token(0.75)), 0.5, 0, 0);
  check(bounded(gdpo::Kl<K1>{})(token(-0.25)), -0.25, 0, 1);
  check(bounded(gdpo::Kl<K1>{})(token(-1)), -0.25, 0, 0);
  CHECK(bounded(gdpo::Kl<K1>{})(token(-1)).outside);
  check(bounded(gdpo::Kl<K1, ScoreFunction>{})(token(0.75)), 0.5, 0, 0);
  check(bounded(gdpo::Kl<K1, StraightThroughK2>{})(token(0.75)), 0.5, 0, 0.75);
  check(bounded(gdpo::Kl<K1, ImportanceWeighted>{})(token(0.75, 4)), 2, 2, 0);
}

TEST_CASE("verl's clamps end the gradient of K3 at other - logp of 2.6", "[kl]") {
  gdpo::Kl<K3> kl;
  kl.input = {-20, 20};
  kl.output = {-10, 10};
  CHECK(kl(token(-2.61)).d_logp < -12);
  CHECK(kl(token(-2.62)).d_logp == 0);
  CHECK(kl(token(-2.62)).value == 10);
}

TEST_CASE("float: value plus derivative of K3 is d to the last bit, however small", "[kl]") {
  for (const float small : {0x1p-10f, 0x1p-20f, -0x1p-23f}) {
    gdpo::Token<float> t{};
    t.logp = -1;
    t.ref_logp = -1 - small;
    CHECK(gdpo::Kl<K3, ScoreFunction>{}(t).d_logp == t.logp - t.ref_logp);
    CHECK(gdpo::Kl<K3>{}(t).value > 0);
  }
}

TEST_CASE("several KL terms add up; the metric is of the first that is on", "[kl]") {
  using naive_loss::Estimator;
  using naive_loss::Rule;
  Tally tally;
  using Kls =
      gdpo::Kls<gdpo::Kl<K1, ScoreFunction>, gdpo::Kl<K3, ImportanceWeighted>, gdpo::Kl<Abs>>;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive_loss::Settings s;
    s.kl.resize(3);
    s.kl[0].estimator = Estimator::K1, s.kl[0].rule = Rule::ScoreFunction;
    s.kl[1].estimator = Estimator::K3, s.kl[1].rule = Rule::ImportanceWeighted;
    s.kl[2].estimator = Estimator::Abs;
    loss_product::random_settings(random, s);
    s.over = naive_loss::Over::Rows;
    if (seed % 3 == 0) s.kl[0].beta = 0;
    const naive_loss::Data data = loss_product::random_tokens(random, 4, 6, 0.4);
    loss_product::fit(s, data);
    if (tally.leaves_out(naive_loss::count(data).tokens == 0)) continue;
    const naive_loss::Result expected = naive_loss::loss(s, data);
    using gdpo::surrogate::Ratio;
    CHECK(
        loss_product::mismatch(
            s, data, expected,
            loss_product::call<double>(
                loss_product::loss_of<gdpo::PolicyLoss<gdpo::level::Token<>, Ratio, Kls>>(s), data),
            tolerance::unit) == "");
    s.level = naive_loss::Level::Sequence;
    CHECK(loss_product::mismatch(
              s, data, naive_loss::loss(s, data),
              loss_product::call<double>(
                  loss_product::loss_of<gdpo::PolicyLoss<gdpo::level::Sequence<>, Ratio, Kls>>(s),
                  data),
              tolerance::unit) == "");
  }
  CHECK(tally.share_left_out() < 0.02);
}

TEST_CASE("every term off, or none: no kl in loss or metrics", "[kl]") {
  Random random(9);
  naive_loss::Data data = loss_product::random_tokens(random, 3, 5, 0.4);
  data.mask.clear();
  gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                   gdpo::Kls<gdpo::Kl<>, gdpo::Kl<K1>>>
      terms;
  terms.kl.first.beta = terms.kl.rest.first.beta = 0;
  const gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, None> none;
  const loss_product::Outcome a = loss_product::call<double>(terms, data),
                              b = loss_product::call<double>(none, data);
  CHECK(loss_product::difference_of(a, b) == "");
  CHECK(a.result.kl_loss == 0);
  CHECK(a.result.metrics.kl.count == 0);
}

TEST_CASE("a gradient rule of one's own keeps both derivatives at every level", "[kl][loss]") {
  // At level::Token without a map the two derivatives are added; with a map, and at levels of
  // sequences, the loss keeps them apart. Either way the rule must give what the library's own
  // gives, which at level::Token forms the sum in another way: to some roundings of numbers of
  // order 1.
  const std::vector<double> logp{-1, -0.5, -2, -0.7}, old_logp{-1.2, -0.4, -1.9, -0.9},
      ref_logp{-0.8, -0.9, -2.5, -0.6}, advantages{1, -1};
  gdpo::TokenBatch<double> batch;
  batch.logp = gdpo::view(logp.data(), 2, 2);
  batch.old_logp = gdpo::view(old_logp.data(), 2, 2);
  batch.ref_logp = gdpo::view(ref_logp.data(), 2, 2);
  batch.advantages = gdpo::view(advantages);
  const auto compare = [&](const auto& level) {
    const auto gradient_by = [&](const auto& kl) {
      const auto loss = gdpo::with_kl(gdpo::with_level(gdpo::grpo_loss, level), kl);
      std::vector<double> gradient(4);
      loss(batch, gdpo::count(batch), gdpo::view(gradient.data(), 2, 2));
      return gradient;
    };
    const std::vector<double> own = gradient_by(gdpo::Kl<K3, Weighted>{0.5}),
                              library = gradient_by(gdpo::Kl<K3, ImportanceWeighted>{0.5});
    for (std::size_t k = 0; k < own.size(); ++k) {
      INFO("token " << k);
      CHECK(own[k] == Approx(library[k]).epsilon(1e-13));
    }
  };
  compare(gdpo::level::Token<>{});
  compare(gdpo::level::Token<gdpo::map::Clamp>{});
  compare(gdpo::level::Sequence<>{});
  compare(gdpo::level::SequenceToken<>{});
}

}  // namespace kl_test
