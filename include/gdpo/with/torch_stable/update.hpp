#pragma once
// The operators around the loss: plans, packs, selected groups, the gradient's norm, averages.
#include <gdpo/update.hpp>
#include <gdpo/with/torch_stable/ranks.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// The settings that a line SETTING=VALUE ... changes, applied to `settings`.
template <class T>
void apply_line(const char* function, const std::string& line, T& settings) {
  runtime::detail::Words next{line};
  runtime::detail::apply_settings(function, settings, next(), next);
}
/// The numbers of a view, appended to a list.
inline void append(View<const index_t, 1> numbers, std::vector<index_t>& list) {
  for (index_t i = 0; i < numbers.extent[0]; ++i) list.push_back(numbers(i));
}
/// The axes of tensors of one shape, which are walked side by side: those of one element are left
/// out, and neighbors that lie one behind the other in all tensors are one. The axis with the
/// largest stride in the first tensor comes first, as its elements stand in memory.
struct MergedAxes {
  index_t extent[3] = {1, 1, 1};
  index_t stride[2][3] = {};

  MergedAxes(const Call& call, const char* name, const TensorInfo& first,
             const TensorInfo* second = nullptr) {
    struct Axis {
      index_t extent, stride[2];
    };
    std::vector<Axis> axes;
    for (int r = 0; r < first.rank; ++r) {
      if (first.extent[r] != 1)
        axes.push_back({first.extent[r], {first.stride[r], second ? second->stride[r] : 0}});
    }
    std::stable_sort(axes.begin(), axes.end(),
                     [](const Axis& a, const Axis& b) { return a.stride[0] > b.stride[0]; });
    std::size_t count = 0;
    for (const Axis& axis : axes) {
      Axis& last = axes[count > 0 ? count - 1 : 0];
      if (count > 0 && last.stride[0] == axis.extent * axis.stride[0] &&
          last.stride[1] == axis.extent * axis.stride[1]) {
        last = {last.extent * axis.extent, {axis.stride[0], axis.stride[1]}};
      } else {
        axes[count++] = axis;
      }
    }
    if (count > 3) call.fail(name, "a tensor of more than three strides", "a dense one");
    for (std::size_t r = 0; r < count; ++r) {
      extent[3 - count + r] = axes[r].extent;
      for (int k = 0; k < 2; ++k) stride[k][3 - count + r] = axes[r].stride[k];
    }
  }
};
/// Tensors as parameters that are changed, and beside them as many that are read, or none.
struct ParameterTensors {
  std::vector<update::ParameterView> changed, read;

  ParameterTensors(const Call& call, const char* name, const std::vector<Tensor>& tensors,
                   const std::vector<bool>& replicated, const char* other = "",
                   const std::vector<Tensor>& others = {}) {
    if (!replicated.empty() && replicated.size() != tensors.size()) {
      call.fail("replicated", contract::text(static_cast<index_t>(replicated.size())) + " entries",
                "one for each of the " + contract::text(static_cast<index_t>(tensors.size())) +
                    " tensors");
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const bool paired = i < others.size();
      const std::string mine = entry(name, i), theirs = entry(other, i);
      const TensorInfo first = info_of(call, mine.c_str(), tensors[i]);
      const TensorInfo second = paired ? info_of(call, theirs.c_str(), others[i]) : TensorInfo{};
      if (paired && (first.rank != second.rank ||
                     !std::equal(first.extent, first.extent + first.rank, second.extent))) {
        call.fail(theirs.c_str(), shape_of(second),
                  shape_of(first) + ", the shape of " + mine.c_str());
      }
      const MergedAxes axes(call, mine.c_str(), first, paired ? &second : nullptr);
      const bool whole = !replicated.empty() && replicated[i];
      add(call, mine.c_str(), tensors[i], first, axes, 0, whole, changed);
      if (paired) add(call, theirs.c_str(), others[i], second, axes, 1, whole, read);
    }
  }

 private:
  static std::string entry(const char* name, std::size_t i) {
    return std::string(name) + "[" + std::to_string(i) + "]";
  }
  static contract::Text shape_of(const TensorInfo& info) {
    return contract::shape(info.rank, info.extent);
  }
  static void add(const Call& call, const char* name, const Tensor& tensor, const TensorInfo& info,
                  const MergedAxes& axes, int which, bool whole,
                  std::vector<update::ParameterView>& list) {
    gdpo::detail::visit_elements(
        call.function, name, info, gdpo::detail::RealTypes{}, [&](auto* element) {
          using T = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
          View<T, 3> view;
          view.data = static_cast<T*>(which == 0 ? tensor.mutable_data_ptr() : info.data);
          for (int r = 0; r < 3; ++r)
            view.extent[r] = axes.extent[r], view.stride[r] = axes.stride[which][r];
          list.emplace_back(view, whole ? update::Held::Replicated : update::Held::Sharded);
        });
  }
};

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* plan_schema =
    "plan(int rows, str settings, " GDPO_TORCH_GROUPS_SCHEMA ") -> Tensor[]";
