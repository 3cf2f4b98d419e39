#pragma once
// PolicyLoss: a policy loss over tokens, composed of its axes.
#include <gdpo/loss/engine/row_loss.hpp>
#include <gdpo/loss/entropy.hpp>
#include <gdpo/loss/shared/write_result.hpp>
#include <gdpo/loss/surrogate.hpp>
#include <gdpo/tokens/count.hpp>

GDPO_BEGIN_NAMESPACE

/// A policy loss over tokens, with its analytic gradient and metrics.
///
/// The type is the algorithm and the members are its settings. It is an aggregate and trivially
/// copyable, so a loss can be a constant and a kernel argument.
///
///     loss = sum over rows i of W_i sum over tokens t of
///                (f_it w_it surrogate_it + sum over KL terms k of beta_k w'_it kl_k,it)
///            - entropy.coef (the mean of the entropies, EntropyBonus)
///
/// W_i is the weight of the row (`aggregate` and `TokenBatch::row_weights`), f the product of the
/// factors, w and w' are `TokenBatch::weights` and `kl_weights`; f, w and w' are detached. A KL
/// term may have factors and an aggregate of its own (Kl), for which w' and W_i stand here too.
/// Each term has a derivative by the level's log ratio and one by the token's own logp (Term). The
/// gradient is
///
///     dloss/dlogp_t = spread(g)_t + h_t
///     g_t = W_i (f w surrogate.d_log_ratio + sum over k of beta_k w' kl_k.d_log_ratio)
///     h_t = W_i (f w surrogate.d_logp + sum over k of beta_k w' kl_k.d_logp)
///
/// where `spread` belongs to the level: level::Token and level::SequenceToken give each token its
/// own g_t, level::Sequence shares the sum of g over the segment (loss/level.hpp).
///
///     auto loss = gdpo::grpo_loss;
///     loss.kl.beta = 0.02;
///     const gdpo::LossResult r =
///         loss(batch, gdpo::count(batch), gdpo::view(dlogp, rows, width));
///
/// The ratio is against old_logp: the policy that sampled, or the proximal one. Some texts write
/// the reference policy there; bind its log-probs as old_logp to get that.
template <class Level = level::Token<>, class Surrogate = surrogate::Ratio, class Kl = gdpo::Kl<>,
          class Aggregate = gdpo::Aggregate, class Factor = Factors<>, class Metrics = metrics::All>
struct PolicyLoss {
  static_assert(is_level_v<Level>,
                "a Level is level::Token, level::Sequence or level::SequenceToken");
  static_assert(detail::is_factors_v<Factor>,
                "factors stand in a list: gdpo::Factors<...>; none: gdpo::Factors<>");
  static_assert(is_surrogate_v<Surrogate> && !is_kl_v<Surrogate>,
                "a Surrogate needs: template <class V> gdpo::Term<V> operator()(const "
                "gdpo::Token<V>&) const");
  static_assert(is_kl_v<Kl>,
                "a KL term needs: beta, against, template <class V> gdpo::Term<V> operator()(const "
                "gdpo::Token<V>&) "
                "const; none: gdpo::kl::None, several: gdpo::Kls<...>");
  static_assert(is_aggregate_v<Aggregate>,
                "an Aggregate needs: double operator()(const gdpo::AggregateArgs&) const");
  static_assert(is_metrics_v<Metrics>, "Metrics is metrics::All, metrics::Means or metrics::None");

