#pragma once
// GroupReport: what a call counted and measured besides the advantages.
#include <algorithm>
#include <cmath>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/stats/moments.hpp>
#include <map>
#include <string>
#include <vector>

namespace gdpo {

/// One reward over the batch.
/// Its statistics are those of the values that are there: gates are applied, penalties and bounds
/// are not; unused rows are left out, and so are missing rewards, even where they count as 0
/// (MissingEntry::Zero). Rewards of weight 0 are described too.
struct RewardReport {
  // Inlined for the same reason as the members of GroupReport below.
  /// A reward without values.
  GDPO_DATA_HOST_INLINE RewardReport() = default;

  index_t n = 0;    ///< Number of values.
  double mean = 0,  ///< Their mean; NaN where there is none.
      std = 0;      ///< Their standard deviation, ddof 1; NaN where n < 2.
  double min = 0,   ///< The smallest; NaN where there is none.
      max = 0;      ///< The largest; NaN where there is none.
  /// Among the groups that have a value, the fraction in which all values are equal; 0 without
  /// such groups. Here missing rewards that count as 0 are values, a reward that is normalized by
  /// itself is within its bounds (GroupAdvantage::reward_clip), and its penalty is subtracted.
  double zero_std_groups = 0;
  /// How much of the advantages the reward explains: the share of the squared combined values s,
  /// each group about its mean, that comes from this reward,
  ///
  ///     sum_g Q_g cov_g(u, t) / var_g(t) / sum_g Q_g,    Q_g = sum_i (s_i - mean_g s)^2
  ///
  /// u_i is the reward's part of a sum t_i. With NormalizeThenSum u is its standardized value times
  /// its weight and t = s; with SumThenNormalize u is the reward times its weight and t the
  /// weighted sum. Rows that count enter, and groups in which s and t differ and no reward is
  /// infinite; a missing reward has the part 0. The shares of all rewards add up to 1, to less or
  /// more where a penalty or a bound is in the sum. A share below 0: the reward works against the
  /// sum of the others. 1 for a single reward that counts; NaN where no group has a spread.
  double explained = 0;

  /// What merge() adds up; the numbers above follow from these four, and `within_squares` of the
  /// whole report.
  Moments values;                ///< Of the values.
  index_t known_groups = 0,      ///< Groups that have a value, counted as for `zero_std_groups`.
      flat_groups = 0;           ///< Those of them in which all values are equal.
  double explained_squares = 0;  ///< The numerator of `explained`.
};

/// How `GroupReport::zero_std_rows` counts the rows whose reward sums have no spread.
enum class ZeroStd {
  /// The fraction of rows in groups of one row or whose reward sums have std <= 1e-8.
  Groups,
  /// 1 if the reward sums of the whole batch have std <= 1e-8, else 0 (TRL,
  /// scale_rewards="batch").
  Batch,
  /// 1 if the combined values before renorm have std <= 1e-8, else 0 (TRL, normalize_then_sum).
  Sum
};
/// The enumerators of ZeroStd with their words.
GDPO_DATA_INLINE constexpr auto enumerators(ZeroStd) {
  using E = Enumerator<ZeroStd>;
  return std::array{E{"groups", ZeroStd::Groups}, E{"batch", ZeroStd::Batch},
                    E{"sum", ZeroStd::Sum}};
}

/// Which standard deviation of the reward sums `GroupReport::to_map` writes as `reward_std`.
enum class RewardStd {
  /// That over all rows, `reward_std`: TRL since multi_objective_aggregation, and ms-swift with
  /// scale_rewards="batch".
  Batch,
  /// The mean of those of the groups, `reward_std_mean_of_groups`: ms-swift otherwise, and earlier
  /// releases of TRL.
  MeanOfGroups
};
/// The enumerators of RewardStd with their words.
GDPO_DATA_INLINE constexpr auto enumerators(RewardStd) {
  using E = Enumerator<RewardStd>;
  return std::array{E{"batch", RewardStd::Batch}, E{"mean_of_groups", RewardStd::MeanOfGroups}};
}

/// What a call of `advantages` saw: counts, degenerate groups and statistics of the rewards.
/// Statistics of the *reward sum* are those of sum_c w_c r_ic over the rows that are neither
/// unused nor excluded; gates and bounds of rewards are applied, and the penalty is subtracted.
/// A report may be used again: each call overwrites every field. merge() gives the report of two
/// micro-batches or ranks together.
struct GroupReport {
  // These members are written out so that they are inlined. The report is plain data outside the
  // inline namespace, so objects compiled for different processors would otherwise share them.
  /// An empty report.
  GDPO_DATA_HOST_INLINE GroupReport() = default;
  GDPO_DATA_HOST_INLINE GroupReport(const GroupReport&) = default;             ///< A copy.
  GDPO_DATA_HOST_INLINE GroupReport(GroupReport&&) = default;                  ///< A move.
  GDPO_DATA_HOST_INLINE GroupReport& operator=(const GroupReport&) = default;  ///< A copy.
  GDPO_DATA_HOST_INLINE GroupReport& operator=(GroupReport&&) = default;       ///< A move.
  GDPO_DATA_HOST_INLINE ~GroupReport() = default;

