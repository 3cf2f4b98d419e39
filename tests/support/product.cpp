// Every estimator of the product of axes, compiled once for all tests that call
// product::advantages.
#include "support/product.hpp"

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace product {
namespace {

template <class Baseline, class Scale, class Combine>
Outcome run(const naive::Settings& settings, const naive::Data& data, const Wanted& wanted) {
  const auto estimator = estimator_of<gdpo::GroupAdvantage<Baseline, Scale, Combine>>(settings);
  gdpo::RewardBatch batch = batch_of(data, gdpo::by_id(data.ids));
  // Without these columns all lengths are equal to the oracle, and all external baselines 0.
  const std::vector<double> ones(static_cast<std::size_t>(data.rows), 1), zeros(ones.size(), 0);
  if (data.tokens.empty() && gdpo::detail::reads_tokens_v<Baseline>)
    batch.tokens = gdpo::view(ones);
  if (data.external.empty() && gdpo::detail::reads_external_v<Baseline>)
    batch.baseline = gdpo::view(zeros);
  Outcome outcome;
  outcome.advantages.resize(static_cast<std::size_t>(data.rows));
  std::vector<double> one_by_one(outcome.advantages.size());
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, estimator, gdpo::view(one_by_one), workspace);
  gdpo::advantages_into(gdpo::simd, batch, estimator, gdpo::view(outcome.advantages), workspace,
                        wanted.report);
  CHECK(difference(one_by_one, outcome.advantages) == "");
  const auto sums = workspace.sums();
  outcome.sums.assign(sums.data, sums.data + sums.extent[0]);
  const auto groups = wanted.explained ? batch.groups.count(data.rows) : 0;
  for (gdpo::index_t g = 0; g < groups; ++g)
    wanted.explained->push_back(gdpo::explain(batch, estimator, g));
  return outcome;
}

template <class Baseline, class Scale>
Outcome with_combine(const naive::Settings& e, const naive::Data& data, const Wanted& wanted) {
  using namespace gdpo::combine;
  return e.combine == naive::Combine::SumThenNormalize
             ? run<Baseline, Scale, SumThenNormalize>(e, data, wanted)
             : run<Baseline, Scale, NormalizeThenSum>(e, data, wanted);
}
}  // namespace

Outcome advantages(const naive::Settings& e, const naive::Data& data, const Wanted& wanted) {
  Outcome outcome;
  for_each_baseline([&](auto of, naive::Baseline b) {
    using Baseline = typename decltype(of)::type;
    if (b != e.baseline) return;
    for_each_scale([&](auto of_scale) {
      using Scale = typename decltype(of_scale)::type;
      if constexpr (is_compiled_v<Baseline, Scale>) {
        if (is_scale<Scale>(e.scale)) outcome = with_combine<Baseline, Scale>(e, data, wanted);
      }
    });
  });
  if (outcome.advantages.empty() && data.rows > 0)
    throw std::logic_error("not compiled: " + describe(e));
  return outcome;
}

naive::Data random_case(Random& random, naive::Settings& e) {
  const int reward_count = random.pick({1, 2, 3, 5, 9, 12});
  naive::Data data = random_batch(random, random.pick({1, 2, 4, 8}), random.pick({2, 5, 8}),
                                  reward_count, random.pick({0.0, 0.1, 0.5}));
  // Of baseline, scale and renormalization whatever fits.
  for_each_baseline([&](auto of, naive::Baseline b) {
    if (b != e.baseline) return;
    using Baseline = typename decltype(of)::type;
    for_each_scale([&](auto of_scale) {
      if (!is_scale<typename decltype(of_scale)::type>(e.scale)) return;
      auto policies =
          estimator_of<gdpo::GroupAdvantage<Baseline, typename decltype(of_scale)::type>>(e);
      random_settings(random, policies.baseline);
      random_settings(random, policies.scale);
      random_settings(random, policies.renorm);
      detail::copy_rows(policies, e, oracle::to_oracle);
    });
  });
  e.entry = static_cast<naive::Entry>(random.below(3));
  e.row = static_cast<naive::Row>(random.below(3));
  e.singleton = random.pick({naive::Singleton::Zero, naive::Singleton::Exclude,
                             naive::Singleton::Raw, naive::Singleton::Nan});
  if (random.chance(0.2)) e.reward_low = random.pick({-0.5, 0.1}), e.reward_high = 0.75;
  if (random.chance(0.2)) e.low = random.pick({0.0, -0.5}), e.high = random.pick({0.5, 2.0});
  if (random.chance(0.6)) {
    for (int c = 0; c < reward_count; ++c)
      e.weights.push_back(random.pick({1.0, 0.5, -1.0, 0.0, 2.5}));
  }
  for (int k = random.below(3); k > 0; --k) {
    e.gates.push_back({random.below(reward_count), random.below(reward_count),
                       random.pick({0.5, 1.0, 0.25, -1.0})});
  }
  add_columns(random, data);
  if (random.chance(0.5)) data.external.clear();
  if (random.chance(0.3)) {
    e.penalty_coef = random.pick({0.1, -0.5, 1.0});
    e.penalty_reward =
        e.combine == naive::Combine::SumThenNormalize ? -1 : random.below(reward_count);
  }
  if (random.chance(0.6)) data.valid.clear();
  return data;
}

}  // namespace product
