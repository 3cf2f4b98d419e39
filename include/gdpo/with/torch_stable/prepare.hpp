#pragma once
// The operator of pre-passes.
#include <gdpo/prepass.hpp>
#include <gdpo/runtime.hpp>
#include <gdpo/with/torch_stable/batch.hpp>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

namespace detail {

/// A pre-pass that is chosen at run time.
struct AnyPrepass {
  std::variant<prepass::Importance, prepass::Gate, prepass::MeanOne, prepass::Overlong,
               prepass::DegenerateGroups, prepass::TopEntropy, prepass::SecondMoment,
               prepass::Covariance, prepass::EntropyClip, prepass::FutureKl, prepass::TeacherRatio,
               prepass::TeacherPrefix>
      chosen;
  Reach reach = Reach::None;  ///< That of the pre-pass; None: there is none.
  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    std::visit([&](const auto& pass) { static_cast<void>(pass(args)); }, chosen);
  }
  /// The step of prepare() for it.
  template <class V, class S>
  gdpo::detail::PrepassStep<S> step() const {
    return std::visit([](const auto& pass) { return gdpo::detail::step_of<V, S>(pass); }, chosen);
  }
  bool is_shared() const {
    return std::visit([](const auto& pass) { return gdpo::detail::is_shared(pass); }, chosen);
  }
  void check(const char* function) const {
    std::visit([function](const auto& pass) { gdpo::detail::check_fields(function, pass); },
               chosen);
  }
};

/// What the operator returns: mask, weights, kl_weights, entropy_weights, level_log_weights and the
/// threshold.
using Decisions = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

/// The columns that pre-passes have as members.
struct PrepassColumns {
  Column truncated, degenerate, groups;
};

/// The first n pre-passes as a tuple.
template <std::size_t n, std::size_t... i>
auto as_tuple(const std::vector<AnyPrepass>& any, std::index_sequence<i...>) {
  return std::tie(any[i]...);
}
template <std::size_t n>
auto as_tuple(const std::vector<AnyPrepass>& any) {
  return as_tuple<n>(any, std::make_index_sequence<n>{});
}

/// Binds the columns of a pre-pass that has some.
template <class Pass>
void bind_columns(Pass& pass, const PrepassColumns& columns) {
  if constexpr (std::is_same_v<Pass, prepass::Overlong>) pass.truncated = columns.truncated;
  if constexpr (std::is_same_v<Pass, prepass::DegenerateGroups>)
    pass.degenerate = columns.degenerate;
  if constexpr (std::is_same_v<Pass, prepass::Importance> || std::is_same_v<Pass, prepass::Gate>)
    pass.groups = columns.groups;
}

/// Adds the pre-passes of that line to `chosen`, the parts of a chain one by one. A line is
/// "overlong", "degenerate_groups", "top_entropy" followed by a blank and the quantile, or one of
/// runtime::prepass; settings may follow.
inline void add_prepass(const std::string& line, const PrepassColumns& columns,
                        std::vector<AnyPrepass>& chosen) {
  constexpr const char* function = "gdpo::prepare";
  runtime::detail::Words next{line};
  const std::string name(next());
  const auto choose = [&](auto pass, std::string_view word) {
    // The settings of a chain begin with the name of their part.
    const char* owner = gdpo::detail::is_chain_v<decltype(pass)> ? "" : pass.name;
    runtime::detail::apply_settings(function, pass, word, next, {nullptr, owner});
    std::apply(
        [&](auto... parts) {
          const auto add = [&](auto& part) {
            bind_columns(part, columns);
            AnyPrepass any;
            any.chosen = part, any.reach = part.reach;
            chosen.push_back(any);
          };
          (add(parts), ...);
        },
        gdpo::detail::parts_of(pass));
  };
  if (name == "overlong") {
    choose(prepass::Overlong{}, next());
  } else if (name == "degenerate_groups") {
    choose(prepass::DegenerateGroups{{}, Reach::Mask}, next());
  } else if (name == "top_entropy") {
    prepass::TopEntropy pass;
    const std::string_view word = next();
    const bool named = word.find('=') != std::string_view::npos;
    if (word.empty()) contract::fail(function, "passes", "'top_entropy'", "top_entropy QUANTILE");
    if (!named) runtime::detail::ReadSetting{function, name, word}(pass.quantile);
    choose(pass, named ? word : next());
  } else {
    std::visit([&](const auto& pass) { choose(pass, next()); }, runtime::prepass(name));
  }
}

/// The pre-passes of all lines, filled up to the most that there may be with some that are off.
constexpr std::size_t most_prepasses = 12;
inline std::vector<AnyPrepass> prepasses_of(const std::vector<std::string>& lines,
                                            const PrepassColumns& columns) {
  std::vector<AnyPrepass> any;
  for (const std::string& line : lines) add_prepass(line, columns, any);
  if (any.size() > most_prepasses) {
    contract::fail("gdpo::prepare", "passes", contract::text(static_cast<index_t>(any.size())),
                   "at most 12 pre-passes, a chain being as many as it has parts");
  }
  any.resize(most_prepasses);
  return any;
}

/// Which weights there are: those that are given, and those that a pre-pass makes. An operator
/// returns tensors without elements in the place of the others, since a loss is faster without
/// weights than with weights of 1.
struct WeightsThere {
  bool surrogate, kl, entropy, level;

