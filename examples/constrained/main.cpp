// The example `constrained`: a policy is trained for one reward while a controller keeps two other
// rewards at their limits. A small recommender (bandit.hpp) maximizes feedback under constraints on
// alignment and quality, as in Recommendation-as-Generation (arXiv 2606.25496).
//
// Read training.cpp: one step of it is what a trainer does with gdpo/constraint.hpp. The other
// files compare controllers (controllers.cpp, comparison.cpp, *_report.cpp) and show that a run
// continues from a checkpoint with the same bits (checkpoint.cpp). Read ../trainer_step.cpp first.
//
// Build and run, from the root of the repository (needs nlohmann-json and CLI11):
//   cmake --preset release && cmake --build build/release --target constrained
//   build/release/examples/constrained --seeds 20 --html constrained.html
//   build/release/examples/constrained --help
#include <cstdlib>
#include <exception>
#include <iostream>

#include "../resolution/errors.hpp"
#include "../resolution/output_file.hpp"
#include "checkpoint.hpp"
#include "hex.hpp"
#include "options.hpp"
#include "reports.hpp"

namespace {

using namespace constrained;

/// Writes the comparison in every form that the options ask for, all files before anything is
/// printed.
void report(const Comparison& comparison, const Options& options) {
  const bool json_to_stdout = options.json == "-";
  const std::string json = options.json.empty() ? "" : to_json(comparison);
  const std::string html = options.html.empty() ? "" : to_html(comparison);
  std::vector<resolution::OutputFile> files;
  if (!json.empty() && !json_to_stdout) files.push_back({options.json, json});
  if (!html.empty()) files.push_back({options.html, html});
  resolution::write_reports(files, json_to_stdout ? json : to_text(comparison));
}

/// Runs the training to its last step, with a checkpoint every 50 steps where the options name a
/// file. Prints the bits of the final policy and multipliers, so that two runs can be compared
/// exactly.
void run_to_end(Training training, const Settings& settings, const Options& options) {
  constexpr int checkpoint_every = 50;
  while (training.steps_done() < settings.steps) {
    training.step();
    const int done = training.steps_done();
    if (!options.checkpoint.empty() && done % checkpoint_every == 0) {
      write_checkpoint(options.checkpoint, settings, training.state());
    }
    // Simulates a crash: no destructor runs, no stream is flushed.
    if (done == options.stop_after) std::_Exit(9);
  }
  const Training::State end = training.state();
  const Rows& logits = end.policy.logits;
  std::cout << "step " << end.steps_done << ", policy "
            << hex(checksum(logits.data(),
                            static_cast<std::size_t>(logits.size()) * sizeof(double)))
            << ", lambda " << hex(end.pid.lambda[0]) << " " << hex(end.pid.lambda[1]) << std::endl;
}

/// Compares the controllers, or runs one training from its start or from a checkpoint.
void run(const Options& options) {
  if (!options.one_run()) return report(compare(options.settings, options.seeds), options);
  if (options.resume.empty())
    return run_to_end(Training(options.settings), options.settings, options);
  auto [settings, state] = read_checkpoint(options.resume);
  run_to_end(Training(settings, std::move(state)), settings, options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Parsed parsed = parse_options(argc, argv);
    std::cout << parsed.text;
    if (parsed.options) run(*parsed.options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "constrained: " << error.what() << '\n';
    return 2;
  }
}
