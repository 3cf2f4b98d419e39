// labels: lanes, sanitizers
// KL terms on single tokens: estimators, gradient rules, clamps and their bounds, and several terms
// at once.
#include <gdpo/presets/ms_swift.hpp>

#include "support/catch.hpp"
#include "support/loss_calls.hpp"
#include "support/message.hpp"
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
  t.token_log_ratio = t.logp - t.old_logp;
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

/// A user's own factor: the tag.
struct ByTag {
  static constexpr bool reads_tag = true;
  template <class V>
  V operator()(const gdpo::Token<V>& t) const {
    return t.tag;
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
  check(gdpo::Kl<ForwardK1>{}(token(d)), -0.5, 0, -1);
  check(gdpo::Kl<ForwardK1>{}(token(-d)), 0.5, 0, -1);
  check(gdpo::Kl<ForwardK1, ScoreFunction>{}(token(d)), -0.5, 0, -1.5);
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

TEST_CASE("the gradient of k2 under the token's own ratio, which a bound holds", "[kl]") {
  // logp - old_logp is 2 d. The level's ratio, here 7, is not read, and the value is as it is.
  const double w = std::exp(2 * d);
  check(gdpo::Kl<K3, ImportanceWeightedK2>{}(token(d, 7)), k3, 0, w * d);
  check(gdpo::Kl<K3, ImportanceWeightedK2>{}.own_ratio(token(d, 7)), k3, 0, w * d);
  gdpo::Kl<K1, ImportanceWeightedK2> kl;
  kl.gradient.max_weight = 2;
  check(kl(token(d)), d, 0, 2 * d);
  check(kl(token(-d)), -d, 0, -d / w);
  kl.output = {-0.25, 0.25};  // the clamp of the value is not one of the gradient
  check(kl(token(d)), 0.25, 0, 2 * d);
  gdpo::Token<double> t = token(1000);
  kl.output = {};
  check(kl(t), 1000, 0, 2000);  // the ratio saturates, and the bound holds
  t.token_log_ratio = 0;        // without old_logp
  check(kl(t), 1000, 0, 1000);
  t.token_log_ratio = std::nan("");
  CHECK((kl(t).value == 1000 && std::isnan(kl(t).d_logp)));
}

TEST_CASE("a bounded ratio times the value: beyond the bound the ratio has no gradient", "[kl]") {
  gdpo::Kl<K3, ClippedImportanceWeighted> kl;
  kl.gradient.max_weight = 2;
  for (const double ratio : {0.5, 2.0}) {  // the bound is inside
    check(kl(token(d, ratio)), ratio * k3, ratio * k3, ratio * d_k3);
    check(kl.own_ratio(token(d, ratio)), ratio * k3, 0, ratio * d);
  }
  check(kl(token(d, 8)), 2 * k3, 0, 2 * d_k3);
  check(kl.own_ratio(token(d, 8)), 2 * k3, 0, 2 * d_k3);
  const gdpo::Term<double> unknown = kl(token(d, std::nan("")));
  CHECK((std::isnan(unknown.value) && std::isnan(unknown.d_logp)));
  // Without a bound it is the rule with the whole ratio.
  kl.gradient.max_weight = HUGE_VAL;
  check(kl(token(d, 8)), 8 * k3, 8 * k3, 8 * d_k3);
  check(kl.own_ratio(token(d, 8)), 8 * k3, 0, 8 * d);
}

TEST_CASE("against the data, forward_k1 is the negative log-likelihood", "[kl]") {
  gdpo::Token<double> t = token(d);
  t.ref_logp = t.old_logp = t.teacher_logp = t.rollout_logp = std::nan("");  // none is read
  check(gdpo::Kl<ForwardK1>{1, gdpo::Against::Data}(t), 2, 0, -1);
  check(gdpo::Kl<K1>{1, gdpo::Against::Data}(t), -2, 0, 1);
}

TEST_CASE("TeacherGate is the sigmoid of the teacher's lead", "[kl]") {
  const auto gate = [](double gate_beta, double lead) {
    gdpo::Token<double> t{};
    t.logp = -2, t.teacher_logp = -2 + lead;
    return gdpo::factor::TeacherGate{gate_beta}(t);
  };
  for (const double lead : {-3.0, -0.5, 0.0, 0.25, 4.0})
    CHECK(gate(5, lead) == Approx(1 / (1 + std::exp(-5 * lead))).epsilon(1e-14));
  CHECK(gate(0, 3) == 0.5);
  CHECK(gate(5, HUGE_VAL) == 1);
  CHECK((gate(5, -HUGE_VAL) >= 0 && gate(5, -HUGE_VAL) < 1e-300));
  CHECK(gate(5, std::nan("")) == 1);
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

namespace {
using gdpo::surrogate::Ratio;
using naive_loss::Estimator, naive_loss::KlFactor, naive_loss::Rule;
using Gate = gdpo::Factors<gdpo::factor::TeacherGate>;
using Gated = gdpo::Kl<ForwardK1, Direct, Gate>;
using Divided = gdpo::Kl<K3, ImportanceWeightedK2, gdpo::Factors<>, gdpo::Aggregate>;
using GatedAndDivided = gdpo::Kl<K2, ImportanceWeighted, Gate, gdpo::Aggregate>;
template <class Kl>
using OfTokens = gdpo::PolicyLoss<gdpo::level::Token<>, Ratio, Kl>;

/// The oracle's types of such terms.
naive_loss::Kl of_oracle(const Gated&) {
  naive_loss::Kl k;
  k.estimator = Estimator::ForwardK1, k.factor = KlFactor::TeacherGate;
  return k;
}
naive_loss::Kl of_oracle(const Divided&) {
  naive_loss::Kl k;
  k.rule = Rule::ImportanceWeightedK2, k.has_own = true;
  return k;
}
naive_loss::Kl of_oracle(const GatedAndDivided&) {
  naive_loss::Kl k;
  k.estimator = Estimator::K2, k.rule = Rule::ImportanceWeighted;
  k.factor = KlFactor::TeacherGate, k.has_own = true;
  return k;
}
naive_loss::Kl of_oracle(const gdpo::Kl<>&) { return {}; }

/// Compares losses of these KL terms with the oracle on random batches, padded and packed.
template <class... Terms>
void compare_with_oracle() {
  using Kls =
      std::conditional_t<sizeof...(Terms) == 1, std::tuple_element_t<0, std::tuple<Terms...>>,
                         gdpo::Kls<Terms...>>;
  Tally tally;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive_loss::Settings s;
    s.kl = {of_oracle(Terms{})...};
    loss_product::random_settings(random, s);
    if (random.chance(0.2)) s.scale = 0;  // no surrogate, but the KL terms with their own aggregate
    if (s.kl.size() > 1 && random.chance(0.2)) s.kl.back().beta = 0;
    for (naive_loss::Kl& k : s.kl)
      if (random.chance(0.1)) k.own.scale = 0;
    const naive_loss::Data data = loss_product::random_tokens(random, 4, 9, 0.4);
    loss_product::fit(s, data);
    naive_loss::Counts counts = naive_loss::count(data);
    counts.given = 64;
    if (tally.leaves_out(counts.tokens == 0)) continue;
    INFO(loss_product::describe(s));
    const gdpo::Normalizer normalizer = loss_product::normalizer_of(counts);
    const auto check = [&](auto level) {
      using Level = decltype(level);
      s.level = !Level::of_segment        ? naive_loss::Level::Token
                : Level::straight_through ? naive_loss::Level::SequenceToken
                                          : naive_loss::Level::Sequence;
      const auto loss = loss_product::loss_of<gdpo::PolicyLoss<Level, Ratio, Kls>>(s);
      const loss_product::Outcome padded = loss_product::call<double>(loss, data, &normalizer);
      CHECK(loss_product::mismatch(s, data, naive_loss::loss(s, data, counts), padded,
                                   tolerance::unit) == "");
      if (s.padded_width || !data.segments.empty()) return;
      for (const naive_loss::Kl& k : s.kl)
        if (k.has_own && k.own.padded_width) return;
      const std::vector<int> all(4, data.width);
      CHECK(loss_product::difference_of(
                loss_product::call_packed<double, std::int64_t>(loss, data, all, &normalizer),
                padded) == "");
    };
    check(gdpo::level::Token<>{});
    check(gdpo::level::Sequence<>{});
    check(gdpo::level::SequenceToken<>{});
  }
  CHECK(tally.share_left_out() < 0.05);
}
}  // namespace

TEST_CASE("KL terms with factors and aggregates of their own are those of the formulas", "[kl]") {
  compare_with_oracle<Gated>();
  compare_with_oracle<Divided>();
  compare_with_oracle<GatedAndDivided>();
  compare_with_oracle<Divided, gdpo::Kl<>, GatedAndDivided, Gated>();
}

TEST_CASE("SDAR beside another loss is the sum of the two", "[kl]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    naive_loss::Data data = loss_product::random_tokens(random, 4, 9, 0.4);
    data.kl_weights.clear();
    if (naive_loss::count(data).tokens == 0) continue;
    const auto& grpo = gdpo::ms_swift::grpo_loss;
    auto sdar = gdpo::ms_swift::sdar_loss;
    sdar.kl.beta = 0.1;
    const auto own = gdpo::with_aggregate(sdar.kl, gdpo::aggregate::token_mean());
    using Both = gdpo::Kls<std::decay_t<decltype(grpo.kl)>, std::decay_t<decltype(own)>>;
    const loss_product::Outcome both = loss_product::call<double>(
                                    gdpo::with_kl(grpo, Both{grpo.kl, {own, {}}}), data),
                                a = loss_product::call<double>(grpo, data),
                                b = loss_product::call<double>(sdar, data);
    CHECK(both.result.loss == Approx(a.result.loss + b.result.loss).epsilon(1e-13));
    for (std::size_t k = 0; k < both.gradient.size(); ++k)
      CHECK(both.gradient[k] == Approx(a.gradient[k] + b.gradient[k]).epsilon(1e-12).margin(1e-15));
  }
}

TEST_CASE("an aggregate of the term that is that of the loss changes no bit", "[kl]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const naive_loss::Data data = loss_product::random_tokens(random, 4, 9, 0.4);
    if (naive_loss::count(data).tokens == 0) continue;
    auto loss = gdpo::grpo_loss;
    loss.aggregate = random.chance(0.5) ? gdpo::aggregate::token_mean() : loss.aggregate;
    const auto own = gdpo::with_kl(loss, gdpo::with_aggregate(loss.kl, loss.aggregate));
    CHECK(loss_product::difference_of(loss_product::call<double>(own, data),
                                      loss_product::call<double>(loss, data)) == "");
    CHECK(loss_product::difference_of(loss_product::call<float>(own, data),
                                      loss_product::call<float>(loss, data)) == "");
  }
}

