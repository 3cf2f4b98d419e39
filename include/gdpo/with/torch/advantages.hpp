#pragma once
// Advantages of LibTorch tensors.
#include <ATen/ops/empty.h>

#include <gdpo/advantages.hpp>
#include <gdpo/with/torch/view.hpp>

GDPO_BEGIN_NAMESPACE

/// Groups of rows with the same id: `by_id` of ids in a tensor, (N), of any dtype of integers, on
/// the host. The result does not refer to the tensor.
inline ById by_id(const at::Tensor& ids, index_t expected_size = 0) {
  constexpr const char* function = "gdpo::by_id";
  detail::check_torch(function, "ids", ids, at::kCPU);
  if (ids.dim() != 1)
    contract::fail(function, "ids", "shape " + detail::shape_in_words(ids), "rank 1");
  ById groups(View<const std::int64_t, 1>{}, 0);
  detail::visit_dtype(function, "ids", ids, detail::TorchIntegers{}, [&](auto element) {
    groups = ById(detail::view_unchecked<const decltype(element), 1>(ids), expected_size);
  });
  return groups;
}

/// Advantages of rewards in a tensor, (N, C) or (N), of any dtype and strides, on the host.
///
///     const at::Tensor a = gdpo::advantages(rewards, gdpo::groups_of(8));
///
/// exec, groups, estimator, report and errors: as in gdpo/advantages.hpp. Returns a new tensor (N)
/// that autograd does not record: float for float and narrower, double for double and integers.
/// Rewards of other dtypes than float and double are converted first, which changes no bit of the
/// result. For columns beside the rewards (lengths, flags, a penalty) use `advantages_into` with
/// views and `torch_column`.
template <class Estimator = Gdpo, class Exec, class Groups,
          std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
at::Tensor advantages(const Exec& exec, const at::Tensor& rewards, const Groups& groups,
                      const Estimator& estimator = {}, GroupReport* report = nullptr) {
  constexpr const char* function = "gdpo::advantages";
  detail::check_torch(function, "rewards", rewards, at::kCPU);
  if (rewards.dim() != 1 && rewards.dim() != 2) {
    contract::fail(function, "rewards", "shape " + detail::shape_in_words(rewards),
                   "(N, C), or (N) for one reward");
  }
  at::Tensor out;
  const auto run = [&](auto number) {
    using T = decltype(number);
    const at::Tensor table = rewards.to(detail::torch_dtype<T>());  // itself if it is of that dtype
    View<const T, 2> v{nullptr, {table.size(0), 1}, {table.stride(0), 0}};
    v.data = static_cast<const T*>(table.data_ptr());
    if (table.dim() == 2) v = detail::view_unchecked<const T, 2>(table);
    out = at::empty({rewards.size(0)}, detail::torch_dtype<T>());
    Workspace workspace;
    advantages_into(exec, RewardBatch<T, Groups>{v, groups}, estimator,
                    detail::view_unchecked<T, 1>(out), workspace, report);
  };
  detail::visit_dtype(function, "rewards", rewards, detail::TorchNumbers{}, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<result_t<T>, float>) run(float{});
    if constexpr (std::is_same_v<result_t<T>, double>) run(double{});
  });
  return out;
}
/// The same on one thread in lanes (`simd`).
template <class Estimator = Gdpo, class Groups>
at::Tensor advantages(const at::Tensor& rewards, const Groups& groups,
                      const Estimator& estimator = {}, GroupReport* report = nullptr) {
  return advantages(simd, rewards, groups, estimator, report);
}
/// The same by GDPO with the paper's defaults, with a report.
template <class Groups>
at::Tensor advantages(const at::Tensor& rewards, const Groups& groups, GroupReport* report) {
  return advantages(simd, rewards, groups, Gdpo{}, report);
}

GDPO_END_NAMESPACE
