// labels: lanes
// The law of the update: while the parameters stay as they are, any way to cut a step into
// micro-batches, packs and ranks gives the gradient and the metrics of one padded batch of all its
// rows. plan() makes the steps; its own cells, or shard() and pack(), cut them; update::Step adds
// them up.
//
// Gradients of tokens, counts and ranges have the same bits, and so have all results on all ranks.
// Losses, sums of metrics and gradients of parameters agree to 1e-12 of the sum of the absolute
// values that they add.
#include <gdpo/advantages.hpp>
#include <gdpo/dist.hpp>
#include <gdpo/update/pack.hpp>
#include <gdpo/update/plan.hpp>
#include <gdpo/update/shard.hpp>
#include <gdpo/update/step.hpp>

#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/indices.hpp"
#include "support/loss_parts.hpp"
#include "support/named_losses.hpp"
#include "support/tally.hpp"
#include "support/thread_ranks.hpp"

namespace update_law_test {

namespace {

using gdpo::index_t;
using gdpo::LossResult;
using gdpo::Normalizer;
using loss_product::Data;
using loss_product::Outcome;
using test::on_ranks;
using test::ThreadRank;

/// The rows of a micro-batch and how they lie in memory.
struct MicroBatch {
  std::vector<int> rows;
  bool packed;
};
/// The micro-batches of each rank.
using Split = std::vector<std::vector<MicroBatch>>;

std::vector<int> list_of(const gdpo::View<const index_t, 1>& rows) {
  std::vector<int> list;
  for (index_t i = 0; i < rows.extent[0]; ++i) list.push_back(static_cast<int>(rows(i)));
  return list;
}

/// The step as plan() cuts it.
Split cells_of(Random& random, const gdpo::update::Plan& plan, index_t step) {
  Split split(at(plan.ranks()));
  for (index_t r = 0; r < plan.ranks(); ++r) {
    for (index_t k = 0; k < plan.accumulation(); ++k)
      split[at(r)].push_back({list_of(plan.rows(step, r, k)), random.chance(0.5)});
  }
  return split;
}

/// The rows dealt out to the ranks by shard(), and those of a rank in packs.
Split packs_of(Random& random, const std::vector<int>& rows, const std::vector<int>& lengths,
               index_t ranks) {
  const auto of = [](const std::vector<int>& all, const std::vector<int>& chosen) {
    std::vector<int> some;
    for (const int i : chosen) some.push_back(all[at(i)]);
    return some;
  };
  const int budget = 1 + random.below(40);
  const std::vector<int> of_step = of(lengths, rows);
  const auto sharding = gdpo::update::shard(of_step, ranks);
  Split split(at(ranks));
  for (index_t r = 0; r < ranks; ++r) {
    const std::vector<int> own = of(rows, list_of(sharding.rows(r)));
    gdpo::update::PackSettings alone;
    alone.oversize = gdpo::update::Oversize::Alone;
    const auto packing = gdpo::update::pack(of(lengths, own), budget, alone);
    for (index_t p = 0; p < packing.packs(); ++p)
      split[at(r)].push_back({of(own, list_of(packing.rows(p))), true});
  }
  return split;
}

/// The lengths of the rows of a micro-batch, and whether they can lie packed: without a token there
/// is no array.
std::vector<int> lengths_of(const MicroBatch& batch, const std::vector<int>& lengths) {
  std::vector<int> own;
  for (const int i : batch.rows) own.push_back(lengths[at(i)]);
  return own;
}
bool lies_packed(const MicroBatch& batch, const std::vector<int>& lengths) {
  int tokens = 0;
  for (const int i : batch.rows) tokens += lengths[at(i)];
  return batch.packed && tokens > 0;
}
Normalizer count_of(const MicroBatch& batch, const Data& data, const std::vector<int>& lengths) {
  if (batch.rows.empty()) return {};
  const Data part = loss_product::rows_of(data, batch.rows);
  if (!lies_packed(batch, lengths)) {
    const loss_product::Arrays<double> arrays(part);
    return gdpo::count(arrays.batch());
  }
  const auto p = loss_product::pack<std::int32_t>(part, lengths_of(batch, lengths));
  const loss_product::Arrays<double> arrays(p.data);
  return gdpo::count(loss_product::packed_batch(arrays, p.offsets));
}
/// Calls the loss, and writes the gradients of the tokens to their places among those of all rows.
template <class Loss>
LossResult loss_of(const Loss& loss, const MicroBatch& batch, const Data& data,
                   const std::vector<int>& lengths, const Normalizer& n,
                   std::vector<double>& gradient) {
  if (batch.rows.empty()) return {};
  const Data part = loss_product::rows_of(data, batch.rows);
  const bool packed = lies_packed(batch, lengths);
  const Outcome o = packed ? loss_product::call_packed<double, std::int32_t>(
                                 loss, part, lengths_of(batch, lengths), &n)
                           : loss_product::call<double>(loss, part, &n);
  std::size_t token = 0;
  for (const int i : batch.rows) {
    const int length = packed ? lengths[at(i)] : data.width;
    for (int t = 0; t < data.width; ++t)
      gradient[data.at(i, t)] = t < length ? o.gradient[token++] : 0.0;
  }
  return o.result;
}

/// A model whose log-probs are linear in three parameters: the gradient of a parameter is the sum
/// over tokens of dlogp times a feature.
constexpr std::size_t parameters = 3;
using Features = std::vector<double>;
void add_parameter_gradient(std::vector<double>& sum, const Features& features, const Data& data,
                            const std::vector<int>& rows, const std::vector<double>& dlogp,
                            bool of_magnitudes = false) {
  for (const int i : rows) {
    for (int t = 0; t < data.width; ++t) {
      for (std::size_t p = 0; p < parameters; ++p) {
        const double term = dlogp[data.at(i, t)] * features[data.at(i, t) * parameters + p];
        sum[p] += of_magnitudes ? std::fabs(term) : term;
      }
    }
  }
}

/// The counters of inputs that are not finite, without their places.
std::vector<double> not_finite_counts(const gdpo::LossMetrics& m) {
  std::vector<double> counts;
#define GDPO_X(in_batch, in_row, ...) counts.push_back(double(m.non_finite.in_row.count));
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  return counts;
}

/// The micro-batches of the rank in a random order.
std::vector<index_t> order_of(Random& random, std::size_t micro_batches) {
  std::vector<index_t> order;
  for (std::size_t k = 0; k < micro_batches; ++k) order.push_back(static_cast<index_t>(k));
  random.shuffle(order);
  return order;
}

/// "" where a step in parts gives what one padded batch of its rows gives.
template <class Loss>
std::string law_mismatch(Random& random, const Loss& loss, const Data& data,
                         const std::vector<int>& lengths, const std::vector<int>& rows,
                         const Split& split) {
  Features features;
  for (std::size_t k = 0; k < data.logp.size() * parameters; ++k)
    features.push_back(2 * random.uniform() - 1);

  const Data of_step = loss_product::rows_of(data, rows);
  Normalizer n = loss_product::normalizer_of(naive_loss::count(of_step));
  n.given = 12;
  const Outcome whole = loss_product::call<double>(loss, of_step, &n);
  std::vector<double> expected(data.logp.size(), 0.0);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    for (int t = 0; t < data.width; ++t)
      expected[data.at(rows[k], t)] = whole.gradient[of_step.at(static_cast<int>(k), t)];
  }

