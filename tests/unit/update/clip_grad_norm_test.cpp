// labels: lanes, sanitizers
// clip_grad_norm: the norm against a sum in long double, what is written and what is not, the
// range of exponents, numbers that are not finite, and ranks.
#include <Eigen/Core>
#include <gdpo/update/clip_grad_norm.hpp>
#include <gdpo/with/eigen.hpp>
#include <gdpo/with/thread_pool.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/message.hpp"
#include "support/thread_ranks.hpp"

namespace clip_grad_norm_test {

namespace {

using gdpo::index_t;
using namespace gdpo::update;

/// Relative, for norms: sums of up to 1e5 squares in double, each off by 2^-53 of a partial sum.
constexpr double tolerance = 1e-12;

template <class T>
std::vector<T> random_numbers(Random& random, index_t n, double size = 1) {
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& v : x) gdpo::store(v, static_cast<gdpo::result_t<T>>(size * (2 * random.uniform() - 1)));
  return x;
}
/// The norm of all numbers of some vectors, in long double.
template <class... T>
double exact_norm(const std::vector<T>&... arrays) {
  long double sum = 0;
  const auto add = [&](const auto& array) {
    for (const auto& v : array) {
      const long double x = gdpo::load(v);
      sum += x * x;
    }
  };
  (add(arrays), ...);
  return static_cast<double>(std::sqrt(sum));
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
/// Each element times the scale, rounded once from double.
template <class T>
std::vector<T> scaled(std::vector<T> x, double scale) {
  for (T& v : x) gdpo::store(v, gdpo::result_t<T>(gdpo::load(v) * scale));
  return x;
}

template <class T>
void check_storage(Random& random) {
  for (const index_t n : {1, 2, 15, 16, 17, 100, 4095, 4096, 4097, 65535, 65536, 65537, 70000}) {
    CAPTURE(n);
    std::vector<T> x = random_numbers<T>(random, n), before = x;
    const double norm = exact_norm(x);
    const ClippedGradient c = clip_grad_norm({gdpo::view(x)}, 0.25 * norm);
    CHECK(c.norm == Approx(norm).epsilon(tolerance));
    CHECK(c.clipped);
    CHECK(c.take_step);
    CHECK(c.scale == 0.25 * norm / c.norm);
    CHECK(same_bits(x, scaled(before, c.scale)));
    before = x;
    CHECK_FALSE(clip_grad_norm({gdpo::view(x)}, norm).clipped);
    CHECK(same_bits(x, before));
    const double largest = clip_grad_norm({gdpo::view(x)}, gdpo::math::infinity, {Norm::Max}).norm;
    double most = 0;
    for (const T& v : x) most = std::max(most, std::abs(gdpo::load(v)));
    CHECK(largest == most);
    CHECK(same_bits(x, before));
  }
}

}  // namespace

TEST_CASE("clip_grad_norm: norm and scaled gradients of every storage") {
  const std::uint64_t seed = 20;
  INFO("seed " << seed);
  Random random(seed);
  check_storage<double>(random);
  check_storage<float>(random);
  check_storage<gdpo::Float16>(random);
  check_storage<gdpo::BFloat16>(random);
  check_storage<Eigen::half>(random);
  check_storage<Eigen::bfloat16>(random);
}

TEST_CASE("clip_grad_norm: the gradient is all arrays of a list together") {
  std::vector<float> w{3, 4};
  std::vector<double> b{12};
  std::vector<gdpo::BFloat16> none;
  const ClippedGradient c = clip_grad_norm({gdpo::view(w), gdpo::view(none), gdpo::view(b)}, 6.5);
  CHECK(c.norm == 13);
  CHECK(c.scale == 0.5);
  CHECK(w == std::vector<float>{1.5f, 2});
  CHECK(b == std::vector<double>{6});
  CHECK(c.nans + c.infinities == 0);
  CHECK(c.fault_rank == -1);
  CHECK(c.fault_array == -1);
  CHECK(c.differing_ranks == 0);

  // The largest magnitude, on the other hand, is one number.
  const ClippedGradient m = clip_grad_norm({gdpo::view(w), gdpo::view(b)}, 3, {Norm::Max});
  CHECK(m.norm == 6);
  CHECK(w == std::vector<float>{0.75f, 1});
  CHECK(b == std::vector<double>{3});
}

TEST_CASE("clip_grad_norm: any cut into arrays, any strides and storage orders") {
  const std::uint64_t seed = 21;
  INFO("seed " << seed);
  Random random(seed);
  for (int round = 0; round < 20; ++round) {
    // An array (a, b, c) with a gap after each element, filled backwards along some axes.
    index_t extent[3], stride[3], order[3] = {0, 1, 2}, next = 1 + random.below(2), first = 0;
    for (int k = 3; k-- > 1;) std::swap(order[k], order[random.below(k + 1)]);
    for (const index_t r : order) {
      extent[r] = 1 + random.below(9);
      stride[r] = next;
      next = next * extent[r] + random.below(3);
      if (!random.chance(0.3)) continue;
      first += stride[r] * (extent[r] - 1);
      stride[r] = -stride[r];
    }
    std::vector<float> memory(static_cast<std::size_t>(next + 1), std::nanf(""));
    const gdpo::View<float, 3> v = gdpo::view(memory.data() + first, extent, stride);
    std::vector<double> numbers;
    std::vector<float> dense;
    for (index_t i = 0; i < extent[0]; ++i) {
      for (index_t j = 0; j < extent[1]; ++j) {
        for (index_t k = 0; k < extent[2]; ++k) {
          v(i, j, k) = static_cast<float>(random.uniform());
          dense.push_back(v(i, j, k));
        }
      }
    }
    // Gaps hold NaN, which must neither be read nor written.
    const auto nans =
        std::count_if(memory.begin(), memory.end(), [](float x) { return std::isnan(x); });
    const double norm = exact_norm(dense);
    const ClippedGradient c = clip_grad_norm({v}, norm / 2);
    CHECK(c.norm == Approx(norm).epsilon(tolerance));
    CHECK(nans ==
          std::count_if(memory.begin(), memory.end(), [](float x) { return std::isnan(x); }));
    std::size_t at = 0;
    bool right = true;
    for (index_t i = 0; i < extent[0]; ++i) {
      for (index_t j = 0; j < extent[1]; ++j) {
        for (index_t k = 0; k < extent[2]; ++k)
          right = right && v(i, j, k) == static_cast<float>(double(dense[at++]) * c.scale);
      }
    }
    CHECK(right);
  }
  // An array in either storage order is walked as it stands in memory: the same bits.
  Eigen::Array<double, 40, 30, Eigen::RowMajor> rows;
  Eigen::Array<double, 40, 30> columns;
  for (index_t i = 0; i < rows.size(); ++i) columns.data()[i] = rows.data()[i] = random.uniform();
  CHECK(clip_grad_norm({gdpo::view(rows)}, 1).norm ==
        clip_grad_norm({gdpo::view(columns)}, 1).norm);
  CHECK((rows.reshaped<Eigen::RowMajor>() == columns.reshaped()).all());
  const double norm_of_rows = clip_grad_norm({gdpo::view(rows)}, 1).norm;
  CHECK(clip_grad_norm({gdpo::view(rows.data(), rows.size())}, 1).norm == norm_of_rows);

  // Cut into arrays of any lengths.
  const std::vector<float> whole = random_numbers<float>(random, 30000);
  const double norm = exact_norm(whole);
  for (int round = 0; round < 5; ++round) {
    std::vector<float> x = whole;
    std::vector<ParameterView> views;
    for (index_t i = 0, n; i < 30000; i += n) {
      n = (std::min)(index_t{random.below(9000)}, 30000 - i);
      views.emplace_back(gdpo::view(x.data() + i, n));
    }
    const ClippedGradient c = clip_grad_norm(views, 1);
    CHECK(c.norm == Approx(norm).epsilon(tolerance));
    CHECK(same_bits(x, scaled(whole, c.scale)));
  }
}

TEST_CASE("clip_grad_norm: seq, simd and parallel give the same bits") {
  Random random(22);
  const auto a = random_numbers<double>(random, 150001);
  const auto b = random_numbers<gdpo::BFloat16>(random, 70001);
  const auto run = [&](const auto& exec, const ClipSettings& settings) {
    auto x = a;
    auto y = b;
    const ClippedGradient c = clip_grad_norm(exec, {gdpo::view(x), gdpo::view(y)}, 0.5, settings);
    return std::tuple{c.norm, c.scale, x, scaled(y, 1)[70000].bits};
  };
  gdpo::ThreadPool pool(3);
  for (const Norm norm : {Norm::Two, Norm::Max}) {
    const auto want = run(gdpo::seq, {norm});
    CHECK(run(gdpo::simd, {norm}) == want);
    CHECK(run(gdpo::parallel(pool), {norm}) == want);
  }
}

TEST_CASE("clip_grad_norm: norms from 1e-320 to beyond 1e308") {
  const auto norm_of = [](std::vector<double> x) {
    return clip_grad_norm({gdpo::view(x)}, gdpo::math::infinity).norm;
  };
  for (const double size : {1e-300, 1e-200, 1e-160, 1e-155, 1e-150, 1e-140, 1e-100, 1.0, 1e100,
                            1e140, 1e160, 1e200, 1e307}) {
    CAPTURE(size);
    CHECK(norm_of({3 * size, -4 * size}) == Approx(5 * size).epsilon(1e-15));
    CHECK(norm_of(std::vector<double>(5000, size)) ==
          Approx(std::sqrt(5000) * size).epsilon(tolerance));
  }
  CHECK(norm_of({3e-320, 4e-320}) == Approx(5e-320).epsilon(1e-3));  // a subnormal number
  CHECK(norm_of({}) == 0);
  CHECK(norm_of({0, -0.0, 0}) == 0);
  // Ranges that stand side by side: the larger one decides, the next one still counts.
  CHECK(norm_of({1e200, 1e-200, 1}) == 1e200);
  CHECK(norm_of({0x1p501, 0x1p500 * 0.75, 0x1p-501}) ==
        Approx(0x1p500 * std::sqrt(4.5625)).epsilon(1e-15));
  CHECK(norm_of({0x1p-501 * 0.75, 0x1p-500}) ==
        Approx(0x1p-501 * std::sqrt(4.5625)).epsilon(1e-15));
  // Norms of whole chunks in different ranges.
  std::vector<double> mixed(5000, 0x1p501);
  for (std::size_t i = 4096; i < mixed.size(); ++i) mixed[i] = 0x1p490;
  CHECK(norm_of(mixed) == Approx(64 * 0x1p501).epsilon(1e-7));
  CHECK(norm_of(mixed) > 64 * 0x1p501);
  // Beyond the range of double the norm is infinite, but the gradient is not at fault.
  std::vector<double> huge{1.5e308, -1.5e308};
  const ClippedGradient c = clip_grad_norm({gdpo::view(huge)}, 1);
  CHECK(c.norm == gdpo::math::infinity);
  CHECK(c.infinities == 0);
  CHECK(c.take_step);
  CHECK(huge[0] == Approx(std::sqrt(0.5)).epsilon(1e-15));
  CHECK(huge[1] == -huge[0]);

  const auto clipped = [](std::vector<double> x, double bound) {
    clip_grad_norm({gdpo::view(x)}, bound);
    return x[0];
  };
  CHECK(clipped({1e-200, 1e-200}, 1e-201) == Approx(1e-201 * std::sqrt(0.5)).epsilon(1e-15));
  CHECK(clipped({1e-300, 1e-300}, 1e-301) == Approx(1e-301 * std::sqrt(0.5)).epsilon(1e-15));
  CHECK(clipped({3e200, 4e200}, 1) == Approx(0.6).epsilon(1e-15));
  // The scale is no normal double, or none at all, and its factors neither overflow nor underflow.
  // Each CHECK is of one number, so it bounds the relative error of two roundings.
  const auto scaled_to = [](std::vector<double> x, double bound, const ClipSettings& settings) {
    CHECK(clip_grad_norm({gdpo::view(x)}, bound, settings).take_step);
    return x[0];
  };
  for (const Norm norm : {Norm::Two, Norm::Max}) {
    const double root = norm == Norm::Two ? std::sqrt(2) : 1;
    for (const double size : {1e-300, 1e-100, 1.0, 1e100, 1e140, 1e170, 1e300, 1.5e308}) {
      for (const double bound : {1e-300, 1e-200, 1e-100, 1e-5, 0.5, 1e120, 1e130, 1e200, 1e299}) {
        if (!(bound < size)) continue;
        CAPTURE(size, bound);
        CHECK(scaled_to({size, size}, bound, {norm}) == Approx(bound / root).epsilon(1e-15));
        ClipSettings with_eps{norm};
        with_eps.eps = 0.25 * size;
        CHECK(scaled_to({size, size}, bound, with_eps) ==
              Approx(bound / (root + 0.25)).epsilon(1e-15));
      }
    }
  }
  ClipSettings large_eps;
  large_eps.eps = 1e200;
  CHECK(scaled_to({1e-200, 0}, 1e100, large_eps) == Approx(1e-300).epsilon(1e-15));
  std::vector<double> wide{1e300, -2e300, 1e-5};
  clip_grad_norm({gdpo::view(wide)}, 1e200);
  CHECK(wide[0] == Approx(1e200 / std::sqrt(5)).epsilon(1e-15));
  CHECK(wide[2] == Approx(1e-105 / std::sqrt(5)).epsilon(1e-15));

  std::vector<float> tiny{3e-45f, 3e-39f};
  CHECK(clip_grad_norm({gdpo::view(tiny)}, 1).norm == Approx(3e-39).epsilon(1e-5));
}

TEST_CASE("clip_grad_norm: bounds and eps") {
  const auto scale = [](double bound, double eps) {
    std::vector<double> x{3, 4};
    ClipSettings settings;
    settings.eps = eps;
    const ClippedGradient c = clip_grad_norm({gdpo::view(x)}, bound, settings);
    CHECK(x[0] == 3 * c.scale);
    CHECK(c.clipped == (c.scale != 1));
    return c.scale;
  };
  CHECK(scale(5, 0) == 1);
  CHECK(scale(std::nextafter(5, 6), 0) == 1);
  CHECK(scale(2.5, 0) == 0.5);
  CHECK(scale(gdpo::math::infinity, 0) == 1);
  // clip_grad_norm_ of PyTorch: max_norm / (norm + 1e-6), at most 1.
  CHECK(scale(1, 1e-6) == 1 / (5 + 1e-6));
  CHECK(scale(5, 1e-6) == 5 / (5 + 1e-6));
  CHECK(scale(5.1, 1e-6) == 1);
  // 0 makes all gradients 0, without signs.
  std::vector<double> x{-3, 4};
  CHECK(clip_grad_norm({gdpo::view(x)}, 0).scale == 0);
  CHECK(same_bits(x, {0, 0}));
  CHECK_FALSE(clip_grad_norm({gdpo::view(x)}, 0).clipped);
  CHECK(clip_grad_norm({}, 1).norm == 0);
}

TEST_CASE("clip_grad_norm: NaN and infinities") {
  const double nan = std::nan(""), inf = gdpo::math::infinity;
  for (const Norm norm : {Norm::Two, Norm::Max}) {
    const auto run = [&](OnNonFinite rule, std::vector<double>& a, std::vector<float>& b) {
      return clip_grad_norm({gdpo::view(a), gdpo::view(b)}, 1, {norm, rule});
    };
    std::vector<double> a{5, 6};
    std::vector<float> b(5000, 2.0f);
    b[4998] = static_cast<float>(-inf);
    const std::vector<float> before = b;
    ClippedGradient c = run(OnNonFinite::Skip, a, b);
    CHECK(c.norm == inf);
    CHECK_FALSE(c.take_step);
    CHECK_FALSE(c.clipped);
    CHECK(c.scale == 1);
    CHECK(c.infinities == 1);
    CHECK(c.nans == 0);
    CHECK(c.fault_array == 1);
    CHECK(c.fault_rank == 0);
    CHECK(a == std::vector<double>{5, 6});
    CHECK(same_bits(b, before));

    a[1] = nan, b[17] = static_cast<float>(nan);
    CHECK(message_of([&] { run(OnNonFinite::Throw, a, b); }) ==
          "gdpo::update::clip_grad_norm: gradients: given 2 NaN and 1 infinite elements, the first "
          "in gradients[0] of rank 0; needed: finite gradients, because on_non_finite is Throw");
    CHECK(a[0] == 5);
    c = run(OnNonFinite::Zero, a, b);
    CHECK(std::isnan(c.norm));
    CHECK(c.take_step);
    CHECK(c.scale == 0);
    CHECK(c.nans == 2);
    CHECK(c.infinities == 1);
    CHECK(c.fault_array == 0);
    CHECK(same_bits(a, {0, 0}));
    CHECK(same_bits(b, std::vector<float>(5000)));
  }
}

TEST_CASE("clip_grad_norm: shards and replicas on ranks are one gradient") {
  const std::uint64_t seed = 23;
  INFO("seed " << seed);
  Random random(seed);
  const auto shards = random_numbers<double>(random, 5000);
  const auto replica = random_numbers<double>(random, 700);
  const double norm = exact_norm(shards, replica);
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    std::vector<index_t> cut{0};
    for (int r = 1; r < ranks; ++r) cut.push_back(random.below(5001));
    std::sort(cut.begin(), cut.end());
    cut.push_back(5000);
    std::vector<double> whole = shards;
    std::vector<std::vector<double>> replicas(static_cast<std::size_t>(ranks), replica);
    std::vector<ClippedGradient> results(replicas.size());
    const auto thrown = test::on_ranks(ranks, [&](const auto& comm) {
      const auto r = static_cast<std::size_t>(comm.rank());
      results[r] = clip_grad_norm(gdpo::simd, comm,
                                  {replicated(gdpo::view(replicas[r])),
                                   gdpo::view(whole.data() + cut[r], cut[r + 1] - cut[r])},
                                  0.1 * norm);
    });
    CHECK(thrown == std::vector<std::string>(replicas.size()));
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK(results[r].norm == results[0].norm);
      CHECK(results[r].scale == results[0].scale);
      CHECK(results[r].differing_ranks == 0);
      CHECK(same_bits(replicas[r], scaled(replica, results[0].scale)));
    }
    CHECK(results[0].norm == Approx(norm).epsilon(tolerance));
    CHECK(same_bits(whole, scaled(shards, results[0].scale)));
  }
}

