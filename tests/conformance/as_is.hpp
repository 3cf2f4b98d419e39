// Which presets are confirmed by records: those that a passed case of their trainer ran as they
// are.
#pragma once

#include <gdpo/runtime.hpp>
#include <string>
#include <vector>

#include "report.hpp"

namespace conformance {

// All settings of a policy as one line of text. What no preset sets is left out: weights, gates,
// penalty and bounds of an estimator; constant, width and scale of an aggregate; discounts, the
// coefficient of the penalty and its estimate over tokens; the clip of a value loss. They belong to
// a run, as do the bounds of a correction, for which many trainers have no default;
// unit/presets/corrections_test.cpp checks those of the presets.
std::string settings_of(const gdpo::runtime::Estimator& estimator);
std::string settings_of(const gdpo::runtime::Loss& loss);
std::string settings_of(const gdpo::runtime::TokenAdvantage& estimator);
std::string settings_of(const gdpo::runtime::OutcomeAdvantage& estimator);
std::string settings_of(const gdpo::runtime::StepAdvantage& estimator);
std::string settings_of(const gdpo::OptimalTokenBaseline& baseline);
std::string settings_of(const gdpo::runtime::ValueLoss& loss);
std::string settings_of(const gdpo::runtime::Shaping& rule);
std::string settings_of(const gdpo::runtime::Running& running);
std::string settings_of(const gdpo::runtime::Prepass& pass);

// The names of the trainers' presets that no passed case, of the version the preset names, ran as
// they are. A preset whose version is a release counts if cases of that release ran.
std::vector<std::string> without_record(const Report& report);

}  // namespace conformance
