"""verl's options of the actor and of the rollout correction as a loss and its pre-passes."""
from typing import Any, Dict, List, Optional

from .._settings import value_of, values_of
from ._configured import Draft, Kl, prepass_line, reason
from ._options import Options
from ._verl_correction import DEFAULTS as CORRECTION, names_in, rejection_lines, weight_lines
from ._verl_loss import LEFT_TO_VERL, OF_VERL, LossMode, loss_mode

ACTOR = "actor_rollout_ref.actor"
ROLLOUT_CORRECTION = "algorithm.rollout_correction"

#: The kinds of KL that verl estimates from single log-probs: all, and those that it clamps.
KINDS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_K3 = ("low_var_kl", "k3")
# The losses with a term against the old policy, so that one against the reference is a second loss.
_WITH_PENALTY = ("verl::kl_cov", "verl::dro")
_TOKENS = "batch_num_tokens, the valid tokens of the mini-batch"


def add_loss(draft: Draft, options: Options) -> None:
    """The loss with its pre-passes, its KL term and its entropy bonus."""
    actor = options.section(ACTOR)
    mode, option = actor.policy_loss.loss_mode, f"{ACTOR}.policy_loss.loss_mode"
    bypass = options[f"{ROLLOUT_CORRECTION}.bypass_mode"]
    reinforce = False
    if bypass:
        draft.arrays["old_logp"] = "the sampler's log-probs, rollout_logp"
        reinforce = options[f"{ROLLOUT_CORRECTION}.loss_type"] == "reinforce"
        if not reinforce and mode not in ("vanilla", "bypass_mode"):
            draft.unread[option] = f"given {mode}: bypass_mode has the loss vanilla"
        mode = "vanilla"
    beta = f"{ACTOR}.policy_loss.dro_beta"
    if mode == "dro" and not (options[beta] and options[beta] > 0):
        draft.unsupported[beta] = f"given {options[beta]}: verl needs a number above 0"
        return
    try:
        made = _mode_of(mode, reinforce)
        if made is None:
            draft.lacks(option, "no loss of this library by that name")
            return
        settings = {**made.settings(actor.loss_agg_mode, actor, actor.loss_scale_factor),
                    **made.said}
    except ValueError as error:
        draft.lacks(option, reason(error))
        return
    if made.name in ("verl::kl_cov", "verl::clip_cov"):  # which have no dual clip in verl
        settings.pop("surrogate.dual", None)
    if made.name == "verl::kl_cov":  # which has no clip
        settings = {key: value for key, value in settings.items() if "surrogate" not in key}
        settings["kl.beta"] = actor.policy_loss.ppo_kl_coef
    draft.corrections += _prepass_of(made.name, actor)
    draft.corrections += _corrections(draft, options, made.name, bypass, reinforce)
    # In bypass mode the rejections are of the loss alone, and not of what verl adds to it.
    alone = bypass and any("reach=mask" in line for line in draft.corrections)
    mean = _mean_of(made, settings)
    settings.update(_added_terms(draft, actor, made.name, mean, alone))
    loss = draft.set_loss(option, made.name, made.level, settings)
    if loss is not None:
        _counts(draft, made.name, draft.fields["aggregate"], value_of(loss, "aggregate.over"))
    _unread(draft, actor, made.name)


def _mode_of(mode: str, reinforce: bool) -> Optional[LossMode]:
    """The loss of a loss_mode; None for one that is not known."""
    if mode == "gdpo" or mode.startswith("gdpo:"):
        return loss_mode(mode)
    names = {**OF_VERL, **LEFT_TO_VERL}
    name = "verl::reinforce" if reinforce else names.get(mode)
    return None if name is None else LossMode(name, None, False, {})


def _mean_of(made: LossMode, settings: Dict[str, Any]) -> Optional[str]:
    """The aggregate of a loss, as verl names it; None for one that is none of verl's."""
    if made.name == "verl::geo_mean":
        return None  # of the rows of a micro-batch
    return settings.get("aggregate") or values_of(made.name)["aggregate.mode"]


