// labels: lanes
// Log-prob, entropy, logsumexp and the gradient by the logits, compared with long double: for
// vocabularies around every block size, every kind of row, and every storage type. The bounds allow
// for e^x to 2 ulp of float (2^-22), for sums whose roundings add up at most 18 times (each at most
// 2^-24, of either sign), and for one rounding of the result to float.
#include <reference/naive_logits.hpp>

#include "support/catch.hpp"
#include "support/logits.hpp"

namespace oracle_test {

namespace {

using logit_cases::Kind, logit_cases::stored;

constexpr double lse_bound = 5e-7;
/// The error of rounding x to float once.
double to_float(long double x) { return static_cast<double>(std::fabs(x)) * 0x1p-24; }

template <class T>
std::vector<double> loaded(const std::vector<T>& x) {
  std::vector<double> to;
  for (const T& element : x) to.push_back(gdpo::load(element));
  return to;
}

/// Checks one row: values, then the gradient for given dloss/dlogp and dloss/dentropy.
template <class T>
void check_row(const std::vector<T>& x, std::size_t target, double temperature, double g,
               double g_entropy) {
  const auto n = static_cast<gdpo::index_t>(x.size());
  const naive::Softmax expected = naive::softmax(loaded(x), x.size(), temperature);
  const std::vector<std::int64_t> targets{static_cast<std::int64_t>(target)};
  gdpo::LogitBatch<T, 2> batch;
  batch.logits = gdpo::view(x.data(), 1, n);
  batch.targets = gdpo::view(targets);
  batch.temperature = temperature;
  const gdpo::TokenLogprobs got = gdpo::token_logprobs(batch);
  CHECK(std::fabs(static_cast<double>(got.logsumexp[0] - expected.logsumexp)) <= lse_bound);
  if (expected.p[target] == 0) {
    CHECK((std::isinf(got.logp[0]) && got.logp[0] < 0));
  } else {
    const long double logp = expected.logp(target);
    CHECK(std::fabs(static_cast<double>(got.logp[0] - logp)) <= lse_bound + to_float(logp));
  }
  CHECK(std::fabs(static_cast<double>(got.entropy[0] - expected.entropy)) <=
        2 * lse_bound + 2 * to_float(expected.entropy));

  // The error of p, relative to p: |log p| 2^-23 from the rounding of its exponent, 2 ulp of e^x,
  // and the error of the logsumexp.
  const std::vector<float> gs{static_cast<float>(g)}, gs_entropy{static_cast<float>(g_entropy)};
  std::vector<logit_cases::Wide<T>> gradient(x.size());
  gdpo::token_logprobs_backward(gdpo::simd, batch, {gdpo::view(gs), gdpo::view(gs_entropy)},
                                gdpo::view(got.logsumexp), gdpo::view(got.entropy),
                                gdpo::view(gradient.data(), 1, n));
  g = gs[0], g_entropy = gs_entropy[0];
  const std::vector<long double> derivative =
      naive::logits_gradient(expected, target, g, g_entropy, temperature);
  double worst = 0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    const auto p = static_cast<double>(expected.p[j]);
    if (p == 0 && j != target) {
      if (gradient[j] != 0) FAIL_CHECK("entry " << j << " is not 0");
      continue;
    }
    const double log_p = p > 0 ? std::fabs(static_cast<double>(expected.logp(j))) : 0;
    const double factor =
        std::fabs(g) + std::fabs(g_entropy) * (log_p + static_cast<double>(expected.entropy));
    const double bound =
        p * (factor * (log_p * 0x1p-23 + 1.5e-6) + std::fabs(g_entropy) * 2e-6) / temperature +
        0x1p-24 * static_cast<double>(std::fabs(derivative[j])) + 1e-35;
    worst = std::max(worst, std::fabs(static_cast<double>(gradient[j] - derivative[j])) / bound);
  }
  CHECK(worst <= 1);
}

template <class T>
void check_sizes(std::uint64_t seed) {
  Random random(seed);
  for (const int vocabulary :
       {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 513, 4095, 4096, 4097, 4160, 9000}) {
    for (const Kind kind : logit_cases::all_kinds) {
      const std::vector<T> x = stored<T>(logit_cases::row(random, kind, vocabulary));
      const double temperature = random.pick({1.0, 1.0, 0.6, 0.7, 1.3});
      const auto target = static_cast<std::size_t>(random.below(vocabulary));
      INFO("seed " << seed << ", vocabulary " << vocabulary << ", kind " << static_cast<int>(kind)
                   << ", temperature " << temperature << ", target " << target);
      check_row(x, target, temperature, 4 * random.uniform() - 2,
                random.chance(0.5) ? random.uniform() - 0.5 : 0.0);
    }
  }
}

}  // namespace

