#pragma once
// prepare() on a device: pre-passes as kernels, whose result losses on the device take.
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/prepass/findings.hpp>
#include <gdpo/cuda/prepass/pick_kernels.hpp>
#include <gdpo/cuda/prepass/ratio_kernels.hpp>
#include <gdpo/cuda/prepass/row_kernels.hpp>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/prepass/chain.hpp>
#include <gdpo/prepass/drop_rows.hpp>
#include <gdpo/prepass/entropy_clip.hpp>
#include <tuple>
#include <variant>

GDPO_BEGIN_NAMESPACE
namespace cuda {

/// The device memory of one prepared batch, of the caller: its masks and weights, to which the
/// batch points, and what the kernels need on the way.
///
///     gdpo::cuda::PrepassMemory memory{nullptr, gdpo::cuda::prepass_bytes(batch)};
///     gdpo::cuda::check("memory", cudaMalloc(&memory.data, memory.bytes));
///
/// It must outlive the prepared batch, and the next prepare() with the same memory overwrites that:
/// count_into() and losses then refuse it. The prepared batch itself may be prepared again, in the
/// same memory or in another. Calls that run on different streams at the same time each need their
/// own.
struct PrepassMemory {
  void* data = nullptr;   ///< aligned to 256 bytes, as cudaMalloc gives it
  std::size_t bytes = 0;  ///< bytes at `data`; a call that needs more throws invalid_input
  /// One number of the host: how often the memory has been used (Prepared::uses).
  std::vector<std::uint64_t> uses{};
};

namespace detail {

/// A number for each row that pre-passes use on the way.
union OfRow {
  RunningStatistic statistic;
  RowWeights weights;
  CovarianceRow covariance;
  prepass::EntropyClip::Sums entropy;
  EntropySquare squares;
};

/// The arrays of a PrepassMemory.
template <class S>
struct PrepassArrays {
  PrepassFindings* findings;
  unsigned char* masks[2];  ///< The prepared mask, and the mask that pre-passes read meanwhile.
  unsigned char* completion;
  S *weights, *kl_weights, *entropy_weights, *level_log_weights, *level_weights;
  double* values;  ///< By position; or keys.
  unsigned char* of_rows;
  double *statistics, *advantages;  ///< Of rows.
  index_t* before;                  ///< Valid tokens before each row.
  FirstNonFinite* non_finite;
  prepass::Covariance::Sums* sums;
  prepass::EntropyClip::Spread* spread;
  double* factor;
  std::uint64_t* next_keys;
  SelectMemory select_limit, select_last;

  PrepassArrays(ScratchCursor& cursor, index_t rows, index_t tokens)
      : findings(cursor.take<PrepassFindings>(1)),
        masks{cursor.take<unsigned char>(tokens), cursor.take<unsigned char>(tokens)},
        completion(cursor.take<unsigned char>(tokens)),
        weights(cursor.take<S>(tokens)),
        kl_weights(cursor.take<S>(tokens)),
        entropy_weights(cursor.take<S>(tokens)),
        level_log_weights(cursor.take<S>(tokens)),
        level_weights(cursor.take<S>(tokens)),
        values(cursor.take<double>(tokens)),
        of_rows(cursor.take<unsigned char>(rows * static_cast<index_t>(sizeof(OfRow)))),
        statistics(cursor.take<double>(rows)),
        advantages(cursor.take<double>(rows)),
        before(cursor.take<index_t>(rows)),
        non_finite(cursor.take<FirstNonFinite>(CountRollout<S>::most_blocks)),
        sums(cursor.take<prepass::Covariance::Sums>(1)),
        spread(cursor.take<prepass::EntropyClip::Spread>(1)),
        factor(cursor.take<double>(1)),
        next_keys(cursor.take<std::uint64_t>(SelectUnits::most)) {
    for (int i = 0; i < 2; ++i) {
      void* const counts = cursor.take<Buckets<true>>(SelectUnits::most);
      select_limit.counts[i] = select_last.counts[i] = counts;
      select_limit.states[i] = cursor.take<Selected>(1);
      select_last.states[i] = cursor.take<Selected>(1);
    }
  }
  std::uint64_t* keys() const { return reinterpret_cast<std::uint64_t*>(values); }
  template <class Of>
  Of* rows_of() const {
    static_assert(sizeof(Of) <= sizeof(OfRow), "a member of OfRow");
    return reinterpret_cast<Of*>(of_rows);
  }
};

/// f(pass), or f with the pre-pass that was chosen at run time: the member `chosen` is then a
/// std::variant of pre-passes.
template <class Pass, class = void>
struct ChosenPrepass {
  template <class F>
  static void visit(const Pass& pass, const F& f) {
    f(pass);
  }
};
template <class Pass>
struct ChosenPrepass<Pass, std::void_t<decltype(std::declval<const Pass&>().chosen.index())>> {
  template <class F>
  static void visit(const Pass& pass, const F& f) {
    std::visit(f, pass.chosen);
  }
};

/// Throws unless the batch has what a pre-pass reads.
template <class S>
struct CheckPrepass {
  const TokenBatch<S>& batch;
  const gdpo::detail::TokenLayout& layout;

