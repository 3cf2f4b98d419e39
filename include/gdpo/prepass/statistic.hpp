#pragma once
// Statistic: how a quantity of tokens is taken over a segment, a row or a group.
#include <gdpo/prepass/engine/row_lanes.hpp>
#include <gdpo/prepass/estimator.hpp>

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
  RunningStatistic() = default;
  /// That of n numbers of which the sum or the largest is known, for a Mean or Sum or a Max.
  GDPO_INLINE RunningStatistic(double n, double sum, double largest, bool nan)
      : sum_(sum), largest_(largest), n_(n), nan_(nan) {}
  /// Adds a value.
  GDPO_INLINE void add(Reduction reduction, double value) {
    n_ += 1;
    add_uncounted(reduction, value);
  }
  /// Adds a value that is counted elsewhere (count()).
  GDPO_INLINE void add_uncounted(Reduction reduction, double value) {
    nan_ = nan_ || math::is_nan(value);
    if (reduction == Reduction::LogMeanExp && !(math::is_inf(value) && value < 0)) {
      // Of values so far: e^largest * sum. The larger of old and new has the weight 1.
      const double largest = (math::max)(value, largest_);
      sum_ = math::fma(sum_, ratio_of(largest_ - largest), ratio_of(value - largest));
    } else if (reduction != Reduction::LogMeanExp) {
      sum_ += value;
    }
    largest_ = (math::max)(value, largest_);
  }
  /// Adds the numbers in the lanes of a V to a LogMeanExp, in their order. Those that are -infinity
  /// change nothing.
  template <class V>
  GDPO_INLINE void add_lanes(const double* values) {
    constexpr int width = math::Lanes<V>::width;
    const V value = math::Lanes<V>::load(values), largest = math::constant<V>(largest_);
    bool as_is = !math::is_inf(largest_);
    if constexpr (width > 1) {
      as_is = as_is && !math::any(math::either(value > largest, math::is_nan(value)));
    } else {
      as_is = false;
    }
    if (!as_is) {
      for (int j = 0; j < width; ++j) add_uncounted(Reduction::LogMeanExp, values[j]);
      return;
    }
    double terms[width];  // with the weight e^0 = 1 of the sum before them
    math::Lanes<V>::store(terms, V(ratio_of(V(value - largest))));
    for (const double term : terms) sum_ += term;
  }
  /// Counts the numbers of add_uncounted() and add_lanes().
  GDPO_INLINE void count(double n) { n_ += n; }
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

/// The number that stands at masked tokens while a statistic is taken: it changes none.
GDPO_INLINE double neutral_of(Reduction reduction) {
  return reduction == Reduction::Max || reduction == Reduction::LogMeanExp ? -math::infinity : 0.0;
}

/// The largest of n values, as RunningStatistic finds it: of zeros the last.
template <class V>
RunningStatistic running_max(const double* values, index_t n, double valid) {
  constexpr int width = math::Lanes<V>::width;
  double largest = -math::infinity;
  bool nan = false;
  index_t t = 0;
  if constexpr (width > 1) {
    V most = math::constant<V>(-math::infinity);
    mask_t<V> is_nan = math::is_nan(most);
    for (; t + width <= n; t += width) {
      const V value = math::Lanes<V>::load(values + t);
      is_nan = math::either(is_nan, math::is_nan(value));
      most = (math::max)(most, value);
    }
    double lanes[width];
    math::Lanes<V>::store(lanes, most);
    for (const double lane : lanes) largest = (math::max)(lane, largest);
    nan = math::any(is_nan);
    if (math::is_zero(largest)) largest = -math::infinity, t = 0;  // which zero is it?
  }
  for (; t < n; ++t) {
    nan = nan || math::is_nan(values[t]);
    largest = (math::max)(values[t], largest);
  }
  return {valid, 0, largest, nan};
}

/// The statistics of the values of up to `most_prepass_rows` rows. `valid`: their numbers of valid
/// tokens; neutral_of() stands at the others.
template <class V>
void running_of_rows(Reduction reduction, const double* const* values, const index_t* lengths,
                     const index_t* valid, int rows, RunningStatistic* running) {
  if (reduction == Reduction::Mean || reduction == Reduction::Sum) {
    double sums[most_prepass_rows] = {};
    sum_rows_in_order(values, lengths, rows, sums);
    for (int r = 0; r < rows; ++r)
      running[r] = {static_cast<double>(valid[r]), sums[r], 0, math::is_nan(sums[r])};
    return;
  }
  for (int r = 0; r < rows; ++r) {
    const auto n = static_cast<double>(valid[r]);
    if (reduction == Reduction::Max) {
      running[r] = running_max<V>(values[r], lengths[r], n);
      continue;
    }
    running[r] = {};
    running[r].count(n);
    for_each_lanes<V>(lengths[r], [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
      running[r].template add_lanes<typename decltype(lanes)::type>(values[r] + t);
    });
  }
}

