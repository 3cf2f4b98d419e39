"""Rules that shape rewards, and state over the steps of a run."""
import json
import math
import random

import gdpo
import pytest
import torch

PRIME = dict(lengths=[8, 16, 4, 2], input_lengths=[0, 0, 0, 0], turns=[1, 2, 4, 4])


def test_rules_by_hand():
    """The values are exact in binary."""
    rewards = [1.0, 0.0, 1.0, 0.0]
    cost = "prime_rl::length_penalty output=0.5 turns=0.25"
    shaped = gdpo.shape_rewards(rewards, cost, group_size=4, **PRIME)
    assert shaped.tolist() == [0.84375, -0.3125, 0.8125, -0.15625]
    assert gdpo.shape_rewards(torch.tensor(rewards), [cost, "clip min=0 max=0.8125"],
                              group_ids=[5, 5, 5, 5], **PRIME).tolist() == [0.8125, 0, 0.8125, 0]
    # Rules by row need no groups; rewards keep their type, and a missing one stays missing.
    kept = gdpo.shape_rewards(torch.tensor([3.0, math.nan], dtype=torch.bfloat16), "clip max=1")
    assert kept.dtype == torch.bfloat16 and kept[0] == 1 and math.isnan(kept[1])
    assert gdpo.shape_rewards([3, None], ["clip max=1"])[0] == 1
    assert {"soft_overlong", "relative_length", "prime_rl::length_penalty"} <= set(gdpo.shapings())


@pytest.mark.parametrize("rules, given, words", [
    ("solve_rate_length", dict(lengths=[1, 2]), "group_size, group_ids, group_offsets"),
    ("solve_rate_length", dict(group_size=2), "columns.lengths: given no column"),
    ("solve_rate", {}, "one of clip, affine"), ("clip low=1", {}, "'low'"),
    ("clip min=2 max=1", {}, "clip.min, clip.max"), ("clip", dict(group_size=3), "2 rows"),
    ("clip", dict(lengths=[1]), "columns.lengths: given 1 entries"),
    ("clip", dict(lengths=torch.ones(2, device="meta")), "tensor on meta")])
def test_mistakes(rules, given, words):
    with pytest.raises(ValueError, match=words):
        gdpo.shape_rewards([1.0, 2.0], rules, **given)


def test_running_moments():
    """The numbers of a run in any steps are those of one step."""
    values = [random.Random(3).uniform(-2, 5) for _ in range(60)]
    running = gdpo.RunningMoments(eps=0.5, bound=1)
    assert running.mean == 0 and running.divisor == 1 and running.count == 0
    for at in range(0, 60, 7):
        running.update(values[at:at + 7])
    x = torch.tensor(values, dtype=torch.float64)
    assert running.mean == pytest.approx(x.mean().item(), rel=1e-12)
    assert running.divisor == pytest.approx(x.std(unbiased=False).item() + 0.5, rel=1e-12)
    expected = ((x - running.mean) / running.divisor).clamp(-1, 1)
    assert torch.allclose(running.normalize(x), expected, rtol=1e-15, atol=0)
    before = running.state_dict()
    running.update([1.0, math.inf])
    running.update([3.0, math.nan], valid=[0, 1])
    assert running.state_dict() == before
    running.update([9.0, 1.0], valid=[0, 1])
    assert running.count == 61


def test_baseline_by_role():
    """prime-rl's RAEAlgorithm with a decay of 1/2, by hand."""
    ema = gdpo.EmaBaseline("prime_rl::rae decay=0.5", start=2)
    baselines = ema([4, None, 8, 1, math.inf, 6], [0, 0, 0, 3, 3, 3], valid=[1, 1, 1, 1, 1, 0])
    assert baselines.tolist() == [2, 3, 3, 2, 1.5, 1.5]
    assert ema.state_dict() == {"baseline": [5.5, 2, 2, 1.5], "updates": [2, 0, 0, 1]}
    with pytest.raises(ValueError, match=r"roles\(0\): given -1"):
        ema([1.0], [-1])
    with pytest.raises(ValueError, match="one of each for every role"):
        ema.load_state_dict({"baseline": [1.0], "updates": []})


