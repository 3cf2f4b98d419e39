"""The plug-in of OpenRLHF itself: what it replaces and when, what it refuses, and its page."""
import importlib
import json
import pathlib
import re
import sys

import pytest
import torch

import gdpo
import openrlhf.models
from gdpo.integrations import openrlhf as plugin
from openrlhf.models import loss as module
from openrlhf.trainer.ray import ppo_actor

FOLDER = pathlib.Path(__file__).parent
OWN = module.PolicyLoss
ROWS, WIDTH = 6, 5
MASK = torch.arange(WIDTH) < torch.tensor([5, 4, 0, 3, 1, 5])[:, None]
# The losses of a teacher's log-probs.
OF_TEACHER = ("distillation", "ms_swift::sdar")


def arrays(seed=0):
    """Random arguments of PolicyLoss.forward."""
    torch.manual_seed(seed)
    old_logp = torch.randn(ROWS, WIDTH) - 2
    return {"log_probs": (old_logp + 0.4 * torch.randn(ROWS, WIDTH)).requires_grad_(),
            "old_log_probs": old_logp, "advantages": torch.randn(ROWS, WIDTH), "action_mask": MASK,
            "rollout_log_probs": old_logp + 0.3 * torch.randn(ROWS, WIDTH)}


def run(given=None, **options):
    """What the class that is installed returns, and the gradient."""
    given = given or arrays()
    result = module.PolicyLoss(**options)(**given)
    return result, torch.autograd.grad(result[0], given["log_probs"])[0]


def same(first, second):
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_class_is_replaced_everywhere_and_again():
    for high in (0.3, 0.4):
        plugin.install("dapo", high=high)
        assert openrlhf.models.PolicyLoss is module.PolicyLoss is ppo_actor.PolicyLoss
        assert module.PolicyLoss.of_openrlhf is OWN and issubclass(module.PolicyLoss, OWN)
        assert f"surrogate.high={high}" in module.PolicyLoss().gdpo.line
    assert not any(isinstance(finder, plugin._AfterImport) for finder in sys.meta_path)


def test_a_loss_by_its_name_has_its_own_settings():
    given = arrays()
    policy_loss = gdpo.PolicyLoss("dapo", "sequence", high=0.3, aggregate="token-mean")
    expected = policy_loss(
        given["log_probs"], old_logp=given["old_log_probs"], mask=MASK,
        token_advantages=given["advantages"], counts=gdpo.count(mask=MASK)).loss
    for name, level, settings in (("dapo", "sequence", {"high": 0.3}),
                                  ("dapo sequence high=0.3", None, {})):
        plugin.install(name, level, **settings)
        torch.testing.assert_close(run(clip_eps_low=0.1)[0][0], expected)


@pytest.mark.parametrize("name", [name for name in gdpo.losses() if name not in OF_TEACHER])
@pytest.mark.parametrize("of_tokens", [True, False])
def test_every_loss_can_be_chosen(name, of_tokens):
    plugin.install(name)
    (loss, *metrics), gradient = run(token_level_loss=of_tokens, is_correction_level="token")
    assert loss.isfinite() and gradient.isfinite().all() and gradient[MASK].any()
    assert not gradient[~MASK].any() and all(metric.isfinite() for metric in metrics)


def test_masked_tokens_change_no_bit():
    plugin.install()
    options = {"is_correction_level": "seq", "is_correction_gating": "ratio"}
    expected, gradient = run(**options)
    given = arrays()
    for name in ("old_log_probs", "advantages", "rollout_log_probs"):
        given[name] = given[name].masked_fill(~MASK, float("nan"))
    given["log_probs"] = given["log_probs"].detach().masked_fill(~MASK, float("inf"))
    result, same_gradient = run({**given, "log_probs": given["log_probs"].requires_grad_()},
                                **options)
    same(result, expected)
    same(same_gradient, gradient)


@pytest.mark.parametrize("of_tokens", [True, False])
def test_a_batch_without_tokens_is_0(of_tokens):
    plugin.install()
    (loss, *metrics), gradient = run({**arrays(), "action_mask": torch.zeros_like(MASK)},
                                     token_level_loss=of_tokens)
    assert loss == 0 and not gradient.any() and metrics[:2] == [0, 0]


