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
  const detail::TensorInfo info = detail::torch_info(function, "ids", ids);
  detail::check_rank(function, "ids", info, 1, 1, "rank 1");
  return detail::visit_elements(function, "ids", info, detail::IntegerTypes{}, [&](auto* id) {
    return ById(detail::view_of<std::remove_pointer_t<decltype(id)>, 1>(info), expected_size);
  });
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
  constexpr const char* shape = "(N, C), or (N) for one reward";
  const detail::TensorInfo info = detail::torch_info(function, "rewards", rewards);
  detail::check_rank(function, "rewards", info, 1, 2, shape);
  at::Tensor out;
  detail::visit_elements(function, "rewards", info, detail::NumberTypes{}, [&](auto* element) {
    using T = result_t<std::decay_t<decltype(*element)>>;
    const at::Tensor table = rewards.to(detail::torch_dtype<T>());  // itself if it is of that dtype
    out = at::empty({rewards.size(0)}, detail::torch_dtype<T>());
    const RewardBatch<T, Groups> batch{
        detail::array_of<RewardView<T>, 2>(function, "rewards",
                                           detail::torch_info(function, "rewards", table),
                                           detail::ElementTypes<T>{}, shape),
        groups};
    Workspace workspace;
    advantages_into(exec, batch, estimator,
                    detail::view_of<T, 1>(detail::torch_info(function, "advantages", out)),
                    workspace, report);
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
