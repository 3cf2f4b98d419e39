#pragma once
// MismatchLanes: the rows of a batch side by side, a lane each, so that the sums of each row are
// still added in the order of its tokens.
#include <gdpo/lanes/segment_sums.hpp>
#include <gdpo/mismatch/shared/mismatch_row.hpp>
#include <gdpo/tokens/token_row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Tokens of as many rows as there are lanes, with the sums of these rows so far. Token t of the
/// row in lane j is at t * width + j.
struct MismatchTile {
  using V = math::Native<double>;
  static constexpr int width = math::Lanes<V>::width;
  static constexpr index_t most = 64;
#define GDPO_X(name, ...) name,
  enum Sum { GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X) GDPO_MISMATCH_TOKEN_SUMS(GDPO_X) sum_count };
  struct Counts {
    enum { GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X) all };
  };
  struct Extremes {
    enum { GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X) all };
  };
#undef GDPO_X
  alignas(64) double old[most * width];
  alignas(64) double rollout[most * width];
  alignas(64) double weights[most * width];
  alignas(64) double valid[most * width];  ///< 1, or 0: the token does not count.

  alignas(64) double place[width];  ///< Of the first token of the tile in its row.
  alignas(64) double sums[sum_count][width];
  alignas(64) double counts[Counts::all][width];
  alignas(64) double extremes[Extremes::all][width];
  alignas(64) double places[Extremes::all][width];  ///< -1: there is none yet.

  /// Begins a row in a lane.
  void begin(int lane) {
    for (auto& sum : sums) sum[lane] = 0;
    for (auto& count : counts) count[lane] = 0;
    for (auto& of_extreme : places) of_extreme[lane] = -1;
#define GDPO_X(name, end, ...) \
  extremes[Extremes::name][lane] = mismatch_list::End::end == End::Least ? worst : -worst;
    using mismatch_list::End;
    constexpr double worst = math::infinity;
    GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
  }

  /// Adds the first `tokens` tokens of each lane. weighs: whether to add what is of weights, which
  /// are all 1 unless has_weights.
  GDPO_NOINLINE void add(const MismatchSettings& settings, index_t tokens, bool weighs,
                         bool has_weights) {
    using Lanes = math::Lanes<V>;
    using mismatch_list::End;
#define GDPO_X(name, ...) V sum_of_##name = Lanes::load(sums[Sum::name]);
    GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
    GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) typename Lanes::Count count_of_##name{};
    GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                         \
  V name = Lanes::load(extremes[Extremes::name]), \
    place_of_##name = Lanes::load(places[Extremes::name]);
    GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
    using math::constant, math::select;
    const V zero = constant<V>(0.0);
    V position = Lanes::load(place), cosh = zero;  // cosh: of the tokens before these
    for (index_t i = 0; i < tokens * width; i += width, position = position + constant<V>(1.0)) {
      MismatchToken<V> token(settings, Lanes::load(valid + i) > zero, Lanes::load(old + i),
                             Lanes::load(rollout + i));
      // One step late, so that its long chain of operations does not hold up the others.
      token.js = token.divergence(cosh), cosh = token.cosh;
#define GDPO_SUM(name, ...) sum_of_##name = sum_of_##name + math::opaque(token.name);
#define GDPO_COUNT(name, ...) count_of_##name.add(token.name);
#define GDPO_EXTREME(name, end, of)                                                           \
  {                                                                                           \
    const auto better =                                                                       \
        math::both(token.scored, End::end == End::Least ? token.of < name : token.of > name); \
    name = select(better, token.of, name),                                                    \
    place_of_##name = select(better, position, place_of_##name);                              \
  }
      GDPO_MISMATCH_HIDDEN_RATIO_SUMS(GDPO_SUM)
      GDPO_MISMATCH_RATIO_SUMS(GDPO_SUM)
      GDPO_MISMATCH_RATIO_COUNTS(GDPO_COUNT)
      if (math::any(token.unscored)) {
        GDPO_MISMATCH_UNSCORED_COUNTS(GDPO_COUNT)
      }
      GDPO_MISMATCH_RATIO_EXTREMES(GDPO_EXTREME)
      if (!weighs) continue;
      token.weigh(settings, Lanes::load(weights + i), has_weights);
      GDPO_SUM(weight_sum, "w")
      GDPO_MISMATCH_WEIGHT_SUMS(GDPO_SUM)
      GDPO_MISMATCH_WEIGHT_COUNTS(GDPO_COUNT)
      GDPO_MISMATCH_WEIGHT_EXTREMES(GDPO_EXTREME)
#undef GDPO_SUM
#undef GDPO_COUNT
#undef GDPO_EXTREME
    }
    sum_of_js = sum_of_js + math::opaque(MismatchToken<V>::divergence(cosh));
    Lanes::store(place, position);
