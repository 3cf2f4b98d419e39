"""Every loss by its name, its settings and its gradient against reference.py.

Tolerances. float64: 1e-9 of the sum of the absolute terms for the loss, and of the largest
gradient; that is rounding with room to spare. float32: 1e-6 of the sum of the absolute terms,
which the header loss/policy_loss.hpp documents for PolicyLoss; gradients have no documented bound,
so theirs is 1e-5 of each and 1e-6 of the largest.
"""
import dataclasses
import math
import random

import pytest
import torch

import gdpo
import reference
from batches import Batch, PER_TOKEN, call, expected, packed, random_batch
from reference import INF, OFF, Settings, settings_from

LAYOUTS = ("padded", "rank 3", "packed", "nested")
MASKS = (torch.bool, torch.uint8, torch.float32, torch.int64)
PLAIN = ("advantages", "old_logp", "ref_logp", "rollout_logp", "teacher_logp")

# What each loss sets, as the library lists it. A setting without a formula in the reference raises.
NAMED = {name: settings_from({s.name: s.value for s in gdpo.loss_settings(name) if s.value})
         for name in gdpo.losses()}


#: The surrogates that clip the ratio from below, and from above.
WITH_A_CLIP = {"low": ("ratio", "clipped", "positive_reinforce"), "high": ("ratio", "clipped")}
#: Settings of each factor that make it the same at every ratio.
CONSTANT_FACTORS = {
    "none": {}, "clipped_ratio": {"min_ratio": 1.1, "max_ratio": 1.1},
    "signed_ratio": {"positive_min": 0.7, "positive_max": 0.7, "negative_min": 0.9,
                     "negative_max": 0.9},
    "gamma": {"k_pos": 0, "lambda_pos": 0, "k_neg": 0, "lambda_neg": 0}, "ring": {}}


def needs(settings: Settings) -> dict:
    """What a loss of these settings cannot do without: the length of Dr.GRPO."""
    norm = settings.aggregate == "seq-mean-token-sum-norm"
    return {"constant": 64.0} if norm and not settings.padded_width else {}


def agrees(seed, got, want, dtype=torch.float64) -> None:
    """Asserts that loss and gradient are those of the reference, by the tolerances above."""
    (loss, gradient, _), (wanted, wanted_gradient, absolute) = got, want
    double = dtype == torch.float64
    off = abs(float(loss) - float(wanted))
    assert off <= (1e-9 if double else 1e-6) * absolute, (
        f"seed {seed}: loss {float(loss)}, reference {float(wanted)}")
    largest = float(wanted_gradient.abs().max()) if wanted_gradient.numel() else 0.0
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=1e-9 if double else 1e-5,
                               atol=(1e-9 if double else 1e-6) * largest,
                               msg=lambda text: f"seed {seed}: gradient: {text}")


# Laws.

