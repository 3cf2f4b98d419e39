#pragma once
// The operator of advantages.
#include <cmath>
#include <gdpo/constraint.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/groups.hpp>
#include <gdpo/with/torch_stable/result.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// Lists that an operator takes as numbers, so many for each entry.
struct NumberList {
  const char* name;                ///< What messages call the list.
  const std::vector<double>& all;  ///< The numbers of all entries.
  std::size_t each, most;          ///< Numbers of an entry; the largest number of entries.
  const char* needed;              ///< What the numbers of an entry are.

  void check() const {
    constexpr const char* function = "gdpo::advantages";
    if (all.size() % each != 0) {
      contract::fail(function, name, contract::text(static_cast<index_t>(all.size())) + " numbers",
                     needed);
    }
    if (all.size() / each > most) {
      contract::fail(function, name, contract::text(static_cast<index_t>(all.size() / each)),
                     "at most " + contract::text(static_cast<index_t>(most)));
    }
  }
  /// The reward whose number is all[index], of which the call checks that there is one.
  index_t reward(std::size_t index) const {
    const double number = all[index];
    if (!(math::abs(number) < 0x1p53) || number != std::floor(number)) {
      contract::fail("gdpo::advantages", name, "reward " + contract::text(number),
                     "the number of a reward");
    }
    return static_cast<index_t>(number);
  }
};
inline std::vector<Gate> gates_of(const std::vector<double>& numbers) {
  const NumberList list{"gates", numbers, 3, 16, "three for each: reward, condition, threshold"};
  list.check();
  std::vector<Gate> gates;
  for (std::size_t g = 0; g < numbers.size(); g += 3)
    gates.push_back({list.reward(g), list.reward(g + 1), numbers[g + 2]});
  return gates;
}
inline std::vector<Constraint> constraints_of(const std::vector<double>& numbers) {
  const NumberList list{"constraints", numbers, 5, 16,
                        "five for each: reward, multiplier, limit, scale, and 1 for at least, 0 "
                        "for at most"};
  list.check();
  std::vector<Constraint> constraints;
  for (std::size_t c = 0; c < numbers.size(); c += 5) {
    Constraint constraint;
    constraint.reward = list.reward(c), constraint.lambda = numbers[c + 1];
    constraint.limit = numbers[c + 2], constraint.scale = numbers[c + 3];
    constraint.bound = math::is_zero(numbers[c + 4]) ? Bound::AtMost : Bound::AtLeast;
    constraints.push_back(constraint);
  }
  return constraints;
}

/// Rewards of any type and strides, (rows) or (rows, rewards).
struct RewardTensor {
  index_t rows, count, row_stride, reward_stride;
  StoredAs type;
  bool narrow;  ///< whether they are of float32 or narrower

  RewardTensor(const Call& call, const Tensor& tensor) {
    const TensorInfo info = info_of(call, "rewards", tensor);
    gdpo::detail::check_rank(call.function, "rewards", info, 1, 2, "(rows) or (rows, rewards)");
    rows = info.extent[0], row_stride = info.stride[0];
    count = info.rank == 2 ? info.extent[1] : 1;
    reward_stride = info.rank == 2 ? info.stride[1] : 0;
    type = info.stored_as;
    narrow = gdpo::detail::visit_elements(
        call.function, "rewards", info, gdpo::detail::NumberTypes{}, [](auto* element) {
          return std::is_same_v<result_t<std::decay_t<decltype(*element)>>, float>;
        });
  }
  /// Reward c of row i of an array of that type.
  GDPO_INLINE double at(const void* data, index_t i, index_t c) const {
    return load_stored<double>(data, type, i * row_stride + c * reward_stride);
  }
};

/// Checks the arguments of `advantages` that no array decides.
inline void check_advantages(const Call& call, GDPO_TORCH_GROUPS_PARAMETERS,
                             const std::optional<std::vector<double>>& weights) {
  check_groups(call, GDPO_TORCH_GROUPS_NAMES);
  if (weights && weights->size() > 64)
    call.fail("weights", contract::text(static_cast<index_t>(weights->size())), "at most 64");
}

