// The tool gdpo-resolution: how finely do group-relative estimators (GRPO, GRPO without std, GDPO,
// presets of trainers) tell completions apart? It reads a log of rollouts with several rewards (CSV
// or JSON), computes the advantages of each estimator with the library, batch by batch, and counts
// distinct values, ties inside groups and groups without any advantage. Results are a table, JSON,
// or an HTML page. With --explain it prints one group's numbers stage by stage instead, with
// --count it runs the counting experiment of the GDPO paper, and with --surrogates it shows what
// each policy loss makes of the ratio.
//
// Read in this order: input/rollouts.hpp (the log), estimators.cpp (the calls of the library),
// metrics.hpp (what is counted), comparison.hpp (one log, all estimators). The other files of
// input/ read what trainers write, those of this folder write reports.
//
// Build and run, from the root of the repository (needs RapidJSON, nlohmann-json and CLI11):
//   cmake --preset release && cmake --build build/release --target gdpo-resolution
//   build/release/examples/gdpo-resolution --help
//   cmake/dev demo
#include <exception>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>

#include "comparison.hpp"
#include "counting.hpp"
#include "errors.hpp"
#include "findings.hpp"
#include "html_report.hpp"
#include "json_report.hpp"
#include "options.hpp"
#include "output_file.hpp"
#include "surrogates_report.hpp"
#include "text_report.hpp"
#include "words.hpp"

namespace {

/// Writes a result in every form that the options ask for, all files before anything is
/// printed.
template <class Result>
void report(const Result& result, const resolution::Options& options,
            std::vector<resolution::OutputFile> files = {}) {
  const bool json_to_stdout = options.json == "-";
  const std::string json = options.json.empty() ? "" : resolution::to_json(result);
  const std::string html = options.html.empty() ? "" : resolution::to_html(result);
  if (!json.empty() && !json_to_stdout) files.push_back({options.json, json});
  if (!html.empty()) files.push_back({options.html, html});
  resolution::write_reports(files, json_to_stdout ? json : resolution::to_text(result));
}

/// Shows the surrogates. The folder of the pictures is made if it does not exist.
void show_surrogates(const resolution::Options& options) {
  const resolution::Surrogates surrogates = resolution::all_surrogates();
  std::vector<resolution::OutputFile> pictures;
  if (!options.svg.empty()) {
    std::error_code error;  // the first file that cannot be written says so
    std::filesystem::create_directories(options.svg, error);
    pictures = resolution::to_pictures(surrogates, options.svg);
  }
  report(surrogates, options, std::move(pictures));
}

/// Prints the numbers of a group, of each batch that has one of this name, by each estimator.
void explain(const resolution::Options& options) {
  const resolution::Rollouts log =
      resolution::read_rollouts_files(options.inputs, options.reading, options.columns);
  std::string text;
  for (std::size_t g = 0; g < log.groups(); ++g) {
    if (options.explain != log.group_names[g] && options.explain != log.group_name(g)) continue;
    for (const std::string& line : options.estimators) {
      text += (text.empty() ? "" : "\n") + resolution::explanation(line, options.settings, log, g);
    }
  }
  if (text.empty()) {
    const bool of_a_batch = options.explain.find(" of batch ") != std::string::npos;
    std::set<std::string> names;
    for (std::size_t g = 0; g < log.groups(); ++g)
      names.insert(of_a_batch ? log.group_name(g) : log.group_names[g]);
    throw resolution::UserError(
        "--explain: there is no group " + resolution::in_quotes(options.explain) +
        "; the nearest are " +
        resolution::list(resolution::nearest_first({names.begin(), names.end()}, options.explain)));
  }
  resolution::write_reports({}, text);
}

/// Counts or shows surrogates without a log, or compares the estimators on one.
void run(const resolution::Options& options) {
  if (options.surrogates) return show_surrogates(options);
  if (!options.explain.empty()) return explain(options);
  if (options.count) return report(resolution::count_all(options.estimators), options);
  const resolution::Comparison comparison = resolution::compare(
      resolution::read_rollouts_files(options.inputs, options.reading, options.columns),
      options.settings, options.estimators);
  // The text and the page say it themselves.
  if (options.json == "-") {
    for (const resolution::Finding& w : resolution::warnings(comparison))
      std::cerr << "gdpo-resolution: warning: " << w.title << ". " << w.text << '\n';
  }
  report(comparison, options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const resolution::Parsed parsed = resolution::parse_options(argc, argv);
    std::cout << parsed.text;
    if (parsed.options) run(*parsed.options);
    return 0;
  } catch (const resolution::UserError& error) {
    std::cerr << "gdpo-resolution: " << error.what() << '\n';
    if (!error.advice.empty()) std::cerr << error.advice << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "gdpo-resolution: " << error.what() << '\n';
    return 2;
  }
}
