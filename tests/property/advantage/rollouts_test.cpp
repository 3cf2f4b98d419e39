// labels: none
// Rows of one rollout count as one row: the oracle, every estimator by name, every grouping and
// execution, permutations, copies of rows, and ranks. What the rows of a rollout become is compared
// with reference/naive.hpp; what follows is the ordinary call, whose bits must be the same.
#include <gdpo/dist.hpp>
#include <mutex>

#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/generators.hpp"
#include "support/product.hpp"
#include "support/thread_ranks.hpp"
#include "support/tolerance.hpp"

namespace rollouts_laws_test {

namespace {

using gdpo::index_t;
using gdpo::Take;
using product::batch_of, product::data_of, product::rows_of;
using Ids = std::vector<long long>;
constexpr Take all_takes[] = {Take::Last, Take::First, Take::Sum, Take::Mean, Take::Max};

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Random ids of rollouts of 1 to 4 rows, each in one group, scattered over the batch.
Ids random_rollouts(Random& random, const naive::Data& d) {
  Ids ids(at(d.rows));
  const Ids names = random_ids(random, d.rows);
  int next = 0;
  for (const auto& group : d.groups()) {
    int left = 0;
    long long id = 0;
    std::vector<int> members = group.second;
    random.shuffle(members);
    for (const int i : members) {
      if (left-- == 0) id = names[at(next++)], left = random.below(4);
      ids[at(i)] = id;
    }
  }
  return ids;
}

/// Whether two lists of numbers agree to two roundings in double; NaN agrees with NaN. The oracle
/// rounds its sums of at most 4 numbers twice, the library once.
bool agree(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return false;
    if (std::abs(a[i] - b[i]) > 2 * tolerance::unit * (1 + std::abs(b[i]))) return false;
  }
  return true;
}

naive::Data random_data(Random& random, int rewards) {
  naive::Data d = random_batch(random, 1 + random.below(6), 9, rewards, 0.1);
  add_columns(random, d);
  if (random.chance(0.3)) d.valid.clear();
  return d;
}

std::vector<double> spread(const std::vector<int>& row, const std::vector<double>& values) {
  std::vector<double> out;
  for (const int r : row) out.push_back(values[at(r)]);
  return out;
}

}  // namespace

TEST_CASE("a rollout is what its rows make it", "[rollouts]") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    const naive::Data d = random_data(random, 1 + random.below(3));
    const Ids ids = random_rollouts(random, d);
    const Take take = all_takes[random.below(5)];
    INFO("seed " << seed << ", take " << static_cast<int>(take));
    std::vector<int> row;
    const naive::Data expected = naive::rollouts(d, ids, static_cast<naive::Take>(take), row);
    const auto one = gdpo::rollouts(batch_of(d, gdpo::by_id(d.ids)), gdpo::view(ids), take);
    const naive::Data got = data_of(one.batch());
    CHECK(got.rows == expected.rows);
    CHECK(got.ids == expected.ids);
    CHECK(agree(got.rewards, expected.rewards));
    CHECK(agree(got.tokens, expected.tokens));
    CHECK(agree(got.penalty, expected.penalty));
    CHECK(agree(got.external, expected.external));
    CHECK(got.valid == expected.valid);
    CHECK(std::vector<int>(one.rollout_of().data, one.rollout_of().data + d.rows) == row);
    for (int i = 0; i < d.rows; ++i) CHECK(one.ids()(row[at(i)]) == ids[at(i)]);
  }
}

TEST_CASE("every estimator by name sees rollouts as rows", "[rollouts]") {
  std::uint64_t seed = 1000;
  for (const auto& preset : product::presets()) {
    for (int round = 0; round < 6; ++round) {
      Random random(++seed);
      const naive::Data d = random_data(random, 2);
      const Ids ids = random_rollouts(random, d);
      INFO(preset.name << ", seed " << seed);
      std::vector<int> row;
      const naive::Data rows = naive::rollouts(d, ids, naive::Take::Last, row);
      naive::Settings settings = preset.settings;
      settings.weights = {1, 0.5};
      gdpo::GroupReport expected, got;
      const auto plain = product::advantages(settings, rows, &expected).advantages;
      const auto one = gdpo::rollouts(batch_of(d, gdpo::by_id(d.ids)), gdpo::view(ids));
      const auto taken = product::advantages(settings, data_of(one.batch()), &got).advantages;
      CHECK(difference(one.spread(taken), spread(row, plain)) == "");
      CHECK(got.rows == rows.rows);
      CHECK(got.singletons == expected.singletons);
    }
  }
}

