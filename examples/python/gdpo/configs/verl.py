"""verl's configuration as calls of this library."""
from typing import Any, Dict, List, Optional

from .._policy_loss import value_of
from ._configured import Draft, Kl, estimator_line, prepass_line, reason
from ._options import Options
from ._verl_correction import DEFAULTS as CORRECTION
from ._verl_correction import names_in, rejection_lines, weight_lines
from ._verl_loss import LEFT_TO_VERL, OF_VERL, LossMode, loss_mode

#: The release whose options these are.
RELEASE = "verl 0.9.1"

_ACTOR = "actor_rollout_ref.actor"
_CORRECTION = "algorithm.rollout_correction"

#: The options that are read, with verl's defaults.
DEFAULTS: Dict[str, Any] = {
    "algorithm.adv_estimator": "gae", "algorithm.gamma": 1.0, "algorithm.lam": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": True, "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001, "algorithm.filter_groups.enable": False,
    "algorithm.use_pf_ppo": False, "algorithm.gdpo_reward_keys": None,
    "algorithm.gdpo_reward_weights": None, "algorithm.gdpo_estimator": None,
    "algorithm.gdpo_gates": None, "algorithm.gdpo_constraints": None,
    **{f"{_CORRECTION}.{name}": default for name, default in CORRECTION.items()},
    f"{_CORRECTION}.bypass_mode": False, f"{_CORRECTION}.loss_type": "ppo_clip",
    f"{_ACTOR}.clip_ratio": 0.2, f"{_ACTOR}.clip_ratio_low": 0.2, f"{_ACTOR}.clip_ratio_high": 0.2,
    f"{_ACTOR}.clip_ratio_c": 3.0, f"{_ACTOR}.tau_pos": 1.0, f"{_ACTOR}.tau_neg": 1.05,
    f"{_ACTOR}.loss_agg_mode": "token-mean", f"{_ACTOR}.loss_scale_factor": None,
    f"{_ACTOR}.entropy_coeff": 0.0, f"{_ACTOR}.use_kl_loss": False, f"{_ACTOR}.kl_loss_coef": 0.001,
    f"{_ACTOR}.kl_loss_type": "low_var_kl", f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{_ACTOR}.policy_loss.clip_cov_ratio": 0.0002, f"{_ACTOR}.policy_loss.clip_cov_lb": 1.0,
    f"{_ACTOR}.policy_loss.clip_cov_ub": 5.0, f"{_ACTOR}.policy_loss.kl_cov_ratio": 0.0002,
    f"{_ACTOR}.policy_loss.ppo_kl_coef": 0.1, f"{_ACTOR}.policy_loss.dro_beta": None,
    "critic.enable": None, "critic.cliprange_value": 0.5, "critic.loss_agg_mode": None,
    "critic.loss_scale_factor": None, "distillation.enabled": False,
    "actor_rollout_ref.rollout.temperature": 1.0,
}
#: The sections whose options all are known, and those options in them that do not concern the
#: loss; a name means what is below it too.
SECTIONS = ("algorithm", _ACTOR, "critic")
IGNORED = frozenset("""
    _target_ rollout_n strategy ppo_mini_batch_size ppo_micro_batch_size
    ppo_micro_batch_size_per_gpu ppo_infer_micro_batch_size_per_gpu use_dynamic_bsz
    ppo_max_token_len_per_gpu ppo_infer_max_token_len_per_gpu forward_max_token_len_per_gpu
    forward_micro_batch_size forward_micro_batch_size_per_gpu freeze_vision_tower
    calculate_entropy calculate_sum_pi_squared use_prefix_grouper use_torch_compile ppo_epochs
    shuffle data_loader_seed checkpoint optim use_fused_kernels profiler qat grad_clip
    ulysses_sequence_parallel_size sp_size entropy_from_logits_with_chunking
    entropy_from_logits_chunk_size entropy_checkpointing pad_to_length fsdp_config fsdp megatron
    torchtitan veomni automodel engine use_remove_padding load_weight data_loader_seed
    recompute_old_log_prob router_replay model model_config global_batch_info nccl_timeout enable
    kl_ctrl pf_ppo filter_groups max_num_gen_batches policy_loss._target_
    policy_loss.rollout_correction rollout_correction._target_
""".split())

