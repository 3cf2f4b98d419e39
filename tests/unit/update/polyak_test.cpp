// labels: lanes, sanitizers
// polyak and the rule when a reference is refreshed.
#include <Eigen/Core>
#include <gdpo/update/polyak.hpp>
#include <gdpo/with/eigen.hpp>
#include <gdpo/with/thread_pool.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"

namespace polyak_test {

namespace {

using gdpo::index_t;
using namespace gdpo::update;

template <class T>
std::vector<T> random_numbers(Random& random, index_t n) {
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& v : x) gdpo::store(v, static_cast<gdpo::result_t<T>>(2 * random.uniform() - 1));
  return x;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
/// One unit in the last place of T at 1.
template <class T>
double unit() {
  if (std::is_same_v<T, double>) return 0x1p-52;
  if (std::is_same_v<T, float>) return 0x1p-23;
  return std::is_same_v<T, gdpo::Float16> ? 0x1p-10 : 0x1p-7;
}

template <class R, class P>
void check_types(Random& random) {
  for (const index_t n : {1, 7, 16, 33, 4096, 4100}) {
    const auto before = random_numbers<R>(random, n);
    const auto policy = random_numbers<P>(random, n);
    for (const double tau : {0.001, 0.25, 0.6, 0.999}) {
      auto reference = before;
      polyak({gdpo::view(reference)}, {gdpo::view(policy)}, tau);
      double worst = 0;
      for (std::size_t i = 0; i < before.size(); ++i) {
        const long double r = gdpo::load(before[i]), p = gdpo::load(policy[i]);
        const auto want = static_cast<double>(r + static_cast<long double>(tau) * (p - r));
        worst = std::max(worst, std::abs(gdpo::load(reference[i]) - want));
      }
      // Magnitudes are below 1, where a unit in the last place is half of unit<R>() at most; three
      // of them are promised.
      CHECK(worst <= 1.5 * unit<R>());
    }
    auto reference = before;
    polyak({gdpo::view(reference)}, {gdpo::view(policy)}, 0);
    CHECK(same_bits(reference, before));
    polyak({gdpo::view(reference)}, {gdpo::view(policy)}, 1);
    bool copied = true;
    for (std::size_t i = 0; i < before.size(); ++i) {
      R want;
      gdpo::store(want, gdpo::result_t<R>(gdpo::load(policy[i])));
      copied = copied && std::memcmp(&want, &reference[i], sizeof want) == 0;
    }
    CHECK(copied);
  }
}

}  // namespace

TEST_CASE("polyak: every storage of reference and policy") {
  const std::uint64_t seed = 30;
  INFO("seed " << seed);
  Random random(seed);
  check_types<double, double>(random);
  check_types<double, gdpo::BFloat16>(random);
  check_types<float, float>(random);
  check_types<float, double>(random);
  check_types<float, gdpo::BFloat16>(random);
  check_types<gdpo::BFloat16, float>(random);
  check_types<gdpo::BFloat16, gdpo::BFloat16>(random);
  check_types<gdpo::Float16, double>(random);
}

TEST_CASE("polyak: numbers by hand") {
  std::vector<double> reference{1, 2, 0, -4};
  const std::vector<double> policy{2, 2, 8, 4};
  polyak({gdpo::view(reference)}, {gdpo::view(policy)}, 0.25);
  CHECK(reference == std::vector<double>{1.25, 2, 2, -2});
  // n steps of a policy that stands still: policy + (1 - tau)^n (reference - policy).
  std::vector<double> x{1};
  const std::vector<double> still{3};
  for (int n = 0; n < 10; ++n) polyak({gdpo::view(x)}, {gdpo::view(still)}, 0.6);
  CHECK(x[0] == Approx(3 - 2 * std::pow(0.4, 10)).epsilon(1e-15));
}

TEST_CASE("polyak: equal elements stay, also infinities, and NaN spreads") {
  const double nan = std::nan(""), inf = gdpo::math::infinity;
  const auto run = [](auto r, auto p) {
    std::vector<decltype(r)> reference(20, r), policy(20, static_cast<decltype(r)>(p));
    polyak({gdpo::view(reference)}, {gdpo::view(policy)}, 0.3);
    bool all = true;
    for (const auto& v : reference) all = all && std::memcmp(&v, &reference[0], sizeof v) == 0;
    CHECK(all);
    return static_cast<double>(reference[0]);
  };
  for (const double x : {0.1, -0.1, 1e308, 5e-324, inf, -inf}) CHECK(run(x, x) == x);
  for (const float x : {0.1f, 3e38f, 1e-45f}) CHECK(run(x, x) == static_cast<double>(x));
  CHECK(std::signbit(run(-0.0, -0.0)));
  CHECK(std::isnan(run(inf, 1.0)));  // inf + 0.3 (1 - inf)
  CHECK(run(1.0, inf) == inf);
  CHECK(std::isnan(run(inf, -inf)));
  CHECK(std::isnan(run(1.0, nan)));
  CHECK(std::isnan(run(nan, 1.0)));
  CHECK(run(-1e308, 1.5e308) == inf);  // the difference is beyond the range
  // A weight of 0 leaves the reference alone, whatever the policy is.
  std::vector<double> reference{1, inf, -2};
  const std::vector<double> policy{nan, 1, -inf};
  polyak({gdpo::view(reference)}, {gdpo::view(policy)}, 0);
  CHECK(reference == std::vector<double>{1, inf, -2});
}

TEST_CASE("polyak: storage orders, strides and executions give the same bits") {
  const std::uint64_t seed = 31;
  INFO("seed " << seed);
  Random random(seed);
  using Rows = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Columns = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic>;
  Rows reference(70, 90), policy(70, 90);
  for (index_t i = 0; i < reference.size(); ++i) {
    reference.data()[i] = static_cast<float>(random.uniform());
    policy.data()[i] = static_cast<float>(random.uniform());
  }
  Rows want = reference;
  polyak(gdpo::seq, {gdpo::view(want)}, {gdpo::view(policy)}, 0.3);
  CHECK(!(want == reference).any());

  Columns other = reference;
  polyak({gdpo::view(other)}, {gdpo::view(policy)}, 0.3);  // the reference column by column
  CHECK((other == want).all());
  const Columns columns = policy;
  Rows third = reference;
  polyak({gdpo::view(third)}, {gdpo::view(columns)}, 0.3);  // the policy column by column
  CHECK((third == want).all());
  // Backwards, with gaps.
  Rows spread = Rows::Constant(70, 200, -5.0f);
  float* const last = spread.data() + 69 * 200 + 199;
  const gdpo::View<float, 2> backwards = gdpo::view(last, {70, 90}, {-200, -2});
  for (index_t i = 0; i < 70; ++i) {
    for (index_t j = 0; j < 90; ++j) backwards(i, j) = reference(i, j);
  }
  polyak({backwards}, {gdpo::view(columns)}, 0.3);
  bool same = true;
  for (index_t i = 0; i < 70; ++i) {
    for (index_t j = 0; j < 90; ++j) same = same && backwards(i, j) == want(i, j);
  }
  CHECK(same);
  CHECK((spread == -5.0f).count() == 70 * (200 - 90));

  gdpo::ThreadPool pool(3);
  const auto a = random_numbers<double>(random, 150001), b = random_numbers<double>(random, 150001);
  auto one = a, several = a;
  polyak(gdpo::simd, {gdpo::view(one)}, {gdpo::view(b)}, 0.7);
  polyak(gdpo::parallel(pool), {gdpo::view(several)}, {gdpo::view(b)}, 0.7);
  CHECK(same_bits(one, several));
}

TEST_CASE("polyak: refuses what does not fit, and writes nothing") {
  std::vector<double> r{1, 2, 3, 4}, other{1, 2, 3, 4};
  const std::vector<double> p{5, 6, 7, 8};
  const auto error = [&](const std::vector<ParameterView>& reference,
                         const std::vector<ParameterView>& policy, double tau) {
    const std::string message = message_of([&] { polyak(reference, policy, tau); });
    CHECK(r == other);
    return message;
  };
  const ParameterView vr = gdpo::view(r), vp = gdpo::view(p);
  const std::string f = "gdpo::update::polyak: ";
  CHECK(error({vr}, {vp}, 1.5) == f + "tau: given 1.5; needed: a number from 0 to 1");
  CHECK(error({vr}, {vp}, -0.1) ==
        f + "tau: given -0.10000000000000001; needed: a number from 0 to 1");
  CHECK(error({vr}, {vp}, std::nan("")) == f + "tau: given nan; needed: a number from 0 to 1");
  CHECK(error({vr}, {}, 0.5) ==
        f + "policy: given 0 arrays; needed: as many as the reference has, 1");
  CHECK(error({vr, gdpo::view(other.data(), 2, 2)}, {vp, gdpo::view(p.data(), 1, 4)}, 0.5) ==
        f + "policy[1]: given (1, 4); needed: (2, 2), the extents of the reference");
  CHECK(error({vr}, {gdpo::view(p.data(), 4, 1)}, 0.5) ==
        f + "policy[0]: given (4, 1); needed: (4), the extents of the reference");
  CHECK(error({vp}, {vr}, 0.5) ==
        f + "reference[0]: given a view of const elements; needed: one to write to");
  CHECK(error({vr, vr}, {vp, vp}, 0.5) ==
        f + "reference[1]: given memory of reference[0] again; needed: each array once, also "
            "where two layers share a weight");
  CHECK(error({vr}, {gdpo::view(static_cast<const double*>(nullptr), index_t{4})}, 0) ==
        f + "policy[0]: given a null pointer; needed: (4) elements");
  CHECK(error({vr}, {gdpo::view(std::as_const(r))}, 0.5) ==
        f + "policy[0]: given the memory of reference[0]; needed: a reference of its own, which is "
            "not the policy itself");
  // A policy may repeat elements, and nothing at all is no mistake.
  polyak({gdpo::view(r)}, {gdpo::view(p.data(), {4}, {0})}, 1);
  CHECK(r == std::vector<double>(4, 5));
  polyak({}, {}, 0.5);
}

TEST_CASE("polyak: a reference is due after every so many steps") {
  const Refresh rule{3, 0.5};
  std::vector<index_t> due;
  for (index_t step = 0; step <= 10; ++step) {
    if (rule.due(step)) due.push_back(step);
  }
  CHECK(due == std::vector<index_t>{3, 6, 9});
  CHECK_FALSE(Refresh{}.due(100));
  CHECK(message_of([] {
          (void)Refresh{-1, 1}.due(1);
        }) == "gdpo::update::Refresh: every: given -1; needed: at least 0 (0: never)");
}

}  // namespace polyak_test
