"""Advantages against plain PyTorch formulas in float64.

The tolerance is 1e-12 of the largest advantage: rounding of means and standard deviations of a few
numbers of size 1. Advantages that are 0 by definition are exactly 0.
"""
import functools
import importlib.util
import math
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

import gdpo


def random_rewards(seed: int, groups: int = 6, size: int = 5, rewards: int = 3) -> torch.Tensor:
    """(groups * size, rewards) in float64; one group has equal rewards."""
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(groups, size, rewards, generator=g, dtype=torch.float64)
    values[2:3] = values[2:3, :1]
    return values.reshape(-1, rewards)


def close(got, want, seed=None) -> None:
    largest = float(want.abs().max()) if want.numel() else 0.0
    torch.testing.assert_close(torch.as_tensor(got), want, rtol=0, atol=1e-12 * largest,
                               msg=lambda text: f"seed {seed}: {text}")


def over_std(centered: torch.Tensor, std: torch.Tensor, eps: float = 0.0) -> torch.Tensor:
    """centered / (std + eps), and exactly 0 where there is no spread."""
    return torch.where(std > 1e-13, centered / (std + eps), torch.zeros_like(centered))


def gdpo_of(rewards, size, weights=None, eps=0.0):
    """Each reward standardized in its group, their sum standardized over the batch."""
    r = rewards.reshape(-1, size, rewards.shape[-1])
    z = over_std(r - r.mean(1, keepdim=True), r.std(1, keepdim=True), eps)
    w = torch.tensor([1.0] * r.shape[-1] if weights is None else weights, dtype=torch.float64)
    s = (z * w).sum(-1).flatten()
    return over_std(s, s.std(), eps)


def grpo_of(rewards, size, weights=None, eps=0.0, ddof=1):
    """The sum of the rewards standardized in its group."""
    x = summed(rewards, weights).reshape(-1, size)
    return over_std(x - x.mean(1, keepdim=True), x.std(1, keepdim=True, correction=ddof),
                    eps).flatten()


def dr_grpo_of(rewards, size, weights=None):
    """The sum of the rewards minus its mean in the group."""
    x = summed(rewards, weights).reshape(-1, size)
    return torch.where(x.std(1, keepdim=True) > 1e-13, x - x.mean(1, keepdim=True), 0.0).flatten()


def rloo_of(rewards, size, weights=None):
    """The sum of the rewards minus its mean over the others of the group."""
    x = summed(rewards, weights).reshape(-1, size)
    others = (x.sum(1, keepdim=True) - x) / (size - 1)
    return torch.where(x.std(1, keepdim=True) > 1e-13, x - others, 0.0).flatten()


def summed(rewards, weights=None):
    """The weighted sum of the rewards of each row."""
    weights = [1.0] * rewards.shape[-1] if weights is None else weights
    return (rewards * torch.tensor(weights, dtype=torch.float64)).sum(-1)


FORMULAS = {
    "gdpo": gdpo_of, "grpo": grpo_of, "dr_grpo": dr_grpo_of, "rloo": rloo_of,
    "trl::gdpo": lambda *a, **k: gdpo_of(*a, eps=1e-4, **k),
    "trl::grpo": lambda *a, **k: grpo_of(*a, eps=1e-4, **k),
    "verl::grpo": lambda *a, **k: grpo_of(*a, eps=1e-6, **k),
    "ms_swift::gdpo": lambda *a, **k: gdpo_of(*a, eps=1e-8, **k),
    "open_instruct::standard": lambda *a, **k: grpo_of(*a, eps=1e-8, ddof=0, **k),
}


# Laws.

@pytest.mark.parametrize("name", sorted(FORMULAS))
@pytest.mark.parametrize("seed", range(3))
def test_formula(name, seed):
    rewards = random_rewards(seed)
    got = gdpo.advantages(rewards, estimator=name, group_size=5)
    assert got.dtype == torch.float64 and got.shape == (30,)
    close(got, FORMULAS[name](rewards, 5), seed)


@pytest.mark.parametrize("name", ("gdpo", "grpo", "dr_grpo", "rloo"))
def test_equal_rewards_are_exactly_zero(name):
    """Nothing to learn from a group whose rewards are equal: 0, and no noise / noise."""
    rewards = random_rewards(3)
    rewards[10:15] = torch.tensor([0.1, 0.7, 1 / 3])
    got = gdpo.advantages(rewards, estimator=name, group_size=5)
    assert torch.equal(got[10:15], torch.zeros(5, dtype=torch.float64))
    assert torch.equal(gdpo.advantages(torch.full((8, 2), 0.1), estimator=name, group_size=4),
                       torch.zeros(8))


