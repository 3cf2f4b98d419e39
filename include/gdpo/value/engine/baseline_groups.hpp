#pragma once
// How optimal_token_baseline_into runs the groups of a batch.
#include <gdpo/core/exec.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/lanes/exp_parts.hpp>
#include <gdpo/lanes/lanes.hpp>
#include <gdpo/tokens/token_layout.hpp>
#include <gdpo/tokens/token_row.hpp>
#include <gdpo/value/engine/valid_runs.hpp>
#include <gdpo/value/token_baseline.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {
template <class S, class Groups>
class BaselineGroups;

/// The sums of the places of a group over its rows, an array each.
struct BaselinePlaces {
  std::vector<double> products, products_error;  ///< TwoSum of G W; the error stays 0 in row order.
  std::vector<double> weights, weights_error;    ///< The same of W.
  std::vector<double> low, high;                 ///< The smallest and the largest G.

  void resize(std::size_t n) {
    for (auto* array : {&products, &products_error, &weights, &weights_error, &low, &high})
      array->resize(n);
  }
  /// Begins the sums of n places.
  void clear(index_t n) {
    for (auto* array : {&products, &products_error, &weights, &weights_error})
      std::fill_n(array->begin(), n, 0.0);
    std::fill_n(low.begin(), n, math::infinity), std::fill_n(high.begin(), n, -math::infinity);
  }
};
/// Memory of one worker.
template <class S>
struct TokenBaselineScratch {
  std::vector<S> arrays;            ///< (4 arrays, longest row): those that are converted.
  std::vector<unsigned char> mask;  ///< (longest row)
  std::vector<double> weights;      ///< (longest row)
  BaselinePlaces places;            ///< (longest row)
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
  };
  /// What the loops over tokens compute with.
  template <class Exec>
  using LanesOf = std::conditional_t<std::is_same_v<Exec, Seq>, double, math::Native<double>>;

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
    if (scratch.weights.size() >= n) return;
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
  /// Calls f(begin, end, place of the first token) for the runs of valid tokens of a row.
  template <class F>
  void for_each_piece(const Row& row, const F& f) const {
    const bool column = settings_.place == BaselinePlace::Column;
    index_t ordinal = 0;
    for_each_run(row.mask, 0, row.span.length, [&](index_t begin, index_t end) {
      f(begin, end, column ? begin : ordinal);
      ordinal += end - begin;
      return true;
    });
  }
  /// Calls f(V{}, k) or f(double{}, k) for k below n, as many at once as V has lanes.
  template <class V, class F>
  static GDPO_INLINE void in_lanes(index_t n, const F& f) {
    constexpr int width = math::Lanes<V>::width;
    index_t k = 0;
    if constexpr (width > 1) {
      for (; k + width <= n; k += width) f(V{}, k);
    }
    for (; k < n; ++k) f(double{}, k);
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
      scratch.places.clear(length);
      for (index_t k = 0; k < groups_.length(group); ++k)
        add<Exec>(row(groups_.row(group, k), scratch), scratch);
      for (index_t c = 0; c < length; ++c)
        set_baseline(scratch.places, static_cast<std::size_t>(c));
    }
    const bool raw_tail = settings_.tail == BaselineTail::Raw && largest > second;
    for (index_t k = 0; k < groups_.length(group); ++k) {
      const Row r = row(groups_.row(group, k), scratch);
      const S* const returns = fetch(batch_.returns, r.span, 0, scratch);
      const View<S, 1> out = advantages_.row(r.span.row, r.span.begin, r.span.length);
      const bool has_tail = raw_tail && r.span.row == longest_row;
      const index_t with_baseline = has_tail ? second : length;  // places below have one
      index_t next = 0;  // the first position that is not written
      for_each_piece(r, [&](index_t begin, index_t end, index_t place) {
        for (; next < begin; ++next) out(next) = S(0);
        next = end;
        const index_t n = has_baseline ? end - begin : 0;
        const index_t some = (std::max)(index_t{0}, (std::min)(n, with_baseline - place));
        subtract<Exec>(returns + begin, scratch.places.products.data() + place, some, out, begin);
        for (index_t t = begin + some; t < end; ++t) out(t) = returns[t];
      });
      for (; next < r.span.length; ++next) out(next) = S(0);
    }
  }

  /// Writes n returns less their baselines to `out`, from `begin` on.
  template <class Exec>
  static void subtract(const S* returns, const double* baselines, index_t n, const View<S, 1>& out,
                       index_t begin) {
    if (out.stride[0] != 1) {
      for (index_t k = 0; k < n; ++k)
        out(begin + k) = static_cast<S>(static_cast<double>(returns[k]) - baselines[k]);
      return;
    }
    S* const to = out.data + begin;
    in_lanes<LanesOf<Exec>>(n, [&](auto v, index_t k) GDPO_INLINE_LAMBDA {
      using L = math::Lanes<decltype(v)>;
      L::store(to + k, L::load(returns + k) - L::load(baselines + k));
    });
  }

  /// Adds a row to the sums of its places.
  template <class Exec>
  void add(const Row& row, TokenBaselineScratch<S>& scratch) const {
    const S* const returns = fetch(batch_.returns, row.span, 0, scratch);
    weigh<Exec>(row.span, scratch);
    double* const weights = scratch.weights.data();
    BaselinePlaces& places = scratch.places;
    double sum = 0;
    for_each_piece(row, [&](index_t begin, index_t end, index_t place) {
      for (index_t t = begin; t < end; ++t) weights[t] = sum = sum + weights[t];
      double* const products = places.products.data() + place;
      double* const products_error = places.products_error.data() + place;
      double* const sums = places.weights.data() + place;
      double* const sums_error = places.weights_error.data() + place;
      double* const low = places.low.data() + place;
      double* const high = places.high.data() + place;
      in_lanes<LanesOf<Exec>>(end - begin, [&](auto v, index_t k) GDPO_INLINE_LAMBDA {
        using V = decltype(v);
        using L = math::Lanes<V>;
        const V g = L::load(returns + begin + k), w = L::load(weights + begin + k);
        add_to<V>(products + k, products_error + k, math::mul(g, w));
        add_to<V>(sums + k, sums_error + k, w);
        L::store(low + k, (math::min)(L::load(low + k), g));
        L::store(high + k, (math::max)(L::load(high + k), g));
      });
    });
  }
  template <class V>
  static GDPO_INLINE void add_to(double* sum, double* error, const V& x) {
    using L = math::Lanes<V>;
    if constexpr (std::is_same_v<typename Groups::Order, InRowOrder>) {
      (void)error, L::store(sum, L::load(sum) + x);
    } else {
      TwoSum<V> total{L::load(sum), L::load(error)};
      total.add(x);
      L::store(sum, total.sum), L::store(error, total.error);
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
  /// Puts B of a place where its products were.
  void set_baseline(BaselinePlaces& places, std::size_t c) const {
    const auto total = [](double sum, double error) { return TwoSum<double>{sum, error}.value(); };
    const double weights = total(places.weights[c], places.weights_error[c]),
                 products = total(places.products[c], places.products_error[c]);
    const double divisor = weights + settings_.eps;
    if (places.low[c] == places.high[c] && !math::is_nan(products)) {
      const double share = settings_.eps == 0 ? 1.0 : weights / divisor;
      places.products[c] = math::mul(places.low[c], share);
    } else {
      const bool empty = math::is_zero(divisor) && !math::is_nan(products);
      places.products[c] = empty ? 0.0 : products / divisor;
    }
  }

  const TokenBaselineBatch<S>& batch_;
  const Groups& groups_;
  const OptimalTokenBaseline& settings_;
  const TokenOut<S>& advantages_;
  TokenLayout layout_;
};

}  // namespace detail
GDPO_END_NAMESPACE
