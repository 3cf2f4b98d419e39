#pragma once
/// \file
/// Advantages on a device: the estimators of gdpo/advantages.hpp over device arrays, on a stream.
///
///     gdpo::RewardBatch batch{gdpo::view(rewards, N, C), gdpo::groups_of(8)};  // device pointers
///     const std::size_t bytes = gdpo::cuda::scratch_bytes(gdpo::trl::gdpo, batch);  // once
///     const gdpo::cuda::On on{stream};
///     gdpo::advantages_into(on, batch, gdpo::trl::gdpo, gdpo::view(out, N), scratch);
///
/// **What it takes.** Every estimator and every column of RewardBatch. Groups are groups_of,
/// by_offsets with offsets on the device, or cuda::sorted_groups in place of by_id
/// (cuda/advantage/groups.hpp). A policy of your own has its operator() marked GDPO_DEVICE.
///
/// **Accuracy.** Statistics are in double. The bits are those of gdpo::seq, whatever the launch
/// configuration, with two exceptions:
///   - Groups are by id and the batch is renormalized. The compensated sums over the batch are
///     added in another order, which gives other bits only where by_id itself would, over shuffled
///     rows (stats/reduce.hpp).
///   - A policy reads the batch (scale::Of::Batch, BatchCentered) and rows are unused or rewards
///     missing. The device adds the remaining values at their places, while the host closes the
///     gaps first; results differ by at most 2^-44 relative. scale::Of::Within and ShrunkStd add
///     over groups, and give the bits of gdpo::seq there too.
///
/// **Errors.** invalid_input with the host's messages, before anything is launched; cuda::error
/// where a launch fails. Data on the device is not checked: offsets that decrease or do not end at
/// N, an order that is no permutation and token counts below 0 give undefined advantages, but no
/// access outside the arrays. Singleton::Error, MissingEntry::Reject and InfiniteEntry::Reject are
/// refused, because a kernel cannot throw. There is no GroupReport and no Workspace::sums().
///
/// **Cost.** Rewards are read once from memory and once more from the cache. One thread adds a
/// column of a group in row order, so groups of thousands of rows take long. Number of launches:
///   - 1 without a second normalization, 2 with one over each group.
///   - Over the batch: 2 for Gdpo of at most 8 rewards in groups of consecutive rows. 3 where the
///     sums over the batch need a pass of their own: by id, SumThenNormalize, more rewards, a
///     policy that reads the members of a group. 4 where a mean is subtracted as well:
///     RenormOver::Tokens, baseline None, a scale for each member, Singleton::Raw.
///   - 4 more where a baseline reads the batch, 8 more where a scale does; 1 more for a clip.
#include <algorithm>
#include <gdpo/advantage/shared/check_rewards.hpp>
#include <gdpo/cuda/advantage/device_batch_step.hpp>
#include <gdpo/cuda/device/scratch.hpp>
#include <gdpo/cuda/device/tuning.hpp>

GDPO_BEGIN_NAMESPACE
namespace cuda {
namespace detail {

/// One call of advantages_into: its checks, its memory and its launches.
template <class T, class Groups, class Baseline, class Scale, class Combine, class Renorm>
class AdvantagesCall {
  static constexpr bool sums_first = gdpo::detail::sums_first_v<Combine>;
  using Stored = layout_t<T>;
  using Call = DeviceCall<Stored, Groups, Baseline, Scale, sums_first>;
  using Order = typename Groups::Order;

 public:
  using Batch = RewardBatch<T, Groups>;
  using Estimator = GroupAdvantage<Baseline, Scale, Combine, Renorm>;

  AdvantagesCall(const char* function, const Batch& batch, const Estimator& e)
      : checked_(check(function, batch, e)),
        call_(function, batch, e),
        renorm_(e.renorm),
        clip_(e.clip),
        windows_(windows_of(call_.rows)),
        reads_batch_(gdpo::detail::BatchReaders::of(e.baseline, e.scale)) {
    may_be_raw_ = Call::zero_sum && e.singleton == Singleton::Raw;
  }