# The estimators of one number a row, by adv_estimator.
_ESTIMATORS = {name: f"verl::{name}" for name in (
    "grpo", "gdpo", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg",
    "reinforce_plus_plus_baseline")}
_ESTIMATORS["grpo_vectorized"] = "verl::grpo"
# Those that read norm_adv_by_std_in_grpo.
_WITH_STD = ("grpo", "grpo_passk")
_K3 = ("low_var_kl", "k3")
# The losses with a term against the old policy, so that one against the reference is a second loss.
_WITH_PENALTY = ("verl::kl_cov", "verl::dro")


def configured(options: Options) -> Draft:
    """The calls that these options mean."""
    draft = Draft("verl", RELEASE, options)
    draft.fields["temperature"] = float(options["actor_rollout_ref.rollout.temperature"])
    _advantages(draft, options)
    _loss(draft, options)
    if options["distillation.enabled"]:
        draft.lacks("distillation.enabled", "a teacher's loss is added or takes the place of the "
                    "policy loss")
    return draft


def _advantages(draft: Draft, options: Options) -> None:
    """The estimator, the KL in the reward and the critic's loss."""
    chosen = options["algorithm.adv_estimator"]
    normalized = options["algorithm.norm_adv_by_std_in_grpo"]
    penalty = _penalty(draft, options)
    line = options["algorithm.gdpo_estimator"]
    if chosen in ("gae", "reinforce_plus_plus"):
        _token_advantages(draft, options, chosen, penalty)
    elif chosen == "gdpo" and line is not None:
        draft.fields["estimator"] = estimator_line(line, penalty__coef=penalty)
    elif chosen in _ESTIMATORS:
        name = _ESTIMATORS[chosen]
        if chosen in _WITH_STD and not normalized:
            name += "_no_std"
        draft.fields["estimator"] = estimator_line(name, penalty__coef=penalty)
        if chosen not in _WITH_STD:
            draft.reads_not(["algorithm.norm_adv_by_std_in_grpo"], f"{chosen} does not read it")
    else:
        draft.lacks("algorithm.adv_estimator", "no estimator of this library")
    if chosen in ("opo", "gdpo", "reinforce_plus_plus_baseline"):
        draft.arrays["tokens"] = "of gdpo.advantages: how many valid tokens each row has"
    if chosen not in ("gae", "reinforce_plus_plus"):
        draft.reads_not(["algorithm.gamma", "algorithm.lam"], f"{chosen} does not read it")
    _rewards(draft, options, chosen)
    if options["critic.enable"] or (options["critic.enable"] is None and chosen == "gae"):
        aggregate = (options["critic.loss_agg_mode"] or options[f"{_ACTOR}.loss_agg_mode"])
        draft.fields["value_loss"] = prepass_line(
            "verl::value_loss", clip=options["critic.cliprange_value"],
            aggregate=None if aggregate == "token-mean" else aggregate)
    if options["algorithm.use_pf_ppo"] and chosen == "gae":
        draft.lacks("algorithm.use_pf_ppo", "rows are drawn again by their scores")
    if options["algorithm.filter_groups.enable"]:
        draft.yours["algorithm.filter_groups.enable"] = (
            "prompts whose completions all have the same metric are left out of the batch")


