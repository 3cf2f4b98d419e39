#pragma once
// MismatchSettings: bounds and conventions of a mismatch report.
#include <gdpo/math/check_fields.hpp>

namespace gdpo {  // plain data, which is sent between ranks

/// Bounds and conventions of mismatch(). A report keeps its settings; reports merge only if they
/// have the same.
struct MismatchSettings {
  /// Bounds of the ratio of a token, old / rollout; below and above them tokens are counted. 0.5
  /// and 2 are those of verl's rollout_is_threshold = 2.
  double token_low = 0.5,
         token_high = 2;  ///< See token_low.
  /// The same for the ratios of rows: their product, geometric mean and mean.
  double row_low = 0.5,
         row_high = 2;  ///< See row_low.
  /// Log ratios of tokens and rows are cut to -clamp .. clamp, in nats, before their exponential
  /// becomes a ratio. verl, ms-swift and SkyRL: 20. Infinite: off; ratios then end at e^700.
  double clamp = 20;
  /// Added to the number of tokens that a mean over tokens, of the batch or of a row, is divided
  /// by. verl: 1e-8.
  double count_eps = 0;
  /// Added to the mean weight that an effective sample size divides by. verl, ms-swift: 1e-8.
  double ess_eps = 0;
  /// Whether rows without a token count in everything that is of rows: with log-perplexity 0,
  /// perplexity 1, ratio 1 (product and geometric mean), mean ratio 0 and mean weight 0. verl and
  /// ms-swift count them; by default they do not.
  bool empty_rows = false;

  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("token_low", s.token_low, at_least(0), "ratios of tokens below it are counted");
    field("token_high", s.token_high, at_least(0).or_infinity(),
          "ratios of tokens above it are counted");
    field("row_low", s.row_low, at_least(0), "ratios of rows below it are counted");
    field("row_high", s.row_high, at_least(0).or_infinity(), "ratios of rows above it are counted");
    field("clamp", s.clamp, more_than(0).or_infinity(), "bound of log ratios, in nats");
    field("count_eps", s.count_eps, at_least(0), "added to the number of tokens of a mean");
    field("ess_eps", s.ess_eps, at_least(0), "added to the mean weight of sample sizes");
    field("empty_rows", s.empty_rows, "rows without a token count among the rows");
  }
  /// Throws unless the lower bounds are at most the upper ones.
  template <class Path>
  void check_together(const char* function, const Path& path) const;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether both reports may merge.
inline bool same_settings(const MismatchSettings& a, const MismatchSettings& b) {
  return a.token_low == b.token_low && a.token_high == b.token_high && a.row_low == b.row_low &&
         a.row_high == b.row_high && a.clamp == b.clamp && a.count_eps == b.count_eps &&
         a.ess_eps == b.ess_eps && a.empty_rows == b.empty_rows;
}
/// The settings in words, for messages.
GDPO_COLD inline std::string settings_in_words(const MismatchSettings& s) {
  std::string words;
  MismatchSettings::fields(s, [&](const char* name, const auto& member, const auto&...) {
    words += (words.empty() ? "" : ", ") + std::string(name) + " " +
             contract::text(static_cast<double>(member));
  });
  return words;
}

}  // namespace detail
GDPO_END_NAMESPACE

namespace gdpo {
template <class Path>
void MismatchSettings::check_together(const char* function, const Path& path) const {
  for (const bool tokens : {true, false}) {
    const double low = tokens ? token_low : row_low, high = tokens ? token_high : row_high;
    if (low <= high) continue;
    contract::fail(function, path.text(tokens ? "token_low" : "row_low"), contract::text(low),
                   "at most " + path.text(tokens ? "token_high" : "row_high"));
  }
}
}  // namespace gdpo
