"""Advantages of tokens and of steps by name: against the trainers' records, and plain PyTorch."""
import inspect
import json
import math
import pathlib

import pytest
import torch

import gdpo
from gdpo._settings import keywords

GOLDEN = pathlib.Path(__file__).parents[3] / "tests" / "golden" / "released"
ops = torch.ops.gdpo


def recorded(source, *functions):
    """The recorded cases of functions, but for those that record NaN."""
    text = (GOLDEN / f"{source}.advantage.json").read_text(encoding="utf-8")
    return [pytest.param(case, id=case["name"].replace("/", " "))
            for case in json.loads(text)["cases"]
            if case["function"] in functions and not case.get("expects_nan")]


def numbers(rows):
    return torch.tensor([[float(entry) for entry in row] if isinstance(row, list) else float(row)
                         for row in rows], dtype=torch.float64)


def tensors(case):
    return {name: numbers(rows) for name, rows in case["inputs"].items()}


def close(ours, case, output, mask):
    relative, absolute = case["tol"]
    theirs = numbers(case["expected"][output])
    torch.testing.assert_close(ours.double() * mask, theirs.nan_to_num() * mask, rtol=relative,
                               atol=absolute)


def poisoned(array, mask):
    """The array with NaN where the mask is 0."""
    return None if array is None else torch.where(mask != 0, array, math.nan)


# The trainers' records.

@pytest.mark.parametrize("case", recorded(
    "openrlhf_0.11.2", "RemoteExperienceMaker.compute_advantages_and_returns"))
def test_openrlhf(case):
    params, given = case["params"], tensors(case)
    mask, rewards = given["response_mask"], given["rewards"]
    lengths = mask.sum(1)
    if params.get("overlong_buffer_len") is not None:
        rewards = gdpo.shape_rewards(
            rewards, f"soft_overlong max_length={params['max_new_tokens']} "
            f"buffer={params['overlong_buffer_len']} penalty={params['overlong_penalty_factor']}",
            lengths=lengths)
    if params.get("stop_properly_penalty_coef") is not None:
        coef = params["stop_properly_penalty_coef"]
        cut = torch.full_like(rewards, coef) if coef < 0 else rewards * coef
        rewards = torch.where(given["truncated"] != 0, cut, rewards)
    kind = params["estimator"]
    settings = {"gamma": params["gamma"], "tokens_penalty_coef": params["kl_coef"]}
    if kind == "gae":
        settings["tokens_returns_lambda"] = params["lambd"]
    if kind == "group_norm":
        settings.update(rows_scale_eps=params["group_norm_eps"], rows_scale_ddof=params["ddof"])
    if params.get("reward_clip_range"):
        settings["tokens_reward_clip"] = tuple(params["reward_clip_range"])
    norm = params.get("batch_norm")
    if norm:
        settings.update(tokens_renorm_ddof=norm["ddof"], tokens_renorm_eps=norm["var_clamp_min"])
    if params.get("no_std_norm") or norm and not norm.get("std", True):
        settings["tokens_renorm_eps_at"] = "none"
    kl, values = given.get("kl"), given.get("values")
    out = gdpo.outcome_advantages(
        rewards, estimator=f"openrlhf::{kind}", group_ids=given["group_ids"].long(),
        mask=mask, values=None if values is None else values * mask, logp=kl,
        ref_logp=None if kl is None else torch.zeros_like(kl), report=True, **settings)
    close(out.advantages, case, "advantages", mask)
    if "returns" in case["expected"]:
        close(out.returns, case, "returns", mask)
    assert out.report["rows"] == len(mask)


@pytest.mark.parametrize("case", recorded("trinity_0.6.0", "RLOOAdvantageFn"))
def test_trinity_rloo(case):
    given = tensors(case)
    mask = given["response_mask"]
    out = gdpo.outcome_advantages(given["token_level_rewards"].sum(1), estimator="trinity::rloo",
                                  group_ids=given["group_ids"].long(), mask=mask)
    close(out.advantages, case, "advantages", mask)


