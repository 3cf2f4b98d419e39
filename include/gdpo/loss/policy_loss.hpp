#pragma once
#include <gdpo/loss/count.hpp>
#include <gdpo/loss/engine/batch_loss.hpp>
#include <gdpo/loss/result.hpp>
#include <gdpo/loss/surrogate.hpp>

GDPO_BEGIN_NAMESPACE

/// A policy loss over tokens, with its analytic gradient and metrics. The type is the algorithm, the members are its
/// settings: an aggregate, trivially copyable.
///
///   loss = sum_i W_i sum_t ( f w surrogate_it + sum_k beta_k w' kl_k,it )       f: Factor, detached; w, w': weights of the batch
///   dloss/dlogp_t = spread(W f w d_log_ratio) + W f w d_logp, the same for the KL terms; the level spreads
///
///   auto loss = gdpo::grpo_loss;
///   loss.kl.beta = 0.02;
///   gdpo::LossResult r = loss(batch, gdpo::count(batch), gdpo::view(dlogp, rows, width));
///
/// The ratio is against old_logp, the policy that sampled or the proximal one. Some texts write the reference policy there: bind
/// it as old_logp to get that.
template <class Level = level::Token<>, class Surrogate = surrogate::Ratio, class Kl = gdpo::Kl<>,
          class Aggregate = aggregate::SeqMeanTokenMean, class Factor = Factors<>,
          class Metrics = metrics::All>
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

  Level level{};
  Surrogate surrogate{};
  Kl kl{};
  Aggregate aggregate{};
  Factor factor{};
  static constexpr Metrics metrics{};

  /// Loss, metrics and, where `gradient` is given, dloss/dlogp of every token: shape and scalar of batch.logp, every position
  /// written, exactly 0 where the mask is 0. `normaliser`: count(batch), summed over the micro-batches and ranks of the step.
  /// exec: seq, simd or parallel(executor); the bits are the same. Order of summation: tokens in lanes (detail::RowLoss), the rows
  /// of a unit in their order, units in theirs; there are at most 128, which the number of rows alone decides.
  /// Accuracy of the loss and of means in a float batch: about 1e-6 of the sum of the |terms|; where 64 terms exceed 3e38 (a
  /// ratio saturates at 5e34) their sum is infinite. The gradient may not overlap the arrays of the batch. Policies must not throw
  /// on several threads.
  /// Errors: invalid_input, before anything is written, for settings, shapes, missing
  /// arrays, and a normaliser whose count is 0 for a batch with tokens. Data never throws: NaN and infinities flow into the
  /// loss and are counted (LossMetrics), ratios saturate (math::exp_limit).
  template <class Exec, class S>
  LossResult operator()(const Exec& exec, const TokenBatch<S>& batch, const Normaliser& normaliser,
                        const std::common_type_t<TokenOut<S>>& gradient,
                        LossWorkspace<S>& workspace) const {
    return evaluate(exec, *this, batch, normaliser, gradient, workspace);
  }
  /// On a device: what its header says (cuda/loss/policy_loss.hpp).
  template <class Device, class... Arguments,
            std::enable_if_t<detail::is_device_v<Device>, int> = 0>
  void operator()(const Device& device, const Arguments&... arguments) const {
    evaluate(device, *this, arguments...);
  }
  /// The same with its own memory, on one thread in lanes.
  template <class S>
  LossResult operator()(const TokenBatch<S>& batch, const Normaliser& normaliser,
                        const std::common_type_t<TokenOut<S>>& gradient = {}) const {
    LossWorkspace<S> workspace;
    return (*this)(simd, batch, normaliser, gradient, workspace);
  }
};

/// A loss is any type with the members of PolicyLoss. One of your own is called by evaluate(), below,
/// and stands wherever a PolicyLoss does.
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
                       const Aggregate& aggregate, const Factor& factor) {
  return PolicyLoss<Level, Surrogate, Kl, Aggregate, Factor, Metrics>{level, surrogate, kl,
                                                                      aggregate, factor};
}

/// Refuses what is no loss; of one, PolicyLoss itself refuses the policies that do not fit. True, so that
/// it can stand in a static_assert, whose text a compiler prints before anything that follows from it.
template <class Loss>
constexpr bool needs_loss() {
  static_assert(is_loss_v<Loss>,
                "a loss is a gdpo::PolicyLoss, or has its members: level, surrogate, kl, "
                "aggregate, factor, metrics. "
                "Of a gdpo::runtime::Loss it is what std::visit gives");
  if constexpr (is_loss_v<Loss>) {
    const auto composed = [](const Loss& l) {
      return compose(Loss::metrics, l.level, l.surrogate, l.kl, l.aggregate, l.factor);
    };
    static_assert(sizeof(decltype(composed(std::declval<const Loss&>()))) > 0);
  }
  return true;
}

}  // namespace detail

/// The call of any loss; what it does stands at PolicyLoss::operator().
template <class Exec, class Loss, class S>
LossResult evaluate(const Exec& exec, const Loss& loss, const TokenBatch<S>& batch,
                    const Normaliser& normaliser, const std::common_type_t<TokenOut<S>>& gradient,
                    LossWorkspace<S>& workspace) {
  static_assert(detail::needs_exec<Exec>());
  static_assert(detail::needs_loss<Loss>());
  const detail::BatchLoss<Exec, S, Loss> of_batch("gdpo::PolicyLoss", loss, batch, normaliser,
                                                  gradient);
  const detail::Tally total = of_batch(exec, workspace);
  return detail::loss_result<decltype(Loss::metrics)>(
      total, normaliser, detail::traits_of(loss, batch, of_batch.reads()));
}

/// The same loss with another level, KL, aggregate or set of metrics; every other setting kept.
template <class NewLevel, class Loss>
constexpr auto with_level(const Loss& loss, NewLevel level = {}) {
  static_assert(detail::needs_loss<Loss>());
  return detail::compose(Loss::metrics, level, loss.surrogate, loss.kl, loss.aggregate,
                         loss.factor);
}
template <class NewKl, class Loss>
constexpr auto with_kl(const Loss& loss, NewKl kl = {}) {
  static_assert(detail::needs_loss<Loss>());
  return detail::compose(Loss::metrics, loss.level, loss.surrogate, kl, loss.aggregate,
                         loss.factor);
}
template <class NewAggregate, class Loss>
constexpr auto with_aggregate(const Loss& loss, NewAggregate aggregate = {}) {
  static_assert(detail::needs_loss<Loss>());
  return detail::compose(Loss::metrics, loss.level, loss.surrogate, loss.kl, aggregate,
                         loss.factor);
}
template <class NewMetrics, class Loss>
constexpr auto with_metrics(const Loss& loss) {
  static_assert(detail::needs_loss<Loss>());
  return detail::compose(NewMetrics{}, loss.level, loss.surrogate, loss.kl, loss.aggregate,
                         loss.factor);
}

GDPO_END_NAMESPACE
