"""OpenRLHF's arguments of train_ppo_ray as calls of this library."""
from typing import Any, Dict, List, Optional, Tuple

from ._configured import Draft, Kl, estimator_line, prepass_line
from ._options import Options, names_of

#: The release whose options these are.
RELEASE = "OpenRLHF 0.11.2"
_ADVANTAGE = "algo.advantage"

#: The options that are read, with OpenRLHF's defaults.
DEFAULTS: Dict[str, Any] = {
    f"{_ADVANTAGE}.estimator": "gae", f"{_ADVANTAGE}.gamma": 1.0, f"{_ADVANTAGE}.lambd": 1.0,
    f"{_ADVANTAGE}.no_std_norm": False, f"{_ADVANTAGE}.is_correction_level": "off",
    f"{_ADVANTAGE}.is_correction_mode": "mask", f"{_ADVANTAGE}.is_correction_gating": "ratio",
    f"{_ADVANTAGE}.is_correction_threshold": [0.5, 5.0],
    "algo.kl.use_loss": False, "algo.kl.init_coef": 0.01, "algo.kl.estimator": "k1",
    "algo.kl.unbiased_gradient": False, "algo.kl.target": None, "algo.kl.horizon": 10000,
    "algo.dynamic_filtering_enable": False,
    "actor.eps_clip": 0.2, "actor.eps_clip_low_high": None, "actor.dual_clip": None,
    "actor.policy_loss_type": "ppo", "actor.loss_agg_mode": "token-mean",
    "actor.entropy_coef": None, "actor.aux_loss_coef": 0.0, "critic.value_clip": 0.5,
    "reward.clip_range": [-10.0, 10.0], "reward.overlong_buffer_len": None,
    "reward.overlong_penalty_factor": 1.0, "reward.stop_properly_penalty_coef": None,
    "rollout.n_samples_per_prompt": 1, "rollout.temperature": 1.0,
}
#: The sections whose options all are known, and those options in them that do not concern the
#: loss; a name means what is below it too.
SECTIONS = ("algo", "actor", "critic", "reward")
IGNORED = names_of("""
    num_nodes num_gpus_per_node model_name_or_path remote_url offload optim muon adam lr_scheduler
    lr_warmup_ratio min_lr_ratio max_norm gradient_checkpointing_enable
    gradient_checkpointing_reentrant freeze_visual_encoder freezing_steps save_value_network
    normalize_enable dynamic_filtering_range
""")
#: The options of the command that have no section, and do not concern the loss either.
WITHOUT_SECTION = frozenset(("local_rank", "use_ms"))

_TOKENS = "the valid tokens of the optimizer step, of all its ranks"
# The losses, by policy_loss_type.
_LOSSES = ("ppo", "gspo")
# The estimators of one number a row. Only reinforce_baseline is normalized over the batch's tokens.
_ESTIMATORS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "rloo": ("rloo", {}), "dr_grpo": ("dr_grpo", {}), "group_norm": ("grpo", {"scale__eps": 1e-9}),
    "flash_reinforce": ("dr_grpo", {}),
    "reinforce_baseline": ("dr_grpo", {"renorm": "tokens", "renorm__ddof": 0,
                                       "renorm__eps": 1e-8, "renorm__eps_at": "clamp_var"})}


def configured(options: Options) -> Draft:
    """The calls that these options mean."""
    draft = Draft("openrlhf", RELEASE, options)
    draft.fields["temperature"] = float(options["rollout.temperature"])
    _advantages(draft, options)
    _loss(draft, options)
    if options["actor.aux_loss_coef"] > 1e-8:
        draft.yours["actor.aux_loss_coef"] = (
            f"{options['actor.aux_loss_coef']} times the routers' loss of the model is added")
    if options["algo.dynamic_filtering_enable"]:
        draft.yours["algo.dynamic_filtering_enable"] = (
            "prompts whose mean reward is outside dynamic_filtering_range are left out")
    if options["algo.kl.target"]:
        draft.yours["algo.kl.target"] = "the KL coefficient moves towards this KL"
    return draft


