#pragma once
/// Front door: constraints on rewards. Some rewards are to be maximised, others to be kept at a limit; a multiplier for each of
/// the latter, moved by a controller, weighs its violation against the reward.
///
///   calibration    gdpo::calibrate(gdpo::baseline_moments(column), 0.8)      limits from a baseline run
///   constrained    gdpo::Constrained{gdpo::Gdpo{}, placement, constraints}   an estimator under constraints
///   shortfall      gdpo::measure(column, set_point)                          mean value and violations, mergeable
///   pid            gdpo::PidLagrangian, PidGains, PidState                   the controller, its settings and checkpoint
///   adaptive_kl    gdpo::AdaptiveKl                                          the KL coefficient of verl and OpenRLHF
/// The published rules: constraint/published.hpp. Needs no Eigen.
#include <gdpo/advantages.hpp>
#include <gdpo/constraint/adaptive_kl.hpp>
#include <gdpo/constraint/calibration.hpp>
#include <gdpo/constraint/constrained.hpp>
#include <gdpo/constraint/published.hpp>