@pytest.mark.parametrize("name", ("gdpo", "grpo", "dr_grpo", "rloo"))
def test_shifts_and_order_do_not_matter(name):
    """A constant added to a reward, and another order of groups and members, change nothing."""
    rewards = random_rewards(4)
    plain = gdpo.advantages(rewards, estimator=name, group_size=5)
    close(gdpo.advantages(rewards + torch.tensor([5.0, -3, 0.5]).double(), estimator=name,
                          group_size=5), plain, 4)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(4))
    ids = (torch.arange(30) // 5)[order]
    close(gdpo.advantages(rewards[order], estimator=name, group_ids=ids), plain[order], 4)


@pytest.mark.parametrize("name", ("gdpo", "grpo", "trl::gdpo", "rloo"))
def test_three_ways_to_say_the_groups(name):
    """group_size and group_offsets give the same bits; group_ids sums in an order of its own."""
    rewards = random_rewards(5)
    by_size = gdpo.advantages(rewards, estimator=name, group_size=5)
    for dtype in (torch.int32, torch.int64):
        ids = (torch.arange(30) // 5).to(dtype)
        offsets = torch.arange(0, 31, 5).to(dtype)
        assert torch.equal(gdpo.advantages(rewards, estimator=name, group_offsets=offsets), by_size)
        close(gdpo.advantages(rewards, estimator=name, group_ids=ids), by_size, 5)


@pytest.mark.parametrize("name", ("grpo", "dr_grpo", "rloo"))
def test_ids_and_order_change_no_bit(name):
    """Rows in another order and ids with other numbers (group/by_id.hpp)."""
    rewards = random_rewards(5)
    ids = torch.arange(30) // 5
    plain = gdpo.advantages(rewards, estimator=name, group_ids=ids)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(5))
    assert torch.equal(gdpo.advantages(rewards[order], estimator=name,
                                       group_ids=1000 - 7 * ids[order]), plain[order])


def test_groups_of_different_sizes():
    """By offsets, GRPO standardizes each group by itself; a group of one gets 0."""
    rewards = random_rewards(6)[:, :1]
    got = gdpo.advantages(rewards, estimator="grpo", group_offsets=[0, 3, 10, 11, 30])
    want = torch.cat([grpo_of(rewards[a:b], b - a) if b - a > 1 else torch.zeros(1).double()
                      for a, b in ((0, 3), (3, 10), (10, 11), (11, 30))])
    close(got, want, 6)
    assert got[10] == 0


@pytest.mark.parametrize("name", ("gdpo", "grpo", "dr_grpo", "rloo"))
def test_weights(name):
    """w_c multiplies reward c, or what it has become; weight 0 is as if it were not there."""
    rewards = random_rewards(7)
    weights = [2.0, -0.5, 0.25]
    close(gdpo.advantages(rewards, estimator=name, group_size=5, weights=weights),
          FORMULAS[name](rewards, 5, weights), 7)
    without = gdpo.advantages(rewards, estimator=name, group_size=5, weights=[1, 0, 3])
    close(without, gdpo.advantages(rewards[:, [0, 2]], estimator=name, group_size=5,
                                   weights=np.array([1, 3])), 7)


@pytest.mark.parametrize("name", ("gdpo", "grpo"))
def test_gates(name):
    """A reward counts as 0 where its condition is below the threshold (arXiv 2601.05242, eq. 8)."""
    rewards = random_rewards(8)
    gated = rewards.clone()
    gated[rewards[:, 1] < 0.25, 0] = 0
    gated[rewards[:, 0] < -0.5, 2] = 0  # conditions are read before any gate
    close(gdpo.advantages(rewards, estimator=name, group_size=5,
                          gates=[(0, 1, 0.25), (2, 0, -0.5)]), FORMULAS[name](gated, 5), 8)


# Missing rewards and rows.

def test_missing_rewards_are_skipped():
    """A NaN is left out of its reward's statistics, and adds 0 to the sum of its row."""
    rewards = random_rewards(9, groups=3, size=5, rewards=2)
    rewards[1, 0] = rewards[7, 1] = math.nan
    z = torch.zeros_like(rewards)
    for group in range(3):
        rows = slice(5 * group, 5 * group + 5)
        for c in range(2):
            r = rewards[rows, c]
            known = r[~r.isnan()]
            if known.std() > 1e-13:
                z[rows, c] = ((r - known.mean()) / known.std()).nan_to_num(0.0)
    s = z.sum(1)
    close(gdpo.advantages(rewards, group_size=5), s / s.std(), 9)


def test_rows_without_a_reward_get_zero():
    """They enter no statistic: the others are as if the row were not there."""
    rewards = random_rewards(10, groups=2, size=5, rewards=2)
    rewards[3] = math.nan
    got = gdpo.advantages(rewards, group_size=5)
    there = torch.arange(10) != 3
    assert got[3] == 0
    close(got[there], gdpo.advantages(rewards[there], group_offsets=[0, 4, 9]), 10)


def test_nan_propagates_in_verl():
    """verl does not handle missing rewards: its group is NaN, and the other groups are not."""
    rewards = random_rewards(11, groups=2, size=5, rewards=1)
    rewards[3] = math.nan
    got = gdpo.advantages(rewards, estimator="verl::grpo", group_size=5)
    assert got[:5].isnan().all() and not got[5:].isnan().any()


def test_unused_rows_enter_no_statistic():
    rewards = random_rewards(12, rewards=1)
    valid = torch.arange(30) % 4 != 0
    got = gdpo.advantages(rewards, estimator="grpo", group_size=5, valid=valid)
    offsets = [0] + torch.stack([v.sum() for v in valid.split(5)]).cumsum(0).tolist()
    close(got[valid], gdpo.advantages(rewards[valid], estimator="grpo", group_offsets=offsets), 12)


# Arrays of other libraries, and types.

@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.float16, np.int64, np.int32,
                                   np.uint8, np.bool_))
