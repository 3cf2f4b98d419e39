#pragma once
// plan: which rows go into which optimizer step, rank and micro-batch.
#include <gdpo/core/until_moved.hpp>
#include <gdpo/group/groups_of.hpp>
#include <gdpo/update/engine/plan_numbers.hpp>

GDPO_BEGIN_NAMESPACE
namespace update {

/// Which rows go into which optimizer step, rank and micro-batch, in which order; made by plan().
///
/// Steps are counted over all epochs: step s belongs to epoch s / mini_batches(). Every rank has
/// the same number of micro-batches in a step, so that collective calls match; some are empty where
/// there are fewer rows than micro-batches. No step is without rows. The results of rows() and
/// dropped() refer to the memory of this object. An index out of range throws `invalid_input`. A
/// plan that has been moved from has no steps, epochs and ranks.
class Plan {
 public:
  /// The number of optimizer steps of all epochs. It is 0 for a batch without rows.
  index_t steps() const { return epochs_ * numbers_.value.mini_batches; }
  /// How many times each row is used.
  index_t epochs() const { return epochs_; }
  /// The number of optimizer steps of an epoch. It is 0 for a batch without rows.
  index_t mini_batches() const { return numbers_.value.mini_batches; }
  /// The number of micro-batches of each rank in a step, at least 1.
  index_t accumulation() const { return numbers_.value.accumulation; }
  /// The number of ranks.
  index_t ranks() const { return ranks_; }
  /// The largest number of rows that a micro-batch of the plan has; 0 without rows.
  index_t largest_micro_batch() const { return largest_micro_batch_; }

  /// All rows of a step, those of rank 0 first, and of a rank those of its micro-batch 0 first.
  View<const index_t, 1> rows(index_t step) const& {
    check("gdpo::update::Plan::rows", "step", step, steps(), "steps");
    const Units u = units_of(step);
    return row_span(begin_[as_size(u.first)], begin_[as_size(u.last)]);
  }
  View<const index_t, 1> rows(index_t step) const&& = delete;  ///< Deleted: refers to freed memory.
  /// The rows of one micro-batch of a rank, which may be empty.
  View<const index_t, 1> rows(index_t step, index_t rank, index_t micro_batch) const& {
    constexpr const char* function = "gdpo::update::Plan::rows";
    check(function, "step", step, steps(), "steps");
    check(function, "rank", rank, ranks_, "ranks");
    check(function, "micro_batch", micro_batch, numbers_.value.accumulation,
          "micro-batches of a rank");
    return cell(step, rank, micro_batch);
  }
  View<const index_t, 1> rows(index_t step, index_t rank,
                              index_t micro_batch) const&& = delete;  ///< Deleted, as above.
  /// The rows that an epoch leaves out. There are none except under Remainder::Drop.
  View<const index_t, 1> dropped(index_t epoch) const& {
    check("gdpo::update::Plan::dropped", "epoch", epoch, epochs_, "epochs");
    const index_t order = orders_ > 1 ? epoch : 0;
    return row_span(begin_[as_size(order * (units_ + 1) + first_unit(numbers_.value.mini_batches))],
                    begin_[as_size(order * (units_ + 1) + units_)]);
  }
  View<const index_t, 1> dropped(index_t epoch) const&& = delete;  ///< Deleted, as above.

  /// Makes the plan of checked settings; plan() calls it.
  Plan(const char* function, const gdpo::detail::PlanUnits& units, const PlanSettings& s)
      : epochs_(s.epochs),
        ranks_(s.ranks),
        units_(units.count()),
        orders_(s.shuffle == Shuffle::EveryEpoch && units_ > 0 ? s.epochs : 1),
        remainder_(s.remainder),
        whole_(s.whole),
        numbers_(gdpo::detail::plan_numbers(function, units, s)) {
    rows_.reserve(as_size(orders_) * units.rows.size());
    begin_.reserve(as_size(orders_ * (units_ + 1)));
    std::mt19937_64 random(s.seed);
    std::vector<index_t> order(as_size(units_));
    for (index_t k = 0; k < orders_; ++k) {
      std::iota(order.begin(), order.end(), index_t{0});
      if (s.shuffle != Shuffle::Never) {
        for (index_t i = units_ - 1; i > 0; --i)
          std::swap(order[as_size(i)], order[as_size(gdpo::detail::plan_draw(random, i + 1))]);
      }
      for (const index_t u : order) {
        begin_.push_back(static_cast<index_t>(rows_.size()));
        rows_.insert(rows_.end(), units.rows.begin() + units.begin[as_size(u)],
                     units.rows.begin() + units.begin[as_size(u) + 1]);
      }
      begin_.push_back(static_cast<index_t>(rows_.size()));
    }
    find_largest_micro_batch();
  }

