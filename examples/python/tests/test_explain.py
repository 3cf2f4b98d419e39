"""gdpo.explain: its numbers are those of advantages, and its text is a table."""
import math

import pytest
import torch

import gdpo

G = torch.Generator().manual_seed(5)
REWARDS = torch.randint(0, 4, (24, 3), generator=G).double() / 3
REWARDS[5, 1] = math.nan


def explain(rewards=REWARDS, **options):
    return gdpo.explain(rewards, **{"group_size": 6, "group": 1, **options})


@pytest.mark.parametrize("name", gdpo.estimators())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages_are_those_of_the_call(name, dtype):
    tokens = torch.arange(1, 25)
    rewards = REWARDS.to(dtype)
    got = gdpo.advantages(rewards, estimator=name, group_size=6, tokens=tokens)
    for group in range(4):
        explained = explain(rewards, estimator=name, group=group, tokens=tokens)
        rows = explained.rows
        assert rows == list(range(6 * group, 6 * group + 6))
        assert torch.equal(torch.tensor(explained.advantage, dtype=dtype).nan_to_num(9.0),
                           got[rows].nan_to_num(9.0))


def test_the_stages_are_members():
    explained = explain(group=0, weights=[1, 0.5, 0], gates=[(1, 0, 0.5)],
                        reward_names=["a", "b", "c"])
    r = REWARDS[:6, 0]
    first = explained.columns[0]
    assert [c["reward"] for c in explained.columns] == [0, 1]
    assert first["n"] == 6 and not first["equal"]
    # A mean and a std of six numbers of order 1.
    assert first["mean"] == pytest.approx(float(r.mean()), rel=1e-14)
    assert first["std"] == pytest.approx(float(r.std()), rel=1e-14)
    assert first["standardized"] == pytest.approx(((r - r.mean()) / r.std()).tolist(), rel=1e-13)
    assert explained.over == "batch" and explained.group == 0 and explained.groups == 4
    assert explained.columns[1]["weighted"] == pytest.approx(
        [0.5 * z for z in explained.columns[1]["standardized"]], nan_ok=True)
    gated = [b if a >= 0.5 else 0 for a, b, _ in REWARDS[:6].tolist()]
    assert explained.gated[1::3] == pytest.approx(gated, nan_ok=True)
    assert all(explained.used) and not any(explained.excluded)
    assert explained.stages["gate"] == "r1 is 0 where r0 < 0.5"
    assert any("weight 0" in note for note in explained.notes)
    with pytest.raises(AttributeError, match="nothing"):
        getattr(explained, "nothing")  # noqa: B009 (a type checker refuses the attribute)


def test_it_prints_as_a_table():
    text = str(explain(estimator="grpo scale.eps=0.0001", reward_names=["a", "b", "c"]))
    assert text.startswith("grpo scale.eps=0.0001\ngroup 1 of 4: 6 members, 3 rewards\n")
    assert "m = 1 / (S + 0.0001); S = the std of the group" in text
    assert repr(explain()) == str(explain())


def test_columns_and_groups_by_id():
    ids = torch.tensor([7, 3] * 12)
    valid = torch.ones(24)
    valid[3] = 0
    explained = gdpo.explain(REWARDS[:, 0], group_ids=ids, group=0, valid=valid, estimator="grpo")
    assert explained.rows == list(range(1, 24, 2))
    assert explained.used == [row != 3 for row in explained.rows]
    assert any("row 3: unused" in note for note in explained.notes)


def test_errors():
    for options, words in (({"group": 4}, "group: given 4; needed: 0 to 3"),
                           ({"group": "x"}, "group: given 'x'; needed: an integer"),
                           ({"weights": [1.0]}, "given 1 weights"),
                           ({"reward_names": ["a"]}, "given 1 names"),
                           ({"estimator": "nothing"}, "nothing"),
                           ({"group_size": 5}, "groups")):
        with pytest.raises(ValueError, match=words):
            explain(**options)
    with pytest.raises(ValueError, match="rewards: given None"):
        gdpo.explain(None, group=0, group_size=2)


def test_report_of_several_rewards():
    """Correlations inside groups and shares against their formulas in PyTorch."""
    rewards = torch.rand(24, 3, generator=G, dtype=torch.float64)
    report = gdpo.advantages(rewards, group_size=6, report=True).report
    r = rewards.reshape(4, 6, 3)
    d = (r - r.mean(1, keepdim=True)).reshape(24, 3)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        cosine = float((d[:, a] * d[:, b]).sum() / d[:, a].norm() / d[:, b].norm())
        assert report[f"pairs.{a}.{b}.correlation"] == pytest.approx(cosine, rel=1e-12)
    z = ((r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True)).reshape(24, 3)
    s = z.sum(1)
    for c in range(3):
        share = float((z[:, c] * s).sum() / (s * s).sum())
        assert report[f"rewards.{c}.explained"] == pytest.approx(share, rel=1e-12)
    halves = [gdpo.advantages(half, group_size=6, report=True).report
              for half in (rewards[:12], rewards[12:])]
    merged = halves[0].merge(halves[1])
    for name in report.names():
        assert merged[name] == pytest.approx(report[name], rel=1e-11, abs=1e-14), name
