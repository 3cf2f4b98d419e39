#include <cmath>
#include <nlohmann/json.hpp>

#include "reports.hpp"

namespace small_groups {
namespace {

using Json = nlohmann::ordered_json;

/// A number, or null where it is not known.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json json_of(const Interval& i) {
  return {{"mean", number(i.mean)}, {"half_width", number(i.half_width)}};
}

}  // namespace

std::string to_json(const Results& results) {
  const Settings& s = results.settings;
  Json json;
  json["settings"] = {{"k", s.ks},
                      {"seeds", s.seeds},
                      {"batches", s.batches},
                      {"prompts", s.prompts},
                      {"seed", s.seed}};
  for (const Estimator& e : results.estimators)
    json["estimators"][e.name] = {{"formula", e.formula}, {"plain", e.plain}};
  const std::vector<Pair> pairs = stabilized_pairs(results);
  for (std::size_t l = 0; l < results.laws.size(); ++l) {
    Json& law = json["laws"][results.laws[l].name];
    law["description"] = results.laws[l].description;
    for (std::size_t c = 0; c < s.ks.size(); ++c) {
      const Cell& cell = results.cells[l][c];
      Json& at = law["k"][std::to_string(s.ks[c])];
      at["flat"] = cell.flat;
      for (std::size_t e = 0; e < results.estimators.size(); ++e) {
        Json& of = at["estimators"][results.estimators[e].name];
        for (std::size_t m = 0; m < measures; ++m)
          of[measure_info[m].name] = json_of(cell.interval(e, static_cast<Measure>(m)));
      }
      for (const Measure m : {Cosine, CosineStandardized, CosineEach}) {
        at["best"][measure_info[m].name] = results.estimators[cell.best(m)].name;
        for (const Pair& pair : pairs) {
          at["stabilized_less_plain"][results.estimators[pair.stabilized].name]
            [measure_info[m].name] =
                json_of(interval_of(cell.differences(pair.stabilized, pair.plain, m)));
        }
      }
    }
  }
  for (std::size_t c = 0; c < s.ks.size(); ++c) {
    for (std::size_t e = 0; e < results.estimators.size(); ++e) {
      for (const Measure m : {Cosine, CosineStandardized, CosineEach}) {
        const Shortfall of = shortfall(results, c, e, m);
        json["shortfall"][std::to_string(s.ks[c])][results.estimators[e].name]
            [measure_info[m].name] = {{"mean", number(of.mean)},
                                      {"largest", number(of.largest)},
                                      {"law", results.laws[of.law].name}};
      }
    }
  }
  return json.dump(1) + "\n";
}

}  // namespace small_groups