def _token_advantages(draft: Draft, options: Options, chosen: str, penalty: Optional[float]
                      ) -> None:
    """The estimators of one number a token, which the C++ library has."""
    gae = chosen == "gae"
    line = prepass_line(
        f"verl::{chosen}", gamma=options["algorithm.gamma"],
        **{"lambda": options["algorithm.lam"] if gae else None},
        penalty__coef=penalty, penalty__kl=options["algorithm.kl_penalty"] if penalty else None)
    draft.fields["token_advantage"] = line
    draft.lacks("algorithm.adv_estimator", "it has one advantage a token, and gdpo.advantages one "
                f"a row; in C++: gdpo::runtime::configured_token_advantage(\"{line}\")")
    if not gae:
        draft.reads_not(["algorithm.lam"], f"{chosen} does not read it")


def _penalty(draft: Draft, options: Options) -> Optional[float]:
    """The coefficient of the KL inside the reward, or None."""
    if not options["algorithm.use_kl_in_reward"]:
        draft.reads_not(["algorithm.kl_penalty", "algorithm.kl_ctrl.kl_coef",
                         "algorithm.kl_ctrl.type"], "use_kl_in_reward is off")
        return None
    if options["algorithm.adv_estimator"] == "gdpo" and options["algorithm.gdpo_reward_keys"]:
        draft.unread["algorithm.use_kl_in_reward"] = (
            "given True: gdpo takes the rewards of gdpo_reward_keys, which have no KL in them")
        return None
    coef, kind = options["algorithm.kl_ctrl.kl_coef"], options["algorithm.kl_penalty"]
    if kind.rstrip("+") not in ("kl", "k1", "abs", "mse", "k2", *_K3):
        draft.lacks("algorithm.kl_penalty", "no estimate from the log-probs of single tokens")
        return None
    draft.fields["kl"] = Kl("reward", kind, float(coef))
    draft.arrays["penalty"] = (f"of gdpo.advantages: the sum over each row's tokens of the "
                               f"estimate {kind} between old_logp and ref_logp, in nats")
    if options["algorithm.kl_ctrl.type"] == "adaptive":
        draft.yours["algorithm.kl_ctrl.type"] = (
            "given adaptive: the coefficient moves; give each step's as penalty_coef")
    return float(coef)


def _rewards(draft: Draft, options: Options, chosen: str) -> None:
    """The rewards of GDPO, their weights and what the plug-in adds."""
    keys = options["algorithm.gdpo_reward_keys"]
    names = ["gdpo_reward_keys", "gdpo_reward_weights", "gdpo_estimator", "gdpo_gates",
             "gdpo_constraints"]
    if chosen != "gdpo":
        draft.reads_not([f"algorithm.{name}" for name in names],
                        f"{chosen} takes the sum of the rewards")
        return
    if keys:
        draft.arrays["rewards"] = f"of gdpo.advantages: (rows, {len(keys)}), {', '.join(keys)}"
        weights = options["algorithm.gdpo_reward_weights"]
        draft.fields["weights"] = None if weights is None else tuple(map(float, weights))
    elif options["algorithm.gdpo_estimator"] is None:
        draft.unsupported["algorithm.gdpo_reward_keys"] = (
            "given none: adv_estimator=gdpo needs the keys of the rewards")
    for name in ("gdpo_gates", "gdpo_constraints"):
        if options[f"algorithm.{name}"]:
            draft.yours[f"algorithm.{name}"] = (
                f"of the plug-in; give it gdpo.advantages as {name[len('gdpo_'):]}")


def _loss(draft: Draft, options: Options) -> None:
    """The loss with its pre-passes, its KL term and its entropy bonus."""
    actor = options.section(_ACTOR)
    mode, option = actor.policy_loss.loss_mode, f"{_ACTOR}.policy_loss.loss_mode"
    bypass = options[f"{_CORRECTION}.bypass_mode"]
    reinforce = False
    if bypass:
        draft.arrays["old_logp"] = "the sampler's log-probs, rollout_logp"
        reinforce = options[f"{_CORRECTION}.loss_type"] == "reinforce"
        if not reinforce and mode not in ("vanilla", "bypass_mode"):
            draft.unread[option] = f"given {mode}: bypass_mode has the loss vanilla"
        mode = "vanilla"
    beta = f"{_ACTOR}.policy_loss.dro_beta"
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
    settings.update(_kl_term(draft, actor, made.name))
    settings.update(_entropy(draft, actor, made.name))
    draft.corrections += _prepass_of(made.name, actor)
    draft.corrections += _corrections(draft, options, made.name, bypass, reinforce)
    loss = draft.make_loss(option, made.name, made.level, settings)
    if loss is not None:
        draft.fields["loss"] = loss
        draft.fields["aggregate"] = value_of(loss, "aggregate.mode")
    _counts(draft, made.name, draft.fields.get("aggregate", ""))
    _unread(draft, actor, made.name)


