"""The calls for NumPy: advantages, losses with their gradients, returns and whitening.

    import gdpo.numpy

    advantages = gdpo.numpy.advantages(rewards, group_size=8)
    dapo = gdpo.numpy.PolicyLoss("dapo")
    loss, gradient, _, metrics = dapo(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                                      counts=gdpo.numpy.count(mask=mask))

They are the calls of the same names for PyTorch, which need not be installed: the same names,
keywords, numbers and messages. An array is one of NumPy with any strides, of ml_dtypes' bfloat16
too, or what NumPy makes an array of on the CPU (`__array__`, DLPack, lists). A loss returns its
gradient, which is that of the loss alone: multiply it by what the loss is multiplied by.
"""
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ._measured import AdvantagesAndReport, LossLine, Metrics, Report, ValueMetrics
from ._names import (ARRAYS, VALUE_ARRAYS, contrastive_losses, estimators, in_python, in_words_of,
                     losses, number, our_errors, outcome_estimators, step_estimators,
                     token_estimators, value_losses, whitenings, with_group_offsets)
from ._ndarrays import array_of, get_num_threads, ops, set_num_threads
from ._numbers import shown
from ._rows import (check_counted, check_floating, check_given, check_mask, check_step_ids, flat,
                    limits_of, numbered, of_rows, plain, required, reward_count, size_of_groups,
                    warn_of_completions, weights_of, with_nan)
from ._settings import (Setting, check_kl, described, estimator_settings, has_entropy, line,
                        loss_settings, takes_settings)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import (ContrastiveSettings, EstimatorSettings, LossSettings,
                            OutcomeAdvantagesSettings, StepAdvantagesSettings,
                            TokenAdvantagesSettings, ValueLossSettings, WhiteningSettings)

__all__ = ["AdvantagesAndReport", "AdvantagesAndReturns", "AdvantagesReturnsAndReport",
           "ContrastiveLoss", "ContrastiveLossAndGradient", "Metrics", "PolicyLoss",
           "PolicyLossAndGradients", "Report", "Setting", "ValueLoss", "ValueLossAndGradient",
           "ValueMetrics", "advantages", "contrastive_losses", "count", "count_group_tokens",
           "estimator_settings", "estimators", "get_num_threads", "loss_settings", "losses",
           "outcome_advantages", "outcome_estimators", "set_num_threads", "step_advantages",
           "step_estimators", "token_advantages", "token_estimators", "value_losses", "whiten",
           "whitenings"]

_Groups = Tuple[int, Optional[np.ndarray], Optional[np.ndarray]]


class AdvantagesAndReturns(NamedTuple):
    """What `token_advantages` and `outcome_advantages` return."""

    advantages: np.ndarray  #: In the shape of the tokens; 0 where the mask is 0.
    returns: np.ndarray  #: The same; what a critic learns, before a normalization.


class AdvantagesReturnsAndReport(NamedTuple):
    """What `outcome_advantages` returns with report=True."""

    advantages: np.ndarray  #: In the shape of the tokens; 0 where the mask is 0.
    returns: np.ndarray  #: The same; what a critic learns, before a normalization.
    report: Report  #: Of the rewards of rows, as of `advantages`.


class PolicyLossAndGradients(NamedTuple):
    """What PolicyLoss returns."""

    loss: np.ndarray  #: A scalar.
    by_logp: np.ndarray  #: The gradient by the log-probs, in their shape, float32 at least.
    by_entropies: Optional[np.ndarray]  #: That by the entropies; None without a bonus or without.
    metrics: Metrics  #: What the call measured.


class ContrastiveLossAndGradient(NamedTuple):
    """What ContrastiveLoss returns."""

    loss: np.ndarray  #: A scalar.
    by_logp: np.ndarray  #: The gradient by the log-probs, in their shape, float32 at least.
    metrics: Metrics  #: What the call measured.


class ValueLossAndGradient(NamedTuple):
    """What ValueLoss returns."""

    loss: np.ndarray  #: A scalar.
    by_values: np.ndarray  #: The gradient by the values, in their shape, float32 at least.
    metrics: ValueMetrics  #: What the call measured.


