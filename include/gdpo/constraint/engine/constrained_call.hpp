#pragma once
// One call with a constrained estimator. A placement (placement.hpp) writes its formula with the
// public members of ConstrainedCall.
#include <gdpo/advantage/advantages.hpp>
#include <gdpo/advantage/shared/batch_step.hpp>
#include <gdpo/advantage/shared/group_units.hpp>
#include <gdpo/advantage/shared/reward_reader.hpp>
#include <gdpo/constraint/shortfall.hpp>
#include <gdpo/group/borrowed.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// The properties of an estimator's policies that placements depend on; `known` is false for a type
/// that is no GroupAdvantage.
template <class Estimator>
struct PoliciesOf {
  static constexpr bool known = false;
};
template <class B, class S, class C, class R>
struct PoliciesOf<GroupAdvantage<B, S, C, R>> {
  static constexpr bool known = true, sums_first = sums_first_v<C>;
  /// Whether the combined values of every group sum to 0 (except in a group of one with
  /// Singleton::Raw).
  static constexpr bool zero_sum = values_sum_to_zero_v<B, S>;
  static constexpr bool compares = compares_v<B>;
};

/// The same policies for a batch of one reward, the violations of a constraint. Weights, gates,
/// bounds and the KL penalty belong to the rewards of the caller's batch and are left out.
template <class B, class S, class C, class R>
GroupAdvantage<B, S, combine::NormalizeThenSum, R> for_one_reward(
    const GroupAdvantage<B, S, C, R>& e) {
  GroupAdvantage<B, S, combine::NormalizeThenSum, R> one;
  one.baseline = e.baseline;
  one.scale = e.scale;
  one.renorm = e.renorm;
  one.missing = e.missing;
  one.singleton = e.singleton;
  return one;
}

/// One call of advantages_into with a constrained estimator.
/// It works on two arrays of the workspace, (N), in double: `term_values` has those of one term,
/// `mixed` the sum of the terms so far.
template <class Exec, class T, class Groups, class Estimator>
class ConstrainedCall {
  using Policies = PoliciesOf<Estimator>;
  using Reader = RewardReader<T, Groups>;
  using Inner = RewardBatch<double, BorrowedGroups<Groups>>;

 public:
  ConstrainedCall(const char* function, const Exec& exec, const RewardBatch<T, Groups>& batch,
                  const Estimator& estimator, const List<Constraint, 16>& constraints,
                  Workspace& workspace, GroupReport* report)
      : function_(function),
        exec_(exec),
        batch_(batch),
        estimator_(estimator),
        workspace_(workspace),
        inner_(ScratchOf::estimator(workspace)),
        work_(ScratchOf::constraints(workspace)),
        report_(report),
        blocks_(exec, size()) {
    check(constraints);
    check_clip(function, estimator.clip);
    estimator_.clip = {};  // of the advantages of the call, not of one term
    clip_ = estimator.clip;
    if (!constraints.empty()) estimator_.weights = primary_weights(constraints);
    // The constructor checks shapes and settings, before anything else reads them.
    Reader(function, batch, reward_settings(estimator_), inner_);
    work_.mixed.assign(rows(), 0.0);
    work_.term_values.resize(rows());
    work_.violations.resize(rows());
  }

  /// The estimator with the weights of the primary rewards, without `clip`; constrained rewards
  /// have weight 0.
  const Estimator& estimator() const { return estimator_; }
  /// The constraints with a multiplier above 0.
  const List<Constraint, 16>& active() const { return active_; }
  /// The sum of their multipliers.
  double lambda_sum() const {
    double sum = 0;
    for (const Constraint& c : active()) sum += c.lambda;
    return sum;
  }

  /// mixed += factor * the advantages that the estimator gives to the primary rewards.
  void add_primary(double factor) {
    primary(estimator_);
    add(factor);
  }
  /// mixed += factor * the advantages that `e` gives to the violations of c, taken as the only
  /// reward of a batch.
  template <class E>
  void add_violations(const Constraint& c, const E& e, double factor) {
    violations(c, e);
    add(factor);
  }
  /// mixed /= divisor.
  void divide(double divisor) {
    for_rows([&](std::size_t i) { work_.mixed[i] /= divisor; });
  }