  void operator()(const prepass::Importance& pass) const { check_ratio(pass); }
  void operator()(const prepass::Gate& pass) const { check_ratio(pass); }
  void operator()(const prepass::MeanOne&) const {}
  void operator()(const prepass::Overlong& pass) const {
    gdpo::detail::check_flags(pass.truncated, layout, pass.argument);
  }
  void operator()(const prepass::DegenerateGroups& pass) const {
    gdpo::detail::check_flags(pass.degenerate, layout, pass.argument);
  }
  void operator()(const prepass::TopEntropy& pass) const {
    if (layout.tokens > 0) pass.need(static_cast<bool>(batch.entropies));
  }
  void operator()(const prepass::SecondMoment&) const {
    if (layout.tokens > 0) {
      gdpo::detail::need_pair(prepass::Pair::Mismatch, static_cast<bool>(batch.logp),
                              static_cast<bool>(batch.old_logp),
                              static_cast<bool>(batch.rollout_logp), "prepass::SecondMoment");
    }
  }
  void operator()(const prepass::Covariance& pass) const { check_advantages(pass); }
  void operator()(const prepass::EntropyClip& pass) const {
    if (layout.tokens == 0) return;
    pass.need(has_advantages(),
              static_cast<bool>(pass.policy == Against::Rollout ? batch.rollout_logp
                                : batch.old_logp                ? batch.old_logp
                                                                : batch.logp),
              static_cast<bool>(batch.entropies), static_cast<bool>(batch.tags));
  }
  void operator()(const prepass::FutureKl& pass) const { check_advantages(pass); }
  void operator()(const prepass::TeacherRatio& pass) const {
    if (layout.tokens > 0) {
      pass.need(has_advantages(), static_cast<bool>(batch.logp), static_cast<bool>(batch.old_logp),
                static_cast<bool>(batch.teacher_logp));
    }
  }
  void operator()(const prepass::TeacherPrefix& pass) const {
    if (layout.tokens > 0) {
      pass.need(static_cast<bool>(batch.logp), static_cast<bool>(batch.old_logp),
                static_cast<bool>(batch.rollout_logp), static_cast<bool>(batch.teacher_logp));
    }
  }