def test_numpy_arrays(dtype):
    """NumPy in, NumPy out, of the type that a tensor of the same type gives."""
    rewards = (np.arange(24).reshape(12, 2) % 7 > 2).astype(dtype)
    kept = rewards.copy()
    got = gdpo.advantages(rewards, group_size=4)
    want = gdpo.advantages(torch.from_numpy(rewards), group_size=4)
    assert isinstance(got, np.ndarray) and got.shape == (12,)
    assert np.array_equal(got, want.numpy()) and got.dtype == want.numpy().dtype
    assert got.dtype == (np.float32 if dtype in (np.float32, np.float16) else np.float64)
    assert np.array_equal(rewards, kept)


def test_numpy_arrays_with_strides_and_ids():
    """Views are read where they lie; ids may be NumPy arrays, too, and read-only ones."""
    rewards = random_rewards(13).numpy()
    ids = np.arange(30) // 5
    ids.flags.writeable = False
    wide = np.zeros((60, 6))
    wide[::2, ::2] = rewards
    got = gdpo.advantages(wide[::2, ::2], group_ids=ids)
    want = gdpo.advantages(torch.from_numpy(rewards), group_ids=torch.from_numpy(ids.copy()))
    assert np.array_equal(got, want.numpy())
    assert np.array_equal(got, gdpo.advantages(np.asfortranarray(rewards), group_ids=ids))


def test_numpy_arrays_backwards():
    rewards = random_rewards(13)[:, 0].numpy()
    got = gdpo.advantages(rewards[::-1], group_size=5)
    assert np.allclose(got, gdpo.advantages(rewards[::-1].copy(), group_size=5))


JAX = """
import jax, numpy, torch, gdpo
rewards = jax.numpy.asarray(numpy.random.default_rng(1).normal(size=(30, 2)).astype("float32"))
tensor = torch.from_dlpack(rewards)
assert tensor.data_ptr() == rewards.unsafe_buffer_pointer()
got = gdpo.advantages(rewards, group_ids=jax.numpy.arange(30) // 5)
want = gdpo.advantages(tensor, group_ids=torch.arange(30) // 5)
assert isinstance(got, jax.Array) and numpy.array_equal(numpy.asarray(got), want.numpy())
assert gdpo.advantages(rewards.astype("bfloat16"), group_size=5).dtype == "float32"
"""


