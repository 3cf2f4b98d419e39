// The whole product of axes compared with the plain formulas of reference/naive.hpp. No other file
// compiles that product.
#include "support/product.hpp"

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/sanitized.hpp"
#include "support/tolerance.hpp"

namespace product {
namespace {

template <class Spread>
void set_spread(Spread& to, const naive::Spread& from) {
  to.ddof = from.ddof;
  to.eps = from.eps;
  to.eps_at = static_cast<gdpo::EpsAt>(from.eps_at);
}
template <class Baseline>
void set_baseline(Baseline& to, const naive::Settings& from) {
  if constexpr (std::is_same_v<Baseline, gdpo::baseline::TrimmedMean> ||
                std::is_same_v<Baseline, gdpo::baseline::WinsorisedMean>)
    to.fraction = from.fraction;
}
void set_scale(gdpo::scale::None&, const naive::Settings&) {}
void set_scale(gdpo::scale::StdDev& to, const naive::Settings& from) {
  to.of = from.scale == naive::Scale::Batch          ? gdpo::scale::Of::Batch
          : from.scale == naive::Scale::BatchCentred ? gdpo::scale::Of::BatchCentred
          : from.scale == naive::Scale::Within       ? gdpo::scale::Of::Within
                                                     : gdpo::scale::Of::Group;
  set_spread(to, from.scale_spread);
}
void set_scale(gdpo::scale::ShrunkStd& to, const naive::Settings& from) {
  to.prior_dof = from.prior_dof;
  to.equal_groups = from.equal_groups ? gdpo::EqualGroups::Include : gdpo::EqualGroups::Exclude;
  to.eps = from.scale_spread.eps;
  to.eps_at = static_cast<gdpo::EpsAt>(from.scale_spread.eps_at);
}
void set_scale(gdpo::scale::LeaveOneOutStd& to, const naive::Settings& from) {
  set_spread(to, from.scale_spread);
}
void set_scale(gdpo::scale::NonzeroShare&, const naive::Settings&) {}
void set_renorm(gdpo::renorm::None&, const naive::Spread&) {}
template <class Renorm>
void set_renorm(Renorm& to, const naive::Spread& from) {
  set_spread(to, from);
  to.count_eps = from.count_eps;
  to.keep_mean = from.keep_mean;
}

template <class Estimator>
Estimator estimator_of(const naive::Settings& from) {
  Estimator e;
  set_baseline(e.baseline, from);
  set_scale(e.scale, from);
  set_renorm(e.renorm, from.renorm_spread);
  e.missing.entry = from.entry == naive::Entry::Skip   ? gdpo::MissingEntry::Skip
                    : from.entry == naive::Entry::Zero ? gdpo::MissingEntry::Zero
                                                       : gdpo::MissingEntry::Propagate;
  e.missing.row = from.row == naive::Row::Keep ? gdpo::MissingRow::Keep : gdpo::MissingRow::Exclude;
  e.singleton = from.singleton == naive::Singleton::Raw   ? gdpo::Singleton::Raw
                : from.singleton == naive::Singleton::Nan ? gdpo::Singleton::Nan
                                                          : gdpo::Singleton::Zero;
  e.penalty = {from.penalty_coef, from.penalty_reward};
  e.weights = {from.weights.data(), static_cast<gdpo::index_t>(from.weights.size())};
  std::vector<gdpo::Gate> gates;
  for (const naive::Gate& gate : from.gates)
    gates.push_back({gate.reward, gate.given, gate.at_least});
  e.gates = {gates.data(), static_cast<gdpo::index_t>(gates.size())};
  return e;
}

template <class Baseline, class Scale, class Combine, class Renorm>
Outcome run(const naive::Settings& settings, const naive::Data& data, gdpo::GroupReport* report) {
  const auto estimator =
      estimator_of<gdpo::GroupAdvantage<Baseline, Scale, Combine, Renorm>>(settings);
  gdpo::RewardBatch batch{gdpo::view(data.rewards.data(), data.rows, data.channels),
                          gdpo::by_id(data.ids)};
  if (!data.tokens.empty()) batch.tokens = gdpo::view(data.tokens);
  if (!data.valid.empty()) batch.valid = gdpo::view(data.valid);
  if (!data.penalty.empty()) batch.penalty = gdpo::view(data.penalty);
  // Without these columns all lengths are equal to the oracle, and all external baselines 0.
  const std::vector<double> ones(static_cast<std::size_t>(data.rows), 1), zeros(ones.size(), 0);
  if (data.tokens.empty() && gdpo::detail::reads_tokens_v<Baseline>)
    batch.tokens = gdpo::view(ones);
  if (!data.external.empty() || gdpo::detail::reads_external_v<Baseline>)
    batch.baseline = gdpo::view(data.external.empty() ? zeros : data.external);
  Outcome outcome;
  outcome.advantages.resize(static_cast<std::size_t>(data.rows));
  std::vector<double> one_by_one(outcome.advantages.size());
  gdpo::Workspace workspace;
  gdpo::advantages_into(gdpo::seq, batch, estimator, gdpo::view(one_by_one), workspace);
  gdpo::advantages_into(gdpo::simd, batch, estimator, gdpo::view(outcome.advantages), workspace,
                        report);
  CHECK(difference(one_by_one, outcome.advantages) == "");
  const auto sums = workspace.sums();
  outcome.sums.assign(sums.data, sums.data + sums.extent[0]);
  return outcome;
}

template <class... Chosen>
Outcome with_renorm(const naive::Settings& e, const naive::Data& data, gdpo::GroupReport* report) {
  switch (e.renorm) {
    case naive::Renorm::None:
      return run<Chosen..., gdpo::renorm::None>(e, data, report);
    case naive::Renorm::Batch:
      return run<Chosen..., gdpo::renorm::Batch>(e, data, report);
    case naive::Renorm::PerGroup:
      return run<Chosen..., gdpo::renorm::PerGroup>(e, data, report);
    default:
      return run<Chosen..., gdpo::renorm::TokenWeightedBatch>(e, data, report);
  }
}
/// One of the two combinations that every pair of policies is compiled with.
template <class Baseline, class Scale>
Outcome in_two_ways(const naive::Settings& e, const naive::Data& data, gdpo::GroupReport* report) {
  using namespace gdpo;
  REQUIRE(is_compiled(naive::Baseline::Median, e.combine, e.renorm));
  return e.combine == naive::Combine::SumThenNormalize
             ? run<Baseline, Scale, combine::SumThenNormalize, renorm::None>(e, data, report)
             : run<Baseline, Scale, combine::NormalizeThenSum, renorm::Batch>(e, data, report);
}
template <class Baseline, class Scale>
Outcome with_combine(const naive::Settings& e, const naive::Data& data, gdpo::GroupReport* report) {
  using namespace gdpo;
  const bool sums_first = e.combine == naive::Combine::SumThenNormalize;
  if constexpr (std::is_same_v<Baseline, baseline::Mean> ||
                std::is_same_v<Baseline, baseline::LeaveOneOut> ||
                std::is_same_v<Baseline, baseline::None>) {
    return sums_first ? with_renorm<Baseline, Scale, combine::SumThenNormalize>(e, data, report)
                      : with_renorm<Baseline, Scale, combine::NormalizeThenSum>(e, data, report);
  } else {
    return in_two_ways<Baseline, Scale>(e, data, report);
  }
}
template <class Baseline>
Outcome with_scale(const naive::Settings& e, const naive::Data& data, gdpo::GroupReport* report) {
  if constexpr (std::is_same_v<Baseline, gdpo::baseline::Mean>) {
    if (e.scale == naive::Scale::Shrunk)
      return with_combine<Baseline, gdpo::scale::ShrunkStd>(e, data, report);
    if (e.scale == naive::Scale::NonzeroShare)
      return in_two_ways<Baseline, gdpo::scale::NonzeroShare>(e, data, report);
  }
  if constexpr (std::is_same_v<Baseline, gdpo::baseline::LeaveOneOut>) {
    if (e.scale == naive::Scale::Others)
      return in_two_ways<Baseline, gdpo::scale::LeaveOneOutStd>(e, data, report);
  }
  return e.scale == naive::Scale::None
             ? with_combine<Baseline, gdpo::scale::None>(e, data, report)
             : with_combine<Baseline, gdpo::scale::StdDev>(e, data, report);
}

}  // namespace

Outcome advantages(const naive::Settings& e, const naive::Data& data, gdpo::GroupReport* report) {
  Outcome outcome;
  for_each_baseline([&](auto of, naive::Baseline b, const char*) {
    if (b == e.baseline) outcome = with_scale<typename decltype(of)::type>(e, data, report);
  });
  return outcome;
}

}  // namespace product

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Counts the cases. One that rounding decides (1 / 0 or 0, from a spread that is 0 only in exact
/// arithmetic) has no number to compare with.
struct Tally {
  int compared = 0, undecided = 0;
};

void compare(const naive::Settings& settings, const naive::Data& data, Tally& tally) {
  const naive::Result expected = naive::advantages(settings, data);
  const product::Outcome got = product::advantages(settings, data);
  const double tolerance = tolerance::chain * static_cast<double>(expected.sensitivity);
  if (tolerance > 1e-6) {
    ++tally.undecided;
    return;
  }
  ++tally.compared;
  const std::string sums = deviation(got.sums, expected.sums, tolerance);
  const std::string advantages = deviation(got.advantages, expected.advantages, tolerance);
  if (sums.empty() && advantages.empty()) return;
  std::string rewards;
  for (std::size_t i = 0; i < data.rewards.size(); ++i) {
    if (i % static_cast<std::size_t>(data.channels) == 0) {
      const std::size_t row = i / static_cast<std::size_t>(data.channels);
      rewards += "\n  id " + std::to_string(data.ids[row]);
      if (!data.tokens.empty()) rewards += " tokens " + std::to_string(data.tokens[row]);
      if (!data.valid.empty()) rewards += " valid " + std::to_string(data.valid[row]);
      rewards += ":";
    }
    rewards += " " + std::to_string(data.rewards[i]);
  }
  INFO(product::describe(settings) << rewards);
  CHECK(sums == "");
  CHECK(advantages == "");
}

}  // namespace

