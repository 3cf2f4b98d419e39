#pragma once
// Constrained: advantages of an estimator under constraints.
#include <gdpo/advantage/shared/call_contract.hpp>
#include <gdpo/constraint/engine/constrained_call.hpp>
#include <gdpo/constraint/placement.hpp>

GDPO_BEGIN_NAMESPACE

/// An estimator under constraints. `advantages` and `advantages_into` of the host take it:
///
///     const gdpo::Constrained constrained{gdpo::Gdpo{}, gdpo::placement::FixedScale{},
///                                         pid.constraints({1, 2})};
///     gdpo::advantages(rewards, groups, constrained);
///
/// **Primary rewards** are maximized: those with a weight other than 0, or without weights all that
/// no constraint names. A constraint with lambda = 0 is inactive: its reward is not read. If none
/// is active, the advantages are those of the estimator, bit for bit.
///
/// **Constrained rewards** are read as they stand in the batch. Gates, the KL penalty, reward_clip
/// and an external baseline apply to the primary rewards only; under Composite reward_clip bounds
/// what is left after the violations. `clip` bounds the final advantages. A policy that reads
/// `MemberArgs::external` finds 0 there for violations.
///
/// **Missing rewards.** A constrained reward that is NaN follows `missing` of the estimator. If it
/// is skipped, it is in no statistic of its constraint and adds nothing to its row. A row without a
/// primary reward gets the advantage of its violations alone; under Composite, which subtracts
/// violations from the primary reward, it stays excluded.
///
/// **Groups of one.** `singleton` applies to the reward of each constraint by itself: Error throws
/// if a group has a single sample of a constrained reward.
///
/// **Report.** GroupReport describes the primary rewards, but `degenerate` the final advantages.
/// Composite also reports the violations, or the reward it standardizes instead of its carrier, as
/// further rewards behind those of the batch; GroupReport::to_map and diagnose() need names for
/// these too. `Workspace::sums()` are those of the last call of the estimator inside.
///
/// Errors: `invalid_input` for a reward, multiplier, limit or scale out of range, for a reward that
/// cannot carry the violations (Composite), and what the call of the estimator itself throws.
template <class Estimator = Gdpo, class Placement = placement::FixedScale>
struct Constrained {
  static_assert(!detail::computes_advantages_v<Placement>,
                "Constrained takes the estimator first, then its placement");
  static_assert(
      detail::PoliciesOf<Estimator>::known,
      "Constrained takes one GroupAdvantage: of a gdpo::runtime::Estimator, what std::visit gives");
  Estimator estimator{};               ///< Gives the advantages of the primary rewards.
  Placement placement{};               ///< Where the violations enter (namespace placement).
  List<Constraint, 16> constraints{};  ///< At most 16; several may limit the same reward.
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("estimator", s.estimator, "gives the advantages of the primary rewards");
    field("placement", s.placement, "where the violations enter");
    field("constraints", s.constraints, "the constrained rewards, at most 16");
  }
};
/// Takes constraints from a List, braces or a std::vector.
template <class Estimator, class Placement>
Constrained(Estimator, Placement, List<Constraint, 16>) -> Constrained<Estimator, Placement>;
namespace detail {
template <class Estimator, class Placement>
constexpr bool computes_advantages_v<Constrained<Estimator, Placement>> = true;
}  // namespace detail
static_assert(std::is_trivially_copyable_v<Constrained<>>, "estimators are kernel arguments");

/// The long form of `advantages` (advantage/advantages.hpp) for a constrained estimator.
/// It costs one call of the estimator for the primary rewards, and one call on a single reward for
/// each active constraint. Every exec gives the same bits. Computed in double and rounded once to
/// R, the scalar of out: (N). It allocates only what the workspace (and the report) lack.
template <class Exec, class T, class Groups, class Estimator, class Placement, class R>
void advantages_into(const Exec& exec, const RewardBatch<T, Groups>& batch,
                     const Constrained<Estimator, Placement>& constrained, View<R, 1> out,
                     Workspace& workspace, GroupReport* report = nullptr) {
  constexpr const char* function = "gdpo::advantages";
  if constexpr (detail::may_run<Exec, Groups>()) {
    detail::check_out(function, batch, out);
    detail::check_fields(function, "placement", constrained.placement);
    using Call = detail::ConstrainedCall<Exec, T, Groups, Estimator>;
    static_assert(std::is_invocable_v<const Placement&, Call&>,
                  "a placement is placement::FixedScale or one of its neighbors, or needs: "
                  "template <class Call> void operator()(Call&) const");
    Call call(function, exec, batch, constrained.estimator, constrained.constraints, workspace,
              report);
    if (call.active().empty()) {
      advantages_into(exec, batch, call.estimator(), out, workspace, report);
      return call.clip(out);
    }
    constrained.placement(call);
    call.write(out);
  }
}

GDPO_END_NAMESPACE
