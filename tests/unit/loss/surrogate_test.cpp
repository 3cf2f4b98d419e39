// labels: lanes, sanitizers
// The surrogates, factors and maps on single tokens: value, both derivatives and the flags of every
// branch, at the bounds and where branches tie. The numbers are worked out by hand; ratios are
// powers of two or short binary fractions, so that every result is exact.
#include <gdpo/loss.hpp>
#include <gdpo/presets/trinity.hpp>
#include <vector>

#include "support/catch.hpp"

namespace surrogate_test {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

template <class V>
gdpo::Token<V> token(double advantage, double ratio) {
  gdpo::Token<V> t{};
  t.advantage = static_cast<V>(advantage);
  t.ratio = static_cast<V>(ratio);
  t.log_ratio = static_cast<V>(std::log(ratio));
  t.logp = V(-1.5);
  return t;
}

struct Expected {
  double value, d_log_ratio;
  bool low = false, high = false, outside = false, dual = false;
};
template <class V>
void check(const gdpo::surrogate::Ratio& surrogate, double advantage, double ratio,
           const Expected& e) {
  INFO("A " << advantage << ", ratio " << ratio);
  const gdpo::Term<V> term = surrogate(token<V>(advantage, ratio));
  CHECK(static_cast<double>(term.value) == e.value);
  CHECK(static_cast<double>(term.d_log_ratio) == e.d_log_ratio);
  CHECK(term.d_logp == 0);
  CHECK(term.low == e.low);
  CHECK(term.high == e.high);
  CHECK(term.outside == e.outside);
  CHECK(term.dual == e.dual);
}
void check(const gdpo::surrogate::Ratio& surrogate, double advantage, double ratio,
           const Expected& e) {
  check<float>(surrogate, advantage, ratio, e);
  check<double>(surrogate, advantage, ratio, e);
}

constexpr bool low = true, high = true, outside = true, dual = true;

}  // namespace

TEST_CASE("max(-A r, -A clip(r)): each branch", "[surrogate]") {
  const gdpo::surrogate::Ratio half{0.5, 0.25};  // the range is [0.5, 1.25]
  check(half, 2, 1, {-2, -2});
  check(half, -2, 1, {2, 2});
  check(half, 2, 2, {-2.5, 0, !low, high, outside});  // A > 0, above: clipped, no gradient
  check(half, -2, 2, {4, 4, !low, !high, outside});  // A < 0, above: the unclipped branch is larger
  check(half, 2, 0.25, {-0.5, -0.5, !low, !high, outside});
  check(half, -2, 0.25, {1, 0, low, !high, outside});  // A < 0, below: clipped
  check(half, 0, 4, {0, 0, !low, !high, outside});
}

TEST_CASE("the ends of the range are inside, and the unclipped branch takes a tie", "[surrogate]") {
  const gdpo::surrogate::Ratio half{0.5, 0.25};
  for (const double a : {3.0, -3.0}) {
    for (const double r : {0.5, 1.25}) check(half, a, r, {-a * r, -a * r});
  }
  const gdpo::surrogate::Ratio shut{0, 0};
  check(shut, 1, 1, {-1, -1});
  check(shut, -1, 1, {1, 1});
  check(shut, 1, 0.5, {-0.5, -0.5, !low, !high, outside});
  check(shut, 1, 2, {-1, 0, !low, high, outside});
}

TEST_CASE("infinite low and high: no clip on that side; low 1 clips at 0", "[surrogate]") {
  const gdpo::surrogate::Ratio open{infinite, infinite}, above{0.5, infinite}, below{infinite, 0.5},
      zero{1, 0.5};
  for (const double a : {1.0, -1.0}) {
    for (const double r : {0x1p-40, 1.0, 0x1p40}) check(open, a, r, {-a * r, -a * r});
  }
  check(above, 1, 1024, {-1024, -1024});
  check(above, -1, 0.25, {0.5, 0, low, !high, outside});
  check(below, 1, 1024, {-1.5, 0, !low, high, outside});
  check(below, -1, 0x1p-40, {0x1p-40, 0x1p-40});
  check(zero, -1, 0x1p-40, {0x1p-40, 0x1p-40});
}

