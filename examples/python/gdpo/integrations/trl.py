"""The trainer of TRL with the losses, estimators and constraints of this library.

    from gdpo.integrations.trl import GRPOTrainer      # in place of: from trl import GRPOTrainer

With nothing else changed, the options of `trl.GRPOConfig` are translated to the presets of the same
names, so that the numbers are TRL's. The arguments `loss`, `estimator` and `constraints` choose
others. The page with examples is examples/python/trainers/trl/README.md.
"""
import functools
import logging
import math
import os
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
import trl
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .. import (AdaptiveEntropy, PolicyLoss, advantages as group_advantages, count, diagnose,
                prepare)
from .._load import ops
from .._policy_loss import dividing_by_given, has_entropy, with_settings
from .._prepare import made
from .._settings import has_clip, is_cispo, refuse_teacher, said, value_of
from ..configs._trl_loss import VESPO, estimator_of, loss_settings, missing_option
from ._constraints import Constraints
from ._known import knows

#: The release of TRL whose functions this plug-in was written for and compared with.
VERSION = "TRL 1.16.0"

_STATE_FILE = "gdpo_constraints.pt"
_log = logging.getLogger(__name__)

# The functions of trl.GRPOTrainer that are called or replaced, with their parameters.
_REWARDS = {
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("self", "inputs"),
}
_FORWARDED = ("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask",
              "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids",
              "image_position_ids")
_LOSS = {
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": (
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size",
        "compute_entropy", "compute_aux_loss", *_FORWARDED),
    "get_gamma_weights": ("advantages", "log_ratio_per_token", "mask",
                          "importance_sampling_ratio", "k_pos", "lambda_pos", "k_neg",
                          "lambda_neg"),
    "get_high_entropy_mask": ("self", "entropies", "mask", "threshold"),
    "get_off_policy_mask": ("advantages", "per_token_logps", "sampling_per_token_logps", "mask",
                            "off_policy_threshold"),
}

# Between what TRL keeps the logs of vLLM's weights, in nats.
_LOG_WEIGHTS = (math.log(1e-8), 20.0)
# The shares of clipped tokens that TRL logs, and of losses called cispo.
_SHARES = {"clip_ratio/low_mean": "clip_fraction_low", "clip_ratio/high_mean": "clip_fraction_high",
           "clip_ratio/region_mean": "clip_fraction"}
_CISPO_SHARES = {"cispo_clip_ratio": "clip_fraction_high"}


def _known(functions: Mapping[str, Sequence[str]], instead: str) -> bool:
    """Whether TRL's functions are those of VERSION; where they are not, it warns."""
    return all([knows(getattr(trl.GRPOTrainer, name), parameters, plugin="trl", version=VERSION,
                      instead=instead) for name, parameters in functions.items()])


@functools.lru_cache(maxsize=64)
def _policy_loss(**settings: Any) -> PolicyLoss:
    """The loss of these settings; those that are None are the preset's own."""
    return PolicyLoss(**settings)


def _own_settings(name: str, args: Any) -> Dict[str, Any]:
    """What a loss that was chosen by name takes from TRL's configuration.

    Its KL coefficient is TRL's beta, because TRL keeps a reference model only where that is not 0,
    and so its KL estimate is multiplied by the ratio where use_bias_correction_kl says so.
    The length that the losses called dr_grpo divide by has no default. What stands behind the name
    itself is not replaced.
    """
    words = name.split() or [name]
    settings: Dict[str, Any] = {"kl.beta": args.beta}
    if args.beta != 0 and args.use_bias_correction_kl:
        settings["kl"] = "k3*"
    if args.importance_sampling_level != "token" and not (len(words) > 1 and "=" not in words[1]):
        settings["level"] = args.importance_sampling_level
    if words[0].split("::")[-1].endswith("dr_grpo"):
        settings["aggregate.constant"] = args.max_completion_length
    own = said("loss", name)
    return {"name": name, **{key: value for key, value in settings.items() if key not in own}}


def _name_of(loss: PolicyLoss) -> str:
    """The name of a loss."""
    return loss.line.split(" ")[0]


