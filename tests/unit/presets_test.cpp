// The list of presets: one line a name, and what is read from it has every line.
#include <gdpo/presets/brief.hpp>
#include <gdpo/presets/tutorial.hpp>
#include <gdpo/runtime.hpp>
#include <set>

#include "support/catch.hpp"
#include "support/product.hpp"

namespace {

namespace presets = gdpo::presets;
namespace runtime = gdpo::runtime;

struct Lines {
  std::vector<std::string> names;
  template <class T>
  void operator()(const presets::Preset<T>& preset) {
    INFO(preset.name);
    const std::string name = preset.name, option = preset.option, version = preset.version;
    CHECK(!name.empty());
    if (name.find("::") != std::string::npos && version.find('@') != std::string::npos) CHECK(!option.empty());
    names.push_back(name);
  }
};
template <class ForEach>
std::vector<std::string> names_of(const ForEach& for_each) {
  Lines lines;
  for_each([&lines](const auto& preset) { lines(preset); });
  CHECK(std::set<std::string>(lines.names.begin(), lines.names.end()).size() == lines.names.size());
  return lines.names;
}

template <class U, class... T>
constexpr int times = (0 + ... + static_cast<int>(std::is_same_v<U, T>));
template <class Variant>
constexpr bool has_each_type_once = false;
template <class... T>
constexpr bool has_each_type_once<std::variant<T...>> = ((times<T, T...> == 1) && ...);

}  // namespace

TEST_CASE("names at run time are those of the list, each once", "[presets][runtime]") {
  CHECK(names_of([](const auto& f) { presets::for_each_estimator(f); }) == runtime::estimator_names());
  CHECK(names_of([](const auto& f) { presets::for_each_loss(f); }) == runtime::loss_names());
  CHECK(names_of([](const auto& f) { presets::for_each_prepass(f); }) == runtime::prepass_names());
  CHECK(names_of([](const auto& f) { presets::for_each_aggregate(f); }).size() == 5);
}

TEST_CASE("a name gives the value of its line", "[presets][runtime]") {
  presets::for_each_estimator([](const auto& preset) {
    INFO(preset.name);
    using Estimator = std::decay_t<decltype(preset.value)>;
    const runtime::Estimator by_name = runtime::estimator(preset.name);
    REQUIRE(std::holds_alternative<Estimator>(by_name));
    CHECK(product::describe(product::settings_of(std::get<Estimator>(by_name))) ==
          product::describe(product::settings_of(preset.value)));
  });
  static_assert(has_each_type_once<runtime::Estimator> && has_each_type_once<runtime::Loss> &&
                has_each_type_once<runtime::Prepass>);
}

TEST_CASE("pre-passes by name", "[presets][runtime]") {
  const auto weight = std::get<gdpo::prepass::Importance>(runtime::prepass("ms_swift::sequence_truncate"));
  CHECK(weight.statistic == gdpo::prepass::Statistic::SequenceMean);
  CHECK(weight.clamp.hi == 20);
  CHECK(weight.clip.hi == 2);
  CHECK(weight.reach == gdpo::Reach::SurrogateAndKl);
  const auto gate = std::get<gdpo::prepass::Gate>(runtime::prepass("trl::sequence_mask"));
  CHECK(gate.statistic == gdpo::prepass::Statistic::SequenceSum);
  CHECK(gate.max == 3);
}

TEST_CASE("former names of presets stand for what they stood for", "[presets][runtime]") {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  static_assert(std::is_same_v<gdpo::brief::GroupGdpo, gdpo::per_group::Gdpo>);
  static_assert(std::is_same_v<decltype(gdpo::brief::gdpo), decltype(gdpo::per_group::gdpo)>);
  CHECK(gdpo::tutorial::grpo_numpy.scale.ddof == 0);
  CHECK(gdpo::tutorial::grpo_torch.scale.eps_at == gdpo::EpsAt::ClampStd);
  static_assert(std::is_same_v<decltype(gdpo::tutorial::grpo_loss), decltype(gdpo::textbook::grpo_loss)>);
#pragma GCC diagnostic pop

  const auto text = [](const char* name) {
    return std::visit([](const auto& e) { return product::describe(product::settings_of(e)); },
                      runtime::estimator(name));
  };
  CHECK(text("brief::gdpo") == text("per_group::gdpo"));
  CHECK(text("tutorial::grpo_numpy") == text("textbook::grpo_numpy"));
  CHECK(text("tutorial::grpo_torch") == text("textbook::grpo_torch"));
  CHECK(std::visit([](const auto& loss) { return loss.kl.beta; }, runtime::loss("tutorial::grpo")) == 0.04);
}
