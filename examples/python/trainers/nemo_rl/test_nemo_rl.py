"""The class of the page against numbers that NeMo-RL itself computed (tests/golden)."""
import json
import pathlib
import pickle
import re
import sys
import types

import pytest
import torch

FOLDER = pathlib.Path(__file__).parent
GOLDEN = FOLDER.parents[3] / "tests" / "golden" / "nemo_rl.loss.json"
REFUSED = ("use_cispo", "disable_ppo_ratio", "force_on_policy_ratio",
           "use_on_policy_kl_approximation", "positive_example_nll_weight")
OURS = ("loss", "kl_penalty", "token_mult_prob_error", "gen_kl_error", "policy_kl_error",
        "js_divergence_error")


@pytest.fixture(scope="module")
def page():
    """The module of the page, as the file that it is to be saved as."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
                 if "class ClippedPG" in block)
    module = types.ModuleType("gdpo_loss")
    exec(compile(block, "gdpo_loss.py", "exec"), module.__dict__)
    sys.modules["gdpo_loss"] = module
    yield module
    del sys.modules["gdpo_loss"]


class Own:
    """In place of NeMo-RL's ClippedPGLossFn: its attributes, and metrics that are all NaN."""

    input_type = "logprob"

    def __init__(self, params):
        self.__dict__.update(params)
        if params["use_kl_in_reward"]:
            self.reference_policy_kl_penalty = 0
        self.loss_type = types.SimpleNamespace(
            name="TOKEN_LEVEL" if params["token_level_loss"] else "SEQUENCE_LEVEL")

    def __call__(self, next_token_logprobs, data, global_valid_seqs, global_valid_toks):
        assert not torch.is_grad_enabled()
        return torch.tensor(0.0), {name: float("nan") for name in (*OURS, "approx_entropy")}


def cases():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


def named(suffix):
    return next(case for case in cases() if case["name"].endswith("/" + suffix))


def corrections(params):
    """The lines of the page for NeMo-RL's options of a correction."""
    low, high = (params[f"truncated_importance_sampling_ratio{end}"] for end in ("_min", ""))
    kind = params["truncated_importance_sampling_type"]
    if not params["use_importance_sampling_correction"]:
        return []
    if kind is None:
        rows = params["sequence_level_importance_ratios"]
        return [f"nemo_rl::{'sequence_' if rows else ''}importance_sampling"]
    if kind == "tis":
        return [f"nemo_rl::tis clip.lo={low or 0} clip.hi={high}"]
    return [f"nemo_rl::{kind.replace('-', '_')} gate.min={low} gate.max={high}"]


def batch_of(case):
    """NeMo-RL's batch of a recorded case, with the first token that no log-prob is of."""
    inputs = {name: torch.tensor(rows, dtype=torch.float64)
              for name, rows in case["inputs"].items()}
    shape = inputs["logp"].shape
    if inputs["advantages"].dim() == 1:
        inputs["advantages"] = inputs["advantages"][:, None].expand(shape)
    names = {"prev_logprobs": "old_logp", "reference_policy_logprobs": "ref_logp",
             "generation_logprobs": "rollout_logp", "advantages": "advantages",
             "token_mask": "response_mask"}
    data = {name: torch.nn.functional.pad(inputs[ours], (1, 0)) for name, ours in names.items()
            if ours in inputs}
    data["sample_mask"] = inputs["sample_mask"]
    return inputs["logp"].clone().requires_grad_(), data


def run(page, case, **others):
    params = {**case["params"], **others}
    logp, data = batch_of(case)
    function = page.ClippedPG(Own(params), corrections(params))
    counts = (torch.tensor(params[name]) for name in ("global_valid_seqs", "global_valid_toks"))
    loss, metrics = function(logp, data, *counts)
    return loss, torch.autograd.grad(loss, logp)[0], metrics


@pytest.mark.parametrize("case", [
    pytest.param(case, id=case["name"].split("/")[1]) for case in cases()
    if not any(case["params"][option] for option in REFUSED)])
def test_recorded(record, page, case):
    """Loss, gradient and metrics of NeMo-RL, with its corrections and divisors."""
    params, expected = case["params"], case["expected"]
    loss, gradient, metrics = run(page, case)
    kind = params["truncated_importance_sampling_type"] or (
        "importance sampling" if params["use_importance_sampling_correction"] else
        "sequence ratios" if params["sequence_level_importance_ratios"] else "token ratios")
    key = ("nemo_rl, recorded", "ClippedPGLossFn.__call__", f"nemo_rl::clipped_pg, {kind}")
    record.batch(*key)

    def close(what, ours, number, context=""):
        record.close(*key, what, torch.as_tensor(ours, dtype=torch.float64),
                     torch.tensor(number, dtype=torch.float64), 1e-9, context)

    close("loss", loss, expected["loss"])
    close("gradient", gradient, expected["grad_logp"])
    for name in OURS:
        if (name != "kl_penalty" or params["reference_policy_kl_penalty"] != 0) and (
                name in OURS[:2] or params["reference_policy_kl_type"] == "k3"):
            close("metrics", metrics[name], expected["metrics"][name], name)
    assert "approx_entropy" in metrics  # of NeMo-RL's own function


@pytest.mark.parametrize("option", REFUSED)
def test_options_that_the_class_does_not_have_are_refused(page, option):
    case = named("grpo_base")
    with pytest.raises(ValueError, match=f"{option}: given .*; needed: it off"):
        run(page, case, **{option: 1})


def test_a_correction_is_refused_without_its_line(page):
    params = named("tis_varlen")["params"]
    for own, lines in ((params, []), ({**params, "use_importance_sampling_correction": False},
                                      ["nemo_rl::tis"])):
        with pytest.raises(ValueError, match="corrections: needed"):
            page.ClippedPG(Own(own), lines)


def test_a_filter_of_the_sampler_is_refused(page):
    case = named("grpo_base")
    logp, data = batch_of(case)
    data["curr_logprobs_keep_mask"] = torch.ones_like(logp)
    with pytest.raises(ValueError, match="curr_logprobs_keep_mask"):
        page.ClippedPG(Own(case["params"]))(logp, data, torch.tensor(4), torch.tensor(20))


def test_it_has_the_attributes_of_nemo_rls_own_and_can_be_sent(page):
    function = page.ClippedPG(Own(named("grpo_base")["params"]))
    assert function.loss_type.name == "TOKEN_LEVEL" and function.input_type == "logprob"
    function.own = types.SimpleNamespace(input_type="logprob")  # which pickle can import
    page.ClippedPG.__module__ = "gdpo_loss"
    assert pickle.loads(pickle.dumps(function)).input_type == "logprob"