def _advantages(draft: Draft, options: Options) -> None:
    """The estimator, the KL in the reward and the critic's loss."""
    chosen = options[f"{_ADVANTAGE}.estimator"]
    coef = float(options["algo.kl.init_coef"])
    in_reward = coef > 0 and not options["algo.kl.use_loss"]
    if in_reward:
        draft.fields["kl"] = Kl("reward", options["algo.kl.estimator"], coef)
    _rewards(draft, options, chosen)
    if chosen in ("gae", "reinforce"):
        _token_advantages(draft, options, chosen, coef if in_reward else None)
    elif chosen in _ESTIMATORS:
        name, settings = _ESTIMATORS[chosen]
        if options[f"{_ADVANTAGE}.no_std_norm"] and "renorm" in settings:
            settings = {**settings, "renorm__eps_at": "none"}
        draft.fields["estimator"] = estimator_line(name, **settings)
        draft.reads_not([f"{_ADVANTAGE}.gamma", f"{_ADVANTAGE}.lambd"], f"{chosen} takes 1")
        if in_reward:
            _penalty(draft, options, chosen, coef)
        if chosen == "flash_reinforce":
            draft.arrays["group_size"] = ("of gdpo.advantages: the rows of the whole rollout, "
                                          "which are one group")
        if chosen == "reinforce_baseline":
            draft.arrays["tokens"] = "of gdpo.advantages: how many valid tokens each row has"
    else:
        draft.lacks(f"{_ADVANTAGE}.estimator", "no estimator of this library")
    if chosen not in ("gae", "reinforce", "reinforce_baseline"):
        draft.reads_not([f"{_ADVANTAGE}.no_std_norm"], f"{chosen} is not normalized by the batch")
    if chosen == "gae":
        draft.fields["value_loss"] = prepass_line("openrlhf::value_loss",
                                                  clip=options["critic.value_clip"])
    else:
        draft.reads_not(["critic.value_clip"], f"{chosen} has no critic")


def _token_advantages(draft: Draft, options: Options, chosen: str, penalty: Optional[float]
                      ) -> None:
    """The estimators of one number a token."""
    clip = options["reward.clip_range"]
    draft.set_token_advantage(prepass_line(
        f"openrlhf::{chosen}", gamma=options[f"{_ADVANTAGE}.gamma"],
        **{"lambda": options[f"{_ADVANTAGE}.lambd"] if chosen == "gae" else None},
        reward_clip=list(clip) if clip else None, penalty__coef=penalty,
        penalty__kl=options["algo.kl.estimator"] if penalty else None,
        renorm__eps_at="none" if options[f"{_ADVANTAGE}.no_std_norm"] else None),
        "the critic's values, 0 at masked places" if chosen == "gae" else "", bool(penalty))


def _penalty(draft: Draft, options: Options, chosen: str, coef: float) -> None:
    """The KL of each token, which is taken off its reward after the baseline."""
    kind = options["algo.kl.estimator"]
    if chosen == "reinforce_baseline":
        clip = options["reward.clip_range"]
        line = prepass_line(
            "openrlhf::reinforce_baseline", tokens__penalty__coef=coef, tokens__penalty__kl=kind,
            tokens__reward_clip=list(clip) if clip else None,
            tokens__renorm__eps_at="none" if options[f"{_ADVANTAGE}.no_std_norm"] else None)
        draft.yours["algo.kl.init_coef"] = (
            "each token pays its KL before the advantages are normalized; in place of "
            f"gdpo.advantages call gdpo.outcome_advantages(rewards, estimator=\"{line}\", ...) "
            "with logp and ref_logp")
        draft.arrays["ref_logp"] = "the reference's log-probs"
        return
    draft.yours["algo.kl.init_coef"] = (
        f"each token pays for the KL from it on: its advantage is that of its row - {coef:g} * "
        f"(the sum of {kind} between old_logp and ref_logp over this and later tokens)")
    draft.arrays["ref_logp"] = "the reference's log-probs"


def _rewards(draft: Draft, options: Options, chosen: str) -> None:
    """What is done to the rewards before or after the baseline."""
    clip = options["reward.clip_range"]
    if clip and chosen in _ESTIMATORS:
        draft.yours["reward.clip_range"] = (
            f"rewards minus their baseline are clamped to [{clip[0]:g}, {clip[1]:g}]" + (
                " before they are normalized, which gdpo.advantages does not do: keep the rewards "
                "of a prompt within that" if chosen == "reinforce_baseline" else
                ": advantages.clamp of what gdpo.advantages gives"))
    if options["reward.overlong_buffer_len"] is not None:
        draft.yours["reward.overlong_buffer_len"] = (
            "the last tokens of the limit cost up to overlong_penalty_factor, which is taken off "
            "the reward first")
    else:
        draft.reads_not(["reward.overlong_penalty_factor"], "there is no overlong_buffer_len")
    if options["reward.stop_properly_penalty_coef"] is not None:
        draft.yours["reward.stop_properly_penalty_coef"] = (
            "the rewards of truncated completions are multiplied by it, or are it where it is "
            "below 0")


