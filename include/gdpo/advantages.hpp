#pragma once
/// Front door: advantages from rewards. Needs no Eigen; with/eigen.hpp and with/eigen_tensor.hpp add their types.
///
///   gdpo::advantages(rewards, gdpo::groups_of(8))                          GDPO with the paper's defaults
///   gdpo::advantages(rewards, groups, gdpo::Grpo{}, &report)               another estimator, and what the call saw
///   gdpo::advantages_into(gdpo::simd, batch, estimator, out, workspace)     long form: optional columns, no allocation
///   gdpo::advantages_into(gdpo::parallel(pool), batch, ...)                the same on several threads
///
/// rewards: (N, C), N completions and C rewards, or (N). NaN is a missing reward. One advantage a completion comes back.
/// Defined for every shape: no rows give no advantages; groups of one and one-group batches follow the settings.
/// Statistics are in double, in the orders of stats/reduce.hpp; advantages are rounded once to the result's scalar. Every
/// execution tag, any compiler and any flags but -ffast-math give the same bits. Short forms run on `simd`; `seq` takes one
/// group after the other and one number at a time.
/// Range: rewards and weights whose squares neither overflow nor underflow, about 1e-150 to 1e150; beyond it a spread may be
/// taken for 0. An infinite reward gives NaN to its group, and to all where the batch is renormalised.
/// Errors: invalid_input for shapes and settings that do not fit, before anything is written. MissingEntry::Reject and
/// Singleton::Error throw when they meet their case: `out` is then untouched, report and workspace are not.
#include <gdpo/advantage/advantages.hpp>
#include <gdpo/advantage/tokens.hpp>
#include <gdpo/advantage/whiten.hpp>
#include <gdpo/group/by_id.hpp>
#include <gdpo/group/by_offsets.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/group/per_row.hpp>
