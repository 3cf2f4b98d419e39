// Compiles gdpo/value.hpp with -fno-exceptions -fno-rtti.
#include <gdpo/value.hpp>

#include "support/no_exceptions.hpp"

int main() {
  const std::vector<double> rewards{0, 1}, values{0.5, 0.25};
  std::vector<double> advantages(2), returns(2), gradient(2);
  gdpo::ReturnBatch<double> batch;
  batch.rewards = gdpo::view(rewards.data(), 1, 2), batch.values = gdpo::view(values.data(), 1, 2);
  gdpo::TokenAdvantage<> gae{{0.5, 0.5}};
  gdpo::ReturnsWorkspace<double> memory;
  const auto run = [&] {
    gdpo::advantages_and_returns_into(gdpo::seq, batch, gae, gdpo::view(advantages.data(), 1, 2),
                                      gdpo::view(returns.data(), 1, 2), memory);
  };
  run();
  expect("gae", advantages == std::vector<double>{-0.1875, 0.75});
  gdpo::ValueBatch<double> learned;
  learned.values = batch.values, learned.returns = gdpo::view(returns.data(), 1, 2);
  const gdpo::ValueLoss<> loss;
  const double got = loss(learned, gdpo::count(learned), gdpo::view(gradient.data(), 1, 2)).loss;
  expect("loss", got == (0.1875 * 0.1875 + 0.75 * 0.75) / 4 && gradient[1] == -0.375);
  expect_mistake("gdpo::advantages_and_returns_into: returns.gamma: given 2; needed: 0 to 1");
  gae.returns.gamma = 2;
  run();
  std::puts("a gamma of 2 went unnoticed");
  return EXIT_FAILURE;
}
