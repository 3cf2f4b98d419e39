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


def test_weights_by_a_teacher():
    teacher = OLD + 0.3 * torch.randn(4, 9, generator=torch.Generator().manual_seed(6))
    advantages = torch.tensor([1.0, -0.5, 0.25, -2.0])
    sign, gap = advantages.sign()[:, None].double(), teacher.double() - OLD.double()
    weights = gdpo.prepare("ms_swift::rlsd mix=0.4", old_logp=OLD, teacher_logp=teacher, mask=MASK,
                           advantages=advantages).weights
    expected = 0.6 + 0.4 * (sign * gap).exp().clamp(0.8, 1.2)
    # One rounding to float32.
    torch.testing.assert_close(weights[MASK].double(), expected[MASK], rtol=1.2e-7, atol=0)
    weights = gdpo.prepare("trl::iw_opd gain=0.7", old_logp=OLD, teacher_logp=teacher,
                           mask=MASK).weights
    size = gap.abs() * MASK
    before = size.cumsum(1) - size
    expected = 1 + 0.7 * (1 - before / size.sum(1, keepdim=True))
    torch.testing.assert_close(weights[MASK].double(), expected[MASK], rtol=1.2e-7, atol=0)


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
    assert prepared.weights is None and prepared.kl_weights is None
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
    arrays = prepared.arrays()
    assert arrays.keys() == {"mask", "weights", *(["kl_weights"] if "swift" in name else [])}
    for array in [arrays[name] for name in arrays if name != "mask"]:
        assert (array[~MASK] == 1).all()


def test_reach_level_gives_the_logs_of_the_weights():
    prepared = gdpo.prepare("trl::token_truncate reach=level", old_logp=OLD, rollout_logp=ROLLOUT,
                            mask=MASK)
    ratio = (OLD.double() - ROLLOUT.double()).exp().clamp(max=3)
    logs = torch.where(MASK, ratio.log(), torch.zeros(()))
    # The weight is rounded to float32, and its log once more.
    torch.testing.assert_close(prepared.level_log_weights.double(), logs.double(), rtol=1.2e-7,
                               atol=1.2e-7)
    assert prepared.weights is None
    logp, advantages = OLD + 0.1, torch.ones(4)
    loss = gdpo.PolicyLoss("gspo", beta=0.0, low=1.0, high=10.0)
    given = dict(old_logp=OLD, advantages=advantages)
    got = loss(logp, counts=gdpo.count(mask=MASK), **given, **prepared.arrays())
    ratios = (0.1 + logs.sum(1)).exp()
    n = MASK.sum(1)
    expected = -(ratios.clamp(max=11))[n > 0].sum() / 4
    assert got.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(ValueError, match="batch.level_log_weights: given an array"):
        gdpo.PolicyLoss("grpo", beta=0.0)(logp, counts=gdpo.count(mask=MASK), **given,
                                        **prepared.arrays())


def test_reach_level_counts_the_number_of_a_row_once():
    prepared = gdpo.prepare("trl::sequence_truncate reach=level", old_logp=OLD,
                            rollout_logp=ROLLOUT, mask=MASK)
    logs = ((OLD - ROLLOUT).double() * MASK).sum(1).clamp(min=math.log(1e-8), max=math.log(3))
    torch.testing.assert_close(prepared.level_log_weights.double().sum(1), logs, rtol=1e-6,
                               atol=1e-6)
    assert ((prepared.level_log_weights != 0).sum(1) <= 1).all()


@pytest.mark.parametrize("name", ["vespo", "trl::vespo", "gspo", "grpo sequence_token"])
@pytest.mark.parametrize("of_rows", [False, True])
def test_a_loss_of_prepared_arrays_is_that_of_logs_made_by_hand(name, of_rows):
    """The log of each weight at its token, or that of a row's weight once, wherever it stands."""
    prepared = gdpo.prepare(
        f"trl::{'sequence' if of_rows else 'token'}_truncate reach=level", old_logp=OLD,
        rollout_logp=ROLLOUT, mask=MASK)
    moved = torch.where(MASK, (OLD - ROLLOUT).double(), torch.zeros((), dtype=torch.float64))
    if of_rows:
        at = MASK & (MASK.flip(1).cumsum(1).flip(1) == 1)  # the last token of each row
        logs = torch.where(at, moved.sum(1, keepdim=True).clamp(max=math.log(3)), 0.0)
    else:
        logs = moved.clamp(max=math.log(3))
    results = []
    for arrays in (prepared.arrays(), {"mask": MASK, "level_log_weights": logs.float()}):
        at = (OLD + 0.1).requires_grad_()
        loss, metrics = gdpo.PolicyLoss(name, beta=0.0)(
            at, old_logp=OLD, advantages=torch.tensor([1.0, -0.5, 2.0, -1.0]),
            counts=gdpo.count(mask=MASK, given=20), **arrays)
        results.append((loss.detach(), torch.autograd.grad(loss, at)[0],
                        torch.tensor(metrics.mean("ratio"))))
    # The logs are rounded to float32, by up to 1e-7 of their sum.
    for prepared_one, by_hand in zip(*results):
        torch.testing.assert_close(prepared_one, by_hand, rtol=1e-5, atol=1e-7)
    assert results[0][1].abs().sum() > 0


