#pragma once
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/loss/result.hpp>
#include <gdpo/cuda/loss/row_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

struct CountMemory {
  Counts* units;
  CountMemory(ScratchCursor& cursor, const RowUnits& of) : units(cursor.take<Counts>(of.count())) {}
};
struct LossMemory {
  Tally* tallies;
  LossMemory(ScratchCursor& cursor, const RowUnits& of) : tallies(cursor.take<Tally>(of.count())) {}
};
/// Bytes of Memory, or Memory in a scratch that is large enough.
template <class Memory, class... Of>
std::size_t bytes_of(const Of&... of) {
  ScratchCursor cursor;
  Memory(cursor, of...);
  return cursor.bytes();
}
template <class Memory, class... Of>
Memory take_memory(const char* function, const Scratch& scratch, const Of&... of) {
  check_scratch(function, scratch, bytes_of<Memory>(of...));
  ScratchCursor cursor(scratch);
  return Memory(cursor, of...);
}

/// All tokens of the rows stand side by side as S (masks: as bytes), and the loss needs nothing else: the CPU's plain rows.
template <class S, class Loss>
gdpo::detail::PlainRows plain_rows(const Loss& loss, const DeviceBatch<S>& b,
                                   const DeviceOut<S>& gradient) {
  const auto dense = [](const auto& tokens, StoredAs type) {
    return tokens.type == type && tokens.shape.step == 1;
  };
  gdpo::detail::PlainRows rows = gdpo::detail::plain_rows(loss.kl, b.arrays());
  b.for_each_array([&](const DeviceTokens<S>& tokens) {
    rows.plain = rows.plain && dense(tokens, stored_as<S>());
  });
  rows.plain = rows.plain && b.advantages && !b.segments &&
               (!b.mask || dense(b.mask, StoredAs::UInt8)) &&
               (!gradient || gradient.shape.step == 1);
  return rows;
}

}  // namespace detail

/// Bytes of scratch that count_into(device, batch, ...) needs.
template <class S>
std::size_t scratch_bytes(const TokenBatch<S>& batch) {
  const auto layout = gdpo::detail::shape_of("gdpo::cuda::scratch_bytes", batch);
  return detail::bytes_of<detail::CountMemory>(detail::RowUnits(layout.rows));
}
/// Bytes of scratch that loss(device, batch, ...) needs.
template <class Loss, class S>
std::size_t scratch_bytes(const Loss&, const TokenBatch<S>& batch) {
  static_assert(gdpo::detail::needs_loss<Loss>());
  const auto layout = gdpo::detail::shape_of("gdpo::cuda::scratch_bytes", batch);
  return detail::bytes_of<detail::LossMemory>(detail::RowUnits(layout.rows));
}

/// count(batch) of a batch on the device, left on the device: two launches, nothing waits. Sum it over micro-batches and ranks there,
/// or copy it. The loss takes it as it is.
template <class Device, class S, std::enable_if_t<gdpo::detail::is_device_v<Device>, int> = 0>
void count_into(const Device& device, const TokenBatch<S>& batch, Normaliser* on_device,
                const Scratch& scratch) {
  constexpr const char* function = "gdpo::cuda::count_into";
  const auto layout = gdpo::detail::shape_of(function, batch);
  const detail::DeviceBatch<S> on(function, batch, layout, gdpo::detail::TokenReads::none());
  const detail::RowUnits units(layout.rows);
  const auto memory = detail::take_memory<detail::CountMemory>(function, scratch, units);
  const detail::RowThreads threads(units, layout, device.tuning());
  device.launch(units.count(), threads.of_block,
                detail::RowUnits::most_runs * sizeof(detail::Counts),
                detail::CountKernel<S>{on, units, threads.of_team, memory.units});
  device.launch(1, detail::loss_threads, 0,
                detail::SumCounts{memory.units, units.count(), layout.rows, on_device});
}

/// A loss call on a device:
///   loss(gdpo::cuda::On{stream}, batch, normaliser, gradient, result, scratch);
/// batch, gradient: as on the host, with device pointers in all views. normaliser: counts that the host knows, or those that
/// count_into() left on the device. result: on the device. Two launches: one block a unit of rows, and the sum of the units.
///
/// gradient: at level::Token the bits of a host with FMA: everything goes through the same functions, and explicit fma
/// leaves the compiler nothing to contract (kernels that are compiled with -ftz=true or -use_fast_math are not promised that). At levels of
/// segments within 2 ulp of float (in a batch of double 1e-10 of the largest): the log ratios are added in another order. Loss and
/// metrics: sums of the same terms in the order of cuda/loss/rows.hpp, 1e-6 of the sum of the |terms| from the host's; the same bits from
/// run to run, for any grid, padded or packed.
/// Policies of your own need GDPO_DEVICE (or __host__ __device__) on their operators. What runtime::loss gives is a loss like any
/// other, with kernels for each level; one with a KL term needs more registers than a named composition.
/// Errors: invalid_input as on the host, before anything is enqueued, but for what only the data says: offsets that decrease (their rows
/// become shorter) and a count of 0 (the weight of every row is then 0). cuda::error where a launch fails.
template <class Device, class Loss, class S>
void evaluate(const Device& device, const Loss& loss, const TokenBatch<S>& batch,
              const DeviceNormaliser& normaliser, const std::common_type_t<TokenOut<S>>& gradient,
              LossResult* result, const Scratch& scratch) {
  static_assert(gdpo::detail::needs_loss<Loss>());
  constexpr const char* function = "gdpo::PolicyLoss";
  const auto layout = gdpo::detail::shape_of(function, batch);
  const auto reads = gdpo::detail::check_loss(function, loss, batch, layout);
  if (normaliser.known()) gdpo::detail::check_normaliser(function, *normaliser.known());
  const index_t shape[3] = {batch.logp.extent(0), batch.logp.extent(1), batch.logp.extent(2)};
  gdpo::detail::check_tokens(function, "gradient", gradient, batch.logp.rank(), shape);
  if (!result) contract::fail(function, "result", "no memory", "a LossResult on the device");
  const detail::DeviceBatch<S> on(function, batch, layout, reads);
  const detail::DeviceOut<S> out(function, "gradient", gradient);
  const detail::RowUnits units(layout.rows);
  const auto memory = detail::take_memory<detail::LossMemory>(function, scratch, units);
  const detail::RowThreads threads(units, layout, device.tuning());
  const auto launch = [&](auto shape_of_rows) {
    using Kernel = detail::LossKernel<decltype(shape_of_rows), S, Loss>;
    const Kernel kernel{loss, on, out, normaliser, units, threads.of_team, memory.tallies};
    device.launch(units.count(), threads.of_block,
                  static_cast<std::size_t>(units.runs()) * sizeof(typename Kernel::State), kernel);
  };
  using gdpo::detail::General, gdpo::detail::Plain;
  const gdpo::detail::PlainRows rows = detail::plain_rows(loss, on, out);
  if (!rows.plain) {
    launch(General{});
  } else if constexpr (std::is_same_v<decltype(Loss::kl), Kls<>>) {
    launch(Plain<true, false>{});
  } else if (rows.with_kl) {
    launch(Plain<true, true>{});
  } else {
    launch(Plain<true, false>{});
  }
  using Finish = detail::FinishLoss<decltype(Loss::metrics)>;
  device.launch(1, Finish::largest_block, Finish::spans * sizeof(detail::Tally),
                Finish{memory.tallies, units.count(), normaliser,
                       gdpo::detail::traits_of(loss, batch, reads), result});
}

}  // namespace cuda
GDPO_END_NAMESPACE