@pytest.mark.parametrize("line, needed", [
    ("nothing", gdpo.losses()), ("dapo nothing=1", ["surrogate.high"]),
    ("dpao", ['did you mean "dapo"']), ("dapo hgih=1", ['did you mean "surrogate.high"']),
    ("dapo high=x", ["high: given 'x'; needed: a number"]),
    ("dapo aggregate=token-sum", ["aggregate", "averages the tokens"]),
    ("trl::grpo beta=0.1", ["kl.beta", "adds the KL term"]), *((name, ["teacher"])
                                                                for name in OF_TEACHER)])
def test_unknown_names_and_settings_are_refused_at_once(line, needed):
    with pytest.raises(ValueError) as error:
        plugin.install(line)
    assert all(name in str(error.value) for name in needed)
    assert module.PolicyLoss is OWN


def test_settings_without_a_loss_are_refused():
    with pytest.raises(ValueError, match="loss: given none, with a level or settings"):
        plugin.install(high=0.3)


@pytest.mark.parametrize("option, value", [("dual_clip", 3.0), ("policy_loss_type", "gspo")])
def test_options_that_a_named_loss_does_not_read_are_refused(option, value):
    plugin.install("dapo")
    with pytest.raises(ValueError, match=f"openrlhf: {option}: given {value}; needed: .* 'dapo'"):
        module.PolicyLoss(**{option: value})


def test_what_openrlhf_refuses_is_refused():
    plugin.install()
    with pytest.raises(ValueError, match="requires is_correction_level=token"):
        module.PolicyLoss(is_correction_level="seq", is_correction_mode="clip")


def test_a_correction_without_log_probs_of_the_sampler_is_refused():
    plugin.install()
    for kind in ("ppo", "gspo"):
        with pytest.raises(ValueError, match="rollout_log_probs: given none; needed: .*is token"):
            run({**arrays(), "rollout_log_probs": None}, policy_loss_type=kind,
                is_correction_level="token")


def test_a_class_of_another_signature_stays(monkeypatch):
    class Changed(OWN):
        def forward(self, log_probs, old_log_probs, advantages, action_mask=None, segments=None):
            """Another forward."""

    monkeypatch.setattr(module, "PolicyLoss", Changed)
    with pytest.warns(UserWarning, match=r"segments\).*OpenRLHF 0.11.2.*its own loss is used"):
        plugin.install()
    assert module.PolicyLoss is Changed


def test_install_imports_nothing_of_openrlhf_and_waits_for_it(python):
    lines = python("from gdpo.integrations import openrlhf as plugin; plugin.install(); "
                   "print(any(name.startswith('openrlhf') for name in sys.modules)); "
                   "from openrlhf.trainer.ray import ppo_actor; import openrlhf.models; "
                   "print(ppo_actor.PolicyLoss.of_openrlhf.__module__); "
                   "print(ppo_actor.PolicyLoss is openrlhf.models.PolicyLoss)")
    assert lines == ["False", "openrlhf.models.loss", "True"]


def test_without_the_trainer_it_says_what_is_needed(python):
    """The error of the first import names the requirements."""
    hide = ("sys.meta_path = [finder for finder in sys.meta_path if 'Path' not in str(finder)]; "
            "sys.path_importer_cache.clear()\ntry:\n    import %s\n"
            "except ModuleNotFoundError as error:\n    print(error)" % FOLDER.name)
    assert "pip install --no-deps -r" in python(hide)[0]


def test_train(script):
    """The example of the page runs through OpenRLHF's own trainer, and learns."""
    steps = [dict(entry.split(": ") for entry in line.split("  ")) for line in script()]
    assert {"policy_loss", "ppo_clip_ratio", "ppo_kl", "vllm_kl", "is_filter_ratio"} < set(steps[0])
    assert float(steps[-1]["reward"]) > 3 * float(steps[0]["reward"])


def test_the_lines_of_the_page():
    """The hook of the page is a function, and its file installs the loss that it says."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    command = next(text for kind, text in blocks if kind == "sh" and "runtime-env-json" in text)
    hook = json.loads(re.search(r"'(\{.*?\})'", command)[1])["worker_process_setup_hook"]
    name, function = hook.rsplit(".", 1)
    assert getattr(importlib.import_module(name), function) is plugin.install
    scope = {}
    exec(next(text for kind, text in blocks if kind == "python"), scope)
    scope["install"]()
    assert module.PolicyLoss().gdpo.line.split()[0] in gdpo.losses()
