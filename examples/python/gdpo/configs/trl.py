"""TRL's configurations, GRPOConfig and RLOOConfig, as calls of this library."""
import types
from typing import Any, Dict, List, Mapping

from .._entropy import AdaptiveEntropy
from .._settings import value_of
from ._configured import ENTROPIES, Draft, Entropy, Kl, estimator_line, prepass_line, reason
from ._options import Options
from ._others import TRL as IGNORED
from ._trl_loss import estimator_of, loss_settings, missing_option

__all__ = ["DEFAULTS", "IGNORED", "RELEASE", "SECTIONS", "configured", "renamed"]

#: The release whose options these are.
RELEASE = "TRL 1.16.0"
#: Options without a section.
SECTIONS = ("",)

#: The options that are read, with TRL's defaults; "trainer" is ours, "grpo" or "rloo".
DEFAULTS: Dict[str, Any] = {
    "trainer": "grpo", "beta": 0.0, "epsilon": 0.2, "epsilon_high": None, "delta": None,
    "importance_sampling_level": "token", "loss_type": "dapo", "max_completion_length": 512,
    "sapo_temperature_neg": 1.05, "sapo_temperature_pos": 1.0, "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
    "use_bias_correction_kl": True, "reward_weights": None,
    "multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group",
    "mask_truncated_completions": False, "top_entropy_quantile": 1.0, "entropy_coef": 0.0,
    "use_adaptive_entropy": False, "entropy_target": 0.2, "entropy_coef_delta": 0.005,
    "entropy_coef_min": 0.0, "entropy_coef_max": 1.0, "off_policy_mask_threshold": None,
    "use_vllm": False, "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_min": None, "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_cap": None, "use_liger_kernel": False, "router_aux_loss_coef": None,
    "sync_ref_model": False, "temperature": 1.0, "normalize_advantages": False,
    "reward_clip_range": None,
}
_TOKENS = "the valid tokens of the micro-batch, times the accumulation steps"
# The options of RLOOConfig alone, and its defaults where they are others.
_OF_RLOO = ("normalize_advantages", "reward_clip_range")
_RLOO_DEFAULTS = {"beta": 0.05}
# The settings of AdaptiveEntropy, by the options that they are.
_ADAPTIVE = {"entropy_target": "target", "entropy_coef_delta": "delta",
             "entropy_coef_min": "min_coef", "entropy_coef_max": "max_coef"}
# The options of the loss that RLOOTrainer does not have.
_OF_GRPO = ("delta", "importance_sampling_level", "loss_type", "use_bias_correction_kl",
            "multi_objective_aggregation", "scale_rewards", "top_entropy_quantile", "entropy_coef",
            "use_adaptive_entropy", *_ADAPTIVE, "off_policy_mask_threshold")


def renamed(given: Mapping[str, Any], config: Any) -> Dict[str, Any]:
    """The options with "trainer", by the class of the configuration or the options it has."""
    rloo = type(config).__name__ == "RLOOConfig" or any(name in given for name in _OF_RLOO)
    options = {"trainer": "rloo" if rloo else "grpo", **given}
    if options["trainer"] == "rloo":
        options = {**_RLOO_DEFAULTS, **options}
    scale = options.get("scale_rewards")
    if isinstance(scale, (bool, str)) and str(scale).lower() in ("true", "false"):
        options["scale_rewards"] = "group" if str(scale).lower() == "true" else "none"
    return options


def configured(options: Options) -> Draft:
    """The calls that these options mean."""
    draft = Draft("trl", RELEASE, options)
    draft.fields["temperature"] = float(options["temperature"])
    weights = options["reward_weights"]
    draft.fields["weights"] = None if weights is None else tuple(map(float, weights))
    (_rloo if options["trainer"] == "rloo" else _grpo)(draft, options)
    if options["mask_truncated_completions"]:
        draft.corrections.insert(0, "overlong")
        draft.arrays["truncated"] = "(rows) not 0 where a completion hit max_completion_length"
    if options["use_liger_kernel"]:
        draft.lacks("use_liger_kernel", "Liger computes the loss; its presets are liger::")
    if options["router_aux_loss_coef"]:
        draft.yours["router_aux_loss_coef"] = (
            f"{options['router_aux_loss_coef']} times the routers' loss of the model is added")
    if options["sync_ref_model"]:
        draft.yours["sync_ref_model"] = "the reference follows the policy during the run"
    return draft


