#include "surrogates.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <gdpo/dist/describe.hpp>
#include <gdpo/runtime.hpp>
#include <limits>
#include <map>
#include <variant>

namespace resolution {
namespace {

using gdpo::detail::type_name;
using gdpo::runtime::AnyFactors;
using gdpo::runtime::AnySurrogate;

constexpr double missing = std::numeric_limits<double>::quiet_NaN();

// ---- one token ----

/// Maps whose bounds lie far outside of every picture.
template <class Map>
constexpr bool is_plain_v =
    std::is_same_v<Map, gdpo::map::None> || std::is_same_v<Map, gdpo::map::Clamp>;

/// Calls f with the map, which may be one that is chosen at run time.
template <class Map, class F>
void visit_map(const Map& map, const F& f) {
  if constexpr (gdpo::detail::is_chosen_v<Map>) {
    map.visit(f);
  } else {
    f(map);
  }
}

template <class Map>
SurrogatePoint point_of(const Map& map, const AnySurrogate& surrogate, const AnyFactors& factors,
                        double advantage, double log_ratio) {
  using Loss = gdpo::PolicyLoss<gdpo::level::Token<Map>, AnySurrogate, gdpo::kl::None,
                                gdpo::Aggregate, AnyFactors>;
  const Loss loss{{map}, surrogate, {}, gdpo::aggregate::token_sum(), factors};
  const double old_logp = 0;
  double derivative = 0;
  const auto token = [](auto& x) { return gdpo::view(&x, 1, 1); };
  gdpo::TokenBatch<double> batch;
  batch.logp = token(log_ratio);
  batch.old_logp = batch.ref_logp = batch.rollout_logp = batch.teacher_logp = token(old_logp);
  batch.advantages = gdpo::view(&advantage, 1);
  gdpo::LossWorkspace<double> workspace;
  const gdpo::LossResult result =
      loss(gdpo::seq, batch, gdpo::count(batch), token(derivative), workspace);
  const auto& metrics = result.metrics;
  return {result.loss, derivative,
          metrics.clip_fraction_any.mean() == 0 && metrics.log_ratio_bounded.mean() == 0};
}

using PointOf = std::function<SurrogatePoint(double advantage, double log_ratio)>;

PointOf point_function(const gdpo::runtime::Loss& loss) {
  return std::visit(
      [](const auto& l) -> PointOf {
        return [map = l.level.map, surrogate = AnySurrogate(l.surrogate),
                factors = AnyFactors(l.factor)](double advantage, double log_ratio) {
          return point_of(map, surrogate, factors, advantage, log_ratio);
        };
      },
      loss);
}

// ---- what a loss is made of ----

/// Types and settings of a loss, as far as they treat the ratio.
struct Recipe {
  std::vector<std::string> parts;
  std::vector<std::string> settings;  // those that are on, with their values
  std::vector<std::string> on;        // their names
  bool has_settings = false;          // on or off
  std::string all;                    // everything, to compare

