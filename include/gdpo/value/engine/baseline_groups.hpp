#pragma once
// How optimal_token_baseline_into runs the groups of a batch.
#include <gdpo/core/exec.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/tokens/token_layout.hpp>
#include <gdpo/tokens/token_row.hpp>
#include <gdpo/value/token_baseline.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {
template <class S, class Groups>
class BaselineGroups;

/// The sums of one place over the rows of a group.
struct BaselinePlaceSums {
  TwoSum<double> products, weights;  ///< Of G W and of W; the errors stay 0 in row order.
  double low = math::infinity, high = -math::infinity;  ///< The smallest and the largest G.
};
/// Memory of one worker.
template <class S>
struct TokenBaselineScratch {
  std::vector<S> arrays;                  ///< (4 arrays, longest row): those that are converted.
  std::vector<unsigned char> mask;        ///< (longest row)
  std::vector<double> weights;            ///< (longest row)
  std::vector<BaselinePlaceSums> places;  ///< (longest row)
};
}  // namespace detail

/// Scratch memory of optimal_token_baseline_into. After a first call, further calls of the same
/// shapes, storage types and executor allocate nothing. It serves one call at a time: threads that
/// call at the same time need one each.
template <class S>
class TokenBaselineWorkspace {
  template <class T, class Groups>
  friend class detail::BaselineGroups;
  std::vector<detail::TokenBaselineScratch<S>> workers;
};

namespace detail {

/// A call whose arguments the constructor checks. Groups do not depend on each other, so workers
/// take them one by one.
template <class S, class Groups>
class BaselineGroups {
 public:
  BaselineGroups(const char* function, const TokenBaselineBatch<S>& batch, const Groups& groups,
                 const OptimalTokenBaseline& settings, const TokenOut<S>& advantages)
      : batch_(batch), groups_(groups), settings_(settings), advantages_(advantages) {
    check_fields(function, "", settings);
    bool any = static_cast<bool>(batch.offsets);
    for_each_array([&](const char*, const auto& array) { any = any || array.rank() > 0; });
    if (!any) {
      contract::fail(function, "advantages", "no array",
                     "the array that the advantages are written to");
    }
    layout_ = layout_of_shapes(
        function, TokenShape{}, "advantages", batch.offsets,
        [&](const auto& f) { for_each_array(f); }, [](const auto&) {});
    for_each_array([&](const char* name, const auto& array) {
      if (array.rank() > 0) check_shape_of(function, name, array.shape(), layout_);
    });
    check_apart(function, "advantages", advantages);
    read_offsets(function, layout_);
    check_mask(function, "batch.mask", batch.mask, layout_.rows, layout_);
    groups.check(function, layout_.rows);
    if (layout_.tokens == 0) return;
    const auto need = [&](const char* name, bool there, const char* needed) {
      if (!there) contract::fail(function, name, "no array", needed);
    };
    need("advantages", static_cast<bool>(advantages),
         "the array that the advantages are written to");
    need("batch.returns", static_cast<bool>(batch.returns), "the return of each token");
    need("batch.logp", static_cast<bool>(batch.logp), "the log-prob of each token");
    need("batch.sum_pi_squared", static_cast<bool>(batch.sum_pi_squared),
         "the sum of the squared probabilities of the vocabulary at each token");
  }

  template <class Exec>
  void operator()(const Exec& exec, TokenBaselineWorkspace<S>& workspace) const {
    const index_t count = groups_.count(layout_.rows);
    if (count == 0 || layout_.tokens == 0) return;
    const index_t workers = workers_for(exec, count, layout_.tokens);
    if (static_cast<index_t>(workspace.workers.size()) < workers)
      workspace.workers.resize(static_cast<std::size_t>(workers));
    for (index_t w = 0; w < workers; ++w) reserve(workspace.workers[static_cast<std::size_t>(w)]);
    for_each_unit(exec, workers, count, [&](index_t worker, index_t group) {
      run<Exec>(group, workspace.workers[static_cast<std::size_t>(worker)]);
    });
  }

 private:
  /// One row, as read_row() gives it.
  struct Row {
    RowSpan span;
    const unsigned char* mask;
    bool valid(index_t t) const { return !mask || mask[t] != 0; }
  };

  template <class F>
  void for_each_array(const F& f) const {
    f("batch.returns", batch_.returns);
    f("batch.logp", batch_.logp);
    f("batch.sum_pi_squared", batch_.sum_pi_squared);
    f("batch.weights", batch_.weights);
    f("batch.mask", batch_.mask);
    f("advantages", advantages_);
  }
  void reserve(TokenBaselineScratch<S>& scratch) const {
    const auto n = static_cast<std::size_t>(layout_.longest);
    if (scratch.places.size() >= n) return;
    scratch.arrays.resize(4 * n), scratch.mask.resize(n);
    scratch.weights.resize(n), scratch.places.resize(n);
  }
  Row row(index_t i, TokenBaselineScratch<S>& scratch) const {
    const RowSpan span = layout_(i);
    return {span, batch_.mask ? batch_.mask.row(i, span.begin, span.length, scratch.mask.data())
                              : nullptr};
  }
  /// The tokens of a row of an array; `slot` is its place in the scratch.
  const S* fetch(const TokenView<S>& array, const RowSpan& span, index_t slot,
                 TokenBaselineScratch<S>& scratch) const {
    return array ? array.row(span.row, span.begin, span.length,
                             scratch.arrays.data() + slot * layout_.longest)
                 : nullptr;
  }
  /// Calls f(t, place) for the valid tokens of a row.
  template <class F>
  void for_each_token(const Row& row, const F& f) const {
    const bool column = settings_.place == BaselinePlace::Column;
    index_t ordinal = 0;
    for (index_t t = 0; t < row.span.length; ++t) {
      if (row.valid(t)) f(t, static_cast<std::size_t>(column ? t : ordinal)), ++ordinal;
    }
  }

