#pragma once
// The counts of a batch whose rows form groups: the number of groups, and the tokens of each.
#include <gdpo/group/per_row.hpp>
#include <gdpo/tokens/count.hpp>

GDPO_BEGIN_NAMESPACE

/// The counts of one (micro-)batch as count(batch) gives them, with the number of its groups as
/// `given`, by which a ContrastiveLoss and aggregate::group_mean() are divided. The sum over the
/// micro-batches and ranks of a step has the groups of the step, as long as none of them cuts a
/// group.
///
/// groups: groups_of, by_offsets or by_id; empty groups count, and so do those without valid
/// tokens. Throws invalid_input for shapes that do not fit.
template <class S, class Groups, std::enable_if_t<detail::is_host_grouping_v<Groups>, int> = 0>
Normalizer count(const TokenBatch<S>& batch, const Groups& groups) {
  Normalizer n = count(batch);
  const auto rows = static_cast<index_t>(n.rows);
  groups.check("gdpo::count", rows);
  n.given = static_cast<double>(groups.count(rows));
  return n;
}

/// The column `TokenBatch::group_tokens` of one (micro-)batch, (B): for each row the number of
/// valid tokens in all rows of its group, which a mean over groups (aggregate::group_mean) divides
/// by.
///
///     const auto groups = gdpo::groups_of(8);  // the completions of a prompt
///     const std::vector<double> tokens = gdpo::count_group_tokens(batch, groups);
///     batch.group_tokens = gdpo::view(tokens);
///     loss.aggregate = gdpo::aggregate::group_mean();
///     loss(batch, gdpo::count(batch, groups), gradient);
///
/// Call it after prepare(), as count(). The batch must hold whole groups. Where the rows of a group
/// lie in several micro-batches or ranks, add the numbers that each of them counts for it, give the
/// sum to all of its rows, and count the group once in `Normalizer::given`.
///
/// groups: groups_of, by_offsets or by_id. No log-probs are needed, only a mask, or the offsets of
/// packed rows. The mask is read once. Throws invalid_input for shapes that do not fit.
template <class S, class Groups>
std::vector<double> count_group_tokens(const TokenBatch<S>& batch, const Groups& groups) {
  static_assert(detail::is_host_grouping_v<Groups>,
                "the groups of count_group_tokens are groups_of, by_offsets or by_id");
  constexpr const char* function = "gdpo::count_group_tokens";
  const detail::TokenLayout layout = detail::layout_of(function, batch, detail::NeedsLogp::No);
  groups.check(function, layout.rows);
  std::vector<double> of_rows(static_cast<std::size_t>(layout.rows));
  detail::for_each_count(batch, layout, [&of_rows](index_t row, index_t tokens) {
    of_rows[static_cast<std::size_t>(row)] = static_cast<double>(tokens);
  });
  std::vector<double> of_groups(static_cast<std::size_t>(groups.count(layout.rows)));
  for (index_t g = 0; g < groups.count(layout.rows); ++g) {
    for (index_t k = 0; k < groups.length(g); ++k) {
      of_groups[static_cast<std::size_t>(g)] += of_rows[static_cast<std::size_t>(groups.row(g, k))];
    }
  }
  return per_row(groups, layout.rows, of_groups);
}

GDPO_END_NAMESPACE
