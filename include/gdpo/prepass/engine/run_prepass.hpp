#pragma once
// The steps of prepare(). They are compiled once for a type of numbers, whatever the pre-passes.
#include <array>
#include <gdpo/core/exec.hpp>
#include <gdpo/prepass/engine/row_lanes.hpp>
#include <gdpo/prepass/shared/weights.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// Whether P meets the contract of a pre-pass (PrepassArgs).
template <class P, class S, class = void>
constexpr bool is_prepass_v = false;
template <class P, class S>
constexpr bool is_prepass_v<P, S, std::enable_if_t<std::is_same_v<Reach, decltype(P::reach)>>> =
    std::is_invocable_v<const P&, const PrepassArgs<S>&>;

/// Whether a pre-pass writes its weights row by row, as most of the library do:
///
///     bool reads_batch() const;                           // left out: false
///     template <class V, class S>
///     void begin(const PrepassRows<S>&, BatchDecision&) const;
///     template <class V, class S>
///     void write_rows(const BatchDecision&, const TokenRow<S>* rows, int n, double* const* w,
///                     RowWeights* weights) const;
///
/// begin() throws for arrays that are missing, and decides what needs the whole batch; it may read
/// tokens where reads_batch() says so. write_rows() writes the weights of up to most_prepass_rows
/// rows, in lanes V, so that prepare() takes several pre-passes one row after the other. The
/// weights of masked tokens are scratch.
template <class P, class = void>
constexpr bool writes_rows_v = false;
template <class P>
constexpr bool writes_rows_v<P, std::void_t<decltype(&P::template write_rows<double, float>)>> =
    true;
template <class P, class = void>
constexpr bool may_read_batch_v = false;
template <class P>
constexpr bool may_read_batch_v<P, std::void_t<decltype(std::declval<const P&>().reads_batch())>> =
    true;

/// A pre-pass of one call of prepare(), whatever its type.
template <class S>
struct PrepassStep {
  const void* pass;
  Reach reach;
  bool is_shared;    ///< is_shared() of weights.hpp.
  bool reads_batch;  ///< Whether it reads the tokens of the batch before it writes a row.
  BatchDecision decision;
  /// A pre-pass that writes the whole batch does it here, into the vector.
  void (*begin)(PrepassStep&, const PrepassRows<S>&, std::vector<double>&);
  /// Null in one that writes the whole batch.
  void (*write_rows)(const PrepassStep&, const TokenRow<S>*, int, double* const*, RowWeights*);
};

/// Calls a pre-pass that writes the whole batch.
template <class S, class Pass>
void write_whole_batch(const Pass& pass, const PrepassRows<S>& rows, std::vector<double>& weights,
                       BatchDecision& decision) {
  weights.assign(static_cast<std::size_t>(rows.positions()), 1.0);
  const PrepassArgs<S> args{rows, weights.data()};
  if constexpr (std::is_same_v<decltype(pass(args)), EntropyThreshold>) {
    decision.number = pass(args).value, decision.is_threshold = true;
  } else {
    pass(args);
  }
}

/// What pre-passes of a call compute in.
template <class Exec>
using PrepassLanes = std::conditional_t<std::is_same_v<Exec, Seq>, double, math::Native<double>>;

/// The step of a pre-pass, which must live as long.
template <class V, class S, class Pass>
PrepassStep<S> step_of(const Pass& pass) {
  PrepassStep<S> step{&pass, pass.reach, is_shared(pass), true, {}, nullptr, nullptr};
  if constexpr (writes_rows_v<Pass>) {
    step.reads_batch = false;
    if constexpr (may_read_batch_v<Pass>) step.reads_batch = pass.reads_batch();
    step.begin = [](PrepassStep<S>& self, const PrepassRows<S>& rows, std::vector<double>&) {
      static_cast<const Pass*>(self.pass)->template begin<V>(rows, self.decision);
    };
    step.write_rows = [](const PrepassStep<S>& self, const TokenRow<S>* rows, int n,
                         double* const* w, RowWeights* weights) {
      static_cast<const Pass*>(self.pass)->template write_rows<V>(self.decision, rows, n, w,
                                                                  weights);
    };
  } else {
    step.begin = [](PrepassStep<S>& self, const PrepassRows<S>& rows,
                    std::vector<double>& weights) {
      write_whole_batch(*static_cast<const Pass*>(self.pass), rows, weights, self.decision);
    };
  }
  return step;
}

