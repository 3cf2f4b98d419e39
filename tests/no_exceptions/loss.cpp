// Losses, compiled with -fno-exceptions -fno-rtti: losses, names and pre-passes work, and a mistake
// reaches the handler that the user set.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <gdpo/gdpo.hpp>
#include <gdpo/runtime.hpp>

#include "support/no_exceptions.hpp"

namespace {

bool near_to(double a, double b) { return std::abs(a - b) < 1e-12; }

}  // namespace

int main() {
  // The ratios are e^0.1 (A = 1), e^1 (A = 1, clipped at 1.2) and 1 (A = -2); the last token is
  // masked.
  const double logp[] = {-1, -1, -1, 0}, old[] = {-1.1, -2, -1, 0}, advantages[] = {1, -2};
  const unsigned char mask[] = {1, 1, 1, 0}, truncated[] = {0, 1};
  double gradient[4];
  gdpo::TokenBatch<double> batch;
  batch.logp = gdpo::view(logp, 2, 2), batch.old_logp = gdpo::view(old, 2, 2),
  batch.mask = gdpo::view(mask, 2, 2);
  batch.advantages = gdpo::view(advantages, 2);
  const auto out = gdpo::view(gradient, 2, 2);
  const double ratio = std::exp(0.1), per_row = (-(ratio + 1.2) / 2 + 2) / 2;

  auto loss = gdpo::grpo_loss;
  loss.kl.beta = 0;
  expect("loss", near_to(loss(batch, gdpo::count(batch), out).loss, per_row));
  expect("gradient", near_to(gradient[0], -ratio / 4) && gradient[1] == 0 &&
                         near_to(gradient[2], 1) && gradient[3] == 0);

  gdpo::runtime::Loss by_name = gdpo::runtime::loss("trl::grpo");
  const double named =
      std::visit([&](const auto& l) { return l(batch, gdpo::count(batch)).loss; }, by_name);
  expect("by name", near_to(named, per_row));

  gdpo::PrepassMemory<double> memory;
  const auto prepared =
      gdpo::prepare(batch, memory, gdpo::prepass::Overlong{gdpo::view(truncated, 2)});
  loss.aggregate.over = gdpo::Over::NonEmptyRows;
  expect("pre-pass", near_to(loss(prepared, gdpo::count(prepared), out).loss, -(ratio + 1.2) / 2));
  expect(
      "metrics",
      loss(prepared, gdpo::count(prepared)).metrics.to_map().count("clip_ratio/region_mean") == 1);

  expect_mistake(
      "gdpo::PolicyLoss: gradient: given (1, 4); needed: (2, 2), the shape of batch.logp");
  loss(batch, gdpo::count(batch), gdpo::view(gradient, 1, 4));
  std::puts("a gradient of another shape went unnoticed");
  return EXIT_FAILURE;
}
