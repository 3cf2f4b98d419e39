// labels: lanes, sanitizers
// Masked means, moments and whitening against their formulas in long double, in every layout, with
// anything behind the mask.
#include "support/masked.hpp"

#include <cstdint>
#include <gdpo/advantages.hpp>
#include <gdpo/presets/nvlabs.hpp>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/tolerance.hpp"

namespace masked_test {

namespace {

using gdpo::index_t;
using masked::Data;
using masked::Table;
using Vector = std::vector<double>;
using Whiten = gdpo::Renorm;
using gdpo::renorm::token_weighted_batch;

template <class T>
constexpr typename Table<T>::Layout layouts[] = {
    Table<T>::Layout::RowMajor, Table<T>::Layout::ColumnMajor, Table<T>::Layout::Holes};
const double infinite = std::numeric_limits<double>::infinity();
const double poisons[] = {std::nan(""), infinite, -infinite, 1e38, -1e308};

gdpo::View<const double, 2> values_of(const Data& d) {
  return gdpo::view(d.values.data(), d.rows, d.width);
}
gdpo::View<const double, 2> mask_of(const Data& d) {
  return gdpo::view(d.mask.data(), d.rows, d.width);
}

Vector whiten(const Data& d, const Whiten& settings) {
  Vector out(d.values.size(), 42.0);
  gdpo::whiten_into(values_of(d), mask_of(d), settings, gdpo::view(out.data(), d.rows, d.width));
  return out;
}

/// Every result that the functions of gdpo/stats/masked.hpp and whiten_into give for one array.
template <class T, class M>
Vector everything(gdpo::View<T, 2> values, gdpo::View<M, 2> mask) {
  const gdpo::Moments m = gdpo::masked_moments(values, mask);
  Vector all{gdpo::masked_mean(values, mask),
             gdpo::masked_mean(values, mask, 0.5),
             gdpo::masked_mean_over(values, mask, 7),
             gdpo::masked_row_mean(values, mask, 1e-8),
             gdpo::masked_variance(values, mask),
             gdpo::masked_variance(values, mask, 0, 1e-8),
             static_cast<double>(m.n),
             m.weight,
             m.mean,
             m.mean_low,
             m.m2,
             m.min,
             m.max};
  const Vector rows = gdpo::masked_row_means(values, mask);
  all.insert(all.end(), rows.begin(), rows.end());
  const index_t height = values.extent[0], width = values.extent[1];
  Vector out(static_cast<std::size_t>(height * width), 42.0);
  for (const bool keep_mean : {false, true}) {
    gdpo::whiten_into(values, mask,
                      token_weighted_batch(1, 1e-4, gdpo::EpsAt::Std, 1e-8, keep_mean),
                      gdpo::view(out.data(), height, width));
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}
Vector everything(const Data& d) { return everything(values_of(d), mask_of(d)); }

}  // namespace

TEST_CASE("masked reductions of a few numbers", "[masked]") {
  const Vector x{1, 100, 3, 100, 100, 8};
  const std::vector<unsigned char> m{1, 0, 1, 0, 0, 1};
  const auto values = gdpo::view(x.data(), 2, 3);
  const auto mask = gdpo::view(m.data(), 2, 3);
  CHECK(gdpo::masked_mean(values, mask) == 4);
  CHECK(gdpo::masked_mean(values, mask, 1) == 3);
  CHECK(gdpo::masked_mean_over(values, mask, 24) == 0.5);
  CHECK(difference(gdpo::masked_row_means(values, mask), Vector{2, 8}) == "");
  CHECK(difference(gdpo::masked_row_means(values, mask, 2), Vector{1, 8.0 / 3}) == "");
  CHECK(gdpo::masked_row_mean(values, mask) == 5);
  CHECK(gdpo::masked_variance(values, mask) == 13);  // (9 + 1 + 16) / 2
  CHECK(gdpo::masked_variance(values, mask, 0) == 26.0 / 3);
  CHECK(gdpo::masked_variance(values, mask, 3) == 0);  // no degrees of freedom
  // Squares about 12 / (3 + 1) = 3: (4 + 0 + 25) / 4 * 3 / 2.
  CHECK(gdpo::masked_variance(values, mask, 1, 1) == 43.5 / 4);
  const gdpo::Moments moments = gdpo::masked_moments(values, mask);
  CHECK(moments.n == 3);
  CHECK(moments.weight == 3);
  CHECK(moments.mean == 4);
  CHECK(moments.m2 == 26);
  CHECK(moments.min == 1);
  CHECK(moments.max == 8);

  Vector out(6, 42.0);
  const auto target = gdpo::view(out.data(), 2, 3);
  gdpo::whiten_into(values, mask, token_weighted_batch(2, 0, gdpo::EpsAt::None), target);
  CHECK(difference(out, Vector{-3, 0, -1, 0, 0, 4}) == "");
  gdpo::whiten_into(values, mask, token_weighted_batch(1, 3, gdpo::EpsAt::Var),
                    target);  // times 1 / sqrt(13 + 3)
  CHECK(difference(out, Vector{-0.75, 0, -0.25, 0, 0, 1}) == "");
  gdpo::whiten_into(values, mask, token_weighted_batch(1, 3, gdpo::EpsAt::Var, 0, true), target);
  CHECK(difference(out, Vector{3.25, 0, 3.75, 0, 0, 5}) == "");
}

TEST_CASE("without a mask everything counts", "[masked]") {
  const Vector x{1, 2, 6, 3, 4, 8};
  const auto values = gdpo::view(x.data(), 2, 3);
  CHECK(gdpo::masked_mean(values) == 4);
  CHECK(gdpo::masked_mean(values, {}, 2) == 3);
  CHECK(gdpo::masked_mean(gdpo::view(x)) == 4);
  CHECK(gdpo::masked_mean_over(gdpo::view(x), {}, 48) == 0.5);
  CHECK(difference(gdpo::masked_row_means(values), Vector{3, 5}) == "");
  CHECK(gdpo::masked_row_mean(values) == 4);
  CHECK(gdpo::masked_variance(values, {}, 0) == 34.0 / 6);
  CHECK(gdpo::masked_moments(gdpo::view(x)).m2 == 34);
  Vector out(6, 42.0);
  gdpo::whiten_into(gdpo::view(x), {}, token_weighted_batch(1, 0, gdpo::EpsAt::None),
                    gdpo::view(out));
  CHECK(difference(out, Vector{-3, -2, 2, -1, 0, 4}) == "");
}

TEST_CASE("masked reductions against their formulas", "[masked]") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    const double offset = random.pick({0.0, 0.0, 3.0, 1e3});
    const Data d = masked::random_data(
        random, {random.below(7), random.below(10), random.pick({0.2, 0.7, 1.0}), offset});
    const Vector x = d.counted();
    const double count_eps = random.pick({0.0, 0.0, 1e-8, 0.5}), largest = offset + 2;
    INFO("seed " << seed << ", " << d.rows << " x " << d.width << ", " << x.size()
                 << " count, offset " << offset << ", count_eps " << count_eps);
    // At most 54 values: each addition rounds a partial sum of at most 54 `largest`, which the mean
    // divides by the count; the quotient rounds once more.
    const double mean_tolerance = 64 * tolerance::unit * largest;
    const auto close = [](double got, long double expected, double within) {
      return std::fabs(static_cast<long double>(got) - expected) <=
             static_cast<long double>(within);
    };
    CHECK(close(gdpo::masked_mean(values_of(d), mask_of(d), count_eps), masked::mean(x, count_eps),
                mean_tolerance));
    CHECK(close(gdpo::masked_mean_over(values_of(d), mask_of(d), 60), masked::sum(x) / 60,
                mean_tolerance));
    long double rows = 0;
    const Vector row_means = gdpo::masked_row_means(values_of(d), mask_of(d), count_eps);
    REQUIRE(row_means.size() == static_cast<std::size_t>(d.rows));
    for (index_t i = 0; i < d.rows; ++i) {
      const auto begin = static_cast<std::ptrdiff_t>(i * d.width), end = begin + d.width;
      const Data row{1, d.width, Vector(d.values.begin() + begin, d.values.begin() + end),
                     Vector(d.mask.begin() + begin, d.mask.begin() + end)};
      const long double mean = masked::mean(row.counted(), count_eps);
      CHECK(close(row_means[static_cast<std::size_t>(i)], mean, mean_tolerance));
      rows += mean;
    }
    CHECK(close(gdpo::masked_row_mean(values_of(d), mask_of(d), count_eps),
                d.rows > 0 ? rows / d.rows : 0, 2 * mean_tolerance));

