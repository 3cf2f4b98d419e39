// labels: lanes, sanitizers
// The mean over groups of rows (Aggregate::Mode::GroupMean): it is the mean over rows where each
// row is a group, and how a group is cut into rows, padded or packed changes nothing.
#include "support/catch.hpp"
#include "support/executors.hpp"
#include "support/loss_calls.hpp"
#include "support/value_cases.hpp"

namespace group_mean_test {

namespace {

using gdpo::Aggregate, gdpo::Over;
using loss_product::Data, loss_product::Outcome;

/// Batches whose masks have gaps and empty rows, but not segments, which may not be cut.
Data random_batch(Random& random, int rows, int width) {
  Data d = loss_product::random_tokens(random, rows, width, 0.3);
  d.segments.clear();
  return d;
}
/// The id of a group for each row, in any order.
std::vector<std::int64_t> ids_of(Random& random, int rows, int groups) {
  std::vector<std::int64_t> ids;
  for (int i = 0; i < rows; ++i) ids.push_back(random.below(groups));
  return ids;
}
template <class Groups>
std::vector<double> column(const Data& d, const Groups& groups) {
  const loss_product::Arrays<double> arrays(d);
  return gdpo::count_group_tokens(arrays.batch(), groups);
}
template <class Groups>
gdpo::Normalizer counts(const Data& d, const Groups& groups) {
  const loss_product::Arrays<double> arrays(d);
  return gdpo::count(arrays.batch(), groups);
}
/// GRPO with a KL term that is divided in another way than the surrogate.
auto with_two(const Aggregate& of_loss, const Aggregate& of_kl) {
  gdpo::Kl<gdpo::kl::K3, gdpo::kl::Direct, gdpo::Factors<>, Aggregate> term;
  term.aggregate = of_kl;
  auto loss = gdpo::with_kl(gdpo::grpo_loss, term);
  loss.aggregate = of_loss;
  return loss;
}
/// Each row of d cut into two at a token of its own; rows stay next to each other.
Data cut_rows(Random& random, const Data& d) {
  Data out = d;
  out.rows = 2 * d.rows, out.group_tokens.clear();
  const auto spread = [&](auto& to, const auto& from, auto between) {
    if (from.empty()) return;
    to.assign(2 * from.size(), between);
    for (int i = 0; i < d.rows; ++i) {
      for (int t = 0; t < d.width; ++t)
        to[out.at(2 * i, t)] = to[out.at(2 * i + 1, t)] = from[d.at(i, t)];
    }
  };
  for (const auto member : loss_product::token_arrays) spread(out.*member, d.*member, 0.0);
  out.mask.assign(out.logp.size(), 0);
  for (int i = 0; i < d.rows; ++i) {
    const int cut = random.below(d.width + 1);
    for (int t = 0; t < d.width; ++t) out.mask[out.at(2 * i + (t >= cut), t)] = d.valid(i, t);
  }
  for (const auto member : {&Data::advantages, &Data::row_weights, &Data::truncated}) {
    (out.*member).clear();
    for (const double x : d.*member) (out.*member).insert((out.*member).end(), 2, x);
  }
  return out;
}

}  // namespace

TEST_CASE("each row a group: the bits of the mean over rows of their means",
          "[loss][aggregate][group_mean]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d = random_batch(random, 1 + random.below(6), 1 + random.below(40));
    const auto groups = gdpo::groups_of(1);
    d.group_tokens = column(d, groups);
    const gdpo::Normalizer n = counts(d, groups);
    CHECK(n.given == n.rows);
    const auto check = [&](const auto& by_groups, const auto& by_rows) {
      CHECK(difference(loss_product::call<double>(by_groups, d, &n).gradient,
                       loss_product::call<double>(by_rows, d, &n).gradient) == "");
      CHECK(difference(loss_product::call<float>(by_groups, d, &n).gradient,
                       loss_product::call<float>(by_rows, d, &n).gradient) == "");
      CHECK(loss_product::call<double>(by_groups, d, &n).result.loss ==
            loss_product::call<double>(by_rows, d, &n).result.loss);
    };
    const auto means = gdpo::aggregate::seq_mean_token_mean();
    auto by_groups = gdpo::grpo_loss, by_rows = gdpo::grpo_loss;
    by_groups.aggregate = gdpo::aggregate::group_mean(), by_rows.aggregate = means;
    by_groups.aggregate.row_count_eps = by_rows.aggregate.row_count_eps = random.pick({0.0, 1e-8});
    check(by_groups, by_rows);
    const auto tokens = gdpo::aggregate::token_mean();
    check(with_two(tokens, gdpo::aggregate::group_mean()), with_two(tokens, means));
    check(with_two(gdpo::aggregate::group_mean(), tokens), with_two(means, tokens));
  }
}

