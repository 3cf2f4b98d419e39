#pragma once
// How a row passes through the lanes: which arrays a loop reads, how it prefetches them, and what
// happens to the last tokens, which do not fill all lanes.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/loss/engine/rows.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/loss/term.hpp>

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
  TokenRow<S> row;
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

/// What a loop over the tokens of a row knows about the row when it is compiled.
///   General      nothing
///   Plain        The row has one advantage and old_logp. Of the other arrays it may only have a
///                mask (`Masked`) and, for the KL terms, ref_logp. The KL terms are all off (WithKl
///                is false), or all on, against the reference and without clamps.
/// MaskedShape is the shape for the same row with a mask, RatioShape the shape for the loop over
/// the ratios, which does not read what only the KL terms need.
struct General {
  using MaskedShape = General;
  using RatioShape = General;
  static constexpr bool plain = false, masked = true, with_kl = true;
};
template <bool Masked, bool WithKl>
struct Plain {
  using MaskedShape = Plain<true, WithKl>;
  using RatioShape = Plain<Masked, false>;
  static constexpr bool plain = true, masked = Masked, with_kl = WithKl;
};

/// Whether a KL term has is_plain() and as_plain(). The first says whether it is against the
/// reference without clamps; the second is the same term with these settings as constants, which
/// the compiler sees.
template <class Kl, class = void>
constexpr bool has_plain_v = false;
template <class Kl>
constexpr bool has_plain_v<Kl, std::void_t<decltype(std::declval<const Kl&>().is_plain())>> = true;

/// Whether a row of a Plain shape has an array: always (logp and old_logp, which make the log
/// ratio), with KL terms only, or never.
enum class InPlain { Needed, WithKl, Absent };
GDPO_DEVICE constexpr bool is_in_plain(InPlain array, bool with_kl) {
  return array == InPlain::Needed || (array == InPlain::WithKl && with_kl);
}
/// Which arrays of numbers a row or a batch has.
struct TokenArrays {
#define GDPO_X(in_batch, in_row, ...) bool in_row;
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
};
template <class S>
GDPO_HOST_INLINE TokenArrays arrays_of(const TokenRow<S>& row) {
  TokenArrays has;
#define GDPO_X(in_batch, in_row, ...) has.in_row = row.in_row != nullptr;
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
  return has;
}
/// Whether rows with these arrays have a Plain shape, and whether with KL terms. The host and
/// devices both decide by it.
struct PlainRows {
  bool plain, with_kl;
};
template <class Kls>
GDPO_HOST_INLINE PlainRows plain_rows(const Kls& kls, const TokenArrays& has) {
  bool plain = true, any_kl = false, all_kl = true;
  for_each_kl(kls, [&](const auto& kl) {
    any_kl = any_kl || kl.beta != 0;
    all_kl = all_kl && kl.beta != 0;
    if constexpr (has_plain_v<std::decay_t<decltype(kl)>>)
      plain = plain && (kl.beta == 0 || kl.is_plain());
  });
#define GDPO_X(in_batch, in_row, in_token, read, in_plain) \
  plain = plain && has.in_row == is_in_plain(InPlain::in_plain, any_kl);
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
  return {plain && (all_kl || !any_kl), any_kl};
}

/// A copy of the last tokens of a span, fewer than 16, padded with masked tokens to 16.
///
/// Its functions are not inlined, because every loop over tokens would contain a copy.
template <class S>
class PaddedSpan {
 public:
  GDPO_NOINLINE PaddedSpan(const TokenSpan<S>& from, index_t begin, index_t end)
      : from_(from), begin_(begin), n_(end - begin) {
    span.row = from.row;
    for (int a = 0; a < token_arrays; ++a) {
      const S*& values = span.row.*arrays_of_row<S>[a];
      if (!values) continue;
      fill(values_[a], values + begin);
      values = values_[a];
    }
    for (int j = 0; j < math::logical_lanes; ++j) mask_[j] = j < n_ && from.row.valid(begin + j);
    if (from.scratch) fill(scratch_, from.scratch + begin);
    span.row.mask = mask_;
    span.gradient = gradient_;
    span.scratch = from.scratch ? scratch_ : nullptr;
    span.ratio = ratio_;
  }
  /// Copies what a loop wrote for the real tokens into the original span.
  GDPO_NOINLINE void copy_back() const {
    for (index_t j = 0; from_.gradient && j < n_; ++j) from_.gradient[begin_ + j] = gradient_[j];
    for (index_t j = 0; from_.scratch && j < n_; ++j) from_.scratch[begin_ + j] = scratch_[j];
  }
  TokenSpan<S> span{};

 private:
  const TokenSpan<S>& from_;
  index_t begin_, n_;
  template <class X>
  void fill(X* to, const X* from) const {
    for (int j = 0; j < math::logical_lanes; ++j) to[j] = X(0);
    for (index_t j = 0; j < n_; ++j) to[j] = from[j];
  }

