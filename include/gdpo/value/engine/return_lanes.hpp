#pragma once
// Rows side by side in lanes: eight rows are scanned at once, a tile of tokens at a time from their
// ends. Each row's part of a tile is read into a line, the eight lines are turned so that the
// tokens t of all rows stand side by side, scanned, turned back, and written row by row. Reading
// whole lines matters: rows often lie a power of two apart, and the first-level cache holds few
// places of that kind at once.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/lanes/segment_sums.hpp>
#include <gdpo/value/engine/return_rows.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Rows side by side. They are one register with AVX-512, two with AVX2, four with SSE2 and NEON: a
/// step has to wait for the step behind it, and more rows at once hide that.
constexpr int rows_at_once = 8;
/// The most tokens of a tile. Rows are far apart in memory, and long pieces of them are read nearly
/// as fast as one stream; the arrays of a tile still fit into a second-level cache.
constexpr index_t tile_tokens = 1024;
/// From a line to the next: not a power of two, for the sake of the cache.
constexpr index_t line_step = tile_tokens + 8;

/// The arrays of a tile, in memory of the workspace. Lines are (rows, line_step), turned lines are
/// (tokens, rows).
struct ReturnTile {
  static constexpr index_t line_size = rows_at_once * line_step,
                           turned_size = rows_at_once * tile_tokens, of_cache = 8,
                           size = line_size + 3 * turned_size + of_cache;
  double* lines;    ///< What is turned next, or has been turned back.
  double* rewards;  ///< Rewards; the scan leaves the advantages here.
  double* values;   ///< Values; the scan leaves the returns here.
  double* steps;    ///< 1: a step, 0: none.

  /// `memory`: of `size` numbers.
  explicit ReturnTile(double* memory) {
    constexpr std::uintptr_t line = of_cache * sizeof(double);
    const auto beyond = reinterpret_cast<std::uintptr_t>(memory) % line / sizeof(double);
    lines = memory + (of_cache - static_cast<index_t>(beyond)) % of_cache;
    rewards = lines + line_size, values = rewards + turned_size, steps = values + turned_size;
  }
};

/// Exchanges blocks of H x H numbers of the W x W numbers in r, then does the same within them:
/// this turns them. Written as folds, because g++ -O2 keeps an array that a loop indexes in memory.
template <int H, int W, int... J>
GDPO_INLINE void turn_block(math::Pack<W>* r, std::integer_sequence<int, J...> lanes) {
  if constexpr (H > 0) {
    const auto exchange = [&](auto row) GDPO_INLINE_LAMBDA {
      constexpr int i = decltype(row)::value;
      if constexpr ((i & H) == 0) {
        const auto a = r[i], b = r[i + H];
        r[i] = shuffle(a, b, std::integer_sequence<int, ((J & H) ? W + J - H : J)...>{});
        r[i + H] = shuffle(a, b, std::integer_sequence<int, ((J & H) ? W + J : J + H)...>{});
      }
    };
    (exchange(std::integral_constant<int, J>{}), ...);
    turn_block<H / 2>(r, lanes);
  }
}
/// Turns W x W numbers whose lines stand `from_step` and `to_step` apart.
template <int W, int... J>
GDPO_INLINE void turn_block(const double* from, index_t from_step, double* to, index_t to_step,
                            std::integer_sequence<int, J...> lanes) {
  math::Pack<W> block[W] = {math::Pack<W>::load(from + J * from_step)...};
  turn_block<W / 2>(block, lanes);
  (block[J].store(to + J * to_step), ...);
}
/// Turns eight lines of `tokens` numbers. A few numbers beyond `tokens` are turned with them.
GDPO_NOINLINE inline void turn_lines(const double* lines, index_t tokens, double* turned) {
  constexpr int W = math::native_width<double>;
  if constexpr (W > 1) {
    for (index_t t = 0; t < tokens; t += W) {
      for (int p = 0; p < rows_at_once; p += W) {
        turn_block<W>(lines + p * line_step + t, line_step, turned + t * rows_at_once + p,
                      rows_at_once, std::make_integer_sequence<int, W>{});
      }
    }
  }
}
/// Turns them back.
GDPO_NOINLINE inline void turn_back(const double* turned, index_t tokens, double* lines) {
  constexpr int W = math::native_width<double>;
  if constexpr (W > 1) {
    for (index_t t = 0; t < tokens; t += W) {
      for (int p = 0; p < rows_at_once; p += W) {
        turn_block<W>(turned + t * rows_at_once + p, rows_at_once, lines + p * line_step + t,
                      line_step, std::make_integer_sequence<int, W>{});
      }
    }
  }
}

