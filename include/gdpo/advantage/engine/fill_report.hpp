#pragma once
// Fills in the GroupReport of a call.
#include <algorithm>
#include <cstddef>
#include <gdpo/advantage/engine/evaluate.hpp>
#include <gdpo/advantage/engine/reward_parts.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Fills in the report, except `degenerate`, which the evaluation has filled in.
template <class T, class Groups, class Evaluation>
void fill_report(const RewardBatch<T, Groups>& batch, Evaluation& evaluation,
                 EstimatorScratch& work, GroupReport& r) {
  const auto& reader = evaluation.reader();
  using Order = typename Groups::Order;
  const index_t rows = batch.rewards.extent[0], reward_count = batch.rewards.extent[1],
                groups = batch.groups.count(rows);
  const auto state = [&](index_t i) { return static_cast<RowState>(work.row_state[as_size(i)]); };
  const auto unused = [&](index_t i) { return batch.valid && batch.valid(i) == 0; };
  const auto moments = [&](const std::vector<double>& x) {
    return moments_of(Order{}, x.data(), nullptr, static_cast<index_t>(x.size()));
  };
  r.rows = rows;
  r.groups = groups;
  r.smallest_group = r.largest_group = groups > 0 ? batch.groups.length(0) : 0;
  r.empty_groups = r.singletons = r.excluded_rewards = r.infinite_rewards = r.excluded_rows =
      r.unused_rows = 0;
  for (index_t i = 0; i < rows; ++i) {
    r.unused_rows += unused(i);
    r.excluded_rows += !unused(i) && state(i) == RowState::Excluded;
  }

  const RewardTable table{groups, evaluation.columns(), reward_count, rows};
  work.group_sizes.resize(as_size(groups + 1));
  work.group_sizes[0] = 0;
  for (index_t g = 0; g < groups; ++g)
    work.group_sizes[as_size(g + 1)] = work.group_sizes[as_size(g)] + batch.groups.length(g);
  r.rewards.assign(as_size(reward_count), RewardReport{});
  r.reward_degenerate.resize(as_size(groups * reward_count));
  r.reward_group_std.resize(as_size(groups * reward_count));
  for (index_t c = 0; c < reward_count; ++c) {
    bool read = false;
    for (const index_t used : work.used_rewards) read = read || used == c;
    RewardReport& reward = r.rewards[as_size(c)];
    work.raw.clear();
    double *next_given = table.given(work, c), *next_adjusted = table.adjusted(work, c);
    for (index_t g = 0; g < groups; ++g) {
      double low = math::infinity, high = -math::infinity;
      const std::size_t offset = work.raw.size();
      for (index_t k = 0; k < batch.groups.length(g); ++k) {
        const index_t i = batch.groups.row(g, k);
        double &given = *next_given++ = math::nan(), &adjusted = *next_adjusted++ = math::nan();
        if (unused(i)) continue;
        const double value = reader.gated(i, c), adjusted_value = reader.after_gate(value, i, c);
        if (!math::is_nan(adjusted_value))
          low = (math::min)(low, adjusted_value), high = (math::max)(high, adjusted_value);
        adjusted = adjusted_value;
        if (!math::is_inf(value)) given = value;
        r.infinite_rewards += read && math::is_inf(value);
        if (math::is_nan(reader.known(value))) {
          r.excluded_rewards += read;
          continue;
        }
        work.raw.push_back(value);
      }
      reward.known_groups += low <= high;
      reward.flat_groups += low == high;
      r.reward_degenerate[as_size(g * reward_count + c)] = !(low < high);
      r.reward_group_std[as_size(g * reward_count + c)] =
          std_or_nan(moments_of(Order{}, work.raw.data() + offset, nullptr,
                                static_cast<index_t>(work.raw.size() - offset)));
    }
    reward.values = moments(work.raw);
  }

  r.group_std.resize(as_size(groups));
  r.group_squares.assign(as_size(groups), 0.0);
  work.centered.clear();  // collects the reward sums of the batch
  r.flat_rows = 0;
  double *next_combined = table.combined(work), *next_total = table.total(work);
  for (index_t g = 0; g < groups; ++g) {
    const index_t members = batch.groups.length(g);
    r.smallest_group = members < r.smallest_group ? members : r.smallest_group;
    r.largest_group = members > r.largest_group ? members : r.largest_group;
    work.raw.clear();
    typename Order::template Sum<double> squares{};
    for (index_t k = 0; k < members; ++k) {
      const index_t i = batch.groups.row(g, k);
      double magnitude;
      double &combined = *next_combined++ = math::nan(), &total = *next_total++ = math::nan();
      if (state(i) != RowState::Counted && state(i) != RowState::Lone) continue;
      work.raw.push_back(reader.weighted_sum(i, magnitude));
      combined = work.row_sums[as_size(i)];
      total = Evaluation::sums_first ? work.raw.back() : combined;
      squares.add(math::mul(work.row_sums[as_size(i)], work.row_sums[as_size(i)]));
    }
    r.singletons += work.raw.size() == 1;
    r.empty_groups += work.raw.empty();
    const double std = members == 1 ? 0.0 : std_or_nan(moments(work.raw));
    r.group_std[as_size(g)] = std;
    r.group_squares[as_size(g)] = squares.value();
    if (!math::is_nan(std) && std <= 1e-8) r.flat_rows += members;
    for (const double sum : work.raw) work.centered.push_back(sum);
  }
  r.reward_sums = moments(work.centered);
  work.raw.clear();
  for (const double std : r.group_std) {
    if (!math::is_nan(std)) work.raw.push_back(std);
  }
  r.group_stds = moments(work.raw);
  work.raw.clear();
  for (index_t i = 0; i < rows; ++i) {
    if (state(i) == RowState::Counted || state(i) == RowState::Lone)
      work.raw.push_back(work.row_sums[as_size(i)]);
  }
  r.combined = moments(work.raw);
  fill_pairs(table, work, r);
  fill_explained(table, {Evaluation::sums_first, Evaluation::one_factor, reader.skips()},
                 {&evaluation,
                  [](void* context, index_t g, TermObserver observer) {
                    static_cast<Evaluation*>(context)->observe(g, observer);
                  }},
                 work, r);
  derive(r);
}

/// Fills in the report of a call, if it has one. A call whose report is nullptr by its type
/// compiles nothing of it.
template <class T, class Groups, class Evaluation>
void fill_report(const RewardBatch<T, Groups>& batch, Evaluation& evaluation,
                 EstimatorScratch& work, GroupReport* report) {
  if (report) fill_report(batch, evaluation, work, *report);
}
template <class T, class Groups, class Evaluation>
void fill_report(const RewardBatch<T, Groups>&, Evaluation&, EstimatorScratch&, std::nullptr_t) {}

}  // namespace detail
GDPO_END_NAMESPACE
