#pragma once
// The second normalization: over the batch, over the group, over tokens, or none.
#include <gdpo/advantage/multiplier.hpp>
#include <gdpo/stats/moments.hpp>

namespace gdpo {
/// What the second normalization runs over.
enum class RenormOver {
  None,   ///< Nothing: there is no second normalization.
  Batch,  ///< The rows of the batch.
  Group,  ///< The rows of each group.
  Tokens  ///< The rows of the batch, each counted once for each of its tokens.
};
/// The enumerators of RenormOver with their words.
GDPO_DATA_INLINE constexpr auto enumerators(RenormOver) {
  using E = Enumerator<RenormOver>;
  return std::array{E{"none", RenormOver::None}, E{"batch", RenormOver::Batch},
                    E{"group", RenormOver::Group}, E{"tokens", RenormOver::Tokens}};
}
}  // namespace gdpo

GDPO_BEGIN_NAMESPACE

/// What a renormalization is computed from.
struct RenormArgs {
  /// Of the values that count. Of centered ones only weight, mean and m2 are defined.
  Moments moments;
  bool centered = false;  ///< Their mean is 0 by construction and need not be subtracted.
};

/// What a renormalization gives: a = (s - shift) multiplier + back. Where s == shift it is exactly
/// `back`, whatever the multiplier. V: double or lanes.
struct Affine {
  double shift = 0;       ///< Subtracted first.
  double multiplier = 1;  ///< Multiplies what is left.
  double back = 0;        ///< Added at the end.
  /// The advantage for the combined value s.
  template <class V>
  GDPO_INLINE V operator()(const V& s) const {
    using math::constant, math::is_zero, math::mul, math::select;
    const V zero = constant<V>(0.0), d = s - constant<V>(shift);
    return select(is_zero(d), zero, mul(d, constant<V>(multiplier))) + constant<V>(back);
  }
};

/// The second normalization: from the combined values s_i to the advantages a_i.
///
///     a_i  = (s_i - mean) multiplier(v)          multiplier: advantage/multiplier.hpp
///     mean = sum s / (n + count_eps)
///     v    = sum (s - mean)^2 / (n + count_eps) * n / (n - ddof)
///
/// The sums run over n rows: those of the batch, those of a group, or those of the batch with
/// each row counted once per token. Excluded and unused rows enter no sum; excluded rows keep 0.
///
///     RenormOver::None    a_i = s_i                 GRPO, Dr.GRPO, RLOO
///     RenormOver::Batch   over all rows             GDPO (arXiv 2601.05242), eq. 6; TRL, NVlabs'
///                                                   TRL fork, ms-swift, NeMo-RL
///     RenormOver::Group   over the rows of a group  some descriptions of GDPO
///     RenormOver::Tokens  over all tokens           masked_whiten of verl and NVlabs' verl fork
///
/// Over the batch, with a single group in it, it cannot tell groups apart; GroupReport::one_group
/// says so. Over each group it undoes what GDPO gains over GRPO (presets/per_group.hpp). Over
/// tokens row i counts RewardBatch::tokens(i) times, and n is the number of tokens.
///
/// Over rows the mean is not subtracted where it is 0 by construction: the baseline has zero_sum
/// (Mean, LeaveOneOut), each group has one multiplier, and no group is a raw singleton
/// (`Singleton::Raw`). The step is then a pure rescale, so that 0 stays exactly 0. Over tokens the
/// mean is always subtracted: it is not 0 where lengths differ, and a degenerate group then gets a
/// constant that is not 0.
///
/// The functions of namespace renorm make one of each kind. A renormalization of your own is a type
/// with `RenormOver over` and `Affine operator()(const RenormArgs&) const` (GDPO_DEVICE in front,
/// if it is to run on a GPU as well). It may have settings (core/fields.hpp).
struct Renorm {
  RenormOver over = RenormOver::None;  ///< What it runs over. With None, nothing else is read.
  int ddof = 1;    ///< Degrees of freedom taken off n, at least 0: 1 sample std, 0 population std.
  double eps = 0;  ///< At least 0.
  EpsAt eps_at = EpsAt::Std;  ///< Where eps stands.
  double count_eps = 0;       ///< Added to the count that sums are divided by, at least 0.
  bool keep_mean = false;     ///< Scale about the mean and add it back (verl, shift_mean=False).