 private:
  bool has_advantages() const { return batch.advantages || batch.token_advantages; }
  template <class Pass>
  void check_ratio(const Pass& pass) const {
    gdpo::detail::check_groups(pass.statistic, pass.groups, layout, pass.name);
    if (layout.tokens > 0) {
      pass.need(has_advantages(), static_cast<bool>(batch.logp), static_cast<bool>(batch.old_logp),
                static_cast<bool>(batch.rollout_logp));
    }
  }
  template <class Pass>
  void check_advantages(const Pass& pass) const {
    if (layout.tokens > 0) pass.need(has_advantages(), static_cast<bool>(batch.logp));
  }
};

/// Whether a pre-pass has kernels, or is chosen at run time among some.
template <class Pass, class S, class = void>
constexpr bool has_kernels_v = std::is_invocable_v<CheckPrepass<S>, const Pass&>;
template <class Pass, class S>
constexpr bool
    has_kernels_v<Pass, S, std::void_t<decltype(std::declval<const Pass&>().chosen.index())>> =
        true;

/// Launches the kernels of pre-passes, one after the other.
template <class Device, class S>
class LaunchPrepass {
 public:
  LaunchPrepass(const Device& device, const char* function, const DeviceBatch<S>& batch,
                const gdpo::detail::TokenLayout& layout, const PrepassArrays<S>& memory,
                const WeightsOut<S>& out)
      : device_(device),
        function_(function),
        batch_(batch),
        units_(layout),
        memory_(memory),
        out_(out) {}

  void operator()(const prepass::Importance& pass) const { launch_ratio(pass); }
  void operator()(const prepass::Gate& pass) const { launch_ratio(pass); }
  void operator()(const prepass::Overlong& pass) const { drop(pass.argument, pass.truncated); }
  void operator()(const prepass::DegenerateGroups& pass) const {
    drop(pass.argument, pass.degenerate);
  }
  void operator()(const prepass::MeanOne& pass) const {
    auto* const of_rows = memory_.template rows_of<RowWeights>();
    launch_scan(device_, batch_, SumWeights<S>{of_rows});
    launch_add_rows(device_, of_rows, batch_.rows, MeanFactor{pass, memory_.factor});
    each(MultiplyWeights<S>{memory_.factor, out_});
  }
  void operator()(const prepass::EntropyClip& pass) const {
    const EntropyMeasure<S> measure(pass, batch_);
    auto* const sums = memory_.template rows_of<prepass::EntropyClip::Sums>();
    launch_scan(device_, batch_, EntropySums<S>{measure, sums});
    launch_add_rows(device_, sums, batch_.rows, EntropyOfRows{pass, memory_.spread});
    auto* const squares = memory_.template rows_of<EntropySquare>();
    launch_scan(device_, batch_, EntropySquares<S>{measure, memory_.spread, squares});
    launch_add_rows(device_, squares, batch_.rows, EntropySquaresOfRows{memory_.spread});
    const EntropyClipKey<S> key{pass, measure, memory_.spread};
    write_keys(key);
    pick(ByRank<EntropyClipRank>{{pass, memory_.spread}}, 0, 1);
    if (pass.zero_advantage) each(DropZeroAdvantage<S>{key, out_});
  }
  void operator()(const prepass::FutureKl& pass) const {
    launch_scan(device_, batch_, FutureKlScan<S>{pass, out_});
  }
  void operator()(const prepass::TeacherRatio& pass) const {
    each(TeacherRatioWeights<S>{pass, out_});
  }
  void operator()(const prepass::TeacherPrefix& pass) const {
    launch_scan(device_, batch_, TeacherPrefixScan<S, false>{pass, memory_.statistics, out_});
    launch_scan(device_, batch_, TeacherPrefixScan<S, true>{pass, memory_.statistics, out_});
  }
  void operator()(const prepass::TopEntropy& pass) const {
    double* const limit = &memory_.findings->entropy_threshold;
    EntropyLimit end{pass, nullptr, nullptr, 0, limit};
    if (pass.threshold == math::infinity) {
      write_keys(EntropyKey<S>{});
      // Of floats only the upper bits of a key differ.
      end.below =
          select_key(device_, memory_.select_limit, batch_.tokens, StoredKeys{memory_.keys()},
                     ByRank<EntropyRank>{{pass}}, 64, lowest_bit);
      const SelectUnits units(batch_.tokens);
      device_.launch(units.count, NextKey::threads, 0,
                     NextKey{memory_.keys(), units, end.below, memory_.next_keys});
      end.of_units = memory_.next_keys, end.units = units.count;
    }
    device_.launch(1, EntropyLimit::threads, 0, end);
    each(KeepEntropy<S>{limit, out_});
  }
  void operator()(const prepass::SecondMoment& pass) const {
    write_keys(MomentKey<S>{gdpo::detail::pair_of(
        prepass::Pair::Mismatch, pass.missing, batch_.logp, batch_.old_logp, batch_.rollout_logp)});
    pick(ByMean{pass}, 1, 0);
  }
  void operator()(const prepass::Covariance& pass) const {
    auto* const of_rows = memory_.template rows_of<CovarianceRow>();
    launch_scan(device_, batch_, CovarianceSums<S>{of_rows});
    launch_add_rows(device_, of_rows, batch_.rows, CovarianceOfRows{memory_.before, memory_.sums});
    clear_keys();
    launch_scan(device_, batch_,
                CovarianceKeys<S>{pass, memory_.sums, memory_.before, memory_.keys()});
    pick(ByRank<CovarianceRank>{{pass, memory_.sums}}, pass.weight_of(true), pass.weight_of(false));
  }

