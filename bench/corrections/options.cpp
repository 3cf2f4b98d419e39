#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "../../examples/resolution/errors.hpp"
#include "../../examples/resolution/words.hpp"

namespace corrections {
namespace {

using resolution::UserError;

constexpr const char* description =
    "Measures what corrections for a sampling engine's own log-probs do to the policy gradient, on "
    "small policies whose gradient is known exactly.";

constexpr const char* footer = R"(
Prints tables in Markdown; bench/corrections/README.md says what they mean. The numbers depend on
--seed and the sizes alone. Exit status: 0, or 2 with the reason on standard error.)";

/// The samplers or corrections among `names`, in their own order; all where none is among them.
template <class T>
std::vector<T> selected(const std::vector<T>& all, const std::vector<std::string>& names) {
  std::vector<T> some;
  for (const T& one : all) {
    if (std::find(names.begin(), names.end(), one.name) != names.end()) some.push_back(one);
  }
  return some.empty() ? all : some;
}

std::string listing() {
  std::string text = "Samplers:\n";
  const auto line = [&](const std::string& name, const std::string& what) {
    text += "  " + name + std::string(20 - name.size(), ' ') + what + "\n";
  };
  for (const Sampler& s : all_samplers()) line(s.name, s.description);
  text += "Corrections (the lines of their pre-passes):\n";
  for (const Correction& c : all_corrections()) line(c.name, c.lines);
  return text;
}

}  // namespace

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  Settings& settings = options.settings;
  std::vector<std::string> only, lines;
  bool quick = false, list = false;
  CLI::App app(description, "corrections");
  app.footer(footer);
  app.get_formatter()->column_width(26);
  app.add_flag(
      "--quick", quick,
      "2 policies, 4 chunks of 2 batches unless other options say otherwise:\nseconds, for "
      "tests");
  const auto number = [&](const char* name, std::size_t& value, const char* what, int least,
                          int most) {
    return app.add_option(name, value, what)->type_name("N")->check(CLI::Range(least, most));
  };
  CLI::Option* policies = number("--policies", settings.policies,
                                 "Policies of each sampler, 1 to 1000 (default 4)", 1, 1000);
  CLI::Option* chunks = number(
      "--chunks", settings.chunks,
      "Chunks of each policy, 3 to 10000 (default 20): intervals come from\ntheir differences", 3,
      10000);
  CLI::Option* batches = number("--batches", settings.batches,
                                "Batches of a chunk, 1 to 1000000 (default 10)", 1, 1000000);
  number("--sequences", settings.sequences, "Sequences of a batch, 1 to 65536 (default 64)", 1,
         65536);
  app.add_option("--seed", settings.seed, "Of all random numbers (default 1)")->type_name("N");
  app.add_option("--only", only,
                 "Samplers and corrections to run (default: all; --list names them)")
      ->type_name("NAME,...")
      ->delimiter(',');
  app.add_option(
         "--line", lines,
         "One more correction: lines of pre-passes as in --list, joined by \" + \"; may be\n"
         "given again")
      ->type_name("LINES");
  app.add_option("--threads", options.threads, "1 to 1024 (default: all of the machine)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "Write all numbers as JSON")->type_name("FILE");
  app.add_flag("--list", list, "Print the names of samplers and corrections, and leave");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help()};
  } catch (const CLI::ParseError& error) {
    throw UserError(std::string(error.what()) + "\nRun with --help for the options.");
  }
  if (list) return {std::nullopt, listing()};
  if (quick) {
    if (policies->count() == 0) settings.policies = 2;
    if (chunks->count() == 0) settings.chunks = 4;
    if (batches->count() == 0) settings.batches = 2;
  }
  std::vector<std::string> names;
  for (const Sampler& s : all_samplers()) names.push_back(s.name);
  for (const Correction& c : all_corrections()) names.push_back(c.name);
  for (const std::string& name : only) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UserError("--only: there is no sampler or correction " + resolution::in_quotes(name) +
                      "; the names are " + resolution::list(names));
    }
  }
  options.samplers = selected(all_samplers(), only);
  options.corrections = selected(all_corrections(), only);
  for (const std::string& line : lines) {
    options.corrections.push_back({line, line});
    passes_of(options.corrections.back());
  }
  return {options, ""};
}

}  // namespace corrections