TEST_CASE("a part whose weight is 0 adds nothing, whatever its inputs", "[kl]") {
  naive_loss::Data data;
  data.rows = 2, data.width = 2;
  data.logp = {-1, -2, -3, -1}, data.old_logp = {-1, -2.5, -3, -1},
  data.ref_logp = {-2, -2, -2, -2};
  data.advantages = {1, -1};
  auto loss = gdpo::with_kl(gdpo::grpo_loss,
                            gdpo::with_aggregate(gdpo::Kl<K1>{2}, gdpo::aggregate::token_mean()));
  loss.aggregate.scale = 0;
  data.advantages[0] = data.old_logp[2] = std::nan("");
  const loss_product::Outcome kl_alone = loss_product::call<double>(loss, data);
  CHECK(kl_alone.gradient == std::vector<double>{0.5, 0.5, 0.5, 0.5});
  CHECK((kl_alone.result.policy_loss == 0 && kl_alone.result.loss == kl_alone.result.kl_loss));
  CHECK(kl_alone.result.loss == 2 * (1 + 0 - 1 + 1) / 4.0);
  CHECK(std::isnan(kl_alone.result.metrics.surrogate.sum));  // it is still measured
  CHECK(kl_alone.result.metrics.non_finite.advantages.count > 0);

  data.advantages = {1, -1}, data.old_logp = {-1, -2, -3, -1};
  data.ref_logp[1] = std::nan("");
  loss.aggregate.scale = 1, loss.kl.aggregate.scale = 0;
  const loss_product::Outcome surrogate_alone = loss_product::call<double>(loss, data);
  CHECK(surrogate_alone.gradient == std::vector<double>{-0.25, -0.25, 0.25, 0.25});
  CHECK(surrogate_alone.result.kl_loss == 0);
  CHECK(std::isnan(surrogate_alone.result.metrics.kl.sum));

  loss.aggregate.scale = 0;
  const loss_product::Outcome nothing = loss_product::call<double>(loss, data);
  CHECK(nothing.gradient == std::vector<double>(4, 0.0));
  CHECK(nothing.result.loss == 0);
}

