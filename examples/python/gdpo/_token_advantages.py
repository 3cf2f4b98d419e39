"""From rewards to advantages of tokens and of steps: the estimators behind those of rows."""
from typing import (TYPE_CHECKING, Any, Dict, Literal, NamedTuple, Optional, Sequence, Tuple,
                    Union, cast, overload)

import torch

from ._advantages import _like, _tensor, batch_of, check_keys, grouping
from ._library import check_tensors
from ._load import ops
from ._measured import Report
from ._names import in_python, our_errors
from ._policy_loss import dense_arrays, on_cpu
from ._ranks import Ranks, errors_of_ranks, over
from ._rows import check_step_ids, flat, of_rows, reward_count, weights_of
from ._settings import line, takes_settings

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Unpack

    from ._advantages import _Array, _Numpy
    from ._keywords import (OutcomeAdvantagesSettings, StepAdvantagesSettings,
                            TokenAdvantagesSettings, TokenBaselineSettings)

_Arrays = Dict[str, Optional[torch.Tensor]]


class AdvantagesAndReturns(NamedTuple):
    """What `token_advantages` and `outcome_advantages` return.

        advantages, returns = gdpo.token_advantages(row_rewards=scores, values=values, mask=mask)
    """

    advantages: torch.Tensor  #: In the shape of the tokens; 0 where the mask is 0.
    returns: torch.Tensor  #: The same; what a critic learns, before a normalization.


class AdvantagesReturnsAndReport(NamedTuple):
    """What `outcome_advantages` returns with report=True.

        result = gdpo.outcome_advantages(rewards, group_size=8, mask=mask, report=True)
        print(result.advantages.shape, result.report["groups"])
    """

    advantages: torch.Tensor  #: In the shape of the tokens; 0 where the mask is 0.
    returns: torch.Tensor  #: The same; what a critic learns, before a normalization.
    report: Report  #: Of the rewards of rows, as of `advantages`.


def _dtype(arrays: _Arrays, rewards: str, otherwise: Optional[torch.Tensor]) -> torch.dtype:
    """The type of advantages of tokens: float64 where one of their arrays is, or without one where
    `otherwise` is; else float32."""
    given = [arrays[name] for name in (rewards, "values", "logp", "ref_logp")
             if arrays.get(name) is not None] or [otherwise]
    double = any(array is not None and array.dtype == torch.float64 for array in given)
    return torch.float64 if double else torch.float32


def _of_tokens(function: str, arrays: _Arrays, columns: Dict[str, Any]) -> Tuple[
        _Arrays, torch.device]:
    """Arrays of tokens and columns of rows as the operators take them, on the CPU, and where they
    were."""
    dense = dense_arrays(function, {n: None if a is None else a.detach() if isinstance(
        a, torch.Tensor) else a for n, a in arrays.items()})
    first = next((a for a in dense.values() if a is not None), None)
    device = torch.device("cpu") if first is None else first.device
    given = {name: _tensor(name, array, device, function) for name, array in columns.items()}
    check_tensors(function, {**dense, **given})
    return {name: None if a is None else a.cpu() for name, a in {**dense, **given}.items()}, device


