#pragma once
// Step: collects the losses of micro-batches and ranks until the optimizer steps.
#include <algorithm>
#include <exception>
#include <gdpo/dist/merge.hpp>
#include <optional>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// What a rank sends at the end of a step.
struct StepRecord {
  LossResult result{};
  GroupReport report{};
  double given = 0;  // Normalizer::given
};
template <>
struct Serializer<StepRecord> {
  static void put(Contribution& message, const StepRecord& x) {
    Serializer<LossResult>::put(message, x.result);
    Serializer<GroupReport>::put(message, x.report);
    message.put(&x.given, 1);
  }
  static StepRecord get(RecordReader& reader) {
    StepRecord x;
    x.result = Serializer<LossResult>::get(reader);
    x.report = Serializer<GroupReport>::get(reader);
    x.given = reader.get<double>();
    return x;
  }
};
/// The sum of one member of the records of all ranks, as all_merge() makes it.
template <class X>
X merged_member(const char* function, const std::vector<StepRecord>& ranks, X StepRecord::*member) {
  std::vector<X> parts;
  for (const StepRecord& rank : ranks) parts.push_back(rank.*member);
  check_records(function, parts);
  return sum_in_rank_order(std::move(parts));
}

}  // namespace detail
namespace update {

/// One optimizer step of several micro-batches and ranks: its counts before the first loss, and the
/// sum of what the loss calls return.
///
/// A loss is divided by the counts of the whole step, which have to be known before the first
/// backward. Losses and gradients of the micro-batches then only have to be added. This class makes
/// the counts, and refuses a micro-batch that is missing, comes twice, was divided by other counts
/// or has other counts than the one that was counted. Each of these would give a wrong gradient
/// without an error.
///
///     auto step = gdpo::update::Step(comm, micro_batches,
///                                    [&](gdpo::index_t k) { return gdpo::count(batch(k)); });
///     for (gdpo::index_t k = 0; k < micro_batches; ++k) {
///       step.add(k, [&] {  // forward, loss, backward
///         return loss(batch(k), step.normalizer(), gradient(k));
///       });
///     }
///     const gdpo::LossResult total = step.finish();  // of all micro-batches and ranks
///
/// Nothing depends on the order in which the micro-batches are added. finish() merges those of a
/// rank in the order of their numbers, and then the ranks as dist::all_merge() does. So all ranks
/// have the same bits, and one micro-batch on one rank has its own. Against another split of the
/// same rows, counts and ranges are exact, and sums agree within 1e-12 relative in double, by the
/// rounding of additions in another order.
///
/// Over several ranks, the constructor and finish() are collectives: all ranks call them, those
/// without rows as well, and what one rank throws all of them throw. The gradients stay with the
/// caller: their sum over micro-batches and ranks is the gradient of the step, and
/// dist::grad_scale() is the factor for engines that average. An object belongs to one thread.
///
/// Comm: a communicator of the ranks that have different rows (dist/communicator.hpp); dist::Single
/// for one process. The object keeps one LossResult and one GroupReport for each micro-batch, about
/// 2 kB and the lists of the report.
template <class Comm = dist::Single>
class Step {
  static_assert(detail::needs_communicator<Comm>());

 public:
  /// Counts the step: calls count(k), which returns a Normalizer, for k = 0 to micro_batches - 1,
  /// and adds up the counts of all ranks.
  ///
  /// comm: must outlive the object. micro_batches: those of this rank, at least 0; ranks may have
  /// different numbers of them. count: usually gdpo::count of the batch, after prepare(); it must
  /// not call functions of dist/.
  ///
  /// Where the number of micro-batches is negative or count() throws on some rank, all ranks throw,
  /// as in dist::agree(): invalid_input as such, another exception as std::runtime_error.
  template <class Count>
  Step(const Comm& comm, index_t micro_batches, const Count& count) : comm_(&comm) {
    static_assert(std::is_invocable_r_v<Normalizer, const Count&, index_t>,
                  "the last argument of Step is a function: the number of a micro-batch to its "
                  "gdpo::Normalizer");
    normalizer_ = detail::merged<Normalizer>("gdpo::update::Step", comm,
                                             [&] { return counted(micro_batches, count); });
  }
  Step(const Step&) = delete;             ///< An object is one step, which happens once.
  Step& operator=(const Step&) = delete;  ///< Not assignable, for the same reason.
  /// Deleted: the communicator must outlive the object.
  template <class Count>
  Step(const Comm&& comm, index_t micro_batches, const Count& count) = delete;
  /// The same for one process.
  template <class Count, class C = Comm, std::enable_if_t<std::is_same_v<C, dist::Single>, int> = 0>
  Step(index_t micro_batches, const Count& count) : Step(here(), micro_batches, count) {}