def test_jax_arrays():
    """JAX in, JAX out, from the memory of the array. It has threads, so another process runs it."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", JAX], check=True, timeout=300,
                   env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"})


def test_arrays_without_a_namespace():
    """What has __dlpack__ alone gets its library's from_dlpack, as older CuPy needs."""
    class Array:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **arguments):
            return self.tensor.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    library = types.ModuleType("older_library")
    library.from_dlpack = lambda tensor: Array(torch.from_dlpack(tensor))
    Array.__module__ = "older_library.core"
    sys.modules["older_library"] = library
    try:
        got = gdpo.advantages(Array(random_rewards(13)), group_size=5)
    finally:
        del sys.modules["older_library"]
    assert isinstance(got, Array)
    assert torch.equal(got.tensor, gdpo.advantages(random_rewards(13), group_size=5))


# Settings.

def test_settings_of_the_spread():
    """Against the formulas in float64: 1e-12."""
    rewards = random_rewards(15, rewards=1)[:, 0]
    groups = rewards.reshape(6, 5)
    centered = groups - groups.mean(1, keepdim=True)

    def grpo(**settings):
        return gdpo.advantages(rewards, estimator="grpo", group_size=5, **settings).reshape(6, 5)

    close(grpo(eps=0.5), centered / (groups.std(1, keepdim=True) + 0.5), 12)
    close(grpo(ddof=0, eps=0.5, eps_at="var"),
          centered / (groups.var(1, correction=0, keepdim=True) + 0.5).sqrt(), 12)
    close(grpo(of="batch"), centered / rewards.std(), 12)
    close(grpo(of="within"), centered / (centered.square().sum() / 24).sqrt(), 12)
    close(grpo(eps_at="none"), centered, 12)
    first = grpo(eps=0.5)
    close(gdpo.advantages(rewards, estimator="gdpo", group_size=5, scale_eps=0.5, renorm_eps=0.25,
                          renorm_ddof=0).reshape(6, 5),
          first / (first.square().mean().sqrt() + 0.25), 12)


def test_settings_of_missing_rewards_and_small_groups():
    nan = float("nan")
    rewards = torch.tensor([1.0, nan, 0.0, 2.0, 5.0], dtype=torch.float64)
    ids = torch.tensor([0, 0, 0, 0, 1])

    def centered(**settings):
        return gdpo.advantages(rewards, estimator="dr_grpo", group_ids=ids, **settings).tolist()

    assert centered() == [0, 0, -1, 1, 0]
    assert centered(missing="zero") == [0.25, -0.75, -0.75, 1.25, 0]
    assert all(math.isnan(a) for a in centered(missing="propagate")[:4])
    assert centered(singleton="raw")[4] == 5 and math.isnan(centered(singleton="nan")[4])
    with pytest.raises(ValueError, match="row 1"):
        centered(missing="reject")
    with pytest.raises(ValueError, match="singleton"):
        centered(singleton="error")
    two = torch.stack([rewards, rewards], 1)
    kept = gdpo.advantages(two, estimator="dr_grpo", group_ids=ids, missing_row="keep")
    assert kept.tolist() == [0.5, -1.5, -1.5, 2.5, 0]


def test_what_an_infinite_reward_means():
    rewards = torch.tensor([math.inf, 0, 1, 2])
    centered = functools.partial(gdpo.advantages, rewards, estimator="dr_grpo", group_size=4)
    largest = torch.finfo(torch.float32).max
    assert centered()[0].isnan() and centered()[1:].tolist() == [-math.inf] * 3
    assert centered(infinite="missing").tolist() == [0, -1, 0, 1]
    assert centered(infinite="nan_to_num").tolist() == [0, -largest, -largest, -largest]
    with pytest.raises(ValueError, match="given inf in row 0, reward 0; needed: a finite number"):
        centered(infinite="reject")
    with pytest.raises(ValueError, match="needed: one of propagate, missing, nan_to_num, reject"):
        centered(infinite="zero")
    report = centered(infinite="missing", report=True).report
    assert report["infinite_rewards"] == 1 and report["excluded_rewards"] == 1
    findings = gdpo.diagnose(report=report)
    assert [(f.name, f.subject) for f in findings] == [("non_finite", "rewards")]
    # Numbers of TRL 1.16: groups with an infinity, and a row that a weight of 0 alone has scored.
    pairs = torch.tensor([[math.inf, 1], [0, 0], [1, 0], [0, 1]])
    trl = gdpo.advantages(pairs, estimator="trl::gdpo", group_size=2)
    torch.testing.assert_close(trl, torch.tensor([1.2245, -1.2245, 0, 0]), atol=5e-5, rtol=0)
    scored = torch.tensor([[math.nan, .5], [1, .2], [0, .1], [1, .3]])
    trl = gdpo.advantages(scored, estimator="trl::gdpo", group_size=4, weights=[1, 0])
    torch.testing.assert_close(trl, torch.tensor([0, .70702, -1.41404, .70702]), atol=5e-5, rtol=0)


