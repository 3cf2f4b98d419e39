#pragma once
// Statistic: how a quantity of tokens is taken over a segment, a row or a group.
#include <gdpo/prepass/estimator.hpp>
#include <unordered_map>

GDPO_BEGIN_NAMESPACE
namespace prepass {

/// How a quantity of the tokens is taken: at each token, or as one number per segment, row or
/// group, which all its tokens share.
///
/// Over valid tokens: Mean is their sum / (their number + count_eps), Sum their sum, Max the
/// largest, and LogMeanExp the log of the mean of e^value. Of log ratios, Sum gives the product of
/// the ratios, Mean their geometric mean, and LogMeanExp their arithmetic mean.
///
/// A segment is a run of equal TokenBatch::segments in a row; the whole row where the batch has
/// none. A group is all rows with the same number in the member `groups` of the pre-pass, which is
/// read as a double: integers above 2^53 are rounded. Of a row whose number is NaN the statistic is
/// NaN.
enum class Statistic {
  Token,               ///< The quantity of each token, for itself.
  SegmentMean,         ///< Mean over the tokens of the segment.
  SegmentSum,          ///< Their sum.
  SegmentMax,          ///< The largest of them.
  SegmentLogMeanExp,   ///< The log of the mean of e^value.
  SequenceMean,        ///< Mean over the tokens of the row.
  SequenceSum,         ///< Their sum.
  SequenceMax,         ///< The largest of them.
  SequenceLogMeanExp,  ///< The log of the mean of e^value.
  GroupMean,           ///< Mean over the tokens of all rows of the group.
  GroupSum,            ///< Their sum.
  GroupMax,            ///< The largest of them.
  GroupLogMeanExp      ///< The log of the mean of e^value.
};
/// The enumerators of Statistic with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Statistic) {
  using E = Enumerator<Statistic>;
  return std::array{E{"token", Statistic::Token},
                    E{"segment_mean", Statistic::SegmentMean},
                    E{"segment_sum", Statistic::SegmentSum},
                    E{"segment_max", Statistic::SegmentMax},
                    E{"segment_log_mean_exp", Statistic::SegmentLogMeanExp},
                    E{"sequence_mean", Statistic::SequenceMean},
                    E{"sequence_sum", Statistic::SequenceSum},
                    E{"sequence_max", Statistic::SequenceMax},
                    E{"sequence_log_mean_exp", Statistic::SequenceLogMeanExp},
                    E{"group_mean", Statistic::GroupMean},
                    E{"group_sum", Statistic::GroupSum},
                    E{"group_max", Statistic::GroupMax},
                    E{"group_log_mean_exp", Statistic::GroupLogMeanExp}};
}

}  // namespace prepass

namespace detail {

/// What shares one number of a statistic.
enum class Share { Token, Segment, Sequence, Group };
/// How that number is made.
enum class Reduction { Mean, Sum, Max, LogMeanExp };

GDPO_INLINE constexpr Share share_of(prepass::Statistic statistic) {
  return statistic == prepass::Statistic::Token
             ? Share::Token
             : static_cast<Share>((static_cast<int>(statistic) - 1) / 4 + 1);
}
GDPO_INLINE constexpr Reduction reduction_of(prepass::Statistic statistic) {
  return static_cast<Reduction>((static_cast<int>(statistic) + 3) % 4);
}
static_assert(share_of(prepass::Statistic::GroupLogMeanExp) == Share::Group &&
              reduction_of(prepass::Statistic::GroupLogMeanExp) == Reduction::LogMeanExp &&
              share_of(prepass::Statistic::SegmentMean) == Share::Segment &&
              reduction_of(prepass::Statistic::SegmentMean) == Reduction::Mean);

/// A statistic while its values are added, in double: those of a row in the order of its tokens,
/// and of a group the rows in their order. If one of the values is NaN, so is the statistic.
class RunningStatistic {
 public:
  /// Adds a value.
  GDPO_INLINE void add(Reduction reduction, double value) {
    nan_ = nan_ || math::is_nan(value);
    n_ += 1;
    if (reduction == Reduction::LogMeanExp && !(math::is_inf(value) && value < 0)) {
      // Of values so far: e^largest * sum. The larger of old and new has the weight 1.
      const double largest = (math::max)(value, largest_);
      sum_ = math::fma(sum_, ratio_of(largest_ - largest), ratio_of(value - largest));
    } else if (reduction != Reduction::LogMeanExp) {
      sum_ += value;
    }
    largest_ = (math::max)(value, largest_);
  }
  /// Adds the values that another one has: those of the next row.
  GDPO_INLINE void merge(Reduction reduction, const RunningStatistic& o) {
    nan_ = nan_ || o.nan_;
    n_ += o.n_;
    if (reduction == Reduction::LogMeanExp && !(math::is_inf(o.largest_) && o.largest_ < 0)) {
      const double largest = (math::max)(o.largest_, largest_);
      sum_ = math::fma(sum_, ratio_of(largest_ - largest),
                       math::mul(o.sum_, ratio_of(o.largest_ - largest)));
    } else if (reduction != Reduction::LogMeanExp) {
      sum_ += o.sum_;
    }
    largest_ = (math::max)(o.largest_, largest_);
  }
  /// The statistic; without values that of nothing: 0, or -infinity for Max and LogMeanExp.
  GDPO_INLINE double value(Reduction reduction, double count_eps) const {
    if (nan_) return math::nan();
    switch (reduction) {
      case Reduction::Mean:
        return n_ + count_eps > 0 ? sum_ / (n_ + count_eps) : 0.0;
      case Reduction::Sum:
        return sum_;
      case Reduction::Max:
        return largest_;
      case Reduction::LogMeanExp:
        return math::is_inf(largest_) ? largest_ : largest_ + log_of_quotient(sum_, n_ + count_eps);
    }
    return sum_;
  }

