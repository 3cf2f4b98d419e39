#pragma once
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Gives weight 0 to the rows whose flag is not 0.
template <class S>
void drop_rows(const PrepassArgs<S>& args, const Column& dropped, const char* name) {
  const PrepassRows<S>& rows = args.rows;
  check_rows("gdpo::prepare", name, dropped, rows.size());
  if (!dropped && rows.size() > 0)
    contract::fail("gdpo::prepare", name, "no column", "one flag for each row (not 0: dropped)");
  for (index_t i = 0; i < rows.size(); ++i) {
    if (math::is_zero(dropped(i))) continue;
    std::fill_n(args.weights_of(i), rows(i).length, 0.0);
  }
}

}  // namespace detail
namespace prepass {

/// Drops the rows whose completion reached the length limit.
///
/// DAPO's overlong filtering (arXiv 2503.14476); TRL mask_truncated_completions, ms-swift
/// overlong_filter. If every completion is truncated, the batch has no valid token and its loss is
/// 0.
struct Overlong {
  Column truncated{};                ///< (B) Not 0: the row is dropped. Required.
  Reach reach = Reach::Denominator;  ///< What the decision acts on.
  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::drop_rows(args, truncated, "prepass::Overlong::truncated");
  }
};

/// Drops the rows of degenerate groups: those whose combined rewards are all equal.
///
/// With Reach::None, the default, they stay. With Reach::Surrogate only the KL terms still act on
/// them, and all counts stay. With Reach::SurrogateAndKl they leave the KL terms as well, and with
/// Reach::Denominator also the count of tokens and Normaliser::non_empty_rows.
struct DegenerateGroups {
  /// (B) Not 0: the row is dropped. From the report of gdpo::advantages:
  /// `gdpo::per_row(groups, rows, report.degenerate)`. Required unless reach is None.
  Column degenerate{};
  Reach reach = Reach::None;  ///< What the decision acts on.
  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::drop_rows(args, degenerate, "prepass::DegenerateGroups::degenerate");
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
