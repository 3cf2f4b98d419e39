// gdpo_conformance: does this library return what the trainers return?
//
//   gdpo_conformance DIR... [--exec seq|simd|parallel|grid|cuda] [--kind KIND] [--source NAME]
//                           [--require-all] [--json FILE] [--presets [--unrecorded NAME]...]
//
// Reads every golden file (golden.hpp has the schema) of the directories, runs each recorded
// function as the preset of its trainer with the recorded settings, and compares every value within
// the tolerance of the record. A case is
//   passed        all its outputs and metrics are within the tolerance;
//   failed        something differs (the first differing element is listed), the library threw, or
//                 a recorded metric was not compared;
//   unsupported   no preset is mapped to the function, or a parameter has a value the mapping does
//                 not know. gaps.cpp lists the reasons for which a case cannot be compared; a case
//                 that it lists and that passes has failed.
// unlogged.cpp lists the metrics that no report of the library has; a metric that it lists and that
// is compared is a failure too.
// The version of a file decides which preset a function is, where a release changed the function
// (releases.cpp).
// The runner only chooses presets and sets their members: every number is computed by the library.
// advantage.cpp and loss.cpp bind the inputs of a kind of case; advantage_presets.cpp,
// loss_presets.cpp and release_losses.cpp say which function is which preset; contrastive.cpp
// (losses over groups), value.cpp (the critic's side), kl.cpp, aggregate.cpp, corrections.cpp,
// batch_corrections.cpp, mismatch.cpp and pid.cpp do both.
// Every loss is computed twice, padded and packed, and both must have the same bits. So must every
// controller that is fed or stored in another way.
//
// --exec chooses what computes the losses. With all but seq, each loss is computed once more by the
// kernels of float, from inputs rounded to float, and compared within 2e-5 of the value or 1e-6. A
// case in which a ratio is so close to a clip bound that float decides otherwise would fail and be
// named; none of the shipped cases does. grid and cuda compute the advantages too: on a simulated
// grid of blocks and threads, or on a GPU in a runner built for it. What has no kernel (pre-passes,
// controllers, means over tokens) is computed on the host, and the report says how many cases and
// which.
//
// Records set members of the preset that runs them. --presets requires for every preset of a
// trainer (gdpo/presets/all.hpp) that a case, of the version that the preset names, passed with
// exactly the preset's own settings, so that records confirm its numbers. --unrecorded names the
// presets that have no such record.
//
// Exit status: 0 no failure; 1 a failure (with --require-all also an unsupported case); 2 bad
// usage, an unreadable file, a directory without golden files, or nothing left to compare;
// 77 --exec cuda without a device.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "as_is.hpp"
#include "device.hpp"
#include "golden.hpp"
#include "registry.hpp"
#include "report.hpp"

namespace {

using namespace conformance;

struct Options {
  std::vector<std::string> directories, kinds, sources;
  std::string json_file;
  std::string exec_name = "simd";
  Exec exec = Exec::Simd;
  bool require_all = false, presets = false;
  std::vector<std::string> unrecorded;
};

bool chosen(const std::vector<std::string>& filter, const std::string& value) {
  return filter.empty() || std::find(filter.begin(), filter.end(), value) != filter.end();
}

int run(const Options& options) {
  if (options.exec == Exec::Device) {
    if (const std::string why = no_device(); !why.empty()) {
      std::cerr << "gdpo_conformance: skipped: " << why << '\n';
      return 77;
    }
  }
  Registry registry;
  add_advantages(registry);
  add_explained(registry);
  add_rollouts(registry);
  add_losses(registry);
  add_release_losses(registry);
  add_corrections(registry);
  add_batch_corrections(registry);
  add_mismatch(registry);
  add_values(registry);
  add_outcomes(registry);
  add_kl_estimates(registry);
  add_reductions(registry);
  add_constraints(registry);

  Report report, of_float;
  bool any = false;
  for (const std::string& directory : options.directories) {
    for (const Case& recorded : read_directory(directory)) {
      if (!chosen(options.kinds, recorded.kind) || !chosen(options.sources, recorded.source))
        continue;
      any = true;
      Case run = recorded;
      run.target = {options.exec, false};
      report.add(run, registry.run(run));
      if (options.exec == Exec::Seq || !registry.runs_single(recorded)) continue;
      run.target.single = run.float32 = true;
      run.rtol = std::max(run.rtol, 2e-5), run.atol = std::max(run.atol, 1e-6);
      of_float.add(run, registry.run(run));
    }
  }
  if (!any) throw BadGolden("no case is left to compare (see --kind and --source)");

  report.print(std::cout);
  if (options.exec != Exec::Seq) of_float.print_summary(std::cout, "kernels of float");
  if (options.exec == Exec::Device) report.print_places(std::cout, kDevice);
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    Json counts = report.json();
    counts["float"] = of_float.json()["total"];
    file << counts.dump(2) << '\n';
    file.close();
    if (!file) throw std::runtime_error(options.json_file + ": cannot be written");
  }
  bool presets_differ = false;
  if (options.presets) {
    const std::vector<std::string> names = without_record(report);
    const std::set<std::string> found(names.begin(), names.end()),
        named(options.unrecorded.begin(), options.unrecorded.end());
    for (const std::string& name : found) {
      if (named.count(name) == 0)
        std::cout << "no case passed with the settings of " << name << '\n';
    }
    for (const std::string& name : named) {
      if (found.count(name) == 0)
        std::cout << "a record has the settings of " << name << ", or no preset has the name\n";
    }
    presets_differ = found != named;
  }
  const bool failed = presets_differ || report.total().failed != 0 ||
                      of_float.total().failed != 0 ||
                      (options.require_all && report.total().unsupported != 0);
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Compares the library with results recorded from real trainers.\n"
      "Exit status: 0 no failure; 1 a failure; 2 bad usage, an unreadable file, or nothing to "
      "compare; "
      "77 no device."};
  app.add_option("DIR", options.directories, "directories with golden JSON files")->required();
  app.add_option("--kind", options.kinds, "only cases of this kind (may be repeated)")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"advantage", "loss", "kl", "aggregate", "logp", "pid"}));
  app.add_option("--source", options.sources,
                 "only cases of this trainer, such as trl (may be repeated)")
      ->allow_extra_args(false);
  app.add_option("--json", options.json_file, "also write the counts to this file");
  app.add_option("--exec", options.exec_name,
                 "what runs: seq, simd, parallel, grid, or cuda if built for it")
      ->check(CLI::IsMember({"seq", "simd", "parallel", "grid", "cuda"}));
  app.add_flag("--require-all", options.require_all, "an unsupported case counts as a failure");
  app.add_flag("--presets", options.presets,
               "every preset of a trainer must pass a case with its own settings");
  app.add_option("--unrecorded", options.unrecorded,
                 "but for the preset of this name (may be repeated)")
      ->allow_extra_args(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const bool device = options.exec_name == "grid" || options.exec_name == "cuda";
  if (device && options.exec_name != kDevice) {
    std::cerr << "gdpo_conformance: this runner was "
              << (options.exec_name == "cuda"
                      ? "built without CUDA: gdpo_cuda_conformance (GDPO_CUDA) has --exec cuda\n"
                      : "built for CUDA: gdpo_conformance has --exec grid\n");
    return 2;
  }
  options.exec = device                            ? Exec::Device
                 : options.exec_name == "seq"      ? Exec::Seq
                 : options.exec_name == "parallel" ? Exec::Parallel
                                                   : Exec::Simd;
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::cerr << "gdpo_conformance: " << error.what() << '\n';
    return 2;
  }
}