  /// Takes the arrays of the call. A cursor without memory only counts their bytes.
  void take(ScratchCursor& scratch) {
    const index_t rows = call_.rows, numbers = rows * call_.columns;
    call_.combined = scratch.template take<double>(rows);
    const bool can_miss = call_.rules.excludes() && !std::is_integral_v<Stored>;
    const bool no_reward = call_.rules.excludes() && call_.rules.used_rewards.size() == 0;
    if (call_.valid || can_miss || no_reward || call_.singleton == Singleton::Exclude)
      call_.state = scratch.template take<unsigned char>(rows);
    if (call_.columns > columns_at_once) call_.magnitudes = scratch.template take<double>(rows);
    if (may_be_raw_) call_.raw = scratch.template take<unsigned char>(call_.group_count);
    const index_t sets = reads_batch_.any ? (std::max<index_t>)(call_.columns, 1) : 1;
    if (over_batch() || reads_batch_.any) {
      second_ = scratch.template take<SecondSums<Order>>(sets * windows_);
      if (reads_batch_.any || two_passes())
        first_ = scratch.template take<FirstSums<Order>>(sets * windows_);
    }
    if (reads_batch_.any) {
      stats_ = scratch.template take<BatchStat>(sets);
      call_.column_values = scratch.template take<double>(numbers);
      call_.column_states = scratch.template take<unsigned char>(numbers);
    }
    if (reads_batch_.scale) {
      call_.group_squares = scratch.template take<double>(call_.columns * call_.group_count);
      call_.group_sizes = scratch.template take<index_t>(call_.columns * call_.group_count);
    }
    if constexpr (Call::has_members) {
      MemberArrays& members = call_.members;
      members.index = scratch.template take<index_t>(numbers);
      members.values = scratch.template take<double>(numbers);
      if (Call::needs_scratch) members.scratch = scratch.template take<double>(numbers);
      for (std::size_t j = 0; j < gdpo::detail::reward_column_count; ++j) {
        if (call_.member_columns[j]) members.columns[j] = scratch.template take<double>(numbers);
      }
    }
  }

  template <class Device, class R>
  void run(const Device& device, View<R, 1> out) {
    if (call_.rows == 0) return;
    const index_t most = (std::max)(device.tuning().blocks, 1);
    if (reads_batch_.any) read_batch(device, most);
    if (renorm_.over == RenormOver::None) {
      launch_groups(device, most,
                    CombineGroups<Call, CallerOutput<R>>{call_, team_of(256 * most), {out}});
      return clip(device, most, out);
    }
    const AdvantagesOut<R> advantages{call_.combined, call_.state, out};
    combine(device, most);
    if (over_batch()) {
      BatchStep<Order, Renorm, R> kernel{advantages, renorm_};
      if (two_passes()) kernel.first = first_;
      kernel.second = second_;
      if (!by_tokens()) kernel.raw = call_.raw;
      kernel.groups = call_.group_count;
      launch_rows(device, most, kernel, kernel.shared_bytes());
    } else {
      normalize_groups(device, most, advantages, Call::zero_sum, call_.raw);
    }
    clip(device, most, out);
  }

  /// The first stage alone: the combined values, which stay in the scratch, and their moments.
  template <class Device>
  void first_stage(const Device& device, CombinedMoments* moments) {
    StageMoments<Order> kernel{moments, renorm_.over};
    kernel.zero_sum = Call::zero_sum;
    if (call_.rows > 0) {
      combine(device, (std::max)(device.tuning().blocks, 1));
      if (over_batch()) kernel.second = second_, kernel.first = first_;
      kernel.raw = call_.raw;
      kernel.groups = call_.group_count, kernel.rows = call_.rows;
    }
    device.launch(1, kernel.threads, kernel.shared_bytes(), kernel);
  }
  /// The second stage alone, from the combined values in the scratch.
  template <class Device, class R>
  void finish(const Device& device, const CombinedMoments& merged, View<R, 1> out) const {
    if (call_.rows == 0) return;
    const index_t most = (std::max)(device.tuning().blocks, 1);
    const AdvantagesOut<R> advantages{call_.combined, call_.state, out};
    if (renorm_.over == RenormOver::Group) {
      normalize_groups(device, most, advantages, merged.zero_sum, nullptr);
    } else {
      Affine affine;
      if (over_batch()) {
        const bool centered = gdpo::detail::rescales(renorm_.over, merged.zero_sum);
        affine = renorm_(RenormArgs{merged.values, centered});
      }
      launch_rows(device, most, ApplyAffine<R>{advantages, affine});
    }
    clip(device, most, out);
  }

