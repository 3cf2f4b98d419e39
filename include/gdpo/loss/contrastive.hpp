#pragma once
// ContrastiveLoss: REAL, a policy loss over groups of rows in place of a sum over tokens.
#include <gdpo/loss/engine/contrast.hpp>
#include <gdpo/loss/shared/write_result.hpp>
#include <gdpo/tokens/count_groups.hpp>

GDPO_BEGIN_NAMESPACE

template <class Kl, class Metrics>
struct ContrastiveLoss;

/// Scratch memory of contrastive losses. After a first call, further calls of the same shape and
/// executor allocate nothing. It serves one call at a time.
template <class S>
class ContrastiveWorkspace {
  template <class Kl, class Metrics>
  friend struct ContrastiveLoss;
  LossWorkspace<S> tokens;
  std::vector<detail::SidedRow> rows;
};

/// REAL ("Rewards as Labels", arXiv 2602.05630): contrasts the good rows of a group with its bad
/// ones, with its analytic gradient and the metrics of a PolicyLoss.
///
/// For row i with n_i valid tokens and advantage A_i, in nats,
///
///     S_i  = (mean over its valid tokens of logp - old_logp) / tau
///     L_g  = log(1 + sum over rows of group g with A <= 0 of e^S_i)
///          + log(1 + sum over rows of group g with A > 0 of e^-S_i)
///     loss = scale (sum over groups of L_g) / G + KL terms
///     dloss/dlogp_t = scale c_i / (tau n_i G) + that of the KL terms
///     c_i  = e^S_i / (1 + sum)  where A <= 0;  -e^-S_i / (1 + sum)  where A > 0
///
/// with the sum of the row's own side. A group without rows on both sides adds exactly 0, to the
/// gradient too, and counts in G. Of the advantages the signs alone matter; that of a row with
/// `token_advantages` is their mean over the valid tokens. G is `Normalizer::given`, the number of
/// groups of the whole step, which count(batch, groups) counts. The KL terms are those of a
/// PolicyLoss: W_i w' beta kl summed over tokens, where W_i is the weight of `aggregate`; w' is
/// `TokenBatch::kl_weights`. `scale` is that of `aggregate`.
///
/// Source: ms-swift, loss_type="real" of GRPOTrainer and MegatronGRPOTrainer
/// (`ms_swift::real_loss`), there with scale_rewards="none".
///
///     gdpo::ContrastiveLoss<> loss = gdpo::ms_swift::real_loss;
///     const auto groups = gdpo::groups_of(8);
///     const gdpo::LossResult r = loss(batch, groups, gdpo::count(batch, groups),
///                                     gdpo::view(dlogp, rows, width));
///
/// The micro-batches and ranks of a step add up as long as none of them cuts a group.
///
/// It is not a PolicyLoss, because it is no sum over rows: what takes a PolicyLoss does not take
/// it, and `gdpo::runtime` has no names for it. It runs on the host. In Python it is
/// `gdpo.ContrastiveLoss`, by names.
template <class Kl = gdpo::Kl<>, class Metrics = metrics::All>
struct ContrastiveLoss {
  static_assert(is_kl_v<Kl>,
                "a KL term needs: beta, against, template <class V> gdpo::Term<V> operator()(const "
                "gdpo::Token<V>&) "
                "const; none: gdpo::kl::None, several: gdpo::Kls<...>");
  static_assert(is_metrics_v<Metrics>, "Metrics is metrics::All, metrics::Means or metrics::None");

