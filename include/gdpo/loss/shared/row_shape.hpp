#pragma once
// The shapes of rows that loops over tokens are compiled for: General, or Plain rows, which most
// batches have.
#include <gdpo/loss/kl.hpp>
#include <gdpo/tokens/token_row.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a loop over the tokens of a row knows about the row when it is compiled.
///   General      nothing
///   Plain        The row has one advantage and old_logp. Of the other arrays it may only have a
///                mask (`Masked`) and, for the KL terms, ref_logp. The KL terms are all off (WithKl
///                is false), or all on, against the reference, without clamps and without factors
///                of their own.
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
  bool plain = !any_weighed(kls), any_kl = false, all_kl = true;
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

}  // namespace detail
GDPO_END_NAMESPACE
