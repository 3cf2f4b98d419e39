#include <cmath>
#include <nlohmann/json.hpp>

#include "reports.hpp"

namespace corrections {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Interval& i) { return {{"value", i.value}, {"low", i.low}, {"high", i.high}}; }

}  // namespace

std::string to_json(const Results& results) {
  const Settings& s = results.settings;
  Json json;
  json["settings"] = {{"policies", s.policies},
                      {"chunks", s.chunks},
                      {"batches", s.batches},
                      {"sequences", s.sequences},
                      {"seed", s.seed}};
  for (const Correction& c : results.corrections) json["corrections"][c.name] = c.lines;
  for (const Case& of : results.cases) {
    Json& at = json["samplers"][of.sampler.name];
    at["description"] = of.sampler.description;
    at["length"] = of.sampler.length;
    at["distance"] = of.distance;
    at["product_share"] = of.product_share;
    at["reward"] = of.reward;
    at["own_reward"] = of.own_reward;
    for (std::size_t c = 0; c < results.corrections.size(); ++c) {
      const Measured& m = of.corrections[c];
      at["corrections"][results.corrections[c].name] = {
          {"bias", json_of(m.bias)},   {"exact", m.exact},        {"length", m.length},
          {"direction", m.direction},  {"variance", m.variance},  {"error", m.error},
          {"cosine", m.cosine},        {"gain", json_of(m.gain)}, {"cosine_of_chunk", m.of_chunk},
          {"cosine_of_all", m.of_all}, {"dropped", m.dropped},    {"effective", m.effective}};
    }
  }
  return json.dump(1) + "\n";
}

}  // namespace corrections
