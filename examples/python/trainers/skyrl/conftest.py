"""Makes SkyRL importable without the packages of stubs.py, and leaves it as it was."""
import pathlib
import runpy

import pytest

runpy.run_path(str(pathlib.Path(__file__).parent / "stubs.py"))


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Leaves SkyRL's registries as they were."""
    from skyrl.backends.skyrl_train.utils import ppo_utils
    for registry in (ppo_utils.PolicyLossRegistry, ppo_utils.AdvantageEstimatorRegistry):
        monkeypatch.setattr(registry, "_functions", dict(registry._functions))
