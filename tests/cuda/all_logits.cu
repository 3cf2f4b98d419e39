// The calls from logits on a device, for every storage type of logits, and fused with named losses;
// then host calls, which a file for nvcc may make as well. Compiled wherever nvcc is found, but
// never run, like all_policies.cu.
#include <gdpo/advantages.hpp>
#include <gdpo/cuda.hpp>
#include <gdpo/presets/verl.hpp>

namespace all_logits {

using namespace gdpo;

struct Call {
  cuda::On on;
  cuda::Scratch scratch;
};

template <class T, int Rank>
void rows(const Call& call, const LogitBatch<T, Rank>& batch, View<T, Rank> dlogits,
          const cuda::FromLogits& out, View<LogitRow, 1> to) {
  token_logprobs_into(call.on, batch, {out.logp, out.entropies, out.logsumexp});
  logit_rows(call.on, batch, to);
  TokenLogprobsGrad grad;
  token_logprobs_backward(call.on, batch, grad, {}, {}, dlogits);
}
template void rows(const Call&, const LogitBatch<float, 2>&, View<float, 2>,
                   const cuda::FromLogits&, View<LogitRow, 1>);
template void rows(const Call&, const LogitBatch<BFloat16, 3>&, View<BFloat16, 3>,
                   const cuda::FromLogits&, View<LogitRow, 1>);
template void rows(const Call&, const LogitBatch<Float16, 2>&, View<Float16, 2>,
                   const cuda::FromLogits&, View<LogitRow, 1>);
template void rows(const Call&, const LogitBatch<double, 2>&, View<double, 2>,
                   const cuda::FromLogits&, View<LogitRow, 1>);

struct OfLoss {
  Normalizer* normalizer;
  LossResult* result;
};
template <class T, int Rank, class... Losses>
void fused(const Call& call, const LogitBatch<T, Rank>& logits, const TokenBatch<float>& batch,
           View<T, Rank> dlogits, const OfLoss& to, const Losses&... losses) {
  cuda::count_into(call.on, logits, batch, to.normalizer, call.scratch);
  (policy_loss_from_logits(call.on, losses, logits, batch,
                           static_cast<const Normalizer*>(to.normalizer), dlogits, to.result,
                           call.scratch),
   ...);
}
void fused_losses(const Call& call, const LogitBatch<BFloat16, 3>& narrow,
                  const LogitBatch<float, 2>& wide, const TokenBatch<float>& batch,
                  View<BFloat16, 3> dnarrow, View<float, 2> dwide, const OfLoss& to) {
  fused(call, narrow, batch, dnarrow, to, grpo_loss, gspo_loss);
  fused(call, wide, batch, dwide, to, dapo_loss, verl::vanilla_loss, dr_grpo_loss, gspo_token_loss);
}

template <class T, int Rank>
void distilled(const Call& call, const LogitBatch<T, Rank>& logits,
               const TeacherTopK<Rank>& teacher, const TokenBatch<float>& batch,
               View<T, Rank> dlogits, const Normalizer* normalizer, DistillationResult* to) {
  distillation_from_logits(call.on, DistillationLoss{0.5, Rest::Tail}, logits, teacher, batch,
                           normalizer, dlogits, to, call.scratch);
}
template void distilled(const Call&, const LogitBatch<BFloat16, 3>&, const TeacherTopK<3>&,
                        const TokenBatch<float>&, View<BFloat16, 3>, const Normalizer*,
                        DistillationResult*);
template void distilled(const Call&, const LogitBatch<float, 2>&, const TeacherTopK<2>&,
                        const TokenBatch<float>&, View<float, 2>, const Normalizer*,
                        DistillationResult*);

// ---- on the host ----

std::vector<double> host_advantages(View<const double, 2> rewards) {
  return advantages(rewards, groups_of(4));
}
LossResult host_loss(const TokenBatch<float>& batch, View<float, 2> gradient) {
  return grpo_loss(batch, count(batch), gradient);
}

}  // namespace all_logits
