// labels: lanes, sanitizers
// Advantages of tokens with a KL penalty: against the formulas in long double, and which inputs are
// not read.
#include <gdpo/advantages.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/value.hpp>

#include "support/catch.hpp"
#include "support/masked.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace token_advantages_test {

namespace {

using gdpo::index_t;
using masked::Table;
using Vector = std::vector<double>;
template <class KlTerm>
using Penalty = gdpo::penalty::Token<KlTerm>;

const double infinite = std::numeric_limits<double>::infinity();

struct Batch {
  index_t rows, width;
  Vector advantages, mask, logp, ref_logp;

  gdpo::View<const double, 2> tokens(const Vector& x) const {
    return gdpo::view(x.data(), rows, width);
  }
  template <class KlTerm>
  Vector operator()(const Penalty<KlTerm>& penalty) const {
    Vector out(mask.size(), 42.0);
    gdpo::token_advantages_into(gdpo::view(advantages), tokens(mask), tokens(logp),
                                tokens(ref_logp), penalty, gdpo::view(out.data(), rows, width));
    return out;
  }
};

/// Log-probs down to -6. Some tokens are so far from the reference that the clamps take effect.
Batch random_batch_of_tokens(Random& random) {
  Batch b{1 + random.below(5), 1 + random.below(9), {}, {}, {}, {}};
  for (index_t i = 0; i < b.rows; ++i) b.advantages.push_back(4 * random.uniform() - 2);
  for (index_t k = 0; k < b.rows * b.width; ++k) {
    b.mask.push_back(random.chance(0.7));
    b.logp.push_back(static_cast<double>(static_cast<float>(-6 * random.uniform())));
    const double distance = (random.uniform() - 0.5) * random.pick({1e-3, 1.0, 1.0, 8.0, 60.0});
    b.ref_logp.push_back(static_cast<double>(static_cast<float>(b.logp.back() + distance)));
  }
  return b;
}

enum class Estimator { K1, Abs, K2, K3 };

/// The estimate for one token from x = other - logp, clamped before and after.
long double estimate(Estimator which, long double x, const gdpo::Bounds& input,
                     const gdpo::Bounds& output) {
  const auto clamp = [](long double v, const gdpo::Bounds& b) {
    return std::max(std::min(v, static_cast<long double>(b.hi)), static_cast<long double>(b.lo));
  };
  x = clamp(x, input);
  const long double value = which == Estimator::K1    ? -x
                            : which == Estimator::Abs ? std::fabs(x)
                            : which == Estimator::K2  ? x * x / 2
                                                      : std::expm1(x) - x;
  return clamp(value, output);
}

template <class KlTerm>
void compare(const Batch& b, double coef, const KlTerm& kl, Estimator which) {
  const Vector out = b(Penalty<KlTerm>{coef, kl});
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (b.mask[k] == 0) {
      CHECK(same_bits(out[k], 0));
      continue;
    }
    const long double x =
        static_cast<long double>(b.ref_logp[k]) - static_cast<long double>(b.logp[k]);
    const auto penalty = static_cast<long double>(coef) * estimate(which, x, kl.input, kl.output);
    const auto expected =
        static_cast<long double>(b.advantages[k / static_cast<std::size_t>(b.width)]) - penalty;
    // A few roundings of the advantage and of the penalty. For K3 1e-13 is ample: the library
    // documents 6 ulp.
    const long double within =
        8 * static_cast<long double>(tolerance::unit) * (2 + std::fabs(penalty)) +
        (which == Estimator::K3 ? 1e-13L * std::fabs(penalty) : 0);
    if (!(std::fabs(static_cast<long double>(out[k]) - expected) <= within)) {
      CHECK(out[k] == static_cast<double>(expected));
    }
  }
}

/// A user's term: the same number at every token, whatever the log-probs. A term must have beta and
/// against.
struct Constant {
  double beta = 1;
  gdpo::Against against = gdpo::Against::Ref;
  template <class V>
  gdpo::Term<V> operator()(const gdpo::Token<V>& t) const {
    return {t.ratio + gdpo::math::constant<V>(2.0), t.logp, t.logp};
  }
};

}  // namespace

