// Losses and estimators on a device, through the front doors; all_logits.cu has the calls from
// logits. Compiled wherever nvcc is found, but never run: the tests with label gpu check the
// results. With GDPO_TEST_ALL defined it has every preset, else those that stand here, among them
// the loss whose type holds the policies of all names.
#include <gdpo/cuda.hpp>
#include <gdpo/runtime.hpp>

namespace all_policies {

using namespace gdpo;

struct Call {
  cuda::On on;
  cuda::Scratch scratch;
};

// ---- losses ----

struct OfLoss {
  Normalizer* normalizer;
  LossResult* result;
};

template <class S, class Loss>
void one_loss(const Call& call, const Loss& loss, const TokenBatch<S>& batch, View<S, 2> gradient,
              const OfLoss& to) {
  if (cuda::scratch_bytes(loss, batch) > call.scratch.bytes) return;
  loss(call.on, batch, static_cast<const Normalizer*>(to.normalizer), gradient, to.result,
       call.scratch);
}

/// A factor as a user of the library would write it.
struct Truncated {
  static constexpr bool reads_tag = true;
  template <class V>
  GDPO_DEVICE V operator()(const Token<V>& t) const {
    return math::mul((math::min)(t.ratio, math::constant<V>(2.0)), t.tag);
  }
};

template <class Level, class Kl>
using Ratio = PolicyLoss<Level, surrogate::Ratio, Kl>;

void losses(const Call& call, const TokenBatch<float>& batch, View<float, 2> gradient,
            const OfLoss& to) {
  cuda::count_into(call.on, batch, to.normalizer, call.scratch);
  const auto each = [&](const auto&... loss) { (one_loss(call, loss, batch, gradient, to), ...); };
  each(grpo_loss, verl::vanilla_loss, gspo_loss, verl::gspo_loss);
  // Policies that no preset has, among them KL estimates, KL gradients, a map and a statistic.
  each(
      PolicyLoss<level::Token<>, surrogate::Reinforce,
                 Kls<Kl<kl::K1, kl::ScoreFunction>, Kl<kl::Abs>>, Aggregate, Factors<Truncated>>{},
      Ratio<level::Sequence<map::Clamp, statistic::Sum>, Kl<kl::K2, kl::StraightThroughK2>>{},
      Ratio<level::SequenceToken<map::Clamp, statistic::Sum>, Kl<kl::K3, kl::ImportanceWeighted>>{},
      Ratio<level::Token<>, Kls<Kl<kl::K1, kl::ImportanceWeightedK2, Factors<>, Aggregate>,
                                Kl<kl::ForwardK1, kl::Direct, Factors<factor::TeacherGate>>>>{},
      Ratio<level::Sequence<>, Kl<kl::K3, kl::ClippedImportanceWeighted>>{},
      with_metrics<metrics::None>(Ratio<level::Token<>, Kls<>>{}));
  each(with_metrics<metrics::Means>(grpo_loss));
  // Of the losses that runtime::loss finds by name, the one that needs the most registers.
  each(runtime::AnyLossAt<level::SequenceToken<>>{});
#if defined(GDPO_TEST_ALL)
  each(runtime::LossAt<level::Token<>>{}, runtime::LossAt<level::Sequence<>>{});
  presets::for_each_loss([&](const auto& preset) { each(preset.value); });
#endif
}
void losses(const Call& call, const TokenBatch<double>& batch, View<double, 2> gradient,
            const OfLoss& to) {
  cuda::count_into(call.on, batch, to.normalizer, call.scratch);
  one_loss(call, grpo_loss, batch, gradient, to);
  one_loss(call, gspo_loss, batch, gradient, to);
}

// ---- estimators ----

template <class T, class Groups, class Estimator>
void one_estimator(const Call& call, const RewardBatch<T, Groups>& batch,
                   const Estimator& estimator, View<float, 1> out) {
  if (cuda::scratch_bytes(estimator, batch) > call.scratch.bytes) return;
  advantages_into(call.on, batch, estimator, out, call.scratch);
}

struct Groupings {
  GroupsOf equal;
  ByOffsets<std::int32_t> ragged;
  cuda::SortedGroups<std::int32_t> sorted;
};
void estimators(const Call& call, View<const float, 2> rewards, View<const BFloat16, 2> narrow,
                View<const double, 2> wide, View<const std::int32_t, 2> integers,
                const Groupings& groups, View<CombinedMoments, 1> moments, View<float, 1> out) {
  const RewardBatch<float, GroupsOf> equal{rewards, groups.equal};
  const RewardBatch<float, ByOffsets<std::int32_t>> ragged{rewards, groups.ragged};
  one_estimator(call, ragged, Gdpo{}, out);
  one_estimator(call, RewardBatch<float, cuda::SortedGroups<std::int32_t>>{rewards, groups.sorted},
                Gdpo{}, out);
  one_estimator(call, equal, Gdpo{}, out);
  one_estimator(call, equal, Grpo{}, out);
#if defined(GDPO_TEST_ALL)
  presets::for_each_estimator(
      [&](const auto& preset) { one_estimator(call, equal, preset.value, out); });
#endif
  one_estimator(call, ragged, Rloo{}, out);
  first_stage(call.on, equal, Gdpo{}, moments, call.scratch);
  finish(call.on, equal, Gdpo{}, CombinedMoments{}, out, call.scratch);
  one_estimator(call, RewardBatch<BFloat16, GroupsOf>{narrow, groups.equal}, Gdpo{}, out);
  one_estimator(call, RewardBatch<double, GroupsOf>{wide, groups.equal}, Gdpo{}, out);
  one_estimator(call, RewardBatch<std::int32_t, GroupsOf>{integers, groups.equal}, Gdpo{}, out);
}

}  // namespace all_policies
