"""slime: its policy loss as one of this library, for --custom-loss-function-path.

    --loss-type custom_loss --custom-loss-function-path gdpo.integrations.slime.policy_loss

`policy_loss` is the loss that slime's own options describe. Each loss of `gdpo.losses()` is an
attribute of this module too, such as `gdpo.integrations.slime.dapo` and
`gdpo.integrations.slime.verl::vanilla`, with its own settings; `loss` makes one with other
settings, in a file of yours. slime is imported when a loss is called, and not before. What is read
of its options and its batch is that of its commit 00c2d6db.
"""
import argparse
import functools
import importlib
import pathlib
import runpy
import sys
import types
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from .. import PolicyLoss, losses, prepare
from .._names import did_you_mean
from .._policy_loss import outside
from .._prepare import made
from .._settings import line, ratio_bounds, said

LossFunction = Callable[[Any, Dict[str, Any], torch.Tensor, Callable[[torch.Tensor], torch.Tensor]],
                        Tuple[torch.Tensor, Dict[str, torch.Tensor]]]

# Options of slime that change its policy loss in ways that a custom loss takes no part in.
_REFUSED = {"use_score_centering": False, "use_unbiased_kl": False,
            "custom_pg_loss_reducer_function_path": None}

# slime's corrections of off-policy data as lines of `gdpo.prepare`; in braces are its options.
_CORRECTIONS = {
    "tis": ("importance clip.lo={tis_clip_low} clip.hi={tis_clip}",),
    "icepop": ("importance", "gate min={tis_clip_low} max={tis_clip}"),
    "opsm": ("gate estimator=k1 pair=update statistic=sequence_mean when=negative_advantage"
             " max={opsm_delta}",)}
# slime's own functions for --custom-tis-function-path, by their place in slime.
_TIS_FUNCTIONS = {None: "tis", "slime.backends.megatron_utils.loss.vanilla_tis_function": "tis",
                  "slime.backends.megatron_utils.loss.icepop_function": "icepop"}


def loss(name: str, level: Optional[str] = None, **settings: Any) -> LossFunction:
    """A function for --custom-loss-function-path, of the loss `name` with settings of PolicyLoss.

        from gdpo.integrations import slime
        policy_loss = slime.loss("dapo", high=0.3)

    slime says how tokens are averaged (--calculate-per-token-loss), so `aggregate` and what belongs
    to it are not among the settings.

    Errors: ValueError for unknown names, with a list of the known ones, and for such settings.
    """
    if name not in losses():
        raise ValueError(f"gdpo.integrations.slime: loss: given {name!r}; needed: one of "
                         f"{', '.join(losses())}{did_you_mean(name, losses())}")
    words = (name,) if level is None else (name, level)
    given = said("loss", line("gdpo.integrations.slime.loss", words, settings))
    for setting, value in given.items():
        if setting.split(".")[0] == "aggregate":
            raise ValueError(f"gdpo.integrations.slime: {setting}: given {value}; needed: none, "
                             "because slime averages the tokens")
    made = PolicyLoss(name, level, aggregate="token-sum", **settings)
    beta = float(given["kl.beta"]) if "kl.beta" in given else None

    def chosen(args, batch, logits, sum_of_sample_mean):
        return _loss_of_batch(made, beta, args, batch, logits, sum_of_sample_mean)

    return chosen


def _of_options(args: Any) -> Tuple[PolicyLoss, float, Optional[Dict[str, float]]]:
    """The loss that slime's own options describe, the coefficient of its KL term, and the bounds of
    CISPO."""
    if args.advantage_estimator == "cispo":
        name, bounds = "slime::cispo", ratio_bounds(args.eps_clip, args.eps_clip_high)
        settings: Dict[str, Any] = dict(bounds)
    else:
        name, bounds = "trl::grpo", None
        settings = {"low": args.eps_clip, "high": args.eps_clip_high, "dual": args.eps_clip_c}
    if getattr(args, "pg_loss_type", "ppo") not in ("ppo", None):
        raise ValueError(f"gdpo.integrations.slime: pg_loss_type: given {args.pg_loss_type}; "
                         "needed: ppo, or a loss by its name")
    beta = float(args.kl_loss_coef) if args.use_kl_loss else 0.0
    if beta:
        settings["kl"] = "k3" if args.kl_loss_type == "low_var_kl" else args.kl_loss_type
        if args.kl_loss_type == "low_var_kl":
            settings["kl_output"] = (-10.0, 10.0)
    level = "sequence" if args.advantage_estimator == "gspo" else "token"
    return PolicyLoss(name, level, aggregate="token-sum", beta=beta, **settings), beta, bounds


