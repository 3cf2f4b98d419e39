#include <algorithm>
#include <cmath>
#include <functional>

#include "../../examples/resolution/words.hpp"
#include "reports.hpp"

namespace corrections {
namespace {

using resolution::fixed;

/// A table in Markdown; cells of the first column stand left, the others right unless `others` says
/// otherwise.
class Table {
 public:
  Table(const std::string& name, const std::vector<std::string>& header,
        const std::string& others = "---:")
      : name_(name) {
    rows_.push_back(header);
    rows_.emplace_back(header.size(), others);
    rows_.back().front() = "---";
  }
  void add(const std::vector<std::string>& cells) { rows_.push_back(cells); }
  /// Adds a row. Rows that agree in all other cells are one.
  void add_correction(const std::vector<std::string>& cells) {
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

std::string in_code(const std::string& text) { return "`" + text + "`"; }

/// A number with its sign; what rounds to 0 has none.
std::string signed_number(double x) {
  const std::string text = fixed(x, 3);
  return x > 0 && text != fixed(0, 3) ? "+" + text : text;
}
std::string bias_text(const Measured& m) {
  if (m.exact) return fixed(m.bias.value, 3) + " (exact)";
  if (m.bias.low <= 0) return "under " + fixed(std::max(m.bias.high, 0.0005), 3);
  return fixed(m.bias.value, 3) + " (" + fixed(m.bias.low, 3) + " to " + fixed(m.bias.high, 3) +
         ")";
}
std::string short_bias(const Measured& m) {
  return m.exact || m.bias.low > 0 ? fixed(m.bias.value, 3)
                                   : "under " + fixed(std::max(m.bias.high, 0.0005), 3);
}
/// The cosine less that without a correction, bold where its interval excludes 0.
std::string gain_text(const Measured& m) {
  const bool clear = (m.gain.low > 0 || m.gain.high < 0) && std::fabs(m.gain.value) >= 0.0005;
  const std::string text = signed_number(m.gain.value);
  return clear ? "**" + text + "**" : text;
}

std::string sampler_table(const Results& results, const Case& of) {
  const Settings& s = results.settings;
  const auto cosine = [&](std::size_t batches) {
    return "cosine, " + resolution::grouped(batches * s.sequences);
  };
  Table table(of.sampler.name,
              {"correction", "bias", "length", "variance", "error", cosine(1), "less none's",
               cosine(s.batches), cosine(s.chunks * s.batches), "dropped", "effective"});
  for (std::size_t c = 0; c < results.corrections.size(); ++c) {
    const Measured& m = of.corrections[c];
    table.add_correction({in_code(results.corrections[c].name), bias_text(m), fixed(m.length, 3),
                          fixed(m.variance, 2), fixed(m.error, 2), fixed(m.cosine, 3), gain_text(m),
                          fixed(m.of_chunk, 3), fixed(m.of_all, 3),
                          resolution::percent(m.dropped, 1), resolution::percent(m.effective, 1)});
  }
  return table.text();
}

std::string summary(const Results& results, const std::string& name,
                    const std::function<std::string(const Measured&)>& text) {
  std::vector<std::string> header{"correction"};
  for (const Case& of : results.cases) header.push_back(in_code(of.sampler.name));
  Table table(name, header);
  for (std::size_t c = 0; c < results.corrections.size(); ++c) {
    std::vector<std::string> row{in_code(results.corrections[c].name)};
    for (const Case& of : results.cases) row.push_back(text(of.corrections[c]));
    table.add(row);
  }
  return table.text();
}

std::string samplers_table(const Results& results) {
  Table table("samplers", {"sampler", "tokens", "distance, nats", "effective share of the product",
                           "reward of the engine", "of the policy"});
  for (const Case& of : results.cases) {
    table.add({in_code(of.sampler.name), std::to_string(of.sampler.length), fixed(of.distance, 3),
               resolution::percent(of.product_share, 1), fixed(of.reward, 3),
               fixed(of.own_reward, 3)});
  }
  return table.text();
}

std::string lines_table(const Results& results) {
  Table table("lines", {"correction", "lines"}, "---");
  for (const Correction& c : results.corrections)
    table.add({in_code(c.name), c.lines.empty() ? "none" : in_code(c.lines)});
  return table.text();
}

}  // namespace

std::string to_markdown(const Results& results) {
  std::string text;
  if (results.complete) {
    text += "# Summary\n\nThe corrections\n\n" + lines_table(results) + "\nThe samplers\n\n" +
            samplers_table(results) + "\nBias, relative to the exact gradient\n\n" +
            summary(results, "bias", short_bias) + "\nCosine of a batch of " +
            std::to_string(results.settings.sequences) +
            " sequences, less that without a correction\n\n" + summary(results, "gain", gain_text) +
            "\nCosine of the mean of " +
            std::to_string(results.settings.chunks * results.settings.batches) + " batches\n\n" +
            summary(results, "large", [](const Measured& m) { return fixed(m.of_all, 3); }) +
            "\nTokens dropped\n\n" +
            summary(results, "dropped",
                    [](const Measured& m) { return resolution::percent(m.dropped, 1); }) +
            "\n";
  }
  for (const Case& of : results.cases) {
    text += "# " + of.sampler.name + "\n\n" + of.sampler.description + "\n\n" +
            sampler_table(results, of) + "\n";
  }
  return text;
}

}  // namespace corrections
