#pragma once
// Workspace: memory that calls of advantages keep between steps.
#include <array>
#include <gdpo/advantage/renorm.hpp>
#include <gdpo/advantage/reward_batch.hpp>
#include <gdpo/core/until_moved.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// An index as standard containers take it.
GDPO_INLINE std::size_t as_size(index_t i) { return static_cast<std::size_t>(i); }

/// Memory of one worker, which has one group at hand, or a few side by side. K: members of the
/// longest group.
struct GroupScratch {
  // (K) the values of the column at hand, the combined values so far, and for each the sum of its
  // |terms|; (K, 8) the terms of a block of 8 columns.
  std::vector<double> column, scores, magnitudes, terms;
  std::vector<unsigned char> used, present;  // (K) whether the row is used; whether it has a reward
  // (K) what policies see of the used members: their values, and the columns of the batch.
  std::vector<double> values;
  std::array<std::vector<double>, reward_column_count> columns;
  std::vector<double> policies;  // (K) scratch for policies with per_group_values
  // Of SideBySide: packs of groups; the groups of a unit, and those left to the general path;
  // places in packs whose rows do not count, and scores of such rows.
  std::vector<double> lanes, flagged_scores;
  std::vector<index_t> group_lists, flagged;
  // Cases that the groups of this call have shown so far.
  struct {
    bool raw_singleton = false, uncounted_row = false, refused = false;
  } cases;
};

/// The part of a row in the statistics of the batch.
enum class RowState : unsigned char {
  Counted,   ///< It enters all of them.
  Unused,    ///< valid == 0: it enters none and gets the advantage that its group's moments give.
  Excluded,  ///< It has no reward, whether used or not: it enters none and gets 0.
  /// It is the only used row of its group under Singleton::Exclude: it enters the statistics of
  /// rewards, but no renormalization, and gets 0.
  Lone
};
/// Whether rows in this state get 0 whatever the renormalization is.
GDPO_INLINE constexpr bool gets_zero(RowState state) {
  return state == RowState::Excluded || state == RowState::Lone;
}

/// What is known about the combined values of a call.
struct CombinedValues {
  bool zero_sum = false;   ///< Those of each group sum to 0: their mean need not be subtracted.
  bool every_row = false;  ///< Every row is RowState::Counted.
};

/// Which call of first_stage() the memory belongs to. Every other use of the memory clears it.
struct FirstStage {
  const void *rewards = nullptr, *estimator = nullptr;  // the array; the type (type_mark)
  RenormOver over = RenormOver::None;                   // of its renormalization
  index_t rows = -1, groups = -1;                       // rows -1: it belongs to none

  bool operator==(const FirstStage& o) const {
    return rewards == o.rewards && estimator == o.estimator && over == o.over && rows == o.rows &&
           groups == o.groups;
  }
};
/// Has an address of its own for each type.
template <class T>
inline constexpr char type_mark = 0;

/// The columns of a batch for policies that read its statistics (engine/batch_columns.hpp). U:
/// units of work.
struct ColumnScratch {
  // (C, stride) the used values of each column, group after group, before and after the baseline;
  // columns are padded, so that whole blocks of them may be written.
  std::vector<double> raw, centered;
  // (C, G) of each column and group: the number of its values, their mean in two doubles and sum of
  // squares, and what is known about the values (GroupValues).
  std::vector<double> sizes, means, low_means, squares;
  std::vector<unsigned char> states;
  std::vector<index_t> begins;  // (G + 1) the rows before each group
  std::vector<index_t> counts;  // (U, C) the values of a unit of work; later where they begin
  // Of the columns in lanes: what the baseline and the scale take from the batch (of_batch).
  std::vector<double> of_baseline, of_scale;
};

/// Memory of the engine of an estimator. A column: see GroupAdvantage.
struct EstimatorScratch {
  std::vector<double> row_sums, row_weights;  // (N) combined values; weights in the renormalization
  std::vector<unsigned char> row_state;       // (N) RowState
  std::vector<index_t> used_rewards;          // rewards whose weight is not 0
  std::vector<double> reward_weights;         // their weights
  std::vector<double> lane_weights;    // these weights, repeated for rows side by side in lanes
  std::vector<GroupScratch> workers;   // one for each worker
  std::vector<double> raw, centered;   // (N) of a report: values of the batch
  std::vector<BatchStat> batch_stats;  // one for each column
  ColumnScratch columns;               // what these are computed from
  std::vector<double> partial_sums;    // sums of the blocks of the batch
  std::vector<double> report;          // of a report: ReportMemory
  CombinedValues combined;             // about row_sums
  UntilMoved<FirstStage> first_stage;  // whether finish() may use row_sums

  RowState state(index_t row) const {
    return static_cast<RowState>(row_state[static_cast<std::size_t>(row)]);
  }
};

/// Memory of ConstrainedCall (constraint/engine), which calls an estimator inside.
struct ConstraintScratch {
  std::vector<double> mixed, term_values, violations, magnitudes;  // (N)
  std::vector<unsigned char> states;                               // (N)
  std::vector<double> terms;  // (N, rewards of a constrained sum)
};

struct ScratchOf;

}  // namespace detail

/// Scratch memory of `advantages_into`, kept between calls.
/// After a first call, a call with the same shapes, settings and executor allocates nothing. Any
/// call may use any Workspace: what it served before changes no bit. It serves one call at a time:
/// threads that call at the same time need one each. A first_stage() and its finish() need the same
/// one, and no other call of it in between.
class Workspace {
 public:
  /// The combined values of the last call before its renormalization, (N), in double.
  /// They are 0 at excluded rows. The view is valid until the next call with this Workspace.
  /// After a constrained estimator (gdpo/constraint.hpp) they are those of the last estimator
  /// that it called.
  View<const double, 1> sums() const { return gdpo::view(estimator_.row_sums); }

 private:
  friend struct detail::ScratchOf;
  detail::EstimatorScratch estimator_;
  detail::ConstraintScratch constraints_;
};

namespace detail {

/// Gives the engines access to the memory in a Workspace.
struct ScratchOf {
  static EstimatorScratch& estimator(Workspace& workspace) { return workspace.estimator_; }
  static ConstraintScratch& constraints(Workspace& workspace) { return workspace.constraints_; }
};

}  // namespace detail
GDPO_END_NAMESPACE
