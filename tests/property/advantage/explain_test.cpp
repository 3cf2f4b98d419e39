// labels: lanes
// Laws of gdpo::explain over the product of axes: its advantages are those of the call, and every
// stage follows from the one before.
#include "support/catch.hpp"
#include "support/few_rounds.hpp"
#include "support/generators.hpp"
#include "support/product.hpp"
#include "support/tolerance.hpp"

namespace explain_test {

namespace {

using gdpo::math::is_nan;

bool finite(double x) { return !gdpo::math::not_finite(x); }
/// Equal, or both NaN.
bool same(double a, double b) { return a == b || (is_nan(a) && is_nan(b)); }

/// x within bounds, NaN as it is.
double clamped(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/// What breaks a law, with its numbers; empty: nothing does.
struct Broken {
  std::string text;
  void operator()(bool holds, const char* law, double a, double b) {
    if (holds || !text.empty()) return;
    char line[160];
    std::snprintf(line, sizeof line, "%s: %.17g, %.17g", law, a, b);
    text = line;
  }
};

/// The laws of one group. advantages, sums: of the call, by row.
std::string check(const gdpo::Explanation& e, const naive::Settings& settings,
                  const naive::Data& data, const product::Outcome& outcome) {
  Broken law;
  const std::size_t members = e.rows.size(), rewards = e.weights.size();
  for (std::size_t k = 0; k < members; ++k) {
    const auto row = static_cast<std::size_t>(e.rows[k]);
    law(same_bits(e.advantage[k], outcome.advantages[row]) ||
            (is_nan(e.advantage[k]) && is_nan(outcome.advantages[row])),
        "advantage", e.advantage[k], outcome.advantages[row]);
    law(same_bits(e.sum[k], outcome.sums[row]) || (is_nan(e.sum[k]) && is_nan(outcome.sums[row])),
        "sum", e.sum[k], outcome.sums[row]);
    law(data.valid.empty() || (data.valid[row] != 0) == (e.used[k] != 0), "used", e.used[k], 0);
    // The second normalization.
    if (e.excluded[k]) {
      law(e.advantage[k] == 0 && e.sum[k] == 0, "excluded", e.advantage[k], e.sum[k]);
    } else if (e.over != gdpo::RenormOver::None) {
      const double a = clamped(e.renorm(e.sum[k]), settings.low, settings.high);
      law(same(a, e.advantage[k]), "renorm", a, e.advantage[k]);
    } else {
      const double a = clamped(e.sum[k], settings.low, settings.high);
      law(same(a, e.advantage[k]), "no renorm", a, e.advantage[k]);
    }
    // Gates and missing rewards, from the array.
    for (std::size_t c = 0; c < rewards; ++c) {
      const std::size_t i = k * rewards + c;
      const double* stored = data.rewards.data() + row * rewards;
      double gated = stored[c];
      bool unknown = false;
      for (const naive::Gate& gate : settings.gates) {
        if (static_cast<std::size_t>(gate.reward) != c) continue;
        unknown = unknown || is_nan(stored[gate.given]);
        if (stored[gate.given] < gate.at_least) gated = 0;
      }
      if (unknown) gated = std::nan("");
      law(same(e.rewards[i], stored[c]), "reward", e.rewards[i], stored[c]);
      law(same(e.gated[i], gated), "gated", e.gated[i], gated);
      const bool fills = settings.entry == naive::Entry::Zero && is_nan(e.gated[i]);
      law(same(e.known[i], fills ? 0.0 : e.gated[i]), "known", e.known[i], e.gated[i]);
    }
    const double penalty =
        settings.penalty_coef == 0 ? 0 : settings.penalty_coef * data.penalty[row];
    law(e.penalty[k] == penalty, "penalty", e.penalty[k], penalty);
    // What a column starts from, and its steps.
    double total = 0, size = 0;
    bool all_finite = true;
    for (const gdpo::ExplainedColumn& column : e.columns) {
      double x = 0, x_size = 0, weight = column.weight;
      if (e.sums_first) {
        weight = 1;
        for (std::size_t c = 0; c < rewards; ++c) {
          const double term = e.weights[c] == 0 ? 0.0 : e.weights[c] * e.known[k * rewards + c];
          if (is_nan(term) && settings.entry == naive::Entry::Skip) continue;
          x += term, x_size += gdpo::math::abs(term);
        }
        x = clamped(x, settings.reward_low, settings.reward_high);
        x -= penalty, x_size += gdpo::math::abs(penalty);
      } else {
        x = e.known[k * rewards + static_cast<std::size_t>(column.reward)];
        x = clamped(x, settings.reward_low, settings.reward_high);
        if (column.reward == settings.penalty_reward) x -= penalty;
      }
      const double value = column.values[k], z = column.standardized[k];
      if (is_nan(value)) {
        const bool absent = e.sums_first ? e.excluded[k] != 0 || is_nan(x) : is_nan(x);
        law(absent || settings.entry == naive::Entry::Propagate, "a value is missing", x, value);
        if (settings.entry != naive::Entry::Propagate) continue;
      } else {
        law(gdpo::math::abs(x - value) <= 64 * tolerance::unit * x_size, "value", x, value);
      }
      // (x - b) m: two roundings, and those of a baseline that is a difference from the mean.
      const double wanted =
          column.multiplier[k] == 0 ? 0 : (value - column.baseline[k]) * column.multiplier[k];
      const double mean = is_nan(column.mean) ? 0 : gdpo::math::abs(column.mean);
      const double rounding = 4 * tolerance::unit * gdpo::math::abs(column.multiplier[k]) *
                              (gdpo::math::abs(value) + gdpo::math::abs(column.baseline[k]) + mean);
      law(same(z, wanted) || gdpo::math::abs(z - wanted) <= rounding, "standardized", z, wanted);
      const double weighted = weight * z;
      law(same(column.weighted[k], weighted) || gdpo::math::abs(column.weighted[k] - weighted) <=
                                                    4 * tolerance::unit * gdpo::math::abs(weighted),
          "weighted", column.weighted[k], weighted);
      all_finite = all_finite && finite(column.weighted[k]);
      total += column.weighted[k], size += gdpo::math::abs(column.weighted[k]);
    }
    // Groups whose values are equal up to rounding get exactly 0.
    const double bound = 64 * tolerance::unit * size;
    if (all_finite && !e.excluded[k] && !e.equal)
      law(gdpo::math::abs(total - e.sum[k]) <= bound, "sum of the terms", total, e.sum[k]);
  }
  // The statistics of a column, from its values.
  for (const gdpo::ExplainedColumn& column : e.columns) {
    std::vector<double> values;
    for (std::size_t k = 0; k < members; ++k) {
      if (!e.used[k] || (is_nan(column.values[k]) && settings.entry != naive::Entry::Propagate))
        continue;
      values.push_back(column.values[k]);
    }
    law(column.n == static_cast<gdpo::index_t>(values.size()), "n", static_cast<double>(column.n),
        static_cast<double>(values.size()));
    naive::Real sum = 0, squares = 0, most = 0;
    for (const double value : values) {
      sum += value;
      most = std::max<naive::Real>(most, gdpo::math::abs(value));
    }
    const naive::Real mean = values.empty() ? 0 : sum / static_cast<naive::Real>(values.size());
    for (const double value : values) squares += (value - mean) * (value - mean);
    if (!finite(static_cast<double>(squares))) continue;
    law(values.empty() ? is_nan(column.mean)
                       : gdpo::math::abs(column.mean - static_cast<double>(mean)) <=
                             tolerance::formula * static_cast<double>(most),
        "mean", column.mean, static_cast<double>(mean));
    if (values.size() < 2) {
      law(is_nan(column.std), "std of one", column.std, 0);
    } else {
      const auto std =
          static_cast<double>(std::sqrt(squares / static_cast<naive::Real>(values.size() - 1)));
      law(gdpo::math::abs(column.std - std) <= tolerance::formula * static_cast<double>(most),
          "std", column.std, std);
    }
  }
  return law.text;
}

}  // namespace

TEST_CASE("an explanation has the advantages of the call, and each stage follows from the last",
          "[explain]") {
  std::uint64_t seed = 0;
  for (int round = 0; round < (few_rounds ? 2 : 20); ++round) {
    product::for_each_type([&](naive::Settings e) {
      Random random(++seed);
      const naive::Data data = product::random_case(random, e);
      std::vector<gdpo::Explanation> explained;
      const product::Outcome outcome = product::advantages(e, data, {nullptr, &explained});
      REQUIRE(explained.size() == data.groups().size());
      for (const gdpo::Explanation& one : explained) {
        INFO("seed " << seed << ": " << product::describe(e) << "\n" << one.to_text());
        CHECK(check(one, e, data, outcome) == "");
      }
    });
  }
}

TEST_CASE("every estimator by name is explained with the bits of its call", "[explain]") {
  std::uint64_t seed = 0;
  for (const product::Preset& preset : product::presets()) {
    for (int round = 0; round < 20; ++round) {
      Random random(++seed);
      naive::Settings e = preset.settings;
      naive::Data data = random_batch(random, 4, 6, random.pick({1, 2, 3}), 0.1);
      add_columns(random, data);
      if (random.chance(0.5)) data.valid.clear();
      std::vector<gdpo::Explanation> explained;
      const product::Outcome outcome = product::advantages(e, data, {nullptr, &explained});
      for (const gdpo::Explanation& one : explained) {
        INFO(preset.name << ", seed " << seed << "\n" << one.to_text());
        CHECK(check(one, e, data, outcome) == "");
      }
    }
  }
}

TEST_CASE("without an eps the spread of a scale is one over its multiplier", "[explain]") {
  std::uint64_t seed = 0;
  int compared = 0;
  product::for_each_type([&](naive::Settings e) {
    Random random(++seed);
    const naive::Data data = product::random_case(random, e);
    e.scale_spread.eps = 0;
    std::vector<gdpo::Explanation> explained;
    product::advantages(e, data, {nullptr, &explained});
    for (const gdpo::Explanation& one : explained) {
      for (const gdpo::ExplainedColumn& column : one.columns) {
        for (std::size_t k = 0; k < column.values.size(); ++k) {
          const double m = column.multiplier[k], spread = column.spread[k];
          const bool divides = e.scale_spread.eps_at != naive::EpsAt::None;
          if (is_nan(spread) || m == 0 || spread == 0 || !divides) continue;
          INFO("seed " << seed << ": " << product::describe(e));
          CHECK(gdpo::math::abs(m * spread - 1) <= 4 * tolerance::unit);
          ++compared;
        }
      }
    }
  });
  CHECK(compared > 1000);
}

}  // namespace explain_test
