#pragma once
// Fills in the GroupReport of a call.
#include <algorithm>
#include <gdpo/advantage/engine/evaluate.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Calls f(k, x_k - mean) for those of the numbers x_k = x[k * stride] that `counts` selects. The
/// differences of equal numbers are exactly 0.
template <class Order, class Counts, class F>
void for_each_centered(const double* x, index_t stride, index_t members, const Counts& counts,
                       const F& f) {
  double least = math::infinity;
  index_t n = 0;
  for (index_t k = 0; k < members; ++k) {
    if (counts(k)) least = (math::min)(least, x[k * stride]), ++n;
  }
  typename Order::template Sum<double> sum{};
  for (index_t k = 0; k < members; ++k) {
    if (counts(k)) sum.add(x[k * stride] - least);
  }
  const double mean = n > 0 ? sum.value() / static_cast<double>(n) : 0.0;
  for (index_t k = 0; k < members; ++k) {
    if (counts(k)) f(k, (x[k * stride] - least) - mean);
  }
}

/// Fills in `pairs`: how the rewards vary together within groups.
template <class T, class Groups, class Reader>
void fill_pairs(const RewardBatch<T, Groups>& batch, const Reader& reader, EstimatorScratch& work,
                GroupReport& r) {
  using Order = typename Groups::Order;
  using Sum = typename Order::template Sum<double>;
  const index_t rewards = batch.rewards.extent[1], rows = batch.rewards.extent[0];
  r.pairs.assign(pair_count(as_size(rewards)), RewardPair{});
  if (rewards < 2) return;
  // (C, N) the rewards, in the order of the groups; of a group in which all are finite, about their
  // means. NaN: the row is not used, or has no finite value.
  work.parts.resize(as_size(rewards * rows));
  work.whole_groups.assign(as_size(r.groups), 1);
  for (index_t g = 0, first = 0; g < r.groups; first += batch.groups.length(g), ++g) {
    const index_t members = batch.groups.length(g);
    for (index_t c = 0; c < rewards; ++c) {
      double* x = work.parts.data() + c * rows + first;
      for (index_t k = 0; k < members; ++k) {
        const index_t i = batch.groups.row(g, k);
        const bool unused = batch.valid && batch.valid(i) == 0;
        x[k] = unused ? math::nan() : reader.gated(i, c);
        if (math::not_finite(x[k])) x[k] = math::nan(), work.whole_groups[as_size(g)] = 0;
      }
    }
    for (index_t c = 0; work.whole_groups[as_size(g)] && c < rewards; ++c) {
      double* x = work.parts.data() + c * rows + first;
      for_each_centered<Order>(
          x, 1, members, [](index_t) { return true; }, [&](index_t k, double d) { x[k] = d; });
    }
  }
  for (index_t a = 0, p = 0; a < rewards; ++a) {
    for (index_t b = a + 1; b < rewards; ++b, ++p) {
      Sum products{}, first_squares{}, second_squares{};
      const auto add = [&](double d, double e) {
        products.add(math::mul(d, e));
        first_squares.add(math::mul(d, d)), second_squares.add(math::mul(e, e));
      };
      for (index_t g = 0, first = 0; g < r.groups; first += batch.groups.length(g), ++g) {
        const index_t members = batch.groups.length(g);
        const double *x = work.parts.data() + a * rows + first,
                     *y = work.parts.data() + b * rows + first;
        if (work.whole_groups[as_size(g)]) {
          for (index_t k = 0; k < members; ++k) add(x[k], y[k]);
          continue;
        }
        const auto both = [&](index_t k) { return !math::is_nan(x[k]) && !math::is_nan(y[k]); };
        work.raw.resize(as_size(members));
        for_each_centered<Order>(x, 1, members, both,
                                 [&](index_t k, double d) { work.raw[as_size(k)] = d; });
        for_each_centered<Order>(y, 1, members, both,
                                 [&](index_t k, double d) { add(work.raw[as_size(k)], d); });
      }
      r.pairs[as_size(p)] = {products.value(), first_squares.value(), second_squares.value()};
    }
  }
}

