#pragma once
// Rows side by side in lanes: eight rows are scanned at once, from their ends, in blocks of 16
// tokens. A block is read row by row, turned in registers so that the tokens t of all rows stand
// side by side, scanned, turned back, and written row by row. So the arrays are read and written
// once, and what a block needs in between stays in the first-level cache. A block of floats is a
// cache line of each row: rows often lie a power of two apart, and the first-level cache holds few
// lines of that kind at once, so a line is used up before the next array is looked at.
#include <cstring>
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/value/engine/return_rows.hpp>
#include <gdpo/value/engine/valid_runs.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Rows side by side. Eight doubles are one register with AVX-512, two with AVX2, four with SSE2
/// and NEON.
constexpr int rows_at_once = 8;
/// The tokens of a block; where tokens are left, it may be half a block.
constexpr index_t block_tokens = 16, half_block = 8;
/// The most tokens for which the arrays of the rows are set up at once; a multiple of the block.
constexpr index_t tile_tokens = 512;

/// The lanes of a followed by those of b, picked by the indices Index.
template <int W, class S, int... Index>
GDPO_INLINE math::Pack<W, S> pick(const math::Pack<W, S>& a, const math::Pack<W, S>& b,
                                  std::integer_sequence<int, Index...>) {
#if defined(__clang__)
  return {__builtin_shufflevector(a.v, b.v, Index...)};
#else
  return {__builtin_shuffle(a.v, b.v, typename math::Register<W, S>::Bits{Index...})};
#endif
}
/// Exchanges blocks of H x H numbers of the W x W numbers in r, then does the same within them down
/// to blocks of `Last`: with 1 this turns them. Written as folds, because g++ -O2 keeps an array
/// that a loop indexes in memory.
template <int H, int Last, int W, class S, int... J>
GDPO_INLINE void exchange_blocks(math::Pack<W, S>* r, std::integer_sequence<int, J...> lanes) {
  if constexpr (H >= Last) {
    const auto exchange = [&](auto row) GDPO_INLINE_LAMBDA {
      constexpr int i = decltype(row)::value;
      if constexpr ((i & H) == 0) {
        const auto a = r[i], b = r[i + H];
        r[i] = pick(a, b, std::integer_sequence<int, ((J & H) ? W + J - H : J)...>{});
        r[i + H] = pick(a, b, std::integer_sequence<int, ((J & H) ? W + J : J + H)...>{});
      }
    };
    (exchange(std::integral_constant<int, J>{}), ...);
    exchange_blocks<H / 2, Last>(r, lanes);
  }
}
/// Turns four rows of floats within each four lanes, by instructions that pair neighbors up.
template <int W, int... J>
GDPO_INLINE void turn_fours(math::Pack<W, float>* r, std::integer_sequence<int, J...>) {
  using Low = std::integer_sequence<int, ((J & ~3) + (J & 3) / 2 + (J & 1) * W)...>;
  using High = std::integer_sequence<int, ((J & ~3) + 2 + (J & 3) / 2 + (J & 1) * W)...>;
  using LowPairs = std::integer_sequence<int, ((J & ~3) + (J & 1) + (J & 2) / 2 * W)...>;
  using HighPairs = std::integer_sequence<int, ((J & ~3) + 2 + (J & 1) + (J & 2) / 2 * W)...>;
  const auto a = pick(r[0], r[1], Low{}), b = pick(r[0], r[1], High{});
  const auto c = pick(r[2], r[3], Low{}), d = pick(r[2], r[3], High{});
  r[0] = pick(a, c, LowPairs{}), r[1] = pick(a, c, HighPairs{});
  r[2] = pick(b, d, LowPairs{}), r[3] = pick(b, d, HighPairs{});
}
/// Turns the W x W numbers in r.
template <int W, class S, int... J>
GDPO_INLINE void turn(math::Pack<W, S>* r, std::integer_sequence<int, J...> lanes) {
  if constexpr (std::is_same_v<S, float>) {
    turn_fours(r, lanes);
    if constexpr (W == 8) turn_fours(r + 4, lanes);
    exchange_blocks<W / 2, 4>(r, lanes);
  } else {
    exchange_blocks<W / 2, 1>(r, lanes);
  }
}
/// Turns W x W numbers; from(i) and to(i) point to their lines before and after.
template <class S, int W, class From, class To, int... J>
GDPO_INLINE void turn_square(const From& from, const To& to,
                             std::integer_sequence<int, J...> lanes) {
  math::Pack<W, S> r[W] = {math::Pack<W, S>::load(from(J))...};
  turn(r, lanes);
  (r[J].store(to(J)), ...);
}
/// The width of what is turned in registers.
template <class S>
constexpr int turned_width = math::native_width<S> < 8 ? math::native_width<S> : 8;