TEST_CASE("a penalty on tokens, by hand", "[tokens]") {
  const Batch b{2, 2, {1, -2}, {1, 1, 0, 1}, {-1, -2, -3, -4}, {-1.5, -1, -9, -4.25}};
  // K1 is 0.5, -1 and 0.25 at the valid tokens.
  CHECK(difference(b(gdpo::penalty::Token<>{0.5}), Vector{0.75, 1.5, 0, -2.125}) == "");
  CHECK(difference(b(gdpo::penalty::Token{0.5, gdpo::Kl<gdpo::kl::Abs>{}}),
                   Vector{0.75, 0.5, 0, -2.125}) == "");
  CHECK(difference(b(gdpo::penalty::Token{-4.0, gdpo::Kl<gdpo::kl::K2>{}}),
                   Vector{1.5, 3, 0, -1.875}) == "");
  // The value is the ratio + 2, and the ratio is 1.
  CHECK(difference(b(gdpo::penalty::Token{1.0, Constant{}}), Vector{-2, -2, 0, -5}) == "");
}

TEST_CASE("a penalty on tokens, against the formulas", "[tokens]") {
  using namespace gdpo::kl;
  const gdpo::Bounds in{-20, 20}, out{-10, 10}, narrow{-0.5, 0.25};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const Batch b = random_batch_of_tokens(random);
    const double coef = random.pick({0.04, 1.0, -0.5});
    INFO("seed " << seed << ", coef " << coef);
    compare(b, coef, gdpo::Kl<K1>{}, Estimator::K1);
    compare(b, coef, gdpo::Kl<K1>{0, gdpo::Against::Ref, narrow}, Estimator::K1);
    compare(b, coef, gdpo::Kl<Abs>{0, gdpo::Against::Ref, {}, narrow}, Estimator::Abs);
    compare(b, coef, gdpo::Kl<K2>{0, gdpo::Against::Ref, in, out}, Estimator::K2);
    compare(b, coef, gdpo::Kl<K3>{0, gdpo::Against::Ref, in, out}, Estimator::K3);
    compare(b, coef, gdpo::Kl<K3>{0, gdpo::Against::Ref, narrow}, Estimator::K3);
  }
}

TEST_CASE("of the KL term only the value is used", "[tokens]") {
  using namespace gdpo::kl;
  Random random(5);
  for (int round = 0; round < 10; ++round) {
    const Batch b = random_batch_of_tokens(random);
    const gdpo::Bounds in{-20, 20}, out{-10, 10};
    const Vector expected =
        b(gdpo::penalty::Token{0.3, gdpo::Kl<K3>{0.04, gdpo::Against::Ref, in, out}});
    for (const auto against :
         {gdpo::Against::Old, gdpo::Against::Teacher, gdpo::Against::Rollout}) {
      CHECK(difference(b(gdpo::penalty::Token{0.3, gdpo::Kl<K3>{7, against, in, out}}), expected) ==
            "");
    }
    CHECK(difference(b(gdpo::penalty::Token{0.3, gdpo::Kl<K3, StraightThroughK2>{0, {}, in, out}}),
                     expected) == "");
    CHECK(difference(b(gdpo::penalty::Token{0.3, gdpo::Kl<K3, ScoreFunction>{0, {}, in, out}}),
                     expected) == "");
    CHECK(difference(b(gdpo::penalty::Token{0.3, gdpo::Kl<K3, ImportanceWeighted>{0, {}, in, out}}),
                     expected) == "");
  }
}

TEST_CASE("a coefficient of 0 is a broadcast, and reads no log-prob", "[tokens]") {
  Random random(6);
  Batch b = random_batch_of_tokens(random);
  Vector expected(b.mask.size());
  const auto broadcast = [&](const auto& mask) {
    gdpo::broadcast_into(gdpo::view(b.advantages), mask,
                         gdpo::view(expected.data(), b.rows, b.width));
    return expected;
  };
  b.logp.assign(b.mask.size(), std::nan(""));
  b.ref_logp = b.logp;
  CHECK(difference(b(gdpo::penalty::Token<>{0}), broadcast(b.tokens(b.mask))) == "");
  Vector out(b.mask.size(), 42.0);
  const auto target = gdpo::view(out.data(), b.rows, b.width);
  gdpo::token_advantages_into(gdpo::view(b.advantages), b.tokens(b.mask), {}, {},
                              gdpo::penalty::Token<>{-0.0}, target);
  CHECK(difference(out, broadcast(b.tokens(b.mask))) == "");
  gdpo::token_advantages_into(gdpo::view(b.advantages), {}, {}, {}, gdpo::penalty::Token<>{},
                              target);
  CHECK(difference(out, broadcast(b.tokens(Vector(b.mask.size(), 1.0)))) == "");
}

