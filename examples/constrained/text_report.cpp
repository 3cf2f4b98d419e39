#include <cmath>

#include "../resolution/text_table.hpp"
#include "../resolution/words.hpp"
#include "reports.hpp"

namespace constrained {

std::string to_text(const Comparison& comparison) {
  using resolution::fixed;
  // The first ten measures are shown; the others are in the JSON and in the HTML report.
  constexpr std::size_t width = 100, shown = 10;
  std::vector<std::string> header{"rule of the multipliers"};
  for (std::size_t m = 0; m < shown; ++m) header.push_back(measures()[m].header);
  resolution::TextTable table(header);
  for (const Result& result : comparison.results) {
    std::vector<std::string> row{result.controller.label};
    for (std::size_t m = 0; m < shown; ++m) {
      const Spread spread = over_runs(result, measures()[m].of);
      row.push_back(fixed(spread.mean, measures()[m].digits) +
                    (std::isnan(spread.std) ? "" : " ±" + fixed(spread.std, measures()[m].digits)));
    }
    table.add(row);
  }
  return table.text(width) + "\n" +
         resolution::wrapped(
             "Mean ±std over " +
                 resolution::counted(static_cast<std::size_t>(comparison.seeds), "seed") + ", " +
                 resolution::counted(static_cast<std::size_t>(comparison.settings.steps), "step") +
                 " each. " + definitions,
             width, 0) +
         "\n\n" + verdict(comparison) + "\n";
}

}  // namespace constrained
