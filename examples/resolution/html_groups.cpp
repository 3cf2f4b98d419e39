#include <algorithm>
#include <cmath>
#include <limits>

#include "findings.hpp"
#include "html.hpp"
#include "html_sections.hpp"
#include "words.hpp"

namespace resolution {
namespace {

using html::division;
using html::element;
using html::escaped;
using html::heading;
using html::number;
using html::paragraph;

/// Groups whose completions have the same rewards, in any order, shown as one.
struct Alike {
  /// Reward vectors, sorted. A missing reward is infinity here, which no reward of a log is.
  std::vector<std::vector<double>> rewards;
  std::vector<std::size_t> groups;
};

std::vector<Alike> by_rewards(const Comparison& c, const std::vector<std::size_t>& groups) {
  std::vector<Alike> all;
  for (const std::size_t g : groups) {
    std::vector<std::vector<double>> rewards;
    for (const std::size_t row : c.rollouts.members[g]) {
      std::vector<double> vector;
      for (std::size_t k = 0; k < c.rollouts.channels(); ++k) {
        const double value = c.gated[row * c.rollouts.channels() + k];
        vector.push_back(std::isnan(value) ? std::numeric_limits<double>::infinity() : value);
      }
      rewards.push_back(std::move(vector));
    }
    std::sort(rewards.begin(), rewards.end());
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Alike& a) { return a.rewards == rewards; });
    if (same == all.end()) {
      all.push_back({std::move(rewards), {g}});
    } else {
      same->groups.push_back(g);
    }
  }
  return all;
}

/// A table of one group: the rewards that vary in it, and the advantages.
std::string group_card(const Comparison& c, const Alike& alike) {
  constexpr std::size_t most_rows = 16;
  constexpr std::size_t most_names = 8;
  const auto& rows = c.rollouts.members[alike.groups.front()];
  const std::size_t channels = c.rollouts.channels();
  const auto reward = [&](std::size_t row, std::size_t k) {
    return number(compact(c.gated[row * channels + k], 6));
  };
  std::vector<std::size_t> varying;
  std::string constant;
  for (std::size_t k = 0; k < channels; ++k) {
    const auto& all = alike.rewards;
    if (!std::all_of(all.begin(), all.end(),
                     [&](const auto& vector) { return vector[k] == all.front()[k]; })) {
      varying.push_back(k);
    } else {
      constant +=
          (constant.empty() ? "" : ", ") + c.rollouts.reward_names[k] + " " + reward(rows[0], k);
    }
  }
  const std::vector<const EstimatorResult*> shown = compared_results(c);

  std::vector<std::string> header{"#"};
  for (const std::size_t k : varying) header.push_back(escaped(c.rollouts.reward_names[k]));
  for (const auto* r : shown) header.push_back(coloured_label(r->info));
  std::vector<std::vector<std::string>> body;
  for (std::size_t i = 0; i < std::min(rows.size(), most_rows); ++i) {
    std::vector<std::string> line{std::to_string(i + 1)};
    for (const std::size_t k : varying) line.push_back(reward(rows[i], k));
    for (const auto* r : shown)
      line.push_back("<span class=\"strong\">" + number(fixed(r->advantages[rows[i]], 3)) +
                     "</span>");
    body.push_back(line);
  }

  std::string notes;
  if (rows.size() > most_rows) {
    notes += "The first " + std::to_string(most_rows) + " of " +
             counted(rows.size(), "completion") + ". ";
  }
  if (!constant.empty()) notes += "Constant here: " + constant + ". ";
  if (alike.groups.size() > 1) {
    notes += "The same rewards in group";
    for (std::size_t i = 1; i < std::min(alike.groups.size(), most_names); ++i) {
      notes += (i == 1 ? " " : ", ") + c.rollouts.group_names[alike.groups[i]];
    }
    if (alike.groups.size() > most_names)
      notes += " and " + grouped(alike.groups.size() - most_names) + " more";
    notes += ".";
  }
  return element(
      "figure", varying.size() + shown.size() > 5 ? "class=\"roomy\"" : "",
      html::table("Group " + c.rollouts.group_names[alike.groups.front()], header, body) +
          (notes.empty() ? "" : element("figcaption", "", escaped(notes))));
}

}  // namespace

std::string cancelled_section(const Comparison& c) {
  const EstimatorResult* normalised = c.normalise_first();
  if (normalised == nullptr) return "";
  constexpr std::size_t most = 12;
  const std::vector<std::size_t> groups = cancelled_groups(c);
  std::string out = heading("Groups whose rewards cancel");
  if (groups.empty()) {
    return out + paragraph("None: wherever rewards differ inside a group, " +
                           normalised->info.label + " gives at least one advantage that is not 0.");
  }
  const std::vector<Alike> different = by_rewards(c, groups);
  std::string cards;
  for (std::size_t i = 0; i < std::min(most, different.size()); ++i)
    cards += group_card(c, different[i]);
  return out +
         paragraph("Completions with different rewards, and " + normalised->info.label +
                   " gives 0 to all of them: " + grouped(groups.size()) + " of " +
                   counted(c.rollouts.members.size(), "group") +
                   ". Groups with the same rewards are shown once" +
                   (different.size() > most ? "; " + std::to_string(most) + " of " +
                                                  std::to_string(different.size()) + " kinds"
                                            : "") +
                   ". Groups that the sum of rewards does tell apart come first.") +
         division("groups", cards);
}

}  // namespace resolution
