"""Slips that users make: each is an error that says what is needed, or does what was meant."""
import copy
import pickle

import numpy as np
import pytest
import torch

import gdpo

LOSS = gdpo.PolicyLoss("dapo")
LOGP = torch.full((2, 3), -1.0)
ARGUMENTS = {"counts": torch.tensor([6.0, 2, 2, 0], dtype=torch.float64),
             "advantages": torch.tensor([1.0, -1.0])}


@pytest.mark.parametrize("slip, words", [
    (lambda: LOSS(LOGP.tolist(), **ARGUMENTS), "gdpo::PolicyLoss: logp: given a list"),
    (lambda: LOSS(LOGP, **{**ARGUMENTS, "advantages": [1.0, 2.0]}),
     "gdpo::PolicyLoss: advantages: given a list; needed: a torch.Tensor"),
    (lambda: LOSS(LOGP, **{**ARGUMENTS, "counts": 6}), "counts: given a int"),
    (lambda: LOSS(LOGP.long(), **ARGUMENTS), "batch.logp: given torch.int64; needed: log-probs"),
    (lambda: LOSS(LOGP, mask=torch.tensor([[0.0, 0.0, -float("inf")]] * 2), **ARGUMENTS),
     "mask: given infinities or NaN"),
    (lambda: LOSS(LOGP, old_logp=LOGP.clone().requires_grad_(), **ARGUMENTS),
     "old_logp: given a tensor that requires a gradient, with logp that does not"),
    (lambda: LOSS.from_logits(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64),
                              old_logp=LOGP.clone().requires_grad_(), **ARGUMENTS),
     "from_logits: old_logp: given a tensor that requires a gradient, with logits that do not"),
    (lambda: gdpo.count(mask=np.ones((2, 3))), "gdpo::count: mask: given a ndarray"),
    (lambda: gdpo.token_logprobs(LOGP.numpy(), torch.zeros(2, dtype=torch.int64)),
     "gdpo::token_logprobs: logits: given a ndarray"),
    (lambda: gdpo.prepare("overlong", mask=[[1]]), "gdpo::prepare: mask: given a list"),
    (lambda: gdpo.prepare("degenerate_groups", mask=torch.ones(2, 3),
                          degenerate=torch.ones(2, device="meta")),
     "gdpo::prepare: degenerate: given a tensor on meta; needed: one on cpu, where mask is"),
    (lambda: gdpo.advantages(LOGP, group_size=2.0),
     "gdpo::advantages: group_size: given 2.0; needed: an integer"),
    (lambda: gdpo.diagnose(gdpo.advantages(LOGP, group_size=2, report=True).report),
     "gdpo::diagnose: metrics: given a Report; needed: a gdpo.Metrics"),
    (lambda: gdpo.PolicyLoss("dapo", kl="k3"), "beta: given none, with kl or against"),
    (lambda: gdpo.PolicyLoss("dapo", against="old"), 'which "dapo" does not have (0: off)'),
    (lambda: gdpo.PolicyLoss("dapo", low=-1.0), "PolicyLoss: low: given -1"),
    (lambda: gdpo.PolicyLoss("dapo", kl_output=(1.0, -1.0), beta=0.1), "kl_output"),
    (lambda: gdpo.PolicyLoss("dapo", level_bounds=(-1.0, 1.0)), "the setting 'level_bounds"),
    (lambda: gdpo.PidLagrangian(1.0).load_state_dict({}), "state: given no set_points"),
    (lambda: gdpo.PidLagrangian(1.0).load_state_dict(gdpo.PidLagrangian([1, 2]).state_dict()),
     "state: given 2 constraints; needed: what state_dict() gave, of 1"),
])
def test_refused(slip, words):
    with pytest.raises(ValueError) as refused:
        slip()
    assert words in str(refused.value)


def test_a_kl_term_that_is_off_on_purpose():
    assert gdpo.PolicyLoss("dapo", kl="k3", beta=0.0).line.endswith("kl=k3 kl.beta=0")
    assert gdpo.PolicyLoss("grpo", kl="k1")  # it has a coefficient of its own


