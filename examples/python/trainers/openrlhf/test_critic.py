"""The critic's side of OpenRLHF and its REINFORCE family beside ours, on random batches of float32.

Experiences have other widths, masks have holes, and there are rows of 0 and 1 tokens. Both sums are
of at most a few dozen terms, OpenRLHF's in float32, ours in double. So what is compared is within
some ulp of float32, of which one is 1.2e-7; whitening divides that by a std, which may be a tenth
of the values. 1e-5 of the largest number is asked for, and of advantages of 1 where that is larger.
The std of a group of equal rewards is rounding in OpenRLHF, so rewards are multiples of 1/8, which
float32 adds exactly.
"""
import copy
import importlib.metadata
import random
import sys
from types import SimpleNamespace

import pytest
import torch

import gdpo
import openrlhf.models
from gdpo.integrations import openrlhf as plugin
from openrlhf.models import loss as module
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_critic

TRAINER = f"openrlhf {importlib.metadata.version('openrlhf')}"
TOLERANCE = 1e-5
MAKER = experience_maker.RemoteExperienceMaker
ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo",
              "flash_reinforce")


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """OpenRLHF's own classes before each test and after it."""
    for name in ("PolicyLoss", "ValueLoss"):
        own = getattr(getattr(module, name), "of_openrlhf", getattr(module, name))
        for other in (module, openrlhf.models):
            monkeypatch.setattr(other, name, own)
    monkeypatch.setattr(ppo_critic, "ValueLoss", module.ValueLoss)
    monkeypatch.setattr(MAKER, "compute_advantages_and_returns",
                        MAKER.compute_advantages_and_returns)


class Batch:
    """Experiences of a rollout with the options of OpenRLHF."""

    def __init__(self, seed, estimator):
        choose = self.choose = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        size = choose.randint(2, 4) if estimator in ("rloo", "group_norm") else choose.randint(1, 4)
        rows = size * choose.randint(2, 4)
        places = list(range(rows))
        choose.shuffle(places)
        self.experiences, at = [], 0
        while at < rows:
            n, width = min(choose.randint(1, 4), rows - at), choose.randint(2, 9)
            mask = torch.rand(n, width, generator=g) > choose.choice((0.1, 0.4))
            if at == 0:
                mask[0] = torch.arange(width) == choose.randrange(width)
            elif choose.random() < 0.3:
                mask[0] = False
            normal = lambda: torch.randn(n, width, generator=g)
            self.experiences.append(Experience(
                index=places[at:at + n], action_mask=mask, values=normal(), kl=normal() * mask,
                rewards=torch.randint(-16, 17, (n,), generator=g) / 8, info={}))
            at += n
        advantage = SimpleNamespace(
            estimator=estimator, gamma=choose.choice((1.0, 0.99, 0.9)),
            lambd=choose.choice((1.0, 0.95, 0.5)), no_std_norm=choose.random() < 0.3)
        clip = choose.choice((None, (-1.0, 0.75)))
        self.args = SimpleNamespace(
            rollout=SimpleNamespace(n_samples_per_prompt=size),
            algo=SimpleNamespace(advantage=advantage), reward=SimpleNamespace(clip_range=clip))
        self.kl_coef = choose.choice((0.0, 0.05))

    def run(self):
        """The experiences with what the class that is installed sets in them."""
        maker = MAKER.__new__(MAKER)
        maker.strategy = SimpleNamespace(args=copy.deepcopy(self.args))
        maker.advantage_estimator = self.args.algo.advantage.estimator
        maker.kl_ctl = SimpleNamespace(value=self.kl_coef)
        return maker.compute_advantages_and_returns(copy.deepcopy(self.experiences))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators(record, seeds, estimator):
    """At the tokens of the mask; the others are read by nobody."""
    about = (TRAINER, f"advantage.estimator={estimator}", f"openrlhf::{estimator}")
    for seed in seeds:
        batch = Batch(seed, estimator)
        theirs = batch.run()
        own = MAKER.compute_advantages_and_returns
        plugin.install_critic()
        ours = batch.run()
        MAKER.compute_advantages_and_returns = own
        record.batch(*about)
        context = f"seed {seed}, {batch.args}, {batch.kl_coef}"
        for name in ("advantages", "returns"):
            got, want = (torch.cat([getattr(e, name)[e.action_mask] for e in run])
                         for run in (ours, theirs))
            record.close(*about, "advantages", got, want, TOLERANCE, f"{name}, {context}")
        for one, other in zip(ours, theirs):
            assert one.kl is other.kl is None and one.info.keys() == other.info.keys()
            for key in other.info:
                record.close(*about, "metrics", one.info[key], other.info[key], TOLERANCE,
                             f"{key}, {context}")
            assert not one.advantages[~one.action_mask].any()


