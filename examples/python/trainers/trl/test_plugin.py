"""The plug-in itself: choices, errors, constraints, checkpoints, changed releases of TRL."""
import json
import math
import pathlib
import subprocess
import sys
import types
import warnings

import gdpo
import pytest
import torch
import trl
from gdpo._policy_loss import dividing_by_given
from gdpo.integrations import trl as plugin
from gdpo.integrations.trl import GRPOTrainer
from transformers import TrainerCallback, set_seed

LOSS_FUNCTIONS = sorted(plugin._LOSS)
REWARD_FUNCTIONS = sorted(plugin._REWARDS)
OF_TEACHER = ("distillation", "ms_swift::sdar")  # the losses of a teacher's log-probs


@pytest.fixture
def make(train, tmp_path):
    """Builds a trainer; the settings are those of GRPOConfig."""
    def build(cls=GRPOTrainer, choices=None, callbacks=None, **settings):
        set_seed(1)
        return cls(model=train.model(), processing_class=train.tokenizer(),
                   train_dataset=train.dataset(), reward_funcs=[train.even, train.short],
                   callbacks=callbacks, **(choices or {}), args=train.configuration(
                       str(tmp_path), **{"max_steps": 2, "logging_steps": 1, **settings}))
    return build


def inputs_of(seed, rows=4, width=6):
    """Inputs of `_compute_loss`, with log-probs and entropies of the model."""
    torch.manual_seed(seed)
    shape = (rows, width)
    logp = -torch.rand(shape)
    near = lambda: logp + 0.3 * torch.randn(shape)
    mask = (torch.arange(width) < torch.randint(1, width + 1, (rows, 1))).long()
    return logp, {
        "prompt_ids": torch.zeros(rows, 1), "prompt_mask": torch.ones(rows, 1),
        "completion_ids": torch.zeros(shape), "completion_mask": mask,
        "advantages": torch.randn(rows), "old_per_token_logps": near(),
        "ref_per_token_logps": near(), "num_items_in_batch": mask.sum()}


def stand_in(helpers, loss, logp, **settings):
    """A trainer for `_compute_loss` alone, whose model gives these log-probs."""
    args = types.SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1,
                                 importance_sampling_level="token", beta=0.0,
                                 max_completion_length=20)
    trainer = helpers.trainer(
        GRPOTrainer, args=args, **{**dict(
            loss_type="dapo", importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.2,
            beta=0.0, max_completion_length=20, top_entropy_quantile=1.0, use_vllm=False,
            off_policy_mask_threshold=None, vllm_importance_sampling_correction=False,
            current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
            aux_loss_enabled=False), **settings})
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (logp, logp.abs().detach(), None)
    trainer._gdpo_loss = trainer._chosen_loss(loss)
    return trainer


@pytest.mark.parametrize("name", [n for n in gdpo.losses() if n not in OF_TEACHER])
def test_every_loss_is_reached_by_its_name(helpers, name):
    logp, inputs = inputs_of(3)
    logp.requires_grad_()
    trainer = stand_in(helpers, name, logp)
    ours = trainer._compute_loss(None, inputs)
    constant = {"constant": 20.0} if name.endswith("dr_grpo") else {}
    mask = inputs["completion_mask"]
    direct, metrics = gdpo.PolicyLoss(name, beta=0.0, **constant)(
        logp, old_logp=inputs["old_per_token_logps"], mask=mask, advantages=inputs["advantages"],
        counts=gdpo.count(mask=mask, given=mask.sum()))
    torch.testing.assert_close(ours, direct, rtol=1e-6, atol=0)
    assert helpers.metrics(trainer)["gdpo/ratio"] == pytest.approx(metrics.mean("ratio"))


def test_a_loss_with_its_own_settings(helpers):
    logp, inputs = inputs_of(4)
    loss = gdpo.PolicyLoss("trl::grpo", "sequence", low=0.01, high=0.02)
    mask = inputs["completion_mask"]
    direct = loss(logp, old_logp=inputs["old_per_token_logps"], mask=mask,
                  advantages=inputs["advantages"], counts=gdpo.count(mask=mask)).loss
    assert stand_in(helpers, loss, logp)._compute_loss(None, inputs) == direct


