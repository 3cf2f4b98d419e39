#pragma once
// The two stages of an estimator as two calls, for a batch whose rows are on several ranks.
#include <gdpo/advantage/combined_moments.hpp>
#include <gdpo/advantage/engine/fill_report.hpp>
#include <gdpo/advantage/shared/batch_step.hpp>
#include <gdpo/advantage/shared/call_contract.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

template <class Batch, class Estimator>
FirstStage first_stage_of(const Batch& batch, const Estimator& e) {
  const index_t rows = batch.rewards.extent[0];
  return {batch.rewards.data, &type_mark<Estimator>, e.renorm.over, rows, batch.groups.count(rows)};
}

}  // namespace detail

/// The first stage of an estimator: everything up to the combined values, which stay in `workspace`
/// (`Workspace::sums`). finish() does the second. Between the two, ranks add what they know:
///
///     const auto own = gdpo::first_stage(exec, batch, estimator, workspace, &report);
///     const auto all = gdpo::dist::all_merge(comm, own);  // or merge() of micro-batches
///     gdpo::finish(exec, batch, estimator, all, gdpo::view(advantages), workspace);
///
/// This is for ranks that cannot send their rewards; those that can gather the rows
/// (dist::gather_rows), which is exact in every bit and for every estimator. Here each group has to
/// be whole on one rank. Then the advantages agree with those of one call over all rows within
/// 2^-44 relative of the multiplier, excluded rows get 0, and zeros of degenerate groups stay
/// exactly 0 where one call gives 0. With a single rank the bits are those of advantages_into.
///
/// Arguments are those of advantages_into. Errors: also invalid_input for an estimator whose
/// baseline or scale reads the whole batch (a scale by the std of the batch), because its first
/// stage would see the rows of this rank only.
template <class Exec, class T, class Groups, class B, class S, class C, class Renorm,
          class Report = std::nullptr_t>
CombinedMoments first_stage(const Exec& exec, const RewardBatch<T, Groups>& batch,
                            const GroupAdvantage<B, S, C, Renorm>& estimator, Workspace& workspace,
                            Report report = nullptr) {
  CombinedMoments moments;
  if constexpr (detail::may_run<Exec, Groups>()) {
    using namespace detail;
    constexpr const char* function = "gdpo::first_stage";
    contract::check_array(function, "rewards", batch.rewards);
    check_batch_step(function, batch, estimator.renorm);
    check_first_stage(function, estimator);
    EstimatorScratch& work = ScratchOf::estimator(workspace);
    Evaluation<T, Groups, B, S> evaluation(function, exec, batch, estimator, work, report);
    evaluation(exec);
    fill_report(batch, evaluation, work, report);
    const RowBlocks<Exec> blocks(exec, batch.rewards.extent[0]);
    moments = combined_moments(batch_moments(blocks, batch, estimator.renorm.over, work),
                               estimator.renorm.over, work.combined.zero_sum);
    work.first_stage = first_stage_of(batch, estimator);
  }
  return moments;
}

/// The second stage of an estimator: writes the advantages of the batch whose first_stage() used
/// `workspace` last, by the moments of all ranks. `merged` of one rank gives that rank's own.
///
/// RenormOver::None and RenormOver::Group read nothing of `merged` but zero_sum. Errors:
/// invalid_input for an `out` of another size, and for a workspace that first_stage() has not used
/// last with this batch, this type and this renorm.over.
template <class Exec, class T, class Groups, class B, class S, class C, class Renorm, class R>
void finish(const Exec& exec, const RewardBatch<T, Groups>& batch,
            const GroupAdvantage<B, S, C, Renorm>& estimator, const CombinedMoments& merged,
            View<R, 1> out, Workspace& workspace) {
  if constexpr (detail::may_run<Exec, Groups>()) {
    using namespace detail;
    constexpr const char* function = "gdpo::finish";
    check_out(function, batch, out);
    check_batch_step(function, batch, estimator.renorm);
    check_clip(function, estimator.clip);
    EstimatorScratch& work = ScratchOf::estimator(workspace);
    const index_t rows = batch.rewards.extent[0];
    if (!(work.first_stage.value == first_stage_of(batch, estimator))) {
      contract::fail(function, "workspace",
                     work.first_stage.value.rows < 0 ? "one that first_stage() has not used last"
                                                     : "that of another batch or estimator",
                     "that of first_stage() with this batch and estimator");
    }
    const GroupUnits units(batch);
    const index_t workers = workers_for(exec, units.count(), rows * batch.rewards.extent[1]);
    if (estimator.renorm.over == RenormOver::Group) {
      // The workers of first_stage() may have been fewer.
      const std::size_t members = as_size(units.longest(batch.groups));
      if (work.workers.size() < as_size(workers))
        work.workers = std::vector<GroupScratch>(as_size(workers));
      for (GroupScratch& worker : work.workers) worker.values.resize(members);
    }
    batch_step(exec, units, workers, batch, estimator.renorm, merged.zero_sum, work, out,
               [&](const auto&) { return merged.values; });
    clip_advantages(exec, estimator.clip, out);
  }
}

GDPO_END_NAMESPACE
