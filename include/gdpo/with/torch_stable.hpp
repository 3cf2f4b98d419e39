#pragma once
/// \file
/// Operators for PyTorch over its stable ABI: one library for every PyTorch from 2.10 on.
///
/// The functions of namespace `torch_stable` take and return tensors of torch::stable and read
/// settings from text, as the operators of a dispatcher do. examples/python registers them as
/// `torch.ops.gdpo`; another library registers them under its own name:
///
///     STABLE_TORCH_LIBRARY(mine, library) {
///       library.def(gdpo::torch_stable::policy_loss_schema);
///     }
///     STABLE_TORCH_LIBRARY_IMPL(mine, CPU, library) {
///       library.impl("policy_loss", TORCH_BOX(&gdpo::torch_stable::policy_loss));
///     }
///
/// Tensors are of the CPU, with any strides; nothing is copied unless a function says so. The work
/// runs on the threads of PyTorch (torch.set_num_threads), and the bits of a result do not depend
/// on their number. Counts, losses and metrics are float64 where they leave an operator, and every
/// output has a shape that follows from the shapes of the inputs.
///
/// Build: with the headers of PyTorch 2.10 or later, as C++17, with TORCH_TARGET_VERSION set to
/// the oldest release that the library is for, such as 0x020a000000000000 (2.10). It uses the C
/// functions of PyTorch alone, so that nothing has to be linked.
///
/// Errors: `invalid_input`, which PyTorch shows as a RuntimeError with the same message.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <gdpo/logits.hpp>
#include <gdpo/runtime.hpp>
#include <optional>
#include <tuple>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
/// An argument that may be left out.
using Array = std::optional<Tensor>;

/// The threads of PyTorch as an executor for `gdpo::parallel`. Inside of a parallel region of
/// PyTorch all work runs on the calling thread.
struct Threads {
  /// torch.get_num_threads().
  int concurrency() const { return static_cast<int>(torch::stable::get_num_threads()); }
  /// Calls f(0) ... f(n - 1), each once, and returns when all have returned.
  template <class F>
  void for_each(index_t n, const F& f) const {
    torch::stable::parallel_for(0, n, 1, [&f](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) f(static_cast<index_t>(i));
    });
  }
};

/// \cond
// (Doxygen would want a page for each macro below.)
namespace detail {

/// Calls f(a null pointer to the element type) for the dtype of a tensor of floating-point numbers.
/// `needed` says which dtypes the caller takes.
template <class F>
auto with_real(const char* function, const char* name, const Tensor& tensor, const F& f,
               const char* needed = "float64, float32, bfloat16 or float16") {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return f(static_cast<const float*>(nullptr));
    case ScalarType::Double:
      return f(static_cast<const double*>(nullptr));
    case ScalarType::BFloat16:
      return f(static_cast<const BFloat16*>(nullptr));
    case ScalarType::Half:
      return f(static_cast<const Float16*>(nullptr));
    default:
      contract::fail(function, name, torch::headeronly::toString(tensor.scalar_type()), needed);
  }
}
/// The same for a tensor of any numbers; bool is read as bytes.
template <class F>
auto with_element(const char* function, const char* name, const Tensor& tensor, const F& f) {
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
    case ScalarType::Byte:
      return f(static_cast<const unsigned char*>(nullptr));
    case ScalarType::Char:
      return f(static_cast<const signed char*>(nullptr));
    case ScalarType::Short:
      return f(static_cast<const std::int16_t*>(nullptr));
    case ScalarType::Int:
      return f(static_cast<const std::int32_t*>(nullptr));
    case ScalarType::Long:
      return f(static_cast<const std::int64_t*>(nullptr));
    default:
      return with_real(function, name, tensor, f,
                       "float64, float32, bfloat16, float16, bool, uint8 or a signed integer");
  }
}