  /// The settings (core/fields.hpp). Without a renormalization there is only `over`.
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("over", s.over, "what the second normalization runs over");
    if (s.over == RenormOver::None) return;
    field("ddof", s.ddof, at_least(0).with_note("0: population"), "degrees of freedom taken off n");
    field("eps", s.eps, at_least(0), "added where eps_at says");
    field("eps_at", s.eps_at, "where eps stands");
    field("count_eps", s.count_eps, at_least(0), "added to the count that sums are divided by");
    field("keep_mean", s.keep_mean, "scale about the mean and add it back");
  }

  /// The renormalization of a set of values with these moments.
  GDPO_DEVICE Affine operator()(const RenormArgs& a) const {
    const Moments& m = a.moments;
    if (!(m.weight + count_eps > 0)) return {0, 0, 0};
    const detail::Spread spread = detail::spread_of(m, ddof, count_eps);
    if (math::is_nan(spread.variance)) return {math::nan(), math::nan(), 0};
    const double k = multiplier(eps, eps_at, spread.variance, spread.known ? 1 : 0);
    if (a.centered) return {0, k, 0};
    return {spread.mean, k, keep_mean ? spread.mean : 0.0};
  }
};

/// One Renorm of each kind.
namespace renorm {

/// No second normalization: the combined values are the advantages.
constexpr Renorm none() { return {}; }
/// Over all rows of the batch: by their sample std, without eps.
constexpr Renorm batch(int ddof = 1, double eps = 0, EpsAt eps_at = EpsAt::Std,
                       double count_eps = 0, bool keep_mean = false) {
  return {RenormOver::Batch, ddof, eps, eps_at, count_eps, keep_mean};
}
/// Over the rows of each group.
constexpr Renorm per_group(int ddof = 1, double eps = 0, EpsAt eps_at = EpsAt::Std,
                           double count_eps = 0, bool keep_mean = false) {
  return {RenormOver::Group, ddof, eps, eps_at, count_eps, keep_mean};
}
/// Over the tokens of the batch: by sqrt(variance + 1e-8), as verl does.
constexpr Renorm token_weighted_batch(int ddof = 1, double eps = 1e-8, EpsAt eps_at = EpsAt::Var,
                                      double count_eps = 0, bool keep_mean = false) {
  return {RenormOver::Tokens, ddof, eps, eps_at, count_eps, keep_mean};
}

}  // namespace renorm

/// Whether R is a renormalization.
template <class R, class = void>
constexpr bool is_renorm_v = false;
template <class R>
constexpr bool is_renorm_v<R, std::enable_if_t<std::is_same_v<decltype(R::over), RenormOver>>> =
    std::is_invocable_r_v<Affine, const R&, const RenormArgs&>;

namespace detail {

/// Whether a renormalization only rescales: its mean is 0 by construction. Weighted by tokens,
/// combined values that sum to 0 in each group need not have mean 0.
GDPO_INLINE constexpr bool rescales(RenormOver over, bool zero_sum) {
  return zero_sum && over != RenormOver::Tokens;
}

/// Throws for a renormalization of values of tokens that is not over tokens. may_be_none: it may
/// also be off. argument: what messages call its `over`.
template <class R>
void check_over_tokens(const char* function, const R& renorm, bool may_be_none,
                       const char* argument = "renorm.over") {
  if (renorm.over == RenormOver::Tokens) return;
  if (may_be_none && renorm.over == RenormOver::None) return;
  std::string given = contract::text(static_cast<index_t>(renorm.over));
  for (const auto& e : enumerators(renorm.over))
    if (e.value == renorm.over) given = e.word;
  contract::fail(function, argument, given,
                 may_be_none ? "tokens or none, because the values are those of tokens"
                             : "tokens, because the values are those of tokens");
}

}  // namespace detail
GDPO_END_NAMESPACE
