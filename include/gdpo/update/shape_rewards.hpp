#pragma once
// shape_rewards: rules that change the reward of a completion, such as length penalties.
#include <algorithm>
#include <gdpo/core/declares.hpp>
#include <gdpo/math/check_fields.hpp>
#include <gdpo/stats/count_column.hpp>
#include <iterator>
#include <utility>

GDPO_BEGIN_NAMESPACE
namespace update {

/// Rules of shape_rewards(): what becomes of the reward of one completion.
///
/// A rule is a struct with `double operator()(const shaping::Args&) const`, so you can write your
/// own. It declares `static constexpr bool reads_tokens = true` if it reads the length. Its list of
/// fields (core/fields.hpp) checks its settings; without one `void check(const char* function)
/// const` does, which throws invalid_input.
namespace shaping {

/// What a rule sees of a completion.
struct Args {
  double reward;  ///< The reward after the rules before this one; never NaN.
  double tokens;  ///< The length of the completion in tokens; NaN if the call has no lengths.
  double input_tokens = math::nan();  ///< What it has read, in tokens; NaN if that is not given.
  double turns = math::nan();         ///< Its turns; NaN if they are not given.
  index_t row = 0;                    ///< Its row, for rules that hold arrays of their own.
};

/// min(max(reward, min), max): the reward kept within bounds.
struct Clip {
  double min = -math::infinity;  ///< The least reward; -infinity: no bound.
  double max = math::infinity;   ///< The largest reward, at least min; infinity: no bound.
  /// The reward within the bounds.
  double operator()(const Args& a) const { return (math::min)((math::max)(a.reward, min), max); }
  static constexpr const char* name = "clip";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("min", s.min, anything(), "the least reward; -infinity: no bound");
    field("max", s.max, anything(), "the largest reward; infinity: no bound");
  }
  /// Throws unless min <= max.
  void check_together(const char* function, const gdpo::detail::FieldPath& path) const {
    if (min <= max) return;
    contract::fail(function, path.text("min") + ", " + path.text("max"),
                   contract::text(min) + " and " + contract::text(max),
                   "the lower before the upper");
  }
};

/// scale reward + offset, by math::fma.
struct Affine {
  double scale = 1;   ///< What the reward is multiplied by.
  double offset = 0;  ///< What is added, in units of the reward.
  /// The scaled and shifted reward.
  double operator()(const Args& a) const { return math::fma(scale, a.reward, offset); }
  static constexpr const char* name = "affine";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("scale", s.scale, finite(), "what the reward is multiplied by");
    field("offset", s.offset, finite(), "what is added, in units of the reward");
  }
};

/// (reward - mean) / std, kept within +-bound: rewards normalized by numbers that are known, such
/// as those of RunningMoments (update/running_moments.hpp) or ReturnScale
/// (update/return_scale.hpp).
struct Standardize {
  double mean = 0;                ///< What is subtracted, in units of the reward.
  double std = 1;                 ///< What divides, in units of the reward; more than 0.
  double bound = math::infinity;  ///< The largest magnitude, at least 0; infinity: no bound.
  /// The normalized reward.
  double operator()(const Args& a) const {
    return (math::min)((math::max)((a.reward - mean) / std, -bound), bound);
  }
  static constexpr const char* name = "standardize";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("mean", s.mean, finite(), "what is subtracted");
    field("std", s.std, more_than(0), "what divides");
    field("bound", s.bound, at_least(0).or_infinity(), "the largest magnitude");
  }
};