def _mode_of(mode: str, reinforce: bool) -> Optional[LossMode]:
    """The loss of a loss_mode; None for one that is not known."""
    if mode == "gdpo" or mode.startswith("gdpo:"):
        return loss_mode(mode)
    names = {**OF_VERL, **LEFT_TO_VERL}
    name = "verl::reinforce" if reinforce else names.get(mode)
    return None if name is None else LossMode(name, None, False, {})


def _kl_term(draft: Draft, actor: Any, name: str) -> Dict[str, Any]:
    """The settings of the KL term that verl adds."""
    if not actor.use_kl_loss:
        draft.reads_not([f"{_ACTOR}.kl_loss_coef", f"{_ACTOR}.kl_loss_type"],
                        "use_kl_loss is off")
        return {} if name in _WITH_PENALTY else {"kl.beta": 0.0}
    kind, coef = actor.kl_loss_type, float(actor.kl_loss_coef)
    base = kind.rstrip("+")
    if base not in ("kl", "k1", "abs", "mse", "k2", *_K3):
        draft.lacks(f"{_ACTOR}.kl_loss_type", "no estimate from the log-probs of single tokens")
        return {} if name in _WITH_PENALTY else {"kl.beta": 0.0}
    draft.fields["kl"] = Kl("loss", kind, coef)
    draft.arrays["ref_logp"] = "the reference's log-probs"
    bounds = {"kl.input": (-20, 20), "kl.output": (-10, 10)} if base in _K3 else {
        "kl.input": ("-inf", "inf"), "kl.output": ("-inf", "inf")}
    term = {"kl": kind, "kl.beta": coef, **bounds}
    if name not in _WITH_PENALTY and _same_mean(name, actor.loss_agg_mode):
        return term
    mode = actor.loss_agg_mode
    draft.add_kl_alone(f"{_ACTOR}.kl_loss_type", term, mode, actor.loss_scale_factor
                       if mode == "seq-mean-token-sum-norm" else None)
    if mode == "token-mean":
        draft.counts["tokens"] = "batch_num_tokens, the valid tokens of the mini-batch"
    return {} if name in _WITH_PENALTY else {"kl.beta": 0.0}


def _same_mean(name: str, loss_agg_mode: str) -> bool:
    """Whether a loss is averaged as loss_agg_mode says."""
    return name != "verl::geo_mean" and (name != "verl::sapo"
                                         or loss_agg_mode == "seq-mean-token-mean")