/// Weights of some tokens as a batch stores them.
template <class V, class S>
void store_weights(const double* weights, S* to, index_t n) {
  for_each_lanes<V>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    const L weight = math::Lanes<L>::load(weights + t);
    math::Lanes<L>::store(to + t, L(math::select(weight > math::constant<L>(largest_number<S>),
                                                 math::constant<L>(math::infinity), weight)));
  });
}
/// to = weighed(from, weight) for some tokens; from is null: 1.
template <class V, class S, class Weights>
GDPO_INLINE void multiply(const S* from, S* to, index_t n, const Weights& weights) {
  for_each_lanes<V>(n, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    const L zero = math::constant<L>(0.0), w = weights(lanes, t);
    if (!from) {
      math::Lanes<L>::store(to + t, L(w + zero));  // no -0
      return;
    }
    const L a = math::Lanes<L>::load(from + t);
    math::Lanes<L>::store(to + t, L(math::select(math::either(math::is_zero(a), math::is_zero(w)),
                                                 zero, L(math::mul(a, w)))));
  });
}

/// Adds the logs of the weights with Reach::Level to those of a row. `shared`: each segment has one
/// weight, whose log goes to the first valid token.
template <class S>
void add_level_logs(const TokenRow<S>& row, bool shared, const S* weights, S* logs) {
  for (index_t begin = 0; begin < row.length;) {
    const index_t end = row.segment_end(begin);
    bool first = true;
    for (index_t t = begin; t < end; ++t) {
      if (!row.valid(t)) continue;
      if (first || !shared) logs[t] = with_level_log(logs[t], weights[t]);
      first = false;
    }
    begin = end;
  }
}

/// Notes the valid tokens of a row whose rollout_logp is not finite.
template <class V, class S>
void find_non_finite(const TokenRow<S>& row, NonFinite& found) {
  mask_t<V> in_lanes = math::not_finite(math::constant<V>(0.0));  // nowhere
  bool in_rest = false;
  for_each_lanes<V>(row.length, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
    using L = typename decltype(lanes)::type;
    const auto is = math::both(valid_lanes<L>(row, t),
                               math::not_finite(L(math::Lanes<L>::load(row.rollout_logp + t))));
    if constexpr (std::is_same_v<L, V>) {
      in_lanes = math::either(in_lanes, is);
    } else {
      in_rest = in_rest || is;
    }
  });
  bool any = in_rest;
  if constexpr (math::Lanes<V>::width > 1) {
    any = any || math::any(in_lanes);
  } else {
    any = any || in_lanes;
  }
  for (index_t t = 0; any && t < row.length; ++t) {
    if (row.valid(t) && math::not_finite(row.rollout_logp[t])) note(found, row.row, t);
  }
}

/// What pre-passes write, in the order in which they run.
enum class PrepassArray { Mask, Weights, KlWeights, EntropyWeights, LevelWeights, None };
constexpr int prepass_arrays = static_cast<int>(PrepassArray::None);
/// The array that a reach writes, of two the first.
constexpr PrepassArray array_of(Reach reach) {
  return reach == Reach::Mask       ? PrepassArray::Mask
         : reaches_surrogate(reach) ? PrepassArray::Weights
         : reach == Reach::Kl       ? PrepassArray::KlWeights
         : reach == Reach::Entropy  ? PrepassArray::EntropyWeights
         : reach == Reach::Level    ? PrepassArray::LevelWeights
                                    : PrepassArray::None;
}
/// When a reach runs: the mask first, then surrogate and KL terms in the order of the call.
constexpr int turn_of(Reach reach) {
  return array_of(reach) == PrepassArray::KlWeights ? static_cast<int>(PrepassArray::Weights)
                                                    : static_cast<int>(array_of(reach));
}

/// One call of prepare(): its steps, and the arrays that they write.
///
/// Steps that write row by row run together, one set of rows after the other, so that a row is read
/// from memory once. A step that reads the whole batch waits until those before it have written.
/// Weights are computed in lanes V.
template <class S, class V>
class Preparation {
  using InS = std::conditional_t<std::is_same_v<V, double>, S, math::Native<S>>;