  template <class Exec>
  void run(index_t group, TokenBaselineScratch<S>& scratch) const {
    // How many rows the group has, and the two largest numbers of their tokens.
    index_t members = 0, largest = 0, second = 0, longest_row = -1, length = 0;
    for (index_t k = 0; k < groups_.length(group); ++k) {
      const Row r = row(groups_.row(group, k), scratch);
      const index_t n = count_mask(r.mask, r.span.length);
      length = (std::max)(length, r.span.length);
      if (n == 0 && settings_.members == BaselineMembers::NonEmpty) continue;
      ++members;
      if (n > largest) {
        second = largest, largest = n, longest_row = r.span.row;
      } else {
        second = (std::max)(second, n);
      }
    }
    const bool has_baseline = members > 1;
    if (has_baseline) {
      std::fill_n(scratch.places.begin(), length, BaselinePlaceSums{});
      for (index_t k = 0; k < groups_.length(group); ++k)
        add<Exec>(row(groups_.row(group, k), scratch), scratch);
    }
    const bool raw_tail = settings_.tail == BaselineTail::Raw && largest > second;
    for (index_t k = 0; k < groups_.length(group); ++k) {
      const Row r = row(groups_.row(group, k), scratch);
      const S* const returns = fetch(batch_.returns, r.span, 0, scratch);
      const View<S, 1> out = advantages_.row(r.span.row, r.span.begin, r.span.length);
      const bool has_tail = raw_tail && r.span.row == longest_row;
      index_t next = 0;  // the first position that is not written
      for_each_token(r, [&](index_t t, std::size_t place) {
        for (; next < t; ++next) out(next) = S(0);
        ++next;
        const bool none = !has_baseline || (has_tail && static_cast<index_t>(place) >= second);
        const auto g = static_cast<double>(returns[t]);
        out(t) = none ? returns[t] : static_cast<S>(g - baseline(scratch.places[place]));
      });
      for (; next < r.span.length; ++next) out(next) = S(0);
    }
  }

  /// Adds a row to the sums of its places.
  template <class Exec>
  void add(const Row& row, TokenBaselineScratch<S>& scratch) const {
    const S* const returns = fetch(batch_.returns, row.span, 0, scratch);
    weigh<Exec>(row.span, scratch);
    double sum = 0;
    for_each_token(row, [&](index_t t, std::size_t at) {
      sum += scratch.weights[static_cast<std::size_t>(t)];
      const auto g = static_cast<double>(returns[t]);
      BaselinePlaceSums& place = scratch.places[at];
      add_to(place.products, math::mul(g, sum)), add_to(place.weights, sum);
      place.low = (math::min)(place.low, g), place.high = (math::max)(place.high, g);
    });
  }
  static void add_to(TwoSum<double>& sum, double x) {
    if constexpr (std::is_same_v<typename Groups::Order, InRowOrder>) {
      sum.sum += x;
    } else {
      sum.add(x);
    }
  }
  /// Writes w of every position of a row, masked ones included, into the scratch.
  template <class Exec>
  void weigh(const RowSpan& span, TokenBaselineScratch<S>& scratch) const {
    const S* const logp = fetch(batch_.logp, span, 1, scratch);
    const S* const squares = fetch(batch_.sum_pi_squared, span, 2, scratch);
    const S* const ratios = fetch(batch_.weights, span, 3, scratch);
    double* const to = scratch.weights.data();
    const auto at = [&](auto v, index_t t) GDPO_INLINE_LAMBDA {
      using V = decltype(v);
      using L = math::Lanes<V>;
      V w = OptimalTokenBaseline::weight<V>(math::exp_parts(L::load(logp + t)).exp,
                                            L::load(squares + t));
      if (ratios) {
        const V rho = L::load(ratios + t);
        w = math::mul(w, math::mul(rho, rho));
      }
      L::store(to + t, w);
    };
    index_t t = 0;
    if constexpr (!std::is_same_v<Exec, Seq> && math::native_width < double >> 1) {
      using V = math::Pack<math::native_width<double>>;
      for (; t + math::native_width<double> <= span.length; t += math::native_width<double>)
        at(V{}, t);
    }
    for (; t < span.length; ++t) at(double{}, t);
  }
  /// B of a place.
  double baseline(const BaselinePlaceSums& place) const {
    const double weights = place.weights.value(), products = place.products.value();
    const double divisor = weights + settings_.eps;
    if (place.low == place.high && !math::is_nan(products)) {
      const double share = settings_.eps == 0 ? 1.0 : weights / divisor;
      return math::mul(place.low, share);
    }
    return math::is_zero(divisor) && !math::is_nan(products) ? 0.0 : products / divisor;
  }

  const TokenBaselineBatch<S>& batch_;
  const Groups& groups_;
  const OptimalTokenBaseline& settings_;
  const TokenOut<S>& advantages_;
  TokenLayout layout_;
};

}  // namespace detail
GDPO_END_NAMESPACE
