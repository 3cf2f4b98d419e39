"""gdpo.from_config knows every option of verl's own configuration, with its default."""
import pathlib

import pytest
import verl
from omegaconf import OmegaConf
from verl.workers.config import ActorConfig

import gdpo
from gdpo.configs import verl as options
from gdpo.configs._options import flat

FOLDER = pathlib.Path(verl.__file__).parent / "trainer" / "config"
# Options that the plug-in adds, and those that verl's files leave out.
ADDED = {"algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights", "algorithm.gdpo_estimator",
         "algorithm.gdpo_gates", "algorithm.gdpo_constraints"}
# What verl's files take from other options.
FROM_OTHERS = {"critic.loss_agg_mode", "critic.loss_scale_factor"}


@pytest.mark.parametrize("engine", ["", "_megatron", "_torchtitan", "_veomni"])
def test_the_whole_configuration(engine):
    """All that is not known, or has another default, is named."""
    config = OmegaConf.load(FOLDER / f"_generated_ppo{engine}_trainer.yaml")
    given = gdpo.from_config("verl", config)
    assert given.token_advantage and not given.unsupported  # gae
    assert not given.unread and not given.yours
    theirs = flat(config)
    for name, default in options.DEFAULTS.items():
        if name not in ADDED | FROM_OTHERS:
            assert theirs[name] == default, name


def test_the_actors_own_object():
    actor = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4,
                        clip_ratio_high=0.3)
    given = gdpo.from_config("verl", {"algorithm.adv_estimator": "grpo",
                                      "actor_rollout_ref": {"actor": actor}}, strict=True)
    assert "surrogate.high=0.3" in given.loss.line and not given.corrections