  template <class Part>
  void add(const Part& part) {
    parts.push_back(type_name<Part>());
    all += parts.back() + " ";
    if constexpr (gdpo::detail::has_fields_v<Part>) {
      const auto defaults = gdpo::runtime::settings(Part{});
      const auto now = gdpo::runtime::settings(part);
      for (std::size_t i = 0; i < now.size(); ++i) {
        const std::string& value = now[i].value;
        has_settings = true;
        all += now[i].name + "=" + value + " ";
        const bool off =
            value == "inf" || value == "-inf" || (value == "0" && defaults[i].value == "0");
        if (off) continue;
        settings.push_back(now[i].name + " " + value);
        on.push_back(now[i].name);
      }
    }
  }
  template <class... F>
  void add_all(const gdpo::Factors<F...>& factors) {
    if constexpr (sizeof...(F) > 0) {
      add(factors.first);
      add_all(factors.rest);
    }
  }
};

Recipe recipe_of(const gdpo::runtime::Loss& loss) {
  Recipe recipe;
  std::visit(
      [&recipe](const auto& l) {
        AnySurrogate(l.surrogate).visit([&recipe](const auto& s) { recipe.add(s); });
        AnyFactors(l.factor).visit([&recipe](const auto& f) { recipe.add_all(f); });
        visit_map(l.level.map, [&recipe](const auto& map) {
          if constexpr (!is_plain_v<std::decay_t<decltype(map)>>) recipe.add(map);
        });
      },
      loss);
  return recipe;
}

/// The last of its parts that has words: a factor or map tells more than the surrogate before it.
const SurrogateWords* words_of(const std::vector<std::string>& parts) {
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (const SurrogateWords* words = find_words(*part)) return words;
  }
  return nullptr;
}

// ---- curves ----

/// The number of points is such that no bound with few digits lies on one: on a bound, rounding
/// would decide on which side it is.
constexpr int intervals = 337;
/// Where clips are looked for outside of the picture, as log ratios.
constexpr double far_away[] = {-5, 5};

/// At x = 0 the ratio is not 0, whose logarithm is infinite, but one that looks like 0.
double log_ratio_at(double x, bool log_axis) { return log_axis ? x : std::log(std::max(x, 1e-3)); }

/// The number without the noise of its last bits, which differ between compilers.
double settled(double x) { return std::isfinite(x) ? std::round(x * 1e9) / 1e9 : missing; }

/// The point between two at which `inside` changes.
double edge(const std::function<bool(double)>& inside, double from, double to) {
  const bool first = inside(from);
  for (int i = 0; i < 50; ++i) {
    const double middle = (from + to) / 2;
    (inside(middle) == first ? from : to) = middle;
  }
  return settled(to);
}

/// Whether value or derivative jumps or bends at a point of the axis of this length.
bool bends(const std::function<SurrogatePoint(double)>& point, double x, double length) {
  const double step = 1e-4 * length;
  constexpr double least_jump = 1e-2;  // a smooth curve moves by about 1e-4 of its height
  constexpr double least_bend = 5e-2;  // and its slope by about 1e-3
  const auto bent = [&](auto member) {
    const auto at = [&](int steps) { return point(x + steps * step).*member; };
    return std::abs(at(1) - at(-1)) > least_jump ||
           std::abs((at(2) - at(1)) - (at(-1) - at(-2))) > least_bend * step;
  };
  return bent(&SurrogatePoint::value) || bent(&SurrogatePoint::derivative);
}

SurrogateCurve curve_of(const PointOf& point, double advantage, const std::vector<double>& x,
                        bool log_axis) {
  SurrogateCurve curve{advantage, {}, {}, {}};
  const auto inside = [&](double at) {
    return point(advantage, log_ratio_at(at, log_axis)).inside;
  };
  bool all_inside = true;
  for (const double log_ratio : far_away) all_inside &= point(advantage, log_ratio).inside;
  bool before = false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const SurrogatePoint p = point(advantage, log_ratio_at(x[i], log_axis));
    curve.value.push_back(settled(p.value));
    curve.derivative.push_back(settled(p.derivative));
    all_inside &= p.inside;
    if (p.inside && !before)
      curve.inside.emplace_back(i == 0 ? x[0] : edge(inside, x[i - 1], x[i]), x[i]);
    if (!p.inside && before) curve.inside.back().second = edge(inside, x[i - 1], x[i]);
    if (p.inside && i + 1 == x.size()) curve.inside.back().second = x[i];
    before = p.inside;
  }
  // Bounds may be without effect on one sign of the advantage.
  bool any_bound = false, any_effect = false;
  const auto point_at = [&](double at) { return point(advantage, log_ratio_at(at, log_axis)); };
  for (const auto& [from, to] : curve.inside) {
    for (const double end : {from, to}) {
      if (end == x.front() || end == x.back()) continue;
      any_bound = true;
      any_effect |= bends(point_at, end, x.back() - x.front());
    }
  }
  if (all_inside || any_bound != any_effect) curve.inside.clear();
  return curve;
}

std::vector<double> evenly(double least, double most) {
  std::vector<double> x;
  for (int i = 0; i <= intervals; ++i)
    x.push_back(least + (most - least) * static_cast<double>(i) / intervals);
  return x;
}

void draw(LossShape& shape, const PointOf& point) {
  const auto draw_over = [&](double least, double most) {
    shape.x = evenly(least, most);
    shape.positive = curve_of(point, 1, shape.x, shape.log_axis);
    shape.negative = curve_of(point, -1, shape.x, shape.log_axis);
  };
  if (shape.log_axis) return draw_over(-1.5, 1.5);
  draw_over(0, 4);
  // A range that is too narrow to be seen gets an axis of its own.
  constexpr double narrow = 0.05;
  const auto inside = [&](double ratio) { return point(1, std::log(ratio)).inside; };
  if (!inside(1) || inside(1 - narrow) || inside(1 + narrow)) return;
  const double half = std::max(1 - edge(inside, 1, 1 - narrow), edge(inside, 1, 1 + narrow) - 1);
  const double power = std::pow(10.0, std::ceil(std::log10(2 * half)));
  draw_over(1 - power, 1 + power);
}

