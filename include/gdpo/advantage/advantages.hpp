#pragma once
// The calls of the front door gdpo/advantages.hpp.
#include <algorithm>
#include <cstddef>
#include <gdpo/advantage/engine/fill_report.hpp>
#include <gdpo/advantage/shared/batch_step.hpp>
#include <gdpo/advantage/shared/call_contract.hpp>

GDPO_BEGIN_NAMESPACE

/// Writes the advantages of a batch to `out`: the long form, without allocations in a loop.
///
/// exec: `seq`, `simd` or `parallel(executor)`; all give the same bits. out: (N), float or
/// double, any stride. It may be the memory of the rewards, such as one of their columns: nothing
/// is written before all of the batch has been read. workspace: allocates what it lacks; afterwards
/// `workspace.sums()` has the combined values before the renormalization. report: a GroupReport*,
/// may be null; otherwise every field is filled in. What fills it in is compiled only where a call
/// has this argument.
///
/// Time is O(N C). The rewards are read once; those of some groups twice (with missing rewards,
/// or values that differ by about their rounding); all of them once more where the policies read
/// the batch, and again for a report. With `parallel`, the policies and the grouping are called
/// from several threads at once.
///
/// Shapes and settings that do not fit throw invalid_input before anything is written.
/// MissingEntry::Reject and Singleton::Error throw it when they meet their case: `out` is then
/// untouched; the report and the workspace are not.
template <class Exec, class T, class Groups, class B, class S, class C, class Renorm, class R,
          class Report = std::nullptr_t>
void advantages_into(const Exec& exec, const RewardBatch<T, Groups>& batch,
                     const GroupAdvantage<B, S, C, Renorm>& estimator, View<R, 1> out,
                     Workspace& workspace, Report report = nullptr) {
  if constexpr (detail::may_run<Exec, Groups>()) {
    using namespace detail;
    constexpr const char* function = "gdpo::advantages";
    check_out(function, batch, out);
    check_batch_step(function, batch, estimator.renorm);
    EstimatorScratch& work = ScratchOf::estimator(workspace);
    Evaluation<T, Groups, B, S> evaluation(function, exec, batch, estimator, work, report);
    evaluation(exec);
    fill_report(batch, evaluation, work, report);
    batch_step(exec, evaluation.units(), evaluation.workers(), batch, estimator.renorm, work, out);
    clip_advantages(exec, estimator.clip, out);
  }
}

/// The same as a std::vector of N advantages, with memory of its own.
/// The scalar of the result is float for rewards of float and narrower floats, double for double
/// and integers.
template <class Estimator = Gdpo, class Exec, class T, class Groups, class Report = std::nullptr_t,
          std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
std::vector<result_t<T>> advantages(const Exec& exec, const RewardBatch<T, Groups>& batch,
                                    const Estimator& estimator = {}, Report report = nullptr) {
  contract::check_array("gdpo::advantages", "rewards", batch.rewards);
  std::vector<result_t<T>> out(static_cast<std::size_t>(batch.rewards.extent[0]));
  Workspace workspace;
  advantages_into(exec, batch, estimator, gdpo::view(out), workspace, report);
  return out;
}

/// The same with the default estimator, `Gdpo`, and a report.
template <class Exec, class T, class Groups, std::enable_if_t<detail::is_exec_v<Exec>, int> = 0>
std::vector<result_t<T>> advantages(const Exec& exec, const RewardBatch<T, Groups>& batch,
                                    GroupReport* report) {
  return advantages(exec, batch, Gdpo{}, report);
}

/// The advantages of rewards (N, C) in groups, on `simd`: the short form.
/// Raw memory is given as `gdpo::view(pointer, rows, columns)`. The result has N advantages.
template <class Estimator = Gdpo, class T, class Groups, class Report = std::nullptr_t>
std::vector<result_t<T>> advantages(View<T, 2> rewards, const Groups& groups,
                                    const Estimator& estimator = {}, Report report = nullptr) {
  return advantages(simd, RewardBatch<std::remove_const_t<T>, Groups>{rewards, groups}, estimator,
                    report);
}
/// The same for a single reward, (N).
template <class Estimator = Gdpo, class T, class Groups, class Report = std::nullptr_t>
std::vector<result_t<T>> advantages(View<T, 1> rewards, const Groups& groups,
                                    const Estimator& estimator = {}, Report report = nullptr) {
  return advantages(simd, RewardBatch<std::remove_const_t<T>, Groups>{rewards, groups}, estimator,
                    report);
}
/// The same for rewards (N, C) with the default estimator, `Gdpo`, and a report.
template <class T, class Groups>
std::vector<result_t<T>> advantages(View<T, 2> rewards, const Groups& groups, GroupReport* report) {
  return advantages(rewards, groups, Gdpo{}, report);
}
/// The same for a single reward, (N), with the default estimator, `Gdpo`, and a report.
template <class T, class Groups>
std::vector<result_t<T>> advantages(View<T, 1> rewards, const Groups& groups, GroupReport* report) {
  return advantages(rewards, groups, Gdpo{}, report);
}

GDPO_END_NAMESPACE
