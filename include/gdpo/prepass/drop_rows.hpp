#pragma once
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

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

/// Rows that hit the length limit leave the loss: DAPO's overlong filtering (arXiv 2503.14476); TRL
/// mask_truncated_completions, ms-swift overlong_filter. Where every completion is truncated the loss is 0, counted as an
/// empty batch. `truncated` (B): not 0: truncated.
struct Overlong {
  Column truncated{};
  Reach reach = Reach::Denominator;
  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::drop_rows(args, truncated, "prepass::Overlong::truncated");
  }
};

/// Rows of groups whose advantages are all 0. None: they stay; Surrogate: only the KL term still pulls them; Denominator: they
/// leave the counts of tokens too, and with Over::NonEmptyRows those of rows. `degenerate` (B), one flag a row:
/// per_row(groups, rows, report.degenerate).
struct DegenerateGroups {
  Column degenerate{};
  Reach reach = Reach::None;
  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::drop_rows(args, degenerate, "prepass::DegenerateGroups::degenerate");
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
