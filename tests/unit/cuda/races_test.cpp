// labels: races
// Every family of kernels, with each thread of a block running the whole kernel for itself
// (support/threaded_grid.hpp): the results have the bits of the simulated grid, and under
// ThreadSanitizer (tests/CMakeLists.txt) there is no race.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda/advantage/device_two_stages.hpp>
#include <gdpo/cuda/logits/device_distill.hpp>
#include <gdpo/cuda/logits/device_loss_from_logits.hpp>
#include <gdpo/cuda/mismatch/device_mismatch.hpp>
#include <gdpo/cuda/prepass/device_prepare.hpp>
#include <gdpo/cuda/value/device_returns.hpp>
#include <gdpo/cuda/value/device_value_loss.hpp>
#include <gdpo/presets/per_group.hpp>
#include <gdpo/presets/verl.hpp>
#include <numeric>

#include "support/catch.hpp"
#include "support/cuda_loss.hpp"
#include "support/logits_step.hpp"
#include "support/prepass_batch.hpp"
#include "support/returns.hpp"
#include "support/threaded_grid.hpp"
#include "support/value_cases.hpp"

namespace races_test {

namespace {

using cuda_loss::Layout, cuda_loss::OnTheDevice;
using gdpo::index_t, gdpo::view;
using loss_product::Data;
using Numbers = std::vector<double>;

template <class T>
void append(Numbers& to, const std::vector<T>& from) {
  for (const T& x : from) to.push_back(static_cast<double>(x));
}

using Tunings = std::vector<gdpo::cuda::Tuning>;

/// Checks that call(device), which returns all that the kernels wrote, gives under each tuning the
/// bits of the simulated grid.
template <class Call>
void check_threads(const Tunings& tunings, const Call& call) {
  const Numbers simulated = call(ThreadedGrid{SimulatedGrid{1, tunings[0]}, 0});
  for (std::size_t t = 0; t < tunings.size(); ++t) {
    INFO("tuning " << t);
    CHECK(logit_cases::same(call(ThreadedGrid{SimulatedGrid{2, tunings[t]}}), simulated));
  }
}

// ---- losses ----

/// Two tunings: short rows are computed by a warp each, or by a block each.
Tunings by_warp_and_by_block() {
  Tunings both(2);
  both[1].warp_row = 0;
  return both;
}

/// Checks the kernels of the counts, then those of the loss and its gradient.
template <class S, class Loss>
void check_loss(const Loss& loss, const Data& data, const Layout& layout,
                const std::vector<int>& lengths = {}, const Tunings& tunings = Tunings(1)) {
  OnTheDevice<S> on(data, layout, lengths);
  const gdpo::TokenBatch<S> batch = on.batch();
  check_threads(tunings, [&](const ThreadedGrid& device) {
    std::vector<S> gradient(on.places().size(), S(-77));
    gdpo::LossResult result;
    gdpo::Normalizer normalizer;
    TestScratch scratch(
        std::max(gdpo::cuda::scratch_bytes(loss, batch), gdpo::cuda::scratch_bytes(batch)));
    gdpo::TokenOut<S> out;
    on.places().with_view(gradient.data(), [&](const auto& to) { out = to; });
    gdpo::cuda::count_into(device, batch, &normalizer, scratch());
    loss(device, batch, &normalizer, out, &result, scratch());
    Numbers all = loss_product::numbers(result);
    append(all, gradient);
    return all;
  });
}

/// All arrays that a loss may read except advantages of tokens. A fifth of the tokens is masked,
/// and row 1 has weight 0.
Data full(Random& random, int rows, int width) {
  Data d;
  d.rows = rows, d.width = width;
  const auto number = [&] {
    return static_cast<double>(static_cast<float>(random.uniform() - 0.5));
  };
  for (int k = 0; k < rows * width; ++k) {
    d.logp.push_back(number() - 2);
    for (const auto of :
         {&Data::old_logp, &Data::ref_logp, &Data::rollout_logp, &Data::teacher_logp}) {
      (d.*of).push_back(d.logp.back() + number());
    }
    d.mask.push_back(random.chance(0.8));
    d.segments.push_back(k / 7 % 3);
    d.weights.push_back(1 + number()), d.kl_weights.push_back(1 + number());
    d.tags.push_back(random.below(3)), d.entropies.push_back(1 + number());
  }
  for (int i = 0; i < rows; ++i) {
    d.advantages.push_back(number()), d.truncated.push_back(random.below(2));
    d.row_weights.push_back(i == 1 ? 0.0 : 1 + number());
  }
  return d;
}
/// The arrays of plain rows alone, without segments, weights and what only some losses read.
Data plain(Random& random, int rows, int width) {
  Data d = full(random, rows, width);
  for (const auto of : {&Data::rollout_logp, &Data::teacher_logp, &Data::weights, &Data::kl_weights,
                        &Data::tags, &Data::entropies}) {
    (d.*of).clear();
  }
  d.segments.clear();
  return d;
}
/// Puts NaN and infinities into some tokens of several arrays: the kernels then count them by
/// input, and gradients are not finite.
Data poisoned(Random& random, Data d) {
  for (const auto of :
       {&Data::logp, &Data::old_logp, &Data::ref_logp, &Data::weights, &Data::entropies}) {
    for (double& x : d.*of) {
      if (random.chance(0.02))
        x = random.pick({std::nan(""), -std::numeric_limits<double>::infinity()});
    }
  }
  return d;
}

/// A loss of token ratios, with a factor that reads the mean advantage of the row.
using OfTokens = gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio, gdpo::Kl<>,
                                  gdpo::Aggregate, gdpo::Factors<cuda_loss::OfTheRow>>;

}  // namespace

TEST_CASE("cuda threads: losses of plain rows", "[cuda][races]") {
  Random random(1);
  for (const int width : {1, 130, 520}) {
    INFO("width " << width);
    check_loss<float>(gdpo::grpo_loss, plain(random, 3, width), cuda_loss::dense);
    check_loss<float>(gdpo::gspo_loss, poisoned(random, plain(random, 3, width)), cuda_loss::dense);
  }
  check_loss<float>(gdpo::grpo_loss, poisoned(random, plain(random, 5, 70)), cuda_loss::packed,
                    {3, 0, 70, 1, 69});
}

TEST_CASE("cuda threads: losses of rows with all that they may have", "[cuda][races]") {
  Random random(2);
  OfTokens of_tokens;
  of_tokens.kl.beta = 0.1;
  for (const bool of_each_token : {false, true}) {
    for (const bool bad : {false, true}) {
      INFO("advantages of tokens " << of_each_token << ", not finite " << bad);
      Data d = full(random, 3, 150);
      if (of_each_token) {
        for (int k = 0; k < d.rows * d.width; ++k)
          d.token_advantages.push_back(random.uniform() - 0.5);
        d.advantages.clear();
      }
      if (bad) d = poisoned(random, d);
      check_loss<float>(of_tokens, d, cuda_loss::padded_layouts[2]);
      check_loss<float>(gdpo::gspo_loss, d, cuda_loss::dense);
      check_loss<float>(gdpo::gspo_token_loss, d, cuda_loss::packed, {150, 0, 40});
    }
  }
}

TEST_CASE("cuda threads: losses of many rows, each of a warp or of a block", "[cuda][races]") {
  Random random(3);
  const int rows = 4 * 1024 + 40;  // five rows a block, two of them a warp
  Data d = plain(random, rows, 3);
  d.mask.clear();  // without a mask a row begins without a barrier
  for (int k = 0; k < d.rows; k += 5) d.logp[static_cast<std::size_t>(3 * k)] = std::nan("");
  std::vector<int> lengths;
  for (int i = 0; i < rows; ++i) lengths.push_back(1 + random.below(3));
  check_loss<float>(gdpo::grpo_loss, d, cuda_loss::packed, lengths, by_warp_and_by_block());
  check_loss<float>(gdpo::gspo_token_loss, full(random, rows - 7, 2), cuda_loss::dense);
}

// ---- value losses ----

TEST_CASE("cuda threads: value losses", "[cuda][races][value]") {
  Random random(6);
  const int many = 4 * 1024 + 40;  // five rows a block, two of them a warp
  for (const bool short_rows : {false, true}) {
    INFO("short rows " << short_rows);
    naive_value::Data d = short_rows ? value_cases::random_values(random, many, 3)
                                     : value_cases::random_values(random, 3, 520);
    for (double& x : d.returns) {
      if (random.chance(0.01)) x = std::nan("");
    }
    const value_cases::Arrays<float> arrays(d);
    const gdpo::ValueBatch<float> batch = arrays.batch();
    gdpo::ValueLoss<> loss;
    loss.clip = 0.2;
    check_threads(by_warp_and_by_block(), [&](const ThreadedGrid& device) {
      std::vector<float> gradient(arrays.values.size(), -77.0F);
      gdpo::ValueLossResult result;
      gdpo::Normalizer normalizer;
      TestScratch scratch(gdpo::cuda::scratch_bytes(loss, batch));
      gdpo::cuda::count_into(device, batch, &normalizer, scratch());
      loss(device, batch, &normalizer, arrays.out(gradient), &result, scratch());
      Numbers all = value_cases::numbers(result);
      append(all, gradient);
      return all;
    });
  }
}

// ---- logits ----

TEST_CASE("cuda threads: log-probs from logits, and back", "[cuda][races]") {
  for (const int vocabulary : {5, 1700}) {
    INFO("vocabulary " << vocabulary);
    logits_step::Step<float> s(7, vocabulary);
    const logits_step::Layout<float, 3> of{s};
    check_threads(Tunings(1), [&](const ThreadedGrid& device) {
      std::vector<float> logp(logits_step::tokens), entropy(logp), dlogits(s.logits.size());
      std::vector<double> logsumexp(logp.size());
      auto batch = of.logits();
      batch.mask = of.by_token(s.mask);
      gdpo::token_logprobs_into(device, batch,
                                {of.by_token(logp), of.by_token(entropy), of.by_token(logsumexp)});
      gdpo::token_logprobs_backward(
          device, batch, {of.by_token(s.weights), of.by_token(s.token_advantages)},
          of.by_token(logsumexp), of.by_token(entropy), of.table(dlogits));
      Numbers all = logsumexp;
      append(all, logp), append(all, entropy), append(all, dlogits);
      return all;
    });
  }
}

namespace {

/// The loss from logits with dlogits over the logits. By `shared_bytes` a block keeps nothing, a
/// part or all of a row in shared memory.
template <int Rank, class Loss>
void check_step(const Loss& loss, int vocabulary, int options, std::size_t shared_bytes) {
  const logits_step::Step<float> step(8, vocabulary);
  gdpo::cuda::Tuning tuning;
  tuning.shared_bytes = shared_bytes;
  check_threads({tuning}, [&](const ThreadedGrid& device) {
    logits_step::Step<float> s = step;
    const logits_step::Layout<float, Rank> of{s};
    std::vector<float> dlogp(logits_step::tokens);
    gdpo::LossResult result;
    gdpo::Normalizer normalizer;
    TestScratch scratch(gdpo::cuda::scratch_bytes(of.logits(), of.batch(options)));
    gdpo::cuda::count_into(device, of.logits(), of.batch(options), &normalizer, scratch());
    gdpo::cuda::FromLogits out;
    out.dlogp = of.by_token(dlogp);
    gdpo::policy_loss_from_logits(device, loss, of.logits(), of.batch(options), &normalizer,
                                  of.table(s.logits), &result, scratch(), out);
    Numbers all = loss_product::numbers(result);
    append(all, s.logits), append(all, dlogp);
    return all;
  });
}

}  // namespace

TEST_CASE("cuda threads: losses from logits", "[cuda][races]") {
  OfTokens of_tokens;
  of_tokens.kl.beta = 0.1;
  for (const std::size_t shared_bytes : {std::size_t{0}, std::size_t{6500}, std::size_t{100000}}) {
    check_step<3>(of_tokens, 1700, 1, shared_bytes);
    check_step<2>(of_tokens, 1700, 6, shared_bytes);
  }
  check_step<2>(gdpo::gspo_loss, 90, 8, 0);
}

TEST_CASE("cuda threads: distillation from logits", "[cuda][races]") {
  const gdpo::index_t width = 3, vocabulary = 1700, k = 40;
  Random random(12);
  std::vector<float> logits, logp;
  std::vector<std::int64_t> ids;
  for (gdpo::index_t e = 0; e < 2 * width * vocabulary; ++e)
    logits.push_back(static_cast<float>(4 * random.uniform()));
  for (gdpo::index_t e = 0; e < 2 * width * k; ++e)
    logp.push_back(static_cast<float>(-4 - random.uniform())), ids.push_back(e % k * 42);
  const std::vector<unsigned char> mask{1, 1, 0, 1, 1, 1};
  gdpo::cuda::Tuning some, none;
  some.shared_bytes = 6500, none.shared_bytes = 0;
  for (const gdpo::Rest rest : {gdpo::Rest::Renormalize, gdpo::Rest::Tail}) {
    check_threads({some, none}, [&](const ThreadedGrid& device) {
      std::vector<float> in_place = logits;
      gdpo::LogitBatch<float, 3> batch;
      const auto dlogits = gdpo::view(in_place.data(), 2, width, vocabulary);
      batch.logits = dlogits, batch.mask = gdpo::view(mask.data(), 2, width);
      const gdpo::TeacherTopK<3> teacher{gdpo::view(logp.data(), 2, width, k),
                                         gdpo::view(ids.data(), 2, width, k)};
      const gdpo::DistillationLoss loss{0.5, rest};
      const gdpo::TokenBatch<float> tokens;
      gdpo::DistillationResult result;
      TestScratch scratch(gdpo::cuda::scratch_bytes(loss, batch, tokens));
      gdpo::distillation_from_logits(device, loss, batch, teacher, tokens, gdpo::count(batch),
                                     dlogits, &result, scratch());
      Numbers all{result.loss, result.metrics.loss.sum, result.metrics.student_mass.max};
      append(all, in_place);
      return all;
    });
  }
}

// ---- advantages ----

namespace {

/// Rewards (rows, reward_count) with a penalty and tokens. Unless `complete`, some rewards are
/// missing and some rows unused.
struct Rewards {
  index_t rows, reward_count;
  std::vector<double> rewards, penalty;
  std::vector<int> tokens;
  std::vector<unsigned char> valid;

