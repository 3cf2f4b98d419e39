#pragma once
// The operators of mismatch(): a report of sampler and trainer, its merge, and its numbers.
#include <cstddef>
#include <cstring>
#include <gdpo/mismatch.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/batch.hpp>
#include <gdpo/with/torch_stable/result.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// A report as its bytes, a uint8 tensor of rank 1: sums keep all their digits, so that merges have
/// the same bits in any order.
inline Tensor bytes_of(const MismatchReport& report) {
  Tensor tensor =
      new_tensor("gdpo::mismatch", {static_cast<std::int64_t>(sizeof report)}, ScalarType::Byte);
  auto* const bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  std::memcpy(bytes, &report, sizeof report);
  // The bytes behind the settings mean nothing; 0, so that equal reports have equal bytes.
  constexpr std::size_t last = offsetof(MismatchSettings, empty_rows) + sizeof(bool);
  std::memset(bytes + last, 0, sizeof(MismatchSettings) - last);
  return tensor;
}
/// The report that a tensor of bytes_of() holds.
inline MismatchReport mismatch_from(const char* function, const char* name, const Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(sizeof(MismatchReport));
  if (tensor.scalar_type() != ScalarType::Byte || tensor.numel() != size ||
      !tensor.is_contiguous()) {
    contract::fail(
        function, name,
        "another tensor, of " + contract::text(static_cast<index_t>(tensor.numel())) + " elements",
        "the uint8 tensor of " + contract::text(static_cast<index_t>(size)) +
            " elements that mismatch returned");
  }
  MismatchReport report;
  std::memcpy(&report, tensor.const_data_ptr(), sizeof report);
  return report;
}

template <class S>
MismatchReport mismatch_of(const MismatchSettings& settings, index_t first_row,
                           GDPO_TORCH_PARAMETERS) {
  return gdpo::mismatch(batch_of<S>("gdpo::mismatch", GDPO_TORCH_NAMES), settings, first_row);
}

/// The keys of that name.
inline MismatchKeys mismatch_keys(const char* function, const std::string& keys) {
  MismatchKeys chosen{};
  runtime::detail::ReadSetting{function, "keys", keys}(chosen);
  return chosen;
}

/// The settings of a call: those of `keys` with `bound`, changed by a line of members.
inline MismatchSettings mismatch_settings_of(const char* function, const std::string& keys,
                                             double bound, const std::string& settings) {
  MismatchSettings s;
  s = keys.empty() ? mismatch_settings_of_bound(bound)
                   : mismatch_settings(mismatch_keys(function, keys), bound);
  runtime::detail::Words next{settings};
  runtime::detail::apply_settings(function, s, next(), next);
  return s;
}
/// Every number of a report under its own name: counts, metrics, and extremes with their places.
inline std::map<std::string, double> numbers_by_name(const MismatchReport& report) {
  std::map<std::string, double> numbers;
#define GDPO_X(name, ...) numbers[#name] = static_cast<double>(report.name);
  GDPO_MISMATCH_COUNTS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) numbers[#name] = report.name();
  GDPO_MISMATCH_METRICS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...)                                       \
  numbers[#name] = report.name.value;                           \
  numbers[#name ".row"] = static_cast<double>(report.name.row); \
  numbers[#name ".token"] = static_cast<double>(report.name.token);
  GDPO_MISMATCH_EXTREMES(GDPO_X)
#undef GDPO_X
  return numbers;
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* mismatch_schema =
    "mismatch(str keys, float bound, str settings, int first_row, " GDPO_TORCH_SCHEMA ") -> Tensor";
/// The mismatch report of a batch (gdpo/mismatch.hpp), as bytes for merge_mismatch and
/// mismatch_map.
///
/// `keys`: whose conventions, a word of MismatchKeys (mismatch_settings); empty: the defaults of
/// MismatchSettings. `bound`: ratios above it and below 1 / bound are counted. `settings`: a line
/// of its members. `first_row`: what is added to the rows of extremes. The other arguments are the
/// members of TokenBatch. Errors: those of gdpo::mismatch, and `invalid_input` for unknown words.
inline Tensor mismatch(const std::string& keys, double bound, const std::string& settings,
                       std::int64_t first_row, GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::mismatch";
  const auto run = detail::reads_doubles(logp, old_logp) ? detail::mismatch_of<double>
                                                         : detail::mismatch_of<float>;
  return detail::bytes_of(run(detail::mismatch_settings_of(function, keys, bound, settings),
                              static_cast<index_t>(first_row), GDPO_TORCH_NAMES));
}

/// What an operator of this name declares.
inline constexpr const char* merge_mismatch_schema = "merge_mismatch(Tensor a, Tensor b) -> Tensor";
/// merge() of the reports of two micro-batches or ranks, in any order with the same bits.
inline Tensor merge_mismatch(const Tensor& a, const Tensor& b) {
  constexpr const char* function = "gdpo::merge_mismatch";
  return detail::bytes_of(
      merge(detail::mismatch_from(function, "a", a), detail::mismatch_from(function, "b", b)));
}

/// What an operator of this name declares.
inline constexpr const char* mismatch_map_schema =
    "mismatch_map(Tensor report, str keys, str prefix, int positions) -> (str, Tensor)";
/// The numbers of a report: the keys, one a line, and their values. `keys`: whose, a word of
/// MismatchKeys (MismatchReport::to_map); empty: all numbers under their own names.
inline std::tuple<std::string, Tensor> mismatch_map(const Tensor& report, const std::string& keys,
                                                    const std::string& prefix,
                                                    std::int64_t positions) {
  constexpr const char* function = "gdpo::mismatch_map";
  const MismatchReport r = detail::mismatch_from(function, "report", report);
  if (!keys.empty()) {
    return detail::lines_of(
        r.to_map(detail::mismatch_keys(function, keys), prefix, static_cast<index_t>(positions)));
  }
  std::map<std::string, double> numbers;
  for (const auto& [name, number] : detail::numbers_by_name(r)) numbers[prefix + name] = number;
  return detail::lines_of(numbers);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