 private:
  /// The lowest bit in which keys of S differ: a float has 29 bits fewer than a double.
  static constexpr int lowest_bit = std::is_same_v<S, float> ? 28 : 0;

  template <class F>
  void each(const F& f) const {
    launch_tokens(device_, batch_, units_, f);
  }
  void drop(const char* name, const Column& dropped) const {
    each(DropRows<S>{{function_, name, dropped}, out_});
  }
  void clear_keys() const {
    if (!batch_.offsets) return;
    const index_t blocks =
        (batch_.tokens + ClearKeys::largest_block - 1) / ClearKeys::largest_block;
    device_.launch((std::min)(blocks, index_t{device_.tuning().blocks}), ClearKeys::largest_block,
                   0, ClearKeys{memory_.keys(), batch_.tokens});
  }
  template <class Key>
  void write_keys(const Key& key) const {
    clear_keys();
    each(WriteKeys<S, Key>{key, memory_.keys()});
  }
  /// Weights from the keys in memory: `picked` for those up to what the rule selects.
  template <class Rule>
  void pick(const Rule& rule, double picked, double rest) const {
    std::uint64_t* const keys = memory_.keys();
    const Selected* const limit =
        select_key(device_, memory_.select_limit, batch_.tokens, StoredKeys{keys}, rule, 64);
    int bits = 1;
    while ((batch_.tokens - 1) >> bits > 0) ++bits;
    const Selected* const last =
        select_key(device_, memory_.select_last, batch_.tokens, KeysAtLimit{keys, limit},
                   ByRank<RankAtLimit>{{limit}}, bits);
    each(PickTokens<S>{keys, limit, last, picked, rest, out_});
  }
  template <class Pass>
  void launch_ratio(const Pass& pass) const {
    const RatioPass<S, Pass> ratio(pass, batch_);
    const Share share = gdpo::detail::share_of(pass.statistic);
    const bool with_advantages = reads_row_advantage(pass);
    auto* const to_merge = memory_.template rows_of<RunningStatistic>();
    if (share != Share::Token || with_advantages) {
      launch_scan(device_, batch_,
                  StatisticScan<S, Pass>{ratio, with_advantages, memory_.values, memory_.statistics,
                                         memory_.advantages, to_merge});
    }
    if (share == Share::Group) {
      constexpr int threads = MergeGroups::largest_block;
      device_.launch((batch_.rows + threads - 1) / threads, threads, 0,
                     MergeGroups{{function_, "groups", pass.groups},
                                 batch_.rows,
                                 to_merge,
                                 gdpo::detail::reduction_of(pass.statistic),
                                 pass.count_eps,
                                 memory_.statistics});
    }
    const bool of_rows = share == Share::Sequence || share == Share::Group;
    const DecideToken<S, Pass> token{ratio, of_rows ? memory_.statistics : nullptr,
                                     with_advantages ? memory_.advantages : nullptr, out_};
    if (share == Share::Segment) {
      launch_scan(device_, batch_, DecideSegments<S, Pass>{token, memory_.values});
    } else {
      each(token);
    }
  }

