"""Findings of the C++ library, asked for from Python."""
import math

import pytest
import torch

import gdpo
from gdpo._policy_loss import dividing_by_given


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


def test_a_small_clip_fraction_is_no_finding():
    assert gdpo.diagnose(metrics_at(0.01)) == []
    (finding,) = gdpo.diagnose(metrics_at(0.01), clip_fraction_min=0.05)
    assert finding.name == "clip_fraction" and "hardly moves" in finding.cause


CANCELED = [[1., 0], [0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize("rewards, cause", [
    (CANCELED, "cancel each other"),
    ([[1., 2]] * 4, "too hard or too easy"),
    (CANCELED + [[2., 2]] * 6, "too hard or too easy"),
    (CANCELED + [[2., 2]] * 2 + [[1., 1], [1., 2]], "cancel each other"),
])
def test_dead_groups_by_their_cause(rewards, cause):
    report = gdpo.advantages(torch.tensor(rewards), group_size=2, report=True,
                             estimator="grpo").report
    for known in (report, report.merge(report)):
        finding = next(f for f in gdpo.diagnose(report=known) if f.name == "dead_groups")
        assert cause in finding.cause


def test_infinite_rewards_are_blamed():
    rewards = torch.tensor([1., 0, math.inf, 0])
    advantages = gdpo.advantages(rewards, group_size=2, report=True)
    logp = torch.full((4, 3), -1.0)
    metrics = gdpo.PolicyLoss("grpo", beta=0.0)(
        logp, advantages=advantages.advantages, counts=gdpo.count(logp=logp)).metrics
    found = gdpo.diagnose(metrics, advantages.report)
    assert [(f.name, f.subject) for f in found] == [("non_finite", "advantages"),
                                                    ("non_finite", "rewards")]
    assert "the report counts 1" in found[0].cause


def test_log_probs_that_are_none():
    def found(logp, old_logp, **settings):
        return names(gdpo.diagnose(gdpo.PolicyLoss("dapo")(
            logp, old_logp=old_logp, advantages=torch.tensor([1., -1] * 3),
            counts=gdpo.count(logp=logp)).metrics, **settings))

    torch.manual_seed(0)
    logp = -torch.rand(6, 5) - 0.1
    old_logp = logp + 0.01 * torch.randn(6, 5)
    assert found(logp, old_logp, later_step=True) == []
    assert found(logp.exp(), old_logp.exp()) == ["positive_logp"]
    assert found(logp.exp().bfloat16(), None) == ["positive_logp"]
    assert found(logp, logp, later_step=True) == ["ratio_one"]
    assert found(logp, None, first_step=True) == found(logp, logp) == []
    # Over tokens of the old policy the mean log ratio is about -sigma^2 / 2.
    wide = torch.full((6, 4000), -5.0)
    ratio = 0.3 * torch.randn(6, 4000) - 0.045
    assert found(wide + ratio, wide) == []
    assert found(wide, wide + ratio) == ["swapped_logp"]


def test_counts_that_do_not_fit():
    logp = torch.full((4, 5), -1.0)
    counts = gdpo.count(logp=logp)

    def call(name, counts):
        return gdpo.PolicyLoss(name)(logp, advantages=torch.tensor([1., -1, 1, -1]),
                                     counts=counts).metrics

    own = call("dapo", counts)
    assert gdpo.diagnose(own, whole_step=True) == []
    with pytest.raises(ValueError, match="gdpo::merge: normalizer.tokens: given 20, for a loss of "
                                         "40"):
        own.merge(own)
    step = call("dapo", counts + counts)
    assert gdpo.diagnose(step) == gdpo.diagnose(step.merge(step), whole_step=True) == []
    (finding,) = gdpo.diagnose(step, whole_step=True)
    assert (finding.name, finding.subject) == ("counts", "tokens")
    twice = torch.tensor([20., 4, 4, 40], dtype=torch.float64)
    (finding,) = gdpo.diagnose(call("trl::dapo", twice), whole_step=True)
    assert (finding.name, finding.subject, finding.figure) == ("counts", "given", 2)
    # As from a GPU, where nobody has looked at the counts.
    few = call("dapo", counts)
    few.result[few.names().index("normalizer.tokens")] = 5
    (finding,) = gdpo.diagnose(few)
    assert (finding.name, finding.subject, finding.figure) == ("counts", "tokens", 4)


@pytest.mark.parametrize("line, settings", [
    ("dapo", {}), ("dapo", {"over": "tokens"}), ("dapo", {"aggregate": "token-mean", "scale": 3}),
    ("dapo", {"aggregate": "seq-mean-token-sum", "over": "tokens"}), ("grpo", {"beta": 0.0}),
    ("trl::dapo", {}), ("verl::vanilla", {"aggregate": "token-sum"})])
def test_a_share_of_the_tokens_is_a_count_of_the_trainers_own(line, settings):
    """Trainers divide by averages, which may be less than the tokens of a micro-batch."""
    logp = torch.full((2, 3), -1.0)
    loss = gdpo.PolicyLoss(line, **settings)
    share = dividing_by_given(loss)
    arrays = {"advantages": torch.tensor([1., -2])}
    for tokens in (48.7, 6.0, 2.3):
        counts = torch.tensor([6, 2, 2, tokens], dtype=torch.float64)
        got = share(logp, counts=counts, **arrays).loss
        if tokens >= 6:  # what a loss that divides by tokens gives
            counts = torch.tensor([tokens, 2, 2, tokens], dtype=torch.float64)
            assert torch.equal(got, loss(logp, counts=counts, **arrays).loss)
        elif "over=tokens" in loss.line or line == "dapo":
            scale = settings.get("scale", 1)
            assert got.item() == pytest.approx(scale * 3 / tokens, rel=1e-6)
    assert loss.line == gdpo.PolicyLoss(line, **settings).line


@pytest.mark.parametrize("arguments, words", [
    (dict(), "gdpo::diagnose: metrics, report, mismatch: given none"),
    (dict(report=True, truncated=2), "truncated: given 2"),
    (dict(report=True, much=1), "gdpo::diagnose: line: given the setting 'much'; needed: one of "
                                "first_step, later_step, whole_step"),
    (dict(report=True, reward_names=["a", "b"]), "settings.reward_names: given 2 names"),
])
def test_what_is_refused(arguments, words):
    if arguments.get("report"):
        arguments["report"] = gdpo.advantages(torch.rand(4), group_size=2, report=True).report
    with pytest.raises(ValueError) as refused:
        gdpo.diagnose(**arguments)
    assert words in str(refused.value)


def test_a_mismatch_has_findings():
    old = torch.full((4, 5), -1.0, dtype=torch.float64)
    rollout = old.clone()
    rollout[0, 0] = float("nan")
    report = gdpo.mismatch(old_logp=old, rollout_logp=rollout)
    assert [f.name for f in gdpo.diagnose(mismatch=report)] == ["missing_rollout"]
    far = gdpo.mismatch(old_logp=old, rollout_logp=old - 1)
    found = {(f.name, f.subject) for f in gdpo.diagnose(mismatch=far)}
    assert found == {("rollout_mismatch", "kl"), ("rollout_mismatch", "probability")}
    assert gdpo.diagnose(mismatch=far, rollout_kl=2, mult_prob_error=3) == []
    same = gdpo.mismatch(old_logp=old, rollout_logp=old)
    assert [f.subject for f in gdpo.diagnose(mismatch=same, whole_step=True)] == ["rollout_logp"]
