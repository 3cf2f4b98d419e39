#include "as_is.hpp"

#include <gdpo/dist/describe.hpp>
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

// The settings of a policy, all but those that belong to a run.
template <class Policy>
std::string settings_of_fields(const Policy& policy) {
  std::string line;
  gdpo::detail::walk_fields(policy, {}, [&](const auto& path, const auto& member, const auto&) {
    const std::string name = path.text();
    if (name == "aggregate.scale" || name == "aggregate.constant" ||
        name == "aggregate.padded_width") {
      return;
    }
    using Member = std::decay_t<decltype(member)>;
    if constexpr (std::is_arithmetic_v<Member> || std::is_enum_v<Member>)
      line += " " + name + text(member);
  });
  return line;
}

// The settings of an estimator over rows.
template <class Rows>
std::string settings_of_rows(Rows e) {
  e.weights = {}, e.gates = {}, e.penalty = {}, e.reward_clip = {}, e.clip = {};
  return product::describe(product::settings_of(e));
}

// The settings of an estimator over tokens.
template <class Tokens>
std::string settings_of_tokens(const Tokens& e) {
  using KlTerm = std::decay_t<decltype(e.penalty.kl)>;
  std::string line = text("tokens", e.returns.steps);
  if constexpr (std::is_same_v<KlTerm, gdpo::penalty::Mixture>) {
    line += text("mixture", e.penalty.kl.lambda, e.penalty.kl.temperature);
  } else {
    line += text(e.penalty.kl.input, e.penalty.kl.output);
  }
  if constexpr (std::decay_t<decltype(e.returns)>::reads_values) {
    line += text("gae", e.returns.length_alpha > 0, gdpo::math::is_nan(e.returns.lambda_returns));
  }
  if (e.renorm.over != gdpo::RenormOver::None) {
    line += text("whiten", e.renorm.ddof, e.renorm.eps, e.renorm.eps_at, e.renorm.count_eps,
                 e.renorm.keep_mean);
  }
  return line;
}

}  // namespace

std::string settings_of(const gdpo::runtime::Estimator& estimator) {
  return std::visit([](const auto& e) { return settings_of_rows(e); }, estimator);
}
std::string settings_of(const gdpo::runtime::Loss& loss) {
  return std::to_string(loss.index()) +
         std::visit([](const auto& l) { return settings_of_fields(l); }, loss);
}
std::string settings_of(const gdpo::runtime::TokenAdvantage& estimator) {
  return std::visit([](const auto& e) { return settings_of_tokens(e); }, estimator);
}
std::string settings_of(const gdpo::runtime::OutcomeAdvantage& estimator) {
  return std::visit(
      [](const auto& e) {
        return settings_of_rows(e.rows) + settings_of_tokens(e.tokens) + text(e.placement);
      },
      estimator);
}
std::string settings_of(const gdpo::runtime::StepAdvantage& estimator) {
  return std::visit(
      [](const auto& e) {
        return product::describe(product::settings_of(e.episode)) +
               product::describe(product::settings_of(e.step)) + text("steps", e.pool_states);
      },
      estimator);
}
std::string settings_of(const gdpo::OptimalTokenBaseline& b) {
  return text("token_baseline", b.eps, b.place, b.members, b.tail);
}
std::string settings_of(const gdpo::runtime::ValueLoss& loss) {
  return text("value", loss.half, loss.delta, loss.aggregate.mode, loss.aggregate.over,
              loss.aggregate.count_eps, loss.aggregate.row_count_eps);
}
std::string settings_of(const gdpo::runtime::Shaping& rule) {
  return "shaping " + std::to_string(rule.index()) +
         std::visit([](const auto& r) { return settings_of_fields(r); }, rule);
}
std::string settings_of(const gdpo::runtime::Running& running) {
  return "running " + std::to_string(running.index()) +
         std::visit([](const auto& r) { return settings_of_fields(r); }, running);
}
std::string settings_of(const gdpo::runtime::Prepass& any) {
  const auto ends = [](const std::string& name, std::string_view with) {
    return name.size() >= with.size() &&
           name.compare(name.size() - with.size(), with.size(), with) == 0;
  };
  std::string line = "prepass " + std::to_string(any.index());
  std::visit(
      [&](const auto& pass) {
        gdpo::detail::walk_fields(pass, {}, [&](const auto& path, const auto& member, const auto&) {
          using Member = std::decay_t<decltype(member)>;
          const std::string name = path.text();
          const bool bound = name == "min" || name == "max" || ends(name, ".min") ||
                             ends(name, ".max") || ends(name, "clip.lo") || ends(name, "clip.hi") ||
                             name == "mu" || name == "max_share";
          if constexpr (std::is_arithmetic_v<Member> || std::is_enum_v<Member>) {
            if (!bound) line += ' ' + name + text(member);
          }
        });
      },
      any);
  return line;
}

namespace {

// The settings of a preset; a loss has those of its type by name.
template <class T>
std::string settings_of_preset(const gdpo::Preset<T>& preset) {
  return settings_of(preset.value);
}
template <class... Policies>
std::string settings_of_preset(const gdpo::Preset<gdpo::PolicyLoss<Policies...>>& preset) {
  return settings_of(gdpo::runtime::loss(preset.name));
}

}  // namespace

std::vector<std::string> without_record(const Report& report) {
  std::vector<std::string> names;
  const auto add_unless_recorded = [&](const auto& preset) {
    const bool of_trainer = std::string_view(preset.version).find('@') != std::string_view::npos ||
                            report.has_version(preset.version);
    if (of_trainer && !report.passed_as_is(preset.version, settings_of_preset(preset)))
      names.push_back(preset.name);
  };
  gdpo::presets::for_each_list([&](const auto& for_each) { for_each(add_unless_recorded); });
  return names;
}

}  // namespace conformance