@pytest.mark.parametrize("case", recorded("trinity_0.6.0", "GiGPOAdvantageFn"))
def test_trinity_gigpo(case):
    params, given = case["params"], tensors(case)
    mask, rewards = given["response_mask"], given["rewards"]
    tasks, runs, states = (given[name].long() for name in ("task_ids", "run_ids", "state_ids"))
    episodes = tasks * 1000 + runs
    if params["rewards"] == "of the last step":
        again = torch.cat([episodes[1:] == episodes[:-1], torch.tensor([False])])
        rewards = torch.where(again, math.nan, rewards)
    settings = {"estimator": "trinity::gigpo"}
    if params["fnorm"] == "none":
        settings = {"estimator": "gigpo_no_std pool_states=true",
                    "weights": [1 / (1 + params["epsilon"])]}
    rows = gdpo.step_advantages(rewards, group_ids=tasks, episode_ids=episodes, state_ids=states,
                                omega=params["omega"], gamma=params["gamma"], **settings)
    close(rows[:, None] * mask, case, "advantages", mask)


VERL = {"compute_gae_advantage_return": "verl::gae",
        "compute_reinforce_plus_plus_outcome_advantage": "verl::reinforce_plus_plus"}


@pytest.mark.parametrize("case", recorded("verl_0.9.1", *VERL))
def test_verl_returns(case):
    params, given = case["params"], tensors(case)
    mask = given["response_mask"]
    settings = {"returns_lambda": params["lam"]} if "lam" in params else {}
    out = gdpo.token_advantages(
        estimator=VERL[case["function"]], rewards=poisoned(given["token_level_rewards"], mask),
        values=poisoned(given.get("values"), mask), mask=mask, gamma=params["gamma"],
        renorm_eps=params["whiten_eps"], renorm_ddof=params["whiten_ddof"],
        renorm_count_eps=params["mean_eps"] or 0, **settings)
    close(out.advantages, case, "advantages", mask)
    close(out.returns, case, "returns", mask)
    assert not out.advantages[mask == 0].any() and not out.returns[mask == 0].any()


BASELINES = {"compute_optimal_token_baseline_advantage": "verl::optimal_token_baseline",
             "compute_multi_turn_optimal_token_baseline_advantage":
                 "verl::multi_turn_optimal_token_baseline"}


@pytest.mark.parametrize("case", recorded("verl_0.9.1", *BASELINES))
def test_verl_token_baselines(case):
    params, given = case["params"], tensors(case)
    mask = given["response_mask"]
    returns = gdpo.token_advantages(estimator="verl::reinforce_plus_plus", renorm="none",
                                    rewards=given["token_level_rewards"], mask=mask).returns
    close(returns, case, "returns", mask)
    ours = gdpo.optimal_token_baseline(
        poisoned(returns, mask), logp=poisoned(given["old_logp"], mask),
        sum_pi_squared=poisoned(given["sum_pi_squared"], mask),
        weights=poisoned(given.get("rollout_is_weights"), mask), mask=mask,
        name=BASELINES[case["function"]], group_ids=given["group_ids"].long(), eps=params["eps"],
        tail="raw" if params["handle_zero_tail"] else "cancel")
    close(ours, case, "advantages", mask)
    assert not ours[mask == 0].any()


# Plain PyTorch.

def random_batch(seed, rows=12, width=7, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, width + 1, (rows,), generator=g)
    mask = torch.arange(width) < lengths[:, None]
    arrays = {name: poisoned(torch.randn((rows, width), generator=g, dtype=dtype), mask)
              for name in ("rewards", "values", "logp", "ref_logp")}
    return torch.randn(rows, generator=g, dtype=dtype), mask, arrays


def test_gae_is_its_recursion():
    for seed in range(4):
        scores, mask, arrays = random_batch(seed)
        bootstrap = scores.flip(0)
        ours = gdpo.token_advantages(estimator="verl::gae", row_rewards=scores, mask=mask,
                                     bootstrap=bootstrap,
                                     values=arrays["values"], logp=arrays["logp"],
                                     ref_logp=arrays["ref_logp"], penalty_coef=0.1, gamma=0.9,
                                     returns_lambda=0.8, renorm="none")
        want = torch.zeros_like(arrays["values"])
        for i, n in enumerate(mask.sum(1).tolist()):
            carried, next_value = 0.0, bootstrap[i]
            for t in range(n - 1, -1, -1):
                reward = -0.1 * (arrays["logp"][i, t] - arrays["ref_logp"][i, t])
                reward = reward + (scores[i] if t == n - 1 else 0)
                carried = reward + 0.9 * next_value - arrays["values"][i, t] + 0.72 * carried
                next_value = arrays["values"][i, t]
                want[i, t] = carried
        # Sums of at most 7 numbers of order 1.
        torch.testing.assert_close(ours.advantages, want, rtol=1e-12, atol=1e-13)
        values = arrays["values"].nan_to_num() * mask
        torch.testing.assert_close(ours.returns, want + values, rtol=1e-12, atol=1e-13)


