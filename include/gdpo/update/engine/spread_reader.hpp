#pragma once
// Whether the rewards of a group vary, and how much, as the estimators see it.
#include <algorithm>
#include <gdpo/advantage/shared/group_rules.hpp>
#include <gdpo/advantage/shared/reward_reader.hpp>
#include <gdpo/lanes/segment_sums.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The spread of a group: of one reward or of the sum, or of several rewards together.
struct GroupSpread {
  bool any = false, unknown = false, flat = true;
  double variance = 0;
  double value_rounding = 0;  ///< How far rounding can move a value that the variance is made of.
  index_t values = 0;         ///< The most values of a reward.

  /// Adds the values of a reward that stand in the group with this weight.
  void add(const GroupStat& stat, double weight) {
    any = any || stat.n > 0;
    unknown = unknown || stat.unknown;
    flat = flat && (stat.n == 0 || stat.degenerate);
    variance += math::mul(math::mul(weight, weight), gdpo::variance(stat));
    values = (std::max)(values, stat.n);
  }
  double std() const { return math::sqrt(variance); }
  /// How far rounding can move std(). Values that are off by e move it by at most sqrt(2) e. The
  /// deviations, their squares and the sum of the squares are each off by 2^-53 of themselves an
  /// operation, all squares being positive; the mean's own rounding is taken out of the sum.
  double rounding() const {
    return math::mul(2.0, value_rounding) +
           math::mul(static_cast<double>(values + 8) * 0x1p-53, std());
  }
};

/// Reads the groups of a batch as an estimator with these weights, gates and missing would.
///
/// A group has columns: the rewards with a weight, the reward `also` unless it is negative, and the
/// weighted sum. Sums are made of eight rows at a time, statistics of eight columns.
template <class T, class Groups>
class SpreadReader {
  static constexpr int width = 8;
  using Lanes = math::Pack<width>;

 public:
  SpreadReader(const char* function, const RewardBatch<T, Groups>& batch,
               const List<double>& weights, const List<Gate, 16>& gates, const Missing& missing,
               index_t also)
      : batch_(batch),
        reader_(function, batch, settings(weights, gates, missing), work_),
        rewards_(work_.used_rewards) {
    if (also >= 0) rewards_.push_back(also);
    stats_.resize(rewards_.size() + 1);
    if (!batch.valid) return;
    valid_.resize(as_size(batch.valid.size()));
    batch.valid.copy_rows(0, batch.valid.size(), valid_.data());
  }

  /// Reads group g, of which the members below tell.
  void read(index_t g) {
    rows_.clear();
    for (index_t k = 0; k < batch_.groups.length(g); ++k) {
      const index_t i = batch_.groups.row(g, k);
      if (valid_.empty() || !math::is_zero(valid_[as_size(i)])) rows_.push_back(i);
    }
    const std::size_t padded = (rows_.size() + width - 1) / width * width;
    if (padded > room_) {
      room_ = padded;
      values_.resize(stats_.size() * room_);
      tile_.resize(width * room_);
    }
    for (std::size_t c = 0; c < stats_.size(); ++c)
      std::fill(column(c) + rows_.size(), column(c) + padded, 0.0);
    read_rewards();
    read_sums(padded);
    for (std::size_t first = 0; first < stats_.size(); first += width) find_stats(first, padded);
    equate_sums(stats_.back(), reader_.terms(), largest_);
  }

  /// The rewards with a weight, each by itself.
  GroupSpread of_rewards() const {
    GroupSpread all;
    for (std::size_t j = 0; j < work_.used_rewards.size(); ++j)
      all.add(stats_[j], work_.reward_weights[j]);
    return all;
  }
  /// The reward `also`, whatever its weight.
  GroupSpread of_reward() const {
    GroupSpread one;
    one.add(stats_[stats_.size() - 2], 1.0);
    return one;
  }
  /// The weighted sum.
  GroupSpread of_sum() const {
    GroupSpread one;
    one.add(stats_.back(), 1.0);
    // A product and a sum for each term; a reward of weight 1 alone is what is stored.
    const bool stored = work_.used_rewards.size() == 1 && work_.reward_weights[0] == 1.0;
    if (!stored) {
      one.value_rounding =
          math::mul(2.0 * static_cast<double>(reader_.terms()) * 0x1p-53, largest_);
    }
    return one;
  }

 private:
  static RewardSettings settings(const List<double>& weights, const List<Gate, 16>& gates,
                                 const Missing& missing) {
    RewardSettings e;
    e.weights = weights, e.gates = gates, e.missing = missing;
    return e;
  }
  /// The values of a column in the used rows, and zeros up to a multiple of `width`.
  double* column(std::size_t c) { return values_.data() + c * room_; }

