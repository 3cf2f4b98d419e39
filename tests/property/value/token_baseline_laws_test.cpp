// labels: lanes
// Laws of optimal_token_baseline_into: the definition in long double, exact zeros, groups of one,
// and that neither layout, padding, masked numbers, executions nor the order of rows change a bit.
#include <cstring>
#include <gdpo/advantages.hpp>
#include <gdpo/logits.hpp>
#include <gdpo/value/optimal_token_baseline.hpp>
#include <numeric>

#include "reference/naive_token_baseline.hpp"
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/generators.hpp"

namespace token_baseline_laws_test {

namespace {

using gdpo::BaselineMembers, gdpo::BaselinePlace, gdpo::BaselineTail;
using gdpo::index_t, gdpo::OptimalTokenBaseline;
using Numbers = std::vector<double>;

constexpr int seeds = few_rounds ? 40 : 300;

/// A batch, row after row. Float holds all numbers.
struct Data {
  index_t rows = 0, width = 0;
  Numbers returns, logp, squares, weights;  // weights may be empty
  std::vector<unsigned char> mask;
  std::vector<int> ids;

  std::size_t at(index_t i, index_t t) const { return static_cast<std::size_t>(i * width + t); }
};

Data random_data(Random& random, int groups, int largest, int width) {
  Data d;
  d.width = width;
  for (int g = 0; g < groups; ++g)
    d.ids.insert(d.ids.end(), static_cast<std::size_t>(1 + random.below(largest)), g);
  d.rows = static_cast<index_t>(d.ids.size());
  const bool weighed = random.chance(0.5), holes = random.chance(0.5);
  const auto number = [&](double from, double to) {
    return std::floor((from + (to - from) * random.uniform()) * 256) / 256;
  };
  for (index_t i = 0; i < d.rows; ++i) {
    const int length = random.chance(0.1) ? 0 : 1 + random.below(width);
    for (int t = 0; t < width; ++t) {
      d.mask.push_back(t < length && !(holes && random.chance(0.3)));
      d.returns.push_back(number(-2, 2));
      d.logp.push_back(number(-3, -0.125));
      // The other words have between nothing and one word's share of the rest.
      const double pi = std::exp(d.logp.back()), rest = random.uniform() * (1 - pi) * (1 - pi);
      d.squares.push_back(static_cast<double>(static_cast<float>(pi * pi + rest)));
      if (weighed) d.weights.push_back(number(0, 2));
    }
  }
  return d;
}

OptimalTokenBaseline random_settings(Random& random) {
  OptimalTokenBaseline s;
  s.eps = random.pick({0.0, 1e-8, 0.5});
  s.place = random.pick({BaselinePlace::Column, BaselinePlace::Ordinal});
  s.members = random.pick({BaselineMembers::All, BaselineMembers::NonEmpty});
  s.tail = random.pick({BaselineTail::Cancel, BaselineTail::Raw});
  return s;
}

template <class S>
std::vector<S> stored(const Numbers& x) {
  return std::vector<S>(x.begin(), x.end());
}

/// The advantages of padded arrays.
template <class S, class Exec, class Groups>
Numbers padded(const Exec& exec, const Data& d, const Groups& groups,
               const OptimalTokenBaseline& settings) {
  const auto returns = stored<S>(d.returns), logp = stored<S>(d.logp),
             squares = stored<S>(d.squares), weights = stored<S>(d.weights);
  gdpo::TokenBaselineBatch<S> b;
  b.returns = gdpo::view(returns.data(), d.rows, d.width);
  b.logp = gdpo::view(logp.data(), d.rows, d.width);
  b.sum_pi_squared = gdpo::view(squares.data(), d.rows, d.width);
  if (!weights.empty()) b.weights = gdpo::view(weights.data(), d.rows, d.width);
  b.mask = gdpo::view(d.mask.data(), d.rows, d.width);
  std::vector<S> out(d.mask.size(), S(42));
  gdpo::TokenBaselineWorkspace<S> workspace;
  gdpo::optimal_token_baseline_into(exec, b, groups, settings,
                                    gdpo::view(out.data(), d.rows, d.width), workspace);
  return Numbers(out.begin(), out.end());
}

/// Those of arrays packed up to the last valid token of each row, the inputs as double, every
/// other element of an array.
Numbers packed(const Data& d, const std::vector<int>& ids, const OptimalTokenBaseline& settings) {
  std::vector<index_t> offsets{0};
  std::vector<std::size_t> place;
  for (index_t i = 0; i < d.rows; ++i) {
    index_t length = d.width;
    while (length > 0 && d.mask[d.at(i, length - 1)] == 0) --length;
    for (index_t t = 0; t < length; ++t) place.push_back(d.at(i, t));
    offsets.push_back(static_cast<index_t>(place.size()));
  }
  const auto n = static_cast<index_t>(place.size());
  const auto take = [&](const Numbers& x) {
    Numbers tokens(2 * place.size() + 1, std::nan(""));
    for (std::size_t k = 0; k < place.size() && !x.empty(); ++k) tokens[2 * k] = x[place[k]];
    return tokens;
  };
  const Numbers returns = take(d.returns), logp = take(d.logp), squares = take(d.squares),
                weights = take(d.weights);
  std::vector<unsigned char> mask(place.size() + 1);
  for (std::size_t k = 0; k < place.size(); ++k) mask[k] = d.mask[place[k]];
  const auto strided = [n](const Numbers& x) {
    return gdpo::View<const double, 1>{x.data(), {n}, {2}};
  };
  gdpo::TokenBaselineBatch<double> b;
  b.returns = strided(returns), b.logp = strided(logp), b.sum_pi_squared = strided(squares);
  if (!d.weights.empty()) b.weights = strided(weights);
  b.mask = gdpo::view(mask.data(), n), b.offsets = gdpo::view(offsets);
  Numbers out(place.size() + 1, 42), all(d.mask.size(), 0);
  gdpo::optimal_token_baseline_into(b, gdpo::by_id(ids), settings, gdpo::view(out.data(), n));
  for (std::size_t k = 0; k < place.size(); ++k) all[place[k]] = out[k];
  return all;
}

bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

std::vector<long double> wanted(const Data& d, const OptimalTokenBaseline& s) {
  std::vector<long double> all(d.mask.size(), 0);
  const naive::TokenBaselineSettings settings{s.eps, s.place == BaselinePlace::Ordinal,
                                              s.members == BaselineMembers::All,
                                              s.tail == BaselineTail::Raw};
  for (int id = 0; id <= d.ids.back(); ++id) {
    std::vector<naive::TokenBaselineRow> group;
    std::vector<index_t> rows;
    for (index_t i = 0; i < d.rows; ++i) {
      if (d.ids[static_cast<std::size_t>(i)] != id) continue;
      rows.push_back(i);
      naive::TokenBaselineRow row;
      const auto part = [&](const Numbers& x) {
        std::vector<long double> of_row;
        for (index_t t = 0; t < d.width && !x.empty(); ++t) of_row.push_back(x[d.at(i, t)]);
        return of_row;
      };
      row.returns = part(d.returns), row.logp = part(d.logp), row.weights = part(d.weights);
      row.sum_pi_squared = part(d.squares);
      for (index_t t = 0; t < d.width; ++t) row.valid.push_back(d.mask[d.at(i, t)] != 0);
      group.push_back(row);
    }
    const auto advantages = naive::optimal_token_baseline(group, settings);
    for (std::size_t k = 0; k < rows.size(); ++k) {
      for (index_t t = 0; t < d.width; ++t)
        all[d.at(rows[k], t)] = advantages[k][static_cast<std::size_t>(t)];
    }
  }
  return all;
}

/// Runs check(data, settings) with the seeds.
template <class Check>
void with_seeds(std::uint64_t first, const Check& check) {
  for (int seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    Random random(first + static_cast<std::uint64_t>(seed));
    const Data d = random_data(random, 1 + random.below(4), 5, 1 + random.below(20));
    check(random, d, random_settings(random));
  }
}

}  // namespace

TEST_CASE("token baseline: the definition in long double", "[value]") {
  with_seeds(0, [](Random&, const Data& d, const OptimalTokenBaseline& s) {
    const auto expected = wanted(d, s);
    const Numbers one = padded<double>(gdpo::seq, d, gdpo::by_id(d.ids), s),
                  single = padded<float>(gdpo::seq, d, gdpo::by_id(d.ids), s);
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      INFO("token " << k);
      if (d.mask[k] == 0) {
        REQUIRE(gdpo::math::bits_of(one[k]) == 0);
        continue;
      }
      // |G| <= 2. w is at least (1 - e^-0.125)^2 > 2^-7 of the three numbers that make it up, each
      // within 2^-52: all W are within 2^-43 of themselves, B is their mean of at most 20 rows.
      REQUIRE(std::fabs(static_cast<double>(one[k] - expected[k])) <= 0x1p-40);
      REQUIRE(single[k] == static_cast<double>(static_cast<float>(one[k])));
    }
  });
}

