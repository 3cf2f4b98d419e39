#pragma once
// The contrastive loss on the host: what it needs of a row, the sums of a group, and the gradient.
#include <gdpo/group/borrowed.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/loss/engine/row_loss.hpp>
#include <gdpo/loss/surrogate.hpp>
#include <gdpo/math/log1p.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The surrogate of tokens that have no loss of their own, because that of their group is not a sum
/// over tokens. The group needs advantages.
struct NoSurrogate : surrogate::None {
  static constexpr bool adds_nothing = false;
};

/// The part of a contrastive loss that is a sum over tokens: KL terms and metrics.
template <class KlTerm, class MetricSet>
struct TokenPart {
  level::Sequence<> level;
  NoSurrogate surrogate;
  KlTerm kl;
  Aggregate aggregate;
  Factors<> factor;
  static constexpr MetricSet metrics{};
};

/// On which side of its group a row stands.
enum class Side : unsigned char {
  None,      ///< It has no valid token and is left out.
  Positive,  ///< A > 0
  Negative,  ///< A <= 0
  Unknown    ///< A or S is NaN
};
/// A row in its group.
struct SidedRow {
  double number = 0;  ///< S_i; contrast() puts dloss/dlogp of each token, times their number, here.
  Side side = Side::None;
  bool has_tokens = false;
};

/// The loss whose rows SideOfRow computes.
struct Sides {
  TokenPart<kl::None, metrics::None> part{};
  double tau;
  bool count_empty_rows;
  SidedRow* rows;
};
/// Finds S_i and the side of one row, as RowDriver runs it.
template <class V, class S>
class SideOfRow {
 public:
  static constexpr bool needs_scratch = false;
  SideOfRow(const Sides& sides, const TokenBatch<S>& batch, Tally& tally)
      : sides_(sides), row_loss_(sides.part, batch, tally) {}
  NonFinite& bad_weights() { return row_loss_.bad_weights(); }
  bool operator()(const WeighedRow<S>& weighed, S*, RowMemory<S>&) const {
    const TokenRow<S>& row = weighed.row;
    SidedRow& sided = sides_.rows[row.row];
    sided = {};
    sided.has_tokens = weighed.tokens > 0;
    if (!sided.has_tokens) {
      if (sides_.count_empty_rows) sided.side = Side::Negative;
      return true;
    }
    const double advantage = row.advantages ? row.mean_advantage() : row.advantage;
    sided.number = log_ratio(row) / sides_.tau;
    sided.side = math::is_nan(advantage) || math::is_nan(sided.number) ? Side::Unknown
                 : advantage > 0                                       ? Side::Positive
                                                                       : Side::Negative;
    return true;
  }
  void add(const RowSpan&, const WeighedRow<S>&, bool, RowMemory<S>&) {}

 private:
  /// The mean log ratio of the row. Without old_logp it is 0, or NaN where a log-prob is.
  double log_ratio(const TokenRow<S>& row) const {
    for (index_t t = 0; !row.old_logp && t < row.length; ++t)
      if (row.valid(t) && math::is_nan(row.logp[t])) return math::nan();
    SegmentRatio ratio;
    row_loss_.statistic(row, 0, row.length, 0, nullptr, ratio);
    return ratio.log_ratio;
  }
  const Sides& sides_;
  RowLoss<V, S, TokenPart<kl::None, metrics::None>> row_loss_;
};

/// log(1 + sum of e^x over the rows of one side), x = S for negative rows and -S for positive ones.
/// Puts factor times the derivative by S into their `number`.
///
/// The largest of 0 and all x is taken out of the exponents, and the term that it belongs to out of
/// the sum: with the largest x_m it is x_m + log1p(sum over the other terms of e^(x - x_m)), where
/// the 1 is the term of x = 0. So nothing overflows and small sums keep their digits.
template <class Groups>
double contrast_side(const Groups& groups, index_t g, Side side, SidedRow* rows, double factor) {
  const auto for_each_row = [&](const auto& f) {
    for (index_t k = 0; k < groups.length(g); ++k) {
      SidedRow& row = rows[groups.row(g, k)];
      if (row.side == side) f(row, k);
    }
  };
  const bool positive = side == Side::Positive;
  double largest = 0;
  index_t at = -1;
  for_each_row([&](const SidedRow& row, index_t k) {
    const double x = positive ? -row.number : row.number;
    if (x > largest) largest = x, at = k;
  });
  typename Groups::Order::template Sum<double> others;
  if (at >= 0) others.add(math::exp_parts(-largest).exp);
  for_each_row([&](SidedRow& row, index_t k) {
    const double x = positive ? -row.number : row.number;
    row.number = k == at ? 1.0 : math::exp_parts(x - largest).exp;
    if (k != at) others.add(row.number);
  });
  const double sum = others.value(), all = 1 + sum;
  for_each_row([&](SidedRow& row, index_t) {
    const double slope = math::mul(row.number / all, factor);
    row.number = positive ? -slope : slope;
  });
  return largest + math::log1p(sum);
}

