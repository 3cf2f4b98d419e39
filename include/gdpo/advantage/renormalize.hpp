#pragma once
#include <gdpo/advantage/evaluate.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Blocks of 8 of n values, in lanes; returns how many values that is. Not inlined: where the compiler sees that `out` is
/// shorter than a block it would warn of the stores it cannot reach.
template <class R>
GDPO_NOINLINE index_t write_blocks(const double* sums, index_t n, const Affine& affine, R* out) {
  const index_t whole = n - n % 8;
  for (index_t i = 0; i < whole; i += 8) {
    double values[8];
    affine(math::Pack<8>::load(sums + i)).store(values);
    for (int j = 0; j < 8; ++j) out[i + j] = static_cast<R>(values[j]);
  }
  return whole;
}

/// Final advantages into out. Excluded rows get 0.
template <class T, class Groups, class B, class S, class C, class Renorm, class R>
void renormalize(const RewardBatch<T, Groups>& batch, const GroupAdvantage<B, S, C, Renorm>& e, bool centred,
                 bool every_row, Workspace& work, View<R, 1> out) {
  using Order = typename Groups::Order;
  const index_t rows = batch.rewards.extent[0];
  const auto state = [&](index_t i) { return static_cast<RowState>(work.row_state[at(i)]); };
  const auto write = [&](index_t i, const Affine& affine) {
    out(i) = static_cast<R>(state(i) == RowState::Excluded ? 0.0 : affine(work.row_sums[at(i)]));
  };
  if constexpr (std::is_same_v<Renorm, renorm::None>) {
    for (index_t i = 0; i < rows; ++i) out(i) = static_cast<R>(work.row_sums[at(i)]);
  } else if constexpr (std::is_same_v<Renorm, renorm::PerGroup>) {
    for (index_t g = 0; g < batch.groups.count(rows); ++g) {
      const index_t members = batch.groups.length(g);
      index_t n = 0;
      for (index_t k = 0; k < members; ++k) {
        const index_t i = batch.groups.row(g, k);
        if (state(i) == RowState::Counted) work.values[at(n++)] = work.row_sums[at(i)];
      }
      const Moments m = group_stat(Order{}, work.values.data(), n);
      const Affine affine = affine_of(e.renorm, m, centred);
      for (index_t k = 0; k < members; ++k) write(batch.groups.row(g, k), affine);
    }
  } else {
    constexpr bool by_tokens = std::is_same_v<Renorm, renorm::TokenWeightedBatch>;
    if (by_tokens || !every_row) {
      for (index_t i = 0; i < rows; ++i) {
        work.row_weights[at(i)] = state(i) != RowState::Counted ? 0.0 : by_tokens ? batch.tokens(i) : 1.0;
      }
    }
    const double* weights = by_tokens || !every_row ? work.row_weights.data() : nullptr;
    const double* sums = work.row_sums.data();
    const Moments m = centred && !by_tokens ? moments_about(Order{}, sums, weights, rows, 0.0)
                                            : moments_of(Order{}, sums, weights, rows);
    const Affine affine = affine_of(e.renorm, m, centred && !by_tokens);
    index_t i = 0;
    if (every_row && out.stride[0] == 1) i = write_blocks(sums, rows, affine, out.data);
    for (; i < rows; ++i) write(i, affine);
  }
}

}  // namespace detail
GDPO_END_NAMESPACE
