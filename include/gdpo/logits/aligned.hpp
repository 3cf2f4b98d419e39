#pragma once
// Batches of logits from whole sequences, in which each row predicts the token that follows.
#include <gdpo/logits/logits_batch.hpp>

GDPO_BEGIN_NAMESPACE

namespace detail {

/// The tokens of whole padded sequences but the first of each: those that rows of logits predict.
template <class T>
View<T, 2> later(View<T, 2> tokens) {
  const index_t shift = tokens.extent[1] > 0 ? 1 : 0;
  if (tokens.data) tokens.data += shift * tokens.stride[1];
  tokens.extent[1] -= shift;
  return tokens;
}
/// The tokens of packed sequences, each one place earlier. The last row of the last sequence, which
/// predicts nothing, has no entry.
template <class T>
View<T, 1> later(View<T, 1> tokens) {
  const index_t shift = tokens.extent[0] > 0 ? 1 : 0;
  if (tokens.data) tokens.data += shift * tokens.stride[0];
  tokens.extent[0] -= shift;
  return tokens;
}
[[noreturn]] GDPO_COLD inline void fail_without_offsets(const char* function) {
  contract::fail(function, "offsets", "none", "where the sequences begin and end, (B + 1)");
}

}  // namespace detail

/// A LogitBatch of whole padded sequences: row t of the logits predicts token t + 1. The result
/// views logits[:, :-1], input_ids[:, 1:] and mask[:, 1:], as a trainer in PyTorch slices them;
/// nothing is copied.
///
/// logits: (B, T, V). input_ids: (B, T), int32 or int64, the tokens of the same positions. mask:
/// (B, T), the completion mask (or attention mask) of those tokens, 0: not predicted.
/// Errors: `invalid_input` if input_ids or mask have another shape.
template <class T, class Id, class M>
LogitBatch<std::remove_const_t<T>, 3> aligned(View<T, 3> logits, View<Id, 2> input_ids,
                                              View<M, 2> mask) {
  constexpr const char* function = "gdpo::aligned";
  contract::check_extents(function, "logits", 3, logits.extent);
  contract::check_array(function, "input_ids", input_ids);
  const auto check = [&](const char* name, const index_t* extent) {
    if (extent[0] == logits.extent[0] && extent[1] == logits.extent[1]) return;
    contract::fail(
        function, name, contract::shape(2, extent),
        contract::shape(2, logits.extent) + ", the shape of logits without the vocabulary");
  };
  check("input_ids", input_ids.extent);
  if (mask) check("mask", mask.extent);
  LogitBatch<std::remove_const_t<T>, 3> batch;
  batch.logits = logits;
  batch.logits.extent[1] = detail::later(input_ids).extent[1];
  batch.targets = detail::later(input_ids);
  if (mask) batch.mask = detail::later(mask);
  return batch;
}
/// The same from the completion mask (B, T) alone, without logits and targets: a batch that can be
/// counted before the forward pass, as `count(aligned(completion_mask))`.
template <class M>
LogitBatch<float, 3> aligned(View<M, 2> mask) {
  contract::check_array("gdpo::aligned", "mask", mask);
  LogitBatch<float, 3> batch;
  const View<M, 2> later_mask = detail::later(mask);
  batch.logits.extent[0] = later_mask.extent[0], batch.logits.extent[1] = later_mask.extent[1];
  batch.mask = later_mask;
  return batch;
}
/// The same without a mask: every token but the first of its sequence is predicted.
template <class T, class Id>
LogitBatch<std::remove_const_t<T>, 3> aligned(View<T, 3> logits, View<Id, 2> input_ids) {
  return aligned(logits, input_ids, View<const unsigned char, 2>{});
}

/// A LogitBatch of whole packed sequences: row i of the logits predicts token i + 1. The last row
/// of each sequence predicts nothing. The result keeps all N rows and treats that row as if its
/// mask were 0.
///
/// logits: (N, V). input_ids: (N), int32 or int64. offsets: (B + 1); sequence s is the rows
/// offsets[s] .. offsets[s + 1] - 1. mask: (N), 0: the token is not predicted.
/// Errors: `invalid_input` if input_ids or mask have another length, or offsets are absent. The
/// calls that take the batch check the values of the offsets.
template <class T, class Id, class M>
LogitBatch<std::remove_const_t<T>, 2> aligned(View<T, 2> logits, View<Id, 1> input_ids,
                                              IndexColumn offsets, View<M, 1> mask) {
  constexpr const char* function = "gdpo::aligned";
  contract::check_extents(function, "logits", 2, logits.extent);
  contract::check_array(function, "input_ids", input_ids);
  const auto check = [&](const char* name, index_t n) {
    if (n == logits.extent[0]) return;
    contract::fail(function, name, contract::text(n) + " entries",
                   "one for each of the " + contract::text(logits.extent[0]) + " rows of logits");
  };
  check("input_ids", input_ids.extent[0]);
  if (mask) check("mask", mask.extent[0]);
  if (!offsets) detail::fail_without_offsets(function);
  LogitBatch<std::remove_const_t<T>, 2> batch;
  batch.logits = logits;
  batch.targets = detail::later(input_ids);
  if (mask) batch.mask = detail::later(mask);
  batch.offsets = offsets;
  return batch;
}
/// The same from the completion mask (N) alone, without logits and targets, to be counted before
/// the forward pass.
template <class M>
LogitBatch<float, 2> aligned(View<M, 1> mask, IndexColumn offsets) {
  contract::check_array("gdpo::aligned", "mask", mask);
  if (!offsets) detail::fail_without_offsets("gdpo::aligned");
  LogitBatch<float, 2> batch;
  batch.logits.extent[0] = mask.extent[0];
  batch.mask = detail::later(mask);
  batch.offsets = offsets;
  return batch;
}
/// The same without a mask.
template <class T, class Id>
LogitBatch<std::remove_const_t<T>, 2> aligned(View<T, 2> logits, View<Id, 1> input_ids,
                                              IndexColumn offsets) {
  return aligned(logits, input_ids, offsets, View<const unsigned char, 1>{});
}

GDPO_END_NAMESPACE