  const Device& device_;
  const char* function_;
  DeviceBatch<S> batch_;
  TokenUnits units_;
  const PrepassArrays<S>& memory_;
  WeightsOut<S> out_;
};

/// prepare() without chains.
template <class Device, class S, class... Passes>
TokenBatch<S> prepare_on(const Device& device, const TokenBatch<S>& batch, PrepassMemory& memory,
                         const Passes&... passes) {
  static_assert((has_kernels_v<Passes, S> && ...),
                "on a device, pre-passes are those of gdpo/prepass.hpp");
  constexpr const char* function = "gdpo::prepare";
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::No);
  (gdpo::detail::check_fields(function, passes), ...);
  if (layout.shape.rank == 0) {
    contract::fail(function, "batch", "offsets alone",
                   "an array of tokens, which says how many there are: the offsets are in device "
                   "memory");
  }
  [[maybe_unused]] const auto check = [&](const auto& pass) {
    if (pass.reach != Reach::None)
      ChosenPrepass<std::decay_t<decltype(pass)>>::visit(pass, CheckPrepass<S>{batch, layout});
  };
  (check(passes), ...);
  constexpr auto reads = [] {
    auto arrays = gdpo::detail::TokenReads::none();
    arrays.rollout = arrays.teacher = arrays.tags = true;
    return arrays;
  }();
  const DeviceBatch<S> given(function, batch, layout, reads);
  const std::size_t needed = bytes_of<PrepassArrays<S>>(layout.rows, layout.tokens);
  if (!memory.data || memory.bytes < needed) {
    contract::fail(function, "memory",
                   memory.data ? std::to_string(memory.bytes) + " bytes" : std::string("no memory"),
                   std::to_string(needed) + " bytes, as prepass_bytes(...) says");
  }
  ScratchCursor cursor(Scratch{memory.data, memory.bytes});
  const PrepassArrays<S> arrays(cursor, layout.rows, layout.tokens);

  TokenBatch<S> prepared = batch;
  if (memory.uses.empty()) memory.uses.assign(1, 0);
  const bool moves = batch.prepared.uses && batch.prepared.uses != memory.uses.data();
  prepared.prepared.uses = memory.uses.data();
  prepared.prepared.use = ++memory.uses[0];
  prepared.prepared.on_device = arrays.findings;

  const auto reaches = [&](const auto& test) { return (test(passes.reach) || ...); };
  const bool of_mask = reaches([](Reach reach) { return reach == Reach::Mask; }),
             of_surrogate = reaches([](Reach r) { return gdpo::detail::reaches_surrogate(r); }),
             of_kl = reaches([](Reach r) { return gdpo::detail::reaches_kl(r); }),
             of_entropy = reaches([](Reach r) { return gdpo::detail::reaches_entropy(r); }),
             of_level = reaches([](Reach r) { return gdpo::detail::reaches_level(r); });
  // An array of an earlier prepare() with another memory is copied to this one, because only the
  // uses of this one are checked. The mask is written beside the one that pre-passes read.
  CopyArrays<S> copies;
  if (of_mask || (moves && batch.mask))
    copies.mask = arrays.masks[batch.mask.data() == arrays.masks[0] ? 1 : 0];
  if ((moves && batch.completion_mask) || (of_mask && !batch.mask && !batch.completion_mask))
    copies.completion = arrays.completion;
  if (of_surrogate || (moves && batch.weights)) copies.weights = arrays.weights;
  if (of_kl || (moves && batch.kl_weights)) copies.kl_weights = arrays.kl_weights;
  if (of_entropy || (moves && batch.entropy_weights))
    copies.entropy_weights = arrays.entropy_weights;
  if (of_level || (moves && batch.level_log_weights))
    copies.level_log_weights = arrays.level_log_weights;
  if (of_level) copies.level_weights = arrays.level_weights;
  const auto use = [&](auto& tokens, auto* copied) {
    if (copied) tokens = gdpo::detail::dense(layout, copied);
  };
  if (!batch.completion_mask && batch.mask) prepared.completion_mask = batch.mask;
  use(prepared.mask, copies.mask), use(prepared.completion_mask, copies.completion);
  use(prepared.weights, copies.weights), use(prepared.kl_weights, copies.kl_weights);
  use(prepared.entropy_weights, copies.entropy_weights);
  use(prepared.level_log_weights, copies.level_log_weights);
  if (of_mask) ++prepared.prepared.mask_changes;