TEST_CASE("every estimator of the product of axes gives what its formulas give", "[product]") {
  Tally tally;
  std::uint64_t seed = 0;
  for (int round = 0; round < 60; ++round) {
    product::for_each_type([&](naive::Settings e) {
      Random random(++seed);
      INFO("seed " << seed);
      const int channels = random.pick({1, 2, 3, 5, 9, 12});
      naive::Data data = random_batch(random, random.pick({1, 2, 4, 8}), random.pick({2, 5, 8}),
                                      channels, random.pick({0.0, 0.1, 0.5}));
      for (naive::Spread* spread : {&e.scale_spread, &e.renorm_spread}) {
        spread->ddof = random.pick({1, 1, 0, 2});
        spread->eps = random.pick({0.0, 0.0, 1e-6, 1e-4, 0.3});
        spread->eps_at = static_cast<naive::EpsAt>(random.below(6));
      }
      if (e.scale == naive::Scale::Shrunk) {
        e.prior_dof = random.pick({e.prior_dof, e.prior_dof, 0.0, 0.5, 6.0, infinity});
        e.equal_groups = random.chance(0.5);
      }
      e.renorm_spread.count_eps = random.pick({0.0, 0.0, 1e-8, 0.5});
      e.renorm_spread.keep_mean = random.chance(0.2);
      e.entry = static_cast<naive::Entry>(random.below(3));
      e.row = static_cast<naive::Row>(random.below(2));
      e.singleton = random.pick({naive::Singleton::Zero, naive::Singleton::Zero,
                                 naive::Singleton::Raw, naive::Singleton::Nan});
      if (random.chance(0.6)) {
        for (int c = 0; c < channels; ++c)
          e.weights.push_back(random.pick({1.0, 0.5, -1.0, 0.0, 2.5}));
      }
      for (int k = random.below(3); k > 0; --k) {
        e.gates.push_back(
            {random.below(channels), random.below(channels), random.pick({0.5, 1.0, 0.25, -1.0})});
      }
      add_columns(random, data);
      if (random.chance(0.5)) data.external.clear();
      if (random.chance(0.5)) e.fraction = random.pick({0.0, 0.1, 0.4, 0.49});
      if (random.chance(0.3)) {
        e.penalty_coef = random.pick({0.1, -0.5, 1.0});
        e.penalty_reward =
            e.combine == naive::Combine::SumThenNormalize ? -1 : random.below(channels);
      }
      if (random.chance(0.6)) data.valid.clear();
      compare(e, data, tally);
    });
  }
  INFO(tally.compared << " compared, " << tally.undecided << " decided by rounding");
  CHECK(tally.undecided * 10 < tally.compared);
}

