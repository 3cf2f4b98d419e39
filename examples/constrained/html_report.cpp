#include <algorithm>
#include <cmath>

#include "../resolution/charts.hpp"
#include "../resolution/html.hpp"
#include "../resolution/words.hpp"
#include "reports.hpp"

namespace constrained {
namespace {

namespace charts = resolution::charts;
namespace html = resolution::html;
using charts::Tone;
using html::element;
using resolution::fixed;

/// Whether the multipliers move at all.
bool has_controller(const Result& result) {
  return result.controller.name != "fixed" && result.controller.name != "feedback_alone";
}

std::string seeds_text(const Comparison& c) {
  return resolution::counted(static_cast<std::size_t>(c.seeds), "seed");
}

/// A bar chart with one bar per rule: the larger of the means of two measures over the runs. With
/// `all` it also has the rules without a controller.
std::string bars(const Comparison& comparison, const std::string& title, const std::string& caption,
                 bool all, double (*first)(const Score&), double (*second)(const Score&)) {
  std::vector<charts::Bar> bars;
  double most = 0;
  std::string summary = title + ".";
  for (const Result& result : comparison.results) {
    if (!all && !has_controller(result)) continue;
    const double value = std::max(over_runs(result, first).mean, over_runs(result, second).mean);
    bars.push_back({result.controller.label, value, fixed(value, 3),
                    result.controller.name == "default" ? Tone::Own : Tone::Idle});
    most = std::max(most, value);
    summary += " " + result.controller.label + ": " + fixed(value, 3) + ".";
  }
  return html::figure(title, charts::bars(bars, most, summary), caption);
}

std::string overview(const Comparison& c) {
  std::string out = bars(
      c, "Violation, std of the baseline",
      "Mean error of the last quarter of training, where positive. The aim is 0.01 at most.", false,
      [](const Score& s) { return s.violation[0]; }, [](const Score& s) { return s.violation[1]; });
  out += bars(
      c, "Undershoot, std of the baseline",
      "How far a run goes beyond the limit, on the satisfied side, once it has reached it: reward "
      "given away.",
      false, [](const Score& s) { return s.undershoot[0]; },
      [](const Score& s) { return s.undershoot[1]; });
  out += bars(
      c, "Oscillation, std of the baseline",
      "Standard deviation of the error over the second half of training.", false,
      [](const Score& s) { return s.oscillation[0]; },
      [](const Score& s) { return s.oscillation[1]; });
  out += bars(
      c, "Feedback",
      "Mean of the last quarter. To violate a limit buys feedback: compare with the first chart.",
      true, [](const Score& s) { return s.feedback; }, [](const Score& s) { return s.feedback; });
  return html::division("charts", out);
}

/// The values f(step) of a run.
template <class F>
std::vector<double> values_of(const std::vector<Step>& run, const F& f) {
  std::vector<double> values;
  for (const Step& step : run) values.push_back(f(step));
  return values;
}

/// The y axes of the curves, common to all rules.
struct Ranges {
  charts::Axis error{"std of the baseline; above 0: violated", 0, 0},
      lambda{"weight against the reward", 0, 0}, feedback{"mean reward", 0, 0};
};

Ranges ranges_of(const Comparison& comparison) {
  const auto extend = [](charts::Axis& axis, double value) {
    axis.least = std::min(axis.least, value);
    axis.most = std::max(axis.most, value);
  };
  Ranges ranges;
  for (const Result& result : comparison.results) {
    if (result.controller.name == "feedback_alone") continue;
    for (const Step& step : result.first_run) {
      for (std::size_t c = 0; c < 2; ++c)
        extend(ranges.error, step.error[c]), extend(ranges.lambda, step.lambda[c]);
      extend(ranges.feedback, step.feedback);
    }
  }
  return ranges;
}

/// The curves of error, multiplier and feedback of one rule's first run, side by side.
std::string curves_of(const Result& result, const Ranges& ranges) {
  const auto& run = result.first_run;
  const charts::Axis steps{"step", 0, static_cast<double>(run.size())};
  const charts::Limit limit{0, ""};
  const std::string of = " of " + result.controller.label + " over the steps";
  const auto pair = [&](const auto& member) {
    return std::vector<charts::Curve>{
        {"alignment", values_of(run, [&](const Step& step) { return (step.*member)[0]; }),
         Tone::Sum},
        {"quality", values_of(run, [&](const Step& step) { return (step.*member)[1]; }),
         Tone::Norm}};
  };
  return html::division(
      "charts three",
      html::figure("Error",
                   charts::curves(pair(&Step::error), steps, ranges.error, "Errors" + of, &limit),
                   "") +
          html::figure(
              "Multiplier lambda",
              charts::curves(pair(&Step::lambda), steps, ranges.lambda, "Multipliers" + of), "") +
          html::figure(
              "Feedback",
              charts::curves(
                  {{"", values_of(run, [](const Step& step) { return step.feedback; }), Tone::Own}},
                  steps, ranges.feedback, "Feedback" + of),
              ""));
}

std::string traces(const Comparison& comparison) {
  const Ranges ranges = ranges_of(comparison);
  std::string out;
  for (const Result& result : comparison.results) {
    if (result.controller.name == "feedback_alone") continue;
    out += element("h3", "", html::escaped(result.controller.label)) +
           html::paragraph(result.controller.about, "note") + curves_of(result, ranges);
  }
  return out;
}

std::string table(const Comparison& comparison) {
  std::vector<std::string> header{"measure"};
  for (const Result& result : comparison.results)
    header.push_back(html::escaped(result.controller.label));
  std::vector<std::vector<std::string>> rows;
  for (const Measure& measure : measures()) {
    std::string name = measure.header;
    std::replace(name.begin(), name.end(), '\n', ' ');
    std::vector<std::string> row{html::escaped(name)};
    for (const Result& result : comparison.results) {
      const Spread spread = over_runs(result, measure.of);
      row.push_back(
          html::number(fixed(spread.mean, measure.digits)) +
          (std::isnan(spread.std)
               ? ""
               : html::division("spread", "±" + html::number(fixed(spread.std, measure.digits)))));
    }
    rows.push_back(row);
  }
  return html::table("Mean ± standard deviation over " + seeds_text(comparison), header, rows);
}

std::string definition(const std::string& name, const std::string& meaning) {
  return element("dt", "", html::escaped(name)) + element("dd", "", html::escaped(meaning));
}

std::string definitions_list() {
  return element(
      "dl", "class=\"terms\"",
      definition("Error",
                 "(limit - expected reward) / std of the baseline policy's reward: positive where "
                 "the constraint is violated. Expected exactly, over all contexts and items; "
                 "controllers see means of 512 samples.") +
          definition("Limit",
                     "Mean of the baseline policy's reward plus 0.8 (alignment) or 0.5 (quality) "
                     "of its std.") +
          definition("Violation", "max(0, mean error of the last quarter of training).") +
          definition("Positive part",
                     "Mean over the last quarter of max(0, error), step by step.") +
          definition("Undershoot",
                     "Largest -error from the first step on at which the limit is met; of the runs "
                     "that meet it.") +
          definition("Oscillation",
                     "Standard deviation of the error over the second half of training.") +
          definition("Crossings",
                     "How often, in the second half, the error goes from beyond 0.02 to beyond "
                     "-0.02 or back.") +
          definition("Violation, all steps",
                     "Sum of max(0, error) over all steps and both constraints.") +
          definition("Feedback, lambda", "Means of the last quarter of training."));
}

}  // namespace

std::string to_html(const Comparison& comparison) {
  const Settings& s = comparison.settings;
  std::string body = element(
      "header", "",
      html::paragraph("Constrained policy optimization", "eyebrow") +
          element("h1", "", "Feedback under two constraints: which rule keeps the limits?") +
          html::paragraph(verdict(comparison) + ".", "lead") +
          html::paragraph(
              "A softmax policy over " + std::to_string(Bandit::items) + " items for " +
                  std::to_string(Bandit::contexts) +
                  " contexts is trained with GDPO advantages and GRPO's loss, " +
                  std::to_string(s.steps) + " steps of " + std::to_string(Bandit::completions) +
                  " completions, learning rate " + resolution::compact(s.learning_rate) +
                  ". It maximizes feedback, which is anticorrelated with alignment and quality; "
                  "these have limits that the first policy misses. Each rule moves the multipliers "
                  "that weigh them. Kp " +
                  resolution::compact(s.gains.kp) + ", Ki " + resolution::compact(s.gains.ki) + ".",
              "note"));
  body += html::heading("How well the limits are kept");
  body += html::paragraph("Means over " + seeds_text(comparison) +
                          "; of the two constraints, the larger. Shorter is better, but "
                          "for the feedback.");
  body += overview(comparison);
  body += html::heading("Run by run");
  body += html::paragraph("The first seed, all rules on the same axes. Dashed: the limit.");
  body += traces(comparison);
  body += html::heading("The numbers");
  body += table(comparison);
  body += html::heading("What is measured");
  body += definitions_list();
  body += element(
      "footer", "",
      "Made by gdpo's example constrained. This page is complete in itself and loads nothing.");
  return html::page("Constrained policy optimization", body);
}

}  // namespace constrained