bool looks_same(const LossShape& a, const LossShape& b) {
  const auto same = [](const std::vector<double>& p, const std::vector<double>& q) {
    return std::equal(p.begin(), p.end(), q.begin(), q.end(), [](double x, double y) {
      return x == y || (std::isnan(x) && std::isnan(y));
    });
  };
  return a.parts == b.parts && a.positive.inside == b.positive.inside &&
         a.negative.inside == b.negative.inside && same(a.x, b.x) &&
         same(a.positive.value, b.positive.value) &&
         same(a.positive.derivative, b.positive.derivative) &&
         same(a.negative.value, b.negative.value) &&
         same(a.negative.derivative, b.negative.derivative);
}

// ---- types ----

void add_type(std::vector<std::string>& types, const std::string& type) {
  if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
}
template <class... S>
void add_types(std::vector<std::string>& types, const gdpo::AnySurrogate<S...>*) {
  ((std::is_same_v<S, gdpo::surrogate::None> ? void() : add_type(types, type_name<S>())), ...);
}
template <class... F>
void add_types(std::vector<std::string>& types, const gdpo::Factors<F...>*) {
  (add_type(types, type_name<F>()), ...);
}
template <class... F>
void add_types(std::vector<std::string>& types, const gdpo::AnyFactors<F...>*) {
  (add_types(types, static_cast<const F*>(nullptr)), ...);
}
template <class Map>
void add_map(std::vector<std::string>& types, const Map*) {
  if constexpr (!is_plain_v<Map>) add_type(types, type_name<Map>());
}
template <class... Map>
void add_map(std::vector<std::string>& types, const gdpo::AnyMapOf<Map...>*) {
  (add_map(types, static_cast<const Map*>(nullptr)), ...);
}
template <class... Loss>
void add_maps(std::vector<std::string>& types, const std::variant<Loss...>*) {
  (add_map(types, static_cast<const decltype(Loss{}.level.map)*>(nullptr)), ...);
}

std::string joined(const std::vector<std::string>& texts, const std::string& between) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : between) + text;
  return all;
}

}  // namespace

std::string LossShape::settings_text() const {
  return !settings.empty() ? joined(settings, ", ") : has_settings ? "no bounds" : "no settings";
}
std::string LossShape::parts_text() const { return joined(parts, " x "); }
std::string LossShape::title() const { return words ? words->title : parts_text(); }

SurrogatePoint surrogate_point(const std::string& loss, double advantage, double log_ratio) {
  return point_function(gdpo::runtime::loss(loss))(advantage, log_ratio);
}

std::vector<std::string> surrogate_types() {
  std::vector<std::string> types;
  add_types(types, static_cast<const AnySurrogate*>(nullptr));
  add_types(types, static_cast<const AnyFactors*>(nullptr));
  add_maps(types, static_cast<const gdpo::runtime::Loss*>(nullptr));
  return types;
}

std::vector<std::string> losses_with_surrogate() {
  std::vector<std::string> names;
  for (const std::string& name : gdpo::runtime::loss_names()) {
    const std::vector<std::string> parts = recipe_of(gdpo::runtime::loss(name)).parts;
    if (parts.front() != type_name<gdpo::surrogate::None>()) names.push_back(name);
  }
  return names;
}

Surrogates all_surrogates() {
  Surrogates all;
  std::map<std::string, std::size_t> place_of;
  std::vector<std::vector<std::string>> on;
  for (const std::string& name : losses_with_surrogate()) {
    const gdpo::runtime::Loss loss = gdpo::runtime::loss(name);
    const Recipe recipe = recipe_of(loss);
    const auto [place, is_new] = place_of.emplace(recipe.all, all.shapes.size());
    if (!is_new) {
      all.shapes[place->second].names.push_back(name);
      continue;
    }
    LossShape shape;
    shape.parts = recipe.parts, shape.settings = recipe.settings;
    shape.has_settings = recipe.has_settings, shape.names = {name};
    shape.words = words_of(shape.parts);
    shape.log_axis = shape.words && shape.words->reads_log_ratio;
    draw(shape, point_function(loss));
    shape.picture = name;
    for (std::size_t i = 0; i < all.shapes.size() && shape.is_pictured(); ++i) {
      const LossShape& earlier = all.shapes[i];
      if ((earlier.parts == shape.parts && on[i] == recipe.on) || looks_same(earlier, shape))
        shape.picture = earlier.picture;
    }
    on.push_back(recipe.on);
    all.shapes.push_back(std::move(shape));
  }
  // Shapes without words come last.
  const auto rank = [](const LossShape& shape) {
    return shape.words ? shape.words - surrogate_words : std::ptrdiff_t{1000};
  };
  std::stable_sort(all.shapes.begin(), all.shapes.end(),
                   [&](const LossShape& a, const LossShape& b) {
                     return std::make_pair(rank(a), a.parts) < std::make_pair(rank(b), b.parts);
                   });
  return all;
}

}  // namespace resolution