TEST_CASE("token baseline: all executions and layouts have the same bits", "[value]") {
  with_seeds(1000, [](Random&, const Data& d, const OptimalTokenBaseline& s) {
    const auto groups = gdpo::by_id(d.ids);
    const Numbers one = padded<double>(gdpo::seq, d, groups, s);
    CHECK(same_bits(padded<double>(gdpo::simd, d, groups, s), one));
    CHECK(same_bits(packed(d, d.ids, s), one));
    CHECK(
        same_bits(padded<float>(gdpo::simd, d, groups, s), padded<float>(gdpo::seq, d, groups, s)));
  });
  Random random(5);
  const Data d = random_data(random, 60, 16, 200);  // enough for several workers
  REQUIRE(d.rows * d.width > 2 * gdpo::detail::worth_a_thread);
  const auto groups = gdpo::by_id(d.ids);
  const OptimalTokenBaseline s{1e-8, BaselinePlace::Ordinal, {}, BaselineTail::Raw};
  const Numbers one = padded<double>(gdpo::seq, d, groups, s);
  executors::for_each_target([&](const auto& exec, const std::string& name) {
    INFO(name);
    CHECK(same_bits(padded<double>(exec, d, groups, s), one));
  });
}

TEST_CASE("token baseline: groups by id do not depend on the order of the rows", "[value]") {
  with_seeds(2000, [](Random& random, const Data& d, const OptimalTokenBaseline& s) {
    std::vector<index_t> order(static_cast<std::size_t>(d.rows));
    std::iota(order.begin(), order.end(), index_t{0});
    random.shuffle(order);
    Data moved = d;
    for (index_t i = 0; i < d.rows; ++i) {
      const index_t source = order[static_cast<std::size_t>(i)];
      moved.ids[static_cast<std::size_t>(i)] = 100 - d.ids[static_cast<std::size_t>(source)];
      for (index_t t = 0; t < d.width; ++t) {
        const std::size_t to = d.at(i, t), from = d.at(source, t);
        moved.mask[to] = d.mask[from], moved.returns[to] = d.returns[from];
        moved.logp[to] = d.logp[from], moved.squares[to] = d.squares[from];
        if (!d.weights.empty()) moved.weights[to] = d.weights[from];
      }
    }
    const Numbers one = padded<double>(gdpo::seq, d, gdpo::by_id(d.ids), s),
                  other = padded<double>(gdpo::seq, moved, gdpo::by_id(moved.ids), s);
    for (index_t i = 0; i < d.rows; ++i) {
      for (index_t t = 0; t < d.width; ++t) {
        REQUIRE(gdpo::math::bits_of(other[d.at(i, t)]) ==
                gdpo::math::bits_of(one[d.at(order[static_cast<std::size_t>(i)], t)]));
      }
    }
  });
}

