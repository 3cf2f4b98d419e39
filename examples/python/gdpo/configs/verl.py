"""verl's configuration as calls of this library."""
from typing import Any, Dict, Optional

from ._configured import Draft, Kl, estimator_line, prepass_line
from ._options import Options, names_of
from ._verl_actor import ACTOR, KINDS, ROLLOUT_CORRECTION, add_loss
from ._verl_correction import DEFAULTS as CORRECTION
from ._verl_critic import PREFIX, critic_loss, is_of_tokens, settings_of_tokens, token_line

#: The release whose options these are.
RELEASE = "verl 0.9.1"

#: The options that are read, with verl's defaults.
DEFAULTS: Dict[str, Any] = {
    "algorithm.adv_estimator": "gae", "algorithm.gamma": 1.0, "algorithm.lam": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": True, "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001, "algorithm.filter_groups.enable": False,
    "algorithm.use_pf_ppo": False, "algorithm.gdpo_reward_keys": None,
    "algorithm.gdpo_reward_weights": None, "algorithm.gdpo_estimator": None,
    "algorithm.gdpo_gates": None, "algorithm.gdpo_constraints": None,
    **{f"{ROLLOUT_CORRECTION}.{name}": default for name, default in CORRECTION.items()},
    f"{ROLLOUT_CORRECTION}.bypass_mode": False, f"{ROLLOUT_CORRECTION}.loss_type": "ppo_clip",
    f"{ACTOR}.clip_ratio": 0.2, f"{ACTOR}.clip_ratio_low": 0.2, f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0, f"{ACTOR}.tau_pos": 1.0, f"{ACTOR}.tau_neg": 1.05,
    f"{ACTOR}.loss_agg_mode": "token-mean", f"{ACTOR}.loss_scale_factor": None,
    f"{ACTOR}.entropy_coeff": 0.0, f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl", f"{ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{ACTOR}.policy_loss.clip_cov_ratio": 0.0002, f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
    f"{ACTOR}.policy_loss.clip_cov_ub": 5.0, f"{ACTOR}.policy_loss.kl_cov_ratio": 0.0002,
    f"{ACTOR}.policy_loss.ppo_kl_coef": 0.1, f"{ACTOR}.policy_loss.dro_beta": None,
    "critic.enable": None, "critic.cliprange_value": 0.5, "critic.loss_agg_mode": None,
    "critic.loss_scale_factor": None, "distillation.enabled": False,
    "actor_rollout_ref.rollout.temperature": 1.0,
}
#: The sections whose options all are known, and those options in them that do not concern the
#: loss; a name means what is below it too.
SECTIONS = ("algorithm", ACTOR, "critic")
IGNORED = names_of("""
    _target_ rollout_n strategy ppo_mini_batch_size ppo_micro_batch_size
    ppo_micro_batch_size_per_gpu ppo_infer_micro_batch_size_per_gpu use_dynamic_bsz
    ppo_max_token_len_per_gpu ppo_infer_max_token_len_per_gpu forward_max_token_len_per_gpu
    forward_micro_batch_size forward_micro_batch_size_per_gpu freeze_vision_tower
    calculate_entropy calculate_sum_pi_squared use_prefix_grouper use_torch_compile ppo_epochs
    shuffle data_loader_seed checkpoint optim use_fused_kernels profiler qat grad_clip
    ulysses_sequence_parallel_size sp_size entropy_from_logits_with_chunking
    entropy_from_logits_chunk_size entropy_checkpointing pad_to_length fsdp_config fsdp megatron
    torchtitan veomni automodel engine use_remove_padding load_weight
    recompute_old_log_prob router_replay model model_config global_batch_info nccl_timeout enable
    kl_ctrl pf_ppo filter_groups max_num_gen_batches policy_loss._target_
    policy_loss.rollout_correction rollout_correction._target_
""")

# The estimators of one number a row, by adv_estimator.
_ESTIMATORS = {name: f"verl::{name}" for name in (
    "grpo", "gdpo", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg",
    "reinforce_plus_plus_baseline")}
_ESTIMATORS["grpo_vectorized"] = "verl::grpo"
# Those that read norm_adv_by_std_in_grpo.
_WITH_STD = ("grpo", "grpo_passk")


def configured(options: Options) -> Draft:
    """The calls that these options mean."""
    draft = Draft("verl", RELEASE, options)
    draft.fields["temperature"] = float(options["actor_rollout_ref.rollout.temperature"])
    _advantages(draft, options)
    add_loss(draft, options)
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
    of_tokens = (f"verl::{chosen}" if chosen in ("gae", "reinforce_plus_plus") else
                 line if chosen == "gdpo" and is_of_tokens(line) else None)
    if of_tokens is not None:
        _token_advantages(draft, options, of_tokens, penalty)
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
    if chosen in ("opo", "gdpo", "reinforce_plus_plus_baseline") and of_tokens is None:
        draft.arrays["tokens"] = "of gdpo.advantages: how many valid tokens each row has"
    if of_tokens is None:
        draft.reads_not(["algorithm.gamma", "algorithm.lam"], f"{chosen} does not read it")
    _rewards(draft, options, chosen)
    if options["critic.enable"] or (options["critic.enable"] is None and chosen == "gae"):
        aggregate = (options["critic.loss_agg_mode"] or options[f"{ACTOR}.loss_agg_mode"])
        if not aggregate.startswith(PREFIX):
            aggregate = PREFIX + aggregate
        settings = critic_loss(aggregate).settings(options["critic.cliprange_value"],
                                                   options["critic.loss_scale_factor"])
        if settings["aggregate"] == "token-mean":
            del settings["aggregate"]
        draft.fields["value_loss"] = prepass_line("verl::value_loss", **settings)
    if options["algorithm.use_pf_ppo"] and chosen == "gae":
        draft.lacks("algorithm.use_pf_ppo", "rows are drawn again by their scores")
    if options["algorithm.filter_groups.enable"]:
        draft.yours["algorithm.filter_groups.enable"] = (
            "prompts whose completions all have the same metric are left out of the batch")


def _token_advantages(draft: Draft, options: Options, line: str, penalty: Optional[float]) -> None:
    """The estimators of one number a token."""
    gae = "returns.lambda" in settings_of_tokens(line)
    draft.set_token_advantage(prepass_line(
        token_line(line, options["algorithm.gamma"], options["algorithm.lam"]),
        penalty__coef=penalty, penalty__kl=options["algorithm.kl_penalty"] if penalty else None),
        "the critic's values" if gae else "", bool(penalty))
    if not gae:
        draft.reads_not(["algorithm.lam"], f"{line.split()[0]} does not read it")


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
    if kind.rstrip("+") not in KINDS:
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