  void read_rewards() {
    const auto& rewards = batch_.rewards;
    for (std::size_t c = 0; c < rewards_.size(); ++c) {
      double* value = column(c);
      if (reader_.plain()) {
        const T* const stored = rewards.data + rewards_[c] * rewards.stride[1];
        for (const index_t row : rows_) *value++ = load(stored[row * rewards.stride[0]]);
      } else {
        for (const index_t row : rows_) *value++ = reader_(row, rewards_[c]);
      }
    }
  }
  /// The weighted sums: RewardRules::weighted_sum, in lanes where it is a number. It is none where
  /// a reward is missing.
  void read_sums(std::size_t padded) {
    const std::size_t used = work_.used_rewards.size();
    const Lanes zero = Lanes::all(0.0);
    Lanes largest = zero;
    double* const sums = column(stats_.size() - 1);
    any_nan_ = false;
    for (std::size_t k = 0; k < padded; k += width) {
      Lanes sum = zero, magnitude = zero;
      for (std::size_t first = 0; first < used; first += width) {
        Lanes terms[width], sizes[width];
        for (std::size_t j = 0; j < width; ++j) {
          terms[j] = sizes[j] = zero;
          if (first + j >= used) continue;
          terms[j] =
              mul(Lanes::all(work_.reward_weights[first + j]), Lanes::load(column(first + j) + k));
          sizes[j] = abs(terms[j]);
        }
        sum = sum + tree_of(terms), magnitude = magnitude + tree_of(sizes);
      }
      largest = (math::max)(largest, magnitude);
      sum.store(sums + k);
      any_nan_ = any_nan_ || any(is_nan(sum));
    }
    double sizes[width];
    largest.store(sizes);
    largest_ = *std::max_element(sizes, sizes + width);
    if (!any_nan_ && used > 0) return;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (used > 0 && !math::is_nan(sums[k])) continue;
      double magnitude = 0;
      sums[k] = reader_.weighted_sum(rows_[k], magnitude);
      largest_ = (math::max)(largest_, magnitude);
      any_nan_ = any_nan_ || math::is_nan(sums[k]);
    }
  }
  /// The statistics of the columns from `first` on, as many as there are lanes. Lanes whose values
  /// are not all finite are found by group_stat.
  void find_stats(std::size_t first, std::size_t padded) {
    const auto rows = static_cast<index_t>(rows_.size());
    const std::size_t columns = (std::min)(stats_.size() - first, std::size_t{width});
    std::fill_n(stats_.begin() + static_cast<std::ptrdiff_t>(first), columns, GroupStat{});
    if (rows == 0) return;
    turn(first, columns, padded);
    bool any_nan = any_nan_;
    for (std::size_t c = work_.used_rewards.size(); c < rewards_.size() && !any_nan; ++c)
      for (index_t k = 0; k < rows; ++k) any_nan = any_nan || math::is_nan(column(c)[k]);
    const double* const x = tile_.data();
    typename GroupLanes<width>::Stat found;
    Lanes count, low = Lanes::all(math::infinity), high = -low;
    math::Mask<width> equal;
    lane_stat_of_known(typename Groups::Order{}, x, rows,
                       reader_.skips() && any_nan ? index_t{0} : rows, found, count, equal);
    for (index_t k = 0; k < rows; ++k) {
      const Lanes value = Lanes::load(x + k * width);
      low = (math::min)(low, value), high = (math::max)(high, value);
    }
    double mean[width], m2[width], members[width], min[width], max[width];
    found.mean.store(mean), found.m2.store(m2), count.store(members);
    low.store(min), high.store(max);
    for (std::size_t j = 0; j < columns; ++j) {
      GroupStat& stat = stats_[first + j];
      if (members[j] < 1) continue;
      if (math::not_finite(mean[j]) || math::not_finite(m2[j])) {
        const double* const values = column(first + j);
        scalars_.clear();
        for (index_t k = 0; k < rows; ++k)
          if (!reader_.skips() || !math::is_nan(values[k])) scalars_.push_back(values[k]);
        stat = group_stat(typename Groups::Order{}, scalars_.data(),
                          static_cast<index_t>(scalars_.size()));
        continue;
      }
      stat.n = static_cast<index_t>(members[j]), stat.weight = members[j];
      stat.mean = mean[j], stat.m2 = m2[j], stat.min = min[j], stat.max = max[j];
      stat.degenerate = min[j] == max[j];
    }
  }
  /// Puts the columns from `first` on side by side into the tile, row by row.
  void turn(std::size_t first, std::size_t columns, std::size_t padded) {
    constexpr int W = math::native_width<double>;
    using Square = math::Pack<W>;
    for (std::size_t c = 0; c < width; c += W) {
      for (std::size_t k = 0; k < padded; k += W) {
        Square square[W];
        for (std::size_t j = 0; j < W; ++j) {
          square[j] = c + j < columns ? Square::load(column(first + c + j) + k) : Square::all(0.0);
        }
        transpose<W / 2>(square, std::make_integer_sequence<int, W>{});
        for (std::size_t j = 0; j < W; ++j) square[j].store(tile_.data() + (k + j) * width + c);
      }
    }
  }

  const RewardBatch<T, Groups>& batch_;
  EstimatorScratch work_;  // before reader_, which fills it in
  RewardReader<T, Groups> reader_;
  std::vector<index_t> rewards_, rows_;  // of the columns but the sum; used in the group
  std::vector<double> values_, tile_, valid_, scalars_;  // (columns, room), (room, width), (N)
  std::vector<GroupStat> stats_;                         // of the columns
  std::size_t room_ = 0;
  double largest_ = 0;    // magnitude of a sum
  bool any_nan_ = false;  // a sum or a reward with a weight is NaN
};

}  // namespace detail
GDPO_END_NAMESPACE