TEST_CASE("every pattern of missing rewards in a group of three gives what the formulas give",
          "[product][missing]") {
  Tally tally;
  const double group[] = {1, 0.25, 0, 1, 0.5, 0}, other[] = {1, 0, 0, 0.5, 0, 0.25};
  for (unsigned mask = 0; mask < 64; mask += sanitized ? 9 : 1) {
    naive::Data data;
    data.rows = 6;
    data.channels = 2;
    data.ids = {5, 5, 5, 2, 2, 2};
    data.tokens = {3, 1, 0, 2, 7, 5};
    for (unsigned k = 0; k < 6; ++k)
      data.rewards.push_back(mask >> k & 1 ? std::nan("") : group[k]);
    data.rewards.insert(data.rewards.end(), other, other + 6);
    product::for_each_type([&](naive::Settings e) {
      for (const auto entry : {naive::Entry::Skip, naive::Entry::Zero, naive::Entry::Propagate}) {
        for (const auto row : {naive::Row::Exclude, naive::Row::Keep}) {
          for (const auto singleton : {naive::Singleton::Zero, naive::Singleton::Raw}) {
            e.entry = entry, e.row = row, e.singleton = singleton;
            INFO("mask " << mask);
            compare(e, data, tally);
          }
        }
      }
    });
  }
  INFO(tally.compared << " compared, " << tally.undecided << " decided by rounding");
  CHECK(tally.undecided * 10 < tally.compared);
}