/// Which positions of a tile are not steps.
enum class Holes {
  None,     ///< None: every position of each row is a step.
  Skipped,  ///< They change nothing.
  Resets    ///< Those before the row's last step end what is carried.
};

/// The numbers of eight rows side by side.
struct alignas(64) RowLanes {
  double next_value[rows_at_once] = {}, advantages[rows_at_once] = {}, returns[rows_at_once] = {};
  double decay[rows_at_once] = {}, decay_of_returns[rows_at_once] = {};
  double rewarded[rows_at_once] = {};  ///< The last step, counted from the tile's first token.
};

/// Scans a turned tile from its last token to its first. What is no step gets 0.
template <bool Twice, Holes holes, class Returns>
GDPO_NOINLINE void scan_tile(const Returns& policy, RowLanes& rows, const ReturnTile& tile,
                             index_t tokens) {
  using V = math::Pack<rows_at_once>;
  const V decay = V::load(rows.decay), decay_of_returns = V::load(rows.decay_of_returns);
  const V rewarded = V::load(rows.rewarded), zero = V::all(0.0);
  const Returns of = policy;  // a copy stays in registers, whatever the loop stores
  Carried<V> carried{V::load(rows.next_value), V::load(rows.advantages), V::load(rows.returns)};
  for (index_t t = tokens - 1; t >= 0; --t) {
    const index_t offset = t * rows_at_once;
    const V reward = V::load(tile.rewards + offset);
    const V value = Returns::reads_values ? V::load(tile.values + offset) : zero;
    const Carried<V> to = step_back<Twice>(of, carried, reward, value, decay, decay_of_returns);
    V advantage = to.advantages,
      returned = return_of<Returns>(Twice ? to.returns : to.advantages, value);
    if constexpr (holes == Holes::None) {
      carried = to;
    } else {
      const auto step = V::load(tile.steps + offset) > zero;
      if constexpr (holes == Holes::Resets) {
        const auto resets = V::all(static_cast<double>(t)) < rewarded;
        carried = {select(resets, zero, carried.next_value),
                   select(resets, zero, carried.advantages), select(resets, zero, carried.returns)};
      }
      carried.next_value = select(step, to.next_value, carried.next_value);
      carried.advantages = select(step, to.advantages, carried.advantages);
      if constexpr (Twice) carried.returns = select(step, to.returns, carried.returns);
      advantage = select(step, advantage, zero), returned = select(step, returned, zero);
    }
    advantage.store(tile.rewards + offset);
    if constexpr (Returns::reads_values || Twice) returned.store(tile.values + offset);
  }
  carried.next_value.store(rows.next_value);
  carried.advantages.store(rows.advantages);
  carried.returns.store(rows.returns);
}

/// Scans up to eight rows at once.
template <class S, class Estimator>
class ReturnLanes {
  using Rows = ReturnRows<S, Estimator>;
  using Returns = typename Rows::Returns;
  using V = math::Native<double>;
  using L = math::Lanes<V>;
  static constexpr index_t W = L::width;

 public:
  ReturnLanes(const Rows& rows, index_t first, index_t last, ReturnScratch<S>& scratch)
      : rows_(rows),
        count_(static_cast<int>(last - first)),
        steps_(rows.estimator().returns.steps),
        tile_(scratch.tile.data()) {
    for (index_t i = first; i < last; ++i) take(static_cast<int>(i - first), i, scratch);
  }

