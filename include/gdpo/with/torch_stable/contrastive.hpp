#pragma once
// The operators of contrastive losses, which are over groups of rows, and their counts.
#include <algorithm>
#include <gdpo/with/torch_stable/contrastive_line.hpp>
#include <gdpo/with/torch_stable/groups.hpp>
#include <gdpo/with/torch_stable/loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// check_groups, and of the size that it is one.
inline void check_contrastive_groups(const Call& call, GDPO_TORCH_GROUPS_PARAMETERS) {
  check_groups(call, GDPO_TORCH_GROUPS_NAMES);
  if (group_size < 0)
    call.fail("group_size", contract::text(static_cast<index_t>(group_size)), "at least 1");
}

template <class S>
std::tuple<Tensor, Tensor, Tensor> contrastive_loss_of(const char* function,
                                                       const std::string& line,
                                                       const Tensor& counts, bool with_gradient,
                                                       GDPO_TORCH_PARAMETERS,
                                                       GDPO_TORCH_GROUPS_PARAMETERS) {
  const TokenBatch<S> batch = batch_of<S>(function, GDPO_TORCH_NAMES);
  const Normalizer normalizer = counts_of(function, counts);
  const NamedContrastive& configured =
      remembered(line, [](const std::string& text) { return configured_contrastive(text).value; });
  const Tensor gradient = new_gradient<S>(function, *logp, with_gradient);
  const TokenOut<S> out = with_gradient ? tokens_out<S>(gradient) : TokenOut<S>{};
  thread_local ContrastiveWorkspace<S> workspace;
  const LossResult result = with_groups(function, GDPO_TORCH_GROUPS_NAMES, [&](const auto& groups) {
    return configured(gdpo::parallel(Threads{}), batch, groups, normalizer, out, workspace);
  });
  Tensor loss = new_tensor(function, {}, scalar_type<S>);
  *static_cast<S*>(loss.mutable_data_ptr()) = static_cast<S>(result.loss);
  return {loss, gradient, numbers_of(result)};
}

}  // namespace detail

/// What an operator of this name declares: the arrays are those of a TokenBatch.
inline constexpr const char* contrastive_loss_schema =
    "contrastive_loss(str loss, Tensor counts, bool gradient, " GDPO_TORCH_SCHEMA
    ", " GDPO_TORCH_GROUPS_SCHEMA ") -> (Tensor, Tensor, Tensor)";
/// A ContrastiveLoss with its gradient and metrics (loss/contrastive.hpp).
///
/// `loss`: NAME [SETTING=VALUE ...], with "real" or "ms_swift::real" for the name. `counts`: (4)
/// float64, the counts of the step as `count_groups` returns them. One of `group_size` (more than
/// 0), `group_ids` (rows) and `group_offsets` (groups + 1) gives the groups. All other arguments,
/// the types of numbers and what it returns are as in policy_loss.
///
/// Errors: those of ContrastiveLoss, and `invalid_input` for tensors of other types, ranks or
/// devices.
inline std::tuple<Tensor, Tensor, Tensor> contrastive_loss(const std::string& loss,
                                                           const Tensor& counts, bool gradient,
                                                           GDPO_TORCH_PARAMETERS,
                                                           GDPO_TORCH_GROUPS_PARAMETERS) {
  constexpr const char* function = "gdpo::contrastive_loss";
  if (!logp) {
    contract::fail(function, "batch.logp", "no array", "the log-probs of the policy being trained");
  }
  detail::check_contrastive_groups(function, GDPO_TORCH_GROUPS_NAMES);
  const auto compute = logp->scalar_type() == ScalarType::Double
                           ? detail::contrastive_loss_of<double>
                           : detail::contrastive_loss_of<float>;
  return compute(function, loss, counts, gradient, GDPO_TORCH_NAMES, GDPO_TORCH_GROUPS_NAMES);
}

/// What an operator of this name declares.
inline constexpr const char* count_groups_schema =
    "count_groups(" GDPO_TORCH_SCHEMA ", " GDPO_TORCH_GROUPS_SCHEMA ") -> Tensor";
/// The counts of a batch as `count` returns them, with the number of its groups for `given`.
inline Tensor count_groups(GDPO_TORCH_PARAMETERS, GDPO_TORCH_GROUPS_PARAMETERS) {
  constexpr const char* function = "gdpo::count";
  detail::check_contrastive_groups(function, GDPO_TORCH_GROUPS_NAMES);
  const TokenBatch<double> batch = detail::batch_of<double>(function, GDPO_TORCH_NAMES);
  Tensor counts = detail::doubles({4});
  detail::write_counts(
      detail::with_groups(function, GDPO_TORCH_GROUPS_NAMES,
                          [&](const auto& groups) { return gdpo::count(batch, groups); }),
      detail::data_of(counts));
  return counts;
}

/// What an operator of this name declares.
inline constexpr const char* count_group_tokens_schema =
    "count_group_tokens(" GDPO_TORCH_SCHEMA ", " GDPO_TORCH_GROUPS_SCHEMA ") -> Tensor";
/// The valid tokens of the group of each row, (B) float64 (tokens/count_groups.hpp).
inline Tensor count_group_tokens(GDPO_TORCH_PARAMETERS, GDPO_TORCH_GROUPS_PARAMETERS) {
  constexpr const char* function = "gdpo::count_group_tokens";
  detail::check_contrastive_groups(function, GDPO_TORCH_GROUPS_NAMES);
  const TokenBatch<double> batch = detail::batch_of<double>(function, GDPO_TORCH_NAMES);
  const std::vector<double> tokens = detail::with_groups(
      function, GDPO_TORCH_GROUPS_NAMES,
      [&](const auto& groups) { return gdpo::count_group_tokens(batch, groups); });
  Tensor column = detail::doubles({static_cast<std::int64_t>(tokens.size())});
  std::copy(tokens.begin(), tokens.end(), detail::data_of(column));
  return column;
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
