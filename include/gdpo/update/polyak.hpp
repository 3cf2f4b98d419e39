#pragma once
// polyak: moves reference parameters towards the trained ones.
#include <gdpo/math/check_fields.hpp>
#include <gdpo/update/engine/change_lanes.hpp>
#include <gdpo/update/engine/parameter_grid.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// r + tau (p - r) in every lane; r where both are equal, also where both are infinite.
template <class S>
struct Blend {
  using Lanes = math::Pack<math::logical_lanes, S>;
  Lanes tau;
  GDPO_HOST_INLINE Lanes operator()(const Lanes& r, const Lanes& p) const {
    return select(p == r, r, math::fma(tau, p - r, r));
  }
};

/// Blends the elements first .. first + n - 1 of a policy P into a reference R, which are float or
/// double each.
template <class R, class P>
void blend_unit(const ParameterView& reference, const ParameterView& policy, index_t first,
                index_t n, double tau) {
  const Axes axes = axes_of(reference, &policy);
  Chunk<R> target(reference, axes, 0);
  Chunk<P> source(policy, axes, 1);
  for (index_t position = first; position < first + n; position += parameter_chunk) {
    const index_t m = (std::min)(parameter_chunk, first + n - position);
    R* r = target.read(position, m);
    const P* p = source.read(position, m);
    if (tau == 1) {
      for (index_t i = 0; i < m; ++i) r[i] = static_cast<R>(p[i]);
    } else {
      change_lanes<R>(m, Blend<R>{math::constant<typename Blend<R>::Lanes>(tau)}, r, p);
    }
    target.write(position, m);
  }
}

}  // namespace detail

namespace update {

/// Moves a reference policy towards the policy, in place: reference += tau (policy - reference).
///
///     gdpo::update::polyak(gdpo::simd, reference, policy, 0.6);
///
/// Source: `update_ref_policy` of open-instruct (alpha) and `SyncRefModelCallback` of TRL
/// (ref_model_mixup_alpha): reference = (1 - alpha) reference + alpha policy, tau = alpha. The beta
/// of OpenRLHF's `moving_average` is the weight of the old average: tau = 1 - beta.
///
/// exec: seq, simd or parallel(executor), the same bits. reference: changed in place. policy: as
/// many arrays in the same order and with the same extents, in other memory, of any storage and
/// storage order: a
/// reference in float may follow a policy in bfloat16. tau: 0 to 1. 0 leaves the reference as it
/// is; 1 copies the policy, rounded where the reference is narrower.
///
/// Elements are computed in double where the reference is double, else in float, as
/// fma(tau, policy - reference, reference): within three units in the last place of the larger of
/// |reference| and |policy|. Elements that are equal stay as they are, for every tau, also
/// infinities. NaN spreads, and so does an infinite reference, as NaN. A difference beyond the
/// range of the type is infinite. In bfloat16 a reference follows slowly or not at all: steps of
/// less than half a unit in its last place (2^-9 relative) are lost, so keep it in float where tau
/// is small.
///
/// Over ranks nothing is exchanged: shards move by themselves, and replicas with the same bits on
/// each rank. One read of both, one write of the reference.
///
/// Errors, before anything is written: invalid_input for a tau that is not in 0 .. 1, lists of
/// different lengths, arrays of different extents, and what clip_grad_norm() refuses in arrays that
/// are written.
template <class Exec>
void polyak(const Exec& exec, const std::vector<ParameterView>& reference,
            const std::vector<ParameterView>& policy, double tau) {
  static_assert(detail::needs_exec<Exec>());
  using namespace gdpo::detail;
  constexpr const char* function = "gdpo::update::polyak";
  if (!(tau >= 0 && tau <= 1) || math::is_nan(tau))
    contract::fail(function, "tau", contract::text(tau), "a number from 0 to 1");
  if (policy.size() != reference.size()) {
    contract::fail(
        function, "policy", contract::text(static_cast<index_t>(policy.size())) + " arrays",
        "as many as the reference has, " + contract::text(static_cast<index_t>(reference.size())));
  }
  const std::vector<index_t> elements = written_elements(function, "reference", reference);
  for (std::size_t i = 0; i < policy.size(); ++i) {
    const ParameterView &r = reference[i], &p = policy[i];
    const index_t read = check_parameter(function, "policy", i, p, false);
    if (read > 0 && r.data() == p.data()) {
      contract::fail(function, entry_name("policy", i),
                     "the memory of " + entry_name("reference", i),
                     "a reference of its own, which is not the policy itself");
    }
    if (r.rank() != p.rank() || !std::equal(r.extents(), r.extents() + 3, p.extents())) {
      contract::fail(function, entry_name("policy", i), contract::shape(p.rank(), p.extents()),
                     contract::shape(r.rank(), r.extents()) + ", the extents of the reference");
    }
  }
  if (tau == 0) return;
  const ParameterGrid grid(elements);
  grid.for_each(exec, elements, [&](index_t, std::size_t array, index_t first, index_t n) {
    const ParameterView &r = reference[array], &p = policy[array];
    if (r.is_double()) {
      (p.is_double() ? blend_unit<double, double> : blend_unit<double, float>)(r, p, first, n, tau);
    } else {
      (p.is_double() ? blend_unit<float, double> : blend_unit<float, float>)(r, p, first, n, tau);
    }
  });
}
/// The same on one thread, in lanes.
inline void polyak(const std::vector<ParameterView>& reference,
                   const std::vector<ParameterView>& policy, double tau) {
  polyak(simd, reference, policy, tau);
}

/// When and how far a reference policy follows the policy.
///
///     const gdpo::update::Refresh refresh{512, 0.6};  // TRL's ref_model_sync_steps, mixup_alpha
///     if (refresh.due(step)) gdpo::update::polyak(reference, policy, refresh.tau);
struct Refresh {
  /// Steps between two refreshes, in the unit that due() is called with: optimizer steps in TRL,
  /// training steps in open-instruct. 0: the reference stays.
  index_t every = 0;
  double tau = 1;  ///< 1: the reference becomes the policy; below: polyak().
  /// The settings (core/fields.hpp).
  template <class Self, class Field>
  static constexpr void fields(Self& s, const Field& field) {
    field("every", s.every, at_least(0).with_note("0: never"), "steps between two refreshes");
    field("tau", s.tau, at_least(0).at_most(1), "how far the reference moves to the policy");
  }

  /// Whether the reference is refreshed after step `step`, counted from 1: after every `every`
  /// steps. Throws invalid_input for settings out of their range.
  bool due(index_t step) const {
    gdpo::detail::check_fields("gdpo::update::Refresh", "", *this);
    return every > 0 && step > 0 && step % every == 0;
  }
};

}  // namespace update
GDPO_END_NAMESPACE