def test_value_loss(record, seeds):
    """ValueLoss with and without a clip, by tokens and by rows, with and without counts."""
    about = (TRAINER, "ValueLoss.forward", "openrlhf::value_loss")
    for seed in seeds:
        choose = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        rows, width = choose.randint(2, 7), choose.randint(2, 12)
        mask = torch.rand(rows, width, generator=g) > 0.2
        mask[0] = torch.arange(width) == 0
        mask[1] = choose.random() < 0.5
        normal = lambda: torch.randn(rows, width, generator=g)
        values, returns = normal(), normal()
        old = values + choose.choice((0.05, 0.5, 2.0)) * normal()
        given = {"old_values": old, "returns": returns, "action_mask": mask}
        if choose.random() < 0.7:
            given.update(dp_size=choose.choice((1, 4)), batch_num_tokens=2.0 * mask.sum(),
                         global_batch_size=float(rows + 3))
        options = {"clip_eps": choose.choice((None, 0.2, 0.5)),
                   "token_level_loss": choose.random() < 0.5}
        results, own = [], module.ValueLoss
        for install in (lambda: None, plugin.install_critic):
            install()
            given_values = values.clone().requires_grad_()
            loss = module.ValueLoss(**options)(given_values, **given)
            loss.backward()
            results.append((loss, given_values.grad))
        plugin._put(module.ValueLoss, own)
        record.batch(*about)
        for what, one, other in zip(("loss", "gradient"), *reversed(results)):
            record.close(*about, what, one, other, TOLERANCE, f"seed {seed}, {options}, {given}")


def test_classes_are_replaced_everywhere_and_once():
    own = module.ValueLoss
    for _ in range(2):
        plugin.install_critic()
        assert openrlhf.models.ValueLoss is module.ValueLoss is ppo_critic.ValueLoss
        assert module.ValueLoss.of_openrlhf is own and module.ValueLoss.__name__ == "ValueLoss"
        assert MAKER.compute_advantages_and_returns.is_of_gdpo
        assert module.ValueLoss(0.2).gdpo.line.startswith("openrlhf::value_loss clip=0.2")
    assert not any(isinstance(finder, plugin._AfterImport) for finder in sys.meta_path)


def test_other_parameters_leave_it_alone(monkeypatch):
    def get_cumulative_returns(self, rewards, gamma):
        pass

    own = MAKER.compute_advantages_and_returns
    monkeypatch.setattr(MAKER, "get_cumulative_returns", get_cumulative_returns)
    with pytest.warns(UserWarning, match="get_cumulative_returns takes .* its own advantages are"):
        plugin.install_critic()
    assert MAKER.compute_advantages_and_returns is own


def test_before_openrlhf_is_imported(python):
    """Both choices wait for the modules, and each is found there afterwards."""
    assert python(
        "from gdpo.integrations import openrlhf as plugin; plugin.install(); "
        "plugin.install_critic(); from openrlhf.models import PolicyLoss, ValueLoss; "
        "from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker as maker; "
        "print(PolicyLoss().gdpo.line.split()[0], ValueLoss().gdpo.line.split()[0], "
        "maker.compute_advantages_and_returns.is_of_gdpo)")[-1] == (
        "verl::vanilla openrlhf::value_loss True")


def test_values_of_masked_places_are_not_read():
    plugin.install_critic()
    batch = Batch(4, "gae")
    want = batch.run()
    for e in batch.experiences:
        e.values = torch.where(e.action_mask, e.values, float("nan"))
    for one, other in zip(batch.run(), want):
        assert torch.equal(one.advantages, other.advantages)


def test_the_estimators_are_all_that_the_library_has():
    assert {f"openrlhf::{name}" for name in ESTIMATORS} == {
        name for name in gdpo.outcome_estimators() if name.startswith("openrlhf::")}
