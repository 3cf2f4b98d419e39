"""Makes OpenRLHF importable without the packages of stubs.py, and leaves it as it was."""
import pathlib
import runpy
import sys

import pytest

runpy.run_path(str(pathlib.Path(__file__).parent / "stubs.py"))


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Leaves OpenRLHF's classes and the import of its modules as they were."""
    import openrlhf.models
    from openrlhf.models import loss
    from openrlhf.trainer.ray import ppo_actor
    for module in (openrlhf.models, loss, ppo_actor):
        monkeypatch.setattr(module, "PolicyLoss", module.PolicyLoss)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
