#pragma once
/// Eigen's (unsupported) Tensor and TensorMap, either layout, no copy. Not in gdpo.hpp: the module is slow to compile.
#include <gdpo/advantages.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

GDPO_BEGIN_NAMESPACE
namespace detail {

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

}  // namespace detail

/// A Tensor or TensorMap of rank 1, 2 or 3, which must outlive the view.
template <class X, std::enable_if_t<(detail::tensor_rank<X> > 0), int> = 0>
auto view(X& x) {
  return detail::view_of_tensor(x);
}

/// A map may be a temporary: it does not own its memory.
template <class Plain, int MapOptions, template <class> class Pointer>
auto view(Eigen::TensorMap<Plain, MapOptions, Pointer>&& x) {
  return detail::view_of_tensor(x);
}

/// rewards: rank 2 (N, C) or rank 1 (N), with a grouping -> rank 1 (N). Tensor in, Tensor out, same layout.
template <class Estimator = Gdpo, class X, class Groups,
          std::enable_if_t<detail::tensor_rank<X> == 1 || detail::tensor_rank<X> == 2, int> = 0>
auto advantages(const X& rewards, const Groups& groups, const Estimator& estimator = {},
                GroupReport* report = nullptr) {
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

template <class X, class Groups,
          std::enable_if_t<detail::tensor_rank<X> == 1 || detail::tensor_rank<X> == 2, int> = 0>
auto advantages(const X& rewards, const Groups& groups, GroupReport* report) {
  return advantages(rewards, groups, Gdpo{}, report);
}

/// rewards: rank 3, (prompts, rollouts, rewards); the rollouts of a prompt are a group -> rank 2 (prompts, rollouts).
template <class Estimator = Gdpo, class X, std::enable_if_t<detail::tensor_rank<X> == 3, int> = 0>
auto advantages(const X& rewards, const Estimator& estimator = {}, GroupReport* report = nullptr) {
  using Traits = detail::TensorTraits<X>;
  using Scalar = typename Traits::Scalar;
  const auto v = detail::view_of_tensor(rewards);
  const index_t prompts = v.extent[0], rollouts = v.extent[1];
  typename Traits::template Result<result_t<Scalar>, 2> out(prompts, rollouts);
  // Rows in memory order: prompt after prompt (row-major), or rollout after rollout (column-major).
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

template <class X, std::enable_if_t<detail::tensor_rank<X> == 3, int> = 0>
auto advantages(const X& rewards, GroupReport* report) {
  return advantages(rewards, Gdpo{}, report);
}

GDPO_END_NAMESPACE
