#include "estimators.hpp"

#include <algorithm>
#include <cmath>
#include <gdpo/advantage/explain.hpp>
#include <gdpo/gdpo.hpp>
#include <gdpo/runtime.hpp>
#include <type_traits>
#include <variant>

#include "errors.hpp"
#include "words.hpp"

namespace resolution {
namespace {

using gdpo::index_t;

// An estimator is a type composed of policies (gdpo/advantage/group_advantage.hpp); which policies
// it has says what the tool needs to know of it.
template <class Estimator>
using CombineOf = std::decay_t<decltype(std::declval<Estimator>().combine)>;

template <class Estimator>
constexpr bool normalizes_first =
    std::is_same_v<CombineOf<Estimator>, gdpo::combine::NormalizeThenSum>;

/// Sets weights and conditions, which every estimator has.
template <class Estimator>
void configure(Estimator& estimator, const Settings& settings) {
  if (!settings.weights.empty()) {
    estimator.weights = {settings.weights.data(), static_cast<index_t>(settings.weights.size())};
  }
  std::vector<gdpo::Gate> gates;
  for (const Condition& c : settings.given) {
    gates.push_back({static_cast<index_t>(c.reward), static_cast<index_t>(c.given), c.at_least});
  }
  if (!gates.empty()) estimator.gates = {gates.data(), static_cast<index_t>(gates.size())};
}

/// A name of the tool's own for a line of the library, and what reports say of it.
struct OwnName {
  const char *name, *line, *label, *description;
};

constexpr OwnName own_names[] = {
    {"grpo", "grpo", "GRPO",
     "The rewards are summed; the sum is centered and divided by its standard deviation in the "
     "group."},
    {"grpo_no_std", "dr_grpo", "GRPO without std",
     "The rewards are summed; the sum is centered in the group (Dr.GRPO)."},
    {"gdpo_pre_bn", "gdpo renorm=none", "GDPO before batch step",
     "Each reward is centered and divided by its own standard deviation in the group; then they "
     "are "
     "summed."},
    {"gdpo", "gdpo", "GDPO",
     "As before the batch step, then divided by the standard deviation over the whole batch."},
    {"gdpo_then_group_norm", "gdpo renorm=group", "GDPO, group norm",
     "As before the batch step, then normalized a second time inside the group instead of over the "
     "batch."},
};

std::string first_word(const std::string& line) { return line.substr(0, line.find(' ')); }

/// Its entry if a line begins with a name of the tool's own, else null.
const OwnName* own_name(const std::string& line) {
  const auto* own = std::find_if(std::begin(own_names), std::end(own_names),
                                 [&](const OwnName& n) { return first_word(line) == n.name; });
  return own == std::end(own_names) ? nullptr : own;
}

/// A line in the library's words.
std::string library_line(const std::string& line) {
  const OwnName* own = own_name(line);
  return own ? own->line + line.substr(first_word(line).size()) : line;
}

/// Calls call(). What the library refuses is a mistake of the tool's user, so its error becomes a
/// UserError.
template <class Call>
auto reported(const std::string& name, const Call& call) {
  try {
    return call();
  } catch (const gdpo::invalid_input& error) {
    throw UserError("estimator " + name + ": " + error.what());
  }
}

/// Calls use(estimator) with the estimator of this line and these settings.
template <class Use>
auto with_estimator(const std::string& line, const Settings& settings, const Use& use) {
  return reported(line, [&] {
    return std::visit(
        [&](auto estimator) {
          configure(estimator, settings);
          return use(estimator);
        },
        gdpo::runtime::configured_estimator(library_line(line)));
  });
}

/// The batches of a log as the library takes them, one after the other.
class Batches {
 public:
  explicit Batches(const Rollouts& rollouts) : rollouts_(rollouts), tokens_(rollouts.lengths) {
    // A completion without rewards may have no length. Its own is not used, and has to be a number.
    std::replace_if(
        tokens_.begin(), tokens_.end(), [](double n) { return std::isnan(n); }, 1.0);
  }
  /// Calls use(batch) with batch b. Errors name it and the estimator.
  template <class Use>
  void with(std::size_t b, const std::string& estimator, const Use& use) {
    const Range rows = rollouts_.rows_of_batch(b);
    const Range groups = rollouts_.groups_of(b);
    offsets_.clear();
    for (std::size_t g = groups.begin; g <= groups.end; ++g)
      offsets_.push_back(static_cast<index_t>(rollouts_.group_begin[g] - rows.begin));
    const auto count = static_cast<index_t>(rows.size());
    gdpo::RewardBatch batch{
        gdpo::view(rollouts_.rewards.data() + rows.begin * rollouts_.reward_count(), count,
                   static_cast<index_t>(rollouts_.reward_count())),
        gdpo::by_offsets(offsets_)};
    if (!rollouts_.lengths.empty()) batch.tokens = gdpo::view(tokens_.data() + rows.begin, count);
    const std::string where = rollouts_.batches() == 1
                                  ? estimator
                                  : estimator + ", batch " + in_quotes(rollouts_.batch_names[b]);
    reported(where, [&] { use(batch); });
  }