def test_return_scale():
    """The formula of VecNormalize."""
    numbers = random.Random(5)
    scale = gdpo.ReturnScale(gamma=0.9, prior=0)
    sums, seen = [0.0] * 3, []
    for _ in range(20):
        rewards = [numbers.uniform(-1, 3) for _ in range(3)]
        ended = [numbers.random() < 0.2 for _ in range(3)]
        sums = [0.9 * s + r for s, r in zip(sums, rewards)]
        seen += sums
        got = scale(torch.tensor(rewards, dtype=torch.float64), ended)
        divisor = math.sqrt(torch.tensor(seen, dtype=torch.float64).var(unbiased=False) + 1e-8)
        assert scale.divisor == pytest.approx(divisor, rel=1e-9)
        assert got.tolist() == [max(-10, min(10, r / scale.divisor)) for r in rewards]
        sums = [0.0 if e else s for s, e in zip(sums, ended)]
    with pytest.raises(ValueError, match="one for each of the 3 episodes"):
        scale([1.0])


@pytest.mark.parametrize("make, step", [
    (lambda: gdpo.RunningMoments(decay=0.97), lambda o, x: o.update(x) or o.normalize(x)),
    (lambda: gdpo.EmaBaseline(decay=0.7), lambda o, x: o(x, [0, 2, 1, 0])),
    (gdpo.ReturnScale, lambda o, x: o(x, [0, 0, 1, 0]))], ids=["moments", "ema", "returns"])
def test_a_saved_state_goes_on_with_the_same_bits(make, step):
    numbers = random.Random(7)
    whole, saved = make(), make()
    for _ in range(10):
        rewards = torch.tensor([numbers.uniform(-2, 2) for _ in range(4)], dtype=torch.float64)
        other = make()
        other.load_state_dict(json.loads(json.dumps(saved.state_dict())))
        saved = other
        assert torch.equal(step(whole, rewards), step(saved, rewards))
        assert whole.state_dict() == saved.state_dict()
    with pytest.raises(ValueError, match="state: given none of"):
        saved.load_state_dict({})


@pytest.mark.parametrize("make, key, value, words", [
    (gdpo.RunningMoments, "moments", [1.0], "a list of 7 numbers"),
    (gdpo.RunningMoments, "moments", None, "given None; needed: a list of 7 numbers"),
    (gdpo.RunningMoments, "moments", [2.5, 1, 0, 0, 0, 0, 0], "a count of 2.5"),
    (gdpo.RunningMoments, "moments", [math.nan, 1, 0, 0, 0, 0, 0], "a count of nan"),
    (gdpo.RunningMoments, "moments", [1e30, 1, 0, 0, 0, 0, 0], "a count of 1e.30"),
    (gdpo.RunningMoments, "moments", [-1, 1, 0, 0, 0, 0, 0], "moments of -1 numbers"),
    (gdpo.RunningMoments, "moments", [2, 2, 0, math.nan, 0, 0, 0], "moments of 2 numbers"),
    (gdpo.RunningMoments, "moments", [0, 0, 3, 0, 0, 0, 0], "moments of 0 numbers"),
    (gdpo.EmaBaseline, "baseline", [math.inf], r"state.baseline\[0\]: given inf"),
    (gdpo.EmaBaseline, "baseline", [None], "a list of numbers"),
    (gdpo.EmaBaseline, "updates", [-1], r"state.updates\[0\]: given -1"),
    (gdpo.EmaBaseline, "updates", [0.5], "a count of 0.5"),
    (gdpo.ReturnScale, "returns", [1.0, math.nan], r"state.returns\[1\]: given nan"),
    (gdpo.ReturnScale, "returns", ["x"], "a list of numbers"),
    (gdpo.ReturnScale, "moments", [2, 2, 0, 0, -1, 0, 0], "moments of 2 numbers")])
