// The pictures of policy losses: what they draw is what the losses compute, every loss is in one,
// and every surrogate has its words.
#include "surrogates.hpp"

#include <algorithm>
#include <cmath>
#include <gdpo/runtime.hpp>
#include <map>
#include <set>

#include "support.hpp"
#include "surrogates_report.hpp"
#include "words.hpp"

using namespace resolution;
using Catch::Matchers::ContainsSubstring;

namespace {

const Surrogates& surrogates() {
  static const Surrogates all = all_surrogates();
  return all;
}

const LossShape& shape_of(const std::string& loss) {
  for (const LossShape& shape : surrogates().shapes) {
    if (std::count(shape.names.begin(), shape.names.end(), loss) > 0) return shape;
  }
  FAIL("no shape has the loss " << loss);
  return surrogates().shapes.front();
}

SurrogatePoint at_ratio(const std::string& loss, double advantage, double ratio) {
  return surrogate_point(loss, advantage, std::log(ratio));
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++count;
  return count;
}

/// Every element that is opened is closed, in the reverse order; attributes have quotes.
void check_well_formed(const std::string& text) {
  const std::set<std::string> empty_elements = {"meta", "br"};
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    const std::size_t end = text.find('>', at);
    REQUIRE(end != std::string::npos);
    const std::string tag = text.substr(at + 1, end - at - 1);
    INFO(tag);
    at = end + 1;
    if (tag[0] == '!') continue;
    const bool closes = tag[0] == '/';
    const std::string name = tag.substr(closes, tag.find(' ') - closes);
    CHECK(tag.find('<') == std::string::npos);
    CHECK(occurrences(tag, "\"") % 2 == 0);
    if (empty_elements.count(name) > 0) continue;
    if (!closes) {
      open.push_back(name);
      continue;
    }
    REQUIRE(!open.empty());
    REQUIRE(open.back() == name);
    open.pop_back();
  }
  CHECK(open.empty());
  for (const char* number : {">nan<", ">-nan<", ">inf<", "nan\"", "Mnan", "Lnan"})
    CHECK(occurrences(text, number) == 0);
}

}  // namespace

TEST_CASE("Every surrogate, factor and map that a name stands for has words") {
  const std::vector<std::string> types = surrogate_types();
  for (const char* known : {"surrogate::Ratio", "surrogate::Reinforce", "factor::ClippedRatio",
                            "factor::Gamma", "map::TrustRegion"})
    CHECK(std::count(types.begin(), types.end(), known) == 1);
  for (const std::string& type : types) {
    INFO(type << " needs an entry in examples/resolution/surrogate_words.hpp");
    CHECK(find_words(type) != nullptr);
  }
  std::set<std::string> described;
  for (const SurrogateWords& words : surrogate_words) {
    INFO(words.type);
    CHECK(described.insert(words.type).second);
    for (const char* text : {words.title, words.value, words.derivative, words.text, words.used_by})
      CHECK(std::string(text).size() > 1);
    REQUIRE(words.sources[0].name != nullptr);
    for (const Source& source : words.sources)
      CHECK((source.name == nullptr || std::string(source.url).rfind("https://", 0) == 0));
  }
}

TEST_CASE("Every loss is in one shape, and is computed as that is drawn") {
  std::map<std::string, int> times;
  for (const LossShape& shape : surrogates().shapes) {
    CHECK(shape.words != nullptr);
    for (const std::string& name : shape.names) {
      ++times[name];
      INFO(name);
      for (const SurrogateCurve* curve : {&shape.positive, &shape.negative}) {
        REQUIRE(curve->value.size() == shape.x.size());
        for (const std::size_t i : {std::size_t{20}, std::size_t{110}, shape.x.size() - 1}) {
          const SurrogatePoint p = surrogate_point(
              name, curve->advantage, shape.log_axis ? shape.x[i] : std::log(shape.x[i]));
          // Curves are rounded to nine digits.
          CHECK(std::abs(p.value - curve->value[i]) < 1e-8);
          CHECK(std::abs(p.derivative - curve->derivative[i]) < 1e-8);
        }
      }
    }
  }
  for (const std::string& name : losses_with_surrogate()) {
    INFO(name);
    CHECK(times[name] == 1);
  }
  CHECK(times.size() == losses_with_surrogate().size());
}

