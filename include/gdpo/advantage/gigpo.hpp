#pragma once
// GiGPO: advantages of the steps of agents, by their episode and by the state they were taken in.
#include <gdpo/advantage/advantages.hpp>
#include <gdpo/advantage/rollouts.hpp>
#include <gdpo/math/check_fields.hpp>

GDPO_BEGIN_NAMESPACE

/// Group-in-group policy optimization (arXiv 2505.10978). Rows are steps. A step's advantage is
/// that of its episode among the episodes of the task, and that of the step among the steps that
/// were taken in the same state:
///
///     R_e = sum_t r_t                   over the steps of episode e
///     G_t = r_t + gamma G_{t+1}         the discounted return from a step on
///     A_t = episode(R)_e + omega step(G)_t
///
/// `episode` is an estimator over episodes in the groups of the batch, where an episode counts
/// once. `step` is an estimator over steps in groups of one state. With DrGrpo for both the paper's
/// F_norm is 1, with Grpo it is the std.
///
/// Trinity's GiGPOAdvantageFn is trinity::gigpo: states are pooled, eps is 1e-6 and ddof 1; with
/// fnorm "none" it divides by 1 + eps, which DrGrpo with weights of 1 / (1 + eps) does.
template <class Episode = Grpo, class Step = Episode>
struct Gigpo {
  Episode episode{};  ///< Of the sums of episodes.
  Step step{};        ///< Of the discounted returns of steps.
  double omega = 1;   ///< Weight of the second term, finite. 0: off.
  double gamma = 1;   ///< Discount of a step, from 0 to 1.
  /// Whether equal states of different tasks are one group (Trinity). Else states are compared
  /// within the groups of the batch.
  bool pool_states = false;
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("episode", s.episode, "of the sums of episodes");
    field("step", s.step, "of the discounted returns of steps");
    field("omega", s.omega, finite(), "weight of the steps");
    field("gamma", s.gamma, at_least(0).at_most(1), "discount of a step");
    field("pool_states", s.pool_states, "compare states over all tasks");
  }
};

/// Scratch memory of `gigpo_into`, kept between calls. It serves one call at a time.
template <class T, class Groups>
class GigpoWorkspace {
  using Scalar = result_t<T>;

 public:
  /// The episodes of the last call, and their rows.
  const Rollouts<T, Groups>& episodes() const { return episodes_; }
  /// The steps of the last call in groups of one state, with their discounted returns as rewards.
  const RewardBatch<Scalar, ById>& steps() const { return steps_; }

  /// Makes the episodes and the groups of states; gigpo_into() calls it.
  template <class Id, class State>
  void assign(const char* function, const RewardBatch<T, Groups>& batch, View<Id, 1> episodes,
              View<State, 1> states, double gamma, bool pool_states) {
    episodes_.assign_as(function, "episodes", batch, episodes, Take::Sum);
    static_assert(std::is_integral_v<std::remove_const_t<State>>, "ids of states are integers");
    const index_t rows = batch.rewards.extent[0];
    contract::check_array(function, "states", states);
    contract::check_entries(function, "states", states.extent[0], rows);
    states_.assign(View<const std::remove_const_t<State>, 1>(states));
    group_steps(batch, pool_states);
    discount(batch, gamma);
    steps_.rewards = gdpo::view(std::as_const(returns_).data(), rows, batch.rewards.extent[1]);
    detail::copy_columns(batch, steps_);
  }

 private:
  template <class E, class TT, class G, class EE, class S, class Id, class State, class R>
  friend void gigpo_into(const E&, const RewardBatch<TT, G>&, View<Id, 1>, View<State, 1>,
                         const Gigpo<EE, S>&, View<R, 1>, GigpoWorkspace<TT, G>&);

