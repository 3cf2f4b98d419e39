"""gdpo.from_config knows every option of this TRL, with its default."""
import dataclasses
import warnings

import pytest
import trl

import gdpo
from gdpo.configs import trl as options

OURS = {"trainer", "normalize_advantages", "reward_clip_range"}


def defaults(config):
    return {field.name: field.default for field in dataclasses.fields(config)}


@pytest.mark.parametrize("config", [trl.GRPOConfig, trl.RLOOConfig])
def test_every_option_is_known(config):
    assert set(defaults(config)) <= options.DEFAULTS.keys() | options.IGNORED


def test_defaults():
    """Those of GRPOConfig; RLOOConfig has another beta."""
    theirs = defaults(trl.GRPOConfig)
    assert {name: value for name, value in options.DEFAULTS.items() if name not in OURS} == {
        name: theirs[name] for name in options.DEFAULTS if name not in OURS}
    theirs = defaults(trl.RLOOConfig)
    assert {name: theirs[name] for name in ("normalize_advantages", "reward_clip_range")} == {
        name: options.DEFAULTS[name] for name in ("normalize_advantages", "reward_clip_range")}
    for name in options.DEFAULTS.keys() & theirs.keys():
        assert options._RLOO_DEFAULTS.get(name, options.DEFAULTS[name]) == theirs[name], name


@pytest.mark.parametrize("config, name", [(trl.GRPOConfig, "trl::dapo"),
                                          (trl.RLOOConfig, "trl::rloo")])
def test_the_trainers_own_objects(config, name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = config(output_dir=str(tmp_path), report_to="none", bf16=False, epsilon=0.3)
    given = gdpo.from_config("trl", made, strict=True)
    assert given.loss.line.split(" ")[0] == name and "surrogate.low=0.3" in given.loss.line
    assert not given.unread and not given.yours
