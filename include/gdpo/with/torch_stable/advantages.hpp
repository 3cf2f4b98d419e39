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
/// Rewards as numbers of type T: where they lie if that is their type, else a copy of them.
template <class T>
class RewardsAs {
 public:
  RewardsAs(const Call& call, const RewardTensor& table, const Tensor& tensor)
      : view{static_cast<const T*>(tensor.const_data_ptr()),
             {table.rows, table.count},
             {table.row_stride, table.reward_stride}} {
    if (table.type == stored_as<T>()) return;
    copy_.resize(static_cast<std::size_t>(table.rows * table.count));
    const TensorInfo info = info_of(tensor);
    gdpo::detail::visit_elements(
        call.function, "rewards", info, gdpo::detail::NumberTypes{}, [&](auto* element) {
          const auto* const source = static_cast<decltype(element)>(info.data);
          T* out = copy_.data();
          for (index_t i = 0; i < table.rows; ++i) {
            for (index_t c = 0; c < table.count; ++c)
              *out++ = static_cast<T>(load(source[i * table.row_stride + c * table.reward_stride]));
          }
        });
    view = gdpo::view(std::as_const(copy_).data(), table.rows, table.count);
  }
  RewardsAs(const RewardsAs&) = delete;
  RewardsAs& operator=(const RewardsAs&) = delete;

  View<const T, 2> view;  ///< (rows, rewards)

 private:
  std::vector<T> copy_;
};

/// Checks the arguments of `advantages` that no array decides.
inline void check_advantages(const Call& call, GDPO_TORCH_GROUPS_PARAMETERS,
                             const std::optional<std::vector<double>>& weights) {
  check_groups(call, GDPO_TORCH_GROUPS_NAMES);
  if (weights && weights->size() > 64)
    call.fail("weights", contract::text(static_cast<index_t>(weights->size())), "at most 64");
}

/// The batch of these rewards and groups with the columns of `advantages`.
template <class T, class Groups>
RewardBatch<T, Groups> batch_of(const Call& call, View<const T, 2> rewards, const Groups& groups,
                                const Array& tokens, const Array& valid, const Array& baseline,
                                const Array& row_weights, const Array& penalty) {
  RewardBatch<T, Groups> batch{rewards, groups};
  batch.tokens = column(call, "batch.tokens", tokens);
  batch.valid = column(call, "batch.valid", valid);
  batch.baseline = column(call, "batch.baseline", baseline);
  batch.weights = column(call, "batch.weights", row_weights);
  batch.penalty = column(call, "batch.penalty", penalty);
  return batch;
}
/// Calls f(batch) with a batch of these arguments of `advantages`. Rewards that are not float64 are
/// copied to it, so that f is compiled for doubles alone.
template <class F>
void with_batch(const char* function, const RewardTensor& table, const Tensor& rewards,
                GDPO_TORCH_GROUPS_PARAMETERS, const Array& tokens, const Array& valid,
                const Array& baseline, const Array& row_weights, const Array& penalty, const F& f) {
  const RewardsAs<double> values(function, table, rewards);
  with_groups(function, GDPO_TORCH_GROUPS_NAMES, [&](const auto& groups) {
    f(batch_of(function, values.view, groups, tokens, valid, baseline, row_weights, penalty));
  });
}
/// Calls f(batch) with a batch whose groups are of one of the library's types, as rollouts need.
template <class T, class F>
void with_own_groups(const RewardBatch<T, Consecutive>& batch, const F& f) {
  const auto regroup = [&](const auto& groups) {
    RewardBatch<T, std::decay_t<decltype(groups)>> same{batch.rewards, groups};
    gdpo::detail::copy_columns(batch, same);
    f(same);
  };
  if (batch.groups.size > 0) return regroup(GroupsOf{batch.groups.size});
  regroup(ByOffsets<index_t>{batch.groups.offsets});
}
template <class T, class F>
void with_own_groups(const RewardBatch<T, ById>& batch, const F& f) {
  f(batch);
}
/// The inverse, so that nothing more is compiled for a batch of rollouts, or of all ranks.
template <class T>
RewardBatch<T, Consecutive> of_operators(const RewardBatch<T, ByOffsets<index_t>>& batch) {
  RewardBatch<T, Consecutive> same{batch.rewards, {0, batch.groups.offsets}};
  gdpo::detail::copy_columns(batch, same);
  return same;
}
template <class T>
RewardBatch<T, Consecutive> of_operators(const RewardBatch<T, GroupsOf>& batch) {
  RewardBatch<T, Consecutive> same{batch.rewards, {batch.groups.size, {}}};
  gdpo::detail::copy_columns(batch, same);
  return same;
}
template <class T>
const RewardBatch<T, ById>& of_operators(const RewardBatch<T, ById>& batch) {
  return batch;
}
/// Calls f(estimator) with that of a line, and the weights and gates that replace its own.
template <class F>
void with_estimator(const char* function, const std::string& line,
                    const std::optional<std::vector<double>>& weights,
                    const std::optional<std::vector<double>>& gates, const F& f) {
  std::visit(
      [&](auto e) {
        if (weights) e.weights = *weights;
        if (gates) e.gates = gates_of(*gates);
        f(e);
      },
      remembered(line, [function](const std::string& text) {
        return runtime::detail::configured(function, text, &runtime::estimator).value;
      }));
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
  with_estimator(function, estimator, weights, gates, [&](const auto& e) {
    with_batch(function, table, rewards, GDPO_TORCH_GROUPS_NAMES, tokens, valid, baseline,
               row_weights, penalty, [&](const auto& batch) { f(batch, e); });
  });
}

