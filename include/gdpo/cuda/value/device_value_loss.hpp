#pragma once
// The call of a value loss on a device, and the counts of its batch.
#include <gdpo/cuda/tokens/device_count.hpp>
#include <gdpo/cuda/value/value_kernel.hpp>
#include <gdpo/value/shared/check_value_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// Bytes of Scratch that count_into(device, batch, ...) needs: never more than the value loss of
/// the same batch needs. The number of rows decides; arrays are not read.
template <class S>
std::size_t scratch_bytes(const ValueBatch<S>& batch) {
  const auto layout =
      gdpo::detail::shape_of("gdpo::cuda::scratch_bytes", batch, gdpo::detail::NeedsLogp::No);
  return detail::bytes_of<detail::CountMemory>(detail::RowUnits(layout.rows));
}
/// Bytes of Scratch that loss(device, batch, ...) needs. The number of rows decides; arrays are not
/// read. A batch of fewer rows needs no more, and no batch more than one of 1024 rows.
template <class Aggregate, class Metrics, class S>
std::size_t scratch_bytes(const ValueLoss<Aggregate, Metrics>&, const ValueBatch<S>& batch) {
  const auto layout =
      gdpo::detail::shape_of("gdpo::cuda::scratch_bytes", batch, gdpo::detail::NeedsLogp::No);
  return detail::bytes_of<detail::TallyMemory<detail::ValueTally>>(detail::RowUnits(layout.rows));
}

/// The counts of a batch on the device, written to `on_device`: count(batch) without a copy to the
/// host. Everything else is as for a TokenBatch (cuda/tokens/device_count.hpp).
template <class Device, class S, std::enable_if_t<gdpo::detail::is_device_v<Device>, int> = 0>
void count_into(const Device& device, const ValueBatch<S>& batch, Normalizer* on_device,
                const Scratch& scratch) {
  constexpr const char* function = "gdpo::cuda::count_into";
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::No);
  const detail::DeviceBatch<S> on(function,
                                  detail::DeviceValues<S>::marks_of(function, batch, layout),
                                  layout, gdpo::detail::TokenReads::none());
  detail::count_rows(device, function, on, layout, on_device, scratch);
}

/// A value loss on a device: any ValueLoss, its gradient by the values, and its metrics.
///
///     loss(gdpo::cuda::On{stream}, batch, normalizer, gradient, result, scratch);
///
/// **Arguments.** `batch` and `gradient` are as on the host (value/value_loss.hpp), with device
/// pointers in all views; `gdpo::TokenOut<S>{}` is no gradient. `normalizer`: counts that the host
/// knows, or a pointer to those that count_into() left on the device. `result`: one ValueLossResult
/// on the device. `scratch`: scratch_bytes(loss, batch). Two launches: one block for each unit of
/// rows, then the sum of the units; three with more than 32 units, whose spans are added between.
///
/// **Accuracy.** The gradient has the bits of the host, and so have counts and ranges. Loss and
/// metrics are sums of the host's terms in the order of cuda/tokens/device_rows.hpp; they differ
/// from the host's by at most 1e-6 of the sum of the |terms|. Their bits are the same from run to
/// run, for any grid, padded or packed. None of this is promised for kernels compiled with
/// -ftz=true or -use_fast_math.
///
/// **Errors.** invalid_input as on the host, before anything is enqueued; cuda::error where a
/// launch fails. Not checked is what only the data on the device says: offsets that decrease make
/// their rows shorter, and with counts of 0 on the device the weight of every row is 0.
template <class Device, class Aggregate, class Metrics, class S>
void evaluate(const Device& device, const ValueLoss<Aggregate, Metrics>& loss,
              const ValueBatch<S>& batch, const DeviceNormalizer& normalizer,
              const std::common_type_t<TokenOut<S>>& gradient, ValueLossResult* result,
              const Scratch& scratch) {
  using Loss = ValueLoss<Aggregate, Metrics>;
  constexpr const char* function = "gdpo::ValueLoss";
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::Yes);
  gdpo::detail::check_value_loss(function, loss, batch, layout);
  const index_t over = gdpo::detail::over_of(loss.aggregate);
  if (const Normalizer* const known = normalizer.known()) {
    gdpo::detail::check_step_counts(function, over, *known, Prepared{}, layout,
                                    static_cast<bool>(batch.mask));
  }
  gdpo::detail::check_written_tokens(function, "gradient", gradient, layout);
  if (!result) contract::fail(function, "result", "no memory", "a ValueLossResult on the device");
  const bool clips = gdpo::detail::clips<S>(loss.clip);
  const detail::DeviceValues<S> on(function, batch, layout, clips);
  const detail::DeviceOut<S> out(function, "gradient", gradient);
  const auto launch_units = [&](const detail::RowUnits& units, const detail::RowThreads& threads,
                                detail::ValueTally* tallies) {
    const auto launch = [&](auto is_plain, auto has_clip) {
      using Kernel =
          detail::ValueKernel<decltype(is_plain)::value, decltype(has_clip)::value, S, Loss>;
      const Kernel kernel{loss, on, out, normalizer, units, threads.of_team, tallies};
      device.launch(units.count(), threads.of_block,
                    static_cast<std::size_t>(units.runs()) * sizeof(typename Kernel::State),
                    kernel);
    };
    const auto by_clip = [&](auto is_plain) {
      clips ? launch(is_plain, std::true_type{}) : launch(is_plain, std::false_type{});
    };
    on.is_plain(out) ? by_clip(std::true_type{}) : by_clip(std::false_type{});
  };
  detail::run_rows<detail::ValueTally>(device, function, layout, normalizer, scratch, launch_units,
                                       detail::WriteValueLossResult{over, result});
}

}  // namespace cuda
GDPO_END_NAMESPACE
