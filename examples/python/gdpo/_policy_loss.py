"""The policy loss as a module, and the counts that it divides by."""
import copy
import inspect
from typing import (TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple,
                    TypeVar)

import torch

from ._advantages import grouping
from ._library import (FromLogitsInPlace, WithGradient, check_tensors, check_type,
                       refuse_hidden_gradient, refuse_transforms, unwrapped)
from ._load import ops
from ._loss_module import LossModule
from ._measured import Metrics
from ._names import (ARRAYS, did_you_mean, in_words_of, our_errors, raise_ours,
                     with_group_offsets)
from ._rows import check_counted, check_floating, check_given, check_mask
from ._settings import has_entropy as _has_entropy
from ._settings import check_kl, line, takes_settings, word

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import ArraysBesideLogits, LossSettings

    _F = TypeVar("_F", bound=Callable[..., Any])

    def typed_as(function: _F) -> Callable[[Callable[..., Any]], _F]:
        """A decorator that gives a method the parameters and the result of another one."""


has_entropy = torch.compiler.assume_constant_result(_has_entropy)


class LossAndMetrics(NamedTuple):
    """What PolicyLoss and ContrastiveLoss return."""

    loss: torch.Tensor  #: A scalar, with the gradient of logp.
    metrics: Metrics  #: What the call measured.


class LossFromLogits(NamedTuple):
    """What PolicyLoss.from_logits returns."""

    loss: torch.Tensor  #: A scalar, float32, with the gradient of the logits.
    metrics: Metrics  #: What the call measured.
    logp: torch.Tensor  #: Log-probs of the targets in nats, float32, without a gradient.
    entropies: torch.Tensor  #: Entropies in nats, float32, without a gradient.


def check_gradient(function: str, wanted: torch.Tensor, name: str,
                   arrays: Dict[str, Optional[torch.Tensor]]) -> None:
    """Raises ValueError where other log-probs or values need a gradient and these do not."""
    if wanted.requires_grad or not torch.is_grad_enabled():
        return
    for other, array in arrays.items():
        if (other.endswith(("_logp", "_values", "returns")) and array is not None
                and array.requires_grad):
            do = "does" if name == "logp" else "do"
            raise ValueError(f"{function}: {other}: given a tensor that requires a gradient, with "
                             f"{name} that {do} not; needed: the other way round, because a loss "
                             f"is differentiated by {name} alone (are the two swapped?)")


def dense_arrays(function: str, arrays: Dict[str, Optional[torch.Tensor]]
                 ) -> Dict[str, Optional[torch.Tensor]]:
    """The same dict, checked; nested tensors in it become packed ones with offsets."""
    nested = None
    array: Any  # nested ones have methods that torch.Tensor lacks
    for name, array in list(arrays.items()):
        if array is None:
            continue
        check_type(function, name, array)
        if not array.is_nested:
            continue
        if array.layout is not torch.jagged:
            raise ValueError(f"{function}: {name}: given a nested tensor of layout {array.layout}; "
                             "needed: one of layout torch.jagged")
        if array.lengths() is not None:  # there are holes between the rows
            array = array.contiguous()
        offsets = arrays.get("offsets")
        if offsets is not None and offsets is not array.offsets() and not torch.equal(
                offsets, array.offsets()):
            other = nested or "offsets"
            raise ValueError(f"{function}: {name}: given a nested tensor of other rows than "
                             f"{other}; needed: the same offsets")
        arrays[name], arrays["offsets"] = array.values(), array.offsets()
        nested = nested or name
    check_tensors(function, arrays)
    mask = arrays.get("mask")
    if (mask is not None and mask.is_floating_point() and not torch.compiler.is_compiling()
            and mask.device.type == "cpu"):
        check_mask(function, bool(unwrapped(mask).isfinite().all()))
    return arrays


def batch_arrays(function: str, arrays: Dict[str, Optional[torch.Tensor]]) -> List[Any]:
    """The arrays in the operators' order; nested tensors become packed ones with offsets."""
    dense = dense_arrays(function, arrays)
    return [dense.get(name) for name in ARRAYS]


def on_cpu(arguments: Sequence[Any]) -> List[Any]:
    """Arguments of an operator without kernels for devices: tensors as they are on the CPU."""
    return [a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments]


