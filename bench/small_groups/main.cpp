// The tool small_groups: how well does each estimator of advantages find the direction of the
// policy gradient, where a prompt has few completions? It draws rewards from softmax bandits, whose
// gradient is known exactly, and lets the library compute the advantages. Results are tables in
// Markdown, and JSON. The page bench/small_groups/README.md explains them.
//
// Read in this order: bandits.hpp (prompts, exact gradients, batches), laws.cpp (which prompts),
// estimators.cpp (the calls of the library), measures.cpp (what is measured), experiment.cpp (all
// of them). markdown.cpp and json.cpp write reports.
//
// Build and run, from the root of the repository (needs nlohmann-json and CLI11):
//   cmake --preset release && cmake --build build/release --target small_groups
//   build/release/bench/small_groups --help
#include <exception>
#include <iostream>

#include "../../examples/resolution/errors.hpp"
#include "../../examples/resolution/output_file.hpp"
#include "options.hpp"
#include "reports.hpp"

namespace {

void run(const small_groups::Options& options) {
  const small_groups::Logs logs = small_groups::read_logs(options.laws, options.data);
  const small_groups::Results results =
      small_groups::run(options.settings, options.laws, options.estimators, logs, options.threads);
  std::cout << small_groups::to_markdown(results, options.shown) << std::flush;
  if (!std::cout) throw resolution::UserError("standard output: cannot be written");
  if (!options.json.empty())
    resolution::write_files({{options.json, small_groups::to_json(results)}});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const small_groups::Parsed parsed = small_groups::parse_options(argc, argv);
    std::cout << parsed.text;
    if (parsed.options) run(*parsed.options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "small_groups: " << error.what() << '\n';
    return 2;
  }
}