def _is_vespo(loss: PolicyLoss) -> bool:
    """Whether a loss is one of those called vespo, whose ratio vLLM's weights are part of."""
    return _name_of(loss).split("::")[-1] == "vespo"


def _is_bnpo(loss: PolicyLoss) -> bool:
    """Whether a loss is one of those called bnpo."""
    return _name_of(loss).endswith("bnpo")


def _check_kl(loss: PolicyLoss, beta: float) -> None:
    """Raises ValueError where a loss that was made by the user and TRL differ on the KL term."""
    if "kl.against=" in loss.line and "kl.against=ref" not in loss.line:
        return  # it does not read the reference model's log-probs
    own = float(value_of(loss, "kl.beta"))
    if (own != 0) != (beta != 0):
        raise ValueError(
            f"gdpo.integrations.trl: loss: given one with beta={own:g} and GRPOConfig with beta="
            f"{beta:g}; needed: both 0 or both not, because TRL keeps a reference model, which the "
            "KL term reads, only where its own beta is not 0")


def _try_estimator(rewards: torch.Tensor, settings: Mapping[str, Any]) -> None:
    """Raises ValueError unless these settings of `gdpo.advantages` fit to such rewards."""
    try:
        group_advantages(rewards, **{"group_size": 2, "tokens": torch.ones(2), **settings})
    except TypeError as error:
        raise ValueError(f"gdpo.integrations.trl: estimator: {error}; needed: a name, or a "
                         "dict of one and of settings of gdpo.advantages") from None


