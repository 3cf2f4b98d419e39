#pragma once
// The operators that reach other ranks, by a function of the caller: rows, records, tokens, steps.
#include <gdpo/dist.hpp>
#include <gdpo/group/per_row.hpp>
#include <gdpo/update/step.hpp>
#include <gdpo/with/torch_stable/advantages.hpp>
#include <gdpo/with/torch_stable/loss.hpp>
#include <gdpo/with/torch_stable/mismatch.hpp>
#include <gdpo/with/torch_stable/running.hpp>
#include <gdpo/with/torch_stable/token_advantages.hpp>
#include <map>
#include <memory>
#include <mutex>

GDPO_BEGIN_NAMESPACE
namespace torch_stable {

/// The ranks that a function of the caller reaches: a communicator (dist/communicator.hpp) for
/// operators, which take it as numbers. In Python the function is one of ctypes around
/// torch.distributed (examples/python/gdpo/_ranks.py).
class Ranks {
 public:
  /// Copies the `bytes` bytes at `send` of every rank to `receive`, those of rank 0 first. Returns
  /// 1, or another number where ranks do not answer, and then writes why to `words`, which has room
  /// for `room` bytes with the 0 at their end. (0 is what ctypes returns for a function that has
  /// raised.)
  using Gather = std::int32_t (*)(const void* send, std::int64_t bytes, void* receive, char* words,
                                  std::int64_t room);

  /// numbers: rank, size, and the address of a Gather; none for one process by itself.
  Ranks(const char* function, const std::vector<std::int64_t>& numbers) {
    if (numbers.empty()) return;
    if (numbers.size() != 3 || numbers[2] == 0) {
      contract::fail(function, "ranks",
                     contract::text(static_cast<index_t>(numbers.size())) + " numbers",
                     "rank, size and the address of a function, or none");
    }
    rank_ = static_cast<int>(numbers[0]), size_ = static_cast<int>(numbers[1]);
    gather_ = reinterpret_cast<Gather>(static_cast<std::intptr_t>(numbers[2]));
  }
  int rank() const { return rank_; }  ///< The number of this rank.
  int size() const { return size_; }  ///< How many ranks there are.
  /// Copies the bytes of every rank to every rank; 0 bytes return at once.
  void all_gather(const void* send, std::size_t bytes, void* receive) const {
    if (!gather_) return dist::Single{}.all_gather(send, bytes, receive);
    if (bytes == 0) return;
    char words[1024] = "";
    if (gather_(send, static_cast<std::int64_t>(bytes), receive, words, sizeof words) != 1)
      dist::fail_communication(words);
  }