def test_settings_are_read_from_the_lists():
    clamped = dict(kl_input=(-20.0, 20.0), kl_output=(-10.0, 10.0))
    assert NAMED["grpo"] == Settings()
    assert NAMED["verl::vanilla"] == Settings(
        beta=0.0, dual=3.0, map="clamp", map_bounds=(-20.0, 20.0), aggregate="token-mean",
        over="tokens", **clamped)
    assert NAMED["verl::v0_9_0::gspo"] == Settings(
        level="sequence_token", beta=0.0, level_bounds=(-INF, 10.0), row_count_eps=1e-8,
        over="non_empty_rows", **clamped)
    assert NAMED["slime::cispo"] == Settings(
        surrogate="reinforce", factor="clipped_ratio", min_ratio=0.8, max_ratio=1.2, beta=0.0,
        kl="k1", over="given", kl_input=OFF)
    assert NAMED["torchrl::cispo"] == Settings(
        surrogate="clipped", beta=0.0, aggregate="token-mean", over="tokens")
    assert NAMED["up_grpo"] == Settings(
        surrogate="positive_reinforce", dual=3.0, beta=0.0, aggregate="token-mean", over="tokens")
    assert NAMED["topr"] == Settings(
        surrogate="reinforce", factor="signed_ratio", beta=0.0, aggregate="token-mean",
        over="tokens")
    assert NAMED["verl::sapo"] == Settings(
        surrogate="soft", beta=0.0, map="clamp", map_bounds=(-20.0, 20.0), row_count_eps=1e-8,
        over="non_empty_rows", **clamped)
    assert NAMED["verl::geo_mean"] == Settings(
        level="sequence", map="trust_region", low=INF, high=INF, beta=0.0, level_eps=1e-8,
        row_count_eps=1e-8, **clamped)
    assert NAMED["trl::vespo"] == Settings(
        level="sequence", map="clamp", map_bounds=(-20.0, 20.0), statistic="sum",
        level_bounds=(math.log(1e-8), 20.0), surrogate="reinforce", factor="gamma", beta=0.0,
        aggregate="token-mean", over="given")
    assert NAMED["trinity::sppo"] == Settings(
        surrogate="log_ratio", beta=0.0, aggregate="token-mean", over="tokens", count_eps=1e-8)
    assert NAMED["trinity::sft_phi"] == Settings(
        surrogate="likelihood", factor="probability", decay=1.0, beta=0.0, aggregate="token-mean",
        over="tokens", count_eps=1e-8)
    assert NAMED["trinity::rec"] == Settings(
        surrogate="reinforce", factor="ring", low=INF, high=INF, min_ratio=1.0, max_ratio=1.0,
        beta=0.0, kl="k2", against="old", aggregate="token-mean", over="tokens", count_eps=1e-8)
    assert NAMED["trl::rloo"] == Settings(level="sequence", statistic="sum", beta=0.0)


@pytest.mark.parametrize("changed", [{"surrogate.low": None}, {"surrogate.tau_pos": "1"},
                                     {"factor.power": "2"}, {"level.map.lo": "-1"},
                                     {"kl.gradient": "none"}], ids=str)
