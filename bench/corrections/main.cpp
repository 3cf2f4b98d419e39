// The tool corrections: the engine that samples and the policy that is trained never agree on
// log-probs. What do the corrections for that do to the gradient, and what do they cost? It samples
// from small policies whose gradient is known exactly, and lets the library compute masks, weights
// and gradients. Results are tables in Markdown, and JSON. The page bench/corrections/README.md
// explains them.
//
// Read in this order: policy.hpp (the task and its exact gradient), samplers.hpp (engines),
// corrections.cpp (the list), measure.cpp (the calls of the library), experiment.cpp (all of them).
// markdown.cpp and json.cpp write reports.
//
// Build and run, from the root of the repository (needs nlohmann-json and CLI11):
//   cmake --preset release && cmake --build build/release --target corrections
//   build/release/bench/corrections --help
#include <exception>
#include <iostream>

#include "../../examples/resolution/errors.hpp"
#include "../../examples/resolution/output_file.hpp"
#include "options.hpp"
#include "reports.hpp"

namespace {

void run(const corrections::Options& options) {
  const corrections::Results results =
      corrections::run(options.settings, options.samplers, options.corrections, options.threads);
  std::cout << corrections::to_markdown(results) << std::flush;
  if (!std::cout) throw resolution::UserError("standard output: cannot be written");
  if (!options.json.empty())
    resolution::write_files({{options.json, corrections::to_json(results)}});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const corrections::Parsed parsed = corrections::parse_options(argc, argv);
    std::cout << parsed.text;
    if (parsed.options) run(*parsed.options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "corrections: " << error.what() << '\n';
    return 2;
  }
}