TEST_CASE("the count that a term's own aggregate divides by is checked", "[kl]") {
  Random random(3);
  naive_loss::Data data = loss_product::random_tokens(random, 3, 5, 0.4);
  data.mask.clear();
  const auto own = [](const gdpo::Aggregate& aggregate) {
    return gdpo::with_kl(gdpo::grpo_loss, gdpo::with_aggregate(gdpo::Kl<>{}, aggregate));
  };
  const gdpo::Normalizer counts{15, 3, 3};
  const auto refused = [&](auto loss, const gdpo::Normalizer& n, const char* argument) {
    try {
      loss_product::call<double>(loss, data, &n);
      FAIL_CHECK("not refused");
    } catch (const gdpo::invalid_input& error) {
      CHECK(std::string(error.what()).find(argument) != std::string::npos);
    }
    loss.kl.beta = 0;  // the aggregate of a term that is off is not read
    CHECK_NOTHROW(loss_product::call<double>(loss, data, &n));
  };
  CHECK_NOTHROW(loss_product::call<double>(own(gdpo::aggregate::token_mean()), data, &counts));
  refused(own(gdpo::aggregate::token_mean()), {0, 3, 3}, "normalizer.tokens");
  refused(own(gdpo::aggregate::token_mean()), {14, 3, 3}, "normalizer.tokens");
  refused(own(gdpo::aggregate::token_mean(gdpo::Over::Given)), counts, "normalizer.given");
  data.mask.assign(15, 1);  // known after the rows have been computed
  refused(own(gdpo::aggregate::token_mean()), {14, 3, 3}, "normalizer.tokens");
  CHECK_THROWS_AS(
      loss_product::call<double>(own(gdpo::aggregate::seq_mean_token_sum_norm()), data, &counts),
      gdpo::invalid_input);
  auto width = own(gdpo::aggregate::seq_mean_token_sum_norm());
  width.kl.aggregate.padded_width = true;
  CHECK_NOTHROW(loss_product::call<double>(width, data, &counts));
  const auto packed = [&] {
    return loss_product::call_packed<double, std::int64_t>(width, data, {5, 5, 5}, &counts);
  };
  CHECK(message_of(packed).rfind("gdpo::PolicyLoss: kl.aggregate.padded_width: ", 0) == 0);
}