def others(r):
    return r - (r.sum(1, keepdim=True) - r) / (r.shape[1] - 1)


def centered(r):
    return r - r.mean(1, keepdim=True)


def divided(r):
    return centered(r) / r.std(1, keepdim=True)


def itself(r):
    return r


#: What each estimator makes of rewards (groups, members).
ROWS = {"openrlhf::rloo": others, "openrlhf::reinforce_baseline": centered,
        "openrlhf::flash_reinforce": lambda r: r - r.mean(), "openrlhf::reinforce": itself,
        "openrlhf::gae": itself, "openrlhf::group_norm": divided, "openrlhf::dr_grpo": centered,
        "nemo_rl::reinforce_plus_plus": centered, "nemo_rl::raw_reward": itself,
        "slime::grpo": divided, "slime::reinforce_plus_plus_baseline": centered,
        "trinity::rloo": others, "areal::grpo": divided, "areal::dr_grpo": centered,
        "areal::reinforce": itself, "areal::gae": itself}


@pytest.mark.parametrize("name", gdpo.outcome_estimators())
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_outcomes_of_rows(name, dtype):
    """Without a discount, penalty, critic and normalization each token has what its row has."""
    rewards, mask, arrays = random_batch(3, dtype=dtype)
    values = torch.zeros_like(arrays["values"]) if name.endswith("::gae") else None
    out = gdpo.outcome_advantages(rewards, estimator=name, group_size=4, mask=mask, values=values,
                                  tokens_renorm="none", report=True)
    rows = ROWS[name](rewards.reshape(3, 4)).reshape(12, 1)
    # The eps of the stds is at most 1e-5 of stds of order 1; float32 has 6e-8.
    for got in (out.advantages, out.returns):
        torch.testing.assert_close(got, rows * mask, rtol=4e-5, atol=1e-6)
        assert got.dtype == dtype and not got[~mask].any()
    assert out.report["rows"] == 12 and out.report["groups"] == 3


@pytest.mark.parametrize("name", ["openrlhf::reinforce_baseline", "nemo_rl::raw_reward"])
def test_outcomes_are_whitened(name):
    rewards, mask, _ = random_batch(4)
    ours = gdpo.outcome_advantages(rewards, estimator=name, group_size=4, mask=mask).advantages
    x = (ROWS[name](rewards.reshape(3, 4)).reshape(12, 1) * mask)[mask]
    torch.testing.assert_close(ours[mask], (x - x.mean()) / x.std(correction=0), rtol=1e-12,
                               atol=1e-13)


def test_outcomes_with_penalty_discount_and_token_rewards():
    rewards, mask, arrays = random_batch(5)
    more = torch.rand(mask.shape, dtype=torch.float64)
    ours = gdpo.outcome_advantages(
        rewards, estimator="areal::reinforce", group_size=4, mask=mask, gamma=0.5,
        tokens_penalty_coef=0.1, logp=arrays["logp"], ref_logp=arrays["ref_logp"],
        token_rewards=poisoned(more, mask)).advantages
    for i, n in enumerate(mask.sum(1).tolist()):
        carried = 0.0
        for t in range(n - 1, -1, -1):
            step = more[i, t] - 0.1 * (arrays["logp"][i, t] - arrays["ref_logp"][i, t])
            carried = float(step) + (float(rewards[i]) if t == n - 1 else 0) + 0.5 * carried
            assert float(ours[i, t]) == pytest.approx(carried, rel=1e-12, abs=1e-13)


