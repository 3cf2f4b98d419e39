"""The controller of multipliers against its formulas, its state, and constrained advantages."""
import copy
import math
import pickle

import pytest
import torch

import gdpo
from gdpo.integrations._constraints import Constraints


def test_the_positional_form():
    """lambda = kp p + I with p the error itself (p_ema 0) and I the sum of ki e."""
    pid = gdpo.PidLagrangian([1.0], scale=0.5, kp=2.0, ki=0.1, p_ema=0.0, anti_windup="none")
    integral = 0.0
    for mean in (0.5, 0.8, 1.2, 0.9):
        error = (1.0 - mean) / 0.5
        integral = max(integral + 0.1 * error, 0.0)
        (step,) = pid.update(sums=[mean * 4], counts=[4])
        assert step.i == pytest.approx(integral, rel=1e-12)
        assert step.multiplier == pytest.approx(max(2 * error + integral, 0.0), rel=1e-12)
    assert pid.multipliers == [step.multiplier]


def test_dual_ascent():
    """The velocity form without kp and kd: lambda += ki e, at least 0."""
    pid = gdpo.PidLagrangian([0.2], bound="at_most", form="velocity", kp=0.0, ki=0.5)
    multiplier = 0.0
    for mean in (0.6, 0.4, 0.0, 0.9):
        multiplier = max(multiplier + 0.5 * (mean - 0.2), 0.0)
        pid.update(sums=torch.tensor([mean]), counts=torch.tensor([1]))
        assert pid.multipliers[0] == pytest.approx(multiplier, rel=1e-6)  # mean is float32


def test_measurements_that_cannot_be_used_are_held():
    pid = gdpo.PidLagrangian([1.0, 1.0], lambda_init=0.5)
    before = pid.multipliers
    steps = pid.update(sums=[math.nan, 3.0], counts=[4, 0])
    assert all(step.held for step in steps) and pid.multipliers == before


def test_bounds_of_the_multiplier():
    pid = gdpo.PidLagrangian([1.0], lambda_max=1.5)
    for _ in range(3):
        (step,) = pid.update(sums=[-100.0], counts=[1])
    assert step.saturated and step.saturated_steps == 3 and pid.multipliers == [1.5]


@pytest.mark.parametrize("copied", ["state_dict", "pickle", "deepcopy"])
def test_a_copy_goes_on_alike(copied):
    def fresh():
        return gdpo.PidLagrangian([1.0, 2.0], scale=[0.5, 1.0], bound=["at_least", "at_most"],
                                  kd=0.3, d_delay=3)

    pid = fresh()
    for k in range(5):
        pid.update(sums=[k * 0.3, 3.0 - k], counts=[2, 1])
    if copied == "state_dict":
        other = fresh()
        other.load_state_dict(pid.state_dict())
    else:
        other = pickle.loads(pickle.dumps(pid)) if copied == "pickle" else copy.deepcopy(pid)
    for k in range(5):
        for controller in (pid, other):
            controller.update(sums=[1.0 / (k + 1), k], counts=[1, 2])
        assert pid.last == other.last


def test_a_state_that_does_not_fit_changes_nothing():
    pid = gdpo.PidLagrangian([1.0])
    pid.update(sums=[0.0], counts=[1])
    before = pid.multipliers
    for other in (gdpo.PidLagrangian([1.0, 2.0]), gdpo.PidLagrangian([1.0], d_delay=4)):
        with pytest.raises(ValueError, match="state"):
            pid.load_state_dict({"set_points": pid.state_dict()["set_points"],
                                 "state": other.state_dict()["state"]})
    with pytest.raises(ValueError, match="state.lambda"):
        spoiled = pid.state_dict()
        spoiled["state"][0, 0] = math.nan
        pid.load_state_dict(spoiled)
    assert pid.multipliers == before


def plain(rewards, size, multiplier, limit, scale, sign):
    """GRPO of the first reward, minus the centered violations of the second."""
    groups = rewards.double().reshape(-1, size, 2)
    primary = groups[..., 0] - groups[..., 0].mean(1, keepdim=True)
    primary = primary / groups[..., 0].std(1, keepdim=True)
    violation = sign * (limit - groups[..., 1]) / scale
    centered = violation - violation.mean(1, keepdim=True)
    return ((primary - multiplier * centered) / (1 + multiplier)).flatten()