def count(*, given: float = 0.0, mask: Optional[torch.Tensor] = None,
          logp: Optional[torch.Tensor] = None, offsets: Optional[torch.Tensor] = None,
          group_size: int = 0, group_ids: Any = None, group_offsets: Any = None) -> torch.Tensor:
    """The counts that a loss is divided by: (4) float64 of tokens, rows, non-empty rows, `given`.

        counts = gdpo.count(mask=mask[:16]) + gdpo.count(mask=mask[16:])    # two micro-batches

    Count every batch of the optimizer step before its first loss, add the counts, over ranks too
    (`torch.distributed.all_reduce(counts)`), and give the sum to every call of the loss.

    mask: (rows, tokens) of any type, not 0 at the tokens of the loss; or packed (tokens) with
      offsets. Without a mask all tokens of `logp`, or of `offsets`, count.
    logp: the log-probs, for their shape; not needed beside a mask.
    offsets: (rows + 1) int32 or int64, where each packed row begins (cu_seqlens).
    given: this batch's share of a count of your own, which "trl::dapo" and its kind divide by.
      Where you know the count of the whole step (num_items_in_batch), set it on the sum instead:
      counts[3] = num_items_in_batch.
    group_size, group_ids or group_offsets: the groups, as `advantages` takes them; their number is
      then the share of `given`, which a `ContrastiveLoss` and a mean over groups divide by. The
      CPU counts them.

    Errors: ValueError for shapes that do not fit, and on the CPU for labels (-100) as a mask.
    """
    arrays = _counted_arrays("gdpo::count", mask, logp, offsets)
    if group_size or group_ids is not None or group_offsets is not None:
        check_given(given)
        return _of_groups("gdpo::count", ops.count_groups, arrays, group_size, group_ids,
                          group_offsets)
    with torch.no_grad(), our_errors():
        counts = ops.count(*arrays)
    if given:
        counts[3] = given
    return counts


def count_group_tokens(*, mask: Optional[torch.Tensor] = None, logp: Optional[torch.Tensor] = None,
                       offsets: Optional[torch.Tensor] = None, group_size: int = 0,
                       group_ids: Any = None, group_offsets: Any = None) -> torch.Tensor:
    """The valid tokens of the group of each row: (rows) float64, which a mean over groups needs.

        policy_loss = gdpo.PolicyLoss("dapo", aggregate_mode="group-mean-token-mean", over="given")
        loss, metrics = policy_loss(
            logp, old_logp=old_logp, mask=mask, advantages=advantages,
            group_tokens=gdpo.count_group_tokens(mask=mask, group_size=8),
            counts=gdpo.count(mask=mask, group_size=8))

    A mean over groups is a loss with aggregate.mode="group-mean-token-mean" and over="given": the
    mean over prompts (SkyRL's prompt_mean), or over rollouts that were split into rows (slime's
    rollout_ids), of their means over tokens. Give it what this returns as `group_tokens`, and
    counts from `count(..., group_size=...)`. A group whose rows are in several micro-batches or
    ranks has the sum of what this returns for it there, and counts once.

    mask, logp, offsets: as for `count`. group_size, group_ids or group_offsets: the groups, as
      `advantages` takes them. The CPU counts them.

    Errors: ValueError for shapes and groups that do not fit.
    """
    function = "gdpo::count_group_tokens"
    return _of_groups(function, ops.count_group_tokens,
                      _counted_arrays(function, mask, logp, offsets), group_size, group_ids,
                      group_offsets)


def _counted_arrays(function: str, mask: Optional[torch.Tensor], logp: Optional[torch.Tensor],
                    offsets: Optional[torch.Tensor]) -> List[Any]:
    """The arrays of a batch whose tokens are counted."""
    check_counted(function, mask, logp, offsets)
    return batch_arrays(function, {"mask": mask, "logp": logp, "offsets": offsets})


def _of_groups(function: str, count_on_cpu: Any, arrays: List[Any], group_size: int,
               group_ids: Any, group_offsets: Any) -> torch.Tensor:
    """What an operator counts on the CPU of a batch and its groups, on the batch's device."""
    device = next(array.device for array in arrays if array is not None)
    groups = grouping(function, device, group_size, group_ids, group_offsets)
    with torch.no_grad(), our_errors(with_group_offsets):
        return count_on_cpu(*on_cpu(arrays), *on_cpu(groups)).to(device)