TEST_CASE("token baseline: groups of rows that follow one another are alike", "[value]") {
  with_seeds(3000, [](Random&, Data d, const OptimalTokenBaseline& s) {
    std::sort(d.ids.begin(), d.ids.end());
    std::vector<index_t> offsets{0};
    for (index_t i = 1; i <= d.rows; ++i) {
      const auto k = static_cast<std::size_t>(i);
      if (i == d.rows || d.ids[k] != d.ids[k - 1]) offsets.push_back(i);
    }
    const Numbers rows = padded<double>(gdpo::simd, d, gdpo::by_offsets(offsets), s),
                  ids = padded<double>(gdpo::simd, d, gdpo::by_id(d.ids), s);
    for (std::size_t k = 0; k < rows.size(); ++k)
      REQUIRE(std::fabs(rows[k] - ids[k]) <= 0x1p-48);  // at most 20 additions of numbers below 2^6
    Data one = d;
    const std::vector<index_t> all{0, d.rows};
    CHECK(same_bits(padded<double>(gdpo::simd, one, gdpo::groups_of(d.rows), s),
                    padded<double>(gdpo::simd, one, gdpo::by_offsets(all), s)));
  });
}

TEST_CASE("token baseline: what the mask hides changes no bit", "[value]") {
  with_seeds(4000, [](Random& random, const Data& d, const OptimalTokenBaseline& s) {
    Data poisoned = d;
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (d.mask[k] != 0) continue;
      for (Numbers* x : {&poisoned.returns, &poisoned.logp, &poisoned.squares, &poisoned.weights}) {
        if (!x->empty())
          (*x)[k] = random.pick({std::nan(""), gdpo::math::infinity, -gdpo::math::infinity, 1e38});
      }
    }
    const auto groups = gdpo::by_id(d.ids);
    CHECK(same_bits(padded<double>(gdpo::simd, poisoned, groups, s),
                    padded<double>(gdpo::simd, d, groups, s)));
  });
}