/// Adds DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13) to the reward. It grows over the
/// last `buffer` tokens before the limit. With exceed = tokens - (max_length - buffer), it adds
///
///     0                          if exceed <= 0
///     -exceed / buffer penalty   above; with `clamp` exceed counts as at most buffer
///
/// The paper, TRL's get_soft_overlong_punishment and OpenRLHF's overlong penalty clamp. The line
/// goes on below -penalty in verl's DAPO reward manager, ms-swift's soft_overlong and NeMo-RL. Only
/// completions longer than max_length tell the two apart.
struct SoftOverlong {
  static constexpr bool reads_tokens = true;  ///< The rule depends on the length.
  double max_length = 0;  ///< L_max, in tokens; must be set. 20480 in the paper.
  double buffer = 0;   ///< L_cache, in tokens, above 0 and at most max_length; 4096 in the paper.
  double penalty = 1;  ///< What max_length tokens cost, in units of the reward; at least 0.
  bool clamp = true;   ///< No length costs more than `penalty`.
  /// The reward with the punishment added.
  double operator()(const Args& a) const {
    const double exceed = a.tokens - (max_length - buffer);
    if (exceed <= 0) return a.reward;
    const double counted = clamp ? (math::min)(exceed, buffer) : exceed;
    return a.reward - math::mul(counted / buffer, penalty);
  }
  static constexpr const char* name = "soft_overlong";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("max_length", s.max_length, more_than(0).with_note("tokens of the longest completion"),
          "the limit, in tokens; must be set");
    field("buffer", s.buffer, more_than(0), "the tokens before it that cost; at most max_length");
    field("penalty", s.penalty, at_least(0), "what max_length tokens cost");
    field("clamp", s.clamp, "no length costs more than `penalty`");
  }
  /// Throws unless buffer <= max_length.
  void check_together(const char* function, const gdpo::detail::FieldPath& path) const {
    if (buffer <= max_length) return;
    contract::fail(function, path.text("buffer"), contract::text(buffer),
                   "at most max_length, which is " + contract::text(max_length));
  }
};

/// reward - alpha |target - tokens|: LCPO-Exact, for completions of a given length (L1, arXiv
/// 2503.04697, eq. 1, where the reward is 1 for a correct answer and otherwise 0).
struct LengthTarget {
  static constexpr bool reads_tokens = true;  ///< The rule depends on the length.
  double target = 0;      ///< The length that is asked for, in tokens; at least 0.
  double alpha = 0.0003;  ///< What a token too many or too few costs; at least 0. The paper's.
  /// The reward minus the cost of the distance.
  double operator()(const Args& a) const {
    return a.reward - math::mul(alpha, math::abs(target - a.tokens));
  }
  static constexpr const char* name = "length_target";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("target", s.target, at_least(0), "the length that is asked for, in tokens");
    field("alpha", s.alpha, at_least(0), "what a token too many or too few costs");
  }
};

/// reward clip(alpha (limit - tokens) + delta, 0, 1): LCPO-Max, for completions of at most a given
/// length (L1, arXiv 2503.04697, eq. 2). A correct answer that is a little too long still earns
/// more than a wrong one, which earns 0. It is meant for rewards of at least 0: the factor would
/// bring a negative one nearer to 0 the longer the completion is.
struct LengthLimit {
  static constexpr bool reads_tokens = true;  ///< The rule depends on the length.
  double limit = 0;       ///< The length that is asked for, in tokens; at least 0.
  double alpha = 0.0003;  ///< How fast the factor falls, per token; at least 0.
  double delta = 0.5;     ///< The factor at the limit, from 0 to 1. The paper's.
  /// The reward times the factor of its length.
  double operator()(const Args& a) const {
    const double factor = math::fma(alpha, limit - a.tokens, delta);
    return math::mul(a.reward, (math::min)((math::max)(factor, 0.0), 1.0));
  }
  static constexpr const char* name = "length_limit";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("limit", s.limit, at_least(0), "the length that is asked for, in tokens");
    field("alpha", s.alpha, at_least(0), "how fast the factor falls, per token");
    field("delta", s.delta, at_least(0).at_most(1), "the factor at the limit");
  }
};

/// 1 if tokens <= limit, else 0, in place of the reward: the length reward of the GDPO paper (arXiv
/// 2601.05242, R_length, with a limit of 4000 tokens). With a Gate on the reward of correctness it
/// becomes the paper's conditioned length reward.
struct LengthAtMost {
  static constexpr bool reads_tokens = true;  ///< The rule depends on the length.
  double limit = 0;  ///< The greatest length that earns the reward, in tokens; at least 0.
  /// The length reward.
  double operator()(const Args& a) const { return a.tokens <= limit ? 1.0 : 0.0; }
  static constexpr const char* name = "length_at_most";  ///< What messages call it.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("limit", s.limit, at_least(0), "the greatest length that earns the reward");
  }
};

}  // namespace shaping

/// What shape_rewards() did.
struct ShapedRewards {
  index_t changed = 0;     ///< Rewards that are now another number.
  index_t missing = 0;     ///< Rewards that are NaN, hence missing; they were left alone.
  index_t not_finite = 0;  ///< Rewards that are infinite now, as the array stores them.
};

}  // namespace update