/// Turns n tokens from t on of eight rows into (tokens, rows).
template <class S>
GDPO_INLINE void turn_rows(const S* const* rows, index_t t, index_t n, S* turned) {
  constexpr int W = turned_width<S>;
  for (index_t k = 0; k < n; k += W) {
    for (int p = 0; p < rows_at_once; p += W) {
      turn_square<S, W>([&](int i) GDPO_INLINE_LAMBDA { return rows[p + i] + t + k; },
                        [&](int i)
                            GDPO_INLINE_LAMBDA { return turned + (k + i) * rows_at_once + p; },
                        std::make_integer_sequence<int, W>{});
    }
  }
}
/// Turns them back.
template <class S>
GDPO_INLINE void turn_back(const S* turned, S* const* rows, index_t t, index_t n) {
  constexpr int W = turned_width<S>;
  for (index_t k = 0; k < n; k += W) {
    for (int p = 0; p < rows_at_once; p += W) {
      turn_square<S, W>([&](int i)
                            GDPO_INLINE_LAMBDA { return turned + (k + i) * rows_at_once + p; },
                        [&](int i) GDPO_INLINE_LAMBDA { return rows[p + i] + t + k; },
                        std::make_integer_sequence<int, W>{});
    }
  }
}

/// The masks of half a block, a byte a token. Turned, each number has the rows of a token.
struct BlockMask {
  std::uint64_t bytes[rows_at_once];

  BlockMask() = default;
  GDPO_INLINE BlockMask(const unsigned char* const* rows, index_t t) {
    for (int p = 0; p < rows_at_once; ++p) std::memcpy(&bytes[p], rows[p] + t, sizeof bytes[p]);
  }
  /// Whether no byte is 0: subtracting 1 sets the high bit of a byte that is 0, and may set others
  /// only above such a byte.
  GDPO_INLINE bool all() const {
    constexpr std::uint64_t ones = 0x0101010101010101u;
    std::uint64_t zeros = 0;
    for (const std::uint64_t b : bytes) zeros |= (b - ones) & ~b;
    return (zeros & (ones << 7)) == 0;
  }
  GDPO_INLINE bool none() const {
    std::uint64_t any = 0;
    for (const std::uint64_t b : bytes) any |= b;
    return any == 0;
  }
  GDPO_INLINE void turn() {
    exchange<4>(0x00000000ffffffffu), exchange<2>(0x0000ffff0000ffffu);
    exchange<1>(0x00ff00ff00ff00ffu);
  }

 private:
  /// Exchanges the upper bytes of number i, of every 2 H, with the lower ones of number i + H.
  template <int H>
  GDPO_INLINE void exchange(std::uint64_t lower) {
    for (int i = 0; i < rows_at_once; ++i) {
      if (i & H) continue;
      const std::uint64_t swapped = ((bytes[i] >> (8 * H)) ^ bytes[i + H]) & lower;
      bytes[i + H] ^= swapped, bytes[i] ^= swapped << (8 * H);
    }
  }
};

/// The mask of the lanes whose byte is not 0, of a pack of any width.
template <int L, class S>
GDPO_INLINE math::Mask<L, S> mask_of_bytes(const unsigned char* p) {
  if constexpr (math::fits_register<L, S>) {
    return math::Lanes<math::Pack<L, S>>::load_mask(p);
  } else {
    return {mask_of_bytes<L / 2, S>(p), mask_of_bytes<L / 2, S>(p + L / 2)};
  }
}
/// Stores lanes, each rounded to S.
template <class S, int L>
GDPO_INLINE void store_rounded(const math::Pack<L>& v, S* p) {
  if constexpr (std::is_same_v<S, double>) {
    v.store(p);
  } else if constexpr (math::fits_register<L, double>) {
    math::Lanes<math::Pack<L>>::store(p, v);
  } else {
    store_rounded(v.low, p), store_rounded(v.high, p + L / 2);
  }
}

