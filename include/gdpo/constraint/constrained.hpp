#pragma once
#include <gdpo/constraint/engine/constrained_call.hpp>
#include <gdpo/constraint/placement.hpp>

GDPO_BEGIN_NAMESPACE

/// An estimator under constraints, taken wherever an estimator is:
///   gdpo::Constrained constrained{gdpo::Gdpo{}, gdpo::placement::FixedScale{}, pid.constraints({1, 2})};
///   gdpo::advantages(rewards, groups, constrained);
/// Primary rewards are those with a weight; without weights, all that no constraint names. A constraint whose lambda is 0 is
/// not read; without any at work the advantages are those of the estimator, bit for bit. Constraints read rewards as they
/// stand: gates, KL penalties and an external baseline are of the primary rewards. A missing (NaN) constrained reward follows
/// `missing`: skipped, it is in no statistic of its constraint and adds nothing to its row. A row without a primary reward has
/// what its violations give; under Composite, which subtracts them from that reward, it stays excluded. A policy that reads
/// MemberArgs::external finds 0 there for violations.
/// `singleton` holds in every constraint's column by itself: Error throws where a group has one sample of a constrained reward.
/// The report is of the primary rewards, but `degenerate` of the advantages with their violations; of Composite, with its violations,
/// or what it standardises, as rewards behind those of the batch. Workspace::sums() is that of the last call of the estimator inside.
/// Errors: invalid_input for a column, multiplier, limit or scale out of range, and what the estimator's own call has.
template <class Estimator = Gdpo, class Placement = placement::FixedScale>
struct Constrained {
  static_assert(!detail::computes_advantages_v<Placement>,
                "Constrained takes the estimator first, then its placement");
  static_assert(
      detail::PoliciesOf<Estimator>::known,
      "Constrained takes one GroupAdvantage: of a gdpo::runtime::Estimator, what std::visit gives");
  Estimator estimator{};
  Placement placement{};
  List<Constraint, 16> constraints{};
};
template <class Estimator, class Placement>
Constrained(Estimator, Placement, List<Constraint, 16>) -> Constrained<Estimator, Placement>;
namespace detail {
template <class Estimator, class Placement>
constexpr bool computes_advantages_v<Constrained<Estimator, Placement>> = true;
}  // namespace detail
static_assert(std::is_trivially_copyable_v<Constrained<>>, "estimators are kernel arguments");

/// The long form (advantages.hpp) of a constrained estimator: the cost of one estimator call for the primary rewards, and of one
/// of one column for each constraint at work. Same bits for every exec.
template <class Exec, class T, class Groups, class Estimator, class Placement, class R>
void advantages_into(const Exec& exec, const RewardBatch<T, Groups>& batch,
                     const Constrained<Estimator, Placement>& constrained, View<R, 1> out,
                     Workspace& workspace, GroupReport* report = nullptr) {
  constexpr const char* function = "gdpo::advantages";
  if constexpr (detail::may_run<Exec, Groups>()) {
    detail::check_out(function, batch.rewards.extent[0], out);
    using Call = detail::ConstrainedCall<Exec, T, Groups, Estimator>;
    static_assert(std::is_invocable_v<const Placement&, Call&>,
                  "a placement is placement::FixedScale or one of its neighbours, or needs: "
                  "template <class Call> void operator()(Call&) const");
    Call call(function, exec, batch, constrained.estimator, constrained.constraints, workspace,
              report);
    if (call.active().empty())
      return advantages_into(exec, batch, call.estimator(), out, workspace, report);
    constrained.placement(call);
    call.write(out);
  }
}

GDPO_END_NAMESPACE
