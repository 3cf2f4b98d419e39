#pragma once
#include <algorithm>
#include <gdpo/advantage/batch.hpp>
#include <gdpo/advantage/group_advantage.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

GDPO_INLINE std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// A reward array with the settings that stand between storage and statistics: weights, gates, missing rewards,
/// penalty. `sums_first`: the penalty is on the weighted sum; otherwise on the reward it names.
template <class T, class Groups, bool sums_first>
class RewardReader {
 public:
  template <class Estimator>
  RewardReader(const char* function, const RewardBatch<T, Groups>& batch, const Estimator& e, Workspace& work)
      : batch_(batch), function_(function), missing_(e.missing), penalty_(e.penalty), gates_(e.gates), work_(work) {
    check(e.weights);
    work.channels.clear();
    work.channel_weights.clear();
    for (index_t c = 0; c < batch.rewards.extent[1]; ++c) {
      const double weight = e.weights.empty() ? 1.0 : e.weights[c];
      if (weight == 0) continue;  // not read: NaN in it changes no bit
      work.channels.push_back(c);
      work.channel_weights.push_back(weight);
    }
    plain_ = gates_.empty() && (sums_first || penalty_.coef == 0) &&
             (missing_.entry == MissingEntry::Skip || missing_.entry == MissingEntry::Propagate);
    dense_ =
        plain_ && batch.rewards.stride[1] == 1 && static_cast<index_t>(work.channels.size()) == batch.rewards.extent[1];
  }

  /// Every reward is read, as it stands, and a row is contiguous.
  bool dense() const { return dense_; }

  bool skips() const { return missing_.entry == MissingEntry::Skip; }
  bool excludes() const { return skips() && missing_.row == MissingRow::Exclude; }

  /// Products in one weighted sum: what its rounding can come from.
  index_t terms() const { return static_cast<index_t>(work_.channels.size()) + (penalty_.coef != 0 ? 1 : 0); }

  /// Reward c of a row after gates; NaN where it is missing.
  double gated(index_t row, index_t c) const {
    double value = load(batch_.rewards(row, c));
    for (const Gate& gate : gates_) {
      if (gate.reward != c) continue;
      const double given = load(batch_.rewards(row, gate.given));
      if (math::is_nan(given)) return math::nan();
      if (given < gate.at_least) value = 0;
    }
    return value;
  }

  /// Reward c of a row as its statistics see it; NaN where it is missing and stays missing.
  GDPO_INLINE double operator()(index_t row, index_t c) const {
    return plain_ ? load(batch_.rewards(row, c)) : adjusted(row, c);
  }

  /// sum_c w_c r_ic over the present rewards (as a tree in blocks of 8), minus the penalty. NaN: the row is excluded, or NaN
  /// flows. magnitude: sum of the |terms|. Not inlined: g++ 12 -O3 with AVX-512 crashes on it inside fill_report.
  GDPO_NOINLINE double weighted_sum(index_t row, double& magnitude) const {
    const index_t channels = static_cast<index_t>(work_.channels.size());
    const double* weights = work_.channel_weights.data();
    double sum = 0;
    index_t missing = 0;
    magnitude = 0;
    for (index_t first = 0; first < channels; first += 8) {
      const index_t n = (std::min<index_t>)(8, channels - first);
      if (dense_ && n == 8) {
        const auto terms = mul(math::Pack<8>::load(weights + first), math::Pack<8>::load(&batch_.rewards(row, first)));
        const double total = tree_sum(terms);
        if (!math::is_nan(total)) {
          sum += total;
          magnitude += tree_sum(abs(terms));
          continue;
        }
      }
      double terms[8] = {};
      for (index_t j = 0; j < n; ++j) {
        const double value = (*this)(row, work_.channels[at(first + j)]);
        if (skips() && math::is_nan(value)) {
          ++missing;
        } else {
          terms[j] = math::mul(weights[first + j], value);
        }
      }
      sum += tree_of(terms);
      for (double& term : terms) term = math::abs(term);
      magnitude += tree_of(terms);
    }
    if (missing == channels && excludes()) return math::nan();
    if (sums_first && penalty_.coef != 0) {
      const double term = penalty_of(row);
      sum -= term;
      magnitude += math::abs(term);
    }
    // inf - inf: the row is not missing; its group has no moments.
    return skips() && math::is_nan(sum) ? math::infinity : sum;
  }

