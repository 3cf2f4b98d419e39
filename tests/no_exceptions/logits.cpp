// Logits, compiled with -fno-exceptions -fno-rtti: from logits to log-probs and back, and a mistake
// reaches the handler that the user set.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <gdpo/logits.hpp>

#include "support/no_exceptions.hpp"

int main() {
  float logits[] = {0, 0, 0, 1, 2, 3};
  int targets[] = {0, 2};
  const float g[] = {3, 0};
  gdpo::LogitBatch<float, 2> batch;
  batch.logits = gdpo::view(logits, 2, 3);
  batch.targets = gdpo::view(targets, 2);
  const gdpo::TokenLogprobs forward = gdpo::token_logprobs(batch);
  expect("logp", forward.logp[0] == static_cast<float>(-std::log(3.0)));
  gdpo::token_logprobs_backward(gdpo::simd, batch, {gdpo::view(g, 2), {}},
                                gdpo::view(forward.logsumexp), gdpo::view(logits, 2, 3));
  expect("dlogits",
         std::abs(logits[0] - 2) < 1e-6f && std::abs(logits[1] + 1) < 1e-6f && logits[4] == 0);

  expect_mistake(
      "gdpo::token_logprobs: targets: given 3 at row (1); needed: a token: from 0 to 2, or mask 0");
  targets[1] = 3;
  gdpo::token_logprobs(batch);
  std::puts("a target outside the vocabulary was accepted");
  return EXIT_FAILURE;
}
