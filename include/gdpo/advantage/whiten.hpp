#pragma once
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/stats/masked.hpp>

GDPO_BEGIN_NAMESPACE

/// The second normalisation over tokens, of values that differ from token to token (advantages after a token penalty):
/// out = (x - mean) multiplier(v) with the formula and the settings of renorm::TokenWeightedBatch, exactly 0 where the
/// mask is 0. Equal values give exactly 0 (with count_eps 0 and without keep_mean). out: the shape of values, float or
/// double; it may be `values` itself. verl::masked_whiten, nvlabs::masked_whiten; NeMo-RL, OpenRLHF:
/// {0, 1e-8, EpsAt::ClampVar}.
template <class T, int Rank, class M = const unsigned char, class R>
void whiten_into(View<T, Rank> values, View<M, Rank> mask, const renorm::TokenWeightedBatch& renorm,
                 View<R, Rank> out) {
  constexpr const char* function = "gdpo::whiten_into";
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, double>,
                "values are whitened into float or double");
  renorm.check(function);
  detail::check_shape(function, "out", out, values, "values");
  const detail::Affine affine =
      detail::affine_of(renorm, detail::counted_moments(function, values, mask), false);
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