 private:
  struct Units {
    index_t first, last;  // where they begin and end in begin_
  };
  static std::size_t as_size(index_t i) { return static_cast<std::size_t>(i); }
  static void check(const char* function, const char* name, index_t i, index_t count,
                    const char* things) {
    if (i < 0 || i >= count) {
      contract::fail(function, name, contract::text(i),
                     "at least 0 and below " + contract::text(count) + ", the number of " + things);
    }
  }
  View<const index_t, 1> row_span(index_t first, index_t last) const {
    return gdpo::view(rows_.data() + first, last - first);
  }
  /// Where mini-batch i begins among the units of its epoch.
  index_t first_unit(index_t i) const {
    if (numbers_.value.mini_batches == 0) return 0;
    if (remainder_ == Remainder::Spread)
      return gdpo::detail::plan_cut(units_, numbers_.value.mini_batches, i);
    return (std::min)(i * numbers_.value.per_step, units_);
  }
  Units units_of(index_t step) const {
    const index_t epoch = step / numbers_.value.mini_batches,
                  i = step % numbers_.value.mini_batches,
                  order_begin = orders_ > 1 ? epoch * (units_ + 1) : 0;
    return {order_begin + first_unit(i), order_begin + first_unit(i + 1)};
  }
  /// The rows of a micro-batch: pieces are cut over ranks, those of a rank over its micro-batches.
  View<const index_t, 1> cell(index_t step, index_t rank, index_t micro_batch) const {
    using gdpo::detail::plan_cut;
    const Units u = units_of(step);
    const bool groups = whole_ == Whole::InMicroBatch;  // the pieces
    const index_t first = begin_[as_size(u.first)], last = begin_[as_size(u.last)],
                  pieces = groups ? u.last - u.first : last - first,
                  rank_begin = plan_cut(pieces, ranks_, rank),
                  rank_pieces = plan_cut(pieces, ranks_, rank + 1) - rank_begin,
                  begin =
                      rank_begin + plan_cut(rank_pieces, numbers_.value.accumulation, micro_batch),
                  end = rank_begin +
                        plan_cut(rank_pieces, numbers_.value.accumulation, micro_batch + 1);
    return groups ? row_span(begin_[as_size(u.first + begin)], begin_[as_size(u.first + end)])
                  : row_span(first + begin, first + end);
  }
  void find_largest_micro_batch() {
    // Ranks and their micro-batches are filled from the first on: of pieces that are rows the first
    // micro-batch of a step has the most. Where pieces are groups, the loops end where the empty
    // ones begin, and orders beyond the first differ only in groups of several lengths.
    const bool groups = whole_ == Whole::InMicroBatch;
    for (index_t step = 0; step < orders_ * numbers_.value.mini_batches; ++step) {
      for (index_t r = 0; r < (groups ? ranks_.value : 1) && cell(step, r, 0).extent[0] > 0; ++r) {
        for (index_t k = 0; k < (groups ? numbers_.value.accumulation : 1); ++k) {
          const index_t size = cell(step, r, k).extent[0];
          if (size == 0) break;
          largest_micro_batch_ = (std::max)(largest_micro_batch_.value, size);
        }
      }
    }
  }

  template <class T>
  using UntilMoved = gdpo::detail::UntilMoved<T>;

