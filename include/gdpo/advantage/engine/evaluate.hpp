#pragma once
// Runs an estimator on the host up to the combined values: memory, units of work, and the
// statistics over the batch that some policies read.
#include <gdpo/advantage/engine/batch_columns.hpp>
#include <gdpo/advantage/engine/first_error.hpp>
#include <gdpo/advantage/engine/one_group.hpp>
#include <gdpo/advantage/engine/reward_parts.hpp>
#include <gdpo/core/exec.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// One call of advantages_into up to the combined values. It fills row_sums and row_state of the
/// scratch.
template <class T, class Groups, class Baseline, class Scale>
class Evaluation {
 public:
  /// All members of a group have one baseline and one multiplier.
  static constexpr bool one_factor = once_a_group_v<Baseline, Scale>;

 private:
  using Call = GroupCall<T, Groups, Baseline, Scale>;
  using Worker = OneGroup<T, Groups, Baseline, Scale>;
  using Order = typename Groups::Order;

 public:
  using Reader = LaneReader<T, Groups>;
  /// Whether the combined values of a group sum to 0, except in groups with a raw singleton.
  static constexpr bool zero_sum = Worker::zero_sum;

  template <class Exec, class Estimator>
  Evaluation(const char* function, const Exec& exec, const RewardBatch<T, Groups>& batch,
             const Estimator& estimator, EstimatorScratch& work, GroupReport* report)
      : reader_(function, batch, reward_settings(estimator), work),
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
    work.columns.of_baseline.clear();
    work.columns.of_scale.clear();
    work.row_sums.resize(rows);
    work.row_weights.resize(rows);
    work.row_state.assign(rows, static_cast<unsigned char>(RowState::Counted));
    if (report) {
      work.raw.reserve((std::max)(rows, as_size(units_.groups)));
      work.centered.reserve(rows);
      prepare_report(*report, work, report_memory());
    }
  }

  template <class Exec>
  void operator()(const Exec& exec) {
    if (reads_batch_.any) read_batch(exec);
    const ColumnScratch& columns = call_.work.columns;
    const bool side_by_side = call_.lanes &&
                              in_lanes<Baseline>(reads_batch_.baseline, columns.of_baseline) &&
                              in_lanes<Scale>(reads_batch_.scale, columns.of_scale);
    for_each_unit(exec, [&](index_t worker, index_t unit) {
      Worker(call_, call_.work.workers[as_size(worker)])
          .combine(units_.begin(unit), units_.end(unit), side_by_side);
    });
    describe_values();
  }

  /// Combines group g once more, by the general path, and shows each of its terms.
  void observe(index_t g, TermObserver observer) {
    Worker(call_, call_.work.workers[0], observer).combine_group(g);
  }

  /// The same without the types of the policies.
  GroupTerms terms() {
    return {this, [](void* evaluation, index_t g, TermObserver observer) {
              static_cast<Evaluation*>(evaluation)->observe(g, observer);
            }};
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
      LanePacks<T, Groups>::reserve(work, members, as_size(units_.size), reader_.sums_first(),
                                    Worker::sorts);
    }
  }

  /// Calls f(worker, unit) for every unit. Of several errors it throws that of the first unit.
  template <class Exec, class F>
  void for_each_unit(const Exec& exec, const F& f) {
    if constexpr (!has_one_worker_v<Exec>) {
      if (workers_ > 1) {
        FirstError error;
        detail::for_each_unit(exec, workers_, units_.count(), [&](index_t worker, index_t unit) {
          error.guard(unit, [&] { f(worker, unit); });
        });
        return error.rethrow();
      }
    }
    for (index_t unit = 0; unit < units_.count(); ++unit) f(0, unit);
  }

  /// Whether a policy can be called in lanes. reads: it reads the batch, from which it takes these
  /// numbers. Terms that are made member by member stand in place of the values, where NaN says
  /// that one is missing, so they need finite numbers.
  template <class P>
  static bool in_lanes(bool reads, const std::vector<double>& numbers) {
    bool known = true;
    if constexpr (!once_a_group_v<Baseline, Scale>) {
      for (const double x : numbers) known = known && !math::not_finite(x);
    }
    return takes_lanes_v<P> && (!reads || (has_of_batch_v<P> && known));
  }

  /// Fills in the statistics of the columns over the batch: those of all used values, and if the
  /// scale needs them, those of the same values after the baseline and inside the groups.
  template <class Exec>
  void read_batch(const Exec& exec) {
    EstimatorScratch& work = call_.work;
    const BatchParts& parts = reads_batch_.parts;
    const BatchColumns columns(work.columns, call_.columns, units_.groups,
                               call_.batch.rewards.extent[0], parts);
    work.columns.counts.resize(as_size(units_.count() * call_.columns));
    work.columns.begins.assign(as_size(units_.groups + 1), 0);
    for (index_t g = 0, rows = 0; g < units_.groups; ++g)
      work.columns.begins[as_size(g + 1)] = rows += call_.batch.groups.length(g);
    read_columns(exec, columns);
    columns.close_gaps(units_, work.batch_stats);
    for (index_t c = 0; c < call_.columns; ++c) {
      BatchStat& batch = work.batch_stats[as_size(c)];
      if (parts.raw) batch.raw = moments(exec, columns.raw(c), batch.used);
      if (parts.nonzero) batch.nonzero = nonzero_of(columns.raw(c), batch.used);
      if (!parts.within) continue;
      const double* const squares = work.columns.squares.data() + c * units_.groups;
      const double* const sizes = work.columns.sizes.data() + c * units_.groups;
      batch.within = spreads_of(Order{}, squares, sizes, units_.groups);
    }
    if (parts.centered) {
      for_each_unit(exec, [&](index_t worker, index_t unit) { center(columns, worker, unit); });
      for (index_t c = 0; c < call_.columns; ++c) {
        BatchStat& batch = work.batch_stats[as_size(c)];
        batch.centered = moments(exec, columns.centered(c), batch.used);
      }
    }
    take_numbers(call_.baseline, reads_batch_.baseline, work.columns.of_baseline);
    take_numbers(call_.scale, reads_batch_.scale, work.columns.of_scale);
  }

  /// Reads the rewards into `columns`. Of several errors it throws that of the first column.
  template <class Exec>
  void read_columns(const Exec& exec, const BatchColumns& columns) {
    const bool refuses_one = compares_v<Baseline> && call_.singleton == Singleton::Error;
    FirstError error;
    detail::for_each_unit(exec, workers_, units_.count(), [&](index_t worker, index_t unit) {
      GroupScratch& scratch = call_.work.workers[as_size(worker)];
      error.guard(unit, [&] {
        ColumnReader<T, Groups> read(columns, call_.batch, reader_, call_.work, scratch,
                                     call_.lanes, compares_v<Baseline>, refuses_one);
        if (!read.read(unit, units_.begin(unit), units_.end(unit))) scratch.cases.refused = true;
      });
    });
    if (!error.caught() && !any_worker([](const GroupScratch& w) { return w.cases.refused; }))
      return;
    for (index_t c = 0; c < call_.columns; ++c) {
      for (index_t g = 0; g < units_.groups; ++g) Worker(call_, call_.work.workers[0]).read(g, c);
    }
    error.rethrow();
  }

  /// The moments of n numbers, in the order of the sums of the batch.
  template <class Exec>
  Moments moments(const Exec& exec, const double* x, index_t n) {
    return RowBlocks<Exec>(exec, n).moments(
        Order{}, call_.work.partial_sums,
        [&](const auto& order) { return moments_of(order, x, nullptr, n); });
  }

  /// Writes the values of a unit after the baseline.
  void center(const BatchColumns& columns, index_t worker, index_t unit) {
    constexpr bool of_batch_alone = has_of_batch_v<Baseline> && needs_no_group_v<Baseline>;
    for (index_t c = 0; c < call_.columns; ++c) {
      const double* x = columns.raw(c) + columns.count(unit, c);
      double* y = columns.centered(c) + columns.count(unit, c);
      for (index_t g = units_.begin(unit); g < units_.end(unit); ++g) {
        const GroupStat stat = columns.stat(g, c);
        if constexpr (takes_lanes_v<Baseline> && (per_group_v<Baseline> || of_batch_alone)) {
          MemberArgs args{{stat, call_.work.batch_stats[as_size(c)]}};
          const Rule rule = rule_of<Baseline>(stat, call_.singleton);
          Split<double> base = base_of(call_.baseline, rule, args, nullptr);
          for (index_t k = 0; k < stat.n; ++k) {
            if constexpr (of_batch_alone) {
              args.own = k, args.value = x[k];
              base = base_of(call_.baseline, rule, args, nullptr);
            }
            y[k] = rule == Rule::Zero ? 0.0 : detail::center(x[k], base);
          }
        } else {
          Worker(call_, call_.work.workers[as_size(worker)]).center_values(g, c, y);
        }
        x += stat.n, y += stat.n;
      }
    }
  }

  /// Writes to `lanes` what a policy takes from the batch. Nothing if it reads none.
  template <class P>
  void take_numbers(const P& policy, bool reads, std::vector<double>& lanes) {
    lanes.clear();
    if constexpr (has_of_batch_v<P> && takes_lanes_v<P>) {
      constexpr int count = numbers_in_v<P>;
      std::vector<double>& numbers = call_.work.partial_sums;
      numbers.clear();
      for (index_t c = 0; reads && c < call_.columns; ++c) {
        const auto of_column = policy.of_batch(call_.work.batch_stats[as_size(c)]);
        for (int i = 0; i < count; ++i) numbers.push_back(of_column[i]);
      }
      if (reads)
        spread_numbers(numbers.data(), count, call_.columns, lanes_of(call_.columns), lanes);
    }
  }

  Reader reader_;
  GroupUnits units_;
  index_t workers_;
  BatchReaders reads_batch_;
  Call call_;
};

}  // namespace detail
GDPO_END_NAMESPACE
