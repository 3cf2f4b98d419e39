#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <gdpo/core/version.hpp>
#include <sstream>

#include "errors.hpp"
#include "numbers.hpp"
#include "words.hpp"

namespace resolution {
namespace {

constexpr const char* description =
    "Compares how finely group-relative estimators (GRPO, GRPO without std, GDPO, ...) tell "
    "completions apart, on a log of rollouts with several rewards.";

constexpr const char* footer = R"(
Input: CSV with a header row, or JSON Lines (one completion per line; members of nested objects by a
dotted path such as rewards.accuracy), from a file or standard input. Rows of a group share the )"
                               R"(value
of the group column and need not stand together. An empty cell, null or NaN in a reward is a missing
reward: it takes part in no statistic of its channel; a completion without any reward gets advantage
0. The report counts them. true and false are 1 and 0.

Exit status: 0, or 2 with the reason (with line and column) on standard error; then no file is )"
                               R"(written.

Examples:
  gdpo-resolution rollouts.csv --group prompt_id --rewards accuracy,format --html report.html
  gdpo-resolution rollouts.jsonl --group prompt --rewards scores.correct,scores.short \
      --given 'scores.short:scores.correct>=1' --weights 1,0.5 --length tokens
  gdpo-resolution --count --html counts.html)";

std::string version_text() {
  return "gdpo-resolution " + std::to_string(GDPO_VERSION_MAJOR) + "." +
         std::to_string(GDPO_VERSION_MINOR) + "." + std::to_string(GDPO_VERSION_PATCH);
}

/// The number of a reward, or rewards.size() where there is no such reward.
std::size_t reward_index(const std::string& name, const std::vector<std::string>& rewards) {
  return static_cast<std::size_t>(std::find(rewards.begin(), rewards.end(), name) -
                                  rewards.begin());
}

/// The parts of a list separated by commas. Throws UserError where one is empty or occurs twice.
std::vector<std::string> split(const std::string& text, const std::string& option) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    if (part.empty()) throw UserError(option + ": a name is empty in " + in_quotes(text));
    if (std::find(parts.begin(), parts.end(), part) != parts.end()) {
      throw UserError(option + ": " + in_quotes(part) + " is given twice");
    }
    parts.push_back(part);
  }
  return parts;
}

std::vector<double> split_numbers(const std::string& text, const std::string& option) {
  std::vector<double> numbers;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto number = parse_number(part);
    if (!number) throw UserError(option + ": " + in_quotes(part) + " is not a finite number");
    numbers.push_back(*number);
  }
  return numbers;
}

/// The options as they were typed, before they are interpreted.
struct Words {
  std::string format = "auto";
  std::string rewards;
  std::string weights;
  std::vector<std::string> given;
  std::string eps;
  std::string estimators;
};

Format parse_format(const std::string& name) {
  if (name == "auto") return Format::Auto;
  if (name == "csv") return Format::Csv;
  if (name == "jsonl") return Format::Jsonl;
  throw UserError("--format: " + in_quotes(name) + " is none of csv, jsonl, auto");
}

void interpret_log_options(const Words& words, Options& options) {
  if (options.columns.group.empty()) {
    throw UserError("--group is required: the column that says which rows belong together");
  }
  if (words.rewards.empty())
    throw UserError("--rewards is required: the reward columns, separated by commas");
  options.format = parse_format(words.format);
  options.columns.rewards = split(words.rewards, "--rewards");
  const auto& rewards = options.columns.rewards;
  options.settings.weights = split_numbers(words.weights, "--weights");
  const std::size_t weights = options.settings.weights.size();
  if (weights != 0 && weights != rewards.size()) {
    throw UserError("--weights: " + counted(weights, "weight") + " for " +
                    counted(rewards.size(), "reward"));
  }
  if (!words.eps.empty()) {
    const auto eps = parse_number(words.eps);
    if (!eps || *eps < 0)
      throw UserError("--eps: " + in_quotes(words.eps) + " is not a number from 0");
    options.settings.eps = *eps;
  }
  for (const std::string& text : words.given)
    options.settings.given.push_back(parse_condition(text, rewards));
}

}  // namespace

