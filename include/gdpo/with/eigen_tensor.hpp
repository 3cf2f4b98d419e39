#pragma once
/// \file
/// Adapter for callers whose arrays are an Eigen::Tensor, an Eigen::TensorMap, or a slice or chip
/// of one. No element is copied, in either layout. A tensor of rank 3 needs no grouping:
///
///     Eigen::Tensor<float, 3, Eigen::RowMajor> rewards(prompts, rollouts, rewards_each);
///     const auto a = gdpo::advantages(rewards);  // rank 2: (prompts, rollouts)
///     batch.logp = gdpo::view(logp);             // (prompts, rollouts, tokens)
///     batch.advantages = gdpo::view(a);
///
/// gdpo/gdpo.hpp does not include this header, because the module of Eigen (one of its unsupported
/// ones) is slow to compile.
#include <gdpo/advantages.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Rank, scalar and result type of a Tensor or a TensorMap; rank -1 for any other type.
template <class X>
struct TensorTraits {
  static constexpr int rank = -1;
};
template <class T, int Rank, int Options, class Index>
struct TensorTraits<Eigen::Tensor<T, Rank, Options, Index>> {
  using Scalar = std::remove_const_t<T>;
  static constexpr int rank = Rank;
  template <class R, int ResultRank>
  using Result = Eigen::Tensor<R, ResultRank, Options, Index>;
};
template <class Plain, int MapOptions, template <class> class Pointer>
struct TensorTraits<Eigen::TensorMap<Plain, MapOptions, Pointer>>
    : TensorTraits<std::remove_const_t<Plain>> {};

template <class X>
constexpr int tensor_rank = TensorTraits<std::remove_const_t<X>>::rank;

/// The view of a dense tensor, with the strides of its layout.
template <class X>
auto view_of_tensor(X& x) {
  constexpr int rank = tensor_rank<X>;
  View<std::remove_pointer_t<decltype(x.data())>, rank> v;
  v.data = x.data();
  index_t stride = 1;
  for (int i = 0; i < rank; ++i) {
    const int r =
        static_cast<int>(X::Layout) == static_cast<int>(Eigen::RowMajor) ? rank - 1 - i : i;
    v.extent[r] = x.dimensions()[static_cast<std::size_t>(r)];
    v.stride[r] = stride;
    stride *= v.extent[r];
  }
  return v;
}

/// How a part of a tensor is viewed: `TensorPart<X>::view(x)` for X a slice or a chip of a tensor,
/// of a map, or of another part; `is_part` is false for any other type. The expressions of Eigen
/// hold what they are parts of as const, so that a view for writing has to cast this away; it does
/// so only if the expression was made from a tensor that is not const.
template <class X, bool = (tensor_rank<X> > 0)>
struct TensorPart {
  static constexpr bool is_part = false;
};
template <class X>
struct TensorPart<X, true> {
  static constexpr bool is_part = false;
  static auto view(const X& x) { return view_of_tensor(const_cast<X&>(x)); }
};
template <class X>
struct TensorPart<const X, true> {
  static constexpr bool is_part = false;
  static auto view(const X& x) { return view_of_tensor(x); }
};
template <class X>
struct TensorPart<const X, false> : TensorPart<X, false> {};
template <class Starts, class Sizes, class X>
struct TensorPart<Eigen::TensorSlicingOp<Starts, Sizes, X>, false> {
  static constexpr bool is_part = tensor_rank<X> > 0 || TensorPart<X>::is_part;
  static auto view(const Eigen::TensorSlicingOp<Starts, Sizes, X>& x) {
    auto v = TensorPart<X>::view(x.expression());
    for (std::size_t r = 0; r < std::size(v.extent); ++r) {
      v.data += x.startIndices()[r] * v.stride[r];
      v.extent[r] = x.sizes()[r];
    }
    return v;
  }
};
template <Eigen::DenseIndex Axis, class X>
struct TensorPart<Eigen::TensorChippingOp<Axis, X>, false> {
  static constexpr bool is_part = tensor_rank<X> > 1 || TensorPart<X>::is_part;
  static auto view(const Eigen::TensorChippingOp<Axis, X>& x) {
    const auto whole = TensorPart<X>::view(x.expression());
    View<typename decltype(whole)::value_type, static_cast<int>(std::size(whole.extent)) - 1> v;
    v.data = whole.data + x.offset() * whole.stride[x.dim()];
    for (int r = 0, axis = 0; r < static_cast<int>(std::size(v.extent)); ++r, ++axis) {
      if (axis == x.dim()) ++axis;
      v.extent[r] = whole.extent[axis], v.stride[r] = whole.stride[axis];
    }
    return v;
  }
};
template <class X>
constexpr bool is_tensor_part_v = TensorPart<X>::is_part;

}  // namespace detail

