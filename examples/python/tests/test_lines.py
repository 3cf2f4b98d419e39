"""Settings by name, behind the name of a loss or an estimator and as keywords.

All that the library lists can be set by its name, with "_" for the dots, and by the end of it where
no other setting ends so. A message calls a setting as it was given, and what it lists is taken in
that very place.
"""
import copy
import inspect
import pathlib
import pickle
import re

import pytest
import torch

import gdpo
from gdpo._settings import _NAMES as NAMES, keywords, line, settings_of, stub

REWARDS = torch.rand(12, 3, generator=torch.Generator().manual_seed(2))
LISTS = {"loss": (gdpo.losses, gdpo.loss_settings),
         "estimator": (gdpo.estimators, gdpo.estimator_settings),
         "contrastive": (gdpo.contrastive_losses, gdpo.loss_settings),
         "value_loss": (gdpo.value_losses, gdpo.loss_settings)}


def configure(what, name, **settings):
    """The values of all settings of a loss or an estimator with these."""
    if what == "loss":
        # A dr_grpo has no length of its own, and dapo no coefficient, which kl asks for.
        own = " aggregate.constant=7 kl.beta=0.5" if name.split(" ")[0].endswith("dr_grpo") else (
            " kl.beta=0.5")
        first, *rest = name.split(" ")
        kept = [word for word in own.split() if word.split(".")[1].split("=")[0] not in
                {key.split("=")[0].replace("_", ".").rpartition(".")[2]
                 for key in (*rest, *settings)}]
        name = gdpo.PolicyLoss(" ".join([first, *kept, *rest]), **settings).line
    elif what == "contrastive":
        name = gdpo.ContrastiveLoss(name, **settings).line
    elif what == "value_loss":
        name = gdpo.ValueLoss(name, **settings).line
    else:
        gdpo.advantages(REWARDS, group_size=4, estimator=name, tokens=torch.ones(12),
                        baseline=torch.zeros(12), penalty=torch.zeros(12), **settings)
        name = " ".join([name, *(f"{key}={text(value)}" for key, value in settings.items())])
    return {s.name: s.value for s in LISTS[what][1](name)}