def test_a_placeholder_counts_in_nothing():
    rewards, valid = torch.tensor([1.0, 0, 0, 1]), torch.tensor([1, 1, 0, 1])
    compared = gdpo.advantages(rewards, estimator="grpo", group_size=4, valid=valid)
    assert compared[2].item() == pytest.approx(-1.1547, abs=1e-4)
    excluded = gdpo.advantages(rewards, estimator="grpo", group_size=4, valid=valid,
                               unused="exclude")
    assert excluded.tolist() == [*compared[:2].tolist(), 0.0, compared[3].item()]


def test_a_penalty_inside_the_reward():
    rewards, kl = random_rewards(16)[:, :2], torch.rand(30, dtype=torch.float64)
    close(gdpo.advantages(rewards, estimator="grpo", group_size=5, penalty=kl, penalty_coef=0.3),
          gdpo.advantages(rewards.sum(1) - 0.3 * kl, estimator="grpo", group_size=5), 12)
    changed = rewards.clone()
    changed[:, 1] -= 0.3 * kl
    close(gdpo.advantages(rewards, group_size=5, penalty=kl, penalty_coef=0.3, penalty_reward=1),
          gdpo.advantages(changed, group_size=5), 12)


def test_lists_and_integers():
    """Integers are exact in float64; a list gives a tensor."""
    got = gdpo.advantages([3, 1, 0, 0, 0, 2], estimator="grpo", group_size=3)
    assert isinstance(got, torch.Tensor) and got.dtype == torch.float64
    rewards = torch.tensor([3.0, 1, 0, 0, 0, 2], dtype=torch.float64)
    close(got, grpo_of(rewards[:, None], 3))
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        whole = torch.tensor([1, 0, 0, 1, 1, 0]).to(dtype)
        close(gdpo.advantages(whole, estimator="grpo", group_size=3),
              grpo_of(whole.double()[:, None], 3))


def test_lists_of_floats_are_float64():
    """Python's floats are float64, which the docstring answers in float64."""
    rewards = [0.1, 0.2, 0.4, 0.7]
    got = gdpo.advantages(rewards, group_size=4)
    assert torch.equal(got, gdpo.advantages(torch.tensor(rewards, dtype=torch.float64),
                                            group_size=4))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_narrow_rewards(dtype):
    """They are computed in float64 and rounded once, to float32."""
    rewards = random_rewards(14).to(dtype)
    got = gdpo.advantages(rewards, group_size=5)
    assert got.dtype == torch.float32
    assert torch.equal(got, gdpo.advantages(rewards.double(), group_size=5).float())


def test_rank_one_is_one_reward():
    rewards = random_rewards(15, rewards=1)
    assert torch.equal(gdpo.advantages(rewards[:, 0], group_size=5),
                       gdpo.advantages(rewards, group_size=5))


def test_no_gradient_and_no_change():
    """Advantages are constants of the step, also from rewards of a reward model."""
    rewards = random_rewards(16).requires_grad_()
    kept = rewards.detach().clone()
    got = gdpo.advantages(rewards, group_size=5)
    assert not got.requires_grad and torch.equal(rewards.detach(), kept)


def test_empty():
    assert gdpo.advantages(torch.zeros(0, 2), group_size=4).shape == (0,)
    assert torch.equal(gdpo.advantages(torch.zeros(4, 0), group_size=2), torch.zeros(4))


# Names.

TOKENS = {"verl::gdpo", "verl::gdpo_no_std", "verl::reinforce_plus_plus_baseline", "verl::opo",
          "nvlabs::verl_grpo_bn", "nvlabs::verl_grpo_no_std_bn", "nvlabs::verl_gdpo"}


