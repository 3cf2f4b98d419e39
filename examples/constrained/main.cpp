// A policy trained for one reward while a controller keeps two others at their limits. training.cpp is the part to read: what a
// trainer does with gdpo/constraint.hpp. The rest compares controllers and shows a run that survives its own death.
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

/// All texts are made before the first file is written.
void report(const Comparison& comparison, const Options& options) {
  const bool json_to_stdout = options.json == "-";
  const std::string json = options.json.empty() ? "" : to_json(comparison);
  const std::string html = options.html.empty() ? "" : to_html(comparison);
  if (!json.empty() && !json_to_stdout) resolution::write_whole_file(options.json, json);
  if (!html.empty()) resolution::write_whole_file(options.html, html);
  std::cout << (json_to_stdout ? json : to_text(comparison)) << std::flush;
  if (!std::cout) throw resolution::UserError("standard output: cannot be written");
}

/// To the last step, with a checkpoint every 50; prints the bits it ends with.
void run_to_end(Training training, const Settings& settings, const Options& options) {
  constexpr int checkpoint_every = 50;
  while (training.steps_done() < settings.steps) {
    training.step();
    const int done = training.steps_done();
    if (!options.checkpoint.empty() && done % checkpoint_every == 0) {
      write_checkpoint(options.checkpoint, settings, training.state());
    }
    if (done == options.stop_after) std::_Exit(9);
  }
  const Training::State end = training.state();
  const Rows& logits = end.policy.logits;
  std::cout << "step " << end.steps_done << ", policy "
            << hex(checksum(logits.data(),
                            static_cast<std::size_t>(logits.size()) * sizeof(double)))
            << ", lambda " << hex(end.pid.lambda[0]) << " " << hex(end.pid.lambda[1]) << std::endl;
}

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