def test_layouts_and_columns():
    """Packed and nested tokens, several weighted rewards, groups by id, and lists."""
    rewards, mask, arrays = random_batch(6)
    lengths = mask.sum(1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    options = {"estimator": "openrlhf::reinforce_baseline", "group_ids": [5, 1, 3] * 4,
               "weights": [1, 0.5]}
    several = torch.stack([rewards, 2 * rewards.flip(0)], 1)
    padded = gdpo.outcome_advantages(several, mask=mask, **options)
    weighed = gdpo.outcome_advantages(several @ torch.tensor([1, 0.5], dtype=torch.float64),
                                      mask=mask, **{**options, "weights": None})
    torch.testing.assert_close(padded.advantages, weighed.advantages, rtol=1e-12, atol=1e-13)
    ones = torch.ones(int(lengths.sum()))
    packed = gdpo.outcome_advantages(several.tolist(), mask=ones, offsets=offsets, **options)
    assert torch.equal(packed.advantages, padded.advantages[mask])
    nested = torch.nested.nested_tensor_from_jagged(ones, offsets)
    again = gdpo.outcome_advantages(several, mask=nested, **options)
    assert torch.equal(again.returns, packed.returns)
    narrow = gdpo.outcome_advantages(several, mask=mask, logp=arrays["logp"].float(), **options)
    assert narrow.advantages.dtype == torch.float32
    gae = gdpo.token_advantages(row_rewards=rewards.tolist(), values=arrays["values"].float(),
                                mask=mask, bootstrap=[1.0] * 12)
    assert gae.advantages.dtype == torch.float32


def test_step_advantages_are_gigpo():
    g = torch.Generator().manual_seed(8)
    rewards = torch.randn(60, generator=g, dtype=torch.float64)
    episodes = torch.arange(60) // 5
    tasks, states = episodes // 4, torch.randint(0, 3, (60,), generator=g)
    ours = gdpo.step_advantages(rewards, group_ids=tasks, episode_ids=episodes, state_ids=states,
                                omega=0.5, gamma=0.9)
    sums = rewards.reshape(12, 5).sum(1)
    of_episodes = divided(sums.reshape(3, 4)).reshape(12).repeat_interleave(5)
    returns = rewards.clone()
    for k in range(58, -1, -1):
        if episodes[k] == episodes[k + 1]:
            returns[k] += 0.9 * returns[k + 1]
    of_steps = torch.zeros(60, dtype=torch.float64)
    for task in range(3):
        for state in range(3):
            here = (tasks == task) & (states == state)
            if here.sum() > 1:
                of_steps[here] = divided(returns[here][None])[0]
    # Grpo has an eps of 1e-4 beside stds of order 1.
    eps = {s.name: float(s.value) for s in gdpo.estimator_settings("gigpo", "step_advantages")
           if s.name.endswith("scale.eps")}
    assert set(eps) == {"episode.scale.eps", "step.scale.eps"}
    torch.testing.assert_close(ours, of_episodes + 0.5 * of_steps, rtol=1e-9 + 10 * max(
        eps.values()), atol=1e-9 + 10 * max(eps.values()))
    alone = gdpo.step_advantages(rewards.float(), group_ids=tasks, episode_ids=episodes,
                                 state_ids=states, estimator="gigpo_no_std", omega=0)
    assert alone.dtype == torch.float32
    torch.testing.assert_close(alone, centered(sums.reshape(3, 4)).reshape(12).repeat_interleave(
        5).float())
    listed = gdpo.step_advantages(rewards.tolist(), group_ids=tasks, episode_ids=episodes,
                                  state_ids=states, omega=0.5, gamma=0.9)
    assert torch.equal(listed, ours)


def test_optimal_token_baseline_is_its_formula():
    g = torch.Generator().manual_seed(9)
    returns = torch.randn(4, 3, generator=g, dtype=torch.float64)
    logp = -torch.rand(4, 3, generator=g, dtype=torch.float64)
    squares, ratios = logp.exp() ** 2 + 0.01, torch.rand(4, 3, generator=g, dtype=torch.float64)
    weight = ((1 - 2 * logp.exp() + squares) * ratios**2).cumsum(1).reshape(2, 2, 3)
    of_group = (returns.reshape(2, 2, 3) * weight).sum(1) / weight.sum(1)
    want = returns - of_group.repeat_interleave(2, 0)
    for name in gdpo.token_baselines():
        ours = gdpo.optimal_token_baseline(returns, logp=logp, sum_pi_squared=squares,
                                           weights=ratios, name=name, group_size=2, eps=0)
        torch.testing.assert_close(ours, want, rtol=1e-12, atol=1e-13)
    narrow = gdpo.optimal_token_baseline(returns.float(), logp=logp.float(), group_offsets=[0, 4],
                                         sum_pi_squared=squares.float())
    assert narrow.dtype == torch.float32


def test_sum_of_squares_of_the_docstring():
    logits = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(2))
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    full = gdpo.token_logprobs(logits, tokens)
    half = gdpo.token_logprobs(logits, tokens, temperature=0.5)
    ours = (half.logsumexp - 2 * full.logsumexp).exp()
    torch.testing.assert_close(ours, (logits.double().softmax(-1) ** 2).sum(-1))