  std::vector<RewardReport> rewards;  ///< (C) each reward by itself.
  index_t rows = 0,                   ///< N.
      groups = 0;                     ///< Groups of the grouping, empty ones included.
  index_t smallest_group = 0,         ///< Rows of the smallest group, unused rows included.
      largest_group = 0;              ///< Rows of the largest group, unused rows included.
  index_t singletons = 0;  ///< Groups with exactly one row that is used and not excluded.
  /// Groups without such a row: they have no rows, or all are unused or excluded. They are
  /// `degenerate`, but nothing is wrong with their rewards.
  index_t empty_groups = 0;
  bool one_group = false;  ///< There is one group only: a batch renormalization sees nothing else.
  /// Missing (NaN) entries, after gates, of rewards with a weight other than 0 in used rows.
  index_t excluded_rewards = 0;
  /// Infinite entries of rewards with a weight other than 0 in used rows. They make the
  /// advantages of their group NaN, and through a batch renormalization all advantages.
  index_t infinite_rewards = 0;
  index_t excluded_rows = 0;  ///< Used rows without any reward, but under MissingRow::Keep.
  index_t unused_rows = 0;    ///< Rows with valid == 0.
  /// (groups) 1: all combined values of the group before renorm are equal, or it has none. With a
  /// constrained estimator (gdpo/constraint.hpp) its advantages are compared instead.
  std::vector<unsigned char> degenerate;
  /// (groups, C) row-major; 1: all values of the reward that its statistics use in the group are
  /// equal, or there is none.
  std::vector<unsigned char> reward_degenerate;
  /// (groups) std, ddof 1, of the reward sum in the group. 0 for a group of one row; NaN for
  /// other groups with fewer than two rows that count.
  std::vector<double> group_std;
  /// (groups, C) row-major: std, ddof 1, of the values of each reward in the group; NaN below two.
  std::vector<double> reward_group_std;
  /// (groups) sum of the squared combined values of the group, over the rows that count.
  std::vector<double> group_squares;
  double reward_mean = 0;  ///< Mean of the reward sum; NaN where no row counts.
  double reward_std = 0;   ///< Std of the reward sum over all rows, ddof 1; NaN below two (TRL).
  /// Mean of the entries of group_std that are not NaN (ms-swift); NaN where all are.
  double reward_std_mean_of_groups = 0;
  double combined_std = 0;         ///< Std of the combined values before renorm, ddof 1.
  double zero_std_group_rows = 0;  ///< The answer of zero_std_rows(ZeroStd::Groups).

  /// What merge() adds up; the means, stds and fractions above follow from these.
  Moments reward_sums;    ///< Of the reward sums of all rows that count.
  Moments group_stds;     ///< Of the entries of group_std that are not NaN.
  Moments combined;       ///< Of the combined values before renorm.
  index_t flat_rows = 0;  ///< The rows that zero_std_rows(ZeroStd::Groups) is the fraction of.
  /// Sum of Q_g over the groups of `RewardReport::explained`.
  double within_squares = 0;
  /// (C (C - 1) / 2, 3) row-major: the rewards in pairs, 0 and 1, 0 and 2, ..., 1 and 2, ... In the
  /// rows that are used and have a finite value of both, each reward after the gates and about its
  /// mean over these rows of its group: the sum of the products, and those of the squares of the
  /// first and of the second.
  std::vector<double> pairs;