class GRPOTrainer(trl.GRPOTrainer):
    """`trl.GRPOTrainer`, whose advantages and policy loss this library computes.

    loss: a name of `gdpo.losses()`, perhaps with settings as in "dapo high=0.3", or a
      `gdpo.PolicyLoss`. Without one it is the preset of `GRPOConfig.loss_type` with epsilon,
      epsilon_high, delta, beta, importance_sampling_level, use_bias_correction_kl and
      max_completion_length. A chosen loss brings its own clip instead. The entropy bonus is that of
      entropy_coef or use_adaptive_entropy, for a chosen loss too.
    estimator: a name of `gdpo.estimators()`, perhaps with settings as in
      "trl::gdpo scale.eps=1e-6", or a dict of it, as "estimator", and of settings of
      `gdpo.advantages`. Without one it is the preset of scale_rewards and
      multi_objective_aggregation.
    constraints: lines such as "format_reward>=0.9 scale=0.3", one for each reward function that is
      kept at a limit instead of maximized. Their multipliers are saved in checkpoints, and a run
      that is resumed with other limits goes on with them. `gdpo_constraints` has them.

    All other arguments are those of `trl.GRPOTrainer`. What this library does not have (the loss
    type vespo with use_bias_correction_kl) TRL's own code computes, after a warning.

    Errors: ValueError for unknown names, with a list of those there are, for settings that do not
    fit, and for a choice that cannot be honored.
    """

    _entropy_window_stats: Any  # TRL's

    def __init__(self, *args: Any, loss: Union[None, str, PolicyLoss] = None,
                 estimator: Union[None, str, Mapping[str, Any]] = None,
                 constraints: Union[str, Sequence[str]] = (), **kwargs: Any) -> None:
        # What can be told without the trainer is told before TRL loads the model.
        self._gdpo_constraints = Constraints(constraints)
        self._gdpo_estimator = ({"estimator": estimator} if isinstance(estimator, str) else
                                None if estimator is None else dict(estimator))
        if isinstance(loss, str):
            said("loss", loss)
            refuse_teacher("trl", "loss", loss)
        if self._gdpo_estimator is not None:
            reward_funcs = kwargs.get("reward_funcs", args[1] if len(args) > 1 else None)
            columns = len(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else 1
            _try_estimator(torch.zeros(2, columns), self._gdpo_estimator)
        super().__init__(*args, **kwargs)
        self._gdpo_rewards: Optional[torch.Tensor] = None
        self._gdpo_told: List[str] = []
        self._gdpo_scores = _known(_REWARDS, "TRL's own advantages are used")
        if estimator is not None or self._gdpo_constraints.names:
            self._check_estimator()
        self._gdpo_loss = self._chosen_loss(loss)
        self._gdpo_losses = _known(_LOSS, "TRL's own loss is used")
        if loss is not None and not self._gdpo_losses:
            raise ValueError("gdpo.integrations.trl: loss: given one, and this TRL is not "
                             f"{VERSION}; needed: that release, or no loss")
        if self._gdpo_losses and self.use_adaptive_entropy:
            self._entropy_controller()  # which refuses settings that do not fit

    @property
    def gdpo_constraints(self) -> Constraints:
        """The constraints of this run; its `move("short>=0.95")` moves a limit, on every rank."""
        return self._gdpo_constraints

    # Choices

    def _check_estimator(self) -> None:
        """Raises ValueError unless the chosen estimator and constraints can be honored."""
        if not self._gdpo_scores:
            raise ValueError("gdpo.integrations.trl: estimator, constraints: given, and this TRL "
                             f"is not {VERSION}; needed: that release, or neither of them")
        rewards = torch.zeros(2, len(self.reward_funcs))
        limits = self._gdpo_constraints.update(rewards[:0], self.reward_func_names)
        _try_estimator(rewards, {**self._estimator_settings(), "constraints": limits})

    def _estimator_settings(self) -> Dict[str, Any]:
        """Name, weights and settings of the estimator as `gdpo.advantages` takes them."""
        settings = {"weights": self._gdpo_constraints.unconstrained(
            self.reward_weights.tolist(), self.reward_func_names)}
        if self._gdpo_estimator is not None:
            return {**settings, **self._gdpo_estimator}
        return {**settings, "estimator": estimator_of(self.multi_objective_aggregation,
                                                      self.scale_rewards)}

    def _chosen_loss(self, loss: Union[None, str, PolicyLoss]) -> Optional[PolicyLoss]:
        """The loss that was chosen; None where TRL's options say which."""
        if loss is None:
            return None
        if isinstance(loss, PolicyLoss):
            chosen = loss
        else:
            chosen = PolicyLoss(**_own_settings(loss, self.args))
        refuse_teacher("trl", "loss", chosen.line)
        if self._entropy_bonus_enabled and any(key.startswith("entropy.")
                                               for key in said("loss", chosen.line)):
            raise ValueError(f"gdpo.integrations.trl: loss: given {chosen.line!r}, with the "
                             "entropy bonus of GRPOConfig; needed: a bonus in one of the two")
        _check_kl(chosen, self.beta)
        if self._corrects_for_vllm and _is_vespo(chosen) and value_of(chosen, "level") == "token":
            raise ValueError(
                f"gdpo.integrations.trl: loss: given {chosen.line!r}, with the weights of vLLM "
                "(vllm_importance_sampling_correction); needed: the level sequence, because VESPO "
                "takes these weights into the ratio of the row")
        return chosen if _is_bnpo(chosen) else dividing_by_given(chosen)

    def _missing_option(self) -> Optional[str]:
        """The option of TRL that there is nothing for here; None where there is none."""
        return missing_option(self)

    @property
    def _corrects_for_vllm(self) -> bool:
        """Whether there are weights of the rollouts of vLLM."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    def _translated_settings(self) -> Dict[str, Any]:
        """The settings of PolicyLoss that TRL's options stand for."""
        return loss_settings(self)

    # Advantages

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._gdpo_rewards = super()._calculate_rewards(*args, **kwargs)
        return self._gdpo_rewards

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        output = super()._generate_and_score_completions(*args, **kwargs)
        if self._gdpo_scores:
            everyones = self._group_advantages(_loss_mask(output))
            rows = len(output["advantages"])
            first = self.accelerator.process_index * rows
            output["advantages"] = everyones[first:first + rows]
            self._replace_logged(everyones)
        return output

    def _group_advantages(self, mask: torch.Tensor) -> torch.Tensor:
        """The advantages of the rows of all processes, from the rewards that TRL gathered."""
        mode = "train" if self.model.training else "eval"
        rewards = self._gdpo_rewards
        assert rewards is not None  # TRL has just called _calculate_rewards
        size = self.num_generations if mode == "train" else self.num_generations_eval
        # Without rows the multipliers stay, so that an evaluation does not move them.
        limits = self._gdpo_constraints.update(rewards if mode == "train" else rewards[:0],
                                               self.reward_func_names)
        for key, value in self._gdpo_constraints.metrics("gdpo/").items():
            self._metrics[mode][key].append(value)
        result, report = group_advantages(
            rewards, group_size=size, constraints=limits, report=True,
            tokens=self.accelerator.gather(mask.sum(-1)), **self._estimator_settings())
        for finding in diagnose(report=report, reward_names=self.reward_func_names):
            self._tell(f"{finding.name} {finding.subject}", str(finding))
        return result

    def _replace_logged(self, everyones: torch.Tensor) -> None:
        """Puts the advantages into TRL's table of completions, in place of its own."""
        logged = self._logs["advantages"]
        for _ in range(min(len(everyones), len(logged))):
            logged.pop()
        logged.extend(everyones.tolist())

    # The loss

    def _compute_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self._gdpo_losses:
            return super()._compute_loss(*args, **kwargs)
        missing = self._missing_option() if self._gdpo_loss is None else None
        if missing:
            self._tell("loss", f"there is no {missing} here; TRL's own loss is used")
            return super()._compute_loss(*args, **kwargs)
        return self._our_loss(*args, **kwargs)

    def _our_loss(self, model: torch.nn.Module, inputs: Dict[str, Any]) -> torch.Tensor:
        """The loss of a micro-batch, divided as TRL divides it; its metrics go into TRL's log."""
        mode = "train" if self.model.training else "eval"
        accumulation = self.current_gradient_accumulation_steps if mode == "train" else 1
        mask = _loss_mask(inputs)
        logp, entropies, aux_loss = self._forward(model, inputs)
        old_logp = inputs.get("old_per_token_logps")
        policy_loss = self._loss_of_step()
        high = (self.get_high_entropy_mask(entropies, mask, 1 - self.top_entropy_quantile)
                if self.top_entropy_quantile < 1.0 else None)
        in_ratio = self._corrects_for_vllm and _is_vespo(policy_loss)
        arrays = {
            "old_logp": old_logp, "ref_logp": inputs.get("ref_per_token_logps"),
            "rollout_logp": inputs.get("sampling_per_token_logps"), "mask": mask,
            "weights": self._weights(inputs, mask, logp, high, in_ratio),
            "level_log_weights": (_logs_of(inputs["importance_sampling_ratio"], mask)
                                  if in_ratio else None),
            "entropies": entropies,
            "entropy_weights": (_of_mean_one(high, mask)
                                if high is not None and has_entropy(policy_loss.line) else None),
            "counts": self._counts(inputs, mask, mode, accumulation),
            **_per_row_or_token(inputs["advantages"])}
        loss, metrics = policy_loss(logp, **arrays)
        numbers = dict(zip(metrics.names(), metrics.result.tolist()))
        shares = (_CISPO_SHARES if is_cispo(policy_loss.line) else
                  _SHARES if has_clip(policy_loss) else {})
        self._log_means(mode, numbers, len(mask), diagnose(metrics), shares)
        if self._entropy_bonus_enabled:
            divides = 1 if ops.loss_over(policy_loss.line) == "given" else accumulation
            self._log_policy_loss(mode, divides * (numbers["policy_loss"] + numbers["kl_loss"]))
            self._move_entropy_coef(mode, entropies, mask if high is None else high)
        if self._gdpo_loss is None and self.loss_type == "vespo":
            self._log_phi(mode, inputs, mask, logp.detach())
        if shares is _SHARES:
            self._log_extremes(mode, numbers, functools.partial(
                _without_empty_rows, policy_loss, logp, arrays))
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss / accumulation
            self._metrics[mode]["aux_loss"].append(
                self.accelerator.gather_for_metrics(aux_loss).mean().item())
        return loss

    def _forward(self, model: torch.nn.Module, inputs: Dict[str, Any]) -> tuple:
        """Log-probs and entropies of the completions' tokens, and the routers' loss."""
        completions = inputs["completion_ids"]
        return self._get_per_token_logps_and_entropies(
            model, torch.cat([inputs["prompt_ids"], completions], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            completions.size(1), compute_entropy=True, compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in _FORWARDED})

    def _loss_of_step(self) -> PolicyLoss:
        """The loss with the coefficient that TRL's entropy bonus has in this step.

        The bonus is a mean over the tokens of the micro-batch, divided by the accumulation steps:
        over counts[0], whatever the loss divides by.
        """
        loss = self._gdpo_loss or _policy_loss(**self._translated_settings())
        if not self._entropy_bonus_enabled:
            return loss
        coef = (self._entropy_controller().coef if self.use_adaptive_entropy else
                self.entropy_coef)
        return with_settings(loss, {"entropy.coef": coef, "entropy.mean": "tokens"})

    def _entropy_controller(self) -> AdaptiveEntropy:
        """The controller of the coefficient, in the state that TRL's attributes hold."""
        last = self._last_world_entropy
        controller = AdaptiveEntropy(
            target=self.args.entropy_target, delta=self.args.entropy_coef_delta,
            min_coef=self.args.entropy_coef_min, max_coef=self.args.entropy_coef_max)
        controller.load_state_dict({"coef": self.entropy_coef,
                                    "last_entropy": math.inf if math.isnan(last) else last})
        return controller

    def _move_entropy_coef(self, mode: str, entropies: torch.Tensor, kept: torch.Tensor) -> None:
        """Moves the coefficient after the last micro-batch of a step, and logs it.

        kept: the tokens that the bonus is a mean over. The controller gets the mean over those of
        all micro-batches and processes. State and logged key are TRL's, so that its checkpoints
        have them.
        """
        if mode != "train":
            return
        if self.use_adaptive_entropy:
            measured = entropies.detach()[kept != 0].double()
            stats = torch.tensor([measured.sum().item(), len(measured)], dtype=torch.float64,
                                 device=self.accelerator.device)
            if self._entropy_window_stats is not None:
                stats = stats + self._entropy_window_stats
            self._entropy_window_stats = stats
        if not self.accelerator.sync_gradients:
            return
        if self.use_adaptive_entropy:
            total, number = self.accelerator.reduce(stats, reduction="sum").tolist()
            controller = self._entropy_controller()
            controller.update(total / max(number, 1.0))
            state = controller.state_dict()
            self.entropy_coef, self._last_world_entropy = state["coef"], state["last_entropy"]
            self._entropy_window_stats = None
        self._metrics[mode]["entropy_coef"].append(self.entropy_coef)

    def _weights(self, inputs: Dict[str, Any], mask: torch.Tensor, logp: torch.Tensor,
                 high: Optional[torch.Tensor], in_ratio: bool) -> Optional[torch.Tensor]:
        """The product of TRL's factors of the surrogate, (rows, tokens); None where all are 1.

        high: the tokens of high entropy that top_entropy_quantile keeps; None: all.
        in_ratio: the weights of vLLM are part of the ratio, and none of these factors.
        """
        factors = []
        if self.off_policy_mask_threshold is not None:
            row_advantages = inputs["advantages"]
            old_logp = inputs.get("old_per_token_logps")
            factors.append(self.get_off_policy_mask(
                advantages=row_advantages.reshape(len(mask), -1), per_token_logps=logp,
                sampling_per_token_logps=inputs.get(
                    "sampling_per_token_logps", logp.detach() if old_logp is None else old_logp),
                mask=mask, off_policy_threshold=self.off_policy_mask_threshold))
        if high is not None:
            factors.append(high)
        if self._corrects_for_vllm and not in_ratio:
            factors.append(inputs["importance_sampling_ratio"])
        if not factors:
            return None
        weights = torch.ones_like(mask, dtype=torch.float32)
        for factor in factors:
            weights = weights * factor.detach()
        return weights

    def _counts(self, inputs: Dict[str, Any], mask: torch.Tensor, mode: str,
                accumulation: int) -> torch.Tensor:
        """The counts that the loss divides by, in the order of `gdpo.count`.

        Rows are those of the micro-batch times the accumulation steps, because the losses of the
        steps are added. The last is TRL's share of one process in num_items_in_batch, which spans
        the generation batch: losses that divide by tokens divide by it, and those called bnpo by
        the tokens of the micro-batch instead.
        """
        counts = count(mask=mask)
        counts *= accumulation
        share = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if mode == "train":
            share = share * accumulation / self.args.steps_per_generation
        counts[3] = share
        return counts

    # The log

    def _log_means(self, mode: str, numbers: Dict[str, float], rows: int,
                   findings: Sequence[Any], shares: Mapping[str, str]) -> None:
        """Logs the means that TRL logs, of all processes and by its names, and ours under gdpo/."""
        pairs = {"entropy": (numbers["entropy.sum"], numbers["entropy.count"])}
        if numbers["kl.count"] > 0 or self.beta != 0:
            pairs["kl"] = (numbers["kl.sum"], numbers["kl.count"])
        for key, name in shares.items():  # of all rows where there is one ratio a row
            pairs[key] = ((numbers[name + ".row_sum"], rows) if numbers["one_ratio_a_row"] else
                          (numbers[name + ".sum"], numbers[name + ".count"]))
        for name in ("ratio", "approx_kl_k1", "approx_kl_k3"):
            pairs[f"gdpo/{name}"] = (numbers[name + ".sum"], numbers[name + ".count"])
        pairs["gdpo/zero_advantage_rows"] = (numbers["degenerate_rows"], rows)
        pairs["gdpo/findings"] = (len(findings), 1)
        for key, value in self._means(pairs).items():
            self._metrics[mode][key].append(value)
        for finding in findings:
            self._tell(f"{finding.name} {finding.subject}", str(finding))

    def _log_policy_loss(self, mode: str, value: float) -> None:
        """Logs the loss without the entropy bonus: the mean of the processes where it is a number.

        As in TRL it is divided by the accumulation steps only where the loss divides by
        num_items_in_batch.
        """
        local = torch.tensor([value], dtype=torch.float64, device=self.accelerator.device)
        self._metrics[mode]["policy_loss"].append(
            self.accelerator.gather(local).nanmean().item())

    def _log_phi(self, mode: str, inputs: Dict[str, Any], mask: torch.Tensor,
                 logp: torch.Tensor) -> None:
        """Logs the mean weight of VESPO, which our metrics do not have, as TRL computes it."""
        wide = torch.promote_types(logp.dtype, torch.float32)  # 16 bits round it
        old_logp = inputs.get("old_per_token_logps")
        moved = (torch.zeros_like(logp) if old_logp is None else logp.to(wide) - old_logp.to(wide))
        phi = self.get_gamma_weights(
            advantages=inputs["advantages"].reshape(len(mask), -1), log_ratio_per_token=moved,
            mask=mask, importance_sampling_ratio=inputs.get("importance_sampling_ratio"),
            **{name: getattr(self.args, f"vespo_{name}") for name in VESPO})
        of_rows = phi.shape[1] == 1
        counted = torch.ones_like(phi) if of_rows else mask
        self._metrics[mode]["vespo/phi_seq_mean"].append(self._means(
            {"phi": ((phi * counted).sum().item(), counted.sum().item())})["phi"])

    def _means(self, pairs: Dict[str, Tuple[float, float]]) -> Dict[str, float]:
        """Sum / count over all processes, in one reduction."""
        local = torch.tensor(list(pairs.values()), dtype=torch.float64,
                             device=self.accelerator.device)
        totals = self.accelerator.reduce(local, reduction="sum").tolist()
        return {key: total / max(number, 1.0) for key, (total, number) in zip(pairs, totals)}

    def _log_extremes(self, mode: str, numbers: Dict[str, float],
                      without_empty_rows: Callable[[], Any]) -> None:
        """Logs the least and the largest clipped share of a row, over all processes.

        A row without tokens has the share 0 in our metrics. In TRL's it has it where there is one
        ratio a row, and is left out elsewhere, which can only raise the least share.
        """
        low, high = numbers["clip_fraction_low.row_min"], numbers["clip_fraction_high.row_max"]
        if not numbers["one_ratio_a_row"] and numbers["empty_rows"] > 0:
            if numbers["empty_rows"] == numbers["rows"]:
                low = high = math.nan
            elif numbers["clip_fraction_low.sum"] > 0:
                low = without_empty_rows()["clip_fraction_low.row_min"]
        local = torch.tensor([[low, high]], dtype=torch.float64, device=self.accelerator.device)
        lows, highs = self.accelerator.gather(local).T.tolist()
        for key, values, extreme in (("low_min", lows, min), ("high_max", highs, max)):
            self._metrics[mode][f"clip_ratio/{key}"].append(
                extreme((value for value in values if not math.isnan(value)), default=math.nan))

    def _tell(self, about: str, text: str) -> None:
        """Warns once about a thing."""
        if about in self._gdpo_told:
            return
        self._gdpo_told.append(about)
        if about == "loss":
            warnings.warn(f"gdpo.integrations.trl: {text}", stacklevel=4)
        elif self.accelerator.is_main_process:
            _log.warning("gdpo: %s", text)

    # Checkpoints

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        if self._gdpo_constraints.names and self.args.should_save:
            trial = kwargs.get("trial", args[1] if len(args) > 1 else None)
            folder = os.path.join(self._get_output_dir(trial=trial),
                                  f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            torch.save(self._gdpo_constraints.state_dict(), os.path.join(folder, _STATE_FILE))

    def _load_optimizer_and_scheduler(self, checkpoint: Optional[str]) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._gdpo_constraints.names and checkpoint is not None:
            path = os.path.join(checkpoint, _STATE_FILE)
            if os.path.exists(path):
                self._gdpo_constraints.load_state_dict(torch.load(path, weights_only=True))


def _loss_mask(inputs: Dict[str, Any]) -> torch.Tensor:
    """The completions' tokens, without those that tools wrote."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _of_mean_one(kept: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Weights of tokens, 0 where they are not kept, whose mean over the mask is 1 otherwise."""
    return made(prepare("mean_one reach=entropy", mask=mask,
                        entropy_weights=kept.to(torch.float32)).entropy_weights)


def _logs_of(weights: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The logs of vLLM's weights as TRL adds them to the log ratio of a row, (rows, tokens).

    weights: (rows, tokens), or (rows, 1) for one of each row, whose log stands at the first of the
      row's tokens. Those of other positions count for nothing here; TRL adds them, and where no
      bound of vllm_importance_sampling_clip_min and _clip_max excludes the weight 1 they are 0.
    """
    wide = torch.promote_types(weights.dtype, torch.float32)  # 16 bits round the sum
    logs = weights.detach().to(wide).log().clamp(*_LOG_WEIGHTS)
    if logs.shape == mask.shape:
        return logs
    first = (mask != 0) & ((mask != 0).cumsum(-1) == 1)
    return torch.where(first, logs, torch.zeros_like(logs))


def _without_empty_rows(policy_loss: PolicyLoss, logp: torch.Tensor, arrays: Dict[str, Any]) -> Any:
    """The metrics of the rows that have tokens."""
    rows = (arrays["mask"] != 0).any(-1)
    kept = {name: array if array is None or name == "counts" else array[rows]
            for name, array in arrays.items()}
    with torch.no_grad():
        return policy_loss(logp.detach()[rows], **kept).metrics


def _per_row_or_token(values: torch.Tensor) -> Dict[str, torch.Tensor]:
    """Advantages under the name that they have in a loss call, by their shape."""
    if values.dim() == 2 and values.shape[1] > 1:
        return {"token_advantages": values}
    return {"advantages": values.reshape(-1)}
