#pragma once
// The mismatch report on a device.
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/mismatch/add_mismatch.hpp>
#include <gdpo/cuda/mismatch/mismatch_rows.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// Scratch arrays of mismatch_into().
struct MismatchMemory {
  MismatchRow* of_rows;
  MismatchReport* parts;
  MismatchMemory(ScratchCursor& cursor, index_t rows)
      : of_rows(cursor.take<MismatchRow>(rows)),
        parts(cursor.take<MismatchReport>(MismatchParts(rows).count)) {}
};
template <class Device, class Of>
void add_mismatch(const Device& device, const Of* items, index_t count, int parts,
                  const MismatchSettings& settings, MismatchReport* reports) {
  using Kernel = AddMismatch<Of>;
  device.launch(index_t{parts} * Kernel::numbers, Kernel::threads, Kernel::shared_bytes,
                Kernel{items, count, parts, settings, reports});
}

}  // namespace detail

/// Bytes of Scratch that mismatch_into() needs: about 850 for each row, and 9 kB for each 4096 rows
/// of the first 131072. The number of rows decides; arrays are not read.
template <class S>
std::size_t mismatch_bytes(const TokenBatch<S>& batch) {
  const auto layout =
      gdpo::detail::shape_of("gdpo::cuda::mismatch_bytes", batch, gdpo::detail::NeedsLogp::No);
  return detail::bytes_of<detail::MismatchMemory>(layout.rows);
}

/// The mismatch report of a batch on a device, written to `on_device`: mismatch(batch) without a
/// copy to the host.
///
///     gdpo::cuda::Scratch scratch{nullptr, gdpo::cuda::mismatch_bytes(batch)};
///     gdpo::cuda::check("scratch", cudaMalloc(&scratch.data, scratch.bytes));
///     gdpo::cuda::mismatch_into(on, batch, report, scratch);
///     const gdpo::MismatchReport r = gdpo::cuda::to_host(on, report);  // when it is logged
///
/// `batch`, `settings` and `first_row` are those of the host (mismatch/mismatch.hpp), with device
/// pointers in all views and columns: a batch before prepare(on, ...) or after it. `on_device` is
/// device memory for one report, aligned to 16 bytes; all of it is written.
///
/// **Bits.** Those of a host with FMA, byte by byte: the tokens of a row are added in their order,
/// the rows exactly. Reports of device and host merge.
///
/// **Cost.** Two launches, three from 8192 rows on; nothing waits and nothing is allocated. A block
/// computes each row, 96 tokens at a time.
///
/// **Errors.** invalid_input as on the host, before anything is launched, for a batch that has
/// offsets alone and for a scratch that is too small; cuda::error where a launch fails. Offsets in
/// device memory are not checked: those that decrease make rows shorter. Nor are masks that hold
/// labels.
template <class Device, class S, std::enable_if_t<gdpo::detail::is_device_v<Device>, int> = 0>
void mismatch_into(const Device& device, const TokenBatch<S>& batch, MismatchReport* on_device,
                   const Scratch& scratch, const MismatchSettings& settings = {},
                   index_t first_row = 0) {
  constexpr const char* function = "gdpo::mismatch";
  gdpo::detail::check_fields(function, "settings", settings);
  gdpo::detail::check_first_row(function, first_row);
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::No);
  TokenBatch<S> read = gdpo::detail::mismatch_arrays(function, batch, layout.tokens > 0);
  read.completion_mask = batch.completion_mask;
  constexpr auto reads = [] {
    auto arrays = gdpo::detail::TokenReads::none();
    arrays.rollout = true;
    return arrays;
  }();
  const detail::DeviceBatch<S> on(function, read, layout, reads);
  const auto memory = detail::take_memory<detail::MismatchMemory>(function, scratch, layout.rows);
  using Rows = detail::MismatchRows<S>;
  device.launch(layout.rows, Rows::threads, sizeof(typename Rows::Shared),
                Rows{on, settings, first_row, memory.of_rows});
  const int parts = detail::MismatchParts(layout.rows).count;
  detail::add_mismatch(device, memory.of_rows, layout.rows, parts, settings,
                       parts > 1 ? memory.parts : on_device);
  if (parts > 1) detail::add_mismatch(device, memory.parts, parts, 1, settings, on_device);
}

}  // namespace cuda
GDPO_END_NAMESPACE