Condition parse_condition(const std::string& text, const std::vector<std::string>& rewards) {
  const std::string wrong = "--given " + in_quotes(text) + ": ";
  const std::size_t relation = text.rfind(">=");
  if (relation == std::string::npos)
    throw UserError(wrong + "must look like 'b:a>=1' (b counts only where a is at least 1)");
  const auto threshold = parse_number(text.substr(relation + 2));
  if (!threshold)
    throw UserError(wrong + in_quotes(text.substr(relation + 2)) + " is not a number");
  const std::string names = text.substr(0, relation);
  // Names may hold colons: take the first colon with a reward on either side.
  for (std::size_t colon = names.find(':'); colon != std::string::npos;
       colon = names.find(':', colon + 1)) {
    const std::size_t reward = reward_index(names.substr(0, colon), rewards);
    const std::size_t given = reward_index(names.substr(colon + 1), rewards);
    if (reward == rewards.size() || given == rewards.size()) continue;
    if (reward == given) throw UserError(wrong + "a reward cannot depend on itself");
    return {reward, given, *threshold};
  }
  throw UserError(wrong + "both sides of ':' must be among --rewards: " + list(rewards));
}

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  Words words;
  CLI::App app(description, "gdpo-resolution");
  app.footer(footer);
  app.get_formatter()->column_width(26);

  std::vector<CLI::Option*> of_a_log;
  const auto log_option = [&](const std::string& name, auto& value, const std::string& type,
                              const std::string& text) {
    of_a_log.push_back(app.add_option(name, value, text)->type_name(type));
    return of_a_log.back();
  };
  log_option("input", options.input, "FILE", "Log of rollouts; none or - reads standard input");
  log_option("--group", options.columns.group, "COL",
             "Column whose value the rows of one group share");
  log_option("--rewards", words.rewards, "COL,...", "Reward columns, e.g. accuracy,format");
  log_option("--weights", words.weights, "W,...", "One weight per reward (default: all 1)");
  log_option("--given", words.given, "'b:a>=1'",
             "Reward b counts only where reward a is at least 1, else it is 0;\nmay be repeated")
      // Each --given takes one condition; the next argument may be the log.
      ->allow_extra_args(false);
  log_option("--length", options.columns.length, "COL",
             "Column with the length of a completion in tokens: for estimators that\nweight by it, "
             "and to compare them");
  log_option("--eps", words.eps, "E",
             "Added to standard deviations (default 0; presets keep their own)");
  log_option("--format", words.format, "NAME",
             "csv, jsonl or auto (default: by file name, then by content)");
  app.add_option("--estimators", words.estimators,
                 "Default: grpo,grpo_no_std,gdpo_pre_bn,gdpo,gdpo_then_group_norm\n(with --count: "
                 "grpo,grpo_no_std,gdpo); also presets such as trl::gdpo")
      ->type_name("NAME,...");
  app.add_option(
         "--json", options.json,
         "Write the numbers as JSON; - writes them to standard output\ninstead of the table")
      ->type_name("FILE");
  app.add_option("--html", options.html, "Write a self-contained report")->type_name("FILE");
  app.add_flag("--count", options.count,
               "Instead of reading a log, count the distinct advantages of all\nbinary rewards "
               "(the paper's experiment)");
  app.set_version_flag("--version", version_text(), "Print the version and exit");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help()};
  } catch (const CLI::CallForVersion&) {
    return {std::nullopt, version_text() + "\n"};
  } catch (const CLI::ParseError& error) {
    throw UserError(std::string(error.what()) + "\nRun with --help for the options.");
  }

  if (options.html == "-") throw UserError("--html needs a file name");
  if (!options.html.empty() && options.html == options.json)
    throw UserError("--json and --html name the same file");
  if (options.count) {
    for (const CLI::Option* option : of_a_log) {
      if (option->count() > 0)
        throw UserError("--count reads no log, so " + option->get_name() + " does not go with it");
    }
    options.estimators = {"grpo", "grpo_no_std", "gdpo"};
  } else {
    interpret_log_options(words, options);
    options.estimators = default_estimators();
  }
  if (!words.estimators.empty()) options.estimators = split(words.estimators, "--estimators");
  // Refuse an unknown name before the log is read.
  for (const std::string& name : options.estimators) describe(name);
  return {options, ""};
}

}  // namespace resolution
