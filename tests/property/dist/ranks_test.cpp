// labels: none
// A step over ranks is the step of one process: any spread of the rows over 1 to 8 ranks and over
// micro-batches, padded or packed, for every estimator and every loss by name.
//
// With keys, advantages have the bits of one call; gradients, counts and ranges are exact always.
// Losses and sums of metrics agree to 1e-12 of the sum of the absolute values that they add. Every
// rank has the same bits.
#include <gdpo/dist.hpp>
#include <gdpo/with/thread_pool.hpp>

#include "support/catch.hpp"
#include "support/loss_parts.hpp"
#include "support/named_losses.hpp"
#include "support/product.hpp"
#include "support/renormed.hpp"
#include "support/thread_ranks.hpp"
#include "support/tolerance.hpp"

namespace ranks_test {

namespace {

namespace dist = gdpo::dist;
using loss_product::Outcome;
using test::on_ranks;
using test::ThreadRank;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Which of the items 0 .. n - 1 each rank has. Some ranks have none.
std::vector<std::vector<int>> spread(Random& random, int n, int ranks) {
  std::vector<std::vector<int>> of_rank(at(ranks));
  const int busy = 1 + random.below(ranks);
  for (int i = 0; i < n; ++i) of_rank[at((random.below(busy) + i % 2) % ranks)].push_back(i);
  for (auto& items : of_rank) random.shuffle(items);
  return of_rank;
}

/// "" where no rank has thrown.
std::string thrown_by(const std::vector<std::string>& ranks) {
  std::string all;
  for (const std::string& what : ranks) all += what;
  return all;
}

}  // namespace

TEST_CASE("with keys, every estimator gives the bits of one process on any ranks", "[ranks]") {
  std::uint64_t seed = 0;
  for (const auto& preset : product::presets()) {
    for (int round = 0; round < 12; ++round) {
      Random random(++seed);
      INFO(preset.name << ", seed " << seed);
      naive::Data data = random_batch(random, 1 + random.below(6), 6, 2, 0.05);
      add_columns(random, data);
      std::vector<int> key(at(data.rows));
      for (int i = 0; i < data.rows; ++i) key[at(i)] = 3 * i - 20;
      random.shuffle(key);
      std::vector<int> order(at(data.rows));
      for (int i = 0; i < data.rows; ++i) order[at(i)] = i;
      std::sort(order.begin(), order.end(), [&](int a, int b) {
        return std::pair(data.ids[at(a)], key[at(a)]) < std::pair(data.ids[at(b)], key[at(b)]);
      });
      naive::Settings settings = preset.settings;
      settings.weights = {1, 0.5};
      const std::vector<double> sorted =
          product::advantages(settings, product::rows_of(data, order)).advantages;
      std::vector<double> expected(at(data.rows)), got(at(data.rows));
      for (int i = 0; i < data.rows; ++i) expected[at(order[at(i)])] = sorted[at(i)];

      const int ranks = 1 + random.below(8);
      const auto of_rank = spread(random, data.rows, ranks);
      std::mutex one_at_a_time;
      const auto thrown = on_ranks(ranks, [&](const ThreadRank& comm) {
        const std::vector<int>& rows = of_rank[at(comm.rank())];
        const naive::Data own = product::rows_of(data, rows);
        std::vector<int> keys;
        for (const int i : rows) keys.push_back(key[at(i)]);
        gdpo::RewardBatch batch{gdpo::view(own.rewards.data(), own.rows, own.reward_count),
                                gdpo::by_id(own.ids)};
        batch.tokens = gdpo::view(own.tokens), batch.valid = gdpo::view(own.valid),
        batch.penalty = gdpo::view(own.penalty), batch.baseline = gdpo::view(own.external);
        const auto all = dist::gather_rows(comm, batch, gdpo::view(keys));
        const naive::Data gathered = product::data_of(all.batch());
        // The product checks its calls by itself, which only one thread at a time may do.
        const std::lock_guard<std::mutex> lock(one_at_a_time);
        const std::vector<double> mine =
            all.own(product::advantages(settings, gathered).advantages);
        for (std::size_t i = 0; i < rows.size(); ++i) got[at(rows[i])] = mine[i];
      });
      CHECK(thrown_by(thrown) == "");
      CHECK(difference(got, expected) == "");
    }
  }
}

TEST_CASE("every loss gives the gradient of one process on any ranks and micro-batches",
          "[ranks]") {
  std::uint64_t seed = 0;
  for (int round = 0; round < 10; ++round) {
    loss_product::for_each_named_loss([&](const std::string& name, const auto& loss) {
      Random random(++seed);
      INFO(name << ", seed " << seed);
      loss_product::Data data = loss_product::tokens_of(random, 12, random.pick({1, 9, 21}));
      const std::vector<int> lengths = loss_product::cut_tails(random, data);
      gdpo::Normalizer n = loss_product::normalizer_of(naive_loss::count(data));
      if (n.tokens == 0) return;
      n.given = 12;
      const Outcome whole = loss_product::call<double>(loss, data, &n);

      const int ranks = 1 + random.below(8);
      const auto of_rank = spread(random, data.rows, ranks);
      std::vector<int> micro_batches, packed;
      for (int r = 0; r < ranks; ++r) micro_batches.push_back(1 + random.below(3));
      for (int k = 0; k < 3 * ranks; ++k) packed.push_back(random.below(2));
      std::vector<double> gradient(whole.gradient.size(), -55);
      std::vector<gdpo::LossResult> merged(at(ranks));
      std::vector<gdpo::Normalizer> counted(at(ranks));
      std::vector<double> magnitude(at(ranks));
      const auto thrown = on_ranks(ranks, [&](const ThreadRank& comm) {
        const int r = comm.rank();
        const auto& rows = of_rank[at(r)];
        // The rows of each micro-batch; counts of all of them come before the first loss.
        std::vector<std::vector<int>> batches(at(micro_batches[at(r)]));
        for (std::size_t i = 0; i < rows.size(); ++i)
          batches[i % batches.size()].push_back(rows[i]);
        gdpo::Normalizer own;
        for (const auto& batch : batches)
          own += loss_product::normalizer_of(naive_loss::count(loss_product::rows_of(data, batch)));
        gdpo::Normalizer step = dist::all_merge(comm, own);
        counted[at(r)] = step;
        step.given = 12;
        gdpo::LossResult result;
        for (std::size_t k = 0; k < batches.size(); ++k) {
          if (batches[k].empty()) continue;
          const loss_product::Data part = loss_product::rows_of(data, batches[k]);
          std::vector<int> part_lengths;
          int tokens = 0;
          for (const int i : batches[k])
            part_lengths.push_back(lengths[at(i)]), tokens += lengths[at(i)];
          const bool in_pack = packed[3 * at(r) + k] != 0 && tokens > 0;
          const Outcome o = in_pack ? loss_product::call_packed<double, std::int32_t>(
                                          loss, part, part_lengths, &step)
                                    : loss_product::call<double>(loss, part, &step);
          std::size_t token = 0;
          for (const int i : batches[k]) {
            const int length = in_pack ? lengths[at(i)] : data.width;
            for (int t = 0; t < data.width; ++t)
              gradient[data.at(i, t)] = t < length ? o.gradient[token++] : 0.0;
          }
          magnitude[at(r)] += std::fabs(o.result.policy_loss) + std::fabs(o.result.kl_loss);
          result = merge(result, o.result);
        }
        merged[at(r)] = dist::all_merge(comm, result);
      });
      CHECK(thrown_by(thrown) == "");
      // -0 and 0 are the same gradient of a masked token.
      CHECK(difference(gradient, whole.gradient) == "");
      double size = 0;
      for (const double m : magnitude) size += m;
      for (const auto part :
           {&gdpo::LossResult::loss, &gdpo::LossResult::policy_loss, &gdpo::LossResult::kl_loss})
        CHECK(std::fabs(merged[0].*part - whole.result.*part) <= 1e-12 * size);
      CHECK(loss_product::merged_mismatch(whole.result.metrics, merged[0].metrics) == "");
      for (int r = 0; r < ranks; ++r) {
        CHECK(difference(loss_product::numbers(merged[at(r)]), loss_product::numbers(merged[0])) ==
              "");
        CHECK(counted[at(r)].tokens == n.tokens);
        CHECK(counted[at(r)].rows == n.rows);
        CHECK(counted[at(r)].non_empty_rows == n.non_empty_rows);
      }
    });
  }
}

TEST_CASE("rows whose tokens are on several ranks give the bits of whole rows", "[ranks]") {
  std::uint64_t seed = 0;
  for (int round = 0; round < 10; ++round) {
    loss_product::for_each_named_loss([&](const std::string& name, const auto& loss) {
      Random random(++seed);
      const bool packed = random.chance(0.5), scattered = random.chance(0.5);
      INFO(name << ", seed " << seed << (packed ? ", packed" : ", padded")
                << (scattered ? ", scattered" : ", consecutive"));
      loss_product::Data data = loss_product::tokens_of(random, 5, random.pick({1, 9, 40}));
      const std::vector<int> lengths = loss_product::cut_tails(random, data);
      gdpo::Normalizer n = loss_product::normalizer_of(naive_loss::count(data));
      if (n.tokens == 0) return;
      n.given = 12;
      const Outcome whole =
          packed ? loss_product::call_packed<double, std::int32_t>(loss, data, lengths, &n)
                 : loss_product::call<double>(loss, data, &n);

      // The rank of each token. In padded parts a position is on the same rank in every row.
      const int ranks = 1 + random.below(4);
      std::vector<std::vector<int>> owner;
      for (int i = 0; i < data.rows; ++i) {
        std::vector<int> of_token;
        for (int t = 0; t < data.width; ++t) of_token.push_back(random.below(ranks));
        if (!scattered) std::sort(of_token.begin(), of_token.end());
        owner.push_back(packed || i == 0 ? of_token : owner[0]);
      }
      // The place of a token among those of the whole result.
      std::vector<std::size_t> begin{0};
      for (int i = 0; i < data.rows; ++i)
        begin.push_back(begin.back() + at(packed ? lengths[at(i)] : data.width));

      std::vector<double> gradient(whole.gradient.size(), -55);
      std::vector<std::vector<double>> results(at(ranks));
      const auto thrown = on_ranks(ranks, [&](const ThreadRank& comm) {
        loss_product::Data part;
        std::vector<std::int32_t> offsets{0};
        std::vector<std::int64_t> positions;
        std::vector<std::size_t> places;
        for (int i = 0; i < data.rows; ++i) {
          const int length = packed ? lengths[at(i)] : data.width;
          for (int t = 0; t < length; ++t) {
            if (owner[at(i)][at(t)] != comm.rank()) continue;
            const auto take = [k = data.at(i, t)](auto& to, const auto& from) {
              if (!from.empty()) to.push_back(from[k]);
            };
            for (const auto member : loss_product::token_arrays) take(part.*member, data.*member);
            take(part.mask, data.mask), take(part.segments, data.segments);
            positions.push_back(t);
            places.push_back(begin[at(i)] + at(t));
          }
          offsets.push_back(static_cast<std::int32_t>(positions.size()));
        }
        part.advantages = data.advantages, part.row_weights = data.row_weights;
        part.group_tokens = data.group_tokens;
        part.truncated = data.truncated;
        const auto tokens = static_cast<int>(positions.size());
        part.rows = packed ? 1 : data.rows, part.width = packed ? tokens : tokens / data.rows;
        const loss_product::Arrays<double> arrays(part);
        gdpo::TokenBatch<double> batch =
            packed ? loss_product::packed_batch(arrays, offsets) : arrays.batch();
        const double none = 0;
        if (tokens == 0 && !packed) batch.logp = gdpo::view(&none, data.rows, 0);
        gdpo::TokenView<std::int64_t> where;
        if (packed)
          where = gdpo::view(std::as_const(positions));
        else
          where = gdpo::view(positions.data(), data.rows, part.width);
        auto rows = dist::gather_tokens(comm, batch, scattered ? where : decltype(where){});
        gdpo::LossWorkspace<double> workspace;
        const gdpo::LossResult r = loss(gdpo::seq, rows.batch(), n, rows.gradient(), workspace);
        results[at(comm.rank())] = loss_product::numbers(r);
        std::vector<double> own(positions.size());
        if (packed)
          rows.own_into(gdpo::view(own));
        else
          rows.own_into(gdpo::view(own.data(), data.rows, part.width));
        for (std::size_t k = 0; k < own.size(); ++k) gradient[places[k]] = own[k];
        if (gdpo::count(rows.batch()).tokens != n.tokens) throw std::runtime_error("counts");
      });
      CHECK(thrown_by(thrown) == "");
      CHECK(difference(gradient, whole.gradient) == "");
      for (const auto& result : results)
        CHECK(difference(result, loss_product::numbers(whole.result)) == "");
    });
  }
}

namespace {

/// Compares the two stages over ranks with one call over all rows. The rows are in whole groups.
template <class Estimator>
void check_two_stages(const Estimator& estimator, std::uint64_t seed) {
  Random random(seed);
  INFO("seed " << seed);
  const int ranks = 1 + random.below(5);
  std::vector<int> offsets{0}, first_group(at(ranks + 1));
  for (int r = 0; r < ranks; ++r) {
    const int groups = random.below(4);
    for (int g = 0; g < groups; ++g) offsets.push_back(offsets.back() + 1 + random.below(5));
    first_group[at(r + 1)] = static_cast<int>(offsets.size()) - 1;
  }
  const int n = offsets.back();
  std::vector<double> rewards, tokens, valid;
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    const bool equal = random.chance(0.25);
    for (int i = offsets[g]; i < offsets[g + 1]; ++i) {
      for (int c = 0; c < 2; ++c)
        rewards.push_back(equal ? 0.25 : random.chance(0.1) ? NAN : 3 * random.uniform());
      tokens.push_back(random.below(30)), valid.push_back(random.chance(0.9));
    }
  }
  const auto batch_of = [&](int first, int rows, const auto& groups) {
    gdpo::RewardBatch batch{gdpo::view(std::as_const(rewards).data() + 2 * first, rows, 2), groups};
    batch.tokens = gdpo::view(std::as_const(tokens).data() + first, rows);
    batch.valid = gdpo::view(std::as_const(valid).data() + first, rows);
    return batch;
  };
  const std::vector<double> whole =
      gdpo::advantages(gdpo::seq, batch_of(0, n, gdpo::by_offsets(gdpo::view(offsets))), estimator);
  std::vector<double> got(at(n), -7);
  const auto thrown = on_ranks(ranks, [&](const ThreadRank& comm) {
    const int begin = first_group[at(comm.rank())], end = first_group[at(comm.rank() + 1)];
    std::vector<int> own;
    for (int g = begin; g <= end; ++g) own.push_back(offsets[at(g)] - offsets[at(begin)]);
    const auto batch =
        batch_of(offsets[at(begin)], own.back(), gdpo::by_offsets(gdpo::view(std::as_const(own))));
    gdpo::Workspace workspace;
    const gdpo::CombinedMoments all =
        dist::all_merge(comm, gdpo::first_stage(gdpo::seq, batch, estimator, workspace));
    std::vector<double> a(at(own.back()));
    gdpo::finish(gdpo::seq, batch, estimator, all, gdpo::view(a), workspace);
    std::copy(a.begin(), a.end(), got.begin() + offsets[at(begin)]);
  });
  CHECK(thrown_by(thrown) == "");
  for (int i = 0; i < n; ++i) {
    INFO("row " << i);
    // Advantages are of order 1 to 10; a mean that is subtracted may cancel.
    const double a = got[at(i)], b = whole[at(i)];
    CHECK((a == 0) == (b == 0));
    CHECK((std::isnan(a) == std::isnan(b)));
    if (!std::isnan(b)) CHECK(std::fabs(a - b) <= 16 * tolerance::merge * (1 + std::fabs(b)));
    if (ranks == 1) CHECK(same_bits(a, b));
  }
}

}  // namespace

