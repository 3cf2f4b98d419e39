"""Group-relative advantages and policy losses as PyTorch operators.

    import gdpo

    advantages = gdpo.advantages(rewards, group_size=8)         # GDPO; also GRPO, RLOO, ...
    counts = gdpo.count(mask=mask)                              # all-reduce them over the ranks
    loss, metrics = gdpo.PolicyLoss("dapo")(
        logp, old_logp=old_logp, mask=mask, advantages=advantages, counts=counts)
    loss.backward()                                             # the analytic gradient
    print(metrics.to_dict("train/"))

The operators themselves are torch.ops.gdpo. Every loss and estimator is one of the C++ library
gdpo, by the name that it has there: `gdpo.losses()` and `gdpo.estimators()` list them.

gdpo.numpy and gdpo.jax have such calls for arrays of NumPy and JAX, and need no PyTorch.
"""
import importlib.util
from typing import TYPE_CHECKING, Any, List

from ._entropy import AdaptiveEntropy
from ._load import TORCH_MISSING as _TORCH_MISSING
from ._load import torch as _torch
from ._measured import Metrics, Report, ValueMetrics
from ._names import VERSION as __version__
from ._names import (contrastive_losses, estimators, instruction_set, losses, outcome_estimators,
                     step_estimators, token_baselines, token_estimators, value_losses, whitenings)
from ._settings import Setting, estimator_settings, loss_settings, prepasses
from .configs import Configured, from_config

if TYPE_CHECKING:
    from . import jax as jax
    from . import numpy as numpy
if TYPE_CHECKING or _torch is not None:
    from ._advantages import advantages
    from ._constraint import PidLagrangian, PidStep
    from ._contrastive import ContrastiveLoss
    from ._diagnose import Finding, diagnose
    from ._explain import Explanation, explain
    from ._logprobs import TokenLogprobs, token_logprobs
    from ._mismatch import Mismatch, mismatch
    from ._policy_loss import PolicyLoss, count, count_group_tokens
    from ._prepare import Prepared, prepare
    from ._ranks import CommunicationError, GatheredRows, Ranks, WholeTokens, grad_scale
    from ._running import EmaBaseline, ReturnScale, RunningMoments, shape_rewards, shapings
    from ._step import Step
    from ._token_advantages import (AdvantagesAndReturns, AdvantagesReturnsAndReport,
                                    optimal_token_baseline, outcome_advantages, step_advantages,
                                    token_advantages)
    from ._update import (ClippedGradient, Packing, Plan, SelectedGroups, clip_grad_norm, pack,
                          plan, polyak, select_groups)
    from ._value_loss import ValueLoss
    from ._whiten import whiten

__all__ = ["AdaptiveEntropy", "AdvantagesAndReturns", "AdvantagesReturnsAndReport",
           "ClippedGradient", "CommunicationError", "Configured", "ContrastiveLoss", "EmaBaseline",
           "Explanation", "Finding", "GatheredRows", "Metrics", "Mismatch", "Packing",
           "PidLagrangian", "PidStep", "Plan", "PolicyLoss", "Prepared", "Ranks", "Report",
           "ReturnScale", "RunningMoments", "SelectedGroups", "Setting", "Step", "TokenLogprobs",
           "ValueLoss", "ValueMetrics", "WholeTokens", "advantages", "clip_grad_norm",
           "contrastive_losses", "count", "count_group_tokens", "diagnose", "estimator_settings",
           "estimators", "explain", "from_config", "grad_scale", "instruction_set",
           "loss_settings", "losses", "mismatch", "optimal_token_baseline", "outcome_advantages",
           "outcome_estimators", "pack", "plan", "polyak", "prepare", "prepasses", "select_groups",
           "shape_rewards", "shapings", "step_advantages", "step_estimators", "token_advantages",
           "token_baselines", "token_estimators", "token_logprobs", "value_losses", "whiten",
           "whitenings", "__version__"]

if not TYPE_CHECKING:
    _FOR_TORCH = [name for name in __all__ if name not in globals()]  # empty with PyTorch
    __all__ = [name for name in __all__ if name in globals()]


def _missing(name: str) -> Any:
    """Loads gdpo.numpy and gdpo.jax when they are first used.

    Errors: ImportError for a name that needs PyTorch, where there is none or an older one.
    """
    if name in ("jax", "numpy"):
        return importlib.import_module(f".{name}", __name__)
    if not TYPE_CHECKING and name in _FOR_TORCH:
        from . import numpy as for_numpy
        other = f"; gdpo.numpy.{name} is for NumPy" if name in for_numpy.__all__ else ""
        raise ImportError(f"gdpo.{name} is for PyTorch{_TORCH_MISSING}{other}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # type checkers would take any name
    __getattr__ = _missing


def __dir__() -> List[str]:
    modules = {name for name in ("jax", "numpy") if importlib.util.find_spec(name)}
    return sorted({*globals(), *modules})
