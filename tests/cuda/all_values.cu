// Every shipped estimator over tokens and value loss, outcome estimators, and the mismatch report,
// on a device, through the front doors. Compiled wherever nvcc is found, but never run: the tests
// with label gpu check the results.
#include <gdpo/cuda.hpp>
#include <gdpo/runtime.hpp>

namespace all_values {

using namespace gdpo;

struct Call {
  cuda::On on;
  cuda::Scratch scratch;
};

template <class S, class Estimator>
void one_estimator(const Call& call, const Estimator& estimator, const ReturnBatch<S>& batch,
                   View<S, 2> advantages, View<S, 2> returns) {
  if (cuda::scratch_bytes(estimator, batch) > call.scratch.bytes) return;
  advantages_and_returns_into(call.on, batch, estimator, advantages, returns, call.scratch);
}
void estimators(const Call& call, const ReturnBatch<float>& batch, View<float, 2> advantages,
                View<float, 2> returns, const ReturnBatch<double>& wide, View<double, 2> to_wide) {
  // Those that runtime::token_advantage finds by name choose the estimate of the KL at run time.
  std::visit([&](const auto& e) { one_estimator(call, e, batch, advantages, returns); },
             runtime::token_advantage("verl::gae"));
  one_estimator(call, TokenAdvantage<>{}, batch, advantages, returns);
  one_estimator(call, TokenAdvantage<returns::RewardToGo, Kl<kl::K3>>{}, batch, advantages,
                returns);
  one_estimator(call, TokenAdvantage<>{}, wide, to_wide, to_wide);
}

void outcomes(const Call& call, View<const float, 2> rewards, const ReturnBatch<float>& batch,
              View<float, 2> advantages, View<float, 2> returns) {
  const RewardBatch<float, GroupsOf> rows{rewards, groups_of(8)};
  const auto one = [&](const auto& estimator) {
    if (cuda::scratch_bytes(estimator, rows, batch) > call.scratch.bytes) return;
    advantages_and_returns_into(call.on, rows, batch, estimator, advantages, returns, call.scratch);
  };
  one(OutcomeAdvantage<>{});
  one(OutcomeAdvantage<GroupAdvantage<baseline::BatchMean>, TokenAdvantage<>>{});
}

template <class S, class Loss>
void one_loss(const Call& call, const Loss& loss, const ValueBatch<S>& batch, View<S, 2> gradient,
              Normalizer* normalizer, ValueLossResult* result) {
  if (cuda::scratch_bytes(loss, batch) > call.scratch.bytes) return;
  cuda::count_into(call.on, batch, normalizer, call.scratch);
  loss(call.on, batch, static_cast<const Normalizer*>(normalizer), gradient, result, call.scratch);
}
void losses(const Call& call, const ValueBatch<float>& batch, View<float, 2> gradient,
            const ValueBatch<double>& wide, View<double, 2> to_wide, Normalizer* normalizer,
            ValueLossResult* result) {
  presets::for_each_value_loss([&](const auto& preset) {
    one_loss(call, preset.value, batch, gradient, normalizer, result);
  });
  one_loss(call, runtime::value_loss("verl::value_loss"), batch, gradient, normalizer, result);
  one_loss(call, with_metrics<metrics::None>(ValueLoss<>{}), batch, gradient, normalizer, result);
  one_loss(call, ValueLoss<>{}, wide, to_wide, normalizer, result);
}

template <class S>
void reports(const Call& call, const TokenBatch<S>& batch, MismatchReport* report) {
  if (cuda::mismatch_bytes(batch) > call.scratch.bytes) return;
  cuda::mismatch_into(call.on, batch, report, call.scratch);
}
template void reports(const Call&, const TokenBatch<float>&, MismatchReport*);
template void reports(const Call&, const TokenBatch<double>&, MismatchReport*);

}  // namespace all_values
