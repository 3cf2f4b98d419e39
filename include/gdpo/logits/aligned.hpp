#pragma once
// From the logits and ids of whole sequences to rows with their targets.
#include <gdpo/logits/batch.hpp>

GDPO_BEGIN_NAMESPACE

/// Whole sequences, padded: row t of the logits predicts token t + 1. logits[:, :-1], input_ids[:, 1:] and mask[:, 1:], the mask
/// of the tokens (attention, or completion); none: all.
template <class T, class Id, class M>
LogitBatch<std::remove_const_t<T>, 3> aligned(View<T, 3> logits, View<Id, 2> input_ids,
                                              View<M, 2> mask) {
  constexpr const char* function = "gdpo::aligned";
  const auto check = [&](const char* name, const index_t* extent) {
    if (extent[0] == logits.extent[0] && extent[1] == logits.extent[1]) return;
    contract::fail(
        function, name, contract::shape(2, extent),
        contract::shape(2, logits.extent) + ", the shape of logits without the vocabulary");
  };
  check("input_ids", input_ids.extent);
  if (mask) check("mask", mask.extent);
  LogitBatch<std::remove_const_t<T>, 3> batch;
  const index_t shift = logits.extent[1] > 0 ? 1 : 0;
  const auto later = [shift](auto tokens) {
    tokens.data += shift * tokens.stride[1];
    tokens.extent[1] -= shift;
    return tokens;
  };
  batch.logits = logits;
  batch.logits.extent[1] -= shift;
  batch.targets = later(input_ids);
  if (mask) batch.mask = later(mask);
  return batch;
}
template <class T, class Id>
LogitBatch<std::remove_const_t<T>, 3> aligned(View<T, 3> logits, View<Id, 2> input_ids) {
  return aligned(logits, input_ids, View<const unsigned char, 2>{});
}

/// Whole sequences, packed: sequence s is rows offsets[s] .. offsets[s + 1] - 1 of the logits (N, V), ids and mask (N). Row i
/// predicts token i + 1, the last row of a sequence nothing: the batch has all N rows, and that mask is 0.
template <class T, class Id, class M>
LogitBatch<std::remove_const_t<T>, 2> aligned(View<T, 2> logits, View<Id, 1> input_ids,
                                              IndexColumn offsets, View<M, 1> mask) {
  constexpr const char* function = "gdpo::aligned";
  const auto check = [&](const char* name, index_t n) {
    if (n == logits.extent[0]) return;
    contract::fail(function, name, contract::text(n) + " entries",
                   "one for each of the " + contract::text(logits.extent[0]) + " rows of logits");
  };
  check("input_ids", input_ids.extent[0]);
  if (mask) check("mask", mask.extent[0]);
  if (!offsets)
    contract::fail(function, "offsets", "none", "where the sequences begin and end, (B + 1)");
  // The last entry of the shifted views is not one of the caller's: it belongs to the last row, and is never read.
  LogitBatch<std::remove_const_t<T>, 2> batch;
  const auto later = [](auto tokens) {
    if (tokens.extent[0] > 0) tokens.data += tokens.stride[0];
    return tokens;
  };
  batch.logits = logits;
  batch.targets = later(input_ids);
  if (mask) batch.mask = later(mask);
  batch.offsets = offsets;
  return batch;
}
template <class T, class Id>
LogitBatch<std::remove_const_t<T>, 2> aligned(View<T, 2> logits, View<Id, 1> input_ids,
                                              IndexColumn offsets) {
  return aligned(logits, input_ids, offsets, View<const unsigned char, 1>{});
}

GDPO_END_NAMESPACE