def _added_terms(draft: Draft, actor: Any, name: str, mean: Optional[str], alone: bool
                 ) -> Dict[str, Any]:
    """The settings of the KL term and of the entropy bonus that verl adds.

    Where they cannot be terms of the loss, they are a second one.

    mean: the aggregate of the loss. alone: whether the terms are of more tokens than the loss.
    """
    mode = actor.loss_agg_mode
    term, second = _kl_term(draft, actor), {}
    nothing = {} if name in _WITH_PENALTY else {"kl.beta": 0.0}
    if term and mean == mode and not alone and name not in _WITH_PENALTY:
        settings = term
    else:
        settings, second = nothing, term
    fits = not alone and mode in (mean, "token-mean")
    bonus = draft.add_entropy(
        actor.entropy_coeff, mode if not fits else "loss" if mean == mode else "tokens", _TOKENS)
    (settings if fits else second).update(bonus)
    if second:
        draft.add_terms_alone(
            f"{ACTOR}.{'kl_loss_type' if 'kl' in second else 'entropy_coeff'}", second, mode,
            actor.loss_scale_factor if mode == "seq-mean-token-sum-norm" else None)
        if mode == "token-mean":
            draft.counts["tokens"] = _TOKENS
    for option, key, what in (("use_kl_loss", "kl", "the KL term"),
                              ("entropy_coeff", "entropy.coef", "the entropy bonus")):
        if alone and key in second:
            draft.yours[f"{ACTOR}.{option}"] = (
                f"in bypass_mode the second loss, of {what}, takes the mask before the rejections")
    return settings