TEST_CASE("two stages with merged moments give the advantages of one call", "[ranks]") {
  using namespace gdpo;
  using Plain = GroupAdvantage<baseline::None, scale::None, combine::SumThenNormalize>;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Gdpo gdpo;
    gdpo.renorm.eps = seed % 2 ? 0 : 1e-4;
    gdpo.renorm.eps_at = seed % 3 ? EpsAt::Std : EpsAt::Var;
    gdpo.missing.row = seed % 4 ? MissingRow::Exclude : Gdpo{}.missing.row;
    check_two_stages(gdpo, seed);
    gdpo.singleton = Singleton::Raw;  // then the mean is subtracted on all ranks
    check_two_stages(gdpo, seed);
    check_two_stages(renormed(Gdpo{}, renorm::token_weighted_batch()), seed);
    check_two_stages(renormed(Plain{}, renorm::batch()), seed);
    check_two_stages(renormed(Gdpo{}, renorm::per_group()), seed);
    check_two_stages(Grpo{}, seed);
  }
}

TEST_CASE("two stages refuse what they cannot do", "[ranks]") {
  const std::vector<double> rewards(4, 1.0);
  std::vector<double> out(4);
  const gdpo::RewardBatch batch{gdpo::view(rewards.data(), 4, 1), gdpo::groups_of(2)};
  gdpo::Workspace workspace;
  gdpo::Grpo of_batch;
  of_batch.scale.of = gdpo::scale::Of::Batch;
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const gdpo::invalid_input& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(message([&] { gdpo::first_stage(gdpo::seq, batch, of_batch, workspace); }) ==
        "gdpo::first_stage: estimator: given a baseline or scale that reads the whole batch; "
        "needed: one that reads its group alone; gather the rows (dist::gather_rows) for this one");
  CHECK(message([&] {
          gdpo::finish(gdpo::seq, batch, gdpo::Gdpo{}, {}, gdpo::view(out), workspace);
        }) ==
        "gdpo::finish: workspace: given one that first_stage() has not used last; needed: that "
        "of first_stage() with this batch and estimator");
  const auto finished = [&](const auto& of, const auto& estimator) {
    return message([&] { gdpo::finish(gdpo::seq, of, estimator, {}, gdpo::view(out), workspace); });
  };
  const std::string other =
      "gdpo::finish: workspace: given that of another batch or estimator; "
      "needed: that of first_stage() with this batch and estimator";
  gdpo::first_stage(gdpo::seq, batch, gdpo::Gdpo{}, workspace);
  CHECK(finished(batch, gdpo::Grpo{}) == other);
  CHECK(finished(batch, renormed(gdpo::Gdpo{}, gdpo::renorm::per_group())) == other);
  CHECK(finished(gdpo::RewardBatch{gdpo::view(rewards.data(), 4, 1), gdpo::groups_of(4)},
                 gdpo::Gdpo{}) == other);
  CHECK(finished(batch, gdpo::Gdpo{}) == "no error");
}