@pytest.mark.parametrize("line, same", [
    ("dapo low=0.01 high=0.02", dict(name="dapo", low=0.01, high=0.02)),
    ("dapo surrogate.low=0.01", dict(name="dapo", low=0.01)),
    ("trl::grpo sequence surrogate.low=0.01", dict(name="trl::grpo", level="sequence", low=0.01)),
    ("dr_grpo constant=7", dict(name="dr_grpo", constant=7)),
    ("dr_grpo low=0.1", dict(name="dr_grpo", low=0.1, constant=20.0))])
def test_a_loss_in_a_line(helpers, line, same):
    """Its settings are not replaced by those that TRL's configuration has for a name alone."""
    logp, inputs = inputs_of(9)
    made = stand_in(helpers, line, logp)._gdpo_loss
    wanted = dividing_by_given(gdpo.PolicyLoss(**same, beta=0.0))
    assert set(made.line.split()) == set(wanted.line.replace(
        "constant=20.0", "constant=20").replace("constant=7.0", "constant=7").split())


def test_settings_of_an_estimator_in_a_line(make):
    torch.manual_seed(6)
    rewards = torch.rand(16, 2)
    for line in ("trl::gdpo scale_eps=0.5 missing=zero",
                 "trl::gdpo scale.eps=0.5 missing.entry=zero"):
        for estimator in (line, {"estimator": line}):
            trainer = make(choices={"estimator": estimator})
            trainer._gdpo_rewards = rewards
            given = trainer._group_advantages(torch.ones(16, 3))
            torch.testing.assert_close(given, gdpo.advantages(
                rewards, group_size=8, estimator="trl::gdpo", scale_eps=0.5, missing="zero"))


def test_a_limit_that_moves(make):
    trainer = make(choices={"constraints": ["short>=2 scale=0.5"]})
    trainer._gdpo_rewards = torch.rand(16, 2)
    trainer.model.train()
    trainer._group_advantages(torch.ones(16, 3))
    before = trainer._gdpo_constraints.metrics()
    resumed = make(choices={"constraints": ["short>=2.5 scale=0.5"]})
    resumed._gdpo_constraints.load_state_dict(trainer._gdpo_constraints.state_dict())
    trainer.gdpo_constraints.move("short>=2.5")
    assert before == trainer._gdpo_constraints.metrics() == resumed._gdpo_constraints.metrics()
    names = trainer.reward_func_names
    assert trainer._gdpo_constraints.update(trainer._gdpo_rewards, names) == (
        resumed._gdpo_constraints.update(trainer._gdpo_rewards, names))
    with pytest.raises(ValueError, match="given at_least; needed: at_most"):
        make(choices={"constraints": ["short<=2"]})._gdpo_constraints.load_state_dict(
            trainer._gdpo_constraints.state_dict())


@pytest.mark.parametrize("name", gdpo.estimators())
def test_every_estimator_is_reached_by_its_name(helpers, name):
    torch.manual_seed(5)
    rewards, mask = torch.rand(8, 2), (torch.rand(8, 6) < 0.7).long()
    trainer = helpers.trainer(
        GRPOTrainer, _gdpo_rewards=rewards, num_generations=4, reward_weights=torch.tensor([1, .5]),
        reward_func_names=["a", "b"], _gdpo_estimator={"estimator": name})
    direct = gdpo.advantages(rewards, group_size=4, estimator=name, weights=[1, .5],
                             tokens=mask.sum(-1))
    torch.testing.assert_close(trainer._group_advantages(mask), direct, rtol=0, atol=0)


def test_settings_of_an_estimator(make):
    trainer = make(choices={"estimator": {"estimator": "trl::gdpo", "scale.eps": 0.5,
                                          "weights": [2.0, 1.0]}})
    torch.manual_seed(6)
    trainer._gdpo_rewards = torch.rand(16, 2)
    given = trainer._group_advantages(torch.ones(16, 3))
    torch.testing.assert_close(given, gdpo.advantages(
        trainer._gdpo_rewards, group_size=8, estimator="trl::gdpo", scale_eps=0.5,
        weights=[2.0, 1.0]))


