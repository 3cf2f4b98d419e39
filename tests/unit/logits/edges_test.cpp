// labels: lanes, sanitizers
// Edge cases of rows of logits: -inf, NaN, +inf, one token, no row and extremes; and which results
// are exactly 0.
#include <gdpo/logits.hpp>

#include "support/catch.hpp"
#include "support/generators.hpp"
#include "support/tolerance.hpp"

namespace edges_test {

namespace {

const float inf = std::numeric_limits<float>::infinity(), no = std::nanf("");

struct One {
  float logp, entropy;
  double logsumexp;
  std::vector<float> gradient;  ///< by the logits, with g = 1 and g_entropy as given
};
One one(std::vector<float> x, int target, double temperature = 1, float g_entropy = 0) {
  const std::vector<int> targets{target};
  gdpo::LogitBatch<float, 2> batch;
  const auto table = gdpo::view(x.data(), 1, static_cast<gdpo::index_t>(x.size()));
  batch.logits = table;
  batch.targets = gdpo::view(targets);
  batch.temperature = temperature;
  const gdpo::TokenLogprobs f = gdpo::token_logprobs(batch);
  const std::vector<float> g{1}, gh{g_entropy};
  gdpo::token_logprobs_backward(gdpo::simd, batch, {gdpo::view(g), gdpo::view(gh)},
                                gdpo::view(f.logsumexp), gdpo::view(f.entropy), table);
  return {f.logp[0], f.entropy[0], f.logsumexp[0], x};
}
std::vector<float> with(std::size_t n, float all, std::size_t at, float other) {
  std::vector<float> x(n, all);
  x[at] = other;
  return x;
}
bool all_nan(const std::vector<float>& x) {
  for (const float v : x) {
    if (!std::isnan(v)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("one token in the vocabulary") {
  for (const float x : {0.0f, -7.5f, 3e38f, -3e38f}) {
    for (const double temperature : {1.0, 0.7}) {
      const One r = one({x}, 0, temperature);
      CHECK(r.logp == 0);
      CHECK(r.entropy == 0);
      CHECK(r.logsumexp == static_cast<double>(x) * (1 / temperature));
      CHECK(r.gradient[0] == 0);
    }
  }
}

TEST_CASE("equal logits are uniform, without an error of summation") {
  for (const std::size_t n : std::vector<std::size_t>{2, 64, 4096, 152064}) {
    for (const float x : {0.0f, 1.7f, 3e4f}) {
      const One r = one(std::vector<float>(n, x), 1);
      const double log_n = std::log(static_cast<double>(n));
      CHECK(r.logsumexp == static_cast<double>(x) + log_n);
      CHECK(r.logp == static_cast<float>(-log_n));
      CHECK(r.entropy == static_cast<float>(log_n));
    }
  }
}

TEST_CASE("a logit of -inf has probability exactly 0") {
  for (const std::size_t n : std::vector<std::size_t>{3, 100, 5000}) {
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      const One without = one(std::vector<float>(n - 1, 0.5f), 0),
                r = one(with(n, 0.5f, at, -inf), at == 0 ? 1 : 0);
      CHECK(r.logsumexp == Approx(without.logsumexp).epsilon(1e-15));
      CHECK(r.logp == without.logp);
      CHECK(r.entropy == without.entropy);
      CHECK(r.gradient[at] == 0);
      CHECK(one(with(n, 0.5f, at, -inf), static_cast<int>(at)).logp == -inf);
      // The target's probability p is 0, so the derivative of its log-prob, 1 - p, is exactly 1.
      CHECK(one(with(n, 0.5f, at, -inf), static_cast<int>(at)).gradient[at] == 1);
      CHECK(one(with(n, 0.5f, at, -inf), static_cast<int>(at), 1, 0.5f).gradient[at] == 1);
    }
  }
  // Whole blocks of -inf before and after two finite logits.
  std::vector<float> x(13000, -inf);
  x[9000] = 2, x[9001] = 2;
  const One r = one(x, 9001);
  CHECK(r.logp == static_cast<float>(-std::log(2.0)));
  CHECK(r.gradient[9000] == -0.5f);
  CHECK(r.gradient[9001] == 0.5f);
  CHECK(std::count(r.gradient.begin(), r.gradient.end(), 0.0f) == 12998);
}

TEST_CASE("-inf for longer than the first reference looks, then logits far below 0") {
  std::vector<float> x(6000, -inf);
  for (std::size_t j = 5000; j < 6000; ++j) x[j] = -1000;
  const One r = one(x, 5500);
  CHECK(r.logsumexp == -1000 + std::log(1000.0));
  CHECK(r.logp == static_cast<float>(-std::log(1000.0)));
}

TEST_CASE("only -inf") {
  for (const std::size_t n : std::vector<std::size_t>{1, 70, 5000}) {
    const One r = one(std::vector<float>(n, -inf), 0);
    CHECK(std::isnan(r.logp));
    CHECK(std::isnan(r.entropy));
    CHECK(r.logsumexp == -static_cast<double>(inf));
    CHECK(all_nan(r.gradient));

    const std::vector<float> x(n, -inf);
    gdpo::LogitBatch<float, 2> batch;
    batch.logits = gdpo::view(x.data(), 1, static_cast<gdpo::index_t>(n));
    std::vector<gdpo::LogitRow> row(1);
    gdpo::logit_rows(gdpo::simd, batch, gdpo::view(row));
    CHECK(row[0].max == -static_cast<double>(inf));  // as if there were no entry
    CHECK(row[0].sum == 0);
  }
}

TEST_CASE("NaN and +inf show in everything of their row") {
  for (const std::size_t n : std::vector<std::size_t>{1, 63, 300, 9000}) {
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      for (const float bad : {no, inf}) {
        for (const float rest : {0.25f, -inf}) {
          INFO("n " << n << ", at " << at << ", " << bad << " among " << rest);
          const One r = one(with(n, rest, at, bad), 0);
          CHECK(std::isnan(r.logp));
          CHECK(std::isnan(r.entropy));
          CHECK(std::isnan(r.logsumexp));
          CHECK(all_nan(r.gradient));
        }
      }
    }
  }
}

TEST_CASE("the largest floats") {
  const float most = std::numeric_limits<float>::max();
  CHECK(one(std::vector<float>(500, -most), 3).logp == static_cast<float>(-std::log(500.0)));
  const One r = one(with(5000, -most, 4999, most), 4999);
  CHECK(r.logp == 0);
  CHECK(r.entropy == 0);
  CHECK(one(with(5000, -most, 4999, most), 0).logp == -inf);  // -6.8e38 does not fit a float
  CHECK(one(with(5000, 1.0f, 2, 3.0f), 2, 1e-30).logp == 0);
  CHECK(one(with(4096, 1.0f, 2, 3.0f), 2, 1e30).logp == static_cast<float>(-std::log(4096.0)));
}

TEST_CASE("a spike that the first entries do not know") {
  // The spike is e^200 times larger than the sums so far: they are scaled in double to the new
  // reference.
  for (const std::size_t at :
       {std::size_t{300}, std::size_t{4095}, std::size_t{4096}, std::size_t{11000}}) {
    const One r = one(with(11001, 0.0f, at, 200.0f), static_cast<int>(at));
    CHECK(r.logp == 0);
    CHECK(r.logsumexp == 200);
    CHECK(std::abs(r.entropy) < 1e-30f);
    CHECK(std::abs(r.gradient[at]) < 1e-30f);
  }
}

TEST_CASE("no row") {
  std::vector<float> nothing;
  std::vector<int> targets;
  gdpo::LogitBatch<float, 2> batch;
  batch.logits = gdpo::view(nothing.data(), 0, 100);
  batch.targets = gdpo::view(targets);
  CHECK(gdpo::token_logprobs(batch).logp.empty());
  CHECK(
      gdpo::token_logprobs(gdpo::view(nothing.data(), 3, 0, 100), gdpo::view(targets.data(), 3, 0))
          .logp.empty());
}

TEST_CASE("a gradient of 0 writes zeros and reads nothing") {
  std::vector<float> x(300, no), out(300, 42);
  const std::vector<int> targets{5};
  const std::vector<float> zero{-0.0f};
  const std::vector<double> logsumexp{static_cast<double>(no)};
  gdpo::LogitBatch<float, 2> batch;
  batch.logits = gdpo::view(x.data(), 1, 300);
  batch.targets = gdpo::view(targets);
  gdpo::token_logprobs_backward(gdpo::simd, batch, {gdpo::view(zero), {}}, gdpo::view(logsumexp),
                                gdpo::view(out.data(), 1, 300));
  CHECK(difference(out, std::vector<float>(300, 0.0f)) == "");
}

TEST_CASE("what is not asked for is not needed") {
  const std::vector<float> x{1, 2, 3, 4, 5, 6};
  std::vector<float> entropies(2);
  gdpo::LogitBatch<float, 2> batch;  // no targets: no log-probs, but entropies
  batch.logits = gdpo::view(x.data(), 2, 3);
  gdpo::TokenLogprobsOut out;
  out.entropy = gdpo::view(entropies);
  gdpo::token_logprobs_into(gdpo::seq, batch, out);
  CHECK(entropies[0] == entropies[1]);
  CHECK(entropies[0] == Approx(0.8323956));
  // The gradient of the entropy alone sums to 0 over the row.
  std::vector<float> dlogits(6);
  const std::vector<float> g{1, 0};
  const std::vector<double> logsumexp{3.40760596444438, 6.40760596444438};
  gdpo::token_logprobs_backward(gdpo::seq, batch, {{}, gdpo::view(g)}, gdpo::view(logsumexp),
                                gdpo::view(entropies), gdpo::view(dlogits.data(), 2, 3));
  CHECK(dlogits[0] + dlogits[1] + dlogits[2] == Approx(0).margin(1e-7));
  CHECK(dlogits[2] < 0);
  CHECK(dlogits[5] == 0);
}

TEST_CASE("the gradient at a target with p near 1 is as exact as logsumexp", "[logits]") {
  // Rows of 8 logits, of which the target is the largest by 1 to 40 and lies anywhere up to 1e4.
  Random random(5);
  const std::vector<int> targets{0};
  const std::vector<float> g{1};
  double largest = 0;  // error of 1 - p, in roundings of logsumexp
  for (int round = 0; round < 2000; ++round) {
    const double gap = 1 + 39 * random.uniform(),
                 top = std::pow(10, 4 * random.uniform()) * (random.chance(0.5) ? 1 : -1);
    std::vector<double> logits(8), dlogits(8), logsumexp(1);
    std::vector<float> narrow(8), narrow_dlogits(8);
    for (std::size_t j = 0; j < 8; ++j) {
      logits[j] = j == 0 ? top : top - gap - random.uniform();
      narrow[j] = static_cast<float>(logits[j]);
    }
    const auto exact = [](const auto& x) {
      long double others = 0;
      for (std::size_t j = 1; j < 8; ++j)
        others += std::exp(static_cast<long double>(x[j]) - static_cast<long double>(x[0]));
      return static_cast<double>(others / (1 + others));
    };
    const auto gradient = [&](const auto& x, auto& out) {
      using T = std::decay_t<decltype(x[0])>;
      gdpo::LogitBatch<T, 2> batch;
      batch.logits = gdpo::view(x.data(), 1, 8), batch.targets = gdpo::view(targets);
      gdpo::token_logprobs_into(gdpo::simd, batch, {{}, {}, gdpo::view(logsumexp)});
      gdpo::token_logprobs_backward(gdpo::simd, batch, {gdpo::view(g), {}}, gdpo::view(logsumexp),
                                    gdpo::view(out.data(), 1, 8));
      return std::fabs(static_cast<double>(out[0]) - exact(x));
    };
    CHECK(gradient(narrow, narrow_dlogits) <= 5e-7);
    // Half a unit in the last place of logsumexp, and a few roundings of numbers up to 1.
    const double error = gradient(logits, dlogits), rounding = 0x1p-53 * std::fabs(logsumexp[0]);
    CHECK(error <= rounding + 8 * 0x1p-53);
    largest = std::max(largest, error / (rounding + 8 * 0x1p-53));
  }
  CHECK(largest > 0.5);  // so the page does not promise too little
}

}  // namespace edges_test
