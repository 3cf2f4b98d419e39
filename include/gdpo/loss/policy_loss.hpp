#pragma once
#include <gdpo/core/exec.hpp>
#include <gdpo/loss/count.hpp>
#include <gdpo/loss/engine/check_loss.hpp>
#include <gdpo/loss/engine/row_loss.hpp>
#include <gdpo/loss/result.hpp>
#include <gdpo/loss/surrogate.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {
/// What one worker needs beside the batch.
template <class S>
struct LossScratch {
  RowScratch<S> rows;
  std::vector<double> tokens;
  std::vector<S> gradient;  // of a row, where the caller wants none or has it elsewhere than side by side
};
}  // namespace detail

/// Scratch memory of a loss call, kept between calls: after a first call of the same shape and executor nothing is allocated.
template <class S>
struct LossWorkspace {
  std::vector<detail::LossScratch<S>> workers;
  std::vector<detail::Tally> units;
};

/// A policy loss over tokens, with its analytic gradient and metrics. The type is the algorithm, the members are its
/// settings: an aggregate, trivially copyable.
///
///   loss = sum_i W_i sum_t ( f w surrogate_it + sum_k beta_k w' kl_k,it )       f: Factor, detached; w, w': weights of the batch
///   dloss/dlogp_t = spread(W f w d_ratio) + W f w d_logp, the same for the KL terms; the level spreads
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
  static_assert(is_level_v<Level>, "a Level is level::Token, level::Sequence or level::SequenceToken");
  static_assert(detail::is_factors_v<Factor>, "factors stand in a list: gdpo::Factors<...>; none: gdpo::Factors<>");
  static_assert(is_surrogate_v<Surrogate> && !is_kl_v<Surrogate>,
                "a Surrogate needs: template <class V> gdpo::Term<V> operator()(const gdpo::Token<V>&) const");
  static_assert(is_kl_v<Kl>,
                "a KL term needs: beta, against, template <class V> gdpo::Term<V> operator()(const gdpo::Token<V>&) "
                "const; none: gdpo::kl::None, several: gdpo::Kls<...>");
  static_assert(is_aggregate_v<Aggregate>, "an Aggregate needs: double operator()(const gdpo::AggregateArgs&) const");

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
                        const std::common_type_t<TokenOut<S>>& gradient, LossWorkspace<S>& workspace) const;
  /// On a device: what its header says (cuda/loss/policy_loss.hpp).
  template <class Device, class... Arguments, std::enable_if_t<detail::is_device_v<Device>, int> = 0>
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

namespace detail {

/// Moments of the advantages at the row's valid tokens.
template <class S>
Moments advantages_of(const TokenRow<S>& row, index_t tokens, std::vector<double>& scratch) {
  Moments m;
  if (tokens == 0) return m;
  if (row.advantages) {
    index_t n = 0;
    for (index_t t = 0; t < row.length; ++t) {  // no branch on the mask, which is hard to foresee
      scratch[static_cast<std::size_t>(n)] = static_cast<double>(row.advantages[t]);
      n += row.valid(t);
    }
    return moments_of(InRowOrder{}, scratch.data(), nullptr, n);
  }
  m.n = tokens;
  m.weight = static_cast<double>(tokens);
  m.mean = m.min = m.max = row.advantage;
  return m;
}

/// What formulas run on: numbers of S, of double at levels of segments; one by one on `seq`.
template <class Exec, class S, class Level>
using lanes_for = std::conditional_t<std::is_same_v<Exec, Seq>, std::conditional_t<Level::of_segment, double, S>,
                                     math::Native<std::conditional_t<Level::of_segment, double, S>>>;

/// A loss call behind its checks.
template <class Exec, class S, class Loss>
class BatchLoss {
 public:
  using Row = RowLoss<lanes_for<Exec, S, decltype(Loss::level)>, S, Loss>;
  using Metrics = typename Row::Metrics;

