"""ms-swift's options as an estimator, a loss and a pre-pass of this library with their settings."""
from typing import Any, Dict, Optional, Tuple

# The estimator for advantage_estimator and scale_rewards. In ms-swift "gdpo" replaces the
# estimators grpo and rloo, and means no scaling to reinforce_plus_plus.
ESTIMATORS = {
    ("grpo", "group"): "ms_swift::grpo",
    ("grpo", "none"): "ms_swift::grpo_no_scale",
    ("grpo", "batch"): "ms_swift::grpo_batch_scale",
    ("grpo", "gdpo"): "ms_swift::gdpo",
    ("rloo", "none"): "ms_swift::rloo",
    ("rloo", "group"): "ms_swift::rloo_group_scale",
    ("rloo", "batch"): "ms_swift::rloo_batch_scale",
    ("rloo", "gdpo"): "ms_swift::gdpo",
    ("reinforce_plus_plus", "batch"): "ms_swift::reinforce_plus_plus",
    ("reinforce_plus_plus", "group"): "ms_swift::reinforce_plus_plus_group_scale",
    ("reinforce_plus_plus", "none"): "ms_swift::reinforce_plus_plus_no_scale",
    ("reinforce_plus_plus", "gdpo"): "ms_swift::reinforce_plus_plus_no_scale",
}
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo")

# The loss type that is a loss over groups, and no PolicyLoss.
OVER_GROUPS = "real"

# The loss type whose surrogate is weighed by how the policy has moved on the tokens that follow.
BY_FUTURE = "fipo"


def loss_settings(trainer: Any) -> Tuple[str, Dict[str, Any]]:
    """The name of the loss that ms-swift's options describe, and its settings without the level.

    trainer: has what ms-swift's trainer has: loss_type, beta, kl_in_reward, epsilon_low,
    epsilon_high, tau_pos, tau_neg, real_tau, max_completion_length, and args, its configuration.
    """
    settings = {"kl.beta": 0.0 if trainer.kl_in_reward else trainer.beta}
    if trainer.loss_type == OVER_GROUPS:
        settings["tau"] = trainer.real_tau
    elif trainer.loss_type == "cispo":
        settings["factor.max_ratio"] = trainer.epsilon_high  # the bound itself
    elif trainer.loss_type == "sapo":
        settings.update({"surrogate.tau_pos": trainer.tau_pos,
                         "surrogate.tau_neg": trainer.tau_neg})
    else:
        settings.update({"surrogate.low": trainer.epsilon_low,
                         "surrogate.high": trainer.epsilon_high,
                         "surrogate.delta": trainer.args.delta})
    if trainer.loss_type == "dr_grpo":
        settings["aggregate.constant"] = trainer.max_completion_length
    return f"ms_swift::{trainer.loss_type}", settings


def no_loss_because(trainer: Any, *, chosen: bool = False) -> Optional[str]:
    """Why no loss of this library is that of ms-swift's options, or None.

    trainer: as in `loss_settings`, with use_liger_loss, importance_sampling_level,
    fipo_safety_threshold, chord_sft_iterator, _has_teacher and off_policy_sequence_mask_delta.
    chosen: whether another loss than that of loss_type was chosen.
    """
    if not chosen and trainer.loss_type not in (*LOSS_TYPES, OVER_GROUPS):
        return f"loss_type={trainer.loss_type} has no counterpart"
    if trainer.use_liger_loss:
        return "with use_liger_kernel ms-swift computes the loss in Liger"
    if (not chosen and trainer.loss_type == BY_FUTURE
            and trainer.importance_sampling_level != "token"
            and (trainer.args.delta is not None or trainer.fipo_safety_threshold is not None)):
        return (f"loss_type={BY_FUTURE} with importance_sampling_level="
                f"{trainer.importance_sampling_level}, where fipo_safety_threshold and delta bound "
                "ratios of rows, has no counterpart")
    if trainer.chord_sft_iterator is not None:
        return "CHORD mixes in a loss of ms-swift"
    if trainer._has_teacher and trainer.off_policy_sequence_mask_delta is not None:
        return "ms-swift refuses off_policy_sequence_mask_delta with a teacher"
    return None


def estimator_of(advantage_estimator: str, scale_rewards: str, dynamic: bool = False
                 ) -> Optional[str]:
    """The estimator for these options, or None for one that is not known.

    dynamic: whether the number of rows of a prompt differs, as in conversations of several turns.
    """
    if dynamic and scale_rewards == "gdpo":
        scale_rewards = "none"  # which is what compute_advantages_dynamic makes of it
    return ESTIMATORS.get((advantage_estimator, scale_rewards))


def future_lines(trainer: Any, drop_above: Any) -> Tuple[str, str]:
    """The pre-pass of loss_type="fipo", and the same without bounds and without its safety.

    trainer: has fipo_gamma, fipo_clip_range, fipo_clip_high_only and fipo_safety_threshold.
    drop_above: the bound of the loss, its surrogate.delta.
    """
    bounds = "clip.lo=-inf clip.hi=inf"
    if trainer.fipo_clip_range:
        low = 1.0 if trainer.fipo_clip_high_only else 1 - trainer.fipo_clip_range
        bounds = f"clip.lo={low!r} clip.hi={1 + trainer.fipo_clip_range!r}"
    safety = trainer.fipo_safety_threshold
    sums = f"ms_swift::fipo gamma={trainer.fipo_gamma!r} drop_above={drop_above}"
    return (f"{sums} {bounds} safety={'inf' if safety is None else repr(safety)}",
            f"{sums} clip.lo=-inf clip.hi=inf safety=inf")


def gamma_of(decay_rate: float) -> float:
    """The decay of a token in loss_type="fipo", which halves it in that many tokens."""
    return 2**(-1 / decay_rate)