@pytest.mark.parametrize("choices, words", [
    ({"loss": "dpao"}, 'did you mean "dapo"'), ({"loss": "dapo lwo=0.1"}, "surrogate.low"),
    ({"loss": "distillation"}, "teacher"), ({"estimator": "gpdo"}, 'did you mean "gdpo"'),
    ({"estimator": "gdpo scale.ep=1"}, "scale.eps"),
    ({"estimator": {"estimator": "gdpo", "scale_ep": 1}}, "scale.eps"),
    ({"constraints": ["short"]}, "needed: a line")])
def test_slips_are_told_before_the_model_is_loaded(monkeypatch, choices, words):
    def load(self, *args, **kwargs):
        pytest.fail("TRL's trainer was made")
    monkeypatch.setattr(trl.GRPOTrainer, "__init__", load)
    with pytest.raises(ValueError, match=words):
        GRPOTrainer("a model", [len, len], **choices)


@pytest.mark.parametrize("choices, settings, words", [
    ({"loss": "ppo"}, {}, "trl::dapo, .*verl::vanilla"),
    ({"estimator": "gdop"}, {}, "trl::grpo_no_scale, trl::grpo_batch_scale"),
    ({"estimator": {"estimator": "gdpo", "epsilon": 1}}, {}, "epsilon"),
    ({"estimator": "gdpo epsilon=1"}, {}, "'epsilon'; needed: one of scale.of, scale.ddof, "),
    ({"estimator": "gdpo scale.eps=x"}, {}, "scale.eps: given 'x'; needed: a number"),
    ({"loss": "dapo lowest=1"}, {}, "'lowest'; needed: one of surrogate.low, "),
    ({"loss": "dapo surrogate.low=x"}, {}, "surrogate.low: given 'x'; needed: a number"),
    ({"loss": "dapo kl.beta=0.1"}, {}, "both 0 or both not"),
    ({"constraints": ["long>=0.9"]}, {}, "even, short"),
    ({"constraints": ["short"]}, {}, "needed: a line"),
    ({"loss": "dapo entropy_coef=0.1"}, {"entropy_coef": 0.01}, "a bonus in one of the two"),
    ({"loss": gdpo.PolicyLoss("dapo", entropy_coef=0.1)}, {"use_adaptive_entropy": True},
     "with the entropy bonus of GRPOConfig"),
    ({}, {"use_adaptive_entropy": True, "entropy_coef_min": 2.0}, "min_coef, max_coef"),
    ({}, {"use_adaptive_entropy": True, "entropy_coef": -0.1}, "at least 0"),
    ({"loss": gdpo.PolicyLoss("trl::dapo")}, {"beta": 0.1, "use_bias_correction_kl": False},
     "both 0 or both not"),
    ({"loss": gdpo.PolicyLoss("trl::dapo", beta=0.1)}, {}, "both 0 or both not"),
    ({"loss": "ms_swift::sdar"}, {}, "given 'ms_swift::sdar.*reads a teacher's log-probs"),
    ({"loss": "distillation"}, {}, "given 'distillation.*reads a teacher's log-probs"),
])
def test_what_cannot_be_honored_raises(make, choices, settings, words, monkeypatch):
    # A reference model would be loaded from where the model came, and this one came from nowhere.
    monkeypatch.setattr("trl.trainer.grpo_trainer.create_model_from_path",
                        lambda *a, **k: torch.nn.Linear(1, 1))
    monkeypatch.setattr("trl.trainer.grpo_trainer.add_fused_lm_head", lambda *a, **k: None)
    with pytest.raises(ValueError, match=words):
        make(choices=choices, **settings)


@pytest.mark.parametrize("corrected, kl", [(True, "k3*"), (False, None)])
def test_a_loss_by_name_takes_its_kl_term_from_the_configuration(corrected, kl):
    args = types.SimpleNamespace(beta=0.1, use_bias_correction_kl=corrected,
                                 importance_sampling_level="token")
    settings = plugin._own_settings("dapo", args)
    assert (settings["kl.beta"], settings.get("kl")) == (0.1, kl)
    gdpo.PolicyLoss(**settings)