  void scan() {
    if (longest_ == 0) return;
    if (!fills_lanes()) {
      for (int p = 0; p < count_; ++p) rows_.scan(row_[p]);
      return;
    }
    for (index_t first = (longest_ - 1) / tile_tokens * tile_tokens; first >= 0;
         first -= tile_tokens) {
      const index_t tokens = (std::min)(tile_tokens, longest_ - first);
      load_tile(first, tokens);
      rows_.reads().twice ? scan_tile_of<true>(tokens) : scan_tile_of<false>(tokens);
      turn_back(tile_.rewards, tokens, tile_.lines);
      store_lines(first, tokens, out_);
      if (!rows_.gives_returns()) continue;
      if (Returns::reads_values || rows_.reads().twice)  // else they are the advantages
        turn_back(tile_.values, tokens, tile_.lines);
      store_lines(first, tokens, returns_);
    }
  }

 private:
  /// What is known of a row in the tile at hand.
  enum class Part : unsigned char {
    Empty,  ///< It has no step there that matters: only zeros are written.
    Full,   ///< All tokens of the tile are valid tokens of the row.
    Mixed
  };

  /// Whether three of four places of the tiles hold steps. Lanes also walk over padding, which one
  /// row after the other passes at little cost; both ways give the same bits.
  bool fills_lanes() const {
    index_t steps = 0;
    for (int p = 0; p < count_; ++p)
      steps += all_are_steps() ? row_[p].span.length : row_[p].tokens;
    return 4 * steps >= 3 * rows_at_once * longest_;
  }
  void take(int place, index_t i, ReturnScratch<S>& scratch) {
    ReturnRow<S>& row = row_[place] = rows_.read(i, place, scratch);
    out_[place] = rows_.advantages(row.span), returns_[place] = rows_.returns(row.span);
    longest_ = (std::max)(longest_, row.span.length);
    const Carried<double> last = behind_the_end<Returns>(row.bootstrap);
    lanes_.next_value[place] = last.next_value;
    lanes_.advantages[place] = last.advantages, lanes_.returns[place] = last.returns;
    lanes_.decay[place] = row.decay.advantages;
    lanes_.decay_of_returns[place] = row.decay.returns;
  }
  /// How many of a tile's tokens a row has.
  static index_t tokens_of(const ReturnRow<S>& row, index_t first, index_t tokens) {
    return (std::max<index_t>)(0, (std::min)(tokens, row.span.length - first));
  }
  /// The line of a row.
  double* line(int p) { return tile_.lines + p * line_step; }

  /// Fills the tile with tokens first .. first + tokens - 1.
  void load_tile(index_t first, index_t tokens) {
    full_ = true;
    for (int p = 0; p < rows_at_once; ++p) {
      const ReturnRow<S>& row = row_[p];
      const index_t n = row.tokens == 0 ? 0 : tokens_of(row, first, tokens);
      const index_t valid = count_mask(row.mask ? row.mask + first : nullptr, n);
      part_[p] = valid == tokens                           ? Part::Full
                 : valid > 0 || (n > 0 && all_are_steps()) ? Part::Mixed
                                                           : Part::Empty;
      full_ = full_ && part_[p] == Part::Full;
    }
    if (!full_) {
      for (int p = 0; p < rows_at_once; ++p) mark_steps(row_[p], part_[p], first, tokens, line(p));
      turn_lines(tile_.lines, tokens, tile_.steps);
    }
    for (int p = 0; p < rows_at_once; ++p) {
      lanes_.rewarded[p] = static_cast<double>(row_[p].rewarded - first);
      if (part_[p] != Part::Empty)
        load_rewards(row_[p], part_[p], first, tokens_of(row_[p], first, tokens), line(p));
    }
    turn_lines(tile_.lines, tokens, tile_.rewards);
    if constexpr (Returns::reads_values) {
      for (int p = 0; p < rows_at_once; ++p) {
        if (part_[p] != Part::Empty)
          copy(row_[p].values + first, tokens_of(row_[p], first, tokens), line(p));
      }
      turn_lines(tile_.lines, tokens, tile_.values);
    }
  }
  bool all_are_steps() const { return is_step(steps_, false); }

  void mark_steps(const ReturnRow<S>& row, Part part, index_t first, index_t tokens,
                  double* line) const {
    const index_t n = part == Part::Empty ? 0 : tokens_of(row, first, tokens);
    if (!row.mask || all_are_steps()) {
      for (index_t t = 0; t < n; ++t) line[t] = 1;
    } else {
      const unsigned char* const mask = row.mask + first;
      constexpr double mark[2] = {0, 1};
      for (index_t t = 0; t < n; ++t) line[t] = mark[mask[t] != 0];
    }
    for (index_t t = n; t < tokens; ++t) line[t] = 0;
  }