 public:
  /// `steps`: those with a reach, in the order in which they run.
  Preparation(const TokenBatch<S>& batch, const TokenLayout& layout, PrepassMemory<S>& memory,
              PrepassStep<S>* steps, int n)
      : batch_(batch), layout_(layout), memory_(memory), steps_(steps), n_(n), prepared_(batch) {
    std::fill_n(first_, prepass_arrays, n);
    for (int k = n; k-- > 0;) {
      const Reach reach = steps[k].reach;
      first_[static_cast<int>(array_of(reach))] = k;
      if (reach == Reach::SurrogateAndKl) first_[static_cast<int>(PrepassArray::KlWeights)] = k;
      if (reach == Reach::Level) shared_level_ = shared_level_ && steps[k].is_shared;
    }
  }

  /// finish(row) is called for each row, on the thread that wrote it and while it is in cache: a
  /// TokenRow with the mask and the weights that are left. std::nullptr_t: nothing is called.
  template <class Exec, class Finish>
  TokenBatch<S> run(const Exec& exec, const Finish& finish) {
    open();
    const index_t at_once = prepass_rows_at_once(layout_.longest);
    const index_t sets = (layout_.rows + at_once - 1) / at_once;
    const index_t threads = workers_for(exec, sets, layout_.tokens);
    memory_.reserve(layout_.longest, threads);
    for (RowsAtOnce<S>& own : memory_.at_once) own.non_finite = {};
    finds_ = batch_.rollout_logp && batch_.rollout_non_finite.count == 0;

    int written = 0, begun = 0;
    do {
      while (begun < n_ && !steps_[begun].reads_batch) begin(begun++);
      if (written < begun || n_ == 0) {
        for_each_unit(exec, threads, sets, [&](index_t thread, index_t set) {
          const index_t first = set * at_once;
          write(memory_.at_once[static_cast<std::size_t>(thread)], first,
                static_cast<int>((std::min)(at_once, layout_.rows - first)), written, begun,
                finish);
        });
        finds_ = false;
        for (; written < begun; ++written) point_to(written);
      }
      if (begun < n_) begin(begun++);
    } while (written < n_);
    note_non_finite();
    if (has(PrepassArray::Mask)) memory_.mask.swap(memory_.kept);
    return prepared_;
  }

 private:
  bool has(PrepassArray array) const { return first_[static_cast<int>(array)] < n_; }
  /// Whether step k is the first that writes the array.
  bool is_first(int k, PrepassArray array) const { return first_[static_cast<int>(array)] == k; }
  /// Whether step k is the last of its turn.
  bool is_last(int k) const {
    return k + 1 == n_ || turn_of(steps_[k + 1].reach) != turn_of(steps_[k].reach);
  }

  /// A dense copy of the tokens.
  template <class Tokens, class T>
  void gather(const Tokens& tokens, std::vector<T>& array) const {
    array.resize(static_cast<std::size_t>(layout_.tokens));
    for (index_t i = 0; i < layout_.rows; ++i) {
      const RowSpan span = layout_(i);
      T* row = array.data() + span.begin;
      const T* source = tokens.row(i, span.begin, span.length, row);
      if (source != row) std::copy(source, source + span.length, row);
    }
  }

  /// Makes room for the arrays, and copies those of an earlier call.
  void open() {
    const TokenBatch<S>& batch = batch_;
    if (n_ > 0) {  // only then are arrays of the memory written
      if (memory_.uses.empty()) memory_.uses.assign(1, 0);
      prepared_.prepared.uses = memory_.uses.data();
      prepared_.prepared.use = ++memory_.uses[0];
      if (batch.prepared.uses && batch.prepared.uses != memory_.uses.data()) {
        // An earlier call used another memory. Its arrays are copied to this one, because only the
        // uses of this one are checked.
        const auto move = [&](auto& tokens, auto& array) {
          if (!tokens) return;
          gather(tokens, array);
          tokens = dense(layout_, array);
        };
        move(prepared_.mask, memory_.mask), move(prepared_.completion_mask, memory_.completion);
        move(prepared_.weights, memory_.weights), move(prepared_.kl_weights, memory_.kl_weights);
        move(prepared_.entropy_weights, memory_.entropy_weights);
        move(prepared_.level_log_weights, memory_.level_log_weights);
      }
    }
    const auto n = static_cast<std::size_t>(layout_.tokens);
    if (!batch.completion_mask && batch.mask) prepared_.completion_mask = batch.mask;
    if (has(PrepassArray::Mask)) {
      if (!batch.completion_mask && !batch.mask) {
        memory_.completion.assign(n, 1);
        prepared_.completion_mask = dense(layout_, memory_.completion);
      }
      memory_.mask.resize(n), memory_.kept.resize(n);
      ++prepared_.prepared.mask_changes;
    }
    if (has(PrepassArray::Weights)) memory_.weights.resize(n);
    if (has(PrepassArray::KlWeights)) memory_.kl_weights.resize(n);
    if (has(PrepassArray::EntropyWeights)) memory_.entropy_weights.resize(n);
    if (has(PrepassArray::LevelWeights))
      memory_.level_weights.resize(n), memory_.level_log_weights.resize(n);
  }

