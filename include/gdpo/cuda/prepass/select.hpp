#pragma once
// Selection on a device: the key at a rank among the keys of all tokens, digit by digit, without a
// sort and without the host.
#include <algorithm>
#include <gdpo/cuda/device/kernel.hpp>
#include <gdpo/math/scalar.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// The key of a token without a number.
constexpr std::uint64_t no_key = ~std::uint64_t{0};
/// A key for each number: keys have the order of the numbers, and bits that are 0 in all numbers
/// are 0 in all keys. -0 is 0; NaN has no_key.
GDPO_INLINE std::uint64_t key_of(double x) {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  if (math::is_nan(x)) return no_key;
  const std::uint64_t bits = math::bits_of(x), size = bits & ~sign;
  return bits & sign ? sign - size : sign + size;
}
/// The number that has this key.
GDPO_INLINE double number_of(std::uint64_t key) {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  return math::from_bits(key < sign ? (sign - key) | sign : key - sign);
}

/// Digits of four bits. What a thread, a block or a launch has counted of them: keys that agree
/// with the digits before, by this digit, and perhaps the sums of their numbers.
constexpr int digit_bits = 4, digits = 1 << digit_bits;
template <bool with_sums>
struct Buckets {
  index_t count[digits] = {};
  double sum[with_sums ? digits : 1] = {};
  /// The number of all keys.
  GDPO_INLINE index_t keys() const {
    index_t n = 0;
    GDPO_UNROLL
    for (int d = 0; d < digits; ++d) n += count[d];
    return n;
  }
  GDPO_INLINE void add(const Buckets& o) {
    GDPO_UNROLL
    for (int d = 0; d < digits; ++d) {
      count[d] += o.count[d];
      if constexpr (with_sums) sum[d] += o.sum[d];
    }
  }
};

/// What is known after some digits: the keys that begin with `key`.
struct Selected {
  std::uint64_t key = 0;
  index_t rank = -1;     ///< Of the key that is sought among them; -1: before them all.
  index_t equal = 0;     ///< How many they are.
  index_t below = 0;     ///< How many keys are smaller.
  index_t count = 0;     ///< How many keys there are.
  double sum = 0;        ///< Of the smaller ones, where they are added.
  bool is_none = false;  ///< There are no keys, or none is sought.
};

/// The number of units that the tokens are cut into: by their number alone, because sums of the
/// units are added.
struct SelectUnits {
  static constexpr int threads = 128, most = 512, tokens_a_unit = threads * 8;
  index_t tokens;
  int count;
  explicit SelectUnits(index_t of_batch)
      : tokens(of_batch),
        count(static_cast<int>(
            (std::min)(index_t{most}, (of_batch + tokens_a_unit - 1) / tokens_a_unit))) {}
  /// f(k) for the tokens of a thread in a unit.
  template <class F>
  GDPO_INLINE void each(index_t unit, int thread, const F& f) const {
    for (index_t k = unit * threads + thread; k < tokens; k += index_t{count} * threads) f(k);
  }
};