def test_without_reach_level_there_are_no_logs():
    prepared = gdpo.prepare(["trl::token_mask", "overlong"], old_logp=OLD, rollout_logp=ROLLOUT,
                            mask=MASK, truncated=torch.zeros(4))
    assert prepared.level_log_weights is None
    assert "level_log_weights" not in prepared.arrays()
    operator = torch.ops.gdpo.prepare(["trl::token_mask"], old_logp=OLD, rollout_logp=ROLLOUT)
    assert operator[3].shape == operator[4].shape == (0,)  # of entropies, and the logs
    given = torch.rand(4, 9)
    kept = gdpo.prepare([], old_logp=OLD, mask=MASK, level_log_weights=given).level_log_weights
    assert torch.equal(kept, torch.where(MASK, given, torch.zeros(())))


def test_nothing_decided_is_no_weight():
    prepared = gdpo.prepare([], old_logp=OLD)
    assert (prepared.mask == 1).all() and prepared.arrays().keys() == {"mask"}
    assert math.isinf(prepared.entropy_threshold)


@pytest.mark.parametrize("reach", ["", *(f" reach={word}" for word in (
    "surrogate", "surrogate_and_kl", "kl", "entropy", "level", "mask", "none"))])
@pytest.mark.parametrize("name", gdpo.prepasses())
def test_python_and_the_operator_agree_on_the_weights_there_are(name, reach):
    """Python decides by the words of the line what is None, and what torch.compile is told."""
    line = f"top_entropy 0.5{reach}" if name == "top_entropy" else f"{name}{reach}"
    given = dict(old_logp=OLD, logp=OLD + 0.1, rollout_logp=ROLLOUT, teacher_logp=OLD, mask=MASK,
                 entropies=-OLD, tags=-OLD, token_advantages=OLD, truncated=torch.zeros(4),
                 segments=torch.zeros(4, 9, dtype=torch.int64))
    others = dict(degenerate=torch.zeros(4), groups=torch.zeros(4, dtype=torch.int64))
    try:
        made = torch.ops.gdpo.prepare([line], **others, **given)
    except RuntimeError as error:
        assert "reach" in str(error)  # a reach that this pre-pass does not have
        return
    prepared = gdpo.prepare(line, **others, **given)
    for array, there in zip(made[1:5], prepared[1:5]):
        assert (there is None) == (array.shape == (0,)) and array.shape in ((0,), OLD.shape)


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


LOGP = OLD + 0.4 * torch.randn(4, 9, generator=torch.Generator().manual_seed(5))
BATCH = {"logp": LOGP, "old_logp": OLD, "rollout_logp": ROLLOUT, "mask": MASK}
PAIRS = {"mismatch": (OLD, ROLLOUT), "update": (LOGP, OLD), "drift": (LOGP, ROLLOUT)}


def over(values, statistic, valid=MASK):
    """A statistic of values over the tokens of each row, at every token."""
    values = torch.where(valid, values, torch.zeros(()).double())
    counts = valid.sum(1, keepdim=True)
    kind = statistic.partition("_")[2]
    if statistic == "token":
        return values
    if kind == "max":
        return torch.where(valid, values, -math.inf).amax(1, keepdim=True).expand_as(values)
    if kind == "log_mean_exp":
        of_row = torch.where(valid, values, -math.inf).logsumexp(1, keepdim=True) - counts.log()
        return of_row.expand_as(values)
    return (values.sum(1, keepdim=True) / (counts if kind == "mean" else 1)).expand_as(values)