TEST_CASE("delta bounds the unclipped ratio from above, whatever the sign", "[surrogate]") {
  const gdpo::surrogate::Ratio capped{0.5, 0.25, 2};
  check(capped, -1, 2, {2, 2, !low, !high, outside});  // at delta itself the gradient passes
  check(capped, -1, 4, {2, 0, !low, !high, outside});
  check(capped, 1, 4, {-1.25, 0, !low, high, outside});
  // delta is below 1 + high: for A < 0 the clipped branch is the larger one above delta.
  const gdpo::surrogate::Ratio under{0.5, 0.25, 1};
  check(under, -1, 1.125, {1.125, 1.125});  // the clipped branch, inside the range
  check(under, 1, 1.125, {-1, 0});          // held at delta: -1 is larger than -1.125
  check(under, 1, 4, {-1, 0, !low, !high, outside});
  check(under, -1, 4, {1.25, 0, !low, !high, outside});
  // delta is below 1 - low: for A < 0 the clipped branch is always the larger one, and at its lower
  // bound the gradient passes.
  const gdpo::surrogate::Ratio tiny{0.5, 0.25, 0.25};
  check(tiny, -1, 0.5, {0.5, 0.5, low, !high, !outside});
  check(tiny, -1, 0.375, {0.5, 0, low, !high, outside});
}

TEST_CASE("dual bounds what a negative advantage can cost", "[surrogate]") {
  const gdpo::surrogate::Ratio d{0.5, 0.25, infinite, 4};
  check(d, -2, 4, {8, 8, !low, !high, outside});  // a tie: not limited
  check(d, -2, 8, {8, 0, !low, !high, outside, dual});
  check(d, 2, 8, {-2.5, 0, !low, high, outside});  // a positive advantage is not limited
  check(d, -2, 0.25, {1, 0, low, !high, outside});
  check(d, 0, 8, {0, 0, !low, !high, outside});
}

TEMPLATE_TEST_CASE("a saturated ratio gives finite numbers", "[surrogate]", float, double) {
  using V = TestType;
  const V huge = gdpo::math::exp_parts(static_cast<V>(gdpo::math::exp_limit<V>)).exp;
  for (const gdpo::surrogate::Ratio& s :
       {gdpo::surrogate::Ratio{}, gdpo::surrogate::Ratio{0.2, 0.2, infinite, 3},
        gdpo::surrogate::Ratio{infinite, infinite}}) {
    for (const double a : {1000.0, -1000.0, 0.0}) {
      gdpo::Token<V> t = token<V>(a, 1);
      t.ratio = huge;
      const gdpo::Term<V> term = s(t);
      CHECK(std::isfinite(term.value));
      CHECK(std::isfinite(term.d_log_ratio));
    }
  }
}

TEMPLATE_TEST_CASE("NaN in the ratio or the advantage shows in value and gradient", "[surrogate]",
                   float, double) {
  using V = TestType;
  gdpo::Token<V> t = token<V>(-1, 1);
  t.ratio = std::numeric_limits<V>::quiet_NaN();
  CHECK(std::isnan(gdpo::surrogate::Ratio{}(t).value));
  CHECK(std::isnan(gdpo::surrogate::Ratio{}(t).d_log_ratio));
  t.ratio = 1;
  t.advantage = std::numeric_limits<V>::quiet_NaN();
  CHECK(std::isnan(gdpo::surrogate::Ratio{}(t).value));
  CHECK(std::isnan(gdpo::surrogate::Ratio{}(t).d_log_ratio));
  CHECK(std::isnan(gdpo::surrogate::Reinforce{}(t).d_logp));
}

TEMPLATE_TEST_CASE("Reinforce: -A logp, its derivative at the token alone", "[surrogate]", float,
                   double) {
  const gdpo::Term<TestType> term = gdpo::surrogate::Reinforce{}(token<TestType>(-2, 8));
  CHECK(term.value == -3);
  CHECK(term.d_log_ratio == 0);
  CHECK(term.d_logp == 2);
  CHECK(!(term.low || term.high || term.outside || term.dual));
  // An advantage of 0 has no part in the loss, not even at an impossible token.
  gdpo::Token<TestType> impossible = token<TestType>(0, 1);
  impossible.logp = -std::numeric_limits<TestType>::infinity();
  CHECK(gdpo::surrogate::Reinforce{}(impossible).value == 0);
  CHECK(gdpo::surrogate::Reinforce{}(impossible).d_logp == 0);
}