def policy_loss(args, batch, logits, sum_of_sample_mean):
    """The loss that slime's own options describe: its PPO, GSPO or CISPO loss with its KL term.

    It reads eps_clip, eps_clip_high, eps_clip_c, use_kl_loss, kl_loss_coef, kl_loss_type,
    entropy_coef and advantage_estimator ("gspo" compares sequences, and "cispo" is its loss of that
    name, without eps_clip_c); and for off-policy data, as the losses by name do, use_tis with
    tis_clip, tis_clip_low and custom_tis_function_path, use_opsm with opsm_delta, and
    use_rollout_logprobs.

    Errors: ValueError for options that it does not have.
    """
    made, beta, bounds = _of_options(args)
    return _loss_of_batch(made, beta, args, batch, logits, sum_of_sample_mean, bounds)


def __getattr__(name: str) -> Any:
    """The losses by their names, as slime's load_function looks them up."""
    if name in losses():
        return loss(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; the losses are "
                         f"{', '.join(losses())}{did_you_mean(name, losses())}")


def _loss_of_batch(made: PolicyLoss, beta: Optional[float], args: Any, batch: Dict[str, Any],
                   logits: torch.Tensor, sum_of_sample_mean: Any,
                   bounds: Optional[Dict[str, float]] = None
                   ) -> Tuple[torch.Tensor, Dict[str, torch.Tensor]]:
    """The loss of one micro-batch and the metrics that slime logs, both not yet divided by it.

    bounds: of the ratio of tokens; those beyond them are its pg_clipfrac, whatever their advantage.
    """
    from megatron.core import mpu
    from slime.backends.megatron_utils import loss as own
    _check(args, batch, mpu.get_context_parallel_world_size())
    extra = own.get_rollout_top_p_logprob_kwargs(args, batch)
    _, computed = own.get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"], response_lengths=batch["response_lengths"],
        with_entropy=True, **extra)
    logp = torch.cat(computed["log_probs"])
    entropy = torch.cat(computed["entropy"])
    if not len(logp):  # a rank without tokens has a gradient of zeros
        nothing = 0 * logits.sum()
        return nothing, {name: nothing.detach() for name in
                         ("loss", "pg_loss", "entropy_loss", "pg_clipfrac", "ppo_kl")}
    old_logp = batch["rollout_log_probs"] if args.use_rollout_logprobs else batch.get("log_probs")
    old_logp = torch.cat(list(old_logp)) if old_logp else logp.detach()
    of_sum = _weights_of(sum_of_sample_mean, logp)
    lengths = torch.tensor([0, *(len(row) for row in computed["log_probs"])], device=logp.device)
    arrays = {"old_logp": old_logp, "rollout_logp": _packed(batch.get("rollout_log_probs")),
              "mask": torch.cat(list(batch["loss_masks"])), "offsets": lengths.cumsum(0),
              "token_advantages": torch.cat(list(batch["advantages"])).contiguous()}
    weights, corrected = _corrections(args, logp.detach(), arrays, sum_of_sample_mean)
    value, metrics = made(
        logp, ref_logp=_packed(batch.get("ref_log_probs")), kl_weights=of_sum,
        weights=of_sum if weights is None else of_sum * weights.to(of_sum.dtype),
        counts=torch.ones(4, dtype=torch.float64), **arrays)
    entropy_loss = sum_of_sample_mean(entropy)
    total = value - args.entropy_coef * entropy_loss
    clipped = metrics["clip_fraction.sum" if args.calculate_per_token_loss
                      else "clip_fraction.row_sum"]
    like = value.detach()
    log = {"loss": total.detach(), "pg_loss": like.new_tensor(metrics["policy_loss"]),
           "entropy_loss": entropy_loss.detach(), "pg_clipfrac": like.new_tensor(clipped),
           "ppo_kl": sum_of_sample_mean(old_logp - logp.detach()).detach()}
    if bounds is not None:
        beyond = outside((logp.detach() - old_logp).exp(), bounds)
        log["pg_clipfrac"] = sum_of_sample_mean(beyond.to(logp.dtype)).detach()
    if beta:
        log["kl_loss"] = like.new_tensor(metrics["kl_loss"] / beta)
    sampled = arrays["rollout_logp"]
    if sampled is not None:
        compared = logp.detach() if args.use_rollout_logprobs else old_logp
        log["train_rollout_logprob_abs_diff"] = sum_of_sample_mean((compared - sampled).abs())
    approx = "sum" if args.calculate_per_token_loss else "row_sum"
    log["gdpo/approx_kl"] = like.new_tensor(metrics[f"approx_kl_k3.{approx}"])
    log["gdpo/ratio"] = like.new_tensor(metrics[f"ratio.{approx}"])
    if "tis" in corrected:
        log["ois"] = log["gdpo/ratio"]
    return total, {**log, **corrected}


