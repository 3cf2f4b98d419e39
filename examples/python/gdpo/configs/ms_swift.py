"""ms-swift's arguments of `swift rlhf --rlhf_type grpo` as calls of this library."""
import types
from typing import Any, Dict, List, Mapping

from .._losses import ContrastiveLoss, PolicyLoss
from .._settings import value_of
from ._configured import Draft, Kl, estimator_line, prepass_line, reason
from ._ms_swift_loss import (BY_FUTURE, LOSS_TYPES, OVER_GROUPS, estimator_of, future_lines,
                             gamma_of, loss_settings, no_loss_because)
from ._options import Options
from ._others import MS_SWIFT as IGNORED

__all__ = ["DEFAULTS", "IGNORED", "RELEASE", "SECTIONS", "configured", "renamed"]

#: The release whose options these are.
RELEASE = "ms-swift 4.6.0"
#: Options without a section.
SECTIONS = ("",)

#: The options that are read, with ms-swift's defaults for GRPO.
DEFAULTS: Dict[str, Any] = {
    "rlhf_type": "grpo", "beta": 0.04, "loss_type": "grpo", "epsilon": 0.2, "epsilon_high": None,
    "delta": None, "importance_sampling_level": "token", "max_completion_length": 512,
    "tau_pos": 1.0, "tau_neg": 1.05, "real_tau": 0.5, "advantage_estimator": "grpo",
    "scale_rewards": None, "kl_in_reward": None, "reward_weights": None, "num_generations": 8,
    "overlong_filter": False, "top_entropy_quantile": 1.0, "dynamic_sample": False,
    "rollout_importance_sampling_mode": None, "rollout_importance_sampling_threshold": 2.0,
    "off_policy_sequence_mask_delta": None, "use_vllm": False, "fipo_decay_rate": 32.0,
    "fipo_clip_range": 0.2, "fipo_clip_high_only": True, "fipo_safety_threshold": 4.0,
    "sdar_loss_coef": 0.0, "sdar_gate_beta": 5.0, "advantage_reweight": None,
    "teacher_model": None, "teacher_model_server": None, "teacher_kl_coef": 1.0,
    "use_liger_kernel": False, "chord_sft_dataset": None, "multi_turn_scheduler": None,
    "sync_ref_model": False, "temperature": 0.9,
}
_TOKENS = "the valid tokens of the micro-batch, times the accumulation steps"
# What ms-swift scales by where scale_rewards is not given.
_SCALES = {"grpo": "group", "rloo": "none", "reinforce_plus_plus": "batch"}


def renamed(given: Mapping[str, Any], config: Any) -> Dict[str, Any]:
    """The options with those that are None or lists of one in ms-swift's own objects."""
    options = dict(given)
    loss_type = options.get("loss_type")
    if isinstance(loss_type, (list, tuple)) and len(loss_type) == 1:
        options["loss_type"] = loss_type[0]
    for name in ("loss_type", "beta"):
        if name in options and options[name] is None:
            del options[name]
    return options


def configured(options: Options) -> Draft:
    """The calls that these options mean."""
    draft = Draft("ms_swift", RELEASE, options)
    draft.fields["temperature"] = float(options["temperature"])
    if options["rlhf_type"] != "grpo":
        draft.lacks("rlhf_type", "these are the options of rlhf_type=grpo")
        return draft
    kind, estimator = options["loss_type"], options["advantage_estimator"]
    scale = "none" if kind == OVER_GROUPS else (
        options["scale_rewards"] or _SCALES.get(estimator, "group"))
    in_reward = options["kl_in_reward"]
    in_reward = estimator != "grpo" if in_reward is None else bool(in_reward)
    if scale == "gdpo" and in_reward:
        draft.unread["kl_in_reward"] = (
            "given True: scale_rewards=gdpo leaves the KL in the loss" if options["kl_in_reward"]
            else f"{estimator} has the KL in the reward, but scale_rewards=gdpo leaves it in the "
            "loss")
        in_reward = False
    if kind == OVER_GROUPS:
        draft.reads_not(["scale_rewards"], f"loss_type={OVER_GROUPS} scales by nothing")
    trainer = types.SimpleNamespace(
        args=options.section(""), loss_type=kind, beta=float(options["beta"]),
        kl_in_reward=in_reward, epsilon_low=options["epsilon"],
        epsilon_high=options["epsilon" if options["epsilon_high"] is None else "epsilon_high"],
        tau_pos=options["tau_pos"], tau_neg=options["tau_neg"], real_tau=options["real_tau"],
        max_completion_length=options["max_completion_length"],
        importance_sampling_level=options["importance_sampling_level"],
        use_liger_loss=options["use_liger_kernel"], _has_teacher=_has_teacher(options),
        chord_sft_iterator=options["chord_sft_dataset"] or None,
        off_policy_sequence_mask_delta=options["off_policy_sequence_mask_delta"],
        fipo_gamma=gamma_of(options["fipo_decay_rate"]), fipo_clip_range=options["fipo_clip_range"],
        fipo_clip_high_only=options["fipo_clip_high_only"],
        fipo_safety_threshold=options["fipo_safety_threshold"])
    _advantages(draft, options, trainer, scale)
    _loss(draft, options, trainer)
    _others(draft, options)
    return draft