TEST_CASE("poison behind the mask changes no bit of token advantages", "[tokens][poison]") {
  const gdpo::penalty::Token penalty{0.1, gdpo::Kl<gdpo::kl::K3>{0, {}, {-20, 20}, {-10, 10}}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const Batch b = random_batch_of_tokens(random);
    const Vector expected = b(penalty);
    INFO("seed " << seed);
    for (const double poison : {std::nan(""), infinite, -infinite, 1e38, -1e308}) {
      Batch poisoned = b;
      for (std::size_t k = 0; k < b.mask.size(); ++k) {
        if (b.mask[k] != 0) continue;
        if (random.chance(0.7)) poisoned.logp[k] = poison;
        if (random.chance(0.7)) poisoned.ref_logp[k] = poison;
      }
      for (index_t i = 0; i < b.rows; ++i) {  // a row where nothing counts may have any advantage
        const auto begin = b.mask.begin() + i * b.width;
        if (std::count(begin, begin + b.width, 0.0) == b.width)
          poisoned.advantages[static_cast<std::size_t>(i)] = poison;
      }
      CHECK(difference(poisoned(penalty), expected) == "");
    }
  }
}

TEST_CASE("NaN and inf that count show at their token, and at no other", "[tokens]") {
  const Batch clean{1, 3, {0.5}, {1, 1, 1}, {-1, -2, -3}, {-1, -1, -2}};
  const Vector expected = clean(gdpo::penalty::Token<>{0.1});
  for (const double bad : {std::nan(""), -infinite}) {
    Batch b = clean;
    b.ref_logp[1] = bad;
    const Vector out = b(gdpo::penalty::Token<>{0.1});
    CHECK(!std::isfinite(out[1]));
    CHECK((same_bits(out[0], expected[0]) && same_bits(out[2], expected[2])));
  }
}

TEST_CASE("token advantages in every layout and storage", "[tokens]") {
  const gdpo::penalty::Token penalty{0.25, gdpo::Kl<gdpo::kl::K2>{}};
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Random random(seed);
    const Batch b = random_batch_of_tokens(random);
    const Vector expected = b(penalty);
    INFO("seed " << seed);
    using Layout = Table<float>::Layout;
    for (const Layout layout : {Layout::RowMajor, Layout::ColumnMajor, Layout::Holes}) {
      const Table<float> logp(b.rows, b.width, layout, b.logp),
          ref_logp(b.rows, b.width, layout, b.ref_logp);
      const Table<unsigned char> mask(b.rows, b.width,
                                      static_cast<Table<unsigned char>::Layout>(layout), b.mask);
      Table<double> out(b.rows, b.width, static_cast<Table<double>::Layout>(layout), b.mask);
      gdpo::token_advantages_into(gdpo::view(b.advantages), mask.view(), logp.view(),
                                  ref_logp.view(), penalty, out.view());
      CHECK(difference(out.values(), expected) == "");
    }
    std::vector<float> narrow(expected.size());
    gdpo::token_advantages_into(gdpo::view(b.advantages), b.tokens(b.mask), b.tokens(b.logp),
                                b.tokens(b.ref_logp), penalty,
                                gdpo::view(narrow.data(), b.rows, b.width));
    for (std::size_t k = 0; k < narrow.size(); ++k)
      CHECK(same_bits(narrow[k], static_cast<float>(expected[k])));
  }
  const std::vector<gdpo::BFloat16> logp{{0xbf80}, {0xc000}};  // -1, -2
  std::vector<float> out(2);
  gdpo::token_advantages_into(gdpo::view(Vector{}.data(), 0), {}, {}, {}, penalty,
                              gdpo::view(out.data(), 0, 2));
  const Vector one{1};
  const std::vector<float> ref_logp{-1.5f, -4};
  gdpo::token_advantages_into(gdpo::view(one), {}, gdpo::view(logp.data(), 1, 2),
                              gdpo::view(ref_logp.data(), 1, 2), penalty,
                              gdpo::view(out.data(), 1, 2));
  CHECK(out == std::vector<float>{1 - 0.25f * 0.125f, 0.5f});
}