/// Replaces the values of each segment of a row by its statistic.
template <class V, class S>
void share_in_segments(Reduction reduction, const TokenRow<S>& row, double count_eps,
                       double* values) {
  for (index_t begin = 0; begin < row.length;) {
    const index_t end = row.segment_end(begin), length = end - begin;
    const index_t valid = count_mask(row.mask ? row.mask + begin : nullptr, length);
    const double* const of_segment = values + begin;
    RunningStatistic running;
    running_of_rows<V>(reduction, &of_segment, &length, &valid, 1, &running);
    std::fill(values + begin, values + end, running.value(reduction, count_eps));
    begin = end;
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

/// Takes the statistic of a pre-pass over the rows of each group. The pre-pass has `estimates` (see
/// share_statistics) and `groups`, one number a row.
template <class V, class S, class Pass>
void find_groups(const Pass& pass, const PrepassRows<S>& rows, BatchDecision& of_batch) {
  if (share_of(pass.statistic) != Share::Group) return;
  const Reduction reduction = reduction_of(pass.statistic);
  std::vector<double>& scratch = rows.scratch();
  std::unordered_map<double, RunningStatistic> running;
  for (index_t i = 0; i < rows.size(); ++i) {
    const TokenRow<S> row = rows(i);
    const double group = pass.groups(i);
    if (math::is_nan(group)) continue;
    scratch.resize((std::max)(scratch.size(), static_cast<std::size_t>(row.length)));
    double* const values = scratch.data();
    pass.template write_estimates<V>(row, neutral_of(reduction), values);
    const index_t valid = row.count();
    RunningStatistic of_row;
    running_of_rows<V>(reduction, &values, &row.length, &valid, 1, &of_row);
    running[group].merge(reduction, of_row);
  }
  for (const auto& [group, of_group] : running)
    of_batch.groups[group] = of_group.value(reduction, pass.count_eps);
}

/// Takes the statistic of a pre-pass, not Token, over up to `most_prepass_rows` rows. The number
/// that the tokens of row r share is shared[r]; those of segments stand at their tokens, in
/// values[r].
///
/// `pass.write_estimates<V>(row, masked, values)` writes the quantity of each valid token, and
/// `masked` at the others.
template <class V, class S, class Pass>
void share_statistics(const Pass& pass, const BatchDecision& of_batch, const TokenRow<S>* rows,
                      int n, double* const* values, double* shared) {
  if (share_of(pass.statistic) == Share::Group) {
    for (int r = 0; r < n; ++r) {
      const double group = pass.groups(rows[r].row);
      shared[r] = math::is_nan(group) ? math::nan() : of_batch.groups.at(group);
    }
    return;
  }
  const Reduction reduction = reduction_of(pass.statistic);
  index_t lengths[most_prepass_rows] = {}, valid[most_prepass_rows] = {};
  for (int r = 0; r < n; ++r) {
    pass.template write_estimates<V>(rows[r], neutral_of(reduction), values[r]);
    if (share_of(pass.statistic) == Share::Segment)
      share_in_segments<V>(reduction, rows[r], pass.count_eps, values[r]);
    lengths[r] = rows[r].length, valid[r] = rows[r].count();
  }
  if (share_of(pass.statistic) == Share::Segment) return;
  RunningStatistic running[most_prepass_rows];
  running_of_rows<V>(reduction, values, lengths, valid, n, running);
  for (int r = 0; r < n; ++r) shared[r] = running[r].value(reduction, pass.count_eps);
}

/// Writes the statistics of the tokens of up to `most_prepass_rows` rows into w; of Token their
/// estimates.
template <class V, class S, class Pass>
void write_statistics(const Pass& pass, const BatchDecision& of_batch, const TokenRow<S>* rows,
                      int n, double* const* w) {
  const Share share = share_of(pass.statistic);
  if (share == Share::Token) {
    for (int r = 0; r < n; ++r) pass.template write_estimates<V>(rows[r], 0, w[r]);
    return;
  }
  double shared[most_prepass_rows];
  share_statistics<V>(pass, of_batch, rows, n, w, shared);
  for (int r = 0; share != Share::Segment && r < n; ++r)
    std::fill_n(w[r], rows[r].length, shared[r]);
}

}  // namespace detail
GDPO_END_NAMESPACE