TEST_CASE("one row a rollout is the plain call, on every grouping and execution", "[rollouts]") {
  const auto check = [](const naive::Data& d, const auto& groups, Take take) {
    const auto batch = batch_of(d, groups);
    Ids ids;
    for (int i = 0; i < d.rows; ++i) ids.push_back(1000 - 7 * i);
    const auto one = gdpo::rollouts(batch, gdpo::view(ids), take);
    const auto estimator = [] {
      gdpo::Gdpo e;
      e.weights = {1, 0.5};
      e.scale.of = gdpo::scale::Of::Batch;
      return e;
    }();
    const auto expected = gdpo::advantages(gdpo::seq, batch, estimator);
    CHECK(difference(one.spread(gdpo::advantages(gdpo::seq, one.batch(), estimator)), expected) ==
          "");
    CHECK(difference(one.spread(gdpo::advantages(gdpo::simd, one.batch(), estimator)), expected) ==
          "");
    const auto parallel = gdpo::parallel(executors::pool(3));
    CHECK(difference(one.spread(gdpo::advantages(parallel, one.batch(), estimator)), expected) ==
          "");
  };
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const naive::Data d = random_data(random, 2);
    const Take take = all_takes[random.below(5)];
    check(d, gdpo::by_id(d.ids), take);
    if (d.rows % 2 == 0) check(d, gdpo::groups_of(2), take);
    const std::vector<int> offsets{0, d.rows / 3, d.rows / 3, d.rows};
    check(d, gdpo::by_offsets(offsets), take);
  }
}

TEST_CASE("groups of consecutive rows become groups of consecutive rollouts", "[rollouts]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    naive::Data d = random_data(random, 2);
    std::sort(d.ids.begin(), d.ids.end());
    const Ids ids = random_rollouts(random, d);
    const Take take = all_takes[random.below(5)];
    std::vector<index_t> offsets{0};
    for (const auto& group : d.groups())
      offsets.push_back(offsets.back() + static_cast<index_t>(group.second.size()));
    INFO("seed " << seed);
    const auto by_id = gdpo::rollouts(batch_of(d, gdpo::by_id(d.ids)), gdpo::view(ids), take);
    const auto packed =
        gdpo::rollouts(batch_of(d, gdpo::by_offsets(offsets)), gdpo::view(ids), take);
    const naive::Data a = data_of(by_id.batch()), b = data_of(packed.batch());
    CHECK(difference(a.rewards, b.rewards) == "");
    CHECK(a.ids == [&] {
      Ids named;
      for (const long long g : b.ids) named.push_back(by_id.batch().groups.ids()(g));
      return named;
    }());
  }
}

TEST_CASE("the order of the rows and copies of a row", "[rollouts]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    naive::Data d = random_data(random, 2);
    const Ids ids = random_rollouts(random, d);
    INFO("seed " << seed);
    const auto result = [](const naive::Data& data, const Ids& rollouts, Take take) {
      const auto one =
          gdpo::rollouts(batch_of(data, gdpo::by_id(data.ids)), gdpo::view(rollouts), take);
      return one.spread(gdpo::advantages(gdpo::simd, one.batch(), gdpo::Gdpo{}));
    };
    const auto names_of = [&ids](const std::vector<int>& rows) {
      Ids names;
      for (const int i : rows) names.push_back(ids[at(i)]);
      return names;
    };
    std::vector<int> order(at(d.rows));
    for (int i = 0; i < d.rows; ++i) order[at(i)] = i;

    // Whichever rows stand where: sums, means and maxima do not depend on it.
    random.shuffle(order);
    const naive::Data shuffled = rows_of(d, order);
    for (const Take take : {Take::Sum, Take::Mean, Take::Max}) {
      const auto before = result(d, ids, take), after = result(shuffled, names_of(order), take);
      std::vector<double> back(at(d.rows));
      for (int i = 0; i < d.rows; ++i) back[at(order[at(i)])] = after[at(i)];
      CHECK(difference(back, before) == "");
    }
    // Each row twice, the copy right behind it: the last and the first row are what they were.
    std::vector<int> twice;
    for (int i = 0; i < d.rows; ++i) twice.push_back(i), twice.push_back(i);
    const naive::Data doubled = rows_of(d, twice);
    for (const Take take : {Take::Last, Take::First, Take::Max}) {
      const auto once = result(d, ids, take), both = result(doubled, names_of(twice), take);
      std::vector<double> kept;
      for (int i = 0; i < d.rows; ++i) kept.push_back(both[at(2 * i)]);
      CHECK(difference(kept, once) == "");
    }
  }
}