def _grpo(draft: Draft, options: Options) -> None:
    """GRPOTrainer."""
    try:
        draft.fields["estimator"] = estimator_of(options["multi_objective_aggregation"],
                                                 options["scale_rewards"])
    except KeyError:
        draft.lacks("scale_rewards", "no estimator of this library")
    trainer = types.SimpleNamespace(
        args=options.section(""), loss_type=options["loss_type"], beta=options["beta"],
        importance_sampling_level=options["importance_sampling_level"],
        epsilon_low=options["epsilon"], max_completion_length=options["max_completion_length"],
        epsilon_high=options["epsilon" if options["epsilon_high"] is None else "epsilon_high"])
    missing = missing_option(trainer)
    if missing is not None:
        draft.unsupported[missing.partition("=")[0]] = f"given {missing.partition('=')[2]}"
        return
    settings = loss_settings(trainer)
    name, level = settings.pop("name"), settings.pop("level", None)
    settings.update(_entropy(draft, options))
    if options["beta"]:
        draft.fields["kl"] = Kl("loss", settings.get("kl", "k3"), float(options["beta"]))
        draft.arrays["ref_logp"] = "the reference's log-probs"
    loss = draft.set_loss("loss_type", name, level, settings)
    if loss is not None:
        _counts(draft, value_of(loss, "aggregate.over"))
    draft.corrections += _corrections(draft, options)
    _unread(draft, options)


def _entropy(draft: Draft, options: Options) -> Dict[str, Any]:
    """The settings of the entropy bonus, which is a mean over tokens whatever the loss type."""
    coef, count = float(options["entropy_coef"]), f"of the entropy: {_TOKENS}"
    if not options["use_adaptive_entropy"]:
        draft.reads_not(_ADAPTIVE, "use_adaptive_entropy is off")
        return draft.add_entropy(coef, "tokens", count)
    settings = {name: float(options[option]) for option, name in _ADAPTIVE.items()}
    try:
        AdaptiveEntropy(coef, **settings)
    except ValueError as error:
        draft.lacks("use_adaptive_entropy", reason(error))
        return {}
    draft.fields["entropy"] = Entropy(coef, "tokens", types.MappingProxyType(settings))
    draft.arrays["entropies"], draft.counts["tokens"] = ENTROPIES, count
    kept = "" if options["top_entropy_quantile"] >= 1 else " of high entropy"
    given = ", ".join([f"{coef:g}", *(f"{name}={value:g}" for name, value in settings.items())])
    draft.yours["use_adaptive_entropy"] = (
        f"controller = gdpo.AdaptiveEntropy({given}) has the coefficient of each step: take "
        "gdpo.PolicyLoss(given.loss.line, entropy_coef=controller.coef), and after the step "
        f"controller.update(the mean entropy of its tokens{kept})")
    return {"entropy.mean": "tokens"}


def _rloo(draft: Draft, options: Options) -> None:
    """RLOOTrainer, whose KL is in the reward and whose ratio is that of the row."""
    beta = float(options["beta"])
    clip = options["reward_clip_range"]
    draft.fields["estimator"] = estimator_line(
        "trl::rloo_normalized" if options["normalize_advantages"] else "trl::rloo",
        penalty__coef=beta or None, reward_clip=list(clip) if clip else None)
    if beta:
        draft.fields["kl"] = Kl("reward", "k1", beta)
        draft.arrays["penalty"] = ("of gdpo.advantages: the sum over each row's tokens of old_logp "
                                   "- ref_logp, in nats")
    high = options["epsilon" if options["epsilon_high"] is None else "epsilon_high"]
    draft.set_loss("epsilon", "trl::rloo", None, {"low": options["epsilon"], "high": high})
    _counts(draft, "rows")
    draft.reads_not(_OF_GRPO, "RLOOTrainer does not have it")