  /// mixed = renorm(primary_factor s_0 - factor sum_c lambda_c s_c). s are the estimator's values
  /// before its renormalization: s_0 of the primary rewards, s_c of the violations of c.
  void renormalize_sum(double primary_factor, double factor) {
    check_batch_step(function_, batch_, estimator_.renorm);
    work_.magnitudes.assign(rows(), 0.0);
    primary(before_renorm(estimator_));
    add_combined(primary_factor, true);
    for (const Constraint& c : active()) {
      violations(c, before_renorm(estimator_));
      add_combined(-math::mul(factor, c.lambda), false);
    }
    if (Policies::zero_sum) zero_rounding_noise();
    if (Policies::compares && estimator_.singleton == Singleton::Exclude) leave_out_lone_rows();
    std::copy(work_.mixed.begin(), work_.mixed.end(), inner_.row_sums.begin());
    std::copy(work_.states.begin(), work_.states.end(), inner_.row_state.begin());
    inner_.combined.zero_sum = Policies::zero_sum && !raw_singleton_;
    inner_.combined.every_row =
        std::count(work_.states.begin(), work_.states.end(), counted) == size();
    batch_step(exec_, GroupUnits(batch_), 1, batch_, estimator_.renorm, inner_,
               gdpo::view(work_.mixed));
  }

  /// mixed = the advantages of the estimator if sum_c lambda_c v_c is subtracted from `reward`, or
  /// from the weighted sum if the estimator standardizes that sum.
  void penalize(index_t reward) {
    if constexpr (Policies::sums_first) {
      if (reward != -1)
        fail("placement.reward", contract::text(reward),
             "-1: the violations enter the weighted sum");
      penalize_sum();
    } else {
      penalize_reward(carrier(reward));
    }
  }

  /// Sets `degenerate` of the report again, from the final advantages: a group with equal primary
  /// rewards may still differ in its violations.
  void report_degenerate() {
    for (index_t g = 0; report_ && g < group_count(); ++g) {
      double low = math::infinity, high = -math::infinity;
      bool number = true;
      for_members(g, [&](index_t i) {
        if (!is_used(i)) return;
        number = number && !math::is_nan(work_.mixed[as_size(i)]);
        low = (math::min)(low, work_.mixed[as_size(i)]);
        high = (math::max)(high, work_.mixed[as_size(i)]);
      });
      report_->degenerate[as_size(g)] = number && !(low < high);
    }
  }

  /// Copies mixed to out, clipped and rounded to R.
  template <class R>
  void write(View<R, 1> out) const {
    for_rows([&](std::size_t i) { out(index(i)) = static_cast<R>(work_.mixed[i]); });
    clip(out);
  }
  /// Clamps advantages to the bounds of the estimator.
  template <class R>
  void clip(View<R, 1> out) const {
    clip_advantages(exec_, clip_, out);
  }

 private:
  // Rows and groups.

  static constexpr auto counted = static_cast<unsigned char>(RowState::Counted);

  index_t size() const { return batch_.rewards.extent[0]; }
  index_t reward_count() const { return batch_.rewards.extent[1]; }
  std::size_t rows() const { return static_cast<std::size_t>(size()); }
  static index_t index(std::size_t i) { return static_cast<index_t>(i); }
  template <class F>
  void for_rows(const F& f) const {
    blocks_.for_each([&](index_t begin, index_t end) {
      for (index_t i = begin; i < end; ++i) f(static_cast<std::size_t>(i));
    });
  }

  template <class F>
  void for_members(index_t g, const F& f) const {
    for (index_t k = 0; k < batch_.groups.length(g); ++k) f(batch_.groups.row(g, k));
  }
  index_t group_count() const { return batch_.groups.count(size()); }
  bool is_used(index_t i) const { return !batch_.valid || batch_.valid(i) != 0; }

  // One term: fills `term_values`.

