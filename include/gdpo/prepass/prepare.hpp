#pragma once
// prepare: runs pre-passes on a batch.
#include <algorithm>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/prepass/chain.hpp>
#include <gdpo/prepass/engine/run_prepass.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// Runs `count` steps, which it puts in the order of their turns. `finish`: see Preparation::run.
template <class Exec, class S, class Finish = std::nullptr_t>
TokenBatch<S> run_steps(const Exec& exec, const TokenBatch<S>& batch, const TokenLayout& layout,
                        PrepassMemory<S>& memory, PrepassStep<S>* steps, std::size_t count,
                        const Finish& finish = nullptr) {
  const auto before = [](const PrepassStep<S>& a, const PrepassStep<S>& b) {
    return turn_of(a.reach) < turn_of(b.reach);
  };
  int n = 0;  // without those that reach nothing, which come last
  for (PrepassStep<S>* step = steps; step != steps + count; ++step) {
    n += array_of(step->reach) != PrepassArray::None;
    std::rotate(std::upper_bound(steps, step, *step, before), step, step + 1);
  }
  return Preparation<S, PrepassLanes<Exec>>(batch, layout, memory, steps, n).run(exec, finish);
}

/// prepare() without chains.
template <class Exec, class S, class... Passes>
TokenBatch<S> run_prepasses(const Exec& exec, const TokenBatch<S>& batch, PrepassMemory<S>& memory,
                            const Passes&... passes) {
  static_assert((is_prepass_v<Passes, S> && ...),
                "a pre-pass needs: reach, template <class S> void operator()(const "
                "gdpo::PrepassArgs<S>&) const");
  constexpr const char* function = "gdpo::prepare";
  const TokenLayout layout = layout_of(function, batch, NeedsLogp::No);
  (check_fields(function, passes), ...);
  std::array<PrepassStep<S>, sizeof...(Passes)> steps{step_of<PrepassLanes<Exec>, S>(passes)...};
  return run_steps(exec, batch, layout, memory, steps.data(), steps.size());
}

}  // namespace detail

/// prepare() as below on the threads that a tag names: gdpo::seq, gdpo::simd or
/// gdpo::parallel(executor). All give the same bits. A pre-pass of your own runs on the calling
/// thread, and so does what others decide from the whole batch.
template <class Exec, class S, class... Passes, std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
TokenBatch<S> prepare(const Exec& exec, const TokenBatch<S>& batch, PrepassMemory<S>& memory,
                      const Passes&... passes) {
  if constexpr ((detail::is_chain_v<Passes> || ...)) {
    return std::apply(
        [&](const auto&... parts) { return detail::run_prepasses(exec, batch, memory, parts...); },
        std::tuple_cat(detail::parts_of(passes)...));
  } else {
    return detail::run_prepasses(exec, batch, memory, passes...);
  }
}

/// The batch with the decisions of its pre-passes in mask, weights, kl_weights, entropy_weights and
/// level_log_weights.
///
/// Pre-passes with Reach::Mask run first, wherever they stand among the arguments. Each of them
/// sees the mask as given, so their order does not matter. The others then run in the order of the
/// arguments, on the mask that is left and the weights that those before them left. Masks and
/// weights that the caller had set are kept: masks are combined, weights multiplied, and a weight 0
/// of either drops the token.
///
/// Reach::Entropy multiplies weights into entropy_weights. Its pre-passes see these as the weights
/// so far: TopEntropy with MeanOne behind it, both with this reach, make the mean of an
/// EntropyBonus one over the tokens of high entropy.
///
/// Reach::Level takes the product u of the weights of its pre-passes, and adds
///
///     l = clamp(log u, log 1e-8, 20)
///
/// to level_log_weights, the bounds being those of TRL and unsloth. Where each of these pre-passes
/// gives one number for all tokens of a segment, row or group, l counts once: it stands at the
/// first valid token of each segment of the batch. Where one of them weighs each token for itself,
/// l stands at every valid token. A u of NaN gives NaN; 0, a dropped token, gives log 1e-8, so that
/// the ratio goes to the lower bound of its level and the token stays in all counts. Tokens that a
/// later prepare() masks take their l with them: call those pre-passes first.
///
/// It also fills completion_mask, rollout_non_finite and
/// entropy_threshold; all other members are copied.
///
/// The result points into `memory` and to the arrays of `batch`, which must outlive it. Call
/// count() on the result, not on `batch`: only then are dropped tokens left out of the counts. A
/// loss of the result refuses what count() returned for `batch` if a pre-pass has
/// Reach::Mask.
///
/// `logp` is needed only by pre-passes that read it: Covariance and FutureKl, Gate and Importance
/// on another pair than Mismatch, and the others that read log-probs where there is no old_logp.
/// Without it the shape is that of the first array that is there, so that a step may be prepared
/// and counted before its forward pass; assign `logp`, and the other log-probs of that pass, to the
/// result afterwards.
///
/// It runs on the calling thread, or on several: prepare(gdpo::parallel(executor), batch, memory,
/// passes...). prepare(cuda::On{stream}, batch, memory, passes...) does the same
/// on a device (cuda/prepass/device_prepare.hpp). PrepassArgs says how to write a pre-pass of your
/// own. Errors: invalid_input for settings out of range (also of pre-passes with Reach::None),
/// shapes that do not fit and arrays that are missing.
template <class S, class... Passes>
TokenBatch<S> prepare(const TokenBatch<S>& batch, PrepassMemory<S>& memory,
                      const Passes&... passes) {
  return prepare(simd, batch, memory, passes...);
}

GDPO_END_NAMESPACE
