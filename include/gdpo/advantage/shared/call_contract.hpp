#pragma once
// The errors of the calls of advantages at compile time: one sentence for arguments that they do
// not take.
#include <gdpo/advantage/group_advantage.hpp>
#include <gdpo/advantage/workspace.hpp>
#include <gdpo/core/exec.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

template <class X>
constexpr bool is_view_v = false;
template <class T, int Rank>
constexpr bool is_view_v<View<T, Rank>> = true;
template <class X>
constexpr bool is_vector_view_v = false;
template <class T>
constexpr bool is_vector_view_v<View<T, 1>> = true;
template <class X>
constexpr bool is_std_vector_v = false;
template <class T, class Allocator>
constexpr bool is_std_vector_v<std::vector<T, Allocator>> = true;

/// Whether a long form can run with this tag on groups of this kind. If not, a static_assert says
/// why, and since the caller compiles nothing further, that is the only error.
template <class Exec, class Groups>
constexpr bool may_run() {
  static_assert(needs_exec<Exec>());
  static_assert(is_host_grouping_v<Groups> || !is_grouping_v<Groups>,
                "these groups are of a device: the host takes groups_of, by_offsets or by_id");
  return is_exec_v<Exec> && is_host_grouping_v<Groups>;
}

/// Whether some form of advantages_into takes these arguments. Those of a device are not judged
/// here.
template <class Exec, class Batch, class Estimator, class Out, class Work>
constexpr bool are_of_long_form_v = is_device_v<Exec> ||
                                    (is_reward_batch_v<Batch> && computes_advantages_v<Estimator> &&
                                     is_vector_view_v<Out> && std::is_same_v<Work, Workspace&>);

/// Whether a call of advantages cannot begin with these arguments: the first is neither an array
/// of rewards with something after it, nor an execution tag before a batch.
template <class First, class... Rest>
constexpr bool is_invalid_first_argument_v = is_reward_batch_v<First> || is_grouping_v<First> ||
                                             computes_advantages_v<First> ||
                                             is_std_vector_v<First> ||
                                             std::is_arithmetic_v<First> ||
                                             std::is_pointer_v<First> ||
                                             (is_view_v<First> && sizeof...(Rest) == 0);
template <class First, class Second, class... Rest>
constexpr bool is_invalid_first_argument_v<First, Second, Rest...> =
    is_exec_v<First> ? !is_reward_batch_v<Second>
                     : is_invalid_first_argument_v<First> && !is_view_v<First>;
/// Whether the first of Rest, the second argument of the call, is a batch.
template <class... Rest>
constexpr bool has_batch_second_v = false;
template <class Second, class... Rest>
constexpr bool has_batch_second_v<Second, Rest...> = is_reward_batch_v<Second>;

}  // namespace detail

/// Taken by calls with other arguments: it only says what is wrong, by static_assert.
template <
    class Exec, class Batch, class Estimator, class Out, class Work, class... Report,
    std::enable_if_t<!detail::are_of_long_form_v<Exec, Batch, Estimator, Out, Work&&>, int> = 0>
void advantages_into(const Exec&, const Batch&, const Estimator&, const Out&, Work&&, Report&&...) {
  using namespace detail;
  static_assert(needs_exec<Exec>());
  static_assert(is_reward_batch_v<Batch>,
                "the second argument of advantages_into is a gdpo::RewardBatch");
  static_assert(computes_advantages_v<Estimator>,
                "an estimator is a gdpo::GroupAdvantage (gdpo::Gdpo{}, a preset) or a "
                "gdpo::Constrained; of a "
                "gdpo::runtime::Estimator, what std::visit gives");
  static_assert(is_vector_view_v<Out>, "`out` is a view of rank 1: gdpo::view(advantages)");
  static_assert(std::is_same_v<Work&&, Workspace&>,
                "the fifth argument of advantages_into is a gdpo::Workspace");
}

/// Taken by calls with other arguments: it only says what is wrong, by static_assert.
template <
    class First, class... Rest,
    std::enable_if_t<detail::is_invalid_first_argument_v<First, std::decay_t<Rest>...>, int> = 0>
std::vector<double> advantages(const First&, const Rest&...) {
  using namespace detail;
  constexpr bool has_batch = is_reward_batch_v<First> || has_batch_second_v<Rest...>;
  static_assert(
      !has_batch,
      "a gdpo::RewardBatch comes after gdpo::seq, gdpo::simd or gdpo::parallel(executor)");
  static_assert(has_batch || !is_exec_v<First>, "a gdpo::RewardBatch comes after an execution tag");
  static_assert(
      has_batch || is_exec_v<First> || is_view_v<First>,
      "rewards come first: gdpo::view(rewards, rows, columns), an array of Eigen or a tensor");
  static_assert(!is_view_v<First>,
                "who belongs together comes after the rewards: gdpo::groups_of(8), "
                "by_offsets(offsets) or by_id(ids)");
  return {};
}

GDPO_END_NAMESPACE