  const std::uint64_t seed = random.bits();
  std::vector<double> gradient(data.logp.size(), 0.0), magnitude(split.size());
  std::vector<LossResult> totals(split.size());
  std::vector<std::vector<double>> of_parameters(split.size());
  const auto thrown = on_ranks(static_cast<int>(split.size()), [&](const ThreadRank& comm) {
    const auto& own = split[at(comm.rank())];
    Random of_rank(seed + static_cast<std::uint64_t>(comm.rank()));
    gdpo::update::Step step(comm, static_cast<index_t>(own.size()),
                            [&](index_t k) { return count_of(own[at(k)], data, lengths); });
    step.set_given(12);
    std::vector<double> sum(parameters);
    for (const index_t k : order_of(of_rank, own.size())) {
      const MicroBatch& batch = own[at(k)];
      const auto work = [&] {
        const LossResult r = loss_of(loss, batch, data, lengths, step.normalizer(), gradient);
        add_parameter_gradient(sum, features, data, batch.rows, gradient);
        magnitude[at(comm.rank())] += std::fabs(r.policy_loss) + std::fabs(r.kl_loss);
        return r;
      };
      if (of_rank.chance(0.5)) {
        step.add(k, work);
      } else {
        step.add(k, work());
      }
    }
    totals[at(comm.rank())] = step.finish();
    of_parameters[at(comm.rank())] = gdpo::dist::all_merge(comm, sum);
  });