@pytest.mark.parametrize("name", gdpo.estimators())
def test_every_estimator_runs(name):
    """Finite numbers, and those that count tokens say so where they are missing."""
    rewards = random_rewards(17)
    tokens = torch.arange(1, 31)
    got = gdpo.advantages(rewards, estimator=name, group_size=5, tokens=tokens)
    assert got.isfinite().all() and got.abs().sum() > 0
    if name in TOKENS:
        with pytest.raises(ValueError, match="batch.tokens"):
            gdpo.advantages(rewards, estimator=name, group_size=5)
    else:
        assert torch.equal(gdpo.advantages(rewards, estimator=name, group_size=5), got)


def test_tokens_weigh_rows():
    """verl's second stage counts a row as often as it has tokens, and adds 1e-8 to the variance."""
    rewards = random_rewards(18)
    tokens = torch.arange(1, 31)
    r = rewards.reshape(6, 5, 3)
    s = over_std(r - r.mean(1, keepdim=True), r.std(1, keepdim=True), 1e-6).sum(-1).flatten()
    n = tokens.sum().double()
    mean = (s * tokens).sum() / (n + 1e-8)
    variance = ((s - mean) ** 2 * tokens).sum() / (n + 1e-8) * n / (n - 1)
    close(gdpo.advantages(rewards, estimator="verl::gdpo", group_size=5, tokens=tokens),
          (s - mean) * torch.rsqrt(variance + 1e-8), 18)


# The report.

def test_report_numbers():
    """Counts, and moments of the reward sums, of the groups' stds and of each reward."""
    rewards = random_rewards(19)
    rewards[1, 0] = math.nan
    got, report = gdpo.advantages(rewards, group_size=5, report=True)
    assert torch.equal(got, gdpo.advantages(rewards, group_size=5))
    sums = rewards.nan_to_num(0.0).sum(1)
    want = {"rows": 30, "groups": 6, "smallest_group": 5, "largest_group": 5, "singletons": 0,
            "empty_groups": 0, "excluded_rewards": 1, "infinite_rewards": 0, "excluded_rows": 0,
            "unused_rows": 0,
            "flat_rows": 5, "reward_sums.n": 30, "reward_sums.mean": float(sums.mean()),
            "reward_sums.m2": float(((sums - sums.mean()) ** 2).sum()),
            "reward_sums.min": float(sums.min()), "reward_sums.max": float(sums.max()),
            "group_stds.n": 6, "group_stds.mean": float(sums.reshape(6, 5).std(1).mean()),
            "rewards.0.values.n": 29, "rewards.0.values.mean": float(rewards[:, 0].nanmean()),
            "rewards.2.values.max": float(rewards[:, 2].max()), "rewards.1.flat_groups": 1,
            "rewards.1.known_groups": 6}
    for name, number in want.items():
        assert report[name] == pytest.approx(number, rel=1e-12, abs=1e-14), name
    assert len(report.names()) == len(report.numbers) and report.rewards == 3
    with pytest.raises(KeyError, match="nothing"):
        report["nothing"]


def test_report_to_dict():
    """The keys of TRL and ms-swift, with a prefix and the names of the rewards."""
    rewards = random_rewards(20)[:, :2]
    report = gdpo.advantages(rewards, group_size=5, report=True).report
    sums = rewards.sum(1)
    want = {"reward": sums.mean(), "reward_std": sums.std(), "frac_reward_zero_std": 5 / 30,
            "rewards/a/mean": rewards[:, 0].mean(), "rewards/a/std": rewards[:, 0].std(),
            "rewards/b/mean": rewards[:, 1].mean(), "rewards/b/std": rewards[:, 1].std()}
    got = report.to_dict("train/", ["a", "b"])
    assert got == pytest.approx({"train/" + key: float(value) for key, value in want.items()},
                                rel=1e-12)
    assert set(report.to_dict()) == {key.replace("a/", "0/").replace("b/", "1/") for key in want}
    assert report.to_dict(std="mean_of_groups")["reward_std"] == pytest.approx(
        float(sums.reshape(6, 5).std(1).mean()), rel=1e-12)
    for by in ("batch", "sum"):
        assert report.to_dict(zero_std=by)["frac_reward_zero_std"] == 0


def test_report_of_no_spread():
    """zero_std "batch" and "sum" are 1 where the whole batch has no spread."""
    report = gdpo.advantages(torch.ones(4, 2), group_size=2, report=True).report
    assert [report.to_dict(zero_std=by)["frac_reward_zero_std"]
            for by in ("groups", "batch", "sum")] == [1, 1, 1]


