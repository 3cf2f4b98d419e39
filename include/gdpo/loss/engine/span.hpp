#pragma once
// A row on its way through the lanes: which arrays are read, by which loop, and the last tokens that do not fill the lanes.
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/loss/engine/rows.hpp>
#include <gdpo/loss/kl.hpp>
#include <gdpo/loss/term.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The cache that a prefetch fills, in the numbers of __builtin_prefetch: on x86 prefetcht0 and prefetcht1.
enum class Cache { First = 3, Second = 2 };

/// Asks for the line that holds *p, which will be read soon, and written where `Write`.
///
/// Never past both caches (0, prefetchnta): on Intel such a line is in the first cache alone, which has lost it before it is read, 1024 or
/// 2048 tokens later. `gdpo_gates --only K1` of builds that differ in the hints alone, 512 x 4096 tokens from memory, one thread:
///   Intel Cascade Lake   4.92 ns a token with prefetchnta, 2.19 with prefetcht0
///   AMD Zen 4            as fast with prefetcht0 as with prefetchnta
template <Cache To = Cache::First, bool Write = false>
GDPO_HOST_INLINE void prefetch(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, Write, static_cast<int>(To));
#else
  (void)p;
#endif
}

/// Arrays of a row with what is written beside them.
template <class S>
struct TokenSpan {
  TokenRow<S> row;
  S* gradient = nullptr;      ///< null in a pass that writes none
  double* scratch = nullptr;  ///< of Sequence levels, else null
  S* ratio = nullptr;         ///< of the tokens `origin` and on, between two passes
  index_t origin = 0;
};

/// The arrays of numbers of a row, for loops over them: unrolled, such a loop is compiled once for each array.
template <class S>
using ArrayOfRow = const S*
    TokenRow<S>::*;  // named, because g++ warns of the parentheses that nvcc writes around it
template <class S>
constexpr ArrayOfRow<S> arrays_of_row[token_arrays] = {
#define GDPO_X(in_batch, in_row, ...) &TokenRow<S>::in_row,
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
};

/// What the loop over the tokens of a row knows before it is compiled.
///   General      nothing
///   Plain        one advantage a row; old_logp; no array beyond those, ref_logp and the mask; all KL terms
///                off (WithKl false), or all on, against the reference and without clamps
struct General {
  using MaskedShape = General;
  using RatioShape = General;
  static constexpr bool plain = false, masked = true, with_kl = true;
};
template <bool Masked, bool WithKl>
struct Plain {
  using MaskedShape = Plain<true, WithKl>;
  using RatioShape =
      Plain<Masked, false>;  // the loop over the ratios reads nothing of the KL terms
  static constexpr bool plain = true, masked = Masked, with_kl = WithKl;
};

/// A KL term may say that it is plain, and give itself with constants in place of the members that are then known.
template <class Kl, class = void>
constexpr bool has_plain_v = false;
template <class Kl>
constexpr bool has_plain_v<Kl, std::void_t<decltype(std::declval<const Kl&>().is_plain())>> = true;

/// What a Plain shape says of an array; those that are needed stand in the log ratio.
enum class InPlain { Needed, WithKl, Absent };
GDPO_DEVICE constexpr bool is_in_plain(InPlain array, bool with_kl) {
  return array == InPlain::Needed || (array == InPlain::WithKl && with_kl);
}
/// The arrays of numbers that a row or a batch has.
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
/// Whether rows with these arrays are of a Plain shape, and which: the one rule for the host and for devices.
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

/// The last tokens of a span, fewer than the lanes, among masked ones. Not inlined: each loop over tokens would have a copy.
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

  /// Tokens at, at + 1, ...; where not valid, anything, but token_log_ratio is 0. (Loads are not masked: some processors'
  /// prefetching does not follow masked loads.) advantage, row_advantage: of the row.
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
    if constexpr (plain) {
      x.ref_logp = Shape::with_kl ? read(row.ref_logp) : zero;
    } else {
      x.ref_logp = maybe(row.ref_logp);
    }
    x.rollout_logp = plain ? zero : maybe(row.rollout_logp);
    x.teacher_logp = plain ? zero : maybe(row.teacher_logp);
    x.tag = plain ? zero : maybe(row.tags);
    x.advantage = plain || !row.advantages ? advantage : read(row.advantages);
    x.row_advantage = row_advantage;
    x.token_log_ratio =
        plain || row.old_logp ? math::select(valid, x.logp - x.old_logp, zero) : zero;
    x.log_ratio = x.ratio = zero;  // of the level
  }

  // Two loops that take turns leave a processor's own prefetching behind: each asks for what the other will read.

  /// For the loop over the terms of the same block, which comes next.
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
  /// For the loop over the ratios of the block after the next. Without a reference model these two arrays are most of what is read, and
  /// wait in the second cache: on Zen 4 the loss from memory then takes 0.75 of the time with one, 0.85 where they wait in the first
  /// (`gdpo_gates --only K1`, AVX-512). With one, the first is at least as good.
  template <class Shape>
  GDPO_HOST_INLINE static void prefetch_for_ratios(const TokenRow<S>& row, index_t at) {
    constexpr Cache to = Shape::with_kl ? Cache::First : Cache::Second;
    prefetch<to>(row.logp, at);
    if (Shape::plain || row.old_logp) prefetch<to>(row.old_logp, at);
  }
  /// May lie beyond the array: nothing is read.
  template <Cache To = Cache::First, bool Write = false>
  static GDPO_HOST_INLINE void prefetch(const S* values, index_t at) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(values) + static_cast<std::uintptr_t>(at) * sizeof(S);
    detail::prefetch<To, Write>(reinterpret_cast<const void*>(address));
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
