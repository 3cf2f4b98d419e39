// Every shipped policy on a device, through the front doors. Compiled by CI wherever nvcc is found, never run: what each gives is
// compared in the tests with label gpu. GDPO_TEST_FULL_PRODUCT: all of them, else a cover, for the other architectures.
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
  Normaliser* normaliser;
  LossResult* result;
};

template <class S, class Loss>
void one_loss(const Call& call, const Loss& loss, const TokenBatch<S>& batch, View<S, 2> gradient, const OfLoss& to) {
  if (cuda::scratch_bytes(loss, batch) > call.scratch.bytes) return;
  loss(call.on, batch, static_cast<const Normaliser*>(to.normaliser), gradient, to.result, call.scratch);
}

/// A factor of the caller's.
struct Truncated {
  static constexpr bool reads_tag = true;
  template <class V>
  GDPO_DEVICE V operator()(const Token<V>& t) const {
    return math::mul((math::min)(t.ratio, math::constant<V>(2.0)), t.tag);
  }
};

template <class Level, class Kl, class Aggregate>
using Ratio = PolicyLoss<Level, surrogate::Ratio, Kl, Aggregate>;

void losses(const Call& call, const TokenBatch<float>& batch, View<float, 2> gradient, const OfLoss& to) {
  cuda::count_into(call.on, batch, to.normaliser, call.scratch);
  const auto each = [&](const auto&... loss) { (one_loss(call, loss, batch, gradient, to), ...); };
  each(grpo_loss, verl::vanilla_loss, gspo_loss, verl::gspo_loss);
  // What no preset has: each estimator, gradient, map and statistic once more.
  each(PolicyLoss<level::Token<>, surrogate::Reinforce, Kls<Kl<kl::K1, kl::ScoreFunction>, Kl<kl::Abs>>,
                  aggregate::TokenSum, Factors<Truncated>>{},
       Ratio<level::Sequence<map::Clamp, statistic::Sum>, Kl<kl::K2, kl::StraightThroughK2>,
             aggregate::SeqMeanTokenSum>{},
       Ratio<level::SequenceToken<map::Clamp, statistic::Sum>, Kl<kl::K3, kl::ImportanceWeighted>,
             aggregate::SeqMeanTokenSumNorm>{},
       with_metrics<metrics::None>(Ratio<level::Token<>, Kls<>, aggregate::TokenMean>{}));
#if defined(GDPO_TEST_FULL_PRODUCT)
  presets::for_each_loss([&](const auto& preset) { each(preset.value); });
  each(with_metrics<metrics::Means>(grpo_loss));
  each(runtime::LossAt<level::Token<>>{}, runtime::LossAt<level::Sequence<>>{});  // of a name
#endif
}
void losses(const Call& call, const TokenBatch<double>& batch, View<double, 2> gradient, const OfLoss& to) {
  cuda::count_into(call.on, batch, to.normaliser, call.scratch);
  one_loss(call, grpo_loss, batch, gradient, to);
#if defined(GDPO_TEST_FULL_PRODUCT)
  one_loss(call, gspo_loss, batch, gradient, to);
#endif
}

// ---- estimators ----

template <class T, class Groups, class Estimator>
void one_estimator(const Call& call, const RewardBatch<T, Groups>& batch, const Estimator& estimator,
                   View<float, 1> out) {
  if (cuda::scratch_bytes(estimator, batch) > call.scratch.bytes) return;
  advantages_into(call.on, batch, estimator, out, call.scratch);
}

struct Groupings {
  GroupsOf equal;
  ByOffsets<std::int32_t> ragged;
  cuda::SortedGroups<std::int32_t> sorted;
};
void estimators(const Call& call, View<const float, 2> rewards, View<const BFloat16, 2> narrow,
                View<const double, 2> wide, View<const std::int32_t, 2> integers, const Groupings& groups,
                View<float, 1> out) {
  const RewardBatch<float, GroupsOf> equal{rewards, groups.equal};
  const RewardBatch<float, ByOffsets<std::int32_t>> ragged{rewards, groups.ragged};
  one_estimator(call, ragged, Gdpo{}, out);
  one_estimator(call, RewardBatch<float, cuda::SortedGroups<std::int32_t>>{rewards, groups.sorted}, Gdpo{}, out);
#if defined(GDPO_TEST_FULL_PRODUCT)
  presets::for_each_estimator([&](const auto& preset) { one_estimator(call, equal, preset.value, out); });
  one_estimator(call, ragged, Rloo{}, out);
#else
  one_estimator(call, equal, Gdpo{}, out);
  one_estimator(call, equal, verl::Whitened{}, out);
  one_estimator(call, equal, per_group::Gdpo{}, out);
#endif
  one_estimator(call, RewardBatch<BFloat16, GroupsOf>{narrow, groups.equal}, Gdpo{}, out);
  one_estimator(call, RewardBatch<double, GroupsOf>{wide, groups.equal}, Gdpo{}, out);
  one_estimator(call, RewardBatch<std::int32_t, GroupsOf>{integers, groups.equal}, Gdpo{}, out);
}

// ---- logits ----

template <class T, int Rank>
void logits(const Call& call, const LogitBatch<T, Rank>& batch, View<T, Rank> dlogits, const cuda::FromLogits& out,
            View<LogitRow, 1> rows) {
  token_logprobs_into(call.on, batch, {out.logp, out.entropies, out.logsumexp});
  logit_rows(call.on, batch, rows);
  TokenLogprobsGrad grad;
  token_logprobs_backward(call.on, batch, grad, {}, {}, dlogits);
}
template <class T, int Rank, class... Losses>
void fused(const Call& call, const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch, View<T, Rank> dlogits,
           const OfLoss& to, const Losses&... losses) {
  cuda::count_into(call.on, logits, batch, to.normaliser, call.scratch);
  (policy_loss_from_logits(call.on, losses, logits, batch, static_cast<const Normaliser*>(to.normaliser), dlogits,
                           to.result, call.scratch),
   ...);
}

template void logits(const Call&, const LogitBatch<float, 2>&, View<float, 2>, const cuda::FromLogits&,
                     View<LogitRow, 1>);
template void logits(const Call&, const LogitBatch<BFloat16, 3>&, View<BFloat16, 3>, const cuda::FromLogits&,
                     View<LogitRow, 1>);
template void logits(const Call&, const LogitBatch<Float16, 2>&, View<Float16, 2>, const cuda::FromLogits&,
                     View<LogitRow, 1>);
template void logits(const Call&, const LogitBatch<double, 2>&, View<double, 2>, const cuda::FromLogits&,
                     View<LogitRow, 1>);

void fused_losses(const Call& call, const LogitBatch<BFloat16, 3>& narrow, const LogitBatch<float, 2>& wide,
                  const TokenBatch<float>& batch, View<BFloat16, 3> dnarrow, View<float, 2> dwide, const OfLoss& to) {
  fused(call, narrow, batch, dnarrow, to, grpo_loss, gspo_loss);
  fused(call, wide, batch, dwide, to, dapo_loss);
#if defined(GDPO_TEST_FULL_PRODUCT)
  fused(call, wide, batch, dwide, to, verl::vanilla_loss, dr_grpo_loss, gspo_token_loss);
#endif
}

}  // namespace all_policies