  const TokenUnits units(layout);
  const bool has_tokens = layout.tokens > 0 && layout.rows > 0;
  if (has_tokens && copies.any()) launch_tokens(device, given, units, copies);
  WriteFindings findings{arrays.non_finite, 0,
                         PrepassFindings{batch.rollout_non_finite, batch.entropy_threshold},
                         batch.prepared.on_device, arrays.findings};
  if (has_tokens && batch.rollout_logp && batch.rollout_non_finite.count == 0) {
    using Kernel = CountRollout<S>;
    findings.blocks = static_cast<int>((std::min)(units.count(), index_t{Kernel::most_blocks}));
    device.launch(findings.blocks, Kernel::largest_block, 0,
                  Kernel{given, units, arrays.non_finite});
  }
  device.launch(1, WriteFindings::threads, 0, findings);

  [[maybe_unused]] const auto run = [&](const auto& pass, const DeviceBatch<S>& on,
                                        const WeightsOut<S>& out) {
    ChosenPrepass<std::decay_t<decltype(pass)>>::visit(
        pass, LaunchPrepass<Device, S>(device, function, on, layout, arrays, out));
  };
  [[maybe_unused]] const auto remove = [&](const auto& pass) {
    if (pass.reach == Reach::Mask) run(pass, given, {copies.mask, nullptr, nullptr});
  };
  if (has_tokens) (remove(passes), ...);
  if (!has_tokens || (!of_surrogate && !of_kl && !of_entropy && !of_level)) return prepared;
  const DeviceBatch<S> left(function, prepared, layout, reads);
  [[maybe_unused]] const auto weigh = [&](const auto& pass) {
    const bool to_surrogate = gdpo::detail::reaches_surrogate(pass.reach),
               to_kl = gdpo::detail::reaches_kl(pass.reach);
    if (to_surrogate || to_kl)
      run(pass, left,
          {nullptr, to_surrogate ? arrays.weights : nullptr, to_kl ? arrays.kl_weights : nullptr});
  };
  (weigh(passes), ...);
  if (of_entropy) {
    TokenBatch<S> weighed_entropy = prepared;
    weighed_entropy.weights = prepared.entropy_weights;  // those so far
    const DeviceBatch<S> of_bonus(function, weighed_entropy, layout, reads);
    [[maybe_unused]] const auto weigh_entropy = [&](const auto& pass) {
      if (gdpo::detail::reaches_entropy(pass.reach))
        run(pass, of_bonus, {nullptr, arrays.entropy_weights, nullptr});
    };
    (weigh_entropy(passes), ...);
  }
  if (!of_level) return prepared;
  TokenBatch<S> weighed_level = prepared;
  weighed_level.weights = gdpo::detail::dense(layout, arrays.level_weights);
  const DeviceBatch<S> of_ratio(function, weighed_level, layout, reads);
  bool shared = true;
  [[maybe_unused]] const auto weigh_level = [&](const auto& pass) {
    if (!gdpo::detail::reaches_level(pass.reach)) return;
    run(pass, of_ratio, {nullptr, arrays.level_weights, nullptr});
    ChosenPrepass<std::decay_t<decltype(pass)>>::visit(
        pass, [&](const auto& chosen) { shared = shared && gdpo::detail::is_shared(chosen); });
  };
  (weigh_level(passes), ...);
  const AddLevelLogs<S> logs{arrays.level_weights, arrays.level_log_weights};
  if (shared) {
    launch_scan(device, of_ratio, logs);
  } else {
    launch_tokens(device, of_ratio, units, logs);
  }
  return prepared;
}

}  // namespace detail