def _chosen(args: Any) -> Dict[str, Tuple[str, ...]]:
    """The corrections that slime's options ask for, by their names in _CORRECTIONS."""
    chosen = [_TIS_FUNCTIONS[getattr(args, "custom_tis_function_path", None)]
              ] if getattr(args, "use_tis", False) else []
    chosen += ["opsm"] if getattr(args, "use_opsm", False) else []
    return {name: tuple(line.format(**vars(args)) for line in _CORRECTIONS[name])
            for name in chosen}


def _corrections(args: Any, logp: torch.Tensor, arrays: Dict[str, Any], sum_of_sample_mean: Any
                 ) -> Tuple[Optional[torch.Tensor], Dict[str, torch.Tensor]]:
    """The factors of the surrogate that slime's options ask for, and what slime logs with them."""
    weights, log = None, {}
    for name, lines in _chosen(args).items():
        own = made(prepare(lines, logp=logp, **arrays).weights)
        weights = own if weights is None else weights * own
        log.update(_log_of_opsm(own, arrays) if name == "opsm" else
                   _log_of_tis(args, arrays, sum_of_sample_mean))
    return weights, log


def _log_of_tis(args: Any, arrays: Dict[str, Any], sum_of_sample_mean: Any
                ) -> Dict[str, torch.Tensor]:
    """The ratio of trainer and sampler, |ratio - 1|, and the share of tokens beyond the bounds."""
    ratio = (arrays["old_logp"] - arrays["rollout_logp"]).exp()
    beyond = (ratio < args.tis_clip_low) | (ratio > args.tis_clip)
    return {"tis": sum_of_sample_mean(ratio), "tis_abs": sum_of_sample_mean((ratio - 1).abs()),
            "tis_clipfrac": sum_of_sample_mean(beyond.to(ratio.dtype))}


def _log_of_opsm(weights: torch.Tensor, arrays: Dict[str, Any]) -> Dict[str, torch.Tensor]:
    """Of each dropped row its tokens with A < 0, masked ones too, over its tokens; their sum."""
    lengths = arrays["offsets"].diff().tolist()
    rows = zip(*(array.split(lengths)
                 for array in (weights, arrays["mask"], arrays["token_advantages"])))
    return {"opsm_clipfrac": sum(
        (((advantages < 0).sum() / mask.sum().clamp(min=1)).to(weights.dtype)
         for weight, mask, advantages in rows if (weight == 0).any()), weights.new_zeros(()))}


