#pragma once
#include <gdpo/loss/term.hpp>

namespace gdpo {
/// Which count of the Normaliser a loss is divided by.
enum class Over { Tokens, Rows, NonEmptyRows, Given };
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

namespace detail {

GDPO_INLINE double count_of(const Normaliser& n, Over over) {
  return over == Over::Tokens         ? n.tokens
         : over == Over::Rows         ? n.rows
         : over == Over::NonEmptyRows ? n.non_empty_rows
                                      : n.given;
}
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

/// The weight of a row in the loss, W_i: loss = sum_i W_i sum_t L_it. Contract:
///   GDPO_DEVICE double operator()(const AggregateArgs&) const;
/// Members they share: `over`, the count that divides (+ count_eps: 0, or a trainer's 1e-8), and `scale`: the data-parallel
/// size where the framework averages gradients over ranks, 1 / accumulation steps where each micro-batch counts alone.
/// A row without valid tokens weighs nothing, whatever the formula gives.
namespace aggregate {

/// 1 / tokens of the step: every token weighs the same. DAPO (arXiv 2503.14476); verl "token-mean"; TRL bnpo, dapo.
struct TokenMean {
  Over over = Over::Tokens;
  double count_eps = 0, scale = 1;
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    return detail::share_of(a.normaliser, over, count_eps, scale);
  }
  void check(const char* function) const { detail::check_aggregate(function, count_eps, scale); }
};

/// 1 / (n_i rows): the mean over rows of their token means. GRPO (arXiv 2402.03300); TRL grpo over Rows; verl
/// "seq-mean-token-mean" over NonEmptyRows with row_count_eps 1e-8 added to n_i.
struct SeqMeanTokenMean {
  Over over = Over::Rows;
  double count_eps = 0, scale = 1, row_count_eps = 0;
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    const double n = static_cast<double>(a.row.tokens) + row_count_eps;
    return n > 0 ? detail::share_of(a.normaliser, over, count_eps, scale) / n : 0.0;
  }
  void check(const char* function) const {
    detail::check_aggregate(function, count_eps, scale);
    detail::check_eps(function, "aggregate.row_count_eps", row_count_eps);
  }
};

/// 1 / rows: the mean over rows of their token sums; long rows weigh more. verl "seq-mean-token-sum".
struct SeqMeanTokenSum {
  Over over = Over::Rows;
  double count_eps = 0, scale = 1;
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    return detail::share_of(a.normaliser, over, count_eps, scale);
  }
  void check(const char* function) const { detail::check_aggregate(function, count_eps, scale); }
};

/// 1 / (constant rows), the same constant in every step: Dr.GRPO (arXiv 2503.20783), its maximal completion length; TRL
/// dr_grpo; verl "seq-mean-token-sum-norm". `constant` is required; with padded_width, and no constant, it is the batch's own
/// width, which changes from batch to batch (verl without loss_scale_factor).
struct SeqMeanTokenSumNorm {
  double constant = 0;
  bool padded_width = false;
  Over over = Over::Rows;
  double count_eps = 0, scale = 1;
  GDPO_DEVICE double operator()(const AggregateArgs& a) const {
    const double length = reads_width() ? static_cast<double>(a.row.width) : constant;
    return length > 0 ? detail::share_of(a.normaliser, over, count_eps, scale) / length : 0.0;
  }
  GDPO_DEVICE bool reads_width() const { return padded_width && constant == 0; }
  void check(const char* function) const {
    detail::check_aggregate(function, count_eps, scale);
    if (!reads_width() && (!(constant > 0) || math::is_inf(constant))) {
      contract::fail(function, "aggregate.constant", contract::text(constant),
                     "a length in tokens, more than 0, the same for the whole training");
    }
  }
};

/// 1: the sum over tokens, for trainers that fold their weights into the advantages. verl "token-sum".
struct TokenSum {
  double scale = 1;
  GDPO_DEVICE double operator()(const AggregateArgs&) const { return scale; }
  void check(const char* function) const { detail::check_aggregate(function, 0, scale); }
};

}  // namespace aggregate
GDPO_END_NAMESPACE
