"""Around the loss: plans, packs, selected groups, the step, the gradient's norm, the reference."""
import copy

import pytest
import torch

import gdpo

SEED = 20261129


def random_of(seed=SEED):
    print("seed", seed)
    return torch.Generator().manual_seed(seed)


# ---- plan ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("settings", [
    dict(mini_batches=0, accumulation=8, micro_batch=4, ranks=8),
    dict(epochs=3, mini_batches=4, shuffle="every_epoch", seed=2**63 + 5, ranks=2, accumulation=4),
    dict(mini_batches=5, remainder="spread", ranks=3),
    dict(mini_batches=5, remainder="drop", epochs=2),
    dict(mini_batches=4, whole="in_step", group_size=8, shuffle="once"),
])
def test_every_row_once_an_epoch(settings):
    rows = 512
    cut = gdpo.plan(rows, **settings)
    assert cut.steps == cut.epochs * cut.mini_batches
    for epoch in range(cut.epochs):
        steps = range(epoch * cut.mini_batches, (epoch + 1) * cut.mini_batches)
        used = torch.cat([cut.rows(step) for step in steps])
        assert sorted([*used.tolist(), *cut.dropped(epoch).tolist()]) == list(range(rows))
        for step in steps:
            of_ranks = [cut.rows(step, rank) for rank in range(cut.ranks)]
            assert torch.equal(torch.cat(of_ranks), cut.rows(step))
            for rank, mine in enumerate(of_ranks):
                parts = [cut.rows(step, rank, k) for k in range(cut.accumulation)]
                assert torch.equal(torch.cat(parts), mine)
                assert max(map(len, parts)) <= cut.largest_micro_batch


def test_groups_stay_whole():
    ids = torch.randint(0, 20, (96,), generator=random_of())
    cut = gdpo.plan(96, mini_batches=3, whole="in_step", remainder="spread", group_ids=ids,
                    shuffle="once")
    step_of = {int(row): step for step in range(cut.steps) for row in cut.rows(step)}
    for each in ids.unique():
        assert len({step_of[int(row)] for row in (ids == each).nonzero()}) == 1


def test_a_shuffle_is_that_of_its_seed():
    rows = [gdpo.plan(64, shuffle="once", seed=seed).rows(0) for seed in (1, 1, 2)]
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])


# ---- pack ----------------------------------------------------------------------------------------