def test_cispo_is_bounded_by_epsilon_high_itself(make, recwarn):
    """And TRL's own loss is not used; that both train alike is in test_training.py."""
    ours = make(loss_type="cispo", epsilon_high=1.1)
    assert ours._translated_settings() == {"name": "trl::cispo", "level": "token",
                                           "beta": ours.beta, "max_ratio": 1.1}
    ours.train()
    assert not [warning for warning in recwarn if "TRL's own loss" in str(warning.message)]
    log = ours.state.log_history[0]
    assert "cispo_clip_ratio" in log and not [key for key in log if key.startswith("clip_ratio/")]


def test_losses_without_a_clip_log_none(make):
    for loss_type, extra in (("sapo", set()), ("vespo", {"vespo/phi_seq_mean"})):
        ours = make(loss_type=loss_type)
        ours.train()
        log = ours.state.log_history[0]
        assert not [key for key in log if "clip_ratio" in key] and extra <= log.keys()


def test_what_vespo_lacks_here(helpers):
    trainer = stand_in(helpers, None, None, loss_type="vespo", beta=0.1)
    assert trainer._missing_option() is None
    trainer.args.use_bias_correction_kl = True
    assert "use_bias_correction_kl" in trainer._missing_option()


VLLM = {"use_vllm": True, "vllm_importance_sampling_correction": True}


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("name", ["vespo", "trl::vespo", "liger::vespo k_pos=1", None])
def test_weights_of_vllm_are_part_of_the_ratio_of_vespo(helpers, name, per_row):
    """They do not multiply the loss, and those of masked positions, even NaN, count for nothing."""
    logp, inputs = inputs_of(3)
    mask = inputs["completion_mask"]
    weights = torch.rand(4, 1 if per_row else 6) * 2
    weights[0, 0] = 0.0
    logs = weights.log().clamp(math.log(1e-8), 20.0)
    if per_row:
        logs = torch.cat([logs, torch.zeros(4, 5)], dim=1)
    else:
        weights = weights.masked_fill(mask == 0, math.nan)
    trainer = stand_in(helpers, name, logp.requires_grad_(), loss_type="vespo", **VLLM)
    trainer.args.__dict__.update({f"vespo_{key}": value for key, value in (
        ("k_pos", 2.0), ("lambda_pos", 3.0), ("k_neg", 3.0), ("lambda_neg", 2.0))})
    ours = trainer._compute_loss(None, {**inputs, "importance_sampling_ratio": weights})
    direct, _ = gdpo.PolicyLoss(name or "trl::vespo", beta=0.0)(
        logp, old_logp=inputs["old_per_token_logps"], mask=mask, advantages=inputs["advantages"],
        level_log_weights=logs, counts=gdpo.count(mask=mask, given=mask.sum()))
    torch.testing.assert_close(ours, direct, rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.autograd.grad(ours, logp)[0],
                               torch.autograd.grad(direct, logp)[0], rtol=1e-6, atol=0)


def test_vespo_of_tokens_refuses_the_weights_of_vllm(helpers):
    with pytest.raises(ValueError, match="given 'vespo token .*with the weights of vLLM.*sequence"):
        stand_in(helpers, "vespo token", None, **VLLM)