/// One launch per digit, and one behind them. Each block finds from the buckets of the last launch
/// which digit the key has, all the same; then it counts the next digit of its unit.
///
/// Keys has `std::uint64_t operator()(index_t k) const`, the key of the token at position k of the
/// batch, which is below 2^bits or no_key; and `bool is_empty() const`. Rule says which digit it
/// is: `void choose(Selected&, const Buckets<sums>&, shift) const`.
template <class Keys, class Rule>
struct SelectDigit {
  static constexpr int threads = SelectUnits::threads, largest_block = threads;
  using Counted = Buckets<Rule::with_sums>;
  Keys keys;
  Rule rule;
  SelectUnits units;
  int shift;    ///< Of the digit that is counted; below 0: none, this is the last launch.
  int counted;  ///< Of the one that the last launch has counted; below 0: this is the first.
  const Counted* before;  ///< Of the last launch, one for each unit.
  Counted* counts;        ///< Of this launch.
  const Selected* known;
  Selected* next;

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    Selected selected;
    if (counted >= 0) {
      selected = *known;
      const Counted all = block.template reduce<Counted>([&](int thread) {
        Counted mine;
        for (int u = thread; u < units.count; u += threads) mine.add(before[u]);
        return mine;
      });
      rule.choose(selected, all, counted);
    }
    if (shift >= 0) {
      const bool counts_keys = !selected.is_none && !keys.is_empty();
      const Counted mine = block.template reduce<Counted>([&](int thread) {
        Counted of_thread;
        if (!counts_keys) return of_thread;
        units.each(block.index(), thread, [&](index_t k) {
          const std::uint64_t key = keys(k);
          const bool agrees = counted < 0 || key >> counted == selected.key >> counted;
          if (key == no_key || !agrees) return;
          const int digit = static_cast<int>(key >> shift & (digits - 1));
          GDPO_UNROLL
          for (int d = 0; d < digits; ++d) {
            of_thread.count[d] += d == digit;
            if constexpr (Rule::with_sums) of_thread.sum[d] += d == digit ? number_of(key) : 0.0;
          }
        });
        return of_thread;
      });
      block.each([&](int thread) {
        if (thread == 0) counts[block.index()] = mine;
      });
    }
    block.each([&](int thread) {
      if (thread == 0 && block.index() == 0) *next = selected;
    });
  }
};

/// The key at a rank. `Rank` has `index_t operator()(index_t count) const`: the rank, from 0, that
/// is sought among `count` > 0 keys; below 0: none.
template <class Rank>
struct ByRank {
  static constexpr bool with_sums = false;
  Rank rank;
  GDPO_INLINE void choose(Selected& s, const Buckets<false>& buckets, int shift) const {
    if (s.count == 0 && !s.is_none) {
      s.count = buckets.keys();
      s.rank = s.count > 0 ? rank(s.count) : -1;
      s.is_none = s.rank < 0;
    }
    if (s.is_none) return;
    index_t before = 0, skipped = 0;
    int chosen = -1;
    GDPO_UNROLL
    for (int d = 0; d < digits; ++d) {
      const index_t n = buckets.count[d];
      if (chosen < 0 && (before + n > s.rank || d == digits - 1))
        chosen = d, skipped = before, s.equal = n;
      before += n;
    }
    s.key |= static_cast<std::uint64_t>(chosen) << shift;
    s.rank -= skipped, s.below += skipped;
  }
};

/// The memory of selections, one at a time.
struct SelectMemory {
  void* counts[2];
  Selected* states[2];
};

/// Selects among keys of `bits` bits that stand above `lowest`, lower ones being 0. Returns where
/// the result is on the device; it stays there until the next selection with this memory.
template <class Device, class Keys, class Rule>
const Selected* select_key(const Device& device, const SelectMemory& memory, index_t tokens,
                           const Keys& keys, const Rule& rule, int bits, int lowest = 0) {
  using Kernel = SelectDigit<Keys, Rule>;
  using Counted = typename Kernel::Counted;
  const SelectUnits units(tokens);
  int turn = 0;
  const int first = (bits + digit_bits - 1) / digit_bits * digit_bits - digit_bits;
  for (int shift = first; shift >= lowest - digit_bits; shift -= digit_bits, turn ^= 1) {
    const bool counts = shift >= lowest;
    device.launch(
        counts ? units.count : 1, Kernel::threads, 0,
        Kernel{keys, rule, units, counts ? shift : -1, shift == first ? -1 : shift + digit_bits,
               static_cast<const Counted*>(memory.counts[turn ^ 1]),
               static_cast<Counted*>(memory.counts[turn]), memory.states[turn ^ 1],
               memory.states[turn]});
  }
  return memory.states[turn ^ 1];
}

}  // namespace detail
}  // namespace cuda
GDPO_END_NAMESPACE