/// The Take of this word.
inline Take take_of(const std::string& word) {
  Take take{};
  runtime::detail::ReadSetting{"gdpo::advantages", "take", word}(take);
  return take;
}

// The arguments of the operator, which three functions have.
#define GDPO_TORCH_ADVANTAGES_PARAMETERS                                                         \
  const Tensor &rewards, const std::string &estimator, GDPO_TORCH_GROUPS_PARAMETERS,             \
      const std::optional<std::vector<double>>&weights,                                          \
      const std::optional<std::vector<double>>&gates,                                            \
      const std::optional<std::vector<double>>&constraints, const Array &tokens,                 \
      const Array &valid, const Array &baseline, const Array &row_weights, const Array &penalty, \
      const Array &rollout_ids, const std::string &take, bool report
#define GDPO_TORCH_ADVANTAGES_NAMES                                                        \
  rewards, estimator, GDPO_TORCH_GROUPS_NAMES, weights, gates, constraints, tokens, valid, \
      baseline, row_weights, penalty, rollout_ids, take, report

/// The type of the advantages of such rewards.
inline ScalarType advantages_type(const RewardTensor& table) {
  return table.narrow ? ScalarType::Float : ScalarType::Double;
}
/// Copies advantages to a new tensor of their type.
inline void write_advantages(View<const double, 1> source, const RewardTensor& table,
                             const Tensor& out) {
  const auto n = static_cast<std::size_t>(source.extent[0]);
  if (table.narrow) {
    std::transform(source.data, source.data + n, static_cast<float*>(out.mutable_data_ptr()),
                   [](double a) { return static_cast<float>(a); });
  } else {
    std::copy_n(source.data, n, data_of(out));
  }
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* advantages_schema =
    "advantages(Tensor rewards, str estimator, int group_size=0, Tensor? group_ids=None, "
    "Tensor? group_offsets=None, float[]? weights=None, float[]? gates=None, "
    "float[]? constraints=None, Tensor? tokens=None, Tensor? valid=None, Tensor? baseline=None, "
    "Tensor? row_weights=None, Tensor? penalty=None, Tensor? rollout_ids=None, str take='last', "
    "bool report=True) -> (Tensor, Tensor)";
/// `advantages` of a call without `constraints` and `rollout_ids`: what is worth being compiled for
/// several instruction sets. Rewards of float32 and float64 are read where they lie, if the groups
/// have no ids.
inline std::tuple<Tensor, Tensor> plain_advantages(GDPO_TORCH_ADVANTAGES_PARAMETERS) {
  constexpr const char* function = "gdpo::advantages";
  static_cast<void>(constraints), static_cast<void>(rollout_ids), static_cast<void>(take);
  const detail::RewardTensor table(function, rewards);
  Tensor out = detail::new_tensor(function, {rewards.size(0)}, detail::advantages_type(table));
  detail::check_advantages(function, GDPO_TORCH_GROUPS_NAMES, weights);
  GroupReport of_batch;
  GroupReport* const wanted = report ? &of_batch : nullptr;
  const auto evaluate = [&](auto values, const auto& groups, const auto& e, auto result) {
    thread_local Workspace workspace;
    advantages_into(
        gdpo::parallel(Threads{}),
        detail::batch_of(function, values, groups, tokens, valid, baseline, row_weights, penalty),
        e, result, workspace, wanted);
  };
  detail::with_estimator(function, estimator, weights, gates, [&](const auto& e) {
    if (group_ids) {  // for doubles alone: sorting the ids takes longer than a copy of the rewards
      const detail::RewardsAs<double> values(function, table, rewards);
      std::vector<double> a(static_cast<std::size_t>(table.rows));
      evaluate(values.view, by_id(detail::indices(function, "group_ids", *group_ids)), e, view(a));
      return detail::write_advantages(view(std::as_const(a)), table, out);
    }
    const auto run = [&](auto element) {
      using T = decltype(element);
      const detail::RewardsAs<T> values(function, table, rewards);
      detail::with_consecutive(function, group_size, group_offsets, [&](const auto& groups) {
        evaluate(values.view, groups, e, detail::new_view<T, 1>(out));
      });
    };
    if (table.narrow) return run(float{});
    run(double{});
  });
  return {out, report ? detail::numbers_of(of_batch) : detail::doubles({0})};
}
/// `advantages` of any call, in double.
inline std::tuple<Tensor, Tensor> general_advantages(GDPO_TORCH_ADVANTAGES_PARAMETERS) {
  constexpr const char* function = "gdpo::advantages";
  const detail::RewardTensor table(function, rewards);
  Tensor out = detail::new_tensor(function, {rewards.size(0)}, detail::advantages_type(table));
  std::vector<double> a(static_cast<std::size_t>(table.rows));
  GroupReport of_batch;
  GroupReport* const wanted = report ? &of_batch : nullptr;
  thread_local Workspace workspace;
  List<Constraint, 16> limits;
  const auto evaluate = [&](const auto& batch, const auto& e, View<double, 1> result) {
    const auto exec = gdpo::parallel(Threads{});
    if (!constraints) return advantages_into(exec, batch, e, result, workspace, wanted);
    using Estimator = std::decay_t<decltype(e)>;
    advantages_into(exec, batch, Constrained<Estimator, placement::FixedScale>{e, {}, limits},
                    result, workspace, wanted);
  };
  detail::with_rewards(
      function, table, rewards, estimator, GDPO_TORCH_GROUPS_NAMES, weights, gates, tokens, valid,
      baseline, row_weights, penalty, [&](const auto& batch, const auto& e) {
        if (constraints) limits = List<Constraint, 16>(detail::constraints_of(*constraints));
        if (!rollout_ids) return evaluate(batch, e, view(a));
        const std::vector<index_t> ids = detail::indices(function, "rollout_ids", *rollout_ids);
        detail::with_own_groups(batch, [&](const auto& rows) {
          const auto one = rollouts(rows, view(ids), detail::take_of(take));
          std::vector<double> of_rollouts(static_cast<std::size_t>(one.count()));
          evaluate(detail::of_operators(one.batch()), e, view(of_rollouts));
          one.spread_into(view(of_rollouts), view(a));
        });
      });
  detail::write_advantages(view(std::as_const(a)), table, out);
  return {out, report ? detail::numbers_of(of_batch) : detail::doubles({0})};
}
/// Advantages of rewards (N) or (N, C) by the estimator of that line
/// (runtime::configured_estimator).
///
/// One of `group_size` (more than 0), `group_ids` (N) and `group_offsets` (G + 1) gives the groups.
/// `weights`: one for each reward; absent: the estimator's own. `gates`: for each gate three
/// numbers, the reward, its condition and the threshold. `constraints`: for each five, the reward,
/// its multiplier, limit and scale, and 1 for at least, 0 for at most; they enter by
/// placement::FixedScale. `rollout_ids` (N): rows with the same one count as one row (rollouts), of
/// which `take` is the word of a Take. The other arguments are columns of RewardBatch. Rewards are
/// computed with in double.
///
/// Returns the advantages (N), float64 for rewards of float64 and integers, else float32; and with
/// `report` the numbers of the GroupReport that belong to the batch, whose names are those of
/// `names`, else none.
/// Errors: those of gdpo::advantages, and `invalid_input` for tensors and lists that do not fit.
inline std::tuple<Tensor, Tensor> advantages(GDPO_TORCH_ADVANTAGES_PARAMETERS) {
  const auto run = constraints || rollout_ids ? general_advantages : plain_advantages;
  return run(GDPO_TORCH_ADVANTAGES_NAMES);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