 private:
  /// tree_sum of eight numbers that stand in memory one by one.
  static GDPO_INLINE double tree_of(const double* t) {
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
  }

  /// A NaN penalty is not a missing reward: it becomes infinite and shows, as an infinite reward does.
  double penalty_of(index_t row) const {
    const double penalty = math::mul(penalty_.coef, batch_.penalty(row));
    return math::is_nan(penalty) ? math::infinity : penalty;
  }

  double adjusted(index_t row, index_t c) const {
    double value = gated(row, c);
    if (math::is_nan(value)) {
      if (missing_.entry == MissingEntry::Zero) value = 0;
      if (missing_.entry == MissingEntry::Reject && (!batch_.valid || batch_.valid(row) != 0)) {
        contract::fail(function_, "rewards", "NaN in row " + contract::text(row) + ", reward " + contract::text(c),
                       "a number, because missing.entry is Reject");
      }
    }
    if (!sums_first && penalty_.coef != 0 && penalty_.reward == c) {
      value -= penalty_of(row);
    }
    return value;
  }

  void check(const List<double>& weights) const {
    using contract::text;
    const index_t rows = batch_.rewards.extent[0], channels = batch_.rewards.extent[1];
    batch_.groups.check(function_, rows);
    if (!weights.empty() && weights.size() != channels) {
      contract::fail(function_, "weights", text(weights.size()) + " weights",
                     "one for each of the " + text(channels) + " rewards, or none");
    }
    for (index_t c = 0; c < weights.size(); ++c) check_finite("weights[" + text(c) + "]", weights[c]);
    for (const Gate& gate : gates_) {
      for (const index_t c : {gate.reward, gate.given}) {
        if (c < 0 || c >= channels) {
          contract::fail(function_, "gates", "reward " + text(c), "a reward from 0 to " + text(channels - 1));
        }
      }
      if (math::is_nan(gate.at_least)) contract::fail(function_, "gates", "a threshold that is NaN", "a number");
    }
    check_finite("penalty.coef", penalty_.coef);
    if (penalty_.coef != 0) {
      if (!batch_.penalty && rows > 0) {
        contract::fail(function_, "batch.penalty", "no column", "the KL of each row, because penalty.coef is not 0");
      }
      if (sums_first && penalty_.reward != -1) {
        contract::fail(function_, "penalty.reward", text(penalty_.reward),
                       "-1: with SumThenNormalize the penalty is on the sum");
      }
      if (!sums_first && (penalty_.reward < 0 || penalty_.reward >= channels)) {
        contract::fail(function_, "penalty.reward", text(penalty_.reward),
                       "the reward that carries the penalty, from 0 to " + text(channels - 1) +
                           ": with NormalizeThenSum each reward is standardised by itself");
      }
    }
    check_rows("batch.tokens", batch_.tokens);
    check_rows("batch.valid", batch_.valid);
    check_rows("batch.baseline", batch_.baseline);
    check_rows("batch.penalty", batch_.penalty);
    check_rows("batch.weights", batch_.weights);
    for (index_t i = 0; batch_.tokens && i < rows; ++i) {
      const double tokens = batch_.tokens(i);
      if (!(tokens >= 0) || math::is_nan(tokens) || math::is_inf(tokens)) {
        contract::fail(function_, "batch.tokens(" + text(i) + ")", text(tokens), "a count of at least 0");
      }
    }
  }
  void check_finite(const std::string& name, double value) const {
    if (math::is_nan(value) || math::is_inf(value))
      contract::fail(function_, name, contract::text(value), "a finite number");
  }
  void check_rows(const char* name, const Column& column) const {
    if (column && column.size() != batch_.rewards.extent[0]) {
      contract::fail(function_, name, contract::text(column.size()) + " entries",
                     "one for each of the " + contract::text(batch_.rewards.extent[0]) + " rows");
    }
  }

  const RewardBatch<T, Groups>& batch_;
  const char* function_;
  Missing missing_;
  penalty::Row penalty_;
  List<Gate, 16> gates_;
  const Workspace& work_;
  bool plain_ = false, dense_ = false;
};

}  // namespace detail
GDPO_END_NAMESPACE