  /// Begins step k, which sees what those before it have written.
  void begin(int k) {
    PrepassStep<S>& step = steps_[k];
    TokenBatch<S> left = turn_of(step.reach) == 0 ? batch_ : prepared_;
    if (step.reach == Reach::Entropy) left.weights = left.entropy_weights;
    if (step.reach == Reach::Level) left.weights = level_;
    const PrepassRows<S> rows(left, layout_, memory_);
    step.begin(step, rows, memory_.pass);
    if (step.decision.is_threshold) prepared_.entropy_threshold = step.decision.number;
  }

  /// Lets the batch point to what step k has written.
  void point_to(int k) {
    const Reach reach = steps_[k].reach;
    if (reach == Reach::Mask && is_last(k)) prepared_.mask = dense(layout_, memory_.kept);
    if (reaches_surrogate(reach)) prepared_.weights = dense(layout_, memory_.weights);
    if (reaches_kl(reach)) prepared_.kl_weights = dense(layout_, memory_.kl_weights);
    if (reaches_entropy(reach)) prepared_.entropy_weights = dense(layout_, memory_.entropy_weights);
    if (reaches_level(reach)) level_ = dense(layout_, memory_.level_weights);
    if (reaches_level(reach) && is_last(k))
      prepared_.level_log_weights = dense(layout_, memory_.level_log_weights);
  }

  /// Writes what the steps from `begin` to `end` - 1 decide of some rows.
  template <class Finish>
  void write(RowsAtOnce<S>& own, index_t first, int count, int begin, int end,
             const Finish& finish) const {
    TokenRow<S> given[most_prepass_rows], rows[most_prepass_rows];
    double* numbers[most_prepass_rows];
    for (int r = 0; r < count; ++r) {
      rows[r] = given[r] = read_row(batch_, layout_, first + r, {}, own.rows[r]);
      numbers[r] = own.weights.data() + r * layout_.longest;
      if (finds_) find_non_finite<InS>(given[r], own.non_finite);
    }
    for (int k = begin; k < end; ++k) {
      const PrepassStep<S>& step = steps_[k];
      RowWeights weights[most_prepass_rows];
      if (has(PrepassArray::Mask) && step.reach != Reach::Mask) {
        for (int r = 0; r < count; ++r)
          rows[r].mask = memory_.kept.data() + layout_(first + r).begin;
      }
      if (step.write_rows) {
        step.write_rows(step, rows, count, numbers, weights);
      } else {
        for (int r = 0; r < count; ++r)
          weights[r] = {memory_.pass.data() + layout_(first + r).begin, 1, 1};
      }
      for (int r = 0; r < count; ++r) combine(k, given[r], rows[r], weights[r]);
    }
    if constexpr (!std::is_same_v<Finish, std::nullptr_t>) {
      for (int r = 0; end == n_ && r < count; ++r) finish(left(given[r]));
    }
  }

  /// A row of the batch with the mask and the weights that all steps have left.
  TokenRow<S> left(TokenRow<S> row) const {
    const index_t begin = layout_(row.row).begin;
    if (has(PrepassArray::Mask)) row.mask = memory_.kept.data() + begin;
    const auto point = [&](PrepassArray array, const std::vector<S>& values, const S*& to) {
      if (has(array)) to = values.data() + begin;
    };
    point(PrepassArray::Weights, memory_.weights, row.weights);
    point(PrepassArray::KlWeights, memory_.kl_weights, row.kl_weights);
    point(PrepassArray::EntropyWeights, memory_.entropy_weights, row.entropy_weights);
    point(PrepassArray::LevelWeights, memory_.level_log_weights, row.level_log_weights);
    return row;
  }

