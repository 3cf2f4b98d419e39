#include <algorithm>
#include <cmath>

#include "../../examples/resolution/words.hpp"
#include "reports.hpp"

namespace small_groups {
namespace {

using resolution::fixed;

/// A table in Markdown; cells of the first column stand left, the others right.
class Table {
 public:
  Table(const std::string& name, const std::vector<std::string>& header) : name_(name) {
    rows_.push_back(header);
    rows_.emplace_back(header.size(), "---:");
    rows_.back().front() = "---";
  }
  void add(const std::vector<std::string>& cells) { rows_.push_back(cells); }
  /// Adds the row of an estimator. Estimators that agree in every cell share a row.
  void add_estimator(const std::vector<std::string>& cells) {
    const auto same = std::find_if(rows_.begin(), rows_.end(), [&](const auto& row) {
      return std::equal(row.begin() + 1, row.end(), cells.begin() + 1);
    });
    if (same == rows_.end()) return add(cells);
    same->front() += ", " + cells.front();
  }
  std::string text() const {
    std::string text = "<!-- table: " + name_ + " -->\n";
    for (const auto& row : rows_) {
      text += "|";
      for (const std::string& cell : row) text += " " + cell + " |";
      text += "\n";
    }
    return text + "<!-- end -->\n";
  }

 private:
  std::string name_;
  std::vector<std::vector<std::string>> rows_;
};

std::string number(double x, int digits) { return std::isfinite(x) ? fixed(x, digits) : "-"; }
/// The same with its sign.
std::string signed_number(double x, int digits) {
  const std::string text = number(x, digits);
  return x > 0 && text != number(0, digits) ? "+" + text : text;
}
std::string in_code(const std::string& name) { return "`" + name + "`"; }

/// The cosines that tell estimators apart in a law: with one reward, the last two are the same.
std::vector<Measure> cosines_of(const Cell& cell) {
  for (const auto& seed : cell.by_seed) {
    for (const Numbers& x : seed) {
      if (std::fabs(x[CosineEach] - x[CosineStandardized]) > 1e-12)
        return {Cosine, CosineStandardized, CosineEach};
    }
  }
  return {Cosine, CosineStandardized};
}

/// A cosine, bold where no other estimator is known to be better.
std::string marked(const Cell& cell, std::size_t estimator, Measure measure) {
  const std::string text = number(cell.interval(estimator, measure).mean, 3);
  return cell.among_best(estimator, measure) ? "**" + text + "**" : text;
}

std::vector<std::string> k_header(const Results& results, const std::string& first) {
  std::vector<std::string> header{first};
  for (const std::size_t k : results.settings.ks) header.push_back("K = " + std::to_string(k));
  return header;
}

/// The cosines of a batch, estimators by K.
std::string main_table(const Results& results, std::size_t law) {
  const std::vector<Cell>& cells = results.cells[law];
  Table table(results.laws[law].name, k_header(results, "estimator"));
  double widest = 0;
  for (std::size_t e = 0; e < results.estimators.size(); ++e) {
    std::vector<std::string> row{in_code(results.estimators[e].name)};
    for (const Cell& cell : cells) {
      std::string text;
      for (const Measure m : cosines_of(cell)) {
        text += (text.empty() ? "" : " / ") + marked(cell, e, m);
        widest = std::max(widest, cell.interval(e, m).half_width);
      }
      row.push_back(text);
    }
    table.add_estimator(row);
  }
  std::vector<std::string> widths{"95 % intervals: at most ±" + fixed(widest, 3)};
  widths.resize(cells.size() + 1);
  table.add(widths);
  std::vector<std::string> flat{"groups with equal rewards"};
  for (const Cell& cell : cells) flat.push_back(resolution::percent(cell.flat, 1));
  table.add(flat);
  return table.text();
}

/// All measures of one K.
std::string detail_table(const Results& results, std::size_t law, std::size_t k_number) {
  constexpr Measure shown[] = {MeanCosine, MeanStandardized, Weighing,     Within,
                               Slope,      RelativeVariance, PromptCosine, EffectiveShare,
                               Peak,       TopShare,         Dead,         Tied};
  std::vector<std::string> header{"estimator"};
  for (const Measure m : shown) header.emplace_back(measure_info[m].heading);
  Table table(results.laws[law].name + "_k" + std::to_string(results.settings.ks[k_number]),
              header);
  const Cell& cell = results.cells[law][k_number];
  for (std::size_t e = 0; e < results.estimators.size(); ++e) {
    std::vector<std::string> row{in_code(results.estimators[e].name)};
    for (const Measure m : shown) {
      const double x = cell.interval(e, m).mean;
      const bool share = m == EffectiveShare || m >= TopShare;
      row.push_back(share ? resolution::percent(x, 1)
                          : number(x, m == RelativeVariance || m == Peak ? 2 : 3));
    }
    table.add_estimator(row);
  }
  return table.text();
}

/// The best estimator of each law and K, for one measure. With CosineEach, laws of one reward are
/// left out, because there it is CosineStandardized.
std::string best_table(const Results& results, const std::string& name, Measure measure) {
  Table table(name, k_header(results, "law"));
  for (std::size_t l = 0; l < results.laws.size(); ++l) {
    if (measure == CosineEach && cosines_of(results.cells[l].front()).size() < 3) continue;
    std::vector<std::string> row{results.laws[l].name};
    for (const Cell& cell : results.cells[l]) {
      const std::size_t best = cell.best(measure);
      row.push_back(in_code(results.estimators[best].name) + " " +
                    number(cell.interval(best, measure).mean, 3));
    }
    table.add(row);
  }
  return table.text();
}

/// By how much each estimator misses the best one, over the laws.
std::string shortfall_table(const Results& results, const std::string& name, Measure measure) {
  Table table(name, k_header(results, "estimator"));
  for (std::size_t e = 0; e < results.estimators.size(); ++e) {
    std::vector<std::string> row{in_code(results.estimators[e].name)};
    for (std::size_t c = 0; c < results.settings.ks.size(); ++c) {
      const Shortfall of = shortfall(results, c, e, measure);
      row.push_back(number(of.mean, 3) + " (" + number(of.largest, 3) + ")");
    }
    table.add_estimator(row);
  }
  return table.text();
}

/// What a stabilized estimator's cosines are above the plain one's.
std::string pair_table(const Results& results, const Pair& pair) {
  const Measure own = results.estimators[pair.plain].each_reward ? CosineEach : CosineStandardized;
  Table table(results.estimators[pair.stabilized].name + "_less_plain", k_header(results, "law"));
  for (std::size_t l = 0; l < results.laws.size(); ++l) {
    std::vector<std::string> row{results.laws[l].name};
    for (const Cell& cell : results.cells[l]) {
      std::string text;
      for (const Measure m : {Cosine, own}) {
        const Interval d = interval_of(cell.differences(pair.stabilized, pair.plain, m));
        const bool clear = std::fabs(d.mean) > d.half_width && std::fabs(d.mean) >= 0.0005;
        const std::string shown = signed_number(d.mean, 3);
        text += (text.empty() ? "" : " / ") + (clear ? "**" + shown + "**" : shown);
      }
      row.push_back(text);
    }
    table.add(row);
  }
  return table.text();
}

}  // namespace

std::vector<Pair> stabilized_pairs(const Results& results) {
  std::vector<Pair> pairs;
  const std::vector<Estimator>& all = results.estimators;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < all.size(); ++b) {
      if (all[a].plain == all[b].name) pairs.push_back({a, b});
    }
  }
  return pairs;
}