  Level level{};                       ///< Whose ratio the surrogate sees (loss/level.hpp).
  Surrogate surrogate{};               ///< What the advantage weighs (loss/surrogate.hpp).
  Kl kl{};                             ///< KL terms (loss/kl.hpp).
  Aggregate aggregate{};               ///< What the loss is divided by (tokens/aggregate.hpp).
  Factor factor{};                     ///< Detached factors of the surrogate (loss/factor.hpp).
  EntropyBonus entropy{};              ///< A bonus for the entropy (loss/entropy.hpp); off.
  static constexpr Metrics metrics{};  ///< What is measured (loss/metrics.hpp).
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("level", s.level, "whose ratio the surrogate sees");
    field("surrogate", s.surrogate, "the part that the advantage weighs");
    field("kl", s.kl, "the distance to another policy");
    field("aggregate", s.aggregate, "what the loss is divided by");
    field("factor", s.factor, "detached factors of the surrogate");
    field("entropy", s.entropy, "a bonus for the entropy of the policy");
  }

  /// Computes loss and metrics and, if `gradient` is given, dloss/dlogp of every token.
  ///
  /// - `exec`: seq, simd or parallel(executor); all give the same bits.
  /// - `normalizer`: count(batch), summed over the micro-batches and ranks of the step.
  /// - `gradient`: has the shape of batch.logp and elements of type S, and may not overlap the
  ///   arrays of the batch. Every position is written, with exactly 0 where the mask is 0. `{}` is
  ///   no gradient, `{by_logp, by_entropies}` has that by the entropies too (LossGradient).
  /// - `workspace`: kept by the caller. After a first call of the same shape and executor, nothing
  ///   is allocated.
  ///
  /// Order of summation: the tokens of a row in 16 lanes (detail::RowLoss says how). The rows form
  /// at most 128 units of consecutive rows, cut by the number of rows alone; the rows of a unit are
  /// added in order, then the units in order.
  ///
  /// Accuracy in a float batch: the loss and the means of metrics are off by about 1e-6 of the sum
  /// of the absolute terms. Up to 64 tokens are added in float, so if those exceed 3e38, the sum is
  /// infinite; a ratio saturates at 5e34.
  ///
  /// Errors: invalid_input, before anything is written, for settings out of range, shapes that do
  /// not fit, missing arrays, and a count of 0 that the aggregate divides by while the batch has
  /// valid tokens. The same for a count that the aggregate divides by and that is less than the
  /// batch holds; tokens and rows that a mask has to tell are known only after the rows have been
  /// computed, and the gradient is then written. Data never throws: NaN and infinities flow into
  /// the loss and are counted (`LossMetrics::non_finite`). On several threads policies of your own
  /// must not throw.
  template <class Exec, class S>
  LossResult operator()(const Exec& exec, const TokenBatch<S>& batch, const Normalizer& normalizer,
                        const std::common_type_t<LossGradient<S>>& gradient,
                        LossWorkspace<S>& workspace) const {
    return evaluate(exec, *this, batch, normalizer, gradient, workspace);
  }
  /// The same on a device, with the arguments that cuda/loss/device_loss.hpp describes.
  template <class Device, class... Arguments,
            std::enable_if_t<detail::is_device_v<Device>, int> = 0>
  void operator()(const Device& device, const Arguments&... arguments) const {
    evaluate(device, *this, arguments...);
  }
  /// The same on one thread in vector lanes (simd), with a workspace of its own, which is allocated
  /// in each call. Without `gradient`, only loss and metrics are computed.
  template <class S>
  LossResult operator()(const TokenBatch<S>& batch, const Normalizer& normalizer,
                        const std::common_type_t<LossGradient<S>>& gradient = {}) const {
    LossWorkspace<S> workspace;
    return evaluate(simd, *this, batch, normalizer, gradient, workspace);
  }
};

/// Whether P is a loss: a type with the members level, surrogate, kl, aggregate, factor, metrics.
/// A member `entropy`, an EntropyBonus, is optional.
///
/// A loss of your own is called by evaluate(), and the library takes it wherever it takes a
/// PolicyLoss.
template <class P, class = void>
constexpr bool is_loss_v = false;
template <class P>
constexpr bool
    is_loss_v<P, std::void_t<decltype(P::level), decltype(P::surrogate), decltype(P::kl),
                             decltype(P::aggregate), decltype(P::factor), decltype(P::metrics)>> =
        true;