 private:
  template <class Device, class R>
  void clip(const Device& device, index_t most, View<R, 1> out) const {
    if (!gdpo::detail::is_off(clip_)) launch_rows(device, most, ClipAdvantages<R>{out, clip_});
  }
  template <class Device, class R>
  void normalize_groups(const Device& device, index_t most, const AdvantagesOut<R>& advantages,
                        bool zero_sum, const unsigned char* raw) const {
    GroupStep<Groups, Renorm, R> kernel{advantages, renorm_, call_.groups};
    kernel.group_count = call_.group_count;
    kernel.shift = team_of(256 * most);
    kernel.raw = raw;
    kernel.zero_sum = zero_sum;
    launch_groups(device, most, kernel);
  }
  static bool check(const char* function, const Batch& batch, const Estimator& e) {
    gdpo::detail::check_rewards(function, batch, gdpo::detail::reward_settings(e),
                                [&](const char* caller, index_t rows) {
                                  DeviceGroups<Groups>::check(batch.groups, caller, rows);
                                });
    gdpo::detail::check_batch_step(function, batch, e.renorm);
    gdpo::detail::check_fields(function, "baseline", e.baseline);
    gdpo::detail::check_fields(function, "scale", e.scale);
    if (e.singleton == Singleton::Error) {
      contract::fail(function, "singleton", "Error", "Zero, Raw or Nan: a kernel cannot throw");
    }
    if (e.missing.entry == MissingEntry::Reject) {
      contract::fail(function, "missing.entry", "Reject",
                     "Skip, Zero or Propagate: a kernel cannot throw");
    }
    if (e.missing.infinite == InfiniteEntry::Reject) {
      contract::fail(function, "missing.infinite", "Reject",
                     "Propagate, Missing or NanToNum: a kernel cannot throw");
    }
    return true;
  }

  /// The number of threads of a team, as an exponent of two. One thread for each column (of
  /// SumThenNormalize: each member), at most 8; more, up to a warp, where there are too few groups
  /// to fill a grid of `threads` threads. No bit depends on it.
  int team_of(index_t threads) const {
    const index_t length = call_.rows / (std::max<index_t>)(call_.group_count, 1) + 1;
    int shift = 0;
    while ((1 << shift) < columns_at_once && (1 << shift) < (sums_first ? length : call_.columns))
      ++shift;
    while ((1 << shift) < warp && (1 << shift) < length &&
           call_.group_count * (2 << shift) <= threads)
      ++shift;
    return shift;
  }

  /// Makes teams larger, so that a block has fewer of them, until their shared memory fits. Every
  /// device from sm_80 on gives a block 99 KiB, of which block.reduce takes some.
  template <class Kernel>
  static Kernel fitted(Kernel kernel) {
    constexpr std::size_t most_shared = 96 * 1024;
    while (kernel.shared_bytes() > most_shared) ++kernel.shift;
    return kernel;
  }

  bool by_tokens() const { return renorm_.over == RenormOver::Tokens; }
  bool over_batch() const { return renorm_.over == RenormOver::Batch || by_tokens(); }
  /// Whether the renormalization over the batch subtracts a mean, or may have to (raw singletons).
  bool two_passes() const { return by_tokens() || !Call::zero_sum || may_be_raw_; }
  /// Whether one kernel can compute combined values and their sums over the batch (CombineWindow).
  static constexpr bool fits_windows =
      Call::zero_sum && !sums_first && DeviceGroups<Groups>::consecutive && !Call::has_members;
  bool in_windows() const {
    return renorm_.over == RenormOver::Batch && !two_passes() && call_.columns <= columns_at_once;
  }

  /// Launches the combined values, and their sums over the batch if those are needed.
  template <class Device>
  void combine(const Device& device, index_t most) {
    if constexpr (fits_windows) {
      if (in_windows()) {
        const auto kernel = fitted(
            CombineWindow<Call>{call_, team_of(CombineWindow<Call>::threads * most), second_});
        device.launch(windows_, kernel.threads, kernel.shared_bytes(), kernel);
        return;
      }
    }
    launch_groups(device, most, CombineGroups<Call, ScratchOutput>{call_, team_of(256 * most), {}});
    if (over_batch())
      sum_windows(device, 1, {call_.combined, call_.state, {}, call_.rows}, two_passes(),
                  call_.raw);
  }

  template <class Device, class Kernel>
  void launch_groups(const Device& device, index_t most, const Kernel& given) const {
    const Kernel kernel = fitted(given);
    const index_t teams = Kernel::threads >> kernel.shift,
                  tiles = (call_.group_count + teams - 1) / teams;
    device.launch((std::min)(tiles, most), Kernel::threads, kernel.shared_bytes(), kernel);
  }
  template <class Device, class Kernel>
  void launch_rows(const Device& device, index_t most, const Kernel& kernel,
                   std::size_t shared_bytes = 0) const {
    const index_t tiles = (call_.rows + Kernel::threads - 1) / Kernel::threads;
    device.launch((std::min)(tiles, most), Kernel::threads, shared_bytes, kernel);
  }

