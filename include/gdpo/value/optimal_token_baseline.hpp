#pragma once
// OptimalTokenBaseline: for each token position of a group the baseline of the least variance.
#include <gdpo/value/engine/baseline_groups.hpp>

GDPO_BEGIN_NAMESPACE

/// Computes the advantages of all tokens of a batch: returns minus the optimal token baseline.
///
///     // 1. The rewards to go of all tokens.
///     const gdpo::TokenAdvantage<gdpo::returns::RewardToGo> to_go;
///     gdpo::advantages_and_returns_into(gdpo::simd, rewards, to_go, returns, {}, memory);
///     // 2. Less their baseline.
///     gdpo::TokenBaselineBatch<float> batch;
///     batch.returns = gdpo::view(returns, rows, width);
///     batch.logp = gdpo::view(old_logp, rows, width);
///     batch.sum_pi_squared = gdpo::view(sum_pi_squared, rows, width);
///     batch.mask = gdpo::view(mask, rows, width);
///     gdpo::TokenBaselineWorkspace<float> workspace;
///     gdpo::optimal_token_baseline_into(gdpo::simd, batch, gdpo::groups_of(8),
///                                       gdpo::verl::optimal_token_baseline,
///                                       gdpo::view(advantages, rows, width), workspace);
///
/// - `exec`: seq, simd or parallel(executor); all give the same bits.
/// - `groups`: groups_of, by_offsets or by_id, of the rows.
/// - `settings`: an OptimalTokenBaseline.
/// - `advantages`: required, of the shape of the batch and with elements of type S.
/// - `workspace`: kept by the caller. After a first call of the same shapes nothing is allocated.
///
/// The output is written at every position, exactly 0 where the mask is 0. It may be the array of
/// the returns itself, with the same strides and elements of type S. Other overlaps are not
/// allowed.
///
/// **Arithmetic.** Everything is computed in double and rounded once to S. The W of a row are
/// summed from its first token on. The two sums of a position run over the rows of the group in the
/// order of the grouping: one addition after the other for groups of consecutive rows, compensated
/// (TwoSum) for by_id, whose result therefore does not depend on the order of the rows. e^logp is
/// that of math::exp_parts: one pattern for all builds with fma, a second for those without.
///
/// **Data.** What the mask hides changes nothing. A NaN or an infinity in a return makes the
/// advantages of its group at its place NaN or infinite; one in another array does so at its place
/// and at those of the later tokens of its row. Other places and groups are as without it. A row
/// without a valid token gives zeros.
///
/// **Errors.** invalid_input, before anything is written: settings out of range, groups or shapes
/// that do not fit, a missing array.
template <class Exec, class S, class Groups, std::enable_if_t<!detail::is_device_v<Exec>, int> = 0>
void optimal_token_baseline_into(const Exec& exec, const TokenBaselineBatch<S>& batch,
                                 const Groups& groups, const OptimalTokenBaseline& settings,
                                 const std::common_type_t<TokenOut<S>>& advantages,
                                 TokenBaselineWorkspace<S>& workspace) {
  static_assert(detail::needs_exec<Exec>());
  static_assert(detail::is_host_grouping_v<Groups>,
                "the groups are groups_of, by_offsets or by_id");
  const detail::BaselineGroups<S, Groups> call("gdpo::optimal_token_baseline_into", batch, groups,
                                               settings, advantages);
  call(exec, workspace);
}

/// The same on one thread in vector lanes (simd), with a workspace of its own, which is allocated
/// in each call.
template <class S, class Groups>
void optimal_token_baseline_into(const TokenBaselineBatch<S>& batch, const Groups& groups,
                                 const OptimalTokenBaseline& settings,
                                 const std::common_type_t<TokenOut<S>>& advantages) {
  TokenBaselineWorkspace<S> workspace;
  optimal_token_baseline_into(simd, batch, groups, settings, advantages, workspace);
}

GDPO_END_NAMESPACE
