#pragma once
#include <gdpo/core/exec.hpp>
#include <gdpo/loss/check_loss.hpp>
#include <gdpo/loss/row_loss.hpp>
#include <gdpo/loss/surrogate.hpp>

namespace gdpo {

/// What a loss call gives. All sums are divided by the normaliser: losses of micro-batches add, metrics merge.
struct LossResult {
  double loss = 0;         ///< policy_loss + kl_loss; 0 for an empty batch
  double policy_loss = 0;  ///< sum_it W_i w_it surrogate_it
  double kl_loss = 0;      ///< sum_it W_i w'_it beta kl_it, of all KL terms
  Normaliser normaliser;   ///< the counts it was divided by
  LossMetrics metrics;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// Scratch memory of a loss call, kept between calls: after a first call of the same shape nothing is allocated.
template <class S>
struct LossWorkspace {
  detail::RowScratch<S> rows;
  std::vector<double> tokens;
};

/// The settings that a composition begins with: those of its policies. A named loss has others (named.hpp).
namespace defaults {
struct OfPolicies {
  template <class P>
  static constexpr P of(P policy) {
    return policy;
  }
};
}  // namespace defaults

/// A policy loss over tokens, with its analytic gradient and metrics. The type is the algorithm, the members are its
/// settings: an aggregate, trivially copyable.
///
///   loss = sum_i W_i sum_t ( f w surrogate_it + sum_k beta_k w' kl_k,it )       f: Factor, detached; w, w': weights of the batch
///   dloss/dlogp_t = spread(W f w d_ratio) + W f w d_logp, the same for the KL terms; the level spreads
///
///   gdpo::GrpoLoss loss;
///   loss.kl.beta = 0.02;
///   gdpo::LossResult r = loss(batch, gdpo::count(batch), gdpo::view(dlogp, rows, width));
///
/// The ratio is against old_logp, the policy that sampled or the proximal one. Some texts write the reference policy there: bind
/// it as old_logp to get that.
template <class Level = level::Token<>, class Surrogate = surrogate::Ratio, class Kl = gdpo::Kl<>,
          class Aggregate = aggregate::SeqMeanTokenMean, class Factor = Factors<>,
          class Defaults = defaults::OfPolicies>
struct PolicyLoss {
  static_assert(is_level_v<Level>, "a Level is level::Token, level::Sequence or level::SequenceToken");
  static_assert(detail::is_factors_v<Factor>, "factors stand in a list: gdpo::Factors<...>; none: gdpo::Factors<>");
  static_assert(is_surrogate_v<Surrogate> && !is_kl_v<Surrogate>,
                "a Surrogate needs: template <class V> gdpo::Term<V> operator()(const gdpo::Token<V>&) const");
  static_assert(is_kl_v<Kl>,
                "a KL term needs: beta, against, template <class V> gdpo::Term<V> operator()(const gdpo::Token<V>&) "
                "const; none: gdpo::kl::None, several: gdpo::Kls<...>");
  static_assert(is_aggregate_v<Aggregate>, "an Aggregate needs: double operator()(const gdpo::AggregateArgs&) const");

  Level level = Defaults::of(Level{});
  Surrogate surrogate = Defaults::of(Surrogate{});
  Kl kl = Defaults::of(Kl{});
  Aggregate aggregate = Defaults::of(Aggregate{});
  Factor factor = Defaults::of(Factor{});

  /// Loss, metrics and, where `gradient` is given, dloss/dlogp of every token: shape and scalar of batch.logp, every position
  /// written, exactly 0 where the mask is 0. `normaliser`: count(batch), summed over the micro-batches and ranks of the step.
  /// Rows in order, their sums in double. Errors: invalid_input, before anything is written, for settings, shapes, missing
  /// arrays, and a normaliser whose count is 0 for a batch with tokens. Data never throws: NaN and infinities flow into the
  /// loss and are counted (LossMetrics), ratios saturate (math::exp_limit).
  template <class S>
  LossResult operator()(Seq, const TokenBatch<S>& batch, const Normaliser& normaliser,
                        const std::common_type_t<TokenOut<S>>& gradient, LossWorkspace<S>& workspace) const;
  /// The same with its own memory.
  template <class S>
  LossResult operator()(const TokenBatch<S>& batch, const Normaliser& normaliser,
                        const std::common_type_t<TokenOut<S>>& gradient = {}) const {
    LossWorkspace<S> workspace;
    return (*this)(seq, batch, normaliser, gradient, workspace);
  }
};

namespace detail {

/// Moments of the advantages at the row's valid tokens.
template <class S>
Moments advantages_of(const TokenRow<S>& row, index_t tokens, std::vector<double>& scratch) {
  Moments m;
  if (tokens == 0) return m;
  if (row.advantages) {
    index_t n = 0;
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t)) scratch[static_cast<std::size_t>(n++)] = static_cast<double>(row.advantages[t]);
    }
    return moments_of(InRowOrder{}, scratch.data(), nullptr, n);
  }
  m.n = tokens;
  m.weight = static_cast<double>(tokens);
  m.mean = m.min = m.max = row.advantage;
  return m;
}

}  // namespace detail