  UntilMoved<index_t> epochs_, ranks_, largest_micro_batch_;
  index_t units_, orders_;
  Remainder remainder_;
  Whole whole_;
  UntilMoved<gdpo::detail::PlanNumbers> numbers_;
  std::vector<index_t> rows_;   // (orders, N) the rows in the order of the steps, then dropped ones
  std::vector<index_t> begin_;  // (orders, units + 1) where each unit begins in rows_
};

/// Cuts the rows 0 .. rows - 1 of a generated batch into optimizer steps, ranks and micro-batches.
///
///     gdpo::update::PlanSettings s;
///     s.mini_batches = 0, s.accumulation = 8, s.micro_batch = 4, s.ranks = 8;
///     const gdpo::update::Plan plan = gdpo::update::plan(512, s);  // 2 steps of 256 rows
///     for (index_t step = 0; step < plan.steps(); ++step) {
///       for (index_t k = 0; k < plan.accumulation(); ++k) backward(plan.rows(step, rank, k));
///       optimizer_step();
///     }
///
/// Each epoch uses every row once, except for dropped ones. The rows of an epoch, in their own
/// order or shuffled, are cut into mini-batches, the rows of each over the ranks, and those of a
/// rank over its micro-batches. All these cuts are contiguous. Those within a mini-batch are as
/// even as possible: its micro-batches differ by at most one row. Under Remainder::Spread so do all
/// micro-batches of the plan.
///
/// What follows, where N is the number of rows and all quotients are rounded up, or down under
/// Remainder::Drop: micro_batch is N / (mini_batches x ranks x accumulation), accumulation is
/// N / (mini_batches x ranks x micro_batch), and mini_batches is
/// N / (ranks x accumulation x micro_batch).
///
/// The plan follows from the arguments alone, on every platform and rank. Shuffle draws from one
/// std::mt19937_64(seed) by Fisher and Yates, epoch after epoch, so a plan with more epochs begins
/// with the epochs of the shorter one. Trainers that shuffle take another seed for each batch.
///
/// A batch without rows has a plan of 0 steps, whatever else would not fit. Time and memory are
/// linear in the rows, and under Shuffle::EveryEpoch in rows times epochs.
///
/// Errors: `invalid_input` for epochs or ranks below 1, for negative numbers, if mini_batches is 0
/// and one of the other two as well, for a `whole` that needs groups, and if the rows do not fit:
/// they leave a remainder under Refuse, do not fill all mini-batches under Drop, leave one without
/// rows under Keep and Spread, or contradict three given numbers. These say which numbers would do.
inline Plan plan(index_t rows, const PlanSettings& settings) {
  constexpr const char* function = "gdpo::update::plan";
  gdpo::detail::check_fields(function, "", settings);
  if (settings.whole != Whole::Rows) {
    contract::fail(function, "whole", "groups that stay whole, but no groups",
                   "Whole::Rows, or plan(rows, groups, settings)");
  }
  gdpo::detail::check_plan_rows(function, rows, settings);
  gdpo::detail::PlanUnits units;
  for (index_t i = 0; i < rows; ++i) {
    units.rows.push_back(i);
    units.end_unit();
  }
  return Plan(function, units, settings);
}

/// The same for rows with groups, which stay whole where `settings.whole` says so.
///
/// groups: groups_of, by_offsets or by_id. Whole::Rows checks them and does nothing else with them.
/// Otherwise the groups are shuffled and cut as the rows are above; without shuffling they stand in
/// the order of their numbers, which for by_id is that of the ids. The rows of a group keep their
/// order. Empty groups are skipped. Whole::InStep cuts groups over mini-batches, and the rows of a
/// mini-batch over ranks and micro-batches, as evenly as possible; Whole::InMicroBatch cuts groups
/// over all three.
///
/// Where groups have several lengths, each counts as the longest in all that follows, so that the
/// numbers do not depend on the order. Remainder::Refuse needs groups of one length, since all
/// micro-batches have the same number of rows there. Groups that do not fit the rows, or are longer
/// than what they have to stay within, throw `invalid_input`.
template <class Groups>
Plan plan(index_t rows, const Groups& groups, const PlanSettings& settings) {
  constexpr const char* function = "gdpo::update::plan";
  static_assert(gdpo::detail::is_host_grouping_v<Groups>,
                "the second argument of plan is groups_of, by_offsets or by_id");
  gdpo::detail::check_fields(function, "", settings);
  gdpo::detail::check_plan_rows(function, rows, settings);
  groups.check(function, rows);
  if (settings.whole == Whole::Rows) return plan(rows, settings);
  gdpo::detail::PlanUnits units;
  for (index_t g = 0; g < groups.count(rows); ++g) {
    for (index_t k = 0; k < groups.length(g); ++k) units.rows.push_back(groups.row(g, k));
    units.end_unit();
  }
  return Plan(function, units, settings);
}

}  // namespace update
GDPO_END_NAMESPACE