TEST_CASE("clip_grad_norm: faults and mistakes of one rank reach all ranks") {
  // What rank 1 of 3 passes, and what all ranks get.
  const auto run = [](auto change, ClipSettings settings = {}) {
    std::vector<ClippedGradient> results(3);
    std::vector<double> kept(3);
    const auto thrown = test::on_ranks(3, [&](const auto& comm) {
      const auto r = static_cast<std::size_t>(comm.rank());
      std::vector<double> a{3, 4}, b{12};
      double bound = 1;
      ClipSettings own = settings;
      std::vector<ParameterView> views{replicated(gdpo::view(a)), gdpo::view(b)};
      if (r == 1) change(views, a, b, bound, own);
      results[r] = clip_grad_norm(gdpo::seq, comm, views, bound, own);
      kept[r] = b[0];
    });
    for (const std::string& what : thrown) CHECK(what == thrown[0]);
    return std::tuple{results, kept, thrown[0]};
  };
  using Views = std::vector<ParameterView>;
  using Numbers = std::vector<double>;
  {
    const auto [results, kept, thrown] =
        run([](Views&, Numbers&, Numbers& b, double&, ClipSettings&) { b[0] = std::nan(""); });
    CHECK(thrown.empty());
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK_FALSE(results[r].take_step);
      CHECK(results[r].fault_rank == 1);
      CHECK(results[r].fault_array == 1);
      CHECK(results[r].nans == 1);
      CHECK(results[r].differing_ranks == 0);
      CHECK((r == 1 || kept[r] == 12));
    }
  }
  {  // Replicas of rank 1 have drifted away: its own counts for no norm, but is seen.
    const auto [results, kept, thrown] =
        run([](Views&, Numbers& a, Numbers&, double&, ClipSettings&) { a[0] = 100; });
    CHECK(results[2].norm == Approx(std::sqrt(25 + 3 * 144.0)).epsilon(1e-15));
    CHECK(results[0].differing_ranks == 1);
  }
  {  // A fault in a replica of rank 1 alone keeps all ranks from the step.
    const auto [results, kept, thrown] =
        run([](Views&, Numbers& a, Numbers&, double&, ClipSettings&) { a[0] = std::nan(""); });
    CHECK_FALSE(results[0].take_step);
    CHECK(results[0].nans == 1);
    CHECK(results[0].fault_rank == 1);
    CHECK(results[0].fault_array == 0);
    CHECK(kept[0] == 12);
  }
  {  // Ranks that hold the same arrays without marking them.
    const auto [results, kept, thrown] =
        run([](Views&, Numbers&, Numbers&, double&, ClipSettings&) {});
    CHECK(results[0].equal_ranks == 2);
    CHECK(results[0].norm == Approx(std::sqrt(25 + 3 * 144.0)).epsilon(1e-15));
  }
  {  // Replicas alone: no rank has a shard, so none is another's.
    std::vector<ClippedGradient> results(3);
    const auto thrown = test::on_ranks(3, [&](const auto& comm) {
      std::vector<double> a{3, 4};
      results[static_cast<std::size_t>(comm.rank())] =
          clip_grad_norm(gdpo::seq, comm, {replicated(gdpo::view(a))}, 1.0);
    });
    CHECK(thrown == std::vector<std::string>(3));
    for (const ClippedGradient& result : results) {
      CHECK(result.norm == 5);
      CHECK(result.equal_ranks == 0);
      CHECK(result.differing_ranks == 0);
    }
  }
  {  // Shards that differ, and a rank without any.
    const auto [results, kept, thrown] =
        run([](Views& v, Numbers&, Numbers&, double&, ClipSettings&) { v.pop_back(); });
    CHECK(results[0].equal_ranks == 1);
  }
  const auto error = [&](auto change, ClipSettings settings = {}) {
    return std::get<2>(run(change, settings));
  };
  CHECK(error([](Views& v, Numbers&, Numbers&, double&, ClipSettings&) {
          v[1] = gdpo::View<const double, 1>{nullptr, {3}, {1}};
        }) ==
        "gdpo::update::clip_grad_norm: rank 1 of 3: gradients[1]: given a null pointer; needed: "
        "(3) elements");
  CHECK(error([](Views&, Numbers&, Numbers&, double& bound, ClipSettings&) { bound = 2; }) ==
        "gdpo::update::clip_grad_norm: settings: given ... 1, update::ClipSettings{norm=two, "
        "on_non_finite=skip, eps=0} on rank 0 and ... 2, update::ClipSettings{norm=two, "
        "on_non_finite=skip, eps=0} on rank 1; needed: the same settings on all ranks");
  CHECK(error([](Views& v, Numbers&, Numbers&, double&, ClipSettings&) { v.erase(v.begin()); }) ==
        "gdpo::update::clip_grad_norm: gradients: given 2 replicated elements on rank 0 and 0 "
        "replicated elements on rank 1; needed: the same replicated arrays on all ranks");
  ClipSettings settings;
  settings.on_non_finite = OnNonFinite::Throw;
  CHECK(error([](Views&, Numbers&, Numbers& b, double&,
                 ClipSettings&) { b[0] = gdpo::math::infinity; },
              settings) ==
        "gdpo::update::clip_grad_norm: gradients: given 0 NaN and 1 infinite elements, the first "
        "in gradients[1] of rank 1; needed: finite gradients, because on_non_finite is Throw");
}

