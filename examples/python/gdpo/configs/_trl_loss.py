"""TRL's options as an estimator and a loss of this library with its settings."""
import math
from typing import Any, Dict, Optional

# The presets of TRL's loss types, and of its scale_rewards under "sum_then_normalize".
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
ESTIMATORS = {"group": "trl::grpo", "batch": "trl::grpo_batch_scale", "none": "trl::grpo_no_scale"}
# The options of VESPO, by the settings that they are; the least decay that TRL takes.
VESPO = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")
LEAST_LAMBDA = 1e-4


def estimator_of(multi_objective_aggregation: str, scale_rewards: str) -> str:
    """The estimator for these options. Errors: KeyError for an unknown scale_rewards."""
    if multi_objective_aggregation == "normalize_then_sum":
        return "trl::gdpo"
    return ESTIMATORS[scale_rewards]


def loss_settings(trainer: Any) -> Dict[str, Any]:
    """The settings of PolicyLoss that TRL's options stand for.

    trainer: has what TRL's trainer has: loss_type, beta, importance_sampling_level, epsilon_low,
    epsilon_high, max_completion_length, and args, its configuration.
    """
    settings: Dict[str, Any] = dict(name=f"trl::{trainer.loss_type}", beta=trainer.beta)
    if trainer.loss_type != "vespo":  # whose ratios are those of rows in any case
        settings["level"] = trainer.importance_sampling_level
    if trainer.loss_type == "cispo":
        settings["max_ratio"] = trainer.epsilon_high  # the bound itself
    elif trainer.loss_type == "sapo":
        settings.update(tau_pos=trainer.args.sapo_temperature_pos,
                        tau_neg=trainer.args.sapo_temperature_neg)
    elif trainer.loss_type == "vespo":
        settings.update({name: getattr(trainer.args, f"vespo_{name}") for name in VESPO})
        for name in ("lambda_pos", "lambda_neg"):
            settings[name] = max(settings[name], LEAST_LAMBDA)
    else:  # a ratio is never below 0
        settings.update(low=trainer.epsilon_low if trainer.epsilon_low <= 1 else math.inf,
                        high=trainer.epsilon_high, delta=trainer.args.delta)
    if trainer.beta != 0 and trainer.args.use_bias_correction_kl:
        settings["kl"] = "k3*"
    if trainer.loss_type == "dr_grpo":
        settings["constant"] = trainer.max_completion_length
    return settings


def missing_option(trainer: Any) -> Optional[str]:
    """The option of TRL that no loss of this library has; None where there is none.

    trainer: as in `loss_settings`.
    """
    if trainer.loss_type not in LOSS_TYPES:
        return f"loss_type={trainer.loss_type!r}"
    if trainer.loss_type == "vespo" and trainer.beta != 0 and trainer.args.use_bias_correction_kl:
        return "loss_type='vespo' with use_bias_correction_kl, whose ratios are of tokens"
    return None
