#pragma once
// How a row passes through the lanes: the arrays that a loop reads and writes, how it prefetches
// them, and what happens to the last tokens, which do not fill all lanes.
#include <gdpo/lanes/few.hpp>
#include <gdpo/tokens/token_row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The level of cache that a prefetch fills, as __builtin_prefetch counts: prefetcht0 and
/// prefetcht1 on x86.
enum class Cache { First = 3, Second = 2 };

/// Prefetches the cache line that holds *p, which will soon be read, and with `Write` also written.
///
/// The hint 0 (prefetchnta), which leaves out the outer caches, is not used. On Intel processors
/// the line is then in the first-level cache only, which has dropped it before it is read 1024 or
/// 2048 tokens later. Measured by `gdpo_gates --only K1` in builds that differ in the hints alone,
/// with 512 x 4096 tokens from memory on one thread:
///   Intel Cascade Lake   4.92 ns a token with prefetchnta, 2.19 with prefetcht0
///   AMD Zen 4            the same with both
template <Cache To = Cache::First, bool Write = false>
GDPO_HOST_INLINE void prefetch(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, Write, static_cast<int>(To));
#else
  (void)p;
#endif
}

/// The arrays of a row that loops read, and those that they write.
template <class S>
struct TokenSpan {
  const TokenRow<S>& row;
  S* gradient = nullptr;      ///< Null in a pass that writes no gradient.
  double* scratch = nullptr;  ///< Own derivatives for level::Sequence; null at other levels.
  S* ratio = nullptr;         ///< The buffer of ratios; ratio[0] belongs to token `origin`.
  index_t origin = 0;
};

// This type has a name, because nvcc writes parentheses around an unnamed one that g++ warns about.
template <class S>
using ArrayOfRow = const S* TokenRow<S>::*;
/// The arrays of numbers of a row, to loop over. A list of statements in place of the loop would
/// compile its body once for each array.
template <class S>
constexpr ArrayOfRow<S> arrays_of_row[token_arrays] = {
#define GDPO_X(in_batch, in_row, ...) &TokenRow<S>::in_row,
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
};

/// A copy of the last tokens of a span, fewer than 16, padded with masked tokens to 16.
///
/// Its functions are not inlined, because every loop over tokens would contain a copy.
template <class S>
class PaddedSpan {
  TokenRow<S> row_;

 public:
  PaddedSpan() = default;
  PaddedSpan(const PaddedSpan&) = delete;
  PaddedSpan& operator=(const PaddedSpan&) = delete;

  /// Copies the tokens begin to end - 1 of a span.
  GDPO_NOINLINE void fill(const TokenSpan<S>& from, index_t begin, index_t end) {
    n_ = end - begin;
    row_.row = from.row.row, row_.length = math::logical_lanes, row_.mask = mask_;
    row_.segments = nullptr, row_.advantage = from.row.advantage;
    for (int a = 0; a < token_arrays; ++a) {
      const S* const values = from.row.*arrays_of_row<S>[a];
      if (values) math::copy_padded(values_[a], values + begin, n_);
      row_.*arrays_of_row<S>[a] = values ? values_[a] : nullptr;
    }
    math::copy_padded(mask_, from.row.mask ? from.row.mask + begin : math::all_ones, n_);
    to_gradient_ = from.gradient ? from.gradient + begin : nullptr;
    to_scratch_ = from.scratch ? from.scratch + begin : nullptr;
  }
  /// Copies the scratch memory of the tokens as well.
  void fill_scratch() {
    if (to_scratch_) math::copy_padded(scratch_, to_scratch_, n_);
  }
  /// Copies what a loop wrote for the real tokens into the original span.
  GDPO_NOINLINE void copy_back() const {
    if (to_gradient_) math::copy_few(to_gradient_, gradient_, n_);
    if (to_scratch_) math::copy_few(to_scratch_, scratch_, n_);
  }

 private:
  index_t n_;
  S* to_gradient_;
  double* to_scratch_;
  S values_[token_arrays][math::logical_lanes], gradient_[math::logical_lanes],
      ratio_[math::logical_lanes];
  double scratch_[math::logical_lanes];
  unsigned char mask_[math::logical_lanes];

 public:
  const TokenSpan<S> span{row_, gradient_, scratch_, ratio_, 0};
};

/// Calls f(span, begin, end, padded) for the tokens begin to end - 1: first for those that fill
/// whole sets of 16 lanes, then for those left over. The latter are copied to a span of their
/// own, which masked tokens fill up to 16. `padded` is a std::bool_constant that says which of
/// the two it is.
template <class S, class F>
void in_registers(const TokenSpan<S>& span, index_t begin, index_t end, const F& f) {
  const index_t whole = end - (end - begin) % math::logical_lanes;
  if (begin < whole) f(span, begin, whole, std::false_type{});
  if (whole < end) {
    PaddedSpan<S> padded;
    padded.fill(span, whole, end), padded.fill_scratch();
    f(padded.span, index_t{0}, index_t{math::logical_lanes}, std::true_type{});
    padded.copy_back();
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
