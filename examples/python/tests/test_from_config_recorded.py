"""OpenRLHF's options as calls of this library give the numbers that were recorded of OpenRLHF.

The other trainers have plug-ins, whose tests in examples/python/trainers compare them.
"""
import json
import pathlib
import re

import pytest
import torch

import gdpo

GOLDEN = pathlib.Path(__file__).parents[3] / "tests" / "golden" / "released"
PREFIX = "algo.advantage."


def recorded(kind, function):
    """The recorded cases of a function; those that record NaN of a group of one are left out."""
    text = (GOLDEN / f"openrlhf_0.11.2.{kind}.json").read_text(encoding="utf-8")
    return [pytest.param(case, id=case["name"].split("/")[1])
            for case in json.loads(text)["cases"]
            if case["function"] == function and not case.get("expects_nan")]


def numbers(rows):
    return torch.tensor([[float(entry) for entry in row] if isinstance(row, list) else float(row)
                         for row in rows], dtype=torch.float64)


def close(ours, theirs, case):
    relative, absolute = case["tol"]
    torch.testing.assert_close(ours.double(), theirs, rtol=relative, atol=absolute, equal_nan=True)


@pytest.mark.parametrize("case", recorded("loss", "PolicyLoss.forward"))
def test_loss(case):
    params = case["params"]
    config = {"actor.policy_loss_type": params["policy_loss_type"],
              "actor.eps_clip_low_high": [params["clip_eps_low"], params["clip_eps_high"]],
              "actor.dual_clip": params["dual_clip"],
              "actor.loss_agg_mode": ("token-mean" if params["token_level_loss"]
                                      else "seq-mean-token-mean"),
              **{PREFIX + name: value for name, value in params.items()
                 if name.startswith("is_correction")}, PREFIX + "estimator": "rloo"}
    given = gdpo.from_config("openrlhf", config, strict=True)
    arrays = {name: numbers(rows) for name, rows in case["inputs"].items()}
    mask, advantages = arrays.pop("response_mask"), arrays.pop("advantages")
    logp = arrays.pop("logp").requires_grad_()
    arrays["advantages" if advantages.dim() == 1 else "token_advantages"] = advantages
    if "old_logp" in given.arrays:  # the sampler's log-probs
        arrays["old_logp"] = arrays["rollout_logp"]
    prepared = {"mask": mask}
    if given.corrections:
        prepared = gdpo.prepare(given.corrections, mask=mask, logp=logp.detach(), **arrays).arrays()
    counts = gdpo.count(mask=mask)
    if params["batch_num_tokens"] is not None:
        counts[0], counts[2] = params["batch_num_tokens"], params["global_batch_size"]
    loss, _ = given.loss(logp, counts=counts, **arrays, **prepared)
    loss = loss * params["dp_size"]  # of which each rank has one
    loss.backward()
    close(loss.detach(), torch.tensor(float(case["expected"]["loss"]), dtype=torch.float64), case)
    close(logp.grad, numbers(case["expected"]["grad_logp"]), case)


@pytest.mark.parametrize("case", recorded(
    "advantage", "RemoteExperienceMaker.compute_advantages_and_returns"))
def test_advantages(case):
    params = case["params"]
    config = {PREFIX + "estimator": params["estimator"], "algo.kl.init_coef": params["kl_coef"],
              "reward.clip_range": params["reward_clip_range"], PREFIX + "gamma": params["gamma"],
              PREFIX + "no_std_norm": not params.get("batch_norm", {}).get("std", True),
              **{f"reward.{name}": params.get(name) for name in (
                  "overlong_buffer_len", "stop_properly_penalty_coef")}}
    if params["lambd"] is not None:
        config[PREFIX + "lambd"] = params["lambd"]
    given = gdpo.from_config("openrlhf", config)
    unmade = params.get("max_new_tokens") or "stop_properly_penalty_coef" in params
    if given.unsupported or unmade:
        named = {PREFIX + "estimator", "algo.kl.init_coef", "reward.overlong_buffer_len",
                 "reward.stop_properly_penalty_coef"}
        assert named & {*given.unsupported, *given.yours}
        return
    whole_line = re.search('outcome_advantages.*estimator="([^"]*)"',
                           given.yours.get("algo.kl.init_coef", ""))
    if given.token_advantage or whole_line:
        arrays = {name: numbers(rows) for name, rows in case["inputs"].items()}
        mask, kl, values = (arrays.get(name) for name in ("response_mask", "kl", "values"))
        # The record has estimates of the KL, which are those of k1 against 0.
        tokens = {"mask": mask, "logp": kl, "values": None if values is None else values * mask,
                  "ref_logp": None if kl is None else torch.zeros_like(kl)}
        if whole_line:
            ours = gdpo.outcome_advantages(
                arrays["rewards"], estimator=whole_line[1],
                group_ids=torch.tensor(case["inputs"]["group_ids"]), **tokens)
        else:
            ours = gdpo.token_advantages(estimator=given.token_advantage,
                                         row_rewards=arrays["rewards"], **tokens)
        close(ours.advantages * mask, numbers(case["expected"]["advantages"]) * mask, case)
        return
    assert params["reward_clip_range"] is None or "reward.clip_range" in given.yours
    rewards, mask = (numbers(case["inputs"][name]) for name in ("rewards", "response_mask"))
    groups = torch.tensor(case["inputs"]["group_ids"])
    whole = "group_size" in given.arrays  # the rollout is one group
    of_rows = gdpo.advantages(rewards, estimator=given.estimator, tokens=mask.sum(-1), **(
        {"group_size": len(rewards)} if whole else {"group_ids": groups}))
    if params["reward_clip_range"]:
        of_rows = of_rows.clamp(*params["reward_clip_range"])
    ours = of_rows[:, None].expand_as(mask)
    if params["kl_coef"]:
        assert "algo.kl.init_coef" in given.yours
        kl = numbers(case["inputs"]["kl"]) * mask
        ours = ours - params["kl_coef"] * kl.flip(-1).cumsum(-1).flip(-1)
    theirs = numbers(case["expected"]["advantages"])
    close(torch.where(mask != 0, ours, 0.0), torch.where(mask != 0, theirs, 0.0), case)
