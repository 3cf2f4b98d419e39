#pragma once
// select_groups: dynamic sampling, which keeps the groups whose rewards vary.
#include <algorithm>
#include <gdpo/update/engine/spread_reader.hpp>
#include <vector>

GDPO_BEGIN_NAMESPACE
namespace update {

/// Where the rewards of a group must vary, so that the group is not flat. A flat group gives no
/// gradient, so dynamic sampling drops it and samples another prompt in its place.
///
/// Whether values are equal is decided as the estimators decide it: those of one reward by
/// max == min; weighted sums of C > 1 rewards are equal if they differ by rounding alone, which is
/// max - min <= 4 C 2^-53 max_i sum_c |w_c r_ic|. A group with one used row is flat, since there is
/// nothing to compare it with.
enum class FlatIn : unsigned char {
  /// A group is flat if every reward with a weight is. This fits GDPO, which learns from a reward
  /// that varies even if the sum does not. It keeps one kind of group from which GDPO learns
  /// nothing: where standardized rewards cancel, as two of the same weight with a constant sum do.
  /// `Given` with GroupReport::degenerate drops those too.
  EveryReward,
  /// A group is flat if the weighted sum of its rewards is. This fits GRPO. DAPO (arXiv 2503.14476,
  /// eq. 11) and ms-swift (dynamic_sample) filter so.
  Sum,
  /// A group is flat if the reward that `reward` names is, whatever its weight (verl's
  /// filter_groups.metric with the name of a reward, such as acc; its seq_reward and
  /// seq_final_reward are sums).
  Reward,
  /// A group is flat if the caller's flag for it, `given`, is not 0; nothing else decides.
  Given
};
/// The enumerators of FlatIn with their words.
GDPO_DATA_INLINE constexpr auto enumerators(FlatIn) {
  using E = Enumerator<FlatIn>;
  return std::array{E{"every_reward", FlatIn::EveryReward}, E{"sum", FlatIn::Sum},
                    E{"reward", FlatIn::Reward}, E{"given", FlatIn::Given}};
}

/// What select_groups() does when its last attempt has fewer groups than wanted.
enum class GiveUp : unsigned char {
  KeepShort,  ///< It selects the groups that there are, fewer than wanted.
  /// It selects the first `wanted` groups of the batch, whatever is in them. With the groups of the
  /// first attempt standing first, this is ms-swift's return to the original batch.
  KeepFirst,
  Refuse  ///< It throws invalid_input, as verl raises a ValueError.
};
/// The enumerators of GiveUp with their words.
GDPO_DATA_INLINE constexpr auto enumerators(GiveUp) {
  using E = Enumerator<GiveUp>;
  return std::array{E{"keep_short", GiveUp::KeepShort}, E{"keep_first", GiveUp::KeepFirst},
                    E{"refuse", GiveUp::Refuse}};
}

/// What select_groups() found about a group. The first that applies is given.
enum class Verdict : unsigned char {
  Kept,  ///< It passed every test.
  /// No used row has a value: the group has no rows, or all are unused or lack their rewards.
  Empty,
  /// A used row has an infinite reward, or one that is NaN under MissingEntry::Propagate, among
  /// those with a weight or in the one that `reward` names; or the std is too large for a double.
  /// The advantages of such a group would be NaN.
  NotFinite,
  Flat,       ///< Flat, as `flat_in` says.
  SmallStd,   ///< Not flat, but the std is at most `min_std`, which is above 0.
  BelowTopP,  ///< The groups with larger std already have the share `top_p` of all std.
  Surplus     ///< There are `wanted` groups before it.
};
/// The enumerators of Verdict with their words.
GDPO_DATA_INLINE constexpr auto enumerators(Verdict) {
  using E = Enumerator<Verdict>;
  return std::array{E{"kept", Verdict::Kept},
                    E{"empty", Verdict::Empty},
                    E{"not_finite", Verdict::NotFinite},
                    E{"flat", Verdict::Flat},
                    E{"small_std", Verdict::SmallStd},
                    E{"below_top_p", Verdict::BelowTopP},
                    E{"surplus", Verdict::Surplus}};
}

/// The settings of select_groups(). Give it the weights, gates and missing of the estimator, so
/// that both see the same rewards.
struct GroupSelection {
  FlatIn flat_in = FlatIn::EveryReward;  ///< Where a group must vary.
  index_t reward = 0;                    ///< The reward that FlatIn::Reward looks at.
  /// (groups) Not 0: the group is flat. Read by FlatIn::Given alone, and for example
  /// `gdpo::view(report.degenerate)` of a GroupReport.
  View<const unsigned char, 1> given{};
  List<double> weights{};    ///< As GroupAdvantage::weights; empty: all 1.
  List<Gate, 16> gates{};    ///< As GroupAdvantage::gates.
  Missing missing{};         ///< As GroupAdvantage::missing; by default NaN is left out.
  double min_std = 0;        ///< Groups with a std up to this are dropped too; at least 0.
  double top_p = 1;          ///< Share of the std that is kept, above 0 and at most 1; 1: all.
  index_t wanted = 0;        ///< Groups to be selected; 0: as many as pass.
  index_t max_attempts = 0;  ///< The last attempt; 0: there is none.
  GiveUp give_up = GiveUp::KeepShort;  ///< What happens if the last attempt has too few groups.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("flat_in", s.flat_in, "where a group must vary");
    field("reward", s.reward, finite(), "the reward that FlatIn::Reward looks at");
    field("given", s.given, "flags of flat groups, for FlatIn::Given");
    field("weights", s.weights, "those of the estimator");
    field("gates", s.gates, "those of the estimator");
    field("missing", s.missing, "that of the estimator");
    field("min_std", s.min_std, at_least(0), "groups with a std up to this are dropped");
    field("top_p", s.top_p, more_than(0).at_most(1).with_note("1: all"),
          "share of the std that is kept");
    field("wanted", s.wanted, at_least(0).with_note("0: all that pass"), "groups to be selected");
    field("max_attempts", s.max_attempts, at_least(0).with_note("0: no limit"), "the last attempt");
    field("give_up", s.give_up, "what happens if the last attempt has too few groups");
  }
};

