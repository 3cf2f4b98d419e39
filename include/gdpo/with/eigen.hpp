#pragma once
/// Eigen arrays, matrices, maps, refs and expressions as rewards, results and columns: no copy where they stand in
/// memory.
#include <Eigen/Core>
#include <gdpo/advantages.hpp>

GDPO_BEGIN_NAMESPACE

template <>
struct LayoutOf<Eigen::half> {
  using type = Float16;
};
template <>
struct LayoutOf<Eigen::bfloat16> {
  using type = BFloat16;
};

namespace detail {

/// Stands in memory: has the flag and data() (an IndexedView has only the flag).
template <class D, class = void>
constexpr bool in_memory_v = false;
template <class D>
constexpr bool in_memory_v<D, std::void_t<decltype(std::declval<D&>().data())>> =
    (Eigen::internal::traits<std::remove_const_t<D>>::Flags & Eigen::DirectAccessBit) != 0;

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

/// Array in, Array out; Matrix in, Matrix out.
template <class D, class R>
using eigen_result_t = std::conditional_t<
    std::is_same_v<typename Eigen::internal::traits<D>::XprKind, Eigen::ArrayXpr>,
    Eigen::Array<R, Eigen::Dynamic, 1>, Eigen::Matrix<R, Eigen::Dynamic, 1>>;

}  // namespace detail

/// Anything of Eigen that stands in memory, either storage order, any strides. Vectors give rank 1. The object must
/// outlive the view: an array that is a temporary is rejected; a Map, Ref or Block may be one.
template <class D>
auto view(Eigen::DenseBase<D>& x) {
  return detail::view_of_eigen(x.derived());
}
template <class D>
auto view(const Eigen::DenseBase<D>& x) {
  return detail::view_of_eigen(x.derived());
}
template <class D>
auto view(Eigen::DenseBase<D>&& x) {
  return detail::view_of_eigen(x.derived());
}
template <class D>
void view(const Eigen::PlainObjectBase<D>&&) = delete;  // no view of a temporary

/// rewards: (N, C), or a vector (N), of any scalar that Storage knows; expressions are evaluated once. Result: (N),
/// float for float and narrower, double for double and integers.
template <class Estimator = Gdpo, class D, class Groups>
auto advantages(const Eigen::DenseBase<D>& rewards, const Groups& groups,
                const Estimator& estimator = {}, GroupReport* report = nullptr) {
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
template <class D, class Groups>
auto advantages(const Eigen::DenseBase<D>& rewards, const Groups& groups, GroupReport* report) {
  return advantages(rewards, groups, Gdpo{}, report);
}

GDPO_END_NAMESPACE
