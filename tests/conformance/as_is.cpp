#include "as_is.hpp"

#include <string_view>
#include <type_traits>
#include <variant>

#include "support/product.hpp"

namespace conformance {
namespace {

// The arguments as one line of text; enumerations by their number.
template <class... T>
std::string text(const T&... values) {
  std::string line;
  const auto add = [&line](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, gdpo::Bounds>) {
      line += " " + gdpo::contract::text(value.lo) + " " + gdpo::contract::text(value.hi);
    } else if constexpr (std::is_enum_v<Value>) {
      line += ' ' + std::to_string(static_cast<int>(value));
    } else if constexpr (std::is_arithmetic_v<Value>) {
      line += " " + gdpo::contract::text(static_cast<double>(value));
    } else {
      line += ' ' + std::string(value);
    }
  };
  (add(values), ...);
  return line;
}

std::string settings_of(const gdpo::map::None&) { return " as it is"; }
std::string settings_of(const gdpo::map::Clamp& map) { return text(map.lo, map.hi); }
template <class Level>
std::string settings_of_level(const Level& level) {
  if constexpr (Level::of_segment) {
    return text("segment", Level::straight_through, level.bounds, level.statistic.count_eps) +
           settings_of(level.map);
  } else {
    return text("token") + settings_of(level.map);
  }
}

}  // namespace

std::string settings_of(const gdpo::runtime::Estimator& estimator) {
  return std::visit([](const auto& e) { return product::describe(product::settings_of(e)); },
                    estimator);
}
std::string settings_of(const gdpo::runtime::Loss& loss) {
  return std::visit(
      [](const auto& l) {
        return settings_of_level(l.level) +
               text("clip", l.surrogate.low, l.surrogate.high, l.surrogate.delta, l.surrogate.dual,
                    "kl", l.kl.beta, l.kl.against, l.kl.input, l.kl.output, l.kl.estimator,
                    l.kl.gradient, "sum", l.aggregate.mode, l.aggregate.over, l.aggregate.count_eps,
                    l.aggregate.row_count_eps);
      },
      loss);
}
std::string settings_of(const gdpo::runtime::TokenAdvantage& estimator) {
  return std::visit(
      [](const auto& e) {
        std::string line = text("tokens", e.returns.steps, e.penalty.kl.input, e.penalty.kl.output);
        if constexpr (std::decay_t<decltype(e.returns)>::reads_values) {
          line +=
              text("gae", e.returns.length_alpha > 0, gdpo::math::is_nan(e.returns.lambda_returns));
        }
        if constexpr (!std::is_same_v<std::decay_t<decltype(e.renorm)>, gdpo::renorm::None>) {
          line += text("whiten", e.renorm.ddof, e.renorm.eps, e.renorm.eps_at, e.renorm.count_eps,
                       e.renorm.keep_mean);
        }
        return line;
      },
      estimator);
}
std::string settings_of(const gdpo::runtime::ValueLoss& loss) {
  return text("value", loss.half, loss.aggregate.mode, loss.aggregate.over,
              loss.aggregate.count_eps, loss.aggregate.row_count_eps);
}
std::string settings_of(const gdpo::prepass::Importance& w) {
  return text("importance", w.statistic, w.clamp, w.clip, w.count_eps, w.reach, w.missing,
              w.token_clamp);
}
std::string settings_of(const gdpo::prepass::Gate& g) {
  return text("gate", g.estimator, g.pair, g.statistic, g.when, g.advantage, g.min, g.max, g.clamp,
              g.count_eps, g.reach, g.missing);
}

std::vector<std::string> without_record(const Report& report) {
  std::vector<std::string> names;
  const auto add_unless_recorded = [&](const auto& preset, const std::string& settings) {
    const bool of_trainer = std::string_view(preset.version).find('@') != std::string_view::npos;
    if (of_trainer && !report.passed_as_is(preset.version, settings)) names.push_back(preset.name);
  };
  gdpo::presets::for_each_estimator(
      [&](const auto& preset) { add_unless_recorded(preset, settings_of(preset.value)); });
  gdpo::presets::for_each_loss([&](const auto& preset) {
    add_unless_recorded(preset, settings_of(gdpo::runtime::loss(preset.name)));
  });
  gdpo::presets::for_each_token_advantage(
      [&](const auto& preset) { add_unless_recorded(preset, settings_of(preset.value)); });
  gdpo::presets::for_each_value_loss([&](const auto& preset) {
    add_unless_recorded(preset, settings_of(gdpo::runtime::value_loss(preset.name)));
  });
  gdpo::presets::for_each_prepass(
      [&](const auto& preset) { add_unless_recorded(preset, settings_of(preset.value)); });
  return names;
}

}  // namespace conformance