/// What select_groups() selected, and why not the rest.
struct SelectedGroups {
  std::vector<index_t> groups;  ///< The selected groups, ascending.
  /// Their rows, group after group, with the rows that `valid` marks as unused.
  std::vector<index_t> rows;
  /// (selected + 1) Where each group begins in `rows`. For arrays that hold these rows alone,
  /// `gdpo::by_offsets(offsets)` is the grouping.
  std::vector<index_t> offsets;
  std::vector<Verdict> verdict;   ///< (groups of the batch) What was found about each.
  std::vector<double> group_std;  ///< (groups of the batch) The std, as select_groups() has it.
  /// Groups that are flat in the weighted sum, but vary in a reward: FlatIn::Sum drops them, and
  /// FlatIn::EveryReward keeps them.
  index_t flat_in_sum_only = 0;
  index_t refill = 0;    ///< How many groups are missing to `wanted`: the prompts to sample.
  bool gave_up = false;  ///< This was the last attempt, and too few groups passed.

  /// The number of groups of the batch with this verdict.
  index_t count(Verdict kind) const { return std::count(verdict.begin(), verdict.end(), kind); }
};

}  // namespace update

namespace detail {

/// Checks what select_groups() takes besides the batch; `groups` is the number of groups.
inline void check_selection(const char* function, const update::GroupSelection& settings,
                            index_t rewards, index_t groups, index_t attempt) {
  using contract::fail, contract::text;
  using update::FlatIn;
  check_fields(function, "", settings);
  if (settings.flat_in == FlatIn::Reward && (settings.reward < 0 || settings.reward >= rewards)) {
    fail(function, "reward", text(settings.reward),
         "one of " + text(rewards) + " rewards, counted from 0");
  }
  if (settings.flat_in == FlatIn::Given) {
    if (settings.given.extent[0] != groups) {
      fail(function, "given", text(settings.given.extent[0]) + " entries",
           "one for each of the " + text(groups) + " groups");
    }
    contract::check_array(function, "given", settings.given);
  }
  if (attempt < 0 || (attempt == 0 && settings.max_attempts > 0))
    fail(function, "attempt", text(attempt), "1 for the first, then 2, and so on");
  if (settings.max_attempts > 0 && attempt > settings.max_attempts) {
    fail(function, "attempt", text(attempt),
         "at most max_attempts, which is " + text(settings.max_attempts));
  }
}

/// Gives BelowTopP to the kept groups that are not needed for the share top_p of all std.
/// rounding: (groups) how far rounding can move each std. Std that differ by no more than the
/// roundings of both are the same, and so is each run of such std among the sorted ones: equality
/// of two alone would not be transitive.
inline void keep_top_p(double top_p, const std::vector<double>& rounding,
                       update::SelectedGroups& s) {
  std::vector<std::size_t> order;
  for (std::size_t g = 0; g < s.verdict.size(); ++g) {
    if (s.verdict[g] == update::Verdict::Kept) order.push_back(g);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&s](std::size_t a, std::size_t b) { return s.group_std[a] > s.group_std[b]; });
  for (std::size_t k = 0, first = 0; k < order.size(); ++k) {
    const std::size_t g = order[k], next = k + 1 < order.size() ? order[k + 1] : g;
    if (next != g && s.group_std[g] - s.group_std[next] <= rounding[g] + rounding[next]) continue;
    std::sort(order.begin() + static_cast<std::ptrdiff_t>(first),
              order.begin() + static_cast<std::ptrdiff_t>(k + 1));
    first = k + 1;
  }
  // A sum that misses the share by rounding alone has reached it, as 4 of 10 equal std do at 0.4.
  TwoSum<double> total, reached;
  double slack = 0;
  for (const std::size_t g : order) total.add(s.group_std[g]), slack += rounding[g];
  const double share = math::mul(top_p, total.value());
  slack += math::mul(0x1p-51, share);
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (k > 0 && reached.value() + slack >= share) s.verdict[order[k]] = update::Verdict::BelowTopP;
    reached.add(s.group_std[order[k]]);
  }
}

}  // namespace detail