TEST_CASE("token baseline: a group of one keeps its returns, equal returns give exactly 0",
          "[value]") {
  with_seeds(5000, [](Random& random, Data d, OptimalTokenBaseline s) {
    const Numbers alone = padded<double>(gdpo::simd, d, gdpo::groups_of(1), s);
    for (std::size_t k = 0; k < d.mask.size(); ++k)
      REQUIRE(alone[k] == (d.mask[k] != 0 ? d.returns[k] : 0.0));
    // Every row of a group has the returns of its first row, also where a sum of them rounds.
    s.eps = 0, s.tail = BaselineTail::Cancel, s.place = BaselinePlace::Column;
    s.members = BaselineMembers::All;
    const double value = random.pick({0.1, -0.7, 1e-300, 3e300});
    std::fill(d.returns.begin(), d.returns.end(), value);
    d.ids.push_back(d.ids.back()), ++d.rows;  // no group is without company there
    for (Numbers* x : {&d.returns, &d.logp, &d.squares, &d.weights}) {
      if (!x->empty()) x->insert(x->end(), x->end() - d.width, x->end());
    }
    d.mask.insert(d.mask.end(), d.mask.end() - d.width, d.mask.end());
    const Numbers equal = padded<double>(gdpo::simd, d, gdpo::by_id(d.ids), s);
    for (index_t i = 0; i < d.rows; ++i) {
      const auto id = d.ids[static_cast<std::size_t>(i)];
      if (std::count(d.ids.begin(), d.ids.end(), id) < 2) continue;
      for (index_t t = 0; t < d.width; ++t) REQUIRE(equal[d.at(i, t)] == 0);
    }
  });
}