def test_what_is_missing_here_is_trls_own_after_one_warning(make, train, monkeypatch):
    # A reference model would be loaded from where the model came, and this one came from nowhere.
    monkeypatch.setattr("trl.trainer.grpo_trainer.create_model_from_path",
                        lambda *a, **k: train.model())
    settings = dict(loss_type="vespo", beta=0.1, entropy_coef=0.01,
                    multi_objective_aggregation="sum_then_normalize")
    with pytest.warns(UserWarning, match="there is no .* here; TRL's own loss is used") as told:
        ours = make(**settings)
        ours.train()
    assert sum("gdpo" in str(warning.message) for warning in told) == 1
    theirs = make(trl.GRPOTrainer, **settings)
    theirs.train()
    for a, b in zip(ours.state.log_history[:2], theirs.state.log_history[:2]):
        # The advantages are ours, and TRL's are rounded to float32 at each step of the arithmetic.
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("quantile", [1.0, 0.4])
@pytest.mark.parametrize("own", [False, True], ids=["of the configuration", "of the loss"])
@pytest.mark.parametrize("name", ["gspo", "verl::vanilla", "trl::bnpo"])
def test_the_entropy_bonus_of_a_chosen_loss(helpers, name, own, quantile):
    """It is a mean over the tokens that the surrogate keeps, divided by the accumulation steps."""
    logp, inputs = inputs_of(7)
    entropies = torch.rand(logp.shape).requires_grad_()
    bonus = {} if own else {"_entropy_bonus_enabled": True, "entropy_coef": 0.5,
                            "use_adaptive_entropy": False}
    settings = dict(top_entropy_quantile=quantile, current_gradient_accumulation_steps=3)
    plain = stand_in(helpers, name, logp, **settings)
    ours = stand_in(helpers, f"{name} entropy_coef=0.5 entropy_mean=tokens" if own else name, logp,
                    **settings, **bonus)
    for trainer in (plain, ours):
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (logp, entropies, None)
    difference = plain._compute_loss(None, inputs) - ours._compute_loss(None, inputs)
    kept = inputs["completion_mask"] == 1
    kept &= entropies >= torch.quantile(entropies[kept], 1 - quantile)
    torch.testing.assert_close(difference, 0.5 * entropies[kept].mean() / 3, rtol=1e-5, atol=1e-6)
    ours._compute_loss(None, inputs).backward()
    torch.testing.assert_close(entropies.grad, -0.5 / 3 * kept / kept.sum(), rtol=1e-6, atol=0)
    assert ("entropy_coef" in helpers.metrics(ours)) == (not own)
    assert not {"entropy_coef", "policy_loss"} & helpers.metrics(plain).keys()


ADAPTIVE = dict(_entropy_bonus_enabled=True, use_adaptive_entropy=True, entropy_coef=0.25,
                _last_world_entropy=math.inf, _entropy_window_stats=None)


def adaptive(helpers, logp, **settings):
    """A stand-in with TRL's controller, whose target is 0.5 and whose step 0.125."""
    trainer = stand_in(helpers, None, logp, **{**ADAPTIVE, **settings})
    trainer.args.__dict__.update(entropy_target=0.5, entropy_coef_delta=0.125, entropy_coef_min=0.0,
                                 entropy_coef_max=1.0)
    return trainer


def with_entropies(trainer, logp, value):
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (
        logp, torch.full_like(logp, value), None)


def test_the_controller_measures_whole_steps_of_all_processes(helpers):
    """One entropy of all tokens: of both micro-batches, and of another process, which has 0.9."""
    logp, inputs = inputs_of(6)
    tokens = int(inputs["completion_mask"].sum())
    trainer = adaptive(helpers, logp)
    trainer.accelerator.reduce = lambda tensor, reduction: tensor + (
        torch.tensor([0.9 * tokens, tokens]) if len(tensor) == 2 else 0)
    for value, last in ((0.25, False), (0.75, True)):
        trainer.accelerator.sync_gradients = last
        with_entropies(trainer, logp, value)
        trainer._compute_loss(None, inputs)
        assert ("entropy_coef" in trainer._metrics["train"]) == last
    assert trainer._last_world_entropy == pytest.approx((0.25 + 0.75 + 0.9) / 3, rel=1e-6)
    assert trainer.entropy_coef == 0.125 == helpers.metrics(trainer)["entropy_coef"]
    assert trainer._entropy_window_stats is None


def test_an_evaluation_leaves_the_controller(helpers):
    logp, inputs = inputs_of(6)
    trainer = adaptive(helpers, logp, _last_world_entropy=0.3)
    with_entropies(trainer, logp, 0.25)
    trainer.model.training = False
    loss = trainer._compute_loss(None, inputs)
    metrics = helpers.metrics(trainer)
    assert float(loss) == pytest.approx(metrics["policy_loss"] - 0.25 * 0.25, rel=1e-5)
    assert "entropy_coef" not in metrics
    assert (trainer.entropy_coef, trainer._last_world_entropy) == (0.25, 0.3)


def test_an_entropy_that_was_no_number_gives_no_bonus(helpers):
    """TRL keeps it, and its checkpoints hold it."""
    logp, inputs = inputs_of(6)
    trainer = adaptive(helpers, logp, _last_world_entropy=math.nan)
    with_entropies(trainer, logp, 0.25)
    loss = trainer._compute_loss(None, inputs)
    assert float(loss) == pytest.approx(helpers.metrics(trainer)["policy_loss"], rel=1e-6)
    assert (trainer.entropy_coef, trainer._last_world_entropy) == (0.375, 0.25)