def test_parts_of_a_batch_are_those_of_the_whole():
    """Whole groups on several ranks or in several calls, where nothing is normalized over all."""
    rewards, mask, arrays = random_batch(11)
    more = {name: arrays[name] for name in ("logp", "ref_logp")}
    squares = poisoned(torch.rand(mask.shape, dtype=torch.float64), mask)

    def run(rows):
        given = {name: array[rows] for name, array in more.items()}
        out = gdpo.outcome_advantages(rewards[rows], estimator="areal::grpo", group_size=4,
                                      mask=mask[rows], gamma=0.9, tokens_penalty_coef=0.1, **given)
        return [out.advantages, gdpo.optimal_token_baseline(
            out.returns, logp=given["logp"], sum_pi_squared=squares[rows], mask=mask[rows],
            group_size=4)]

    parts = [run(slice(0, 4)), run(slice(4, 12))]
    for whole, first, second in zip(run(slice(0, 12)), *parts):
        assert torch.equal(whole, torch.cat([first, second]))
        assert not whole[~mask].any() and whole.isfinite().all()


# Names and refusals.

def test_names_have_settings():
    for names, call, setting in ((gdpo.token_estimators(), "token_advantages", "returns.gamma"),
                                 (gdpo.outcome_estimators(), "outcome_advantages", "placement"),
                                 (gdpo.step_estimators(), "step_advantages", "omega"),
                                 (gdpo.token_baselines(), "optimal_token_baseline", "tail")):
        assert names
        for name in names:
            assert setting in [s.name for s in gdpo.estimator_settings(name, call)]
    assert set(ROWS) == set(gdpo.outcome_estimators())
    assert "returns_lambda" in gdpo.token_advantages.__doc__
    with pytest.raises(ValueError, match="call: given 'loss'; needed: one of advantages, token_"):
        gdpo.estimator_settings("gdpo", "loss")


@pytest.mark.parametrize("call, what", [
    (gdpo.token_advantages, "token_advantages"), (gdpo.outcome_advantages, "outcome_advantages"),
    (gdpo.step_advantages, "step_advantages"), (gdpo.optimal_token_baseline, "token_baseline")])
def test_keywords(call, what):
    known = keywords(what)
    assert known and known.keys() <= inspect.signature(call).parameters.keys()
    text = " ".join(call.__doc__.split())
    assert all(f"{keyword} ({setting.name}): {setting.meaning}" in text
               for keyword, setting in known.items())


MASK = torch.ones(4, 3)
SQUARES = {"logp": MASK, "sum_pi_squared": MASK, "group_size": 2}