TEST_CASE("values and gradients are those of long double: float") { check_sizes<float>(101); }
TEST_CASE("values and gradients are those of long double: double") { check_sizes<double>(102); }
TEST_CASE("values and gradients are those of long double: 16 bits") {
  check_sizes<gdpo::BFloat16>(103);
  check_sizes<gdpo::Float16>(104);
}

TEST_CASE("a vocabulary of 152064") {
  for (const Kind kind : logit_cases::all_kinds) {
    const std::uint64_t seed = 200 + static_cast<std::uint64_t>(kind);
    INFO("seed " << seed << ", kind " << static_cast<int>(kind));
    Random random(seed);
    const std::vector<float> x = logit_cases::row(random, kind, 152064);
    check_row(x, 151000, 1, 1, 0);
    check_row(x, 7, 0.7, 1, 0.01);
  }
}

TEST_CASE("logits of double are computed in double") {
  Random random(301);
  for (const int vocabulary : {1, 5, 300, 5000}) {
    std::vector<double> x;
    for (int j = 0; j < vocabulary; ++j) x.push_back(3 * logit_cases::normal(random));
    const naive::Softmax expected = naive::softmax(x, x.size(), 0.7);
    gdpo::LogitBatch<double, 2> batch;
    batch.logits = gdpo::view(x.data(), 1, vocabulary);
    batch.temperature = 0.7;
    std::vector<gdpo::LogitRow> row(1);
    gdpo::logit_rows(gdpo::simd, batch, gdpo::view(row));
    CHECK(std::fabs(static_cast<double>(logsumexp(row[0]) - expected.logsumexp)) <= 1e-14);
    CHECK(std::fabs(static_cast<double>(entropy(row[0]) - expected.entropy)) <= 1e-14);
  }
}

TEST_CASE("the gradient is the slope of the log-prob and of the entropy") {
  // Central differences in double with h = 1e-4. Their error is h^2 / 6 times a third derivative of
  // order 1, plus 1e-15 / h from rounding.
  const std::uint64_t seed = 401;
  INFO("seed " << seed);
  Random random(seed);
  const int vocabulary = 21;
  std::vector<double> x;
  for (int j = 0; j < vocabulary; ++j) x.push_back(2 * logit_cases::normal(random));
  x[4] = -std::numeric_limits<double>::infinity();
  const std::vector<int> targets{9};
  gdpo::LogitBatch<double, 2> batch;
  batch.logits = gdpo::view(x.data(), 1, vocabulary);
  batch.targets = gdpo::view(targets);
  batch.temperature = 1.4;
  const auto loss = [&] {
    std::vector<gdpo::LogitRow> row(1);
    gdpo::logit_rows(gdpo::simd, batch, gdpo::view(row));
    return 0.75 * logp(row[0]) - 0.25 * entropy(row[0]);
  };
  const gdpo::TokenLogprobs forward = gdpo::token_logprobs(batch);
  const std::vector<float> g{0.75f}, g_entropy{-0.25f};
  std::vector<double> gradient(x.size());
  gdpo::token_logprobs_backward(gdpo::simd, batch, {gdpo::view(g), gdpo::view(g_entropy)},
                                gdpo::view(forward.logsumexp), gdpo::view(forward.entropy),
                                gdpo::view(gradient.data(), 1, vocabulary));
  for (std::size_t j = 0; j < x.size(); ++j) {
    const double kept = x[j], h = 1e-4;
    x[j] = kept + h;
    const double up = loss();
    x[j] = kept - h;
    const double down = loss();
    x[j] = kept;
    CHECK(std::fabs(gradient[j] - (up - down) / (2 * h)) <= 3e-8);
  }
}

}  // namespace oracle_test