  std::string text;
  for (const std::string& what : thrown) text += what;
  if (!text.empty()) return text;
  text = difference(gradient, expected);
  const LossResult& total = totals[0];
  double size = 0;
  for (const double m : magnitude) size += m;
  for (const auto part : {&LossResult::loss, &LossResult::policy_loss, &LossResult::kl_loss})
    if (!(std::fabs(total.*part - whole.result.*part) <= 1e-12 * size)) text += " loss";
  text += loss_product::merged_mismatch(whole.result.metrics, total.metrics);
  text += difference(not_finite_counts(total.metrics), not_finite_counts(whole.result.metrics));
  if (!gdpo::detail::same_counts(total.normalizer, n)) text += " normalizer";

  std::vector<double> whole_parameters(parameters), sizes(parameters);
  add_parameter_gradient(whole_parameters, features, data, rows, expected);
  add_parameter_gradient(sizes, features, data, rows, expected, true);
  for (std::size_t p = 0; p < parameters; ++p) {
    if (!(std::fabs(of_parameters[0][p] - whole_parameters[p]) <= 1e-12 * sizes[p]))
      text += " parameters";
  }
  for (std::size_t r = 1; r < split.size(); ++r) {
    text += difference(loss_product::numbers(totals[r]), loss_product::numbers(total)) +
            difference(of_parameters[r], of_parameters[0]);
  }
  return text;
}

}  // namespace

TEST_CASE("update law: any micro-batches, packs and ranks give the gradient of one batch",
          "[update]") {
  std::uint64_t seed = 0;
  Tally tally;
  int shorter = 0;
  for (int round = 0; round < (few_rounds ? 1 : 4); ++round) {
    loss_product::for_each_named_loss([&](const std::string& name, const auto& loss) {
      Random random(++seed);
      INFO(name << ", seed " << seed);
      Data data = loss_product::tokens_of(random, 13, random.pick({1, 9, 21}));
      const std::vector<int> lengths = loss_product::cut_tails(random, data);
      // Weights that are not finite count as 0, and are counted.
      for (double& w : data.weights)
        if (random.chance(0.05)) w = std::nan("");

      gdpo::update::PlanSettings settings;
      settings.mini_batches = 1 + random.below(3);
      settings.accumulation = 1 + random.below(3);
      settings.ranks = 1 + random.below(6);
      settings.remainder = gdpo::update::Remainder::Spread;
      settings.shuffle = gdpo::update::Shuffle::EveryEpoch;
      settings.seed = seed;
      const auto plan = gdpo::update::plan(data.rows, settings);
      for (index_t step = 0; step < plan.steps(); ++step) {
        const std::vector<int> rows = list_of(plan.rows(step));
        const Split split = random.chance(0.5) ? cells_of(random, plan, step)
                                               : packs_of(random, rows, lengths, settings.ranks);
        if (tally.leaves_out(naive_loss::count(loss_product::rows_of(data, rows)).tokens == 0))
          continue;
        for (const auto& of_rank : split) shorter += of_rank.size() != split[0].size();
        CHECK(law_mismatch(random, loss, data, lengths, rows, split) == "");
      }
    });
  }
  CHECK(tally.share_left_out() < 0.1);
  // Ranks with different numbers of micro-batches are among the cases.
  CHECK(shorter > (few_rounds ? 3 : 30));
}