  double tau = 0.5;  ///< Temperature of the mean log ratios, more than 0; ms-swift's default.
  /// Whether a row without valid tokens stands among those with A <= 0, with S = 0, as in ms-swift.
  /// It then makes a group of good rows one of both sides. Else such a row is left out.
  bool count_empty_rows = false;
  Kl kl{};  ///< KL terms (loss/kl.hpp).
  /// What the KL terms are divided by (tokens/aggregate.hpp), but for those that have an aggregate
  /// of their own; neither by Over::Given. Its `scale` is a factor of the groups too.
  Aggregate aggregate = gdpo::aggregate::token_mean();
  static constexpr Metrics metrics{};  ///< What is measured (loss/metrics.hpp).
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("tau", s.tau, more_than(0), "temperature of the mean log ratios");
    field("count_empty_rows", s.count_empty_rows, "rows without tokens stand for A <= 0 and S = 0");
    field("kl", s.kl, "the distance to another policy");
    field("aggregate", s.aggregate, "what the KL terms are divided by");
  }

  /// Computes loss and metrics and, if `gradient` is given, dloss/dlogp of every token.
  ///
  /// - `exec`: seq, simd or parallel(executor); all give the same bits.
  /// - `batch`: padded, of rank 3, or packed. It may not have `weights`, `row_weights`,
  ///   `level_log_weights` or `segments`: pre-passes that mask (Reach::Mask) serve this loss, those
  ///   that weigh the surrogate or the ratio do not. Without old_logp every S is 0.
  /// - `groups`: groups_of, by_offsets or by_id over the rows of the batch, of any sizes.
  /// - `normalizer`: count(batch, groups), summed over the micro-batches and ranks of the step. Its
  ///   `given` divides the groups, its other counts the KL terms.
  /// - `gradient`: has the shape of batch.logp and elements of type S, and may not overlap the
  ///   arrays of the batch. Every position is written, with exactly 0 where the mask is 0. `{}` is
  ///   no gradient.
  /// - `workspace`: kept by the caller. After a first call of the same shape and executor, nothing
  ///   is allocated.
  ///
  /// Result: `policy_loss` is the part of the groups, `kl_loss` that of the KL terms. Metrics are
  /// those of a loss at level::Sequence: `ratio` is e^(tau S_i). `surrogate` and `loss` of the
  /// metrics are not measured, because no token has a share in them. `over` is Over::Given.
  ///
  /// Order of summation: log ratios and KL terms as in PolicyLoss. The rows of a group are added in
  /// double, in their order, then the groups in theirs; with by_id by TwoSum, so that neither the
  /// order of the rows nor that of the ids changes a bit of policy_loss. The largest exponent is
  /// taken out first: no finite S overflows.
  ///
  /// Accuracy in a float batch: S and the sums are computed in double, and each gradient is rounded
  /// to float once after its KL terms, which are as in PolicyLoss.
  ///
  /// Errors: invalid_input, before anything is written, for settings out of range, shapes that do
  /// not fit, missing arrays or one of the three above, and a `given` of fewer groups than have
  /// tokens. Counts as in PolicyLoss. Data never throws: NaN in a log-prob or advantage of a valid
  /// token makes loss and gradient of its whole group NaN, and is counted
  /// (`LossMetrics::non_finite`).
  template <class Exec, class S, class Groups>
  LossResult operator()(const Exec& exec, const TokenBatch<S>& batch, const Groups& groups,
                        const Normalizer& normalizer,
                        const std::common_type_t<TokenOut<S>>& gradient,
                        ContrastiveWorkspace<S>& workspace) const {
    static_assert(detail::needs_exec<Exec>());
    static_assert(detail::is_host_grouping_v<Groups>,
                  "the groups of a ContrastiveLoss are groups_of, by_offsets or by_id");
    using namespace detail;
    using Part = TokenPart<Kl, Metrics>;
    constexpr const char* function = "gdpo::ContrastiveLoss";
    check(function, batch);
    const Part part{{}, {}, kl, aggregate, {}};
    const LossGradient<S> by_logp(gradient);
    const CheckedLoss<S, Part> call(function, part, batch, normalizer, by_logp);
    const TokenLayout& layout = call.layout();
    groups.check(function, layout.rows);

    if (static_cast<index_t>(workspace.rows.size()) < layout.rows)
      workspace.rows = std::vector<SidedRow>(static_cast<std::size_t>(layout.rows));
    SidedRow* const rows = workspace.rows.data();
    using V = lanes_for<Exec, S, level::Sequence<>>;
    Sides sides{{}, tau, count_empty_rows, rows};
    TokenBatch<S> ratios = batch;  // what the sides of rows are read from
    ratios.kl_weights = ratios.entropies = TokenView<S>();
    const TokenOut<S> no_gradient;
    const RowDriver<S, Aggregate> reader(function, aggregate, ratios, layout, TokenReads::none(),
                                         normalizer, no_gradient);
    reader.template run<SideOfRow<V, S>>(exec, sides, workspace.tokens);

    const double share = normalizer.given > 0 ? aggregate.scale / normalizer.given : 0.0;
    const Contrast contrasted = contrast(groups, layout.rows, rows, share / tau);
    check_given(function, normalizer, contrasted.groups);
    Tally total = call.template run<ContrastRow<V, S, Part>>(exec, SidedLoss<Part>{part, rows},
                                                             workspace.tokens);
    total.policy_loss = math::mul(contrasted.loss, share);
    Normalizer seen;
    seen.tokens = total.tokens, seen.rows = static_cast<double>(total.rows);
    seen.non_empty_rows = static_cast<double>(total.rows - total.empty_rows);
    check_all_seen(function, part, call.over(), normalizer, seen);
    LossResult result =
        loss_result<Metrics>(total, normalizer, traits_of(part, batch, call.reads()));
    result.over = static_cast<index_t>(Over::Given);
    result.metrics.surrogate = result.metrics.loss = Metric{};
    return result;
  }
  /// The same on one thread in vector lanes (simd), with a workspace of its own, which is allocated
  /// in each call. Without `gradient`, only loss and metrics are computed.
  template <class S, class Groups>
  LossResult operator()(const TokenBatch<S>& batch, const Groups& groups,
                        const Normalizer& normalizer,
                        const std::common_type_t<TokenOut<S>>& gradient = {}) const {
    ContrastiveWorkspace<S> workspace;
    return (*this)(simd, batch, groups, normalizer, gradient, workspace);
  }

 private:
  /// Checks the settings that CheckedLoss does not know, and that the batch has no arrays without a
  /// meaning here.
  template <class S>
  void check(const char* function, const TokenBatch<S>& batch) const {
    using contract::fail;
    detail::check_number(function, detail::FieldPath{nullptr, "tau"}, tau, more_than(0), false);
    const auto check_over = [function](const char* name, const auto& of) {
      if (detail::over_of(of) != static_cast<index_t>(Over::Given)) return;
      fail(function, name, "given",
           "tokens, rows or non_empty_rows: normalizer.given is the number of groups");
    };
    check_over("aggregate.over", aggregate);
    detail::for_each_own_aggregate(
        kl, [&check_over](const auto& own) { check_over("kl.aggregate.over", own); });
    const auto refuse = [function](bool there, const char* name, const char* what) {
      if (there) fail(function, name, "an array", what);
    };
    refuse(
        static_cast<bool>(batch.weights), "batch.weights",
        "none: the loss is no sum over tokens that could be weighed; pre-passes with Reach::Mask "
        "or Reach::Kl");
    refuse(static_cast<bool>(batch.row_weights), "batch.row_weights",
           "none: the loss is no sum over rows that could be weighed");
    refuse(static_cast<bool>(batch.level_log_weights), "batch.level_log_weights",
           "none: the mean log ratio of a row takes no weights");
    refuse(static_cast<bool>(batch.segments), "batch.segments", "none: a row has one log ratio");
  }
  static void check_given(const char* function, const Normalizer& n, index_t groups) {
    if (n.given >= static_cast<double>(groups)) return;
    contract::fail(
        function, "normalizer.given",
        contract::text(n.given) + ", for " + contract::text(groups) + " groups with tokens",
        "the number of groups of the step: count(batch, groups), summed over its "
        "micro-batches and ranks");
  }
};

/// The same loss with another KL term (or `Kls`), all other settings kept.
template <class NewKl, class Kl, class Metrics>
constexpr ContrastiveLoss<NewKl, Metrics> with_kl(const ContrastiveLoss<Kl, Metrics>& loss,
                                                  NewKl kl = {}) {
  return {loss.tau, loss.count_empty_rows, kl, loss.aggregate};
}
/// The same loss with another set of metrics, all settings kept.
template <class NewMetrics, class Kl, class Metrics>
constexpr ContrastiveLoss<Kl, NewMetrics> with_metrics(const ContrastiveLoss<Kl, Metrics>& loss) {
  return {loss.tau, loss.count_empty_rows, loss.kl, loss.aggregate};
}

GDPO_END_NAMESPACE
