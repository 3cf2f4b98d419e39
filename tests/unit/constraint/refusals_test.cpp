// labels: sanitizers
// What a controller refuses when it is made: the table of tests/refusals.
#include "support/refusals.hpp"

#include <gdpo/constraint.hpp>

namespace refusals_test {

TEST_CASE("what a controller refuses", "[constraint][errors]") {
  refusals::check("pid_lagrangian", "host", "gdpo::PidLagrangian", [](refusals::Call& call) {
    gdpo::PidGains gains;
    refusals::set(gains, call.values.at("settings"));
    std::vector<gdpo::SetPoint> points;
    for (const auto& point : call.values.at("set_points"))
      points.push_back({refusals::number(point.at(0)), refusals::number(point.at(1))});
    return message_of([&] { gdpo::PidLagrangian{gains, points}; });
  });
}

}  // namespace refusals_test