def _counts(draft: Draft, over: str) -> None:
    """The count that divides, as it is in TRL."""
    draft.counts[over] = {
        "given": "num_items_in_batch of the optimizer step: the valid tokens of all its "
                 "micro-batches and processes",
        "tokens": _TOKENS,
    }.get(over, "the rows of the micro-batch, times the accumulation steps")


def _corrections(draft: Draft, options: Options) -> List[str]:
    """The pre-passes: vLLM's weights, the off-policy mask and the tokens of high entropy."""
    lines = []
    sampled = options["use_vllm"]
    if options["off_policy_mask_threshold"] is not None:
        lines.append(prepass_line("trl::off_policy_mask", max=options["off_policy_mask_threshold"],
                                  pair=None if sampled else "update"))
    if options["top_entropy_quantile"] < 1:
        lines.append(f"top_entropy {1 - options['top_entropy_quantile']!r}")
        if "entropy" in draft.fields:  # a mean over these tokens too
            lines += [f"{lines[-1]} reach=entropy", "mean_one reach=entropy"]
        draft.arrays.setdefault("entropies", "of the tokens, in nats")
    vllm = [name for name in DEFAULTS if name.startswith("vllm_importance")]
    if not sampled:
        draft.reads_not(vllm, "use_vllm is off")
    elif options["vllm_importance_sampling_correction"]:
        lines.append(_vllm(draft, options))
    else:
        draft.reads_not(vllm[1:], "vllm_importance_sampling_correction is off")
    if sampled and lines:
        draft.arrays["rollout_logp"] = "vLLM's log-probs"
    return [line for line in lines if line]


def _vllm(draft: Draft, options: Options) -> str:
    """The line of vLLM's correction."""
    mode, low = (options[f"vllm_importance_sampling_{name}"] for name in ("mode", "clip_min"))
    cap = options["vllm_importance_sampling_cap"]
    high = options["vllm_importance_sampling_clip_max"] if cap is None else cap
    if mode not in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        draft.lacks("vllm_importance_sampling_mode", "no mode of TRL")
        return ""
    vespo = options["loss_type"] == "vespo"
    if vespo and mode.startswith("sequence"):
        draft.lacks("vllm_importance_sampling_mode", "vespo takes token_truncate or token_mask")
        return ""
    ends = ("clip__lo", "clip__hi") if mode.endswith("truncate") else ("gate__min", "gate__max")
    reach = ("reach",) if mode.endswith("truncate") else ("importance__reach", "gate__reach")
    return prepass_line(f"trl::{mode}", **{
        ends[0]: "-inf" if low is None else low, ends[1]: "inf" if high is None else high,
        **(dict.fromkeys(reach, "level") if vespo else {})})


def _unread(draft: Draft, options: Options) -> None:
    """The options that this loss type does not read."""
    kind = options["loss_type"]
    if kind not in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        draft.reads_not(["epsilon", "delta"], f"loss_type={kind} does not read it")
    if kind in ("sapo", "vespo"):
        draft.reads_not(["epsilon_high"], f"loss_type={kind} does not read it")
    if options["multi_objective_aggregation"] == "normalize_then_sum":
        draft.reads_not(["scale_rewards"], "normalize_then_sum does not read it")
    if not options["beta"]:
        draft.reads_not(["use_bias_correction_kl"], "beta is 0")
    for other in ("sapo", "vespo"):
        if other != kind:
            draft.reads_not([name for name in DEFAULTS if name.startswith(other + "_")],
                            f"it is of loss_type={other}")
