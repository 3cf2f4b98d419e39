#pragma once
// ExactSum: a sum of doubles without any rounding, so that its bits depend on no order.
#include <gdpo/core/view.hpp>
#include <gdpo/math/scalar.hpp>

// Plain data, which crosses ranks and checkpoints: it stands outside the inline namespace.
namespace gdpo {

/// The exact sum of doubles: one integer, in units of the smallest double, 2^-1074.
///
/// The integer is in two's complement, in limbs of 64 bits, the lowest first. Adding a number adds
/// its 53 bits at their place and carries, which is exact; so `add` and `merge`, in any order and
/// partition, give the same limbs, and `value` rounds once. 2176 bits hold 2^77 numbers of the
/// largest size. (Kulisch's long accumulator.)
///
/// An add costs a few additions of integers and the length of its carry, about 4 ns; where the sum
/// changes its sign, 34 limbs. The object has 280 bytes and no constructor that is not trivial to
/// copy; all its bits are its value, so two sums may be compared as bytes.
struct ExactSum {
  static constexpr int limbs = 34;  ///< Number of limbs.
  std::uint64_t limb[limbs] = {};   ///< The integer.
  std::uint64_t special = 0;        ///< 1: a NaN was added, 2: +inf, 4: -inf; their sum.

  /// Adds x exactly. NaN and infinities only set their flag in `special`; a zero changes nothing.
  GDPO_DATA_INLINE void add(double x);
  /// Adds all numbers of `part` exactly.
  GDPO_DATA_INLINE void add(const ExactSum& part);
  /// The sum, rounded once to the nearest double (of two, the even one); infinite if it is beyond
  /// the largest one. An empty sum and one that cancels are +0. NaN if a NaN was added, or
  /// infinities of both signs; else the infinity that was added.
  GDPO_DATA_INLINE double value() const;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Adds low + 2^64 high to the limbs from `place` on.
GDPO_INLINE void add_at(ExactSum& sum, int place, std::uint64_t low, std::uint64_t high) {
  std::uint64_t carry = 0;
  for (int i = place; i < ExactSum::limbs; ++i) {
    const std::uint64_t x = i == place ? low : i == place + 1 ? high : 0;
    if (i > place + 1 && carry == 0) return;
    const std::uint64_t more = x + carry;  // below 2^64: high has 53 bits, and low no carry
    sum.limb[i] += more;
    carry = sum.limb[i] < more;
  }
}
/// Subtracts low + 2^64 high from the limbs from `place` on.
GDPO_INLINE void subtract_at(ExactSum& sum, int place, std::uint64_t low, std::uint64_t high) {
  std::uint64_t borrow = 0;
  for (int i = place; i < ExactSum::limbs; ++i) {
    const std::uint64_t x = i == place ? low : i == place + 1 ? high : 0;
    if (i > place + 1 && borrow == 0) return;
    const std::uint64_t more = x + borrow, before = sum.limb[i];
    sum.limb[i] = before - more;
    borrow = before < more;
  }
}

/// ExactSum::add of a number.
GDPO_DEVICE GDPO_NOINLINE inline void add_exactly(ExactSum& sum, double x) {
  constexpr std::uint64_t one = 1, fraction = (one << 52) - 1;
  const std::uint64_t bits = math::bits_of(x);
  const auto exponent = static_cast<int>((bits >> 52) & 0x7ff);
  const bool negative = (bits >> 63) != 0;
  if (exponent == 0x7ff) {
    sum.special |= (bits & fraction) != 0 ? 1u : negative ? 4u : 2u;
    return;
  }
  const std::uint64_t digits = (bits & fraction) | (exponent > 0 ? one << 52 : 0);
  if (digits == 0) return;
  const int shift = exponent > 0 ? exponent - 1 : 0, left = shift % 64;
  const std::uint64_t low = digits << left, high = left > 0 ? digits >> (64 - left) : 0;
  if (negative) {
    subtract_at(sum, shift / 64, low, high);
  } else {
    add_at(sum, shift / 64, low, high);
  }
}

/// ExactSum::add of a sum.
GDPO_DEVICE GDPO_NOINLINE inline void add_exactly(ExactSum& sum, const ExactSum& part) {
  std::uint64_t carry = 0;
  for (int i = 0; i < ExactSum::limbs; ++i) {
    const std::uint64_t partial = sum.limb[i] + part.limb[i], total = partial + carry;
    carry = (partial < part.limb[i]) + (total < partial);
    sum.limb[i] = total;
  }
  sum.special |= part.special;
}

/// ExactSum::value.
GDPO_DEVICE GDPO_NOINLINE inline double rounded(const ExactSum& sum) {
  constexpr std::uint64_t one = 1, sign = one << 63, infinite = std::uint64_t{0x7ff} << 52;
  if (sum.special != 0) {
    if (sum.special == 2) return math::from_bits(infinite);
    return sum.special == 4 ? math::from_bits(infinite | sign) : math::nan();
  }
  const bool negative = (sum.limb[ExactSum::limbs - 1] & sign) != 0;
  std::uint64_t magnitude[ExactSum::limbs];
  std::uint64_t carry = negative;
  int top = -1;
  for (int i = 0; i < ExactSum::limbs; ++i) {
    const std::uint64_t x = negative ? ~sum.limb[i] : sum.limb[i];
    magnitude[i] = x + carry;
    carry = carry != 0 && magnitude[i] == 0;
    if (magnitude[i] != 0) top = i;
  }
  if (top < 0) return 0.0;
  int high_bit = 63;
  while ((magnitude[top] >> high_bit) == 0) --high_bit;
  const int place = 64 * top + high_bit;  // of the leading digit
  std::uint64_t bits = 0;
  if (place <= 52) {
    bits = magnitude[0];  // subnormal, or the smallest exponent: the bits are those of the double
  } else {
    const int last = place - 52, limb = last / 64, right = last % 64;  // place of the last digit
    std::uint64_t digits = magnitude[limb] >> right;
    if (right > 0 && limb < top) digits |= magnitude[limb + 1] << (64 - right);
    digits &= (one << 53) - 1;
    const int half = last - 1;
    const bool half_set = ((magnitude[half / 64] >> (half % 64)) & 1) != 0;
    bool more = (magnitude[half / 64] & ((one << (half % 64)) - 1)) != 0;
    for (int i = 0; i < half / 64; ++i) more = more || magnitude[i] != 0;
    digits += half_set && (more || (digits & 1) != 0);
    // Digits that round up to 2^53 carry into the exponent.
    bits = (static_cast<std::uint64_t>(last) << 52) + digits;
    if (bits > infinite) bits = infinite;
  }
  return math::from_bits(negative ? bits | sign : bits);
}

}  // namespace detail

/// The sum of the numbers of both. It is exact, so the order of merges changes no bit.
GDPO_DEVICE inline ExactSum merge(const ExactSum& a, const ExactSum& b) {
  ExactSum sum = a;
  sum.add(b);
  return sum;
}

GDPO_END_NAMESPACE

namespace gdpo {
GDPO_DATA_INLINE void ExactSum::add(double x) { detail::add_exactly(*this, x); }
GDPO_DATA_INLINE void ExactSum::add(const ExactSum& part) { detail::add_exactly(*this, part); }
GDPO_DATA_INLINE double ExactSum::value() const { return detail::rounded(*this); }
}  // namespace gdpo