    const int ddof = random.below(3);
    const long double variance = masked::variance(x, ddof, count_eps);
    // The error of two passes is relative to the variance. count_eps shifts the mean away from the
    // values, and that shift is rounded relative to the mean.
    const double shift = largest * count_eps;
    CHECK(
        close(gdpo::masked_variance(values_of(d), mask_of(d), ddof, count_eps), variance,
              128 * tolerance::unit * (static_cast<double>(variance) + shift * (largest + shift))));
  }
}

TEST_CASE("whitening against its formula, with every setting", "[masked]") {
  using gdpo::EpsAt;
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    Random random(seed);
    const double offset = random.pick({0.0, 3.0, 1e3});
    const Data d = masked::random_data(
        random, {1 + random.below(6), 1 + random.below(9), random.pick({0.3, 1.0}), offset});
    const Whiten settings{gdpo::RenormOver::Tokens,
                          random.below(3),
                          random.pick({0.0, 1e-8, 1e-4, 0.5}),
                          random.pick({EpsAt::Std, EpsAt::Var, EpsAt::ClampStd, EpsAt::ClampVar,
                                       EpsAt::None, EpsAt::StdOrOne}),
                          random.pick({0.0, 1e-8}),
                          random.chance(0.3)};
    const Vector x = d.counted();
    INFO("seed " << seed << ", " << x.size() << " count, ddof " << settings.ddof << ", eps "
                 << settings.eps << " at " << static_cast<int>(settings.eps_at) << ", count_eps "
                 << settings.count_eps << ", keep_mean " << settings.keep_mean);
    if (x.size() == 1 && settings.count_eps > 0)
      continue;  // the distance of one value from its mean is rounding noise
    const bool known = static_cast<int>(x.size()) > settings.ddof;
    const long double center = masked::mean(x, settings.count_eps);
    const long double k =
        x.size() == 1 && settings.eps_at != EpsAt::None && settings.eps_at != EpsAt::StdOrOne
            ? 0
            : masked::multiplier(masked::variance(x, settings.ddof, settings.count_eps),
                                 settings.eps, settings.eps_at, known);
    // The mean is rounded relative to the values, and k multiplies that error. The variance is
    // rounded relative to itself: for a value at most 4 standard deviations away that is 4
    // roundings.
    const double within = 64 * tolerance::unit * ((offset + 2) * (static_cast<double>(k) + 1) + 8);
    const Vector out = whiten(d, settings);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const long double expected = d.mask[i] == 0
                                       ? 0
                                       : (static_cast<long double>(d.values[i]) - center) * k +
                                             (settings.keep_mean ? center : 0.0L);
      if (d.mask[i] == 0 ? same_bits(out[i], 0)
                         : std::fabs(static_cast<long double>(out[i]) - expected) <=
                               static_cast<long double>(within)) {
        ++compared;
        continue;
      }
      CHECK(out[i] == static_cast<double>(expected));
    }
  }
  CHECK(compared > 5000);
}