STATISTICS = ["token", "sequence_mean", "sequence_sum", "sequence_max", "sequence_log_mean_exp"]


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("pair", PAIRS)
def test_importance_of_every_pair_and_statistic(pair, statistic):
    line = f"importance pair={pair} statistic={statistic} clip.lo=0.2 clip.hi=3"
    weights = gdpo.prepare(line, **BATCH).weights
    left, right = (logp.double() for logp in PAIRS[pair])
    expected = over(left - right, statistic).exp().clamp(0.2, 3)
    # One rounding to float32.
    torch.testing.assert_close(weights.double()[MASK], expected[MASK], rtol=1.2e-7, atol=0)


def binary_kl(left, right):
    """KL(right || left) of "this token" and "any other"."""
    p, q = left.exp(), right.exp()
    return q * (right - left) + (1 - q) * ((1 - q) / (1 - p)).log()


ESTIMATES = {
    "ratio": lambda a, b: a - b,  # whose exponential is taken after the statistic
    "k1": lambda a, b: b - a, "k2": lambda a, b: (a - b) ** 2 / 2,
    "k3": lambda a, b: (a - b).exp() - 1 - (a - b),
    "reverse_k3": lambda a, b: (b - a).exp() - 1 - (b - a),
    "ratio_deviation": lambda a, b: ((a - b).exp() - 1).abs(),
    "probability_gain": lambda a, b: a.exp() - b.exp(),
    "binary_total_variation": lambda a, b: (a.exp() - b.exp()).abs(),
    "binary_kl": binary_kl, "reverse_binary_kl": lambda a, b: binary_kl(b, a),
    "signed_binary_kl": lambda a, b: binary_kl(a, b) * (a - b).sign()}


@pytest.mark.parametrize("statistic", STATISTICS[:4])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("estimator", ESTIMATES)
def test_gates_of_every_estimator(estimator, pair, statistic):
    """Between two of the estimates there is a bound, on whose sides the gate is open and closed."""
    batch = {**BATCH, "rollout_logp": ROLLOUT.clamp(max=-0.05), "logp": LOGP.clamp(max=-0.05),
             "old_logp": OLD.clamp(max=-0.05)}
    pairs = {"mismatch": ("old_logp", "rollout_logp"), "update": ("logp", "old_logp"),
             "drift": ("logp", "rollout_logp")}
    left, right = (batch[name].double() for name in pairs[pair])
    estimate = over(ESTIMATES[estimator](left, right), statistic)
    estimate = estimate.exp() if estimator == "ratio" else estimate
    middle = estimate[MASK].unique()
    at = len(middle) // 2
    bound = (middle[at - 1] + middle[at]).item() / 2
    line = f"gate estimator={estimator} pair={pair} statistic={statistic}"
    weights = gdpo.prepare(f"{line} max={bound!r}", **batch).weights
    assert torch.equal((weights != 0)[MASK], (estimate <= bound)[MASK])
    mask = gdpo.prepare(f"{line} min={bound!r} reach=mask", **batch).mask
    assert torch.equal(mask != 0, MASK & (estimate >= bound))


@pytest.mark.parametrize("when", ["negative_advantage", "outward"])
def test_gates_that_look_at_the_advantage(when):
    advantages = torch.randn(4, generator=torch.Generator().manual_seed(6))
    weights = gdpo.prepare(f"gate pair=update when={when} min=0.8 max=1.25",
                           advantages=advantages, **BATCH).weights
    x, a = (LOGP.double() - OLD.double()), advantages.double()[:, None]
    closed = ((x.exp() < 0.8) | (x.exp() > 1.25)) & ((a < 0) if when != "outward" else (a * x > 0))
    assert torch.equal((weights == 0)[MASK], closed[MASK])


@pytest.mark.parametrize("statistic", ["group_mean", "group_max"])
def test_statistics_of_groups(statistic):
    """Rows with equal numbers share the statistic of all their tokens."""
    groups = torch.tensor([7, -1, 7, -1])
    x = OLD.double() - ROLLOUT.double()
    weights = gdpo.prepare(f"importance statistic={statistic}", groups=groups, **BATCH).weights
    for group in (7, -1):
        valid = MASK & (groups == group)[:, None]
        expected = (x[valid].mean() if statistic == "group_mean" else x[valid].max()).exp()
        torch.testing.assert_close(weights[valid].double(), expected.expand(valid.sum()),
                                   rtol=1.2e-7, atol=0)
    with pytest.raises(ValueError, match="importance.groups: given no column; needed: one number"):
        gdpo.prepare(f"importance statistic={statistic}", **BATCH)


