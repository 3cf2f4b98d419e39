"""Settings by name, behind the name of a loss or an estimator and as keywords.

Each has a name in Python and one in the library, and both are taken wherever one is; so is the last
name of a setting where no other has it. A message calls a setting as it was given, and what it
lists is taken in that very place.
"""
import copy
import pickle
import re

import pytest
import torch

import gdpo
from gdpo._advantages import SETTINGS as OF_ESTIMATORS
from gdpo._policy_loss import SETTINGS as OF_LOSSES

REWARDS = torch.rand(12, 3, generator=torch.Generator().manual_seed(2))

# A value for each setting, of a loss that has it.
VALUES = {
    "aggregate": "token-mean", "over": "given", "count_eps": 0.5, "row_count_eps": 0.25,
    "constant": 7.0, "padded_width": True, "scale": 2.0, "low": 0.1, "high": 0.3, "delta": 4.0,
    "dual": 3.0, "min_ratio": 0.5, "max_ratio": 1.5, "kl": "k1", "beta": 0.5, "against": "old",
    "level_count_eps": 0.125,
    "kl_input": (-2.0, 3.0), "kl_output": (-4.0, 5.0), "level_map": (-6.0, 7.0),
    "level_bounds": (-8.0, 9.0),
}
NAMES = {"level_map": "verl::vanilla", "level_count_eps": "gspo", "level_bounds": "gspo",
         "min_ratio": "cispo", "max_ratio": "cispo"}