def changed(monkeypatch, name):
    """Gives one of TRL's functions a parameter that this plug-in does not know."""
    original = trl.GRPOTrainer.__dict__[name]
    is_static = isinstance(original, staticmethod)
    function = original.__func__ if is_static else original

    def newer(*args, brand_new=None, **kwargs):
        return function(*args, **kwargs)

    monkeypatch.setattr(trl.GRPOTrainer, name, staticmethod(newer) if is_static else newer)


@pytest.mark.parametrize("name", LOSS_FUNCTIONS + REWARD_FUNCTIONS)
def test_a_changed_function_gives_a_warning(make, monkeypatch, name):
    changed(monkeypatch, name)
    what = "loss is" if name in LOSS_FUNCTIONS else "advantages are"
    with pytest.warns(UserWarning, match=f"knows that of TRL 1.16.0.*TRL's own {what} used"):
        trainer = make()
    assert trainer._gdpo_losses == (name not in LOSS_FUNCTIONS)
    assert trainer._gdpo_scores == (name not in REWARD_FUNCTIONS)
    choice = {"loss": "dapo"} if name in LOSS_FUNCTIONS else {"estimator": "gdpo"}
    with pytest.raises(ValueError, match="needed: that release"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(choices=choice)


def test_a_changed_release_runs_with_identical_numbers(make, monkeypatch):
    theirs = make(trl.GRPOTrainer)
    theirs.train()
    for name in LOSS_FUNCTIONS + REWARD_FUNCTIONS:
        changed(monkeypatch, name)
    with pytest.warns(UserWarning, match="TRL 1.16.0"):
        ours = make()
    ours.train()
    for a, b in zip(ours.state.log_history[:2], theirs.state.log_history[:2]):
        assert {k: v for k, v in a.items() if k != "step_time"} == {
            k: v for k, v in b.items() if k != "step_time"}


class AtBegin(TrainerCallback):
    """Calls a function when a training begins, after a checkpoint was loaded."""

    def __init__(self, function):
        self.function = function

    def on_train_begin(self, args, state, control, **kwargs):
        self.function()


def test_constraints_move_and_go_through_a_checkpoint(make, tmp_path):
    choices = {"constraints": ["short>=2 scale=0.5"]}  # never met, so that the multiplier grows
    trainer = make(choices=choices, save_strategy="steps", save_steps=2, num_iterations=1)
    trainer.train()
    key = "gdpo/constraint/short/multiplier"
    first, second = [line[key] for line in trainer.state.log_history[:2]]
    assert first > 0 and second > 0 and second != first
    state = trainer._gdpo_constraints.state_dict()
    resumed = make(choices=choices)
    loaded = []
    resumed.add_callback(AtBegin(lambda: loaded.append(resumed._gdpo_constraints.state_dict())))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(loaded[0]["short"]["state"], state["short"]["state"])


def test_the_entropy_coefficient_goes_through_a_checkpoint(make, tmp_path):
    """It is in TRL's own file, so that either trainer goes on from a checkpoint of the other."""
    settings = dict(use_adaptive_entropy=True, entropy_coef=0.1, entropy_target=5.0, max_steps=4,
                    entropy_coef_delta=0.0625, save_strategy="steps", save_steps=2)
    trainer = make(**settings)
    trainer.train()
    logged = [line["entropy_coef"] for line in trainer.state.log_history[:4]]
    assert logged == pytest.approx([0.1625, 0.225, 0.2875, 0.35])
    saved = json.loads((tmp_path / "checkpoint-2" / "entropy_ctrl_state.json").read_text())
    assert saved["entropy_coef"] == pytest.approx(0.225)
    for cls in (GRPOTrainer, trl.GRPOTrainer):
        resumed = make(cls, **settings)
        loaded = []
        resumed.add_callback(AtBegin(lambda: loaded.append(
            {"entropy_coef": resumed.entropy_coef,
             "last_world_entropy": resumed._last_world_entropy})))
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert loaded == [saved]
        assert resumed.entropy_coef == pytest.approx(0.35)
        assert resumed._last_world_entropy == pytest.approx(trainer._last_world_entropy, rel=1e-4)


def test_an_evaluation_leaves_the_multipliers(make):
    trainer = make(choices={"constraints": "short>=2"})
    trainer._gdpo_rewards = torch.rand(16, 2)
    trainer.model.train()
    trainer._group_advantages(torch.ones(16, 3))
    before = trainer._gdpo_constraints.metrics()
    trainer.model.eval()
    trainer._group_advantages(torch.ones(16, 3))
    assert before["constraint/short/multiplier"] > 0
    assert before == trainer._gdpo_constraints.metrics()


def test_evaluation_has_the_numbers_of_trl(make, train):
    logs = []
    for cls in (GRPOTrainer, trl.GRPOTrainer):
        trainer = make(cls, per_device_eval_batch_size=8, num_generations_eval=1)
        set_seed(2)
        logs.append(trainer.evaluate(train.dataset().select(range(8))))
    for key, value in logs[1].items():
        if not key.endswith(("_time", "_runtime", "_per_second")):
            assert logs[0][key] == pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True), key


