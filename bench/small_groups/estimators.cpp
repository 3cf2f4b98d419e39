#include "estimators.hpp"

#include <gdpo/advantages.hpp>
#include <memory>

namespace small_groups {
namespace {

namespace baseline = gdpo::baseline;
namespace combine = gdpo::combine;
namespace renorm = gdpo::renorm;
namespace scale = gdpo::scale;

/// An estimator of the library under a name.
template <class GroupAdvantage>
Estimator named(const char* name, const char* formula, const GroupAdvantage& settings,
                const char* plain = "") {
  Estimator e;
  e.name = name;
  e.formula = formula;
  e.plain = plain;
  e.each_reward = std::is_same_v<decltype(settings.combine), combine::NormalizeThenSum>;
  e.make = [settings] {
    return [estimator = settings, workspace = std::make_shared<gdpo::Workspace>()](
               const Bandits& bandits, const Sample& sample, std::size_t k,
               std::vector<double>& out) mutable {
      const auto rows = static_cast<gdpo::index_t>(sample.arms.size());
      const auto rewards = static_cast<gdpo::index_t>(bandits.rewards.size());
      if (estimator.weights.empty()) {
        std::vector<double> weights;
        for (const Reward& r : bandits.rewards) weights.push_back(r.weight);
        estimator.weights = weights;
      }
      out.resize(sample.arms.size());
      const gdpo::RewardBatch batch{gdpo::view(sample.rewards.data(), rows, rewards),
                                    gdpo::groups_of(static_cast<gdpo::index_t>(k))};
      gdpo::advantages_into(gdpo::simd, batch, estimator, gdpo::view(out), *workspace);
    };
  };
  return e;
}

/// One that standardizes the weighted sum of the rewards in its group, as GRPO does.
template <class Baseline, class Scale>
Estimator of_sum(const char* name, const char* formula, const Baseline& b, const Scale& s,
                 const char* plain = "") {
  gdpo::GroupAdvantage<Baseline, Scale, combine::SumThenNormalize> e;
  e.baseline = b;
  e.scale = s;
  return named(name, formula, e, plain);
}

/// One that standardizes each reward in its group, and the sum over the batch, as GDPO does.
template <class Baseline, class Scale>
Estimator of_each(const char* name, const char* formula, const Baseline& b, const Scale& s,
                  const char* plain = "") {
  gdpo::GroupAdvantage<Baseline, Scale> e;
  e.baseline = b;
  e.scale = s;
  return named(name, formula, e, plain);
}

/// The reward minus the mean of the batch, over its std: no group is looked at (Lite-PPO's and
/// REINFORCE++'s baseline).
auto batch_mean() {
  gdpo::GroupAdvantage<baseline::None, scale::None, combine::SumThenNormalize> e;
  e.renorm = renorm::batch();
  return e;
}

/// scale::StdDev of another set of values than the group.
scale::StdDev std_of(scale::Of of) {
  scale::StdDev s;
  s.of = of;
  return s;
}

/// scale::LeaveOneOutStd as in NeMo-RL: others that are equal leave the centered value as it is.
scale::LeaveOneOutStd std_of_others() {
  scale::LeaveOneOutStd s;
  s.eps_at = gdpo::EpsAt::StdOrOne;
  return s;
}

}  // namespace

const std::vector<Estimator>& all_estimators() {
  static const std::vector<Estimator> all = {
      of_sum("grpo", "Mean, StdDev", baseline::Mean{}, scale::StdDev{}),
      of_sum("grpo_shrunk", "Mean, ShrunkStd", baseline::Mean{}, scale::ShrunkStd{}, "grpo"),
      of_sum("dr_grpo", "Mean", baseline::Mean{}, scale::None{}),
      of_sum("rloo", "LeaveOneOut", baseline::LeaveOneOut{}, scale::None{}),
      of_sum("grpo_batch", "Mean, StdDev of Batch", baseline::Mean{}, std_of(scale::Of::Batch)),
      of_sum("grpo_within", "Mean, StdDev of Within", baseline::Mean{}, std_of(scale::Of::Within)),
      of_sum("rloo_std", "LeaveOneOut, LeaveOneOutStd", baseline::LeaveOneOut{}, std_of_others()),
      of_sum("median", "Median", baseline::Median{}, scale::None{}),
      of_sum("median_std", "Median, StdDev", baseline::Median{}, scale::StdDev{}),
      of_sum("median_shrunk", "Median, ShrunkStd", baseline::Median{}, scale::ShrunkStd{},
             "median_std"),
      of_sum("median_mad", "Median, Mad", baseline::Median{}, scale::Mad{}),
      of_sum("median_iqr", "Median, Iqr", baseline::Median{}, scale::Iqr{}),
      of_sum("trimmed", "TrimmedMean", baseline::TrimmedMean{}, scale::None{}),
      of_sum("trimmed_std", "TrimmedMean, StdDev", baseline::TrimmedMean{}, scale::StdDev{}),
      of_sum("trimmed_shrunk", "TrimmedMean, ShrunkStd", baseline::TrimmedMean{},
             scale::ShrunkStd{}, "trimmed_std"),
      of_sum("winsorized", "WinsorizedMean", baseline::WinsorizedMean{}, scale::None{}),
      named("batch_mean", "None; Batch", batch_mean()),
      of_each("gdpo", "each: Mean, StdDev; Batch", baseline::Mean{}, scale::StdDev{}),
      of_each("gdpo_shrunk", "each: Mean, ShrunkStd; Batch", baseline::Mean{}, scale::ShrunkStd{},
              "gdpo"),
      of_each("gdpo_batch", "each: Mean, StdDev of Batch; Batch", baseline::Mean{},
              std_of(scale::Of::Batch)),
      of_each("gdpo_median_mad", "each: Median, Mad; Batch", baseline::Median{}, scale::Mad{}),
  };
  return all;
}

}  // namespace small_groups
