#pragma once
#include <gdpo/prepass/prepare.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

template <class S>
void drop_rows(const PrepassRows<S>& rows, const Column& dropped, const char* name, double* weights) {
  check_rows("gdpo::prepare", name, dropped, rows.size());
  if (!dropped && rows.size() > 0)
    contract::fail("gdpo::prepare", name, "no column", "one flag for each row (not 0: dropped)");
  for (index_t i = 0; i < rows.size(); ++i) {
    if (math::is_zero(dropped(i))) continue;
    const index_t begin = rows.begin(i), length = rows(i).length;
    std::fill(weights + begin, weights + begin + length, 0.0);
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
  void operator()(const PrepassRows<S>& rows, double* weights) const {
    detail::drop_rows(rows, truncated, "prepass::Overlong::truncated", weights);
  }
};

/// Rows of groups whose advantages are all 0. None: they stay; Surrogate: only the KL term still pulls them; Denominator: they
/// leave the counts of tokens too, and with Over::NonEmptyRows those of rows. `degenerate` (B), one flag a row:
/// per_row(groups, rows, report.degenerate).
struct DegenerateGroups {
  Column degenerate{};
  Reach reach = Reach::None;
  template <class S>
  void operator()(const PrepassRows<S>& rows, double* weights) const {
    detail::drop_rows(rows, degenerate, "prepass::DegenerateGroups::degenerate", weights);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