def text(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace(
        "True", "true").replace("False", "false")


def values_for(setting):
    """Values for a setting, of which one at least fits and is not what it is."""
    if setting.kind in ("number", "integer"):
        return [2, 0, 1] if setting.kind == "integer" else [0.25, 1.25, 2.5, 0.5]
    if setting.kind == "true or false":
        return [setting.value == "false"]
    if setting.kind.startswith("two numbers"):
        return [(-2.5, 3.5)]
    return [word for word in setting.kind.split(", and ")[0].split(" | ") if word != setting.value]


def change(what, name, setting):
    """A value that the setting takes and that changes it, and the values of all settings then."""
    for value in values_for(setting):
        try:
            values = configure(what, name, **{setting.name: value})
        except ValueError as refused:
            assert f"{setting.name}" in str(refused) or "penalty" in str(refused)
            continue
        if values != configure(what, name):
            return value, values
    return None


@pytest.mark.parametrize("what, name", [(what, name) for what in LISTS
                                        for name in LISTS[what][0]()])
def test_every_setting_by_all_its_names(what, name):
    listed = LISTS[what][1](name)
    assert len({s.name for s in listed}) == len(listed)
    assert [s.name for s in listed].index("level") == 0 if what == "loss" else True
    listed = [s for s in listed if s.name != "level"]  # a word of its own in a line
    changed = 0
    for setting in listed:
        found = change(what, name, setting)
        if not found:
            continue
        changed += 1
        value, want = found
        if setting.value:  # not of what sets several
            expected = {"True": "true", "False": "false"}.get(str(value), str(value))
            number = setting.kind in ("number", "integer")
            got = want[setting.name]
            assert float(got) == value if number else got == expected
        ends = [other.name for other in listed
                if other.name.endswith("." + setting.name.rpartition(".")[2])]
        called = [setting.name, setting.name.replace(".", "_")]
        if len(ends) == 1:
            called.append(setting.name.rpartition(".")[2])
        for word in called:
            assert configure(what, name, **{word: value}) == want
            if what != "estimator":
                assert configure(what, f"{name} {word}={text(value)}") == want
    # What is left has no second word, or needs more than rewards.
    assert changed >= len(listed) - 6, [s.name for s in listed if not change(what, name, s)]


@pytest.mark.parametrize("what", LISTS)
def test_keywords_are_those_of_the_lists(what):
    known = keywords(what)
    function = {"loss": gdpo.PolicyLoss, "estimator": gdpo.advantages,
                "contrastive": gdpo.ContrastiveLoss, "value_loss": gdpo.ValueLoss}[what]
    assert known.keys() <= inspect.signature(function).parameters.keys()
    for keyword, setting in known.items():
        assert f"{keyword} ({setting.name}): " in re.sub(r"\s+", " ", function.__doc__)
        assert setting.meaning
    names = {s.name for name in LISTS[what][0]() for s in LISTS[what][1](name)} - {"level"}
    pairs = {s.name for s in known.values() if s.kind.startswith("two numbers")}
    ends = {f"{name}.{end}" for name in pairs for end in ("lo", "hi")}
    assert {s.name for s in known.values()} == names - ends
    if what == "loss":  # GMPO, whose map has settings of that name too, is an exception
        assert known["low"].name == "surrogate.low" and known["high"].name == "surrogate.high"
        with pytest.raises(ValueError, match="needed: one of level.map.low, surrogate.low"):
            gdpo.PolicyLoss("gmpo", low=0.1)


def value_of(setting):
    """The value of a setting as Python has it."""
    if setting.kind == "true or false":
        return setting.value == "true"
    return {"number": float, "integer": int}.get(setting.kind, str)(setting.value)


@pytest.mark.parametrize("what", NAMES)
def test_every_setting_is_a_keyword(what):
    """Of every name, with the value that it has: nothing changes. Ends of bounds by both together,
    as a tuple and as a list."""
    pairs = {s.name for s in keywords(what).values() if s.kind.startswith("two numbers")}
    for name in NAMES[what]():
        listed = settings_of(what, name)
        values = {s.name: s for s in listed if s.value and s.name != "level"}
        given = {path: value_of(s) for path, s in values.items()
                 if path.rpartition(".")[0] not in pairs}
        for path in pairs & {s.name for s in listed}:
            given[path] = tuple(value_of(values[f"{path}.{end}"]) for end in ("lo", "hi"))
        meant = {s.name: keyword for keyword, s in keywords(what).items()}
        for path, value in given.items():
            forms = [value, list(value)] if isinstance(value, tuple) else [value]
            called = {path, path.replace(".", "_")}
            if not (name.endswith(("gmpo", "geo_mean")) and meant[path] in ("low", "high")):
                called.add(meant[path])  # GMPO's map has settings of that end, too
            for word in called:
                for form in forms:
                    text = line("gdpo.test", (name,), {word: form})
                    assert settings_of(what, text) == listed, text


@pytest.mark.parametrize("what, make", [
    ("pid", lambda **gains: gdpo.PidLagrangian(1.0, **gains)._steps.tolist()),
    ("diagnose", lambda **thresholds: gdpo.diagnose(
        report=gdpo.advantages([1.0, 1.0], group_size=2, report=True).report, **thresholds)),
    ("running", lambda **settings: gdpo.RunningMoments(**settings)._rule)])
def test_every_plain_setting_is_a_keyword(what, make):
    listed = settings_of(what, "running_moments" if what == "running" else "")
    assert len(listed) > 3
    for setting in listed:
        assert make(**{setting.name: value_of(setting)}) == make()


def test_the_stub_is_what_the_library_lists():
    """Else: python -m gdpo._settings > gdpo/_keywords.pyi"""
    stored = pathlib.Path(__file__).parents[1] / "gdpo" / "_keywords.pyi"
    assert stored.read_text() == stub()


def test_last_names_and_levels():
    made = gdpo.PolicyLoss("gspo statistic.count_eps=0.5 bounds=-1,1 output.hi=3 beta=1").line
    assert made == ("gspo level.statistic.count_eps=0.5 level.bounds=-1,1 kl.output.hi=3 "
                    "kl.beta=1")
    assert gdpo.PolicyLoss("dapo low=0.1", "sequence", high=0.5).line == (
        "dapo sequence surrogate.low=0.1 surrogate.high=0.5")
    assert gdpo.PolicyLoss("dapo sequence low=0.1").line == "dapo sequence surrogate.low=0.1"


@pytest.mark.parametrize("setting, path, value", [
    ("of", "scale.of", "batch"), ("ddof", "scale.ddof", 0), ("eps", "scale.eps", 0.5),
    ("eps_at", "scale.eps_at", "var"), ("renorm_ddof", "renorm.ddof", 0),
    ("renorm_eps", "renorm.eps", 0.5), ("renorm_eps_at", "renorm.eps_at", "var"),
    ("missing", "missing.entry", "zero"), ("missing_row", "missing.row", "keep"),
    ("singleton", "singleton", "raw"), ("penalty_coef", "penalty.coef", 0.5)])
def test_a_setting_of_an_estimator_changes_the_advantages(setting, path, value):
    rewards = REWARDS.clone()
    rewards[1, 0] = rewards[6] = float("nan")
    rest = dict(group_ids=torch.tensor([0] * 6 + [1] * 5 + [2]), penalty=torch.rand(12))
    if setting in ("ddof", "eps", "eps_at"):
        setting = "scale_" + setting  # a gdpo has two of them

    def estimate(name="trl::gdpo", **settings):
        return gdpo.advantages(rewards, estimator=name, penalty_reward=0, **rest, **settings)

    want = estimate(**{setting: value})
    assert not torch.equal(want, estimate())
    for got in (estimate(**{path: value}), estimate(f"trl::gdpo {setting}={value}"),
                estimate(f"trl::gdpo {path}={value}")):
        assert torch.equal(got, want)


def test_the_lines_that_pages_teach():
    want = gdpo.advantages(REWARDS, group_size=4, estimator="trl::gdpo", scale_eps=0.5,
                           missing="zero")
    assert torch.equal(want, gdpo.advantages(REWARDS, group_size=4,
                                             estimator="trl::gdpo scale.eps=0.5 missing=zero"))
    with pytest.raises(ValueError, match="'eps'; needed: one of scale.eps, renorm.eps"):
        gdpo.advantages(REWARDS, group_size=4, estimator="trl::gdpo", eps=0.5)
    for name in ("renorm.keep_mean", "keep_mean"):
        got = gdpo.advantages(REWARDS[:, :2], group_size=4, estimator=f"trl::gdpo {name}=true",
                              gates=[(0, 1, 0.9)])
        assert torch.equal(got, gdpo.advantages(REWARDS[:, :2], group_size=4, gates=[(0, 1, 0.9)],
                                                estimator="trl::gdpo", **{name: True}))


MESSAGES = [
    ("dapo low=two", {}, "PolicyLoss: low: given 'two'; needed: a number"),
    ("dapo surrogate.low=two", {}, "PolicyLoss: surrogate.low: given 'two'; needed: a number"),
    ("dapo low=-1", {}, "PolicyLoss: low: given -1; needed: 0 to 1"),
    ("dapo surrogate.low=-1", {}, "PolicyLoss: surrogate.low: given -1; needed: 0 to 1"),
    ("dapo", {"low": -1}, "PolicyLoss: low: given -1; needed: 0 to 1"),
    ("dapo", {"surrogate.low": -1}, "PolicyLoss: surrogate.low: given -1; needed: 0 to 1"),
    ("dapo kl=k9 beta=1", {}, "PolicyLoss: kl: given 'k9'"),
    ("dapo", {"aggregate": "x"}, "PolicyLoss: aggregate: given 'x'"),
    ("dapo kl_output=3", {}, "kl_output: given '3'; needed: two numbers"),
    ("dapo", {"kl.output": 3}, "kl.output: given '3'; needed: two numbers"),
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
    ("cispo", {"min_ratio": 6}, "PolicyLoss: min_ratio, factor.max_ratio: given 6 and 5; needed: "),
    ("cispo max_ratio=x", {}, "PolicyLoss: max_ratio: given 'x'; needed: a number"),
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


@pytest.mark.parametrize("name", ("dapo", "gspo", "verl::vanilla", "cispo",
                                  "trl::dr_grpo aggregate.constant=3"))
@pytest.mark.parametrize("keyword", (True, False))
def test_what_a_message_lists_is_taken_there(name, keyword):
    def make(setting, value="?"):
        if keyword:
            return gdpo.PolicyLoss(name, **{setting: value})
        return gdpo.PolicyLoss(f"{name} {setting}={value}")

    listed = needed(make)
    assert {"factor.max_ratio" if name == "cispo" else "surrogate.low", "kl.beta",
            "aggregate.over"} <= set(listed)
    for setting in listed:
        with pytest.raises(ValueError) as refused:
            make(setting)
        assert "the setting" not in str(refused.value)
        assert f"{setting}: given '?'" in str(refused.value)


@pytest.mark.parametrize("name", ("gdpo", "rloo", "trl::grpo", "gdpo_shrunk"))
@pytest.mark.parametrize("keyword", (True, False))
def test_what_a_message_about_an_estimator_lists_is_taken_there(name, keyword):
    def make(setting, value="?"):
        line, settings = (name, {setting: value}) if keyword else (f"{name} {setting}={value}", {})
        return gdpo.advantages(REWARDS, group_size=4, estimator=line, **settings)

    for setting in needed(make):
        with pytest.raises(ValueError, match=re.escape(f"{setting}: given '?'")):
            make(setting)


def test_a_loss_is_its_line_through_a_copy_and_a_checkpoint():
    loss = gdpo.PolicyLoss("dapo", beta=0.5)
    for made in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert made.line == "dapo kl.beta=0.5"
        with pytest.raises(ValueError, match=r"ref_logp: given no array.*\(kl.beta is not 0\)"):
            made(torch.zeros(1, 2), counts=torch.ones(4, dtype=torch.float64),
                 advantages=torch.ones(1))