TEST_CASE("rows that do not count may hold anything", "[rollouts]") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    naive::Data d = random_batch(random, 4, 8, 2, 0);
    add_columns(random, d);
    const Ids ids = random_rollouts(random, d);
    INFO("seed " << seed);
    std::map<long long, int> last, used;
    for (int i = 0; i < d.rows; ++i) {
      used[ids[at(i)]] += d.valid[at(i)] != 0;
      if (d.valid[at(i)] != 0) last[ids[at(i)]] = i;
    }
    naive::Data poisoned = d;
    for (int i = 0; i < d.rows; ++i) {
      if (used[ids[at(i)]] == 0 || last[ids[at(i)]] == i) continue;
      for (int c = 0; c < 2; ++c)
        poisoned.rewards[at(2 * i + c)] = random.pick({std::nan(""), HUGE_VAL, 1e38});
      poisoned.penalty[at(i)] = std::nan("");
    }
    for (const Take take : {Take::Last, Take::Sum}) {
      if (take == Take::Sum) {  // there the used rows count too
        for (int i = 0; i < d.rows; ++i)
          if (d.valid[at(i)] != 0) {
            for (int c = 0; c < 2; ++c) poisoned.rewards[at(2 * i + c)] = d.rewards[at(2 * i + c)];
            poisoned.penalty[at(i)] = d.penalty[at(i)];
          }
      }
      gdpo::Grpo estimator;
      estimator.penalty.coef = 0.1;
      const auto result = [&](const naive::Data& data) {
        const auto one =
            gdpo::rollouts(batch_of(data, gdpo::by_id(data.ids)), gdpo::view(ids), take);
        return one.spread(gdpo::advantages(gdpo::simd, one.batch(), estimator));
      };
      CHECK(difference(result(poisoned), result(d)) == "");
    }
  }
}

TEST_CASE("rollouts over ranks are those of one process", "[rollouts][ranks]") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const naive::Data d = random_data(random, 2);
    const Ids ids = random_rollouts(random, d);
    INFO("seed " << seed);
    const int ranks = 1 + random.below(5);
    std::map<long long, int> rank_of;  // each rollout is whole on one rank
    for (const long long id : ids)
      if (rank_of.count(id) == 0) rank_of[id] = random.below(ranks);
    const auto whole = gdpo::rollouts(batch_of(d, gdpo::by_id(d.ids)), gdpo::view(ids));
    const auto expected = whole.spread(gdpo::advantages(gdpo::simd, whole.batch(), gdpo::Gdpo{}));
    std::vector<double> got(at(d.rows));
    const auto thrown = test::on_ranks(ranks, [&](const test::ThreadRank& comm) {
      Ids names;
      std::vector<int> rows;
      for (int i = 0; i < d.rows; ++i)
        if (rank_of.at(ids[at(i)]) == comm.rank()) rows.push_back(i), names.push_back(ids[at(i)]);
      const naive::Data mine = rows_of(d, rows);
      const auto one = gdpo::rollouts(batch_of(mine, gdpo::by_id(mine.ids)), gdpo::view(names));
      const auto all = gdpo::dist::gather_rows(comm, one.batch(), one.ids());
      const auto a = one.spread(all.own(gdpo::advantages(gdpo::simd, all.batch(), gdpo::Gdpo{})));
      for (std::size_t i = 0; i < rows.size(); ++i) got[at(rows[i])] = a[i];
    });
    for (const std::string& what : thrown) CHECK(what == "");
    CHECK(difference(got, expected) == "");
  }
}

TEST_CASE("rollouts whose rows are on several ranks", "[rollouts][ranks]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const naive::Data d = random_data(random, 2);
    const Ids ids = random_rollouts(random, d);
    INFO("seed " << seed);
    const int ranks = 1 + random.below(5);
    std::vector<int> rank_of;
    for (int i = 0; i < d.rows; ++i) rank_of.push_back(random.below(ranks));
    const auto whole = gdpo::rollouts(batch_of(d, gdpo::by_id(d.ids)), gdpo::view(ids), Take::Sum);
    const auto expected = whole.spread(gdpo::advantages(gdpo::simd, whole.batch(), gdpo::Gdpo{}));
    std::vector<double> got(at(d.rows));
    const auto thrown = test::on_ranks(ranks, [&](const test::ThreadRank& comm) {
      Ids names;
      std::vector<int> rows;
      for (int i = 0; i < d.rows; ++i)
        if (rank_of[at(i)] == comm.rank()) rows.push_back(i), names.push_back(ids[at(i)]);
      const naive::Data mine = rows_of(d, rows);
      const auto all = gdpo::dist::gather_rows(comm, batch_of(mine, gdpo::by_id(mine.ids)));
      const auto named = gdpo::dist::gather_rows(comm, batch_of(mine, gdpo::by_id(names)));
      const auto groups = named.batch().groups;
      const auto rollout = gdpo::per_row(groups, named.rows(), groups.ids());
      const auto one = gdpo::rollouts(all.batch(), gdpo::view(rollout), Take::Sum);
      const auto a = all.own(one.spread(gdpo::advantages(gdpo::simd, one.batch(), gdpo::Gdpo{})));
      for (std::size_t i = 0; i < rows.size(); ++i) got[at(rows[i])] = a[i];
    });
    for (const std::string& what : thrown) CHECK(what == "");
    CHECK(difference(got, expected) == "");
  }
}

}  // namespace rollouts_laws_test