def _check_options(args: Any) -> None:
    """Raises ValueError for options with which the numbers would not be those that they ask for."""
    context_parallel = getattr(args, "context_parallel_size", 1)
    if context_parallel > 1:
        raise ValueError(f"gdpo.integrations.slime: context-parallel-size: given "
                         f"{context_parallel}; needed: 1, because the loss takes whole responses")
    for name, off in _REFUSED.items():
        if getattr(args, name, off) not in (off, None):
            raise ValueError(f"gdpo.integrations.slime: {name}: given {getattr(args, name)}; "
                             f"needed: {off}, because a custom loss takes no part in it")
    tis = getattr(args, "use_tis", False)
    if getattr(args, "get_mismatch_metrics", False) and not tis:
        raise ValueError("gdpo.integrations.slime: get_mismatch_metrics: given True; needed: "
                         "use_tis with it, because its metrics are those of a custom function")
    function = getattr(args, "custom_tis_function_path", None)
    if tis and function not in _TIS_FUNCTIONS:
        raise ValueError(f"gdpo.integrations.slime: custom_tis_function_path: given {function}; "
                         "needed: none, or one of slime's own functions "
                         f"{', '.join(sorted(name for name in _TIS_FUNCTIONS if name))}, because a "
                         "function of yours expects a loss that has not been added up")
    if tis and args.use_rollout_logprobs:
        raise ValueError("gdpo.integrations.slime: use_tis: given True; needed: False with "
                         "use_rollout_logprobs, which takes the sampler's log-probs for the old "
                         "ones, so that all weights would be 1")


def _check(args: Any, batch: Dict[str, Any], context_parallel: int) -> None:
    """The same, and for a batch without what they need."""
    _check_options(types.SimpleNamespace(**{**vars(args),
                                            "context_parallel_size": context_parallel}))
    tis = getattr(args, "use_tis", False)
    if (tis or args.use_rollout_logprobs) and not batch.get("rollout_log_probs"):
        raise ValueError("gdpo.integrations.slime: rollout_log_probs: given none; needed: those "
                         "of the sampler, because of "
                         f"{'use_tis' if tis else 'use_rollout_logprobs'}")
    if args.use_kl_loss and not batch.get("ref_log_probs"):
        raise ValueError("gdpo.integrations.slime: ref_log_probs: given none; needed: those of the "
                         "reference, because of use_kl_loss")


def _packed(rows: Any) -> Optional[torch.Tensor]:
    """The tokens of all rows in one tensor, or None where there are no rows."""
    return torch.cat(list(rows)) if rows is not None and len(rows) else None


def _weights_of(sum_of_sample_mean: Any, logp: torch.Tensor) -> torch.Tensor:
    """What slime's sum gives each token: its derivative, because the sum is linear.

    So the denominators of every release and option of slime are those of this loss as well.
    """
    with torch.enable_grad():
        zeros = torch.zeros_like(logp, requires_grad=True)
        [weights] = torch.autograd.grad(sum_of_sample_mean(zeros), zeros)
    return weights


def main() -> None:
    """slime's script, with what is wrong with the loss told first:

        python -m gdpo.integrations.slime train.py --custom-loss-function-path ...

    slime looks a custom loss up in the first step, when its models are loaded. This looks it up at
    once, and if it is of this module, refuses slime's options that it does not have as soon as
    slime has read them. Then it runs the script.

    Errors: SystemExit without a script; those of looking up the function; ValueError.
    """
    command = sys.argv[1:]
    if not command:
        raise SystemExit("python -m gdpo.integrations.slime: given no script; needed: slime's "
                         "train.py, and its options")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--custom-loss-function-path")
    path = parser.parse_known_args(command[1:])[0].custom_loss_function_path
    sys.argv[:], sys.path[0] = command, str(pathlib.Path(command[0]).resolve().parent)
    if path is not None:
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        if found.__module__ == _NAME:
            _check_what_is_parsed(name == "policy_loss" and module == _NAME)
    runpy.run_path(command[0], run_name="__main__")


_NAME = "gdpo.integrations.slime"  # also where it runs as __main__


def _check_what_is_parsed(by_options: bool) -> None:
    """Lets slime's parse_args refuse options that a loss of this module does not have."""
    from slime.utils import arguments
    slimes = arguments.parse_args

    @functools.wraps(slimes)
    def parse_args(*args: Any, **kwargs: Any) -> Any:
        parsed = slimes(*args, **kwargs)
        _check_options(parsed)
        if by_options:
            _of_options(parsed)
        return parsed

    arguments.parse_args = parse_args


if __name__ == "__main__":
    main()