  Rewards(Random& random, index_t of_rows, index_t of_rewards, bool complete)
      : rows(of_rows), reward_count(of_rewards) {
    for (index_t i = 0; i < rows; ++i) {
      for (index_t c = 0; c < reward_count; ++c) {
        rewards.push_back(complete || random.chance(0.9) ? random.below(4) : std::nan(""));
      }
      penalty.push_back(random.uniform()), tokens.push_back(random.below(30));
      if (!complete) valid.push_back(random.chance(0.9));
    }
  }
  template <class Groups>
  gdpo::RewardBatch<double, Groups> batch(const Groups& groups) const {
    gdpo::RewardBatch<double, Groups> b{view(rewards.data(), rows, reward_count), groups};
    b.tokens = view(tokens), b.penalty = view(penalty);
    if (!valid.empty()) b.valid = view(valid);
    return b;
  }
};

template <class Groups, class Estimator>
void check_advantages(const Rewards& r, const Groups& groups, const Estimator& estimator) {
  const auto batch = r.batch(groups);
  gdpo::cuda::Tuning tuning;
  tuning.blocks = 3;
  check_threads({tuning}, [&](const ThreadedGrid& device) {
    Numbers out(static_cast<std::size_t>(r.rows), -77.0);
    TestScratch scratch(gdpo::cuda::scratch_bytes(estimator, batch));
    gdpo::advantages_into(device, batch, estimator, view(out), scratch());
    return out;
  });
}

template <class Groups, class Estimator>
void check_two_stages(const Rewards& r, const Groups& groups, const Estimator& estimator) {
  const auto batch = r.batch(groups);
  gdpo::cuda::Tuning tuning;
  tuning.blocks = 3;
  check_threads({tuning}, [&](const ThreadedGrid& device) {
    Numbers out(static_cast<std::size_t>(r.rows), -77.0);
    gdpo::CombinedMoments moments;
    TestScratch scratch(gdpo::cuda::scratch_bytes(estimator, batch));
    gdpo::first_stage(device, batch, estimator, view(&moments, 1), scratch());
    gdpo::finish(device, batch, estimator, moments, view(out), scratch());
    out.push_back(moments.values.m2);
    return out;
  });
}

}  // namespace

TEST_CASE("cuda threads: advantages in two stages", "[cuda][races]") {
  Random random(5);
  const Rewards r(random, 4096 + 24, 2, false);
  gdpo::Gdpo raw;
  raw.singleton = gdpo::Singleton::Raw;
  check_two_stages(r, gdpo::groups_of(8), gdpo::Gdpo{});
  check_two_stages(r, gdpo::groups_of(1), raw);
  check_two_stages(r, gdpo::groups_of(8), gdpo::per_group::gdpo);
}

TEST_CASE("cuda threads: advantages", "[cuda][races]") {
  Random random(4);
  const index_t rows = 4096 + 24;  // statistics take 4096 rows at a time, so there are two windows
  const std::vector<index_t> offsets{0, 3, 3, 4, 1500, 4090, 4100, rows};
  std::vector<index_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), index_t{0});
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<int>(i)))]);
  }
  gdpo::Gdpo of_batch;
  of_batch.scale.of = gdpo::scale::Of::BatchCentered, of_batch.singleton = gdpo::Singleton::Raw;
  for (const bool complete : {true, false}) {
    for (const index_t reward_count : {8, 10}) {
      INFO("complete " << complete << ", " << reward_count << " rewards");
      const Rewards r(random, rows, reward_count, complete);
      check_advantages(r, gdpo::groups_of(8), gdpo::Gdpo{});
      check_advantages(r, gdpo::groups_of(8), gdpo::Grpo{});
    }
    INFO("complete " << complete);
    const Rewards r(random, rows, 2, complete);
    const auto ragged = gdpo::by_offsets(offsets);
    check_advantages(r, ragged, gdpo::Gdpo{});
    check_advantages(r, ragged, of_batch);
    check_advantages(r, ragged, gdpo::Rloo{});
    check_advantages(r, ragged, gdpo::per_group::gdpo);
    const auto sorted = gdpo::cuda::sorted_groups(view(order), view(offsets));
    check_advantages(r, sorted, gdpo::Gdpo{});
    check_advantages(r, sorted, gdpo::verl::gdpo);
    // Spreads inside groups are added for 4096 groups at a time.
    gdpo::GroupAdvantage<gdpo::baseline::Mean, gdpo::scale::ShrunkStd> shrunk;
    std::vector<index_t> many;
    for (index_t g = 0; g <= 5000; ++g) many.push_back(g * rows / 5000);
    check_advantages(r, gdpo::by_offsets(many), shrunk);
    check_advantages(r, gdpo::cuda::sorted_groups(view(order), view(many)), shrunk);
  }
}

