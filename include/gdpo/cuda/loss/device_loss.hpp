#pragma once
// The call of a policy loss on a device.
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/loss/finish_loss.hpp>
#include <gdpo/cuda/loss/loss_kernel.hpp>
#include <gdpo/cuda/tokens/device_count.hpp>
#include <gdpo/loss/shared/check_loss.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Scratch arrays of a loss call.
using LossMemory = TallyMemory<Tally>;

/// scratch_bytes() of any loss.
template <class S>
std::size_t loss_bytes(const char* function, const TokenBatch<S>& batch) {
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::No);
  return bytes_of<LossMemory>(RowUnits(layout.rows));
}

/// Whether the rows are of a Plain shape (loss/shared/row_shape.hpp) and, as the kernel's vector
/// accesses need, the tokens of each row stand side by side as S, masks as bytes.
template <class S, class Loss>
gdpo::detail::PlainRows plain_rows(const Loss& loss, const DeviceBatch<S>& b,
                                   const DeviceOut<S>& gradient, const DeviceOut<S>& entropies) {
  const auto dense = [](const auto& tokens, StoredAs type) {
    return tokens.type == type && tokens.shape.step == 1;
  };
  gdpo::detail::PlainRows rows = gdpo::detail::plain_rows(loss.kl, arrays_of(b));
  b.for_each_array([&](const DeviceTokens<S>& tokens) {
    rows.plain = rows.plain && dense(tokens, stored_as<S>());
  });
  rows.plain = rows.plain && b.advantages && !b.segments &&
               (!b.mask || dense(b.mask, StoredAs::UInt8)) &&
               (!gradient || gradient.shape.step == 1) && !entropies;
  return rows;
}

/// The arrays that the loss reads. Throws unless it takes the batch and, where the host knows them,
/// the counts.
template <class Loss, class S>
gdpo::detail::TokenReads check_call(const char* function, const Loss& loss,
                                    const TokenBatch<S>& batch,
                                    const gdpo::detail::TokenLayout& layout,
                                    const DeviceNormalizer& normalizer) {
  const auto reads = gdpo::detail::check_loss(function, loss, batch, layout);
  if (const Normalizer* const known = normalizer.known()) {
    const auto check = [&](const auto& aggregate) {
      gdpo::detail::check_step_counts(function, gdpo::detail::over_of(aggregate), *known,
                                      batch.prepared, layout, static_cast<bool>(batch.mask));
    };
    check(loss.aggregate);
    gdpo::detail::for_each_other_aggregate(loss, check);
  }
  return reads;
}

}  // namespace detail

/// Bytes of Scratch that loss(device, batch, ...) needs. The number of rows decides; arrays are not
/// read. A batch of fewer rows needs no more, and no batch more than one of 1024 rows.
/// `function`: the call that messages name.
template <class Loss, class S>
std::size_t scratch_bytes(const Loss&, const TokenBatch<S>& batch,
                          const char* function = "gdpo::cuda::scratch_bytes") {
  static_assert(gdpo::detail::needs_loss<Loss>());
  return detail::loss_bytes(function, batch);
}

/// A loss call on a device: any PolicyLoss, its gradient, and its metrics.
///
///     loss(gdpo::cuda::On{stream}, batch, normalizer, gradient, result, scratch);
///
/// **Arguments.** `batch` and `gradient` are as on the host (gdpo/loss.hpp), with device pointers
/// in all views. `normalizer`: counts that the host knows, or a pointer to those that count_into()
/// left on the device. `result`: one LossResult on the device. `scratch`: scratch_bytes(loss,
/// batch). Two launches: one block for each unit of rows, then the sum of the units; three with
/// more than 32 units, whose spans are added between.
///
/// **Accuracy.** At level::Token the gradient has the bits of a host with FMA: host and device run
/// the same functions, and explicit fma leaves the compiler nothing to contract. This is not
/// promised for kernels compiled with -ftz=true or -use_fast_math. At levels of segments the log
/// ratios are added in another order: the gradient is within 2 ulp of float, in a batch of double
/// within 1e-10 of its largest entry. Loss and metrics are sums of the host's terms in the order of
/// cuda/tokens/device_rows.hpp; they differ from the host's by at most 1e-6 of the sum of the
/// |terms|. Their bits are the same from run to run, for any grid, padded or packed.
///
/// **Policies.** A policy of your own needs GDPO_DEVICE (or `__host__ __device__`) on its
/// operators. A loss that runtime::loss gives works as well, with kernels for each level; with a KL
/// term it needs more registers than a composition that is known to the compiler.
///
/// **Errors.** invalid_input as on the host, before anything is enqueued; cuda::error where a
/// launch fails. Not checked is what only the data on the device says: offsets that decrease make
/// their rows shorter, and with counts of 0 on the device the weight of every row is 0.
template <class Device, class Loss, class S>
void evaluate(const Device& device, const Loss& loss, const TokenBatch<S>& batch,
              const DeviceNormalizer& normalizer,
              const std::common_type_t<LossGradient<S>>& gradient, LossResult* result,
              const Scratch& scratch) {
  static_assert(gdpo::detail::needs_loss<Loss>());
  constexpr const char* function = "gdpo::PolicyLoss";
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::Yes);
  const auto reads = detail::check_call(function, loss, batch, layout, normalizer);
  gdpo::detail::check_written_tokens(function, "gradient", gradient.logp, layout);
  gdpo::detail::check_written_tokens(function, "gradient.entropies", gradient.entropies, layout);
  if (!result) contract::fail(function, "result", "no memory", "a LossResult on the device");
  const detail::DeviceBatch<S> on(function, batch, layout, reads);
  const detail::DeviceOut<S> out(function, "gradient", gradient.logp),
      entropies(function, "gradient.entropies", gradient.entropies);
  const auto launch_units = [&](const detail::RowUnits& units, const detail::RowThreads& threads,
                                detail::Tally* tallies) {
    const auto launch = [&](auto shape_of_rows) {
      using Kernel = detail::LossKernel<decltype(shape_of_rows), S, Loss>;
      const Kernel kernel{loss, on, out, entropies, normalizer, units, threads.of_team, tallies};
      device.launch(units.count(), threads.of_block,
                    static_cast<std::size_t>(units.runs()) * sizeof(typename Kernel::State),
                    kernel);
    };
    using gdpo::detail::General, gdpo::detail::Plain;
    if constexpr (gdpo::detail::general_rows_v<decltype(Loss::surrogate)>) {
      launch(General{});
    } else {
      const gdpo::detail::PlainRows rows = detail::plain_rows(loss, on, out, entropies);
      if (!rows.plain) {
        launch(General{});
      } else if constexpr (std::is_same_v<decltype(Loss::kl), Kls<>>) {
        launch(Plain<true, false>{});
      } else if (rows.with_kl) {
        launch(Plain<true, true>{});
      } else {
        launch(Plain<true, false>{});
      }
    }
  };
  detail::run_rows<detail::Tally>(
      device, function, layout, normalizer, scratch, launch_units,
      detail::WriteLossResult<std::remove_const_t<decltype(Loss::metrics)>>{
          gdpo::detail::traits_of(loss, batch, reads), batch.prepared.on_device, result});
}

}  // namespace cuda
GDPO_END_NAMESPACE