template <class Level, class Surrogate, class Kl, class Aggregate, class Factor, class Defaults>
template <class S>
LossResult PolicyLoss<Level, Surrogate, Kl, Aggregate, Factor, Defaults>::operator()(
    Seq, const TokenBatch<S>& batch, const Normaliser& normaliser, const std::common_type_t<TokenOut<S>>& gradient,
    LossWorkspace<S>& workspace) const {
  constexpr const char* function = "gdpo::PolicyLoss";
  const detail::TokenLayout layout = detail::layout_of(function, batch);
  const detail::TokenReads reads = detail::check_loss(function, *this, batch, layout);
  detail::check_normaliser(function, normaliser);
  const index_t shape[3] = {batch.logp.extent(0), batch.logp.extent(1), batch.logp.extent(2)};
  detail::check_tokens(function, "gradient", gradient, batch.logp.rank(), shape);
  const char* nothing = detail::divides_by_nothing(aggregate, normaliser);
  if (nothing && count(batch).tokens > 0) {
    contract::fail(function, nothing, "0",
                   "the count that the aggregate divides by, more than 0 for a batch with tokens");
  }
  workspace.rows.reserve(layout.longest);
  if (static_cast<index_t>(workspace.tokens.size()) < layout.longest)
    workspace.tokens.resize(static_cast<std::size_t>(layout.longest));

  LossResult result;
  result.normaliser = normaliser;
  LossMetrics& m = result.metrics;
  m.rows = layout.rows;
  m.entropy_threshold = batch.entropy_threshold;
  m.one_ratio_a_row = Level::of_segment && !Level::straight_through && !batch.segments && !batch.token_advantages;
  if (!reads.rollout) m.non_finite.rollout_logp = batch.rollout_non_finite;
  detail::RowLoss<S, Level, Surrogate, Kl, Factor> row_loss(level, surrogate, kl, factor, m);
  for (index_t i = 0; i < layout.rows; ++i) {
    const detail::RowSpan at = layout(i);
    const TokenRow<S> row = detail::read_row(batch, layout, i, reads, workspace.rows);
    const index_t tokens = row.count();
    double weight = tokens > 0 ? aggregate(AggregateArgs{{tokens, layout.width}, normaliser}) : 0.0;
    if (tokens > 0 && batch.row_weights) weight = math::mul(weight, batch.row_weights(i));
    if (math::not_finite(weight)) detail::note(m.non_finite.weights, i, -1), weight = 0;
    m.advantage = merge(m.advantage, detail::advantages_of(row, tokens, workspace.tokens));

    const View<S, 1> out = gradient ? gradient.row(i, at.begin, at.length) : View<S, 1>{};
    const bool counts = weight != 0;  // a weight of 0 drops the row, whatever stands there
    const detail::RowTally tally = row_loss(row, weight, counts ? out : View<S, 1>{}, workspace.tokens.data());
    if (counts) {
      result.policy_loss += math::mul(weight, tally.surrogate.sum);
      result.kl_loss += math::mul(weight, tally.kl_loss);
    } else if (out) {
      for (index_t t = 0; t < at.length; ++t) out(t) = S(0);
    }
    const index_t completion =
        batch.completion_mask ? detail::count_row(batch.completion_mask, at, workspace.rows.mask.data()) : tokens;
    detail::add_row(m, tally, completion, batch.truncated ? batch.truncated(i) : math::nan());
  }
  result.loss = result.policy_loss + result.kl_loss;
  return result;
}

/// The same loss with another level, KL or aggregate; every other setting kept.
template <class NewLevel, class L, class S, class K, class A, class F, class D>
constexpr PolicyLoss<NewLevel, S, K, A, F> with_level(const PolicyLoss<L, S, K, A, F, D>& loss, NewLevel level = {}) {
  return {level, loss.surrogate, loss.kl, loss.aggregate, loss.factor};
}
template <class NewKl, class L, class S, class K, class A, class F, class D>
constexpr PolicyLoss<L, S, NewKl, A, F> with_kl(const PolicyLoss<L, S, K, A, F, D>& loss, NewKl kl = {}) {
  return {loss.level, loss.surrogate, kl, loss.aggregate, loss.factor};
}
template <class NewAggregate, class L, class S, class K, class A, class F, class D>
constexpr PolicyLoss<L, S, K, NewAggregate, F> with_aggregate(const PolicyLoss<L, S, K, A, F, D>& loss,
                                                              NewAggregate aggregate = {}) {
  return {loss.level, loss.surrogate, loss.kl, aggregate, loss.factor};
}

GDPO_END_NAMESPACE
