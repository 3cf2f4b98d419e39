#include "options.hpp"

#include <CLI/CLI.hpp>

#include "../resolution/errors.hpp"

namespace constrained {
namespace {

constexpr const char* description =
    "Trains a small recommender for user feedback under two constraints, alignment and quality, "
    "with GDPO advantages, and compares rules for the constraints' multipliers.";

constexpr const char* footer = R"(
Exit status: 0, or 2 with the reason on standard error.

Examples:
  constrained --seeds 20 --html constrained.html
  constrained --checkpoint run.json --stop-after 330    dies after step 330; the file has step 300
  constrained --resume run.json                         ends as if it had not died)";

}  // namespace

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(description, "constrained");
  app.footer(footer);
  app.get_formatter()->column_width(26);
  Settings& settings = options.settings;
  const auto positive = CLI::Range(1, 1000000);
  const auto amount = CLI::Range(0.0, 1e6);
  bool hinge = false;

  std::vector<CLI::Option*> of_a_comparison = {
      app.add_option("--seeds", options.seeds, "Tasks to compare on (default 4)")
          ->check(positive)
          ->type_name("N"),
      app.add_option(
             "--json", options.json,
             "Write all numbers as JSON; - writes them to standard output\ninstead of the table")
          ->type_name("FILE"),
      app.add_option("--html", options.html, "Write a self-contained report")->type_name("FILE")};
  std::vector<CLI::Option*> of_a_run = {
      app.add_option("--seed", settings.seed, "The first of them (default 1)")->type_name("S"),
      app.add_option("--steps", settings.steps, "Steps of a run (default 600)")
          ->check(CLI::Range(4, 1000000))
          ->type_name("N"),
      app.add_option("--learning-rate", settings.learning_rate, "Of the logits (default 32)")
          ->check(amount)
          ->type_name("R"),
      app.add_option("--kp", settings.gains.kp, "Of the default: lambda for one std of violation")
          ->check(amount)
          ->type_name("K"),
      app.add_option("--ki", settings.gains.ki,
                     "The same for one step of it; rules said to have the same\ngains follow")
          ->check(amount)
          ->type_name("K"),
      app.add_flag("--hinge", hinge,
                   "A completion's violation is max(0, limit - reward), as in\narXiv "
                   "2606.25496, in place of limit - reward")};
  auto* checkpoint = app.add_option("--checkpoint", options.checkpoint,
                                    "One run of the default; writes its state to FILE every "
                                    "50\nsteps, and prints the final bits")
                         ->type_name("FILE");
  app.add_option("--stop-after", options.stop_after,
                 "Die after this many steps, without destructors")
      ->check(positive)
      ->needs(checkpoint)
      ->type_name("N");
  auto* resume = app.add_option("--resume", options.resume,
                                "Go on with a run from its checkpoint, to its final bits")
                     ->type_name("FILE");
  for (CLI::Option* option : of_a_comparison) option->excludes(checkpoint)->excludes(resume);
  for (CLI::Option* option : of_a_run) option->excludes(resume);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, app.help()};
  } catch (const CLI::ParseError& error) {
    throw resolution::UserError(std::string(error.what()) + "\nRun with --help for the options.");
  }
  if (options.html == "-") throw resolution::UserError("--html needs a file name");
  if (!options.html.empty() && options.html == options.json) {
    throw resolution::UserError("--json and --html name the same file");
  }
  if (hinge) settings.signal = gdpo::Signal::Hinge;
  return {options, ""};
}

}  // namespace constrained
