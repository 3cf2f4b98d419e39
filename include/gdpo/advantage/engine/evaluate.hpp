#pragma once
// Runs an estimator on the host up to the combined values: memory, units of work, and the
// statistics over the batch that some policies read.
#include <gdpo/advantage/engine/first_error.hpp>
#include <gdpo/advantage/engine/one_group.hpp>
#include <gdpo/advantage/engine/reward_parts.hpp>
#include <gdpo/advantage/shared/group_spreads.hpp>
#include <gdpo/core/exec.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Makes room for the values of a column over the batch, and for what its groups add up to.
GDPO_COLD inline void reserve_columns(EstimatorScratch& work, std::size_t rows,
                                      std::size_t groups) {
  work.raw.reserve((std::max)(rows, groups));
  work.centered.reserve(rows);
  work.group_squares.resize(groups);
  work.group_sizes.resize(groups);
}

/// One call of advantages_into up to the combined values. It fills row_sums and row_state of the
/// scratch.
template <class T, class Groups, class Baseline, class Scale, class Combine>
class Evaluation {
 public:
  /// The rewards are summed before they are standardized.
  static constexpr bool sums_first = std::is_same_v<Combine, combine::SumThenNormalize>;
  /// All members of a group have one baseline and one multiplier.
  static constexpr bool one_factor = once_a_group_v<Baseline, Scale>;

 private:
  using Call = GroupCall<T, Groups, Baseline, Scale, sums_first>;
  using Worker = OneGroup<Call>;
  using Order = typename Groups::Order;

 public:
  using Reader = LaneReader<T, Groups, sums_first>;
  /// Whether the combined values of a group sum to 0, except in groups with a raw singleton.
  static constexpr bool zero_sum = Worker::zero_sum;

  template <class Exec, class Estimator>
  Evaluation(const char* function, const Exec& exec, const RewardBatch<T, Groups>& batch,
             const Estimator& estimator, EstimatorScratch& work, GroupReport* report)
      : reader_(function, batch, estimator, work),
        units_(batch),
        workers_(
            workers_for(exec, units_.count(), batch.rewards.extent[0] * batch.rewards.extent[1])),
        reads_batch_(BatchReaders::of(estimator.baseline, estimator.scale)),
        call_(function, batch, estimator, reader_, work) {
    call_.report = report;
    call_.lanes = !std::is_same_v<Exec, Seq>;
    check_fields(function, "baseline", estimator.baseline);
    check_fields(function, "scale", estimator.scale);
    const std::size_t rows = as_size(batch.rewards.extent[0]);
    work.first_stage = {};
    prepare_scratch();
    work.batch_stats.assign(as_size(call_.columns), BatchStat{});
    work.row_sums.resize(rows);
    work.row_weights.resize(rows);
    if (reads_batch_.any || report) reserve_columns(work, rows, as_size(units_.groups));
    work.row_state.assign(rows, static_cast<unsigned char>(RowState::Counted));
    if (report) prepare_report(*report, work, report_memory());
  }

  template <class Exec>
  void operator()(const Exec& exec) {
    for (index_t c = 0; reads_batch_.any && c < call_.columns; ++c) read_batch(c);
    const auto combine = [this](index_t worker, index_t unit) {
      Worker(call_, call_.work.workers[as_size(worker)])
          .combine(units_.begin(unit), units_.end(unit), call_.lanes && !reads_batch_.any);
    };
    if constexpr (!has_one_worker_v<Exec>) {
      if (workers_ > 1) {
        FirstError error;
        for_each_unit(exec, workers_, units_.count(), [&](index_t worker, index_t unit) {
          error.guard(unit, [&] { combine(worker, unit); });
        });
        error.rethrow();
        return describe_values();
      }
    }
    for (index_t unit = 0; unit < units_.count(); ++unit) combine(0, unit);
    describe_values();
  }

