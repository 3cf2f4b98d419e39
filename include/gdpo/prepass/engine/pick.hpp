#pragma once
// Picks of tokens by a number each, for pre-passes that decide from the whole batch.
#include <algorithm>
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Calls visit(weight) for each valid token, in the order of the batch. `weight` is its number in
/// PrepassArgs::weights, which the pre-pass may use for keys before it writes weights there.
template <class S, class Visit>
void visit_weights(const PrepassArgs<S>& args, const Visit& visit) {
  for (index_t i = 0; i < args.rows.size(); ++i) {
    const TokenRow<S> row = args.rows(i);
    double* weights = args.weights_of(i);
    for (index_t t = 0; t < row.length; ++t) {
      if (row.valid(t)) visit(weights[t]);
    }
  }
}

/// The keys of all valid tokens that are not NaN, in the order of the batch. They are in the
/// scratch of the rows until the next call of it.
template <class S>
std::vector<double>& gather_keys(const PrepassArgs<S>& args) {
  std::vector<double>& keys = args.rows.scratch();
  keys.clear();
  visit_weights(args, [&keys](double key) {
    if (!math::is_nan(key)) keys.push_back(key);
  });
  return keys;
}

/// Replaces keys by weights: the `count` valid tokens with the smallest keys get `picked`, all
/// other valid tokens `rest`. A token whose key is NaN is never picked. Of equal keys the first in
/// the batch is picked first. Takes time linear in the number of tokens on average.
template <class S>
void pick_smallest(const PrepassArgs<S>& args, std::size_t count, double picked, double rest) {
  std::vector<double>& keys = gather_keys(args);
  count = (std::min)(count, keys.size());
  double limit = -math::infinity;
  std::size_t at_limit = 0;  // how many of the tokens whose key is `limit` are picked
  if (count > 0) {
    const auto last = keys.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(keys.begin(), last, keys.end());
    limit = *last;
    at_limit = count - static_cast<std::size_t>(
                           std::count_if(keys.begin(), last, [=](double k) { return k < limit; }));
  }
  visit_weights(args, [&](double& key) {
    const bool below = !math::is_nan(key) && key < limit;
    const bool equal = !math::is_nan(key) && !(key < limit) && !(key > limit) && at_limit > 0;
    if (equal) --at_limit;
    key = below || equal ? picked : rest;
  });
}

}  // namespace detail
GDPO_END_NAMESPACE
