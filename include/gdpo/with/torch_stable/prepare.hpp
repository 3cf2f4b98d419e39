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
  Reach reach = Reach::None;            ///< That of the pre-pass; None: there is none.
  double* entropy_threshold = nullptr;  ///< Where TopEntropy leaves its threshold.

  template <class S>
  void operator()(const PrepassArgs<S>& args) const {
    std::visit(
        [&](const auto& pass) {
          if constexpr (std::is_same_v<decltype(pass(args)), EntropyThreshold>) {
            *entropy_threshold = pass(args).value;
          } else {
            pass(args);
          }
        },
        chosen);
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

template <class S>
Decisions prepare_of(const std::vector<std::string>& passes, const Array& degenerate,
                     const Array& groups, GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::prepare";
  const TokenBatch<S> batch = batch_of<S>(function, GDPO_TORCH_NAMES);
  const PrepassColumns columns{batch.truncated, column(function, "degenerate", degenerate),
                               column(function, "groups", groups)};
  std::vector<AnyPrepass> any = prepasses_of(passes, columns);
  double threshold = math::infinity;
  for (AnyPrepass& pass : any) pass.entropy_threshold = &threshold;
  PrepassMemory<S> memory;
  const TokenBatch<S> prepared =
      std::apply([&](const auto&... pass) { return gdpo::prepare(batch, memory, pass...); },
                 as_tuple<most_prepasses>(any));

  // The arrays in the shape of the batch, dense, and all 1 where nothing has been decided.
  const gdpo::detail::TokenLayout layout =
      gdpo::detail::layout_of(function, batch, gdpo::detail::NeedsLogp::No);
  const std::vector<std::int64_t> size(layout.shape.extent,
                                       layout.shape.extent + layout.shape.rank);
  const auto has_decision = [&](const auto& source, index_t i, index_t begin, index_t t) {
    // The weights of masked tokens are scratch of the pre-passes.
    constexpr bool is_weight = std::is_same_v<std::decay_t<decltype(source)>, TokenView<S>>;
    return source && (!is_weight || !prepared.mask || prepared.mask.at(i, begin, t) != 0);
  };
  const auto dense = [&](const auto& source, ScalarType type, auto* element, int absent = 1) {
    using T = std::decay_t<decltype(*element)>;
    Tensor result = new_tensor(function, size, type);
    T* data = static_cast<T*>(result.mutable_data_ptr());
    for (index_t i = 0; i < layout.rows; ++i) {
      const gdpo::detail::RowSpan row = layout(i);
      for (index_t t = 0; t < row.length; ++t)
        data[row.begin + t] = has_decision(source, i, row.begin, t)
                                  ? static_cast<T>(source.at(i, row.begin, t))
                                  : static_cast<T>(absent);
    }
    return result;
  };
  constexpr ScalarType type = sizeof(S) == sizeof(double) ? ScalarType::Double : ScalarType::Float;
  Tensor entropy = doubles({});
  *data_of(entropy) = threshold;
  const S* number = nullptr;
  const unsigned char* byte = nullptr;
  return {dense(prepared.mask, ScalarType::Byte, byte),
          dense(prepared.weights, type, number),
          dense(prepared.kl_weights, type, number),
          dense(prepared.entropy_weights, type, number),
          dense(prepared.level_log_weights, type, number, 0),
          entropy};
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
/// entropies, 1 at masked tokens and where no pre-pass decides; level_log_weights, 0 at masked
/// tokens, and everywhere if none has reach=level (a loss at level::Token refuses them, also
/// zeros); and the entropy threshold, infinite if "top_entropy" is not among them. Errors: those of
/// gdpo::prepare, and `invalid_input` for unknown names.
inline detail::Decisions prepare(const std::vector<std::string>& passes, const Array& degenerate,
                                 const Array& groups, GDPO_TORCH_PARAMETERS) {
  const auto run = detail::reads_doubles(logp, old_logp, rollout_logp, teacher_logp)
                       ? detail::prepare_of<double>
                       : detail::prepare_of<float>;
  return run(passes, degenerate, groups, GDPO_TORCH_NAMES);
}

}  // namespace torch_stable
GDPO_END_NAMESPACE