/// Fills in what each reward explains of the combined values.
template <class T, class Groups, class Evaluation>
void fill_explained(const RewardBatch<T, Groups>& batch, Evaluation& evaluation,
                    EstimatorScratch& work, GroupReport& r) {
  using Order = typename Groups::Order;
  using Sum = typename Order::template Sum<double>;
  const auto& reader = evaluation.reader();
  const index_t used = static_cast<index_t>(work.used_rewards.size());
  Sum within{};
  const index_t longest = evaluation.units().longest(batch.groups);
  if (const std::size_t room = as_size(longest * (used + 2)); work.parts.size() < room)
    work.parts.resize(room);
  work.explained.assign(as_size(used * r.groups), 0.0);
  for (index_t g = 0; used > 0 && g < r.groups; ++g) {
    const index_t members = batch.groups.length(g);
    const auto row = [&](index_t k) { return batch.groups.row(g, k); };
    const auto counts = [&](index_t k) { return work.state(row(k)) == RowState::Counted; };
    // The combined values, and then their parts, from the second on.
    const index_t stride = used + 2;
    double *s = work.parts.data(), *total = s + 1, *part = s + 2;
    std::fill_n(s, members * stride, 0.0);
    // Of a standardized reward of which no member lacks a value the differences are those of the
    // reward times one factor, which the engine has kept. Others are asked from it.
    bool by_factor = Evaluation::one_factor && !Evaluation::sums_first;
    for (index_t k = 0; k < members; ++k) {
      const index_t i = row(k);
      s[k * stride] = total[k * stride] = work.row_sums[as_size(i)];
      if (!counts(k)) continue;
      double magnitude;
      if (Evaluation::sums_first) total[k * stride] = reader.weighted_sum(i, magnitude);
      for (index_t j = 0; j < used; ++j) {
        const double x = reader(i, work.used_rewards[as_size(j)]);
        by_factor = by_factor && !math::not_finite(x);
        part[k * stride + j] = reader.skips() && math::is_nan(x) ? 0.0 : x;
        if (used == 1) part[k * stride] = total[k * stride];  // a single reward explains all
      }
    }
    if constexpr (!Evaluation::sums_first) {
      if (!by_factor && used > 1) {
        for (index_t k = 0; k < members; ++k) std::fill_n(part + k * stride, used, 0.0);
        evaluation.observe(g, [&](const ObservedTerm& term) {
          part[term.member * stride + term.column] = term.term;
        });
      }
    }
    Sum squares{}, spread{};
    for_each_centered<Order>(s, stride, members, counts,
                             [&](index_t, double d) { squares.add(math::mul(d, d)); });
    // From here on the totals are about their mean.
    for_each_centered<Order>(total, stride, members, counts, [&](index_t k, double d) {
      spread.add(math::mul(d, d));
      s[k * stride] = d;
    });
    const double q = squares.value(), variance = spread.value();
    if (!(q > 0 && variance > 0) || math::not_finite(q) || math::not_finite(variance)) continue;
    if (r.degenerate[as_size(g)]) continue;
    within.add(q);
    for (index_t j = 0; j < used; ++j) {
      Sum products{};
      for_each_centered<Order>(part + j, stride, members, counts, [&](index_t k, double d) {
        products.add(math::mul(d, s[k * stride]));
      });
      const double factor = used == 1                ? 1.0
                            : Evaluation::sums_first ? work.reward_weights[as_size(j)]
                            : by_factor              ? work.factors[as_size(g * used + j)]
                                                     : 1.0;
      work.explained[as_size(j * r.groups + g)] =
          math::mul(q, math::mul(factor, products.value()) / variance);
    }
  }
  for (index_t j = 0; j < used; ++j) {
    Sum sum{};
    for (index_t g = 0; g < r.groups; ++g) sum.add(work.explained[as_size(j * r.groups + g)]);
    r.rewards[as_size(work.used_rewards[as_size(j)])].explained_squares = sum.value();
  }
  r.within_squares = within.value();
}

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

  r.rewards.assign(as_size(reward_count), RewardReport{});
  r.reward_degenerate.resize(as_size(groups * reward_count));
  r.reward_group_std.resize(as_size(groups * reward_count));
  for (index_t c = 0; c < reward_count; ++c) {
    bool read = false;
    for (const index_t used : work.used_rewards) read = read || used == c;
    RewardReport& reward = r.rewards[as_size(c)];
    work.raw.clear();
    for (index_t g = 0; g < groups; ++g) {
      double low = math::infinity, high = -math::infinity;
      const std::size_t offset = work.raw.size();
      for (index_t k = 0; k < batch.groups.length(g); ++k) {
        const index_t i = batch.groups.row(g, k);
        if (unused(i)) continue;
        const double value = reader.gated(i, c), adjusted_value = reader.after_gate(value, i, c);
        if (!math::is_nan(adjusted_value))
          low = (math::min)(low, adjusted_value), high = (math::max)(high, adjusted_value);
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

  fill_pairs(batch, reader, work, r);
  fill_explained(batch, evaluation, work, r);

  r.group_std.resize(as_size(groups));
  r.group_squares.assign(as_size(groups), 0.0);
  work.centered.clear();  // collects the reward sums of the batch
  r.flat_rows = 0;
  for (index_t g = 0; g < groups; ++g) {
    const index_t members = batch.groups.length(g);
    r.smallest_group = members < r.smallest_group ? members : r.smallest_group;
    r.largest_group = members > r.largest_group ? members : r.largest_group;
    work.raw.clear();
    typename Order::template Sum<double> squares{};
    for (index_t k = 0; k < members; ++k) {
      const index_t i = batch.groups.row(g, k);
      double magnitude;
      if (state(i) != RowState::Counted && state(i) != RowState::Lone) continue;
      work.raw.push_back(reader.weighted_sum(i, magnitude));
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
  derive(r);
}

}  // namespace detail
GDPO_END_NAMESPACE