TEMPLATE_TEST_CASE("SAPO: half the gate and the gradient of the ratio at r = 1", "[surrogate]",
                   float, double) {
  using V = TestType;
  const gdpo::surrogate::Soft soft{2, 4};
  const auto at = [&](double advantage, double ratio) { return soft(token<V>(advantage, ratio)); };
  CHECK(at(3, 1).value == -3);  // -4 A / tau / 2
  CHECK(at(-3, 1).value == 1.5);
  CHECK(at(3, 1).d_log_ratio == -3);
  CHECK(at(-3, 1).d_log_ratio == 3);
  CHECK(at(0, 2).value == 0);
  CHECK(at(0, 2).d_log_ratio == 0);
  CHECK(at(3, 1).d_logp == 0);
  // It fades on both sides, and sooner where tau is larger.
  for (const double a : {3.0, -3.0}) {
    const double scale = static_cast<double>(at(a, 1).d_log_ratio);
    CHECK(static_cast<double>(at(a, 2).d_log_ratio) / scale < 0.9);
    CHECK(static_cast<double>(at(a, 0.25).d_log_ratio) / scale < 0.25);
  }
  CHECK(-at(3, 2).d_log_ratio > at(-3, 2).d_log_ratio);
  // A ratio that has saturated is beyond the gate: the gradient is exactly 0, the value the limit.
  const double huge = static_cast<double>(gdpo::math::exp_parts(V(1e4)).exp);
  CHECK(at(3, huge).d_log_ratio == 0);
  CHECK(at(3, huge).value == -6);
  CHECK(at(-3, huge).value == 3);
  CHECK(gdpo::math::is_nan(at(3, std::nan("")).value));
  CHECK(gdpo::math::is_nan(at(3, std::nan("")).d_log_ratio));
  CHECK(gdpo::math::is_nan(at(std::nan(""), 1).value));
}

TEMPLATE_TEST_CASE("the ratio between bounds: no gradient outside, whatever the sign",
                   "[surrogate]", float, double) {
  using V = TestType;
  const gdpo::surrogate::Clipped half{0.5, 0.25};
  for (const double a : {2.0, -2.0}) {
    for (const double r : {0.5, 1.0, 1.25}) {  // the bounds are inside
      const auto term = half(token<V>(a, r));
      CHECK(term.value == -a * r);
      CHECK(term.d_log_ratio == -a * r);
      CHECK_FALSE(term.outside);
    }
    const auto below = half(token<V>(a, 0.25)), above = half(token<V>(a, 2));
    CHECK(below.value == -a * 0.5);
    CHECK(above.value == -a * 1.25);
    CHECK(below.d_log_ratio == 0);
    CHECK(above.d_log_ratio == 0);
    CHECK(below.low == (a < 0));
    CHECK(above.high == (a > 0));
    CHECK((below.outside && above.outside && !below.high && !above.low));
  }
}

TEMPLATE_TEST_CASE("UP-GRPO: REINFORCE where A > 0, the clip elsewhere", "[surrogate]", float,
                   double) {
  using V = TestType;
  const gdpo::surrogate::PositiveReinforce up{0.5, 4};
  for (const double r : {0.25, 1.0, 64.0}) {
    const auto term = up(token<V>(2, r));
    CHECK(term.value == 3);  // log p is -1.5
    CHECK(term.d_log_ratio == 0);
    CHECK(term.d_logp == -2);
    CHECK_FALSE(term.high);
  }
  const gdpo::surrogate::Ratio clip{0.5, infinite, infinite, 4};
  for (const double a : {0.0, -2.0}) {
    for (const double r : {0.25, 0.5, 1.0, 3.0, 8.0}) {
      const auto term = up(token<V>(a, r)), expected = clip(token<V>(a, r));
      CHECK(term.value == expected.value);
      CHECK(term.d_log_ratio == expected.d_log_ratio);
      CHECK(term.d_logp == 0);
      CHECK((term.low == expected.low && term.dual == expected.dual));
    }
  }
}

