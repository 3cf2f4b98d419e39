#pragma once
#include <gdpo/advantage/group_moments.hpp>
#include <gdpo/advantage/reader.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The hot path: several groups of equal size side by side in lanes, policies in lanes too. For estimators whose combined
/// values sum to 0 in a group. It takes groups in which nothing is missing and nothing needs a second look, declines the
/// others, and gives the same bits as the general path of evaluate.hpp.
template <class T, class Groups, class Estimator, class Reader, bool sums_first>
class DenseGroups {
 public:
  using Order = typename Groups::Order;
  static constexpr int most_groups = 8;

  DenseGroups(const RewardBatch<T, Groups>& batch, const Estimator& estimator, const Reader& reader, Workspace& work)
      : batch_(batch),
        estimator_(estimator),
        reader_(reader),
        work_(work),
        groups_(batch.groups.count(batch.rewards.extent[0])),
        rewards_(static_cast<index_t>(work.channels.size())),
        possible_(!batch.valid && rewards_ > 0) {
    work.dense_block.resize(work.magnitudes.size() * most_lanes + padding);
    work.dense_scores.resize(work.magnitudes.size() * most_groups + padding);
    block_ = aligned(work.dense_block);
    scores_ = aligned(work.dense_scores);
  }

  /// Writes row_sums for groups g, g+1, ...; returns how many it has done, 0 where it declines group g. equal[p]: all
  /// combined values of group g+p are equal, hence 0.
  index_t combine(index_t g, bool* equal) {
    if (!possible_ || batch_.groups.length(g) < 2) return 0;
    if constexpr (sums_first) {
      return combine_lanes<1>(g, equal);
    } else {
      if (rewards_ > 4) return combine_lanes<8>(g, equal);
      if (rewards_ > 2) return combine_lanes<4>(g, equal);
      return rewards_ == 2 ? combine_lanes<2>(g, equal) : combine_lanes<1>(g, equal);
    }
  }

 private:
  static constexpr int most_lanes = 32;
  /// Doubles: room to start at a cache line, which full-width stores should not cross.
  static constexpr std::size_t padding = 7;
  static double* aligned(std::vector<double>& v) {
    const auto misplaced = reinterpret_cast<std::uintptr_t>(v.data()) / sizeof(double) % (padding + 1);
    return v.data() + (misplaced == 0 ? 0 : padding + 1 - misplaced);
  }

  /// Groups side by side: four registers' worth of lanes, enough independent sums to hide their latency.
  template <int L>
  static constexpr int side_by_side = (std::max)(1, (std::min)(most_groups, 4 * GDPO_LANE_BYTES / (8 * L)));

  template <int L>
  index_t combine_lanes(index_t g, bool* equal) {
    constexpr int P = side_by_side<L>;
    int groups = 1;
    while (groups < P && g + groups < groups_ && batch_.groups.length(g + groups) == batch_.groups.length(g)) ++groups;
    if (combine_groups<L, P>(g, groups, equal)) return groups;
    return groups > 1 && combine_groups<L, P>(g, 1, equal) ? 1 : 0;
  }

  /// Lanes p L .. p L + L - 1: rewards first .. of group g, or its weighted sum; then also the largest sum of |terms|.
  template <int L, int P>
  GDPO_INLINE void load(int p, index_t g, index_t first, index_t lanes, index_t members, double& magnitude) {
    double* x = block_ + p * L;
    const Groups& groups = batch_.groups;
    if constexpr (sums_first) {
      for (index_t k = 0; k < members; ++k, x += P * L) {
        double terms;
        *x = reader_.weighted_sum(groups.row(g, k), terms);
        magnitude = (math::max)(magnitude, terms);
      }
    } else if (reader_.dense()) {
      const View<const T, 2> rewards = batch_.rewards;  // for all the compiler knows, the stores below alter batch_
      const index_t ahead = P * members;
      for (index_t k = 0; k < members; ++k, x += P * L) {
        const T* reward = &rewards(groups.row(g, k), first);
        prefetch(reward + ahead * rewards.stride[0]);
        if (lanes == L) {
          math::Pack<L>::load(reward).store(x);
        } else {
          for (int j = 0; j < L; ++j) x[j] = j < lanes ? gdpo::load(reward[j]) : 0.0;
        }
      }
    } else {
      for (index_t k = 0; k < members; ++k, x += P * L) {
        for (int j = 0; j < L; ++j) x[j] = j < lanes ? reader_(groups.row(g, k), work_.channels[at(first + j)]) : 0.0;
      }
    }
  }
  /// A hint; the address need not exist.
  static GDPO_INLINE void prefetch(const T* address) {
#if defined(__GNUC__)
    __builtin_prefetch(address);
#else
    static_cast<void>(address);
#endif
  }

