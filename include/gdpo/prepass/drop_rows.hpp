#pragma once
// Pre-passes that leave whole rows out: truncated completions, and groups whose rewards are equal.
#include <gdpo/prepass/engine/row_lanes.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Throws unless there is a flag for each row. Error messages call that column `name`.
inline void check_flags(const Column& dropped, const TokenLayout& layout, const char* name) {
  check_rows("gdpo::prepare", name, dropped, layout);
  if (!dropped && layout.rows > 0)
    contract::fail("gdpo::prepare", name, "no column", "one flag for each row (not 0: dropped)");
}
/// The weights of n rows: 0 for every token of those whose entry in `dropped` is not 0.
template <class S>
void drop_rows(const Column& dropped, const TokenRow<S>* rows, int n, RowWeights* weights) {
  for (int r = 0; r < n; ++r)
    weights[r] = weight_of_row(math::is_zero(dropped(rows[r].row)) ? 1.0 : 0.0);
}

}  // namespace detail
namespace prepass {

/// Drops the rows whose completion was cut off at the length limit, because the reward of an
/// unfinished answer can mislead.
///
/// DAPO calls this overlong filtering (arXiv 2503.14476), TRL mask_truncated_completions and
/// ms-swift overlong_filter. With Reach::Mask, the default, the tokens of the dropped rows
/// leave the batch. If every completion was cut off, no valid token is left, and the loss is 0.
struct Overlong {
  /// (B), one entry for each row. A row whose entry is not 0 is dropped. Required unless reach is
  /// None.
  Column truncated{};
  Reach reach = Reach::Mask;  ///< What the dropped rows are left out of.
  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::write_by_rows(*this, args);
  }
  /// Checks the column.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision&) const {
    detail::check_flags(truncated, rows.layout(), argument);
  }
  /// The weights of n rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision&, const TokenRow<S>* rows, int n, double* const*,
                  detail::RowWeights* weights) const {
    detail::drop_rows(truncated, rows, n, weights);
  }
  static constexpr const char* argument = "overlong.truncated";  ///< The column, in messages.
  static constexpr const char* name = "overlong";                ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("truncated", s.truncated, "marks the rows to drop");
    field("reach", s.reach, "what the dropped rows are left out of");
  }
  /// Throws for Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_level(reach, function, path);
  }
};

/// Drops the rows of degenerate groups, unless `reach` is None, the default. A group is degenerate
/// if its combined rewards are all equal.
///
/// With Reach::Surrogate the rows leave the surrogate, but the KL terms still act on them and all
/// counts stay. With Reach::SurrogateAndKl they leave the KL terms as well. With Reach::Mask
/// they also leave the count of tokens and Normalizer::non_empty_rows.
struct DegenerateGroups {
  /// (B), one entry for each row. A row whose entry is not 0 is dropped. The report of
  /// gdpo::advantages gives the column: `gdpo::per_row(groups, rows, report.degenerate)`. Required
  /// unless reach is None.
  Column degenerate{};
  Reach reach = Reach::None;  ///< What the dropped rows are left out of.
  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    detail::write_by_rows(*this, args);
  }
  /// Checks the column.
  template <class V, class S>
  void begin(const PrepassRows<S>& rows, detail::BatchDecision&) const {
    detail::check_flags(degenerate, rows.layout(), argument);
  }
  /// The weights of n rows.
  template <class V, class S>
  void write_rows(const detail::BatchDecision&, const TokenRow<S>* rows, int n, double* const*,
                  detail::RowWeights* weights) const {
    detail::drop_rows(degenerate, rows, n, weights);
  }
  /// The column, in messages.
  static constexpr const char* argument = "degenerate_groups.degenerate";
  static constexpr const char* name = "degenerate_groups";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("degenerate", s.degenerate, "marks the rows to drop");
    field("reach", s.reach, "what the dropped rows are left out of");
  }
  /// Throws for Reach::Level.
  void check_together(const char* function, const detail::FieldPath& path) const {
    detail::refuse_level(reach, function, path);
  }
};

}  // namespace prepass
GDPO_END_NAMESPACE
