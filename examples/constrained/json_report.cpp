#include <cmath>
#include <nlohmann/json.hpp>

#include "reports.hpp"

namespace constrained {

std::string to_json(const Comparison& comparison) {
  using Json = nlohmann::ordered_json;
  const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); };
  Json controllers;
  for (const Result& result : comparison.results) {
    Json& controller = controllers[result.controller.name];
    for (const Measure& measure : measures()) {
      const Spread spread = over_runs(result, measure.of);
      Json runs = Json::array();
      for (const Score& run : result.runs) runs.push_back(number(measure.of(run)));
      controller[measure.name] = {
          {"mean", number(spread.mean)}, {"std", number(spread.std)}, {"runs", runs}};
    }
  }
  const Settings& s = comparison.settings;
  Json json = {{"seed", s.seed},
               {"seeds", comparison.seeds},
               {"steps", s.steps},
               {"learning_rate", s.learning_rate},
               {"kp", s.gains.kp},
               {"ki", s.gains.ki},
               {"signal", s.signal == gdpo::Signal::Hinge ? "hinge" : "linear"},
               {"verdict", verdict(comparison)},
               {"controllers", controllers}};
  return json.dump(1) + "\n";
}

}  // namespace constrained