  /// Reads the rewards of n tokens, with the penalty and the row's reward.
  void load_rewards(const ReturnRow<S>& row, Part part, index_t first, index_t n,
                    double* line) const {
    if (row.rewards) {
      copy(row.rewards + first, n, line);
    } else {
      for (index_t t = 0; t < n; ++t) line[t] = 0;
    }
    if (rows_.reads().penalized) {
      const auto penalty = rows_.estimator().penalty;  // a copy, whatever the loop stores
      for_blocks(n, [&](index_t t, index_t some) GDPO_INLINE_LAMBDA {
        const V logp = load(row.logp + first + t, some),
                ref_logp = load(row.ref_logp + first + t, some);
        L::store(line + t, penalized<V>(penalty, L::load(line + t), logp, ref_logp));
      });
    }
    if (steps_ == Steps::RowRewardOnValid && part == Part::Mixed) clear_masked(row, first, n, line);
    const index_t t = row.rewarded - first;
    if (t >= 0 && t < n) line[t] = line[t] + row.reward;
  }
  /// f(t, how many) for W tokens at a time.
  template <class F>
  static GDPO_INLINE void for_blocks(index_t n, const F& f) {
    index_t t = 0;
    for (; t + W <= n; t += W) f(t, W);
    if (t < n) f(t, n - t);
  }
  /// `some` numbers of a row as lanes; those beyond are 0.
  static GDPO_INLINE V load(const S* from, index_t some) {
    if (some == W) return L::load(from);
    S padded[W] = {};
    for (index_t j = 0; j < some; ++j) padded[j] = from[j];
    return L::load(padded);
  }
  static void copy(const S* from, index_t n, double* to) {
    for_blocks(n, [&](index_t t, index_t some)
                      GDPO_INLINE_LAMBDA { L::store(to + t, load(from + t, some)); });
  }
  /// Sets a line to 0 where the mask of its row is 0.
  static void clear_masked(const ReturnRow<S>& row, index_t first, index_t n, double* line) {
    if (!row.mask) return;
    const unsigned char* const mask = row.mask + first;
    for (index_t t = 0; t < n; ++t) line[t] = mask[t] != 0 ? line[t] : 0.0;
  }

  template <bool Twice>
  void scan_tile_of(index_t tokens) {
    const Returns& policy = rows_.estimator().returns;
    if (full_) {
      scan_tile<Twice, Holes::None>(policy, lanes_, tile_, tokens);
    } else if (steps_ == Steps::Turns) {
      scan_tile<Twice, Holes::Resets>(policy, lanes_, tile_, tokens);
    } else {
      scan_tile<Twice, Holes::Skipped>(policy, lanes_, tile_, tokens);
    }
  }

  /// Writes the lines of a tile. Where a step is masked, 0 is written.
  void store_lines(index_t first, index_t tokens, const View<S, 1>* to) {
    for (int p = 0; p < rows_at_once; ++p) {
      const index_t n = tokens_of(row_[p], first, tokens);
      if (part_[p] == Part::Empty) {
        for (index_t t = 0; t < n; ++t) to[p](first + t) = S(0);
        continue;
      }
      double* const line = this->line(p);
      if (part_[p] == Part::Mixed && all_are_steps()) clear_masked(row_[p], first, n, line);
      index_t t = 0;
      if (to[p].stride[0] == 1) {
        for (; t + W <= n; t += W) L::store(to[p].data + first + t, L::load(line + t));
      }
      for (; t < n; ++t) to[p](first + t) = static_cast<S>(line[t]);
    }
  }

  const Rows& rows_;
  int count_;  ///< Rows at hand, at most rows_at_once.
  Steps steps_;
  index_t longest_ = 0;
  bool full_ = false;  ///< Whether each of the eight rows is Part::Full.
  Part part_[rows_at_once] = {};
  ReturnRow<S> row_[rows_at_once];
  View<S, 1> out_[rows_at_once], returns_[rows_at_once];
  RowLanes lanes_;
  ReturnTile tile_;
};

}  // namespace detail
GDPO_END_NAMESPACE