/// Which rows go into which optimizer step, rank and micro-batch (update/plan.hpp).
///
/// `settings`: a line of members of update::PlanSettings. The groups are read where `whole` is not
/// rows. Returns a list of int64: epochs, mini_batches, accumulation, ranks and
/// largest_micro_batch; the rows of all steps, of each those of rank 0 and its micro-batch 0 first;
/// (steps x ranks x accumulation + 1) where each micro-batch begins among them; the rows that
/// epochs leave out; and (epochs + 1) where those of an epoch begin.
inline std::vector<Tensor> plan(std::int64_t rows, const std::string& settings,
                                GDPO_TORCH_GROUPS_PARAMETERS) {
  constexpr const char* function = "gdpo::update::plan";
  const detail::Call call(function);
  update::PlanSettings s;
  detail::apply_line(function, settings, s);
  const bool given = group_size != 0 || group_ids || group_offsets;
  if (given) detail::check_groups(call, GDPO_TORCH_GROUPS_NAMES);
  std::optional<update::Plan> made;
  if (!given) {
    made.emplace(update::plan(static_cast<index_t>(rows), s));
  } else if (group_ids) {
    made.emplace(update::plan(static_cast<index_t>(rows),
                              by_id(detail::indices(call, "group_ids", *group_ids)), s));
  } else if (group_offsets) {
    const std::vector<index_t> offsets = detail::indices(call, "group_offsets", *group_offsets);
    made.emplace(update::plan(static_cast<index_t>(rows), by_offsets(view(offsets)), s));
  } else {
    made.emplace(
        update::plan(static_cast<index_t>(rows), groups_of(static_cast<index_t>(group_size)), s));
  }
  std::vector<index_t> order, begins{0}, dropped, dropped_begins{0};
  for (index_t step = 0; step < made->steps(); ++step) {
    for (index_t rank = 0; rank < made->ranks(); ++rank) {
      for (index_t k = 0; k < made->accumulation(); ++k) {
        detail::append(made->rows(step, rank, k), order);
        begins.push_back(static_cast<index_t>(order.size()));
      }
    }
  }
  for (index_t epoch = 0; epoch < made->epochs(); ++epoch) {
    detail::append(made->dropped(epoch), dropped);
    dropped_begins.push_back(static_cast<index_t>(dropped.size()));
  }
  const std::vector<index_t> numbers{made->epochs(), made->mini_batches(), made->accumulation(),
                                     made->ranks(), made->largest_micro_batch()};
  return {detail::integers(numbers), detail::integers(order), detail::integers(begins),
          detail::integers(dropped), detail::integers(dropped_begins)};
}

/// What an operator of this name declares.
inline constexpr const char* pack_schema =
    "pack(Tensor lengths, int budget, str settings) -> (Tensor, Tensor, Tensor, float)";
/// Rows of different lengths in packs of at most `budget` tokens (update/pack.hpp). `settings`: a
/// line of members of update::PackSettings. Returns Packing's order, row_offsets, offsets and
/// waste.
inline std::tuple<Tensor, Tensor, Tensor, double> pack(const Tensor& lengths, std::int64_t budget,
                                                       const std::string& settings) {
  constexpr const char* function = "gdpo::update::pack";
  update::PackSettings s;
  detail::apply_line(function, settings, s);
  const update::Packing packs =
      update::pack(detail::indices(function, "lengths", lengths), static_cast<index_t>(budget), s);
  const auto tensor = [](View<const index_t, 1> numbers) {
    std::vector<index_t> list;
    detail::append(numbers, list);
    return detail::integers(list);
  };
  return {tensor(packs.order()), tensor(packs.row_offsets()), tensor(packs.offsets()),
          packs.waste()};
}

/// What an operator of this name declares.
inline constexpr const char* select_groups_schema =
    "select_groups(Tensor rewards, str settings, int attempt, " GDPO_TORCH_GROUPS_SCHEMA
    ", float[]? weights=None, float[]? gates=None, Tensor? valid=None, Tensor? given=None) -> "
    "(Tensor[], str)";
