#pragma once
// Reads the rewards of several rows into lanes, and adds their weighted sums there.
#include <algorithm>
#include <gdpo/advantage/engine/lane_kernels.hpp>
#include <gdpo/advantage/shared/reward_reader.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// A RewardReader that also reads rewards side by side.
template <class T, class Groups, bool sums_first>
class LaneReader : public RewardReader<T, Groups, sums_first> {
  using Base = RewardReader<T, Groups, sums_first>;
  using Base::batch_, Base::work_, Base::stored_;

 public:
  using Base::weighted_sum, Base::changed_sum;

  template <class Estimator>
  LaneReader(const char* function, const RewardBatch<T, Groups>& batch, const Estimator& e,
             EstimatorScratch& work)
      : Base(function, batch, e, work) {
    spread_weights(work);
  }

  /// The weighted_sum of the rows row(0) .. row(n - 1), in lanes as far as whole packs go. A sum
  /// that is NaN there is computed again by itself, since a reward may be missing. scratch: (n,
  /// most_lanes); null: one row after the other.
  template <class Row>
  void weighted_sums(const Row& row, index_t n, double* scratch, double* sums,
                     double* magnitudes) const {
    constexpr int P = side_by_side<1>;
    const index_t packed_rows = !scratch || work_.used_rewards.empty() ? 0 : n - n % P;
    if (packed_rows > 0) {
      lane_sums([&](int p, index_t k) { return row(k * P + p); }, packed_rows / P, scratch, sums,
                magnitudes);
    }
    for (index_t i = 0; i < n; ++i) {
      sums[i] = i >= packed_rows || math::is_nan(sums[i])
                    ? weighted_sum(row(i), magnitudes[i])
                    : changed_sum(row(i), sums[i], magnitudes[i]);
    }
  }

  /// sum_c w_c r_ic and sum_c |w_c r_ic| of the rows row(p, k), p < P, as weighted_sum adds them,
  /// to sums and magnitudes (members, P). NaN where a reward is NaN; bounds and penalties are not
  /// applied. At least one reward must have a weight. scratch: (members, most_lanes).
  template <int P = side_by_side<1>, class Row>
  void lane_sums(const Row& row, index_t members, double* scratch, double* sums,
                 double* magnitudes) const {
    const index_t reward_count = static_cast<index_t>(work_.used_rewards.size());
    with_lanes(lanes_of(reward_count), [&](auto lanes) {
      constexpr int L = decltype(lanes)::value, rows = (std::min)(P, side_by_side<L>);
      for (index_t first = 0; first < reward_count; first += L) {
        for (int p = 0; p < P; p += rows) {
          load_lanes<L, rows>([&](int q, index_t k) { return row(p + q, k); }, members, first,
                              scratch);
          const auto weights = lane_weights<L * rows>(first, side_by_side<L>);
          add_weighted<L, rows>(scratch, members, weights, first == 0, sums + p, magnitudes + p, P);
        }
      }
    });
  }

  /// Loads into W lanes the weights of the block of rewards that begins with `first`; they are 0
  /// beyond the last reward. EstimatorScratch::lane_weights repeats each block for `rows` rows
  /// side by side.
  template <int W>
  GDPO_HOST_INLINE math::Pack<W> lane_weights(index_t first, int rows) const {
    return math::Pack<W>::load(work_.lane_weights.data() + first * rows);
  }

  /// Loads rewards first .. first + L - 1 of the rows row(p, k), p < P, to x (members, P, L).
  /// Lanes beyond the last reward get 0.
  template <int L, int P, class Row>
  GDPO_NOINLINE void load_lanes(const Row row, index_t members, index_t first, double* x) const {
    // A copy: as far as the compiler knows, the stores below could change batch_.
    const View<const T, 2> rewards = batch_.rewards;
    const index_t lanes =
        (std::min<index_t>)(L, static_cast<index_t>(work_.used_rewards.size()) - first);
    const bool whole = stored_.dense && lanes == L;
    // A full load of an incomplete block reads on into the next row, so in the last row it is not
    // used.
    const index_t loadable = stored_.dense && stored_.packed ? rewards.extent[0] - 1 : 0;
    const auto block_mask = first_lanes<L>(lanes);
    const auto zero = math::Pack<L>::all(0.0);
    for (int p = 0; p < P; ++p) {
      double* target = x + p * L;
      if (whole) {
        for (index_t k = 0; k < members; ++k, target += P * L)
          math::Pack<L>::load(&rewards(row(p, k), first)).store(target);
        continue;
      }
      for (index_t k = 0; k < members; ++k, target += P * L) {
        const index_t i = row(p, k);
        if (i < loadable) {
          select(block_mask, math::Pack<L>::load(&rewards(i, first)), zero).store(target);
        } else {
          load_row(i, first, lanes, L, target);
        }
      }
    }
  }

 private:
  /// Fills in lane_weights: each block of reward_weights, padded with 0 to L lanes, once for
  /// every row that goes side by side.
  static void spread_weights(EstimatorScratch& work) {
    const index_t reward_count = static_cast<index_t>(work.used_rewards.size());
    const int L = lanes_of(reward_count), rows = rows_side_by_side(L);
    work.lane_weights.clear();
    for (index_t first = 0; first < reward_count; first += L) {
      for (int c = 0; c < L * rows; ++c) {
        const index_t reward = first + c % L;
        work.lane_weights.push_back(reward < reward_count ? work.reward_weights[as_size(reward)]
                                                          : 0.0);
      }
    }
  }

  /// Loads rewards first .. first + lanes - 1 of a row to `target`, and 0 up to L.
  GDPO_NOINLINE void load_row(index_t row, index_t first, index_t lanes, int L,
                              double* target) const {
    for (int j = 0; j < L; ++j)
      target[j] = j < lanes ? (*this)(row, work_.used_rewards[as_size(first + j)]) : 0.0;
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