TEMPLATE_TEST_CASE("sPPO: the log ratio inside its range, nothing outside", "[surrogate]", float,
                   double) {
  using V = TestType;
  const gdpo::surrogate::LogRatio log{1};  // the range is [0.5, 2]
  for (const double a : {2.0, -2.0}) {
    for (const double r : {0.5, 1.0, 2.0}) {
      const auto t = token<V>(a, r);
      const auto term = log(t);
      CHECK(term.value == -t.advantage * t.log_ratio);
      CHECK((term.d_log_ratio == -a && term.d_logp == 0));
      CHECK_FALSE((term.low || term.high || term.outside));
    }
    const auto below = log(token<V>(a, 0.25)), above = log(token<V>(a, 4));
    CHECK((below.value == 0 && below.d_log_ratio == 0 && below.outside));
    CHECK((above.value == 0 && above.d_log_ratio == 0 && above.outside));
    CHECK((below.low == (a < 0) && above.high == (a > 0) && !below.high && !above.low));
  }
  // Without bounds the log ratio may be infinite; an advantage of 0 has no part in the loss.
  const gdpo::surrogate::LogRatio free{infinite};
  gdpo::Token<V> impossible = token<V>(0, 1);
  impossible.log_ratio = -std::numeric_limits<V>::infinity();
  CHECK(free(impossible).value == 0);
  CHECK(gdpo::math::is_nan(log(token<V>(1, std::nan(""))).value));
  CHECK(gdpo::math::is_nan(log(token<V>(std::nan(""), 1)).value));
}

TEMPLATE_TEST_CASE("the likelihood reads no advantage, and its floor has no gradient",
                   "[surrogate]", float, double) {
  using V = TestType;
  const double nan = std::nan("");
  for (const double a : {0.0, 3.0, nan}) {  // log p is -1.5
    const auto plain = gdpo::surrogate::Likelihood{}(token<V>(a, nan));
    CHECK((plain.value == 1.5 && plain.d_log_ratio == 0 && plain.d_logp == -1));
    CHECK_FALSE((plain.low || plain.high || plain.outside));
    const auto at_floor = gdpo::surrogate::Likelihood{1.5}(token<V>(a, 1));
    CHECK((at_floor.value == 1.5 && at_floor.d_logp == -1));
    const auto held = gdpo::surrogate::Likelihood{2}(token<V>(a, 1));
    CHECK((held.value == 2 && held.d_logp == 0));
  }
  gdpo::Token<V> t = token<V>(1, 1);
  t.logp = V(0.25);  // which rounding may make of 0: without a floor nothing holds it
  CHECK(gdpo::surrogate::Likelihood{}(t).value == -0.25);
  CHECK(gdpo::surrogate::Likelihood{}(t).d_logp == -1);
  t.logp = static_cast<V>(nan);
  CHECK(gdpo::math::is_nan(gdpo::surrogate::Likelihood{1}(t).value));
}

TEST_CASE("a loss of the likelihood needs no advantages, and does not see those it is given",
          "[surrogate]") {
  const std::vector<double> logp{-1, -2, -0.5, -0.25}, none(2, std::nan(""));
  gdpo::TokenBatch<double> batch;
  batch.logp = gdpo::view(logp.data(), 2, 2);
  const auto loss = gdpo::trinity::sft_loss;
  const gdpo::LossResult without = loss(batch, gdpo::count(batch));
  CHECK(without.loss == Approx(3.75 / (4 + 1e-8)).epsilon(1e-15));
  CHECK(without.metrics.surrogate.mean() == 3.75 / 4);
  batch.advantages = gdpo::view(none);
  std::vector<double> gradient(4);
  const gdpo::LossResult with = loss(batch, gdpo::count(batch), gdpo::view(gradient.data(), 2, 2));
  CHECK(with.loss == without.loss);
  CHECK(with.metrics.non_finite.advantages.count > 0);
  for (const double g : gradient) CHECK(g == -1 / (4 + 1e-8));
}