def test_packs_hold_every_row_once():
    lengths = torch.randint(0, 50, (200,), generator=random_of())
    packs = gdpo.pack(lengths, 64)
    assert sorted(torch.cat(list(packs)).tolist()) == list(range(200))
    for p, rows in enumerate(packs):
        assert packs.tokens(p) == int(lengths[rows].sum()) <= 64
        assert packs.offsets(p).tolist() == [0, *lengths[rows].cumsum(0).tolist()]
        assert rows.tolist() == sorted(rows.tolist())
    assert packs.waste == pytest.approx(1 - int(lengths.sum()) / (64 * len(packs)), abs=1e-15)
    # At most 11/9 of what the tokens need, and 6/9 (Johnson 1973, Dosa 2007).
    assert len(packs) <= 11 / 9 * max(1, -(-int(lengths.sum()) // 64)) * 1.5 + 6 / 9
    assert torch.equal(packs[0], packs.rows(0))
    assert [r.tolist() for r in gdpo.pack(lengths.tolist(), 64)] == [r.tolist() for r in packs]
    assert len(gdpo.pack(lengths.double(), 64)) == len(packs)  # sums of a mask of floats


def test_packs_of_nothing_and_of_long_rows():
    assert len(gdpo.pack([], 8)) == 0
    packs = gdpo.pack([3, 20, 4], 8, oversize="alone")
    assert [rows.tolist() for rows in packs] == [[1], [0, 2]]


def test_a_packed_step_is_that_of_padded_rows():
    """The loss and the gradient do not depend on how rows are packed, within 1e-12."""
    random = random_of()
    lengths = torch.randint(1, 9, (12,), generator=random)
    mask = torch.arange(9) < lengths[:, None]
    logp = -torch.rand(12, 9, generator=random, dtype=torch.float64).requires_grad_()
    old_logp = logp.detach() + 0.1 * torch.randn(12, 9, generator=random, dtype=torch.float64)
    advantages = torch.randn(12, generator=random, dtype=torch.float64)
    loss_of = gdpo.PolicyLoss("gspo")
    loss, whole = loss_of(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                          counts=gdpo.count(mask=mask))
    gradient, = torch.autograd.grad(loss, logp)
    packs = gdpo.pack(lengths, 20)
    summed = torch.zeros_like(gradient)
    with gdpo.Step(gdpo.count(offsets=packs.offsets(p)) for p in range(len(packs))) as step:
        for p, rows in enumerate(packs):
            inside = mask[rows]
            part = logp[rows][inside]
            loss, metrics = loss_of(part, old_logp=old_logp[rows][inside], counts=step.counts,
                                    advantages=advantages[rows], offsets=packs.offsets(p))
            summed += torch.autograd.grad(loss, logp)[0]
            step.add(p, metrics)
    torch.testing.assert_close(summed, gradient, rtol=1e-12, atol=1e-14)
    assert step.metrics["loss"] == pytest.approx(whole["loss"], rel=1e-12)


# ---- step ----------------------------------------------------------------------------------------

def step_parts(parts=3):
    mask = torch.arange(4) < torch.tensor([1, 4, 2, 3, 4, 1])[:, None]
    loss_of = gdpo.PolicyLoss("dapo")
    def call(k, counts):
        rows = slice(2 * k, 2 * k + 2)
        return loss_of(-torch.ones(2, 4), mask=mask[rows], advantages=torch.ones(2),
                       counts=counts).metrics
    return [gdpo.count(mask=mask[2 * k:2 * k + 2]) for k in range(parts)], call


def test_a_step_does_not_depend_on_the_order_of_its_parts():
    counts, call = step_parts()
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        with gdpo.Step(counts) as step:
            for k in order:
                step.add(k, call(k, step.counts))
        results.append(step.metrics.result)
    assert torch.equal(*results)
    assert "gdpo.Step(15 tokens, 6 rows" in repr(step)


def test_a_step_of_reports():
    counts, call = step_parts(2)
    rewards = torch.rand(8, generator=random_of())
    halves = [gdpo.advantages(half, group_size=4, report=True).report for half in rewards.split(4)]
    with gdpo.Step(counts) as step:
        for k in (0, 1):
            step.add(k, call(k, step.counts), halves[k])
    merged = halves[0].merge(halves[1])
    assert torch.equal(step.report.numbers, merged.numbers)
    assert step.report.names() == merged.names()


def test_a_step_of_a_count_of_the_callers_own():
    counts, _ = step_parts(1)
    step = gdpo.Step(counts)
    step.set_given(7)
    assert step.counts.tolist()[3] == 7
    _, metrics = gdpo.PolicyLoss("trl::dapo")(
        -torch.ones(2, 4), mask=torch.arange(4) < torch.tensor([1, 4])[:, None],
        advantages=torch.ones(2), counts=step.counts)
    step.add(0, metrics)
    assert step.finish()["normalizer.given"] == 7


def a_step_and_metrics():
    counts, call = step_parts(2)
    step = gdpo.Step(counts)
    return step, [call(k, step.counts) for k in (0, 1)]


@pytest.mark.parametrize("slip, words", [
    (lambda step, parts: step.add(2, parts[0]), "Step::add: k: given 2; needed: a micro-batch from "
     "0 to 1"),
    (lambda step, parts: (step.add(0, parts[0]), step.add(0, parts[0])), "k: given 0 again"),
    (lambda step, parts: step.add(1, parts[0]), "result: given 5 tokens, 2 rows, 2 non-empty rows; "
     "needed: 5 tokens"),
    (lambda step, parts: step.add(0, step_parts(2)[1](0, step.counts + 1)),
     "result.normalizer: given 11 tokens"),
    (lambda step, parts: step.finish(), "micro-batches: given no result of number 0, 1 (2 of 2 "
     "missing)"),
    (lambda step, parts: step.add(0, {}), "metrics: given a dict; needed: gdpo.Metrics"),
    (lambda step, parts: step.metrics, "gdpo.Step.metrics: given a call before finish()"),
    (lambda step, parts: step.set_given(0), "given: given 0; needed: a finite count above 0"),
    (lambda step, parts: (step.add(0, parts[0]), step.set_given(3)), "call: given one after add()"),
    (lambda step, parts: (step.add(0, parts[0]), step.add(1, parts[1]), step.finish(),
                          step.finish()), "Step::finish: call: given a second one"),
    (lambda step, parts: gdpo.Step([torch.ones(4)]), "counts[0]: given torch.float32 of shape"),
    (lambda step, parts: gdpo.Step([gdpo.count(mask=torch.ones(1, 1)), 3]),
     "counts[1]: given a int; needed: a torch.Tensor"),
])
def test_what_a_step_refuses(slip, words):
    if "5 tokens, 2 rows" in words:  # the parts of step_parts are of 5 tokens each: others here
        counts = [gdpo.count(mask=torch.ones(2, 3)), gdpo.count(mask=torch.ones(2, 2))]
        step = gdpo.Step(counts)
        _, metrics = gdpo.PolicyLoss("dapo")(-torch.ones(2, 3), advantages=torch.ones(2),
                                             counts=step.counts)
        with pytest.raises(ValueError, match="given 6 tokens, 2 rows, 2 non-empty rows; needed: 4"):
            step.add(1, metrics)
        return
    step, parts = a_step_and_metrics()
    with pytest.raises(ValueError) as refused:
        slip(step, parts)
    assert words in str(refused.value)


def test_an_error_in_a_step_is_the_callers_own():
    counts, _ = step_parts(1)
    with pytest.raises(KeyError, match="labels"), gdpo.Step(counts):
        raise KeyError("labels")


# ---- select_groups -------------------------------------------------------------------------------

REWARDS = torch.tensor([[1.0, 0], [0, 1], [1, 1], [1, 1], [0, 0], [1, 0], [float("nan"), 0],
                        [float("nan"), 0]])


def test_which_groups_are_flat():
    both = gdpo.select_groups(REWARDS, group_size=2)
    assert both.verdicts == ["kept", "flat", "kept", "flat"]
    assert (both.flat_in_sum_only, both.groups.tolist()) == (1, [0, 2])
    assert both.rows.tolist() == [0, 1, 4, 5] and both.offsets.tolist() == [0, 2, 4]
    by_sum = gdpo.select_groups(REWARDS, group_size=2, flat_in="sum")
    assert by_sum.verdicts == ["flat", "flat", "kept", "flat"]
    one = gdpo.select_groups(REWARDS, group_size=2, flat_in="reward", reward=0)
    assert one.verdicts == ["kept", "flat", "kept", "empty"]
    given = gdpo.select_groups(REWARDS, group_size=2, flat_in="given",
                               given=torch.tensor([1, 0, 1, 0]))
    assert given.verdicts == ["flat", "kept", "flat", "kept"]


def test_how_many_groups_are_missing():
    few = gdpo.select_groups(REWARDS, group_size=2, wanted=3, max_attempts=2, attempt=1)
    assert (few.refill, few.gave_up) == (1, False)
    last = gdpo.select_groups(REWARDS, group_size=2, wanted=3, max_attempts=2, attempt=2,
                              give_up="keep_first")
    assert (last.groups.tolist(), last.refill, last.gave_up) == ([0, 1, 2], 0, True)
    many = gdpo.select_groups(REWARDS, group_size=2, wanted=1)
    assert many.verdicts == ["kept", "flat", "surplus", "flat"]
    wide = gdpo.select_groups(REWARDS[:, 0], group_ids=[7, 7, 1, 1, 3, 3, 3, 3], top_p=0.5)
    assert wide.verdicts == ["flat", "kept", "below_top_p"]  # ids in ascending order: 1, 3, 7


# ---- clip_grad_norm ------------------------------------------------------------------------------

def gradients():
    random = random_of()
    return [torch.randn(3, 4, generator=random), torch.randn(5, generator=random).double(),
            torch.randn(6, 4, generator=random).t()[1:], torch.randn((), generator=random),
            torch.randn(2, 3, 2, 2, generator=random).permute(1, 0, 3, 2),
            torch.randn(9, generator=random).bfloat16(), torch.randn(4, generator=random).half()]


def norm_of(tensors):
    return float(torch.cat([t.double().reshape(-1) for t in tensors]).norm())


def test_the_norm_is_bounded():
    before = gradients()
    arrays = [array.clone(memory_format=torch.preserve_format) for array in before]
    clipped = gdpo.clip_grad_norm(arrays, 1.25)
    assert clipped.norm == pytest.approx(norm_of(before), rel=1e-12)
    assert clipped.scale == pytest.approx(1.25 / clipped.norm, rel=1e-15)
    assert clipped.clipped and clipped.take_step
    for array, old in zip(arrays, before):  # rounded once to the type of the array
        assert torch.equal(array, (old.double() * clipped.scale).to(old.dtype))
    # As PyTorch's own with its eps, within the roundings of float32.
    ours, theirs = [p.clone() for p in before[:2]], [torch.nn.Parameter(p) for p in before[:2]]
    for parameter, gradient in zip(theirs, before):
        parameter.grad = gradient.clone()
    gdpo.clip_grad_norm(ours, 0.5, eps=1e-6)
    torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    for array, parameter in zip(ours, theirs):
        torch.testing.assert_close(array, parameter.grad, rtol=1e-6, atol=0)


def test_a_small_gradient_stays_as_it_is():
    arrays = gradients()
    before = copy.deepcopy(arrays)
    clipped = gdpo.clip_grad_norm([arrays[0], None, *arrays[1:]], float("inf"))
    assert (clipped.scale, clipped.clipped) == (1.0, False)
    assert all(torch.equal(a, b) for a, b in zip(arrays, before))
    largest = gdpo.clip_grad_norm(arrays, 1e9, norm="max").norm
    assert largest == max(float(a.double().abs().max()) for a in arrays)


def test_a_gradient_that_is_not_finite():
    def bad():
        return [torch.ones(3), torch.tensor([1.0, float("nan"), float("inf")])]
    arrays = bad()
    skipped = gdpo.clip_grad_norm(arrays, 1.0)
    assert not skipped.take_step and torch.equal(arrays[0], torch.ones(3))
    assert (skipped.nans, skipped.infinities, skipped.fault_array) == (1, 1, 1)
    zeroed = bad()
    assert gdpo.clip_grad_norm(zeroed, 1.0, on_non_finite="zero").take_step
    assert all(torch.equal(a, torch.zeros(3)) for a in zeroed)
    with pytest.raises(ValueError, match='1 NaN and 1 infinite elements.*on_non_finite is "throw"'):
        gdpo.clip_grad_norm(bad(), 1.0, on_non_finite="throw")


def test_autograd_sees_that_a_gradient_has_changed():
    a = torch.ones(3, requires_grad=True)
    double = a * a
    version = a.grad_fn, double._version
    gdpo.clip_grad_norm([double], 0.5)
    assert double._version > version[1]


# ---- polyak --------------------------------------------------------------------------------------

def test_a_reference_follows():
    torch.manual_seed(SEED)
    reference, policy = torch.nn.Linear(7, 5), torch.nn.Linear(7, 5).double()
    before = copy.deepcopy(reference)
    gdpo.polyak(list(reference.parameters()), list(policy.parameters()), 0.25)
    for r, b, p in zip(reference.parameters(), before.parameters(), policy.parameters()):
        # fma(tau, p - r, r) in float32: within three units in the last place
        torch.testing.assert_close(r, b + 0.25 * (p.float() - b), rtol=4e-7, atol=1e-8)
    gdpo.polyak(list(reference.parameters()), list(policy.parameters()), 1.0)
    for r, p in zip(reference.parameters(), policy.parameters()):
        assert torch.equal(r, p.float())
    assert all(p.requires_grad for p in reference.parameters())


# ---- slips ---------------------------------------------------------------------------------------

X = torch.ones(2, 2)


@pytest.mark.parametrize("slip, words", [
    (lambda: gdpo.plan(10, mini_batches=3), "gdpo::plan: rows: given 10 rows; needed: a multiple "
     'of 3 rows, such as 9 or 12, for 3 mini-batches x 1 rank; or another remainder than "refuse"'),
    (lambda: gdpo.plan(10, shuffle="evr"), "gdpo::plan: shuffle: given 'evr'"),
    (lambda: gdpo.plan(10, whole="in_step"), 'needed: whole="rows", or groups'),
    (lambda: gdpo.plan(10, epochs=0), "epochs: given 0"),
    (lambda: gdpo.plan(10, mini_batches=2.5), "mini_batches: given '2.5'"),
    (lambda: gdpo.plan(4).rows(1), "gdpo.Plan.rows: step: given 1; needed: at least 0 and below 1"),
    (lambda: gdpo.plan(4).rows(0, micro_batch=0), "rank: given none, with micro_batch"),
    (lambda: gdpo.pack([4], 2), 'needed: rows that are not longer than the budget, or '
     'oversize="alone"'),
    (lambda: gdpo.pack([4], 0), "gdpo::pack: budget: given 0"),
    (lambda: gdpo.pack([1.5], 4), "gdpo::pack: lengths: given float32"),
    (lambda: gdpo.pack(X, 4), "lengths: given an array of shape (2, 2); needed: (rows)"),
    (lambda: gdpo.pack([1, 2], 4).rows(1), "gdpo.Packing.rows: pack: given 1"),
    (lambda: gdpo.select_groups(X, group_size=2, flat_in="some"), "flat_in: given 'some'"),
    (lambda: gdpo.select_groups(X, group_size=2, wanted=2, max_attempts=1, attempt=1,
                                give_up="refuse"), 'because give_up is "refuse"'),
    (lambda: gdpo.select_groups(X), "gdpo::select_groups: group_size, group_ids, group_offsets: "
     "given none of them"),
    (lambda: gdpo.clip_grad_norm([X, X], 1.0), "gradients[1]: given memory of gradients[0] again"),
    (lambda: gdpo.clip_grad_norm([X], -1.0), "max_norm: given -1"),
    (lambda: gdpo.clip_grad_norm([X.long()], 1.0), "gradients[0]: given int64"),
    (lambda: gdpo.clip_grad_norm([X.to("meta")], 1.0), "gradients[0]: given a tensor on meta"),
    (lambda: gdpo.clip_grad_norm([3.0], 1.0), "gradients[0]: given a float"),
    (lambda: gdpo.clip_grad_norm(torch.nn.Linear(2, 2).parameters(), 1.0),
     "gradients[0]: given a parameter; needed: its gradient"),
    (lambda: gdpo.clip_grad_norm(torch.nn.Linear(2, 2), 1.0), "gradients: given a Linear"),
    (lambda: gdpo.clip_grad_norm([X], None), "max_norm: given None; needed: a number"),
    (lambda: gdpo.clip_grad_norm([X.to_sparse()], 1.0), "gradients[0]: given torch.sparse_coo"),
    (lambda: gdpo.polyak([X.clone()], [X], "a"), "tau: given 'a'; needed: a number"),
    (lambda: gdpo.pack([1, None], 4), "lengths: Could not infer dtype of NoneType; needed:"),
    (lambda: gdpo.pack([1, 2], 4.5), "gdpo::pack: budget: given a float; needed: an integer"),
    (lambda: gdpo.plan(8.0), "gdpo::plan: rows: given a float; needed: an integer"),
    (lambda: gdpo.select_groups(X, group_size=2, flat_in="reward"), "reward: given none, with"),
    (lambda: gdpo.Step([gdpo.count(mask=X)]).add(0, gdpo.PolicyLoss("dapo")(
        -X, advantages=X[0], counts=gdpo.count(mask=X)).metrics, report="r"),
     "report: given a str; needed: a gdpo.Report"),
    (lambda: gdpo.polyak([X], [X.clone(), X], 0.5), "policy: given 2 arrays; needed: as many"),
    (lambda: gdpo.polyak([X], [X], 0.5), "policy[0]: given the memory of reference[0]"),
    (lambda: gdpo.polyak([X.clone()], [X], 1.5), "tau: given 1.5; needed: a number from 0 to 1"),
    (lambda: gdpo.polyak([X.clone()], [X[0]], 0.5), "policy[0]: given (2)"),
])
def test_slips(slip, words):
    with pytest.raises(ValueError) as refused:
        slip()
    assert words in str(refused.value)
