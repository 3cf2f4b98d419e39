"""The plug-in of SkyRL itself: what its names reach, what it refuses, and its page."""
import pathlib
import re
import shlex
import sys
import types

import cloudpickle
import pytest
import torch
from omegaconf import OmegaConf

import gdpo
from gdpo.integrations import skyrl as plugin
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import AlgorithmConfig, OffPolicyCorrectionConfig

FOLDER = pathlib.Path(__file__).parent
ROWS, WIDTH = 6, 5
MASK = torch.arange(WIDTH) < torch.tensor([5, 4, 0, 3, 1, 5])[:, None]
OF_TEACHER = ("distillation", "ms_swift::sdar")


def arrays(seed=0):
    """Random arguments of a loss of SkyRL's registry."""
    torch.manual_seed(seed)
    old_logp = -torch.rand(ROWS, WIDTH) * 2 - 0.5
    return {"log_probs": (old_logp + 0.2 * torch.randn(ROWS, WIDTH)).requires_grad_(),
            "old_log_probs": old_logp, "advantages": torch.randn(ROWS, WIDTH),
            "loss_mask": MASK.float(),
            "rollout_logprobs": old_logp + 0.1 * torch.randn(ROWS, WIDTH)}


def run(line, config=None, given=None):
    """The loss, its metrics and the gradient of a line."""
    given = given or arrays()
    loss, metrics = plugin.Loss(line)(config=config or AlgorithmConfig(), **given)
    return loss, metrics, torch.autograd.grad(loss, given["log_probs"])[0]


def same(first, second):
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_register_makes_the_names_known_once():
    registry, estimators = ppo_utils.PolicyLossRegistry, ppo_utils.AdvantageEstimatorRegistry
    own = {name: registry.get(name) for name in registry.list_available()}
    names = plugin.register()
    known = {f"gdpo:{name}" for name in gdpo.losses() if name not in OF_TEACHER}
    assert known <= set(registry.list_available()) and "gdpo:dapo" in names
    assert {f"gdpo:skyrl::{kind}" for kind in own} <= set(names)
    assert {f"gdpo:{name}" for name in gdpo.estimators()} <= set(estimators.list_available())
    assert all(registry.get(name) is function for name, function in own.items())
    first = registry.get("gdpo:dapo")
    assert plugin.register() == names and registry.get("gdpo:dapo") is first
    assert plugin.register("dapo high=0.4", ["grpo eps=1e-3"]) == [
        "gdpo:dapo high=0.4", "gdpo:grpo eps=1e-3"]


def test_what_is_registered_reaches_other_processes(python):
    """SkyRL sends its workers what cloudpickle makes of a function."""
    plugin.register("dapo high=0.4", "grpo")
    for registry, name in ((ppo_utils.PolicyLossRegistry, "gdpo:dapo high=0.4"),
                           (ppo_utils.AdvantageEstimatorRegistry, "gdpo:grpo")):
        sent = cloudpickle.dumps(registry.get(name))
        lines = python(f"import pickle; f = pickle.loads({sent!r}); print(type(f).__module__)")
        assert lines == ["gdpo.integrations.skyrl"]


def test_a_loss_by_its_name_has_its_own_settings():
    given = arrays()
    policy_loss = gdpo.PolicyLoss("dapo", "sequence", high=0.3, aggregate="token-sum")
    expected = policy_loss(
        given["log_probs"], old_logp=given["old_log_probs"], mask=MASK,
        token_advantages=given["advantages"], counts=torch.ones(4, dtype=torch.float64)).loss
    config = AlgorithmConfig(eps_clip_low=0.01, eps_clip_high=0.01)
    torch.testing.assert_close(run("dapo sequence high=0.3", config)[0], expected)


def test_a_setting_replaces_that_of_the_configuration():
    config = AlgorithmConfig(eps_clip_low=0.02, eps_clip_high=0.03)
    wide = AlgorithmConfig(eps_clip_low=0.02, eps_clip_high=0.3)
    same(run("skyrl::regular high=0.3", config)[0], run("skyrl::regular", wide)[0])
    assert run("skyrl::regular", config)[0] != run("skyrl::regular", wide)[0]