  BatchLoss(const char* function, const Loss& loss, const TokenBatch<S>& batch, const Normaliser& normaliser,
            const TokenOut<S>& gradient)
      : loss_(loss),
        batch_(batch),
        normaliser_(normaliser),
        gradient_(gradient),
        layout_(layout_of(function, batch)),
        reads_(check_loss(function, loss, batch, layout_)) {
    check_normaliser(function, normaliser);
    const index_t shape[3] = {batch.logp.extent(0), batch.logp.extent(1), batch.logp.extent(2)};
    check_tokens(function, "gradient", gradient, batch.logp.rank(), shape);
    const char* nothing = divides_by_nothing(loss.aggregate, normaliser);
    if (nothing && count(batch).tokens > 0) {
      contract::fail(function, nothing, "0",
                     "the count that the aggregate divides by, more than 0 for a batch with tokens");
    }
  }

  LossResult operator()(const Exec& exec, LossWorkspace<S>& workspace) const {
    constexpr index_t most_units = 128;
    const index_t rows = layout_.rows, rows_a_unit = (rows + most_units - 1) / most_units;
    const index_t units = rows > 0 ? (rows + rows_a_unit - 1) / rows_a_unit : 0;
    const index_t workers = workers_for(exec, units, layout_.tokens);
    if (static_cast<index_t>(workspace.workers.size()) < workers) {
      workspace.workers.resize(static_cast<std::size_t>(workers));
    }
    for (index_t w = 0; w < workers; ++w) reserve(workspace.workers[static_cast<std::size_t>(w)]);

    Tally total;
    if (workers == 1) {  // a unit of one row needs no tally of its own: 0 + x is x
      LossScratch<S>& scratch = workspace.workers[0];
      for (index_t first = 0; first < rows && rows_a_unit == 1; ++first) run(first, first + 1, scratch, total);
      for (index_t first = 0; first < rows && rows_a_unit > 1; first += rows_a_unit) {
        Tally unit;
        run(first, (std::min)(first + rows_a_unit, rows), scratch, unit);
        total.add(unit);
      }
    } else {
      if (static_cast<index_t>(workspace.units.size()) < units) workspace.units.resize(static_cast<std::size_t>(units));
      for_each_unit(exec, workers, units, [&](index_t worker, index_t unit) {
        const index_t first = unit * rows_a_unit;
        Tally& tally = workspace.units[static_cast<std::size_t>(unit)];
        tally = Tally{};
        run(first, (std::min)(first + rows_a_unit, rows), workspace.workers[static_cast<std::size_t>(worker)], tally);
      });
      for (index_t u = 0; u < units; ++u) total.add(workspace.units[static_cast<std::size_t>(u)]);
    }
    return loss_result<Metrics>(total, normaliser_, traits_of(loss_, batch_, reads_));
  }

  const TokenLayout& layout() const { return layout_; }
  const Loss& loss() const { return loss_; }

  struct WeighedRow {
    TokenRow<S> row;
    index_t tokens;
    double weight;  ///< W_i; 0 where that is not finite, and noted
  };
  WeighedRow read(index_t i, LossScratch<S>& scratch, Tally& tally) const {
    const TokenRow<S> row = read_row(batch_, layout_, i, reads_, scratch.rows);
    const index_t tokens = row.count();
    double weight = tokens > 0 ? loss_.aggregate(AggregateArgs{{tokens, layout_.width}, normaliser_}) : 0.0;
    if (tokens > 0 && batch_.row_weights) weight = math::mul(weight, batch_.row_weights(i));
    if (math::not_finite(weight)) note(tally.non_finite.weights, i, -1), weight = 0;
    return {row, tokens, weight};
  }
  void reserve(LossScratch<S>& scratch) const {
    scratch.rows.reserve(layout_.longest);
    const auto longest = static_cast<std::size_t>(layout_.longest);
    if (scratch.tokens.size() < longest) scratch.tokens.resize(longest);
    if (!(gradient_ && gradient_.contiguous()) && scratch.gradient.size() < longest) scratch.gradient.resize(longest);
  }

