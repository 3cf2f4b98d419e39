"""Each function under each transform of torch.func: what plain autograd gives, or an error.

A transform may hide from a function that its argument needs a gradient. Without an error it would
train with a gradient of 0.
"""
import re

import pytest
import torch
from torch import func

import gdpo

GENERATOR = torch.Generator().manual_seed(3)
LOGP = -torch.rand(2, 3, generator=GENERATOR) - 0.5
OLD = LOGP + 0.1 * torch.randn(2, 3, generator=GENERATOR)
LOGITS = torch.randn(2, 3, 7, generator=GENERATOR)
TARGETS = torch.randint(0, 7, (2, 3), generator=GENERATOR)
REWARDS = torch.rand(8, 2, generator=GENERATOR)
WEIGHTS = torch.randn(8, generator=GENERATOR)
COUNTS = torch.tensor([6.0, 2, 2, 0], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.0, -0.5])


def policy_loss(level):
    loss = gdpo.PolicyLoss("grpo", level, beta=0.0)
    return lambda x: loss(x, counts=COUNTS, advantages=ADVANTAGES, old_logp=OLD).loss


def value_loss():
    loss, returns = gdpo.ValueLoss(), OLD + 0.3
    return lambda x: loss(x, counts=COUNTS, old_values=OLD, returns=returns).loss


def from_logits(in_place):
    loss = gdpo.PolicyLoss("dapo")
    return lambda x: loss.from_logits(x * 1, TARGETS, counts=COUNTS, advantages=ADVANTAGES,
                                      in_place=in_place).loss


def token_logprobs(x):
    out = gdpo.token_logprobs(x, TARGETS)
    return out.logp.square().sum() + out.entropy.sum()


#: Each with its argument, as functions with one number as their result.
FUNCTIONS = {
    "PolicyLoss token": (policy_loss("token"), LOGP),
    "PolicyLoss sequence": (policy_loss("sequence"), LOGP),
    "ValueLoss": (value_loss(), LOGP),
    "from_logits": (from_logits(False), LOGITS),
    "from_logits in place": (from_logits(True), LOGITS),
    "token_logprobs": (token_logprobs, LOGITS),
    "advantages": (lambda x: (WEIGHTS * gdpo.advantages(x, group_size=4)).sum(), REWARDS),
    "count": (lambda x: gdpo.count(mask=x).sum(), (LOGP < -0.8).float()),
    "whiten": (lambda x: gdpo.whiten(x).square().sum(), LOGP),
    "prepare": (lambda x: gdpo.prepare("trl::token_truncate", logp=x, old_logp=x,
                                       rollout_logp=OLD).weights.square().sum(), LOGP),
}


def stack(x):
    """Two batches: the same and its rows turned."""
    return torch.stack([x, x.flip(0)])


def gradient(f, x):
    """What plain autograd gives; 0 where the result is a constant."""
    x = x.clone().requires_grad_()
    value = f(x)
    if not value.requires_grad:
        return torch.zeros_like(x)
    value.backward()
    return x.grad


def gradients(f, x):
    return torch.stack([gradient(f, one) for one in stack(x)])


def backward_through(transformed, x):
    """The gradient of a sum of what a transformed function returns, by backward."""
    x = x.clone().requires_grad_()
    value = transformed(x).sum()
    # Another term that needs a gradient, as in a training step: its absence would not be noticed.
    (value + 0 * x.sum()).backward()
    return x.grad


def tangent(f, x):
    return (gradient(f, x) * torch.ones_like(x)).sum()


def compiled(function, x):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager")(x)