@takes_settings("loss")
class PolicyLoss(LossModule):
    """A policy loss over tokens, with its analytic gradient and its metrics in one pass.

        policy_loss = gdpo.PolicyLoss("dapo", low=0.2, high=0.28)
        loss, metrics = policy_loss(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                                    counts=gdpo.count(mask=mask))
        loss.backward()

    name: one of `gdpo.losses()`: a paper's ("grpo", "dapo", "gspo", "cispo", "sapo") or a
      trainer's ("trl::dapo", "verl::vanilla"). It brings its settings; what you give replaces one
      of them, as a keyword or behind the name and the level, as in "dapo sequence low=0.1".
    level: whose ratio is clipped, "token", "sequence" or "sequence_token" (GSPO).
    settings: what the loss has of these, which `gdpo.loss_settings(name)` lists with its values;
      each also by its whole name, "surrogate.low" or surrogate_low, and by the end of that where
      the loss has no other that ends so. Bounds are (lo, hi). beta is that of the KL term, which 0
      switches off; kl its estimator as verl names it, with "+" for the straight-through gradient,
      with "*" times the ratio (TRL's use_bias_correction_kl); aggregate verl's loss_agg_mode;
      constant the length of "seq-mean-token-sum-norm", without which verl's mode takes the padded
      width of each batch (padded_width); scale a factor of the loss, such as the number of ranks
      whose gradients are averaged.
      {settings}

    The formulas stand in the headers of the C++ library, include/gdpo/loss. The call computes in
    float32, or in float64 where logp is float64; log-probs of 16 bits are read as float32, and
    their gradient is rounded once. Results do not depend on the number of threads.

    Errors: ValueError for unknown names, with a list of the known ones; and from the call, where
    torch.compile makes a RuntimeError with the same words of it.
    """

    _what = "loss"

    def __init__(self, name: str, level: Optional[str] = None,
                 **settings: "Unpack[LossSettings]") -> None:
        super().__init__(line("gdpo.PolicyLoss", (name,) if level is None else (name, level),
                              settings))
        check_kl(self.line)

    def forward(self, logp: torch.Tensor, *, counts: torch.Tensor,
                advantages: Optional[torch.Tensor] = None,
                token_advantages: Optional[torch.Tensor] = None,
                old_logp: Optional[torch.Tensor] = None, ref_logp: Optional[torch.Tensor] = None,
                rollout_logp: Optional[torch.Tensor] = None,
                teacher_logp: Optional[torch.Tensor] = None, mask: Optional[torch.Tensor] = None,
                completion_mask: Optional[torch.Tensor] = None,
                offsets: Optional[torch.Tensor] = None, segments: Optional[torch.Tensor] = None,
                weights: Optional[torch.Tensor] = None, kl_weights: Optional[torch.Tensor] = None,
                entropy_weights: Optional[torch.Tensor] = None,
                row_weights: Optional[torch.Tensor] = None,
                group_tokens: Optional[torch.Tensor] = None,
                entropies: Optional[torch.Tensor] = None, tags: Optional[torch.Tensor] = None,
                truncated: Optional[torch.Tensor] = None,
                level_log_weights: Optional[torch.Tensor] = None) -> LossAndMetrics:
        """The loss of one (micro-)batch.

        logp: log-probs of the tokens under the policy being trained, in nats: (rows, tokens),
          (prompts, completions, tokens), packed (tokens) with offsets, or a nested tensor of
          jagged layout. All arrays of tokens have its shape. Only it gets a gradient, and with
          entropy_coef the entropies.
        counts: those of the whole step, from `count`; fewer tokens or rows than the batch holds are
          refused, where the loss divides by them. On a CUDA device nobody looks at them: where a
          count that divides is 0, the loss is 0. Counts on the CPU are checked in any case, against
          what the shape of the batch says. `diagnose` looks at the results of all.
        advantages: (rows), or token_advantages in the shape of logp.
        old_logp: under the policy that sampled, or the proximal one; absent: the ratio is 1.
        ref_logp, rollout_logp, teacher_logp: for KL terms against them.
        mask: not 0 at the tokens of the loss; masked tokens may hold anything, even NaN.
          completion_mask: the tokens that lengths count. segments: ids of turns.
        weights, kl_weights, entropy_weights: factors of surrogate, KL and entropy bonus at each
          token; row_weights: of each row, at least 0. group_tokens (rows): from
          `count_group_tokens`, for means over groups. level_log_weights: logs of weights in the
          ratio, which is the sum over a sequence or segment; refused where each token has its own
          ratio.
        entropies: in nats, for the bonus of entropy_coef and for metrics; with a gradient, such as
          those of `token_logprobs`, the bonus goes through them. truncated (rows): for metrics.
          tags: for losses of your own.

        Errors: ValueError for types, shapes, devices, counts and settings that do not fit, and for
        other log-probs that require a gradient where logp does not.
        """
        check_type("gdpo::PolicyLoss", "logp", logp)
        check_floating("gdpo::PolicyLoss", "logp", logp.dtype, logp.is_floating_point())
        refuse_hidden_gradient(logp, "gdpo.PolicyLoss")
        check_type("gdpo::PolicyLoss", "counts", counts)
        arrays = batch_arrays("gdpo::PolicyLoss", {
            "logp": logp, "old_logp": old_logp, "ref_logp": ref_logp, "rollout_logp": rollout_logp,
            "teacher_logp": teacher_logp, "token_advantages": token_advantages,
            "weights": weights, "entropies": entropies, "kl_weights": kl_weights,
            "entropy_weights": entropy_weights, "tags": tags,
            "mask": mask, "completion_mask": completion_mask, "segments": segments,
            "advantages": advantages, "row_weights": row_weights,
            "group_tokens": group_tokens, "truncated": truncated, "offsets": offsets,
            "level_log_weights": level_log_weights})
        check_tensors("gdpo::PolicyLoss", {"logp": arrays[0], "counts": counts})
        check_gradient("gdpo::PolicyLoss", logp, "logp", dict(zip(ARRAYS, arrays)))
        try:
            loss, result = loss_of_arrays(self, counts, arrays)
        except (RuntimeError, ValueError) as error:
            raise_ours(error, in_words_of("gdpo::PolicyLoss"))
            raise
        return LossAndMetrics(loss, Metrics(result))

    if TYPE_CHECKING:  # of torch.nn.Module.__call__ type checkers know nothing
        @typed_as(forward)
        def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...

    def from_logits(self, logits: torch.Tensor, targets: torch.Tensor, *, counts: torch.Tensor,
                    temperature: float = 1.0, in_place: bool = False,
                    **arrays: "Unpack[ArraysBesideLogits]") -> LossFromLogits:
        """The loss straight from logits: log-probs, loss and gradient in one call.

            step = policy_loss.from_logits(logits, tokens, old_logp=old_logp, mask=mask,
                                           advantages=advantages, counts=counts)
            print(step.logp.shape, step.entropies.mean())

        At level "token" each row of logits is read once, and its gradient written while the row is
        in the cache; at the levels of sequences it is read twice. Backward multiplies the gradient
        by that of the loss, in float32 at least, and rounds once more; in place by 1, as where
        `counts` are those of the whole step, it leaves it as it is. Then bits are those of
        token_logprobs and the loss one after the other. For float16, whose gradients underflow
        unless they are scaled before they are rounded, it is these two calls, in place or not.

        logits: (rows, tokens, vocabulary), or packed (tokens, vocabulary) with offsets, or a nested
          tensor of jagged layout; float64, float32, bfloat16 or float16, with stride 1 over the
          vocabulary. Only they get a gradient.
        targets: int32 or int64 in the shape of the other arrays: what each row of logits predicts,
          so for logits of whole sequences logits[:, :-1] and input_ids[:, 1:].
        counts: those of the whole step, from `count`.
        temperature: the logits are divided by it.
        in_place: the gradient replaces the logits, so that no second table is needed. Afterwards
          the logits hold nothing else, and backward runs once. The logits must be a model's, all of
          one call: what is left of a table after one part of it went through a call cannot go
          through another before backward. The gradient of a slice, such as logits[:, :-1], PyTorch
          copies to a table of the whole; rows that `mask` leaves out cost nothing. (Compiled code
          decides by itself.)
        arrays: those of the call, except logp; entropies are those of the logits unless given.

        Errors: ValueError, as from the call.
        """
        function = "gdpo::PolicyLoss.from_logits"
        unknown = [name for name in arrays if name not in ARRAYS_BESIDE_LOGITS]
        if unknown:
            raise TypeError(f"{function}: {unknown[0]}: given, and not an array of from_logits; "
                            f"needed: one of {', '.join(ARRAYS_BESIDE_LOGITS)}"
                            + did_you_mean(unknown[0], ARRAYS_BESIDE_LOGITS))
        given: Dict[str, Any] = {"logits": logits, "targets": targets, **arrays}
        for name, tensor in (("logits", logits), ("targets", targets), ("counts", counts)):
            check_type(function, name, tensor)
        if not isinstance(temperature, (int, float)):
            raise ValueError(f"{function}: temperature: given {temperature!r}; needed: a number")
        refuse_transforms(logits, "gdpo.PolicyLoss.from_logits")
        differentiable = torch.is_grad_enabled() and logits.requires_grad
        in_place = in_place and differentiable and not torch.compiler.is_compiling()
        base = logits._base if in_place and logits._is_view() else None
        if in_place and (logits.is_leaf or (base is not None and base.is_leaf
                                            and base.requires_grad)):
            raise ValueError(f"{function}: in_place: given logits that are a leaf, or a view of "
                             "one, such as a parameter; needed: logits that a model has made")
        nested = logits.is_nested
        listed = batch_arrays(function, given)
        check_gradient(function, logits, "logits", dict(zip(ARRAYS, listed)))
        logits, targets = given["logits"], given["targets"]
        check_tensors(function, {"logits": logits, "counts": counts})
        arguments = (self.line, counts, logits, targets, temperature, *listed)
        try:
            # Gradients of float16 underflow unless they are scaled before they are rounded.
            if not differentiable or logits.dtype == torch.float16:
                logp, entropies, _ = ops.token_logprobs(logits, targets, given.get("mask"),
                                                        temperature)
                listed[ARRAYS.index("logp")] = logp
                if given.get("entropies") is None:
                    listed[ARRAYS.index("entropies")] = entropies
                elif has_entropy(self.line):
                    raise ValueError(f"{function}: batch.entropies: given an array, for a loss "
                                     "with an entropy bonus; needed: none: the bonus reads the "
                                     "entropies of the logits, which get its gradient")
                loss, result = loss_of_arrays(self, counts, listed)
                logp, entropies = logp.detach(), entropies.detach()
            elif in_place:
                loss, result, logp, entropies = FromLogitsInPlace.apply(not nested, *arguments)
            else:
                loss, _, result, logp, entropies = ops.policy_loss_from_logits(*arguments)
        except (RuntimeError, ValueError) as error:
            raise_ours(error, in_words_of(function))
            raise
        return LossFromLogits(loss, Metrics(result), logp, entropies)


