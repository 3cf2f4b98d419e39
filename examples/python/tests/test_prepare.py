"""Pre-passes against what they say in plain PyTorch, and through the loss."""
import math

import pytest
import torch

import gdpo

OLD = -2 * torch.rand(4, 9, generator=torch.Generator().manual_seed(1))
ROLLOUT = OLD + torch.randn(4, 9, generator=torch.Generator().manual_seed(2))
MASK = torch.rand(4, 9, generator=torch.Generator().manual_seed(3)) > 0.3


def test_token_weights_are_the_clipped_ratio():
    weights = gdpo.prepare(["trl::token_truncate"], old_logp=OLD, rollout_logp=ROLLOUT,
                           mask=MASK).weights
    ratio = (OLD.double() - ROLLOUT.double()).exp().clamp(max=3)
    # One rounding to float32.
    torch.testing.assert_close(weights[MASK].double(), ratio[MASK], rtol=1.2e-7, atol=0)


def test_sequence_weights_are_the_product_of_the_row():
    weights = gdpo.prepare(["trl::sequence_truncate"], old_logp=OLD, rollout_logp=ROLLOUT,
                           mask=MASK).weights
    ratio = ((OLD - ROLLOUT).double() * MASK).sum(1).exp().clamp(max=3)
    torch.testing.assert_close(weights.double()[MASK], ratio[:, None].expand(4, 9)[MASK],
                               rtol=1.2e-7, atol=0)


def test_a_mask_that_drops_tokens_keeps_the_counts():
    prepared = gdpo.prepare(["trl::token_mask"], old_logp=OLD,
                            rollout_logp=ROLLOUT, mask=MASK)
    ratio = (OLD - ROLLOUT).exp()
    assert torch.equal(prepared.weights[MASK] == 0, (ratio > 3)[MASK])
    assert torch.equal(prepared.mask != 0, MASK)


def test_overlong_rows_leave_the_mask_and_the_counts():
    truncated = torch.tensor([0, 1, 0, 0])
    prepared = gdpo.prepare(["overlong"], mask=MASK, truncated=truncated)
    assert torch.equal(prepared.mask != 0, MASK & (truncated == 0)[:, None])
    assert (prepared.weights == 1).all() and (prepared.kl_weights == 1).all()
    assert gdpo.count(mask=prepared.mask)[0] == MASK[truncated == 0].sum()


def test_degenerate_groups_leave_the_mask():
    degenerate = torch.tensor([1, 1, 0, 0])
    prepared = gdpo.prepare(["degenerate_groups"], mask=MASK, degenerate=degenerate)
    assert torch.equal(prepared.mask != 0, MASK & (degenerate == 0)[:, None])


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.8])
def test_top_entropy_takes_the_quantile_of_pytorch(quantile):
    entropies = -OLD
    prepared = gdpo.prepare([f"top_entropy {quantile}"], entropies=entropies, mask=MASK)
    threshold = torch.quantile(entropies[MASK].double(), quantile)
    assert prepared.entropy_threshold.item() == pytest.approx(threshold.item(), rel=1e-12)
    assert torch.equal(prepared.weights[MASK] != 0, (entropies >= threshold)[MASK])


@pytest.mark.parametrize("name", ["trl::token_truncate", "trl::sequence_truncate",
                                  "ms_swift::sequence_truncate"])
def test_weights_of_masked_tokens_are_1(name):
    prepared = gdpo.prepare(name, old_logp=OLD, rollout_logp=ROLLOUT, mask=MASK)
    assert (prepared.weights[~MASK] == 1).all() and (prepared.kl_weights[~MASK] == 1).all()


def test_nothing_decided_is_all_one():
    prepared = gdpo.prepare([], old_logp=OLD)
    assert (prepared.mask == 1).all() and (prepared.weights == 1).all()
    assert math.isinf(prepared.entropy_threshold)


def test_given_masks_and_weights_are_kept():
    given = torch.rand(4, 9)
    prepared = gdpo.prepare(["overlong"], mask=MASK, weights=given, truncated=torch.zeros(4))
    assert torch.equal(prepared.weights, torch.where(MASK, given, torch.ones(())))
    assert torch.equal(prepared.mask != 0, MASK)


@pytest.mark.parametrize("offsets", [torch.int32, torch.int64])
def test_packed_rows_as_padded_ones(offsets):
    lengths = MASK.sum(1)
    ends = torch.cat([torch.zeros(1), lengths.cumsum(0)]).to(offsets)
    packed = gdpo.prepare(["trl::sequence_truncate"], old_logp=OLD[MASK],
                          rollout_logp=ROLLOUT[MASK], offsets=ends)
    padded = gdpo.prepare(["trl::sequence_truncate"], old_logp=OLD, rollout_logp=ROLLOUT,
                          mask=MASK)
    assert torch.equal(packed.weights, padded.weights[MASK])


def test_the_loss_takes_what_was_prepared():
    logp = (OLD + 0.1).requires_grad_()
    advantages = torch.randn(4, generator=torch.Generator().manual_seed(4))
    prepared = gdpo.prepare(["trl::token_truncate", "overlong"], old_logp=OLD,
                            rollout_logp=ROLLOUT, mask=MASK,
                            truncated=torch.tensor([0, 0, 1, 0]))
    counts = gdpo.count(mask=prepared.mask)
    loss, _ = gdpo.PolicyLoss("dapo")(logp, old_logp=OLD, advantages=advantages, counts=counts,
                                      **prepared.arrays())
    ratio = (logp.detach() - OLD).double().exp()
    a = advantages.double()[:, None]
    surrogate = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.28))
    plain = (surrogate * prepared.weights * prepared.mask).sum() / counts[0]
    # Sums of 36 terms in float32.
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)


def test_unknown_names():
    with pytest.raises(ValueError, match="passes: given 'x'; needed: one of overlong, degenerate"
                                         "_groups, top_entropy QUANTILE, trl::token_truncate"):
        gdpo.prepare("x", mask=MASK)


def test_operator():
    torch.library.opcheck(
        torch.ops.gdpo.prepare.default, (["trl::token_truncate", "overlong"],),
        dict(old_logp=OLD, rollout_logp=ROLLOUT, mask=MASK, truncated=torch.zeros(4)))


def test_names():
    for name in gdpo.prepasses():
        words = name + " 0.5" if name == "top_entropy" else name
        gdpo.prepare([words], logp=OLD, old_logp=OLD, rollout_logp=ROLLOUT, entropies=-OLD,
                     truncated=torch.zeros(4), degenerate=torch.zeros(4),
                     advantages=torch.ones(4))
