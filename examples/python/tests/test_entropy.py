"""The entropy bonus: its value and its gradient by entropies, by logits, and which tokens it takes.

Tolerances. float64: 1e-12 of the largest number, rounding with room to spare; with log-probs of
float32, 2e-6, which is about 30 roundings. Gradients of 16 bits are rounded twice at most: 2^-8 and
2^-10 of each number.
"""
import math

import pytest
import torch

import gdpo
import reference
from batches import packed, random_batch
from reference import settings_from

LOSSES = ("dapo", "gspo", "gspo_token", "verl::vanilla", "trl::dr_grpo", "sapo", "topr")
MEANS = ("loss", "tokens")


def settings_of(loss):
    return settings_from({s.name: s.value for s in gdpo.loss_settings(loss.line) if s.value})


def made(name, coef=0.3, mean="tokens"):
    needs = {"constant": 64.0} if name.endswith("dr_grpo") else {}
    return gdpo.PolicyLoss(name, entropy_coef=coef, entropy_mean=mean, **needs)


def gradients(loss, counts, arrays):
    """Loss, gradients by logp and by entropies, and metrics."""
    arrays = dict(arrays)
    logp, entropies = (arrays.pop(name).detach().clone().requires_grad_()
                       for name in ("logp", "entropies"))
    result = loss(logp, counts=torch.tensor(counts, dtype=torch.float64), entropies=entropies,
                  **arrays)
    result.loss.backward()
    return result.loss.detach(), logp.grad, entropies.grad, result.metrics


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("weighed", [False, True])
def test_it_is_that_of_the_definition(name, mean, weighed):
    loss = made(name, mean=mean)
    for seed in range(20):
        batch = random_batch(seed)
        names = ["logp", "old_logp", "ref_logp", "advantages", "entropies"]
        names += ["entropy_weights", "row_weights"] if weighed else []
        arrays = {n: batch.arrays[n] for n in names}
        counts = batch.counts(given=30.0)
        value, by_logp, by_entropies, metrics = gradients(loss, counts,
                                                          {**arrays, "mask": batch.mask})
        inputs = {n: a.clone().requires_grad_(n in ("logp", "entropies"))
                  for n, a in arrays.items()}
        want = reference.policy_loss(settings_of(loss), counts, batch.mask, **inputs)
        want.loss.backward()
        close = dict(rtol=1e-12, atol=1e-12 * max(want.absolute, 1e-300))
        torch.testing.assert_close(value, want.loss.detach(), **close)
        torch.testing.assert_close(by_logp, inputs["logp"].grad, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(by_entropies, inputs["entropies"].grad, rtol=1e-12, atol=0)
        parts = sum(metrics[part] for part in ("policy_loss", "kl_loss", "entropy_loss"))
        assert metrics["loss"] == pytest.approx(parts, rel=1e-14, abs=1e-300)


def test_packed_and_nested_rows_have_the_bits_of_padded_ones():
    batch = random_batch(4, 6, 40, dtype=torch.float32)
    lengths = batch.mask.sum(1)
    batch.mask = torch.arange(40)[None] < lengths[:, None]  # so that rows end where they are cut
    names = ("logp", "old_logp", "advantages", "entropies", "entropy_weights")
    loss, counts = made("verl::vanilla"), batch.counts()
    padded = gradients(loss, counts, {**{n: batch.arrays[n] for n in names}, "mask": batch.mask})
    rows = packed(batch, lengths)
    flat = gradients(loss, counts, {n: rows[n] for n in (*names, "offsets")})
    assert torch.equal(padded[0], flat[0])
    for a, b in zip(padded[1:3], flat[1:3]):
        assert torch.equal(a[batch.mask], b)


def test_without_it_nothing_changes():
    batch = random_batch(8, dtype=torch.float32)
    names = ("logp", "old_logp", "ref_logp", "advantages", "entropies")
    arrays = {**{n: batch.arrays[n].float() for n in names}, "mask": batch.mask}
    off, without = gdpo.PolicyLoss("grpo", entropy_coef=0.0), gdpo.PolicyLoss("grpo")
    value, by_logp, by_entropies, metrics = gradients(off, batch.counts(), arrays)
    other = gradients(without, batch.counts(), arrays)
    assert torch.equal(value, other[0]) and torch.equal(by_logp, other[1])
    assert by_entropies is None and other[2] is None and metrics["entropy_loss"] == 0


def test_masked_and_dropped_tokens_may_hold_anything():
    batch = random_batch(2, 5, 30)
    names = ("logp", "old_logp", "advantages", "entropies", "entropy_weights")
    arrays = {n: batch.arrays[n].clone() for n in names}
    arrays["entropy_weights"][:, ::3] = 0
    clean = gradients(made("dapo"), batch.counts(), {**arrays, "mask": batch.mask})
    for name in ("logp", "old_logp", "entropies", "entropy_weights"):
        arrays[name][~batch.mask] = math.nan
    arrays["entropies"][arrays["entropy_weights"] == 0] = math.inf
    poisoned = gradients(made("dapo"), batch.counts(), {**arrays, "mask": batch.mask})
    for a, b in zip(clean[:3], poisoned[:3]):
        assert torch.equal(a, b)


def table(seed, rows=4, width=7, vocabulary=11, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(rows, width, vocabulary, generator=g)).to(dtype)
    return (logits, torch.randint(0, vocabulary, (rows, width), generator=g),
            torch.rand(rows, width, generator=g) > 0.3, torch.randn(rows, generator=g),
            -1.5 + 0.3 * torch.randn(rows, width, generator=g))


@pytest.mark.parametrize("name", ("dapo", "gspo", "verl::cispo"))
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("in_place", (False, True))
def test_from_logits(name, mean, dtype, in_place):
    """The gradient by the logits is that of log_softmax and autograd."""
    loss = made(name, mean=mean)
    for seed in range(5):
        logits, targets, mask, advantages, old = table(seed, dtype=dtype)
        leaf = logits.clone().requires_grad_()
        got = loss.from_logits(leaf * 1, targets, counts=gdpo.count(mask=mask), mask=mask,
                               advantages=advantages, old_logp=old, in_place=in_place)
        got.loss.backward()
        x = logits.double().requires_grad_()
        all_logp = x.log_softmax(-1)
        logp = all_logp.gather(-1, targets[..., None]).squeeze(-1)
        entropies = -(all_logp.exp() * all_logp).sum(-1)
        want = reference.policy_loss(settings_of(loss), reference.count(mask), mask, logp,
                                     advantages=advantages, old_logp=old, entropies=entropies)
        want.loss.backward()
        relative = {torch.float16: 2 ** -10, torch.bfloat16: 2 ** -8}.get(dtype, 2e-6)
        least = 2 ** -25 if dtype == torch.float16 else 0.0  # half the spacing of subnormal numbers
        assert float(got.loss.detach()) == pytest.approx(float(want.loss.detach()),
                                                         abs=2e-6 * want.absolute)
        torch.testing.assert_close(leaf.grad.double(), x.grad, rtol=2 * relative,
                                   atol=2e-6 * float(x.grad.abs().max()) + least)


def test_a_step_of_its_parts_is_from_logits():
    """Log-probs, the loss and backward one after the other have the same bits."""
    logits, targets, mask, advantages, old = table(3)
    loss, counts = made("dapo"), gdpo.count(mask=mask)
    one = logits.clone().requires_grad_()
    loss.from_logits(one, targets, counts=counts, mask=mask, advantages=advantages,
                     old_logp=old).loss.backward()
    other = logits.clone().requires_grad_()
    logp, entropies, _ = gdpo.token_logprobs(other, targets, mask=mask)
    loss(logp, counts=counts, mask=mask, advantages=advantages, old_logp=old,
         entropies=entropies).loss.backward()
    assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("quantile", (0.0, 0.5, 0.8))
def test_tokens_of_high_entropy_alone(quantile):
    """The mean is that over the tokens which top_entropy keeps, as TRL and unsloth take it."""
    batch = random_batch(6, 5, 30)
    arrays = {n: batch.arrays[n] for n in ("logp", "old_logp", "advantages", "entropies")}
    top = f"top_entropy {quantile}"
    prepared = gdpo.prepare([top, f"{top} reach=entropy", "mean_one reach=entropy"],
                            logp=arrays["logp"], entropies=arrays["entropies"],
                            mask=batch.mask)
    _, _, by_entropies, metrics = gradients(made("dapo", 0.02), batch.counts(),
                                            {**arrays, **prepared.arrays()})
    valid = arrays["entropies"][batch.mask]
    kept = valid[valid >= torch.quantile(valid, quantile)]
    assert metrics["entropy_loss"] == pytest.approx(-0.02 * float(kept.mean()), rel=1e-12)
    assert int((by_entropies != 0).sum()) == len(kept)
    assert gdpo.prepare(top, logp=arrays["logp"], entropies=arrays["entropies"],
                        mask=batch.mask).entropy_weights is None


def test_what_is_refused():
    batch = random_batch(1, 2, 3, full=True)
    arrays = {"advantages": batch.arrays["advantages"], "counts": gdpo.count(mask=batch.mask)}
    with pytest.raises(ValueError, match=r"batch.entropies: given no array; needed: the entropies"):
        made("dapo")(batch.arrays["logp"], **arrays)
    for dtype in (torch.float32, torch.float16):
        logits, targets, mask, advantages, _ = table(1, 2, 3, dtype=dtype)
        with pytest.raises(ValueError, match=r"from_logits: batch.entropies: given an array, for a "
                                             r"loss with an entropy bonus"):
            made("dapo").from_logits(logits.requires_grad_(), targets, counts=arrays["counts"],
                                     advantages=advantages, mask=mask,
                                     entropies=batch.arrays["entropies"].float())
    with pytest.raises(ValueError, match="entropy.coef"):
        made("dapo", math.nan)
    with pytest.raises(ValueError, match="entropy.mean"):
        made("dapo", 0.1, "rows")


def test_compiled():
    batch = random_batch(3, 4, 16, dtype=torch.float32)
    arrays = {n: batch.arrays[n].float() for n in ("old_logp", "advantages")}
    loss, counts = made("dapo"), gdpo.count(mask=batch.mask)

    def step(logp, entropies):
        return loss(logp, counts=counts, mask=batch.mask, entropies=entropies, **arrays).loss

    results = []
    for f in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        inputs = [batch.arrays[n].float().requires_grad_() for n in ("logp", "entropies")]
        value = f(*inputs)
        value.backward()
        results.append([value.detach(), *(x.grad for x in inputs)])
    for a, b in zip(*results):
        assert torch.equal(a, b)


def test_the_controller():
    """By hand; the values are exact in binary."""
    controller = gdpo.AdaptiveEntropy(0.5, target=0.5, delta=0.25)
    assert controller.coef == 0  # nothing was measured yet
    assert controller.update(0.25) == controller.coef == 0.75
    assert controller.update(0.5) == 1.0 and controller.update(0.5) == 1.0  # at the bound
    saved = controller.state_dict()
    assert saved == {"coef": 1.0, "last_entropy": 0.5}
    assert controller.update(2.0) == 0 and controller.state_dict()["coef"] == 0.75
    other = gdpo.AdaptiveEntropy(target=0.5, delta=0.25)
    other.load_state_dict(saved)
    assert other.coef == 1.0 and other.update(2.0) == 0
    assert other.state_dict() == controller.state_dict()
    controller.update(math.nan)
    assert other.state_dict() == controller.state_dict()
    for mistake, words in ((dict(goal=1), "goal"), (dict(target=-1), "target"),
                           (dict(min_coef=2), "min_coef, max_coef")):
        with pytest.raises(ValueError, match=words):
            gdpo.AdaptiveEntropy(**mistake)
    with pytest.raises(ValueError, match="state: given none of last_entropy"):
        other.load_state_dict({"coef": 1.0})