TEST_CASE("Known points of the clipped ratio") {
  struct Known {
    const char* loss;
    double advantage, ratio, value, derivative;
    bool inside;
  };
  for (const Known& k : {
           Known{"grpo", 1, 1.1, -1.1, -1.1, true},
           Known{"grpo", 1, 1.5, -1.2, 0, false},
           Known{"grpo", 1, 0.5, -0.5, -0.5, false},
           Known{"grpo", -1, 0.5, 0.8, 0, false},
           Known{"grpo", -1, 1.5, 1.5, 1.5, false},
           Known{"dapo", 1, 1.25, -1.25, -1.25, true},
           Known{"verl::vanilla", -1, 2.5, 2.5, 2.5, false},
           Known{"verl::vanilla", -1, 3.5, 3, 0, false},
           Known{"gspo", 1, 1.0003, -1.0003, -1.0003, true},
           Known{"gspo", 1, 1.01, -1.0004, 0, false},
           Known{"cispo", 1, 2, -2 * std::log(2.0), -2, true},
           Known{"cispo", 1, 6, -5 * std::log(6.0), -5, false},
           Known{"cispo", -1, 6, 5 * std::log(6.0), 5, false},
           Known{"verl::gpg", -1, 2, std::log(2.0), 1, true},
           Known{"sapo", 1, 1, -2, -1, true},
           Known{"up_grpo", 1, 6, -std::log(6.0), -1, true},
           Known{"up_grpo", -1, 0.5, 0.8, 0, false},
           Known{"torchrl::cispo", 1, 0.5, -0.8, 0, false},
           Known{"trinity::sppo", 1, 1.2, -std::log(1.2), -1, true},
           Known{"trinity::sppo", -1, 1.5, 0, 0, false},
           Known{"trinity::sapo", 1, 1, 0, -2, true},
           Known{"trinity::rec", -1, 2, std::log(2.0), 1, true},
           Known{"topr", 1, 6, -std::log(6.0), -1, true},
           Known{"topr", -1, 0.5, 0.5 * std::log(0.5), 0.5, true},
           Known{"vespo", 1, 2, -4 * std::exp(-3.0) * std::log(2.0), -4 * std::exp(-3.0), true},
           Known{"gmpo", 1, 2, -std::exp(0.4), 0, false},
       }) {
    INFO(k.loss << ", A = " << k.advantage << ", r = " << k.ratio);
    const SurrogatePoint p = at_ratio(k.loss, k.advantage, k.ratio);
    // The ratio is e^log r, off by a few units in the last place.
    CHECK(std::abs(p.value - k.value) < 1e-12);
    CHECK(std::abs(p.derivative - k.derivative) < 1e-12);
    CHECK(p.inside == k.inside);
  }
}

TEST_CASE("Without detached factors the derivative is that of the value") {
  constexpr double h = 1e-5;
  for (const LossShape& shape : surrogates().shapes) {
    const auto detached = [](const std::string& part) { return part.rfind("factor::", 0) == 0; };
    if (std::any_of(shape.parts.begin(), shape.parts.end(), detached)) continue;
    INFO(shape.title() << ", " << shape.settings_text());
    for (const double advantage : {1.0, -1.0, 0.3}) {
      for (double log_ratio = -1.4321; log_ratio < 1.5; log_ratio += 0.0313) {
        const auto point = [&](double offset) {
          return surrogate_point(shape.names.front(), advantage, log_ratio + offset);
        };
        const SurrogatePoint before = point(-h), p = point(0), after = point(h);
        INFO("A = " << advantage << ", log r = " << log_ratio);
        if (std::abs(after.derivative - before.derivative) > 1e-2) continue;  // a bend
        // h^2 times the third derivative, which is at most a few hundred, and 1e-16 / h.
        CHECK(std::abs((after.value - before.value) / (2 * h) - p.derivative) < 1e-7);
      }
    }
  }
}

