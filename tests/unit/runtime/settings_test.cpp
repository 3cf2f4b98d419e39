// labels: none
// What a named thing says about its settings: name, kind, value, numbers that fit, meaning.
#include <gdpo/constraint.hpp>
#include <gdpo/runtime.hpp>
#include <set>
#include <string>

#include "support/catch.hpp"
#include "support/message.hpp"

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
  check(find(dapo, "kl.against"), "ref | old | teacher | rollout | data", "ref", "",
        "the other policy");
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

TEST_CASE("names of settings: dots as \"_\", pairs, one name for one setting", "[runtime]") {
  const auto value = [](const std::string& line, const std::string& name) {
    return find(runtime::settings(runtime::configured_loss(line)), name).value;
  };
  for (const char* called : {"surrogate.low", "surrogate_low", "low"})
    CHECK(value("dapo " + std::string(called) + "=0.125", "surrogate.low") == "0.125");
  for (const char* called : {"kl.input", "kl_input", "input"}) {
    const std::string line = "dapo " + std::string(called) + "=-3,inf";
    CHECK(value(line, "kl.input.lo") == "-3");
    CHECK(value(line, "kl.input.hi") == "inf");
  }
  // The underscores of a name are none of its dots.
  CHECK(value("dapo row_count_eps=0.5 aggregate_count_eps=0.25", "aggregate.count_eps") == "0.25");
  CHECK(value("dapo row_count_eps=0.5", "aggregate.row_count_eps") == "0.5");
  CHECK(value("dapo low=0.1 low=0.3", "surrogate.low") == "0.3");  // the last one counts
  const auto estimator = runtime::settings(runtime::configured_estimator("gdpo missing=zero"));
  CHECK(find(estimator, "missing.entry").value == "zero");

  const auto refused = [](const std::string& line) {
    return message_of([&line] { runtime::configured_loss(line); });
  };
  const std::string of = "gdpo::runtime::configured_loss: ";
  CHECK(refused("dapo low=0.1 surrogate_low=0.1") ==
        of + "surrogate_low: given beside low, which is the same setting; needed: one of the two");
  CHECK(refused("dapo kl.input=3") ==
        of + "kl.input: given '3'; needed: two numbers, the lower and the upper end: LO,HI");
  for (const char* pair : {"1,", ",1", "1,2,3", "a,1", "1;2"}) {
    INFO(pair);
    CHECK(refused(std::string("dapo kl.input=") + pair).find(of + "kl.input: given '") == 0);
  }
  CHECK(refused("dapo low_=0.1").find(of + "line: given the setting 'low_'") == 0);
  CHECK(refused("dapo surrogate-low=0.1").find(of + "line: given the setting") == 0);
}

TEST_CASE("a line is checked, and messages call settings as it does", "[runtime]") {
  const auto refused = [](const auto& configured, const std::string& line) {
    return message_of([&] { configured(line); });
  };
  const std::string of = "gdpo::runtime::configured_";
  CHECK(refused(&runtime::configured_loss, "dapo low=2").find(of + "loss: low: given 2; ") == 0);
  CHECK(refused(&runtime::configured_loss, "dapo surrogate_low=-1")
            .find(of + "loss: surrogate_low: given -1; needed: 0 to 1") == 0);
  CHECK(refused(&runtime::configured_loss, "dapo output=3,1")
            .find(of + "loss: output.lo, output.hi: given 3 and 1; ") == 0);
  // What settings decide together, the call checks.
  for (const char* line : {"cispo min_ratio=6 max_ratio=7", "cispo min_ratio=7", "dr_grpo low=0.1",
                           "dapo aggregate=seq-mean-token-sum-norm constant=3"})
    CHECK(refused(&runtime::configured_loss, line) == "no error");
  CHECK(refused(&runtime::configured_estimator, "trl::gdpo renorm_eps=-1")
            .find(of + "estimator: renorm_eps: given -1; ") == 0);
  CHECK(refused(&runtime::configured_prepass, "trl::token_truncate clip=2,1")
            .find(of + "prepass: clip.lo, clip.hi: given 2 and 1; ") == 0);
  CHECK(refused(&runtime::configured_token_advantage, "verl::gae gamma=1.5")
            .find(of + "token_advantage: gamma: given 1.5; needed: 0 to 1") == 0);
  CHECK(refused(&runtime::configured_outcome_advantage, "openrlhf::rloo gamma=1.5")
            .find(of + "outcome_advantage: gamma: given 1.5; needed: 0 to 1") == 0);
  CHECK(refused(&runtime::configured_outcome_advantage, "slime::grpo placement=row")
            .find(of + "outcome_advantage: placement: given 'row'; needed: one of last_step, "
                       "every_token") == 0);
  CHECK(refused(&runtime::configured_outcome_advantage,
                "openrlhf::rloo gamma=0.99 tokens.penalty.coef=0.05") == "no error");
  CHECK(refused(&runtime::configured_outcome_advantage, "openrlhf::rloo coef=0.05") ==
        of + "outcome_advantage: line: given the setting 'coef'; needed: one of rows.penalty.coef, "
             "tokens.penalty.coef");
  CHECK(refused(&runtime::configured_value_loss, "verl::value_loss clip=-1")
            .find(of + "value_loss: clip: given -1; ") == 0);
  CHECK(refused(&runtime::configured_prepass, "trl::token")
            .find("gdpo::runtime::prepass: name: given 'trl::token'; ") == 0);
}