#: What each transform gives, and what plain autograd gives for it.
TRANSFORMS = {
    "grad": (lambda f, x: func.grad(f)(x), gradient),
    "vjp": (lambda f, x: func.vjp(f, x)[1](torch.ones((), dtype=f(x).dtype))[0], gradient),
    "jacrev": (lambda f, x: func.jacrev(f)(x), gradient),
    "jvp": (lambda f, x: func.jvp(f, (x,), (torch.ones_like(x),))[1], tangent),
    "jacfwd": (lambda f, x: func.jacfwd(f)(x), gradient),
    "linearize": (lambda f, x: func.linearize(f, x)[1](torch.ones_like(x)), tangent),
    "vmap": (lambda f, x: func.vmap(f)(stack(x)),
             lambda f, x: torch.stack([f(one) for one in stack(x)])),
    "vmap of grad": (lambda f, x: func.vmap(func.grad(f))(stack(x)), gradients),
    "grad of vmap": (lambda f, x: func.grad(lambda y: func.vmap(f)(y).sum())(stack(x)), gradients),
    "backward through vmap": (lambda f, x: backward_through(func.vmap(f), stack(x)), gradients),
    "vmap twice": (lambda f, x: backward_through(func.vmap(func.vmap(f)), stack(x)[None])[0],
                   gradients),
    "functionalize": (lambda f, x: func.functionalize(f)(x), lambda f, x: f(x)),
    "functionalize of grad": (lambda f, x: func.functionalize(func.grad(f))(x), gradient),
    "backward through functionalize": (
        lambda f, x: backward_through(func.functionalize(f), x), gradient),
    "compiled vmap": (lambda f, x: backward_through(
        lambda y: compiled(func.vmap(f), y), stack(x)), gradients),
    "compiled grad": (lambda f, x: compiled(func.grad(f), x), gradient),
    "compiled jvp": (lambda f, x: compiled(
        lambda y: func.jvp(f, (y,), (torch.ones_like(y),))[1], x), tangent),
    "jacobian": (lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True), gradient),
    "jacobian in forward mode": (lambda f, x: torch.autograd.functional.jacobian(
        f, x, vectorize=True, strategy="forward-mode"), gradient),
    "backward twice": (lambda f, x: backward_through(
        lambda y: torch.utils.checkpoint.checkpoint(f, y, use_reentrant=False), x), gradient),
}
CONSTANTS = ("advantages", "count", "prepare", "whiten")
#: What is right and not refused, beside all of CONSTANTS.
RIGHT = {
    "PolicyLoss token": {"vmap", "functionalize", "jacobian", "backward twice", "compiled grad"},
    "PolicyLoss sequence": {"vmap", "functionalize", "jacobian", "backward twice", "compiled grad"},
    "ValueLoss": {"vmap", "functionalize", "jacobian", "backward twice"},
    "from_logits": {"jacobian", "backward twice"},
    "from_logits in place": {"backward twice"},
    "token_logprobs": {"vmap", "backward through vmap", "vmap twice", "functionalize",
                       "backward through functionalize", "compiled vmap", "jacobian",
                       "backward twice"},
}
OURS = re.compile(r"gdpo\.[\w.]+ has a gradient for backward and (is not for the transforms of "
                  r"torch\.func|no derivative in forward mode)|in_place: given several gradients")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, that vmap is a loop
@pytest.mark.parametrize("function, transform", [
    (function, transform) for function in FUNCTIONS for transform in TRANSFORMS
    if (function, transform) != ("count", "linearize")])  # which traces, and cannot look at a mask
def test_right_or_refused(function, transform):
    f, x = FUNCTIONS[function]
    transformed, plain = TRANSFORMS[transform]
    try:
        got = transformed(f, x)
    except RuntimeError as error:
        assert OURS.search(str(error)), error
        assert function not in CONSTANTS and transform not in RIGHT[function]
        return
    want = plain(f, x)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7, check_dtype=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("transform", ("jvp", "vmap"))
def test_without_gradients_there_is_none_to_lose(transform):
    """Under no_grad a loss is as good as a loop under vmap, also where its argument needs one."""
    f, x = FUNCTIONS["PolicyLoss token"]
    with torch.no_grad():
        if transform == "vmap":
            got = func.vmap(f)(stack(x).requires_grad_())
            assert torch.equal(got, torch.stack([f(one) for one in stack(x)]))
        else:
            with pytest.raises(RuntimeError, match="no derivative in forward mode"):
                func.jvp(f, (x,), (torch.ones_like(x),))