@takes_settings("token_advantages")
def token_advantages(*, estimator: str = "verl::gae", rewards: Optional[torch.Tensor] = None,
                     row_rewards: Any = None, values: Optional[torch.Tensor] = None,
                     logp: Optional[torch.Tensor] = None, ref_logp: Optional[torch.Tensor] = None,
                     mask: Optional[torch.Tensor] = None, offsets: Optional[torch.Tensor] = None,
                     bootstrap: Any = None, ranks: Optional[Ranks] = None,
                     **settings: "Unpack[TokenAdvantagesSettings]") -> AdvantagesAndReturns:
    """Advantages and returns of tokens from their rewards: the critic's side of PPO.

        advantages, returns = gdpo.token_advantages(
            estimator="verl::gae", row_rewards=scores, values=values, mask=mask, gamma=0.99)

    For each row: the penalty is taken off the reward of each token, row_rewards, clamped, are added
    at the last step, the scan of the estimator runs from the last step to the first, and the
    advantages may be normalized over the valid tokens of the batch.

    estimator: one of `gdpo.token_estimators()`: GAE, rewards to go, and distillation from a
      teacher. It brings its settings; what you give replaces one of them, as a keyword or behind
      the name, as in "verl::gae gamma=0.99 lambda=0.95". Python's word `lambda` is the keyword
      `returns_lambda`.
    rewards: of the tokens. row_rewards: (rows) one each, at the last step. One of the two, or a
      penalty.
    values: of the critic before each token, which GAE reads.
    logp: log-probs under the policy that wrote the tokens, in nats, and ref_logp: those under the
      reference, or under a teacher; read where penalty_coef is not 0.
    mask: not 0 at the tokens of the policy. Masked places may hold NaN where `steps` is "valid" or
      "turns", as in "verl::gae"; the other estimators read them, as their trainers do.
    offsets: (rows + 1), for packed tokens. bootstrap: (rows) the value behind the last step of rows
      that were cut off.
    Arrays of tokens are padded (rows, tokens) or (prompts, completions, tokens), packed, or nested
    of jagged layout, whose results are packed. None gets a gradient. It is computed on the CPU,
    which waits for tensors of a device.
    ranks: a `gdpo.Ranks`: a normalization is then over the tokens of all ranks, whose moments are
      merged; each has its own rows, also none. Without it, it is over the tokens of the call.
    settings: `gdpo.estimator_settings(name, "token_advantages")` lists those of a name. What each
      means: include/gdpo/value/README.md.
      {settings}

    Returns both in the shape of the tokens, on their device: float64 where one of their arrays is,
    else float32. Errors: ValueError for unknown names, missing arrays and shapes that do not fit.
    """
    function = "gdpo::token_advantages"
    over(function, ranks)
    own: Optional[BaseException] = None
    text, arrays, device = "", cast(_Arrays, {}), torch.device("cpu")
    try:
        text = line(function, (estimator,), settings)
        arrays, device = _of_tokens(
            function, {"rewards": rewards, "values": values, "logp": logp, "ref_logp": ref_logp,
                       "mask": mask, "offsets": offsets},
            {"row_rewards": row_rewards, "bootstrap": bootstrap})
    except Exception as error:
        if ranks is None:
            raise
        own = error
    if ranks is not None:
        with torch.no_grad(), errors_of_ranks(own, in_python(function)):
            outs = ops.token_advantages_of_ranks(*ranks._arguments(own), text, **arrays)
        dtype = _dtype(arrays, "rewards", arrays.get("row_rewards"))
        return AdvantagesAndReturns(*(out.to(device, dtype) for out in outs))
    with torch.no_grad(), our_errors(in_python(function)):
        return AdvantagesAndReturns(*(
            out.to(device) for out in ops.token_advantages(text, **arrays)))


if TYPE_CHECKING:
    class _OfOutcomes(OutcomeAdvantagesSettings, total=False):
        estimator: str
        group_size: int
        group_ids: Any
        group_offsets: Any
        weights: Optional[Sequence[float]]
        gates: Sequence[Tuple[int, int, float]]
        tokens: Any
        valid: Any
        baseline: Any
        row_weights: Any
        penalty: Any
        token_rewards: Optional[torch.Tensor]
        values: Optional[torch.Tensor]
        logp: Optional[torch.Tensor]
        ref_logp: Optional[torch.Tensor]
        mask: Optional[torch.Tensor]
        offsets: Optional[torch.Tensor]
        bootstrap: Any
        ranks: Optional[Ranks]
        keys: Any

if TYPE_CHECKING:  # mypy wants overloads alone
    @overload
    def outcome_advantages(rewards: Any, *, report: Literal[False] = ...,
                           **arguments: "Unpack[_OfOutcomes]") -> AdvantagesAndReturns: ...

    @overload
    def outcome_advantages(rewards: Any, *, report: Literal[True],
                           **arguments: "Unpack[_OfOutcomes]") -> AdvantagesReturnsAndReport: ...

    @overload
    def outcome_advantages(rewards: Any, *, report: bool, **arguments: "Unpack[_OfOutcomes]"
                           ) -> Union[AdvantagesAndReturns, AdvantagesReturnsAndReport]: ...