def _kl_term(draft: Draft, actor: Any) -> Dict[str, Any]:
    """The settings of the KL term against the reference."""
    if not actor.use_kl_loss:
        draft.reads_not([f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"],
                        "use_kl_loss is off")
        return {}
    kind, coef = actor.kl_loss_type, float(actor.kl_loss_coef)
    if kind.rstrip("+") not in KINDS:
        draft.lacks(f"{ACTOR}.kl_loss_type", "no estimate from the log-probs of single tokens")
        return {}
    draft.fields["kl"] = Kl("loss", kind, coef)
    draft.arrays["ref_logp"] = "the reference's log-probs"
    bounds = {"kl.input": (-20, 20), "kl.output": (-10, 10)} if kind.rstrip("+") in _K3 else {
        "kl.input": ("-inf", "inf"), "kl.output": ("-inf", "inf")}
    return {"kl": kind, "kl.beta": coef, **bounds}


def _prepass_of(name: str, actor: Any) -> List[str]:
    """The pre-pass that a loss itself needs."""
    low, high = (actor.clip_ratio if end is None else end
                 for end in (actor.clip_ratio_low, actor.clip_ratio_high))
    options = actor.policy_loss
    if name in ("verl::dppo_tv", "verl::dppo_kl"):
        return [prepass_line(name, min=-low, max=high)]
    if name == "verl::clip_cov":
        return [prepass_line(name, share=options.clip_cov_ratio, min=options.clip_cov_lb,
                             max=options.clip_cov_ub, low=low, high=high)]
    if name == "verl::kl_cov":
        return [prepass_line(name, share=options.kl_cov_ratio)]
    return []


def _corrections(draft: Draft, options: Options, name: str, bypass: bool, reinforce: bool
                 ) -> List[str]:
    """The lines of the rollout correction."""
    given = {key: options[f"{ROLLOUT_CORRECTION}.{key}"] for key in CORRECTION}
    weights: List[str] = []
    rejections: Dict[str, str] = {}
    of = "tokens"
    try:
        option = f"{ROLLOUT_CORRECTION}.rollout_is"
        if given["rollout_is"] is not None and given["rollout_is_threshold"] is not None:
            weights, of = weight_lines(given["rollout_is"], given["rollout_is_threshold"])
        option = f"{ROLLOUT_CORRECTION}.rollout_rs"
        rejections = rejection_lines(given["rollout_rs"], given["rollout_rs_threshold"])
    except ValueError as error:
        draft.lacks(option, reason(error))
        return []
    if bypass and not reinforce and weights:
        draft.unread[f"{ROLLOUT_CORRECTION}.rollout_is"] = (
            f"given {given['rollout_is']}: the ratio of ppo_clip corrects for the sampler itself")
        weights = []
    pair = " pair=drift" if bypass else ""
    reach = " reach=surrogate_and_kl" if name in _WITH_PENALTY else ""
    lines = [f"{line}{pair}{reach}" for line in weights]
    if given["rollout_is_batch_normalize"] and weights:
        lines.append(f"mean_one of={of} count_eps=1e-8 least=1e-8{reach}")
    lines += [f"{line} reach=mask{pair}" for line in rejections.values()]
    if lines:
        draft.arrays["rollout_logp"] = "the sampler's log-probs"
    _two_calls(draft, lines, given, rejections)
    if weights and name == "verl::geo_mean":
        draft.yours[f"{ROLLOUT_CORRECTION}.rollout_is"] = (
            "geo_mean takes the geometric mean of a row's weights: row_weights=exp(mean of log "
            "weights) in place of weights")
    if bypass and rejections:
        option = f"{ROLLOUT_CORRECTION}.rollout_rs"
        also = draft.yours.get(option)
        draft.yours[option] = "; ".join([
            *([also] if also else []), "in bypass_mode the counts are of the mask before it"])
    return lines


def _two_calls(draft: Draft, lines: List[str], given: Dict[str, Any], rejections: Dict[str, str]
               ) -> None:
    """Says where the weights are of the mask before the rejections."""
    single = any(name.startswith("token_") for name in names_in(given["rollout_rs"]))
    whole = any("sequence" in line and "reach=mask" not in line for line in lines)
    if rejections and len(lines) > len(rejections) and (
            given["rollout_is_batch_normalize"] or (single and whole)):
        draft.yours[f"{ROLLOUT_CORRECTION}.rollout_rs"] = (
            "verl's weights are of the whole mask: call gdpo.prepare once with their lines "
            "and once with the others, both with the mask of the batch")


def _counts(draft: Draft, name: str, aggregate: str, over: str) -> None:
    """The counts that divide."""
    if name == "verl::geo_mean":
        draft.counts["rows"] = "the rows of the micro-batch"
    elif over == "given":
        draft.counts["given"] = _TOKENS
    elif aggregate == "token-mean":
        draft.counts["tokens"] = _TOKENS
    elif aggregate != "token-sum":
        draft.counts["rows"] = draft.counts["non_empty_rows"] = (
            "global_batch_size, the rows of the mini-batch")


def _unread(draft: Draft, actor: Any, name: str) -> None:
    """The options of the actor that the loss does not read."""
    if actor.clip_ratio_low is not None and actor.clip_ratio_high is not None:
        draft.reads_not([f"{ACTOR}.clip_ratio"], "clip_ratio_low and clip_ratio_high, "
                        f"{actor.clip_ratio_low} and {actor.clip_ratio_high}, are read in its "
                        "place")
    own = ["clip_ratio_low", "clip_ratio_high"]
    if name in ("verl::sapo", "verl::dro", "verl::gpg", "verl::reinforce", "verl::kl_cov"):
        draft.reads_not([f"{ACTOR}.{option}" for option in own], f"{name} has no clip")
    if not (name in ("verl::vanilla", "verl::dppo_tv", "verl::dppo_kl") or "::" not in name):
        draft.reads_not([f"{ACTOR}.clip_ratio_c"], f"{name} has no dual clip")
    if "sapo" not in name:
        draft.reads_not([f"{ACTOR}.tau_pos", f"{ACTOR}.tau_neg"], f"{name} has no temperatures")
    if name in ("verl::sapo", "verl::geo_mean"):
        draft.reads_not([f"{ACTOR}.loss_agg_mode"], f"{name} is averaged over rows in any case")
    if actor.loss_agg_mode != "seq-mean-token-sum-norm":
        draft.reads_not([f"{ACTOR}.loss_scale_factor"],
                        f"loss_agg_mode={actor.loss_agg_mode} does not read it")
    options = {"verl::clip_cov": ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
               "verl::kl_cov": ("kl_cov_ratio", "ppo_kl_coef"), "verl::dro": ("dro_beta",)}
    for loss, names in options.items():
        if loss != name:
            draft.reads_not([f"{ACTOR}.policy_loss.{option}" for option in names],
                            f"it is of loss_mode={loss.partition('::')[2]}")
