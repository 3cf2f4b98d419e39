#pragma once
// The rows of a ReturnBatch, and the scan of one row in scalars.
#include <gdpo/tokens/token_row.hpp>
#include <gdpo/value/shared/return_scan.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// One row. An array that is absent, or that the call does not read, is null.
template <class S>
struct ReturnRow {
  RowSpan span{};
  index_t tokens = 0;    ///< Number of valid tokens; with 0 the row has no step.
  index_t rewarded = 0;  ///< The step that the row's reward is added to.
  double reward = 0;     ///< The row's reward, clamped.
  double bootstrap = 0;  ///< The value behind the last step.
  Decay decay{};         ///< Of its scans.
  const S *rewards = nullptr, *values = nullptr, *logp = nullptr, *ref_logp = nullptr;
  const unsigned char* mask = nullptr;

  bool valid(index_t t) const { return !mask || mask[t] != 0; }
};

/// Memory of one worker: room for arrays that are converted because they are not contiguous or have
/// another type, and for rows side by side.
template <class S>
struct ReturnScratch {
  std::vector<S> arrays;            ///< (rows at once, 4 arrays, longest row)
  std::vector<unsigned char> mask;  ///< (rows at once, longest row)
  // Of rows side by side (return_lanes.hpp).
  std::vector<S> lines;              ///< (4 arrays, rows at once, tile)
  std::vector<double> penalized;     ///< (rows at once, tile)
  std::vector<unsigned char> marks;  ///< (rows at once + 1, tile): masks, the last one of ones.
};

/// A call of advantages_and_returns_into whose arguments the constructor checks: its rows one by
/// one, without the order in which they run.
template <class S, class Estimator>
class ReturnRows {
 public:
  using Returns = std::decay_t<decltype(Estimator::returns)>;

  ReturnRows(const char* function, const ReturnBatch<S>& batch, const Estimator& estimator,
             const TokenOut<S>& advantages, const TokenOut<S>& returns)
      : batch_(batch), estimator_(estimator), advantages_(advantages), returns_(returns) {
    check_fields(function, "", estimator);
    layout_ = return_layout(function, batch, advantages, returns, ReadsArrays::Yes);
    reads_ = check_returns(function, estimator, batch, advantages, returns, layout_);
  }

  const ReturnBatch<S>& batch() const { return batch_; }
  const Estimator& estimator() const { return estimator_; }
  const TokenLayout& layout() const { return layout_; }
  const ReturnReads& reads() const { return reads_; }
  bool gives_returns() const { return static_cast<bool>(returns_); }

  /// Makes room for `rows` rows at once. What is read in place needs none.
  void reserve(ReturnScratch<S>& scratch, index_t rows) const {
    const auto converts = [](const auto& tokens) { return tokens && !tokens.in_place(); };
    const auto room = [&](auto& of, bool needed, index_t each) {
      const auto n = static_cast<std::size_t>(needed ? each * rows * layout_.longest : 0);
      if (of.size() < n) of.resize(n);
    };
    room(scratch.arrays,
         converts(batch_.rewards) || converts(batch_.values) || converts(batch_.logp) ||
             converts(batch_.ref_logp),
         arrays);
    room(scratch.mask, converts(batch_.mask), 1);
  }

