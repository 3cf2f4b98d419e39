// labels: lanes, sanitizers
// Every operation of Pack and Mask gives the bits of the scalar function of the same name, at every
// width: whole registers, halves of wider packs, and a single lane.
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/lanes.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace lanes_test {

namespace {

namespace math = gdpo::math;
using math::Mask;
using math::Pack;

/// Zeros of both signs, the ends of the range, infinities, NaN of both signs, and numbers in
/// between.
template <class S>
const std::vector<S>& values() {
  static const std::vector<S> all = [] {
    using Limits = std::numeric_limits<S>;
    std::vector<S> v{S(0),
                     S(1),
                     S(0.5),
                     S(3),
                     S(80),
                     S(1.5) * Limits::min(),
                     Limits::min(),
                     Limits::denorm_min(),
                     Limits::max(),
                     Limits::infinity(),
                     Limits::quiet_NaN()};
    Random random(1);
    while (v.size() < 40) v.push_back(static_cast<S>(std::exp(40 * random.uniform() - 20)));
    const std::size_t n = v.size();
    for (std::size_t k = 0; k < n; ++k) v.push_back(-v[k]);
    return v;
  }();
  return all;
}

/// Compares bits, where every NaN is the same: which of two NaN an operation returns is the
/// processor's choice.
template <class S>
bool same(S a, S b) {
  return math::is_nan(a) ? math::is_nan(b)
                         : !math::is_nan(b) && math::bits_of(a) == math::bits_of(b);
}

template <int L, class S>
struct Lanewise {
  using V = Pack<L, S>;
  S a[L], b[L], c[L];

  /// Calls check(a, b, c) with all pairs of values in a and b; c runs through values as well.
  template <class Check>
  void for_all(const Check& check) {
    const std::vector<S>& v = values<S>();
    const std::size_t n = v.size();
    for (std::size_t shift = 0; shift < n; ++shift) {
      for (std::size_t first = 0; first < n; first += L) {
        for (std::size_t j = 0; j < L; ++j) {
          a[j] = v[(first + j) % n], b[j] = v[(first + j + shift) % n],
          c[j] = v[(3 * first + 7 * j + shift) % n];
        }
        check(V::load(a), V::load(b), V::load(c));
      }
    }
  }
  /// Compares all lanes and reports only those that differ.
  template <class Expected>
  void expect(const char* what, const V& got, const Expected& expected) const {
    S lanes[L];
    got.store(lanes);
    for (int j = 0; j < L; ++j) {
      if (same(lanes[j], expected(j))) continue;
      INFO(what << ", lane " << j << " of " << L << ": " << a[j] << ", " << b[j] << ", " << c[j]);
      CHECK(lanes[j] == expected(j));
    }
  }
  template <class Expected>
  void expect(const char* what, const Mask<L, S>& got, const Expected& expected) const {
    expect(what, math::select(got, V::all(S(1)), V::all(S(0))),
           [&](int j) { return expected(j) ? S(1) : S(0); });
    bool any = false;
    for (int j = 0; j < L; ++j) any = any || expected(j);
    if (math::any(got) != any) {
      INFO(what << ": any of " << L);
      CHECK(math::any(got) == any);
    }
  }
};

template <int L, class S>
void check_arithmetic() {
  Lanewise<L, S> t;
  int cases = 0;
  t.for_all([&](const auto& a, const auto& b, const auto& c) {
    ++cases;
#define GDPO_SAME(expression_of_packs, expression) \
  t.expect(#expression_of_packs, expression_of_packs, [&](int j) { return expression; })
    GDPO_SAME(a + b, t.a[j] + t.b[j]);
    GDPO_SAME(a - b, t.a[j] - t.b[j]);
    GDPO_SAME(a / b, t.a[j] / t.b[j]);
    GDPO_SAME(-a, -t.a[j]);
    GDPO_SAME(math::mul(a, b), math::mul(t.a[j], t.b[j]));
    GDPO_SAME(math::fma(a, b, c), math::fma(t.a[j], t.b[j], t.c[j]));
    GDPO_SAME((math::min)(a, b), (math::min)(t.a[j], t.b[j]));
    GDPO_SAME((math::max)(a, b), (math::max)(t.a[j], t.b[j]));
    GDPO_SAME(math::abs(a), math::abs(t.a[j]));
    GDPO_SAME(math::sqrt(a), std::sqrt(t.a[j]));
    GDPO_SAME(math::opaque(a), t.a[j]);
    GDPO_SAME(math::pow2_of_shifted(a), math::pow2_of_shifted(t.a[j]));
    GDPO_SAME(a == b, t.a[j] == t.b[j]);
    GDPO_SAME(a < b, t.a[j] < t.b[j]);
    GDPO_SAME(a > b, t.a[j] > t.b[j]);
    GDPO_SAME(a <= b, t.a[j] <= t.b[j]);
    GDPO_SAME(a >= b, t.a[j] >= t.b[j]);
    GDPO_SAME(math::both(a < b, b < c), t.a[j] < t.b[j] && t.b[j] < t.c[j]);
    GDPO_SAME(math::either(a < b, b < c), t.a[j] < t.b[j] || t.b[j] < t.c[j]);
    GDPO_SAME(math::select(a < b, c, a), t.a[j] < t.b[j] ? t.c[j] : t.a[j]);
    GDPO_SAME(math::is_nan(a), math::is_nan(t.a[j]));
    GDPO_SAME(math::is_inf(a), math::is_inf(t.a[j]));
    GDPO_SAME(math::is_zero(a), math::is_zero(t.a[j]));
    GDPO_SAME(math::not_finite(a), math::not_finite(t.a[j]));
    GDPO_SAME(math::exp_parts(a).exp, math::exp_parts(t.a[j]).exp);
    GDPO_SAME(math::exp_parts(a).expm1, math::exp_parts(t.a[j]).expm1);
    GDPO_SAME(math::exp_parts(a).k3, math::exp_parts(t.a[j]).k3);
  });
  CHECK(cases > 80);
}

/// e^x for many x, half of them where the range reduction goes from one n to the next.
template <int L, class S>
void check_exponentials() {
  using V = Pack<L, S>;
  Random random(2);
  int wrong = 0;
  for (int k = 0; k < 4000; ++k) {
    S x[L], exp[L], expm1[L], k3[L], bounded[L];
    for (S& one : x) {
      const double limit = math::exp_limit<S>;
      one = static_cast<S>(random.chance(0.5) ? 2.2 * limit * (random.uniform() - 0.5)
                                              : (random.below(200) - 99.5) * 0.6931471805599453);
    }
    const auto e = math::exp_parts(V::load(x));
    e.exp.store(exp), e.expm1.store(expm1), e.k3.store(k3);
    math::exp_bounded((math::min)(V::load(x), math::constant<V>(math::exp_limit<S>)))
        .store(bounded);
    for (int j = 0; j < L; ++j) {
      const auto one = math::exp_parts(x[j]);
      const S in_bounds = (math::min)(x[j], static_cast<S>(math::exp_limit<S>));
      wrong += !same(exp[j], one.exp) + !same(expm1[j], one.expm1) + !same(k3[j], one.k3) +
               !same(bounded[j], math::exp_bounded(in_bounds));
    }
  }
  CHECK(wrong == 0);
}

struct OwnHalf {  // a user's 16-bit type
  std::uint16_t bits;
  explicit operator float() const {
    return math::from_bits(static_cast<std::uint32_t>(bits) << 16);
  }
};

template <int L, class S>
void check_loads() {
  using V = Pack<L, S>;
  Random random(3);
  const auto check = [&](auto of) {
    using T = decltype(of);
    std::vector<T> in(L + 3);
    for (std::size_t k = 0; k < in.size(); ++k) {
      if constexpr (std::is_integral_v<T>) {
        in[k] = static_cast<T>(random.below(100) - 50);
      } else if constexpr (std::is_floating_point_v<T>) {
        in[k] = static_cast<T>(
            values<S>()[static_cast<std::size_t>(random.below(80)) % values<S>().size()]);
      } else {
        in[k].bits = static_cast<std::uint16_t>(random.bits());
      }
    }
    // A load needs only the alignment of an element.
    for (std::size_t offset = 0; offset < 3; ++offset) {
      S out[L + 2] = {};
      V::load(&in[offset]).store(out + 1);
      for (std::size_t j = 0; j < L; ++j) {
        if (!same(out[j + 1], static_cast<S>(gdpo::load(in[offset + j])))) CHECK(j == L);
      }
      CHECK((out[0] == 0 && out[L + 1] == 0));
    }
  };
  check(S{}), check(std::int32_t{}), check(std::uint8_t{}), check(gdpo::BFloat16{}),
      check(gdpo::Float16{});
  check(OwnHalf{});
  if constexpr (std::is_same_v<S, double>) check(float{});
  S all[L];
  V::all(S(-2.5)).store(all);
  for (const S x : all) CHECK(x == S(-2.5));
  math::constant<V>(0.1).store(all);
  for (const S x : all) CHECK(x == S(0.1));
}

/// The order of a sum over lanes: x[j] + x[j + L/2] for the lower half, and so on with half as many
/// lanes until one is left.
double tree(std::vector<double> x) {
  while (x.size() > 1) {
    for (std::size_t j = 0; j < x.size() / 2; ++j) x[j] += x[j + x.size() / 2];
    x.resize(x.size() / 2);
  }
  return x[0];
}

template <int L>
void check_reductions() {
  Random random(4);
  for (int k = 0; k < 200; ++k) {
    std::vector<double> x(L), y(L);
    for (double& v : x) v = std::exp(20 * random.uniform()) * (random.below(2) ? 1 : -1);
    for (std::size_t j = 0; j < L; ++j) y[j] = random.chance(0.5) ? x[j] : 2 * x[j];
    const auto p = Pack<L>::load(x.data()), q = Pack<L>::load(y.data());
    CHECK(same_bits(math::tree_sum(p), tree(x)));
    CHECK(math::tree_min(p) == *std::min_element(x.begin(), x.end()));
    if constexpr (L > 1) {
      std::vector<double> low(L / 2), high(L / 2);
      math::low_half(p).store(low.data()), math::high_half(p).store(high.data());
      CHECK(difference(low, std::vector<double>(x.begin(), x.begin() + L / 2)) == "");
      CHECK(difference(high, std::vector<double>(x.begin() + L / 2, x.end())) == "");
    }
    const auto none = math::has_no_bit(math::collect_differences(Pack<L>::all(0), p, q));
    double equal[L];
    math::select(none, Pack<L>::all(1), Pack<L>::all(0)).store(equal);
    for (std::size_t j = 0; j < L; ++j) CHECK(equal[j] == (x[j] == y[j] ? 1 : 0));
  }
}

/// V is S or a register of S.
template <class V>
void check_interface() {
  using L = math::Lanes<V>;
  using S = typename L::Scalar;
  constexpr int width = L::width;
  Random random(5);
  typename L::Count count;
  gdpo::index_t expected = 0;
  for (int k = 0; k < 300; ++k) {
    unsigned char mask[width + 1];
    for (unsigned char& m : mask)
      m = static_cast<unsigned char>(random.below(3) ? random.below(256) : 0);
    const unsigned char* at = mask + random.below(2);
    count.add(L::load_mask(at));
    S lanes[width];
    L::store(lanes, math::select(L::load_mask(at), math::constant<V>(2.0), math::constant<V>(3.0)));
    for (int j = 0; j < width; ++j) {
      CHECK(lanes[j] == (at[j] ? S(2) : S(3)));
      expected += at[j] != 0;
    }
  }
  CHECK(count.total() == expected);
  count.add(L::all_lanes());
  CHECK(count.total() == expected + width);

  // Lanes can also be stored as float, rounded once.
  std::vector<S> in;
  std::vector<float> out(width);
  for (int j = 0; j < width; ++j) in.push_back(static_cast<S>(random.uniform()));
  L::store(out.data(), L::load(in.data()));
  for (std::size_t j = 0; j < width; ++j) CHECK(out[j] == static_cast<float>(in[j]));
}

/// sum_lanes over 16 numbers in registers of V.
template <class V>
double sum_of(const std::vector<float>& x) {
  using S = typename math::Lanes<V>::Scalar;
  const std::vector<S> stored(x.begin(), x.end());
  return math::sum_lanes<V>(
      [&](int k) { return math::Lanes<V>::load(stored.data() + k * math::Lanes<V>::width); });
}

}  // namespace

TEST_CASE(
    "arithmetic, comparisons, masks, min and max of NaN, exponentials: the bits of the scalar",
    "[lanes]") {
  check_arithmetic<1, double>(), check_arithmetic<2, double>(), check_arithmetic<4, double>();
  check_arithmetic<8, double>(), check_arithmetic<16, double>();
  check_arithmetic<1, float>(), check_arithmetic<4, float>(), check_arithmetic<8, float>();
  check_arithmetic<16, float>(), check_arithmetic<32, float>();
}

TEST_CASE("a NaN in the first operand of min and max stays, one in the second does not",
          "[lanes]") {
  const double nan = math::nan();
  CHECK(math::is_nan((math::min)(nan, 1.0)));
  CHECK(math::is_nan((math::max)(nan, 1.0)));
  CHECK((math::min)(1.0, nan) == 1);
  CHECK((math::max)(1.0f, math::nan<float>()) == 1);
  CHECK(bits_of((math::min)(0.0, -0.0)) == bits_of(0.0));
  CHECK(bits_of((math::max)(-0.0, 0.0)) == bits_of(-0.0));
}

TEST_CASE("lanes of exp_parts have the bits of the scalar", "[lanes][exp_parts]") {
  check_exponentials<2, double>(), check_exponentials<4, double>(), check_exponentials<8, double>();
  check_exponentials<16, double>();
  check_exponentials<4, float>(), check_exponentials<8, float>(), check_exponentials<16, float>();
  check_exponentials<32, float>();
}

TEST_CASE("lanes are loaded from every type, at any address of it, and stored", "[lanes]") {
  check_loads<1, double>(), check_loads<2, double>(), check_loads<4, double>(),
      check_loads<8, double>();
  check_loads<16, double>();
  check_loads<1, float>(), check_loads<4, float>(), check_loads<8, float>(),
      check_loads<16, float>();
}

TEST_CASE("sums and minima of lanes are trees; halves; differences of bits", "[lanes]") {
  check_reductions<1>(), check_reductions<2>(), check_reductions<4>(), check_reductions<8>(),
      check_reductions<16>();
}

TEST_CASE("one interface over a number and a register: masks, counts, stores", "[lanes]") {
  check_interface<float>(), check_interface<double>();
  check_interface<math::Native<float>>(), check_interface<math::Native<double>>();
}

TEST_CASE("the sum of sixteen lanes does not depend on the register", "[lanes]") {
  Random random(6);
  for (int k = 0; k < 200; ++k) {
    std::vector<float> x(16);
    for (float& v : x)
      v = static_cast<float>(std::exp(30 * random.uniform()) * (random.below(2) ? 1 : -1));
    const double expected = tree(std::vector<double>(x.begin(), x.end()));
    CHECK(same_bits(sum_of<float>(x), expected));
    CHECK(same_bits(sum_of<double>(x), expected));
    CHECK(same_bits(sum_of<math::Native<float>>(x), expected));
    CHECK(same_bits(sum_of<math::Native<double>>(x), expected));
  }
}

}  // namespace lanes_test