namespace detail {

template <class Metrics, class Level, class Surrogate, class Kl, class Aggregate, class Factor>
constexpr auto compose(const Metrics&, const Level& level, const Surrogate& surrogate, const Kl& kl,
                       const Aggregate& aggregate, const Factor& factor,
                       const EntropyBonus& entropy) {
  return PolicyLoss<Level, Surrogate, Kl, Aggregate, Factor, Metrics>{
      level, surrogate, kl, aggregate, factor, entropy};
}

/// Fails to compile if `Loss` is no loss, or if its policies do not fit; composing a PolicyLoss of
/// them finds the latter. It returns true, so that a static_assert can call it: compilers print the
/// message of a failed static_assert before the errors that follow from it.
template <class Loss>
constexpr bool needs_loss() {
  static_assert(is_loss_v<Loss>,
                "a loss is a gdpo::PolicyLoss, or has its members: level, surrogate, kl, "
                "aggregate, factor, metrics. "
                "Of a gdpo::runtime::Loss it is what std::visit gives");
  if constexpr (is_loss_v<Loss>) {
    const auto composed = [](const Loss& l) {
      return compose(Loss::metrics, l.level, l.surrogate, l.kl, l.aggregate, l.factor,
                     entropy_of(l));
    };
    static_assert(std::is_class_v<decltype(composed(std::declval<const Loss&>()))>);
  }
  return true;
}

}  // namespace detail

/// Computes any loss. Arguments, result and errors are those of PolicyLoss::operator().
template <class Exec, class Loss, class S>
LossResult evaluate(const Exec& exec, const Loss& loss, const TokenBatch<S>& batch,
                    const Normalizer& normalizer,
                    const std::common_type_t<LossGradient<S>>& gradient,
                    LossWorkspace<S>& workspace) {
  static_assert(detail::needs_exec<Exec>());
  static_assert(detail::needs_loss<Loss>());
  const detail::CheckedLoss<S, Loss> call("gdpo::PolicyLoss", loss, batch, normalizer, gradient);
  using Row = detail::RowLoss<detail::lanes_for<Exec, S, decltype(Loss::level)>, S, Loss>;
  const detail::LossCall<S, Loss> rows{loss, normalizer, gradient.entropies};
  const detail::Tally total = call.template run<Row>(exec, rows, workspace);
  Normalizer seen;
  seen.tokens = total.tokens, seen.rows = static_cast<double>(total.rows);
  seen.non_empty_rows = static_cast<double>(total.rows - total.empty_rows);
  detail::check_all_seen("gdpo::PolicyLoss", loss, call.over(), normalizer, seen);
  return detail::loss_result<decltype(Loss::metrics)>(total, normalizer,
                                                      detail::traits_of(loss, batch, call.reads()));
}

/// The same loss at another level, all other settings kept:
/// `gdpo::with_level<gdpo::level::Sequence<>>(loss)`.
template <class NewLevel, class Loss>
constexpr auto with_level(const Loss& loss, NewLevel level = {}) {
  static_assert(detail::needs_loss<Loss>());
  return detail::compose(Loss::metrics, level, loss.surrogate, loss.kl, loss.aggregate, loss.factor,
                         detail::entropy_of(loss));
}
/// The same loss with another KL term (or `Kls`), all other settings kept:
/// `gdpo::with_kl(loss, gdpo::Kl<gdpo::kl::K2>{0.01})`.
template <class NewKl, class Loss>
constexpr auto with_kl(const Loss& loss, NewKl kl = {}) {
  static_assert(detail::needs_loss<Loss>());
  return detail::compose(Loss::metrics, loss.level, loss.surrogate, kl, loss.aggregate, loss.factor,
                         detail::entropy_of(loss));
}
/// The same loss with another set of metrics, all settings kept:
/// `gdpo::with_metrics<gdpo::metrics::Means>(loss)`.
template <class NewMetrics, class Loss>
constexpr auto with_metrics(const Loss& loss) {
  static_assert(detail::needs_loss<Loss>());
  return detail::compose(NewMetrics{}, loss.level, loss.surrogate, loss.kl, loss.aggregate,
                         loss.factor, detail::entropy_of(loss));
}

GDPO_END_NAMESPACE