  /// The mask of a row; null: all tokens are valid. Converted, it stands in place `slot` of the
  /// scratch.
  const unsigned char* mask(const RowSpan& span, index_t slot, ReturnScratch<S>& scratch) const {
    if (!batch_.mask) return nullptr;
    unsigned char* const to =
        batch_.mask.in_place() ? nullptr : scratch.mask.data() + slot * layout_.longest;
    return batch_.mask.row(span.row, span.begin, span.length, to);
  }
  /// Row i, in the place `slot` of the scratch.
  ReturnRow<S> read(index_t i, index_t slot, ReturnScratch<S>& scratch) const {
    ReturnRow<S> row;
    row.span = layout_(i);
    const index_t length = row.span.length, room = slot * layout_.longest;
    row.mask = mask(row.span, slot, scratch);
    row.tokens = count_mask(row.mask, length);
    if (row.tokens == 0) return row;
    const auto fetch = [&](index_t array, const TokenView<S>& tokens, bool wanted) -> const S* {
      if (!tokens || !wanted) return nullptr;
      S* const to = scratch.arrays.data();
      const index_t place = arrays * room + array * layout_.longest;
      return tokens.row(i, row.span.begin, length, tokens.in_place() ? nullptr : to + place);
    };
    row.rewards = fetch(0, batch_.rewards, true);
    row.values = fetch(1, batch_.values, reads_.values);
    row.logp = fetch(2, batch_.logp, reads_.penalized);
    row.ref_logp = fetch(3, batch_.ref_logp, reads_.penalized);
    row.rewarded = length - 1;
    if (estimator_.returns.steps != Steps::Row) {
      while (!row.valid(row.rewarded)) --row.rewarded;
    }
    if (batch_.row_rewards) row.reward = bound(estimator_.reward_clip, batch_.row_rewards(i)).value;
    if (batch_.bootstrap) row.bootstrap = batch_.bootstrap(i);
    row.decay = estimator_.returns.decay(row.tokens);
    return row;
  }

  /// The reward of step t, with the penalty and the row's reward.
  GDPO_INLINE double reward(const ReturnRow<S>& row, index_t t) const {
    double r = row.rewards ? static_cast<double>(row.rewards[t]) : 0.0;
    if (reads_.penalized) {
      r = penalized<double>(estimator_.penalty, r, static_cast<double>(row.logp[t]),
                            static_cast<double>(row.ref_logp[t]));
    }
    return t == row.rewarded ? r + row.reward : r;
  }

  View<S, 1> advantages(const RowSpan& span) const { return row_of(advantages_, span); }
  View<S, 1> returns(const RowSpan& span) const { return row_of(returns_, span); }

  /// Writes 0 to every position of a row, which has no step.
  void clear(const RowSpan& span) const {
    for (const View<S, 1>& out : {advantages(span), returns(span)}) {
      for (index_t t = 0; out && t < span.length; ++t) out(t) = S(0);
    }
  }

  /// Scans row i, one position after the other from its end. Each position is read before it is
  /// written.
  void scan(index_t i, ReturnScratch<S>& scratch) const { scan(read(i, 0, scratch)); }
  /// The same for a row that read() gave.
  void scan(const ReturnRow<S>& row) const {
    if (row.span.length == 0) return;
    if (row.tokens == 0) return clear(row.span);
    reads_.twice ? scan_steps<true>(row) : scan_steps<false>(row);
  }

 private:
  static constexpr index_t arrays = 4;

  static View<S, 1> row_of(const TokenOut<S>& out, const RowSpan& span) {
    return out ? out.row(span.row, span.begin, span.length) : View<S, 1>{};
  }

  template <bool Twice>
  void scan_steps(const ReturnRow<S>& row) const {
    const Steps steps = estimator_.returns.steps;
    const View<S, 1> advantages = this->advantages(row.span), returns = this->returns(row.span);
    Carried<double> carried = behind_the_end<Returns>(row.bootstrap);
    for (index_t t = row.span.length - 1; t >= 0; --t) {
      const bool valid = row.valid(t);
      if (!is_step(steps, valid)) {
        if (steps == Steps::Turns && t < row.rewarded) carried = {0, 0, 0};
        advantages(t) = S(0);
        if (returns) returns(t) = S(0);
        continue;
      }
      const double r = carries_reward(steps, valid) ? reward(row, t) : 0.0;
      const double value = row.values ? static_cast<double>(row.values[t]) : 0.0;
      carried = step_back<Twice>(estimator_.returns, carried, r, value, row.decay.advantages,
                                 row.decay.returns);
      advantages(t) = valid ? static_cast<S>(carried.advantages) : S(0);
      if (returns) {
        const double scanned = Twice ? carried.returns : carried.advantages;
        returns(t) = valid ? static_cast<S>(return_of<Returns>(scanned, value)) : S(0);
      }
    }
  }

  const ReturnBatch<S>& batch_;
  const Estimator& estimator_;
  const TokenOut<S>&advantages_, &returns_;
  TokenLayout layout_;
  ReturnReads reads_{};
};

}  // namespace detail
GDPO_END_NAMESPACE
