#pragma once
// The driver of losses over tokens: it checks what all of them are given, cuts the rows into units
// for any number of workers, and runs a loss on each row. The policy loss and the value loss say
// what a row computes and tallies.
#include <gdpo/core/declares.hpp>
#include <gdpo/core/exec.hpp>
#include <gdpo/tokens/check_counts.hpp>
#include <gdpo/tokens/token_span.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE

namespace detail {
template <class S, class Aggregate>
class RowDriver;

/// Scratch memory of one worker, with room for the longest row.
template <class S>
struct RowMemory {
  RowScratch<S> rows;
  std::vector<double> tokens;  ///< One number a token, where the loss needs scratch memory.
  /// The gradient of a row, where the caller's is not contiguous, or there is none and the loss
  /// needs scratch memory.
  std::vector<S> gradient;
};
}  // namespace detail

/// Scratch memory of calls of a loss over tokens. After a first call, further calls of the same
/// shape and executor allocate nothing. It serves one call at a time: threads that call at the same
/// time need one each. `Tally` is what a unit of rows adds up to.
template <class S, class Tally>
class TokenWorkspace {
  template <class T, class Aggregate>
  friend class detail::RowDriver;
  std::vector<detail::RowMemory<S>> workers;
  std::vector<Tally> units;
};

namespace detail {

/// Throws where a batch has valid tokens and `aggregate` divides by a count that is 0, or reads a
/// column group_tokens that is not right.
template <class S, class Aggregate>
void check_divisor(const char* function, const Aggregate& aggregate, const TokenBatch<S>& batch,
                   const TokenLayout& layout, const Normalizer& normalizer) {
  const bool of_groups = reads_group(aggregate);
  if (of_groups) check_group_tokens(function, batch, layout);
  const char* nothing = divides_by_nothing(aggregate, normalizer);
  if (nothing && count_rows(batch, layout).tokens > 0)
    fail_without_count(function, nothing, of_groups);
}

// A row of a loss may declare that it weighs rows anew, and that it takes several rows at a time;
// see RowDriver::run.
GDPO_DECLARED(weighs_rows);
GDPO_DECLARED(queues_rows);

/// Rows that are computed together have at most this many tokens, unless it is one row.
constexpr index_t queued_tokens = 1024;

/// A row with its weight.
template <class S>
struct WeighedRow {
  TokenRow<S> row;
  index_t tokens;  ///< Number of valid tokens.
  double weight;   ///< W_i; 0 in place of one that is not finite.
  /// False where the weight is 0: the row adds nothing to the loss, even if its sums are NaN.
  bool counts() const { return weight != 0; }
};

/// A call of a loss over tokens, whose arguments the constructor checks.
///
/// The rows are cut into units of consecutive rows, at most 128 and all of the same size but the
/// last, so the number of rows alone decides them. Workers run the units. Within a unit the rows
/// are added in their order, then the units in theirs, so the bits do not depend on the workers.
template <class S, class Aggregate>
class RowDriver {
 public:
  /// The caller has checked the loss and the shapes; `layout` and `reads` came of it.
  RowDriver(const char* function, const Aggregate& aggregate, const TokenBatch<S>& batch,
            const TokenLayout& layout, const TokenReads& reads, const Normalizer& normalizer,
            const TokenOut<S>& gradient)
      : aggregate_(aggregate),
        batch_(batch),
        normalizer_(normalizer),
        gradient_(gradient),
        layout_(layout),
        reads_(reads),
        reader_(batch, reads),
        over_(over_of(aggregate)) {
    check_step_counts(function, over_, normalizer, batch.prepared, layout_,
                      static_cast<bool>(batch.mask));
    check_written_tokens(function, "gradient", gradient, layout_);
    check_row_weights(function, batch, layout_);
    check_divisor(function, aggregate, batch, layout_, normalizer);
  }

  const TokenLayout& layout() const { return layout_; }
  const TokenReads& reads() const { return reads_; }
  index_t over() const { return over_; }

  /// Reads row i. `bad_weights` counts a weight that is not finite.
  WeighedRow<S> read(index_t i, RowMemory<S>& memory, NonFinite& bad_weights) const {
    WeighedRow<S> weighed{};
    read(layout_(i), memory, 0, bad_weights, weighed);
    return weighed;
  }
  /// Makes room for the longest row, or for several short ones. `needs_scratch`: that of the loss
  /// (run()).
  void reserve(RowMemory<S>& memory, bool needs_scratch = true) const {
    const index_t tokens = (std::max)(layout_.longest, (std::min)(layout_.tokens, queued_tokens));
    memory.rows.reserve(tokens);
    const auto n = static_cast<std::size_t>(tokens);
    if (needs_scratch && memory.tokens.size() < n) memory.tokens.resize(n);
    const bool in_place = gradient_ ? gradient_.contiguous() : !needs_scratch;
    if (!in_place && memory.gradient.size() < n) memory.gradient.resize(n);
  }

