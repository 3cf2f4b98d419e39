#pragma once
#include <array>
#include <gdpo/advantage/batch.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What one worker keeps: it has one group at hand, or a few side by side.
struct GroupScratch {
  std::vector<double> column, scores, magnitudes, terms;  // (K), (K), (K) sums of |terms|, (K, 8)
  std::vector<unsigned char> used, present;               // (K) the row is used; it has a reward
  std::vector<double> values;  // (K) used members, as a policy sees them ...
  std::array<std::vector<double>, reward_column_count> columns;  // ... and the columns that it sees
  std::vector<double> policies;  // (K) of policies with per_group_values
  std::vector<double> lanes;     // of SideBySide
  struct {
    bool raw_singleton = false, row_that_does_not_count = false;
  } seen;  // in the groups so far
};

/// What the engine of an estimator keeps.
struct EstimatorScratch {
  std::vector<double> row_sums, row_weights;  // (N) combined values; weights in the renormalisation
  std::vector<unsigned char> row_state;       // (N) RowState
  std::vector<index_t> channels;              // rewards whose weight is not 0 ...
  std::vector<double> channel_weights;        // ... their weights ...
  std::vector<double> lane_weights;           // ... and these for every lane of rows side by side
  std::vector<GroupScratch> workers;          // one a worker
  std::vector<double> raw, centred;           // (N) one column of the batch
  std::vector<BatchStat> batch_stats;         // one a column
  std::vector<double> partial_sums;           // of the blocks of the batch
};

/// What ConstrainedCall keeps, which calls an estimator inside.
struct ConstraintScratch {
  std::vector<double> mixed, channel, violations, magnitudes;  // (N)
  std::vector<unsigned char> states;                           // (N)
  std::vector<double> terms;                                   // (N, columns of a constrained sum)
};

struct ScratchOf;

}  // namespace detail

/// Scratch memory of advantages_into, kept between calls: after a first call with the same shapes and executor, nothing is
/// allocated. One Workspace serves one call at a time.
class Workspace {
 public:
  /// The combined values of the last call before renormalisation, (N), in double. 0 at excluded rows. Of a constrained
  /// estimator: of the last call inside.
  View<const double, 1> sums() const { return gdpo::view(estimator_.row_sums); }

 private:
  friend struct detail::ScratchOf;
  detail::EstimatorScratch estimator_;
  detail::ConstraintScratch constraints_;
};

namespace detail {

/// The engines' way into a Workspace.
struct ScratchOf {
  static EstimatorScratch& estimator(Workspace& workspace) { return workspace.estimator_; }
  static ConstraintScratch& constraints(Workspace& workspace) { return workspace.constraints_; }
};

}  // namespace detail
GDPO_END_NAMESPACE
