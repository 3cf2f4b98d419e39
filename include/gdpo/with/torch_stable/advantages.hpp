#pragma once
// The operator of advantages.
#include <cmath>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/result.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

/// What an operator of this name declares.
inline constexpr const char* advantages_schema =
    "advantages(Tensor rewards, str estimator, int group_size=0, Tensor? group_ids=None, "
    "Tensor? group_offsets=None, float[]? weights=None, float[]? gates=None, Tensor? tokens=None, "
    "Tensor? valid=None, Tensor? baseline=None, Tensor? row_weights=None) -> (Tensor, Tensor)";
/// Advantages of rewards (N) or (N, C) by the estimator of that name (runtime::estimator).
///
/// One of `group_size` (more than 0), `group_ids` (N) and `group_offsets` (G + 1) says who belongs
/// together. `weights`: one for each reward; absent: the estimator's own. `gates`: for each gate
/// three numbers, the reward, its condition and the threshold. The other arguments are columns of
/// RewardBatch. The rewards are copied to float64.
///
/// Returns the advantages (N), float64 for rewards of float64 and integers, else float32; and the
/// numbers of the GroupReport that belong to the batch, named by `report_names`.
inline std::tuple<Tensor, Tensor> advantages(const Tensor& rewards, const std::string& estimator,
                                             std::int64_t group_size, const Array& group_ids,
                                             const Array& group_offsets,
                                             const std::optional<std::vector<double>>& weights,
                                             const std::optional<std::vector<double>>& gates,
                                             const Array& tokens, const Array& valid,
                                             const Array& baseline, const Array& row_weights) {
  constexpr const char* function = "gdpo::advantages";
  detail::check(function, "rewards", rewards, 1, 2, "rank 1 (rows) or 2 (rows, rewards)");
  const int given = (group_size != 0) + group_ids.has_value() + group_offsets.has_value();
  if (given != 1) {
    contract::fail(function, "group_size, group_ids, group_offsets",
                   given == 0 ? "none of them" : "several of them", "one of them");
  }
  const auto rows = static_cast<index_t>(rewards.size(0)),
             count = rewards.dim() == 2 ? static_cast<index_t>(rewards.size(1)) : 1;
  std::vector<double> values(static_cast<std::size_t>(rows * count));
  bool narrow = false;
  detail::with_element(function, "rewards", rewards, [&](auto* element) {
    using T = std::decay_t<decltype(*element)>;
    narrow = !std::is_same_v<T, double> && !std::is_integral_v<T>;
    const auto* data = static_cast<const T*>(rewards.const_data_ptr());
    const index_t to_row = static_cast<index_t>(rewards.stride(0)),
                  to_reward =
                      count > 0 && rewards.dim() == 2 ? static_cast<index_t>(rewards.stride(1)) : 0;
    double* to = values.data();
    for (index_t i = 0; i < rows; ++i)
      for (index_t c = 0; c < count; ++c)
        *to++ = static_cast<double>(load(data[i * to_row + c * to_reward]));
  });

  runtime::Estimator chosen = runtime::estimator(estimator);
  Tensor out =
      detail::new_tensor({rewards.size(0)}, narrow ? ScalarType::Float : ScalarType::Double);
  GroupReport report;
  const auto at_most = [](const char* name, std::size_t given, std::size_t most) {
    if (given > most) {
      contract::fail(function, name, contract::text(static_cast<index_t>(given)),
                     "at most " + contract::text(static_cast<index_t>(most)));
    }
  };
  if (weights) at_most("weights", weights->size(), 64);
  if (gates) at_most("gates", gates->size() / 3, 16);
  std::visit(
      [&](auto& e) {
        if (weights) e.weights = *weights;
        if (gates) {
          if (gates->size() % 3 != 0) {
            contract::fail(function, "gates",
                           contract::text(static_cast<index_t>(gates->size())) + " numbers",
                           "three for each gate: reward, condition, threshold");
          }
          std::vector<Gate> list;
          const auto reward = [&](std::size_t at) {
            const double number = (*gates)[at];
            if (!(number >= 0 && number < static_cast<double>(count)) ||
                number != std::floor(number)) {
              contract::fail(function, "gates", "reward " + contract::text(number),
                             "the number of a reward, 0 to " + contract::text(count - 1));
            }
            return static_cast<index_t>(number);
          };
          for (std::size_t g = 0; g < gates->size(); g += 3)
            list.push_back({reward(g), reward(g + 1), (*gates)[g + 2]});
          e.gates = list;
        }
        const auto run = [&](const auto& groups) {
          RewardBatch batch{view(values.data(), rows, count), groups};
          batch.tokens = detail::column(function, "batch.tokens", tokens);
          batch.valid = detail::column(function, "batch.valid", valid);
          batch.baseline = detail::column(function, "batch.baseline", baseline);
          batch.weights = detail::column(function, "batch.weights", row_weights);
          thread_local Workspace workspace;
          if (narrow) {
            float* data = static_cast<float*>(out.mutable_data_ptr());
            advantages_into(seq, batch, e, view(data, rows), workspace, &report);
          } else {
            advantages_into(seq, batch, e, view(detail::data_of(out), rows), workspace, &report);
          }
        };
        if (group_ids) {
          run(detail::with_integers(function, "group_ids", *group_ids,
                                    [](const auto& ids) { return by_id(ids); }));
        } else if (group_offsets) {
          std::vector<std::int64_t> offsets;
          detail::with_integers(function, "group_offsets", *group_offsets, [&](const auto& v) {
            for (index_t i = 0; i < v.extent[0]; ++i) offsets.push_back(v(i));
          });
          run(by_offsets(offsets));
        } else {
          run(groups_of(static_cast<index_t>(group_size)));
        }
      },
      chosen);
  return {out, detail::numbers_of(report)};
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