def _has_teacher(options: Options) -> bool:
    """Whether a teacher's log-probs are computed."""
    return options["teacher_model"] is not None or options["teacher_model_server"] is not None


def _advantages(draft: Draft, options: Options, trainer: Any, scale: str) -> None:
    """The estimator and the KL in the reward."""
    name = estimator_of(options["advantage_estimator"], scale)
    if name is None:
        draft.lacks("advantage_estimator", f"with scale_rewards={scale} it has no counterpart")
    else:
        coef = trainer.beta if trainer.kl_in_reward and trainer.beta else None
        draft.fields["estimator"] = estimator_line(name, penalty__coef=coef)
    if trainer.beta and trainer.kl_in_reward:
        draft.fields["kl"] = Kl("reward", "k1", trainer.beta)
        draft.arrays["penalty"] = ("of gdpo.advantages: the sum over each row's tokens of old_logp "
                                   "- ref_logp, in nats")
    weights = options["reward_weights"]
    draft.fields["weights"] = None if weights is None else tuple(map(float, weights))
    if options["multi_turn_scheduler"]:
        draft.yours["multi_turn_scheduler"] = (
            "a row for each request goes into the advantages, its last one, and the others get "
            "its advantage")
    if options["advantage_reweight"]:
        draft.lacks("advantage_reweight", "a teacher weighs the advantage of each token")
    elif _has_teacher(options) and not options["sdar_loss_coef"]:
        draft.lacks("teacher_model" if options["teacher_model"] is not None else
                    "teacher_model_server",
                    f"{options['teacher_kl_coef']} times the log ratio of teacher and policy is "
                    "added to the advantage of each token")


def _loss(draft: Draft, options: Options, trainer: Any) -> None:
    """The loss with its pre-passes and its KL term."""
    why = no_loss_because(trainer)
    if why is not None:
        draft.unsupported[_option_of(trainer)] = why
        return
    name, settings = loss_settings(trainer)
    if trainer.loss_type == OVER_GROUPS:
        try:
            draft.fields["loss"] = ContrastiveLoss(name, **settings)
        except ValueError as error:
            draft.lacks("real_tau", reason(error))
        draft.counts["given"] = ("the groups of the micro-batch, as gdpo.count(group_size=...) "
                                 "counts them, times the accumulation steps")
        draft.counts["tokens"] = f"of the KL term: {_TOKENS}"
        draft.arrays["group_size"] = str(options["num_generations"])
    else:
        loss = draft.set_loss("loss_type", name, trainer.importance_sampling_level, settings)
        if loss is not None:
            _counts(draft, value_of(loss, "aggregate.over"))
    if trainer.beta and not trainer.kl_in_reward:
        draft.fields["kl"] = Kl("loss", "k3", trainer.beta)
        draft.arrays["ref_logp"] = "the reference's log-probs"
    draft.corrections += _corrections(draft, options, trainer)
    _unread(draft, options)