TEST_CASE("the second stage may have more threads than the first", "[ranks]") {
  // One long group after many short ones, in a workspace that has seen short groups alone.
  const gdpo::Gdpo in_group = renormed(gdpo::Gdpo{}, gdpo::renorm::per_group());
  Random random(9);
  std::vector<double> rewards(1 << 17), out(rewards.size());
  for (double& x : rewards) x = random.uniform();
  const auto rows = static_cast<gdpo::index_t>(rewards.size());
  const auto all = gdpo::view(std::as_const(rewards).data(), rows, 1);
  std::vector<gdpo::index_t> offsets;
  for (gdpo::index_t i = 0; i <= rows / 2; i += 4) offsets.push_back(i);
  offsets.push_back(rows);
  const gdpo::RewardBatch batch{all, gdpo::by_offsets(gdpo::view(std::as_const(offsets)))};
  gdpo::Workspace workspace;
  gdpo::ThreadPool pool(4);
  const auto threads = gdpo::parallel(pool);
  gdpo::advantages_into(threads, gdpo::RewardBatch{all, gdpo::groups_of(2)}, in_group,
                        gdpo::view(out), workspace);
  const auto moments = gdpo::first_stage(gdpo::seq, batch, in_group, workspace);
  gdpo::finish(threads, batch, in_group, moments, gdpo::view(out), workspace);
  CHECK(difference(out, gdpo::advantages(gdpo::seq, batch, in_group)) == "");
}

}  // namespace ranks_test