  /// term_values = the advantages that `e` gives to the caller's batch.
  template <class E>
  void primary(const E& e) {
    advantages_into(exec_, batch_, e, gdpo::view(work_.term_values), workspace_, report_);
  }
  /// term_values = the advantages that `e` gives to the violations of c.
  template <class E>
  void violations(const Constraint& c, const E& e) {
    fill_violations(c);
    Inner of_violations = batch_of(work_.violations, 1);
    of_violations.penalty = {};
    if (of_violations.baseline)
      of_violations.baseline = View<const double, 1>{&no_baseline_, {size()}, {0}};
    advantages_into(exec_, of_violations, for_one_reward(e), gdpo::view(work_.term_values),
                    workspace_);
  }
  /// mixed += factor * term_values.
  void add(double factor) {
    for_rows([&](std::size_t i) { work_.mixed[i] += math::mul(factor, work_.term_values[i]); });
  }
  /// The caller's batch with other rewards. values: (N, reward_count).
  Inner batch_of(const std::vector<double>& values, index_t reward_count) const {
    Inner inner{gdpo::view(values.data(), size(), reward_count),
                BorrowedGroups<Groups>{batch_.groups}};
    copy_columns(batch_, inner);
    return inner;
  }
  /// Computes v_i of a constraint for all rows; NaN where the reward is missing and stays missing.
  void fill_violations(const Constraint& c) {
    const Missing& missing = estimator_.missing;
    for_rows([&](std::size_t i) {
      const double x = load(batch_.rewards(index(i), c.reward));
      if (is_used(index(i))) check_reward(function_, missing, x, index(i), c.reward);
      work_.violations[i] = violation_of(c, settled(missing, x));
    });
  }

  // Sums before the renormalization.

  /// mixed += factor * term_values, with the sum of the |terms| and the state of each row. A row is
  /// in the statistics of the renormalization if it is in those of one of the terms.
  void add_combined(double factor, bool first) {
    if (first) work_.states.assign(rows(), static_cast<unsigned char>(RowState::Excluded));
    for_rows([&](std::size_t i) {
      const double term = math::mul(factor, work_.term_values[i]);
      work_.mixed[i] += term;
      work_.magnitudes[i] += math::abs(term);
      const RowState state = inner_.state(index(i));
      // Whether a row is alone is decided when all terms are known.
      if (state != RowState::Excluded)
        work_.states[i] = state == RowState::Lone ? counted : inner_.row_state[i];
    });
    for (const GroupScratch& worker : inner_.workers)
      raw_singleton_ = raw_singleton_ || worker.cases.raw_singleton;
  }
  /// A row that is the only one of its group in all terms enters no renormalization and gets 0.
  void leave_out_lone_rows() {
    for (index_t g = 0; g < group_count(); ++g) {
      index_t n = 0, row = 0;
      for_members(g, [&](index_t i) {
        if (work_.states[as_size(i)] == counted) ++n, row = i;
      });
      if (n != 1) continue;
      work_.states[as_size(row)] = static_cast<unsigned char>(RowState::Lone);
      work_.mixed[as_size(row)] = 0;
    }
  }
  /// Sets the sums of a group to 0 if they differ by rounding alone. Exact arithmetic would give 0,
  /// because they are equal and add up to 0.
  void zero_rounding_noise() {
    const auto counts = [this](index_t i) { return work_.states[as_size(i)] == counted; };
    for (index_t g = 0; g < group_count(); ++g) {
      double smallest;
      if (!equal_but_for_rounding(g, work_.mixed.data(), 1, counts, smallest)) continue;
      for_members(g, [&](index_t i) {
        if (counts(i)) work_.mixed[as_size(i)] = 0;
      });
    }
  }
  /// Whether the values of a group could be one number but for rounding. Each value is a sum of 1 +
  /// m terms whose |terms| add up to work_.magnitudes. True only for at least two finite values;
  /// low is then the smallest.
  template <class Used>
  bool equal_but_for_rounding(index_t g, const double* values, index_t stride, const Used& used,
                              double& low) const {
    low = math::infinity;
    double high = -math::infinity, magnitude = 0;
    index_t n = 0;
    bool finite = true;
    for_members(g, [&](index_t i) {
      if (!used(i)) return;
      const double value = values[i * stride];
      finite =
          finite && !math::not_finite(value) && !math::not_finite(work_.magnitudes[as_size(i)]);
      low = (math::min)(low, value);
      high = (math::max)(high, value);
      magnitude = (math::max)(magnitude, work_.magnitudes[as_size(i)]);
      ++n;
    });
    return finite && n > 1 && high - low <= rounding_of_sum(active().size() + 1, magnitude);
  }