TEST_CASE("every layout, rank and type of storage gives the same bits", "[masked]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const Data d = masked::random_data(random, {1 + random.below(6), 1 + random.below(9), 0.6});
    const Vector expected = everything(d);
    INFO("seed " << seed);
    for (const int l : {0, 1, 2}) {
      const Table<double> doubles(d.rows, d.width, layouts<double>[l], d.values);
      const Table<float> floats(d.rows, d.width, layouts<float>[l], d.values);
      const Table<std::uint8_t> bytes(d.rows, d.width, layouts<std::uint8_t>[2 - l], d.mask);
      const Table<std::int32_t> integers(d.rows, d.width, layouts<std::int32_t>[l], d.mask);
      Vector weights = d.mask;  // any number but 0 lets a token through, and it counts once
      for (double& w : weights) w = w == 0 ? -0.0 : random.pick({0.25, -3.0, infinite});
      const Table<float> fractions(d.rows, d.width, layouts<float>[l], weights);
      CHECK(difference(everything(doubles.view(), bytes.view()), expected) == "");
      CHECK(difference(everything(floats.view(), integers.view()), expected) == "");
      CHECK(difference(everything(floats.view(), fractions.view()), expected) == "");
    }
    // Rank 1 is one row, with any stride.
    const index_t n = d.rows * d.width;
    Vector backwards(d.values.rbegin(), d.values.rend());
    const gdpo::View<double, 1> reversed{backwards.data() + n - 1, {n}, {-1}};
    CHECK(same_bits(gdpo::masked_mean(reversed, gdpo::view(d.mask)), expected[0]));
    CHECK(same_bits(gdpo::masked_moments(reversed, gdpo::view(d.mask)).m2, expected[10]));
    Vector one(d.values.size());
    gdpo::whiten_into(reversed, gdpo::view(d.mask), token_weighted_batch(), gdpo::view(one));
    CHECK(difference(one, whiten(d, token_weighted_batch())) == "");
  }
}