  WeightsThere(const std::vector<AnyPrepass>& passes, const Array& weights, const Array& kl_weights,
               const Array& entropy_weights, const Array& level_log_weights)
      : surrogate(weights.has_value()),
        kl(kl_weights.has_value()),
        entropy(entropy_weights.has_value()),
        level(level_log_weights.has_value()) {
    for (const AnyPrepass& pass : passes) {
      surrogate = surrogate || gdpo::detail::reaches_surrogate(pass.reach);
      kl = kl || gdpo::detail::reaches_kl(pass.reach);
      entropy = entropy || gdpo::detail::reaches_entropy(pass.reach);
      level = level || gdpo::detail::reaches_level(pass.reach);
    }
  }
};

/// Writes what has been decided of a row to dense arrays in the shape of the tokens: its mask and
/// weights, 1 where it is masked, and the logs of the weights of the ratio, 0 there. Arrays of
/// weights may be absent.
template <class S>
struct WriteRow {
  const gdpo::detail::TokenLayout& layout;
  unsigned char* mask;
  S *weights, *kl_weights, *entropy_weights, *level_log_weights;

  void operator()(const TokenRow<S>& row) const {
    const index_t begin = layout(row.row).begin;
    unsigned char* const valid = mask + begin;
    for (index_t t = 0; t < row.length; ++t) valid[t] = row.valid(t);
    // The weights of masked tokens are scratch of the pre-passes.
    const auto write = [&](S* to, const S* values, S absent) {
      if (!to) return;
      for (index_t t = 0; t < row.length; ++t)
        to[begin + t] = values && valid[t] != 0 ? values[t] : absent;
    };
    write(weights, row.weights, 1), write(kl_weights, row.kl_weights, 1);
    write(entropy_weights, row.entropy_weights, 1),
        write(level_log_weights, row.level_log_weights, 0);
  }
};

template <class S>
Decisions prepare_of(const std::vector<std::string>& passes, const Array& degenerate,
                     const Array& groups, GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::prepare";
  const TokenBatch<S> batch = batch_of<S>(function, GDPO_TORCH_NAMES);
  const PrepassColumns columns{batch.truncated, column(function, "degenerate", degenerate),
                               column(function, "groups", groups)};
  const std::vector<AnyPrepass> any = prepasses_of(passes, columns);
  const gdpo::detail::TokenLayout layout =
      gdpo::detail::layout_of(function, batch, gdpo::detail::NeedsLogp::No);
  const auto exec = gdpo::parallel(Threads{});
  using Lanes = gdpo::detail::PrepassLanes<decltype(exec)>;
  std::vector<gdpo::detail::PrepassStep<S>> steps;
  for (const AnyPrepass& pass : any) pass.check(function);
  for (const AnyPrepass& pass : any) {
    if (pass.reach != Reach::None) steps.push_back(pass.template step<Lanes, S>());
  }
  const std::vector<std::int64_t> size(layout.shape.extent,
                                       layout.shape.extent + layout.shape.rank);
  const WeightsThere there(any, weights, kl_weights, entropy_weights, level_log_weights);
  constexpr ScalarType type = sizeof(S) == sizeof(double) ? ScalarType::Double : ScalarType::Float;
  const auto new_weights = [&](bool wanted) {
    return new_tensor(function, wanted ? size : std::vector<std::int64_t>{0}, type);
  };
  const Tensor kept = new_tensor(function, size, ScalarType::Byte),
               surrogate = new_weights(there.surrogate), kl = new_weights(there.kl),
               entropy = new_weights(there.entropy), level = new_weights(there.level),
               threshold = doubles({});
  const auto numbers = [](const Tensor& tensor, bool wanted) {
    return wanted ? static_cast<S*>(tensor.mutable_data_ptr()) : nullptr;
  };
  const WriteRow<S> finish{layout,
                           static_cast<unsigned char*>(kept.mutable_data_ptr()),
                           numbers(surrogate, there.surrogate),
                           numbers(kl, there.kl),
                           numbers(entropy, there.entropy),
                           numbers(level, there.level)};
  thread_local PrepassMemory<S> memory;
  const TokenBatch<S> prepared =
      gdpo::detail::run_steps(exec, batch, layout, memory, steps.data(), steps.size(), finish);
  *data_of(threshold) = prepared.entropy_threshold;
  return {kept, surrogate, kl, entropy, level, threshold};
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* prepare_schema =
    "prepare(str[] passes, Tensor? degenerate=None, Tensor? groups=None, " GDPO_TORCH_SCHEMA
    ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";
/// Pre-passes over a batch (prepass/prepare.hpp): what it returns replaces the mask and the weights
/// of the loss.
///
/// `passes`: at most 12, parts of chains counted. Lines of runtime::configured_prepass, such as
/// "trl::token_truncate"; "overlong" drops the rows of `truncated` from the counts,
/// "degenerate_groups" those of the column `degenerate`, `groups` is the column of a statistic over
/// groups, and "top_entropy 0.8" keeps the surrogate of the upper fifth. The other arguments are
/// the members of TokenBatch. Where `logp` or `old_logp` is float64, or without both `rollout_logp`
/// or `teacher_logp`, numbers are too.
///
/// Returns, in the shape of the tokens, the mask (uint8) and the weights of surrogate, KL terms and
/// entropies, 1 at masked tokens; level_log_weights, 0 at masked tokens; and the entropy threshold,
/// infinite if "top_entropy" is not among them. Weights have no elements unless they are given or
/// the reach of a pre-pass has them. Errors: those of gdpo::prepare, and `invalid_input` for
/// unknown names.
inline detail::Decisions prepare(const std::vector<std::string>& passes, const Array& degenerate,
                                 const Array& groups, GDPO_TORCH_PARAMETERS) {
  const auto run = detail::reads_doubles(logp, old_logp, rollout_logp, teacher_logp)
                       ? detail::prepare_of<double>
                       : detail::prepare_of<float>;
  return run(passes, degenerate, groups, GDPO_TORCH_NAMES);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
