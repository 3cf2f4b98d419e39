#pragma once
// Reads the rewards of several rows into lanes, and adds their weighted sums there.
#include <algorithm>
#include <gdpo/advantage/engine/lane_kernels.hpp>
#include <gdpo/advantage/shared/reward_reader.hpp>
#include <gdpo/group/borrowed.hpp>
#include <gdpo/group/by_offsets.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The rows of a group follow each other.
template <class Groups>
constexpr bool is_consecutive_v = std::is_same_v<Groups, GroupsOf> || is_by_offsets_v<Groups>;

/// Rows to be read side by side: row k of place p is member p apart + k step of group number[p].
template <class Groups>
struct PackRows {
  BorrowedGroups<Groups> groups;
  const index_t *number, *lengths;
  index_t step = 1, apart = 0;
  GDPO_HOST_INLINE index_t length(int p) const { return lengths[p]; }
  /// Gives the rows of place p.
  GDPO_HOST_INLINE auto of(int p) const {
    return [all = groups, g = number[p], first = p * apart, by = step](index_t k) {
      return all.row(g, first + k * by);
    };
  }
};

/// A RewardReader that also reads rewards side by side.
template <class T, class Groups>
class LaneReader : public RewardReader<T, Groups> {
  using Base = RewardReader<T, Groups>;
  using Base::batch_, Base::work_, Base::stored_, Base::rules_;

 public:
  using Base::weighted_sum, Base::changed_sum;

  LaneReader(const char* function, const RewardBatch<T, Groups>& batch, const RewardSettings& e,
             EstimatorScratch& work)
      : Base(function, batch, e, work) {
    spread_weights(work);
    const Column& valid = batch.valid;
    const bool bytes = valid.stored_as() == StoredAs::UInt8 || valid.stored_as() == StoredAs::Int8;
    if (valid && bytes && valid.gap() == 0)
      flags_ = static_cast<const unsigned char*>(valid.data());
  }

  /// The weighted_sum of the first n members of group g, in lanes as far as whole packs go. A sum
  /// that is NaN there is computed again by itself, since a reward may be missing. scratch: (n,
  /// most_lanes); null: one row after the other, and so are rewards that may be refused.
  void weighted_sums(index_t g, index_t n, double* scratch, double* sums,
                     double* magnitudes) const {
    constexpr int P = side_by_side<1>;
    const bool one_by_one = !scratch || work_.used_rewards.empty() || this->rejects();
    const index_t packed_rows = one_by_one ? 0 : n - n % P;
    if (packed_rows > 0) {
      index_t number[P], lengths[P];
      std::fill_n(number, P, g), std::fill_n(lengths, P, packed_rows / P);
      const PackRows<Groups> rows{{batch_.groups}, number, lengths, P, 1};
      lane_sums(rows, packed_rows / P, false, scratch, sums, magnitudes);
    }
    for (index_t k = 0; k < n; ++k) {
      const index_t row = batch_.groups.row(g, k);
      sums[k] = k >= packed_rows || math::is_nan(sums[k])
                    ? weighted_sum(row, magnitudes[k])
                    : changed_sum(row, sums[k], magnitudes[k]);
    }
  }

  /// sum_c w_c r_ic and sum_c |w_c r_ic| of the rows rows(p, k), p < P, as weighted_sum adds them,
  /// to sums and magnitudes (members, P). skip: without the rewards that are NaN, a row that has no
  /// other being told by a magnitude of -0. Else NaN where a reward is NaN. Bounds and penalties of
  /// sums are not applied. At least one reward must have a weight. scratch: (members, most_lanes).
  template <int P = side_by_side<1>>
  void lane_sums(const PackRows<Groups>& rows, index_t members, bool skip, double* scratch,
                 double* sums, double* magnitudes) const {
    const index_t reward_count = static_cast<index_t>(work_.used_rewards.size());
    with_lanes(lanes_of(reward_count), [&](auto lanes) {
      constexpr int L = decltype(lanes)::value, count = (std::min)(P, side_by_side<L>);
      for (index_t first = 0; first < reward_count; first += L) {
        for (int p = 0; p < P; p += count) {
          load_lanes<L>(rows, p, count, members, first, scratch);
          const auto weights = lane_weights<L * count>(first, side_by_side<L>);
          add_weighted<L, count>(scratch, members, weights, skip, first == 0, sums + p,
                                 magnitudes + p, P);
        }
      }
    });
  }