def test_an_unknown_setting_is_an_error(changed):
    """Else a loss whose formula the reference lacks would be taken for another one."""
    values = {s.name: s.value for s in gdpo.loss_settings("grpo") if s.value} | changed
    with pytest.raises((ValueError, KeyError)):
        settings_from({name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize("name", sorted(NAMED))
def test_micro_batches_add_up(name):
    """Losses and gradients of halves, divided by the counts of the step, are those of the step."""
    batch = random_batch(11, 8, 20)
    settings = NAMED[name]
    loss = gdpo.PolicyLoss(name, **needs(settings))
    counts = batch.counts(given=40)
    arrays = {name: batch.arrays[name] for name in PLAIN + ("logp",)} | {"mask": batch.mask}
    whole = call(loss, counts, arrays)
    halves = [call(loss, counts, {key: value[rows] for key, value in arrays.items()})
              for rows in (slice(0, 3), slice(3, 8))]
    torch.testing.assert_close(halves[0][0] + halves[1][0], whole[0], rtol=1e-13, atol=1e-15)
    assert torch.equal(torch.cat([halves[0][1], halves[1][1]]), whole[1])


@pytest.mark.parametrize("name", [n for n in sorted(NAMED) if NAMED[n].level != "sequence_token"
                                  and NAMED[n].factor in CONSTANT_FACTORS])
def test_gradient_is_that_of_the_loss(name):
    """Numerical derivatives agree with the analytic gradient, away from the kinks of clips.

    Sequence-token losses are left out: their gradient is by definition not that of their value. So
    are those of detached factors and of KL terms whose gradient is another's, and so these get
    settings that make the factor a constant, and the KL's own gradient. A factor that no setting
    makes one is left out too.
    """
    batch = random_batch(5, 3, 6)
    settings = NAMED[name]
    wide = {f"surrogate.{end}": 0.9 for end in ("low", "high")
            if settings.surrogate in WITH_A_CLIP[end]}
    if settings.surrogate == "log_ratio":
        wide = {"epsilon": INF}
    gate = {"gate_beta": 0} if settings.gate_beta < INF else {}
    own_kl = {"kl": settings.kl.rstrip("+~")} if settings.kl.endswith(("+", "~")) else {}
    loss = gdpo.PolicyLoss(name, **wide, **gate, **own_kl, **CONSTANT_FACTORS[settings.factor],
                           beta=0.3, **needs(settings))
    counts = torch.tensor(batch.counts(given=9), dtype=torch.float64)
    arrays = {name: batch.arrays[name] for name in PLAIN}
    arrays["old_logp"] = batch.arrays["logp"] + 0.3 * (arrays["old_logp"] - batch.arrays["logp"])
    logp = batch.arrays["logp"].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: loss(x, counts=counts, mask=batch.mask, **arrays).loss, (logp,), eps=1e-6,
        atol=1e-8, rtol=1e-6)


def test_gradient_of_sums_and_multiples():
    """The chain rule: a multiple of the loss, and its sum with another loss of the same logp."""
    batch = random_batch(3, 4, 9)
    loss = gdpo.PolicyLoss("grpo")
    counts = torch.tensor(batch.counts(), dtype=torch.float64)
    arrays = {name: batch.arrays[name] for name in PLAIN} | {"mask": batch.mask}
    logp = batch.arrays["logp"].clone().requires_grad_()
    (own,) = torch.autograd.grad(loss(logp, counts=counts, **arrays).loss, logp)
    (sum_of_both,) = torch.autograd.grad(
        -2.5 * loss(logp, counts=counts, **arrays).loss + (logp ** 2).sum(), logp)
    torch.testing.assert_close(sum_of_both, -2.5 * own + 2 * logp.detach(), rtol=1e-14, atol=1e-15)


def test_gradient_flows_through_logp():
    """What logp was computed from gets its gradient."""
    batch = random_batch(4, 4, 9)
    settings = NAMED["dapo"]
    counts = batch.counts()
    own = call(gdpo.PolicyLoss("dapo"), counts,
               {name: batch.arrays[name] for name in ("logp", "old_logp", "advantages")}
               | {"mask": batch.mask})[1]
    logits = batch.arrays["logp"].clone().requires_grad_()
    gdpo.PolicyLoss("dapo")(logits * 1.0, counts=torch.tensor(counts, dtype=torch.float64),
                            old_logp=batch.arrays["old_logp"],
                            advantages=batch.arrays["advantages"], mask=batch.mask).loss.backward()
    assert torch.equal(logits.grad, own)
    assert settings.beta == 0


def test_two_backwards_through_one_graph_add_up():
    """retain_graph=True twice: the gradient accumulates, exactly twice itself."""
    batch = random_batch(6, 4, 9)
    logp = batch.arrays["logp"].clone().requires_grad_()
    loss = gdpo.PolicyLoss("dapo")(logp, counts=torch.tensor(batch.counts(), dtype=torch.float64),
                                   mask=batch.mask, advantages=batch.arrays["advantages"]).loss
    loss.backward(retain_graph=True)
    once = logp.grad.clone()
    loss.backward()
    assert torch.equal(logp.grad, 2 * once) and once.abs().sum() > 0


@pytest.mark.parametrize("name", sorted(NAMED))
def test_masked_tokens_have_gradient_zero(name):
    """Exactly 0, and no -0 or NaN, whatever stands there."""
    batch = random_batch(8, 6, 12)
    loss = gdpo.PolicyLoss(name, **needs(NAMED[name]))
    arrays = {key: batch.arrays[key] for key in PLAIN + ("logp",)} | {"mask": batch.mask}
    _, gradient, _ = call(loss, batch.counts(given=5), arrays)
    assert torch.equal(gradient[~batch.mask], torch.zeros_like(gradient[~batch.mask]))


# Random shapes, types and layouts.

def random_case(seed: int):
    """A loss with settings, the names of the arrays it gets, and the layout they are in."""
    choose = random.Random(seed)
    name = sorted(NAMED)[seed % len(NAMED)]
    dtype = torch.float32 if seed // len(NAMED) % 2 else torch.float64
    settings, given = NAMED[name], needs(NAMED[name])
    settings = dataclasses.replace(settings, **given)
    beta = choose.choice((None, 0.0, 0.07))
    if beta is not None:
        settings, given["beta"] = dataclasses.replace(settings, beta=beta), beta
    if choose.random() < 0.3:
        given["level"] = choose.choice(("token", "sequence", "sequence_token"))
        settings = reference.with_level(settings, given["level"])
    names = [choose.choice(("advantages", "token_advantages"))]
    names += [array for array, share in (("old_logp", 0.9), ("weights", 0.4), ("kl_weights", 0.4),
                                         ("row_weights", 0.4)) if choose.random() < share]
    if settings.level != "token" and choose.random() < 0.6:
        names.append("segments")
    if settings.beta and f"{settings.against}_logp" not in names:
        names.append(f"{settings.against}_logp")
    return name, settings, given, tuple(names), dtype, choose


def laid_out(batch: Batch, names: tuple, dtype, layout: str, choose: random.Random):
    """The arrays of a call in that layout, and how its gradient goes back to (rows, tokens)."""
    arrays = {}
    for name in names + ("logp",):
        array = batch.arrays[name]
        arrays[name] = array.to(dtype) if array.is_floating_point() else array
        if name == "segments":
            arrays[name] = array.to(choose.choice((torch.int32, torch.int64)))
    mask = batch.mask.to(choose.choice(MASKS))
    rows, width = batch.mask.shape
    if layout == "padded":
        return {**arrays, "mask": mask}, lambda gradient: gradient
    if layout == "rank 3":
        prompts = choose.choice([p for p in (1, 2, 3) if rows % p == 0])
        shape = (prompts, rows // prompts)
        columns = choose.random() < 0.5  # columns may have two axes as well, or one
        shaped = {name: array.reshape(*shape, width) if name in PER_TOKEN
                  else array.reshape(shape) if columns else array for name, array in arrays.items()}
        return ({**shaped, "mask": mask.reshape(*shape, width)},
                lambda gradient: gradient.reshape(rows, width))
    # The last valid token of a row ends it; some rows keep masked tokens behind it.
    ends = (batch.mask * torch.arange(1, width + 1)).amax(1)
    lengths = torch.tensor([choose.randint(int(end), width) for end in ends])
    offsets = choose.choice((torch.int32, torch.int64))
    lying = packed(Batch(mask, arrays), lengths, offsets)
    keep = torch.arange(width)[None] < lengths[:, None]

    def back(gradient):
        padded = torch.zeros(rows, width, dtype=gradient.dtype)
        padded[keep] = gradient
        return padded

    if layout == "nested":
        at = lying.pop("offsets").long()
        lying = {name: torch.nested.nested_tensor_from_jagged(array, at)
                 if name in PER_TOKEN else array for name, array in lying.items()}
        return lying, lambda gradient: back(gradient.values())
    return lying, back


@pytest.mark.parametrize("seed", range(200))
def test_random_batches(seed):
    """A loss by name on a random shape, with random masks, types, arrays and layout."""
    name, settings, given, names, dtype, choose = random_case(seed)
    layout = choose.choice(LAYOUTS)
    batch = random_batch(seed, dtype=dtype)
    arrays, back = laid_out(batch, names, dtype, layout, choose)
    counts = batch.counts(given=37.0)
    if "level" in given:
        loss = gdpo.PolicyLoss(name, given.pop("level"), **given)
    else:
        loss = gdpo.PolicyLoss(name, **given)
    if not batch.mask.any():
        assert float(call(loss, counts, arrays)[0]) == 0
        return
    value, gradient, metrics = call(loss, counts, arrays)
    agrees(f"{seed}, {loss.line}, {layout}, {dtype}, {names}", (value, back(gradient), metrics),
           expected(settings, counts, batch, names), dtype)


def test_packed_and_padded_have_the_same_bits():
    """A layout says where a number lies, and not what is computed from it."""
    batch = random_batch(21, 7, 33)
    batch.mask[:] = torch.arange(33)[None] < torch.tensor([33, 1, 0, 12, 20, 5, 32])[:, None]
    counts = batch.counts()
    loss = gdpo.PolicyLoss("grpo")
    arrays = {name: batch.arrays[name] for name in PLAIN + ("logp",)}
    padded = call(loss, counts, {**arrays, "mask": batch.mask})
    lying = packed(Batch(batch.mask, arrays), batch.mask.sum(1))
    del lying["mask"]
    behind = call(loss, counts, lying)
    assert torch.equal(padded[0], behind[0])
    assert torch.equal(padded[1][batch.mask], behind[1])


# Settings, one by one.

SETTINGS = [
    dict(low=0.05), dict(high=0.05), dict(low=float("inf")), dict(high=float("inf")),
    dict(delta=1.1), dict(delta=0.7), dict(dual=1.3), dict(dual=1.1, high=0.5),
    dict(beta=0.5), dict(beta=0.0), dict(kl="k1"), dict(kl="kl"), dict(kl="abs"), dict(kl="k2"),
    dict(kl="mse"), dict(kl="k3"), dict(kl="low_var_kl"), dict(kl="k1+"), dict(kl="abs+"),
    dict(kl="k3+"), dict(kl="k2+"), dict(kl="k3*"), dict(kl="k1*"),
    dict(against="old"), dict(against="teacher"), dict(against="rollout"), dict(against="ref"),
    dict(against="data"), dict(against="data", kl="k2"),
    dict(aggregate="token-mean"), dict(aggregate="token-sum"), dict(aggregate="seq-mean-token-sum"),
    dict(aggregate="seq-mean-token-mean"), dict(aggregate="seq-mean-token-sum-norm"),
    dict(aggregate="seq-mean-token-sum-norm", constant=11), dict(over="tokens"), dict(over="rows"),
    dict(over="non_empty_rows"), dict(over="given"), dict(count_eps=0.5), dict(row_count_eps=0.5),
    dict(scale=-3.0), dict(aggregate="seq-mean-token-sum-norm", padded_width=True),
    dict(aggregate="seq-mean-token-sum-norm", padded_width=False, constant=12),
    dict(aggregate="token-mean", over="given", count_eps=0.1, scale=2),
]
#: verl's names of the estimators.
ALSO_CALLED = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


def batch_with_an_empty_row() -> Batch:
    """Without an empty row, "rows" and "non_empty_rows" would be the same count."""
    batch = random_batch(17, 6, 23)
    batch.mask[2] = False
    return batch


@pytest.mark.parametrize("level", ("token", "sequence", "sequence_token"))
@pytest.mark.parametrize("changed", SETTINGS, ids=str)
def test_each_setting(changed, level):
    """One setting replaced, the others those of GRPO: the reference with that setting."""
    settings = reference.with_level(NAMED["grpo"], level)
    own = dict(changed)
    if "aggregate" in own:
        settings = reference.with_aggregate(settings, own.pop("aggregate"))
    own["kl"] = ALSO_CALLED.get(own.get("kl", "k3"), own.get("kl", "k3"))
    settings = dataclasses.replace(settings, **own)
    batch = batch_with_an_empty_row()
    names = ("advantages", "old_logp", "ref_logp", "teacher_logp", "rollout_logp")
    arrays = {name: batch.arrays[name] for name in names + ("logp",)} | {"mask": batch.mask}
    counts = batch.counts(given=19)
    called = {"aggregate_count_eps" if name == "count_eps" else name: value  # levels have one too
              for name, value in changed.items()}
    got = call(gdpo.PolicyLoss("grpo", level, **called), counts, arrays)
    agrees(f"17, {changed}", got, expected(settings, counts, batch, names))


@pytest.mark.parametrize("changed", [s for s in SETTINGS if s not in (
    dict(kl="k3"), dict(kl="low_var_kl"), dict(against="ref"), dict(over="rows"))], ids=str)
def test_each_setting_has_an_effect(changed):
    """A setting that is dropped on its way would leave loss and gradient as they are."""
    batch = batch_with_an_empty_row()
    names = ("advantages", "old_logp", "ref_logp", "teacher_logp", "rollout_logp", "logp")
    arrays = {name: batch.arrays[name] for name in names} | {"mask": batch.mask}
    counts = batch.counts(given=19)
    plain = call(gdpo.PolicyLoss("grpo"), counts, arrays)
    other = call(gdpo.PolicyLoss("grpo", **changed), counts, arrays)
    assert plain[0] != other[0] or not torch.equal(plain[1], other[1]), changed


#: Settings of CISPO; the first are without an effect on its default.
CISPO_SETTINGS = [
    dict(min_ratio=0.0), dict(max_ratio=5.0), dict(min_ratio=0.9), dict(max_ratio=1.1),
    dict(max_ratio=0.2), dict(min_ratio=0.9, max_ratio=1.1), dict(min_ratio=1.2, max_ratio=1.2),
    dict(min_ratio=0.8, max_ratio=float("inf")), dict(max_ratio=1.1, beta=0.5),
    dict(max_ratio=1.1, beta=0.5, kl="k3*"), dict(max_ratio=1.1, beta=0.5, kl="k1+"),
    dict(max_ratio=1.1, aggregate="seq-mean-token-mean"), dict(max_ratio=1.1, over="given"),
    dict(max_ratio=1.1, scale=-2.0),
]


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32), ids=str)
@pytest.mark.parametrize("level", ("token", "sequence", "sequence_token"))
@pytest.mark.parametrize("changed", CISPO_SETTINGS, ids=str)
def test_each_setting_of_cispo(changed, level, dtype):
    """Loss and gradient of -A clip(r) logp, whose clip(r) autograd takes for a constant."""
    settings, own = reference.with_level(NAMED["cispo"], level), dict(changed)
    if "aggregate" in own:
        settings = reference.with_aggregate(settings, own.pop("aggregate"))
    settings = dataclasses.replace(settings, **own)
    batch = random_batch(17, 6, 23, dtype=dtype)
    batch.mask[2] = False
    names = PLAIN + ("weights", "row_weights", "segments")
    counts = batch.counts(given=19)
    for advantages in ("advantages", "token_advantages"):
        given = tuple(advantages if name == "advantages" else name for name in names)
        arrays = {name: batch.arrays[name].to(dtype) if batch.arrays[name].is_floating_point()
                  else batch.arrays[name] for name in given + ("logp",)} | {"mask": batch.mask}
        got = call(gdpo.PolicyLoss("cispo", level, **changed), counts, arrays)
        agrees(f"17, {changed}, {advantages}", got, expected(settings, counts, batch, given), dtype)