def _loss(draft: Draft, options: Options) -> None:
    """The loss with its correction, its KL term and its entropy bonus."""
    kind = options["actor.policy_loss_type"]
    if kind not in _LOSSES:
        draft.lacks("actor.policy_loss_type", "no loss of this library")
        return
    low, high = options["actor.eps_clip_low_high"] or [options["actor.eps_clip"]] * 2
    if options["actor.eps_clip_low_high"]:
        draft.reads_not(["actor.eps_clip"], "eps_clip_low_high is read in its place")
    dual = options["actor.dual_clip"]
    aggregate = "seq-mean-token-mean" if kind == "gspo" else options["actor.loss_agg_mode"]
    if kind == "gspo":
        draft.reads_not(["actor.loss_agg_mode"], "gspo is a mean over rows")
    settings: Dict[str, Any] = {
        "surrogate.low": low, "surrogate.high": high, "aggregate": aggregate,
        "surrogate.dual": "inf" if dual is None else dual, **_kl_term(draft, options, aggregate),
        **draft.add_entropy(options["actor.entropy_coef"] or 0.0, "tokens", _TOKENS)}
    draft.set_loss("actor.policy_loss_type", f"openrlhf::{kind}", None, settings)
    if aggregate == "token-mean":
        draft.counts["tokens"] = _TOKENS
    else:
        draft.counts["non_empty_rows"] = "the rows with a token of the optimizer step, of all ranks"
    draft.corrections += _corrections(draft, options, kind)


def _kl_term(draft: Draft, options: Options, aggregate: str) -> Dict[str, Any]:
    """The settings of the KL term of the loss."""
    coef, kind = float(options["algo.kl.init_coef"]), options["algo.kl.estimator"]
    if not (options["algo.kl.use_loss"] and coef > 0):
        draft.reads_not(["algo.kl.unbiased_gradient"], "there is no KL term in the loss")
        return {"kl.beta": 0.0}
    draft.fields["kl"] = Kl("loss", kind, coef)
    draft.arrays["ref_logp"] = "the reference's log-probs"
    term: Dict[str, Any] = {"kl": kind, "kl.beta": coef, "kl.output": (-10, 10),
                            "kl.input": ("-inf", 10 if kind == "k3" else "inf")}
    if options["algo.kl.unbiased_gradient"]:
        term.update({"kl.gradient": "importance_weighted_k2", "kl.max_weight": 10})
    if aggregate == "token-mean":
        return term
    draft.add_terms_alone("algo.kl.estimator", term, "token-mean")  # whatever loss_agg_mode says
    draft.counts["tokens"] = _TOKENS
    return {"kl.beta": 0.0}


def _corrections(draft: Draft, options: Options, kind: str) -> List[str]:
    """The line of the correction between sampler and trainer."""
    level, mode, gating, threshold = (options[f"{_ADVANTAGE}.is_correction_{name}"]
                                      for name in ("level", "mode", "gating", "threshold"))
    names = [f"{_ADVANTAGE}.is_correction_{name}" for name in ("mode", "gating", "threshold")]
    if level == "off":
        draft.reads_not(names, "is_correction_level is off")
        return []
    if kind == "gspo":
        draft.arrays["old_logp"] = "the sampler's log-probs: gspo compares with these"
        draft.reads_not(names, "gspo only takes the sampler's log-probs for the old ones")
        return []
    given = threshold if isinstance(threshold, (list, tuple)) else [threshold]
    low, high = [0.0, *given] if len(given) == 1 else given
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        draft.lacks(names[0], "it needs is_correction_level=token and is_correction_gating=ratio")
        return []
    if gating != "ratio" and low > 0:
        draft.lacks(names[2], f"{gating} takes one number, the largest")
        return []
    draft.arrays["rollout_logp"] = "the sampler's log-probs"
    if mode == "clip":
        return [prepass_line("openrlhf::token_clip", clip__lo=low, clip__hi=high)]
    return [prepass_line(f"openrlhf::{level}_mask_{gating}", gate__max=high,
                         gate__min=low if gating == "ratio" else None)]
