// labels: lanes
// The accuracy of TokenBatch<float>: gradients, losses and KL estimates compared with long double
// on the same float inputs. The decisions of sequence ratios are those of double arithmetic.
#include "support/catch.hpp"
#include "support/loss_calls.hpp"

namespace float_test {

namespace {

using loss_product::Data;
using loss_product::Outcome;
using naive_loss::real;
using naive_loss::Settings;

/// A standard normal number, by Box and Muller's method.
double normal(Random& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) *
         std::cos(6.283185307179586 * random.uniform());
}
/// x rounded to float.
double stored(double x) { return static_cast<double>(static_cast<float>(x)); }

/// Log-probs as models give them. The log ratios and the distances to the reference are normal with
/// std `sd`.
Data normal_tokens(Random& random, int rows, int width, double sd) {
  Data d;
  d.rows = rows, d.width = width;
  for (int k = 0; k < rows * width; ++k) {
    d.logp.push_back(stored(std::log(random.uniform() + 1e-6)));
    d.old_logp.push_back(stored(d.logp.back() + sd * normal(random)));
    d.ref_logp.push_back(stored(d.logp.back() + sd * normal(random)));
  }
  for (int i = 0; i < rows; ++i) d.advantages.push_back(stored(normal(random) + 0.3));
  return d;
}

/// Errors of the gradient, relative to the largest gradient, and relative errors of loss and mean
/// KL.
struct Errors {
  double gradient, loss, kl;
};
template <class Loss>
Errors errors_of(const Loss& loss, const Settings& s, const Data& d) {
  const naive_loss::Result expected = naive_loss::loss(s, d);
  const Outcome got = loss_product::call<float>(loss, d);
  real largest = 0, worst = 0;
  for (std::size_t k = 0; k < d.logp.size(); ++k) {
    largest = std::fmax(largest, std::fabs(expected.gradient[k]));
    worst = std::fmax(worst, std::fabs(static_cast<real>(got.gradient[k]) - expected.gradient[k]));
  }
  const real kl = expected.sums.first_kl;
  return {static_cast<double>(worst / largest),
          static_cast<double>(std::fabs(static_cast<real>(got.result.loss) / expected.loss - 1)),
          kl == 0 ? 0.0
                  : static_cast<double>(
                        std::fabs(static_cast<real>(got.result.metrics.kl.sum) / kl - 1))};
}
/// Checks the promised bounds. Gradient: 3e-7 of the largest gradient (two or three roundings to
/// float of 6e-8 each, and e^x to 2 ulp). Loss and mean KL: 1e-6 relative.
template <class Loss>
void check_errors(const Loss& loss, const Settings& s, const Data& d) {
  const Errors e = errors_of(loss, s, d);
  CHECK(e.gradient <= 3e-7);
  CHECK(e.loss <= 1e-6);
  CHECK(e.kl <= 1e-6);
}

}  // namespace

TEST_CASE("float gradients, losses and KL means at every scale of the log ratios",
          "[loss][float]") {
  for (const double sd : {1e-4, 1e-3, 1e-2, 0.1, 0.5}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      Random random(seed);
      INFO("sd " << sd << ", seed " << seed);
      const Data d = normal_tokens(random, 16, 128, sd);
      Settings s;
      s.kl.resize(1);
      check_errors(gdpo::grpo_loss, s, d);
      s.kl[0].beta = 1;
      auto heavy = gdpo::grpo_loss;
      heavy.kl.beta = 1;
      check_errors(heavy, s, d);
      gdpo::PolicyLoss<gdpo::level::Token<>, gdpo::surrogate::Ratio,
                       gdpo::Kl<gdpo::kl::K3, gdpo::kl::ImportanceWeighted>>
          unbiased;
      s.kl[0].beta = 0.04;
      s.kl[0].rule = naive_loss::Rule::ImportanceWeighted;
      check_errors(unbiased, s, d);
      s.kl.clear();
      s.surrogate = naive_loss::Ratio{0.2, 0.28};
      s.aggregate = naive_loss::Aggregate::TokenMean, s.over = naive_loss::Over::Tokens;
      check_errors(gdpo::dapo_loss, s, d);
    }
  }
}

