#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "../../examples/resolution/errors.hpp"
#include "../../examples/resolution/words.hpp"

namespace small_groups {
namespace {

using resolution::UserError;

constexpr const char* description =
    "Measures how well each estimator of advantages finds the direction of the policy gradient "
    "from "
    "few completions a prompt, on softmax bandits whose gradient is known exactly.";

constexpr const char* footer = R"(
Prints tables in Markdown; bench/small_groups/README.md says what they mean. The numbers depend on
--seed and the sizes alone. Exit status: 0, or 2 with the reason on standard error.)";

/// The laws or estimators among `names`, in their own order; all where none is among them.
template <class T>
std::vector<T> selected(const std::vector<T>& all, const std::vector<std::string>& names) {
  std::vector<T> some;
  for (const T& one : all) {
    if (std::find(names.begin(), names.end(), one.name) != names.end()) some.push_back(one);
  }
  return some.empty() ? all : some;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const Law& law : all_laws()) names.push_back(law.name);
  for (const Estimator& e : all_estimators()) names.push_back(e.name);
  return names;
}

std::string listing() {
  std::string text = "Laws:\n";
  const auto line = [&](const std::string& name, const std::string& what) {
    text += "  " + name + std::string(20 - name.size(), ' ') + what + "\n";
  };
  for (const Law& law : all_laws()) line(law.name, law.description);
  text += "Estimators (baseline, scale):\n";
  for (const Estimator& e : all_estimators()) line(e.name, e.formula);
  return text;
}

void check_ks(const Options& options) {
  std::vector<std::size_t> ks = options.settings.ks;
  std::sort(ks.begin(), ks.end());
  if (std::adjacent_find(ks.begin(), ks.end()) != ks.end())
    throw UserError("--k: a number is given twice");
}

}  // namespace

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  options.data = GDPO_SMALL_GROUPS_DATA;
  Settings& settings = options.settings;
  std::vector<std::string> only;
  std::vector<std::string> tables{"summary", "laws", "details"};
  bool quick = false;
  bool list = false;
  CLI::App app(description, "small_groups");
  app.footer(footer);
  app.get_formatter()->column_width(26);
  app.add_flag("--quick", quick,
               "3 seeds, 20 batches, 16 prompts, K = 2 and 4, unless other options say\notherwise: "
               "seconds, for tests");
  CLI::Option* ks =
      app.add_option("--k", settings.ks, "Completions a prompt, 2 to 256 (default 2,3,4,8,16)")
          ->type_name("K,...")
          ->delimiter(',')
          ->check(CLI::Range(2, 256));
  CLI::Option* seeds =
      app.add_option("--seeds", settings.seeds, "Sets of prompts, 2 to 1000 (default 20)")
          ->type_name("N")
          ->check(CLI::Range(2, 1000));
  CLI::Option* batches = app.add_option("--batches", settings.batches,
                                        "Batches of each set, 2 to 1000000 (default 100)")
                             ->type_name("N")
                             ->check(CLI::Range(2, 1000000));
  CLI::Option* prompts =
      app.add_option("--prompts", settings.prompts, "Prompts of a batch, 1 to 4096 (default 64)")
          ->type_name("N")
          ->check(CLI::Range(1, 4096));
  app.add_option("--seed", settings.seed, "Of all random numbers (default 1)")->type_name("N");
  CLI::Option* detail = app.add_option("--detail-k", options.shown.detail_k,
                                       "K of the tables with all measures (default 4, or the\n"
                                       "largest of --k)")
                            ->type_name("K");
  app.add_option("--print", tables, "Which tables: summary, laws, details (default: all)")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->check(CLI::IsMember({"summary", "laws", "details"}));
  app.add_option("--only", only, "Laws and estimators to run (default: all; --list names them)")
      ->type_name("NAME,...")
      ->delimiter(',');
  app.add_option("--threads", options.threads, "1 to 1024 (default: all of the machine)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--data", options.data, "Folder of the logs (default: examples/data)")
      ->type_name("DIR");
  app.add_option("--json", options.json, "Write all numbers as JSON")->type_name("FILE");
  app.add_flag("--list", list, "Print the names of laws and estimators, and leave");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help()};
  } catch (const CLI::ParseError& error) {
    throw UserError(std::string(error.what()) + "\nRun with --help for the options.");
  }
  if (list) return {std::nullopt, listing()};
  if (quick) {
    if (ks->count() == 0) settings.ks = {2, 4};
    if (seeds->count() == 0) settings.seeds = 3;
    if (batches->count() == 0) settings.batches = 20;
    if (prompts->count() == 0) settings.prompts = 16;
  }
  check_ks(options);
  if (std::find(settings.ks.begin(), settings.ks.end(), options.shown.detail_k) ==
      settings.ks.end()) {
    if (detail->count() > 0) {
      throw UserError("--detail-k: " + std::to_string(options.shown.detail_k) +
                      " is not among --k");
    }
    options.shown.detail_k = *std::max_element(settings.ks.begin(), settings.ks.end());
  }
  const auto printed = [&](const char* name) {
    return std::find(tables.begin(), tables.end(), name) != tables.end();
  };
  options.shown.summary = printed("summary");
  options.shown.laws = printed("laws");
  options.shown.details = printed("details");
  const std::vector<std::string> names = all_names();
  for (const std::string& name : only) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UserError("--only: there is no law or estimator " + resolution::in_quotes(name) +
                      "; the names are " + resolution::list(names));
    }
  }
  options.laws = selected(all_laws(), only);
  options.estimators = selected(all_estimators(), only);
  return {options, ""};
}

}  // namespace small_groups
