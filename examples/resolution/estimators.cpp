#include "estimators.hpp"

#include <algorithm>
#include <cmath>
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
constexpr bool normalises_first =
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

/// Calls use(estimator) with the estimator of this name and these settings: one of the five
/// built-in ones, or a preset of the library.
template <class Use>
auto with_estimator(const std::string& name, const Settings& settings, const Use& use) {
  const auto configured = [&](auto estimator) {
    configure(estimator, settings);
    return use(estimator);
  };
  gdpo::Gdpo gdpo;
  gdpo.scale.eps = gdpo.renorm.eps = settings.eps;
  if (name == "gdpo") return configured(gdpo);
  if (name == "gdpo_pre_bn") return configured(gdpo::before_renorm(gdpo));
  if (name == "gdpo_then_group_norm") {
    gdpo.renorm.over = gdpo::RenormOver::Group;
    return configured(gdpo);
  }
  if (name == "grpo") {
    gdpo::Grpo grpo;
    grpo.scale.eps = settings.eps;
    return configured(grpo);
  }
  if (name == "grpo_no_std") return configured(gdpo::DrGrpo{});
  return std::visit(configured, gdpo::runtime::estimator(name));
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

gdpo::View<const double, 2> reward_view(const std::vector<double>& rewards, std::size_t channels) {
  return gdpo::view(rewards.data(), static_cast<index_t>(rewards.size() / channels),
                    static_cast<index_t>(channels));
}

/// The advantages of the log. Each batch is a call of its own, as in training.
template <class Estimator>
std::vector<double> run(const std::string& name, const Estimator& estimator,
                        const Rollouts& rollouts) {
  std::vector<double> out(rollouts.rows());
  std::vector<index_t> offsets;
  // A completion without rewards may have no length. Its own is not used, and has to be a number.
  std::vector<double> tokens = rollouts.lengths;
  std::replace_if(
      tokens.begin(), tokens.end(), [](double n) { return std::isnan(n); }, 1.0);
  gdpo::Workspace workspace;
  for (std::size_t b = 0; b < rollouts.batches(); ++b) {
    const Range rows = rollouts.rows_of_batch(b);
    const Range groups = rollouts.groups_of(b);
    offsets.clear();
    for (std::size_t g = groups.begin; g <= groups.end; ++g)
      offsets.push_back(static_cast<index_t>(rollouts.group_begin[g] - rows.begin));
    const auto count = static_cast<index_t>(rows.size());
    gdpo::RewardBatch batch{gdpo::view(rollouts.rewards.data() + rows.begin * rollouts.channels(),
                                       count, static_cast<index_t>(rollouts.channels())),
                            gdpo::by_offsets(offsets)};
    if (!rollouts.lengths.empty()) batch.tokens = gdpo::view(tokens.data() + rows.begin, count);
    const std::string where =
        rollouts.batches() == 1 ? name : name + ", batch " + in_quotes(rollouts.batch_names[b]);
    reported(where, [&] {
      gdpo::advantages_into(gdpo::simd, batch, estimator,
                            gdpo::view(out.data() + rows.begin, count), workspace);
    });
  }
  return out;
}

struct BuiltIn {
  const char* name;
  const char* label;
  const char* description;
};

constexpr BuiltIn built_in[] = {
    {"grpo", "GRPO",
     "The rewards are summed; the sum is centred and divided by its standard deviation in the "
     "group."},
    {"grpo_no_std", "GRPO without std",
     "The rewards are summed; the sum is centred in the group (Dr.GRPO)."},
    {"gdpo_pre_bn", "GDPO before batch step",
     "Each reward is centred and divided by its own standard deviation in the group; then they are "
     "summed."},
    {"gdpo", "GDPO",
     "As before the batch step, then divided by the standard deviation over the whole batch."},
    {"gdpo_then_group_norm", "GDPO, group norm",
     "As before the batch step, then normalised a second time inside the group instead of over the "
     "batch."},
};

}  // namespace

const std::vector<std::string>& default_estimators() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const BuiltIn& e : built_in) all.emplace_back(e.name);
    return all;
  }();
  return names;
}

std::vector<std::string> all_estimators() {
  std::vector<std::string> names = default_estimators();
  for (const std::string& name : gdpo::runtime::estimator_names()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

EstimatorInfo describe(const std::string& name) {
  const std::vector<std::string> known = all_estimators();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    std::string names;
    for (const std::string& n : known) names += (names.empty() ? "" : ", ") + n;
    throw UserError("there is no estimator " + in_quotes(name) + "; the names are " + names);
  }
  EstimatorInfo info;
  info.name = info.label = name;
  with_estimator(name, {}, [&info](const auto& estimator) {
    using Estimator = std::decay_t<decltype(estimator)>;
    info.family = normalises_first<Estimator> ? Family::NormaliseFirst : Family::SumFirst;
    info.needs_lengths = estimator.renorm.over == gdpo::RenormOver::Tokens;
    info.description =
        std::string("The library's ") +
        (info.name.find("::") == std::string::npos ? "estimator" : "preset") + " of this name; " +
        (normalises_first<Estimator> ? "each reward is normalised, then they are summed."
                                     : "the rewards are summed, then the sum is normalised.");
  });
  for (const BuiltIn& e : built_in) {
    if (name != e.name) continue;
    info.label = e.label;
    info.description = e.description;
  }
  return info;
}

std::vector<double> advantages(const std::string& name, const Settings& settings,
                               const Rollouts& rollouts) {
  return with_estimator(name, settings,
                        [&](const auto& estimator) { return run(name, estimator, rollouts); });
}

std::vector<double> advantages_before_batch_step(const std::string& name,
                                                 const std::vector<double>& rewards,
                                                 std::size_t channels, std::size_t group_size) {
  return reported(name, [&] {
    return with_estimator(name, {}, [&](const auto& estimator) {
      const auto values = reward_view(rewards, channels);
      const auto groups = gdpo::groups_of(static_cast<index_t>(group_size));
      auto before = estimator;
      if (before.renorm.over != gdpo::RenormOver::Group) before = gdpo::before_renorm(before);
      return gdpo::advantages(values, groups, before);
    });
  });
}

std::vector<double> length_weighted_gdpo(const Settings& settings, const Rollouts& rollouts,
                                         double eps) {
  gdpo::Gdpo gdpo;
  gdpo.scale.eps = settings.eps;
  gdpo.renorm = gdpo::renorm::token_weighted_batch();
  gdpo.renorm.eps = eps;
  configure(gdpo, settings);
  return run("gdpo over tokens", gdpo, rollouts);
}

}  // namespace resolution
