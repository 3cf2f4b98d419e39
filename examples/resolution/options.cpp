#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <gdpo/core/version.hpp>

#include "errors.hpp"
#include "input/numbers.hpp"
#include "words.hpp"

namespace resolution {
namespace {

constexpr const char* description =
    "Compares how finely group-relative estimators (GRPO, GRPO without std, GDPO, ...) tell "
    "completions apart, on a log of rollouts with several rewards.";

constexpr const char* footer = R"(
Input: CSV, TSV or any delimited text with a header row; or JSON: an object a line, an array of
objects, or objects of arrays (a completion per element). Members of nested objects are named by a
path, rewards.accuracy or prompt.0.content; * is every element of a list, as in completions.*.score.
\. is a dot inside a key, \, a comma inside a name.
Gzip is read. Several files are one log. What trainers write, with a command for each:
examples/resolution/README.md.

A batch is what one training step saw: GDPO normalizes over it last. Without --batch the whole log
is one. A group lies inside its batch; its rows need not stand together. An empty cell, null or NaN
in a reward is a missing reward: it takes part in no statistic of the reward; a completion without
any reward counts in no pair, tie or group, and may lack its length. The report says how many there
are. Also N/A, none, nil, missing and - mean missing, in any case. true and false are 1 and 0.

Exit status: 0, or 2 with the reason (with line and column) on standard error; then no file is
written, unless it is standard output that cannot be.

Examples:
  gdpo-resolution rollouts.csv --batch step --group prompt_id --rewards accuracy,format \
      --html report.html
  gdpo-resolution dump/*.jsonl --batch step --group input --rewards scores.correct,scores.short \
      --given 'scores.short:scores.correct>=1' --weights 1,0.5 --length tokens
  gdpo-resolution rollouts.csv --batch step --group prompt_id --rewards accuracy,format \
      --explain 17
  gdpo-resolution --count --html counts.html
  gdpo-resolution --surrogates --html losses.html)";

std::string version_text() {
  return "gdpo-resolution " + std::to_string(GDPO_VERSION_MAJOR) + "." +
         std::to_string(GDPO_VERSION_MINOR) + "." + std::to_string(GDPO_VERSION_PATCH);
}

/// The number of a reward, or rewards.size() where there is no such reward.
std::size_t reward_index(const std::string& name, const std::vector<std::string>& rewards) {
  return static_cast<std::size_t>(std::find(rewards.begin(), rewards.end(), name) -
                                  rewards.begin());
}

void refuse_twice(const std::vector<std::string>& parts, const std::string& option) {
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    if (std::find(parts.begin(), part, *part) != part)
      throw UserError(option + ": " + in_quotes(*part) + " is given twice");
  }
}

/// The parts of a list separated by commas; `\,` is a comma inside a part. Throws UserError where a
/// part is empty or occurs twice.
std::vector<std::string> split(const std::string& text, const std::string& option) {
  std::vector<std::string> parts(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (text[i] == '\\' && next == ',') {
      parts.back().push_back(text[++i]);
    } else if (text[i] == '\\' && next == '\\') {
      parts.back() += text.substr(i++, 2);  // which a path reads as one backslash
    } else if (text[i] == ',') {
      parts.emplace_back();
    } else {
      parts.back().push_back(text[i]);
    }
  }
  for (const std::string& part : parts) {
    if (part.empty()) throw UserError(option + ": a name is empty in " + in_quotes(text));
  }
  refuse_twice(parts, option);
  return parts;
}

std::vector<double> split_numbers(const std::string& text, const std::string& option) {
  std::vector<double> numbers;
  for (std::size_t from = 0; !text.empty() && from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string part = text.substr(from, end - from);
    from = end + 1;
    const auto number = parse_number(part);
    if (!number) throw UserError(option + ": " + in_quotes(part) + " is not a finite number");
    numbers.push_back(*number);
  }
  return numbers;
}

/// The options as they were typed, before they are interpreted.
struct Words {
  std::string format = "auto";
  std::string delimiter;
  std::string batch;
  std::string group;
  std::string rewards;
  std::string weights;
  std::vector<std::string> given;
  std::string estimators;
  std::string missing;
};

Reading parse_reading(const Words& words) {
  Reading reading;
  if (words.format == "csv" || words.format == "tsv") {
    reading.format = Format::Csv;
    if (words.format == "tsv") reading.delimiter = '\t';
  } else if (words.format == "json" || words.format == "jsonl") {
    reading.format = Format::Json;
  } else if (words.format != "auto") {
    throw UserError("--format: " + in_quotes(words.format) +
                    " is none of csv, tsv, json, jsonl, auto");
  }
  if (words.delimiter.empty()) return reading;
  const std::string& d = words.delimiter;
  if (d == "tab" || d == "\\t") {
    reading.delimiter = '\t';
  } else if (d.size() == 1 && d != "\"" && d != "\n" && d != "\r") {
    reading.delimiter = d[0];
  } else {
    throw UserError("--delimiter: " + in_quotes(d) + " is neither one character nor tab");
  }
  if (reading.format == Format::Json)
    throw UserError("--delimiter does not go with --format " + words.format);
  reading.format = Format::Csv;
  return reading;
}

void interpret_log_options(const Words& words, Options& options) {
  if (words.group.empty() == (options.columns.group_size == 0)) {
    throw UserError(words.group.empty()
                        ? "--group is required: the column that says which rows belong together; "
                          "or --group-size, where rows that follow each other do"
                        : "--group and --group-size do not go together: either a column says "
                          "which rows belong together, or their order does");
  }
  if (words.rewards.empty())
    throw UserError("--rewards is required: the reward columns, separated by commas");
  options.reading = parse_reading(words);
  Columns& columns = options.columns;
  if (!words.group.empty()) columns.group = split(words.group, "--group");
  columns.rewards = split(words.rewards, "--rewards");
  if (!words.batch.empty()) columns.batch = split(words.batch, "--batch");
  if (!words.missing.empty()) columns.missing = split(words.missing, "--missing");
  options.settings.weights = split_numbers(words.weights, "--weights");
  const std::size_t weights = options.settings.weights.size();
  if (weights != 0 && weights != columns.rewards.size()) {
    throw UserError("--weights: " + counted(weights, "weight") + " for " +
                    counted(columns.rewards.size(), "reward"));
  }
  for (const std::string& text : words.given)
    options.settings.given.push_back(parse_condition(text, columns.rewards));
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
  // As in --rewards, a comma in a name may have a backslash before it.
  std::string names = text.substr(0, relation);
  for (std::size_t at = 0; (at = names.find("\\,", at)) != std::string::npos; ++at)
    names.erase(at, 1);
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
  log_option("input", options.inputs, "FILE",
             "Log of rollouts, one file or several; none or - reads standard\ninput");
  log_option("--batch", words.batch, "COL,...",
             "Columns whose values the rows of one training step share, e.g.\nrun,step (default: "
             "the whole log is one batch)");
  of_a_log.push_back(app.add_flag("--file-is-batch", options.columns.file_is_batch,
                                  "Every file is a batch, or several if --batch is given too"));
  log_option("--group", words.group, "COL,...",
             "Columns whose values the rows of one group share, e.g. the prompt");
  log_option("--group-size", options.columns.group_size, "K",
             "Instead of --group: K rows of a batch that follow each other in a\nfile are a group")
      ->check(CLI::Range(std::size_t{2}, std::size_t{1} << 30U));
  log_option("--rewards", words.rewards, "COL,...", "Reward columns, e.g. accuracy,format");
  log_option("--weights", words.weights, "W,...", "One weight per reward (default: all 1)");
  log_option("--given", words.given, "'b:a>=1'",
             "Reward b counts only where reward a is at least 1, else it is 0;\nmay be repeated")
      // Each --given takes one condition; the next argument may be the log.
      ->allow_extra_args(false);
  log_option("--length", options.columns.length, "COL",
             "Column with the length of a completion in tokens: for estimators that\nweight by it, "
             "and to compare them");
  log_option("--missing", words.missing, "WORD,...",
             "Words in a cell that stand for a missing reward, e.g. error,-100,\nbeside the usual "
             "ones");
  log_option("--valid", options.columns.valid, "COL",
             "Column that is 0 or false in rows that are no completions, such as\npadding: they "
             "are left out");
  log_option("--format", words.format, "NAME",
             "csv, tsv, json, jsonl or auto (default: by file name, then by\ncontent)");
  log_option("--delimiter", words.delimiter, "CHAR",
             "What separates the cells of CSV, or tab (default: the comma, tab,\nsemicolon or bar "
             "that fits the header)");
  app.add_option("--estimators", words.estimators,
                 "Names, each with its settings: 'trl::gdpo scale.eps=1e-6,grpo'. Default:\n"
                 "grpo,grpo_no_std,gdpo_pre_bn,gdpo,gdpo_then_group_norm (with\n"
                 "--count: grpo,grpo_no_std,gdpo)")
      ->type_name("NAME,...");
  log_option("--explain", options.explain, "GROUP",
             "Instead of the comparison, print every number of this group between\nits rewards and "
             "its advantages (default of --estimators: gdpo)");
  bool list = false;
  app.add_flag("--list", list,
               "Instead of reading a log, print all names, and the settings of\n--estimators: "
               "value, what fits, meaning");
  app.add_option(
         "--json", options.json,
         "Write the numbers as JSON; - writes them to standard output\ninstead of the table")
      ->type_name("FILE");
  app.add_option("--html", options.html, "Write a self-contained report")->type_name("FILE");
  app.add_flag("--count", options.count,
               "Instead of reading a log, count the distinct advantages of all\nbinary rewards "
               "(the paper's experiment)");
  app.add_flag("--surrogates", options.surrogates,
               "Instead of reading a log, show what each policy loss of the\nlibrary makes of the "
               "ratio: value and derivative, as a table, and\nas charts with --html");
  app.add_option("--svg", options.svg,
                 "With --surrogates: write the charts as SVG files into this\nfolder, too")
      ->type_name("FOLDER");
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
  const auto same_file = [](const std::string& a, const std::string& b) {
    namespace fs = std::filesystem;
    return fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
  };
  if (!options.html.empty() && !options.json.empty() && same_file(options.html, options.json))
    throw UserError("--json and --html name the same file");
  for (const std::string& input : options.inputs) {
    for (const std::string& output : {options.json, options.html}) {
      if (!output.empty() && output != "-" && same_file(input, output))
        throw UserError(printable(output) + ": is the log itself, and is not overwritten");
    }
  }
  if (options.surrogates) {
    for (const auto& [given, name] : {std::pair(list, "--list"),
                                      {options.count, "--count"},
                                      {!words.estimators.empty(), "--estimators"}}) {
      if (given)
        throw UserError(std::string("--surrogates shows policy losses, so ") + name +
                        " does not go with it");
    }
  } else if (!options.svg.empty()) {
    throw UserError("--svg goes with --surrogates only");
  }
  if (options.count || options.surrogates || list) {
    const std::string instead = list ? "--list" : options.count ? "--count" : "--surrogates";
    for (const CLI::Option* option : of_a_log) {
      if (option->count() > 0)
        throw UserError(instead + " reads no log, so " + option->get_name() +
                        " does not go with it");
    }
  } else {
    interpret_log_options(words, options);
  }
  options.estimators = default_estimators();
  if (options.count) options.estimators = {"grpo", "grpo_no_std", "gdpo"};
  if (!options.explain.empty()) {
    options.estimators = {"gdpo"};
    if (!options.json.empty() || !options.html.empty())
      throw UserError("--explain prints text, so --json and --html do not go with it");
  }
  if (!words.estimators.empty()) options.estimators = split(words.estimators, "--estimators");
  // What the library does not know is refused before the log is read.
  for (std::string& line : options.estimators) line = describe(line).name;
  refuse_twice(options.estimators, "--estimators");
  if (list) return {std::nullopt, listing(options.estimators)};
  return {options, ""};
}

}  // namespace resolution