 private:
  double sum_ = 0, largest_ = -math::infinity, n_ = 0;
  bool nan_ = false;
};

/// Replaces the values of the tokens begin .. end - 1 of a row by their statistic.
template <class S>
GDPO_INLINE void share_statistic(Reduction reduction, const TokenRow<S>& row, index_t begin,
                                 index_t end, double count_eps, double* values) {
  RunningStatistic running;
  for (index_t t = begin; t < end; ++t) {
    if (row.valid(t)) running.add(reduction, values[t]);
  }
  const double value = running.value(reduction, count_eps);
  for (index_t t = begin; t < end; ++t) values[t] = value;
}

/// Replaces the values of a row by their statistic over its valid tokens; Token and the statistics
/// of groups change nothing.
template <class S>
void row_statistic(prepass::Statistic statistic, const TokenRow<S>& row, double count_eps,
                   double* values) {
  const Reduction reduction = reduction_of(statistic);
  switch (share_of(statistic)) {
    case Share::Sequence:
      share_statistic(reduction, row, 0, row.length, count_eps, values);
      break;
    case Share::Segment:
      for (index_t begin = 0; begin < row.length;) {
        const index_t end = row.segment_end(begin);
        share_statistic(reduction, row, begin, end, count_eps, values);
        begin = end;
      }
      break;
    case Share::Token:
    case Share::Group:
      break;
  }
}

/// Throws unless a statistic over groups has its column, one number a row. `name` is the pre-pass.
inline void check_groups(prepass::Statistic statistic, const Column& groups,
                         const TokenLayout& layout, const char* name) {
  if (share_of(statistic) != Share::Group) return;
  if (groups && groups.rank() == 1 && groups.size() == layout.rows) return;
  const std::string argument = std::string(name) + ".groups";
  if (!groups && layout.rows > 0) {
    contract::fail("gdpo::prepare", argument, "no column",
                   "one number for each row, equal within a group");
  }
  check_rows("gdpo::prepare", argument.c_str(), groups, layout);
}

/// Writes the value of each valid token, or of what shares one, into the weights of `args`, and
/// then calls `decide(row, weights of the row)` for each row.
///
/// `write(row, weights of the row)` gives the quantity of each token. Of groups, the rows are read
/// twice. `groups` (B) is needed for them alone.
template <class S, class Write, class Decide>
void for_each_statistic(const PrepassArgs<S>& args, prepass::Statistic statistic, double count_eps,
                        const Column& groups, const char* name, const Write& write,
                        const Decide& decide) {
  const PrepassRows<S>& rows = args.rows;
  const bool of_groups = share_of(statistic) == Share::Group;
  check_groups(statistic, groups, rows.layout(), name);
  for (index_t i = 0; i < rows.size(); ++i) {
    const TokenRow<S> row = rows(i);
    double* values = args.weights_of(i);
    write(row, values);
    row_statistic(statistic, row, count_eps, values);
    if (!of_groups) decide(row, values);
  }
  if (!of_groups) return;
  const Reduction reduction = reduction_of(statistic);
  std::unordered_map<double, RunningStatistic> running;
  for (index_t i = 0; i < rows.size(); ++i) {
    const TokenRow<S> row = rows(i);
    const double* values = args.weights_of(i);
    RunningStatistic of_row;
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t)) of_row.add(reduction, values[t]);
    }
    if (const double group = groups(i); !math::is_nan(group))
      running[group].merge(reduction, of_row);
  }
  for (index_t i = 0; i < rows.size(); ++i) {
    const TokenRow<S> row = rows(i);
    double* values = args.weights_of(i);
    const double group = groups(i);
    std::fill_n(values, row.length,
                math::is_nan(group) ? math::nan() : running[group].value(reduction, count_eps));
    decide(row, values);
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
