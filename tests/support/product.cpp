// Every estimator of the product of axes, compiled once for all tests that call
// product::advantages.
#include "support/product.hpp"

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/rules.hpp"
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
void set_baseline(Baseline&, const naive::Settings&) {}
void set_baseline(gdpo::baseline::TrimmedMean& to, const naive::Settings& from) {
  to.fraction = from.fraction;
}
void set_baseline(gdpo::baseline::WinsorizedMean& to, const naive::Settings& from) {
  to.fraction = from.fraction;
}
void set_baseline(gdpo::baseline::LogMeanExp& to, const naive::Settings& from) {
  to.tau = from.tau;
}
void set_baseline(gdpo::baseline::ShiftedMean& to, const naive::Settings& from) {
  to.shift = from.shift;
}
void set_baseline(gdpo::baseline::BatchMean& to, const naive::Settings& from) {
  to.leave_one_out = from.others;
}
void set_scale(gdpo::scale::None&, const naive::Settings&) {}
void set_scale(gdpo::scale::StdDev& to, const naive::Settings& from) {
  to.of = from.scale == naive::Scale::Batch           ? gdpo::scale::Of::Batch
          : from.scale == naive::Scale::BatchCentered ? gdpo::scale::Of::BatchCentered
          : from.scale == naive::Scale::Within        ? gdpo::scale::Of::Within
          : from.scale == naive::Scale::GroupOthers   ? gdpo::scale::Of::GroupOthers
          : from.scale == naive::Scale::GroupRms      ? gdpo::scale::Of::GroupRms
          : from.scale == naive::Scale::BatchRms      ? gdpo::scale::Of::BatchRms
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
void set_scale(gdpo::scale::GroupMean& to, const naive::Settings& from) {
  to.eps = from.scale_spread.eps;
  to.divide_by =
      from.any_mean ? gdpo::scale::DivideBy::AnyMean : gdpo::scale::DivideBy::PositiveMeans;
}
void set_renorm(gdpo::Renorm& to, const naive::Settings& from) {
  to.over = from.renorm == naive::Renorm::None       ? gdpo::RenormOver::None
            : from.renorm == naive::Renorm::Batch    ? gdpo::RenormOver::Batch
            : from.renorm == naive::Renorm::PerGroup ? gdpo::RenormOver::Group
                                                     : gdpo::RenormOver::Tokens;
  set_spread(to, from.renorm_spread);
  to.count_eps = from.renorm_spread.count_eps;
  to.keep_mean = from.renorm_spread.keep_mean;
}

template <class Estimator>
Estimator estimator_of(const naive::Settings& from) {
  Estimator e;
  set_baseline(e.baseline, from);
  set_scale(e.scale, from);
  set_renorm(e.renorm, from);
  set_rules(e, from);
  return e;
}

template <class Baseline, class Scale, class Combine>
Outcome run(const naive::Settings& settings, const naive::Data& data, gdpo::GroupReport* report) {
  const auto estimator = estimator_of<gdpo::GroupAdvantage<Baseline, Scale, Combine>>(settings);
  gdpo::RewardBatch batch{gdpo::view(data.rewards.data(), data.rows, data.reward_count),
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

template <class Baseline, class Scale>
Outcome with_combine(const naive::Settings& e, const naive::Data& data, gdpo::GroupReport* report) {
  using namespace gdpo::combine;
  return e.combine == naive::Combine::SumThenNormalize
             ? run<Baseline, Scale, SumThenNormalize>(e, data, report)
             : run<Baseline, Scale, NormalizeThenSum>(e, data, report);
}
template <class Baseline>
Outcome with_scale(const naive::Settings& e, const naive::Data& data, gdpo::GroupReport* report) {
  if constexpr (std::is_same_v<Baseline, gdpo::baseline::Mean>) {
    if (e.scale == naive::Scale::Shrunk)
      return with_combine<Baseline, gdpo::scale::ShrunkStd>(e, data, report);
    if (e.scale == naive::Scale::GroupMean)
      return with_combine<Baseline, gdpo::scale::GroupMean>(e, data, report);
    if (e.scale == naive::Scale::NonzeroShare)
      return with_combine<Baseline, gdpo::scale::NonzeroShare>(e, data, report);
  }
  if constexpr (std::is_same_v<Baseline, gdpo::baseline::LeaveOneOut>) {
    if (e.scale == naive::Scale::Others)
      return with_combine<Baseline, gdpo::scale::LeaveOneOutStd>(e, data, report);
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