/// The groups of a batch to train on (update/select_groups.hpp).
///
/// `settings`: a line of members of update::GroupSelection. `given`: (groups) flags for flat_in
/// given. The other arguments are those of `advantages`. Returns a list: the selected groups, their
/// rows, where each group begins among these; flat_in_sum_only, refill and gave_up, all int64; and
/// the std of each group of the batch, float64. And the words of the verdicts of these groups, one
/// a line.
inline std::tuple<std::vector<Tensor>, std::string> select_groups(
    const Tensor& rewards, const std::string& settings, std::int64_t attempt,
    GDPO_TORCH_GROUPS_PARAMETERS, const std::optional<std::vector<double>>& weights,
    const std::optional<std::vector<double>>& gates, const Array& valid, const Array& given) {
  constexpr const char* function = "gdpo::update::select_groups";
  const detail::Call call(function);
  detail::check_advantages(call, GDPO_TORCH_GROUPS_NAMES, weights);
  update::GroupSelection s;
  detail::apply_line(function, settings, s);
  if (weights) s.weights = *weights;
  if (gates) s.gates = detail::gates_of(*gates);
  std::vector<unsigned char> flags;
  if (given) {
    const Column column = detail::column(call, "given", given);
    for (index_t g = 0; g < column.size(); ++g) flags.push_back(math::is_zero(column(g)) ? 0 : 1);
    s.given = view(std::as_const(flags));
  }
  const detail::RewardTensor table(call, rewards);
  update::SelectedGroups chosen;
  detail::with_batch(function, table, rewards, GDPO_TORCH_GROUPS_NAMES, Array{}, valid, Array{},
                     Array{}, Array{}, [&](const auto& batch) {
                       detail::with_own_groups(batch, [&](const auto& rows) {
                         chosen = update::select_groups(rows, s, static_cast<index_t>(attempt));
                       });
                     });
  std::string verdicts;
  for (const update::Verdict verdict : chosen.verdict) {
    for (const auto& e : enumerators(update::Verdict{})) {
      if (e.value == verdict) verdicts += (verdicts.empty() ? "" : "\n") + std::string(e.word);
    }
  }
  Tensor stds = detail::doubles({static_cast<std::int64_t>(chosen.group_std.size())});
  std::copy(chosen.group_std.begin(), chosen.group_std.end(), detail::data_of(stds));
  const std::vector<index_t> numbers{chosen.flat_in_sum_only, chosen.refill, chosen.gave_up};
  return {{detail::integers(chosen.groups), detail::integers(chosen.rows),
           detail::integers(chosen.offsets), detail::integers(numbers), stds},
          verdicts};
}

/// What an operator of this name declares.
inline constexpr const char* clip_grad_norm_schema =
    "clip_grad_norm(" GDPO_TORCH_RANKS_SCHEMA
    ", Tensor(a!)[] gradients, float max_norm, str settings, bool[] replicated) -> Tensor";
/// Bounds the norm of the whole gradient, in place (update/clip_grad_norm.hpp).
///
/// `replicated`: one for each tensor, or none of them is. `settings`: a line of members of
/// update::ClipSettings. Returns the numbers of ClippedGradient in the order of its members,
/// float64.
inline Tensor clip_grad_norm(GDPO_TORCH_RANKS_PARAMETERS, const std::vector<Tensor>& gradients,
                             double max_norm, const std::string& settings,
                             const std::vector<bool>& replicated) {
  constexpr const char* function = "gdpo::update::clip_grad_norm";
  return detail::over_ranks([&] {
    const Ranks comm(function, ranks);
    std::optional<detail::ParameterTensors> tensors;
    update::ClipSettings s;
    gdpo::detail::exchange(function, comm, [&](gdpo::detail::Contribution&) {
      detail::throw_error(error, refused);
      detail::apply_line(function, settings, s);
      tensors.emplace(function, "gradients", gradients, replicated);
    });
    const update::ClippedGradient c =
        update::clip_grad_norm(gdpo::parallel(Threads{}), comm, tensors->changed, max_norm, s);
    Tensor numbers = detail::doubles({10});
    double* out = detail::data_of(numbers);
    *out++ = c.norm, *out++ = c.scale, *out++ = c.clipped, *out++ = c.take_step;
    *out++ = static_cast<double>(c.nans), *out++ = static_cast<double>(c.infinities);
    *out++ = c.fault_rank, *out++ = static_cast<double>(c.fault_array);
    *out++ = c.differing_ranks, *out = c.equal_ranks;
    return numbers;
  });
}

/// What an operator of this name declares.
inline constexpr const char* polyak_schema =
    "polyak(Tensor(a!)[] reference, Tensor[] policy, float tau) -> ()";
/// Moves reference parameters towards those of the policy, in place (update/polyak.hpp).
inline void polyak(const std::vector<Tensor>& reference, const std::vector<Tensor>& policy,
                   double tau) {
  constexpr const char* function = "gdpo::update::polyak";
  if (policy.size() != reference.size()) {
    contract::fail(
        function, "policy", contract::text(static_cast<index_t>(policy.size())) + " arrays",
        "as many as the reference has, " + contract::text(static_cast<index_t>(reference.size())));
  }
  const detail::ParameterTensors tensors(function, "reference", reference, {}, "policy", policy);
  update::polyak(gdpo::parallel(Threads{}), tensors.changed, tensors.read, tau);
}

/// What an operator of this name declares.
inline constexpr const char* grad_scale_schema =
    "grad_scale(int world, int accumulation, str engine) -> float";
/// The factor that takes back what a training engine divides by (dist/grad_scale.hpp). `engine`: a
/// word of dist::Engine.
inline double grad_scale(std::int64_t world, std::int64_t accumulation, const std::string& engine) {
  constexpr const char* function = "gdpo::dist::grad_scale";
  dist::Engine chosen{};
  runtime::detail::ReadSetting{function, "engine", engine}(chosen);
  return dist::grad_scale(static_cast<index_t>(world), static_cast<index_t>(accumulation), chosen);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
