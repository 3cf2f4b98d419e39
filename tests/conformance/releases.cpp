#include "releases.hpp"

#include <vector>

namespace conformance {
namespace {

struct Change {
  const char *function, *preset;  // what the function is by default
  std::vector<int> since;         // the release that changed it
  const char* to;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> all{
      {"compute_policy_loss_gspo", "verl::v0_9_0::gspo", {0, 9, 1}, "verl::gspo"},
      {"MegatronGRPOTrainer.loss_func", "ms_swift::bnpo", {4, 6, 0}, "ms_swift::megatron_bnpo"},
  };
  return all;
}

}  // namespace

std::string preset_of(const Case& recorded, const std::string& preset) {
  std::string now = preset;
  for (const Change& change : changes()) {
    if (recorded.function == change.function && preset == change.preset &&
        since(recorded, change.since))
      now = change.to;
  }
  return now;
}

}  // namespace conformance