def test_several_processes_take_their_own_rows(helpers):
    """The advantages of all are computed from what was gathered, and each process has its part."""
    torch.manual_seed(7)
    rewards, everyones = torch.rand(8, 1), None
    for rank in range(2):
        trainer = helpers.trainer(
            GRPOTrainer, processes=2, _gdpo_rewards=rewards, num_generations=4,
            reward_weights=torch.ones(1), reward_func_names=["a"], scale_rewards="group",
            multi_objective_aggregation="sum_then_normalize", _logs={"advantages": []})
        trainer.accelerator.process_index = rank
        trainer.accelerator.gather = lambda tensor: torch.cat([tensor, tensor])
        own = {"advantages": torch.zeros(4), "completion_mask": torch.ones(4, 3)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", lambda s, i: own)
            everyones = gdpo.advantages(rewards, group_size=4, estimator="trl::grpo")
            out = trainer._generate_and_score_completions([])["advantages"]
        assert torch.equal(out, everyones[4 * rank:4 * rank + 4])


def test_metrics_of_several_processes(helpers):
    """Means are of the sums over processes, and extremes those of all."""
    logp, inputs = inputs_of(8)
    alone = stand_in(helpers, None, logp)
    alone._compute_loss(None, inputs)
    several = stand_in(helpers, None, logp)
    several.accelerator.reduce = lambda tensor, reduction: 2 * tensor
    several.accelerator.gather = lambda tensor: torch.cat(
        [tensor, torch.tensor([[math.nan, 1.0]], dtype=torch.float64)])
    several._compute_loss(None, inputs)
    expected = {**helpers.metrics(alone), "clip_ratio/high_max": 1.0}
    assert helpers.metrics(several) == pytest.approx(expected)


def test_a_finding_is_told_once(helpers, caplog):
    logp, inputs = inputs_of(9)
    inputs["advantages"] = torch.zeros(4)
    trainer = stand_in(helpers, None, logp)
    trainer._compute_loss(None, inputs)
    trainer._compute_loss(None, inputs)
    assert helpers.metrics(trainer)["gdpo/findings"] >= 1
    assert sum("dead_groups" in message for message in caplog.messages) == 1


def test_the_run_of_the_page(train, capsys):
    train.main(4)
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if not line.startswith("{")]
    assert "gdpo/ratio" in table[0] and "gdpo/constraint/short/multiplier" in table[0]
    assert len(table) == 3 and all(len(line.split()) == 7 for line in table[1:])


def test_nothing_is_left_behind():
    """`import gdpo` does not import TRL, and importing the plug-in changes nothing in TRL."""
    script = ("import sys, json, gdpo, gdpo.integrations; before = 'trl' in sys.modules;"
              "print(json.dumps([before, 'transformers' in sys.modules]))")
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                             check=True).stdout
    assert json.loads(printed) == [False, False]
    assert all(value.__module__.startswith("trl.") for value in vars(trl.GRPOTrainer).values()
               if isinstance(value, types.FunctionType))
    assert pathlib.Path(trl.__file__).name == "__init__.py"  # not the folder of these tests