TEST_CASE("the KL of nearly equal policies: k3 of single tokens and of the mean",
          "[loss][float][kl]") {
  // At these distances, exp(d) - 1 - d in float has no correct digit.
  for (const double sd : {1e-3, 1e-4, 1e-6}) {
    Random random(77);
    const Data d = normal_tokens(random, 8, 256, sd);
    INFO("sd " << sd);
    Settings s;
    s.kl.resize(1);
    const naive_loss::Result expected = naive_loss::loss(s, d);
    const Outcome got = loss_product::call<float>(gdpo::grpo_loss, d);
    CHECK(std::fabs(got.result.metrics.kl.mean() /
                        static_cast<double>(expected.sums.first_kl / 2048) -
                    1) <= 1e-6);
    CHECK(std::fabs(got.result.kl_loss / static_cast<double>(expected.kl_loss) - 1) <= 1e-6);
    CHECK(std::fabs(got.result.metrics.approx_kl_k3.mean() /
                        static_cast<double>(expected.sums.k3 / 2048) -
                    1) <= 1e-6);
    CHECK(got.result.metrics.kl.mean() == Approx(0.5 * sd * sd).epsilon(0.2));
    CHECK(got.result.metrics.kl.min >= 0);
  }
}

TEST_CASE("sequence levels in float: gradient and loss to float's rounding of the result",
          "[loss][float][gspo]") {
  // Everything is computed in double; only the gradient is rounded to float, once: 2^-24 relative.
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const Data d = normal_tokens(random, 8, 64, 1e-3);
    Settings s;
    s.surrogate = naive_loss::Ratio{3e-4, 4e-4};
    for (const auto level : {naive_loss::Level::Sequence, naive_loss::Level::SequenceToken}) {
      s.level = level;
      const naive_loss::Result expected = naive_loss::loss(s, d);
      const Outcome got = level == naive_loss::Level::Sequence
                              ? loss_product::call<float>(gdpo::gspo_loss, d)
                              : loss_product::call<float>(gdpo::gspo_token_loss, d);
      CHECK(std::fabs(static_cast<real>(got.result.loss) - expected.loss) <=
            1e-14L * expected.sums.magnitude);
      for (std::size_t k = 0; k < d.logp.size(); ++k) {
        const real g = expected.gradient[k];
        if (std::fabs(static_cast<real>(got.gradient[k]) - g) > 1.001L * 0x1p-24L * std::fabs(g))
          CHECK(got.gradient[k] == static_cast<double>(g));
      }
    }
  }
}

TEST_CASE("GSPO clips exactly where double arithmetic does, 1e-7 from its bounds",
          "[loss][float][gspo]") {
  // Ratios within 1e-7 of the bounds 1 - 3e-4 and 1 + 4e-4, on both sides: the last log-probs are
  // moved until the mean log ratio of the float inputs is there. A statistic in float would decide
  // about half of these wrongly.
  int inside = 0, outside = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    const int n = random.pick({7, 16, 64, 301});
    Data d = normal_tokens(random, 1, n, random.pick({1e-3, 0.02}));
    const bool above = seed % 2 == 0;
    const real bound = above ? 1 + static_cast<real>(4e-4) : 1 - static_cast<real>(3e-4);
    const real target = std::log(bound) + 1e-7L * (2 * static_cast<real>(random.uniform()) - 1);
    real sum = 0;
    for (std::size_t k = 0; k < d.logp.size(); ++k)
      sum += static_cast<real>(d.logp[k]) - static_cast<real>(d.old_logp[k]);
    // The needed step is rounded to float, too coarsely where the log-prob is large, so several
    // tokens take up what is left.
    for (std::size_t k = d.old_logp.size() - 4; k < d.old_logp.size(); ++k) {
      const real before = d.old_logp[k];
      d.old_logp[k] = stored(static_cast<double>(before + (sum - target * n)));
      sum -= static_cast<real>(d.old_logp[k]) - before;
    }
    const real ratio = std::exp(sum / n);
    if (std::fabs(ratio - bound) > 2e-7L || std::fabs(ratio - bound) < 1e-14L) continue;
    const bool clips = above ? ratio > bound : ratio < bound;
    ++(clips ? outside : inside);
    for (const double sign : {1.0, -1.0}) {
      d.advantages[0] = sign;
      const bool stops = clips && (sign > 0) == above;
      INFO("seed " << seed << ", ratio - bound " << static_cast<double>(ratio - bound) << ", A "
                   << sign);
      const Outcome gspo = loss_product::call<float>(gdpo::gspo_loss, d),
                    token = loss_product::call<float>(gdpo::gspo_token_loss, d);
      for (const Outcome* o : {&gspo, &token}) {
        CHECK(o->result.metrics.clip_fraction.sum == (stops ? n : 0));
        CHECK(o->result.metrics.clip_fraction_any.sum == (clips ? n : 0));
        CHECK(all_zero(o->gradient) == stops);
      }
    }
  }
  CHECK(inside > 100);
  CHECK(outside > 100);
}

}  // namespace float_test