  /// The tally of all rows. `Row` is what computes the rows of a unit:
  ///
  ///     Row(loss, batch, tally)
  ///     needs_scratch                            memory.tokens has room, gradient is never null
  ///     bad_weights()                            the counter of read()
  ///     operator()(weighed, gradient, memory)    computes a row and its gradient, every position
  ///     add(span, weighed, sums, memory)         adds what that has returned to the tally
  ///     weigh(weighed, args, given)              if weighs_rows is true: changes the row's weight
  ///
  /// If queues_rows is true, the unit is given to Row in batches of short rows instead, whose work
  /// overlaps (run_queued).
  template <class Row, class Exec, class Loss, class Tally>
  Tally run(const Exec& exec, const Loss& loss, TokenWorkspace<S, Tally>& workspace) const {
    constexpr index_t most_units = 128;
    const index_t rows = layout_.rows, rows_a_unit = (rows + most_units - 1) / most_units;
    const index_t units = rows > 0 ? (rows + rows_a_unit - 1) / rows_a_unit : 0;
    const index_t workers = workers_for(exec, units, layout_.tokens);
    if (static_cast<index_t>(workspace.workers.size()) < workers)
      workspace.workers = std::vector<RowMemory<S>>(static_cast<std::size_t>(workers));
    for (index_t w = 0; w < workers; ++w)
      reserve(workspace.workers[static_cast<std::size_t>(w)], Row::needs_scratch);

    Tally total;
    if constexpr (!has_one_worker_v<Exec>) {
      if (workers > 1) {
        if (static_cast<index_t>(workspace.units.size()) < units)
          workspace.units = std::vector<Tally>(static_cast<std::size_t>(units));
        for_each_unit(exec, workers, units, [&](index_t worker, index_t unit) {
          const index_t first = unit * rows_a_unit;
          Tally& tally = workspace.units[static_cast<std::size_t>(unit)];
          tally = Tally{};
          Row row(loss, batch_, tally);
          run_unit(first, (std::min)(first + rows_a_unit, rows), row,
                   workspace.workers[static_cast<std::size_t>(worker)]);
        });
        for (index_t u = 0; u < units; ++u) total.add(workspace.units[static_cast<std::size_t>(u)]);
        return total;
      }
    }
    RowMemory<S>& memory = workspace.workers[0];
    if (rows_a_unit == 1) {  // no tallies of units are needed: adding one to 0 changes no bit
      Row row(loss, batch_, total);
      run_unit(0, rows, row, memory);
    }
    for (index_t first = 0; rows_a_unit > 1 && first < rows; first += rows_a_unit) {
      Tally unit;
      {
        Row row(loss, batch_, unit);
        run_unit(first, (std::min)(first + rows_a_unit, rows), row, memory);
      }
      total.add(unit);
    }
    return total;
  }

 private:
  /// Reads the row at `span` into `weighed`, which is zero or has a row of this batch. The first
  /// `used` tokens of `memory` belong to rows that are still in use.
  void read(const RowSpan& span, RowMemory<S>& memory, index_t used, NonFinite& bad_weights,
            WeighedRow<S>& weighed) const {
    reader_.read(span, memory.rows, used, weighed.row);
    const index_t i = span.row, tokens = weighed.row.count();
    double weight = tokens > 0 ? aggregate_(args_of(i, tokens)) : 0.0;
    if (tokens > 0 && batch_.row_weights) weight = math::mul(weight, batch_.row_weights(i));
    if (math::not_finite(weight)) note(bad_weights, i, -1), weight = 0;
    weighed.tokens = tokens, weighed.weight = weight;
  }
  /// What an aggregate is given of row i.
  AggregateArgs args_of(index_t i, index_t tokens) const {
    const double of_group = batch_.group_tokens ? batch_.group_tokens(i) : 0.0;
    return {{tokens, layout_.width, of_group}, normalizer_};
  }