def test_merged_reports_are_that_of_the_whole():
    """Counts are exact; means and stds agree to 2^-44, as report.hpp documents."""
    rewards = random_rewards(21)
    whole, first, second = (
        gdpo.advantages(part, estimator="grpo", group_size=5, report=True).report
        for part in (rewards, rewards[:10], rewards[10:]))
    merged = first.merge(second)
    assert merged.names() == whole.names()
    assert merged.to_dict() == pytest.approx(whole.to_dict(), rel=2 ** -44)
    for name in whole.names():
        if not name.endswith(".mean_low"):  # what is left of the mean's rounding
            assert merged[name] == pytest.approx(whole[name], rel=2 ** -44, abs=1e-14), name


# Errors.

def test_unknown_names():
    for name, words in (("nope", "name: given 'nope'; needed: one of gdpo, grpo"),
                        ("gdpo epsilon=1", "line: given the setting 'epsilon'; needed: one of "
                         "scale.of, scale.ddof, scale.eps"),
                        ("rloo eps=1", "line: given the setting 'eps'")):
        with pytest.raises(ValueError, match=words):
            gdpo.advantages(torch.zeros(6, 2), group_size=2, estimator=name)


def test_errors_of_reports():
    first, second = (gdpo.advantages(torch.rand(4, c), group_size=2, report=True).report
                     for c in (1, 2))
    with pytest.raises(ValueError, match="b.rewards"):
        first.merge(second)
    with pytest.raises(ValueError, match="names"):
        second.to_dict(reward_names=["one"])
    with pytest.raises(ValueError, match="names"):
        second.to_dict(reward_names=["one", "one"])
    with pytest.raises(ValueError, match="zero_std.*one of groups"):
        second.to_dict(zero_std="nope")
    with pytest.raises(ValueError, match="std.*one of batch"):
        second.to_dict(std="nope")


# The operator without a report reads rewards where they lie, in lanes; the one with it copies them.

def groupings(rows: int) -> list:
    """The same groups by size, by offsets and by ids in order; and uneven ones."""
    ids = torch.arange(rows) // 4
    uneven = torch.tensor([0, 3, 3, 10, rows])
    return [dict(group_size=4), dict(group_offsets=4 * torch.arange(rows // 4 + 1)),
            dict(group_ids=ids), dict(group_ids=ids.flip(0)), dict(group_offsets=uneven)]


@pytest.mark.parametrize("estimator", gdpo.estimators())
def test_report_and_storage_change_no_bit(estimator):
    """With a report all rewards are copied to double and computed by other code."""
    rows = 24
    g = torch.Generator().manual_seed(4)
    exact = torch.randn(rows, 3, generator=g)
    exact[4:8] = 1
    missing = exact.clone()
    missing[torch.rand(rows, 3, generator=g) < 0.1] = math.nan
    columns = dict(tokens=torch.randint(1, 90, (rows,), generator=g),
                   baseline=torch.randn(rows, generator=g))
    for rewards in (exact, missing):
        for groups in groupings(rows):
            call = functools.partial(gdpo.advantages, estimator=estimator, **groups, **columns)
            want = call(rewards.double(), report=True).advantages
            got = call(rewards.double())
            assert torch.equal(got.nan_to_num(), want.nan_to_num())
            of_float = call(rewards)
            assert of_float.dtype == torch.float32
            for other in (call(rewards, report=True).advantages, call(rewards.mT.clone().mT),
                          want.float()):
                assert torch.equal(of_float.nan_to_num(), other.nan_to_num())
            narrow = rewards.bfloat16()
            assert torch.equal(call(narrow).nan_to_num(), call(narrow.float()).nan_to_num())


def test_threads_change_no_bit():
    g = torch.Generator().manual_seed(5)
    rewards = torch.randn(20000, 3, generator=g)
    for groups in groupings(20000):
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(gdpo.advantages(rewards, **groups))
        assert torch.equal(*results)


def test_operator_without_a_report():
    rewards = torch.rand(8, 2)
    advantages, none = torch.ops.gdpo.advantages(rewards, "gdpo", 4, report=False)
    same, numbers = torch.ops.gdpo.advantages(rewards, "gdpo", 4)
    assert torch.equal(advantages, same) and none.shape == (0,) and numbers.numel() > 0