TEST_CASE("token baseline: the sum of squared probabilities, from logits at two temperatures",
          "[value][logits]") {
  Random random(7);
  constexpr index_t rows = 20, words = 50;
  std::vector<float> logits;
  for (int k = 0; k < rows * words; ++k)
    logits.push_back(static_cast<float>(8 * random.uniform() - 4));
  const std::vector<std::int64_t> targets(rows, 0);
  const auto logsumexp = [&](double temperature) {
    gdpo::LogitBatch<float, 2> batch;
    batch.logits = gdpo::view(logits.data(), rows, words);
    batch.targets = gdpo::view(targets), batch.temperature = temperature;
    return gdpo::token_logprobs(batch).logsumexp;
  };
  const Numbers whole = logsumexp(0.7), half = logsumexp(0.35);
  for (index_t i = 0; i < rows; ++i) {
    long double sum = 0, squares = 0;
    for (index_t v = 0; v < words; ++v) {
      const long double e = std::exp(logits[static_cast<std::size_t>(i * words + v)] / 0.7L);
      sum += e, squares += e * e;
    }
    const auto k = static_cast<std::size_t>(i);
    const double got = std::exp(half[k] - 2 * whole[k]);
    // The sums of a row are of float: 50 terms, each within a few units of 2^-24.
    CHECK(std::fabs(got - static_cast<double>(squares / sum / sum)) <= 200 * 0x1p-24 * got);
  }
}

TEST_CASE("token baseline: constant weights give the mean of the returns at a position",
          "[value]") {
  // Two certain policies of equal w: the baseline is the mean, whatever the common scale of w is.
  Data d{2, 2, {1, 2, 4, 8}, {0, 0, 0, 0}, {2, 2, 2, 2}, {}, {1, 1, 1, 1}, {0, 0}};
  const Numbers a = padded<double>(gdpo::seq, d, gdpo::groups_of(2), {});
  CHECK(a == Numbers{-1.5, -3, 1.5, 3});
  d.squares = {5, 5, 2, 2};  // w = 4 and 1
  CHECK(padded<double>(gdpo::seq, d, gdpo::groups_of(2), {}) ==
        Numbers{1 - 8.0 / 5, 2 - 16.0 / 5, 4 - 8.0 / 5, 8 - 16.0 / 5});
  d.squares = {1, 1, 1, 1};  // every token is certain: no weight at all
  CHECK(padded<double>(gdpo::seq, d, gdpo::groups_of(2), {}) == d.returns);
  d.returns = {3, 2, 3, 8};  // equal ones are their own baseline all the same, without eps
  CHECK(padded<double>(gdpo::seq, d, gdpo::groups_of(2), {}) == Numbers{0, 2, 0, 8});
  CHECK(padded<double>(gdpo::seq, d, gdpo::groups_of(2), {0.5}) == d.returns);
}

TEST_CASE("token baseline: a number that is not finite shows at its place in its group",
          "[value]") {
  using gdpo::math::infinity;
  const double nan = std::nan("");
  // Two groups of two rows of three tokens; rows 0 and 1 are certain at their first token.
  const Data good{4,
                  3,
                  {1, 2, 4, 8, 3, 5, 1, 2, 3, 4, 5, 6},
                  {0, -1, -1, 0, -1, -1, -1, -1, -1, -1, -1, -1},
                  {1, 0.5, 0.5, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
                  {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                  std::vector<unsigned char>(12, 1),
                  {0, 0, 1, 1}};
  const auto check = [&](Numbers Data::*const array, std::size_t k, double value, bool later) {
    INFO("number " << k << ", " << value);
    Data bad = good;
    (bad.*array)[k] = value;
    const auto judge = [&](const auto& groups) {
      const Numbers a = padded<double>(gdpo::simd, good, groups, {}),
                    b = padded<double>(gdpo::simd, bad, groups, {});
      for (std::size_t i = 0; i < 12; ++i) {
        const bool reached = i / 6 == k / 6 && (i % 3 == k % 3 || (later && i % 3 > k % 3));
        CHECK((reached ? !std::isfinite(b[i]) : a[i] == b[i]));
      }
    };
    judge(gdpo::groups_of(2)), judge(gdpo::by_id(good.ids));
  };
  for (const std::size_t k : {0U, 1U, 5U, 7U}) {
    for (const double value : {nan, infinity, -infinity}) {
      check(&Data::returns, k, value, false);
      check(&Data::squares, k, value, true);
      if (k != 0) check(&Data::weights, k, value, true);
    }
    check(&Data::logp, k, nan, true);
  }
}

}  // namespace token_baseline_laws_test