/// The numbers of eight rows side by side. Tokens are counted from the tile's first.
struct alignas(64) RowLanes {
  double next_value[rows_at_once] = {}, advantages[rows_at_once] = {}, returns[rows_at_once] = {};
  double decay[rows_at_once] = {}, decay_of_returns[rows_at_once] = {};
  double length[rows_at_once] = {};    ///< Tokens of the row in the tile; 0 for one without a step.
  double rewarded[rows_at_once] = {};  ///< The last step.
  double reward[rows_at_once] = {};    ///< What is added to the reward of the last step.
};

/// The arrays of eight rows, from the tile's first token on. Each has all tokens of the tile.
template <class S>
struct ReturnLines {
  const S *values[rows_at_once] = {}, *rewards[rows_at_once] = {};
  const double* penalized[rows_at_once] = {};  ///< Rewards less their penalty.
  const unsigned char* mask[rows_at_once] = {};
  S *advantages[rows_at_once] = {}, *returns[rows_at_once] = {};
  bool masked = false;        ///< Whether some mask has a 0.
  bool ends = false;          ///< Whether some row has its last step here.
  bool gives_returns = true;  ///< Whether the returns are wanted.
};

/// Scans a tile from its last token to its first. `tokens` is a multiple of half a block.
template <bool Twice, class S, class Returns>
GDPO_NOINLINE void scan_tile(const Returns& policy, Steps steps, RowLanes& rows,
                             const ReturnLines<S>& lines, index_t tokens) {
  using V = math::Pack<rows_at_once>;
  constexpr index_t size = rows_at_once * block_tokens;
  const V decay = V::load(rows.decay), decay_of_returns = V::load(rows.decay_of_returns);
  const V zero = V::all(0.0);
  const Returns of = policy;  // a copy stays in registers, whatever the loop stores
  Carried<V> carried{V::load(rows.next_value), V::load(rows.advantages), V::load(rows.returns)};
  alignas(64) double rewards[size] = {};
  alignas(64) S single[size], values[size], advantages[size], returns[size];
  constexpr bool own_returns = Returns::reads_values || Twice;  // else they are the advantages
  const auto value_at = [&](index_t offset) GDPO_INLINE_LAMBDA {
    return Returns::reads_values ? V::load(values + offset) : zero;
  };
  for (index_t end = tokens; end > 0;) {
    const index_t n = end % block_tokens > 0 ? half_block : block_tokens, begin = end - n;
    end = begin;
    if (lines.penalized[0]) {
      turn_rows(lines.penalized, begin, n, rewards);
    } else if (lines.rewards[0]) {
      turn_rows(lines.rewards, begin, n, single);
      for (index_t k = 0; k < n; ++k)
        V::load(single + k * rows_at_once).store(rewards + k * rows_at_once);
    }
    if constexpr (Returns::reads_values) turn_rows(lines.values, begin, n, values);
    const auto reward_of_row = [&](int p) -> double* {
      const index_t t = static_cast<index_t>(rows.rewarded[p]) - begin;
      return t >= 0 && t < n ? rewards + t * rows_at_once + p : nullptr;
    };
    for (int p = 0; lines.ends && p < rows_at_once; ++p) {
      if (double* const reward = reward_of_row(p)) *reward = *reward + rows.reward[p];
    }
    bool all = true, none = lines.masked;
    BlockMask mask[block_tokens / half_block];
    for (index_t h = 0; lines.masked && h * half_block < n; ++h) {
      mask[h] = BlockMask(lines.mask, begin + h * half_block);
      all = all && mask[h].all(), none = none && mask[h].none();
    }
    if (all) {
      for (index_t t = n - 1; t >= 0; --t) {
        const index_t offset = t * rows_at_once;
        const V value = value_at(offset);
        carried = step_back<Twice>(of, carried, V::load(rewards + offset), value, decay,
                                   decay_of_returns);
        store_rounded(carried.advantages, advantages + offset);
        if constexpr (own_returns) {
          const V scanned = Twice ? carried.returns : carried.advantages;
          store_rounded(return_of<Returns>(scanned, value), returns + offset);
        }
      }
    } else if (none && steps == Steps::Valid) {
      std::fill(advantages, advantages + size, S(0));
      if constexpr (own_returns) std::fill(returns, returns + size, S(0));
    } else {
      for (index_t h = 0; h * half_block < n; ++h) mask[h].turn();
      const V length = V::load(rows.length), rewarded = V::load(rows.rewarded);
      const auto always = V::all(is_step(steps, false) ? 1.0 : 0.0) > zero;
      const auto always_rewarded = V::all(carries_reward(steps, false) ? 1.0 : 0.0) > zero;
      for (index_t t = n - 1; t >= 0; --t) {
        const index_t offset = t * rows_at_once;
        unsigned char bytes[rows_at_once];
        std::memcpy(bytes, &mask[t / half_block].bytes[t % half_block], sizeof bytes);
        const auto valid = mask_of_bytes<rows_at_once, double>(bytes);
        const V position = V::all(static_cast<double>(begin + t));
        const auto step = both(either(valid, always), position < length);
        const V reward = select(either(valid, always_rewarded), V::load(rewards + offset), zero);
        const V value = value_at(offset);
        const Carried<V> to = step_back<Twice>(of, carried, reward, value, decay, decay_of_returns);
        if (steps == Steps::Turns) {
          const auto resets = both(position < length, position < rewarded);
          carried = {select(resets, zero, carried.next_value),
                     select(resets, zero, carried.advantages),
                     select(resets, zero, carried.returns)};
        }
        carried.next_value = select(step, to.next_value, carried.next_value);
        carried.advantages = select(step, to.advantages, carried.advantages);
        if constexpr (Twice) carried.returns = select(step, to.returns, carried.returns);
        store_rounded(select(valid, to.advantages, zero), advantages + offset);
        if constexpr (own_returns) {
          const V returned = return_of<Returns>(Twice ? to.returns : to.advantages, value);
          store_rounded(select(valid, returned, zero), returns + offset);
        }
      }
    }
    turn_back(advantages, lines.advantages, begin, n);
    if (lines.gives_returns) turn_back(own_returns ? returns : advantages, lines.returns, begin, n);
    for (int p = 0; lines.ends && p < rows_at_once; ++p) {
      if (double* const reward = reward_of_row(p)) *reward = 0;
    }
  }
  carried.next_value.store(rows.next_value);
  carried.advantages.store(rows.advantages);
  carried.returns.store(rows.returns);
}

