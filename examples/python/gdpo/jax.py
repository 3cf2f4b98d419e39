"""The calls for JAX: advantages, losses with their gradients, returns and whitening.

    import gdpo.jax

    dapo = gdpo.jax.PolicyLoss("dapo")

    @jax.jit
    def loss(parameters):
        logp = model(parameters)
        return dapo(logp, old_logp=old_logp, mask=mask, advantages=advantages, counts=counts)

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)

They are those of gdpo.numpy for a jax.Array, and work under jit, grad and vmap: the CPU computes
them in a callback (jax.pure_callback), one example after the other under vmap. A loss computes its
gradient in the same call, by the log-probs, by the entropies where it has a bonus, or by the values
of a critic; everything else is a constant, and advantages, returns and counts have no gradient.
There is no second derivative. Metrics and reports are pytrees. Settings, group_size, weights and
gates are Python's numbers, which a compiled function holds, and so it holds arrays of NumPy, as
they were when JAX traced it. Under shard_map a call sees the rows of its device. An error is a
ValueError, and in a compiled function JAX's error with the same message. Outside of jit, vmap
compiles each call anew.

Without jax_enable_x64 what is float64 in gdpo.numpy is float32 here: metrics and reports have 7
digits, and counts are exact to 2^24 tokens; give those of gdpo.numpy.count for more.
"""
import collections.abc
import copy
import functools
import inspect
import math
from typing import (TYPE_CHECKING, Any, Callable, ClassVar, Dict, List, NamedTuple, Optional,
                    Sequence, Tuple, Type, TypeVar, cast)

import numpy as np

from . import numpy as _numpy
from ._measured import AdvantagesAndReport, Metrics, Report, ValueMetrics
from ._names import TOKEN_ARRAYS, names
from ._ndarrays import array_of
from ._rows import check_counted, numbered, plain, required, reward_count, with_nan
from .numpy import (Setting, contrastive_losses, estimator_settings, estimators, get_num_threads,
                    loss_settings, losses, outcome_estimators, set_num_threads, step_estimators,
                    token_estimators, value_losses, whitenings)

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as _error:
    if _error.name != "jax":
        raise
    raise ImportError("gdpo.jax needs JAX, which is not installed: pip install 'gdpo[jax]'"
                      ) from None

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    _P = ParamSpec("_P")
    _R = TypeVar("_R")

    def _typed_as(function: Callable[_P, Any], kind: Type[_R]
                  ) -> Callable[[Callable[..., Any]], Callable[_P, _R]]:
        """A decorator that gives a method the parameters of another one, and a result."""

__all__ = ["AdvantagesAndReport", "AdvantagesAndReturns", "AdvantagesReturnsAndReport",
           "ContrastiveLoss", "LossAndMetrics", "Metrics", "PolicyLoss", "Report", "Setting",
           "ValueLoss", "ValueLossAndMetrics", "ValueMetrics", "advantages", "contrastive_losses",
           "count", "count_group_tokens", "estimator_settings", "estimators", "get_num_threads",
           "loss_settings", "losses", "outcome_advantages", "outcome_estimators",
           "set_num_threads", "step_advantages", "step_estimators", "token_advantages",
           "token_estimators", "value_losses", "whiten", "whitenings"]


class AdvantagesAndReturns(NamedTuple):
    """What `token_advantages` and `outcome_advantages` return."""

    advantages: jax.Array  #: In the shape of the tokens; 0 where the mask is 0.
    returns: jax.Array  #: The same; what a critic learns, before a normalization.


class AdvantagesReturnsAndReport(NamedTuple):
    """What `outcome_advantages` returns with report=True."""

    advantages: jax.Array  #: In the shape of the tokens; 0 where the mask is 0.
    returns: jax.Array  #: The same; what a critic learns, before a normalization.
    report: Report  #: Of the rewards of rows, as of `advantages`.


class LossAndMetrics(NamedTuple):
    """What PolicyLoss and ContrastiveLoss return."""

    loss: jax.Array  #: A scalar, with the gradient of logp.
    metrics: Metrics  #: What the call measured.


class ValueLossAndMetrics(NamedTuple):
    """What ValueLoss returns."""

    loss: jax.Array  #: A scalar, with the gradient of the values.
    metrics: ValueMetrics  #: What the call measured.


