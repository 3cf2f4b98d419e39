#include "report.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "instructions.hpp"

namespace gates {
namespace {

nlohmann::ordered_json json_of(const Gate& gate) {
  if (gate.side == Gate::Side::None) return nullptr;
  nlohmann::ordered_json json{
      {gate.side == Gate::Side::AtLeast ? "at_least" : "at_most", gate.bound}};
  if (gate.processor) json["on"] = gate.processor;
  return json;
}

}  // namespace

void Report::run(const Experiment& experiment) {
  Bench bench(experiment.rows);
  std::printf("%s\n", experiment.name.c_str());
  std::fflush(stdout);
  experiment.set_up(bench);
  bench.drop_unpaired();
  const Timings timings =
      bench.contenders_.empty() ? Timings{} : measure(bench.contenders_, limits_, random_);
  nlohmann::ordered_json json{{"experiment", experiment.name}};
  for (const Row& row : experiment.rows) json["rows"].push_back(this->row(row, bench, timings));
  if (!bench.contenders_.empty()) times(bench, timings, json);
  experiments_.push_back(std::move(json));
  std::printf("\n");
}

nlohmann::ordered_json Report::row(const Row& row, const Bench& bench, const Timings& timings) {
  // On other processors than that of its gate a figure is measured without a verdict.
  const Gate gate = row.gate.holds_on(processor_) ? row.gate : no_gate();
  nlohmann::ordered_json json{{"figure", row.figure}, {"gate", json_of(row.gate)}};
  std::printf("  %-72s %8s  ", row.figure.c_str(), gate.text().c_str());
  const auto say = [&](const char* status, const std::string& why = "") {
    std::printf("%s%s%s\n", status, why.empty() ? "" : ": ", why.c_str());
    json["status"] = status;
    if (!why.empty()) json["why"] = why;
    return json;
  };
  for (const std::string& name : {row.over, row.under}) {
    if (const auto found = bench.wrong_.find(name); found != bench.wrong_.end()) {
      ++wrong_;
      return say("WRONG RESULT", name + ": " + found->second);
    }
  }
  for (const std::string& name : {row.over, row.under}) {
    if (const auto found = bench.absent_.find(name); found != bench.absent_.end()) {
      ++not_measured_, ++reasons_[found->second];
      return say("NOT MEASURED", found->second);
    }
  }
  const std::vector<double> values = values_of(row, bench, timings);
  const double value = quantile(values, 0.5);
  const bool timed = !row.under.empty();
  // The quartiles; of two trees, what holds the median of ever more rounds with a probability of
  // 95 %: among n values its rank is n / 2, with a standard deviation of sqrt(n) / 2.
  const double reach =
      row.trees ? (std::min)(0.5, 1 / std::sqrt(static_cast<double>(values.size()))) : 0.25;
  const double low = quantile(values, 0.5 - reach), high = quantile(values, 0.5 + reach);
  json["measured"] = value;
  if (timed) json[row.trees ? "interval" : "quartiles"] = {low, high};
  std::printf("%9.3g  ", value);
  if (timed) {
    char spread[32];
    std::snprintf(spread, sizeof spread, "[%.3g, %.3g]", low, high);
    std::printf("%-18s  ", spread);
  } else {
    std::printf("%-18s  ", "");
  }
  if (row.trees) {
    // What others do slows both trees alike. On a busy machine the interval is wider.
    if (gate.passes(low) != gate.passes(high)) {
      ++inconclusive_;
      return say("INCONCLUSIVE", "the bound is inside the interval");
    }
    ++(gate.passes(low) ? passed_ : missed_);
    return say(gate.passes(low) ? "pass" : "SLOWER");
  }
  if (timed && timings.quiet < limits_.wanted) {
    if (gate.side != Gate::Side::None) ++inconclusive_, busy_ = true;
    return say("INCONCLUSIVE", std::to_string(timings.quiet) + " quiet rounds of " +
                                   std::to_string(timings.rounds) + "; of all");
  }
  if (gate.side == Gate::Side::None) return say("-");
  ++(gate.passes(value) ? passed_ : missed_);
  return say(gate.passes(value) ? "pass" : "MISSED");
}

std::vector<double> Report::values_of(const Row& row, const Bench& bench, const Timings& timings) {
  if (row.under.empty()) return {bench.numbers_.at(row.over)};
  const auto times = [&](const std::string& name) -> const std::vector<double>& {
    const auto is = [&](const Contender& c) { return c.name == name; };
    const auto found = std::find_if(bench.contenders_.begin(), bench.contenders_.end(), is);
    return timings.seconds.at(static_cast<std::size_t>(found - bench.contenders_.begin()));
  };
  std::vector<double> values = times(row.over);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= row.factor / times(row.under)[i];
  return values;
}

void Report::times(const Bench& bench, const Timings& timings, nlohmann::ordered_json& json) const {
  std::printf("  %d of %d rounds quiet; others %.2f cores. Medians, ns an element:", timings.quiet,
              timings.rounds, timings.others);
  json["quiet_rounds"] = timings.quiet;
  json["rounds"] = timings.rounds;
  json["cores_of_others"] = timings.others;
  for (std::size_t i = 0; i < bench.contenders_.size(); ++i) {
    const double seconds = quantile(timings.seconds[i], 0.5);
    const char* separator = i == 0 ? " " : "; ";
    std::printf("%s%s %.3g", separator, bench.contenders_[i].name.c_str(),
                1e9 * seconds / bench.contenders_[i].work);
    json["contenders"].push_back({{"name", bench.contenders_[i].name},
                                  {"seconds", seconds},
                                  {"elements", bench.contenders_[i].work}});
  }
  std::printf("\n");
  for (std::size_t i = 0; explains_ && i < bench.contenders_.size(); ++i)
    explain(bench.contenders_[i], quantile(timings.seconds[i], 0.5), json["contenders"][i]);
}

void Report::explain(const Contender& contender, double seconds,
                     nlohmann::ordered_json& json) const {
  const double ns = 1e9 * seconds / contender.work;
  std::printf("  %s: %.3g ns an element", contender.name.c_str(), ns);
  if (contender.bytes > 0) {
    // memchr reads as much memory as the call works on, as fast as the C library can.
    const auto bytes = static_cast<std::size_t>(contender.work * contender.bytes);
    const std::vector<char> memory(bytes, 0);
    const double reading = fastest_of(
        [&] {
          const void* volatile found = std::memchr(memory.data(), 1, bytes);
          static_cast<void>(found);
        },
        0.1);
    std::printf("; %.3g bytes, whose reading alone takes %.3g ns (%.0f %%)", contender.bytes,
                1e9 * reading / contender.work, 100 * reading / seconds);
    json["bytes"] = contender.bytes, json["reading_seconds"] = reading;
  }
  // Those of more threads cannot be counted (instructions.hpp), those of large calls take minutes.
  const bool countable = contender.name.find("2T") == std::string::npos && contender.work < 1e5;
  if (const long steps = countable ? instructions_of(contender.run, 500'000) : 0; steps > 0) {
    const double instructions = static_cast<double>(steps) / contender.work;
    std::printf("; %.3g instructions, %.2g a ns", instructions, instructions / ns);
    json["instructions"] = steps;
  }
  std::printf("\n");
}

void Report::print_summary() const {
  std::printf("%d gates passed, %d missed, %d results wrong, %d inconclusive, %d not measured\n",
              passed_, missed_, wrong_, inconclusive_, not_measured_);
  for (const auto& [why, figures] : reasons_) {
    std::printf("NOT MEASURED, neither passed nor missed: %d figures, because %s\n", figures,
                why.c_str());
  }
  if (busy_) {
    std::printf(
        "INCONCLUSIVE: fewer than %d of %d rounds were quiet (others used more than %.2g cores)\n",
        limits_.wanted, limits_.most, limits_.others);
  }
}

nlohmann::ordered_json Report::json() const {
  return {
      {"status", exit_status()},
      {"gates",
       {{"passed", passed_},
        {"missed", missed_},
        {"wrong", wrong_},
        {"inconclusive", inconclusive_},
        {"not_measured", not_measured_}}},
      {"rounds", {{"wanted", limits_.wanted}, {"most", limits_.most}, {"others", limits_.others}}},
      {"experiments", experiments_}};
}

}  // namespace gates