@pytest.mark.parametrize("bound, sign", [("at_least", 1), ("at_most", -1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constrained_advantages(bound, sign, dtype):
    rewards = torch.rand(12, 2, generator=torch.Generator().manual_seed(5), dtype=dtype)
    got = gdpo.advantages(rewards, estimator="grpo", group_size=4,
                          constraints=[(1, 0.7, 0.6, 0.5, bound)])
    want = plain(rewards, 4, 0.7, 0.6, 0.5, sign)
    # One rounding to the type of the result.
    torch.testing.assert_close(got.double(), want, rtol=2e-7 if dtype == torch.float32 else 1e-12,
                               atol=1e-7 if dtype == torch.float32 else 1e-13)


def test_a_multiplier_of_0_leaves_the_primary_rewards():
    rewards = torch.rand(12, 2, generator=torch.Generator().manual_seed(6))
    got = gdpo.advantages(rewards, group_size=4, constraints=[(1, 0.0, 0.6, 1.0, "at_least")])
    assert torch.equal(got, gdpo.advantages(rewards[:, :1], group_size=4))


@pytest.mark.parametrize("estimator", ["gdpo", "rloo", "trl::gdpo", "gdpo_shrunk"])
def test_controller_and_estimator(estimator):
    pid = gdpo.PidLagrangian([0.9], scale=0.3)
    rewards = torch.rand(8, 2, generator=torch.Generator().manual_seed(7))
    pid.update(sums=rewards[:, 1:].sum(0), counts=[8])
    (constraint,) = pid.constraints([1])
    assert constraint == (1, pid.multipliers[0], 0.9, 0.3, "at_least")
    for groups in (dict(group_size=4), dict(group_ids=torch.tensor([0] * 4 + [1] * 4)),
                   dict(group_offsets=torch.tensor([0, 4, 8]))):
        got = gdpo.advantages(rewards, estimator=estimator, constraints=[constraint], **groups)
        assert torch.isfinite(got).all() and abs(got.sum()) < 1e-5


@pytest.mark.parametrize("arguments, words", [
    (dict(limits=[1.0], bound="above"), "bound: given 'above'"),
    (dict(limits=[1.0], scale=[1.0, 2.0]), "one for each of the 1 limits"),
    (dict(limits=[1.0], speed=3), "line: given the setting 'speed'; needed: one of form, kp, ki"),
])
def test_what_is_refused(arguments, words):
    with pytest.raises(ValueError) as refused:
        gdpo.PidLagrangian(**arguments)
    assert words in str(refused.value)


def test_updates_that_are_refused():
    pid = gdpo.PidLagrangian([1.0])
    with pytest.raises(ValueError, match="one for each of the 1 constraints"):
        pid.update(sums=[1.0, 2.0], counts=[1, 1])
    with pytest.raises(ValueError, match="count"):
        pid.update(sums=[1.0], counts=[-1])
    with pytest.raises(ValueError, match="one for each of the 1 constraints"):
        pid.constraints([0, 1])


def test_operators():
    points = torch.tensor([[1.0, 0.5, 1.0]], dtype=torch.float64)
    torch.library.opcheck(
        torch.ops.gdpo.pid.default,
        ("", points, torch.empty((1, 0), dtype=torch.float64),
         torch.tensor([[1.0, 2.0]], dtype=torch.float64)),
        test_utils=("test_schema", "test_autograd_registration"))


# Other limits, during a run and after it.

def steps_of(pid, means):
    """The multipliers after each of these measured means, of one constraint."""
    return [pid.update(sums=[mean], counts=[1])[0].multiplier for mean in means]


def test_a_resumed_controller_has_its_own_limit_and_the_old_multiplier():
    """p is 2 e and I 0.05 e after an update; the same measurement then adds Ki e of the new one."""
    before = gdpo.PidLagrangian([0.9], scale=0.3)
    (multiplier,) = steps_of(before, [0.5])
    assert multiplier == pytest.approx(2.05 * 0.4 / 0.3, rel=1e-12)
    resumed = gdpo.PidLagrangian([0.95], scale=0.3)
    resumed.load_state_dict(before.state_dict())
    moved = gdpo.PidLagrangian([0.9], scale=0.3)
    steps_of(moved, [0.5])
    moved.move([0.95])
    for pid in (resumed, moved):
        assert pid.constraints([1]) == [(1, multiplier, 0.95, 0.3, "at_least")]
        assert pid.last[0].multiplier == multiplier
        assert steps_of(pid, [0.5]) == [pytest.approx(multiplier + 0.05 * 0.45 / 0.3, rel=1e-12)]
    assert torch.equal(resumed.state_dict()["state"], moved.state_dict()["state"])
    assert torch.equal(resumed.state_dict()["set_points"], moved.state_dict()["set_points"])
    # A moved controller goes through a checkpoint as any other.
    again = gdpo.PidLagrangian([0.95], scale=0.3)
    again.load_state_dict(moved.state_dict())
    assert steps_of(again, [0.4, 1.2, 0.9]) == steps_of(moved, [0.4, 1.2, 0.9])


def test_other_scales():
    pid = gdpo.PidLagrangian([0.9, 5.0], scale=0.3, bound=["at_least", "at_most"])
    pid.update(sums=[0.5, 6.0], counts=[1, 1])
    before = pid.multipliers
    other = gdpo.PidLagrangian([0.9, 5.0], scale=[0.6, 0.3], bound=["at_least", "at_most"])
    other.load_state_dict(pid.state_dict())
    pid.move([0.9, 5.0], scale=[0.6, 0.3])
    assert pid.multipliers == other.multipliers == before
    assert pid.constraints([0, 1]) == other.constraints([0, 1]) == [
        (0, before[0], 0.9, 0.6, "at_least"), (1, before[1], 5.0, 0.3, "at_most")]
    steps = pid.update(sums=[0.5, 6.0], counts=[1, 1])
    assert steps[0].multiplier == pytest.approx(before[0] + 0.05 * 0.4 / 0.6, rel=1e-12)
    assert steps[1].multiplier == pytest.approx(before[1] + 0.05 / 0.3, rel=1e-12)


@pytest.mark.parametrize("change, words", [
    (lambda pid: pid.move([1.0, 2.0]), "move: limits: given 2; needed: one for each of the 1"),
    (lambda pid: pid.move([math.nan]), "limit: given nan; needed: a finite number"),
    (lambda pid: pid.move([1.0], scale=0.0),
     "scale: given 0; needed: a finite number that is more than 0"),
    (lambda pid: pid.move([1.0], scale=[1.0, 2.0]), "move: scale, bound: given 2 and 1"),
    (lambda pid: pid.move([1e308], scale=1e-3), "gdpo.PidLagrangian.move: set_points[0]: given "
     "limit 1e+308 and scale 0.001; needed: numbers in whose units the errors so far are finite"),
    (lambda pid: pid.load_state_dict(gdpo.PidLagrangian([0.9], bound="at_most").state_dict()),
     "gdpo.PidLagrangian.load_state_dict: set_points[0].bound: given at_most; needed: at_least, "),
])
def test_limits_that_cannot_be_moved(change, words):
    pid = gdpo.PidLagrangian([0.9], scale=0.3)
    steps_of(pid, [0.5])
    before = pid.state_dict()
    with pytest.raises(ValueError) as refused:
        change(pid)
    assert words in str(refused.value)
    assert all(torch.equal(before[name], value) for name, value in pid.state_dict().items())
    assert pid.constraints([0])[0][2:] == (0.9, 0.3, "at_least")


# The lines of the plug-ins.

def updated(*lines, mean=0.5):
    constraints = Constraints(lines)
    constraints.update(torch.full((4, len(lines)), mean), constraints.names)
    return constraints


def test_lines_that_are_resumed_with_other_limits():
    old = updated("f>=0.9 scale=0.3", "g<=0.2")
    new = Constraints(["f>=0.95 scale=0.6", "g<=0.1"])
    new.load_state_dict(old.state_dict())
    assert new.metrics() == old.metrics()
    rewards = torch.full((4, 2), 0.5)
    limits = new.update(rewards, ["f", "g"])
    assert [limit[2:] for limit in limits] == [(0.95, 0.6, "at_least"), (0.1, 1.0, "at_most")]
    old.move("f>=0.95 scale=0.6")
    old.move("g <= 0.1")
    assert old.update(rewards, ["f", "g"]) == limits


@pytest.mark.parametrize("change, words", [
    (lambda c: Constraints(["f>=0.9", "g>=0.2"]).load_state_dict(c.state_dict()),
     "the state of g: gdpo.PidLagrangian.load_state_dict: set_points[0].bound: given at_most; "
     "needed: at_least"),
    (lambda c: c.move("f<=0.9"), "given 'f<=0.9', which is at_most; needed: at_least"),
    (lambda c: c.move("h>=0.9"), "given h; needed: one of f, g"),
    (lambda c: c.move("f>=0.9 kp=1"), "with the setting kp; needed: scale, or none"),
    (lambda c: c.move("f>=0.9 scale=0"), "f>=0.9 scale=0: "),
    (lambda c: c.move("f"), "given 'f'; needed: a line"),
])
def test_lines_that_cannot_be_moved(change, words):
    constraints = updated("f>=0.9 scale=0.3", "g<=0.2")
    before = constraints.state_dict()
    with pytest.raises(ValueError) as refused:
        change(constraints)
    assert words in str(refused.value) and "gdpo.integrations: constraints: " in str(refused.value)
    for name, state in constraints.state_dict().items():
        assert all(torch.equal(before[name][key], value) for key, value in state.items())


def test_a_state_that_one_constraint_refuses_changes_none():
    constraints, state = Constraints(["f>=0.9", "g>=0.2"]), updated("f>=0.9", "g<=0.2").state_dict()
    with pytest.raises(ValueError, match="the state of g"):
        constraints.load_state_dict(state)
    assert constraints.metrics() == {"constraint/f/multiplier": 0, "constraint/g/multiplier": 0}


@pytest.mark.parametrize("line, words", [
    ("f>=0.9 sacle=0.3", "given the setting 'sacle'; needed: one of scale, form, kp, ki"),
    ("f>=0.9 scale=wide", "needed: a number as scale"),
    ("f>=0.9 bound=at_most", 'needed: ">=" or "<="'),
    ("f>=0.9 limits=3", 'needed: ">=" or "<="'),
    ("f>=0.9 kp=much", "kp: given 'much'; needed: a number"),
])
def test_lines_that_are_refused(line, words):
    with pytest.raises(ValueError) as refused:
        Constraints(line)
    assert words in str(refused.value) and line in str(refused.value)
