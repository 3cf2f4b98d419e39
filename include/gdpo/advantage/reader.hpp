#pragma once
#include <algorithm>
#include <gdpo/advantage/batch.hpp>
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/advantage/lane_kernels.hpp>

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
    spread_weights(work);
    plain_ = gates_.empty() && (sums_first || penalty_.coef == 0) &&
             (missing_.entry == MissingEntry::Skip || missing_.entry == MissingEntry::Propagate);
    dense_ =
        plain_ && batch.rewards.stride[1] == 1 && static_cast<index_t>(work.channels.size()) == batch.rewards.extent[1];
    packed_ = batch.rewards.stride[0] == batch.rewards.extent[1];
  }

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
    double sum = 0;
    index_t missing = 0;
    magnitude = 0;
    for (index_t first = 0; first < channels; first += 8) {
      const index_t n = (std::min<index_t>)(8, channels - first);
      double terms[8] = {};
      for (index_t j = 0; j < n; ++j) {
        const double value = (*this)(row, work_.channels[at(first + j)]);
        if (skips() && math::is_nan(value)) {
          ++missing;
        } else {
          terms[j] = math::mul(work_.channel_weights[at(first + j)], value);
        }
      }
      sum += tree_of(terms);
      for (double& term : terms) term = math::abs(term);
      magnitude += tree_of(terms);
    }
    if (missing == channels && excludes()) return math::nan();
    return penalised(row, sum, magnitude);
  }

  /// The weighted_sum of rows row(0) .. row(n - 1). scratch: (n, most_lanes).
  template <class Row>
  void weighted_sums(const Row& row, index_t n, double* scratch, double* sums, double* magnitudes) const {
    constexpr int P = side_by_side<1>;
    const index_t in_lanes = work_.channels.empty() ? 0 : n - n % P;
    lane_sums([&](int p, index_t k) { return row(k * P + p); }, in_lanes / P, scratch, sums, magnitudes);
    for (index_t i = 0; i < n; ++i) {
      sums[i] = i >= in_lanes || math::is_nan(sums[i]) ? weighted_sum(row(i), magnitudes[i])
                                                       : penalised(row(i), sums[i], magnitudes[i]);
    }
  }

  /// sum_c w_c r_ic of rows row(p, k), p < P, as `weighted_sum` adds it, and sum_c |w_c r_ic|: (members, P). NaN where some
  /// reward is. There is a reward. scratch: (members, most_lanes).
  template <int P = side_by_side<1>, class Row>
  void lane_sums(const Row& row, index_t members, double* scratch, double* sums, double* magnitudes) const {
    const index_t channels = static_cast<index_t>(work_.channels.size());
    with_lanes(channels, [&](auto lanes) {
      constexpr int L = decltype(lanes)::value, rows = (std::min)(P, side_by_side<L>);
      for (index_t first = 0; first < channels; first += L) {
        for (int p = 0; p < P; p += rows) {
          load_lanes<L, rows>([&](int q, index_t k) { return row(p + q, k); }, members, first, scratch);
          add_weighted<L, rows>(scratch, members, lane_weights<L, rows>(first), first == 0, sums + p, magnitudes + p,
                                P);
        }
      }
    });
  }

  /// The weights of rewards first .. first + L - 1, 0 beyond the last reward, for each of P rows.
  template <int L, int P>
  GDPO_INLINE math::Pack<L * P> lane_weights(index_t first) const {
    return math::Pack<L * P>::load(work_.lane_weights.data() + first * side_by_side<L>);
  }

  /// The sum of a row minus its penalty.
  bool penalises() const { return sums_first && penalty_.coef != 0; }
  double penalised(index_t row, double sum, double& magnitude) const {
    if (penalises()) {
      const double term = penalty_of(row);
      sum -= term;
      magnitude += math::abs(term);
    }
    // inf - inf: the row is not missing; its group has no moments.
    return skips() && math::is_nan(sum) ? math::infinity : sum;
  }

  /// Rewards first .. first + L - 1 of rows row(p, k), p < P, in lanes: x (members, P, L). 0 beyond the last reward.
  template <int L, int P, class Row>
  GDPO_NOINLINE void load_lanes(const Row row, index_t members, index_t first, double* x) const {
    const View<const T, 2> rewards = batch_.rewards;  // for all the compiler knows, the stores below alter batch_
    const index_t lanes = (std::min<index_t>)(L, static_cast<index_t>(work_.channels.size()) - first);
    const bool whole = dense_ && lanes == L;
    // A full load of an incomplete block reads on into the next row.
    const index_t loadable = dense_ && packed_ ? rewards.extent[0] - 1 : 0;
    const auto in_block = first_lanes<L>(lanes);
    const auto zero = math::Pack<L>::all(0.0);
    for (int p = 0; p < P; ++p) {
      double* to = x + p * L;
      if (whole) {
        for (index_t k = 0; k < members; ++k, to += P * L) math::Pack<L>::load(&rewards(row(p, k), first)).store(to);
        continue;
      }
      for (index_t k = 0; k < members; ++k, to += P * L) {
        const index_t i = row(p, k);
        if (i < loadable) {
          select(in_block, math::Pack<L>::load(&rewards(i, first)), zero).store(to);
        } else {
          load_row(i, first, lanes, L, to);
        }
      }
    }
  }

 private:
  /// lane_weights from channel_weights.
  static void spread_weights(Workspace& work) {
    const index_t channels = static_cast<index_t>(work.channels.size());
    work.lane_weights.clear();
    with_lanes(channels, [&](auto lanes) {
      constexpr int L = decltype(lanes)::value;
      for (index_t first = 0; first < channels; first += L) {
        for (index_t c = 0; c < L * side_by_side<L>; ++c) {
          const index_t channel = first + c % L;
          work.lane_weights.push_back(channel < channels ? work.channel_weights[at(channel)] : 0.0);
        }
      }
    });
  }

  /// tree_sum of eight numbers that stand in memory one by one.
  static GDPO_INLINE double tree_of(const double* t) {
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
  }

  /// to[j] = reward first + j, 0 beyond `lanes`.
  GDPO_NOINLINE void load_row(index_t row, index_t first, index_t lanes, int L, double* to) const {
    for (int j = 0; j < L; ++j) to[j] = j < lanes ? (*this)(row, work_.channels[at(first + j)]) : 0.0;
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
  bool plain_ = false;   // rewards are read as they stand ...
  bool dense_ = false;   // ... and all of them, next to each other in a row ...
  bool packed_ = false;  // ... and the rows next to each other
};

}  // namespace detail
GDPO_END_NAMESPACE