Shortfall shortfall(const Results& results, std::size_t k_number, std::size_t estimator,
                    Measure measure) {
  Shortfall of;
  for (std::size_t l = 0; l < results.laws.size(); ++l) {
    const Cell& cell = results.cells[l][k_number];
    const double missing =
        cell.interval(cell.best(measure), measure).mean - cell.interval(estimator, measure).mean;
    of.mean += missing / static_cast<double>(results.laws.size());
    if (missing > of.largest) of.largest = missing, of.law = l;
  }
  return of;
}

std::string to_markdown(const Results& results, const Shown& shown) {
  const std::vector<std::size_t>& ks = results.settings.ks;
  const auto k_number =
      static_cast<std::size_t>(std::find(ks.begin(), ks.end(), shown.detail_k) - ks.begin());
  std::string text;
  if (shown.summary && results.complete) {
    text += "# Summary\n\nThe best estimator by the cosine with the objective's gradient\n\n" +
            best_table(results, "best_objective", Cosine) +
            "\nThe best by the cosine with the standardized objective's\n\n" +
            best_table(results, "best_standardized", CosineStandardized) +
            "\nThe best where each reward is standardized\n\n" +
            best_table(results, "best_each", CosineEach) +
            "\nBelow the best, mean over laws (largest): objective\n\n" +
            shortfall_table(results, "shortfall_objective", Cosine) +
            "\nBelow the best, mean over laws (largest): standardized objective\n\n" +
            shortfall_table(results, "shortfall_standardized", CosineStandardized) +
            "\nBelow the best, mean over laws (largest): each reward standardized\n\n" +
            shortfall_table(results, "shortfall_each", CosineEach);
    for (const Pair& pair : stabilized_pairs(results)) {
      text += "\n" + results.estimators[pair.stabilized].name + " less " +
              results.estimators[pair.plain].name + "\n\n" + pair_table(results, pair);
    }
    text += "\n";
  }
  for (std::size_t l = 0; l < results.laws.size() && (shown.laws || shown.details); ++l) {
    text += "# " + results.laws[l].name + "\n\n" + results.laws[l].description + "\n\n";
    if (shown.laws) text += main_table(results, l) + "\n";
    if (shown.details) text += detail_table(results, l, k_number) + "\n";
  }
  return text;
}

}  // namespace small_groups