@pytest.mark.parametrize("name", [name for name in gdpo.losses()
                                  if name not in OF_TEACHER and not name.startswith("skyrl::")])
def test_every_loss_can_be_chosen(name):
    config = AlgorithmConfig(off_policy_correction=OffPolicyCorrectionConfig(
        tis_ratio_type="token", token_mask_is_threshold_low=0.9, token_mask_is_threshold_high=1.1))
    loss, metrics, gradient = run(name, config)
    assert loss.isfinite() and gradient.isfinite().all() and not gradient[~MASK].any()
    assert all(isinstance(value, float) for value in metrics.values())
    assert {"clip_ratio", "is_ratio_mean", "token_mask_ratio", "gdpo/ratio"} < set(metrics)


@pytest.mark.parametrize("kind", plugin._OF_SKYRL)
def test_masked_tokens_change_no_bit(kind):
    options = {} if kind in plugin._WITHOUT_CORRECTION else {
        "tis_ratio_type": "sequence", "sequence_mask_metric": "product"}
    config = AlgorithmConfig(off_policy_correction=OffPolicyCorrectionConfig(**options))
    torch.manual_seed(1)
    expected, metrics, gradient = run(f"skyrl::{kind}", config)
    given = arrays()
    for name in ("old_log_probs", "advantages", "rollout_logprobs"):
        given[name] = given[name].masked_fill(~MASK, float("nan"))
    given["log_probs"] = given["log_probs"].detach().masked_fill(
        ~MASK, float("inf")).requires_grad_()
    torch.manual_seed(1)
    loss, same_metrics, same_gradient = run(f"skyrl::{kind}", config, given)
    same((loss, same_gradient), (expected, gradient))
    for name, value in metrics.items():  # SkyRL's spread of ratios is over padding too
        assert name.startswith("is_ratio") or same_metrics[name] == value, name


@pytest.mark.parametrize("line, needed", [
    ("nothing", gdpo.losses()), ("", gdpo.losses()), ("dapo nothing=1", ["surrogate.high"]),
    ("skyrl::nothing", ["skyrl::regular", "skyrl::dppo", "dapo"]),
    ("dpao", ['did you mean "dapo"']), ("skyrl::regualr", ['did you mean "skyrl::regular"']),
    ("skyrl::sft", ["skyrl::cross_entropy"]), ("skyrl::gspo nothing=1", ["surrogate.high"]),
    ("dapo high=x", ["high: given 'x'; needed: a number"]),
    ("dapo aggregate=token-sum", ["aggregate", "averages the tokens"]),
    ("skyrl::regular scale=2", ["aggregate", "averages the tokens"]),
    ("trl::grpo beta=0.1", ["kl.beta", "adds the KL term"]),
    ("skyrl::kl_cov beta=1", ["skyrl::kl_cov alone"]),
    *((name, ["teacher"]) for name in OF_TEACHER)])
def test_unknown_names_and_settings_are_refused(line, needed):
    with pytest.raises(ValueError) as error:
        plugin.register(line)
    assert all(name in str(error.value) for name in needed)


@pytest.mark.parametrize("line, needed", [("nothing", gdpo.estimators()),
                                          ("gdpo epsilon=1", ["eps"])])
def test_unknown_estimators_are_refused(line, needed):
    with pytest.raises(ValueError) as error:
        plugin.register(estimators=line)
    assert all(name in str(error.value) for name in needed)


@pytest.mark.parametrize("kind", plugin._WITHOUT_CORRECTION)
def test_a_correction_that_skyrl_has_not_is_refused(kind):
    config = AlgorithmConfig(off_policy_correction=OffPolicyCorrectionConfig(
        tis_ratio_type="token"))
    with pytest.raises(ValueError, match=f"off_policy_correction: .*skyrl::{kind}"):
        run(f"skyrl::{kind}", config)


@pytest.mark.parametrize("option", ["tis_ratio_type", "sequence_mask_metric"])
def test_unknown_options_of_a_correction_are_refused(option):
    config = AlgorithmConfig(off_policy_correction=OffPolicyCorrectionConfig(**{option: "x"}))
    with pytest.raises(ValueError, match=f"off_policy_correction.{option}: given 'x'; needed: one"):
        run("dapo", config)


