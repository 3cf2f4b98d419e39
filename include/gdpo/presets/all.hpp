#pragma once
// All presets by kind: those of the library, and the lists of all trainers.
#include <gdpo/presets/areal.hpp>
#include <gdpo/presets/liger.hpp>
#include <gdpo/presets/ms_swift.hpp>
#include <gdpo/presets/nemo_rl.hpp>
#include <gdpo/presets/nvlabs.hpp>
#include <gdpo/presets/open_instruct.hpp>
#include <gdpo/presets/openrlhf.hpp>
#include <gdpo/presets/paper.hpp>
#include <gdpo/presets/per_group.hpp>
#include <gdpo/presets/preset.hpp>
#include <gdpo/presets/prime_rl.hpp>
#include <gdpo/presets/skyrl.hpp>
#include <gdpo/presets/slime.hpp>
#include <gdpo/presets/textbook.hpp>
#include <gdpo/presets/torchrl.hpp>
#include <gdpo/presets/trinity.hpp>
#include <gdpo/presets/trl.hpp>
#include <gdpo/presets/unsloth_zoo.hpp>
#include <gdpo/presets/verl.hpp>
#include <gdpo/update/ema_baseline.hpp>
#include <gdpo/update/return_scale.hpp>
#include <gdpo/update/running_moments.hpp>
#include <gdpo/update/shape_groups.hpp>