  // Violations inside what is standardized (placement::Composite).

  /// Makes the violations further rewards with weights -lambda_c. The estimator then decides which
  /// groups are degenerate as for any weighted sum.
  void penalize_sum() {
    const index_t width = reward_count() + active().size();
    double weights[List<double>::capacity];
    if (width > List<double>::capacity) fail_on_size();
    std::copy(estimator_.weights.begin(), estimator_.weights.end(), weights);
    copy_rewards(width);
    const Reader reader(function_, batch_, reward_settings(estimator_), inner_);
    for (index_t c = 0; c < active().size(); ++c) {
      weights[reward_count() + c] = -active()[c].lambda;
      fill_violations(active()[c]);
      for_rows([&](std::size_t i) {
        term(i, reward_count() + c, width) =
            has_primary(reader, index(i)) ? work_.violations[i] : math::nan();
      });
    }
    Estimator e = estimator_;
    e.weights = List<double>(weights, width);
    advantages_into(exec_, batch_of(work_.terms, width), e, gdpo::view(work_.mixed), workspace_,
                    report_);
  }
  /// Adds a further reward, `reward` minus the violations, and moves the weight of `reward` to it.
  /// In a group where the new reward is one number up to rounding it becomes that number, so that
  /// the estimator treats the group as degenerate.
  void penalize_reward(index_t reward) {
    const index_t width = reward_count() + 1, new_reward = reward_count();
    if (width > List<double>::capacity) fail_on_size();
    copy_rewards(width);
    work_.magnitudes.resize(rows());
    const Reader reader(function_, batch_, reward_settings(estimator_), inner_);
    const Missing& missing = estimator_.missing;
    for (index_t i = 0; i < size(); ++i) {
      double x = reader.gated(i, reward);
      if (is_used(i)) check_reward(function_, missing, x, i, reward);
      x = settled(missing, x);
      term(as_size(i), new_reward, width) = x;
      work_.magnitudes[as_size(i)] = math::abs(x);
    }
    const bool skips = missing.entry == MissingEntry::Skip;
    for (const Constraint& c : active()) {
      fill_violations(c);
      for_rows([&](std::size_t i) {
        const double v = math::mul(c.lambda, work_.violations[i]);
        if (skips && math::is_nan(v)) return;
        term(i, new_reward, width) -= v;
        work_.magnitudes[i] += math::abs(v);
      });
    }
    const auto used = [&](index_t i) {
      return !(skips && math::is_nan(term(as_size(i), new_reward, width))) && is_used(i);
    };
    for (index_t g = 0; g < group_count(); ++g) {
      double smallest;
      if (!equal_but_for_rounding(g, work_.terms.data() + new_reward, width, used, smallest))
        continue;
      for_members(g, [&](index_t i) {
        if (used(i)) term(as_size(i), new_reward, width) = smallest;
      });
    }
    double weights[List<double>::capacity];
    std::copy(estimator_.weights.begin(), estimator_.weights.end(), weights);
    weights[new_reward] = weights[reward];
    weights[reward] = 0;
    Estimator e = estimator_;
    e.weights = List<double>(weights, width);
    if (e.penalty.reward == reward) e.penalty.reward = new_reward;
    advantages_into(exec_, batch_of(work_.terms, width), e, gdpo::view(work_.mixed), workspace_,
                    report_);
  }