  /// Loads into W lanes the weights of the block of rewards that begins with `first`, from lane
  /// `begin` on; they are 0 beyond the last reward. EstimatorScratch::lane_weights repeats each
  /// block for `rows` rows side by side.
  template <int W>
  GDPO_HOST_INLINE math::Pack<W> lane_weights(index_t first, int rows, int begin = 0) const {
    return math::Pack<W>::load(work_.lane_weights.data() + first * rows + begin);
  }

  /// Loads rewards first .. first + L - 1 of the rows rows(p, k), begin <= p < begin + P and k <
  /// rows.length(p), to x (members, P, L), as their statistics see them. Lanes beyond the last
  /// reward get 0 or another number, places without a row any. Nothing is refused here: what is to
  /// be refused stays NaN or infinite.
  template <int L>
  GDPO_HOST_INLINE void load_lanes(const PackRows<Groups>& rows, int begin, int P, index_t members,
                                   index_t first, double* x) const {
    const index_t lanes =
        (std::min<index_t>)(L, static_cast<index_t>(work_.used_rewards.size()) - first);
    if (stored_.dense && (lanes == L || reads_on(rows, begin, P))) {
      load_whole<L>(rows, begin, P, first, lanes, x);
    } else {
      load_part<L>(rows, begin, P, first, lanes, x);
    }
    if (!stored_.plain) change(rows, begin, P, members, first, lanes, L, x);
  }

  /// Whether the row is used (RewardBatch::valid).
  GDPO_HOST_INLINE bool used(index_t row) const { return !batch_.valid || is_valid()(row); }
  /// Tells whether a row is used, where the batch has the column `valid`.
  GDPO_HOST_INLINE auto is_valid() const {
    return [flags = flags_, stride = batch_.valid.stride(), &valid = batch_.valid](index_t row) {
      return flags ? flags[row * stride] != 0 : valid(row) != 0;
    };
  }

 private:
  /// Whether a load of L rewards may read on into the next row: it may not in the last one.
  GDPO_NOINLINE bool reads_on(const PackRows<Groups>& rows, int begin, int P) const {
    if (!is_consecutive_v<Groups> || !stored_.packed) return false;
    for (int p = 0; p < P; ++p) {
      const index_t n = rows.length(begin + p);
      if (n > 0 && rows.of(begin + p)(n - 1) + 1 >= batch_.rewards.extent[0]) return false;
    }
    return true;
  }
  /// load_lanes of stored rewards that are next to each other, L of which can be read at once.
  template <int L>
  GDPO_NOINLINE void load_whole(const PackRows<Groups>& rows, int begin, int P, index_t first,
                                index_t lanes, double* x) const {
    const auto block_mask = first_lanes<L>(lanes);
    const auto zero = math::Pack<L>::all(0.0);
    // A copy: as far as the compiler knows, the stores below could change batch_.
    const View<const T, 2> rewards = batch_.rewards;
    const index_t stride = P * L, step = rows.step * rewards.stride[0];
    for (int p = 0; p < P; ++p, x += L) {
      const index_t n = rows.length(begin + p);
      if (n == 0) continue;
      const auto row_of = rows.of(begin + p);
      const T* source = &rewards(row_of(0), first);
      double* target = x;
      for (index_t k = 0;;) {
        const auto loaded = math::Pack<L>::load(source);
        (lanes < L ? select(block_mask, loaded, zero) : loaded).store(target);
        if (++k == n) break;
        target += stride;
        if constexpr (is_consecutive_v<Groups>) {
          source += step;
        } else {
          source = &rewards(row_of(k), first);
        }
      }
    }
  }
  /// The same of `lanes` rewards that may stand apart.
  template <int L>
  GDPO_NOINLINE void load_part(const PackRows<Groups>& rows, int begin, int P, index_t first,
                               index_t lanes, double* x) const {
    const View<const T, 2> rewards = batch_.rewards;
    // A full load of an incomplete block reads on into the next row, so in the last row it is not
    // used.
    const index_t loadable = stored_.dense && stored_.packed ? rewards.extent[0] - 1 : 0;
    const auto block_mask = first_lanes<L>(lanes);
    const auto zero = math::Pack<L>::all(0.0);
    index_t place[L] = {};
    for (int j = 0; !stored_.dense && j < lanes; ++j)
      place[j] = work_.used_rewards[as_size(first + j)] * rewards.stride[1];
    for (int j = 0; stored_.dense && j < L; ++j) place[j] = first + j;
    for (int p = 0; p < P; ++p, x += L) {
      const index_t n = rows.length(begin + p);
      const auto row_of = rows.of(begin + p);
      double* target = x;
      for (index_t k = 0; k < n; ++k, target += P * L) {
        const index_t i = row_of(k);
        if (i < loadable) {
          select(block_mask, math::Pack<L>::load(&rewards(i, first)), zero).store(target);
        } else {
          const T* const row = &rewards(i, 0);
          for (int j = 0; j < L; ++j) target[j] = j < lanes ? load(row[place[j]]) : 0.0;
        }
      }
    }
  }
  /// Applies the settings to stored rewards, as RewardRules::gated and adjusted do. groups: P.
  GDPO_NOINLINE void change(const PackRows<Groups>& rows, int begin, int groups, index_t members,
                            index_t first, index_t lanes, int L, double* x) const {
    const auto column_of = [&](index_t reward) {
      for (index_t j = 0; j < lanes; ++j) {
        if (work_.used_rewards[as_size(first + j)] == reward) return static_cast<int>(j);
      }
      return -1;
    };
    // First what the gates take away, then what they leave unknown: a gate whose other reward is
    // missing says that this one is, whatever other gates say.
    bool unknown = false;
    for (const bool take_away : {true, false}) {
      for (index_t g = 0; g < rules_.gates.size() && (take_away || unknown); ++g) {
        const int j = column_of(rules_.gates[g].reward);
        for (int p = 0; j >= 0 && p < groups; ++p) {
          double* const column = x + p * L + j;
          unknown = close_gate(rows.of(begin + p), rows.length(begin + p), rules_.gates[g], column,
                               groups * L, take_away) ||
                    unknown;
        }
      }
    }
    if (missing_or_bounded()) settle(x, members * (groups * L));
    const int j =
        rules_.sums_first || rules_.penalty.coef == 0 ? -1 : column_of(rules_.penalty.reward);
    for (int p = 0; j >= 0 && p < groups; ++p) {
      const auto row = rows.of(begin + p);
      for (index_t k = 0; k < rows.length(begin + p); ++k)
        x[(k * groups + p) * L + j] -= this->penalty_of(row(k));
    }
  }

