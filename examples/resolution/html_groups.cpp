#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "findings.hpp"
#include "html.hpp"
#include "html_sections.hpp"
#include "separated.hpp"
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
  std::vector<std::size_t> groups;
  /// One group's reward vectors, sorted. A missing reward is infinity here, which no reward of a
  /// log is.
  std::vector<std::vector<double>> rewards;
};

std::vector<Alike> by_rewards(const Comparison& c, const std::vector<std::size_t>& groups) {
  std::vector<Alike> all;
  std::map<std::vector<std::vector<double>>, std::size_t> places;
  for (const std::size_t g : groups) {
    std::vector<std::vector<double>> rewards;
    const Range rows = c.rollouts.rows_of(g);
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
      std::vector<double> vector;
      for (std::size_t k = 0; k < c.rollouts.reward_count(); ++k) {
        const double value = c.gated[row * c.rollouts.reward_count() + k];
        vector.push_back(std::isnan(value) ? std::numeric_limits<double>::infinity() : value);
      }
      rewards.push_back(std::move(vector));
    }
    std::sort(rewards.begin(), rewards.end());
    const auto [place, is_new] = places.try_emplace(std::move(rewards), all.size());
    if (is_new) all.push_back({{}, place->first});
    all[place->second].groups.push_back(g);
  }
  return all;
}

/// A table of one group: the rewards that vary in it, and the advantages.
std::string group_card(const Comparison& c, const Alike& alike) {
  constexpr std::size_t most_rows = 16;
  constexpr std::size_t most_names = 8;
  const Range rows = c.rollouts.rows_of(alike.groups.front());
  const std::size_t reward_count = c.rollouts.reward_count();
  const auto reward = [&](std::size_t row, std::size_t k) {
    return number(compact(c.gated[row * reward_count + k], 6));
  };
  std::vector<std::size_t> varying;
  std::string constant;
  for (std::size_t k = 0; k < reward_count; ++k) {
    const auto& all = alike.rewards;
    if (!std::all_of(all.begin(), all.end(),
                     [&](const auto& vector) { return vector[k] == all.front()[k]; })) {
      varying.push_back(k);
    } else {
      constant +=
          (constant.empty() ? "" : ", ") + c.rollouts.reward_names[k] + " " + reward(rows.begin, k);
    }
  }
  const std::vector<const EstimatorResult*> shown = compared_results(c);

  std::vector<std::string> header{"#"};
  for (const std::size_t k : varying) header.push_back(escaped(c.rollouts.reward_names[k]));
  for (const auto* r : shown) header.push_back(colored_label(r->info));
  std::vector<std::vector<std::string>> body;
  for (std::size_t i = 0; i < std::min(rows.size(), most_rows); ++i) {
    std::vector<std::string> line{std::to_string(i + 1)};
    for (const std::size_t k : varying) line.push_back(reward(rows.begin + i, k));
    for (const auto* r : shown)
      line.push_back("<span class=\"strong\">" + number(fixed(r->advantages[rows.begin + i], 3)) +
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
      notes += (i == 1 ? " " : ", ") + c.rollouts.group_name(alike.groups[i]);
    }
    if (alike.groups.size() > most_names)
      notes += " and " + grouped(alike.groups.size() - most_names) + " more";
    notes += ".";
  }
  const bool long_label = std::any_of(shown.begin(), shown.end(), [](const EstimatorResult* r) {
    return width_of(r->info.label) > 30;
  });
  return element("figure", varying.size() + shown.size() > 5 || long_label ? "class=\"roomy\"" : "",
                 html::table("Group " + c.rollouts.group_name(alike.groups.front()), header, body) +
                     (notes.empty() ? "" : element("figcaption", "", escaped(notes))));
}

}  // namespace

std::string separated_section(const Comparison& c) {
  constexpr std::size_t most = 3;
  // Only the first groups are looked at, so that a log with many such groups is not searched as a
  // whole; a thousand hold enough different ones.
  constexpr std::size_t most_looked_at = 1000;
  const std::vector<SeparatedGroup> found = separated_groups(c);
  if (found.empty()) return "";
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < std::min(found.size(), most_looked_at); ++i)
    groups.push_back(found[i].group);
  const std::string sum = c.sum_first()->info.label;
  const std::string normalized = c.normalize_first()->info.label;
  const std::vector<Alike> different = by_rewards(c, groups);
  std::string cards;
  for (std::size_t i = 0; i < std::min(most, different.size()); ++i)
    cards += group_card(c, different[i]);
  return heading("Groups that " + sum + " ties and " + normalized + " tells apart") +
         paragraph("In " + counted(found.size(), "group") + " " + sum +
                   " gives completions with different rewards the same advantage and " +
                   normalized + " does not. Shown: where it sets them furthest apart.") +
         division("groups", cards);
}

std::string canceled_section(const Comparison& c) {
  const EstimatorResult* normalized = c.normalize_first();
  if (normalized == nullptr) return "";
  constexpr std::size_t most = 12;
  const std::vector<std::size_t> groups = canceled_groups(c);
  std::string out = heading("Groups whose rewards cancel");
  if (groups.empty()) {
    return out + paragraph("None: wherever rewards differ inside a group, " +
                           normalized->info.label + " gives at least one advantage that is not 0.");
  }
  const std::vector<Alike> different = by_rewards(c, groups);
  std::string cards;
  for (std::size_t i = 0; i < std::min(most, different.size()); ++i)
    cards += group_card(c, different[i]);
  return out +
         paragraph("Completions with different rewards, and " + normalized->info.label +
                   " gives 0 to all of them: " + grouped(groups.size()) + " of " +
                   counted(c.rewards.groups, "group") +
                   ". Groups with the same rewards are shown once" +
                   (different.size() > most ? "; " + std::to_string(most) + " of " +
                                                  std::to_string(different.size()) + " kinds"
                                            : "") +
                   ". Groups that the sum of rewards does tell apart come first.") +
         division("groups", cards);
}

}  // namespace resolution