GDPO_BEGIN_NAMESPACE
/// The list of presets. The names at run time, the conformance runner, the checks of the kernels
/// and the tests are made from it. A new preset is a value and a line in the header of its trainer;
/// a new trainer has its lists here. A new kind of preset has a list here, which `for_each_list`
/// visits, its doors in runtime.hpp, and what the tables say of it in tests/pages.
///
///     gdpo::presets::for_each_estimator([](const auto& preset) { std::puts(preset.name); });
namespace presets {

namespace detail {
/// Calls f with the presets of all lists. A list is a function that calls another with its presets.
template <class F, class First, class... Rest>
constexpr auto with_all(const F& f, const First& first, const Rest&... rest) {
  if constexpr (sizeof...(Rest) == 0) {
    return first(f);
  } else {
    return first([&](const auto&... entries) {
      return with_all([&](const auto&... others) { return f(entries..., others...); }, rest...);
    });
  }
}
/// Calls a function with each preset of a list, one after the other.
template <class List>
struct ForEach {
  List list;
  template <class F>
  constexpr void operator()(const F& f) const {
    list([&f](const auto&... preset) { (f(preset), ...); });
  }
};
template <class List>
ForEach(List) -> ForEach<List>;
// The library's own estimators and losses, which have no trainer.
inline constexpr auto own_estimators = [](const auto& f) {
  return f(Preset{"gdpo", Gdpo{}, "", "arXiv 2601.05242"},
           Preset{"grpo", Grpo{}, "", "arXiv 2402.03300"},
           Preset{"dr_grpo", DrGrpo{}, "", "arXiv 2503.20783"},
           Preset{"rloo", Rloo{}, "", "arXiv 2402.14740"},
           Preset{"maxrl", MaxRl{}, "", "arXiv 2602.02710"},
           Preset{"gdpo_shrunk", ShrunkGdpo{}, "", "arXiv 2601.05242"},
           Preset{"grpo_shrunk", ShrunkGrpo{}, "", "arXiv 2402.03300"});
};
inline constexpr auto own_losses = [](const auto& f) {
  return f(Preset{"grpo", grpo_loss, "", "arXiv 2402.03300"},
           Preset{"dapo", dapo_loss, "", "arXiv 2503.14476"},
           Preset{"dr_grpo", dr_grpo_loss, "", "arXiv 2503.20783"},
           Preset{"gspo", gspo_loss, "", "arXiv 2507.18071"},
           Preset{"gspo_token", gspo_token_loss, "", "arXiv 2507.18071"},
           Preset{"cispo", cispo_loss, "", "arXiv 2506.13585"},
           Preset{"sapo", sapo_loss, "", "arXiv 2511.20347"},
           Preset{"vespo", vespo_loss, "", "arXiv 2602.10693"},
           Preset{"gmpo", gmpo_loss, "", "arXiv 2507.20673"},
           Preset{"topr", topr_loss, "", "arXiv 2503.14286"},
           Preset{"up_grpo", up_grpo_loss, "", "arXiv 2607.06987"},
           Preset{"distillation", distillation_loss, "", "Thinking Machines 2025"});
};
inline constexpr auto own_contrastive_losses = [](const auto& f) {
  return f(Preset{"real", ContrastiveLoss<>{}, "", "arXiv 2602.05630"});
};
// The types of corrections by name, for lines that set everything themselves.
inline constexpr auto own_prepasses = [](const auto& f) {
  return f(Preset{"importance", prepass::Importance{}, "", ""},
           Preset{"gate", prepass::Gate{}, "", ""},
           Preset{"masked_importance", prepass::MaskedImportance{}, "", ""},
           Preset{"mean_one", prepass::MeanOne{}, "", ""},
           Preset{"second_moment", prepass::SecondMoment{}, "", "arXiv 2510.01161"},
           Preset{"covariance", prepass::Covariance{}, "", "arXiv 2505.22617"},
           Preset{"entropy_clip", prepass::EntropyClip{}, "", "arXiv 2602.03392"},
           Preset{"future_kl", prepass::FutureKl{}, "", ""},
           Preset{"teacher_ratio", prepass::TeacherRatio{}, "", ""},
           Preset{"teacher_prefix", prepass::TeacherPrefix{}, "", "arXiv 2606.22600"});
};
// The rules that shape rewards, for lines that set everything themselves.
inline constexpr auto own_shapings = [](const auto& f) {
  namespace shaping = update::shaping;
  return f(Preset{"clip", shaping::Clip{}, "", ""}, Preset{"affine", shaping::Affine{}, "", ""},
           Preset{"standardize", shaping::Standardize{}, "", ""},
           Preset{"soft_overlong", shaping::SoftOverlong{}, "", "arXiv 2503.14476"},
           Preset{"length_target", shaping::LengthTarget{}, "", "arXiv 2503.04697"},
           Preset{"length_limit", shaping::LengthLimit{}, "", "arXiv 2503.04697"},
           Preset{"length_at_most", shaping::LengthAtMost{}, "", "arXiv 2601.05242"},
           Preset{"relative_cost", shaping::RelativeCost{}, "", ""},
           Preset{"relative_length", shaping::RelativeLength{}, "", "arXiv 2501.12599"},
           Preset{"length_among_right", shaping::LengthAmongRight{}, "", "arXiv 2504.09696"},
           Preset{"solve_rate_length", shaping::SolveRateLength{}, "", "arXiv 2506.05256"});
};
// What keeps a state over the steps of a run, for lines that set everything themselves.
inline constexpr auto own_running = [](const auto& f) {
  return f(Preset{"running_moments", update::RunningMoments{}, "", ""},
           Preset{"ema_baseline", update::EmaBaseline{}, "", "arXiv 2506.24119"},
           Preset{"return_scale", update::ReturnScale{}, "", ""});
};
inline constexpr auto own_whitenings = [](const auto& f) {
  return f(Preset{"tokens", renorm::token_weighted_batch(), "", ""});
};
inline constexpr auto own_token_advantages = [](const auto& f) {
  return f(Preset{"distillation", distillation_advantage, "", "Thinking Machines 2025"});
};
inline constexpr auto own_step_advantages = [](const auto& f) {
  return f(Preset{"gigpo", Gigpo<Grpo>{}, "", "arXiv 2505.10978"},
           Preset{"gigpo_no_std", Gigpo<DrGrpo>{}, "", "arXiv 2505.10978"});
};
}  // namespace detail

/// Calls f(preset...) with the whole list of estimators.
inline constexpr auto with_estimators = [](const auto& f) {
  return detail::with_all(f, detail::own_estimators, paper::estimators, trl::estimators,
                          verl::estimators, nvlabs::estimators, ms_swift::estimators,
                          open_instruct::estimators, nemo_rl::estimators, slime::estimators,
                          skyrl::estimators, trinity::estimators, prime_rl::estimators,
                          areal::estimators, textbook::estimators, per_group::estimators);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_estimator{with_estimators};
/// Calls f(preset...) with the whole list of estimators over tokens.
inline constexpr auto with_token_advantages = [](const auto& f) {
  return detail::with_all(f, detail::own_token_advantages, verl::token_advantages,
                          openrlhf::token_advantages, nemo_rl::token_advantages,
                          slime::token_advantages, ms_swift::token_advantages,
                          trinity::token_advantages, skyrl::token_advantages);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_token_advantage{with_token_advantages};
/// Calls f(preset...) with the whole list of estimators from rows to tokens.
inline constexpr auto with_outcome_advantages = [](const auto& f) {
  return detail::with_all(f, openrlhf::outcome_advantages, nemo_rl::outcome_advantages,
                          slime::outcome_advantages, trinity::outcome_advantages,
                          areal::outcome_advantages);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_outcome_advantage{with_outcome_advantages};
/// Calls f(preset...) with the whole list of estimators of the steps of agents, each a Gigpo.
inline constexpr auto with_step_advantages = [](const auto& f) {
  return detail::with_all(f, detail::own_step_advantages, trinity::step_advantages);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_step_advantage{with_step_advantages};
/// Calls f(preset...) with the whole list of token baselines, each an OptimalTokenBaseline.
inline constexpr auto with_token_baselines = [](const auto& f) {
  return detail::with_all(f, verl::token_baselines);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_token_baseline{with_token_baselines};
/// Calls f(preset...) with the whole list of second normalizations over tokens, each a Renorm.
inline constexpr auto with_whitenings = [](const auto& f) {
  return detail::with_all(f, detail::own_whitenings, verl::whitenings, nvlabs::whitenings,
                          openrlhf::whitenings, nemo_rl::whitenings, slime::whitenings,
                          areal::whitenings);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_whitening{with_whitenings};
/// Calls f(preset...) with the whole list of value losses.
inline constexpr auto with_value_losses = [](const auto& f) {
  return detail::with_all(f, verl::value_losses, openrlhf::value_losses, nemo_rl::value_losses,
                          slime::value_losses, areal::value_losses);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_value_loss{with_value_losses};
/// Calls f(preset...) with the whole list of losses.
inline constexpr auto with_losses = [](const auto& f) {
  return detail::with_all(f, detail::own_losses, trl::losses, verl::losses, nvlabs::losses,
                          ms_swift::losses, open_instruct::losses, nemo_rl::losses, slime::losses,
                          liger::losses, unsloth_zoo::losses, skyrl::losses, trinity::losses,
                          prime_rl::losses, torchrl::losses, areal::losses, openrlhf::losses,
                          textbook::losses);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_loss{with_losses};
/// Calls f(preset...) with the whole list of losses over groups, each a ContrastiveLoss.
inline constexpr auto with_contrastive_losses = [](const auto& f) {
  return detail::with_all(f, detail::own_contrastive_losses, ms_swift::contrastive_losses);
};
/// Calls f(preset...) with the whole list of pre-passes.
inline constexpr auto with_prepasses = [](const auto& f) {
  return detail::with_all(f, detail::own_prepasses, trl::prepasses, verl::prepasses,
                          ms_swift::prepasses, open_instruct::prepasses, nemo_rl::prepasses,
                          slime::prepasses, openrlhf::prepasses, unsloth_zoo::prepasses,
                          skyrl::prepasses, areal::prepasses, prime_rl::prepasses,
                          torchrl::prepasses, trinity::prepasses);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_prepass{with_prepasses};
/// Calls f(preset...) with the whole list of rules that shape rewards.
inline constexpr auto with_shapings = [](const auto& f) {
  return detail::with_all(f, detail::own_shapings, prime_rl::shapings);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_shaping{with_shapings};
/// Calls f(preset...) with the whole list of what keeps a state over the steps of a run.
inline constexpr auto with_running = [](const auto& f) {
  return detail::with_all(f, detail::own_running, prime_rl::running);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_running{with_running};
/// Calls f(preset...) with the whole list of aggregates, which are verl's.
inline constexpr auto with_aggregates = [](const auto& f) {
  return detail::with_all(f, verl::aggregates);
};
/// Calls f(preset) for each of them.
inline constexpr detail::ForEach for_each_aggregate{with_aggregates};
/// Calls f(for_each) with the `for_each_...` of every list of which a name at run time is a value.
template <class F>
constexpr void for_each_list(const F& f) {
  f(for_each_estimator), f(for_each_loss), f(for_each_prepass), f(for_each_token_advantage);
  f(for_each_outcome_advantage), f(for_each_step_advantage), f(for_each_token_baseline);
  f(for_each_value_loss), f(for_each_shaping), f(for_each_running);
}
}  // namespace presets
GDPO_END_NAMESPACE
