#pragma once
#include <gdpo/advantage/multiplier.hpp>

GDPO_BEGIN_NAMESPACE

/// The second normalisation, of the combined values s:  a_i = (s_i - mean) multiplier(v),
///   mean = sum s / (n + count_eps),   v = sum (s - mean)^2 / (n + count_eps) * n / (n - ddof).
/// Where the mean is 0 by construction (baseline Mean or LeaveOneOut, one multiplier a group, no raw singleton) it is
/// not subtracted over a batch or a group: a pure rescale, so that 0 stays exactly 0. Excluded and unused rows are in
/// no statistic; excluded rows keep 0. keep_mean scales about the mean and adds it back (verl's masked_whiten,
/// shift_mean=False).
namespace renorm {

/// No second normalisation: the combined values are the advantages (GRPO, Dr.GRPO, RLOO).
struct None {};

/// Over all rows of the batch: GDPO, eq. 6 (default); TRL, NVlabs' TRL fork, ms-swift, NeMo-RL. With one group in the
/// batch it is defined and GroupReport::one_group is set: then it cannot tell groups apart.
struct Batch {
  int ddof = 1;
  double eps = 0;
  EpsAt eps_at = EpsAt::Std;
  double count_eps = 0;
  bool keep_mean = false;
};

/// Over the rows of each group. The GDPO brief's literal second stage: it undoes what GDPO gains (presets/brief.hpp).
struct PerGroup {
  int ddof = 1;
  double eps = 0;
  EpsAt eps_at = EpsAt::Std;
  double count_eps = 0;
  bool keep_mean = false;
};

/// Over the valid tokens of the batch: row i counts RewardBatch::tokens(i) times, n is the number of tokens. verl and
/// NVlabs' verl fork (masked_whiten). The mean is subtracted: a degenerate group gets a constant that is not 0.
struct TokenWeightedBatch {
  int ddof = 1;
  double eps = 1e-8;
  EpsAt eps_at = EpsAt::Var;
  double count_eps = 0;
  bool keep_mean = false;
};

}  // namespace renorm
GDPO_END_NAMESPACE