  S values_[token_arrays][math::logical_lanes], gradient_[math::logical_lanes],
      ratio_[math::logical_lanes];
  double scratch_[math::logical_lanes];
  unsigned char mask_[math::logical_lanes];
};

/// Reads the tokens of a row into lanes V.
template <class V, class S>
struct TokenReader {
  using L = math::Lanes<V>;
  using Mask = mask_t<V>;

  GDPO_INLINE static Mask mask_of(const TokenRow<S>& row, index_t at) {
    return row.mask ? L::load_mask(row.mask + at) : L::all_lanes();
  }
  template <class Shape>
  GDPO_INLINE static Mask mask_in(const TokenRow<S>& row, index_t at) {
    if constexpr (!Shape::masked) {
      return L::all_lanes();
    } else if constexpr (Shape::plain) {
      return L::load_mask(row.mask + at);
    } else {
      return mask_of(row, at);
    }
  }

  /// Reads the tokens at, at + 1, ... into x. Where a token is not valid, token_log_ratio is 0 and
  /// the other members are whatever the arrays hold. (The loads are not masked, because some
  /// processors do not prefetch for masked loads.) `advantage` and `row_advantage` belong to the
  /// row.
  template <class Shape>
  GDPO_INLINE static void load(Token<V>& x, const TokenRow<S>& row, index_t at, const Mask& valid,
                               const V& advantage, const V& row_advantage) {
    const V zero = math::constant<V>(0.0);
    const auto read = [&](const S* values) GDPO_INLINE_LAMBDA { return L::load(values + at); };
    const auto maybe = [&](const S* values)
                           GDPO_INLINE_LAMBDA { return values ? read(values) : zero; };
    constexpr bool plain = Shape::plain;
    x.logp = read(row.logp);
    x.old_logp = plain || row.old_logp ? read(row.old_logp) : x.logp;
#define GDPO_X(in_batch, in_row, in_token, reads, in_plain)                \
  if constexpr (plain) {                                                   \
    constexpr bool there = is_in_plain(InPlain::in_plain, Shape::with_kl); \
    x.in_token = there ? read(row.in_row) : zero;                          \
  } else {                                                                 \
    x.in_token = maybe(row.in_row);                                        \
  }
    GDPO_OTHER_LOGPS(GDPO_X)
#undef GDPO_X
    x.tag = plain ? zero : maybe(row.tags);
    x.advantage = plain || !row.advantages ? advantage : read(row.advantages);
    x.row_advantage = row_advantage;
    x.token_log_ratio =
        plain || row.old_logp ? math::select(valid, x.logp - x.old_logp, zero) : zero;
    x.log_ratio = x.ratio = zero;  // set later, from the level
  }

  // The two loops of RowLoss::block_of take turns, so the processor's own prefetching keeps losing
  // track of the arrays. Each loop therefore prefetches what the other one will read.

  /// Prefetches what the loop over the terms reads and writes; that loop runs next, on this block.
  template <class Shape>
  GDPO_HOST_INLINE static void prefetch_for_terms(const TokenRow<S>& row, const S* gradient,
                                                  index_t at) {
    const auto maybe = [at](const S* values) GDPO_INLINE_LAMBDA {
      if (values) prefetch(values, at);
    };
    maybe(row.ref_logp);
    if constexpr (!Shape::plain) maybe(row.advantages), maybe(row.weights), maybe(row.kl_weights);
    prefetch<Cache::First, true>(gradient, at);
  }
  /// Prefetches what the loop over the ratios will read two blocks later.
  ///
  /// Without a reference model these two arrays are most of what is read, and they wait in the
  /// second-level cache: on Zen 4 the loss from memory then takes 0.75 of its time with a reference
  /// model, and 0.85 if they wait in the first-level cache (`gdpo_gates --only K1`, AVX-512). With
  /// a reference model the first-level cache is at least as good.
  template <class Shape>
  GDPO_HOST_INLINE static void prefetch_for_ratios(const TokenRow<S>& row, index_t at) {
    constexpr Cache to = Shape::with_kl ? Cache::First : Cache::Second;
    prefetch<to>(row.logp, at);
    if (Shape::plain || row.old_logp) prefetch<to>(row.old_logp, at);
  }
  /// Prefetches element `at`, which may lie beyond the array, since a prefetch reads nothing. The
  /// address is computed as an integer, because such pointer arithmetic would be undefined.
  template <Cache To = Cache::First, bool Write = false>
  static GDPO_HOST_INLINE void prefetch(const S* values, index_t at) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(values) + static_cast<std::uintptr_t>(at) * sizeof(S);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nothing is read through it
    detail::prefetch<To, Write>(reinterpret_cast<const void*>(address));
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