def _given(function: str, arrays: Dict[str, Any]) -> Dict[str, Optional[np.ndarray]]:
    """The arguments as arrays; those that are absent are None."""
    return {name: None if array is None else array_of(function, name, plain(array))
            for name, array in arrays.items()}


def _needed(function: str, name: str, array: Any) -> np.ndarray:
    """An argument that may not be absent."""
    return array_of(function, name, plain(required(function, name, array)))


def _counts(function: str, counts: Any) -> np.ndarray:
    """The counts in the type in which `count` returns them."""
    array = _needed(function, "counts", counts)
    return array if array.dtype.kind == "c" else array.astype(np.float64, copy=False)


def _is_floating(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name  # kind "V" of ml_dtypes


def _of_tokens(function: str, arrays: Dict[str, Any]) -> Dict[str, Optional[np.ndarray]]:
    """Arrays of tokens, checked as the call for PyTorch checks them."""
    given = _given(function, arrays)
    mask = given.get("mask")
    if mask is not None and _is_floating(mask):
        check_mask(function, bool(np.isfinite(mask).all()))
    return given


def _of_loss(function: str, name: str, arrays: Dict[str, Any]) -> Dict[str, Optional[np.ndarray]]:
    """Arrays of a loss. `name`: what it is differentiated by, which is needed, of a floating-point
    type."""
    by = _needed(function, name, arrays[name])
    given = _of_tokens(function, {**arrays, name: by})
    check_floating(function, name, by.dtype, _is_floating(by))
    return given


def _grouping(function: str, group_size: Any, group_ids: Any, group_offsets: Any) -> _Groups:
    """What says which rows belong together, as the operators take it."""
    ids = numbered(function, "group_ids", group_ids)
    given = _given(function, {"group_ids": ids, "group_offsets": group_offsets})
    return size_of_groups(function, group_size), given["group_ids"], given["group_offsets"]


def _batch(function: str, rewards: Any, groups: Tuple[Any, Any, Any], by_reward: bool,
           columns: Dict[str, Any]) -> Tuple[np.ndarray, _Groups, List[Optional[np.ndarray]]]:
    """The rewards, what says who belongs together, and the columns, as the operators take them."""
    values = _needed(function, "rewards", with_nan(rewards))
    grouped = _grouping(function, *groups)
    if not by_reward:
        warn_of_completions(function, values.shape, grouped[0])
    given = _given(function, {
        name: numbered(function, name, array) if name.endswith("_ids") else array
        for name, array in columns.items()})
    return values, grouped, list(given.values())


@takes_settings("estimator")
def advantages(rewards: Any, *, estimator: str = "gdpo", group_size: int = 0, group_ids: Any = None,
               group_offsets: Any = None, weights: Optional[Sequence[float]] = None,
               gates: Sequence[Tuple[int, int, float]] = (),
               constraints: Sequence[Tuple[int, float, float, float, str]] = (),
               tokens: Any = None, valid: Any = None, baseline: Any = None,
               row_weights: Any = None, penalty: Any = None, rollout_ids: Any = None,
               take: str = "last", report: bool = False,
               **settings: "Unpack[EstimatorSettings]") -> Any:
    """Group-relative advantages: `gdpo.advantages` of arrays, one number for each row.

        advantages = gdpo.numpy.advantages(rewards, group_ids=tasks, estimator="trl::gdpo",
                                           weights=[1.0, 0.5], scale_eps=1e-6)

    rewards: (rows) or (rows, rewards); a NaN is a reward that is missing, as is None in a list.
    estimator: one of `estimators()`, perhaps with settings behind it.
    group_size, group_ids (integers or strings) or group_offsets: which rows belong together.
    weights: one for each reward. gates, constraints, tokens, valid, baseline, row_weights, penalty,
      rollout_ids, take: as `gdpo.advantages` explains them.
    settings: `estimator_settings(name)` lists those of an estimator.
      {settings}

    Returns the advantages (rows), float32 for rewards of float32 and narrower, else float64; with
    report=True also a Report. Errors: ValueError for unknown names and for types, shapes and
    settings that do not fit.
    """
    function = "gdpo::advantages"
    text = line(function, (estimator,), settings)
    values, groups, columns = _batch(
        function, rewards, (group_size, group_ids, group_offsets),
        bool(weights is not None or gates or constraints),
        {"tokens": tokens, "valid": valid, "baseline": baseline, "row_weights": row_weights,
         "penalty": penalty, "rollout_ids": rollout_ids})
    with our_errors(of_rows(values)):
        result, numbers = ops.advantages(
            values, text, *groups, weights_of(function, weights), flat(function, gates),
            limits_of(constraints), *columns, take, report)
    if not report:
        return result
    return AdvantagesAndReport(result, Report(numbers, reward_count(values)))


@takes_settings("token_advantages")
def token_advantages(*, estimator: str = "verl::gae", rewards: Any = None, row_rewards: Any = None,
                     values: Any = None, logp: Any = None, ref_logp: Any = None, mask: Any = None,
                     offsets: Any = None, bootstrap: Any = None,
                     **settings: "Unpack[TokenAdvantagesSettings]") -> AdvantagesAndReturns:
    """Advantages and returns of tokens, GAE among them: `gdpo.token_advantages` of arrays.

        advantages, returns = gdpo.numpy.token_advantages(
            estimator="verl::gae", row_rewards=scores, values=values, mask=mask, gamma=0.99)

    estimator: one of `token_estimators()`, perhaps with settings behind it.
    rewards: of the tokens. row_rewards: (rows) one each, at the last step. values: of the critic
      before each token. logp, ref_logp: for a penalty. mask: not 0 at the tokens of the policy.
      offsets: (rows + 1), for packed tokens. bootstrap: (rows) the value behind the last step.
    settings: `estimator_settings(name, "token_advantages")` lists those of a name.
      {settings}

    Returns both in the shape of the tokens: float64 where one of their arrays is, else float32.
    Errors: ValueError for unknown names, missing arrays and shapes that do not fit.
    """
    function = "gdpo::token_advantages"
    text = line(function, (estimator,), settings)
    arrays = _of_tokens(function, {
        "rewards": rewards, "values": values, "logp": logp, "ref_logp": ref_logp, "mask": mask,
        "offsets": offsets, "row_rewards": row_rewards, "bootstrap": bootstrap})
    with our_errors(in_python(function)):
        return AdvantagesAndReturns(*ops.token_advantages(text, **arrays))


@takes_settings("outcome_advantages")
def outcome_advantages(rewards: Any, *, estimator: str = "openrlhf::rloo", group_size: int = 0,
                       group_ids: Any = None, group_offsets: Any = None,
                       weights: Optional[Sequence[float]] = None,
                       gates: Sequence[Tuple[int, int, float]] = (), tokens: Any = None,
                       valid: Any = None, baseline: Any = None, row_weights: Any = None,
                       penalty: Any = None, token_rewards: Any = None, values: Any = None,
                       logp: Any = None, ref_logp: Any = None, mask: Any = None,
                       offsets: Any = None, bootstrap: Any = None, report: bool = False,
                       **settings: "Unpack[OutcomeAdvantagesSettings]") -> Any:
    """Advantages and returns of tokens from the rewards of rows: `gdpo.outcome_advantages` of
    arrays.

        advantages, returns = gdpo.numpy.outcome_advantages(
            rewards, estimator="openrlhf::rloo", group_size=8, mask=mask)

    rewards, group_size, group_ids, group_offsets, weights, gates, tokens, valid, baseline,
      row_weights, penalty: as in `advantages`.
    estimator: one of `outcome_estimators()`, perhaps with settings behind it.
    token_rewards: rewards of tokens, which are added. values, logp, ref_logp, mask, offsets,
      bootstrap: as in `token_advantages`. One array of tokens is needed, at least the mask.
    settings: `estimator_settings(name, "outcome_advantages")` lists those of a name.
      {settings}

    Returns advantages and returns in the shape of the tokens, with report=True also a Report of the
    rewards. Errors: ValueError for unknown names, missing arrays and shapes that do not fit.
    """
    function = "gdpo::outcome_advantages"
    text = line(function, (estimator,), settings)
    rows, groups, columns = _batch(
        function, rewards, (group_size, group_ids, group_offsets),
        bool(weights is not None or gates),
        {"tokens": tokens, "valid": valid, "baseline": baseline, "row_weights": row_weights,
         "penalty": penalty})
    given = weights_of(function, weights), flat(function, gates)
    arrays = _of_tokens(function, {
        "token_rewards": token_rewards, "values": values, "logp": logp, "ref_logp": ref_logp,
        "mask": mask, "offsets": offsets, "bootstrap": bootstrap})
    with_shape, said = of_rows(rows), in_python(function, batch_rewards="token_rewards")
    with our_errors(lambda message: with_shape(said(message))):
        of_tokens, returns, numbers = ops.outcome_advantages(
            rows, text, *groups, *given, *columns, **arrays, report=report)
    if not report:
        return AdvantagesAndReturns(of_tokens, returns)
    return AdvantagesReturnsAndReport(of_tokens, returns, Report(numbers, reward_count(rows)))


@takes_settings("step_advantages")
def step_advantages(rewards: Any, *, episode_ids: Any, state_ids: Any, estimator: str = "gigpo",
                    group_size: int = 0, group_ids: Any = None, group_offsets: Any = None,
                    weights: Optional[Sequence[float]] = None,
                    gates: Sequence[Tuple[int, int, float]] = (), tokens: Any = None,
                    valid: Any = None, baseline: Any = None, row_weights: Any = None,
                    penalty: Any = None,
                    **settings: "Unpack[StepAdvantagesSettings]") -> np.ndarray:
    """Advantages of the steps of agents by GiGPO: `gdpo.step_advantages` of arrays.

        advantages = gdpo.numpy.step_advantages(rewards, group_ids=tasks, episode_ids=episodes,
                                                state_ids=states, omega=0.5)

    rewards: (steps) or (steps, rewards). episode_ids, state_ids: (steps) integers or strings.
    estimator: one of `step_estimators()`, perhaps with settings behind it.
    group_size, group_ids or group_offsets: the tasks, and weights, gates, tokens, valid, baseline,
      row_weights, penalty: as in `advantages`.
    settings: `estimator_settings(name, "step_advantages")` lists those of a name.
      {settings}

    Returns the advantages (steps). Errors: ValueError for unknown names and for types, shapes and
    settings that do not fit.
    """
    function = "gdpo::step_advantages"
    text = line(function, (estimator,), settings)
    check_step_ids(function, episode_ids, state_ids)
    values, groups, (episodes, states, *columns) = _batch(
        function, rewards, (group_size, group_ids, group_offsets),
        bool(weights is not None or gates),
        {"episode_ids": episode_ids, "state_ids": state_ids, "tokens": tokens, "valid": valid,
         "baseline": baseline, "row_weights": row_weights, "penalty": penalty})
    with_shape = of_rows(values)
    said = in_python(function, episodes="episode_ids", states="state_ids")
    with our_errors(lambda message: with_shape(said(message))):
        return ops.step_advantages(values, text, episodes, states, *groups,
                                   weights_of(function, weights), flat(function, gates), *columns)


def count(*, given: float = 0.0, mask: Any = None, logp: Any = None, offsets: Any = None,
          group_size: int = 0, group_ids: Any = None, group_offsets: Any = None) -> np.ndarray:
    """The counts that a loss is divided by: `gdpo.count` of arrays.

        counts = gdpo.numpy.count(mask=mask[:16]) + gdpo.numpy.count(mask=mask[16:])

    mask: not 0 at the tokens of the loss; without it all tokens of `logp`, or of `offsets`, count.
    given: this batch's share of a count of your own. group_size, group_ids or group_offsets: the
      groups, whose number is then the share of `given`.

    Returns (4) float64 of tokens, rows, non-empty rows, `given`. Errors: ValueError for shapes that
    do not fit, and for labels (-100) as a mask.
    """
    function = "gdpo::count"
    check_counted(function, mask, logp, offsets)
    share = 0.0 if given is None else number(function, "given", given)
    arrays = _of_tokens(function, {"mask": mask, "logp": logp, "offsets": offsets})
    if group_size or group_ids is not None or group_offsets is not None:
        check_given(share)
        groups = _grouping(function, group_size, group_ids, group_offsets)
        with our_errors(with_group_offsets):
            return ops.count_groups(*map(arrays.get, ARRAYS), *groups)
    with our_errors():
        counts = ops.count(*map(arrays.get, ARRAYS))
    if share:
        counts[3] = share
    return counts


def count_group_tokens(*, mask: Any = None, logp: Any = None, offsets: Any = None,
                       group_size: int = 0, group_ids: Any = None, group_offsets: Any = None
                       ) -> np.ndarray:
    """The valid tokens of the group of each row: `gdpo.count_group_tokens` of arrays.

        group_tokens = gdpo.numpy.count_group_tokens(mask=mask, group_size=8)

    mask, logp, offsets, group_size, group_ids, group_offsets: as for `count`.

    Returns (rows) float64. Errors: ValueError for shapes and groups that do not fit.
    """
    function = "gdpo::count_group_tokens"
    check_counted(function, mask, logp, offsets)
    arrays = _of_tokens(function, {"mask": mask, "logp": logp, "offsets": offsets})
    groups = _grouping(function, group_size, group_ids, group_offsets)
    with our_errors(with_group_offsets):
        return ops.count_group_tokens(*map(arrays.get, ARRAYS), *groups)


class _Loss(LossLine):
    """A loss of arrays. `_result` makes of a call's arguments what it returns."""

    def _has_bonus(self, entropies: Any) -> bool:
        """Whether it is differentiated by these entropies."""
        return False

    def __repr__(self) -> str:
        return shown(type(self).__name__, described(self._what, self.line))


@takes_settings("loss")
class PolicyLoss(_Loss):
    """A policy loss over tokens with its gradient and metrics: `gdpo.PolicyLoss` of arrays.

        dapo = gdpo.numpy.PolicyLoss("dapo", low=0.2, high=0.28)
        loss, gradient, _, metrics = dapo(logp, old_logp=old_logp, mask=mask,
                                          advantages=advantages, counts=gdpo.numpy.count(mask=mask))

    name: one of `losses()`, perhaps with a level and settings behind it.
    level: whose ratio is clipped, "token", "sequence" or "sequence_token" (GSPO).
    settings: `loss_settings(name)` lists those of a loss.
      {settings}

    Errors: ValueError for unknown names and settings, with a list of the known ones.
    """

    _what = "loss"

    def __init__(self, name: str, level: Optional[str] = None,
                 **settings: "Unpack[LossSettings]") -> None:
        super().__init__(line("gdpo.PolicyLoss", (name,) if level is None else (name, level),
                              settings))
        check_kl(self.line)

    def __call__(self, logp: Any, *, counts: Any, advantages: Any = None,
                 token_advantages: Any = None, old_logp: Any = None, ref_logp: Any = None,
                 rollout_logp: Any = None, teacher_logp: Any = None, mask: Any = None,
                 completion_mask: Any = None, offsets: Any = None, segments: Any = None,
                 weights: Any = None, kl_weights: Any = None, entropy_weights: Any = None,
                 row_weights: Any = None, group_tokens: Any = None, entropies: Any = None,
                 tags: Any = None, truncated: Any = None, level_log_weights: Any = None
                 ) -> PolicyLossAndGradients:
        """The loss of one (micro-)batch, and its gradients.

        The arguments are those that `gdpo.PolicyLoss` explains, as arrays: (rows, tokens),
        (prompts, completions, tokens), or packed (tokens) with offsets. The gradient by entropies
        is computed where the loss has a bonus and they are given.

        Errors: ValueError for types, shapes, counts and settings that do not fit.
        """
        return self._result(counts, {
            "logp": logp, "old_logp": old_logp, "ref_logp": ref_logp, "rollout_logp": rollout_logp,
            "teacher_logp": teacher_logp, "token_advantages": token_advantages,
            "weights": weights, "entropies": entropies, "kl_weights": kl_weights,
            "entropy_weights": entropy_weights, "tags": tags, "mask": mask,
            "completion_mask": completion_mask, "segments": segments, "advantages": advantages,
            "row_weights": row_weights, "group_tokens": group_tokens, "truncated": truncated,
            "offsets": offsets, "level_log_weights": level_log_weights})

    def _result(self, counts: Any, arrays: Dict[str, Any]) -> Any:
        return PolicyLossAndGradients(*self._call(True, counts, arrays))

    def _call(self, gradient: bool, counts: Any, arrays: Dict[str, Any]) -> Tuple[Any, ...]:
        """Loss, gradients by log-probs and entropies, and metrics of these arrays."""
        function = "gdpo::PolicyLoss"
        given = _of_loss(function, "logp", arrays)
        by_entropies = gradient and self._has_bonus(given["entropies"])
        with our_errors(in_words_of(function)):
            loss, by_logp, of_bonus, result = ops.policy_loss_forward(
                self.line, _counts(function, counts), gradient, by_entropies,
                *map(given.get, ARRAYS))
        return loss, by_logp, of_bonus if by_entropies else None, Metrics(result)

    def _has_bonus(self, entropies: Any) -> bool:
        return entropies is not None and has_entropy(self.line)


@takes_settings("contrastive")
class ContrastiveLoss(_Loss):
    """REAL with its gradient and metrics: `gdpo.ContrastiveLoss` of arrays.

        real = gdpo.numpy.ContrastiveLoss("real", tau=0.5, beta=0.0)
        loss, gradient, metrics = real(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                                       group_size=8,
                                       counts=gdpo.numpy.count(mask=mask, group_size=8))

    name: one of `contrastive_losses()`, perhaps with settings behind it.
    settings: `loss_settings(name)` lists those of a loss.
      {settings}

    Errors: ValueError for unknown names and settings, with a list of the known ones.
    """

    _what = "contrastive"

    def __init__(self, name: str = "real", **settings: "Unpack[ContrastiveSettings]") -> None:
        super().__init__(line("gdpo.ContrastiveLoss", (name,), settings))

    def __call__(self, logp: Any, *, counts: Any, advantages: Any = None,
                 token_advantages: Any = None, group_size: int = 0, group_ids: Any = None,
                 group_offsets: Any = None, old_logp: Any = None, ref_logp: Any = None,
                 rollout_logp: Any = None, teacher_logp: Any = None, mask: Any = None,
                 completion_mask: Any = None, offsets: Any = None, kl_weights: Any = None,
                 entropies: Any = None, truncated: Any = None) -> ContrastiveLossAndGradient:
        """The loss of one (micro-)batch, which may not cut a group, and its gradient.

        The arguments are those that `gdpo.ContrastiveLoss` explains, as arrays.

        Errors: ValueError for types, shapes, groups, counts and settings that do not fit.
        """
        return self._result(counts, {
            "logp": logp, "old_logp": old_logp, "ref_logp": ref_logp, "rollout_logp": rollout_logp,
            "teacher_logp": teacher_logp, "token_advantages": token_advantages,
            "entropies": entropies, "kl_weights": kl_weights, "mask": mask,
            "completion_mask": completion_mask, "advantages": advantages, "truncated": truncated,
            "offsets": offsets, "group_size": group_size, "group_ids": group_ids,
            "group_offsets": group_offsets})

    def _result(self, counts: Any, arrays: Dict[str, Any]) -> Any:
        return ContrastiveLossAndGradient(*self._call(True, counts, arrays))

    def _call(self, gradient: bool, counts: Any, arrays: Dict[str, Any]) -> Tuple[Any, ...]:
        """Loss, gradient by log-probs and metrics of these arrays."""
        function, arrays = "gdpo::ContrastiveLoss", dict(arrays)
        groups = _grouping(function, *map(arrays.pop, ("group_size", "group_ids", "group_offsets")))
        given = _of_loss(function, "logp", arrays)
        said = in_words_of(function)
        with our_errors(lambda message: with_group_offsets(said(message))):
            loss, by_logp, result = ops.contrastive_loss(
                self.line, _counts(function, counts), gradient, *map(given.get, ARRAYS), *groups)
        return loss, by_logp, Metrics(result)


@takes_settings("value_loss")
class ValueLoss(_Loss):
    """The loss of a critic with its gradient and metrics: `gdpo.ValueLoss` of arrays.

        value_loss = gdpo.numpy.ValueLoss("verl::value_loss", clip=0.2)
        loss, gradient, metrics = value_loss(values + 0.1, old_values=values, returns=returns,
                                             mask=mask, counts=gdpo.numpy.count(mask=mask))

    name: one of `value_losses()`, perhaps with settings behind it.
    settings: `loss_settings(name)` lists those of a loss.
      {settings}

    Errors: ValueError for unknown names and settings, with a list of the known ones.
    """

    _what = "value_loss"

    def __init__(self, name: str = "verl::value_loss",
                 **settings: "Unpack[ValueLossSettings]") -> None:
        super().__init__(line("gdpo.ValueLoss", (name,), settings))

    def __call__(self, values: Any, *, returns: Any, counts: Any, old_values: Any = None,
                 mask: Any = None, offsets: Any = None, row_weights: Any = None,
                 group_tokens: Any = None) -> ValueLossAndGradient:
        """The loss of one (micro-)batch, and its gradient.

        The arguments are those that `gdpo.ValueLoss` explains, as arrays.

        Errors: ValueError for types, shapes, counts and settings that do not fit.
        """
        return self._result(counts, {
            "values": values, "old_values": old_values, "returns": returns, "mask": mask,
            "offsets": offsets, "row_weights": row_weights, "group_tokens": group_tokens})

    def _result(self, counts: Any, arrays: Dict[str, Any]) -> Any:
        return ValueLossAndGradient(*self._call(True, counts, arrays))

    def _call(self, gradient: bool, counts: Any, arrays: Dict[str, Any]) -> Tuple[Any, ...]:
        """Loss, gradient by values and metrics of these arrays."""
        function = "gdpo::ValueLoss"
        given = _of_loss(function, "values", arrays)
        with our_errors(in_words_of(function)):
            loss, by_values, result = ops.value_loss(
                self.line, _counts(function, counts), gradient, *map(given.get, VALUE_ARRAYS))
        return loss, by_values, ValueMetrics(result)


@takes_settings("whitening")
def whiten(values: Any, mask: Any = None, *, name: str = "tokens",
           **settings: "Unpack[WhiteningSettings]") -> np.ndarray:
    """Values minus their mean, divided by their std, over a mask: `gdpo.whiten` of arrays.

        whitened = gdpo.numpy.whiten(returns - values, mask, name="verl::masked_whiten")

    values: (rows, tokens), (prompts, completions, tokens) or packed (tokens). mask: in their shape.
    name: one of `whitenings()`, perhaps with settings behind it.
    settings: `estimator_settings(name, "whiten")` lists those of a name.
      {settings}

    Returns a new array in the shape of the values, 0 where the mask is 0: float64 for float64 and
    integers, else float32. Errors: ValueError for unknown names, and for shapes and settings that
    do not fit.
    """
    function = "gdpo::whiten"
    text = line(function, (name,), settings)
    given = _of_tokens(function, {"values": _needed(function, "values", values), "mask": mask})
    dense, valid = given["values"], given["mask"]
    assert dense is not None
    numbers = dense.astype(np.float64) if dense.dtype.kind in "biu" else dense
    if valid is not None and valid.dtype not in (np.bool_, np.uint8):
        valid = valid != 0
    if numbers.ndim == 3 and (valid is None or valid.shape == numbers.shape):
        numbers = numbers.reshape(-1, numbers.shape[2])
        valid = None if valid is None else valid.reshape(-1, valid.shape[2])
    with our_errors(in_words_of(function)):
        return ops.whiten(numbers, text, valid, None).reshape(dense.shape)
