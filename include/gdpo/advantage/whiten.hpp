#pragma once
// whiten_into: a second normalization over the tokens of a mask.
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/stats/masked.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// whiten_into() with the moments that moments(function) gives after checks of its own.
template <class T, int Rank, class M, class R, class MomentsOf>
void whiten(const View<T, Rank>& values, const View<M, Rank>& mask, const Renorm& renorm,
            const View<R, Rank>& out, const MomentsOf& moments) {
  constexpr const char* function = "gdpo::whiten_into";
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, double>,
                "values are whitened into float or double");
  check_fields(function, "renorm", renorm);
  check_over_tokens(function, renorm, false);
  check_shape(function, "out", out, values, "values");
  contract::check_apart(function, "out", Rank, out.extent, out.stride);
  const Affine affine = renorm({moments(function), false});
  const View<T, 2> x = as_table(values);
  const View<M, 2> m = as_table(mask);
  const View<R, 2> y = as_table(out);
  for (index_t i = 0; i < x.extent[0]; ++i) {
    for (index_t j = 0; j < x.extent[1]; ++j)
      y(i, j) = counts(m, i, j) ? static_cast<R>(affine(load(x(i, j)))) : R(0);
  }
}

}  // namespace detail

/// Whitens the values that a mask selects: a second normalization over tokens.
/// It is meant for values that differ from token to token, such as advantages after
/// `penalty::Token`. Where all tokens of a row share a value, RenormOver::Tokens does the same
/// without an array of tokens.
///
///     out = (x - mean) multiplier(v)  where the mask is not 0,  exactly 0 elsewhere
///
/// mean, v and multiplier are those of `renorm` (advantage/renorm.hpp), which must be over tokens,
/// RenormOver::Tokens; statistics are those of stats/masked.hpp. Equal values give exactly 0 if
/// count_eps is 0 and keep_mean is off. A NaN that counts makes every value that counts NaN.
///
/// values, mask and out: views of rank 1 or 2, of one shape and with any strides; a null mask
/// selects everything. out is float or double and may be `values` itself. Other shapes and
/// settings throw invalid_input before anything is written. Reads the values twice and allocates
/// nothing.
///
/// Trainers' settings: verl::masked_whiten, nvlabs::masked_whiten, openrlhf::batch_norm,
/// nemo_rl::batch_norm, slime::whiten, areal::masked_normalization; by name runtime::whitening().
template <class T, int Rank, class M = const unsigned char, class R>
void whiten_into(View<T, Rank> values, View<M, Rank> mask, const Renorm& renorm,
                 View<R, Rank> out) {
  detail::whiten(values, mask, renorm, out, [&](const char* function) {
    return detail::counted_moments(function, values, mask);
  });
}

/// The same with moments from elsewhere: those of the tokens of all micro-batches and ranks.
///
///     const gdpo::Moments mine = gdpo::masked_moments(advantages, mask);
///     gdpo::whiten_into(advantages, mask, renorm, gdpo::dist::all_merge(comm, mine), advantages);
///
/// Of one process's values alone, masked_moments gives the bits of the call without moments; merged
/// ones agree with those of the whole batch within 2^-44 relative (merge(), stats/moments.hpp), and
/// equal values give exactly 0 here too.
template <class T, int Rank, class M = const unsigned char, class R>
void whiten_into(View<T, Rank> values, View<M, Rank> mask, const Renorm& renorm,
                 const Moments& moments, View<R, Rank> out) {
  detail::whiten(values, mask, renorm, out, [&](const char* function) {
    contract::check_array(function, "values", values);
    if (mask) detail::check_shape(function, "mask", mask, values, "values");
    return moments;
  });
}

GDPO_END_NAMESPACE
