#pragma once
// What a preset is called. Each trainer's header ends with lists of its presets, each a function
// that calls f(preset...); presets/all.hpp joins those of all trainers.
#include <gdpo/core/config.hpp>

GDPO_BEGIN_NAMESPACE
/// A value with its name: a line of a list of presets.
template <class T>
struct Preset {
  /// The name by which gdpo::runtime finds it, such as "trl::gdpo".
  const char* name;
  /// The estimator, loss, pre-pass or aggregate.
  T value;
  /// What selects it in the trainer: an option, or else the function that computes it.
  const char* option;
  /// The trainer's sources that its results were recorded from, as repository@commit; or else the
  /// release that it was run beside, or the paper.
  const char* version;
};
template <class T>
Preset(const char*, T, const char*, const char*) -> Preset<T>;
GDPO_END_NAMESPACE
