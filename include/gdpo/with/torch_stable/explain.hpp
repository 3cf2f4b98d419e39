#pragma once
// The operator of explain(): one group's numbers stage by stage.
#include <gdpo/advantage/explain.hpp>
#include <gdpo/with/torch_stable/advantages.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// Writes the numbers of an Explanation one behind the other, and a line NAME, LENGTH for each
/// list; the length of a single number is -1.
struct WriteExplained {
  std::string& lines;
  std::vector<double>& numbers;
  template <class T>
  void operator()(const std::string& name, const std::vector<T>& list) const {
    add_line(name, static_cast<index_t>(list.size()));
    for (const T& number : list) numbers.push_back(static_cast<double>(number));
  }
  template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
  void operator()(const std::string& name, T number) const {
    add_line(name, -1);
    numbers.push_back(static_cast<double>(number));
  }
  void add_line(const std::string& name, index_t length) const {
    lines += "numbers\t" + name + "\t" + std::to_string(length) + "\n";
  }
};

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* explain_schema =
    "explain(Tensor rewards, str estimator, int group, str[] reward_names, int group_size=0, "
    "Tensor? group_ids=None, Tensor? group_offsets=None, float[]? weights=None, "
    "float[]? gates=None, Tensor? tokens=None, Tensor? valid=None, Tensor? baseline=None, "
    "Tensor? row_weights=None, Tensor? penalty=None) -> (str, str, Tensor)";
/// gdpo::explain of a group of a call of `advantages`, which has the same arguments.
///
/// Returns the table; lines of words separated by tabulators: "numbers" with a name and a length,
/// "stage" with a name and a formula, "note" with a sentence, "over" with a word; and the numbers
/// that the lines name, in their order. The advantages are those of `advantages`, rounded to
/// float32 where it rounds. Errors: those of gdpo::explain, and of `advantages`.
inline std::tuple<std::string, std::string, Tensor> explain(
    const Tensor& rewards, const std::string& estimator, std::int64_t group,
    const std::vector<std::string>& reward_names, std::int64_t group_size, const Array& group_ids,
    const Array& group_offsets, const std::optional<std::vector<double>>& weights,
    const std::optional<std::vector<double>>& gates, const Array& tokens, const Array& valid,
    const Array& baseline, const Array& row_weights, const Array& penalty) {
  constexpr const char* function = "gdpo::explain";
  const detail::RewardTensor table(function, rewards);
  Explanation e;
  detail::with_rewards(function, table, rewards, estimator, GDPO_TORCH_GROUPS_NAMES, weights, gates,
                       tokens, valid, baseline, row_weights, penalty,
                       [&](const auto& batch, const auto& chosen) {
                         e = gdpo::explain(batch, chosen, static_cast<index_t>(group));
                       });
  for (double& advantage : e.advantage)
    if (table.narrow) advantage = static_cast<double>(static_cast<float>(advantage));
  std::string lines;
  std::vector<double> numbers;
  gdpo::detail::for_each_explained(e, detail::WriteExplained{lines, numbers});
  for (const Explanation::Stage& stage : e.stages)
    lines += "stage\t" + stage.name + "\t" + stage.formula + "\n";
  for (const std::string& note : e.notes) lines += "note\t" + note + "\n";
  lines += std::string("over\t") + gdpo::detail::word_of(e.over);
  Tensor values = detail::doubles({static_cast<std::int64_t>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), detail::data_of(values));
  return {e.to_text(reward_names, estimator), lines, values};
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
