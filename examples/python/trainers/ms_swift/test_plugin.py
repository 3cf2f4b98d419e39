"""The plug-in itself: choices reach this library, and what it does not know runs as it was."""
import types
import warnings

import pytest
import torch
from swift.rl_core.data import GRPOBatch
from swift.rlhf_trainers import grpo_trainer, rollout_mixin
from swift.trainers.trainer_factory import TrainerFactory

import gdpo
from gdpo.integrations import ms_swift

OF_TEACHER = ("distillation", "ms_swift::sdar")  # the losses of a teacher's log-probs
REWARDS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0],
                        [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
PAIR = {"reward_weights": torch.ones(2), "reward_func_names": ["right", "format"]}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Nothing that a test installs is left behind."""
    monkeypatch.setitem(TrainerFactory.TRAINER_MAPPING, "grpo", "swift.rlhf_trainers.GRPOTrainer")
    monkeypatch.setattr(ms_swift, "_choices", ms_swift.Choices())


def batch_of(seed=0, rows=4, width=6):
    """Log-probs of a micro-batch, and the rest of it."""
    generator = torch.Generator().manual_seed(seed)
    logp, old, ref, noise = -torch.rand(4, rows, width, generator=generator)
    mask = torch.arange(width) < torch.randint(2, width + 1, (rows, 1), generator=generator)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, width).clone()
    batch = GRPOBatch(completion_mask=mask, truncated_mask=mask[:, -1], seq_lengths=mask.sum(1),
                      old_per_token_logps=old, ref_per_token_logps=ref, advantages=advantages,
                      rollout_per_token_logps=old + 0.1 * noise,
                      num_items_in_batch=2.0 * mask.sum())
    return logp, batch


def loss_and_gradient(trainer, logp, batch, function=None):
    """The loss of the trainer, or of a function on it, with its gradient."""
    logp = logp.clone().requires_grad_(True)
    trainer._get_per_token_logps_and_entropies = lambda *_, compute_entropy: (logp, None)
    loss, _ = (function or type(trainer)._compute_loss_and_metrics)(trainer, None, {}, batch)
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def advantages_of(trainer, rewards=REWARDS, batches=()):
    samples = [types.SimpleNamespace(prompt_id=str(row // 4), request_id=str(row))
               for row in range(len(rewards))]
    return trainer._compute_advantages(samples, rewards, list(batches))


@pytest.mark.parametrize("name", gdpo.losses())
def test_every_loss_can_be_chosen(helpers, name):
    """The names of ms-swift divide by the micro-batch, the others by all tokens of the rollout."""
    settings = {"constant": 7.0} if "dr_grpo" in name else {}
    ms_swift.install(loss=name, loss_settings=settings)
    trainer = helpers.trainer(ms_swift._choices, loss_type="real",
                              args={"steps_per_generation": 2})
    logp, batch = batch_of()
    batch.teacher_per_token_logps = batch.ref_per_token_logps if name in OF_TEACHER else None
    loss, gradient = loss_and_gradient(trainer, logp, batch)
    counts = gdpo.count(mask=batch.completion_mask)
    counts[3] = batch.num_items_in_batch / 2
    assert counts[0] == counts[3]  # as the rollout has two such micro-batches
    expected_at = logp.clone().requires_grad_(True)
    expected, _ = gdpo.PolicyLoss(name, **settings)(
        expected_at, old_logp=batch.old_per_token_logps, ref_logp=batch.ref_per_token_logps,
        rollout_logp=batch.rollout_per_token_logps, teacher_logp=batch.teacher_per_token_logps,
        mask=batch.completion_mask, advantages=batch.advantages[:, 0].contiguous(), counts=counts)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, expected_at)[0])


@pytest.mark.parametrize("choices", [
    {"loss": "dapo low=0.01 scale=2"}, {"loss": "dapo surrogate.low=0.01 aggregate.scale=2"},
    {"loss": "dapo", "loss_settings": {"low": 0.01, "scale": 2}},
    {"loss": "dapo", "loss_settings": {"surrogate.low": 0.01, "aggregate.scale": 2}}])
def test_settings_of_a_loss_by_all_their_names(helpers, choices):
    ms_swift.install(**choices)
    made = helpers.trainer(ms_swift._choices)._gdpo_loss
    assert sorted(made.line.split()) == ["aggregate.over=given", "aggregate.scale=2", "dapo",
                                         "surrogate.low=0.01"]


def test_settings_replace_what_the_options_say_by_all_their_names(helpers):
    for settings in ({"low": 0.01, "beta": 0.5}, {"surrogate.low": 0.01, "kl.beta": 0.5}):
        made = helpers.trainer(ms_swift.Choices(loss_settings=settings))._gdpo_loss
        words = made.line.split()
        assert "surrogate.low=0.01" in words and "kl.beta=0.5" in words
        assert len([word for word in words if word.startswith(("surrogate.low", "kl.beta"))]) == 2


@pytest.mark.parametrize("choices", [
    {"estimator": "gdpo scale_eps=0.5"}, {"estimator": "gdpo scale.eps=0.5"},
    {"estimator": "gdpo", "estimator_settings": {"scale.eps": 0.5}}])
def test_settings_of_an_estimator_by_all_their_names(helpers, choices):
    ms_swift.install(**choices)
    trainer = helpers.trainer(ms_swift._choices, num_generations=4, **PAIR)
    torch.testing.assert_close(advantages_of(trainer), gdpo.advantages(
        REWARDS, group_size=4, estimator="gdpo", scale_eps=0.5))


def test_accumulated_micro_batches_divide_by_all_tokens(helpers):
    """The mean over micro-batches, which the Trainer takes, is the loss of the whole step."""
    parts = [batch_of(seed) for seed in range(2)]
    total = sum(batch.completion_mask.sum() for _, batch in parts)
    trainer = helpers.trainer(ms_swift.Choices(loss="dapo"), args={"steps_per_generation": 2})
    losses = []
    for logp, batch in parts:
        batch.num_items_in_batch = total.float()
        losses.append(loss_and_gradient(trainer, logp, batch)[0])
    joined = [torch.cat(tensors) for tensors in zip(*(
        (logp, b.old_per_token_logps, b.completion_mask, b.advantages) for logp, b in parts))]
    whole, _ = gdpo.PolicyLoss("dapo")(
        joined[0], old_logp=joined[1], mask=joined[2], token_advantages=joined[3],
        counts=gdpo.count(mask=joined[2]))
    torch.testing.assert_close(sum(losses) / 2, whole)


@pytest.mark.parametrize("name", gdpo.estimators())
def test_every_estimator_can_be_chosen(helpers, name):
    ms_swift.install(estimator=name, estimator_settings={"missing": "zero"})
    trainer = helpers.trainer(ms_swift._choices, num_generations=4, **PAIR)
    mask = torch.arange(9) < torch.arange(1, 9).unsqueeze(1)
    _, batch = batch_of(rows=8, width=9)
    batch.completion_mask = mask
    ours = advantages_of(trainer, batches=[{"grpo_batch": batch}])
    expected = gdpo.advantages(REWARDS, group_size=4, estimator=name, missing="zero",
                               tokens=torch.arange(1.0, 9.0))
    torch.testing.assert_close(ours, expected, equal_nan=True)


@pytest.mark.parametrize("given, message", [
    ({"loss": "dapoo"}, "loss: given 'dapoo'; needed: one of .*verl::vanilla"),
    ({"estimator": "gppo"}, "estimator: given 'gppo'; needed: one of .*trl::gdpo"),
    ({"loss": "dapo", "loss_settings": {"lowest": 1}}, "lowest"),
    ({"loss": "dpao"}, 'did you mean "dapo"'), ({"estimator": "gpdo"}, 'did you mean "gdpo"'),
    ({"loss_settings": {"lwo": 1}}, 'loss_settings: given lwo.*did you mean "low"'),
    ({"estimator_settings": {"scale_ep": 1}}, 'did you mean "scale.eps"'),
    ({"estimator": "gdpo", "estimator_settings": {"epsilon": 1}}, "epsilon"),
    ({"estimator": "gdpo epsilon=1"}, "'epsilon'; needed: one of scale.of, scale.ddof, "),
    ({"estimator": "gdpo scale.eps=x"}, "scale.eps: given 'x'; needed: a number"),
    ({"loss": "dapo lowest=1"}, "'lowest'; needed: one of surrogate.low, "),
    ({"loss": "dapo", "loss_settings": {"surrogate.low": -1}}, "surrogate.low: given -1"),
    ({"constraints": "format"}, "constraints: given 'format'; needed")])
def test_mistakes_name_what_there_is(given, message):
    with pytest.raises(ValueError, match=message):
        ms_swift.install(**given)
    assert TrainerFactory.TRAINER_MAPPING["grpo"] == "swift.rlhf_trainers.GRPOTrainer"


def test_install_is_one_entry_of_the_table():
    ms_swift.install()
    made = TrainerFactory.get_trainer_cls(types.SimpleNamespace(rlhf_type="grpo"))
    assert made is ms_swift.GRPOTrainer and issubclass(made, grpo_trainer.GRPOTrainer)
    assert "PluggedIn" not in str(grpo_trainer.GRPOTrainer.__mro__)
    TrainerFactory.TRAINER_MAPPING["grpo"] = "another.GRPOTrainer"
    with pytest.warns(UserWarning, match="another.GRPOTrainer.*ms-swift 4.6.0"):
        ms_swift.install()
    with pytest.raises(ValueError, match="another.GRPOTrainer"):
        ms_swift.install(loss="dapo")


def test_constraints_move_and_are_logged(helpers, tmp_path):
    choices = ms_swift.Choices(estimator="gdpo", constraints=("format>=0.9 scale=0.3",))
    trainer = helpers.trainer(choices, **PAIR)
    pid = gdpo.PidLagrangian([0.9], scale=0.3)
    for _ in range(3):
        ours = advantages_of(trainer)
        pid.update(sums=[REWARDS[:, 1].sum().item()], counts=[8])
        expected = gdpo.advantages(REWARDS, group_size=4, constraints=pid.constraints([1]))
        torch.testing.assert_close(ours, expected)
        logged = trainer._metrics["train"]["gdpo/constraint/format/multiplier"][-1]
        assert logged == pid.multipliers[0] > 0
    # A checkpoint carries them to the trainer that resumes it.
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    args = types.SimpleNamespace(output_dir=str(tmp_path), resume_from_checkpoint=str(folder))
    state = types.SimpleNamespace(global_step=3, is_world_process_zero=True)
    trainer.callbacks[0].on_save(args, state, None)
    other = helpers.trainer(choices, **PAIR)
    other.callbacks[0].on_train_begin(args, state, None)
    assert (other._gdpo_constraints.metrics() == trainer._gdpo_constraints.metrics())
    # With another limit it is the same multiplier, under that limit.
    moved = helpers.trainer(choices._replace(constraints=("format>=0.95 scale=0.3",)), **PAIR)
    moved.callbacks[0].on_train_begin(args, state, None)
    assert moved.gdpo_constraints.metrics() == trainer.gdpo_constraints.metrics()
    names = trainer.reward_func_names
    other.gdpo_constraints.move("format>=0.95")
    limits = [each.gdpo_constraints.update(REWARDS, names) for each in (moved, other)]
    assert limits[0] == limits[1] and limits[0][0][2] == 0.95


def test_evaluation_leaves_multipliers_alone(helpers):
    trainer = helpers.trainer(ms_swift.Choices(constraints=("format>=0.9",)), training=False,
                              **PAIR)
    before = trainer._gdpo_constraints.metrics()
    advantages_of(trainer)
    assert trainer._gdpo_constraints.metrics() == before


@pytest.mark.parametrize("options", [
    {"loss_type": "fipo", "importance_sampling_level": "sequence"},
    {"use_liger_loss": True}, {"loss_type": "gspo_next"}])
def test_what_ours_lacks_falls_back_or_raises(helpers, options):
    with pytest.warns(UserWarning, match="ms-swift's own code is used"):
        trainer = helpers.trainer(**options)
    assert trainer._gdpo_loss is None
    chosen = ms_swift.Choices(loss_settings={"low": 0.1}) if "loss_type" in options else (
        ms_swift.Choices(loss="dapo"))
    with pytest.raises(ValueError, match="leave out"):
        helpers.trainer(chosen, **options)
    if options.get("loss_type") == "fipo":
        logp, batch = batch_of()
        ours = loss_and_gradient(trainer, logp, batch)
        theirs = loss_and_gradient(trainer, logp, batch, helpers.own._compute_loss_and_metrics)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def test_fipo_is_a_loss_with_weights(helpers):
    """At levels of sequences too, where no threshold would bound the ratio of a row."""
    for level, more in (("token", {}), ("sequence", {"fipo_safety_threshold": None})):
        trainer = helpers.trainer(loss_type="fipo", importance_sampling_level=level, **more)
        logp, batch = batch_of()
        loss, gradient = loss_and_gradient(trainer, logp, batch)
        arrays = {"old_logp": batch.old_per_token_logps, "mask": batch.completion_mask,
                  "advantages": batch.advantages[:, 0].contiguous()}
        weights = gdpo.prepare("ms_swift::fipo" + (" safety=inf" if more else ""), logp=logp,
                               **arrays).weights
        assert weights.max() > 1
        at = logp.clone().requires_grad_(True)
        counts = gdpo.count(mask=batch.completion_mask, given=batch.num_items_in_batch)
        expected, _ = gdpo.PolicyLoss("ms_swift::fipo", level)(
            at, ref_logp=batch.ref_per_token_logps, weights=weights, counts=counts, **arrays)
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, at)[0])
    batch.teacher_per_token_logps = batch.ref_per_token_logps
    with pytest.raises(ValueError, match="loss_type: given fipo with log-probs of a teacher"):
        loss_and_gradient(trainer, logp, batch)


def test_sdar_is_added_to_a_chosen_loss_too(helpers):
    logp, batch = batch_of()
    without, gradient = loss_and_gradient(helpers.trainer(ms_swift.Choices(loss="dapo")), logp,
                                          batch)
    trainer = helpers.trainer(ms_swift.Choices(loss="dapo"), sdar_loss_coef=0.1)
    same, _ = loss_and_gradient(trainer, logp, batch)
    assert torch.equal(same, without)  # as in ms-swift, without log-probs of a teacher
    batch.teacher_per_token_logps = logp + 0.5
    loss, with_term = loss_and_gradient(trainer, logp, batch)
    gate = torch.sigmoid(torch.tensor(2.5))
    torch.testing.assert_close(loss, without + 0.1 * 0.5 * gate)
    mask = batch.completion_mask
    torch.testing.assert_close(with_term, gradient - 0.1 * gate * mask / mask.sum())


def test_real_is_a_loss_over_groups(helpers):
    """The settings of ms-swift reach it, and those of the file replace them."""
    real = {"loss_type": "real", "real_tau": 0.3, "beta": 0.1}
    assert helpers.trainer(**real)._gdpo_loss.line == "ms_swift::real kl.beta=0.1 tau=0.3"
    chosen = ms_swift.Choices(loss_settings={"tau": 2.0})
    trainer = helpers.trainer(chosen, **real)
    assert sorted(trainer._gdpo_loss.line.split()) == ["kl.beta=0.1", "ms_swift::real", "tau=2"]
    logp, batch = batch_of()
    loss, gradient = loss_and_gradient(trainer, logp, batch)
    at = logp.clone().requires_grad_(True)
    expected, _ = gdpo.ContrastiveLoss("ms_swift::real", tau=2.0, beta=0.1)(
        at, old_logp=batch.old_per_token_logps, ref_logp=batch.ref_per_token_logps,
        mask=batch.completion_mask, advantages=batch.advantages[:, 0].contiguous(), group_size=4,
        counts=gdpo.count(mask=batch.completion_mask, group_size=4))
    assert torch.equal(loss, expected.detach()) and gradient.abs().sum() > 0
    assert torch.equal(gradient, torch.autograd.grad(expected, at)[0])
    assert not any(key.startswith("clip_ratio") for key in trainer._metrics["train"])
    with pytest.raises(ValueError, match="groups: given 5 rows"):
        loss_and_gradient(trainer, *batch_of(rows=5))
    batch.teacher_per_token_logps = batch.ref_per_token_logps
    with pytest.raises(ValueError, match="loss_type: given real with log-probs of a teacher"):
        loss_and_gradient(trainer, logp, batch)


def test_an_unknown_scale_falls_back(helpers):
    with pytest.warns(UserWarning, match="scale_rewards=median has no counterpart"):
        trainer = helpers.trainer(scale_rewards="median")
    assert trainer._gdpo_estimator is None


@pytest.mark.parametrize("name", [*ms_swift._FOR_LOSS, *ms_swift._FOR_ADVANTAGES])
def test_a_changed_signature_runs_the_trainers_own(helpers, monkeypatch, name):
    """The numbers are then identical to those of ms-swift, bit by bit."""
    about_loss = name in ms_swift._FOR_LOSS
    parameters = (ms_swift._FOR_LOSS if about_loss else ms_swift._FOR_ADVANTAGES)[name]
    owner = helpers.own if parameters.startswith("self ") else grpo_trainer
    before = getattr(owner, name)

    def changed(*args, added=None, **kwargs):
        return before(*args, **kwargs)

    monkeypatch.setattr(owner, name, changed)
    with pytest.warns(UserWarning, match=r"ms-swift 4.6.0.*ms-swift's own \w+ (is|are) used"):
        trainer = helpers.trainer(**PAIR)
    if about_loss:
        assert trainer._gdpo_loss is None and trainer._gdpo_estimator is not None
        logp, batch = batch_of()
        ours = loss_and_gradient(trainer, logp, batch)
        theirs = loss_and_gradient(trainer, logp, batch, helpers.own._compute_loss_and_metrics)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    else:
        assert trainer._gdpo_estimator is None and trainer._gdpo_loss is not None
        ours = advantages_of(trainer)
        assert torch.equal(ours, helpers.own._compute_advantages(trainer, [], REWARDS, []))
    chosen = ms_swift.Choices(loss="dapo", estimator="gdpo")
    with pytest.raises(ValueError, match="not those of ms-swift 4.6.0"), \
            pytest.warns(UserWarning):
        helpers.trainer(chosen, **PAIR)


def test_nothing_is_warned_of_in_a_known_release(helpers):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        helpers.trainer(**PAIR)


def test_ours_are_logged_beside_the_trainers(helpers):
    trainer = helpers.trainer(**PAIR)
    advantages_of(trainer)
    logp, batch = batch_of()
    loss, _ = loss_and_gradient(trainer, logp, batch)
    log = trainer._metrics["train"]
    assert {"reward", "rewards/right/mean", "gdpo/degenerate_groups", "gdpo/missing_rewards",
            "gdpo/policy_loss", "gdpo/kl_loss", "gdpo/ratio/mean", "gdpo/approx_kl"} <= set(log)
    total = log["gdpo/policy_loss"][0] + log["gdpo/kl_loss"][0]
    assert total == pytest.approx(loss.item(), rel=1e-5)


def test_train(train):
    """A run of ms-swift with the file of the page, and that our numbers are in its log."""
    log = train.main("--max_steps", "2")
    assert TrainerFactory.TRAINER_MAPPING["grpo"] == "gdpo.integrations.ms_swift.GRPOTrainer"
    steps = [step for step in log if "loss" in step]
    assert len(steps) == 2
    for step in steps:
        assert {"gdpo/policy_loss", "gdpo/constraint/Short/multiplier", "clip_ratio/low_mean",
                "rewards/Parity/mean"} <= set(step)


@pytest.mark.parametrize("options", [(), ("--loss_type", "real", "--real_tau", "0.2"),
                                     ("--loss_type", "fipo", "--delta", "1.5")])
def test_by_default_a_run_is_the_trainers(train, monkeypatch, tmp_path, options):
    """The same run without the plug-in, and with it and nothing chosen.

    ms-swift 4.6.0 takes every run without a teacher for one of self-distillation, and so refuses
    loss_type="real" and "fipo" in all of them. Its own run is told that there is none; ours is not.
    """
    plugin = train.HERE / "plugin.py"
    rewards = plugin.read_text().split("# Constraints")[0]
    logs = []
    for install in ("", "ms_swift.install()\n"):
        file = tmp_path / f"plugin{len(logs)}.py"
        file.write_text(rewards + install)
        monkeypatch.setitem(TrainerFactory.TRAINER_MAPPING, "grpo",
                            "swift.rlhf_trainers.GRPOTrainer")
        with monkeypatch.context() as patch:
            if not install and {"real", "fipo"} & set(options):
                patch.setattr(rollout_mixin, "resolve_dynamic_opd_self_distillation",
                              lambda **_: False)
            logs.append(train.main(
                "--external_plugins", str(file), "--max_steps", "2", "--beta", "0.04",
                "--num_iterations", "2", "--scale_rewards", "gdpo", *options))
    own, ours = ([step for step in log if "loss" in step] for log in logs)
    assert len(own) == len(ours) == 2
    for before, after in zip(own, ours):
        assert "gdpo/policy_loss" in after and "gdpo/policy_loss" not in before
        for key, value in before.items():
            if isinstance(value, float) and "time" not in key and "speed" not in key:
                assert after[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