  /// Groups g .. g + groups - 1; the lanes that are left repeat group g.
  template <int L, int P>
  bool combine_groups(index_t g, int groups, bool* equal_scores) {
    using Lanes = math::Pack<L * P>;
    const Lanes zero = Lanes::all(0.0);
    const index_t members = batch_.groups.length(g), columns = sums_first ? 1 : rewards_;
    double* score = scores_;  // (P, members)
    double magnitude[P] = {}, bound[P] = {};
    for (index_t first = 0; first < columns; first += L) {
      const index_t lanes = (std::min<index_t>)(L, columns - first);
      for (int p = 0; p < P; ++p) load<L, P>(p, g + (p < groups ? p : 0), first, lanes, members, magnitude[p]);
      const double* x = block_;
      typename GroupLanes<L * P>::Stat stat;
      math::Mask<L * P> equal;
      if (!lane_stat(Order{}, x, members, stat, equal)) return false;
      if constexpr (sums_first) {
        if (!sums_clearly_differ<P>(stat.m2, equal, members, magnitude)) return false;
      }

      const GroupLanes<L * P> args{stat, no_batch_};
      const auto base = estimator_.baseline(args);
      Lanes factor = select(equal, zero, math::constant<Lanes>(estimator_.scale(args)));
      if constexpr (!sums_first) {
        double weights[L * P] = {};
        for (int p = 0; p < P; ++p) std::copy_n(work_.channel_weights.data() + first, lanes, weights + p * L);
        factor = mul(Lanes::load(weights), factor);
      }
      // max |x - base|^2 <= m2, so this bounds the square of the largest sum of |terms| of a row, over `columns`.
      add_segments<L, false>(mul(mul(factor, factor), stat.m2), bound, 1);
      if (first == 0) {
        for (index_t k = 0; k < members; ++k) {
          add_segments<L, true>(mul(centre(Lanes::load(x + k * (L * P)), base), factor), score + k, members);
        }
      } else {
        for (index_t k = 0; k < members; ++k) {
          add_segments<L, false>(mul(centre(Lanes::load(x + k * (L * P)), base), factor), score + k, members);
        }
      }
    }
    for (int p = 0; p < groups; ++p) {
      const double largest = largest_of(score + p * members, members);
      equal_scores[p] = largest == 0;
      if (math::is_inf(bound[p]) || math::is_nan(bound[p])) return false;
      if (math::is_zero(largest)) continue;
      const double tolerance = 2 * rounding_of_sum(columns, 1.0);
      if (!(largest * largest > tolerance * tolerance * static_cast<double>(columns) * bound[p])) return false;
    }
    double* row_sums = work_.row_sums.data();
    for (int p = 0; p < groups; ++p) {
      for (index_t k = 0; k < members; ++k) {
        row_sums[batch_.groups.row(g + p, k)] = score[p * members + k] + 0.0;  // -0 becomes 0
      }
    }
    return true;
  }

  /// No group's sums differ by so little that it may be the rounding of their terms. max - min <= t implies m2 <= n t^2:
  /// what exceeds that differs; exactly equal sums need no look.
  template <int P>
  bool sums_clearly_differ(const math::Pack<P>& m2, const math::Mask<P>& equal, index_t members,
                           const double* magnitude) const {
    double squares[P];
    select(equal, math::Pack<P>::all(math::infinity), m2).store(squares);
    bool clear = true;
    for (int p = 0; p < P; ++p) {
      const double tolerance = rounding_of_sum(reader_.terms(), magnitude[p]);
      clear = clear && squares[p] > 2 * static_cast<double>(members) * tolerance * tolerance;
    }
    return clear;
  }

  /// to[p * stride] = or += the tree sum of lanes p L .. p L + L - 1.
  template <int L, bool first, int All>
  static GDPO_INLINE void add_segments(const math::Pack<All>& terms, double* to, index_t stride) {
    if constexpr (All == L) {
      *to = first ? tree_sum(terms) : *to + tree_sum(terms);
    } else {
      add_segments<L, first>(low_half(terms), to, stride);
      add_segments<L, first>(high_half(terms), to + stride * (All / L / 2), stride);
    }
  }

  static double largest_of(const double* score, index_t members) {
    using Lanes = math::Pack<8>;
    double largest = 0;
    index_t k = 0;
    if (members >= 8) {
      Lanes most = Lanes::all(0.0);
      for (; k + 8 <= members; k += 8) most = (math::max)(most, abs(Lanes::load(score + k)));
      largest = -tree_min(Lanes::all(0.0) - most);
    }
    for (; k < members; ++k) largest = (math::max)(largest, math::abs(score[k]));
    return largest;
  }

  const RewardBatch<T, Groups>& batch_;
  const Estimator& estimator_;
  const Reader& reader_;
  Workspace& work_;
  index_t groups_, rewards_;
  bool possible_;
  double *block_, *scores_;  // (K, P L) values; (P, K) combined values
  BatchStat no_batch_{};
};

}  // namespace detail
GDPO_END_NAMESPACE