def test_a_broken_state_is_refused_and_nothing_is_restored(make, key, value, words):
    kept = make()
    step = {gdpo.RunningMoments: lambda: kept.update([1.0, 3.0]),
            gdpo.EmaBaseline: lambda: kept([4.0], [0]), gdpo.ReturnScale: lambda: kept([1.0, 2.0])}
    step[make]()
    before = kept.state_dict()
    with pytest.raises(ValueError, match=words):
        kept.load_state_dict({**before, key: value})
    assert kept.state_dict() == before


@pytest.mark.parametrize("make, mistake, words", [
    (gdpo.RunningMoments, dict(decay=0), "decay"), (gdpo.RunningMoments, dict(speed=1), "speed"),
    (gdpo.EmaBaseline, dict(decay=1), "decay"), (gdpo.EmaBaseline, dict(name="return_scale"),
                                                 "another kind of state"),
    (gdpo.ReturnScale, dict(gamma=2), "gamma"), (gdpo.ReturnScale, dict(bound=-1), "bound")])
def test_settings_that_do_not_fit(make, mistake, words):
    with pytest.raises(ValueError, match=words):
        make(**mistake)


def test_parts_are_merged_in_their_order():
    parts = [torch.ops.gdpo.measure(torch.tensor(x, dtype=torch.float64))
             for x in ([1.0, 3.0], [], [6.0, 8.0, 2.0])]
    merged = torch.ops.gdpo.merge_moments(torch.cat(parts))
    running = gdpo.RunningMoments()
    for values in ([1.0, 3.0], [6.0, 8.0, 2.0]):
        running.update(values)
    assert merged[0].tolist() == running.state_dict()["moments"]


def _on_a_rank(rank, ranks, path, answers):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank,
                                         world_size=ranks)
    world = gdpo.Ranks()
    running, scale = gdpo.RunningMoments(), gdpo.ReturnScale(gamma=0.5)
    refused = []
    for step in range(3):
        rewards = torch.tensor([rank + 0.1 * step, 1.0 - step], dtype=torch.float64)
        running.update(rewards, ranks=world)
        scale(rewards, [0, rank], ranks=world)
        # A mistake of one rank.
        for call in (lambda r: running.update(rewards[:r], valid=[1], ranks=world),
                     lambda r: scale(rewards[:r], ranks=world)):
            try:
                call(1 + rank)
            except ValueError as error:
                refused.append(str(error))
    answers.put((rank, running.state_dict(), scale.state_dict(), refused))
    torch.distributed.destroy_process_group()


def test_over_ranks(tmp_path):
    """Every rank has the state of all, and none waits for one that has refused its rows."""
    context = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    ranks = [context.Process(target=_on_a_rank, args=(r, 2, tmp_path / "store", answers))
             for r in range(2)]
    for process in ranks:
        process.start()
    got = sorted((answers.get() for _ in ranks), key=lambda answer: answer[0])
    for process in ranks:
        process.join()
    (_, moments, scale, refused), (_, others, other_scale, other_refused) = got
    assert moments == others and scale["moments"] == other_scale["moments"]
    assert scale["returns"] != other_scale["returns"]
    assert len(refused) == len(other_refused) == 6
    assert refused[0].startswith("gdpo::RunningMoments: rank 1 of 2: valid: given 1 entries")
    assert other_refused[0].startswith("gdpo::RunningMoments: valid: given 1 entries")
    whole = gdpo.RunningMoments()
    for step in range(3):
        whole.update([0.1 * step, 1.0 - step, 1 + 0.1 * step, 1.0 - step])
    assert whole.mean == pytest.approx(moments["moments"][2], rel=1e-12)
    assert whole.count == moments["moments"][0]