TEST_CASE("one group of all rows: the mean over tokens", "[loss][aggregate][group_mean]") {
  Random random(3);
  Data d = random_batch(random, 6, 20);
  const auto groups = gdpo::groups_of(6);
  d.group_tokens = column(d, groups);
  const gdpo::Normalizer n = counts(d, groups);
  REQUIRE(n.given == 1);
  auto by_groups = gdpo::grpo_loss, by_tokens = gdpo::grpo_loss;
  by_groups.aggregate = gdpo::aggregate::group_mean();
  by_tokens.aggregate = gdpo::aggregate::token_mean();
  CHECK(difference(loss_product::call<double>(by_groups, d, &n).gradient,
                   loss_product::call<double>(by_tokens, d, &n).gradient) == "");
}

TEST_CASE("a rollout that is split into rows has the gradient of the whole one",
          "[loss][aggregate][group_mean]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    Data d = random_batch(random, 1 + random.below(5), 1 + random.below(30));
    if (d.mask.empty()) d.mask.assign(d.logp.size(), 1);
    Data halves = cut_rows(random, d);
    const auto whole = gdpo::groups_of(1), pairs = gdpo::groups_of(2);
    d.group_tokens = column(d, whole), halves.group_tokens = column(halves, pairs);
    const gdpo::Normalizer n = counts(d, whole), of_halves = counts(halves, pairs);
    CHECK(n.given == of_halves.given);
    CHECK(n.tokens == of_halves.tokens);
    auto loss = gdpo::grpo_loss;
    loss.aggregate = gdpo::aggregate::group_mean();
    const Outcome one = loss_product::call<double>(loss, d, &n),
                  two = loss_product::call<double>(loss, halves, &of_halves);
    std::vector<double> joined(d.logp.size());
    for (int i = 0; i < d.rows; ++i) {
      for (int t = 0; t < d.width; ++t) {
        const int row = 2 * i + halves.valid(2 * i + 1, t);
        joined[d.at(i, t)] = two.gradient[halves.at(row, t)];
      }
    }
    CHECK(difference(one.gradient, joined) == "");
    // The order of the sum over tokens is another one.
    CHECK(two.result.loss == Approx(one.result.loss).epsilon(1e-12).margin(1e-14));
  }
}

TEST_CASE("micro-batches that hold a part of a group: the column of the step and its groups",
          "[loss][aggregate][group_mean]") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int rows = 2 + random.below(6), groups = 1 + random.below(3);
    Data d = random_batch(random, rows, 1 + random.below(30));
    const auto ids = ids_of(random, rows, groups);
    d.group_tokens = column(d, gdpo::by_id(ids));
    const gdpo::Normalizer n = counts(d, gdpo::by_id(ids));
    auto loss = gdpo::grpo_loss;
    loss.aggregate = gdpo::aggregate::group_mean();
    const Outcome whole = loss_product::call<double>(loss, d, &n);

    // What the documentation of count_group_tokens says: the parts' numbers, added by id.
    const int cut = 1 + random.below(rows - 1);
    std::vector<double> of_id(static_cast<std::size_t>(groups), 0.0);
    std::vector<Data> parts{loss_product::rows_of(d, 0, cut), loss_product::rows_of(d, cut, rows)};
    std::vector<std::vector<std::int64_t>> of_parts{{ids.begin(), ids.begin() + cut},
                                                    {ids.begin() + cut, ids.end()}};
    for (std::size_t p = 0; p < 2; ++p) {
      const std::vector<double> counted = column(parts[p], gdpo::by_id(of_parts[p]));
      std::vector<double> once(static_cast<std::size_t>(groups), 0.0);
      for (std::size_t i = 0; i < counted.size(); ++i)
        once[static_cast<std::size_t>(of_parts[p][i])] = counted[i];
      for (std::size_t g = 0; g < once.size(); ++g) of_id[g] += once[g];
    }
    std::vector<double> gradient;
    double sum = 0;
    for (std::size_t p = 0; p < 2; ++p) {
      for (std::size_t i = 0; i < of_parts[p].size(); ++i)
        parts[p].group_tokens[i] = of_id[static_cast<std::size_t>(of_parts[p][i])];
      const Outcome o = loss_product::call<double>(loss, parts[p], &n);
      gradient.insert(gradient.end(), o.gradient.begin(), o.gradient.end());
      sum += o.result.loss;
    }
    CHECK(difference(whole.gradient, gradient) == "");
    CHECK(sum == Approx(whole.result.loss).epsilon(1e-12).margin(1e-14));
  }
}