TEST_CASE("16-bit values, a float result, in place", "[masked]") {
  const std::vector<gdpo::BFloat16> halves{{0x3f80}, {0x7fc0}, {0x4040}};  // 1, NaN, 3
  const std::vector<unsigned char> mask{1, 0, 1};
  CHECK(gdpo::masked_mean(gdpo::view(halves), gdpo::view(mask)) == 2);
  std::vector<float> x{1, std::nanf(""), 3};
  gdpo::whiten_into(gdpo::view(halves), gdpo::view(mask),
                    token_weighted_batch(1, 0, gdpo::EpsAt::None), gdpo::view(x));
  CHECK(x == std::vector<float>{-1, 0, 1});

  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    Data d = masked::random_data(random, {5, 8, 0.6});
    const Vector expected = whiten(d, token_weighted_batch());
    std::vector<float> narrow(d.values.size());
    gdpo::whiten_into(values_of(d), mask_of(d), token_weighted_batch(),
                      gdpo::view(narrow.data(), d.rows, d.width));
    for (std::size_t i = 0; i < narrow.size(); ++i)
      CHECK(same_bits(narrow[i], static_cast<float>(expected[i])));
    gdpo::whiten_into(values_of(d), mask_of(d), token_weighted_batch(),
                      gdpo::view(d.values.data(), d.rows, d.width));
    CHECK(difference(d.values, expected) == "");
  }
}

TEST_CASE("values are whitened by moments from elsewhere", "[masked]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Data d = masked::random_data(random, {5, 8, 0.6});
    const Whiten settings = token_weighted_batch(1, 1e-6, gdpo::EpsAt::Var);
    Vector out(d.values.size(), 42.0);
    const auto to = gdpo::view(out.data(), d.rows, d.width);
    const gdpo::Moments own = gdpo::masked_moments(values_of(d), mask_of(d));
    gdpo::whiten_into(values_of(d), mask_of(d), settings, own, to);
    CHECK(difference(out, whiten(d, settings)) == "");
    gdpo::Moments other;  // of 3 and 5, twice
    other.n = 4, other.weight = 4, other.mean = 4, other.m2 = 4, other.min = 3, other.max = 5;
    gdpo::whiten_into(values_of(d), mask_of(d), token_weighted_batch(0, 0, gdpo::EpsAt::None),
                      other, to);
    for (std::size_t k = 0; k < out.size(); ++k)
      CHECK(out[k] == (d.mask[k] != 0 ? d.values[k] - 4 : 0));
    CHECK(message_of([&] {
            gdpo::whiten_into(values_of(d), gdpo::view(d.mask.data(), d.width, d.rows), settings,
                              own, to);
          }) != "no error");
  }
}

TEST_CASE("poison behind the mask changes no bit", "[masked][poison]") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    Data d = masked::random_data(random, {1 + random.below(6), 1 + random.below(12), 0.5});
    const Vector expected = everything(d);
    INFO("seed " << seed);
    for (const double poison : poisons) {
      Data poisoned = d;
      for (std::size_t k = 0; k < d.values.size(); ++k) {
        if (d.mask[k] == 0) poisoned.values[k] = random.chance(0.7) ? poison : random.uniform();
      }
      CHECK(difference(everything(poisoned), expected) == "");
    }
  }
}