  /// The correlation of two rewards within groups, -1 to 1: of their differences from the means of
  /// the group, pooled over all groups. Two rewards that agree on which completion of a prompt is
  /// better have one near 1; below 0 they pull the policy apart. NaN where one of the two has no
  /// spread in any group, and where the sums of squares overflow or vanish, as those of rewards
  /// beyond 1e150 or below 1e-150 may; 1 of a reward with itself. Another number than 0 to C - 1
  /// throws invalid_input.
  GDPO_DATA_HOST_INLINE double correlation(index_t a, index_t b) const;
  /// How many groups have equal combined values although some reward differs within them: rewards
  /// cancel each other, or one that alone differs has weight 0.
  GDPO_DATA_HOST_INLINE index_t canceled_groups() const;

  /// The fraction of rows without a spread, from 0 to 1, counted as `basis` says.
  GDPO_DATA_HOST_INLINE double zero_std_rows(ZeroStd basis) const {
    if (basis == ZeroStd::Groups) return zero_std_group_rows;
    return (basis == ZeroStd::Batch ? reward_std : combined_std) <= 1e-8 ? 1.0 : 0.0;
  }

  /// The largest |s_i|, s_i being the combined values before renorm; 0 where no row counts, NaN
  /// where a value is NaN. For GRPO it is the largest |advantage|, in stds of its group; for GDPO
  /// the weighted sum of such numbers. A group of K values has no member further than
  /// (K - 1) / sqrt(K) sample stds from its mean, so under a scale by the group's std more than
  /// that comes from the weights; a shrunk or robust scale has no such bound.
  GDPO_DATA_HOST_INLINE double largest_z() const;

  /// The number of groups whose reward sum has a spread, but one with a std below `s` times
  /// `reward_std`, the batch's. Division by their own std blows them up by more than 1 / s against
  /// division by the batch's. Groups without a spread are not counted. `s`: at least 0, else
  /// invalid_input.
  GDPO_DATA_HOST_INLINE index_t narrow_groups(double s = 0.1) const;
  /// The same for `reward` by itself (entries of `reward_group_std` against its std over the
  /// batch), as GDPO divides by it. Another number than 0 to C - 1 throws invalid_input.
  GDPO_DATA_HOST_INLINE index_t narrow_groups(double s, index_t reward) const;

  /// The share, 0 to 1, of the batch's squared combined values (`group_squares`) that the largest
  /// `fraction` of the groups have; at least one group is taken, and part of a group is rounded up.
  /// Where all groups weigh the same it is about `fraction`. A renormalization that only rescales
  /// keeps it, so it is that of the squared advantages. 0 where all values are 0, NaN where one is
  /// NaN. `fraction` outside 0 to 1 throws invalid_input. Allocates a copy of `group_squares`.
  GDPO_DATA_HOST_INLINE double top_groups_share(double fraction = 0.01) const;

