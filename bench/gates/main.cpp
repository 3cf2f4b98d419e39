// gdpo_gates measures the figures that the library must reach, as ratios inside one interleaved run
// (rounds.hpp). Exit status: 0 if every gate that could be measured is passed; 1 if a gate is
// missed or a result is wrong; 2 for bad usage; 3 if the machine was never quiet enough to tell.
// With --against it measures the library of another checkout beside this one (against.hpp).
#include <CLI/CLI.hpp>
#include <fstream>
#include <thread>

#include "against.hpp"
#include "processor.hpp"
#include "torch_eager.hpp"

namespace {

void print(const nlohmann::ordered_json& setting) {
  for (const auto& [key, value] : setting.items()) {
    std::printf("%-15s  %s\n", key.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures each performance gate of gdpo as a ratio in one interleaved run.");
  bool list = false, explain = false;
  double margin = 5;
  std::string only, folder, json_path;
  gates::RoundLimits limits;
  app.add_flag("--list", list, "Print the figures and their gates, and measure nothing");
  app.add_option("--only", only, "Only figures of which \"experiment: figure\" contains this text");
  app.add_option("--rounds", limits.wanted, "Quiet rounds a figure is the median of")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--explain", explain,
               "Say what bounds each contender: the time of reading as many bytes, and the "
               "instructions of one call, counted one by one");
  CLI::Option* const trees = app.add_option(
      "--against", folder,
      "Measure the time of the library in the checkout FOLDER over that of this one instead");
  trees->type_name("FOLDER");
  app.add_option("--margin", margin, "With --against: by how many per cent this one may be slower")
      ->check(CLI::Range(0.0, 99.0))
      ->needs(trees)
      ->capture_default_str();
  app.add_option("--json", json_path, "Write everything to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  limits.most = limits.wanted * 20 / 3;

  const gates::Build build = gates::build();
  if (!build.runs_here) {
    std::printf(
        "INCONCLUSIVE: this processor has not the instructions that this program was built for\n");
    return 3;
  }

  std::vector<gates::Figures> figures;
  for (gates::Figures& file : gates::figures()) {
    file.experiments = select(std::move(file.experiments), only);
    if (!file.experiments.empty()) figures.push_back(std::move(file));
  }
  if (figures.empty()) {
    std::fprintf(stderr, "--only: no figure contains \"%s\" (--list prints them)\n", only.c_str());
    return 2;
  }
  if (list) {
    for (const gates::Figures& file : figures) {
      for (const gates::Experiment& experiment : file.experiments) {
        for (const gates::Row& row : experiment.rows)
          std::printf("%s: %s  %s\n", experiment.name.c_str(), row.figure.c_str(),
                      row.gate.text().c_str());
      }
    }
    return 0;
  }
  std::ofstream json_file;
  if (!json_path.empty()) {
    json_file.open(json_path);
    if (!json_file) {
      std::fprintf(stderr, "--json: cannot write %s\n", json_path.c_str());
      return 2;
    }
  }

  const gates::Processor processor;
  nlohmann::ordered_json setting{{"processor", processor.name()},
                                 {"kind", processor.kind()},
                                 {"processors", std::thread::hardware_concurrency()},
                                 {"compiler", build.compiler},
                                 {"flags", build.flags}};
  limits.fastest = bool(*trees);
  gates::Report report(limits, processor.kind());
  if (explain) report.explain();
  try {
    if (*trees) {
      const gates::Against against(folder, figures, only);
      setting.update(against.setting());
      print(setting);
      std::printf("Time there over time here: above 1 this tree is faster.\n\n");
      against.run(report, margin / 100);
    } else {
      const gates::Torch* const torch = gates::torch();
      setting.update({{"libtorch", torch ? torch->version : "not found"}});
      print(setting);
      std::printf("\n");
      for (const gates::Figures& file : figures) {
        for (const gates::Experiment& experiment : file.experiments) report.run(experiment);
      }
    }
  } catch (const std::runtime_error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  report.print_summary();
  if (json_file.is_open()) {
    nlohmann::ordered_json json{{"setting", setting}};
    json.update(report.json());
    json_file << json.dump(2) << "\n";
  }
  return report.exit_status();
}