  /// The counts of all micro-batches and ranks: the argument of every loss call of the step.
  const Normalizer& normalizer() const { return normalizer_; }

  /// Sets Normalizer::given, the count of the caller's own that aggregates with Over::Given divide
  /// by, such as a global batch size. Without this call it is the sum of what
  /// count() returned there, most often 0.
  ///
  /// given: finite, above 0, the same on all ranks; finish() refuses different ones. Throws
  /// invalid_input after the first add(), whose loss was divided without it.
  void set_given(double given) {
    constexpr const char* function = "gdpo::update::Step::set_given";
    if (!(given > 0) || math::not_finite(given))
      contract::fail(function, "given", contract::text(given), "a finite count above 0");
    if (std::any_of(results_.begin(), results_.end(), [](const auto& r) { return r.has_value(); }))
      contract::fail(function, "call", "one after add()", "a call before the first add()");
    normalizer_.given = given;
  }

  /// Adds the result of micro-batch k and, where advantages were computed micro-batch by
  /// micro-batch, the report of its groups.
  ///
  /// result: what a loss call returned with normalizer(). Where the micro-batch has no rows it may
  /// be LossResult{}, or add() may be left out. report: of groups that are whole in this
  /// micro-batch. The report of rows that dist::gather_rows() has gathered is that of all ranks
  /// already: do not add it.
  ///
  /// Throws invalid_input, and leaves the step as it was, for a k out of range or added before, for
  /// a result that was divided by other counts or whose tokens, rows or non-empty rows are not
  /// those that were counted for k, and after finish(). It throws on this rank alone, so that the
  /// others would wait in finish(): over several ranks use the form below.
  void add(index_t k, const LossResult& result, const GroupReport& report = {}) {
    check_number(k);
    const Normalizer& counts = counts_[place(k)];
    const LossMetrics& m = result.metrics;
    Normalizer given;
    given.tokens = static_cast<double>(m.advantage.n), given.rows = static_cast<double>(m.rows);
    given.non_empty_rows = static_cast<double>(m.rows - m.empty_rows);
    given.given = counts.given;
    if (!detail::same_counts(given, counts)) {
      const auto words = [](const Normalizer& n) {
        return std::string(contract::text(n.tokens) + " tokens, " + contract::text(n.rows) +
                           " rows, " + contract::text(n.non_empty_rows) + " non-empty rows");
      };
      contract::fail(add_function, "result", words(given),
                     words(counts) + ", as counted for micro-batch " + contract::text(k));
    }
    if (m.rows > 0 && !detail::same_counts(result.normalizer, normalizer_)) {
      contract::fail(add_function, "result.normalizer", detail::counts_in_words(result.normalizer),
                     detail::counts_in_words(normalizer_) + ", the normalizer() of the step");
    }
    reports_[place(k)] = report;
    results_[place(k)] = result;
  }

  /// Adds the result that work() returns, as above. `report` is read after work().
  ///
  /// What work() throws, and what add() refuses, is kept, and all ranks throw it in finish(): no
  /// rank leaves the loop over its micro-batches, so none waits for it there. For a k that is
  /// refused work() is not called; after another error the work of further micro-batches is. It
  /// arrives as dist::agree() says, and is lost if the caller never comes to finish(). A
  /// communication_error is thrown at once. Without exceptions (-fno-exceptions) nothing is kept.
  ///
  /// Messages between ranks that work() itself waits for, such as the all-reduce of an engine in
  /// the last backward, do not come to finish() first. Where an engine has those, call the loss
  /// through dist::agree() before backward.
  template <class Work, std::enable_if_t<std::is_invocable_r_v<LossResult, Work&&>, int> = 0>
  void add(index_t k, Work&& work, const GroupReport& report = {}) {
    const auto call = [&] {
      check_number(k);
      const LossResult result = std::forward<Work>(work)();
      add(k, result, report);
    };
#if defined(__cpp_exceptions)
    try {
      call();
    } catch (const communication_error&) {
      throw;
    } catch (...) {
      keep(std::current_exception());
    }
#else
    call();
#endif
  }

  /// Keeps an error of the caller's own, which all ranks throw in finish(), as if work() of the
  /// form above had thrown it. The first error that is kept counts.
  void keep(std::exception_ptr error) {
    if (!failure_) failure_ = std::move(error);
  }