@pytest.mark.parametrize("changed", CISPO_SETTINGS[2:], ids=str)
def test_each_setting_of_cispo_has_an_effect(changed):
    batch = batch_with_an_empty_row()
    arrays = {name: batch.arrays[name] for name in PLAIN + ("logp",)} | {"mask": batch.mask}
    counts = batch.counts(given=19)
    plain = call(gdpo.PolicyLoss("cispo"), counts, arrays)
    other = call(gdpo.PolicyLoss("cispo", **changed), counts, arrays)
    assert plain[0] != other[0] or not torch.equal(plain[1], other[1])


def test_clipped_tokens_of_cispo_keep_a_gradient():
    """Every token with an advantage has one, which for PPO's clip is 0 beyond its range."""
    batch = random_batch(23, 5, 30, spread=2.0, full=True)
    arrays = {name: batch.arrays[name] for name in ("logp", "old_logp", "advantages")}
    counts = batch.counts()
    _, gradient, metrics = call(gdpo.PolicyLoss("cispo", max_ratio=1.2), counts, arrays)
    assert metrics["clip_fraction_high.sum"] > 0 and (gradient != 0).all()
    assert (call(gdpo.PolicyLoss("grpo", beta=0.0), counts, arrays)[1] == 0).any()


def test_cispo_of_16_bits():
    """bfloat16 log-probs are read as float32, and their gradient is rounded once."""
    batch = random_batch(27, 4, 21, dtype=torch.bfloat16)
    arrays = {name: batch.arrays[name].bfloat16() for name in ("logp", "old_logp")}
    arrays |= {"advantages": batch.arrays["advantages"].float(), "mask": batch.mask}
    wide = {name: value.float() if value.is_floating_point() else value
            for name, value in arrays.items()}
    loss = gdpo.PolicyLoss("cispo", min_ratio=0.7, max_ratio=1.3)
    got, want = (call(loss, batch.counts(), given) for given in (arrays, wide))
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1].bfloat16())
    settings = dataclasses.replace(NAMED["cispo"], min_ratio=0.7, max_ratio=1.3)
    agrees(27, want, expected(settings, batch.counts(), batch, ("advantages", "old_logp")),
           torch.float32)


