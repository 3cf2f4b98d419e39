#pragma once

#include <map>
#include <string>
#include <vector>

#include "bandits.hpp"
#include "recorded.hpp"

namespace small_groups {

/// A law of rewards: what the prompts of a batch are like.
struct Law {
  std::string name;                  ///< as given on the command line
  std::string description;           ///< in one sentence, for the report
  std::string file;                  ///< the log in examples/data that it resamples; empty: none
  std::vector<std::string> columns;  ///< its rewards
};

/// All laws, in the order of the report.
const std::vector<Law>& all_laws();

/// The logs that some laws need, by file.
using Logs = std::map<std::string, Log>;
/// Reads them from `folder`. Throws resolution::UserError.
Logs read_logs(const std::vector<Law>& laws, const std::string& folder);

/// Arms of a prompt, where the law is not a log.
constexpr std::size_t arms_of_a_prompt = 16;

/// The prompts of one batch by this law. A log with fewer groups gives fewer prompts.
Bandits make_bandits(const Law& law, std::size_t prompts, Random random, const Logs& logs);

}  // namespace small_groups