TEST_CASE("What is shaded lies between the bounds") {
  using Parts = std::vector<std::pair<double, double>>;
  CHECK(shape_of("grpo").positive.inside == Parts{{0.8, 1.2}});
  CHECK(shape_of("grpo").negative.inside == Parts{{0.8, 1.2}});
  CHECK(shape_of("dapo").positive.inside == Parts{{0.8, 1.28}});
  CHECK(shape_of("cispo").positive.inside == Parts{{0, 4}});
  CHECK(shape_of("verl::cispo").negative.inside == Parts{{0.8, 1.2}});
  CHECK(shape_of("verl::gpg").positive.inside.empty());
  CHECK(shape_of("verl::kl_cov").positive.inside.empty());
  // Of one sign alone: PositiveReinforce has no clip where A > 0, TOPR the weight 1.
  CHECK(shape_of("up_grpo").positive.inside.empty());
  CHECK(shape_of("up_grpo").negative.inside == Parts{{0.8, 4}});
  CHECK(shape_of("topr").positive.inside.empty());
  CHECK(shape_of("topr").negative.inside == Parts{{0, 1}});
  CHECK(shape_of("gmpo").positive.inside == Parts{{-1.5, 0.4}});
  CHECK(shape_of("gmpo").negative.inside == Parts{{-0.4, 1.5}});
  // A narrow range has its own axis.
  CHECK(shape_of("gspo").positive.inside == Parts{{0.9997, 1.0004}});
  CHECK(shape_of("gspo").x.front() == 0.999);
  CHECK(shape_of("gspo").x.back() == 1.001);
  CHECK(shape_of("grpo").x.front() == 0);
  CHECK(shape_of("grpo").x.back() == 4);
}

TEST_CASE("Losses with the same surrogate, factor and settings share a shape") {
  CHECK(&shape_of("grpo") == &shape_of("trl::grpo"));
  CHECK(&shape_of("grpo") == &shape_of("verl::gspo"));  // at another level
  CHECK(&shape_of("grpo") != &shape_of("dapo"));
  CHECK(&shape_of("verl::gpg") == &shape_of("nemo_rl::reinforce"));
  CHECK(shape_of("verl::vanilla").settings ==
        std::vector<std::string>{"low 0.2", "high 0.2", "dual 3"});
  CHECK(shape_of("cispo").parts ==
        std::vector<std::string>{"surrogate::Reinforce", "factor::ClippedRatio"});
  CHECK(shape_of("cispo").settings_text() == "max_ratio 5");
  CHECK(shape_of("verl::kl_cov").settings_text() == "no bounds");
  CHECK(shape_of("verl::gpg").settings_text() == "no settings");
  // One picture shows what differs in numbers alone.
  CHECK(shape_of("dapo").picture == "grpo");
  CHECK(shape_of("verl::vanilla").picture == "verl::vanilla");
  CHECK(shape_of("skyrl::rollout_is").picture == "skyrl::rollout_is");  // has no shade
  CHECK(shape_of("prime_rl::default").picture == "verl::kl_cov");       // low 1 bounds nothing
}

TEST_CASE("The page of surrogates has every loss and is well-formed") {
  const std::string page = to_html(surrogates());
  check_well_formed(page);
  CHECK_THAT(page, ContainsSubstring("<!DOCTYPE html>"));
  for (const char* outside : {"<script", "<link", "@import", "url(", "src="})
    CHECK(occurrences(page, outside) == 0);
  CHECK(occurrences(page, "<figure>") == surrogates().shapes.size());
  CHECK(occurrences(page, "role=\"img\"") == 2 * surrogates().shapes.size());
  for (const std::string& name : losses_with_surrogate()) {
    INFO(name);
    CHECK(page.find(name) != std::string::npos);
  }
}

TEST_CASE("The table of surrogates has every loss and fits a terminal") {
  const std::string text = to_text(surrogates());
  for (const std::string& name : losses_with_surrogate()) {
    INFO(name);
    CHECK(text.find(name) != std::string::npos);
  }
  CHECK_THAT(text, ContainsSubstring("A = 1, derivative   -0.100  -0.500  -0.900  -1.100   0.000"));
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    INFO(text.substr(at, end - at));
    CHECK(width_of(text.substr(at, end - at)) <= 100);
    at = end + 1;
  }
}

TEST_CASE("Pictures are small files of their own") {
  std::set<std::string> paths;
  for (const OutputFile& file : to_pictures(surrogates(), "folder")) {
    INFO(file.path);
    CHECK(paths.insert(file.path).second);
    CHECK(file.text.size() < 10000);
    CHECK_THAT(file.text, ContainsSubstring("xmlns=\"http://www.w3.org/2000/svg\" viewBox="));
    CHECK_THAT(file.text, ContainsSubstring("prefers-color-scheme: dark"));
    check_well_formed(file.text);
  }
  CHECK(paths.count("folder/grpo.svg") == 1);
  CHECK(paths.count("folder/verl_vanilla.svg") == 1);
  const std::string page = to_markdown(surrogates(), "");
  CHECK(occurrences(page, "\n![") == paths.size());
  for (const std::string& name : losses_with_surrogate()) {
    INFO(name);
    CHECK(page.find("`" + name + "`") != std::string::npos);
  }
}
