#pragma once
#include <gdpo/loss/term.hpp>

namespace gdpo {
/// Which count of the Normaliser a loss is divided by.
enum class Over {
  Tokens,        ///< Normaliser::tokens
  Rows,          ///< Normaliser::rows, rows without valid tokens included
  NonEmptyRows,  ///< Normaliser::non_empty_rows
  Given          ///< Normaliser::given, a count of the caller's own
};
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

namespace detail {

GDPO_INLINE double count_of(const Normaliser& n, Over over) {
  return over == Over::Tokens         ? n.tokens
         : over == Over::Rows         ? n.rows
         : over == Over::NonEmptyRows ? n.non_empty_rows
                                      : n.given;
}
/// scale / count; 0 where the count is 0.
GDPO_DEVICE inline double share_of(const Normaliser& n, Over over, double count_eps, double scale) {
  const double count = count_of(n, over) + count_eps;
  return count > 0 ? scale / count : 0.0;
}
inline void check_aggregate(const char* function, double count_eps, double scale) {
  check_eps(function, "aggregate.count_eps", count_eps);
  if (math::is_nan(scale) || math::is_inf(scale)) {
    contract::fail(function, "aggregate.scale", contract::text(scale), "a finite number");
  }
}

}  // namespace detail

/// Aggregates: how the losses of the tokens add up to one number.
///
/// An aggregate gives the weight W_i of row i,
///
///     loss = sum over rows i of W_i (sum over valid tokens t of L_it)
///
/// from the number n_i of valid tokens in the row and the counts of the step (`Normaliser`).
/// `TokenBatch::row_weights` multiply W_i. A row without valid tokens weighs 0, whatever the
/// formula gives.
///
/// Members that aggregates share:
/// - `over` names the count of the step that divides. Below, `count` is that count + `count_eps`.
///   A loss call refuses a count of 0 for a batch with tokens.
/// - `scale` multiplies. Set it to the data-parallel size where the framework averages gradients
///   over ranks, to 1 / accumulation steps where each micro-batch is divided by its own counts.
///
/// Contract of an aggregate (GDPO_DEVICE in front, if it is to run on a GPU as well):
///
///     double operator()(const AggregateArgs&) const;
///
/// Optional members: `check(const char* function)` for settings; `bool reads_width() const`, true
/// where it reads `AggregateArgs::row.width`, so that packed batches are refused; and a member
/// `Over over`, or `const char* divides_by_nothing(const Normaliser&) const`, which names the count
/// that it divides by where that is 0 and else returns null.
namespace aggregate {

/// W_i = scale / count with the tokens of the step: every token weighs the same.
///
/// DAPO (arXiv 2503.14476); verl "token-mean"; TRL bnpo, and dapo with `Over::Given`.
struct TokenMean {
  Over over = Over::Tokens;  ///< The count of the step that divides.
  double count_eps = 0;      ///< Added to that count; a trainer's 1e-8.
  double scale = 1;          ///< Factor of the loss: what the framework divides by on its own.
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    return detail::share_of(a.normaliser, over, count_eps, scale);
  }
  void check(const char* function) const { detail::check_aggregate(function, count_eps, scale); }
};

/// W_i = scale / (count (n_i + row_count_eps)) with the rows of the step: the mean over rows of
/// their token means.
///
/// Every row weighs the same, so a token weighs less in a longer row. GRPO (arXiv 2402.03300); TRL
/// grpo over Rows; verl "seq-mean-token-mean" over NonEmptyRows with row_count_eps 1e-8.
struct SeqMeanTokenMean {
  Over over = Over::Rows;    ///< The count of the step that divides.
  double count_eps = 0;      ///< Added to that count; a trainer's 1e-8.
  double scale = 1;          ///< Factor of the loss: what the framework divides by on its own.
  double row_count_eps = 0;  ///< Added to the row's number of tokens n_i.
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    const double n = static_cast<double>(a.row.tokens) + row_count_eps;
    return n > 0 ? detail::share_of(a.normaliser, over, count_eps, scale) / n : 0.0;
  }
  void check(const char* function) const {
    detail::check_aggregate(function, count_eps, scale);
    detail::check_eps(function, "aggregate.row_count_eps", row_count_eps);
  }
};

/// W_i = scale / count with the rows of the step: the mean over rows of their token sums.
///
/// Longer rows weigh more. verl "seq-mean-token-sum".
struct SeqMeanTokenSum {
  Over over = Over::Rows;  ///< The count of the step that divides.
  double count_eps = 0;    ///< Added to that count; a trainer's 1e-8.
  double scale = 1;        ///< Factor of the loss: what the framework divides by on its own.
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    return detail::share_of(a.normaliser, over, count_eps, scale);
  }
  void check(const char* function) const { detail::check_aggregate(function, count_eps, scale); }
};

/// W_i = scale / (count constant) with the rows of the step and one length for all of them.
///
/// The mean over rows of their token sums, divided by a length that does not depend on the row: a
/// token weighs the same in rows of any length. Dr.GRPO (arXiv 2503.20783); TRL dr_grpo; verl
/// "seq-mean-token-sum-norm".
struct SeqMeanTokenSumNorm {
  /// Length in tokens, the same in every step: the maximal completion length. It must be more than
  /// 0, unless `padded_width` is set.
  double constant = 0;
  /// With constant = 0: divide by the padded width of the (micro-)batch, which changes from batch
  /// to batch (verl without loss_scale_factor). Packed batches have none and are refused.
  bool padded_width = false;
  Over over = Over::Rows;  ///< The count of the step that divides.
  double count_eps = 0;    ///< Added to that count; a trainer's 1e-8.
  double scale = 1;        ///< Factor of the loss: what the framework divides by on its own.
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    const double length = reads_width() ? static_cast<double>(a.row.width) : constant;
    return length > 0 ? detail::share_of(a.normaliser, over, count_eps, scale) / length : 0.0;
  }
  /// Whether the padded width is the length that divides.
  GDPO_DEVICE bool reads_width() const { return padded_width && constant == 0; }
  void check(const char* function) const {
    detail::check_aggregate(function, count_eps, scale);
    if (!reads_width() && (!(constant > 0) || math::is_inf(constant))) {
      contract::fail(function, "aggregate.constant", contract::text(constant),
                     "a length in tokens, more than 0, the same for the whole training");
    }
  }
};

/// W_i = scale: the sum over all tokens.
///
/// For trainers that put their weights into the advantages or into `TokenBatch::row_weights`. verl
/// "token-sum".
struct TokenSum {
  double scale = 1;  ///< Factor of the loss.
  GDPO_DEVICE double operator()(const AggregateArgs&) const { return scale; }
  void check(const char* function) const { detail::check_aggregate(function, 0, scale); }
};

}  // namespace aggregate
GDPO_END_NAMESPACE