/// Calls f(batch) with a batch of these arguments of `advantages`; the rewards are copied to
/// float64.
template <class F>
void with_batch(const char* function, const RewardTensor& table, const Tensor& rewards,
                GDPO_TORCH_GROUPS_PARAMETERS, const Array& tokens, const Array& valid,
                const Array& baseline, const Array& row_weights, const Array& penalty, const F& f) {
  std::vector<double> values(static_cast<std::size_t>(table.rows * table.count));
  for (index_t i = 0, k = 0; i < table.rows; ++i) {
    for (index_t c = 0; c < table.count; ++c, ++k)
      values[static_cast<std::size_t>(k)] = table.at(rewards.const_data_ptr(), i, c);
  }
  with_groups(function, GDPO_TORCH_GROUPS_NAMES, [&](const auto& groups) {
    RewardBatch batch{view(values.data(), table.rows, table.count), groups};
    batch.tokens = column(function, "batch.tokens", tokens);
    batch.valid = column(function, "batch.valid", valid);
    batch.baseline = column(function, "batch.baseline", baseline);
    batch.weights = column(function, "batch.weights", row_weights);
    batch.penalty = column(function, "batch.penalty", penalty);
    f(batch);
  });
}
/// Calls f(batch, estimator) with what the arguments of `advantages` describe.
template <class F>
void with_rewards(const char* function, const RewardTensor& table, const Tensor& rewards,
                  const std::string& estimator, GDPO_TORCH_GROUPS_PARAMETERS,
                  const std::optional<std::vector<double>>& weights,
                  const std::optional<std::vector<double>>& gates, const Array& tokens,
                  const Array& valid, const Array& baseline, const Array& row_weights,
                  const Array& penalty, const F& f) {
  check_advantages(function, GDPO_TORCH_GROUPS_NAMES, weights);
  std::visit(
      [&](auto e) {
        if (weights) e.weights = *weights;
        if (gates) e.gates = gates_of(*gates);
        with_batch(function, table, rewards, GDPO_TORCH_GROUPS_NAMES, tokens, valid, baseline,
                   row_weights, penalty, [&](const auto& batch) { f(batch, e); });
      },
      runtime::detail::configured(function, estimator, &runtime::estimator).value);
}

/// The Take of this word.
inline Take take_of(const std::string& word) {
  for (const auto& e : enumerators(Take{}))
    if (word == e.word) return e.value;
  contract::fail("gdpo::advantages", "take", word,
                 contract::Text("one of ") + gdpo::detail::words_of<Take>().joined(", "));
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* advantages_schema =
    "advantages(Tensor rewards, str estimator, int group_size=0, Tensor? group_ids=None, "
    "Tensor? group_offsets=None, float[]? weights=None, float[]? gates=None, "
    "float[]? constraints=None, Tensor? tokens=None, Tensor? valid=None, Tensor? baseline=None, "
    "Tensor? row_weights=None, Tensor? penalty=None, Tensor? rollout_ids=None, str take='last') -> "
    "(Tensor, Tensor)";
/// Advantages of rewards (N) or (N, C) by the estimator of that line
/// (runtime::configured_estimator).
///
/// One of `group_size` (more than 0), `group_ids` (N) and `group_offsets` (G + 1) gives the groups.
/// `weights`: one for each reward; absent: the estimator's own. `gates`: for each gate three
/// numbers, the reward, its condition and the threshold. `constraints`: for each five, the reward,
/// its multiplier, limit and scale, and 1 for at least, 0 for at most; they enter by
/// placement::FixedScale. `rollout_ids` (N): rows with the same one count as one row (rollouts), of
/// which `take` is the word of a Take. The other arguments are columns of RewardBatch. The rewards
/// are copied to float64.
///
/// Returns the advantages (N), float64 for rewards of float64 and integers, else float32; and the
/// numbers of the GroupReport that belong to the batch, whose names are those of `names`.
/// Errors: those of gdpo::advantages, and `invalid_input` for tensors and lists that do not fit.
inline std::tuple<Tensor, Tensor> advantages(const Tensor& rewards, const std::string& estimator,
                                             std::int64_t group_size, const Array& group_ids,
                                             const Array& group_offsets,
                                             const std::optional<std::vector<double>>& weights,
                                             const std::optional<std::vector<double>>& gates,
                                             const std::optional<std::vector<double>>& constraints,
                                             const Array& tokens, const Array& valid,
                                             const Array& baseline, const Array& row_weights,
                                             const Array& penalty, const Array& rollout_ids,
                                             const std::string& take) {
  constexpr const char* function = "gdpo::advantages";
  const detail::RewardTensor table(function, rewards);
  Tensor out = detail::new_tensor(function, {rewards.size(0)},
                                  table.narrow ? ScalarType::Float : ScalarType::Double);
  GroupReport report;
  const auto evaluate = [&](const auto& batch, const auto& e) {
    thread_local Workspace workspace;
    if (rollout_ids) {
      const std::vector<index_t> ids = detail::indices(function, "rollout_ids", *rollout_ids);
      const auto one = rollouts(batch, view(ids), detail::take_of(take));
      std::vector<double> a(static_cast<std::size_t>(one.count()));
      advantages_into(seq, one.batch(), e, view(a), workspace, &report);
      if (table.narrow) {
        one.spread_into(view(a), detail::new_view<float, 1>(out));
      } else {
        one.spread_into(view(a), detail::new_view<double, 1>(out));
      }
    } else if (table.narrow) {
      advantages_into(seq, batch, e, detail::new_view<float, 1>(out), workspace, &report);
    } else {
      advantages_into(seq, batch, e, detail::new_view<double, 1>(out), workspace, &report);
    }
  };
  detail::with_rewards(function, table, rewards, estimator, GDPO_TORCH_GROUPS_NAMES, weights, gates,
                       tokens, valid, baseline, row_weights, penalty,
                       [&](const auto& batch, const auto& e) {
                         if (!constraints) return evaluate(batch, e);
                         using List16 = List<Constraint, 16>;
                         using Estimator = std::decay_t<decltype(e)>;
                         evaluate(batch, Constrained<Estimator, placement::FixedScale>{
                                             e, {}, List16(detail::constraints_of(*constraints))});
                       });
  return {out, detail::numbers_of(report)};
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
