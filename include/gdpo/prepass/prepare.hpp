#pragma once
// prepare: runs pre-passes on a batch.
#include <gdpo/math/check_fields.hpp>
#include <gdpo/prepass/chain.hpp>
#include <gdpo/prepass/engine/run_prepass.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// prepare() without chains.
template <class S, class... Passes>
TokenBatch<S> run_prepasses(const TokenBatch<S>& batch, PrepassMemory<S>& memory,
                            const Passes&... passes) {
  static_assert((is_prepass_v<Passes, S> && ...),
                "a pre-pass needs: reach, template <class S> void operator()(const "
                "gdpo::PrepassArgs<S>&) const");
  constexpr const char* function = "gdpo::prepare";
  const TokenLayout layout = layout_of(function, batch, NeedsLogp::No);
  (check_fields(function, passes), ...);
  memory.rows.reserve(layout.longest);
  TokenBatch<S> prepared = batch;
  const bool moves = batch.prepared.uses && batch.prepared.uses != memory.uses.data();
  if (((passes.reach != Reach::None) || ...)) {  // only then are arrays of the memory written
    if (memory.uses.empty()) memory.uses.assign(1, 0);
    prepared.prepared.uses = memory.uses.data();
    prepared.prepared.use = ++memory.uses[0];
  }

  const auto n = static_cast<std::size_t>(layout.tokens);
  // A dense copy of the array, or all `absent`.
  const auto gather = [&](const auto& tokens, auto& array, int absent = 1) {
    using T = typename std::decay_t<decltype(array)>::value_type;
    if (!tokens) return array.assign(n, static_cast<T>(absent));
    array.resize(n);  // keeps the values: `tokens` may be `array`, from an earlier prepare()
    for (index_t i = 0; i < layout.rows; ++i) {
      const RowSpan span = layout(i);
      T* row = array.data() + span.begin;
      const T* source = tokens.row(i, span.begin, span.length, row);
      if (source != row) std::copy(source, source + span.length, row);
    }
  };

  if (moves && prepared.prepared.uses == memory.uses.data()) {
    // An earlier call used another memory. Its arrays are copied to this one, because only the
    // uses of this one are checked.
    const auto move = [&](auto& tokens, auto& array) {
      if (!tokens) return;
      gather(tokens, array);
      tokens = dense(layout, array);
    };
    move(prepared.mask, memory.mask), move(prepared.completion_mask, memory.completion);
    move(prepared.weights, memory.weights), move(prepared.kl_weights, memory.kl_weights);
    move(prepared.entropy_weights, memory.entropy_weights);
    move(prepared.level_log_weights, memory.level_log_weights);
  }
  if (!batch.completion_mask && batch.mask) prepared.completion_mask = batch.mask;
  prepared.rollout_non_finite = non_finite_rollout(batch, layout, memory.rows);
  if (((passes.reach == Reach::Mask) || ...)) {
    if (!batch.completion_mask && !batch.mask) {
      memory.completion.assign(n, 1);
      prepared.completion_mask = dense(layout, memory.completion);
    }
    gather(batch.mask, memory.mask);
    const PrepassRows<S> rows(batch, layout, memory);
    [[maybe_unused]] const auto remove = [&](const auto& pass) {
      if (pass.reach != Reach::Mask) return;
      run_prepass(pass, rows, memory.pass, prepared.entropy_threshold);
      for (std::size_t k = 0; k < n; ++k) memory.kept[k] = memory.kept[k] && memory.pass[k] != 0;
    };
    memory.kept.assign(n, 1);  // apart from the mask, which all of these pre-passes see as given
    (remove(passes), ...);
    for (std::size_t k = 0; k < n; ++k) memory.mask[k] = memory.mask[k] && memory.kept[k];
    prepared.mask = dense(layout, memory.mask);
    ++prepared.prepared.mask_changes;
  }

  const bool surrogate = (reaches_surrogate(passes.reach) || ...),
             kl = (reaches_kl(passes.reach) || ...);
  if (surrogate || kl) {
    if (surrogate) {
      gather(batch.weights, memory.weights);
      prepared.weights = dense(layout, memory.weights);
    }
    if (kl) {
      gather(batch.kl_weights, memory.kl_weights);
      prepared.kl_weights = dense(layout, memory.kl_weights);
    }
    const TokenBatch<S> left = prepared;
    const PrepassRows<S> rows(left, layout, memory);
    [[maybe_unused]] const auto weigh = [&](const auto& pass) {
      const bool of_surrogate = reaches_surrogate(pass.reach), of_kl = reaches_kl(pass.reach);
      if (!of_surrogate && !of_kl) return;
      run_prepass(pass, rows, memory.pass, prepared.entropy_threshold);
      for (std::size_t k = 0; k < n; ++k) {
        const S w = stored_weight<S>(memory.pass[k]);
        if (of_surrogate) memory.weights[k] = weighed(memory.weights[k], w);
        if (of_kl) memory.kl_weights[k] = weighed(memory.kl_weights[k], w);
      }
    };
    (weigh(passes), ...);
  }
  if ((reaches_entropy(passes.reach) || ...)) {
    gather(batch.entropy_weights, memory.entropy_weights);
    prepared.entropy_weights = dense(layout, memory.entropy_weights);
    TokenBatch<S> left = prepared;
    left.weights = prepared.entropy_weights;  // those so far, as the pre-passes see them
    const PrepassRows<S> rows(left, layout, memory);
    [[maybe_unused]] const auto weigh = [&](const auto& pass) {
      if (!reaches_entropy(pass.reach)) return;
      run_prepass(pass, rows, memory.pass, prepared.entropy_threshold);
      for (std::size_t k = 0; k < n; ++k) {
        memory.entropy_weights[k] =
            weighed(memory.entropy_weights[k], stored_weight<S>(memory.pass[k]));
      }
    };
    (weigh(passes), ...);
  }
  if ((reaches_level(passes.reach) || ...)) {
    memory.level_weights.assign(n, S(1));
    gather(batch.level_log_weights, memory.level_log_weights, 0);
    TokenBatch<S> left = prepared;
    left.weights = dense(layout, memory.level_weights);
    const PrepassRows<S> rows(left, layout, memory);
    bool shared = true;
    [[maybe_unused]] const auto weigh = [&](const auto& pass) {
      if (!reaches_level(pass.reach)) return;
      run_prepass(pass, rows, memory.pass, prepared.entropy_threshold);
      for (std::size_t k = 0; k < n; ++k) {
        memory.level_weights[k] =
            weighed(memory.level_weights[k], stored_weight<S>(memory.pass[k]));
      }
      shared = shared && is_shared(pass);
    };
    (weigh(passes), ...);
    add_level_logs(rows, shared, memory.level_weights.data(), memory.level_log_weights.data());
    prepared.level_log_weights = dense(layout, memory.level_log_weights);
  }
  return prepared;
}

}  // namespace detail

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
/// It runs on the calling thread; prepare(cuda::On{stream}, batch, memory, passes...) does the same
/// on a device (cuda/prepass/device_prepare.hpp). PrepassArgs says how to write a pre-pass of your
/// own. Errors: invalid_input for settings out of range (also of pre-passes with Reach::None),
/// shapes that do not fit and arrays that are missing.
template <class S, class... Passes>
TokenBatch<S> prepare(const TokenBatch<S>& batch, PrepassMemory<S>& memory,
                      const Passes&... passes) {
  if constexpr ((detail::is_chain_v<Passes> || ...)) {
    return std::apply(
        [&](const auto&... parts) { return detail::run_prepasses(batch, memory, parts...); },
        std::tuple_cat(detail::parts_of(passes)...));
  } else {
    return detail::run_prepasses(batch, memory, passes...);
  }
}

GDPO_END_NAMESPACE