 private:
  const Rollouts& rollouts_;
  std::vector<double> tokens_;
  std::vector<index_t> offsets_;
};

/// The advantages of the log. Each batch is a call of its own, as in training.
template <class Estimator>
std::vector<double> run(const std::string& name, const Estimator& estimator,
                        const Rollouts& rollouts) {
  std::vector<double> out(rollouts.rows());
  Batches batches(rollouts);
  gdpo::Workspace workspace;
  for (std::size_t b = 0; b < rollouts.batches(); ++b) {
    batches.with(b, name, [&](const auto& batch) {
      gdpo::advantages_into(
          gdpo::simd, batch, estimator,
          gdpo::view(out.data() + rollouts.rows_of_batch(b).begin, batch.rewards.extent[0]),
          workspace);
    });
  }
  return out;
}

}  // namespace

std::vector<std::string> default_estimators() {
  std::vector<std::string> names;
  for (const OwnName& own : own_names) names.emplace_back(own.name);
  return names;
}

std::vector<std::string> all_estimators() {
  std::vector<std::string> names = default_estimators();
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string EstimatorInfo::value(const std::string& setting) const {
  for (const auto& known : settings) {
    if (known.first == setting) return known.second;
  }
  return "";
}

std::string EstimatorInfo::whole_line() const {
  std::string line = preset;
  for (const auto& setting : settings) line += " " + setting.first + "=" + setting.second;
  return line;
}

EstimatorInfo describe(const std::string& line) {
  // Two completions, so that a value that does not fit is refused before a log is read.
  static const Rollouts pair = [] {
    Rollouts log;
    log.reward_names = log.group_names = log.batch_names = {""};
    log.rewards = log.lengths = {1, 2};
    log.group_begin = {0, 2};
    log.batch_begin = {0, 1};
    return log;
  }();
  EstimatorInfo info;
  info.name = wrapped(line, line.size(), 0);
  info.preset = first_word(library_line(info.name));
  with_estimator(info.name, {}, [&info](const auto& estimator) {
    info.family = normalizes_first<std::decay_t<decltype(estimator)>> ? Family::NormalizeFirst
                                                                      : Family::SumFirst;
    for (const auto& s : gdpo::runtime::settings(estimator))
      info.settings.emplace_back(s.name, s.value);
    run(info.name, estimator, pair);
  });
  const OwnName* own = own_name(info.name);
  const std::string name = first_word(info.name);
  info.label = own ? own->label : name;
  info.description = info.family == Family::NormalizeFirst
                         ? "Each reward is normalized, then they are summed."
                         : "The rewards are summed, then the sum is normalized.";
  if (name != info.name) {
    info.label += " (";
    for (const char c : info.name.substr(name.size() + 1))
      info.label += c == ' ' ? ", " : std::string(1, c);
    info.label += ")";
  } else if (own) {
    info.description = own->description;
  }
  return info;
}

std::string listing(const std::vector<std::string>& lines) {
  constexpr std::size_t width = 100;
  std::string names = "Estimators:";
  for (const std::string& name : all_estimators()) names += " " + name;
  std::string out = wrapped(names, width, 2) + "\n";
  for (const OwnName& own : own_names) {
    if (std::string(own.name) != own.line)
      out += std::string("  ") + own.name + " is " + own.line + "\n";
  }
  for (const std::string& line : lines) {
    out += "\nThe settings of " + line + ":\n";
    with_estimator(line, {}, [&out](const auto& estimator) {
      for (const auto& s : gdpo::runtime::settings(estimator)) {
        out += "  " +
               wrapped(s.name + "=" + s.value + " (" + s.kind +
                           (s.fits.empty() ? "" : ", " + s.fits) + "): " + s.meaning,
                       width - 2, 6) +
               "\n";
      }
    });
  }
  return out;
}

std::vector<double> advantages(const std::string& line, const Settings& settings,
                               const Rollouts& rollouts) {
  return with_estimator(line, settings,
                        [&](const auto& estimator) { return run(line, estimator, rollouts); });
}

std::string explanation(const std::string& line, const Settings& settings, const Rollouts& rollouts,
                        std::size_t group) {
  std::size_t b = 0;
  while (rollouts.groups_of(b).end <= group) ++b;
  const std::string title =
      line + (rollouts.batches() == 1 ? "" : ", batch " + rollouts.batch_names[b]) + ", group " +
      rollouts.group_names[group] + ", rows by their number in the batch";
  return with_estimator(line, settings, [&](const auto& estimator) {
    std::string text;
    Batches(rollouts).with(b, line, [&](const auto& batch) {
      const auto place = static_cast<index_t>(group - rollouts.groups_of(b).begin);
      text = gdpo::explain(batch, estimator, place).to_text(rollouts.reward_names, title);
    });
    return text;
  });
}

std::vector<double> advantages_before_batch_step(const std::string& line,
                                                 const std::vector<double>& rewards,
                                                 std::size_t reward_count, std::size_t group_size) {
  return with_estimator(line, {}, [&](const auto& estimator) {
    const auto values =
        gdpo::view(rewards.data(), static_cast<index_t>(rewards.size() / reward_count),
                   static_cast<index_t>(reward_count));
    const auto groups = gdpo::groups_of(static_cast<index_t>(group_size));
    auto before = estimator;
    if (before.renorm.over != gdpo::RenormOver::Group) before = gdpo::before_renorm(before);
    return gdpo::advantages(values, groups, before);
  });
}

}  // namespace resolution