  /// The rewards under the keys that TRL and ms-swift log, each after `prefix`:
  ///
  ///     reward, reward_std       mean of the reward sum, and its std as `std` says
  ///     frac_reward_zero_std     the answer of zero_std_rows(zero_std)
  ///     rewards/{name}/mean, rewards/{name}/std
  ///                              each reward over all rows that have it, ddof 1
  ///
  /// What cannot be known has no key: a mean of no value, a std of one, a fraction of no rows. A
  /// reward that is infinite, and one that is NaN and is passed on, give NaN, as in the trainers.
  ///
  /// names: those of the C rewards, all different; empty: "0", "1" and so on. zero_std, std: what
  /// the trainer logs (trl/trainer/grpo_trainer.py, swift/rl_core/advantage.py):
  ///
  ///     TRL, scale_rewards "group" or "none"   ZeroStd::Groups  RewardStd::Batch
  ///     TRL, scale_rewards "batch"             ZeroStd::Batch   RewardStd::Batch
  ///     TRL, normalize_then_sum                ZeroStd::Sum     RewardStd::Batch
  ///     ms-swift, scale_rewards "batch"        ZeroStd::Groups  RewardStd::Batch
  ///     ms-swift otherwise, also "gdpo"        ZeroStd::Groups  RewardStd::MeanOfGroups
  ///
  /// Another number of names than of rewards, or a name twice, throws invalid_input. `Map` is any
  /// type that maps strings to numbers. The function is a template, so that programs that log
  /// nothing do not compile it.
  template <class Map = std::map<std::string, double>>
  GDPO_DATA_HOST_INLINE Map to_map(const std::string& prefix = "",
                                   const std::vector<std::string>& names = {},
                                   ZeroStd zero_std = ZeroStd::Groups,
                                   RewardStd std = RewardStd::Batch) const;
  /// Deleted: names without a prefix before them would become a string of two pointers.
  template <class Map = std::map<std::string, double>>
  void to_map(std::initializer_list<const char*> names) const = delete;
};

}  // namespace gdpo