// ---- returns ----

TEST_CASE("cuda threads: returns and their renormalization", "[cuda][races]") {
  Random random(17);
  const return_cases::Data d = return_cases::random_rows(random, 21, 150);
  const std::vector<index_t> offsets = d.offsets();
  gdpo::TokenAdvantage<gdpo::returns::Gae, gdpo::Kl<gdpo::kl::K2>> estimator{
      {0.99, 0.95, 1, 0.1}, {0.1}, {-1, 1}, gdpo::renorm::token_weighted_batch()};
  gdpo::ReturnBatch<double> batch;
  batch.rewards = view(d.rewards), batch.values = view(d.values);
  batch.logp = view(d.logp), batch.ref_logp = view(d.ref_logp), batch.mask = view(d.mask);
  batch.row_rewards = view(d.row_rewards), batch.bootstrap = view(d.bootstrap);
  batch.offsets = view(offsets);
  for (const gdpo::Steps steps : return_cases::all_steps) {
    estimator.returns.steps = steps;
    check_threads(Tunings(1), [&](const ThreadedGrid& device) {
      Numbers advantages(d.mask.size()), returns(d.mask.size());
      TestScratch scratch(gdpo::cuda::scratch_bytes(estimator, batch));
      gdpo::advantages_and_returns_into(device, batch, estimator, view(advantages), view(returns),
                                        scratch());
      advantages.insert(advantages.end(), returns.begin(), returns.end());
      return advantages;
    });
  }
}