TEST_CASE(
    "a factor of a term: 0 and what is not finite drop the term, and the metric is without it",
    "[kl]") {
  naive_loss::Data data;
  data.rows = 1, data.width = 3;
  data.logp = {-1, -2, -3}, data.old_logp = data.logp, data.ref_logp = {-2, -2, -2};
  data.advantages = {0};
  data.tags = {0, 0.5, std::nan("")};
  OfTokens<gdpo::Kl<K1, Direct, gdpo::Factors<ByTag>>> loss{
      {}, {}, {2}, gdpo::aggregate::token_sum()};
  const loss_product::Outcome o = loss_product::call<double>(loss, data);
  CHECK(o.gradient == std::vector<double>{0, 1, 0});
  CHECK(o.result.kl_loss == 0);
  CHECK(o.result.metrics.kl.sum == 1 + 0 - 1);
  CHECK(o.result.metrics.non_finite.weights.count == 1);
  data.ref_logp = {std::nan(""), -3, -2};  // where the factor is 0
  const loss_product::Outcome nan = loss_product::call<double>(loss, data);
  CHECK(nan.gradient == std::vector<double>{0, 1, 0});
  CHECK(nan.result.kl_loss == 1);
}

TEST_CASE("a loss without a surrogate needs no advantages, and its KL terms are all of it",
          "[kl]") {
  Random random(5);
  naive_loss::Data data = loss_product::random_tokens(random, 3, 5, 0.4);
  data.mask.clear(), data.weights.clear(), data.row_weights.clear();
  const gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::None, gdpo::Kl<>> loss{};
  const loss_product::Outcome with = loss_product::call<double>(loss, data);
  data.advantages.clear(), data.token_advantages.clear();
  const loss_product::Outcome without = loss_product::call<double>(loss, data);
  CHECK(with.gradient == without.gradient);
  CHECK((without.result.policy_loss == 0 && without.result.loss == without.result.kl_loss));
  CHECK(without.result.metrics.advantage.n == 15);
  CHECK(without.result.metrics.surrogate.count == 0);
  CHECK(without.result.metrics.degenerate_rows == 0);
  data.old_logp.assign(15, std::nan(""));  // the ratio is not in the loss
  const loss_product::Outcome nan = loss_product::call<double>(loss, data);
  CHECK(nan.gradient == without.gradient);
  CHECK(nan.result.loss == without.result.loss);
  CHECK_THROWS_AS(loss_product::call<double>(gdpo::grpo_loss, data), gdpo::invalid_input);
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