namespace detail {

/// Applies a rule; false if the reward is now NaN.
template <class Rule>
bool shape(const Rule& rule, update::shaping::Args& args) {
  args.reward = rule(std::as_const(args));
  return !math::is_nan(args.reward);
}

/// Reads a column row by row, many rows by one call. NaN where there is no column.
class CountsOfRows {
 public:
  explicit CountsOfRows(const Column& column) : column_(column) {
    if (!column) std::fill(std::begin(numbers_), std::end(numbers_), math::nan());
  }
  /// The number of row i of `rows`; the rows are asked for in their order, from 0 on.
  GDPO_HOST_INLINE double operator()(index_t i, index_t rows) {
    if (i % block == 0 && column_) column_.copy_rows(i, (std::min)(block, rows - i), numbers_);
    return numbers_[i % block];
  }

 private:
  static constexpr index_t block = 256;
  const Column& column_;
  double numbers_[block];
};

/// Throws unless `counts` has a count for each row, or is absent and no rule reads it.
inline void check_shaping_counts(const char* function, const char* name, const char* words,
                                 const Column& counts, index_t rows, bool read) {
  if (!counts) {
    if (read && rows > 0) {
      contract::fail(function, name, "no column",
                     contract::Text(words) + ", because a rule reads them");
    }
    return;
  }
  contract::check_entries(function, name, counts.size(), rows);
  check_count_column(function, name, counts, rows);
}

/// Writes a shaped reward, and counts what has become of it.
template <class T>
void store_shaped(T& place, double original, double reward, update::ShapedRewards& shaped) {
  store(place, reward);
  const double rounded = load(place);
  shaped.changed += math::differ(original, rounded);
  shaped.not_finite += math::is_inf(rounded);
}

}  // namespace detail

namespace update {

/// Replaces each reward by what the rules make of it: reward shaping, before an estimator.
///
/// The rules are applied in the order in which they are given, in double. The result is rounded to
/// the storage, to a 16-bit one by way of float.
///
///     // the second of three rewards: clipped, then with DAPO's punishment for long completions
///     gdpo::update::shape_rewards(gdpo::column(gdpo::view(rewards.data(), rows, 3), 1),
///                                 gdpo::view(lengths), gdpo::update::shaping::Clip{-1, 1},
///                                 gdpo::update::shaping::SoftOverlong{20480, 4096});
///
/// A punishment inside a reward shares its standardization. As a reward of its own (a column of
/// zeros, shaped) GDPO standardizes it by itself.
///
/// A NaN is a missing reward and stays as it is; no rule sees it. If a rule makes NaN of a reward
/// that is there (infinity times 0, say), infinity is written: NaN would mean that the reward is
/// missing, while infinity shows as NaN in the advantages of the group. The rules after it are then
/// not applied.
///
/// rewards: (N), of float, double or a 16-bit float, with any stride but 0; written in place.
/// lengths: (N) tokens of each completion, stored as any type, finite and at least 0. A NaN among
/// them is an error, as it is in RewardBatch::tokens. `{}` if no rule reads them.
/// Time O(N) for each rule; allocates nothing.
///
/// Errors, all before anything is written: invalid_input for settings of a rule out of their range,
/// for shapes that do not fit, for lengths that are not as above, and if they are absent while a
/// rule reads them.
template <class T, class... Rules>
ShapedRewards shape_rewards(View<T, 1> rewards, const Column& lengths, const Rules&... rules) {
  static_assert(!std::is_const_v<T>, "`rewards` is a read-only view: it cannot be shaped in place");
  static_assert(!std::is_integral_v<T>, "rewards that are shaped are floating-point numbers");
  static_assert((std::is_invocable_r_v<double, const Rules&, const shaping::Args&> && ...),
                "a rule needs: double operator()(const gdpo::update::shaping::Args&) const");
  constexpr const char* function = "gdpo::update::shape_rewards";
  const index_t rows = contract::check_written(function, "rewards", rewards);
  (gdpo::detail::check_fields(function, rules), ...);
  detail::check_shaping_counts(function, "lengths", "token counts", lengths, rows,
                               (detail::reads_tokens_v<Rules> || ...));

  ShapedRewards shaped;
  detail::CountsOfRows tokens(lengths);
  for (index_t i = 0; i < rows; ++i) {
    const double original = load(rewards(i)), length = tokens(i, rows);
    if (math::is_nan(original)) {
      ++shaped.missing;
      continue;
    }
    shaping::Args args{original, length};
    args.row = i;
    if (!(detail::shape(rules, args) && ...)) args.reward = math::infinity;
    detail::store_shaped(rewards(i), original, args.reward, shaped);
  }
  return shaped;
}

}  // namespace update
GDPO_END_NAMESPACE