  /// Puts the rows of a unit into the queue of Row, which computes the rows in it together:
  ///
  ///     most_rows                                how many rows it takes
  ///     QueuedRow                                a row with what is read, its memory and results
  ///     push()                                   the next QueuedRow of the queue, to be filled
  ///     queued()                                 the rows in the queue
  ///     run(finish)                              computes them and empties the queue; calls
  ///                                              finish(QueuedRow) for each, in their order
  ///     add(QueuedRow, memory)                   adds a row to the tally
  template <class Row>
  void run_queued(index_t first, index_t last, Row& row, RowMemory<S>& memory) const {
    const bool in_place = gradient_ && gradient_.contiguous(),
               has_memory = gradient_ || Row::needs_scratch;
    const auto finish = [&](auto& queued) {
      if (gradient_ && (!queued.weighed.counts() || !in_place)) {
        const RowSpan& span = queued.span;
        const View<S, 1> out = gradient_.row(span.row, span.begin, span.length);
        for (index_t t = 0; t < span.length; ++t)
          out(t) = queued.weighed.counts() ? queued.gradient[t] : S(0);
      }
      row.add(queued, memory);
    };
    index_t used = 0;  // tokens of the rows in the queue
    RowSpan next = layout_(first);
    for (index_t i = first; i < last; ++i) {
      if (row.queued() == Row::most_rows ||
          (row.queued() > 0 && used + next.length > queued_tokens))
        row.run(finish), used = 0;
      auto& queued = row.push();
      const index_t begin = next.begin, length = next.length;
      queued.span.row = i, queued.span.begin = begin, queued.span.length = length;
      queued.used = used;
      read(queued.span, memory, used, queued.bad_weight, queued.weighed);
      if constexpr (weighs_rows_v<Row>) {
        row.weigh(queued, args_of(i, queued.weighed.tokens),
                  batch_.row_weights ? batch_.row_weights(i) : 1.0);
      }
      queued.gradient = in_place     ? gradient_.row(i, begin, length).data
                        : has_memory ? memory.gradient.data() + used
                                     : nullptr;
      queued.scratch = Row::needs_scratch ? memory.tokens.data() + used : nullptr;
      used += length;
      if (i + 1 == last) break;
      next = layout_.after(queued.span);
      prefetch_mask(next);
    }
    row.run(finish);
  }

  template <class Row>
  void run_unit(index_t first, index_t last, Row& row, RowMemory<S>& memory) const {
    if constexpr (queues_rows_v<Row>) {
      run_queued(first, last, row, memory);
    } else {
      run_one_by_one(first, last, row, memory);
    }
  }
  template <class Row>
  void run_one_by_one(index_t first, index_t last, Row& row, RowMemory<S>& memory) const {
    RowSpan span{}, next = layout_(first);
    WeighedRow<S> weighed{};
    for (index_t i = first; i < last; ++i) {
      span = next;
      read(span, memory, 0, row.bad_weights(), weighed);
      if constexpr (weighs_rows_v<Row>) {
        row.weigh(weighed, args_of(i, weighed.tokens),
                  batch_.row_weights ? batch_.row_weights(i) : 1.0);
      }
      if (i + 1 < last) next = layout_(i + 1), prefetch_mask(next);
      const View<S, 1> out = gradient_ ? gradient_.row(i, span.begin, span.length) : View<S, 1>{};
      const bool in_place = out && gradient_.contiguous();
      S* const gradient = in_place                    ? out.data
                          : out || Row::needs_scratch ? memory.gradient.data()
                                                      : nullptr;
      const auto sums = row(weighed, gradient, memory);
      if (out && (!weighed.counts() || !in_place)) {
        for (index_t t = 0; t < span.length; ++t) out(t) = weighed.counts() ? gradient[t] : S(0);
      }
      row.add(span, weighed, sums, memory);
    }
  }

  /// Prefetches the mask of a row. The work on a row begins with counting its mask, which would
  /// otherwise have to wait for memory.
  void prefetch_mask(const RowSpan& span) const {
    if (!batch_.mask || !batch_.mask.in_place()) return;
    // In bytes. What the first-level cache would not hold is left to the processor's prefetching.
    constexpr index_t line = 64, most = 16384;
    const unsigned char* mask = batch_.mask.row(span.row, span.begin, span.length, nullptr);
    for (index_t t = 0; t < (std::min)(span.length, most); t += line) prefetch(mask + t);
  }

  const Aggregate& aggregate_;
  const TokenBatch<S>& batch_;
  const Normalizer& normalizer_;
  const TokenOut<S>& gradient_;
  TokenLayout layout_;
  TokenReads reads_;
  RowReader<S> reader_;
  index_t over_;
};

}  // namespace detail
GDPO_END_NAMESPACE
