#pragma once
// The operator of advantages for tensors of a device.
#include <gdpo/cuda/advantage/device_advantages.hpp>
#include <gdpo/cuda/advantage/groups.hpp>
#include <gdpo/with/torch_stable/advantages.hpp>
#include <gdpo/with/torch_stable/device/memory.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// Reads rewards of any type and strides as double.
struct ReadRewards {
  RewardTensor table;
  const void* data;
  double* out;
  GDPO_INLINE void operator()(index_t i) const {
    out[i] = table.at(data, i / table.count, i % table.count);
  }
};
/// Rounds advantages to float.
struct RoundToFloat {
  const double* source;
  float* out;
  GDPO_INLINE void operator()(index_t i) const { out[i] = static_cast<float>(source[i]); }
};
/// Writes one number everywhere.
struct Fill {
  double number;
  double* out;
  GDPO_INLINE void operator()(index_t i) const { out[i] = number; }
};
/// Where groups of one size begin.
struct WriteOffsets {
  index_t size;
  index_t* offsets;
  GDPO_INLINE void operator()(index_t g) const { offsets[g] = g * size; }
};
/// Copies offsets of any integer type.
struct ReadOffsets {
  cuda::detail::DeviceColumn<index_t> source;
  index_t* out;
  GDPO_INLINE void operator()(index_t g) const { out[g] = source(g); }
};

/// Where each group of sorted ids begins, in one block: one group for each id that differs from the
/// one before it, then empty groups until there are as many groups as ids. So the number of groups
/// follows from the shape, and no call has to wait for the device to get it.
struct GroupsOfSortedIds {
  static constexpr int threads = 256, largest_block = threads;
  cuda::detail::DeviceColumn<std::int64_t> ids;
  index_t n;
  index_t* offsets;  ///< (n + 1)

  template <class Block>
  GDPO_DEVICE void operator()(Block& block) const {
    index_t* const groups_before = block.template shared<index_t>();  // of each thread's ids
    const index_t each = (n + threads - 1) / threads;
    const auto ids_of = [&](int thread, const auto& f) {
      const index_t end = (thread + 1) * each;
      for (index_t i = thread * each; i < end && i < n; ++i)
        if (i == 0 || ids(i) != ids(i - 1)) f(i);
    };
    block.each([&](int thread) {
      index_t groups = 0;
      ids_of(thread, [&](index_t) { ++groups; });
      groups_before[thread] = groups;
    });
    block.each([&](int thread) {
      if (thread != 0) return;
      index_t sum = 0;
      for (int t = 0; t < threads; ++t) {
        const index_t groups = groups_before[t];
        groups_before[t] = sum, sum += groups;
      }
      groups_before[threads] = sum;
    });
    block.each([&](int thread) {
      index_t group = groups_before[thread];
      ids_of(thread, [&](index_t i) { offsets[group++] = i; });
      for (index_t g = groups_before[threads] + thread; g <= n; g += threads) offsets[g] = n;
    });
  }
  static constexpr std::size_t shared_bytes = (threads + 1) * sizeof(index_t);
};