def test_log_probs_of_the_sampler():
    """rollout_is needs them, dppo takes the old ones in their place, and a correction is off."""
    given = {**arrays(), "rollout_logprobs": None}
    with pytest.raises(ValueError, match="rollout_logprobs: given none; needed: .*rollout_is"):
        run("skyrl::rollout_is", given=given)
    own, _ = ppo_utils.dppo_policy_loss(config=AlgorithmConfig(), **given)
    torch.testing.assert_close(run("skyrl::dppo", given=given)[0], own)
    config = AlgorithmConfig(off_policy_correction=OffPolicyCorrectionConfig(
        tis_ratio_type="token"))
    same(run("dapo", config, given)[0], run("dapo", None, given)[0])


def test_without_a_mask_all_tokens_count():
    given = arrays()
    every = torch.ones(ROWS, WIDTH)
    same(run("dapo", given={**given, "loss_mask": None})[0],
         run("dapo", given={**given, "loss_mask": every})[0])


def test_the_option_of_the_std_is_refused():
    ours = plugin.Estimator("verl::grpo")
    with pytest.raises(ValueError, match="grpo_norm_by_std: given False; .*verl::grpo_no_std"):
        ours(torch.zeros(2, 3), torch.ones(2, 3), ["a", "a"], grpo_norm_by_std=False)


def test_losses_of_another_signature(monkeypatch):
    def changed(log_probs, old_log_probs, advantages, config, segments=None):
        """Another loss."""

    monkeypatch.setattr(ppo_utils, "gspo_policy_loss", changed)
    with pytest.warns(UserWarning, match=r"segments\).*SkyRL 0.3.0.*no loss is registered"):
        assert plugin.register("dapo", "grpo") == ["gdpo:grpo"]
    assert "gdpo:dapo" not in ppo_utils.PolicyLossRegistry.list_available()


def test_without_the_trainer_it_says_what_is_needed(python):
    """The error of the first import names the requirements."""
    hide = ("sys.meta_path = [finder for finder in sys.meta_path if 'Path' not in str(finder)]; "
            "sys.path_importer_cache.clear()\ntry:\n    import %s\n"
            "except ModuleNotFoundError as error:\n    print(error)" % FOLDER.name)
    assert "pip install --no-deps -r" in python(hide)[0]


def test_train(script):
    """The example of the page runs through SkyRL's functions, and learns."""
    steps = [dict(entry.split(": ") for entry in line.split("  ")) for line in script()]
    assert {"loss_metrics/clip_ratio", "loss_metrics/is_ratio_mean",
            "loss_metrics/tis_token_clip_high_ratio", "loss_metrics/gdpo/ratio"} < set(steps[0])
    assert float(steps[-1]["reward"]) > 3 * float(steps[0]["reward"])


@pytest.mark.parametrize("line", ["gdpo:skyrl::regular", "gdpo:dapo sequence high=0.3"])
def test_the_lines_of_the_page(monkeypatch, line):
    """SkyRL's entry point gets the options of the page, without ours, and knows their names."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    command = next(text for text in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
                   if "override_entrypoint" in text)
    words = [word for word in shlex.split(command.replace("\\\n", " ")) if "=" in word]
    words = [word.replace("gdpo:skyrl::regular", line) for word in words]
    seen = []

    def own_main():
        config = OmegaConf.from_cli(sys.argv[1:]).trainer.algorithm  # as SkyRL reads them
        seen.append((ppo_utils.PolicyLossRegistry.get(config.policy_loss_type),
                     ppo_utils.AdvantageEstimatorRegistry.get(config.advantage_estimator)))

    entrypoints = "skyrl.train.entrypoints"
    for name, content in ((entrypoints, {}), (f"{entrypoints}.main_base", {"main": own_main})):
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules[entrypoints], "main_base",
                        sys.modules[f"{entrypoints}.main_base"], raising=False)
    monkeypatch.setattr(sys, "argv", ["main_base", *words])
    plugin.main()
    [(loss, estimator)] = seen
    assert isinstance(loss, plugin.Loss) and isinstance(estimator, plugin.Estimator)
    assert not any("override_entrypoint" in word for word in sys.argv)
