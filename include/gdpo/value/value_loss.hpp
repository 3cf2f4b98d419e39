#pragma once
// ValueLoss: the loss of a critic, with an optional clip.
#include <gdpo/value/engine/value_row.hpp>

GDPO_BEGIN_NAMESPACE

/// Scratch memory of value losses.
template <class S>
using ValueWorkspace = TokenWorkspace<S, detail::ValueTally>;
namespace detail {

/// The mean over tokens, if A is the library's aggregate; else A with its own defaults.
template <class A>
constexpr A mean_over_tokens() {
  if constexpr (std::is_same_v<A, Aggregate>) {
    return aggregate::token_mean();
  } else {
    return {};
  }
}

}  // namespace detail

/// The counts of one (micro-)batch: valid tokens, rows, and rows with a valid token.
///
/// They are those of a TokenBatch with the same mask or offsets, so a step whose policy and critic
/// see the same tokens counts once and gives both losses the same Normalizer. Values need not be
/// there. Throws invalid_input for shapes and offsets that do not fit.
template <class S>
Normalizer count(const ValueBatch<S>& batch) {
  constexpr const char* function = "gdpo::count";
  const TokenBatch<S> tokens = detail::tokens_of(batch, true);
  Normalizer n =
      detail::count_rows(tokens, detail::layout_of(function, batch, detail::NeedsLogp::No));
  n.counted = {tokens.prepared.mask_changes, n.tokens, n.rows};
  return n;
}

/// PPO's loss of a critic over tokens, clipped or not, with its analytic gradient and metrics.
///
/// With the value v of a token, its value at the rollout v_old, its return R and h = 1/2 (`half`)
/// or 1,
///
///     L    = h max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2)
///     loss = sum over rows i of W_i sum over valid tokens t of L_it
///     dloss/dv_it = W_i 2 h (v - R)   where the first square is the larger one or both are equal
///                   0                 where the second square is strictly larger
///
/// c is `clip`; where it is infinite, L = h (v - R)^2. With `delta`, each square is Huber's: from
/// an error e of |e| = delta on it is 2 delta (|e| - delta / 2), and its slope 2 delta in size. W_i
/// is the weight of the row (`aggregate` and `ValueBatch::row_weights`), as in a PolicyLoss.
///
/// The second square is strictly larger only where v lies outside of v_old - c .. v_old + c. There
/// the clip does not depend on v, so that branch has no gradient: it stops a value that has moved
/// by more than c towards its return. At a tie outside of the interval the gradient is that of the
/// first square; torch.max gives half of it.
///
/// Source: PPO2 of OpenAI's baselines, whose clip follows that of the policy (arXiv 1707.06347).
/// verl core_algos.compute_value_loss (h = 1/2, any aggregate), OpenRLHF ValueLoss (h = 1/2, clip
/// optional), NeMo-RL MseValueLossFn, slime value_loss_function, AReaL ppo_critic_loss_fn (mse, and
/// huber with delta 10).
///
///     gdpo::ValueLoss<> loss;  // mean over tokens
///     loss.clip = 0.2;
///     const gdpo::ValueLossResult r =
///         loss(batch, gdpo::count(batch), gdpo::view(dvalues, rows, width));
///
/// It is an aggregate and trivially copyable, so it can be a constant and a kernel argument.
/// `Metrics` is the set that is measured: metrics::All; metrics::Means, without ranges over tokens;
/// or metrics::None, which keeps rows and inputs that are not finite. It changes no bit of the loss
/// or its gradient.
template <class Aggregate = gdpo::Aggregate, class Metrics = metrics::All>
struct ValueLoss {
  static_assert(is_aggregate_v<Aggregate>,
                "an Aggregate needs: double operator()(const gdpo::AggregateArgs&) const");
  static_assert(is_metrics_v<Metrics>, "Metrics is metrics::All, metrics::Means or metrics::None");