/// The tensor as a view of that rank, which has been checked.
template <class T, int Rank>
View<const T, Rank> view_of(const Tensor& tensor) {
  View<const T, Rank> v{static_cast<const T*>(tensor.const_data_ptr()), {}, {}};
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (int r = 0; r < Rank; ++r) {
    v.extent[r] = static_cast<index_t>(sizes[static_cast<std::size_t>(r)]);
    v.stride[r] = static_cast<index_t>(strides[static_cast<std::size_t>(r)]);
  }
  return v;
}

/// A tensor that an operator has made, to be written.
template <class T, int Rank>
View<T, Rank> new_view(const Tensor& tensor) {
  const View<const T, Rank> v = view_of<T, Rank>(tensor);
  View<T, Rank> out{static_cast<T*>(tensor.mutable_data_ptr()), {}, {}};
  for (int r = 0; r < Rank; ++r) out.extent[r] = v.extent[r], out.stride[r] = v.stride[r];
  return out;
}

/// Throws unless the tensor is on the CPU and has a rank from `least` to `most`.
inline void check(const char* function, const char* name, const Tensor& tensor, int least, int most,
                  const char* shape) {
  if (!tensor.is_cpu()) contract::fail(function, name, "a tensor on a device", "one on the CPU");
  if (tensor.dim() < least || tensor.dim() > most) {
    contract::fail(function, name,
                   "a tensor of rank " + std::to_string(static_cast<long long>(tensor.dim())),
                   shape);
  }
}

/// An array with one number for each token, read as S.
template <class S>
TokenView<S> tokens(const char* function, const char* name, const Array& array) {
  if (!array) return {};
  check(function, name, *array, 1, 3,
        "rank 1 (packed tokens), 2 (rows, tokens) or 3 (prompts, completions, tokens)");
  return with_element(function, name, *array, [&](auto* element) -> TokenView<S> {
    using T = std::decay_t<decltype(*element)>;
    if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>) {
      contract::fail(function, name, "float64", "float32 or narrower, as batch.logp is");
    } else if constexpr (std::is_same_v<S, std::int64_t> && !std::is_integral_v<T>) {
      contract::fail(function, name, "numbers with a fraction", "integers");
    } else {
      if (array->dim() == 1) return view_of<T, 1>(*array);
      if (array->dim() == 2) return view_of<T, 2>(*array);
      return view_of<T, 3>(*array);
    }
  });
}

/// A column with one number for each row.
inline Column column(const char* function, const char* name, const Array& array) {
  if (!array) return {};
  check(function, name, *array, 1, 2, "rank 1 (rows) or 2 (prompts, completions)");
  return with_element(function, name, *array, [&](auto* element) -> Column {
    using T = std::decay_t<decltype(*element)>;
    if (array->dim() == 1) return view_of<T, 1>(*array);
    return view_of<T, 2>(*array);
  });
}

/// Calls f(view) with a tensor of rank 1 that holds integers of 32 or 64 bits.
template <class F>
auto with_integers(const char* function, const char* name, const Tensor& tensor, const F& f) {
  check(function, name, tensor, 1, 1, "rank 1");
  if (tensor.scalar_type() == ScalarType::Int) return f(view_of<std::int32_t, 1>(tensor));
  if (tensor.scalar_type() == ScalarType::Long) return f(view_of<std::int64_t, 1>(tensor));
  contract::fail(function, name, torch::headeronly::toString(tensor.scalar_type()),
                 "int32 or int64");
}

/// A new float64 tensor on the CPU.
inline Tensor doubles(std::vector<std::int64_t> size) {
  return torch::stable::empty(size, ScalarType::Double);
}
inline double* data_of(const Tensor& tensor) {
  return static_cast<double*>(tensor.mutable_data_ptr());
}

// A result as one row of doubles. Each of the functions below is called for every number, with its
// name in two parts, in an order that only for_each_number knows.