/// aten::sort of a tensor of rank 1, stable: the sorted numbers and where each stood.
inline std::tuple<Tensor, Tensor> sorted(const Tensor& tensor) {
  using torch::stable::detail::from, torch::stable::detail::to;
  StableIValue stack[] = {from(tensor), from(std::optional<bool>(true)), from(std::int64_t{0}),
                          from(false)};
  GDPO_TORCH_CALL(torch_call_dispatcher("aten::sort", "stable", stack, TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

/// The integers of a tensor that an operator has made.
inline View<const index_t, 1> indices_in(const Tensor& tensor) {
  static_assert(sizeof(index_t) == sizeof(std::int64_t));
  return view(static_cast<const index_t*>(tensor.const_data_ptr()),
              static_cast<index_t>(tensor.numel()));
}
/// The groups: where each begins and, for groups by id, the rows in the order of their groups.
template <class Device>
std::tuple<Tensor, Array> groups_on(const Call& call, const Device& device, index_t rows,
                                    std::int64_t size, const Array& ids, const Array& given) {
  const auto new_offsets = [&call](index_t groups) {
    return new_tensor(call, {groups + 1}, ScalarType::Long);
  };
  const auto data = [](const Tensor& offsets) {
    return static_cast<index_t*>(offsets.mutable_data_ptr());
  };
  if (ids) {
    if (const index_t given_ids = index_column(call, "group_ids", ids).size(); given_ids != rows) {
      call.fail("groups", contract::text(given_ids) + " ids",
                "one id for each of the " + contract::text(rows) + " rows");
    }
    const auto [values, order] = sorted(*ids);
    const IndexColumn column = index_column(call, "group_ids", values);
    const Tensor offsets = new_offsets(rows);
    const GroupsOfSortedIds kernel{{call.function, "group_ids", column}, rows, data(offsets)};
    device.launch(1, kernel.threads, kernel.shared_bytes, kernel);
    return {offsets, order};
  }
  if (given) {
    const IndexColumn source = index_column(call, "group_offsets", given);
    if (source.size() == 0) {
      call.fail("offsets", "no entries",
                "entries from 0 to " + contract::text(rows) + ", the number of rows");
    }
    const Tensor offsets = new_offsets(source.size() - 1);
    launch_each(device, source.size(),
                ReadOffsets{{call.function, "group_offsets", source}, data(offsets)});
    return {offsets, Array{}};
  }
  const GroupsOf groups = groups_of(static_cast<index_t>(size));
  groups.check(call.function, rows);
  const Tensor offsets = new_offsets(rows / groups.size);
  launch_each(device, rows / groups.size + 1, WriteOffsets{groups.size, data(offsets)});
  return {offsets, Array{}};
}

}  // namespace detail

namespace device {

/// torch_stable::advantages, without its report: a tensor of NaN stands for it. `constraints`
/// and `rollout_ids` are refused: the kernels have no constrained advantages, and rollouts are made
/// of rows on the host.
///
/// Groups by id are sorted on the device. Rewards are converted to double, advantages rounded once,
/// so the bits are those of the CPU but where cuda/advantage/device_advantages.hpp says otherwise.
template <class Queue>
std::tuple<Tensor, Tensor> advantages(const Tensor& rewards, const std::string& estimator,
                                      std::int64_t group_size, const Array& group_ids,
                                      const Array& group_offsets,
                                      const std::optional<std::vector<double>>& weights,
                                      const std::optional<std::vector<double>>& gates,
                                      const std::optional<std::vector<double>>& constraints,
                                      const Array& tokens, const Array& valid,
                                      const Array& baseline, const Array& row_weights,
                                      const Array& penalty, const Array& rollout_ids,
                                      const std::string&, bool report) {
  const detail::Call call = detail::call_on("gdpo::advantages", rewards);
  detail::check_advantages(call, group_size, group_ids, group_offsets, weights);
  if (constraints) {
    call.fail("constraints", "some, with rewards on a device", "rewards on the CPU");
  }
  if (rollout_ids) {
    call.fail("rollout_ids", "some, with rewards on a device", "rewards on the CPU");
  }
  const Queue queue(call);
  const detail::RewardTensor table(call, rewards);
  const index_t rows = table.rows;
  const auto groups =
      detail::groups_on(call, queue.on(), rows, group_size, group_ids, group_offsets);
  const View<const index_t, 1> offsets = detail::indices_in(std::get<0>(groups));
  const Array& order = std::get<1>(groups);
  const Tensor values = detail::new_tensor(call, {rows * table.count}, ScalarType::Double);
  detail::launch_each(
      queue.on(), rows * table.count,
      detail::ReadRewards{table, rewards.const_data_ptr(), detail::data_of(values)});
  const Tensor double_advantages = detail::new_tensor(call, {rows}, ScalarType::Double);
  const auto evaluate = [&](const auto& e, const auto& grouping) {
    RewardBatch batch{view(static_cast<const double*>(detail::data_of(values)), rows, table.count),
                      grouping};
    batch.tokens = detail::column(call, "batch.tokens", tokens);
    batch.valid = detail::column(call, "batch.valid", valid);
    batch.baseline = detail::column(call, "batch.baseline", baseline);
    batch.weights = detail::column(call, "batch.weights", row_weights);
    batch.penalty = detail::column(call, "batch.penalty", penalty);
    const Tensor memory = detail::new_memory(call, cuda::scratch_bytes(e, batch, call.function));
    advantages_into(queue.on(), batch, e, detail::new_view<double, 1>(double_advantages),
                    detail::scratch_in(memory));
  };
  std::visit(
      [&](auto e) {
        if (weights) e.weights = *weights;
        if (gates) e.gates = detail::gates_of(*gates);
        if (order) return evaluate(e, cuda::sorted_groups(detail::indices_in(*order), offsets));
        evaluate(e, ByOffsets<index_t>{offsets});
      },
      runtime::detail::configured(call.function, estimator, &runtime::estimator).value);
  Tensor out = double_advantages;
  if (table.narrow) {
    out = detail::new_tensor(call, {rows}, ScalarType::Float);
    detail::launch_each(queue.on(), rows,
                        detail::RoundToFloat{detail::data_of(double_advantages),
                                             static_cast<float*>(out.mutable_data_ptr())});
  }
  const Tensor numbers = detail::new_tensor(
      call, {report ? detail::size_of(detail::report_of(table.count)) : 0}, ScalarType::Double);
  if (report) {
    detail::launch_each(queue.on(), static_cast<index_t>(numbers.numel()),
                        detail::Fill{math::nan<double>(), detail::data_of(numbers)});
  }
  return {out, numbers};
}

/// Registers the operator above.
template <class Queue, class Library>
void register_advantages(Library& library) {
  library.impl("advantages", TORCH_BOX(&advantages<Queue>));
}

}  // namespace device

}  // namespace torch_stable
GDPO_END_NAMESPACE