  /// c, how far a value may move from its value at the rollout, in units of the return; at least 0.
  /// Infinite: no clip, and ValueBatch::old_values is not read. In a batch of float so is a clip
  /// beyond the largest float.
  double clip = math::infinity;
  bool half = true;  ///< Whether the squares are halved.
  /// What the loss is divided by (tokens/aggregate.hpp): by default the tokens.
  Aggregate aggregate = detail::mean_over_tokens<Aggregate>();
  /// The error |v - R| from which on a square grows linearly, in units of the return; more than 0.
  /// Infinite: nowhere.
  double delta = math::infinity;
  static constexpr Metrics metrics{};  ///< What is measured (ValueMetrics).
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("clip", s.clip, at_least(0).or_infinity("no clip"), "how far a value may move");
    field("half", s.half, "the squares are halved");
    field("aggregate", s.aggregate, "what the loss is divided by");
    field("delta", s.delta, more_than(0).or_infinity("off"), "from where on the loss is linear");
  }

  /// Computes loss and metrics and, if `gradient` is given, dloss/dv of every token.
  ///
  /// - `exec`: seq, simd or parallel(executor); all give the same bits.
  /// - `normalizer`: count(batch), summed over the micro-batches and ranks of the step.
  /// - `gradient`: has the shape of batch.values and elements of type S, and may not overlap the
  ///   arrays of the batch. Every position is written, with exactly 0 where the mask is 0 and in
  ///   rows of weight 0. `{}` is no gradient.
  /// - `workspace`: kept by the caller. After a first call of the same shape and executor, nothing
  ///   is allocated.
  ///
  /// Order of summation: the tokens of a row in 16 lanes (detail::RowValueLoss says how). The rows
  /// form at most 128 units of consecutive rows, cut by the number of rows alone; the rows of a
  /// unit are added in order, then the units in order. Moments are those of each row, by two passes
  /// in double, merged in the same order.
  ///
  /// Accuracy in a float batch: v - R, its square and the clip are rounded to float, and up to 64
  /// tokens are added in float. The loss and the means of metrics are off by about 1e-6 of the sum
  /// of the absolute terms; a square that exceeds 3e38 is infinite.
  ///
  /// Errors: invalid_input, before anything is written, for settings out of range, shapes that do
  /// not fit, missing arrays, and a count of 0 that the aggregate divides by while the batch has
  /// valid tokens. Data never throws: NaN and infinities flow into the loss and are counted
  /// (`ValueMetrics::non_finite`). A NaN in any input that is read makes loss and gradient of its
  /// token NaN.
  template <class Exec, class S>
  ValueLossResult operator()(const Exec& exec, const ValueBatch<S>& batch,
                             const Normalizer& normalizer,
                             const std::common_type_t<TokenOut<S>>& gradient,
                             ValueWorkspace<S>& workspace) const {
    static_assert(detail::needs_exec<Exec>());
    constexpr const char* function = "gdpo::ValueLoss";
    using namespace detail;
    const TokenBatch<S> tokens = tokens_of(batch, clips<S>(clip));
    const TokenLayout layout = layout_of(function, batch, NeedsLogp::Yes);
    check_value_loss(function, *this, batch, layout);
    const RowDriver<S, Aggregate> call(function, aggregate, tokens, layout, TokenReads::none(),
                                       normalizer, gradient);
    const ValueTally total =
        call.template run<RowValueLoss<Exec, S, ValueLoss>>(exec, *this, workspace);
    Normalizer seen = seen_by(total.metrics);
    seen.tokens = total.tokens;
    check_seen(function, call.over(), normalizer, seen);
    ValueLossResult result;
    result.loss = total.loss, result.normalizer = normalizer, result.metrics = total.metrics;
    result.over = call.over();
    return result;
  }
  /// The same on a device, with the arguments that cuda/value/device_value_loss.hpp describes.
  template <class Device, class... Arguments,
            std::enable_if_t<detail::is_device_v<Device>, int> = 0>
  void operator()(const Device& device, const Arguments&... arguments) const {
    evaluate(device, *this, arguments...);
  }
  /// The same on one thread in vector lanes (simd), with a workspace of its own, which is allocated
  /// in each call. Without `gradient`, only loss and metrics are computed.
  template <class S>
  ValueLossResult operator()(const ValueBatch<S>& batch, const Normalizer& normalizer,
                             const std::common_type_t<TokenOut<S>>& gradient = {}) const {
    ValueWorkspace<S> workspace;
    return (*this)(simd, batch, normalizer, gradient, workspace);
  }
};

/// The same value loss with another set of metrics, all settings kept.
template <class NewMetrics, class Aggregate, class Metrics>
constexpr ValueLoss<Aggregate, NewMetrics> with_metrics(const ValueLoss<Aggregate, Metrics>& loss) {
  return {loss.clip, loss.half, loss.aggregate, loss.delta};
}

GDPO_END_NAMESPACE