TEST_CASE("the order of summation is the stated one, and holes do not change it", "[masked]") {
  Random random(3);
  for (const index_t width : {1, 37, 4096, 5000}) {
    const index_t rows = 20000 / width;
    const Data d = masked::random_data(random, {rows, width, 0.6, 0.1});
    const Vector x = d.counted();
    const auto n = static_cast<index_t>(x.size());
    REQUIRE(n > 2 * 4096);
    INFO(rows << " x " << width);
    const double sum =
        gdpo::sum_rows<1>(gdpo::InRowOrder{}, x.data(), nullptr, n,
                          [](const auto& value, const auto&) { return std::array{value}; })[0];
    CHECK(same_bits(gdpo::masked_mean(values_of(d), mask_of(d)), sum / static_cast<double>(n)));
    CHECK(same_bits(gdpo::masked_mean_over(values_of(d), mask_of(d), 3), sum / 3));
    gdpo::Moments blocks;
    for (index_t begin = 0; begin < n; begin += 4096) {
      blocks = gdpo::merge(blocks, gdpo::moments_of(gdpo::InRowOrder{}, x.data() + begin, nullptr,
                                                    std::min<index_t>(4096, n - begin)));
    }
    const gdpo::Moments m = gdpo::masked_moments(values_of(d), mask_of(d));
    CHECK(same_bits(m.mean, blocks.mean));
    CHECK(same_bits(m.m2, blocks.m2));

    // The counted values packed without holes give the same bits.
    const gdpo::Moments packed = gdpo::masked_moments(gdpo::view(x));
    CHECK(same_bits(m.mean, packed.mean));
    CHECK(same_bits(m.mean_low, packed.mean_low));
    CHECK(same_bits(m.m2, packed.m2));
    CHECK(same_bits(gdpo::masked_mean(gdpo::view(x)), sum / static_cast<double>(n)));
    Vector out(x.size());
    gdpo::whiten_into(gdpo::view(x), gdpo::View<const bool, 1>{}, token_weighted_batch(),
                      gdpo::view(out));
    Data whitened = d;
    whitened.values = whiten(d, token_weighted_batch());
    CHECK(difference(whitened.counted(), out) == "");

    // The blocks are merged, so the error against long double is what merging promises.
    CHECK(std::fabs(m.mean - static_cast<double>(masked::mean(x))) <=
          tolerance::merge * std::fabs(m.mean));
    const double variance = static_cast<double>(masked::variance(x, 1));
    CHECK(std::fabs(gdpo::variance(m) - variance) <= 2 * tolerance::merge * variance);
  }
}

TEST_CASE("permuted rows", "[masked]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const Data d = masked::random_data(random, {9, 7, 0.6});
    std::vector<index_t> order{0, 1, 2, 3, 4, 5, 6, 7, 8};
    random.shuffle(order);
    Data p = d;
    for (std::size_t i = 0; i < 9; ++i) {
      for (std::size_t j = 0; j < 7; ++j) {
        p.values[i * 7 + j] = d.values[static_cast<std::size_t>(order[i]) * 7 + j];
        p.mask[i * 7 + j] = d.mask[static_cast<std::size_t>(order[i]) * 7 + j];
      }
    }
    const Vector rows = gdpo::masked_row_means(values_of(d), mask_of(d)),
                 whitened = whiten(d, token_weighted_batch());
    Vector moved_rows, moved;
    for (const index_t i : order) {
      const auto begin = whitened.begin() + i * 7;
      moved_rows.push_back(rows[static_cast<std::size_t>(i)]);
      moved.insert(moved.end(), begin, begin + 7);
    }
    INFO("seed " << seed);
    CHECK(difference(gdpo::masked_row_means(values_of(p), mask_of(p)), moved_rows) == "");
    // Only the order of the sums differs: at most 63 values below 2, and multipliers of order 1.
    CHECK(deviation(whiten(p, token_weighted_batch()), moved, 64 * 2 * tolerance::unit) == "");
    CHECK(std::fabs(gdpo::masked_mean(values_of(p), mask_of(p)) -
                    gdpo::masked_mean(values_of(d), mask_of(d))) <= 64 * 2 * tolerance::unit);
  }
}