struct CountNumbers {
  std::int64_t& count;
  template <class T>
  void operator()(const char*, const char*, const T&) const {
    ++count;
  }
};
struct WriteNumbers {
  double*& to;
  template <class T>
  void operator()(const char*, const char*, const T& number) const {
    *to++ = static_cast<double>(number);
  }
};
struct ReadNumbers {
  const double*& from;
  template <class T>
  void operator()(const char*, const char*, T& number) const {
    number = static_cast<T>(*from++);
  }
};
struct NameNumbers {
  std::string& names;
  template <class T>
  void operator()(const char* owner, const char* member, const T&) const {
    names += (names.empty() ? "" : "\n") + std::string(owner) + member;
  }
};

template <class M, class F>
void for_each_moment(const char* name, M& m, const F& f) {
  f(name, ".n", m.n), f(name, ".weight", m.weight), f(name, ".mean", m.mean);
  f(name, ".mean_low", m.mean_low), f(name, ".m2", m.m2);
  f(name, ".min", m.min), f(name, ".max", m.max);
}
template <class M, class F>
void for_each_part(const char* name, M& m, const F& f) {
  f(name, ".sum", m.sum), f(name, ".count", m.count), f(name, ".min", m.min);
  f(name, ".max", m.max), f(name, ".row_sum", m.row_sum), f(name, ".rows", m.rows);
  f(name, ".row_min", m.row_min), f(name, ".row_max", m.row_max);
}
/// Calls f for each number of a LossResult.
template <class R, class F, std::enable_if_t<std::is_same_v<std::decay_t<R>, LossResult>, int> = 0>
void for_each_number(R&& r, const F& f) {
  f("", "loss", r.loss), f("", "policy_loss", r.policy_loss), f("", "kl_loss", r.kl_loss);
  auto& n = r.normaliser;
  f("normaliser", ".tokens", n.tokens), f("normaliser", ".rows", n.rows);
  f("normaliser", ".non_empty_rows", n.non_empty_rows), f("normaliser", ".given", n.given);
  auto& m = r.metrics;
#define GDPO_X(name, ...) for_each_part(#name, m.name, f);
  GDPO_TOKEN_METRICS(GDPO_X)
  GDPO_ROW_METRICS(GDPO_X)
#undef GDPO_X
  for_each_moment("advantage", m.advantage, f);
#define GDPO_X(in_batch, in_row, ...)                              \
  f("non_finite." #in_batch, ".count", m.non_finite.in_row.count); \
  f("non_finite." #in_batch, ".row", m.non_finite.in_row.row);     \
  f("non_finite." #in_batch, ".token", m.non_finite.in_row.token);
  GDPO_COUNTED_INPUTS(GDPO_X)
#undef GDPO_X
  f("", "rows", m.rows), f("", "empty_rows", m.empty_rows);
  f("", "degenerate_rows", m.degenerate_rows), f("", "entropy_threshold", m.entropy_threshold);
  f("", "one_ratio_a_row", m.one_ratio_a_row);
}
/// Calls f for each number of a GroupReport that does not belong to one group.
template <class R, class F, std::enable_if_t<std::is_same_v<std::decay_t<R>, GroupReport>, int> = 0>
void for_each_number(R&& r, const F& f) {
  f("", "rows", r.rows), f("", "groups", r.groups);
  f("", "smallest_group", r.smallest_group), f("", "largest_group", r.largest_group);
  f("", "singletons", r.singletons), f("", "excluded_rewards", r.excluded_rewards);
  f("", "infinite_rewards", r.infinite_rewards), f("", "excluded_rows", r.excluded_rows);
  f("", "unused_rows", r.unused_rows), f("", "flat_rows", r.flat_rows);
  for_each_moment("reward_sums", r.reward_sums, f);
  for_each_moment("group_stds", r.group_stds, f);
  for_each_moment("combined", r.combined, f);
  for (std::size_t c = 0; c < r.channels.size(); ++c) {
    const std::string name = "channels." + std::to_string(c);
    auto& channel = r.channels[c];
    for_each_moment((name + ".values").c_str(), channel.values, f);
    f(name.c_str(), ".known_groups", channel.known_groups);
    f(name.c_str(), ".flat_groups", channel.flat_groups);
  }
}
/// How many numbers a result has.
template <class R>
std::int64_t size_of(const R& result) {
  std::int64_t size = 0;
  for_each_number(result, CountNumbers{size});
  return size;
}
/// The numbers of a result as a float64 tensor of rank 1.
template <class R>
Tensor numbers_of(const R& result) {
  Tensor tensor = doubles({size_of(result)});
  double* to = data_of(tensor);
  for_each_number(result, WriteNumbers{to});
  return tensor;
}
/// Reads what numbers_of() wrote into a result with as many numbers.
template <class R>
void read_numbers(const char* function, const char* name, const Tensor& tensor, R& result) {
  const std::int64_t size = size_of(result);
  if (tensor.dim() != 1 || tensor.size(0) != size || !tensor.is_cpu() || !tensor.is_contiguous() ||
      tensor.scalar_type() != ScalarType::Double) {
    contract::fail(function, name, "another tensor",
                   "the float64 tensor of " + contract::text(static_cast<index_t>(size)) +
                       " numbers that the call returned");
  }
  const auto* from = static_cast<const double*>(tensor.const_data_ptr());
  for_each_number(result, ReadNumbers{from});
}
/// A report of that many rewards.
inline GroupReport report_of(std::int64_t rewards) {
  GroupReport report;
  report.channels.resize(static_cast<std::size_t>(rewards));
  return report;
}
/// The report whose numbers a tensor holds, with what follows from them.
inline GroupReport report_from(const char* function, const char* name, const Tensor& tensor) {
  const std::int64_t fixed = size_of(report_of(0)), each = size_of(report_of(1)) - fixed;
  const std::int64_t size = tensor.numel();
  GroupReport report = report_of(size > fixed ? (size - fixed) / each : 0);
  read_numbers(function, name, tensor, report);
  gdpo::detail::derive(report);
  return report;
}

/// A map as its keys, one a line, and its values.
inline std::tuple<std::string, Tensor> lines_of(const std::map<std::string, double>& map) {
  std::string keys;
  Tensor values = doubles({static_cast<std::int64_t>(map.size())});
  double* value = data_of(values);
  for (const auto& [key, number] : map) keys += (keys.empty() ? "" : "\n") + key, *value++ = number;
  return {keys, values};
}

// The arrays of a TokenBatch as the arguments of an operator, generated from the lists of them.
#define GDPO_TORCH_ARRAYS(X) GDPO_TOKEN_ARRAYS(X) GDPO_TOKEN_MARKS(X) GDPO_ROW_COLUMNS(X)
#define GDPO_TORCH_PARAMETER(name, ...) const Array &name,
#define GDPO_TORCH_NAME(name, ...) name,
#define GDPO_TORCH_TEXT(name, ...) "Tensor? " #name "=None, "
#define GDPO_TORCH_PARAMETERS GDPO_TORCH_ARRAYS(GDPO_TORCH_PARAMETER) const Array& offsets
#define GDPO_TORCH_NAMES GDPO_TORCH_ARRAYS(GDPO_TORCH_NAME) offsets
#define GDPO_TORCH_SCHEMA GDPO_TORCH_ARRAYS(GDPO_TORCH_TEXT) "Tensor? offsets=None"

/// The batch of an operator's arrays, whose numbers are read as S.
template <class S>
TokenBatch<S> batch_of(const char* function, GDPO_TORCH_PARAMETERS) {
  TokenBatch<S> batch;
#define GDPO_X(name, ...) batch.name = tokens<S>(function, "batch." #name, name);
  GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, type) batch.name = tokens<type>(function, "batch." #name, name);
  GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, ...) batch.name = column(function, "batch." #name, name);
  GDPO_ROW_COLUMNS(GDPO_X)
#undef GDPO_X
  if (offsets) {
    batch.offsets = with_integers(function, "batch.offsets", *offsets,
                                  [](const auto& view) -> IndexColumn { return view; });
  }
  return batch;
}

/// The loss of that line. The last one that this thread asked for is kept, because reading a line
/// takes longer than the loss of a small batch.
inline const runtime::Loss& configured(const std::string& line) {
  thread_local std::string kept;
  thread_local runtime::Loss loss;
  if (line != kept || line.empty()) {
    loss = runtime::configured_loss(line);
    kept = line;
  }
  return loss;
}

/// The counts of a step from a float64 tensor of four numbers.
inline Normaliser counts_of(const char* function, const Tensor& counts) {
  if (counts.dim() != 1 || counts.size(0) != 4 || !counts.is_cpu() || !counts.is_contiguous() ||
      counts.scalar_type() != ScalarType::Double) {
    contract::fail(function, "counts", "another tensor",
                   "float64 of 4 numbers on the CPU, as count returns it: tokens, rows, "
                   "non_empty_rows, given");
  }
  const double* n = static_cast<const double*>(counts.const_data_ptr());
  Normaliser normaliser;
  normaliser.tokens = n[0], normaliser.rows = n[1];
  normaliser.non_empty_rows = n[2], normaliser.given = n[3];
  return normaliser;
}

template <class S>
std::tuple<Tensor, Tensor, Tensor> loss_of(const char* function, const std::string& line,
                                           const Tensor& counts, bool with_gradient,
                                           GDPO_TORCH_PARAMETERS) {
  const TokenBatch<S> batch = batch_of<S>(function, GDPO_TORCH_NAMES);
  const Normaliser normaliser = counts_of(function, counts);
  const auto type = sizeof(S) == sizeof(double) ? ScalarType::Double : ScalarType::Float;
  const auto sizes = logp->sizes();
  std::vector<std::int64_t> size(sizes.begin(), sizes.end());
  if (!with_gradient) size.assign(1, 0);
  Tensor gradient = torch::stable::empty(size, type);
  TokenOut<S> out;
  if (with_gradient && gradient.dim() == 1) out = new_view<S, 1>(gradient);
  if (with_gradient && gradient.dim() == 2) out = new_view<S, 2>(gradient);
  if (with_gradient && gradient.dim() == 3) out = new_view<S, 3>(gradient);
  thread_local LossWorkspace<S> workspace;
  const LossResult result = std::visit(
      [&](const auto& loss) {
        return with_metrics<metrics::Means>(loss)(gdpo::parallel(Threads{}), batch, normaliser, out,
                                                  workspace);
      },
      configured(line));
  Tensor loss = torch::stable::empty(std::vector<std::int64_t>{}, type);
  *static_cast<S*>(loss.mutable_data_ptr()) = static_cast<S>(result.loss);
  return {loss, gradient, numbers_of(result)};
}

}  // namespace detail
/// \endcond

/// What an operator of this name declares: the arrays are those of a TokenBatch.
inline constexpr const char* policy_loss_schema =
    "policy_loss(str loss, Tensor counts, bool gradient, " GDPO_TORCH_SCHEMA
    ") -> (Tensor, Tensor, Tensor)";
/// The same under a name of its own, for functions in Python that give it a derivative themselves:
/// one that is registered with the dispatcher costs more than the loss of a small batch.
inline constexpr const char* policy_loss_forward_schema =
    "policy_loss_forward(str loss, Tensor counts, bool gradient, " GDPO_TORCH_SCHEMA
    ") -> (Tensor, Tensor, Tensor)";
/// A policy loss with its gradient and metrics (loss/policy_loss.hpp).
///
/// `loss`: the line of runtime::configured_loss. `counts`: (4) float64, the counts of the step as
/// `count` returns them: tokens, rows, non_empty_rows, given. The other arguments are the members
/// of TokenBatch; bool stands for a mask of bytes. Numbers are computed in float64 where `logp` is
/// float64, else in float32, to which bfloat16 and float16 are converted row by row.
///
/// Returns the loss, a scalar; dloss/dlogp in the shape of `logp`, or without `gradient` an empty
/// tensor, both in the type that numbers are computed in; and the numbers of the LossResult, whose
/// names are those of `result_names`. Metrics are metrics::Means.
///
/// Errors: those of PolicyLoss, and `invalid_input` for tensors of other types, ranks or devices.
inline std::tuple<Tensor, Tensor, Tensor> policy_loss(const std::string& loss, const Tensor& counts,
                                                      bool gradient, GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::policy_loss";
  if (!logp) {
    contract::fail(function, "batch.logp", "no array", "the log-probs of the policy being trained");
  }
  const auto of =
      logp->scalar_type() == ScalarType::Double ? detail::loss_of<double> : detail::loss_of<float>;
  return of(function, loss, counts, gradient, GDPO_TORCH_NAMES);
}

/// What an operator of this name declares.
inline constexpr const char* check_loss_schema = "check_loss(str loss) -> ()";
/// Throws `invalid_input` if the line is not that of a loss (runtime::configured_loss) or a setting
/// is out of its range, as the loss itself would.
inline void check_loss(const std::string& loss) {
  std::visit([](const auto& l) { gdpo::detail::check_settings("gdpo::PolicyLoss", l); },
             runtime::configured_loss(loss));
}

/// What an operator of this name declares.
inline constexpr const char* count_schema = "count(" GDPO_TORCH_SCHEMA ") -> Tensor";
/// The counts of a batch, (4) float64: tokens, rows, non_empty_rows, and 0 for `given`
/// (loss/count.hpp). The arguments are those of policy_loss; a mask or offsets suffice.
inline Tensor count(GDPO_TORCH_PARAMETERS) {
  const Normaliser n = gdpo::count(detail::batch_of<double>("gdpo::count", GDPO_TORCH_NAMES));
  Tensor counts = detail::doubles({4});
  double* to = detail::data_of(counts);
  to[0] = n.tokens, to[1] = n.rows, to[2] = n.non_empty_rows, to[3] = n.given;
  return counts;
}

namespace detail {

/// Calls f(batch) with the logits as a LogitBatch of rank 2 or 3.
template <class F>
void with_logits(const char* function, const Tensor& logits, const Array& targets,
                 const Array& mask, double temperature, const F& f) {
  check(function, "logits", logits, 2, 3,
        "rank 2 (tokens, vocabulary) or 3 (rows, tokens, vocabulary)");
  with_real(function, "logits", logits, [&](auto* element) {
    using T = std::decay_t<decltype(*element)>;
    const auto run = [&](auto batch) {
      batch.targets = tokens<std::int64_t>(function, "targets", targets);
      batch.mask = tokens<unsigned char>(function, "mask", mask);
      batch.temperature = temperature;
      f(batch);
    };
    if (logits.dim() == 2) return run(LogitBatch<T, 2>{view_of<T, 2>(logits), {}, {}, {}});
    run(LogitBatch<T, 3>{view_of<T, 3>(logits), {}, {}, {}});
  });
}
/// A new tensor with the shape of another, without its last `less` axes.
inline Tensor new_like(const Tensor& tensor, int less, ScalarType type) {
  const auto sizes = tensor.sizes();
  return torch::stable::empty(std::vector<std::int64_t>(sizes.begin(), sizes.end() - less), type);
}
/// A tensor of rank 1 or 2 that an operator has made, as an array of tokens to be written.
template <class S>
TokenOut<S> tokens_out(const Tensor& tensor) {
  if (tensor.dim() == 1) return new_view<S, 1>(tensor);
  return new_view<S, 2>(tensor);
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* token_logprobs_schema =
    "token_logprobs(Tensor logits, Tensor targets, Tensor? mask=None, float temperature=1.0) -> "
    "(Tensor, Tensor, Tensor)";
/// Log-probs of the targets, entropies (both float32) and logsumexp (float64) of each row of logits
/// (logits/token_logprobs.hpp). logits: (N, V) or (B, T, V) with stride 1 over the vocabulary;
/// targets: (N) or (B, T), int32 or int64; mask: as targets, rows with 0 are not read and get 0.
inline std::tuple<Tensor, Tensor, Tensor> token_logprobs(const Tensor& logits,
                                                         const Tensor& targets, const Array& mask,
                                                         double temperature) {
  constexpr const char* function = "gdpo::token_logprobs";
  std::tuple<Tensor, Tensor, Tensor> result{detail::new_like(logits, 1, ScalarType::Float),
                                            detail::new_like(logits, 1, ScalarType::Float),
                                            detail::new_like(logits, 1, ScalarType::Double)};
  detail::with_logits(function, logits, targets, mask, temperature, [&result](const auto& batch) {
    token_logprobs_into(gdpo::parallel(Threads{}), batch,
                        {detail::tokens_out<float>(std::get<0>(result)),
                         detail::tokens_out<float>(std::get<1>(result)),
                         detail::tokens_out<double>(std::get<2>(result))});
  });
  return result;
}

/// What an operator of this name declares.
inline constexpr const char* token_logprobs_backward_schema =
    "token_logprobs_backward(Tensor? dlogp, Tensor? dentropy, Tensor logits, Tensor targets, "
    "Tensor? mask, float temperature, Tensor logsumexp, Tensor entropy) -> Tensor";
/// The gradient by the logits from those by log-probs and entropies, of which one may be absent. It
/// has the type of the logits and is rounded once. The other arguments are those of token_logprobs
/// and its results.
inline Tensor token_logprobs_backward(const Array& dlogp, const Array& dentropy,
                                      const Tensor& logits, const Tensor& targets,
                                      const Array& mask, double temperature,
                                      const Tensor& logsumexp, const Tensor& entropy) {
  constexpr const char* function = "gdpo::token_logprobs_backward";
  Tensor dlogits = detail::new_like(logits, 0, logits.scalar_type());
  detail::with_logits(function, logits, targets, mask, temperature, [&](const auto& batch) {
    using T = std::decay_t<decltype(*batch.logits.data)>;
    constexpr int rank = sizeof(batch.logits.extent) / sizeof(index_t);
    gdpo::token_logprobs_backward(gdpo::parallel(Threads{}), batch,
                                  {detail::tokens<float>(function, "dlogp", dlogp),
                                   detail::tokens<float>(function, "dentropy", dentropy)},
                                  detail::tokens<double>(function, "logsumexp", logsumexp),
                                  detail::tokens<float>(function, "entropy", entropy),
                                  detail::new_view<T, rank>(dlogits));
  });
  return dlogits;
}

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
  Tensor out = torch::stable::empty(std::vector<std::int64_t>{rewards.size(0)},
                                    narrow ? ScalarType::Float : ScalarType::Double);
  GroupReport report;
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
          for (std::size_t g = 0; g < gates->size(); g += 3) {
            list.push_back({static_cast<index_t>((*gates)[g]),
                            static_cast<index_t>((*gates)[g + 1]), (*gates)[g + 2]});
          }
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

/// What an operator of this name declares.
inline constexpr const char* names_schema = "names(str what, int rewards=0) -> str";
/// Lists of names, one a line: those that `what` says, "estimators" or "losses"; or those of the
/// numbers of a "result", which policy_loss returns, or of a "report" of that many rewards, which
/// advantages returns. Errors: `invalid_input` for another word.
inline std::string names(const std::string& what, std::int64_t rewards) {
  std::string lines;
  const auto add = [&lines](const std::vector<std::string>& list) {
    for (const std::string& name : list) lines += (lines.empty() ? "" : "\n") + name;
  };
  if (what == "estimators") {
    add(runtime::estimator_names());
  } else if (what == "losses") {
    add(runtime::loss_names());
  } else if (what == "result") {
    detail::for_each_number(LossResult{}, detail::NameNumbers{lines});
  } else if (what == "report" && rewards >= 0) {
    detail::for_each_number(detail::report_of(rewards), detail::NameNumbers{lines});
  } else {
    contract::fail("gdpo::names", "what", "'" + what + "'", "estimators, losses, result or report");
  }
  return lines;
}

/// What an operator of this name declares.
inline constexpr const char* metrics_map_schema =
    "metrics_map(Tensor result, str prefix) -> (str, Tensor)";
/// LossMetrics::to_map of a result of policy_loss: the keys, one a line, and their values.
inline std::tuple<std::string, Tensor> metrics_map(const Tensor& result,
                                                   const std::string& prefix) {
  LossResult r;
  detail::read_numbers("gdpo::metrics_map", "result", result, r);
  return detail::lines_of(r.metrics.to_map(prefix));
}

/// What an operator of this name declares.
inline constexpr const char* merge_results_schema = "merge_results(Tensor a, Tensor b) -> Tensor";
/// merge() of the results of two micro-batches or ranks.
inline Tensor merge_results(const Tensor& a, const Tensor& b) {
  LossResult first, second;
  detail::read_numbers("gdpo::merge_results", "a", a, first);
  detail::read_numbers("gdpo::merge_results", "b", b, second);
  return detail::numbers_of(merge(first, second));
}

/// What an operator of this name declares.
inline constexpr const char* report_map_schema =
    "report_map(Tensor report, str prefix, str[] names, str zero_std, str std) -> (str, Tensor)";
/// GroupReport::to_map of a report of advantages: the keys, one a line, and their values.
/// `zero_std`: "groups", "batch" or "sum"; `std`: "batch" or "mean_of_groups".
inline std::tuple<std::string, Tensor> report_map(const Tensor& report, const std::string& prefix,
                                                  const std::vector<std::string>& names,
                                                  const std::string& zero_std,
                                                  const std::string& std) {
  constexpr const char* function = "gdpo::report_map";
  static const runtime::detail::Table<ZeroStd> of_rows = {
      {"groups", ZeroStd::Groups}, {"batch", ZeroStd::Batch}, {"sum", ZeroStd::Sum}};
  static const runtime::detail::Table<RewardStd> of_rewards = {
      {"batch", RewardStd::Batch}, {"mean_of_groups", RewardStd::MeanOfGroups}};
  return detail::lines_of(
      detail::report_from(function, "report", report)
          .to_map(prefix, names, runtime::detail::named(function, "zero_std", zero_std, of_rows),
                  runtime::detail::named(function, "std", std, of_rewards)));
}

/// What an operator of this name declares.
inline constexpr const char* merge_reports_schema = "merge_reports(Tensor a, Tensor b) -> Tensor";
/// merge() of the reports of two micro-batches or ranks.
inline Tensor merge_reports(const Tensor& a, const Tensor& b) {
  constexpr const char* function = "gdpo::merge_reports";
  return detail::numbers_of(
      merge(detail::report_from(function, "a", a), detail::report_from(function, "b", b)));
}

#undef GDPO_TORCH_ARRAYS
#undef GDPO_TORCH_PARAMETER
#undef GDPO_TORCH_NAME
#undef GDPO_TORCH_TEXT
#undef GDPO_TORCH_PARAMETERS
#undef GDPO_TORCH_NAMES
#undef GDPO_TORCH_SCHEMA

}  // namespace torch_stable
GDPO_END_NAMESPACE