TEST_CASE("update law: groups whole in a micro-batch have the advantages and reports of the step",
          "[update]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    // Groups of 1 to 5 rows, two rewards, some groups without a spread.
    std::vector<int> begin{0};
    std::vector<double> rewards;
    for (int g = 0; g < 9; ++g) {
      begin.push_back(begin.back() + 1 + random.below(5));
      const bool flat = random.chance(0.3);
      for (int i = begin[at(g)]; i < begin[at(g + 1)]; ++i)
        rewards.insert(rewards.end(),
                       {flat ? 1.0 : random.below(4) * 0.5, flat ? 0.0 : random_reward(random, 3)});
    }
    const int n = begin.back();
    std::vector<int> group_of;
    for (int g = 0; g < 9; ++g) group_of.resize(at(begin[at(g + 1)]), g);
    Data data = loss_product::tokens_of(random, n, 6);
    data.token_advantages.clear(), data.advantages.clear();
    const std::vector<int> lengths = loss_product::cut_tails(random, data);

    /// Advantages of some rows, whose groups follow each other, and the report.
    const auto advantages_of = [&](const std::vector<int>& rows, gdpo::GroupReport& report) {
      std::vector<double> own;
      std::vector<int> offsets{0};
      for (std::size_t k = 0; k < rows.size(); ++k) {
        own.insert(own.end(), {rewards[at(2 * rows[k])], rewards[at(2 * rows[k] + 1)]});
        if (k + 1 == rows.size() || group_of[at(rows[k])] != group_of[at(rows[k + 1])])
          offsets.push_back(static_cast<int>(k) + 1);
      }
      return gdpo::advantages(
          gdpo::seq,
          gdpo::RewardBatch{gdpo::view(own.data(), static_cast<index_t>(rows.size()), 2),
                            gdpo::by_offsets(offsets)},
          gdpo::Grpo{}, &report);
    };

    gdpo::update::PlanSettings settings;
    settings.mini_batches = 1 + random.below(2);
    settings.accumulation = 1 + random.below(3);
    settings.ranks = 1 + random.below(4);
    settings.remainder = gdpo::update::Remainder::Spread;
    settings.whole = gdpo::update::Whole::InMicroBatch;
    settings.shuffle = gdpo::update::Shuffle::Once;
    settings.seed = seed;
    const auto plan = gdpo::update::plan(n, gdpo::by_offsets(begin), settings);
    for (index_t number = 0; number < plan.steps(); ++number) {
      const std::vector<int> rows = list_of(plan.rows(number));
      gdpo::GroupReport whole;
      const std::vector<double> expected = advantages_of(rows, whole);
      Data of_step = loss_product::rows_of(data, rows);
      of_step.advantages = expected;
      const Normalizer counts = loss_product::normalizer_of(naive_loss::count(of_step));
      if (counts.tokens == 0) continue;
      const LossResult loss = loss_product::call<double>(gdpo::dapo_loss, of_step, &counts).result;

      const Split split = cells_of(random, plan, number);
      std::vector<gdpo::GroupReport> reports(split.size());
      std::vector<LossResult> totals(split.size());
      std::vector<double> advantages(at(n));
      const auto thrown = on_ranks(static_cast<int>(split.size()), [&](const ThreadRank& comm) {
        const auto& own = split[at(comm.rank())];
        gdpo::update::Step step(comm, static_cast<index_t>(own.size()),
                                [&](index_t k) { return count_of(own[at(k)], data, lengths); });
        for (index_t k = static_cast<index_t>(own.size()) - 1; k >= 0; --k) {
          if (own[at(k)].rows.empty()) continue;  // may be left out
          gdpo::GroupReport report;
          const std::vector<double> mine = advantages_of(own[at(k)].rows, report);
          Data part = data;
          part.advantages.assign(at(n), 0.0);
          for (std::size_t i = 0; i < mine.size(); ++i)
            advantages[at(own[at(k)].rows[i])] = part.advantages[at(own[at(k)].rows[i])] = mine[i];
          std::vector<double> gradient(data.logp.size());
          step.add(
              k,
              [&] {
                return loss_of(gdpo::dapo_loss, own[at(k)], part, lengths, step.normalizer(),
                               gradient);
              },
              report);
        }
        totals[at(comm.rank())] = step.finish();
        reports[at(comm.rank())] = step.report();
      });
      for (const std::string& what : thrown) CHECK(what == "");
      std::vector<double> in_order;
      for (const int i : rows) in_order.push_back(advantages[at(i)]);
      CHECK(difference(in_order, expected) == "");
      for (std::size_t r = 0; r < split.size(); ++r) {
        const gdpo::GroupReport& report = reports[r];
        CHECK(report.rows == whole.rows);
        CHECK(report.groups == whole.groups);
        CHECK(report.singletons == whole.singletons);
        CHECK(report.smallest_group == whole.smallest_group);
        CHECK(report.largest_group == whole.largest_group);
        CHECK(report.degenerate == whole.degenerate);
        CHECK(report.reward_degenerate == whole.reward_degenerate);
        CHECK(difference(report.group_std, whole.group_std) == "");
        CHECK(std::fabs(report.reward_mean - whole.reward_mean) <=
              tolerance::merge * std::fabs(whole.reward_mean));
        CHECK(difference(loss_product::numbers(totals[r]), loss_product::numbers(totals[0])) == "");
      }
      CHECK(loss_product::merged_mismatch(loss.metrics, totals[0].metrics) == "");
      CHECK(totals[0].loss == Approx(loss.loss).epsilon(1e-12).margin(1e-14));
    }
  }
}

}  // namespace update_law_test