TEST_CASE("nothing, all masked, one, NaN and inf that count", "[masked]") {
  for (const Data& d : {Data{0, 0, {}, {}}, Data{0, 5, {}, {}}, Data{3, 0, {}, {}},
                        Data{2, 2, {std::nan(""), 1, infinite, 5}, {0, 0, 0, 0}}}) {
    for (const double count_eps : {0.0, 1e-8}) {
      CHECK(same_bits(gdpo::masked_mean(values_of(d), mask_of(d), count_eps), 0));
      CHECK(same_bits(gdpo::masked_mean_over(values_of(d), mask_of(d), 3), 0));
      CHECK(same_bits(gdpo::masked_row_mean(values_of(d), mask_of(d), count_eps), 0));
      CHECK(same_bits(gdpo::masked_variance(values_of(d), mask_of(d), 0, count_eps), 0));
      CHECK(difference(gdpo::masked_row_means(values_of(d), mask_of(d), count_eps),
                       Vector(static_cast<std::size_t>(d.rows))) == "");
    }
    CHECK(gdpo::masked_moments(values_of(d), mask_of(d)).n == 0);
    for (const Whiten& s : {token_weighted_batch(), gdpo::verl::masked_whiten,
                            Whiten{gdpo::RenormOver::Tokens, 0, 0, gdpo::EpsAt::None, 0, true}}) {
      CHECK(difference(whiten(d, s), Vector(d.values.size())) == "");
    }
  }

  const Data one{2, 2, {7, 5, std::nan(""), infinite}, {0, 1, 0, 0}};
  CHECK(gdpo::masked_mean(values_of(one), mask_of(one)) == 5);
  // A row in which nothing counts still is a row.
  CHECK(gdpo::masked_row_mean(values_of(one), mask_of(one)) == 2.5);
  CHECK(gdpo::masked_variance(values_of(one), mask_of(one)) == 0);
  CHECK(gdpo::degenerate(gdpo::masked_moments(values_of(one), mask_of(one))));
  // The spread of one value is unknown: the multiplier is 0.
  CHECK(difference(whiten(one, token_weighted_batch()), Vector(4)) == "");
  CHECK(difference(whiten(one, token_weighted_batch(1, 0, gdpo::EpsAt::Std, 0, true)),
                   Vector{0, 5, 0, 0}) == "");

  for (const double bad : {std::nan(""), infinite, -infinite}) {
    const Data d{2, 3, {1, bad, 2, 4, 5, 6}, {1, 1, 1, 0, 1, 1}};
    CHECK(!std::isfinite(gdpo::masked_mean(values_of(d), mask_of(d))));
    CHECK(!std::isfinite(gdpo::masked_row_means(values_of(d), mask_of(d))[0]));
    CHECK(gdpo::masked_row_means(values_of(d), mask_of(d))[1] == 5.5);
    CHECK(gdpo::masked_moments(values_of(d), mask_of(d)).n == 5);
    CHECK(std::isnan(gdpo::masked_variance(values_of(d), mask_of(d))));
    for (const auto at :
         {gdpo::EpsAt::Std, gdpo::EpsAt::ClampVar, gdpo::EpsAt::None, gdpo::EpsAt::StdOrOne}) {
      const Vector out = whiten(d, token_weighted_batch(1, 1e-8, at));
      for (std::size_t k = 0; k < 6; ++k)
        CHECK((k == 3 ? same_bits(out[k], 0) : std::isnan(out[k])));
    }
  }
}

TEST_CASE("equal values are whitened to exactly 0", "[masked]") {
  using gdpo::EpsAt;
  for (const double value : {0.1, 3.3, -7.0, 1e5 + 0.1, 1e300}) {
    // 10000 values are several blocks, which are merged.
    for (const index_t n : {index_t{1}, index_t{2}, index_t{7}, index_t{100}, index_t{10000}}) {
      const Vector x(static_cast<std::size_t>(n), value);
      Vector out(x.size());
      INFO(n << " times " << value);
      CHECK(gdpo::degenerate(gdpo::masked_moments(gdpo::view(x))));
      for (const EpsAt at : {EpsAt::Std, EpsAt::Var, EpsAt::ClampStd, EpsAt::ClampVar, EpsAt::None,
                             EpsAt::StdOrOne}) {
        for (const double eps : {0.0, 1e-8}) {
          gdpo::whiten_into(gdpo::view(x), gdpo::View<const bool, 1>{},
                            token_weighted_batch(1, eps, at), gdpo::view(out));
          CHECK(all_zero(out));
        }
      }
    }
  }
}

