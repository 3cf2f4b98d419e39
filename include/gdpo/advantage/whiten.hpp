#pragma once
// whiten_into: a second normalization over the tokens of a mask.
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/stats/masked.hpp>

GDPO_BEGIN_NAMESPACE

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
/// Trainers' settings: verl::masked_whiten, nvlabs::masked_whiten; for NeMo-RL and OpenRLHF
/// renorm::token_weighted_batch(0, 1e-8, EpsAt::ClampVar).
template <class T, int Rank, class M = const unsigned char, class R>
void whiten_into(View<T, Rank> values, View<M, Rank> mask, const Renorm& renorm,
                 View<R, Rank> out) {
  constexpr const char* function = "gdpo::whiten_into";
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, double>,
                "values are whitened into float or double");
  detail::check_fields(function, "renorm", renorm);
  detail::check_over_tokens(function, renorm, false);
  detail::check_shape(function, "out", out, values, "values");
  contract::check_apart(function, "out", Rank, out.extent, out.stride);
  const Affine affine = renorm({detail::counted_moments(function, values, mask), false});
  const View<T, 2> x = detail::as_table(values);
  const View<M, 2> m = detail::as_table(mask);
  const View<R, 2> y = detail::as_table(out);
  for (index_t i = 0; i < x.extent[0]; ++i) {
    for (index_t j = 0; j < x.extent[1]; ++j) {
      y(i, j) = detail::counts(m, i, j) ? static_cast<R>(affine(load(x(i, j)))) : R(0);
    }
  }
}

GDPO_END_NAMESPACE
