"""gdpo.from_config knows every option of this ms-swift, with its default."""
import dataclasses
import types

import pytest
from swift.arguments import RLHFArguments
from swift.rlhf_trainers.arguments import GRPOConfig

import gdpo
from gdpo.configs import ms_swift as options

# What ms-swift sets for GRPO where they are not given.
FOR_GRPO = {"rlhf_type": "grpo", "beta": 0.04, "loss_type": "grpo"}


def defaults(config):
    return {field.name: (field.default if field.default_factory is dataclasses.MISSING
                         else field.default_factory() or None)
            for field in dataclasses.fields(config)}


@pytest.mark.parametrize("config", [RLHFArguments, GRPOConfig])
def test_every_option_is_known(config):
    unknown = set(defaults(config)) - options.DEFAULTS.keys() - options.IGNORED
    assert not unknown


def test_defaults():
    theirs = {**defaults(RLHFArguments), **FOR_GRPO}
    assert {name: theirs[name] for name in options.DEFAULTS} == options.DEFAULTS


def test_the_options_of_the_command_as_an_object():
    config = arguments(loss_type=["cispo"], epsilon_high=5.0, beta=None, scale_rewards=None)
    given = gdpo.from_config("ms_swift", config, strict=True)
    assert given.loss.line.startswith("ms_swift::cispo") and given.estimator == "ms_swift::grpo"
    assert "kl.beta=0.04" in given.loss.line


def arguments(**settings):
    """The options with their defaults, as an object whose attributes they are."""
    theirs = {**defaults(RLHFArguments), "rlhf_type": "grpo", **settings}
    return types.SimpleNamespace(**theirs)