def _as_pytree(kind: type, member: str, *others: str) -> None:
    """Tells JAX that the array `member` is all that it changes of objects of this class."""
    def of_parts(fixed: Tuple[Any, ...], arrays: Tuple[Any]) -> Any:
        made: Any = object.__new__(kind)
        for name, value in zip((member, *others), (arrays[0], *fixed)):
            setattr(made, name, value)
        return made
    jax.tree_util.register_pytree_node(
        kind, lambda made: ((getattr(made, member),), tuple(getattr(made, o) for o in others)),
        of_parts)


_as_pytree(Metrics, "result")
_as_pytree(ValueMetrics, "result")
_as_pytree(Report, "_numbers", "rewards")


class _Shape(NamedTuple):
    """The shape of a result, and its type in NumPy."""

    shape: Tuple[int, ...]
    dtype: Any

    def in_jax(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, jax.dtypes.canonicalize_dtype(self.dtype))


def _is_varying(array: jax.Array) -> bool:
    """Whether it has a value for each device of a shard_map."""
    kind = jax.typeof(array) if hasattr(jax, "typeof") else None
    axes = getattr(kind, "manual_axis_type", None)  # in versions before, what they vary over is vma
    return bool(getattr(axes, "varying", None) or getattr(kind, "vma", None))


def _varying_as(arrays: Sequence[jax.Array], results: List[jax.Array]) -> List[jax.Array]:
    """The same results, over the axes of a shard_map over which any of the arrays varies; JAX takes
    those of a callback for equal on all devices."""
    if not any(map(_is_varying, arrays)):
        return results
    zero: Any = -sum(jnp.ravel(array)[:0].astype(np.float32).sum() for array in arrays)
    return [result + zero.astype(result.dtype) for result in results]  # -0, with which bits stay


def _called(call: Callable[..., Sequence[Any]], shapes: Callable[[], Sequence[_Shape]],
            arrays: Dict[str, Any], refused: Sequence[str] = ()) -> List[jax.Array]:
    """What a function of arrays of NumPy returns, as arrays of JAX.

    Arrays of JAX go through the callback; others, which JAX might narrow, to the function as they
    are when JAX traces it. Where JAX traces nothing, there is no callback.

    refused: the arrays by which JAX may not differentiate the results; by others they have none.
    """
    ours = {name: array for name, array in arrays.items() if isinstance(array, jax.Array)}
    others = {name: array for name, array in arrays.items() if name not in ours}
    if not any(isinstance(array, jax.core.Tracer) for array in ours.values()):
        return [jnp.asarray(result) for result in call(**others, **ours)]
    others = copy.deepcopy(others)
    results = [shape.in_jax() for shape in shapes()]

    def in_numpy(*given: Any) -> List[np.ndarray]:
        found = call(**others, **dict(zip(ours, map(np.asarray, given))))
        return [np.asarray(result, of.dtype) for result, of in zip(found, results)]
    given = [array if name in refused else jax.lax.stop_gradient(array)
             for name, array in ours.items()]
    found = jax.pure_callback(in_numpy, results, *given, vmap_method="sequential")
    return _varying_as([jax.lax.stop_gradient(array) for array in given], found)


#: The arguments that are arrays; others are Python's.
_ARRAYS = frozenset({"given", "rewards", "group_ids", "group_offsets", "tokens", "valid",
                     "baseline", "row_weights", "penalty", "rollout_ids", "row_rewards", "values",
                     "logp", "ref_logp", "mask", "offsets", "bootstrap", "token_rewards",
                     "episode_ids", "state_ids"})


def _array(function: str, name: str, array: Any) -> Any:
    """An argument with a shape and a type: of JAX where JAX traces it, or a part of a list. Strings
    are numbered."""
    if isinstance(array, (list, tuple)) and _is_traced(array):
        try:
            return jnp.asarray(array)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{function}: {name}: {error}; needed: an array of numbers") from None
    if isinstance(array, jax.Array):
        return array
    if name.endswith("_ids"):
        array = numbered(function, name, array)
    return array_of(function, name, plain(array))