  /// Entry (i, c) of the array `terms` (N, width).
  double& term(std::size_t i, index_t c, index_t width) const {
    return work_.terms[i * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)];
  }
  /// False for a row that the estimator excludes because it has no primary reward. Its violations
  /// are then set to missing, so that the row stays excluded.
  bool has_primary(const Reader& reader, index_t row) const {
    if (!reader.excludes(row)) return true;
    for (index_t c = 0; c < reward_count(); ++c) {
      const double x = settled(estimator_.missing, reader.gated(row, c));
      if (estimator_.weights[c] != 0 && !math::is_nan(x)) return true;
    }
    return false;
  }
  /// Makes `terms` (N, width) and copies the rewards to its first entries.
  void copy_rewards(index_t width) {
    work_.terms.resize(rows() * static_cast<std::size_t>(width));
    for_rows([&](std::size_t i) {
      for (index_t c = 0; c < reward_count(); ++c)
        term(i, c, width) = load(batch_.rewards(index(i), c));
    });
  }
  /// The reward that carries the violations; -1 stands for the only primary reward.
  index_t carrier(index_t reward) const {
    index_t primary = -1, n = 0;
    for (index_t c = 0; c < reward_count(); ++c) {
      if (c < estimator_.weights.size() && estimator_.weights[c] != 0) primary = c, ++n;
    }
    if (reward == -1 && n == 1) return primary;
    if (reward < 0 || reward >= estimator_.weights.size() || estimator_.weights[reward] == 0) {
      fail("placement.reward",
           contract::text(reward) + ", with " + contract::text(n) + " primary rewards",
           "the primary reward that carries the violations (-1: the only one): each is "
           "standardized by itself");
    }
    return reward;
  }
  [[noreturn]] void fail_on_size() const {
    fail("constraints",
         contract::text(reward_count()) + " rewards and " + contract::text(active().size()) +
             " constraints",
         "at most " + contract::text(List<double>::capacity) +
             " rewards together with placement::Composite");
  }

  // Settings.

  /// The weights of the estimator. Without any: 0 for every reward that a constraint names, and 1
  /// for the others.
  List<double> primary_weights(const List<Constraint, 16>& constraints) const {
    if (!estimator_.weights.empty()) return estimator_.weights;
    if (reward_count() > List<double>::capacity) {
      fail("estimator.weights", "none, for " + contract::text(reward_count()) + " rewards",
           "one a reward, 0 for those that are only constrained, where there are more than " +
               contract::text(List<double>::capacity));
    }
    double weights[List<double>::capacity];
    std::fill_n(weights, reward_count(), 1.0);
    for (const Constraint& c : constraints) weights[c.reward] = 0;
    return {weights, reward_count()};
  }
  /// Checks the constraints and keeps those with a multiplier above 0 as active_.
  void check(const List<Constraint, 16>& constraints) {
    using contract::text;
    Constraint list[16];
    index_t n = 0;
    for (index_t k = 0; k < constraints.size(); ++k) {
      const Constraint& c = constraints[k];
      const std::string name = "constraints[" + text(k) + "]";
      if (c.reward < 0 || c.reward >= reward_count()) {
        fail(name + ".reward", text(c.reward), "one of " + text(reward_count()) + " rewards");
      }
      check_fields(function_, name.c_str(), c);
      if (c.lambda > 0) list[n++] = c;
    }
    active_ = {list, n};
    if (math::not_finite(lambda_sum()))
      fail("constraints", "multipliers without a finite sum", "a finite sum");
  }
  [[noreturn]] void fail(const std::string& argument, const std::string& given,
                         const std::string& needed) const {
    contract::fail(function_, argument, given, needed);
  }

  const char* function_;
  const Exec& exec_;
  const RewardBatch<T, Groups>& batch_;
  Estimator estimator_;
  List<Constraint, 16> active_;
  Workspace& workspace_;
  EstimatorScratch& inner_;  // memory of the estimator's calls
  ConstraintScratch& work_;  // memory of this call
  GroupReport* report_;
  RowBlocks<Exec> blocks_;
  const double no_baseline_ = 0;  // the external baseline of violations, for every row
  Bounds clip_;                   // GroupAdvantage::clip, of the mixed advantages
  bool raw_singleton_ = false;
};

}  // namespace detail
GDPO_END_NAMESPACE