// ---- pre-passes ----

namespace {

/// The arrays of a prepared batch with a mask, at its valid tokens, and what was found.
template <class S>
Numbers numbers_of(const gdpo::TokenBatch<S>& b, std::size_t n) {
  const auto* const mask = static_cast<const unsigned char*>(b.mask.data());
  const auto* const found = b.prepared.on_device;
  Numbers all{found->entropy_threshold, static_cast<double>(found->rollout.count),
              static_cast<double>(found->rollout.row), static_cast<double>(found->rollout.token)};
  for (std::size_t k = 0; k < n; ++k) {
    all.push_back(mask[k] != 0);
    for (const auto* array : {&b.weights, &b.kl_weights, &b.level_log_weights})
      all.push_back(mask[k] && *array ? static_cast<double>(static_cast<const S*>(array->data())[k])
                                      : 1.0);
  }
  return all;
}

}  // namespace

TEST_CASE("cuda threads: pre-passes", "[cuda][races]") {
  using namespace prepass_batch;
  for (int kind = 0; kind < kinds; ++kind) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      INFO("kind " << kind << ", seed " << seed);
      Random random(100 * seed + static_cast<unsigned>(kind));
      // More than two tiles of 64 tokens and two blocks of eight rows.
      prepass_batch::Numbers d = random_numbers(random, 20, 200, 0.02);
      if (d.mask.empty()) d.mask.assign(d.positions(), 1);
      AnyPass pass = random_pass(random, kind);
      if (pass.reach == Reach::None) pass.reach = Reach::Surrogate;
      const Stored<float, InDevice> on(d);
      check_threads(Tunings(1), [&](const ThreadedGrid& device) {
        DeviceMemory memory(on.batch);
        return numbers_of(gdpo::prepare(device, on.batch, memory(), bound(pass, on)),
                          d.positions());
      });
    }
  }
}

TEST_CASE("cuda threads: mismatch reports", "[cuda][races]") {
  Random random(9);
  for (const int width : {1, 130, 300}) {
    INFO("width " << width);
    OnTheDevice<float> on(poisoned(random, full(random, 3, width)), cuda_loss::dense, {});
    const gdpo::TokenBatch<float> batch = on.batch();
    check_threads(Tunings(1), [&](const ThreadedGrid& device) {
      gdpo::MismatchReport report;
      TestScratch scratch(gdpo::cuda::mismatch_bytes(batch));
      gdpo::cuda::mismatch_into(device, batch, &report, scratch());
      Numbers all;
      for (const gdpo::detail::MismatchMetric& metric : gdpo::detail::mismatch_metrics)
        all.push_back(metric.of(report));
      append(all, std::vector<index_t>{report.scored, report.missing, report.ratio_max.row,
                                       report.ratio_max.token});
      return all;
    });
  }
}

}  // namespace races_test