def text(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace(
        "True", "true")


def library_names(settings):
    return {setting: settings._in_library[setting] for setting in settings}


@pytest.mark.parametrize("setting", VALUES)
def test_a_setting_of_a_loss_by_all_its_names(setting):
    name, value = NAMES.get(setting, "trl::grpo"), VALUES[setting]
    beta = {} if setting == "beta" else {"beta": 0.5}
    want = gdpo.PolicyLoss(name, **{setting: value, **beta}).line
    path = library_names(OF_LOSSES)[setting]
    ways = [gdpo.PolicyLoss(name, **{path: value, **beta}).line]
    for called in (setting, path):
        ways.append(gdpo.PolicyLoss(f"{name} {called}={text(value)}", **beta).line)
    assert [sorted(way.split()) for way in ways] == [sorted(want.split())] * len(ways)
    if isinstance(value, tuple):
        for called in (setting, path):
            ends = f"{name} {called}.lo={value[0]} {called}.hi={value[1]}"
            assert sorted(gdpo.PolicyLoss(ends, **beta).line.split()) == sorted(want.split())
    assert set(VALUES) == set(OF_LOSSES)


def test_last_names_and_levels():
    made = gdpo.PolicyLoss("gspo statistic.count_eps=0.5 bounds=-1,1 output.hi=3 beta=1").line
    assert made == ("gspo level.statistic.count_eps=0.5 level.bounds.lo=-1 level.bounds.hi=1 "
                    "kl.output.hi=3 kl.beta=1")
    assert gdpo.PolicyLoss("dapo low=0.1", "sequence", high=0.5).line == (
        "dapo sequence surrogate.low=0.1 surrogate.high=0.5")
    assert gdpo.PolicyLoss("dapo sequence low=0.1").line == "dapo sequence surrogate.low=0.1"


@pytest.mark.parametrize("setting", ("of", "ddof", "eps", "eps_at", "renorm_ddof", "renorm_eps",
                                     "renorm_eps_at", "missing", "missing_row", "singleton",
                                     "penalty_coef"))
def test_a_setting_of_an_estimator_by_all_its_names(setting):
    value = {"of": "batch", "eps_at": "var", "renorm_eps_at": "var", "missing": "zero", "ddof": 0,
             "missing_row": "keep", "singleton": "raw", "renorm_ddof": 0}.get(setting, 0.5)
    rewards = REWARDS.clone()
    rewards[1, 0] = rewards[6] = float("nan")
    rest = dict(group_ids=torch.tensor([0] * 6 + [1] * 5 + [2]), penalty=torch.rand(12))

    def estimate(name="trl::gdpo", **settings):
        return gdpo.advantages(rewards, estimator=name, penalty_reward=0, **rest, **settings)

    want = estimate(**{setting: value})
    assert not torch.equal(want, estimate())
    path = library_names(OF_ESTIMATORS)[setting]
    for got in (estimate(**{path: value}), estimate(f"trl::gdpo {setting}={value}"),
                estimate(f"trl::gdpo {path}={value}")):
        assert torch.equal(got, want)


def test_the_lines_that_pages_teach():
    want = gdpo.advantages(REWARDS, group_size=4, estimator="trl::gdpo", eps=0.5, missing="zero")
    assert torch.equal(want, gdpo.advantages(REWARDS, group_size=4,
                                             estimator="trl::gdpo eps=0.5 missing=zero"))
    # What has no name in Python has its own in the library, or the end of it.
    for name in ("renorm.keep_mean", "keep_mean"):
        got = gdpo.advantages(REWARDS[:, :2], group_size=4, estimator=f"trl::gdpo {name}=true",
                              gates=[(0, 1, 0.9)])
        assert torch.equal(got, gdpo.advantages(REWARDS[:, :2], group_size=4, gates=[(0, 1, 0.9)],
                                                estimator="trl::gdpo", **{name: True}))


MESSAGES = [
    ("dapo low=two", {}, "configured_loss: low: given 'two'; needed: a number"),
    ("dapo surrogate.low=two", {}, "configured_loss: surrogate.low: given 'two'; needed: a number"),
    ("dapo low=-1", {}, "PolicyLoss: low: given -1; needed: 0 to 1"),
    ("dapo surrogate.low=-1", {}, "PolicyLoss: surrogate.low: given -1; needed: 0 to 1"),
    ("dapo", {"low": -1}, "PolicyLoss: low: given -1; needed: 0 to 1"),
    ("dapo", {"surrogate.low": -1}, "PolicyLoss: surrogate.low: given -1; needed: 0 to 1"),
    ("dapo kl=k9 beta=1", {}, "kl (kl_loss_type): given 'k9'"),
    ("dapo", {"aggregate": "x"}, "aggregate (loss_agg_mode): given 'x'"),
    ("dapo kl_output=3", {}, "kl_output: given '3'; needed: two numbers"),
    ("dapo", {"kl.output": 3}, "kl.output: given 3; needed: two numbers"),
    ("dapo kl_output=3,1 beta=1", {}, "kl_output.lo, kl_output.hi: given 3 and 1"),
    ("dapo kl.output=3,1 beta=1", {}, "kl.output.lo, kl.output.hi: given 3 and 1"),
    ("dapo kl=k1", {}, 'beta: given none, with kl or against; needed: the coefficient of the KL '
     'term, which "dapo" does not have'),
    ("dapo kl.against=old", {}, "beta: given none, with kl or against"),
    ("dapo low=0.1", {"surrogate.low": 0.1}, "surrogate.low: given beside low, which is the same"),
    ("dapo low=0.1 surrogate.low=0.1", {}, "surrogate.low: given beside low, which is the same"),
    ("cispo max_ratio=0", {}, "PolicyLoss: max_ratio: given 0; needed: "),
    ("cispo", {"max_ratio": -1}, "PolicyLoss: max_ratio: given -1; needed: "),
    ("cispo", {"factor.max_ratio": 0}, "PolicyLoss: factor.max_ratio: given 0; needed: "),
    ("cispo", {"min_ratio": -0.5}, "PolicyLoss: min_ratio: given -0.5; needed: "),
    ("cispo min_ratio=2 max_ratio=1", {}, "min_ratio, max_ratio: given 2 and 1; needed: min_ratio"),
    ("cispo", {"factor.min_ratio": 2, "factor.max_ratio": 1},
     "PolicyLoss: factor.min_ratio, factor.max_ratio: given 2 and 1; needed: "),
    ("cispo", {"max_ratio": float("nan")}, "PolicyLoss: max_ratio: given nan; needed: "),
    ("cispo", {"min_ratio": 6}, "PolicyLoss: min_ratio, max_ratio: given 6 and 5; needed: "),
    ("cispo max_ratio=x", {}, "configured_loss: max_ratio: given 'x'; needed: a number"),
    ("cispo", {"low": 0.1}, "given the setting 'low'; needed: one of "),
    ("cispo low=0.1", {}, "given the setting 'low'; needed: one of "),
    ("dapo", {"max_ratio": 2}, "given the setting 'max_ratio'; needed: one of "),
    ("dapo low=0.1 token", {}, "line: given 'token'; needed: SETTING=VALUE"),
    ("dapo x low=0.1", {}, "level: given 'x'; needed: one of token"),
    (None, {}, "gdpo.PolicyLoss: name: given None; needed: a name"),
]


@pytest.mark.parametrize("name, settings, words", MESSAGES, ids=str)
def test_a_message_calls_a_setting_as_it_was_given(name, settings, words):
    with pytest.raises(ValueError) as refused:
        gdpo.PolicyLoss(name, **settings)
    assert words in str(refused.value)


def needed(call):
    """The names that the message of an unknown setting lists."""
    with pytest.raises(ValueError, match="given the setting '?nothing'?; needed: one of ") as error:
        call("nothing")
    return re.search(r"needed: one of ([^;]+?)$", str(error.value))[1].split(", ")


@pytest.mark.parametrize("name", ("dapo", "gspo", "verl::vanilla", "trl::dr_grpo constant=3",
                                  "cispo"))
@pytest.mark.parametrize("keyword", (True, False))
def test_what_a_message_lists_is_taken_there(name, keyword):
    def make(setting, value="?"):
        if keyword:
            return gdpo.PolicyLoss(name, **{setting: value})
        return gdpo.PolicyLoss(f"{name} {setting}={value}")

    listed = needed(make)
    assert {"max_ratio" if name == "cispo" else "low", "beta", "over"} <= set(listed)
    for setting in listed:
        with pytest.raises(ValueError) as refused:
            make(setting)
        assert "the setting" not in str(refused.value)
        assert f"{setting}: given '?'" in str(refused.value).replace(" (kl_loss_type)", "").replace(
            " (loss_agg_mode)", "")


@pytest.mark.parametrize("name", ("gdpo", "rloo", "trl::grpo", "gdpo_shrunk"))
@pytest.mark.parametrize("keyword", (True, False))
def test_what_a_message_about_an_estimator_lists_is_taken_there(name, keyword):
    def make(setting, value="?"):
        line, settings = (name, {setting: value}) if keyword else (f"{name} {setting}={value}", {})
        return gdpo.advantages(REWARDS, group_size=4, estimator=line, **settings)

    for setting in needed(make):
        with pytest.raises(ValueError, match=re.escape(f"{setting}: given '?'")):
            make(setting)


@pytest.mark.parametrize("called", ("beta", "kl.beta"))
def test_a_loss_keeps_how_its_settings_were_called(called):
    """Also through a copy and a checkpoint, for the messages of its calls."""
    loss = gdpo.PolicyLoss("dapo", **{called: 0.5})
    for made in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        with pytest.raises(ValueError, match=rf"ref_logp: given no array.*\({called} is not 0\)"):
            made(torch.zeros(1, 2), counts=torch.ones(4, dtype=torch.float64),
                 advantages=torch.ones(1))