/// What contrast() returns.
struct Contrast {
  double loss;     ///< The sum over groups.
  index_t groups;  ///< The groups in which a row has tokens.
};
/// The contrastive loss of all groups; puts `factor` times its derivative by S_i into each row.
///
/// The rows of a group are added in their order, then the groups in theirs, as Groups::Order says.
template <class Groups>
Contrast contrast(const Groups& all_groups, index_t row_count, SidedRow* rows, double factor) {
  const BorrowedGroups<Groups> groups{all_groups};
  typename Groups::Order::template Sum<double> loss;
  Contrast result{0, 0};
  const index_t count = groups.count(row_count);
  for (index_t g = 0; g < count; ++g) {
    bool positive = false, negative = false, unknown = false, has_tokens = false;
    for (index_t k = 0; k < groups.length(g); ++k) {
      const SidedRow& row = rows[groups.row(g, k)];
      positive = positive || row.side == Side::Positive;
      negative = negative || row.side == Side::Negative;
      unknown = unknown || row.side == Side::Unknown;
      has_tokens = has_tokens || row.has_tokens;
    }
    result.groups += has_tokens;
    if (positive && negative && !unknown) {
      const double of_negative = contrast_side(groups, g, Side::Negative, rows, factor);
      loss.add(of_negative + contrast_side(groups, g, Side::Positive, rows, factor));
      continue;
    }
    for (index_t k = 0; k < groups.length(g); ++k)
      rows[groups.row(g, k)].number = unknown ? math::nan() : 0.0;
    if (unknown) loss.add(math::nan());
  }
  result.loss = loss.value();
  return result;
}

/// The loss whose rows ContrastRow computes: its part of tokens, and the rows as contrast() has
/// left them.
template <class Part>
struct SidedLoss {
  const Part& part;
  const SidedRow* rows;
};
/// Computes the KL terms and metrics of one row and adds the gradient of its group, as RowDriver
/// runs it.
template <class V, class S, class Part>
class ContrastRow {
 public:
  static constexpr bool needs_scratch = true;
  ContrastRow(const SidedLoss<Part>& loss, const TokenBatch<S>& batch, Tally& tally)
      : rows_(loss.rows), row_loss_(loss.part, batch, tally) {}
  NonFinite& bad_weights() { return row_loss_.bad_weights(); }
  using Tokens = RowLoss<V, S, Part>;
  using QueuedRow = typename Tokens::QueuedRow;
  static constexpr bool weighs_rows = Tokens::weighs_rows, queues_rows = true;
  static constexpr int most_rows = Tokens::most_rows;
  int queued() const { return row_loss_.queued(); }
  QueuedRow& push() { return row_loss_.push(); }
  void weigh(QueuedRow& queued, const AggregateArgs& args, double given) {
    row_loss_.weigh(queued, args, given);
  }
  template <class Finish>
  void run(const Finish& finish) {
    row_loss_.run([&](QueuedRow& queued) {
      add_group(queued);
      finish(queued);
    });
  }
  void add(const QueuedRow& queued, RowMemory<S>& memory) { row_loss_.add(queued, memory); }

 private:
  /// Adds the gradient of the group to that of a row.
  void add_group(const QueuedRow& queued) const {
    const TokenRow<S>& row = queued.weighed.row;
    const double number = rows_[row.row].number;
    if (!queued.weighed.counts() || math::is_zero(number)) return;
    const double each = number / static_cast<double>(queued.weighed.tokens);
    for (index_t t = 0; t < row.length; ++t) {
      const auto sum = static_cast<S>(static_cast<double>(queued.gradient[t]) + each);
      queued.gradient[t] = row.valid(t) ? sum : queued.gradient[t];
    }
  }
  const SidedRow* rows_;
  RowLoss<V, S, Part> row_loss_;
};

}  // namespace detail
GDPO_END_NAMESPACE