  /// Launches the sums over the batch of `sets` sets of numbers: second_, and before it first_ if
  /// `twice`.
  template <class Device>
  void sum_windows(const Device& device, index_t sets, WeightedNumbers numbers, bool twice,
                   const unsigned char* raw) {
    if (by_tokens() && numbers.x == call_.combined) numbers.weights = call_.tokens, raw = nullptr;
    if (twice) {
      const SumWindows<FirstSums<Order>, Order> kernel{numbers, nullptr, nullptr, 0, first_};
      device.launch(sets * windows_, kernel.threads, kernel.shared_bytes(), kernel);
    }
    const SumWindows<SecondSums<Order>, Order> kernel{numbers, twice ? first_ : nullptr, raw,
                                                      call_.group_count, second_};
    device.launch(sets * windows_, kernel.threads, kernel.shared_bytes(), kernel);
  }

  /// Launches the statistics over the batch that policies read: of the columns as they stand and,
  /// where a scale reads them, of what the baseline leaves of the columns and inside the groups.
  template <class Device>
  void read_batch(const Device& device, index_t most) {
    if (call_.columns == 0) return;
    const WeightedNumbers numbers{call_.column_values, call_.column_states, {}, call_.rows};
    const auto finish = [&](bool centered) {
      sum_windows(device, call_.columns, numbers, true, nullptr);
      const FinishColumns<Order> kernel{first_,
                                        second_,
                                        windows_,
                                        centered,
                                        stats_,
                                        call_.group_squares,
                                        call_.group_sizes,
                                        call_.group_count};
      device.launch(call_.columns, kernel.threads, kernel.shared_bytes(), kernel);
    };
    launch_rows(device, most, ReadColumns<Call>{call_});
    finish(false);
    call_.batch_stats = stats_;
    if (!reads_batch_.scale) return;
    launch_groups(device, most, CombineGroups<Call, ColumnsOutput>{call_, team_of(256 * most), {}});
    finish(true);
  }

  bool checked_;
  Call call_;
  Renorm renorm_;
  Bounds clip_;
  index_t windows_;
  gdpo::detail::BatchReaders reads_batch_;
  bool may_be_raw_ = false;
  FirstSums<Order>* first_ = nullptr;  // (sets, windows)
  SecondSums<Order>* second_ = nullptr;
  BatchStat* stats_ = nullptr;
};

/// A call of the estimator with its arrays in `scratch`; arguments are checked.
template <class T, class Groups, class B, class S, class C, class Renorm>
AdvantagesCall<T, Groups, B, S, C, Renorm> call_in_scratch(
    const char* function, const RewardBatch<T, Groups>& batch,
    const GroupAdvantage<B, S, C, Renorm>& estimator, const Scratch& scratch) {
  check_group_arrays(function, batch.groups);
  AdvantagesCall<T, Groups, B, S, C, Renorm> call(function, batch, estimator);
  ScratchCursor needed, cursor(scratch);
  call.take(needed);
  check_scratch(function, scratch, needed.bytes());
  call.take(cursor);
  return call;
}

}  // namespace detail

/// Bytes of Scratch that advantages_into needs. Shape and columns of the batch and the settings of
/// the estimator decide; arrays are not read. A batch of fewer rows and groups needs no more.
/// `function`: the call that messages name.
template <class T, class Groups, class B, class S, class C, class Renorm>
std::size_t scratch_bytes(const GroupAdvantage<B, S, C, Renorm>& estimator,
                          const RewardBatch<T, Groups>& batch,
                          const char* function = "gdpo::cuda::scratch_bytes") {
  detail::ScratchCursor cursor;
  detail::AdvantagesCall<T, Groups, B, S, C, Renorm>(function, batch, estimator).take(cursor);
  return cursor.bytes();
}

}  // namespace cuda

/// Advantages on a device (the file's page says how they compare with the host's).
///
/// `batch.rewards` is (N, C) of any strides and storage type. `out` is (N), float or double, of any
/// stride. Both are device arrays, and so is every column of the batch. Unlike on the host, `out`
/// must not overlap the batch: groups are written while others are read. Formulas and edge rules:
/// gdpo/advantages.hpp.
template <class Device, class T, class Groups, class B, class S, class C, class Renorm, class R,
          std::enable_if_t<detail::is_device_v<Device>, int> = 0>
void advantages_into(const Device& device, const RewardBatch<T, Groups>& batch,
                     const GroupAdvantage<B, S, C, Renorm>& estimator, View<R, 1> out,
                     const cuda::Scratch& scratch) {
  constexpr const char* function = "gdpo::advantages";
  detail::check_out(function, batch, out);
  cuda::detail::call_in_scratch(function, batch, estimator, scratch).run(device, out);
}

GDPO_END_NAMESPACE