/// Scans up to eight rows at once, again and again.
template <class S, class Estimator>
class ReturnLanes {
  using Rows = ReturnRows<S, Estimator>;
  using Returns = typename Rows::Returns;
  using V = math::Native<double>;
  using L = math::Lanes<V>;
  static constexpr index_t W = L::width;

 public:
  ReturnLanes(const Rows& rows, ReturnScratch<S>& scratch)
      : rows_(rows), scratch_(scratch), steps_(rows.estimator().returns.steps), copies_(scratch) {}

  /// Scans the `count` rows whose numbers stand at `numbers`, or, where that is null, those from
  /// `first` on.
  void scan(const index_t* numbers, index_t first, int count) {
    count_ = count, longest_ = 0;
    for (int p = 0; p < count; ++p) take(p, numbers ? numbers[p] : first + p);
    for (int p = count; p < rows_at_once; ++p) row_[p] = {}, out_[p] = returns_[p] = {};
    scan_rows();
  }

 private:
  void scan_rows() {
    if (longest_ == 0) return;
    if (!fills_lanes()) {
      for (int p = 0; p < count_; ++p) rows_.scan(row_[p]);
      return;
    }
    const index_t aligned = before_line();
    for (index_t end = longest_, first; end > 0; end = first) {
      first = end > aligned ? aligned + (end - aligned - 1) / tile_tokens * tile_tokens : 0;
      // Tokens that do not fill a block are a tile of their own: it is copied.
      const index_t rest = (end - first) % block_tokens;
      if (rest > 0 && end - first > block_tokens) first = end - rest;
      const index_t left = end - first;
      const index_t tokens = (left + half_block - 1) / half_block * half_block;
      ReturnLines<S> lines;
      lines.gives_returns = rows_.gives_returns();
      bool copied[rows_at_once];
      for (int p = 0; p < rows_at_once; ++p) copied[p] = bind(lines, p, first, left, tokens);
      const Returns& policy = rows_.estimator().returns;
      rows_.reads().twice ? scan_tile<true>(policy, steps_, lanes_, lines, tokens)
                          : scan_tile<false>(policy, steps_, lanes_, lines, tokens);
      for (int p = 0; p < count_; ++p) {
        if (!copied[p]) continue;
        write(lines.advantages[p], p, first, left, out_[p]);
        if (lines.gives_returns) write(lines.returns[p], p, first, left, returns_[p]);
      }
    }
  }