TEST_CASE("moments of splits merge to those of the whole", "[masked]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const double offset = random.pick({0.0, 100.0});
    Data d = masked::random_data(
        random, {2 + random.below(40), 1 + random.below(300), random.pick({0.1, 0.8}), offset});
    if (random.chance(0.2)) std::fill(d.values.begin(), d.values.end(), 0.1);
    const gdpo::Moments whole = gdpo::masked_moments(values_of(d), mask_of(d));
    gdpo::Moments merged;
    for (index_t begin = 0; begin < d.rows;) {
      // Some parts are empty.
      const index_t n = std::min<index_t>(random.below(12), d.rows - begin);
      const auto first = static_cast<std::size_t>(begin * d.width);
      merged =
          gdpo::merge(merged, gdpo::masked_moments(gdpo::view(d.values.data() + first, n, d.width),
                                                   gdpo::view(d.mask.data() + first, n, d.width)));
      begin += n;
    }
    INFO("seed " << seed);
    CHECK(merged.n == whole.n);
    CHECK(merged.weight == whole.weight);
    CHECK(merged.min == whole.min);
    CHECK(merged.max == whole.max);
    CHECK(gdpo::degenerate(merged) == gdpo::degenerate(whole));
    CHECK(std::fabs(merged.mean - whole.mean) <= tolerance::merge * (offset + 2));
    CHECK(std::fabs(gdpo::stddev(merged) - gdpo::stddev(whole)) <=
          tolerance::merge * gdpo::stddev(whole));
  }
}

TEST_CASE("whitening broadcast rows is the token-weighted renormalization", "[masked]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    naive::Data rows = random_batch(random, 4, 6, 2, 0);
    const index_t width = 12;
    Vector mask;
    for (int i = 0; i < rows.rows; ++i) {
      const int tokens = random.below(static_cast<int>(width) + 1);
      rows.tokens.push_back(tokens);
      for (index_t t = 0; t < width; ++t) mask.push_back(t < tokens);
    }
    const auto groups = gdpo::by_id(rows.ids);
    gdpo::RewardBatch batch{gdpo::view(rows.rewards.data(), rows.rows, 2), groups};
    batch.tokens = gdpo::view(rows.tokens);
    const auto compare = [&](const auto& estimator) {
      Vector expected(mask.size()), got(mask.size());
      const auto tokens = gdpo::view(mask.data(), rows.rows, width);
      const auto target = gdpo::view(got.data(), rows.rows, width);
      const Vector whitened = gdpo::advantages(gdpo::seq, batch, estimator);
      const Vector raw = gdpo::advantages(gdpo::seq, batch, gdpo::before_renorm(estimator));
      gdpo::broadcast_into(gdpo::view(whitened), tokens,
                           gdpo::view(expected.data(), rows.rows, width));
      gdpo::broadcast_into(gdpo::view(raw), tokens, target);
      double k = 1;
      const double variance =
          gdpo::masked_variance(gdpo::view(got.data(), rows.rows, width), tokens);
      if (variance > 0) k = 1 / std::sqrt(variance);
      gdpo::whiten_into(target, tokens, estimator.renorm, target);
      INFO("seed " << seed << ", multiplier " << k);
      // The same formula on weighted rows and on tokens: their means differ by rounding, which the
      // multiplier scales.
      CHECK(deviation(got, expected, 512 * tolerance::unit * (1 + k)) == "");
    };
    compare(gdpo::verl::gdpo);
    compare(gdpo::nvlabs::verl_grpo_bn);
  }
}

TEST_CASE("every setting of the whitening reaches the numbers", "[masked]") {
  const Data d{1, 5, {1, 2, 4, 9, 5}, {1, 1, 1, 1, 0}};
  const Whiten base = token_weighted_batch(1, 0.5, gdpo::EpsAt::Std, 0.25);
  const auto changes = [&](const auto& change) {
    Whiten other = base;
    change(other);
    return difference(whiten(d, base), whiten(d, other)) != "";
  };
  CHECK(changes([](Whiten& w) { w.ddof = 0; }));
  CHECK(changes([](Whiten& w) { w.eps = 0.25; }));
  CHECK(changes([](Whiten& w) { w.eps_at = gdpo::EpsAt::Var; }));
  CHECK(changes([](Whiten& w) { w.count_eps = 0; }));
  CHECK(changes([](Whiten& w) { w.keep_mean = true; }));
}

