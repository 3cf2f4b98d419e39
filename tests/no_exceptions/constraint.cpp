// Constraints, compiled with -fno-exceptions -fno-rtti: controllers, their state and the adaptive
// KL work, and a mistake reaches the handler that the user set.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <gdpo/constraint/adaptive_kl.hpp>
#include <gdpo/constraint/calibration.hpp>
#include <gdpo/constraint/published.hpp>

#include "support/no_exceptions.hpp"

int main() {
  const std::vector<double> baseline{1, 2, 3};  // mean 2, std 1
  const gdpo::SetPoint point = gdpo::calibrate(gdpo::baseline_moments(gdpo::view(baseline)), 0.5);
  expect("calibration", point.limit == 2.5 && point.scale == 1);

  gdpo::PidLagrangian pid(gdpo::PidGains{}, {point});
  expect("update", std::abs(pid.update({1.5})[0].lambda - 2.05) < 1e-12);
  expect("hold", pid.update({std::nan("")})[0].held && std::abs(pid.lambda(0) - 2.05) < 1e-12);
  expect("a rule by name",
         gdpo::PidLagrangian(gdpo::pid::nupi(2, 0.5)).update({1.0})[0].lambda == 2.5);
  expect("constraints", pid.constraints({1})[0].limit == 2.5);

  std::vector<unsigned char> bytes = gdpo::to_bytes(pid.state());
  gdpo::PidLagrangian other(gdpo::PidGains{}, {point});
  other.restore(gdpo::pid_state_from_bytes(bytes));
  expect("state",
         other.update({1.25})[0].lambda == pid.update({1.25})[0].lambda && other.lambda(0) > 2.05);
  expect("adaptive KL", std::abs(gdpo::AdaptiveKl{}(0.25, 5, 100) - 0.25 * 1.002) < 1e-15);

  expect_mistake(
      "gdpo::pid_state_from_bytes: bytes: given a state that was cut or altered: its checksum "
      "differs; needed: what to_bytes() gave");
  bytes[100] ^= 1;
  gdpo::pid_state_from_bytes(bytes);
  std::puts("an altered state went unnoticed");
  return EXIT_FAILURE;
}
