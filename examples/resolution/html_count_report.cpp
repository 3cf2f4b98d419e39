#include "charts.hpp"
#include "html.hpp"
#include "html_report.hpp"
#include "words.hpp"

namespace resolution {
namespace {

std::string chart(const CountTable& table, const std::string& title, const std::string& x_name) {
  std::vector<charts::Line> lines;
  std::string summary = title + ". ";
  for (const auto& series : table.series) {
    const EstimatorInfo info = describe(series.estimator);
    charts::Line line{
        info.label, {}, info.family == Family::SumFirst ? charts::Tone::Sum : charts::Tone::Norm};
    summary += info.label + ":";
    for (const std::size_t count : series.counts) {
      line.values.push_back(static_cast<double>(count));
      summary += " " + std::to_string(count);
    }
    summary += ". ";
    lines.push_back(line);
  }
  return html::figure(title, charts::lines(table.sizes, lines, x_name, summary), "");
}

std::string numbers(const CountTable& table, const std::string& caption,
                    const std::string& size_name) {
  std::vector<std::string> header{html::escaped(size_name)};
  for (const std::size_t size : table.sizes) header.push_back(std::to_string(size));
  std::vector<std::vector<std::string>> rows;
  for (const auto& series : table.series) {
    std::vector<std::string> row{html::escaped(describe(series.estimator).label)};
    for (const std::size_t count : series.counts) row.push_back(grouped(count));
    rows.push_back(row);
  }
  std::vector<std::string> possible{"groups of rewards"};
  for (const std::size_t count : table.reward_multisets) possible.push_back(grouped(count));
  rows.push_back(possible);
  return html::table(caption, header, rows);
}

}  // namespace

std::string to_html(const Counting& counting) {
  const std::string rewards = std::to_string(counting.rewards);
  const std::string size = std::to_string(counting.group_size);
  const std::string by_size = rewards + " binary rewards, groups of G";
  const std::string by_rewards = "n binary rewards, groups of " + size;
  std::string body = html::element(
      "header", "",
      html::paragraph("Advantage resolution", "eyebrow") +
          html::element("h1", "", "How many different groups of advantages can there be?") +
          html::paragraph(count_answer(counting), "lead") + html::paragraph(count_meaning));
  body += html::element("div", "class=\"charts\"",
                        chart(counting.by_group_size, by_size, "G, completions in a group") +
                            chart(counting.by_rewards, by_rewards, "n, rewards"));
  body += html::heading("The numbers");
  body += numbers(counting.by_group_size, by_size, "G =") +
          numbers(counting.by_rewards, by_rewards, "n =");
  body += html::heading("How it is counted");
  body += html::paragraph(count_definition);
  body += html::paragraph(
      "The experiment is that of the GDPO paper (arXiv:2601.05242, Figure 3). It counts whole "
      "groups over all possible rewards, each once; what a log of rollouts contains is another "
      "matter: compare the estimators on your own log.",
      "note");
  body += html::element(
      "footer", "",
      "Made by gdpo-resolution --count. This page is complete in itself and loads nothing.");
  return html::page("Advantage resolution: the counting experiment", body);
}

}  // namespace resolution