def test_padded_width_stands_in_for_the_constant():
    """Dr.GRPO without its constant divides by the width of the batch, if asked to."""
    settings = dataclasses.replace(NAMED["dr_grpo"], padded_width=True)
    batch = batch_with_an_empty_row()
    arrays = {name: batch.arrays[name] for name in PLAIN + ("logp",)} | {"mask": batch.mask}
    got = call(gdpo.PolicyLoss("dr_grpo", padded_width=True), batch.counts(), arrays)
    agrees(17, got, expected(settings, batch.counts(), batch, PLAIN))
    with pytest.raises(ValueError, match="constant: given"):
        gdpo.PolicyLoss("dr_grpo", padded_width=False)


@pytest.mark.parametrize("name", [name for name in sorted(NAMED) if NAMED[name] != Settings()])
def test_clamps_of_trainers(name):
    """Log ratios far beyond the clamps of verl, ms-swift and open-instruct.

    spread 9: of 300 log ratios some are beyond +-20, and many K3 beyond 10.
    """
    settings = dataclasses.replace(NAMED[name], beta=0.3, **needs(NAMED[name]))
    batch = random_batch(29, 6, 50, spread=9.0)
    if NAMED[name].level != "token":  # the mean over a row must be beyond its bound, too
        batch.arrays["old_logp"][0] -= 15
        batch.mask[0] = True
    counts = batch.counts(given=77)
    arrays = {key: batch.arrays[key] for key in PLAIN + ("logp",)} | {"mask": batch.mask}
    got = call(gdpo.PolicyLoss(name, beta=0.3, **needs(NAMED[name])), counts, arrays)
    agrees(29, got, expected(settings, counts, batch, PLAIN))


def test_on_policy_ratio_is_one():
    """Without old_logp the ratio is exactly 1 and its gradient is -A times the row's weight."""
    batch = random_batch(31, 3, 8, full=True)
    counts = batch.counts()
    arrays = {name: batch.arrays[name] for name in ("logp", "advantages")}
    loss, gradient, _ = call(gdpo.PolicyLoss("dapo"), counts, arrays)
    torch.testing.assert_close(loss, -batch.arrays["advantages"].mean(), rtol=1e-14, atol=0)
    want = -batch.arrays["advantages"][:, None].expand(3, 8) / 24
    torch.testing.assert_close(gradient, want, rtol=1e-15, atol=0)
