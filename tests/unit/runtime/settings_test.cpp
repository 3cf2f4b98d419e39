// labels: none
// What a named thing says about its settings: name, kind, value, numbers that fit, meaning.
#include <gdpo/constraint.hpp>
#include <gdpo/runtime.hpp>
#include <set>
#include <string>

#include "support/catch.hpp"

namespace settings_test {

namespace {

namespace runtime = gdpo::runtime;

runtime::Setting find(const std::vector<runtime::Setting>& list, const std::string& name) {
  for (const runtime::Setting& s : list)
    if (s.name == name) return s;
  FAIL("no setting " << name);
  return {};
}
void check(const runtime::Setting& s, const char* kind, const char* value, const char* fits,
           const char* meaning) {
  INFO(s.name);
  CHECK(s.kind == kind);
  CHECK(s.value == value);
  CHECK(s.fits == fits);
  CHECK(s.meaning == meaning);
}
std::string line_of(const std::string& name, const std::vector<runtime::Setting>& list) {
  std::string line = name;
  for (const runtime::Setting& s : list) line += " " + s.name + "=" + s.value;
  return line;
}

}  // namespace

TEST_CASE("settings of a loss: numbers, words, flags", "[runtime]") {
  const auto dapo = runtime::settings(runtime::loss("dapo"));
  check(find(dapo, "surrogate.high"), "number", "0.28", "at least 0 (infinity: off)",
        "the ratio is clipped to at most 1 + high");
  check(find(dapo, "surrogate.dual"), "number", "inf", "more than 1 (infinity: off)",
        "where A < 0, the loss is at most -A dual");
  check(find(dapo, "kl.against"), "ref | old | teacher | rollout", "ref", "", "the other policy");
  check(find(dapo, "aggregate.padded_width"), "true or false", "false", "",
        "with constant 0, the padded width divides");
  const auto cispo = runtime::settings(runtime::loss("verl::cispo"));
  check(find(cispo, "factor.max_ratio"), "number", "1.2", "more than 0 (infinity: off)",
        "upper bound of the detached ratio");
  for (const runtime::Setting& s : cispo) CHECK(s.name.find("surrogate.") == std::string::npos);
}

TEST_CASE("settings of an estimator and of a struct", "[runtime]") {
  const auto gdpo = runtime::settings(runtime::estimator("trl::gdpo"));
  check(find(gdpo, "scale.eps"), "number", "0.0001", "a finite number of at least 0",
        find(gdpo, "scale.eps").meaning.c_str());
  check(find(gdpo, "renorm.over"), "none | batch | group | tokens", "batch", "",
        find(gdpo, "renorm.over").meaning.c_str());
  CHECK(find(runtime::settings(gdpo::PidGains{}), "form").kind.find("positional") == 0);
}

TEST_CASE("every named thing: its settings, read back, are the same thing", "[runtime]") {
  const auto same = [](const std::string& name, const auto& list, const auto& configured) {
    INFO(name);
    std::set<std::string> names;
    const std::vector<runtime::Setting> again = runtime::settings(configured(line_of(name, list)));
    REQUIRE(again.size() == list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      INFO(list[i].name);
      CHECK(names.insert(list[i].name).second);
      CHECK(list[i].meaning != "");
      CHECK(again[i].name == list[i].name);
      CHECK(again[i].value == list[i].value);
    }
  };
  for (const std::string& name : runtime::loss_names())
    same(name, runtime::settings(runtime::loss(name)), &runtime::configured_loss);
  for (const std::string& name : runtime::estimator_names())
    same(name, runtime::settings(runtime::estimator(name)), &runtime::configured_estimator);
}

}  // namespace settings_test