 private:
  int rank_ = 0, size_ = 1;
  Gather gather_ = nullptr;
};

namespace detail {

// What an operator over ranks declares of them, and its parameters. `error` is what the caller's
// own work has thrown on this rank, if it is not empty; it is thrown on all ranks, as invalid_input
// if it was `refused`, else as a std::runtime_error.
#define GDPO_TORCH_RANKS_SCHEMA "int[] ranks, str error, bool refused"
#define GDPO_TORCH_RANKS_PARAMETERS \
  const std::vector<std::int64_t>&ranks, const std::string &error, bool refused

/// Throws what the caller's work has thrown.
inline void throw_error(const std::string& error, bool refused) {
  if (error.empty()) return;
  if (refused) throw invalid_input(error);
  throw std::runtime_error(error);
}
/// Calls f. Errors that are no invalid_input leave it with a word before their message, because a
/// message is all that crosses PyTorch's ABI.
template <class F>
auto over_ranks(const F& f) {
  try {
    return f();
  } catch (const invalid_input&) {
    throw;
  } catch (const communication_error& e) {
    throw std::runtime_error(std::string("communication_error: ") + e.what());
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(std::string("runtime_error: ") + e.what());
  }
}

/// A tensor of integers.
template <class Numbers>
Tensor integers(const Numbers& numbers) {
  Tensor tensor = new_tensor("gdpo", {static_cast<std::int64_t>(numbers.size())}, ScalarType::Long);
  std::copy(numbers.begin(), numbers.end(), static_cast<std::int64_t*>(tensor.mutable_data_ptr()));
  return tensor;
}
/// Words with ", " between them.
inline std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}
/// Counts as the tensor that `count` returns.
inline Tensor counts_tensor(const Normalizer& n) {
  Tensor counts = doubles({4});
  write_counts(n, data_of(counts));
  return counts;
}

/// Calls f with the batch of the rows of this rank.
template <class F>
void with_rows_of_rank(const char* function, const Array& rewards, GDPO_TORCH_GROUPS_PARAMETERS,
                       const Array& tokens, const Array& valid, const Array& baseline,
                       const Array& row_weights, const Array& penalty, const Array& keys,
                       const F& f) {
  if (!rewards) contract::fail(function, "rewards", "none", "those of the own rows, also of none");
  if (keys && !group_ids)
    contract::fail(function, "keys", "keys without group_ids", "keys beside group_ids only");
  check_groups(function, GDPO_TORCH_GROUPS_NAMES);
  const RewardTensor table(function, *rewards);
  with_batch(function, table, *rewards, GDPO_TORCH_GROUPS_NAMES, tokens, valid, baseline,
             row_weights, penalty, [&](const auto& batch) { with_own_groups(batch, f); });
}
/// dist::gather_rows with keys, if there are some.
template <class T, class Groups>
dist::GatheredRows<T, Groups> gathered_rows(const Ranks& comm, const RewardBatch<T, Groups>& batch,
                                            const std::vector<index_t>& keys, bool has_keys) {
  if constexpr (std::is_same_v<Groups, ById>) {
    if (has_keys) return dist::gather_rows(comm, batch, gdpo::view(keys));
  }
  return dist::gather_rows(comm, batch);
}
/// What gather_rows returns of the rows of all ranks.
template <class T, class Groups>
std::vector<Tensor> rows_of_all(const dist::GatheredRows<T, Groups>& all) {
  const auto batch = all.batch();
  const index_t rows = all.rows(), count = batch.rewards.extent[1];
  std::vector<Tensor> out{
      doubles({static_cast<std::int64_t>(rows), static_cast<std::int64_t>(count)})};
  double* number = data_of(out[0]);
  for (index_t i = 0; i < rows; ++i) {
    for (index_t c = 0; c < count; ++c) *number++ = batch.rewards(i, c);
  }
  using AllGroups = std::decay_t<decltype(batch.groups)>;
  std::vector<index_t> groups;
  if constexpr (std::is_same_v<AllGroups, ById>) {
    groups = per_row(batch.groups, rows, batch.groups.ids());
  } else if constexpr (!std::is_same_v<AllGroups, GroupsOf>) {
    groups.push_back(0);
    for (index_t g = 0; g < batch.groups.count(rows); ++g)
      groups.push_back(groups.back() + batch.groups.length(g));
  }
  out.push_back(integers(groups)), out.push_back(integers(all.own_rows()));
  out.push_back(integers(all.rank_of()));
  for (const Column& column :
       {batch.tokens, batch.valid, batch.baseline, batch.weights, batch.penalty}) {
    out.push_back(doubles({column ? static_cast<std::int64_t>(rows) : 0}));
    for (index_t i = 0; column && i < rows; ++i) data_of(out.back())[i] = column(i);
  }
  return out;
}
/// An array of tokens as a new tensor of its shape, or an empty one.
template <class S>
Tensor tokens_of_all(const TokenView<S>& array) {
  constexpr ScalarType type = std::is_same_v<S, double>          ? ScalarType::Double
                              : std::is_same_v<S, float>         ? ScalarType::Float
                              : std::is_same_v<S, unsigned char> ? ScalarType::Byte
                                                                 : ScalarType::Long;
  std::vector<std::int64_t> sizes;
  for (int axis = 0; axis < array.rank(); ++axis) sizes.push_back(array.extent(axis));
  if (sizes.empty()) sizes = {0};
  Tensor tensor = new_tensor("gdpo", sizes, type);
  const index_t width = sizes.back(), rows = width > 0 ? tensor.numel() / width : 0;
  S* out = static_cast<S*>(tensor.mutable_data_ptr());
  for (index_t i = 0; i < rows; ++i, out += width) {
    const S* const row = array.row(i, 0, width, out);
    if (row != out) std::copy_n(row, width, out);
  }
  return tensor;
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* agree_schema =
    "agree(" GDPO_TORCH_RANKS_SCHEMA ", str[] settings) -> ()";
/// dist::agree: throws on all ranks what one of them has thrown. With `settings` dist::agree_on:
/// throws on all ranks unless all have the same ones.
inline void agree(GDPO_TORCH_RANKS_PARAMETERS, const std::vector<std::string>& settings) {
  detail::over_ranks([&] {
    const Ranks comm("gdpo::dist::agree", ranks);
    if (settings.empty()) return dist::agree(comm, [&] { detail::throw_error(error, refused); });
    gdpo::detail::exchange("gdpo::dist::agree_on", comm, [&](gdpo::detail::Contribution& mine) {
      detail::throw_error(error, refused);
      mine.settings = detail::joined(settings);
    });
  });
}

/// What an operator of this name declares.
inline constexpr const char* all_merge_schema =
    "all_merge(" GDPO_TORCH_RANKS_SCHEMA ", str what, Tensor? record) -> Tensor";
/// dist::all_merge of a record of each rank: the record of all, with the same bits on all.
///
/// `what` is the record, a tensor that another operator has returned: "counts" (`count`), "result"
/// (`policy_loss`), "value_result" (`value_loss`), "report" (`advantages`), "mismatch" (`mismatch`)
/// or "moments" (`measure`, `token_moments`); or "numbers", (n) float64, which are added.
inline Tensor all_merge(GDPO_TORCH_RANKS_PARAMETERS, const std::string& what, const Array& record) {
  constexpr const char* function = "gdpo::dist::all_merge";
  using detail::Call;
  const auto merged = [&](const auto& read, const auto& write) {
    return detail::over_ranks([&] {
      return write(dist::all_merge(Ranks(function, ranks), [&] {
        detail::throw_error(error, refused);
        if (!record) contract::fail(function, "record", "no tensor", "one on every rank");
        return read(*record);
      }));
    });
  };
  if (what == "counts") {
    return merged([&](const Tensor& t) { return detail::counts_of(function, t); },
                  detail::counts_tensor);
  }
  const auto merged_result = [&](const auto& empty) {
    using Result = std::decay_t<decltype(empty)>;
    return merged(
        [&](const Tensor& t) {
          Result result;
          detail::read_numbers(function, "result", t, result);
          return result;
        },
        [](const Result& result) { return detail::numbers_of(result); });
  };
  if (what == "result") return merged_result(LossResult{});
  if (what == "value_result") return merged_result(ValueLossResult{});
  if (what == "report") {
    return merged([&](const Tensor& t) { return detail::report_from(function, "report", t); },
                  [](const GroupReport& report) { return detail::numbers_of(report); });
  }
  if (what == "mismatch") {
    return merged([&](const Tensor& t) { return detail::mismatch_from(function, "report", t); },
                  [](const MismatchReport& report) { return detail::bytes_of(report); });
  }
  if (what == "moments") {
    return merged([&](const Tensor& t) { return detail::moments_in(function, "moments", t); },
                  detail::moments_tensor);
  }
  if (what == "numbers") {
    return merged(
        [&](const Tensor& t) {
          const double* numbers = detail::doubles_in(function, "numbers", t, 1,
                                                     t.dim() == 1 ? t.size(0) : 0, "(n) float64");
          return std::vector<double>(numbers, numbers + t.size(0));
        },
        [](const std::vector<double>& sums) {
          Tensor tensor = detail::doubles({static_cast<std::int64_t>(sums.size())});
          std::copy(sums.begin(), sums.end(), detail::data_of(tensor));
          return tensor;
        });
  }
  contract::fail(function, "what", "'" + what + "'",
                 "counts, result, value_result, report, mismatch, moments or numbers");
}

/// What an operator of this name declares.
inline constexpr const char* gather_rows_schema =
    "gather_rows(" GDPO_TORCH_RANKS_SCHEMA
    ", str[] settings, Tensor? rewards, " GDPO_TORCH_GROUPS_SCHEMA
    ", Tensor? tokens=None, Tensor? valid=None, Tensor? baseline=None, Tensor? row_weights=None, "
    "Tensor? penalty=None, Tensor? keys=None) -> Tensor[]";
/// The rows of all ranks on each (dist/gather_rows.hpp), and before that dist::agree_on `settings`.
///
/// The arguments from `rewards` on are those of `advantages`; `keys` (rows) are integers, only
/// beside `group_ids`. Rewards travel as float64.
///
/// Returns a list: the rewards (rows of all, rewards); the groups of all, ids (rows of all) or
/// offsets, or nothing where they have one size; where the own rows stand among all; the rank of
/// each row; and tokens, valid, baseline, row_weights and penalty, each empty where it was absent.
inline std::vector<Tensor> gather_rows(GDPO_TORCH_RANKS_PARAMETERS,
                                       const std::vector<std::string>& settings,
                                       const Array& rewards, GDPO_TORCH_GROUPS_PARAMETERS,
                                       const Array& tokens, const Array& valid,
                                       const Array& baseline, const Array& row_weights,
                                       const Array& penalty, const Array& keys) {
  constexpr const char* function = "gdpo::dist::gather_rows";
  const auto with_own_rows = [&](const auto& f) {
    detail::with_rows_of_rank(function, rewards, GDPO_TORCH_GROUPS_NAMES, tokens, valid, baseline,
                              row_weights, penalty, keys, f);
  };
  return detail::over_ranks([&] {
    const Ranks comm(function, ranks);
    std::vector<index_t> row_keys;
    gdpo::detail::exchange(function, comm, [&](gdpo::detail::Contribution& mine) {
      detail::throw_error(error, refused);
      with_own_rows([](const auto&) {});
      if (keys) row_keys = detail::indices(function, "keys", *keys);
      mine.settings = detail::joined(settings);
    });
    std::vector<Tensor> out;
    with_own_rows([&](const auto& batch) {
      out = detail::rows_of_all(detail::gathered_rows(comm, batch, row_keys, keys.has_value()));
    });
    return out;
  });
}

/// What an operator of this name declares.
inline constexpr const char* gather_tokens_schema =
    "gather_tokens(" GDPO_TORCH_RANKS_SCHEMA ", Tensor? positions, " GDPO_TORCH_SCHEMA
    ") -> Tensor[]";
/// The tokens of all ranks on each, where these have parts of the same rows
/// (dist/gather_tokens.hpp).
///
/// `positions`: in the shape of the tokens, or none. The other arguments are the members of
/// TokenBatch. Numbers are float64 where `logp`, or without it `old_logp`, is, else float32.
///
/// Returns a list: where the own tokens stand among all, and then the arrays of tokens in the order
/// of the arguments, each empty where it was absent, and the offsets, likewise.
inline std::vector<Tensor> gather_tokens(GDPO_TORCH_RANKS_PARAMETERS, const Array& positions,
                                         GDPO_TORCH_PARAMETERS) {
  constexpr const char* function = "gdpo::dist::gather_tokens";
  const auto run = [&](auto element) {
    using S = decltype(element);
    const Ranks comm(function, ranks);
    TokenBatch<S> batch;
    TokenView<std::int64_t> places;
    gdpo::detail::exchange(function, comm, [&](gdpo::detail::Contribution&) {
      detail::throw_error(error, refused);
      batch = detail::batch_of<S>(function, GDPO_TORCH_NAMES);
      places = detail::tokens<std::int64_t>(function, "positions", positions);
    });
    const dist::GatheredTokens<S> whole = dist::gather_tokens(comm, batch, places);
    const TokenBatch<S>& all = whole.batch();
    std::vector<Tensor> out{detail::integers(whole.own_places())};
#define GDPO_X(name, ...) out.push_back(detail::tokens_of_all<S>(all.name));
    GDPO_TOKEN_ARRAYS(GDPO_X)
#undef GDPO_X
#define GDPO_X(name, type) out.push_back(detail::tokens_of_all<type>(all.name));
    GDPO_TOKEN_MARKS(GDPO_X)
#undef GDPO_X
    std::vector<index_t> begins(static_cast<std::size_t>(all.offsets ? all.offsets.size() : 0));
    for (std::size_t i = 0; i < begins.size(); ++i)
      begins[i] = all.offsets(static_cast<index_t>(i));
    out.push_back(detail::integers(begins));
    return out;
  };
  return detail::over_ranks(
      [&] { return detail::reads_doubles(logp, old_logp) ? run(double{}) : run(float{}); });
}

namespace detail {

/// Whitens advantages of tokens in place, by the moments of the valid tokens of all ranks. mask:
/// bytes in their shape, or an empty tensor for all.
inline void whiten_over(const Ranks& comm, const Renorm& renorm, const Tensor& advantages,
                        const Tensor& mask) {
  if (renorm.over == RenormOver::None) return;
  const index_t width = advantages.size(advantages.dim() - 1),
                rows = width > 0 ? advantages.numel() / width : 0;
  const View<double, 2> values = view(data_of(advantages), rows, width);
  View<const unsigned char, 2> valid{};
  if (mask.numel() > 0)
    valid = view(static_cast<const unsigned char*>(mask.const_data_ptr()), rows, width);
  const Moments moments =
      dist::all_merge(comm, masked_moments(View<const double, 2>(values), valid));
  whiten_into(View<const double, 2>(values), valid, renorm, moments, values);
}

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* token_advantages_of_ranks_schema =
    "token_advantages_of_ranks(" GDPO_TORCH_RANKS_SCHEMA
    ", str estimator, Tensor? rewards=None, Tensor? row_rewards=None, " GDPO_TORCH_RETURNS_SCHEMA
    ") -> (Tensor, Tensor)";
/// `token_advantages` of the rows of this rank, whitened over the tokens of all ranks where the
/// estimator does that. Returns both in float64.
inline std::tuple<Tensor, Tensor> token_advantages_of_ranks(GDPO_TORCH_RANKS_PARAMETERS,
                                                            const std::string& estimator,
                                                            const Array& rewards,
                                                            const Array& row_rewards,
                                                            GDPO_TORCH_RETURNS_PARAMETERS) {
  constexpr const char* function = "gdpo::token_advantages";
  return detail::over_ranks([&] {
    const Ranks comm(function, ranks);
    std::optional<std::tuple<Tensor, Tensor>> out;
    std::optional<Tensor> valid;
    Renorm renorm;
    gdpo::detail::exchange(function, comm, [&](gdpo::detail::Contribution& mine) {
      detail::throw_error(error, refused);
      auto chosen =
          runtime::detail::configured(function, estimator, &runtime::token_advantage).value;
      std::visit(
          [&](auto& e) {
            renorm = e.renorm, e.renorm = gdpo::renorm::none();
            out = detail::with_returns_as<double>(
                function, rewards, row_rewards, GDPO_TORCH_RETURNS_NAMES,
                [&](const auto& batch, const auto& advantages, const auto& returns) {
                  ReturnsWorkspace<double> workspace;
                  advantages_and_returns_into(gdpo::parallel(Threads{}), batch, e, advantages,
                                              returns, workspace);
                  valid = detail::tokens_of_all<unsigned char>(batch.mask);
                });
          },
          chosen);
      mine.settings = estimator;
    });
    detail::whiten_over(comm, renorm, std::get<0>(*out), *valid);
    return *out;
  });
}

/// What an operator of this name declares.
inline constexpr const char* outcome_advantages_of_ranks_schema =
    "outcome_advantages_of_ranks(" GDPO_TORCH_RANKS_SCHEMA
    ", str[] settings, Tensor? keys, Tensor? rewards, str estimator, " GDPO_TORCH_GROUPS_SCHEMA
    ", float[]? weights=None, float[]? gates=None, Tensor? tokens=None, Tensor? valid=None, "
    "Tensor? baseline=None, Tensor? row_weights=None, Tensor? penalty=None, "
    "Tensor? token_rewards=None, " GDPO_TORCH_RETURNS_SCHEMA ") -> (Tensor, Tensor, Tensor)";
/// `outcome_advantages` of the rows of this rank, whose rewards are compared with those of all
/// ranks: rows are gathered (gather_rows), tokens stay where they are, and of whitening the moments
/// are merged. Returns advantages and returns in float64, and the numbers of the report of all
/// rows.
inline std::tuple<Tensor, Tensor, Tensor> outcome_advantages_of_ranks(
    GDPO_TORCH_RANKS_PARAMETERS, const std::vector<std::string>& settings, const Array& keys,
    const Array& rewards, const std::string& estimator, GDPO_TORCH_GROUPS_PARAMETERS,
    const std::optional<std::vector<double>>& weights,
    const std::optional<std::vector<double>>& gates, const Array& tokens, const Array& valid,
    const Array& baseline, const Array& row_weights, const Array& penalty,
    const Array& token_rewards, GDPO_TORCH_RETURNS_PARAMETERS) {
  constexpr const char* function = "gdpo::outcome_advantages";
  const auto with_own_rows = [&](const auto& f) {
    detail::with_rows_of_rank(function, rewards, GDPO_TORCH_GROUPS_NAMES, tokens, valid, baseline,
                              row_weights, penalty, keys, f);
  };
  return detail::over_ranks([&]() -> std::tuple<Tensor, Tensor, Tensor> {
    const Ranks comm(function, ranks);
    std::vector<index_t> row_keys;
    std::optional<runtime::OutcomeAdvantage> chosen;
    gdpo::detail::exchange(function, comm, [&](gdpo::detail::Contribution& mine) {
      detail::throw_error(error, refused);
      detail::check_advantages(function, GDPO_TORCH_GROUPS_NAMES, weights);
      chosen = runtime::detail::configured(function, estimator, &runtime::outcome_advantage).value;
      with_own_rows([](const auto&) {});
      if (keys) row_keys = detail::indices(function, "keys", *keys);
      mine.settings = detail::joined(settings);
    });
    std::vector<double> of_rows;
    GroupReport report;
    std::visit(
        [&](auto& e) {
          if (weights) e.rows.weights = *weights;
          if (gates) e.rows.gates = detail::gates_of(*gates);
          with_own_rows([&](const auto& batch) {
            const auto all = detail::gathered_rows(comm, batch, row_keys, keys.has_value());
            std::vector<double> a(static_cast<std::size_t>(all.rows()));
            Workspace workspace;
            advantages_into(gdpo::parallel(Threads{}), detail::of_operators(all.batch()), e.rows,
                            view(a), workspace, &report);
            of_rows = all.own(a);
          });
        },
        *chosen);
    std::optional<std::tuple<Tensor, Tensor>> out;
    std::optional<Tensor> used;
    Renorm renorm;
    gdpo::detail::exchange(function, comm, [&](gdpo::detail::Contribution&) {
      std::visit(
          [&](auto& e) {
            renorm = e.tokens.renorm, e.tokens.renorm = gdpo::renorm::none();
            out = detail::with_returns_as<double>(
                function, token_rewards, Array{}, GDPO_TORCH_RETURNS_NAMES,
                [&](const auto& batch, const auto& advantages, const auto& returns) {
                  const View<double, 2> own =
                      view(of_rows.data(), static_cast<index_t>(of_rows.size()), 1);
                  gdpo::detail::check_outcome(function, RewardBatch<double, GroupsOf>{own, {1}},
                                              batch, e, advantages, returns);
                  const auto bound =
                      gdpo::detail::with_outcomes(batch, e.placement, view(of_rows), view(of_rows));
                  ReturnsWorkspace<double> workspace;
                  advantages_and_returns_into(gdpo::parallel(Threads{}), bound, e.tokens,
                                              advantages, returns, workspace);
                  used = detail::tokens_of_all<unsigned char>(batch.mask);
                });
          },
          *chosen);
    });
    detail::whiten_over(comm, renorm, std::get<0>(*out), *used);
    return {std::get<0>(*out), std::get<1>(*out), detail::numbers_of(report)};
  });
}

namespace detail {

/// The steps that are open, by their numbers.
class OpenSteps {
 public:
  /// A step and the ranks that it refers to.
  struct Entry {
    explicit Entry(Ranks communicator) : ranks(communicator) {}
    Ranks ranks;
    std::optional<update::Step<Ranks>> step;
  };
  static std::int64_t open(std::unique_ptr<Entry> entry) {
    const std::lock_guard<std::mutex> lock(mutex());
    static std::int64_t last = 0;
    entries()[++last] = std::move(entry);
    return last;
  }
  static update::Step<Ranks>& at(const char* function, std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex());
    const auto found = entries().find(number);
    if (found == entries().end())
      contract::fail(function, "step", "one that has been closed", "an open one");
    return *found->second->step;
  }
  static void close(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex());
    entries().erase(number);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::map<std::int64_t, std::unique_ptr<Entry>>& entries() {
    static std::map<std::int64_t, std::unique_ptr<Entry>> all;
    return all;
  }
};

}  // namespace detail

/// What an operator of this name declares.
inline constexpr const char* step_open_schema =
    "step_open(" GDPO_TORCH_RANKS_SCHEMA ", Tensor? counts) -> (int, Tensor)";
/// Begins an optimizer step (update/step.hpp). `counts`: (micro-batches, 4) float64, what `count`
/// returned for each of this rank. Returns the number of the step, for the operators below, and its
/// counts over all micro-batches and ranks. `step_close` frees it.
inline std::tuple<std::int64_t, Tensor> step_open(GDPO_TORCH_RANKS_PARAMETERS,
                                                  const Array& counts) {
  constexpr const char* function = "gdpo::update::Step";
  return detail::over_ranks([&]() -> std::tuple<std::int64_t, Tensor> {
    auto entry = std::make_unique<detail::OpenSteps::Entry>(Ranks(function, ranks));
    // The number of micro-batches is looked at before the counts are; a rank that has thrown has
    // one, for its error to be told.
    const auto micro_batches =
        static_cast<index_t>(error.empty() && counts && counts->dim() == 2 ? counts->size(0) : 1);
    entry->step.emplace(entry->ranks, micro_batches, [&](index_t k) {
      detail::throw_error(error, refused);
      if (!counts) contract::fail(function, "counts", "none", "(micro-batches, 4) float64");
      const double* numbers =
          detail::doubles_in(function, "counts", *counts, 2, 4, "(micro-batches, 4) float64");
      Normalizer n;
      const double* of_batch = numbers + 4 * k;
      n.tokens = of_batch[0], n.rows = of_batch[1], n.non_empty_rows = of_batch[2];
      n.given = of_batch[3];
      return n;
    });
    Tensor of_step = detail::counts_tensor(entry->step->normalizer());
    return {detail::OpenSteps::open(std::move(entry)), of_step};
  });
}

/// What an operator of this name declares.
inline constexpr const char* step_given_schema = "step_given(int step, float given) -> Tensor";
/// Step::set_given. Returns the counts of the step with it.
inline Tensor step_given(std::int64_t step, double given) {
  update::Step<Ranks>& open = detail::OpenSteps::at("gdpo::update::Step::set_given", step);
  open.set_given(given);
  return detail::counts_tensor(open.normalizer());
}

/// What an operator of this name declares.
inline constexpr const char* step_add_schema =
    "step_add(int step, int k, Tensor result, Tensor? report) -> ()";
/// Step::add of what `policy_loss` returned for micro-batch k, and of a report of `advantages`.
inline void step_add(std::int64_t step, std::int64_t k, const Tensor& result, const Array& report) {
  constexpr const char* function = "gdpo::update::Step::add";
  LossResult of_batch;
  detail::read_numbers(function, "result", result, of_batch);
  detail::OpenSteps::at(function, step)
      .add(static_cast<index_t>(k), of_batch,
           report ? detail::report_from(function, "report", *report) : GroupReport{});
}

/// What an operator of this name declares.
inline constexpr const char* step_finish_schema =
    "step_finish(int step, str error, bool refused) -> (Tensor, Tensor)";
/// Step::finish. `error` is what the work of a micro-batch has thrown on this rank; all ranks throw
/// it. Returns the numbers of the result over all micro-batches and ranks, and those of the report,
/// none where no report was added.
inline std::tuple<Tensor, Tensor> step_finish(std::int64_t step, const std::string& error,
                                              bool refused) {
  return detail::over_ranks([&]() -> std::tuple<Tensor, Tensor> {
    update::Step<Ranks>& open = detail::OpenSteps::at("gdpo::update::Step::finish", step);
    try {
      detail::throw_error(error, refused);
    } catch (...) {
      open.keep(std::current_exception());
    }
    const LossResult result = open.finish();
    const GroupReport& report = open.report();
    return {detail::numbers_of(result),
            report.rewards.empty() ? detail::doubles({0}) : detail::numbers_of(report)};
  });
}

/// What an operator of this name declares.
inline constexpr const char* step_close_schema = "step_close(int step) -> ()";
/// Frees a step; one that is closed already is left alone.
inline void step_close(std::int64_t step) { detail::OpenSteps::close(step); }

}  // namespace torch_stable
GDPO_END_NAMESPACE
