#pragma once
// How far a teacher and the policy that sampled are apart on a token, for pre-passes of teachers.
#include <gdpo/loss/map.hpp>
#include <gdpo/prepass/args.hpp>

GDPO_BEGIN_NAMESPACE
namespace detail {

/// teacher - sampled, in nats.
template <class S>
GDPO_INLINE double teacher_gap(S teacher, S sampled) {
  return static_cast<double>(teacher) - static_cast<double>(sampled);
}
/// Throws unless the batch has a teacher's log-probs, which the pre-pass `name` reads.
inline void need_teacher(bool has_teacher, const char* name) {
  if (has_teacher) return;
  contract::fail("gdpo::prepare", "batch.teacher_logp", "no array",
                 contract::Text("the teacher's log-probs, because of ") + name);
}

}  // namespace detail
GDPO_END_NAMESPACE
