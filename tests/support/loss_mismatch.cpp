// The comparison of a loss with the oracle, and random settings for both.
#include <gdpo/runtime.hpp>

#include "support/loss_product.hpp"

namespace loss_product {
namespace {

/// A number that fits: often the present one, else one of those at which clips begin or end for
/// ratios around 1, and bounds, which may be negative, for log ratios around 0.
double random_in(Random& random, const gdpo::Range& range, double present) {
  if (random.chance(0.4)) return present;
  const double inf = naive_loss::off;
  for (int tries = 0; tries < 1000; ++tries) {
    const double x = range.low < 0 ? random.pick({-inf, -0.5, -0.2, -0.1, 0.08, 0.1, 0.4, inf})
                                   : random.pick({0.0, 3e-4, 0.04, 0.1, 0.28, 0.5, 0.85, 1.0, 1.15,
                                                  1.25, 2.0, 5.0, inf, 2 * random.uniform()});
    if (gdpo::detail::fits(range, x)) return x;
  }
  return present;
}
/// Random numbers for the settings of a policy.
template <class Policy>
void random_policy(Random& random, Policy& policy) {
  oracle::random_policy(random, policy, [&random](const gdpo::Range& range, double present) {
    return random_in(random, range, present);
  });
}
/// The same for a surrogate or factor of the oracle; P... are the library's.
template <class... P, class Any>
void random_of(Random& random, Any& any) {
  bool found = false;
  std::visit(
      [&](auto& of) {
        using Of = std::decay_t<decltype(of)>;
        const auto try_type = [&](auto policy) {
          if (found || !is_of<decltype(policy)>(of)) return;
          found = true;
          random_policy(random, policy);
          for_each_setting(
              policy, [&of](const auto& f) { Of::settings(of, f); }, to_oracle);
        };
        (try_type(P{}), ...);
        if (!found) throw std::logic_error(std::string("no loss by name has ") + Of::name);
      },
      any);
}
template <class... S>
void random_surrogate(Random& random, Settings& s, const std::tuple<S...>*) {
  random_of<S...>(random, s.surrogate);
}
template <class... F>
void random_factor(Random& random, Settings& s, const std::tuple<F...>*) {
  if (!std::holds_alternative<naive_loss::NoFactor>(s.detached))
    random_of<F...>(random, s.detached);
}

void random_division(Random& random, naive_loss::Division& s) {
  s.aggregate = static_cast<naive_loss::Aggregate>(random.below(6));
  s.over = static_cast<naive_loss::Over>(random.below(4));
  s.count_eps = random.pick({0.0, 0.0, 1e-8, 0.5});
  s.scale = random.pick({1.0, 1.0, 4.0, 0.125});
  s.row_count_eps = random.pick({0.0, 1e-8, 0.5});
  s.padded_width = random.chance(0.3);
  s.constant = s.padded_width ? 0 : random.pick({1.0, 64.0, 8192.0});
}

}  // namespace

void random_settings(Random& random, Settings& s) {
  using namespace naive_loss;
  s.map_bounds = {-random.pick({0.05, 0.4, 20.0}), random.pick({0.05, 0.4, 20.0})};
  s.map_low = random.pick({0.0, 0.1, 0.4}), s.map_high = random.pick({0.05, 0.4, off});
  s.statistic_count_eps = random.pick({0.0, 0.0, 1e-8, 0.5});
  s.level_bounds = random.pick({naive_loss::Bounds{}, naive_loss::Bounds{},
                                naive_loss::Bounds{-0.1, 0.05}, naive_loss::Bounds{-off, 0.3}});
  random_surrogate(random, s, static_cast<Surrogates*>(nullptr));
  random_factor(random, s, static_cast<DetachedFactors*>(nullptr));
  for (naive_loss::Kl& kl : s.kl) {
    gdpo::AnyKl term;
    random_policy(random, term);
    const naive_loss::Kl types = kl;
    for_each_setting(
        term, [&kl](const auto& f) { naive_loss::Kl::settings(kl, f); }, to_oracle);
    kl.estimator = types.estimator, kl.rule = types.rule, kl.factor = types.factor;
    if (kl.beta == 0) kl.beta = 1;  // 0 is off
  }
  random_division(random, s);
  for (naive_loss::Kl& kl : s.kl)
    if (kl.has_own) random_division(random, kl.own);
  s.entropy.coef = random.pick({0.0, 0.0, 0.01, 1.0, -0.5});
  s.entropy.mean = random.pick({EntropyMean::Loss, EntropyMean::Tokens});
}

std::string describe(const Settings& s) {
  std::string text = "level " + std::to_string(level_index(s));
  const auto add = [&text](const char* name, const auto& number) {
    char line[64];
    std::snprintf(line, sizeof line, " %s=%.17g", name, static_cast<double>(number));
    text += line;
  };
  add("map", s.map), add("statistic", s.statistic);
  naive_loss::level_settings(s, add);
  const auto policy = [&](const char* what) {
    return [&text, &add, what](const auto& of) {
      text += std::string(", ") + what + " " + of.name;
      of.settings(of, add);
    };
  };
  std::visit(policy("surrogate"), s.surrogate);
  std::visit(policy("factor"), s.detached);
  for (const naive_loss::Kl& k : s.kl) {
    text += ", kl";
    naive_loss::Kl::settings(k, add);
  }
  text += ", aggregate";
  naive_loss::aggregate_settings(s, add);
  text += ", entropy";
  naive_loss::Entropy::settings(s.entropy, add);
  return text;
}

std::string mismatch(const Settings& s, const Data& data, const naive_loss::Result& expected,
                     const Outcome& got, double unit) {
  std::string text;
  const auto near = [&](const char* name, double x, naive_loss::real y,
                        naive_loss::real tolerance) {
    if (std::fabs(static_cast<naive_loss::real>(x) - y) <= tolerance) return;
    char line[160];
    std::snprintf(line, sizeof line, "%s: %.17g, expected %.17Lg within %.3Lg\n", name, x, y,
                  tolerance);
    text += line;
  };
  // Ratios are of order 1 to e^2 and estimates of order 1; both come from a few dozen roundings.
  const double rounding = 256 * unit;
  const naive_loss::real sum = rounding * expected.sums.magnitude + 1e-300L;
  near("loss", got.result.loss, expected.loss, sum);
  near("policy_loss", got.result.policy_loss, expected.policy_loss, sum);
  near("kl_loss", got.result.kl_loss, expected.kl_loss, sum);
  near("entropy_loss", got.result.entropy_loss, expected.entropy_loss, sum);
  for (std::size_t k = 0; k < got.entropy_gradient.size() && text.empty(); ++k) {
    const std::string at = "gradient by entropies[" + std::to_string(k) + "]";
    const naive_loss::real slope = expected.entropy_gradient[k];
    near(at.c_str(), got.entropy_gradient[k], slope, 8 * unit * std::fabs(slope));
  }

  // The size of what adds up to the gradient and may cancel: surrogate and KL terms, and the tokens
  // of a segment.
  Settings surrogate_only = s;
  surrogate_only.kl.clear();
  const gdpo::Normalizer& n = got.result.normalizer;
  const naive_loss::Result part =
      naive_loss::loss(surrogate_only, data, {n.tokens, n.rows, n.non_empty_rows, n.given});
  naive_loss::real largest = expected.sums.magnitude / (expected.sums.tokens + 1);
  for (std::size_t k = 0; k < expected.gradient.size(); ++k) {
    largest = std::fmax(
        largest, std::fabs(part.gradient[k]) + std::fabs(expected.gradient[k] - part.gradient[k]));
  }
  for (std::size_t k = 0; k < expected.gradient.size() && text.empty(); ++k) {
    const std::string at = "gradient[" + std::to_string(k) + "]";
    near(at.c_str(), got.gradient[k], expected.gradient[k], rounding * largest);
  }

  const gdpo::LossMetrics& m = got.result.metrics;
  const naive_loss::Sums& e = expected.sums;
  // Quantities of order 1, but for surrogates that are divided by a small setting, and KL terms
  // whose own weight is much more than that of the row.
  const naive_loss::real total = rounding * 8 * (e.tokens + 1) * e.largest;
  const std::map<std::string, naive_loss::real> sums = e.metrics();
  using gdpo::detail::metric::WithEntropies, gdpo::detail::metric::WithKl,
      gdpo::detail::metric::WithSurrogate;
  const bool no_surrogate = std::holds_alternative<naive_loss::None>(s.surrogate);
  for (int q = 0; q < gdpo::detail::metrics_of_tokens; ++q) {
    const auto& facts = gdpo::detail::metric::list[q];
    const gdpo::Metric& metric = m.*facts.member;
    // Entropies are compared with numbers by hand (unit/loss/metrics_test.cpp).
    if (facts.where == WithEntropies || (facts.where == WithKl && s.kl.empty())) continue;
    if (facts.where == WithSurrogate && no_surrogate) {
      if (metric.count != 0) text += "a surrogate is measured where there is none\n";
      continue;
    }
    const auto expected_sum = sums.find(facts.name);
    if (expected_sum == sums.end()) {
      text += std::string(facts.name) + ": the oracle does not have it\n";
    } else {
      near(facts.name, metric.sum, expected_sum->second,
           q < gdpo::detail::measured ? total + rounding * std::fabs(expected_sum->second) : 0);
    }
    if (metric.count != e.tokens)
      text += std::string(facts.name) + ": of " + std::to_string(metric.count) +
              " tokens, expected " + std::to_string(e.tokens) + "\n";
  }
  if (m.rows != data.rows) text += "rows\n";
  return text;
}

}  // namespace loss_product