  /// The sum over all micro-batches and ranks, with the same bits on every rank. Its normalizer is
  /// that of the step.
  ///
  /// Errors, which all ranks throw: what add() has kept, micro-batches with rows that were not
  /// added, ranks with different `given` (set_given()), reports of different rewards, and a second
  /// call. After another error than a kept one, finish() may be called again. Messages: 64 bytes
  /// and then the result and the report from each rank.
  LossResult finish() {
    constexpr const char* function = "gdpo::update::Step::finish";
    using detail::StepRecord;
    const std::vector<StepRecord> ranks = detail::gathered<StepRecord>(function, *comm_, [&] {
      check_complete(function);
      return StepRecord{merged_results(), merged_reports(), normalizer_.given};
    });
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      if (ranks[r].given != ranks[0].given) {
        detail::fail_between(function, "given", std::string(contract::text(ranks[0].given)), 0,
                             std::string(contract::text(ranks[r].given)), r,
                             "the same set_given() on all ranks");
      }
    }
    LossResult total = detail::merged_member(function, ranks, &StepRecord::result);
    report_ = detail::merged_member(function, ranks, &StepRecord::report);
    finished_ = true;
    total.normalizer = normalizer_;
    return total;
  }

  /// The reports of all micro-batches and ranks together, as if the groups of micro-batch 0 of rank
  /// 0 came first; empty where none was added. Throws invalid_input before finish().
  const GroupReport& report() const {
    if (!finished_)
      contract::fail("gdpo::update::Step::report", "call", "one before finish()",
                     "a call after finish(), which merges the reports");
    return report_;
  }

 private:
  static constexpr const char* add_function = "gdpo::update::Step::add";

  static const Comm& here() {
    static constexpr Comm single{};
    return single;
  }
  static std::size_t place(index_t k) { return static_cast<std::size_t>(k); }
  index_t micro_batches() const { return static_cast<index_t>(counts_.size()); }

  /// Counts the micro-batches of this rank.
  template <class Count>
  Normalizer counted(index_t micro_batches, const Count& count) {
    if (micro_batches < 0) {
      contract::fail("gdpo::update::Step", "micro_batches", contract::text(micro_batches),
                     "a number of micro-batches of at least 0");
    }
    Normalizer sum;
    for (index_t k = 0; k < micro_batches; ++k) {
      counts_.push_back(count(k));
      sum += counts_.back();
    }
    results_.resize(counts_.size());
    reports_.resize(counts_.size());
    return sum;
  }

  /// Refuses the number of a micro-batch that cannot be added.
  void check_number(index_t k) const {
    if (finished_) {
      contract::fail(add_function, "call", "one after finish()",
                     "every micro-batch before finish(), and a Step for each optimizer step");
    }
    if (k < 0 || k >= micro_batches()) {
      contract::fail(add_function, "k", contract::text(k),
                     micro_batches() == 0
                         ? contract::Text("none: this rank has no micro-batches")
                         : "a micro-batch from 0 to " + contract::text(micro_batches() - 1));
    }
    if (results_[place(k)])
      contract::fail(add_function, "k", contract::text(k) + " again", "each micro-batch once");
  }

  /// Throws what add() has kept, and refuses a step that is not complete.
  void check_complete(const char* function) const {
#if defined(__cpp_exceptions)
    if (failure_) std::rethrow_exception(failure_);
#endif
    if (finished_)
      contract::fail(function, "call", "a second one", "one call, and a Step for each step");
    std::string missing;
    index_t left_out = 0;
    for (index_t k = 0; k < micro_batches(); ++k) {
      if (results_[place(k)] || counts_[place(k)].rows == 0) continue;
      if (++left_out <= 8) missing += (left_out > 1 ? ", " : "") + std::to_string(k);
    }
    if (left_out > 0) {
      contract::fail(function, "micro-batches",
                     "no result of number " + missing + (left_out > 8 ? ", ..." : "") + " (" +
                         std::to_string(left_out) + " of " + std::to_string(micro_batches()) +
                         " missing)",
                     "every micro-batch that has rows");
    }
  }
  /// The results of this rank, in the order of the micro-batches.
  LossResult merged_results() const {
    LossResult sum;
    for (const std::optional<LossResult>& result : results_)
      if (result) sum = merge(sum, *result);
    return sum;
  }
  GroupReport merged_reports() const {
    GroupReport sum;
    for (const GroupReport& report : reports_) sum = merge(sum, report);
    return sum;
  }

  const Comm* comm_;
  Normalizer normalizer_;
  std::vector<Normalizer> counts_;
  std::vector<std::optional<LossResult>> results_;
  std::vector<GroupReport> reports_;
  GroupReport report_;
  std::exception_ptr failure_;
  bool finished_ = false;
};

}  // namespace update
GDPO_END_NAMESPACE