#define GDPO_X(name, ...) Lanes::store(sums[Sum::name], sum_of_##name);
    GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
    GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)            \
  Lanes::store(counts[Counts::name], \
               V(Lanes::load(counts[Counts::name]) + V(count_of_##name.lanes())));
    GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                       \
  Lanes::store(extremes[Extremes::name], name); \
  Lanes::store(places[Extremes::name], place_of_##name);
    GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
  }

  /// What the row in a lane has so far; it is row number `row` of the step.
  MismatchRow row(int lane, index_t row) const {
    MismatchRow r;
#define GDPO_X(name, ...) r.name = sums[Sum::name][lane];
    GDPO_MISMATCH_HIDDEN_SUMS(GDPO_X)
    GDPO_MISMATCH_TOKEN_SUMS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) r.name = static_cast<index_t>(counts[Counts::name][lane]);
    GDPO_MISMATCH_TOKEN_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                                    \
  if (const double t = places[Extremes::name][lane]; t >= 0) \
    r.name = {extremes[Extremes::name][lane], row, static_cast<index_t>(t)};
    GDPO_MISMATCH_TOKEN_EXTREMES(GDPO_X)
#undef GDPO_X
    return r;
  }
};

/// Copies the first `tokens` numbers of each row of `rows` to a tile, lane by lane.
template <class S>
GDPO_NOINLINE void copy_lanes(const S* const* rows, index_t tokens, double* tile) {
  constexpr int width = MismatchTile::width;
  using Lanes = math::Pack<width>;
  index_t t = 0;
  for (; t + width <= tokens; t += width) {
    Lanes square[width];
    for (int j = 0; j < width; ++j) square[j] = Lanes::load(rows[j] + t);
    transpose<width / 2>(square, std::make_integer_sequence<int, width>{});
    for (int j = 0; j < width; ++j) square[j].store(tile + (t + j) * width);
  }
  for (; t < tokens; ++t) {
    for (int j = 0; j < width; ++j) tile[t * width + j] = static_cast<double>(rows[j][t]);
  }
}

/// The number of tokens of a completion that the mask has dropped.
inline index_t count_dropped(const unsigned char* completion, const unsigned char* mask,
                             index_t length) {
  if (!completion || !mask) return 0;
  constexpr index_t most = 512;
  unsigned char dropped[most];
  index_t n = 0;
  for (index_t t = 0; t < length; t += most) {
    const index_t piece = (std::min)(most, length - t);
    for (index_t k = 0; k < piece; ++k)
      dropped[k] = static_cast<unsigned char>((completion[t + k] != 0) & (mask[t + k] == 0));
    n += count_mask(dropped, piece);
  }
  return n;
}

/// Adds the rows of a batch to a report. A lane that has finished its row takes the next one.
template <class S>
class MismatchLanes {
  static constexpr int width = MismatchTile::width;

 public:
  /// read: the arrays that the report reads (mismatch_arrays).
  MismatchLanes(const TokenBatch<S>& read, const TokenLayout& layout,
                const MismatchSettings& settings, index_t first_row)
      : read_(read), layout_(layout), settings_(settings), first_row_(first_row) {
    const auto room = [&](const auto& array, auto& numbers) {
      if (array && !array.in_place())
        numbers.resize(static_cast<std::size_t>(width * layout.longest));
    };
    room(read.old_logp, old_room_), room(read.rollout_logp, rollout_room_);
    room(read.weights, weights_room_), room(read.mask, mask_room_);
    room(read.completion_mask, completion_room_);
    // Weights of 1 add nothing, unless they are out of bounds.
    weighs_ = read.weights || cut(1.0, settings.token_low, settings.token_high) != 1;
  }

  void add_to(MismatchReport& report) {
    for (int j = 0; j < width; ++j) start(j, report);
    for (;;) {
      index_t tokens = MismatchTile::most;
      bool any = false;
      for (const Lane& lane : lanes_) {
        if (lane.left == 0) continue;
        any = true, tokens = (std::min)(tokens, lane.left);
      }
      if (!any) return;
      copy(tokens);
      tile_.add(settings_, tokens, weighs_, static_cast<bool>(read_.weights));
      for (int j = 0; j < width; ++j) {
        Lane& lane = lanes_[j];
        if (lane.left == 0) continue;
        lane.begin += tokens, lane.left -= tokens;
        if (lane.left > 0) continue;
        finish(j, report);
        start(j, report);
      }
    }
  }

 private:
  /// A row, of which the tokens from `begin` on are left. None is left in a lane without a row.
  struct Lane {
    index_t row = 0, begin = 0, left = 0, dropped = 0;
    const S *old = nullptr, *rollout = nullptr, *weights = nullptr;
    const unsigned char* mask = nullptr;
  };

  /// Puts the next row that has valid tokens into lane j; finishes rows without any.
  void start(int j, MismatchReport& report) {
    Lane& lane = lanes_[j];
    for (lane = {}; next_ < layout_.rows; ++next_) {
      const RowSpan span = layout_(next_);
      const auto row = [&](const auto& array, auto& room) {
        const auto copied = room.empty() ? nullptr : room.data() + j * layout_.longest;
        return array ? array.row(span.row, span.begin, span.length, copied) : nullptr;
      };
      lane.row = next_, lane.left = span.length;
      lane.mask = row(read_.mask, mask_room_);
      lane.dropped =
          count_dropped(row(read_.completion_mask, completion_room_), lane.mask, span.length);
      if (lane.mask) trim(lane);
      tile_.begin(j);
      tile_.place[j] = static_cast<double>(lane.begin);
      if (lane.left == 0) {
        finish(j, report);
        continue;
      }
      lane.old = row(read_.old_logp, old_room_);
      lane.rollout = row(read_.rollout_logp, rollout_room_);
      lane.weights = row(read_.weights, weights_room_);
      ++next_;
      return;
    }
  }
  /// Leaves out masked tokens at both ends.
  static void trim(Lane& lane) {
    const unsigned char* const mask = lane.mask;
    index_t begin = 0, end = lane.left;
    std::uint64_t eight = 0;
    while (end >= 8 && (std::memcpy(&eight, mask + end - 8, 8), eight == 0)) end -= 8;
    while (end > 0 && mask[end - 1] == 0) --end;
    while (begin + 8 <= end && (std::memcpy(&eight, mask + begin, 8), eight == 0)) begin += 8;
    while (begin < end && mask[begin] == 0) ++begin;
    lane.begin = begin, lane.left = end - begin;
  }
  /// Fills the tile.
  void copy(index_t tokens) {
    const S* rows[width];
    const auto fill = [&](const S* Lane::*array, double* to) {
      for (int j = 0; j < width; ++j)
        rows[j] = lanes_[j].left > 0 ? lanes_[j].*array + lanes_[j].begin : zeros_;
      copy_lanes(rows, tokens, to);
    };
    fill(&Lane::old, tile_.old), fill(&Lane::rollout, tile_.rollout);
    if (read_.weights) {
      fill(&Lane::weights, tile_.weights);
    } else if (weighs_) {
      std::fill_n(tile_.weights, tokens * width, 1.0);
    }
    for (int j = 0; j < width; ++j) {
      const Lane& lane = lanes_[j];
      const unsigned char* const mask = lane.mask ? lane.mask + lane.begin : nullptr;
      const auto all = static_cast<std::size_t>(tokens);
      if (lane.left > 0 && (!mask || !std::memchr(mask, 0, all))) {
        if (whole_[j] >= tokens) continue;
        for (index_t t = 0; t < tokens; ++t) tile_.valid[t * width + j] = 1;
        whole_[j] = tokens;
      } else {
        for (index_t t = 0; t < tokens; ++t)
          tile_.valid[t * width + j] = lane.left > 0 && mask[t] != 0;
        whole_[j] = 0;
      }
    }
  }
  /// Adds the row in lane j to the report.
  void finish(int j, MismatchReport& report) const {
    const Lane& lane = lanes_[j];
    MismatchRow row = tile_.row(j, first_row_ + lane.row);
    if (!weighs_ && row.scored > 0) {
      row.weight_sum = static_cast<double>(row.scored);
      row.weight_min = row.weight_max = {1, first_row_ + lane.row, first_scored(lane)};
    }
    row.finish(settings_, first_row_ + lane.row, lane.dropped);
    add_mismatch(report, row);
  }
  /// The first scored token of a finished row that has one.
  static index_t first_scored(const Lane& lane) {
    index_t t = 0;
    while (
        (lane.mask && lane.mask[t] == 0) ||
        math::not_finite(static_cast<double>(lane.old[t]) - static_cast<double>(lane.rollout[t])))
      ++t;
    return t;
  }

  const TokenBatch<S>& read_;
  const TokenLayout& layout_;
  const MismatchSettings& settings_;
  index_t first_row_, next_ = 0;
  bool weighs_;
  std::vector<S> old_room_, rollout_room_, weights_room_;
  std::vector<unsigned char> mask_room_, completion_room_;
  const S zeros_[MismatchTile::most] = {};
  Lane lanes_[width];
  index_t whole_[width] = {};  // tokens at the beginning of the tile that are marked as valid
  MismatchTile tile_;
};

}  // namespace detail
GDPO_END_NAMESPACE