def _option_of(trainer: Any) -> str:
    """The option that `no_loss_because` speaks of."""
    if trainer.use_liger_loss and trainer.loss_type in (*LOSS_TYPES, OVER_GROUPS):
        return "use_liger_kernel"
    if trainer.chord_sft_iterator is not None and trainer.loss_type in (*LOSS_TYPES, OVER_GROUPS):
        return "chord_sft_dataset"
    return "loss_type"


def _counts(draft: Draft, over: str) -> None:
    """The count that divides, as it is in ms-swift."""
    draft.counts[over] = {
        "given": "num_items_in_batch of the optimizer step: the tokens of all its micro-batches "
                 "and processes, those of truncated completions too",
        "tokens": _TOKENS,
    }.get(over, "the rows of the micro-batch, times the accumulation steps")


def _corrections(draft: Draft, options: Options, trainer: Any) -> List[str]:
    """The pre-passes, in ms-swift's order."""
    lines = []
    if options["overlong_filter"]:
        lines.append("overlong")
        draft.arrays["truncated"] = "(rows) not 0 where a completion hit max_completion_length"
    if options["top_entropy_quantile"] < 1:
        lines.append(f"top_entropy {1 - options['top_entropy_quantile']!r}")
        draft.arrays["entropies"] = "of the tokens, in nats"
        if options["overlong_filter"] or trainer.off_policy_sequence_mask_delta is not None:
            draft.yours["top_entropy_quantile"] = (
                "its quantile is that of all tokens: call gdpo.prepare once with top_entropy and "
                "once with the other lines, both with the mask of the batch")
    if trainer.loss_type == BY_FUTURE:
        lines.append(future_lines(trainer, value_of(draft.fields["loss"], "surrogate.delta"))[0])
    sampled = options["use_vllm"]
    mode = options["rollout_importance_sampling_mode"]
    if mode is not None and sampled:
        end = "clip__hi" if mode.endswith("truncate") else "gate__max"
        lines.append(prepass_line(f"ms_swift::{mode}",
                                  **{end: options["rollout_importance_sampling_threshold"]}))
    elif mode is not None:
        draft.unread["rollout_importance_sampling_mode"] = (
            f"given {mode}: use_vllm is off, and there are no log-probs of a sampler")
    if trainer.off_policy_sequence_mask_delta is not None:
        lines.append(prepass_line("ms_swift::off_policy_sequence_mask",
                                  max=trainer.off_policy_sequence_mask_delta,
                                  pair=None if sampled else "update"))
    if sampled and any("ms_swift::" in line and "fipo" not in line for line in lines):
        draft.arrays["rollout_logp"] = "vLLM's log-probs"
    return lines


def _others(draft: Draft, options: Options) -> None:
    """What is added to the loss, and what is done besides."""
    if options["sdar_loss_coef"] > 0:
        draft.fields["more_losses"] = (PolicyLoss(
            "ms_swift::sdar", beta=options["sdar_loss_coef"], gate_beta=options["sdar_gate_beta"]),)
        draft.arrays["teacher_logp"] = (
            "the log-probs of teacher_model, or of the policy itself, on teacher_prompt")
        draft.counts["tokens"] = _TOKENS
    if options["dynamic_sample"]:
        draft.yours["dynamic_sample"] = (
            "prompts whose completions all have the same reward are sampled again")
    if options["sync_ref_model"]:
        draft.yours["sync_ref_model"] = "the reference follows the policy during the run"


def _unread(draft: Draft, options: Options) -> None:
    """The options that this loss type does not read."""
    kind = options["loss_type"]
    if kind in ("cispo", "sapo", OVER_GROUPS):
        draft.reads_not(["epsilon", "delta"], f"loss_type={kind} does not read it")
    if kind in ("sapo", OVER_GROUPS):
        draft.reads_not(["epsilon_high"], f"loss_type={kind} does not read it")
    if kind == OVER_GROUPS:
        draft.reads_not(["importance_sampling_level"], f"loss_type={kind} compares rows")
    for other, names in (("sapo", ("tau_pos", "tau_neg")), (OVER_GROUPS, ("real_tau",)),
                         (BY_FUTURE, [name for name in DEFAULTS if name.startswith("fipo_")])):
        if other != kind:
            draft.reads_not(names, f"it is of loss_type={other}")