TEMPLATE_TEST_CASE("Trinity-RFT's SAPO: the gate as a weight", "[factor]", float, double) {
  using V = TestType;
  const gdpo::factor::SoftGate gate{2, 4};
  const gdpo::surrogate::Soft sapo{2, 4};
  CHECK(gate(token<V>(3, 1)) == 1);  // 2 / tau
  CHECK(gate(token<V>(-3, 1)) == 0.5);
  CHECK(gate(token<V>(0, 1)) == 0.5);
  for (const double a : {1.0, -1.0}) {
    for (const double r : {0.25, 1.0, 3.0}) {  // the value of SAPO is -A times it
      const auto t = token<V>(a, r);
      CHECK(static_cast<double>(gate(t)) ==
            Approx(-a * static_cast<double>(sapo(t).value)).epsilon(4e-7));
    }
  }
  CHECK(gate(token<V>(3, static_cast<double>(gdpo::math::exp_parts(V(1e4)).exp))) == 2);
  CHECK(gate(token<V>(3, std::nan(""))) == 1);
}

TEMPLATE_TEST_CASE("REC: which tokens stay, by clip_mode", "[factor]", float, double) {
  using V = TestType;
  const auto stays = [](const gdpo::factor::Ring& ring, double a, double r) {
    const V weight = ring(token<V>(a, r));
    gdpo::Term<V> term{};
    ring.clips(token<V>(a, r), term);
    CHECK(term.outside == (weight == 0));
    CHECK(term.low == (weight == 0 && a < 0 && r < 1));
    CHECK(term.high == (weight == 0 && a > 0 && r > 1));
    CHECK((weight == 0 || weight == 1));
    return weight == 1;
  };
  const double off = infinite;
  const gdpo::factor::Ring none, two_side{0.5, 1}, one_side{0.5, 1, 0.5, 1},
      ring{0.25, 0.5, 0.5, 1};
  for (const double a : {2.0, 0.0, -2.0}) {
    for (const double r : {0.0, 0.25, 0.5, 1.0, 2.0, 4.0}) {
      INFO("A " << a << ", ratio " << r);
      CHECK(stays(none, a, r));
      CHECK(stays(two_side, a, r) == (r >= 0.5 && r <= 2));
      CHECK(stays(one_side, a, r) == ((a >= 0 && r <= 2) || (a <= 0 && r >= 0.5)));
      CHECK(stays(ring, a, r) ==
            ((r >= 0.75 && r <= 1.5) || (a >= 0 && r <= 0.5) || (a <= 0 && r >= 2)));
    }
  }
  // With low_prime 1 only r = 0 is far below, however small the others are.
  const gdpo::factor::Ring to_zero{0.5, 1, 1, off};
  for (const double r : {1e-30, 1e-10, 0.25}) CHECK_FALSE(stays(to_zero, 1, r));
  CHECK(stays(to_zero, 1, 0));
  // The weight of a token that stays.
  const gdpo::factor::Ring weighed{0.5, 1, off, off, 0, off};
  for (const double r : {0.5, 1.0, 2.0}) CHECK(weighed(token<V>(1, r)) == static_cast<V>(r));
  CHECK(weighed(token<V>(1, 4)) == 0);
  gdpo::factor::Ring by_advantage;
  by_advantage.temp = 2;
  for (const double a : {-1.0, 0.0, 3.0})
    CHECK(static_cast<double>(by_advantage(token<V>(a, 8))) ==
          Approx(std::exp(a / 2)).epsilon(4e-7));
  CHECK(ring(token<V>(1, std::nan(""))) == 1);
}

TEMPLATE_TEST_CASE("the probability as a weight", "[factor]", float, double) {
  using V = TestType;
  const auto at = [](double decay, double logp) {
    gdpo::Token<V> t{};
    t.logp = static_cast<V>(logp);
    return static_cast<double>(gdpo::factor::Probability{decay}(t));
  };
  for (const double logp : {-30.0, -2.0, -0.5, -0x1p-20}) {
    const double p = std::exp(logp);
    CHECK(at(0, logp) == Approx(p).epsilon(4e-7));
    CHECK(at(0.5, logp) == Approx(p * (1 - p / 2)).epsilon(4e-7));
    // Also near p = 1, where 1 - p would cancel.
    CHECK(at(1, logp) == Approx(-p * std::expm1(logp)).epsilon(4e-7));
  }
  CHECK((at(0, 0) == 1 && at(1, 0) == 0));
  CHECK((at(0, -infinite) == 0 && at(1, -infinite) == 0));
  CHECK(at(1, std::nan("")) == 1);
}