@takes_settings("outcome_advantages")
def outcome_advantages(rewards: Any, *, estimator: str = "openrlhf::rloo", group_size: int = 0,
                       group_ids: Any = None, group_offsets: Any = None,
                       weights: Optional[Sequence[float]] = None,
                       gates: Sequence[Tuple[int, int, float]] = (), tokens: Any = None,
                       valid: Any = None, baseline: Any = None, row_weights: Any = None,
                       penalty: Any = None, token_rewards: Optional[torch.Tensor] = None,
                       values: Optional[torch.Tensor] = None, logp: Optional[torch.Tensor] = None,
                       ref_logp: Optional[torch.Tensor] = None,
                       mask: Optional[torch.Tensor] = None,
                       offsets: Optional[torch.Tensor] = None, bootstrap: Any = None,
                       report: bool = False, ranks: Optional[Ranks] = None, keys: Any = None,
                       **settings: "Unpack[OutcomeAdvantagesSettings]") -> Any:
    """Advantages and returns of tokens from the rewards of rows: `advantages`, then
    `token_advantages` behind it, as one estimator.

        advantages, returns = gdpo.outcome_advantages(
            rewards, estimator="openrlhf::rloo", group_size=8, mask=mask)

    The advantage of a row becomes the reward of its last step, or of each of its tokens
    (`placement`); then penalty, discount and normalization over tokens are those of
    `token_advantages`. The REINFORCE family of OpenRLHF, NeMo-RL, slime, Trinity-RFT and AReaL.

    rewards: (rows) or (rows, rewards), and group_size, group_ids or group_offsets, weights, gates,
      tokens, valid, baseline, row_weights and penalty: as in `advantages`.
    estimator: one of `gdpo.outcome_estimators()`. It brings its settings; what you give replaces
      one of them: those of the rows begin with `rows_`, those of the tokens with `tokens_`.
    token_rewards: rewards of tokens, which are added; only with placement="last_step".
    values, logp, ref_logp, mask, offsets, bootstrap: as in `token_advantages`. Row i of the tokens
      is row i of the rewards. One array of tokens is needed, at least the mask.
    It is computed on the CPU, which waits for tensors of a device. Give the rows of whole groups.
    ranks: a `gdpo.Ranks`; the other arguments are then those of this rank's rows, also none. Rows
      are gathered, so that a prompt may have some on any rank, and tokens stay where they are: of a
      normalization over them the moments are merged. keys: as in `advantages`.
    settings: `gdpo.estimator_settings(name, "outcome_advantages")` lists those of a name.
      {settings}

    Returns advantages and returns in the shape of the tokens, on their device; with report=True
    also a Report of the rewards. They are float64 where one of the arrays of tokens is, and without
    one where `advantages` has float64, else float32. Errors: ValueError for unknown names, missing
    arrays and shapes that do not fit.
    """
    function = "gdpo::outcome_advantages"
    over(function, ranks)
    said = in_python(function, batch_rewards="token_rewards")
    own: Optional[BaseException] = None
    text, arrays, device = "", cast(_Arrays, {}), torch.device("cpu")
    rows, groups, columns = torch.empty(0), cast(Any, (0, None, None)), cast(Any, [])
    given_weights = given_gates = None
    try:
        text = line(function, (estimator,), settings)
        rows, groups, columns = batch_of(
            function, rewards, (group_size, group_ids, group_offsets),
            everywhere=ranks is not None, tokens=tokens, valid=valid, baseline=baseline,
            row_weights=row_weights, penalty=penalty, keys=keys,
            by_reward=bool(weights is not None or gates))
        given_weights, given_gates = weights_of(function, weights), flat(function, gates)
        arrays, device = _of_tokens(
            function, {"token_rewards": token_rewards, "values": values, "logp": logp,
                       "ref_logp": ref_logp, "mask": mask, "offsets": offsets},
            {"bootstrap": bootstrap})
        check_keys(function, keys, ranks)
    except Exception as error:
        if ranks is None:
            raise
        own = error
    *columns, row_keys = columns or [None] * 6
    called = (rows.cpu(), text, *on_cpu(groups), given_weights, given_gates, *on_cpu(columns))
    with_shape = of_rows(rows)
    with torch.no_grad(), errors_of_ranks(own, lambda m: with_shape(said(m))):
        if ranks is None:
            *both, numbers = ops.outcome_advantages(*called, **arrays, report=report)
        else:
            ranks._check_ids(function, group_ids, own)
            *both, numbers = ops.outcome_advantages_of_ranks(
                *ranks._arguments(own), [text, str(given_weights), str(given_gates)],
                *on_cpu([row_keys]), *called, **arrays)
            dtype = _dtype(arrays, "token_rewards", rows if rows.dtype in (
                torch.float32, torch.bfloat16, torch.float16) else rows.double())
            both = [out.to(dtype) for out in both]
    per_token, returns = (out.to(device) for out in both)
    if not report:
        return AdvantagesAndReturns(per_token, returns)
    return AdvantagesReturnsAndReport(
        per_token, returns, Report(numbers, reward_count(rows)))