  /// Combines group g once more, by the general path, and shows each of its terms.
  void observe(index_t g, TermObserver observer) {
    Worker(call_, call_.work.workers[0], observer).combine_group(g);
  }

  const Reader& reader() const { return reader_; }
  const GroupUnits& units() const { return units_; }
  index_t workers() const { return workers_; }
  index_t columns() const { return call_.columns; }
  bool lanes() const { return call_.lanes; }
  ReportMemory report_memory() const {
    return {units_.groups, call_.columns, call_.batch.rewards.extent[1],
            units_.longest(call_.batch.groups)};
  }

 private:
  void describe_values() {
    const bool raw = any_worker([](const GroupScratch& work) { return work.cases.raw_singleton; });
    call_.work.combined.zero_sum = zero_sum && !raw;
    call_.work.combined.every_row =
        !any_worker([](const GroupScratch& work) { return work.cases.uncounted_row; });
  }
  template <class Test>
  bool any_worker(const Test& test) const {
    bool any = false;
    for (index_t worker = 0; worker < workers_; ++worker)
      any = any || test(call_.work.workers[as_size(worker)]);
    return any;
  }

  void prepare_scratch() {
    const std::size_t members = as_size(units_.longest(call_.batch.groups));
    std::vector<GroupScratch>& workers = call_.work.workers;
    if (workers.size() < as_size(workers_)) workers = std::vector<GroupScratch>(as_size(workers_));
    for (GroupScratch& work : workers) work.cases = {};
    for (index_t worker = 0; worker < workers_; ++worker) {
      GroupScratch& work = workers[as_size(worker)];
      for (auto* v : {&work.column, &work.scores, &work.magnitudes, &work.values})
        v->resize(members);
      for (std::size_t j = 0; j < reward_column_count; ++j) {
        const auto& column = reward_columns<RewardBatch<T, Groups>>[j];
        if (column.of_members && call_.batch.*column.of_batch) work.columns[j].resize(members);
      }
      if constexpr (need_scratch_v<Baseline, Scale>) work.policies.resize(members);
      work.terms.resize(members * 8);
      work.used.assign(members, 1);
      work.present.resize(members);
      LanePacks<T, Groups, sums_first>::reserve(work, members, as_size(units_.size));
    }
  }

  /// Fills in the statistics of column c over the batch: those of all used values, and if the
  /// scale reads the batch, those of the same values after the baseline and inside the groups.
  void read_batch(index_t c) {
    EstimatorScratch& work = call_.work;
    BatchStat& batch = work.batch_stats[as_size(c)];
    Worker worker(call_, work.workers[0]);
    work.raw.clear();
    for (index_t g = 0; g < units_.groups; ++g) {
      worker.visit_used(g, c, [&](const MemberArgs& args, auto) {
        work.raw.push_back(args.value);
        if (args.value != 0) ++batch.nonzero;
      });
    }
    batch.used = static_cast<index_t>(work.raw.size());
    batch.raw = moments_of(Order{}, work.raw.data(), nullptr, batch.used);
    if (!reads_batch_.scale) return;
    work.centered.clear();
    for (index_t g = 0; g < units_.groups; ++g) {
      worker.visit_used(g, c, [&](const MemberArgs& args, auto rule) {
        work.centered.push_back(rule == Rule::Zero ? 0.0 : worker.centered(rule, args));
      });
      work.group_squares[as_size(g)] = squares_of(worker.stat());
      work.group_sizes[as_size(g)] = worker.stat().n;
    }
    batch.centered = moments_of(Order{}, work.centered.data(), nullptr, batch.used);
    batch.within =
        spreads_of(Order{}, work.group_squares.data(), work.group_sizes.data(), units_.groups);
  }

  Reader reader_;
  GroupUnits units_;
  index_t workers_;
  BatchReaders reads_batch_;
  Call call_;
};

}  // namespace detail
GDPO_END_NAMESPACE