  /// Writes 0 to the column x of n members where the gate takes a reward away, or else NaN where
  /// the gate does not know. Returns whether there is such a place.
  template <class Row>
  GDPO_NOINLINE bool close_gate(const Row row, index_t n, const Gate& gate, double* x, int stride,
                                bool take_away) const {
    const View<const T, 2> rewards = batch_.rewards;
    const double least = gate.at_least, nan = math::nan();
    const index_t column = gate.given;
    bool unknown = false;
    for (index_t k = 0; k < n; ++k, x += stride) {
      const double given = load(rewards(row(k), column));
      const bool unknown_here = math::is_nan(given);
      unknown |= unknown_here;
      if (take_away) {  // by bits: a branch would often be predicted wrong
        const auto kept = static_cast<std::uint64_t>(!(given < least)) * ~std::uint64_t{0};
        *x = math::from_bits(math::bits_of(*x) & kept);
      } else if (unknown_here) {
        *x = nan;
      }
    }
    return unknown;
  }

  /// Whether settle() changes anything.
  bool missing_or_bounded() const {
    return rules_.missing.infinite == InfiniteEntry::Missing ||
           rules_.missing.entry == MissingEntry::Zero || (!rules_.sums_first && rules_.clips);
  }
  /// Missing and infinite rewards, and bounds, of n stored rewards.
  GDPO_NOINLINE void settle(double* x, index_t n) const {
    constexpr int N = math::native_width<double>;
    using Lanes = math::Pack<N>;
    const Missing& missing = rules_.missing;
    const bool clips = !rules_.sums_first && rules_.clips,
               rejects = missing.infinite == InfiniteEntry::Reject;
    const Lanes zero = Lanes::all(0.0), lo = Lanes::all(rules_.clip.lo),
                hi = Lanes::all(rules_.clip.hi), nan = Lanes::all(math::nan());
    for (index_t i = 0; i < n; i += N) {
      Lanes value = Lanes::load(x + i);
      const auto infinite = is_inf(value);
      if (missing.infinite == InfiniteEntry::Missing) value = select(infinite, nan, value);
      if (missing.entry == MissingEntry::Zero) value = select(is_nan(value), zero, value);
      if (clips) {
        const Lanes clamped = select(value < lo, lo, select(value > hi, hi, value));
        value = rejects ? select(infinite, value, clamped) : clamped;
      }
      value.store(x + i);
    }
  }

  /// Fills in lane_weights: each block of reward_weights, padded with 0 to L lanes, once for every
  /// row that goes side by side.
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

  const unsigned char* flags_ = nullptr;  // the column `valid`, if it is of bytes
};

}  // namespace detail
GDPO_END_NAMESPACE