def test_statistics_of_segments():
    """A run of equal ids in a row shares the product of its ratios."""
    segments = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 0]).expand(4, 9)
    weights = gdpo.prepare("importance statistic=segment_sum", segments=segments, **BATCH).weights
    x = (OLD.double() - ROLLOUT.double()) * MASK
    expected = x.view(4, 3, 3).sum(2).exp().repeat_interleave(3, dim=1)
    torch.testing.assert_close(weights.double()[MASK], expected[MASK], rtol=1.2e-7, atol=0)


def test_a_weight_and_a_mask_in_one_line():
    weights = gdpo.prepare("masked_importance importance.clip.hi=2 gate.max=3", **BATCH).weights
    ratio = (OLD.double() - ROLLOUT.double()).exp()
    expected = torch.where(ratio <= 3, ratio.clamp(max=2), 0.0)
    torch.testing.assert_close(weights.double()[MASK], expected[MASK], rtol=1.2e-7, atol=0)


@pytest.mark.parametrize("of", ["tokens", "rows"])
def test_weights_with_the_mean_1(of):
    lines = ["importance clip.hi=2", "gate max=3", f"mean_one of={of}"]
    weights = gdpo.prepare(lines, **BATCH).weights.double()
    plain = gdpo.prepare(lines[:2], **BATCH).weights.double() * MASK
    mean = plain.sum() / MASK.sum() if of == "tokens" else (plain.sum(1) / MASK.sum(1)).mean()
    # A product and a quotient of float32 numbers.
    torch.testing.assert_close(weights[MASK], (plain / mean)[MASK], rtol=2.4e-7, atol=0)
    given = gdpo.prepare("mean_one", mask=MASK, weights=torch.full((4, 9), 2.5)).weights
    assert (given == 1).all()


def test_masked_tokens_of_lines_may_hold_anything():
    lines = ["importance statistic=sequence_mean", "gate estimator=binary_kl max=1", "mean_one"]
    clean = gdpo.prepare(lines, **BATCH)
    dirty = gdpo.prepare(lines, mask=MASK, **{
        name: torch.where(MASK, array, value) for (name, array), value in zip(
            list(BATCH.items())[:3], (math.nan, math.inf, -math.inf))})
    assert torch.equal(clean.weights, dirty.weights)


def test_twelve_passes_and_no_more():
    lines = ["gate max=3"] * 10 + ["masked_importance gate.max=3"]  # a chain of two
    prepared = gdpo.prepare(lines, **BATCH)
    assert torch.equal(prepared.weights, gdpo.prepare(lines[-1], **BATCH).weights)
    with pytest.raises(ValueError, match="passes: given 13; needed: at most 12"):
        gdpo.prepare([*lines, "gate max=3"], **BATCH)


@pytest.mark.parametrize("line, message", [
    ("importance reach=mask", "reach: given mask"), ("gate min=2 max=1", "gate.min, gate.max"),
    ("gate estimator=k9", "estimator: given 'k9'"), ("mean_one of=words", "of: given 'words'"),
    ("gate when=outward", "advantages"), ("importance clip=3", "clip")])
def test_mistakes_in_lines(line, message):
    with pytest.raises(ValueError, match=message):
        gdpo.prepare(line, **BATCH)


def test_unknown_names():
    with pytest.raises(ValueError, match="passes: given 'x'; needed: one of overlong, degenerate"
                                         "_groups, top_entropy QUANTILE, importance, gate"):
        gdpo.prepare("x", mask=MASK)


def test_operator():
    torch.library.opcheck(
        torch.ops.gdpo.prepare.default, (["trl::token_truncate", "overlong"],),
        dict(old_logp=OLD, rollout_logp=ROLLOUT, mask=MASK, truncated=torch.zeros(4)))


def test_names():
    for name in gdpo.prepasses():
        words = name + " 0.5" if name == "top_entropy" else name
        gdpo.prepare([words], logp=OLD, old_logp=OLD, rollout_logp=ROLLOUT, entropies=-OLD,
                     teacher_logp=ROLLOUT, tags=OLD, truncated=torch.zeros(4),
                     degenerate=torch.zeros(4), advantages=torch.ones(4))