namespace update {

/// Selects the groups of a batch to train on, and says how many are missing: dynamic sampling.
///
/// Four tests stand one after the other. A group whose rewards do not vary is dropped (`flat_in`),
/// and so is one whose std is at most `min_std`. Of the rest, those with the largest std are kept,
/// up to and with the group at which their std add up to the share `top_p` of the total; at least
/// one. Of those, the first `wanted` are kept. Groups with the same std are ranked in their order,
/// which with by_id is that of ascending ids. Std are the same, and equal to `min_std`, where they
/// differ by no more than rounding can make: those of {0, 0, 0, 1, 0} and {1, 0, 0, 0, 0} do.
///
/// The std of a group has ddof 1, and is 0 for fewer than two values and NaN under
/// Verdict::NotFinite. With FlatIn::Sum and Given it is that of the weighted sum, with Reward that
/// of the reward. With EveryReward it is sqrt(sum_c w_c^2 std_c^2), the std that the sum would have
/// if its rewards were uncorrelated: it does not cancel where the sum does.
///
/// Sampling until the batch is full, at most max_attempts times:
///
///     for (gdpo::index_t attempt = 1;; ++attempt) {
///       sample(prompts, rewards);  // appends 8 rows of 2 rewards for each prompt
///       const gdpo::RewardBatch batch{gdpo::view(rewards.data(), rewards.size() / 2, 2),
///                                     gdpo::groups_of(8)};
///       chosen = gdpo::update::select_groups(batch, settings, attempt);
///       if (chosen.refill == 0 || chosen.gave_up) break;
///       prompts = next_prompts(chosen.refill);
///     }
///     train(chosen.rows);
///
/// Every rank that passes the same rewards gets the same answer, to the bit. The groups are those
/// of the whole batch, so with several ranks give it the gathered rows (`dist::gather_rows`).
///
/// Where trainers differ. verl's filter_groups keeps groups of one row, which are flat here, and
/// its max_num_gen_batches is `max_attempts` with GiveUp::Refuse. ms-swift's max_resample_times,
/// 3, is `max_attempts` with GiveUp::KeepFirst: it judges that many batches. RAGEN
/// (rollout_filter_strategy top_p, linear) subtracts 0.01 from the sum that has to be reached, and
/// keeps nothing where it is not; its softmax mode has no counterpart here.
///
/// batch: rewards (N, C), groups, and `valid`; other columns are only checked. attempt: 1 for the
/// first call of a step, then 2, and so on; 0 where `max_attempts` is 0 and attempts are not
/// counted. Time O(N C + G log G) for G groups; allocates.
///
/// Errors: invalid_input for shapes that do not fit, and for settings out of their range, as the
/// members say; for an attempt above max_attempts, or 0 beside it; under GiveUp::Refuse, if the
/// last attempt has too few groups; under MissingEntry::Reject for a NaN.
template <class T, class Groups>
SelectedGroups select_groups(const RewardBatch<T, Groups>& batch,
                             const GroupSelection& settings = {}, index_t attempt = 0) {
  static_assert(detail::is_host_grouping_v<Groups>,
                "the groups of the batch are groups_of, by_offsets or by_id");
  using contract::text;
  constexpr const char* function = "gdpo::update::select_groups";
  contract::check_array(function, "rewards", batch.rewards);
  const bool by_one = settings.flat_in == FlatIn::Reward;
  const index_t rewards = batch.rewards.extent[1], reward = settings.reward;
  detail::SpreadReader<T, Groups> spreads(function, batch, settings.weights, settings.gates,
                                          settings.missing,
                                          by_one && reward < rewards ? reward : index_t{-1});
  const index_t groups = batch.groups.count(batch.rewards.extent[0]);
  detail::check_selection(function, settings, rewards, groups, attempt);

  SelectedGroups s;
  s.group_std.reserve(detail::as_size(groups)), s.verdict.reserve(detail::as_size(groups));
  std::vector<double> rounding;  // of each std
  rounding.reserve(detail::as_size(groups));
  for (index_t g = 0; g < groups; ++g) {
    spreads.read(g);
    const detail::GroupSpread by_reward = spreads.of_rewards(), sum = spreads.of_sum();
    detail::GroupSpread judged = settings.flat_in == FlatIn::EveryReward ? by_reward
                                 : by_one                                ? spreads.of_reward()
                                                                         : sum;
    if (settings.flat_in == FlatIn::Given) judged.flat = settings.given(g) != 0;
    const double std = judged.std();
    const bool unknown = by_reward.unknown || judged.unknown || math::not_finite(std);
    s.flat_in_sum_only += sum.any && sum.flat && !by_reward.flat;
    rounding.push_back(judged.rounding());
    const bool is_small = settings.min_std > 0 && std - rounding.back() <= settings.min_std;
    s.group_std.push_back(unknown ? math::nan() : std);
    s.verdict.push_back(!judged.any   ? Verdict::Empty
                        : unknown     ? Verdict::NotFinite
                        : judged.flat ? Verdict::Flat
                        : is_small    ? Verdict::SmallStd
                                      : Verdict::Kept);
  }
  if (settings.top_p < 1) detail::keep_top_p(settings.top_p, rounding, s);

  index_t kept = 0;
  for (Verdict& v : s.verdict) {
    if (v != Verdict::Kept) continue;
    if (settings.wanted > 0 && kept == settings.wanted)
      v = Verdict::Surplus;
    else
      ++kept;
  }
  s.gave_up = kept < settings.wanted && attempt > 0 && attempt == settings.max_attempts;
  if (s.gave_up && settings.give_up == GiveUp::Refuse) {
    contract::fail(function, "batch",
                   text(kept) + " groups to train on, at attempt " + text(attempt) + ", the last",
                   text(settings.wanted) + " groups, because give_up is Refuse");
  }
  const bool first = s.gave_up && settings.give_up == GiveUp::KeepFirst;
  s.offsets.push_back(0);
  for (index_t g = 0; g < groups; ++g) {
    if (first ? g >= settings.wanted : s.verdict[detail::as_size(g)] != Verdict::Kept) continue;
    s.groups.push_back(g);
    s.offsets.push_back(s.offsets.back() + batch.groups.length(g));
  }
  s.rows.resize(detail::as_size(s.offsets.back()));
  index_t* row = s.rows.data();
  for (const index_t g : s.groups) {
    for (index_t k = 0; k < batch.groups.length(g); ++k) *row++ = batch.groups.row(g, k);
  }
  s.refill = (std::max)(index_t{0}, settings.wanted - static_cast<index_t>(s.groups.size()));
  return s;
}

}  // namespace update
GDPO_END_NAMESPACE
