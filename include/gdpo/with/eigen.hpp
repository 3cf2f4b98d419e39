#pragma once
/// \file
/// Adapter for callers whose rewards, log-probs or columns are objects of Eigen. `gdpo::view`
/// makes views of arrays, matrices, maps, refs and blocks without a copy, for every call of the
/// library, and `gdpo::advantages` takes and returns objects of Eigen:
///
///     Eigen::ArrayXXf rewards(8, 2);  // (completions, rewards)
///     const Eigen::ArrayXf a = gdpo::advantages(rewards, gdpo::groups_of(4));
///     batch.logp = gdpo::view(logp);  // a TokenBatch; logp: (completions, tokens), either order
///
/// gdpo/gdpo.hpp includes this header. It needs Eigen 3.4.
#include <Eigen/Core>
#include <gdpo/advantages.hpp>

GDPO_BEGIN_NAMESPACE

/// Eigen::half has the memory layout of Float16, so it can be read and written in lanes.
template <>
struct LayoutOf<Eigen::half> {
  using type = Float16;  ///< IEEE binary16.
};
/// Eigen::bfloat16 has the memory layout of BFloat16.
template <>
struct LayoutOf<Eigen::bfloat16> {
  using type = BFloat16;  ///< The upper half of a float.
};

namespace detail {

/// Whether the elements of D stand in memory: D has the flag of Eigen for it, and data(). An
/// IndexedView has the flag but no data().
template <class D, class = void>
constexpr bool in_memory_v = false;
template <class D>
constexpr bool in_memory_v<D, std::void_t<decltype(std::declval<D&>().data())>> =
    (Eigen::internal::traits<std::remove_const_t<D>>::Flags & Eigen::DirectAccessBit) != 0;

/// The view of an object in memory: rank 1 for a vector, else rank 2, with the strides of its
/// storage order.
template <class D>
auto view_of_eigen(D& x) {
  static_assert(in_memory_v<D>,
                "this Eigen expression is not in memory: evaluate it first (x.eval())");
  using Scalar = std::remove_pointer_t<decltype(x.data())>;
  if constexpr (D::IsVectorAtCompileTime) {
    return View<Scalar, 1>{x.data(), {x.size()}, {x.innerStride()}};
  } else {
    const index_t inner = x.innerStride(), outer = x.outerStride();
    return View<Scalar, 2>{x.data(),
                           {x.rows(), x.cols()},
                           {D::IsRowMajor ? outer : inner, D::IsRowMajor ? inner : outer}};
  }
}

/// The type of the result: an Array for an array expression, a Matrix for a matrix expression.
template <class D, class R>
using eigen_result_t = std::conditional_t<
    std::is_same_v<typename Eigen::internal::traits<D>::XprKind, Eigen::ArrayXpr>,
    Eigen::Array<R, Eigen::Dynamic, 1>, Eigen::Matrix<R, Eigen::Dynamic, 1>>;

}  // namespace detail

/// A view of an object of Eigen that stands in memory, in either storage order and with any
/// strides. Vectors give a view of rank 1, all others of rank 2. The memory must outlive the view:
/// a temporary Array or Matrix does not compile; a Map, Ref or Block may be a temporary, because it
/// owns no memory.
template <class D>
auto view(Eigen::DenseBase<D>& x) {
  return detail::view_of_eigen(x.derived());
}
/// The same of a const object: a view of const elements.
template <class D>
auto view(const Eigen::DenseBase<D>& x) {
  return detail::view_of_eigen(x.derived());
}
/// The same of a temporary Map, Ref or Block.
template <class D>
auto view(Eigen::DenseBase<D>&& x) {
  return detail::view_of_eigen(x.derived());
}
template <class D>
void view(const Eigen::PlainObjectBase<D>&&) = delete;  // the temporary would end before its view

/// Advantages of rewards in Eigen: the short form of advantages.hpp, on one thread in lanes.
/// rewards: (N, C), or a vector (N) for one reward, of any scalar that Storage can read. An
/// expression is evaluated once. groups, estimator, report: as in advantages.hpp. Returns (N): an
/// Array for array expressions, a Matrix for matrix expressions; float for float and narrower,
/// double for double and integers. Errors: those of `advantages_into`.
template <class Estimator = Gdpo, class D, class Groups, class Report = std::nullptr_t>
auto advantages(const Eigen::DenseBase<D>& rewards, const Groups& groups,
                const Estimator& estimator = {}, Report report = nullptr) {
  if constexpr (!detail::in_memory_v<D>) {
    const typename D::PlainObject evaluated = rewards.derived();
    return advantages(evaluated, groups, estimator, report);
  } else {
    using Scalar = std::remove_const_t<typename D::Scalar>;
    View<const Scalar, 2> table;
    if constexpr (D::IsVectorAtCompileTime) {
      table = {rewards.derived().data(), {rewards.size(), 1}, {rewards.derived().innerStride(), 0}};
    } else {
      table = view(rewards);
    }
    detail::eigen_result_t<D, result_t<Scalar>> out(table.extent[0]);
    Workspace workspace;
    advantages_into(simd, RewardBatch<Scalar, Groups>{table, groups}, estimator, view(out),
                    workspace, report);
    return out;
  }
}
/// The same by GDPO with the paper's defaults, with a report.
template <class D, class Groups>
auto advantages(const Eigen::DenseBase<D>& rewards, const Groups& groups, GroupReport* report) {
  return advantages(rewards, groups, Gdpo{}, report);
}

GDPO_END_NAMESPACE