/// Bytes of the PrepassMemory that prepare(device, batch, ...) needs, whatever the pre-passes: 31
/// for each token of a batch of float or 51 of double, 56 for each row, and 280 KB.
///
/// The shape of the batch decides; arrays are not read. A batch that is smaller in both needs no
/// more. `function`: the call that messages name.
template <class S>
std::size_t prepass_bytes(const TokenBatch<S>& batch,
                          const char* function = "gdpo::cuda::prepass_bytes") {
  const auto layout = gdpo::detail::shape_of(function, batch, gdpo::detail::NeedsLogp::No);
  return detail::bytes_of<detail::PrepassArrays<S>>(layout.rows, layout.tokens);
}

}  // namespace cuda

/// The batch with the decisions of its pre-passes, on a device.
///
///     const gdpo::cuda::On on{stream};
///     const auto prepared = gdpo::prepare(on, batch, memory, gdpo::trl::token_truncate,
///                                         gdpo::prepass::Overlong{flags});
///     gdpo::cuda::count_into(on, prepared, counts, scratch);
///     loss(on, prepared, counts, gradient, result, scratch);
///
/// Arguments, order, result and reaches are those of the host (prepass/prepare.hpp), with device
/// pointers in all views and columns; `memory` is a cuda::PrepassMemory of
/// cuda::prepass_bytes(batch) bytes. The pre-passes are those of gdpo/prepass.hpp, not yours; one
/// may be chosen at run time, a struct with `reach` and a std::variant `chosen`. Nothing waits and
/// nothing is copied to the host: what pre-passes find out about the numbers is left at
/// TokenBatch::prepared.on_device, and losses on a device put it into their metrics. The members
/// rollout_non_finite and entropy_threshold of the result are those of `batch`.
///
/// **Bits.** Those of a host with FMA, in every token: a row is added by one thread in the order of
/// its tokens, rows by one thread in their order, and thresholds are selected, not sorted. Only the
/// sums of SecondMoment are in another order: they are added for 16 ranges of m at a time, in an
/// order that the number of tokens decides. Where the mean of the kept tokens is within rounding of
/// the threshold, it may keep one more or fewer, also padded against packed.
///
/// The bits are the same from run to run and for every cuda::Tuning. Weights of masked tokens mean
/// nothing.
///
/// **Cost.** Up to three launches, for copies of what is changed and a count of rollout_logp; then
/// for each pre-pass
///
///     Overlong, DegenerateGroups               1
///     Importance, Gate: Token                  1
///     Importance, Gate: segments, rows         2
///     Importance, Gate: groups                 3, of (rows)^2 steps
///     Gate with GateAdvantage::Row             2 or 3
///     MeanOne                                  3
///     FutureKl, TeacherRatio                   1
///     TeacherPrefix                            2
///     TopEntropy                               14; of double 21; with a threshold 2
///     SecondMoment                             20, and one for each 4 bits of the number of tokens
///     Covariance                               22, and as many
///     EntropyClip                              24, and as many; 25 with zero_advantage
///
/// one more where some have Reach::Level; and one more for packed tokens in the last four, unless
/// TopEntropy has a threshold. Where rows are scanned, a thread takes one token after the other,
/// for eight rows in a block.
///
/// **Errors.** invalid_input as on the host, before anything is enqueued, and for a batch that has
/// offsets alone; cuda::error where a launch fails. Offsets in device memory are not checked: those
/// that decrease make rows shorter.
template <class Device, class S, class... Passes,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
TokenBatch<S> prepare(const Device& device, const TokenBatch<S>& batch, cuda::PrepassMemory& memory,
                      const Passes&... passes) {
  return std::apply(
      [&](const auto&... parts) {
        return cuda::detail::prepare_on(device, batch, memory, parts...);
      },
      std::tuple_cat(detail::parts_of(passes)...));
}

GDPO_END_NAMESPACE