 private:
  void run(index_t first, index_t last, LossScratch<S>& scratch, Tally& tally) const {
    Row row_loss(loss_, tally);
    for (index_t i = first; i < last; ++i) {
      const RowSpan at = layout_(i);
      const auto [row, tokens, weight] = read(i, scratch, tally);
      if (i + 1 < last) prefetch_mask(layout_(i + 1));
      const View<S, 1> out = gradient_ ? gradient_.row(i, at.begin, at.length) : View<S, 1>{};
      const bool counts = weight != 0;  // a weight of 0 drops the row, whatever stands there
      S* const to = out && gradient_.contiguous() ? out.data : scratch.gradient.data();
      const RowSums sums = row_loss(row, tokens, weight, to, scratch.tokens.data());
      if (counts) {
        tally.policy_loss += math::mul(weight, sums.of[of_surrogate]);
        tally.kl_loss += math::mul(weight, sums.kl_loss);
      }
      if (out && (!counts || to != out.data)) {
        for (index_t t = 0; t < at.length; ++t) out(t) = counts ? to[t] : S(0);
      }
      // Here, so that the sums have reached memory when they are read again, side by side.
      tally.advantage = merge(tally.advantage, advantages_of(row, tokens, scratch.tokens));
      const index_t completion =
          batch_.completion_mask ? count_row(batch_.completion_mask, at, scratch.rows.mask.data()) : tokens;
      tally.add(sums, tokens, completion, batch_.truncated ? batch_.truncated(i) : math::nan(), Metrics::means);
    }
  }

  /// A row begins with a count of its mask, before anything has asked for it.
  void prefetch_mask(const RowSpan& at) const {
    if (!batch_.mask || !batch_.mask.in_place()) return;
    constexpr index_t line = 64, most = 16384;  // bytes; what the first cache would not hold is left to the processor
    const unsigned char* mask = batch_.mask.row(at.row, at.begin, at.length, nullptr);
    for (index_t t = 0; t < (std::min)(at.length, most); t += line) prefetch(mask + t);
  }

  const Loss& loss_;
  const TokenBatch<S>& batch_;
  const Normaliser& normaliser_;
  const TokenOut<S>& gradient_;
  TokenLayout layout_;
  TokenReads reads_;
};

}  // namespace detail

template <class Level, class Surrogate, class Kl, class Aggregate, class Factor, class Metrics>
template <class Exec, class S>
LossResult PolicyLoss<Level, Surrogate, Kl, Aggregate, Factor, Metrics>::operator()(
    const Exec& exec, const TokenBatch<S>& batch, const Normaliser& normaliser,
    const std::common_type_t<TokenOut<S>>& gradient, LossWorkspace<S>& workspace) const {
  static_assert(detail::is_exec_v<Exec>, "the first argument is gdpo::seq, gdpo::simd or gdpo::parallel(executor)");
  return detail::BatchLoss<Exec, S, PolicyLoss>("gdpo::PolicyLoss", *this, batch, normaliser, gradient)(exec,
                                                                                                        workspace);
}

namespace detail {
template <class Metrics, class Level, class Surrogate, class Kl, class Aggregate, class Factor>
constexpr auto composed(const Level& level, const Surrogate& surrogate, const Kl& kl, const Aggregate& aggregate,
                        const Factor& factor) {
  return PolicyLoss<Level, Surrogate, Kl, Aggregate, Factor, Metrics>{level, surrogate, kl, aggregate, factor};
}
template <class Loss>
using metrics_of = std::remove_const_t<decltype(Loss::metrics)>;
}  // namespace detail

/// The same loss with another level, KL, aggregate or set of metrics; every other setting kept.
template <class NewLevel, class Loss>
constexpr auto with_level(const Loss& loss, NewLevel level = {}) {
  return detail::composed<detail::metrics_of<Loss>>(level, loss.surrogate, loss.kl, loss.aggregate, loss.factor);
}
template <class NewKl, class Loss>
constexpr auto with_kl(const Loss& loss, NewKl kl = {}) {
  return detail::composed<detail::metrics_of<Loss>>(loss.level, loss.surrogate, kl, loss.aggregate, loss.factor);
}
template <class NewAggregate, class Loss>
constexpr auto with_aggregate(const Loss& loss, NewAggregate aggregate = {}) {
  return detail::composed<detail::metrics_of<Loss>>(loss.level, loss.surrogate, loss.kl, aggregate, loss.factor);
}
template <class NewMetrics, class Loss>
constexpr auto with_metrics(const Loss& loss) {
  return detail::composed<NewMetrics>(loss.level, loss.surrogate, loss.kl, loss.aggregate, loss.factor);
}

GDPO_END_NAMESPACE
