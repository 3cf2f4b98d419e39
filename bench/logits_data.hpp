#pragma once
// Random logits, targets and upstream gradients for benchmarks.
#include <algorithm>
#include <cstdint>
#include <gdpo/core/view.hpp>
#include <random>
#include <vector>

struct LogitsData {
  gdpo::index_t rows, tokens;
  std::vector<float> logits;          // (rows, tokens), standard deviation 2
  std::vector<std::int64_t> targets;  // (rows); their logits are above the mean, as of a sample
  std::vector<float> upstream;        // (rows) dL/dlogp

  LogitsData(gdpo::index_t rows_, gdpo::index_t tokens_, unsigned seed = 1)
      : rows(rows_),
        tokens(tokens_),
        logits(static_cast<std::size_t>(rows_ * tokens_)),
        targets(static_cast<std::size_t>(rows_)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    // Every row is cut from one random sequence, each at another place. Drawing every logit would
    // take longer than the measurement.
    std::vector<float> drawn(static_cast<std::size_t>(tokens) + 4096);
    for (float& x : drawn) x = normal(random);
    std::uniform_int_distribution<std::int64_t> token(0, tokens - 1), shift(0, 4096);
    for (gdpo::index_t i = 0; i < rows; ++i) {
      std::copy_n(drawn.begin() + shift(random), tokens, logits.begin() + i * tokens);
      do targets[static_cast<std::size_t>(i)] = token(random);
      while (row(i)[targets[static_cast<std::size_t>(i)]] < 0);
      upstream.push_back(normal(random) / static_cast<float>(rows));
    }
  }
  const float* row(gdpo::index_t i) const { return logits.data() + i * tokens; }
};