  /// Combines the weights of a row with what the steps before step k have written.
  void combine(int k, const TokenRow<S>& given, const TokenRow<S>& row,
               const RowWeights& weights) const {
    const Reach reach = steps_[k].reach;
    const index_t begin = layout_(row.row).begin;
    const auto into = [&](PrepassArray array, std::vector<S>& values, const S* of_batch) {
      S* const to = values.data() + begin;
      multiply_row(row, weights, is_first(k, array) ? of_batch : to, to);
    };
    if (reach == Reach::Mask) drop(is_first(k, PrepassArray::Mask), row, weights);
    if (reaches_surrogate(reach)) into(PrepassArray::Weights, memory_.weights, given.weights);
    if (reaches_kl(reach)) into(PrepassArray::KlWeights, memory_.kl_weights, given.kl_weights);
    if (reaches_entropy(reach))
      into(PrepassArray::EntropyWeights, memory_.entropy_weights, given.entropy_weights);
    if (!reaches_level(reach)) return;
    into(PrepassArray::LevelWeights, memory_.level_weights, nullptr);
    if (!is_last(k)) return;
    S* const logs = memory_.level_log_weights.data() + begin;
    if (!given.level_log_weights) {
      std::fill_n(logs, row.length, S(0));
    } else if (given.level_log_weights != logs) {
      std::copy_n(given.level_log_weights, row.length, logs);
    }
    add_level_logs(row, shared_level_, memory_.level_weights.data() + begin, logs);
  }

  /// Takes the tokens with weight 0 out of the mask.
  void drop(bool first, const TokenRow<S>& row, const RowWeights& weights) const {
    unsigned char* const kept = memory_.kept.data() + layout_(row.row).begin;
    if (first && row.mask) normalize_mask(row.mask, kept, row.length);
    if (first && !row.mask) std::fill_n(kept, row.length, static_cast<unsigned char>(1));
    if (weights.each) return drop_zeros<V>(weights.each, kept, row.length);
    if (math::is_zero(weights.valid)) std::fill_n(kept, row.length, static_cast<unsigned char>(0));
  }

  /// to = from times the weights; from is null: 1.
  static void multiply_row(const TokenRow<S>& row, const RowWeights& weights, const S* from,
                           S* to) {
    if (!weights.each) {
      const S valid = stored_weight<S>(weights.valid), masked = stored_weight<S>(weights.masked);
      const auto is_one = [](S x) { return !math::differ(x, S(1)) && !math::is_nan(x); };
      if (from == to && is_one(valid) && is_one(masked)) return;
      multiply<InS>(from, to, row.length, [&](auto lanes, index_t t) GDPO_INLINE_LAMBDA {
        using L = typename decltype(lanes)::type;
        const L w = L(math::constant<L>(valid));
        return row.mask ? L(math::select(valid_lanes<L>(row, t), w, L(math::constant<L>(masked))))
                        : w;
      });
      return;
    }
    constexpr index_t block = 256;
    S stored[block];
    for (index_t t = 0; t < row.length; t += block) {
      const index_t n = (std::min)(block, row.length - t);
      store_weights<V>(weights.each + t, stored, n);
      multiply<InS>(from ? from + t : nullptr, to + t, n,
                    [&](auto lanes, index_t j) GDPO_INLINE_LAMBDA {
                      using L = typename decltype(lanes)::type;
                      return L(math::Lanes<L>::load(stored + j));
                    });
    }
  }

  /// Writes what the threads have found in rollout_logp. A count that is already there is kept,
  /// because an earlier prepare() may have masked some of those tokens since.
  void note_non_finite() {
    NonFinite& all = prepared_.rollout_non_finite;
    if (!batch_.rollout_logp || batch_.rollout_non_finite.count > 0) return;
    for (const RowsAtOnce<S>& own : memory_.at_once) {
      const NonFinite& found = own.non_finite;
      if (found.count == 0) continue;
      if (all.count == 0 || found.row < all.row) all.row = found.row, all.token = found.token;
      all.count += found.count;
    }
  }

  const TokenBatch<S>& batch_;
  const TokenLayout& layout_;
  PrepassMemory<S>& memory_;
  PrepassStep<S>* steps_;
  int n_;
  TokenBatch<S> prepared_;
  TokenView<S> level_;  // the weights with Reach::Level so far; none: all 1
  bool finds_ = false;  // whether the next walk looks for values that are not finite
  bool shared_level_ = true;
  int first_[prepass_arrays + 1];  // the first step that writes an array; n_: none
};

}  // namespace detail

GDPO_END_NAMESPACE
