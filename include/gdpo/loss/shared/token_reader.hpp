#pragma once
// Reads the tokens of a row into lanes, and prefetches what the next loop will read.
#include <gdpo/loss/shared/row_shape.hpp>
#include <gdpo/loss/term.hpp>
#include <gdpo/tokens/token_span.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What TokenTerms takes as `from` on the host. It reads the arrays of a row from token `first` on,
/// for as many tokens as V holds.
template <class V, class S>
struct RowTokens {
  const TokenRow<S>& row;
  index_t first;
#define GDPO_X(in_batch, in_row, ...)                          \
  GDPO_INLINE bool has_##in_row() const { return row.in_row; } \
  GDPO_INLINE V in_row() const { return math::Lanes<V>::load(row.in_row + first); }
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
};

/// Reads the tokens of a row into lanes V.
template <class V, class S>
struct TokenReader {
  using L = math::Lanes<V>;
  using Mask = mask_t<V>;

  GDPO_INLINE static Mask mask_of(const TokenRow<S>& row, index_t token) {
    return row.mask ? L::load_mask(row.mask + token) : L::all_lanes();
  }
  template <class Shape>
  GDPO_INLINE static Mask mask_in(const TokenRow<S>& row, index_t token) {
    if constexpr (!Shape::masked) {
      return L::all_lanes();
    } else if constexpr (Shape::plain) {
      return L::load_mask(row.mask + token);
    } else {
      return mask_of(row, token);
    }
  }

  /// Reads the tokens token, token + 1, ... into x. Where a token is not valid, token_log_ratio is
  /// 0 and the other members are whatever the arrays hold. (The loads are not masked, because some
  /// processors do not prefetch for masked loads.) `advantage` and `row_advantage` belong to the
  /// row.
  template <class Shape>
  GDPO_INLINE static void load(Token<V>& x, const TokenRow<S>& row, index_t token,
                               const Mask& valid, const V& advantage, const V& row_advantage) {
    const V zero = math::constant<V>(0.0);
    const auto read = [&](const S* values) GDPO_INLINE_LAMBDA { return L::load(values + token); };
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
                                                  index_t token) {
    const auto maybe = [token](const S* values) GDPO_INLINE_LAMBDA {
      if (values) prefetch(values, token);
    };
    maybe(row.ref_logp);
    if constexpr (!Shape::plain) maybe(row.advantages), maybe(row.weights), maybe(row.kl_weights);
    prefetch<Cache::First, true>(gradient, token);
  }
  /// Prefetches what the loop over the ratios will read two blocks later.
  ///
  /// Without a reference model these two arrays are most of what is read, and they wait in the
  /// second-level cache: on Zen 4 the loss from memory then takes 0.75 of its time with a reference
  /// model, and 0.85 if they wait in the first-level cache (`gdpo_gates --only K1`, AVX-512). With
  /// a reference model the first-level cache is at least as good.
  template <class Shape>
  GDPO_HOST_INLINE static void prefetch_for_ratios(const TokenRow<S>& row, index_t token) {
    constexpr Cache level = Shape::with_kl ? Cache::First : Cache::Second;
    prefetch<level>(row.logp, token);
    if (Shape::plain || row.old_logp) prefetch<level>(row.old_logp, token);
  }
  /// Prefetches element `token`, which may lie beyond the array, since a prefetch reads nothing.
  /// The address is computed as an integer, because such pointer arithmetic would be undefined.
  template <Cache To = Cache::First, bool Write = false>
  static GDPO_HOST_INLINE void prefetch(const S* values, index_t token) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(values) + static_cast<std::uintptr_t>(token) * sizeof(S);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nothing is read through it
    detail::prefetch<To, Write>(reinterpret_cast<const void*>(address));
  }
};

}  // namespace detail
GDPO_END_NAMESPACE
