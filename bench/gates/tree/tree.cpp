#include "tree.hpp"

#include "../experiments.hpp"

namespace gates {
namespace {

std::vector<TreeContender> set_up(const Experiment& experiment) {
  Bench bench(experiment.rows, /*library_alone=*/true);
  experiment.set_up(bench);
  std::vector<TreeContender> contenders;
  for (const auto& [name, why] : bench.absent()) {
    if (bench.wants(name)) contenders.push_back({name, why});
  }
  for (const auto& [name, what] : bench.wrong()) contenders.push_back({name, "", what});
  for (const Contender& contender : bench.contenders())
    contenders.push_back({contender.name, "", "", contender.run, contender.work});
  return contenders;
}

}  // namespace
}  // namespace gates

// GDPO_TREE_FILE: the file's function that returns its experiments, gates::k1 for k1.cpp.
extern "C" [[gnu::visibility("default")]] void gdpo_tree(
    const std::string& only, std::vector<gates::TreeExperiment>& experiments) {
  for (const gates::Experiment& experiment : gates::select(gates::GDPO_TREE_FILE(), only))
    experiments.push_back({experiment.name, [experiment] { return gates::set_up(experiment); }});
}