@pytest.mark.parametrize("call, words", [
    (lambda: gdpo.token_advantages(row_rewards=MASK[:, 0], mask=MASK),
     "gdpo::token_advantages: values: given no array; needed: the critic's values"),
    (lambda: gdpo.token_advantages(row_rewards=MASK[:, 0], values=MASK, mask=MASK[:2]),
     "gdpo::token_advantages: mask: given"),
    (lambda: gdpo.token_advantages(estimator="skyrl::gea", row_rewards=MASK[:, 0], values=MASK),
     "'skyrl::gea'; needed: one of "),
    (lambda: gdpo.token_advantages(row_rewards=MASK[:, 0], values=MASK, gamma=2),
     "gdpo::token_advantages: gamma: given 2"),
    (lambda: gdpo.token_advantages(row_rewards=MASK[:, 0], values=[[1.0]]),
     "gdpo::token_advantages: values: given a list; needed: a torch.Tensor"),
    (lambda: gdpo.token_advantages(row_rewards=MASK[:, 0]),
     "gdpo::token_advantages: mask: given no array of tokens; needed: one at least"),
    (lambda: gdpo.outcome_advantages(MASK[:, 0], group_size=2),
     "gdpo::outcome_advantages: mask: given no array of tokens"),
    (lambda: gdpo.outcome_advantages(MASK[:, 0], mask=MASK),
     "gdpo::outcome_advantages: group_size, group_ids, group_offsets: given none"),
    (lambda: gdpo.outcome_advantages(MASK[:2, 0], group_size=2, mask=MASK),
     "gdpo::outcome_advantages: rewards: given 2 entries"),
    (lambda: gdpo.outcome_advantages(MASK[:, 0], group_size=2, mask=MASK, token_rewards=MASK,
                                     estimator="slime::grpo"),
     "gdpo::outcome_advantages: token_rewards: given an array; needed: none"),
    (lambda: gdpo.outcome_advantages(None, group_size=2, mask=MASK),
     "gdpo::outcome_advantages: rewards: given None"),
    (lambda: gdpo.step_advantages(MASK[:, 0], group_size=2, episode_ids=None, state_ids=[0] * 4),
     "gdpo::step_advantages: episode_ids: given None"),
    (lambda: gdpo.step_advantages(MASK[:, 0], group_size=2, episode_ids=[0, 1, 1, 2],
                                  state_ids=[0] * 4),
     "gdpo::step_advantages: episode_ids: given rows 1 and 2 of rollout 1"),
    (lambda: gdpo.step_advantages(MASK[:, 0], group_size=2, episode_ids=[0, 0, 1, 1],
                                  state_ids=[0] * 3),
     "gdpo::step_advantages: state_ids: given 3 entries"),
    (lambda: gdpo.optimal_token_baseline(MASK, logp=None, sum_pi_squared=MASK, group_size=2),
     "gdpo::optimal_token_baseline: logp: given None"),
    (lambda: gdpo.optimal_token_baseline(MASK, logp=MASK, sum_pi_squared=MASK),
     "gdpo::optimal_token_baseline: group_size, group_ids, group_offsets: given none"),
    (lambda: gdpo.optimal_token_baseline(MASK, weights=MASK[:1], **SQUARES),
     "gdpo::optimal_token_baseline: weights: given"),
    (lambda: gdpo.optimal_token_baseline(MASK, tail="x", **SQUARES), "tail: given 'x'"),
])
def test_refusals(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


# PyTorch's machinery.

@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_operators(dtype):
    rewards, mask, arrays = random_batch(7)
    rewards = rewards.to(dtype)
    arrays = {name: array.to(dtype) for name, array in arrays.items()}
    check = torch.library.opcheck
    check(ops.token_advantages.default, ("verl::gae",), dict(
        row_rewards=rewards, values=arrays["values"], mask=mask))
    check(ops.token_advantages.default, ("verl::reinforce_plus_plus",), dict(
        row_rewards=rewards, mask=mask))
    check(ops.outcome_advantages.default, (rewards, "openrlhf::rloo", 4), dict(mask=mask))
    check(ops.outcome_advantages.default, (rewards, "openrlhf::rloo", 4), dict(
        mask=mask, logp=arrays["logp"]))
    ids = torch.arange(12) // 2
    check(ops.step_advantages.default, (rewards, "gigpo", ids, ids % 3, 4))
    check(ops.optimal_token_baseline.default, (
        arrays["rewards"].nan_to_num(), arrays["logp"].nan_to_num(),
        arrays["values"].nan_to_num(), "verl::optimal_token_baseline", 4), dict(mask=mask))


def test_nothing_gets_a_gradient():
    rewards, mask, arrays = random_batch(7)
    values = arrays["values"].requires_grad_()
    out = gdpo.token_advantages(row_rewards=rewards, values=values, mask=mask)
    assert not out.advantages.requires_grad and not out.returns.requires_grad
