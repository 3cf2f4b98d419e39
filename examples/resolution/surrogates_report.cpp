#include "surrogates_report.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "html.hpp"
#include "text_table.hpp"
#include "words.hpp"

namespace resolution {
namespace {

constexpr std::size_t terminal_width = 100;
constexpr const char* minus = "\u2212";

std::string joined(const std::vector<std::string>& texts, const std::string& mark = "") {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + mark + text + mark;
  return all;
}

std::string paragraph(const std::string& text) { return wrapped(text, terminal_width, 0) + "\n"; }

// ---- charts ----

/// Values beyond this are not drawn.
constexpr double highest = 4;

charts::Panel panel_of(const LossShape& shape, const SurrogateCurve& curve, double least,
                       double most) {
  charts::Panel panel;
  const auto visible = [&](std::vector<double> values) {
    for (double& value : values) {
      if (value < least || value > most) value = std::nan("");
    }
    return values;
  };
  panel.title = std::string("A = ") + (curve.advantage < 0 ? minus : "") + "1";
  panel.curves = {{"value", visible(curve.value), charts::Tone::Sum, true},
                  {"derivative", visible(curve.derivative), charts::Tone::Norm}};
  panel.x = {shape.log_axis ? "log ratio, log r" : "ratio r", shape.x.front(), shape.x.back(),
             false};
  panel.y = {"loss of the token, derivative by log p", least, most};
  for (const auto& [from, to] : curve.inside) panel.bands.push_back({from, to});
  if (!shape.positive.inside.empty() || !shape.negative.inside.empty())
    panel.band_name = "inside the clip";
  return panel;
}

/// What the chart shows, for those who do not see it.
std::string summary_of(const LossShape& shape, const SurrogateCurve& curve) {
  std::string summary = std::string("A = ") + (curve.advantage < 0 ? minus : "") + "1. ";
  for (const double ratio : {0.5, 1.0, 2.0, 3.0}) {
    const double x = shape.log_axis ? std::log(ratio) : ratio;
    if (x < shape.x.front() || x > shape.x.back()) continue;
    const auto next = std::lower_bound(shape.x.begin(), shape.x.end(), x);
    const auto i = static_cast<std::size_t>(next - shape.x.begin());
    summary += "r = " + compact(ratio) + ": value " + html::number(fixed(curve.value[i], 2)) +
               ", derivative " + html::number(fixed(curve.derivative[i], 2)) + ". ";
  }
  for (const auto& [from, to] : curve.inside)
    summary += "Inside the clip from " + compact(from) + " to " + compact(to) + ". ";
  summary.pop_back();
  return summary;
}

std::string summary_of(const LossShape& shape) {
  return shape.title() + ", " + shape.settings_text() + ". " + summary_of(shape, shape.positive) +
         " " + summary_of(shape, shape.negative);
}

// ---- words ----

constexpr const char* meaning =
    "For a token with the advantage A the broad curve is its loss, and the thin one the derivative "
    "of that by its log-prob: its negative is how hard one step pushes the token up.";

constexpr const char* definitions =
    "r is the ratio of the token's probabilities now and when it was sampled, or at a sequence "
    "level that of its sequence. sg(x) is x without its gradient. All numbers are computed by the "
    "library's losses on rows of one token, with old_logp = 0, without KL terms, pre-passes and "
    "denominators.";
constexpr const char* shade =
    " Shaded: the ratios that the clip metrics of the loss count as inside, where its bounds have "
    "an effect.";

std::string formulas(const SurrogateWords& words) {
  return html::element("p", "class=\"formula\"",
                       "value <code>" + html::escaped(words.value) +
                           "</code><br>derivative by log p <code>" +
                           html::escaped(words.derivative) + "</code>");
}

std::string sources(const SurrogateWords& words) {
  std::string list;
  for (const Source& source : words.sources) {
    if (!source.name) continue;
    list += std::string(list.empty() ? "" : ", ") + "<a href=\"" + source.url + "\">" +
            html::escaped(source.name) + "</a>";
  }
  return html::element("p", "class=\"note\"",
                       "Source: " + list + ". Used by: " + html::escaped(words.used_by));
}

bool begins(const Surrogates& all, std::size_t i) {
  return i == 0 || all.shapes[i].title() != all.shapes[i - 1].title();
}

}  // namespace

std::vector<charts::Panel> panels(const LossShape& shape) {
  // Both charts have the same scale, mirrored.
  double least = -0.5, most = 0;
  const auto include = [&](const SurrogateCurve& curve) {
    for (const auto* values : {&curve.value, &curve.derivative}) {
      for (const double value : *values) {
        const double mirrored = value * curve.advantage;
        if (!std::isfinite(mirrored)) continue;
        least = std::max(-highest, std::min(least, mirrored));
        most = std::min(highest, std::max(most, mirrored));
      }
    }
  };
  include(shape.positive);
  include(shape.negative);
  least = std::floor(2 * least) / 2, most = std::ceil(2 * most) / 2;
  return {panel_of(shape, shape.positive, least, most),
          panel_of(shape, shape.negative, -most, -least)};
}

// ---- reports ----

std::string to_html(const Surrogates& all) {
  using html::element;
  std::string body = element("header", "",
                             html::paragraph("Policy losses", "eyebrow") +
                                 element("h1", "", "What each loss makes of the ratio") +
                                 html::paragraph(meaning, "lead") +
                                 html::paragraph(std::string(definitions) + shade));
  std::string figures;
  for (std::size_t i = 0; i < all.shapes.size(); ++i) {
    const LossShape& shape = all.shapes[i];
    if (begins(all, i)) {
      body += figures + html::heading(shape.title());
      figures.clear();
      if (shape.words) {
        body += formulas(*shape.words) + html::paragraph(shape.words->text) + sources(*shape.words);
      }
      body +=
          html::element("p", "class=\"note\"",
                        "In the library: <code>" + html::escaped(shape.parts_text()) + "</code>");
    }
    std::string pair;
    const std::vector<charts::Panel> both = panels(shape);
    pair += charts::panel(both[0], summary_of(shape, shape.positive));
    pair += charts::panel(both[1], summary_of(shape, shape.negative));
    figures +=
        html::figure(shape.settings_text(), html::division("pair", pair), joined(shape.names));
  }
  body += figures;
  body += element("footer", "",
                  "Made by gdpo-resolution --surrogates. This page is complete in itself and loads "
                  "nothing.");
  return html::page("Policy losses: surrogates", body);
}

std::string to_text(const Surrogates& all) {
  constexpr double ratios[] = {0.1, 0.5, 0.9, 1.1, 1.5, 2, 4};
  std::string out =
      paragraph(std::string("Loss of a token (value) and its derivative by log p. ") + definitions);
  for (std::size_t i = 0; i < all.shapes.size(); ++i) {
    const LossShape& shape = all.shapes[i];
    if (begins(all, i)) {
      out += "\n" + shape.title() + "  [" + shape.parts_text() + "]\n";
      if (shape.words) {
        out += wrapped("  value: " + std::string(shape.words->value), terminal_width, 4) + "\n" +
               wrapped("  derivative: " + std::string(shape.words->derivative), terminal_width, 4) +
               "\n";
      }
    }
    std::vector<std::string> header{"ratio"};
    for (const double ratio : ratios) header.push_back(compact(ratio));
    TextTable table(header);
    for (const double advantage : {1.0, -1.0}) {
      std::vector<std::string> value{"A = " + compact(advantage) + ", value"};
      std::vector<std::string> derivative{"A = " + compact(advantage) + ", derivative"};
      for (const double ratio : ratios) {
        const SurrogatePoint p = surrogate_point(shape.names.front(), advantage, std::log(ratio));
        value.push_back(fixed(p.value, 3));
        derivative.push_back(fixed(p.derivative, 3));
      }
      table.add(value);
      table.add(derivative);
    }
    out += "\n" + wrapped(shape.settings_text() + ": " + joined(shape.names), terminal_width, 2) +
           "\n" + table.text(terminal_width);
  }
  return out;
}

std::string to_json(const Surrogates& all) {
  using Json = nlohmann::ordered_json;
  const auto numbers = [](const std::vector<double>& values) {
    Json list = Json::array();
    for (const double value : values) list.push_back(std::isfinite(value) ? Json(value) : Json());
    return list;
  };
  Json shapes = Json::array();
  for (const LossShape& shape : all.shapes) {
    Json object;
    object["parts"] = shape.parts;
    object["settings"] = shape.settings;
    object["losses"] = shape.names;
    object["x"] = shape.log_axis ? "log_ratio" : "ratio";
    object["points"] = numbers(shape.x);
    for (const SurrogateCurve* curve : {&shape.positive, &shape.negative}) {
      object["curves"].push_back({{"advantage", curve->advantage},
                                  {"value", numbers(curve->value)},
                                  {"derivative", numbers(curve->derivative)},
                                  {"inside", curve->inside}});
    }
    shapes.push_back(object);
  }
  return Json{{"shapes", shapes}}.dump(1) + "\n";
}

std::string picture_name(const LossShape& shape) {
  std::string name = shape.names.front();
  for (std::size_t at = 0; (at = name.find("::")) != std::string::npos;) name.replace(at, 2, "_");
  return name + ".svg";
}

std::vector<OutputFile> to_pictures(const Surrogates& all, const std::string& folder) {
  std::vector<OutputFile> files;
  for (const LossShape& shape : all.shapes) {
    if (shape.is_pictured())
      files.push_back(
          {folder + "/" + picture_name(shape), charts::picture(panels(shape), summary_of(shape))});
  }
  return files;
}

std::string to_markdown(const Surrogates& all, const std::string& folder) {
  std::string out = wrapped(meaning, terminal_width, 0) + "\n\n" +
                    wrapped(std::string(definitions) + shade, terminal_width, 0) + "\n";
  for (std::size_t i = 0; i < all.shapes.size(); ++i) {
    const LossShape& shape = all.shapes[i];
    if (begins(all, i)) {
      out += "\n## " + shape.title() + "\n\n";
      if (shape.words) {
        const SurrogateWords& words = *shape.words;
        std::string list;
        for (const Source& source : words.sources) {
          if (source.name)
            list +=
                std::string(list.empty() ? "" : ", ") + "[" + source.name + "](" + source.url + ")";
        }
        out += "```text\nvalue       " + std::string(words.value) + "\nderivative  " +
               words.derivative + "\n```\n\n" + wrapped(words.text, terminal_width, 0) +
               "\n\nSource: " + list + ".\n" +
               wrapped(std::string("Used by: ") + words.used_by, terminal_width, 0) + "\n";
      }
      out += "In the library: `" + shape.parts_text() + "`.\n";
    }
    if (!shape.is_pictured()) continue;
    out += "\n![" + shape.title() + ", " + shape.settings_text() + "](" + folder +
           picture_name(shape) + ")\n\n| settings | losses |\n| --- | --- |\n";
    for (const LossShape& other : all.shapes) {
      if (other.picture != shape.picture) continue;
      out += "| " + other.settings_text() + (&other == &shape ? " (drawn)" : "") + " | " +
             joined(other.names, "`") + " |\n";
    }
  }
  return out;
}

}  // namespace resolution