/// A view of a Tensor or TensorMap of rank 1, 2 or 3. Its memory must outlive the view.
template <class X, std::enable_if_t<(detail::tensor_rank<X> > 0), int> = 0>
auto view(X& x) {
  static_assert(detail::tensor_rank<X> <= 3,
                "a view has rank 1, 2 or 3: take a chip or a slice of the tensor");
  return detail::view_of_tensor(x);
}

/// The same of a temporary TensorMap, which does not own its memory.
template <class Plain, int MapOptions, template <class> class Pointer>
auto view(Eigen::TensorMap<Plain, MapOptions, Pointer>&& x) {
  return view(x);
}

/// A view of a part of a tensor or of a map: `t.slice(offsets, extents)`, `t.chip(i, axis)`, or a
/// part of a part. Nothing is copied; the memory of the tensor, which must not be a temporary, must
/// outlive the view. A view of a part of a tensor that is not const can be written to.
///
///     batch.logp = gdpo::view(logp.chip(layer, 0));                 // of rank 4: (B, G, T)
///     batch.mask = gdpo::view(mask.slice(Offsets{0, 1}, Sizes{B, T - 1}));
template <class X, std::enable_if_t<detail::is_tensor_part_v<X>, int> = 0>
auto view(const X& x) {
  const auto v = detail::TensorPart<X>::view(x);
  static_assert(std::extent_v<decltype(v.extent)> <= 3,
                "a view has rank 1, 2 or 3: take a chip or a slice of the tensor");
  return v;
}

/// Advantages of rewards in a tensor of rank 2, (N, C), or rank 1, (N), with a grouping. Returns a
/// Tensor of rank 1, (N), in the same layout; float for float and narrower, double for double and
/// integers. groups, estimator, report and errors: as in advantages.hpp. On one thread in lanes.
template <class Estimator = Gdpo, class X, class Groups, class Report = std::nullptr_t,
          std::enable_if_t<detail::tensor_rank<X> == 1 || detail::tensor_rank<X> == 2, int> = 0>
auto advantages(const X& rewards, const Groups& groups, const Estimator& estimator = {},
                Report report = nullptr) {
  using Traits = detail::TensorTraits<X>;
  using Scalar = typename Traits::Scalar;
  const auto v = detail::view_of_tensor(rewards);
  View<const Scalar, 2> table{v.data, {v.extent[0], 1}, {v.stride[0], 0}};
  if constexpr (Traits::rank == 2) table = v;
  typename Traits::template Result<result_t<Scalar>, 1> out(v.extent[0]);
  Workspace workspace;
  advantages_into(simd, RewardBatch<Scalar, Groups>{table, groups}, estimator, view(out), workspace,
                  report);
  return out;
}

/// The same by GDPO with the paper's defaults, with a report.
template <class X, class Groups,
          std::enable_if_t<detail::tensor_rank<X> == 1 || detail::tensor_rank<X> == 2, int> = 0>
auto advantages(const X& rewards, const Groups& groups, GroupReport* report) {
  return advantages(rewards, groups, Gdpo{}, report);
}

/// Advantages of rewards in a tensor of rank 3, (prompts, rollouts, rewards). The rollouts of a
/// prompt are a group. Returns a Tensor of rank 2, (prompts, rollouts), in the same layout. The
/// report numbers groups by prompts.
template <class Estimator = Gdpo, class X, class Report = std::nullptr_t,
          std::enable_if_t<detail::tensor_rank<X> == 3, int> = 0>
auto advantages(const X& rewards, const Estimator& estimator = {}, Report report = nullptr) {
  using Traits = detail::TensorTraits<X>;
  using Scalar = typename Traits::Scalar;
  const auto v = detail::view_of_tensor(rewards);
  const index_t prompts = v.extent[0], rollouts = v.extent[1];
  typename Traits::template Result<result_t<Scalar>, 2> out(prompts, rollouts);
  // Prompts and rollouts together are the rows, in memory order: row-major has one prompt after the
  // other, column-major one rollout of all prompts after the other.
  constexpr bool row_major = static_cast<int>(X::Layout) == static_cast<int>(Eigen::RowMajor);
  const View<const Scalar, 2> table{
      v.data, {prompts * rollouts, v.extent[2]}, {v.stride[row_major ? 1 : 0], v.stride[2]}};
  const auto flat = gdpo::view(out.data(), prompts * rollouts);
  Workspace workspace;
  if constexpr (row_major) {
    const GroupsOf groups{rollouts > 0 ? rollouts : 1};
    advantages_into(simd, RewardBatch<Scalar, GroupsOf>{table, groups}, estimator, flat, workspace,
                    report);
  } else {
    const detail::Interleaved groups{prompts, rollouts};
    advantages_into(simd, RewardBatch<Scalar, detail::Interleaved>{table, groups}, estimator, flat,
                    workspace, report);
  }
  return out;
}

/// The same by GDPO with the paper's defaults, with a report.
template <class X, std::enable_if_t<detail::tensor_rank<X> == 3, int> = 0>
auto advantages(const X& rewards, GroupReport* report) {
  return advantages(rewards, Gdpo{}, report);
}

GDPO_END_NAMESPACE