if TYPE_CHECKING:
    class _OfSteps(StepAdvantagesSettings, total=False):
        estimator: str
        group_size: int
        group_ids: Any
        group_offsets: Any
        weights: Optional[Sequence[float]]
        gates: Sequence[Tuple[int, int, float]]
        tokens: Any
        valid: Any
        baseline: Any
        row_weights: Any
        penalty: Any

if TYPE_CHECKING:  # mypy wants overloads alone
    @overload
    def step_advantages(rewards: Union[torch.Tensor, Sequence[Any]], *, episode_ids: Any,
                        state_ids: Any, **arguments: "Unpack[_OfSteps]") -> torch.Tensor: ...

    @overload
    def step_advantages(rewards: "numpy.ndarray[Any, Any]", *, episode_ids: Any, state_ids: Any,
                        **arguments: "Unpack[_OfSteps]") -> _Numpy: ...

    @overload
    def step_advantages(rewards: _Array, *, episode_ids: Any, state_ids: Any,
                        **arguments: "Unpack[_OfSteps]") -> _Array: ...


@takes_settings("step_advantages")
def step_advantages(rewards: Any, *, episode_ids: Any, state_ids: Any, estimator: str = "gigpo",
                    group_size: int = 0, group_ids: Any = None, group_offsets: Any = None,
                    weights: Optional[Sequence[float]] = None,
                    gates: Sequence[Tuple[int, int, float]] = (), tokens: Any = None,
                    valid: Any = None, baseline: Any = None, row_weights: Any = None,
                    penalty: Any = None,
                    **settings: "Unpack[StepAdvantagesSettings]") -> Any:
    """Advantages of the steps of agents by GiGPO (arXiv 2505.10978): one number for each step.

        advantages = gdpo.step_advantages(rewards, estimator="gigpo", group_ids=tasks,
                                          episode_ids=episodes, state_ids=states, omega=0.5)

    A step's advantage is that of its episode, whose reward is the sum of its steps, among the
    episodes of the task, plus omega times that of the step's discounted return among the steps that
    were taken in the same state.

    rewards: (steps) or (steps, rewards); a NaN, or None in a list, adds nothing. The rows of an
      episode are its steps in their order.
    episode_ids, state_ids: (steps) integers or strings; an episode is of one task. States are
      compared within a task, or with pool_states=True over all of them.
    group_size, group_ids or group_offsets: the tasks, and the other arrays: as in `advantages`.
    estimator: one of `gdpo.step_estimators()`: "gigpo", "gigpo_no_std", which does not divide by
      the std, or "trinity::gigpo". What you give replaces one of its settings; those of the two
      estimators begin with `episode_` and `step_`, and weights and gates are of both.
    It is computed on the CPU, which waits for tensors of a device.
    settings: `gdpo.estimator_settings(name, "step_advantages")` lists those of a name.
      {settings}

    Returns the advantages (steps), as `advantages` does. Errors: ValueError for unknown names and
    for types, shapes and settings that do not fit.
    """
    function = "gdpo::step_advantages"
    text = line(function, (estimator,), settings)
    check_step_ids(function, episode_ids, state_ids)
    values, groups, columns = batch_of(
        function, rewards, (group_size, group_ids, group_offsets), episode_ids=episode_ids,
        state_ids=state_ids, tokens=tokens, valid=valid, baseline=baseline,
        row_weights=row_weights, penalty=penalty, by_reward=bool(weights is not None or gates))
    episodes, states, *columns = on_cpu(columns)
    said = in_python(function, episodes="episode_ids", states="state_ids")
    with_shape = of_rows(values)
    with torch.no_grad(), our_errors(lambda message: with_shape(said(message))):
        result = ops.step_advantages(values.cpu(), text, episodes, states, *on_cpu(groups),
                                     weights_of(function, weights), flat(function, gates),
                                     *columns)
    return _like(rewards, result.to(values.device))