TEST_CASE("the column by hand: groups of rows, by offsets and by ids; padded and packed",
          "[aggregate][group_mean]") {
  const std::vector<unsigned char> mask{1, 1, 0, /**/ 1, 0, 0, /**/ 0, 0, 0, /**/ 1, 1, 1};
  gdpo::TokenBatch<float> batch;
  batch.mask = gdpo::view(mask.data(), 4, 3);
  using Column = std::vector<double>;
  const std::vector<int> ids{7, 9, 7, 9}, places{0, 1, 1, 4}, offsets{0, 2, 3, 3, 6};
  CHECK(gdpo::count_group_tokens(batch, gdpo::groups_of(2)) == Column{3, 3, 3, 3});
  CHECK(gdpo::count_group_tokens(batch, gdpo::groups_of(1)) == Column{2, 1, 0, 3});
  CHECK(gdpo::count_group_tokens(batch, gdpo::by_id(ids)) == Column{2, 4, 2, 4});
  CHECK(gdpo::count_group_tokens(batch, gdpo::by_offsets(places)) == Column{2, 4, 4, 4});
  CHECK(gdpo::count(batch, gdpo::by_offsets(places)).given == 3);
  gdpo::TokenBatch<float> packed;
  packed.offsets = gdpo::view(offsets);
  CHECK(gdpo::count_group_tokens(packed, gdpo::groups_of(2)) == Column{3, 3, 3, 3});
  CHECK(gdpo::count_group_tokens(packed, gdpo::by_id(ids)) == Column{2, 4, 2, 4});
}

TEST_CASE("padding, packing and masked tokens that hold NaN change no bit",
          "[loss][aggregate][group_mean][packed][poison]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const int rows = 6, width = 1 + random.below(30);
    Data d = random_batch(random, rows, width);
    std::vector<int> lengths;
    d.mask.assign(d.logp.size(), 0);
    for (int i = 0; i < rows; ++i) {
      lengths.push_back(random.below(width + 1));
      for (int t = 0; t < lengths.back(); ++t) d.mask[d.at(i, t)] = random.chance(0.8);
    }
    const auto groups = gdpo::groups_of(3);
    d.group_tokens = column(d, groups);
    const gdpo::Normalizer n = counts(d, groups);
    auto loss = gdpo::grpo_loss;
    loss.aggregate = gdpo::aggregate::group_mean();
    const Outcome padded = loss_product::call<double>(loss, d, &n);
    const Outcome packed = loss_product::call_packed<double, std::int32_t>(loss, d, lengths, &n);
    std::vector<double> cut;
    for (int i = 0; i < rows; ++i) {
      for (int t = 0; t < lengths[static_cast<std::size_t>(i)]; ++t)
        cut.push_back(padded.gradient[d.at(i, t)]);
    }
    CHECK(difference(cut, packed.gradient) == "");
    CHECK(padded.result.loss == packed.result.loss);

    Data poisoned = d;
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    for (std::size_t k = 0; k < d.mask.size(); ++k) {
      if (d.mask[k] == 0) poisoned.logp[k] = poisoned.ref_logp[k] = nothing;
    }
    for (int i = 0; i < rows; ++i) {  // rows without tokens: the number is not read
      bool empty = true;
      for (int t = 0; t < width; ++t) empty = empty && !d.valid(i, t);
      if (empty) poisoned.group_tokens[static_cast<std::size_t>(i)] = nothing;
    }
    const Outcome same = loss_product::call<double>(loss, poisoned, &n);
    CHECK(difference(padded.gradient, same.gradient) == "");
    CHECK(padded.result.loss == same.result.loss);
  }
}

TEST_CASE("the value loss: each row a group has the bits of the mean over rows, and threads agree",
          "[value][aggregate][group_mean]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const value_cases::Arrays<float> arrays(
        value_cases::random_values(random, 1 + random.below(6), 1 + random.below(40)));
    gdpo::ValueBatch<float> batch = arrays.batch();
    gdpo::TokenBatch<float> tokens;
    tokens.mask = batch.mask;
    const std::vector<double> column = gdpo::count_group_tokens(tokens, gdpo::groups_of(1));
    const gdpo::Normalizer n = gdpo::count(tokens, gdpo::groups_of(1));
    if (n.tokens == 0) continue;
    const auto run = [&](const auto& exec, const Aggregate& aggregate) {
      gdpo::ValueLoss<> loss;
      loss.clip = 0.2, loss.aggregate = aggregate;
      value_cases::Outcome<float> o;
      o.gradient.assign(arrays.values.size(), -77.0f);
      gdpo::ValueWorkspace<float> workspace;
      o.result = loss(exec, batch, n, arrays.out(o.gradient), workspace);
      return o;
    };
    const auto by_rows = run(gdpo::seq, gdpo::aggregate::seq_mean_token_mean());
    batch.group_tokens = gdpo::view(column);
    const auto by_groups = run(gdpo::seq, gdpo::aggregate::group_mean());
    CHECK(value_cases::difference(by_rows.gradient, by_groups.gradient) == "");
    CHECK(by_rows.result.loss == by_groups.result.loss);
    CHECK(value_cases::difference(by_groups, run(gdpo::simd, gdpo::aggregate::group_mean())) == "");
  }
}

}  // namespace group_mean_test
