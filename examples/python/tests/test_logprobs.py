"""token_logprobs against torch.log_softmax in float64.

Tolerance: 1e-6 of 1 plus the size, because log-probs and entropies leave it as float32. Gradients
contain probabilities with a relative error of |log p| 2^-23 + 1.5e-6 (logits/token_logprobs.hpp),
here 5e-6 for p down to e^-25, and are rounded once to the type of the logits, by half an ulp.
"""
import pytest
import torch

import gdpo

ULP = {torch.float64: 2.0 ** -23, torch.float32: 2.0 ** -23, torch.bfloat16: 2.0 ** -8,
       torch.float16: 2.0 ** -11}


def random_logits(shape, dtype, seed=7):
    g = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype)
    targets = torch.randint(0, shape[-1], shape[:-1], generator=g)
    gradients = torch.randn(2, *shape[:-1], generator=g)
    return logits, targets, gradients


def reference(logits, targets, temperature):
    """Log-probs of the targets, entropies and log of the sum, for autograd in float64."""
    scaled = logits.double() / temperature
    logp = torch.log_softmax(scaled, -1)
    own = logp.gather(-1, targets[..., None])[..., 0]
    return own, -(logp.exp() * logp).sum(-1), torch.logsumexp(scaled, -1)


@pytest.mark.parametrize("dtype", sorted(ULP, key=str))
@pytest.mark.parametrize("shape", [(5, 33), (2, 4, 257), (3, 1), (1, 2, 3)])
@pytest.mark.parametrize("temperature", (1.0, 0.7))
def test_values_and_gradients(dtype, shape, temperature):
    logits, targets, (of_logp, of_entropy) = random_logits(shape, dtype)
    logits.requires_grad_()
    got = gdpo.token_logprobs(logits, targets, temperature=temperature)
    double = logits.detach().double().requires_grad_()
    want = reference(double, targets, temperature)
    for one, other in zip(got, want):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-6)
    assert [x.dtype for x in got] == [torch.float32, torch.float32, torch.float64]
    assert not got.logsumexp.requires_grad
    ((got.logp * of_logp).sum() + (got.entropy * of_entropy).sum()).backward()
    ((want[0] * of_logp.double()).sum() + (want[1] * of_entropy.double()).sum()).backward()
    assert logits.grad.dtype == dtype
    # A difference of probabilities may cancel, so that the bound is that of the largest.
    torch.testing.assert_close(logits.grad.double(), double.grad, rtol=ULP[dtype],
                               atol=5e-6 * max(1e-3, float(double.grad.abs().max())))


@pytest.mark.parametrize("part", ("logp", "entropy"))
def test_one_gradient_alone(part):
    """Backward through one of the two outputs."""
    logits, targets, _ = random_logits((4, 9), torch.float32)
    logits.requires_grad_()
    getattr(gdpo.token_logprobs(logits, targets), part).sum().backward()
    double = logits.detach().double().requires_grad_()
    reference(double, targets, 1.0)[part == "entropy"].sum().backward()
    torch.testing.assert_close(logits.grad.double(), double.grad, rtol=1e-5, atol=1e-6)


def test_masked_rows_are_not_read():
    """They have 0 and gradient 0, even where logits are NaN and targets are no tokens."""
    logits, targets, _ = random_logits((6, 9), torch.float32)
    mask = torch.tensor([1, 0, 1, 1, 0, 1])
    plain = gdpo.token_logprobs(logits, targets)
    logits[mask == 0], targets[mask == 0] = float("nan"), -100
    logits.requires_grad_()
    got = gdpo.token_logprobs(logits, targets, mask=mask)
    (got.logp + got.entropy).sum().backward()
    for one, other in zip(got, plain):
        assert torch.equal(one[mask == 1], other[mask == 1])
        assert torch.equal(one[mask == 0], torch.zeros_like(one[mask == 0]))
    assert torch.equal(logits.grad[mask == 0], torch.zeros(2, 9)) and logits.grad.isfinite().all()


def test_slices_and_threads_change_no_bit():
    """Logits of whole sequences without their last token are a view; two threads share the rows."""
    logits, targets, _ = random_logits((4, 40, 700), torch.bfloat16)
    view = logits[:, :-1]
    results = []
    for threads, array in ((1, view), (2, view), (1, view.contiguous())):
        torch.set_num_threads(threads)
        leaf = array.detach().requires_grad_()
        out = gdpo.token_logprobs(leaf, targets[:, 1:])
        (out.logp.sum() + out.entropy.sum()).backward()
        results.append([out.logp.detach(), out.entropy.detach(), out.logsumexp, leaf.grad])
    for other in results[1:]:
        assert all(torch.equal(one, same) for one, same in zip(results[0], other))


def test_logits_to_loss():
    """The whole chain: the gradient of the loss reaches the logits."""
    logits, targets, _ = random_logits((3, 5, 11), torch.float32)
    leaf, double = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss, counts = gdpo.PolicyLoss("dapo"), gdpo.count(mask=torch.ones(3, 5))
    advantages = torch.tensor([1.0, -1, 0.5])
    loss(gdpo.token_logprobs(leaf, targets).logp, counts=counts,
         advantages=advantages).loss.backward()
    loss(reference(double, targets, 1.0)[0], counts=counts, advantages=advantages).loss.backward()
    torch.testing.assert_close(leaf.grad.double(), double.grad, rtol=1e-5, atol=1e-8)


def test_no_second_derivative():
    logits, targets, _ = random_logits((3, 5), torch.float32)
    logits.requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(gdpo.token_logprobs(logits, targets).logp.sum(), logits,
                            create_graph=True)