TEST_CASE("the second normalization of penalized tokens, in place", "[tokens]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const Batch b = random_batch_of_tokens(random);
    Vector out = b(gdpo::penalty::Token<>{0.04});
    masked::Data before{b.rows, b.width, out, b.mask};
    const auto target = gdpo::view(out.data(), b.rows, b.width);
    gdpo::whiten_into(target, b.tokens(b.mask), gdpo::verl::masked_whiten, target);
    const Vector x = before.counted();
    const long double mean = masked::mean(x, 1e-8), v = masked::variance(x, 1, 1e-8);
    const long double k = masked::multiplier(v, 1e-8, gdpo::EpsAt::Var, x.size() > 1);
    INFO("seed " << seed);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const long double expected =
          b.mask[i] == 0 ? 0 : (static_cast<long double>(before.values[i]) - mean) * k;
      // Values of order 4 and their mean: a dozen roundings, times the multiplier.
      if (x.size() > 1)
        CHECK(std::fabs(static_cast<double>(out[i] - expected)) <= tolerance::formula * (1 + k));
      if (b.mask[i] == 0 || x.size() == 1) CHECK(out[i] == 0);
    }
  }
}

TEST_CASE("mistakes in token advantages", "[tokens][errors]") {
  const Vector a(2, 1.0), x(6, -1.0);
  Vector out(6, 42.0);
  const auto good = gdpo::view(x.data(), 2, 3), bad = gdpo::view(x.data(), 3, 2);
  const auto target = gdpo::view(out.data(), 2, 3);
  const std::string function = "gdpo::token_advantages_into: ",
                    shape = ": given (3, 2); needed: (2, 3), the shape of out";
  const gdpo::penalty::Token<> on{0.04};
  const auto call = [&](auto mask, auto logp, auto ref_logp, const auto& penalty) {
    return message_of(
        [&] { gdpo::token_advantages_into(gdpo::view(a), mask, logp, ref_logp, penalty, target); });
  };
  const gdpo::View<const float, 2> none;
  CHECK(call(bad, good, good, on) == function + "mask" + shape);
  CHECK(call(good, bad, good, on) == function + "logp" + shape);
  CHECK(call(good, good, bad, on) == function + "ref_logp" + shape);
  CHECK(call(good, good, bad, gdpo::penalty::Token<>{0}) == function + "ref_logp" + shape);
  const std::string absent =
      ": given no array; needed: the log-probs of the tokens, because penalty.coef is not 0";
  CHECK(call(good, none, good, on) == function + "logp" + absent);
  CHECK(call(good, good, none, on) == function + "ref_logp" + absent);
  for (const auto& [coef, text] :
       {std::pair{std::nan(""), "nan"}, {infinite, "inf"}, {-infinite, "-inf"}}) {
    CHECK(call(good, good, good, gdpo::penalty::Token<>{coef}) ==
          function + "penalty.coef: given " + text + "; needed: a finite number");
  }
  const gdpo::penalty::Token bounds{0.04, gdpo::Kl<gdpo::kl::K3>{0, gdpo::Against::Ref, {20, -20}}};
  CHECK(call(good, good, good, bounds) ==
        function +
            "penalty.kl.input.lo, penalty.kl.input.hi: given 20 and -20; needed: lo < hi "
            "(infinite: off)");
  CHECK(message_of([&] {
          gdpo::token_advantages_into(gdpo::view(a), good, good, good, on,
                                      gdpo::view(out.data(), 3, 2));
        }) == function + "out: given (3, 2); needed: (N, T) with N = 2, the number of advantages");
  CHECK(out == Vector(6, 42.0));
}

}  // namespace token_advantages_test