@takes_settings("token_baseline")
def optimal_token_baseline(returns: torch.Tensor, *, logp: torch.Tensor,
                           sum_pi_squared: torch.Tensor,
                           name: str = "verl::optimal_token_baseline", group_size: int = 0,
                           group_ids: Any = None, group_offsets: Any = None,
                           weights: Optional[torch.Tensor] = None,
                           mask: Optional[torch.Tensor] = None,
                           offsets: Optional[torch.Tensor] = None,
                           **settings: "Unpack[TokenBaselineSettings]") -> torch.Tensor:
    """Advantages of tokens: returns minus the baseline of the least variance, place by place.

        full = gdpo.token_logprobs(logits, tokens, temperature=1.0)
        half = gdpo.token_logprobs(logits, tokens, temperature=0.5)
        sum_pi_squared = (half.logsumexp - 2 * full.logsumexp).exp()
        advantages = gdpo.optimal_token_baseline(
            returns, logp=full.logp, sum_pi_squared=sum_pi_squared, group_size=8, mask=mask)

    For each place of a group, B is the mean of the returns of its rows, weighed by an estimate of
    the squared norm of the gradient up to there: the sum of (1 - 2 pi + sum pi^2) weights^2 over
    the tokens of the row so far, pi being e^logp. The formula is in
    include/gdpo/value/token_baseline.hpp.

    returns: of the tokens, such as those of `token_advantages`.
    logp: log-probs under the policy that wrote the tokens, in nats.
    sum_pi_squared: at each token the sum of the squared probabilities of the vocabulary, from 0 to
      1; the example computes it, with the sampler's temperature T and T / 2.
    name: one of `gdpo.token_baselines()`: "verl::optimal_token_baseline", or
      "verl::multi_turn_optimal_token_baseline" for rows with masked places between turns.
    group_size, group_ids, group_offsets: which rows belong together, as in `advantages`.
    weights: ratios of the policy that is trained to the sampler; without them 1.
    mask, offsets: as in `token_advantages`; masked places may hold NaN.
    It is computed on the CPU, which waits for tensors of a device. A group may not be split over
    calls or ranks; nothing else is shared.
    settings: what replaces those of the name.
      {settings}

    Returns the advantages in the shape of the returns, 0 where the mask is 0; float64 where one of
    the arrays is, else float32. Errors: ValueError for unknown names and for shapes and settings
    that do not fit.
    """
    function = "gdpo::optimal_token_baseline"
    text = line(function, (name,), settings)
    for argument, array in (("returns", returns), ("logp", logp),
                            ("sum_pi_squared", sum_pi_squared)):
        if array is None:
            raise ValueError(f"{function}: {argument}: given None; needed: a number for each token")
    arrays, device = _of_tokens(
        function, {"returns": returns, "logp": logp, "sum_pi_squared": sum_pi_squared,
                   "weights": weights, "mask": mask, "offsets": offsets}, {})
    groups = grouping(function, device, group_size, group_ids, group_offsets)
    with torch.no_grad(), our_errors(in_python(function)):
        return ops.optimal_token_baseline(
            *(arrays.pop(argument) for argument in ("returns", "logp", "sum_pi_squared")), text,
            *on_cpu(groups), **arrays).to(device)