TEST_CASE("clip_grad_norm: refuses what it cannot clip, and writes nothing") {
  std::vector<double> a{3, 4}, b{12};
  const auto error = [&](const std::vector<ParameterView>& views, double bound,
                         const ClipSettings& settings = {}) {
    const std::string message = message_of([&] { clip_grad_norm(views, bound, settings); });
    CHECK(a == std::vector<double>{3, 4});
    CHECK(b == std::vector<double>{12});
    const std::string start = "gdpo::update::clip_grad_norm: ";
    CHECK(message.substr(0, start.size()) == start);
    return message.substr((std::min)(start.size(), message.size()));
  };
  const ParameterView va = gdpo::view(a), vb = gdpo::view(b);
  CHECK(error({va}, -1) == "max_norm: given -1; needed: a number of at least 0");
  CHECK(error({va}, std::nan("")) == "max_norm: given nan; needed: a number of at least 0");
  ClipSettings settings;
  settings.eps = -1e-6;
  CHECK(error({va}, 1, settings) ==
        "eps: given -9.9999999999999995e-07; needed: a finite number of at least 0");
  CHECK(error({va}, 1, {static_cast<Norm>(7)}) ==
        "norm: given 7, which is no enumerator; needed: one of two, max");
  CHECK(error({va}, 1, {Norm::Max, static_cast<OnNonFinite>(3)}) ==
        "on_non_finite: given 3, which is no enumerator; needed: one of skip, zero, throw");
  settings.eps = gdpo::math::infinity;
  CHECK(error({va}, 1, settings) == "eps: given inf; needed: a finite number of at least 0");
  CHECK(error({vb, gdpo::view(std::as_const(a))}, 1) ==
        "gradients[1]: given a view of const elements; needed: one to write to");
  CHECK(error({vb, gdpo::view(a.data(), {2, 3}, {1, 0})}, 1) ==
        "gradients[1]: given strides (1, 0) for shape (2, 3), which repeat elements; needed: an "
        "element of its own for each index, because it is written");
  CHECK(error({va, vb, va}, 1) ==
        "gradients[2]: given memory of gradients[0] again; needed: each array once, also where "
        "two layers share a weight");
  std::vector<double> long_one(10, 1);
  double* const p = long_one.data();
  const auto overlap = [&](const std::vector<ParameterView>& views) {
    return message_of([&] { clip_grad_norm(views, 1); });
  };
  const std::string once = "each array once, also where two layers share a weight";
  CHECK(overlap({gdpo::view(p, index_t{8}), va, gdpo::view(p + 2, index_t{2})}) ==
        "gdpo::update::clip_grad_norm: gradients[2]: given memory of gradients[0] again; needed: " +
            once);
  CHECK(overlap({gdpo::view(p + 4, 2, 3), gdpo::view(p + 1, index_t{2}), gdpo::view(p, 5, 1)}) ==
        "gdpo::update::clip_grad_norm: gradients[2]: given memory of gradients[1] again; needed: " +
            once);
  CHECK(long_one == std::vector<double>(10, 1));
  CHECK(overlap({gdpo::view(p, index_t{8}), gdpo::view(p + 1, {2}, {3}),
                 gdpo::view(p + 4, index_t{2})}) ==
        "gdpo::update::clip_grad_norm: gradients[2]: given memory of gradients[0] again; needed: " +
            once);
  CHECK(long_one == std::vector<double>(10, 1));
  // Neighbors do not overlap, and columns of one matrix may interleave.
  CHECK(overlap({gdpo::view(p, index_t{5}), gdpo::view(p + 5, index_t{5})}) == "no error");
  CHECK(overlap({gdpo::view(p, {5}, {2}), gdpo::view(p + 1, {5}, {2})}) == "no error");
  CHECK(error({gdpo::view(a.data(), index_t{-1})}, 1) ==
        "gradients[0]: given (-1); needed: extents of at least 0");
  CHECK(error({gdpo::view(static_cast<float*>(nullptr), 2, 2)}, 1) ==
        "gradients[0]: given a null pointer; needed: (2, 2) elements");
  // An array of one element, or of none, may have any strides.
  CHECK(clip_grad_norm({gdpo::view(b.data(), {1, 1}, {0, 0}), gdpo::view(a.data(), {0}, {0})}, 100)
            .norm == 12);
}

}  // namespace clip_grad_norm_test