TEMPLATE_TEST_CASE("TOPR: weight 1 where A > 0, the ratio at most 1 elsewhere", "[factor]", float,
                   double) {
  using V = TestType;
  const gdpo::factor::SignedRatio topr;
  for (const double r : {0.25, 1.0, 8.0}) {
    CHECK(topr(token<V>(1, r)) == 1);
    for (const double a : {0.0, -1.0}) CHECK(topr(token<V>(a, r)) == std::fmin(r, 1.0));
  }
  const gdpo::factor::SignedRatio shifted{0.5, 2, 0.25, 1, -0.5};
  CHECK(shifted(token<V>(-0.25, 8)) == 2);  // above the threshold
  CHECK(shifted(token<V>(-0.5, 8)) == 1);
  CHECK(shifted(token<V>(-0.5, 0.125)) == 0.25);
  CHECK(topr(token<V>(-1, std::nan(""))) == 1);
  gdpo::Term<V> term{};
  topr.clips(token<V>(1, 8), term);  // both bounds are 1: nothing is clipped
  CHECK((!term.high && !term.outside));
  topr.clips(token<V>(-1, 8), term);
  CHECK((!term.high && !term.low && term.outside));
  shifted.clips(token<V>(-1, 0.125), term);
  CHECK((term.low && term.outside));
}

TEMPLATE_TEST_CASE("VESPO's weight: 1 at W = 1, largest at k / lambda, 0 far away", "[factor]",
                   float, double) {
  using V = TestType;
  const gdpo::factor::Gamma gamma{1, 2, 3, 2};
  const auto at = [&](double a, double w) { return static_cast<double>(gamma(token<V>(a, w))); };
  for (const double a : {1.0, 0.0, -1.0}) CHECK(at(a, 1) == 1);
  CHECK(at(1, 0.5) > at(1, 0.75));  // k / lambda is 1 / 2
  CHECK(at(1, 0.5) > at(1, 0.25));
  CHECK(at(-1, 1.5) > at(-1, 1.25));  // and 3 / 2
  CHECK(at(-1, 1.5) > at(-1, 1.75));
  CHECK(at(0, 0.5) == at(1, 0.5));
  // e^(2 + log 4 - 8) = 4 e^-6, within 4 ulp of V: three roundings of the power, and those of e^x.
  CHECK(at(1, 4) == Approx(4 * std::exp(-6.0)).epsilon(16 * std::numeric_limits<V>::epsilon()));
  gdpo::Token<V> far = token<V>(1, 1);
  far.log_ratio = std::numeric_limits<V>::infinity();  // the ratio has saturated
  far.ratio = gdpo::math::exp_parts(far.log_ratio).exp;
  CHECK(gamma(far) == 0);
  CHECK(gamma(token<V>(1, std::nan(""))) == 1);
}

TEMPLATE_TEST_CASE("GMPO's map: a bound on the side of the advantage", "[map]", float, double) {
  using V = TestType;
  const gdpo::map::TrustRegion region{0.25, 0.5};
  const auto at = [&](double a, double x) {
    gdpo::Token<V> t = token<V>(a, 1);
    t.token_log_ratio = static_cast<V>(x);
    return region(t);
  };
  const auto is = [&](double a, double x, double mapped, double pass) {
    INFO("A " << a << ", x " << x);
    CHECK(at(a, x).log_ratio == mapped);
    CHECK(at(a, x).pass == pass);
  };
  is(1, 0.75, 0.5, 0), is(1, 0.5, 0.5, 1), is(1, -8, -8, 1);
  is(-1, -0.75, -0.25, 0), is(-1, -0.25, -0.25, 1), is(-1, 8, 8, 1);
  is(0, 0.125, 0, 0), is(0, -8, 0, 0);
  CHECK(gdpo::math::is_nan(at(1, std::nan("")).log_ratio));
}

}  // namespace surrogate_test