def _is_traced(value: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def _python(function: str, name: str, value: Any) -> Any:
    """An argument that is Python's, as a compiled function holds it: without arrays of JAX, which
    a callback may not use, and whatever becomes of the list, or iterator, that was given."""
    value = list(value) if isinstance(value, collections.abc.Iterator) else value
    if _is_traced(value):
        raise ValueError(f"{function}: {name}: given a traced array; needed: numbers of Python, "
                         "which a compiled function holds")
    return jax.tree.map(
        lambda leaf: np.array(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else leaf, value)


def _needed(function: str, name: str, array: Any) -> Any:
    """An argument that may not be absent."""
    return _array(function, name, required(function, name, array))


def _flat(result: Any) -> List[Any]:
    """The arrays of what a call of gdpo.numpy returns."""
    return [part.numbers if isinstance(part, Report) else part
            for part in (result if isinstance(result, tuple) else (result,))]


def _in_jax(text: Optional[str]) -> Optional[str]:
    """A docstring of gdpo.numpy in the words of this module; python -OO has none."""
    return text and text.replace("gdpo.numpy.", "gdpo.jax.").replace("of arrays", "of jax.Array")


def _of_arrays(function: "Callable[_P, Any]", kind: "Type[_R]"
               ) -> "Callable[[Callable[[Dict[str, Any]], List[_Shape]]], Callable[_P, _R]]":
    """The call of gdpo.numpy for arrays of JAX, from a function that gives the shapes of its
    results for the arguments that are given.

    kind: what it returns.
    """
    title = f"gdpo::{function.__name__}"
    parameters = inspect.signature(function).parameters
    places = [name for name, parameter in parameters.items()
              if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    needed = [name for name, parameter in parameters.items()
              if parameter.default is inspect.Parameter.empty
              and parameter.kind is not inspect.Parameter.VAR_KEYWORD]

    def change(shapes: Callable[[Dict[str, Any]], List[_Shape]]) -> "Callable[_P, _R]":
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            if len(given) > len(places) or named.keys() & set(places[:len(given)]):
                return function(*given, **named)  # whose TypeError says it
            named = {**dict(zip(places, given)), **named}
            if any(named.get(name) is None for name in needed):
                return cast(Any, function)(**named)  # the same, or its ValueError
            if "rewards" in places:  # of rows
                named["rewards"] = with_nan(named["rewards"])
            arrays = {name: _array(title, name, value) for name, value in named.items()
                      if name in _ARRAYS and value is not None}
            others: Dict[str, Any] = {n: _python(title, n, named[n])
                                      for n in named.keys() - arrays.keys()}
            parts = _called(lambda **own: _flat(cast(Any, function)(**others, **own)),
                            lambda: shapes({**others, **arrays}), arrays)
            if kind is jax.Array:
                return parts[0]
            if not others.get("report"):
                return parts[0] if len(parts) == 1 else kind(*parts)
            report = Report(parts.pop(), reward_count(arrays["rewards"]))
            with_report: Any = (AdvantagesAndReport if len(parts) == 1 else
                                AdvantagesReturnsAndReport)
            return with_report(*parts, report)

        call.__module__, call.__doc__ = shapes.__module__, _in_jax(call.__doc__)
        return call
    return change


def _of_rewards(given: Dict[str, Any]) -> _Shape:
    """One number for each row of the rewards."""
    rewards = given["rewards"]
    narrow = rewards.dtype.name in ("float32", "bfloat16", "float16")
    return _Shape(rewards.shape[:1], np.float32 if narrow else np.float64)


def _of_report(given: Dict[str, Any]) -> List[_Shape]:
    """The numbers of the report, where it is wanted."""
    if not given.get("report"):
        return []
    return [_Shape((len(names("report", reward_count(given["rewards"]))),), np.float64)]


def _of_tokens(function: str, given: Dict[str, Any], rewards: str, otherwise: Any
               ) -> List[_Shape]:
    """Advantages and returns of tokens; `otherwise` is their type without an array that has one."""
    arrays = [given[name] for name in (rewards, "values", "logp", "ref_logp") if name in given]
    if not arrays and "mask" not in given:
        raise ValueError(f"{function}: batch: given no array of tokens; needed: one, at least the "
                         "mask")
    double = any(a.dtype == np.float64 for a in arrays) if arrays else otherwise == np.float64
    return [_Shape((*arrays, given.get("mask"))[0].shape, np.float64 if double else np.float32)] * 2


@_of_arrays(_numpy.advantages, cast(Type[Any], AdvantagesAndReport))
def advantages(given: Dict[str, Any]) -> List[_Shape]:
    return [_of_rewards(given), *_of_report(given)]


@_of_arrays(_numpy.token_advantages, AdvantagesAndReturns)
def token_advantages(given: Dict[str, Any]) -> List[_Shape]:
    return _of_tokens("gdpo::token_advantages", given, "rewards",
                      getattr(given.get("row_rewards"), "dtype", None))


@_of_arrays(_numpy.outcome_advantages, cast(Type[Any], AdvantagesAndReturns))
def outcome_advantages(given: Dict[str, Any]) -> List[_Shape]:
    return [*_of_tokens("gdpo::outcome_advantages", given, "token_rewards",
                         _of_rewards(given).dtype), *_of_report(given)]


@_of_arrays(_numpy.step_advantages, jax.Array)
def step_advantages(given: Dict[str, Any]) -> List[_Shape]:
    return [_of_rewards(given)]


@_of_arrays(_numpy.count, jax.Array)
def count(given: Dict[str, Any]) -> List[_Shape]:
    return [_Shape((4,), np.float64)]


@_of_arrays(_numpy.count_group_tokens, jax.Array)
def count_group_tokens(given: Dict[str, Any]) -> List[_Shape]:
    if "offsets" in given:
        return [_Shape((max(math.prod(given["offsets"].shape) - 1, 0),), np.float64)]
    check_counted("gdpo::count_group_tokens", *map(given.get, ("mask", "logp", "offsets")))
    tokens = given["mask"] if "mask" in given else given["logp"]
    return [_Shape((math.prod(tokens.shape[:-1]),), np.float64)]


@_of_arrays(_numpy.whiten, jax.Array)
def whiten(given: Dict[str, Any]) -> List[_Shape]:
    values = given["values"]
    double = values.dtype == np.float64 or values.dtype.kind in "biu"
    return [_Shape(values.shape, np.float64 if double else np.float32)]


class _Call:
    """A call of a loss: what of it JAX does not see.

    by: the arguments that it is differentiated by.
    """

    def __init__(self, loss: Any, by: Tuple[str, ...], fixed: Dict[str, Any]) -> None:
        self.loss, self.by, self.fixed = loss, by, fixed

    def __call__(self, gradient: bool, by: Dict[str, Any], others: Dict[str, Any]
                 ) -> List[jax.Array]:
        """Value, numbers of the metrics, and with `gradient` those by each of `by`."""
        def call(**arrays: Any) -> List[Any]:
            value, *gradients, metrics = self.loss._call(gradient, arrays.pop("counts"), arrays)
            return [value, metrics.result, *(gradients[:len(self.by)] if gradient else ())]

        def shapes() -> List[_Shape]:
            double = by[self.by[0]].dtype == np.float64
            dtype = np.float64 if double else np.float32
            return [_Shape((), dtype), _Shape((len(self.loss._metrics.names()),), np.float64),
                    *(_Shape(by[name].shape, dtype) for name in self.by if gradient)]
        # A derivative of the gradient would be 0: a callback refuses it, with JAX's words.
        return _called(call, shapes, {**self.fixed, **by, **others}, self.by)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _evaluated(call: _Call, by: Dict[str, Any], others: Dict[str, Any]) -> Tuple[Any, Any]:
    """Loss and numbers of its metrics."""
    value, result = call(False, by, others)
    return value, result


def _forward(call: _Call, by: Dict[str, Any], others: Dict[str, Any]) -> Tuple[Any, Any]:
    value, result, *gradients = call(True, by, others)
    types = [jnp.empty(0, by[name].dtype) for name in call.by]
    return (value, result), list(zip(gradients, types))


def _backward(call: _Call, kept: List[Tuple[Any, Any]], of_results: Tuple[Any, Any]
              ) -> Tuple[Any, ...]:
    """The gradients times that of the loss, rounded once."""
    return {name: (of_results[0] * gradient).astype(like.dtype)
            for name, (gradient, like) in zip(call.by, kept)}, None


_evaluated.defvjp(_forward, _backward)


_OF_TOKENS = (*TOKEN_ARRAYS, "values", "old_values", "returns")


def _of_loss(function: str, name: str, value: Any) -> Any:
    """An argument of a loss. What has one number for each token is float32 for float64 where JAX
    has none, as log-probs are then."""
    if name == "group_size":
        return value
    array = _array(function, name, value)
    if isinstance(array, jax.Array) or name not in _OF_TOKENS or array.dtype != np.float64:
        return array
    return array.astype(jax.dtypes.canonicalize_dtype(np.float64), copy=False)


class _Differentiable:
    """A loss of gdpo.numpy for arrays of JAX."""

    _by: ClassVar[str] = "logp"  # the array that it is differentiated by
    _metrics: ClassVar[Type[Any]] = Metrics
    _returns: ClassVar[Type[Any]] = LossAndMetrics

    def _result(self, counts: Any, arrays: Dict[str, Any]) -> Any:
        title = f"gdpo::{type(self).__name__}"
        given = {name: _of_loss(title, name, array) for name, array in arrays.items()
                 if array is not None}
        given["counts"] = _needed(title, "counts", counts)
        loss: Any = self
        by = (self._by, "entropies") if loss._has_bonus(arrays.get("entropies")) else (self._by,)
        for name in by:
            given[name] = jnp.asarray(_needed(title, name, given.get(name)))
        others = {name: array for name, array in given.items()
                  if name not in by and isinstance(array, jax.Array)}
        fixed = {name: given.get(name) for name in (*arrays, "counts") if name not in others}
        value, result = _evaluated(_Call(self, by, fixed), {name: given[name] for name in by},
                                   others)
        return self._returns(value, self._metrics(result))


class PolicyLoss(_Differentiable, _numpy.PolicyLoss):
    """A policy loss over tokens, differentiable by log-probs and entropies: `gdpo.PolicyLoss`.

        dapo = gdpo.jax.PolicyLoss("dapo", low=0.2, high=0.28)
        loss, metrics = dapo(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                             counts=gdpo.jax.count(mask=mask))

    name, level, settings: as for gdpo.numpy.PolicyLoss, and so are the arguments of the call.
    """

    if TYPE_CHECKING:  # the result is another one
        @_typed_as(_numpy.PolicyLoss.__call__, LossAndMetrics)
        def __call__(  # type: ignore[override]
            self, *arguments: Any, **keywords: Any) -> Any: ...


class ContrastiveLoss(_Differentiable, _numpy.ContrastiveLoss):
    """REAL, differentiable by log-probs: `gdpo.ContrastiveLoss`.

        real = gdpo.jax.ContrastiveLoss("real", tau=0.5, beta=0.0)
        loss, metrics = real(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                             group_size=8, counts=gdpo.jax.count(mask=mask, group_size=8))

    name, settings: as for gdpo.numpy.ContrastiveLoss, and so are the arguments of the call.
    """

    if TYPE_CHECKING:  # the result is another one
        @_typed_as(_numpy.ContrastiveLoss.__call__, LossAndMetrics)
        def __call__(  # type: ignore[override]
            self, *arguments: Any, **keywords: Any) -> Any: ...


class ValueLoss(_Differentiable, _numpy.ValueLoss):
    """The loss of a critic, differentiable by its values: `gdpo.ValueLoss`.

        value_loss = gdpo.jax.ValueLoss("verl::value_loss", clip=0.2)
        loss, metrics = value_loss(values + 0.1, old_values=values, returns=returns, mask=mask,
                                   counts=gdpo.jax.count(mask=mask))

    name, settings: as for gdpo.numpy.ValueLoss, and so are the arguments of the call.
    """

    _by: ClassVar[str] = "values"
    _metrics: ClassVar[Type[Any]] = ValueMetrics
    _returns: ClassVar[Type[Any]] = ValueLossAndMetrics

    if TYPE_CHECKING:  # the result is another one
        @_typed_as(_numpy.ValueLoss.__call__, ValueLossAndMetrics)
        def __call__(  # type: ignore[override]
            self, *arguments: Any, **keywords: Any) -> Any: ...