  /// Groups the steps by state, or by task and then by state. The rows stand in the order of their
  /// states; counting those of each task puts them in that of tasks. Groups get the numbers from 0
  /// on for ids, which ById counts as well, where it would sort larger ones digit by digit.
  void group_steps(const RewardBatch<T, Groups>& batch, bool pool_states) {
    using detail::as_size;
    const index_t rows = batch.rewards.extent[0], states = states_.count(rows),
                  tasks = pool_states ? 1 : batch.groups.count(rows);
    ids_.resize(as_size(rows)), tasks_.assign(as_size(pool_states ? 0 : rows), 0);
    next_.assign(as_size(tasks) + 1, 0), order_.resize(as_size(rows)), state_.resize(as_size(rows));
    for (index_t g = 0; g < tasks && !pool_states; ++g) {
      const index_t length = batch.groups.length(g);
      for (index_t k = 0; k < length; ++k) tasks_[as_size(batch.groups.row(g, k))] = g;
      next_[as_size(g) + 1] = next_[as_size(g)] + length;
    }
    for (index_t s = 0; s < states; ++s) {
      for (index_t k = 0; k < states_.length(s); ++k) {
        const index_t row = states_.row(s, k);
        const std::size_t place = as_size(next_[as_size(pool_states ? 0 : tasks_[as_size(row)])]++);
        order_[place] = row, state_[place] = s;
      }
    }
    index_t id = -1;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto task = [&](std::size_t k) { return pool_states ? 0 : tasks_[as_size(order_[k])]; };
      id += i == 0 || state_[i] != state_[i - 1] || task(i) != task(i - 1);
      ids_[as_size(order_[i])] = id;
    }
    steps_.groups.assign(gdpo::view(std::as_const(ids_)));
  }
  /// Fills in the discounted returns: of each reward, from the last row of an episode to its first.
  /// Missing rewards add nothing; where no reward follows, the return is missing. inf - inf is inf,
  /// which is not missing. Unused rows are no steps.
  void discount(const RewardBatch<T, Groups>& batch, double gamma) {
    const index_t rows = batch.rewards.extent[0], rewards = batch.rewards.extent[1];
    returns_.resize(detail::as_size(rows * rewards));
    carried_.assign(detail::as_size(episodes_.count() * rewards), math::nan());
    for (index_t i = rows - 1; i >= 0; --i) {
      const bool is_step = !batch.valid || batch.valid(i) != 0;
      for (index_t c = 0; c < rewards; ++c) {
        double& carried = carried_[detail::as_size(episodes_.rollout_of()(i) * rewards + c)];
        const double reward = static_cast<double>(load(batch.rewards(i, c))),
                     later = gamma > 0 ? math::mul(gamma, carried) : math::nan();
        const double sum = reward + later;
        const double now = math::is_nan(reward)  ? later
                           : math::is_nan(later) ? reward
                           : math::is_nan(sum)   ? math::infinity
                                                 : sum;
        returns_[detail::as_size(i * rewards + c)] = static_cast<Scalar>(now);
        if (is_step) carried = now;
      }
    }
  }

  static RewardBatch<Scalar, ById> no_steps() {
    return {RewardView<Scalar>{}, ById(View<const std::int64_t, 1>{}, 0)};
  }

  Rollouts<T, Groups> episodes_;
  ById states_{View<const std::int64_t, 1>{}, 0};
  std::vector<index_t> ids_, tasks_;    // (N) groups of the steps, and of the batch
  std::vector<index_t> order_, state_;  // (N) rows by task and state, and their states
  std::vector<index_t> next_;           // (tasks + 1) where the next row of a task goes
  std::vector<Scalar> returns_;         // (N, C)
  std::vector<double> carried_;         // (episodes, C)
  RewardBatch<Scalar, ById> steps_ = no_steps();
  std::vector<double> of_episodes_, of_steps_;
  Workspace workspace_;
};

/// Writes the advantages of steps to `out`, (N), as `Gigpo` says.
///
/// batch: rewards (N, C) of the steps, the groups of the tasks, and optional columns; a missing
/// reward adds 0, so that sparse rewards may be NaN. The rows of an episode are its steps in their
/// order. Rows with `valid` 0 are no steps: no discount passes over them. episodes, states: (N)
/// integers; an episode is of one task. After a first call, a call with the same shapes allocates
/// nothing. out may be the memory of the rewards.
///
/// exec: seq, simd or parallel(executor) for the two estimators; all give the same bits. Errors:
/// invalid_input for shapes and settings that do not fit, before anything is written.
template <class Exec, class T, class Groups, class Episode, class Step, class Id, class State,
          class R>
void gigpo_into(const Exec& exec, const RewardBatch<T, Groups>& batch, View<Id, 1> episodes,
                View<State, 1> states, const Gigpo<Episode, Step>& gigpo, View<R, 1> out,
                GigpoWorkspace<T, Groups>& workspace) {
  constexpr const char* function = "gdpo::gigpo";
  detail::check_fields(function, "", gigpo);
  contract::check_array(function, "rewards", batch.rewards);
  contract::check_written(function, "out", out);
  const index_t rows = batch.rewards.extent[0];
  contract::check_entries(function, "out", out.extent[0], rows);
  auto& w = workspace;
  w.assign(function, batch, episodes, states, gigpo.gamma, gigpo.pool_states);
  w.of_episodes_.resize(detail::as_size(w.episodes_.count()));
  w.of_steps_.resize(detail::as_size(rows));
  advantages_into(exec, w.episodes_.batch(), gigpo.episode, gdpo::view(w.of_episodes_),
                  w.workspace_);
  if (gigpo.omega != 0)
    advantages_into(exec, w.steps_, gigpo.step, gdpo::view(w.of_steps_), w.workspace_);
  for (index_t i = 0; i < rows; ++i) {
    double a = w.of_episodes_[detail::as_size(w.episodes_.rollout_of()(i))];
    if (gigpo.omega != 0) a = a + math::mul(gigpo.omega, w.of_steps_[detail::as_size(i)]);
    out(i) = static_cast<R>(a);
  }
}

/// The same as a std::vector of N advantages, on simd, with memory of its own.
template <class T, class Groups, class Episode = Grpo, class Step = Episode, class Id, class State>
std::vector<result_t<T>> gigpo(const RewardBatch<T, Groups>& batch, View<Id, 1> episodes,
                               View<State, 1> states, const Gigpo<Episode, Step>& estimator = {}) {
  contract::check_array("gdpo::gigpo", "rewards", batch.rewards);
  std::vector<result_t<T>> out(static_cast<std::size_t>(batch.rewards.extent[0]));
  GigpoWorkspace<T, Groups> workspace;
  gigpo_into(simd, batch, episodes, states, estimator, gdpo::view(out), workspace);
  return out;
}

GDPO_END_NAMESPACE
