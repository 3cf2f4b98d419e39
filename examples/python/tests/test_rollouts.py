"""Rows of one rollout: advantages of what counts, in plain PyTorch, spread over the rows."""
import math

import pytest
import torch

import gdpo

#: What stands for the rewards of a rollout.
TAKES = {"last": lambda r: r[-1], "first": lambda r: r[0], "sum": lambda r: r.sum(0),
         "mean": lambda r: r.mean(0), "max": lambda r: r.max(0).values}


def random_batch(seed: int, dtype=torch.float64):
    """Rewards (rows, 2), prompts and rollouts of 1 to 3 rows, shuffled."""
    g = torch.Generator().manual_seed(seed)
    prompts, rollouts = [], []
    for rollout in range(12):
        for _ in range(int(torch.randint(1, 4, (), generator=g))):
            prompts.append(rollout // 4 - 1)
            rollouts.append(1000 - 7 * rollout)
    order = torch.randperm(len(prompts), generator=g)
    # Multiples of 1/4: their sums are exact.
    rewards = torch.randint(-8, 8, (len(prompts), 2), generator=g).to(dtype) / 4
    return rewards, torch.tensor(prompts)[order], torch.tensor(rollouts)[order]


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("estimator", ["gdpo", "grpo", "trl::grpo", "verl::rloo", "dr_grpo"])
def test_a_rollout_counts_once(take, estimator):
    for seed in range(5):
        rewards, prompts, rollouts = random_batch(seed)
        names = rollouts.unique()
        rows = [torch.nonzero(rollouts == name).flatten() for name in names]
        one = torch.stack([TAKES[take](rewards[r]) for r in rows])
        groups = torch.stack([prompts[r[0]] for r in rows])
        plain, report = gdpo.advantages(one, estimator=estimator, group_ids=groups, report=True)
        got, of_rollouts = gdpo.advantages(rewards, estimator=estimator, group_ids=prompts,
                                           rollout_ids=rollouts, take=take, report=True)
        for name, advantage in zip(names, plain):
            mine = got[rollouts == name]
            # Means are divided here and there: 1e-12 of advantages of order 1.
            torch.testing.assert_close(mine, advantage.expand_as(mine), rtol=0, atol=1e-12)
        assert of_rollouts["rows"] == report["rows"] == 12


def test_groups_of_consecutive_rows():
    rewards = [0.0, 1.0, 4.0, 2.0, 2.0, 8.0]
    ids = [5, 5, 1, 3, 4, 4]
    want = [-1.5, -1.5, 1.5, -3.0, 3.0, 3.0]
    for groups in ({"group_size": 3}, {"group_offsets": [0, 3, 6]}):
        got = gdpo.advantages(rewards, estimator="dr_grpo", rollout_ids=ids, **groups)
        assert got.tolist() == want
    narrow = gdpo.advantages(torch.tensor(rewards), estimator="dr_grpo", rollout_ids=ids,
                             group_size=3)
    assert narrow.dtype == torch.float32 and narrow.tolist() == want


def test_columns_and_missing_rewards():
    # Of rollout 1 the last row is no completion, and its first row has no reward.
    got = gdpo.advantages([None, 2.0, 9.0, 4.0], estimator="dr_grpo", group_size=4,
                          rollout_ids=[1, 1, 1, 2], valid=[1, 1, 0, 1])
    assert got.tolist() == [-1, -1, -1, 1]
    got = gdpo.advantages([None, 2.0, 9.0, 4.0], estimator="dr_grpo", group_size=4, take="first",
                          rollout_ids=[1, 1, 1, 2], missing_row="exclude")
    assert got.tolist() == [0, 0, 0, 0]
    got = gdpo.advantages([1.0, 2.0, 4.0], estimator="dr_grpo", group_size=3, take="sum",
                          rollout_ids=[1, 1, 2], penalty=[1.0, 1.0, 2.0], penalty_coef=0.5)
    assert got.tolist() == [-0.5, -0.5, 0.5]


def test_refusals():
    rewards = [1.0, 2.0, 3.0, 4.0]
    for ids, take, words in (
            ([1, 2, 3], "last", "gdpo::rollouts: ids: given 3 entries; needed: one for each of the "
                                "4 rows"),
            ([1, 7, 2, 7], "sum", "gdpo::rollouts: ids: given rows 1 and 3 of rollout 7 in groups "
                                  "0 and 1; needed: the rows of a rollout in one group"),
            ([1, 1, 2, 2], "latest", "gdpo::advantages: take: given 'latest'; needed: one of last, "
                                     "first, sum, mean, max"),
            ([1.5, 1, 2, 2], "last", "rollout_ids")):
        with pytest.raises(ValueError) as error:
            gdpo.advantages(rewards, group_size=2, rollout_ids=ids, take=take)
        assert words in str(error.value)
    assert not math.isnan(float(gdpo.advantages(rewards, group_size=2).sum()))
