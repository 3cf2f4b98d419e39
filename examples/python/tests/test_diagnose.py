"""Findings of the C++ library, asked for from Python."""
import math

import pytest
import torch

import gdpo


def metrics_at(log_ratio, **settings):
    """The metrics of a loss whose tokens all have this log ratio."""
    logp = torch.full((6, 4), -1.0)
    return gdpo.PolicyLoss("dapo", **settings)(
        logp, old_logp=logp - log_ratio, ref_logp=logp, advantages=torch.tensor([1., -1] * 3),
        counts=gdpo.count(logp=logp)).metrics


def names(findings):
    return [finding.name for finding in findings]


def test_nothing_is_found_in_a_first_step_that_is_one():
    assert gdpo.diagnose(metrics_at(0.0), first_step=True) == []


def test_ratios_of_the_first_step():
    (finding,) = gdpo.diagnose(metrics_at(0.15), first_step=True)
    assert finding.name == "first_step_ratio" and finding.bound == 0.1
    # The ratio is e^0.15 at every token.
    assert finding.figure == pytest.approx(0.1618, abs=2e-3)
    assert str(finding).startswith("first_step_ratio: In the first step after the rollout")
    assert gdpo.diagnose(metrics_at(0.15), first_step=True, first_step_ratio=0.2) == []


def test_a_reference_that_is_the_policy():
    assert "kl_zero" in names(gdpo.diagnose(metrics_at(0.1, beta=0.1), clip_fraction_min=0.0))


@pytest.mark.parametrize("groups", ["size", "ids"])
def test_dead_groups_and_silent_rewards(groups):
    rewards = torch.tensor([[1., 0], [1, 0], [2, 0], [2, 0], [0, 0], [1, 0]])
    said = {"size": {"group_size": 2}, "ids": {"group_ids": torch.tensor([5, 5, 3, 3, 9, 9])}}
    report = gdpo.advantages(rewards, report=True, **said[groups]).report
    assert report["degenerate_groups"] == 2
    findings = gdpo.diagnose(report=report, reward_names=["right", "short"])
    assert names(findings) == ["dead_groups", "silent_reward"]
    assert findings[0].figure == pytest.approx(2 / 3) and findings[1].subject == "short"
    merged = report.merge(report)
    assert merged["degenerate_groups"] == 4
    assert names(gdpo.diagnose(report=merged)) == ["dead_groups", "silent_reward"]


def test_groups_without_any_reward_are_not_dead():
    rewards = torch.tensor([1., 0] + 4 * [math.nan] + [0, 1])
    report = gdpo.advantages(rewards, group_size=2, report=True).report
    assert report["empty_groups"] == 2 and report["degenerate_groups"] == 2
    assert names(gdpo.diagnose(report=report)) == []
    assert names(gdpo.diagnose(report=report.merge(report))) == []


def test_both_together():
    rewards = torch.ones(6)
    report = gdpo.advantages(rewards, group_size=3, report=True).report
    found = names(gdpo.diagnose(metrics_at(0.3), report, first_step=True))
    assert found == ["first_step_ratio", "clip_fraction", "dead_groups", "silent_reward"]


@pytest.mark.parametrize("arguments, words", [
    (dict(), "gdpo::diagnose: metrics, report: given neither"),
    (dict(report=True, truncated=2), "settings.truncated: given 2"),
    (dict(report=True, much=1), "gdpo::diagnose: settings: given 'much'; needed: one of "
                                "first_step, first_step_ratio"),
    (dict(report=True, reward_names=["a", "b"]), "settings.reward_names: given 2 names"),
])
def test_what_is_refused(arguments, words):
    if arguments.get("report"):
        arguments["report"] = gdpo.advantages(torch.rand(4), group_size=2, report=True).report
    with pytest.raises(ValueError) as refused:
        gdpo.diagnose(**arguments)
    assert words in str(refused.value)