GDPO_BEGIN_NAMESPACE
namespace detail {

inline double mean_or_nan(const Moments& m) { return m.n > 0 ? m.mean : math::nan(); }
inline double std_or_nan(const Moments& m) { return m.n > 1 ? stddev(m) : math::nan(); }
inline double fraction_of(index_t part, index_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

/// Fills in what follows from the moments and counts of a report. A call and merge() both end here.
GDPO_NOINLINE inline void derive(GroupReport& r) {
  for (RewardReport& reward : r.rewards) {
    const Moments& m = reward.values;
    reward.n = m.n;
    reward.mean = mean_or_nan(m);
    reward.std = std_or_nan(m);
    reward.min = m.n > 0 ? m.min : math::nan();
    reward.max = m.n > 0 ? m.max : math::nan();
    reward.zero_std_groups = fraction_of(reward.flat_groups, reward.known_groups);
    reward.explained =
        r.within_squares > 0 ? reward.explained_squares / r.within_squares : math::nan();
  }
  r.one_group = r.groups == 1;
  r.reward_mean = mean_or_nan(r.reward_sums);
  r.reward_std = std_or_nan(r.reward_sums);
  r.reward_std_mean_of_groups = mean_or_nan(r.group_stds);
  r.combined_std = std_or_nan(r.combined);
  r.zero_std_group_rows = fraction_of(r.flat_rows, r.rows);
}

/// The moments of two sets together, also where one holds an infinity: then moments_of() over both
/// has NaN as mean and m2, unless all members are equal, and the range is known.
inline Moments merge_described(const Moments& a, const Moments& b) {
  Moments m = merge(a, b);
  if (a.n == 0 || b.n == 0 || math::is_nan(a.min) || math::is_nan(b.min)) return m;
  m.min = (math::min)(a.min, b.min), m.max = (math::max)(a.max, b.max);
  if (!degenerate(m) && (math::is_inf(m.min) || math::is_inf(m.max)))
    m.mean = m.mean_low = m.m2 = math::nan();
  return m;
}

/// How merge() joins a count of two reports.
enum class CountOf { Both, SmallerGroup, LargerGroup };
/// A count of a GroupReport, with the name of its number.
struct ReportCount {
  using Member = index_t GroupReport::*;
  const char* name;
  Member member;
  CountOf merged = CountOf::Both;
};
/// The members of a GroupReport from which the others follow (derive), each said once: merge(),
/// how a report travels between ranks and the numbers that Python has walk these lists. A new
/// member gets a line here, and a value in engine/fill_report.hpp.
inline constexpr ReportCount report_counts[] = {
    {"rows", &GroupReport::rows},
    {"groups", &GroupReport::groups},
    {"smallest_group", &GroupReport::smallest_group, CountOf::SmallerGroup},
    {"largest_group", &GroupReport::largest_group, CountOf::LargerGroup},
    {"singletons", &GroupReport::singletons},
    {"empty_groups", &GroupReport::empty_groups},
    {"excluded_rewards", &GroupReport::excluded_rewards},
    {"infinite_rewards", &GroupReport::infinite_rewards},
    {"excluded_rows", &GroupReport::excluded_rows},
    {"unused_rows", &GroupReport::unused_rows},
    {"flat_rows", &GroupReport::flat_rows}};
inline constexpr std::pair<const char*, Moments GroupReport::*> report_moments[] = {
    {"reward_sums", &GroupReport::reward_sums},
    {"group_stds", &GroupReport::group_stds},
    {"combined", &GroupReport::combined}};
/// Numbers that merge() adds.
inline constexpr std::pair<const char*, double GroupReport::*> report_sums[] = {
    {"within_squares", &GroupReport::within_squares}};
/// Calls f(member) for each of those with entries for each group: merge() puts the entries of both
/// reports behind each other.
template <class F>
constexpr void for_each_report_list(const F& f) {
  f(&GroupReport::degenerate), f(&GroupReport::reward_degenerate);
  f(&GroupReport::group_std), f(&GroupReport::reward_group_std), f(&GroupReport::group_squares);
}
constexpr std::size_t report_lists() {
  std::size_t lists = 0;
  for_each_report_list([&lists](auto) { ++lists; });
  return lists;
}
/// The numbers that derive() fills in: five, and the flag one_group.
constexpr std::size_t derived_numbers = 5 + 1;
// Where pointers have 32 bits, there is padding behind the lists.
static_assert(sizeof(void*) < sizeof(index_t) ||
                  sizeof(GroupReport) == std::size(report_counts) * sizeof(index_t) +
                                             std::size(report_moments) * sizeof(Moments) +
                                             std::size(report_sums) * sizeof(double) +
                                             (2 + report_lists()) * sizeof(std::vector<double>) +
                                             derived_numbers * sizeof(double),
              "a member of GroupReport is in one of these lists, or derived from those that are");

/// How many groups are degenerate although some reward differs within them.
inline index_t canceled_groups(const GroupReport& r) {
  const std::size_t rewards = r.rewards.size();
  index_t canceled = 0;
  for (std::size_t g = 0; g < r.degenerate.size(); ++g) {
    bool differs = false;
    for (std::size_t c = 0; c < rewards && (g + 1) * rewards <= r.reward_degenerate.size(); ++c)
      differs = differs || r.reward_degenerate[g * rewards + c] == 0;
    canceled += r.degenerate[g] != 0 && differs;
  }
  return canceled;
}

/// Where the pair of rewards a < b is among the pairs of so many rewards.
constexpr std::size_t pair_index(std::size_t a, std::size_t b, std::size_t rewards) {
  return a * rewards - a * (a + 1) / 2 + (b - a - 1);
}
constexpr std::size_t pair_count(std::size_t rewards) {
  return rewards == 0 ? 0 : rewards * (rewards - 1) / 2;
}
/// Throws unless there is a reward of that number.
GDPO_COLD inline void check_reward_number(const char* function, const char* argument,
                                          index_t reward, std::size_t rewards) {
  const auto count = static_cast<index_t>(rewards);
  if (reward >= 0 && reward < count) return;
  contract::fail(function, argument, contract::text(reward),
                 count == 0 ? contract::Text("a report that a call has filled in")
                            : "0 to " + contract::text(count - 1) + ", a reward");
}

/// Checks the names of C rewards; `argument` is what the caller calls them.
GDPO_COLD inline void check_reward_names(const char* function, const char* argument,
                                         const std::vector<std::string>& names,
                                         std::size_t rewards) {
  if (names.empty()) return;
  if (names.size() != rewards) {
    contract::fail(
        function, argument, contract::text(static_cast<index_t>(names.size())) + " names",
        rewards == 0
            ? contract::Text("none: no call has filled in this report")
            : contract::text(static_cast<index_t>(rewards)) + ", one for each reward, or none");
  }
  for (std::size_t c = 1; c < names.size(); ++c) {
    for (std::size_t k = 0; k < c; ++k) {
      if (names[k] == names[c])
        contract::fail(function, argument, contract::Text("\"") + names[c] + "\" twice",
                       "a name of its own for each reward");
    }
  }
}
/// The name of reward c: "c" where there are no names.
GDPO_COLD inline std::string reward_name(const std::vector<std::string>& names, std::size_t c) {
  return names.empty() ? std::to_string(c) : names[c];
}

template <class Map>
Map reward_keys(const GroupReport& r, const std::string& prefix,
                const std::vector<std::string>& names, ZeroStd zero_std, RewardStd std) {
  constexpr const char* function = "gdpo::GroupReport::to_map";
  check_reward_names(function, "names", names, r.rewards.size());
  check_fields(function, "zero_std", zero_std);
  check_fields(function, "std", std);
  Map map;
  if (r.reward_sums.n > 0) map[prefix + "reward"] = r.reward_mean;
  if (std == RewardStd::Batch ? r.reward_sums.n > 1 : r.group_stds.n > 0)
    map[prefix + "reward_std"] =
        std == RewardStd::Batch ? r.reward_std : r.reward_std_mean_of_groups;
  if (r.rows > 0) map[prefix + "frac_reward_zero_std"] = r.zero_std_rows(zero_std);
  for (std::size_t c = 0; c < r.rewards.size(); ++c) {
    const std::string key = prefix + "rewards/" + reward_name(names, c);
    if (r.rewards[c].n > 0) map[key + "/mean"] = r.rewards[c].mean;
    if (r.rewards[c].n > 1) map[key + "/std"] = r.rewards[c].std;
  }
  return map;
}

/// The number of entries of `stds`, from `first` on in steps of `step`, that are above 0 and below
/// `bound`.
inline index_t count_narrow(const std::vector<double>& stds, std::size_t first, std::size_t step,
                            double bound) {
  index_t narrow = 0;
  for (std::size_t g = first; g < stds.size(); g += step) narrow += stds[g] > 0 && stds[g] < bound;
  return narrow;
}
GDPO_COLD inline void check_narrow(double s) {
  if (!(s >= 0) || math::is_nan(s)) {
    contract::fail("gdpo::GroupReport::narrow_groups", "s", contract::text(s),
                   "a factor of the batch's std, at least 0");
  }
}

/// The share of the sum of `squares` that its largest `fraction` has. `squares` is reordered.
inline double top_share(std::vector<double> squares, double fraction) {
  if (squares.empty()) return 0;
  double total = 0;
  for (const double square : squares) total += square;
  const double wanted = std::ceil(fraction * static_cast<double>(squares.size()));
  const auto top =
      squares.begin() + (std::max)(std::ptrdiff_t{1}, static_cast<std::ptrdiff_t>(wanted));
  if (math::is_nan(total) || math::is_inf(total)) return math::nan();
  std::partial_sort(squares.begin(), top, squares.end(), [](double a, double b) { return a > b; });
  double most = 0;
  for (auto square = squares.begin(); square != top; ++square) most += *square;
  return total > 0 ? (std::min)(most / total, 1.0) : 0.0;
}

}  // namespace detail

/// The report of two micro-batches or ranks together, as one call over the groups of `a` and then
/// those of `b` would fill it in.
///
/// Counts, ranges and the entries for groups are exact. Means and stds agree with those of one
/// call within 2^-44 relative, and so do the merges of the same reports in another order
/// (stats/moments.hpp). Each group has to be whole in one of the reports. An empty report, which no
/// call has filled in, changes nothing. Reports of different numbers of rewards throw
/// invalid_input.
///
/// `combined_std` and `degenerate` are about values as each call combined them: where the policies
/// read the whole batch (a scale by the std of the batch, say), one call would combine others.
GDPO_COLD inline GroupReport merge(const GroupReport& a, const GroupReport& b) {
  const auto empty = [](const GroupReport& r) {
    return r.rows == 0 && r.groups == 0 && r.rewards.empty();
  };
  if (empty(a)) return b;
  if (empty(b)) return a;
  if (a.rewards.size() != b.rewards.size()) {
    const auto rewards = [](const GroupReport& r) {
      return static_cast<index_t>(r.rewards.size());
    };
    contract::fail("gdpo::merge", "b.rewards", contract::text(rewards(b)) + " rewards",
                   contract::text(rewards(a)) + ", as in a");
  }
  GroupReport r = a;
  for (std::size_t c = 0; c < r.rewards.size(); ++c) {
    RewardReport& reward = r.rewards[c];
    const RewardReport& other = b.rewards[c];
    reward.values = detail::merge_described(reward.values, other.values);
    reward.known_groups += other.known_groups, reward.flat_groups += other.flat_groups;
    reward.explained_squares += other.explained_squares;
  }
  r.pairs.resize((std::max)(a.pairs.size(), b.pairs.size()));
  for (std::size_t p = 0; p < b.pairs.size(); ++p) r.pairs[p] += b.pairs[p];
  for (const auto& [name, member] : detail::report_sums) r.*member += b.*member;
  for (const detail::ReportCount& count : detail::report_counts) {
    index_t& value = r.*count.member;
    const index_t other = b.*count.member;
    if (count.merged == detail::CountOf::Both) {
      value += other;
    } else if (b.groups > 0) {
      const bool smaller = count.merged == detail::CountOf::SmallerGroup;
      if (a.groups == 0 || (smaller ? other < value : other > value)) value = other;
    }
  }
  detail::for_each_report_list([&](const auto member) {
    (r.*member).insert((r.*member).end(), (b.*member).begin(), (b.*member).end());
  });
  for (const auto& [name, member] : detail::report_moments)
    r.*member = detail::merge_described(a.*member, b.*member);
  detail::derive(r);
  return r;
}

GDPO_END_NAMESPACE

namespace gdpo {
GDPO_DATA_HOST_INLINE double GroupReport::largest_z() const {
  return combined.n == 0 ? 0.0 : (std::max)(math::abs(combined.min), math::abs(combined.max));
}
GDPO_DATA_HOST_INLINE index_t GroupReport::narrow_groups(double s) const {
  detail::check_narrow(s);
  return detail::count_narrow(group_std, 0, 1, s * reward_std);
}
GDPO_DATA_HOST_INLINE index_t GroupReport::narrow_groups(double s, index_t reward) const {
  detail::check_narrow(s);
  detail::check_reward_number("gdpo::GroupReport::narrow_groups", "reward", reward, rewards.size());
  const auto c = static_cast<std::size_t>(reward);
  return detail::count_narrow(reward_group_std, c, rewards.size(), s * rewards[c].std);
}
GDPO_DATA_HOST_INLINE double GroupReport::correlation(index_t a, index_t b) const {
  constexpr const char* function = "gdpo::GroupReport::correlation";
  detail::check_reward_number(function, "a", a, rewards.size());
  detail::check_reward_number(function, "b", b, rewards.size());
  if (a == b) return 1;
  const auto low = static_cast<std::size_t>((std::min)(a, b)),
             high = static_cast<std::size_t>((std::max)(a, b));
  const std::size_t place = 3 * detail::pair_index(low, high, rewards.size());
  if (place >= pairs.size()) return math::nan();
  const double* const pair = pairs.data() + place;
  if (!(pair[1] > 0 && pair[2] > 0)) return math::nan();
  // Of the quotient: the product of the squares may overflow.
  const double r = pair[0] / (pair[2] * std::sqrt(pair[1] / pair[2]));
  return (std::max)(-1.0, (std::min)(r, 1.0));
}
GDPO_DATA_HOST_INLINE index_t GroupReport::canceled_groups() const {
  return detail::canceled_groups(*this);
}
GDPO_DATA_HOST_INLINE double GroupReport::top_groups_share(double fraction) const {
  if (!(fraction >= 0 && fraction <= 1) || math::is_nan(fraction)) {
    contract::fail("gdpo::GroupReport::top_groups_share", "fraction", contract::text(fraction),
                   "a share of the groups, 0 to 1");
  }
  return detail::top_share(group_squares, fraction);
}
template <class Map>
GDPO_DATA_HOST_INLINE Map GroupReport::to_map(const std::string& prefix,
                                              const std::vector<std::string>& names,
                                              ZeroStd zero_std, RewardStd std) const {
  return detail::reward_keys<Map>(*this, prefix, names, zero_std, std);
}
}  // namespace gdpo
