"""The mismatch report against its formulas in PyTorch, its merge and its keys."""
import pytest
import torch

import gdpo

G = torch.Generator().manual_seed(11)
OLD = -3 * torch.rand(6, 9, generator=G, dtype=torch.float64)
ROLLOUT = OLD + 0.3 * torch.randn(6, 9, generator=G, dtype=torch.float64)
MASK = torch.rand(6, 9, generator=G) > 0.3
MASK[:, 0] = True


def report(rows=slice(None), **options):
    return gdpo.mismatch(old_logp=OLD[rows], rollout_logp=ROLLOUT[rows], mask=MASK[rows], **options)


def test_numbers_are_their_formulas():
    r, x = report(), (OLD - ROLLOUT)[MASK]
    ratio = x.exp()
    row = torch.stack([(OLD - ROLLOUT)[i][MASK[i]].sum() for i in range(6)])
    wanted = {"scored": x.numel(), "rows": 6, "kl": -x.mean(), "k3_kl": (ratio - 1 - x).mean(),
              "reverse_k3_kl": ((-x).exp() - 1 + x).mean(), "abs_log_diff": x.abs().mean(),
              "prob_diff": (OLD.exp() - ROLLOUT.exp())[MASK].abs().mean(),
              "chi2_token": (ratio ** 2).mean() - 1, "chi2_product": (2 * row).exp().mean() - 1,
              "token_ess": ratio.sum() ** 2 / (x.numel() * (ratio ** 2).sum()),
              "ratio_max": ratio.max(), "product_min": row.exp().min()}
    for name, value in wanted.items():
        # Sums of about 40 numbers of float64.
        assert r[name] == pytest.approx(float(value), rel=1e-13), name
    place = int((OLD - ROLLOUT).masked_fill(~MASK, -9).argmax())
    assert (r["ratio_max.row"], r["ratio_max.token"]) == divmod(place, 9)


def test_any_order_of_merges_has_the_bits_of_one_report():
    whole = report()
    parts = [report(slice(i, i + 2), first_row=i) for i in (0, 2, 4)]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        merged = parts[order[0]].merge(parts[order[1]]).merge(parts[order[2]])
        assert torch.equal(merged.data, whole.data)
    with pytest.raises(ValueError, match="settings"):
        whole.merge(report(clamp=3.0))


def test_masked_places_change_no_bit():
    poison = ROLLOUT.masked_fill(~MASK, float("nan"))
    assert torch.equal(gdpo.mismatch(old_logp=OLD, rollout_logp=poison, mask=MASK).data,
                       report().data)


def test_packed_rows_have_the_same_bits():
    lengths = MASK.sum(1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    packed = gdpo.mismatch(old_logp=OLD[MASK], rollout_logp=ROLLOUT[MASK], offsets=offsets)
    for name in ("k3_kl", "chi2_product", "mean_ppl", "token_ess"):
        assert packed[name] == report()[name]


def test_a_correction_shows_in_the_report():
    prepared = gdpo.prepare("trl::token_truncate clip.hi=1.2", old_logp=OLD, rollout_logp=ROLLOUT,
                            mask=MASK)
    r = gdpo.mismatch(old_logp=OLD, rollout_logp=ROLLOUT, mask=prepared.mask,
                      weights=prepared.weights, completion_mask=MASK, keys="verl", bound=1.2)
    weights = (OLD - ROLLOUT).exp().clamp(max=1.2)[MASK]
    logged = r.to_dict("verl")
    # verl adds 1e-8 to the count.
    assert logged["rollout_corr/rollout_is_mean"] == pytest.approx(float(weights.mean()), rel=1e-9)
    assert r["dropped_share"] == 0
    gate = gdpo.prepare("gate max=1.1 reach=mask", old_logp=OLD, rollout_logp=ROLLOUT, mask=MASK)
    r = gdpo.mismatch(old_logp=OLD, rollout_logp=ROLLOUT, mask=gate.mask, completion_mask=MASK)
    dropped = ((OLD - ROLLOUT).exp() > 1.1) & MASK
    assert r["dropped_share"] == pytest.approx(float(dropped.sum() / MASK.sum()), rel=1e-6)


@pytest.mark.parametrize("keys", ["verl", "verl_sequence", "ms_swift", "ms_swift_sequence",
                                  "nemo_rl", "openrlhf", "skyrl", "trl", "unsloth"])
def test_keys_of_trainers(keys):
    assert report(keys=keys).to_dict(keys, "x/", positions=54)
    assert all(key.startswith("x/") for key in report(keys=keys).to_dict(keys, "x/"))


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="rollout_logp"):
        gdpo.mismatch(old_logp=OLD, rollout_logp=ROLLOUT[:, :3])
    with pytest.raises(ValueError, match="keys"):
        report(keys="trlx")
    with pytest.raises(ValueError, match="token_hi"):
        report(token_hi=2)
    with pytest.raises(KeyError, match="k3_kl"):
        report()["k4"]