def loss_of_arrays(loss: PolicyLoss, counts: torch.Tensor, arrays: List[Any]
                   ) -> Tuple[torch.Tensor, torch.Tensor]:
    """Loss and numbers of the result, with gradients by log-probs and entropies that need them."""
    logp, entropies = arrays[ARRAYS.index("logp")], arrays[ARRAYS.index("entropies")]
    by_entropies = (torch.is_grad_enabled() and entropies is not None and entropies.requires_grad
                    and has_entropy(loss.line))
    if by_entropies or (torch.is_grad_enabled() and logp.requires_grad):
        return WithGradient.apply(loss.line, counts, by_entropies, *arrays)
    with torch.no_grad():
        value, _, _, result = ops.policy_loss_forward(loss.line, counts, False, False, *arrays)
    return value, result


def clamped_ratio(logp: torch.Tensor, old_logp: torch.Tensor) -> torch.Tensor:
    """The ratio of each token from a log ratio within +-20, as verl and SkyRL clamp it.

    It is not in 16 bits, and has no gradient.
    """
    wide = torch.promote_types(logp.dtype, torch.float32)
    return (logp.detach().to(wide) - old_logp.to(wide)).clamp(-20, 20).exp()


def outside(ratio: torch.Tensor, bounds: Dict[str, float]) -> torch.Tensor:
    """Where a ratio is beyond either of these bounds, which `gdpo.Metrics` does not measure."""
    return ((ratio < float(bounds["factor.min_ratio"])) |
            (ratio > float(bounds["factor.max_ratio"])))


def dividing_by_given(loss: PolicyLoss) -> PolicyLoss:
    """The same loss, but dividing by counts[3] where it divides by the tokens, counts[0].

    For trainers that divide by a number of their own. The count of the tokens of a step cannot be
    less than what a micro-batch holds, and is refused; an average over micro-batches or processes
    can.
    """
    if ops.loss_over(loss.line) != "tokens":
        return loss
    return with_settings(loss, {"aggregate.over": "given"})


def with_settings(loss: PolicyLoss, settings: Dict[str, Any]) -> PolicyLoss:
    """The same loss with other values of these settings, by their names in the library."""
    other = copy.copy(loss)
    words = [part for part in loss.line.split(" ") if part.split("=")[0] not in settings]
    other.line = " ".join([*words, *(f"{name}={word(value)}" for name, value in settings.items())])
    return other


#: The arrays that `PolicyLoss.from_logits` takes besides logits and targets.
ARRAYS_BESIDE_LOGITS = [name for name in inspect.signature(PolicyLoss.forward).parameters
                        if name in ARRAYS and name != "logp"]