  /// Lines of a tile in memory of the workspace, for rows that do not have all of its tokens, and
  /// for what is computed.
  class Lines {
   public:
    explicit Lines(ReturnScratch<S>& scratch)
        : arrays_(scratch.lines.data()),
          penalized_(scratch.penalized.data()),
          mask_(scratch.marks.data()) {}
    S* array(int which, int p) const { return arrays_ + (which * rows_at_once + p) * tile_tokens; }
    double* penalized(int p) const { return penalized_ + p * tile_tokens; }
    unsigned char* mask(int p) const { return mask_ + p * tile_tokens; }
    /// A mask of ones.
    const unsigned char* ones() const { return mask(rows_at_once); }

   private:
    S* arrays_;
    double* penalized_;
    unsigned char* mask_;
  };

  /// Whether enough places of the tiles hold steps: half of them with AVX-512, else three of four.
  /// Lanes also walk over padding, which one row after the other passes at little cost; both ways
  /// give the same bits.
  bool fills_lanes() const {
    constexpr index_t quarters = W >= rows_at_once ? 2 : 3;
    index_t steps = 0;
    for (int p = 0; p < count_; ++p)
      steps += all_are_steps() ? row_[p].span.length : row_[p].tokens;
    return 4 * steps >= quarters * rows_at_once * longest_;
  }
  bool all_are_steps() const { return is_step(steps_, false); }

  void take(int place, index_t i) {
    ReturnRow<S>& row = row_[place] = rows_.read(i, place, scratch_);
    out_[place] = rows_.advantages(row.span), returns_[place] = rows_.returns(row.span);
    longest_ = (std::max)(longest_, row.span.length);
    const Carried<double> last = behind_the_end<Returns>(row.bootstrap);
    lanes_.next_value[place] = last.next_value;
    lanes_.advantages[place] = last.advantages, lanes_.returns[place] = last.returns;
    lanes_.decay[place] = row.decay.advantages;
    lanes_.decay_of_returns[place] = row.decay.returns;
    lanes_.reward[place] = row.reward;
  }
  /// How many tokens of a long row stand before the first whole cache line of its advantages. Tiles
  /// begin there, so that no store crosses a line.
  index_t before_line() const {
    constexpr std::uintptr_t line = 64;
    const auto over = reinterpret_cast<std::uintptr_t>(out_[0].data) % line;
    if (longest_ < 16 * block_tokens || over % sizeof(S) > 0) return 0;
    return static_cast<index_t>((line - over) % line / sizeof(S));
  }
  /// How many of `left` tokens a row has.
  index_t tokens_of(int p, index_t first, index_t left) const {
    return (std::max<index_t>)(0, (std::min)(left, row_[p].span.length - first));
  }