def _entropy(draft: Draft, actor: Any, name: str) -> Dict[str, Any]:
    """The settings of the entropy bonus."""
    if actor.entropy_coeff and not _same_mean(name, actor.loss_agg_mode) and (
            actor.loss_agg_mode != "token-mean"):
        draft.lacks(f"{_ACTOR}.entropy_coeff", f"the entropy is averaged as {actor.loss_agg_mode}, "
                    f"and {name} otherwise")
        return {}
    mean = "loss" if _same_mean(name, actor.loss_agg_mode) else "tokens"
    return draft.add_entropy(f"{_ACTOR}.entropy_coeff", actor.entropy_coeff, mean, name)


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
    given = {key: options[f"{_CORRECTION}.{key}"] for key in CORRECTION}
    weights, rejections, of = [], {}, "tokens"
    try:
        option = f"{_CORRECTION}.rollout_is"
        if given["rollout_is"] is not None and given["rollout_is_threshold"] is not None:
            weights, of = weight_lines(given["rollout_is"], given["rollout_is_threshold"])
        option = f"{_CORRECTION}.rollout_rs"
        rejections = rejection_lines(given["rollout_rs"], given["rollout_rs_threshold"])
    except ValueError as error:
        draft.lacks(option, reason(error))
        return []
    if bypass and not reinforce and weights:
        draft.unread[f"{_CORRECTION}.rollout_is"] = (
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
        draft.yours[f"{_CORRECTION}.rollout_is"] = (
            "geo_mean takes the geometric mean of a row's weights: row_weights=exp(mean of log "
            "weights) in place of weights")
    if bypass and rejections:
        draft.yours[f"{_CORRECTION}.rollout_rs"] = (
            "in bypass_mode the counts are those of the mask before the rejections")
    return lines


def _two_calls(draft: Draft, lines: List[str], given: Dict[str, Any], rejections: Dict[str, str]
               ) -> None:
    """Says where weights have to be those of the mask before the rejections."""
    single = any(name.startswith("token_") for name in names_in(given["rollout_rs"]))
    whole = any("sequence" in line and "reach=mask" not in line for line in lines)
    if rejections and len(lines) > len(rejections) and (
            given["rollout_is_batch_normalize"] or (single and whole)):
        draft.yours[f"{_CORRECTION}.rollout_rs"] = (
            "verl's weights are those of the whole mask: call gdpo.prepare once with the lines of "
            "the weights and once with those that have reach=mask, both with the mask of the batch")


def _counts(draft: Draft, name: str, aggregate: str) -> None:
    """The counts that divide."""
    if name == "verl::geo_mean":
        draft.counts["rows"] = "the rows of the micro-batch"
    elif aggregate == "token-mean":
        draft.counts["tokens"] = "batch_num_tokens, the valid tokens of the mini-batch"
    elif aggregate != "token-sum":
        draft.counts["rows"] = draft.counts["non_empty_rows"] = (
            "global_batch_size, the rows of the mini-batch")


def _unread(draft: Draft, actor: Any, name: str) -> None:
    """The options of the actor that the loss does not read."""
    if actor.clip_ratio_low is not None and actor.clip_ratio_high is not None:
        draft.reads_not([f"{_ACTOR}.clip_ratio"], "clip_ratio_low and clip_ratio_high, "
                        f"{actor.clip_ratio_low} and {actor.clip_ratio_high}, are read in its "
                        "place")
    own = ["clip_ratio_low", "clip_ratio_high"]
    if name in ("verl::sapo", "verl::dro", "verl::gpg", "verl::reinforce", "verl::kl_cov"):
        draft.reads_not([f"{_ACTOR}.{option}" for option in own], f"{name} has no clip")
    if not (name in ("verl::vanilla", "verl::dppo_tv", "verl::dppo_kl") or "::" not in name):
        draft.reads_not([f"{_ACTOR}.clip_ratio_c"], f"{name} has no dual clip")
    if "sapo" not in name:
        draft.reads_not([f"{_ACTOR}.tau_pos", f"{_ACTOR}.tau_neg"], f"{name} has no temperatures")
    if name in ("verl::sapo", "verl::geo_mean"):
        draft.reads_not([f"{_ACTOR}.loss_agg_mode"], f"{name} is averaged over rows in any case")
    if actor.loss_agg_mode != "seq-mean-token-sum-norm":
        draft.reads_not([f"{_ACTOR}.loss_scale_factor"],
                        f"loss_agg_mode={actor.loss_agg_mode} does not read it")
    options = {"verl::clip_cov": ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
               "verl::kl_cov": ("kl_cov_ratio", "ppo_kl_coef"), "verl::dro": ("dro_beta",)}
    for loss, names in options.items():
        if loss != name:
            draft.reads_not([f"{_ACTOR}.policy_loss.{option}" for option in names],
                            f"it is of loss_mode={loss.partition('::')[2]}")
