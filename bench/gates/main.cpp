// gdpo_gates measures the figures that the library must reach, as ratios inside one interleaved run
// (rounds.hpp). Exit status: 0 if every gate that could be measured is passed; 1 if a gate is
// missed or a result is wrong; 2 for bad usage; 3 if the machine was never quiet enough to tell.
#include <CLI/CLI.hpp>
#include <fstream>
#include <thread>

#include "experiments.hpp"
#include "processor.hpp"
#include "report.hpp"
#include "torch_eager.hpp"

namespace {

/// Keeps the figures whose line "experiment: figure" contains `only`, and the experiments that have
/// some.
std::vector<gates::Experiment> select(std::vector<gates::Experiment> experiments,
                                      const std::string& only) {
  std::vector<gates::Experiment> selected;
  for (gates::Experiment& experiment : experiments) {
    std::vector<gates::Row>& rows = experiment.rows;
    const auto is_out = [&](const gates::Row& row) {
      return (experiment.name + ": " + row.figure).find(only) == std::string::npos;
    };
    rows.erase(std::remove_if(rows.begin(), rows.end(), is_out), rows.end());
    if (!rows.empty()) selected.push_back(std::move(experiment));
  }
  return selected;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures each performance gate of gdpo as a ratio in one interleaved run.");
  bool list = false;
  std::string only, json_path;
  gates::RoundLimits limits;
  app.add_flag("--list", list, "Print the figures and their gates, and measure nothing");
  app.add_option("--only", only, "Only figures of which \"experiment: figure\" contains this text");
  app.add_option("--rounds", limits.wanted, "Quiet rounds a figure is the median of")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", json_path, "Write everything to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  limits.most = std::max(limits.most, 4 * limits.wanted);

  const gates::Build build = gates::build();
  if (!build.runs_here) {
    std::printf(
        "INCONCLUSIVE: this processor has not the instructions that this program was built for\n");
    return 3;
  }

  const std::vector<gates::Experiment> experiments = select(gates::experiments(), only);
  if (experiments.empty()) {
    std::fprintf(stderr, "--only: no figure contains \"%s\" (--list prints them)\n", only.c_str());
    return 2;
  }
  if (list) {
    for (const gates::Experiment& experiment : experiments) {
      for (const gates::Row& row : experiment.rows)
        std::printf("%s: %s  %s\n", experiment.name.c_str(), row.figure.c_str(),
                    row.gate.text().c_str());
    }
    return 0;
  }
  std::ofstream file;
  if (!json_path.empty()) {
    file.open(json_path);
    if (!file) {
      std::fprintf(stderr, "--json: cannot write %s\n", json_path.c_str());
      return 2;
    }
  }

  const gates::Torch* const torch = gates::torch();
  const gates::Processor processor;
  const nlohmann::ordered_json setting{{"processor", processor.name()},
                                       {"processors", std::thread::hardware_concurrency()},
                                       {"gates_set_on", gates::Processor::of_the_gates},
                                       {"gates_hold_here", processor.is_of_the_gates()},
                                       {"compiler", build.compiler},
                                       {"flags", build.flags},
                                       {"libtorch", torch ? torch->version : "not found"}};
  for (const auto& [key, value] : setting.items()) {
    std::printf("%-15s  %s\n", key.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
  std::printf("\n");

  gates::Report report(limits);
  for (const gates::Experiment& experiment : experiments) report.run(experiment);
  report.print_summary();
  if (!processor.is_of_the_gates() && report.exit_status() == 1) {
    std::printf(
        "The gates were set on %s: here, a gate that is MISSED compares two processors, and tells "
        "of no fault\n",
        gates::Processor::of_the_gates);
  }
  if (file.is_open()) {
    nlohmann::ordered_json json{{"setting", setting}};
    json.update(report.json());
    file << json.dump(2) << "\n";
  }
  return report.exit_status();
}