  /// Binds the arrays of a row for `left` tokens from `first` on, filled up to `tokens`. Returns
  /// whether they are copies, because the row does not have all of them or is not written in place.
  bool bind(ReturnLines<S>& lines, int p, index_t first, index_t left, index_t tokens) {
    const ReturnRow<S>& row = row_[p];
    const bool in_place = row.tokens > 0 && left == tokens && first + left <= row.span.length &&
                          out_[p].stride[0] == 1 && (!returns_[p] || returns_[p].stride[0] == 1);
    const index_t n = row.tokens > 0 ? tokens_of(p, first, left) : 0;
    lanes_.length[p] = static_cast<double>(n);
    const index_t rewarded = row.tokens > 0 ? row.rewarded - first : -1;
    lanes_.rewarded[p] = static_cast<double>(rewarded);
    lines.ends = lines.ends || (rewarded >= 0 && rewarded < left);
    const bool full = row.tokens == row.span.length;
    const index_t valid = full ? n : count_mask(row.mask + first, n);
    lines.masked = lines.masked || valid < tokens;
    if (rows_.reads().penalized) {
      lines.penalized[p] = penalize(row, first, n, tokens, copies_.penalized(p));
    } else if (rows_.batch().rewards) {
      lines.rewards[p] =
          in_place ? row.rewards + first : copy(row.rewards, first, n, tokens, copies_.array(0, p));
    }
    if constexpr (Returns::reads_values) {
      lines.values[p] =
          in_place ? row.values + first : copy(row.values, first, n, tokens, copies_.array(1, p));
    }
    if (in_place) {
      lines.mask[p] = row.mask ? row.mask + first : copies_.ones();
      lines.advantages[p] = out_[p].data + first;
      lines.returns[p] = returns_[p] ? returns_[p].data + first : nullptr;
    } else {
      lines.mask[p] = row.mask ? copy(row.mask, first, n, tokens, copies_.mask(p))
                               : copy(copies_.ones(), 0, n, tokens, copies_.mask(p));
      lines.advantages[p] = copies_.array(2, p), lines.returns[p] = copies_.array(3, p);
    }
    return !in_place;
  }
  /// n numbers of a row and zeros behind them.
  template <class T>
  static const T* copy(const T* from, index_t first, index_t n, index_t tokens, T* to) {
    if (n > 0) std::copy_n(from + first, n, to);
    std::fill(to + n, to + tokens, T(0));
    return to;
  }
  /// The rewards of n tokens less their penalty. Where masked tokens carry no reward it is 0.
  const double* penalize(const ReturnRow<S>& row, index_t first, index_t n, index_t tokens,
                         double* line) const {
    const auto penalty = rows_.estimator().penalty;  // a copy, whatever the loop stores
    const bool all = row.tokens == row.span.length || carries_reward(steps_, false);
    if (!all) std::fill(line, line + n, 0.0);
    for_each_run(all ? nullptr : row.mask + first, 0, n, [&](index_t begin, index_t end) {
      const auto at = [&](const S* from, index_t t) GDPO_INLINE_LAMBDA {
        if (t + W <= end) return L::load(from + first + t);
        S padded[W] = {};
        for (index_t j = 0; t + j < end; ++j) padded[j] = from[first + t + j];
        return L::load(padded);
      };
      for (index_t t = begin; t < end; t += W) {
        const V reward = row.rewards ? at(row.rewards, t) : math::constant<V>(0.0);
        const V of = penalized<V>(penalty, reward, at(row.logp, t), at(row.ref_logp, t));
        if (t + W <= end) {
          L::store(line + t, of);
        } else {
          double rest[W];
          L::store(rest, of);
          std::copy_n(rest, end - t, line + t);
        }
      }
      return true;
    });
    std::fill(line + n, line + tokens, 0.0);
    return line;
  }
  /// Writes a line to its row.
  void write(const S* line, int p, index_t first, index_t left, const View<S, 1>& to) const {
    const index_t n = tokens_of(p, first, left);
    for (index_t t = 0; t < n; ++t) to(first + t) = line[t];
  }

  const Rows& rows_;
  ReturnScratch<S>& scratch_;
  int count_ = 0;  ///< Rows at hand, at most rows_at_once.
  Steps steps_;
  index_t longest_ = 0;
  ReturnRow<S> row_[rows_at_once];
  View<S, 1> out_[rows_at_once], returns_[rows_at_once];
  RowLanes lanes_;
  Lines copies_;
};

}  // namespace detail
GDPO_END_NAMESPACE
