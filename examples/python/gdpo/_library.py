"""Tells PyTorch the shapes and derivatives of the operators."""
import zlib
from typing import Dict, List, Optional, Tuple

import torch

from ._load import ops
from ._names import ARRAYS, TOKEN_ARRAYS, names


def check_type(function: str, name: str, tensor: object) -> None:
    """Raises ValueError unless it is a tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{function}: {name}: given a {type(tensor).__name__}; needed: a "
                         "torch.Tensor")


def check_tensors(function: str, tensors: Dict[str, Optional[torch.Tensor]]) -> None:
    """Raises ValueError unless they are dense tensors on one device.

    PyTorch would call the kernel of any of their devices. `counts` may be on the CPU in any case.
    """
    first, device = "", None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        check_type(function, name, tensor)
        if tensor.layout is not torch.strided:
            raise ValueError(f"{function}: {name}: given {tensor.layout}; needed: a dense tensor "
                             "(torch.strided), or a nested one of layout torch.jagged")
        if device is None:
            first, device = name, tensor.device
        elif name == "counts" and tensor.device.type == "cpu":
            continue
        elif tensor.device != device:
            raise ValueError(f"{function}: {name}: given a tensor on {tensor.device}; needed: one "
                             f"on {device}, where {first} is")


def _tag_compile_cache() -> None:
    """Keeps code that torch.compile has stored for another gdpo from being used with this one.

    Stored code holds the sizes of the operators' results, which grow with what they report, but the
    key it is stored by does not. The tag is part of every such key.
    """
    held = "\n".join(names("result") + names("report", 1) + names("value_result"))
    torch.compiler.config.cache_key_tag += f" gdpo:{zlib.crc32(held.encode()):08x}"


_tag_compile_cache()


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type that numbers of that type are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@torch.library.register_fake("gdpo::contrastive_loss")
def _(loss, counts, gradient, logp=None, *arrays, **named):
    return _fake_value(logp), _fake_gradient(logp, gradient), _fake_result(logp)


@torch.library.register_fake("gdpo::policy_loss_forward")
@torch.library.register_fake("gdpo::policy_loss")
def _(loss, counts, gradient, by_entropies, logp=None, *arrays, **named):
    return (_fake_value(logp), _fake_gradient(logp, gradient), _fake_gradient(logp, by_entropies),
            _fake_result(logp))


def _fake_value(logp) -> torch.Tensor:
    return logp.new_empty((), dtype=computed_in(logp.dtype))


def _fake_gradient(logp, wanted: bool) -> torch.Tensor:
    return logp.new_empty(logp.shape if wanted else (0,), dtype=computed_in(logp.dtype))


def _fake_result(tensor, what: str = "result") -> torch.Tensor:
    return tensor.new_empty((len(names(what)),), dtype=torch.float64)


@torch.library.register_fake("gdpo::value_loss")
def _(loss, counts, gradient, values=None, *arrays, **named):
    return (_fake_value(values), _fake_gradient(values, gradient),
            _fake_result(values, "value_result"))


@torch.library.register_fake("gdpo::token_moments")
def _(values, mask=None):
    return values.new_empty((1, 7), dtype=torch.float64)


@torch.library.register_fake("gdpo::whiten")
def _(values, line, mask=None, moments=None):
    return values.new_empty(values.shape, dtype=computed_in(values.dtype))


@torch.library.register_fake("gdpo::scaled")
def _(table, by):
    return table.new_empty(table.shape)


@torch.library.register_fake("gdpo::scale_")
def _(table, by):
    return None


@torch.library.register_fake("gdpo::policy_loss_from_logits_")
def _(loss, counts, logits, *arguments, **named):
    shape = logits.shape[:-1]
    return (logits.new_empty((), dtype=torch.float32), _fake_result(logits),
            logits.new_empty(shape, dtype=torch.float32),
            logits.new_empty(shape, dtype=torch.float32))


@torch.library.register_fake("gdpo::policy_loss_from_logits")
def _(loss, counts, logits, *arguments, **named):
    shape = logits.shape[:-1]
    return (logits.new_empty((), dtype=torch.float32), logits.new_empty(logits.shape),
            _fake_result(logits), logits.new_empty(shape, dtype=torch.float32),
            logits.new_empty(shape, dtype=torch.float32))


@torch.library.register_fake("gdpo::prepare")
def _(passes, degenerate=None, groups=None, *arrays, **named):
    from ._prepare import REACHED_BY, makes  # which imports this module
    given = dict(zip(ARRAYS, arrays), **named)
    tokens = next(given[name] for name in TOKEN_ARRAYS if given.get(name) is not None)
    of_type = [given[name] for name in ("logp", "old_logp") if given.get(name) is not None] or [
        given[name] for name in ("rollout_logp", "teacher_logp") if given.get(name) is not None]
    double = any(array.dtype == torch.float64 for array in of_type)
    dtype = torch.float64 if double else torch.float32

    def optional(name):
        there = given.get(name) is not None or makes(name, tuple(passes))
        return tokens.new_empty(tokens.shape if there else (0,), dtype=dtype)

    return (tokens.new_empty(tokens.shape, dtype=torch.uint8), *map(optional, REACHED_BY),
            tokens.new_empty((), dtype=torch.float64))


@torch.library.register_fake("gdpo::merge_results")
@torch.library.register_fake("gdpo::merge_value_results")
@torch.library.register_fake("gdpo::merge_reports")
def _(a, b):
    return a.new_empty(a.shape)


@torch.library.register_fake("gdpo::count_groups")
@torch.library.register_fake("gdpo::count")
def _(*arrays, **named):
    array = next(a for a in (*arrays, *named.values()) if isinstance(a, torch.Tensor))
    return array.new_empty((4,), dtype=torch.float64)


@torch.library.register_fake("gdpo::count_group_tokens")
def _(*arrays, **named):
    given = dict(zip(ARRAYS, arrays), **named)
    offsets = given.get("offsets")
    array = next(given[name] for name in TOKEN_ARRAYS if isinstance(given.get(name), torch.Tensor)
                 ) if offsets is None else offsets
    rows = len(array) - 1 if offsets is not None else array.shape[:-1].numel()
    return array.new_empty((rows,), dtype=torch.float64)


def _fake_advantages(rewards, report: bool) -> Tuple[torch.Tensor, torch.Tensor]:
    narrow = rewards.dtype in (torch.float32, torch.bfloat16, torch.float16)
    dtype = torch.float32 if narrow else torch.float64
    reward_count = rewards.shape[1] if rewards.dim() == 2 else 1
    fixed = len(names("report"))
    each = len(names("report", 1)) - fixed
    pair = len(names("report", 2)) - fixed - 2 * each
    numbers = fixed + reward_count * each + reward_count * (reward_count - 1) // 2 * pair
    return (rewards.new_empty((rewards.shape[0],), dtype=dtype),
            rewards.new_empty((numbers if report else 0,), dtype=torch.float64))


_REPORT = 14  # where `report` stands among the arguments of advantages behind the rewards


@torch.library.register_fake("gdpo::advantages")
def _(rewards, *arguments, report=True, **named):
    return _fake_advantages(rewards, arguments[_REPORT] if len(arguments) > _REPORT else report)


def _fake_of_tokens(*arrays, otherwise: bool = False) -> torch.Tensor:
    """A tensor of the shape of the first array; the last one, a mask, has no say in its type."""
    like = next(a for a in arrays if a is not None)
    numbers = [a.dtype for a in arrays[:-1] if a is not None]
    double = torch.float64 in numbers if numbers else otherwise
    return like.new_empty(like.shape, dtype=torch.float64 if double else torch.float32)


@torch.library.register_fake("gdpo::token_advantages")
def _(estimator, rewards=None, row_rewards=None, values=None, logp=None, ref_logp=None, mask=None,
      offsets=None, bootstrap=None):
    double = row_rewards is not None and row_rewards.dtype == torch.float64
    out = _fake_of_tokens(rewards, values, logp, ref_logp, mask, otherwise=double)
    return out, torch.empty_like(out)


@torch.library.register_fake("gdpo::outcome_advantages")
def _(rewards, estimator, group_size=0, group_ids=None, group_offsets=None, weights=None,
      gates=None, tokens=None, valid=None, baseline=None, row_weights=None, penalty=None,
      token_rewards=None, values=None, logp=None, ref_logp=None, mask=None, offsets=None,
      bootstrap=None, report=True):
    of_rows, numbers = _fake_advantages(rewards, report)
    out = _fake_of_tokens(token_rewards, values, logp, ref_logp, mask,
                          otherwise=of_rows.dtype == torch.float64)
    return out, torch.empty_like(out), numbers


@torch.library.register_fake("gdpo::step_advantages")
def _(rewards, *arguments, **named):
    return _fake_advantages(rewards, False)[0]


@torch.library.register_fake("gdpo::optimal_token_baseline")
def _(returns, logp, sum_pi_squared, name, group_size=0, group_ids=None, group_offsets=None,
      weights=None, mask=None, offsets=None):
    return _fake_of_tokens(returns, logp, sum_pi_squared, weights, mask)


@torch.library.register_fake("gdpo::token_logprobs")
def _(logits, targets, mask=None, temperature=1.0):
    shape = logits.shape[:-1]
    return (logits.new_empty(shape, dtype=torch.float32),
            logits.new_empty(shape, dtype=torch.float32),
            logits.new_empty(shape, dtype=torch.float64))


@torch.library.register_fake("gdpo::token_logprobs_backward")
def _(dlogp, dentropy, logits, *arguments):
    return logits.new_empty(logits.shape)


# Where arguments stand: logp, or values, among those of an operator, entropies among the arrays
# behind it.
_LOGP = {"gdpo::policy_loss": 4, "gdpo::contrastive_loss": 3, "gdpo::value_loss": 3}
_ENTROPIES = ARRAYS.index("entropies")


_LOGITS = 2  # where logits stand among the arguments of policy_loss_from_logits


def _refuse_second_derivative(what: str) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(f"{what} has an analytic gradient and no second derivative: call "
                           "backward without create_graph")


def _keep_gradients(ctx, gradients, arguments) -> None:
    """Keeps gradients that were computed with the loss, of which some are empty.

    arguments: what each is the gradient by, or None.
    """
    ctx.dtypes = [None if a is None else a.dtype for a in arguments]
    ctx.save_for_backward(*gradients)
    ctx.set_materialize_grads(False)


def _kept_gradients(ctx, of_loss, what: str = "gdpo.PolicyLoss") -> List[Optional[torch.Tensor]]:
    """The gradients that were computed with the loss, times that of the loss; None for none."""
    _refuse_second_derivative(what)
    if of_loss is None:
        return [None] * len(ctx.dtypes)
    return [None if dtype is None else (of_loss * gradient).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes)]


def _derivative_of(operator: str, what: str) -> None:
    """Registers the derivative of the operator of that name, of which messages speak as `what`."""
    logp = _LOGP[operator]

    def setup_context(ctx, inputs, output) -> None:
        _, *gradients, result = output
        ctx.arguments, ctx.has_gradient = len(inputs), inputs[2]
        by_entropies = len(gradients) > 1 and inputs[3]
        arguments = (inputs[logp], inputs[logp + _ENTROPIES] if by_entropies else None)
        _keep_gradients(ctx, gradients, arguments[:len(gradients)])
        ctx.mark_non_differentiable(*gradients, result)

    def backward(ctx, of_loss, *others):
        if not ctx.has_gradient:
            raise RuntimeError(f"{operator} was called with gradient=False: there is none")
        gradients = [None] * ctx.arguments
        for place, gradient in zip((logp, logp + _ENTROPIES), _kept_gradients(ctx, of_loss, what)):
            gradients[place] = gradient
        return tuple(gradients)

    torch.library.register_autograd(operator, backward, setup_context=setup_context)


_derivative_of("gdpo::policy_loss", "gdpo.PolicyLoss")
_derivative_of("gdpo::contrastive_loss", "gdpo.ContrastiveLoss")
_derivative_of("gdpo::value_loss", "gdpo.ValueLoss")


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose values a transform of torch.func passes on; without one itself."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


@torch.compiler.assume_constant_result
def _transforms() -> Tuple[str, ...]:
    """The transforms of torch.func that are at work, in compiled code those of the trace."""
    if not torch._C._are_functorch_transforms_active():
        return ()
    return tuple(level.key().name for level in torch._C._functorch.get_interpreter_stack())


def refuse_forward_mode(tensor: torch.Tensor, what: str) -> None:
    """Raises for a tensor with a tangent, whose derivative would silently be 0."""
    if torch.autograd.forward_ad._current_level < 0:
        return
    if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise RuntimeError(f"{what} has a gradient for backward and no derivative in forward mode")


def refuse_transforms(tensor: torch.Tensor, what: str, *kinds: str) -> None:
    """Raises in forward mode, and within transforms of torch.func of these kinds; without: of any.

    kinds: of "Grad", "Vmap" and "Functionalize".
    """
    refuse_forward_mode(tensor, what)
    if any(not kinds or name in kinds for name in _transforms()):
        raise RuntimeError(f"{what} has a gradient for backward and is not for the transforms of "
                           "torch.func: call it for each batch, and backward")


def refuse_hidden_gradient(tensor: torch.Tensor, what: str) -> None:
    """Raises where transforms hide that the tensor needs a gradient, which would then be 0.

    vmap and functionalize do so; grad asks for one that is computed later. Where none is needed,
    they are as good as a loop. What is compiled cannot tell, except under torch.no_grad.
    """
    refuse_forward_mode(tensor, what)
    if not torch.is_grad_enabled() or not _transforms():
        return
    if torch.compiler.is_compiling():
        refuse_transforms(tensor, what, "Vmap", "Functionalize")
        return
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_gradtrackingtensor(tensor):
            refuse_transforms(tensor, what)
        tensor = functorch.get_unwrapped(tensor)
    if tensor.requires_grad:
        refuse_transforms(tensor, what)


class WithGradient(torch.autograd.Function):
    """gdpo::policy_loss_forward with the derivative of gdpo::policy_loss."""

    @staticmethod
    def forward(ctx, line, counts, by_entropies, logp, *arrays):
        loss, dlogp, dentropies, result = ops.policy_loss_forward(line, counts, True, by_entropies,
                                                                  logp, *arrays)
        ctx.arguments = 3 + 1 + len(arrays)
        _keep_gradients(ctx, (dlogp, dentropies),
                        (logp, arrays[_ENTROPIES - 1] if by_entropies else None))
        ctx.mark_non_differentiable(result)
        return loss, result

    @staticmethod
    def backward(ctx, of_loss, _):
        gradients = [None] * ctx.arguments
        gradients[3], gradients[3 + _ENTROPIES] = _kept_gradients(ctx, of_loss)
        return tuple(gradients)


def _setup_from_logits(ctx, inputs, output) -> None:
    _, dlogits, *others = output
    ctx.arguments = len(inputs)
    ctx.save_for_backward(dlogits)
    ctx.mark_non_differentiable(dlogits, *others)
    ctx.set_materialize_grads(False)


def _backward_from_logits(ctx, of_loss, *others):
    _refuse_second_derivative("gdpo.PolicyLoss")
    gradients = [None] * ctx.arguments
    if of_loss is not None:
        (dlogits,) = ctx.saved_tensors
        gradients[_LOGITS] = ops.scaled(dlogits, of_loss)
    return tuple(gradients)


torch.library.register_autograd("gdpo::policy_loss_from_logits", _backward_from_logits,
                                setup_context=_setup_from_logits)


class FromLogitsInPlace(torch.autograd.Function):
    """gdpo::policy_loss_from_logits_ with its derivative, which the logits themselves hold.

    tell: whether those who saved the logits for a backward of their own are told that they have
      changed. A nested tensor cannot be told: PyTorch fails to make its history anew.
    """

    @staticmethod
    def forward(ctx, tell, line, counts, logits, *arguments):
        # The same memory without history. It is not kept by save_for_backward, whose hooks may
        # copy it.
        ctx.memory = logits.detach()
        if tell:
            torch.autograd.graph.increment_version(ctx.memory)
        ctx.version, ctx.arguments = ctx.memory._version, len(arguments)
        loss, result, logp, entropies = ops.policy_loss_from_logits_(line, counts, ctx.memory,
                                                                     *arguments)
        ctx.mark_non_differentiable(result, logp, entropies)
        ctx.set_materialize_grads(False)
        return loss, result, logp, entropies

    @staticmethod
    def backward(ctx, of_loss, *others):
        _refuse_second_derivative("gdpo.PolicyLoss")
        if of_loss is None:
            return (None,) * (4 + ctx.arguments)
        if torch._C._functorch.is_legacy_batchedtensor(of_loss):  # is_grads_batched
            raise RuntimeError("gdpo.PolicyLoss.from_logits: in_place: given several gradients of "
                               "the loss at once; needed: one, because it scales the gradient "
                               "where it lies")
        if ctx.memory is None:
            raise RuntimeError("gdpo.PolicyLoss.from_logits: in_place: given a second backward; "
                               "needed: one, because it scales the gradient where it lies")
        dlogits, ctx.memory = ctx.memory, None
        if dlogits._version != ctx.version:
            raise RuntimeError("gdpo.PolicyLoss.from_logits: in_place: the logits, which hold "
                               "their gradient, have been modified by an inplace operation since")
        ops.scale_(dlogits, of_loss)
        return (None, None, None, dlogits, *(None,) * ctx.arguments)


def _setup_logprobs(ctx, inputs, output) -> None:
    logits, targets, mask, ctx.temperature = inputs
    _, entropy, logsumexp = output
    ctx.save_for_backward(logits, targets, mask, logsumexp, entropy)
    ctx.mark_non_differentiable(logsumexp)
    ctx.set_materialize_grads(False)


def _backward_logprobs(ctx, dlogp, dentropy, _):
    _refuse_second_derivative("gdpo.token_logprobs")
    if dlogp is None and dentropy is None:
        return None, None, None, None
    logits, targets, mask, logsumexp, entropy = ctx.saved_tensors
    dlogits = ops.token_logprobs_backward(dlogp, dentropy, logits, targets, mask, ctx.temperature,
                                          logsumexp, entropy)
    return dlogits, None, None, None


torch.library.register_autograd("gdpo::token_logprobs", _backward_logprobs,
                                setup_context=_setup_logprobs)