TEST_CASE("messages call a setting as the line does, also in what several decide together",
          "[runtime]") {
  namespace detail = runtime::detail;
  const auto refused = [](const auto& configured, const std::string& line) {
    return message_of([&] {
      auto c = configured("f", line);
      detail::check_configured("f", c.value, c.settings);
    });
  };
  const auto loss = [](const char* function, const std::string& line) {
    return detail::configured_loss(function, line);
  };
  const auto estimator = [](const char* function, const std::string& line) {
    return detail::configured(function, line, &runtime::estimator);
  };
  CHECK(refused(loss, "dr_grpo constant=0").find("f: constant: given 0; ") == 0);
  CHECK(
      refused(loss, "cispo min_ratio=7").find("f: min_ratio, factor.max_ratio: given 7 and 5; ") ==
      0);
  CHECK(
      refused(loss, "verl::vanilla map.lo=3 map.hi=1").find("f: map.lo, map.hi: given 3 and 1; ") ==
      0);

  int messages = 0;
  const auto check = [&](const auto& configured, const std::string& name, const auto& settings) {
    for (const runtime::Setting& s : settings) {
      const std::string end = s.name.substr(s.name.rfind('.') + 1);
      if (end == s.name) continue;
      for (const char* value : {"nan", "-1", "0", "9"}) {
        const std::string line = name + " " + end + "=" + value;
        const std::string message = refused(configured, line);
        INFO(line << ": " << message);
        CHECK(message.substr(0, message.find(": given")).find(s.name) == std::string::npos);
        messages += message != "no error";
      }
    }
  };
  for (const std::string& name : runtime::loss_names())
    check(loss, name, runtime::settings(runtime::loss(name)));
  for (const std::string& name : runtime::estimator_names())
    check(estimator, name, runtime::settings(runtime::estimator(name)));
  CHECK(messages > 1000);
}

TEST_CASE("pre-passes, token advantages and value losses from a line", "[runtime]") {
  const auto value = [](const auto& named, const std::string& name) {
    return find(runtime::settings(named), name).value;
  };
  CHECK(value(runtime::configured_prepass("trl::token_truncate clip.hi=2.5"), "clip.hi") == "2.5");
  CHECK(value(runtime::configured_token_advantage("verl::gae gamma=0.5 kl=k2"), "returns.gamma") ==
        "0.5");
  CHECK(value(runtime::configured_value_loss("verl::value_loss half=false"), "half") == "false");
}

TEST_CASE("what sets several settings at once", "[runtime]") {
  const auto names = [](const std::vector<runtime::Setting>& list) {
    std::string all;
    for (const runtime::Setting& s : list) {
      all += (all.empty() ? "" : " ") + s.name;
      CHECK(s.value == "");
      CHECK(s.kind != "");
      CHECK(s.meaning != "");
    }
    return all;
  };
  CHECK(names(runtime::shorthands(runtime::loss("verl::vanilla"))) ==
        "level.map kl kl.input kl.output aggregate");
  // Of one of several maps, which is chosen at run time.
  CHECK(names(runtime::shorthands(runtime::loss("vespo"))) ==
        "level.map level.bounds kl kl.input kl.output aggregate");
  CHECK(names(runtime::shorthands(runtime::estimator("gdpo"))) ==
        "renorm missing reward_clip clip");
  CHECK(find(runtime::shorthands(runtime::loss("dapo")), "aggregate").kind.find("token-mean | ") ==
        0);
}

}  // namespace settings_test