TEST_CASE("mistakes in masked reductions", "[masked][errors]") {
  const Vector x(6, 1.0);
  Vector out(6, 42.0);
  const std::vector<unsigned char> m(6, 1);
  const auto values = gdpo::view(x.data(), 2, 3);
  const auto mask = gdpo::view(m.data(), 2, 3), transposed = gdpo::view(m.data(), 3, 2);
  const auto target = gdpo::view(out.data(), 2, 3);
  const std::string shape = ": mask: given (3, 2); needed: (2, 3), the shape of values";
  CHECK(message_of([&] { gdpo::masked_mean(values, transposed); }) == "gdpo::masked_mean" + shape);
  CHECK(message_of([&] { gdpo::masked_mean_over(values, transposed, 1); }) ==
        "gdpo::masked_mean_over" + shape);
  CHECK(message_of([&] { gdpo::masked_row_means(values, transposed); }) ==
        "gdpo::masked_row_means" + shape);
  CHECK(message_of([&] { gdpo::masked_row_mean(values, transposed); }) ==
        "gdpo::masked_row_mean" + shape);
  CHECK(message_of([&] { gdpo::masked_moments(values, transposed); }) ==
        "gdpo::masked_moments" + shape);
  CHECK(message_of([&] { gdpo::masked_variance(values, transposed); }) ==
        "gdpo::masked_variance" + shape);
  CHECK(message_of([&] {
          gdpo::whiten_into(values, transposed, token_weighted_batch(), target);
        }) == "gdpo::whiten_into" + shape);
  CHECK(message_of([&] {
          gdpo::whiten_into(values, mask, token_weighted_batch(), gdpo::view(out.data(), 2, 2));
        }) == "gdpo::whiten_into: out: given (2, 2); needed: (2, 3), the shape of values");
  CHECK(message_of([&] { gdpo::masked_mean(gdpo::view(x), gdpo::view(m.data(), 5)); }) ==
        "gdpo::masked_mean: mask: given (5); needed: (6), the shape of values");

  const std::string eps = "; needed: a finite number of at least 0";
  for (const auto& given : {std::pair{-1.0, "-1"}, {std::nan(""), "nan"}, {infinite, "inf"}}) {
    const double bad = given.first;
    const char* text = given.second;
    const std::string end = std::string(": given ") + text + eps;
    CHECK(message_of([&] { gdpo::masked_mean(values, mask, bad); }) ==
          "gdpo::masked_mean: count_eps" + end);
    CHECK(message_of([&] { gdpo::masked_row_means(values, mask, bad); }) ==
          "gdpo::masked_row_means: count_eps" + end);
    CHECK(message_of([&] { gdpo::masked_row_mean(values, mask, bad); }) ==
          "gdpo::masked_row_mean: count_eps" + end);
    CHECK(message_of([&] { gdpo::masked_variance(values, mask, 1, bad); }) ==
          "gdpo::masked_variance: count_eps" + end);
    CHECK(message_of([&] {
            gdpo::whiten_into(values, mask, token_weighted_batch(1, bad), target);
          }) == "gdpo::whiten_into: renorm.eps" + end);
    CHECK(message_of([&] {
            gdpo::whiten_into(values, mask, token_weighted_batch(1, 0, gdpo::EpsAt::Var, bad),
                              target);
          }) == "gdpo::whiten_into: renorm.count_eps" + end);
    CHECK(message_of([&] { gdpo::masked_mean_over(values, mask, bad); }) ==
          "gdpo::masked_mean_over: denominator: given " + std::string(text) +
              "; needed: a finite number greater than 0");
  }
  CHECK(message_of([&] { gdpo::masked_mean_over(values, mask, 0); }) ==
        "gdpo::masked_mean_over: denominator: given 0; needed: a finite number greater than 0");
  CHECK(message_of([&] { gdpo::masked_variance(values, mask, -1); }) ==
        "gdpo::masked_variance: ddof: given -1; needed: 0 (population) or more");
  CHECK(message_of([&] { gdpo::whiten_into(values, mask, token_weighted_batch(-2), target); }) ==
        "gdpo::whiten_into: renorm.ddof: given -2; needed: at least 0 (0: population)");
  CHECK(out == Vector(6, 42.0));
}

}  // namespace masked_test