def test_settings_are_numbers_of_any_library():
    for number in (np.float64(0.25), np.float32(0.25), torch.tensor(0.25)):
        assert gdpo.PolicyLoss("dapo", low=number).line == "dapo surrogate.low=0.25"
        pair = dict(rewards=[1.0, 0.0], group_size=2)
        assert gdpo.advantages(**pair, scale_eps=number).tolist() == gdpo.advantages(
            **pair, scale_eps=0.25).tolist()
    for number in (0, np.int64(0)):
        assert gdpo.advantages(**pair, scale_ddof=number).tolist() == [
            pytest.approx(a) for a in gdpo.advantages(**pair, scale_ddof=0).tolist()]


def test_settings_are_those_that_the_loss_was_made_with():
    loss = gdpo.PolicyLoss("grpo", beta=0.01)
    with pytest.raises(AttributeError, match=r"PolicyLoss\(..., beta=0.5\)"):
        loss.beta = 0.5
    assert copy.deepcopy(loss).line == pickle.loads(pickle.dumps(loss)).line == loss.line


def test_one_constraint_needs_no_lists():
    pid = gdpo.PidLagrangian(1.0)
    pid.update(sums=torch.tensor(0.5), counts=1)
    other = gdpo.PidLagrangian([1.0])
    other.update(sums=[0.5], counts=[1])
    assert pid.last == other.last


def test_metrics_are_a_mapping():
    metrics = LOSS(LOGP, **ARGUMENTS).metrics
    numbers = dict(metrics)
    assert "loss" in metrics and "lost" not in metrics
    assert list(numbers) == metrics.names() and numbers["loss"] == metrics["loss"]
    with pytest.raises(KeyError, match="lost: not among"):
        metrics["lost"]


def test_none_in_a_list_is_a_missing_reward():
    """As in TRL, whose reward functions return None where they do not apply."""
    nan = float("nan")
    for estimator in ("gdpo", "trl::grpo"):
        assert torch.equal(
            gdpo.advantages([[1., None], [0, 1], [None, 2], [1, 0]], group_size=2,
                            estimator=estimator),
            gdpo.advantages([[1., nan], [0, 1], [nan, 2], [1, 0]], group_size=2,
                            estimator=estimator))
    assert torch.equal(gdpo.advantages([1, None, 0], group_size=3),
                       gdpo.advantages([1, nan, 0], group_size=3))


@pytest.mark.parametrize("given, message", [
    ({"rewards": [["a"]]}, "rewards: .*needed: an array of numbers"),
    ({"rewards": np.array(["a"])}, "rewards: .*needed: an array of numbers"),
    ({"rewards": None}, "rewards: given None; needed: an array of numbers"),
    ({"rewards": [[1., 2], [3]]}, "rewards: .*needed: an array of numbers"),
    ({"group_ids": ["a"] * 4, "group_size": 0}, "group_ids: .*needed: an array of numbers"),
    ({"valid": [1, None, 1, 1]}, "valid: .*needed: an array of numbers"),
    ({"baseline": [None] * 4}, "baseline: .*needed: an array of numbers"),
    ({"group_size": "4"}, "group_size: given '4'; needed: an integer"),
    ({"group_size": 4.0}, "group_size: given 4.0; needed: an integer"),
    ({"weights": {"a": 1.}}, "weights: given .*; needed: a number for each reward"),
    ({"weights": ["a", "b"]}, "weights: given .*; needed: a number for each reward"),
    ({"weights": 2}, "weights: given 2; needed: a number for each reward"),
])
def test_messages_name_the_argument(given, message):
    arguments = {"rewards": torch.rand(4, 2), "group_size": 4, **given}
    with pytest.raises(ValueError, match=f"^gdpo::advantages: {message}"):
        gdpo.advantages(arguments.pop("rewards"), **arguments)
