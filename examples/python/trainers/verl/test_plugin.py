"""The plug-in of verl itself: what its names reach, what it logs, and when it stands aside."""
import ast
import importlib.util
import pathlib
import shlex
from typing import Optional

import numpy as np
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import gdpo
import gdpo.integrations.verl as plugin
import verl
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.utils.tracking import Tracking
from verl.workers.config import ActorConfig, PolicyLossConfig

FOLDER = pathlib.Path(__file__).parent
ROWS, WIDTH, GROUP = 8, 6, 4
INDEX = np.repeat(np.array(["a", "b"], dtype=object), GROUP)
MASK = torch.arange(WIDTH) < torch.tensor([6, 5, 0, 3, 2, 6, 1, 4])[:, None]
# The losses of a teacher's log-probs.
OF_TEACHER = ("distillation", "ms_swift::sdar")


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Leaves verl's registries, verl's log and the state of the plug-in as they were."""
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", core_algos.POLICY_LOSS_REGISTRY)
    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "gdpo", plugin.advantages)
    monkeypatch.setattr(Tracking, "log", Tracking.log)
    plugin._controllers.clear()
    plugin._measured.clear()
    plugin._log_what_was_measured.cache_clear()


def actor(mode, info=None, dro_beta=0.7, **settings):
    """A configuration of the actor."""
    config = ActorConfig(strategy="fsdp", rollout_n=GROUP, ppo_micro_batch_size_per_gpu=ROWS,
                         policy_loss=PolicyLossConfig(loss_mode=mode, dro_beta=dro_beta),
                         **settings)
    config.global_batch_info.update(info or {})
    return config


def arrays(seed=0):
    """Random arguments of a loss of verl's registry."""
    torch.manual_seed(seed)
    old_logp = torch.randn(ROWS, WIDTH) - 2
    return {"old_log_prob": old_logp, "log_prob": old_logp + 0.4 * torch.randn(ROWS, WIDTH),
            "advantages": torch.randn(ROWS, 1).expand(ROWS, WIDTH), "response_mask": MASK}


def run(mode, info=None, given=None, **settings):
    """The loss of a mode in the way of verl's ppo_loss, with its metrics."""
    config = actor(mode, info, **settings)
    return core_algos.get_policy_loss_fn(mode)(
        **(given or arrays()), loss_agg_mode=config.loss_agg_mode, config=config)


def ours(name, level=None, given=None, **settings):
    """The same by gdpo.PolicyLoss."""
    given = given or arrays()
    return gdpo.PolicyLoss(name, level, **{"beta": 0, **settings})(
        given["log_prob"], old_logp=given["old_log_prob"], mask=MASK,
        token_advantages=given["advantages"], counts=gives_tokens(gdpo.count(mask=MASK))).loss


def gives_tokens(counts):
    """Counts whose count `given` is that of the tokens."""
    counts[3] = counts[0]
    return counts


@pytest.mark.parametrize("name", [n for n in gdpo.losses() if n not in OF_TEACHER])
def test_every_loss_can_be_chosen(name):
    constant = {"constant": 16.0} if name.endswith("dr_grpo") else {}
    line = " ".join(f"{key}={value}" for key, value in constant.items())
    penalty = {"beta": 0.5} if name == "verl::dro" else {}
    assert run(f"gdpo:{name} own {line}")[0] == ours(name, **constant, **penalty)
    known = {setting.name: setting.value for setting in gdpo.loss_settings(name)}
    # verl's sapo and geo_mean have aggregates of their own.
    settings = {} if name in ("verl::sapo", "verl::geo_mean") else {
        "aggregate": "seq-mean-token-sum"}
    if name == "verl::dro":
        settings["beta"] = 0.7
    clip = "level.map" if "level.map.low" in known else "surrogate"
    settings.update({setting: value for setting, value in (
        (f"{clip}.low", 0.1), (f"{clip}.high", 0.3), ("surrogate.tau_pos", 0.8),
        ("surrogate.tau_neg", 1.2)) if setting in known})
    if "surrogate.dual" in known and known["level"] == "token":
        settings["dual"] = 2.0
    if name.endswith("cispo") and "factor.max_ratio" in known:
        settings.update({"min_ratio": 0.9, "max_ratio": 1.3})
    elif name.startswith("verl::dppo"):
        settings["max_ratio"] = 2.0
    loss, metrics = run(f"gdpo:{name}", clip_ratio_low=0.1, clip_ratio_high=0.3, clip_ratio_c=2.0,
                        loss_agg_mode="seq-mean-token-sum", tau_pos=0.8, tau_neg=1.2)
    assert loss == ours(name, **settings)
    assert {"actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower"} < set(metrics)


def test_the_line_goes_before_the_configuration():
    loss, _ = run("gdpo:trl::dapo sequence low=0.1 high=0.28 aggregate=token-mean",
                  clip_ratio_high=0.5, loss_agg_mode="token-sum")
    assert loss == ours("trl::dapo", "sequence", low=0.1, high=0.28, aggregate="token-mean")
    assert run("gdpo:verl::vanilla level_map=-0.1,0.1 dual=1.5")[0] == ours(
        "verl::vanilla", level_map=(-0.1, 0.1), low=0.2, high=0.2, dual=1.5)


def test_settings_by_their_names_in_the_library():
    """A line may call a setting as the library does, with the same bits."""
    for own in ("", " own"):
        assert run(f"gdpo:trl::dapo{own} sequence surrogate.low=0.1 surrogate.high=0.28 "
                   "aggregate=token-mean aggregate.scale=2", clip_ratio_high=0.5)[0] == run(
            f"gdpo:trl::dapo{own} sequence low=0.1 high=0.28 aggregate=token-mean scale=2",
            clip_ratio_high=0.5)[0]
    short = run("gdpo:verl::vanilla level_map=-0.1,0.1 dual=1.5")
    for line in ("level.map=-0.1,0.1 surrogate.dual=1.5", "map=-0.1,0.1 dual=1.5",
                 "level.map.lo=-0.1 level.map.hi=0.1 dual=1.5"):
        loss, metrics = run(f"gdpo:verl::vanilla {line}")
        assert (loss, metrics) == short


@pytest.mark.parametrize("line, words", [
    ("surrogate.low=-1", "surrogate.low: given -1"), ("low=-1", "low: given -1"),
    ("surrogate.low=x", "surrogate.low: given 'x'; needed: a number"),
    ("kl.beta=0.1", "with the setting kl.beta; needed: none of the KL term"),
    ("surrogate.lowest=1", "given the setting 'surrogate.lowest'; needed: one of surrogate.low, "),
    ("low=0.1 surrogate.low=0.1", "surrogate.low: given beside low")])
def test_a_message_calls_a_setting_as_the_line_does(line, words):
    with pytest.raises(ValueError) as error:
        core_algos.get_policy_loss_fn(f"gdpo:dapo own {line}")
    assert words in str(error.value)


@pytest.mark.parametrize("name", OF_TEACHER)
def test_a_term_of_a_teacher_is_no_loss(name):
    with pytest.raises(ValueError, match=f"loss_mode: given '{name}', whose KL term reads"):
        core_algos.get_policy_loss_fn(f"gdpo:{name}")


def test_plain_names_are_verls_losses():
    for mode in ("gdpo", "gdpo:vanilla", "gdpo:verl::vanilla"):
        torch.testing.assert_close(run(mode), run(mode), rtol=0, atol=0)
        assert run(mode)[0].item() == pytest.approx(run("vanilla")[0].item(), rel=1e-6)
    for mode in plugin.OF_VERL:
        assert run(f"gdpo:verl::{mode}")[0].item() == pytest.approx(run(mode)[0].item(), rel=1e-6)


def test_bounds_of_cispo():
    """Of the line before those of the actor, and the metric counts tokens beyond either of them."""
    assert run("gdpo:cispo max_ratio=1.25", clip_ratio_low=0.1)[0] == ours(
        "cispo", min_ratio=0.9, max_ratio=1.25)
    given = arrays()
    ratio = (given["log_prob"] - given["old_log_prob"]).exp()[MASK]
    for line, low, high in (("", 0.7, 1.4), (" factor.max_ratio=1.1", 0.7, 1.1),
                            (" min_ratio=0 max_ratio=1.3", 0.0, 1.3),
                            (" own min_ratio=0.6 max_ratio=1.3", 0.6, 1.3)):
        _, metrics = run(f"gdpo:verl::cispo{line}", clip_ratio_low=0.3, clip_ratio_high=0.4)
        beyond = ((ratio < low) | (ratio > high)).float().mean().item()
        assert metrics["actor/pg_clipfrac"] == pytest.approx(beyond, rel=1e-6) and beyond > 0
    assert run("gdpo:verl::cispo", clip_ratio_low=1.5)[0] == run(
        "gdpo:verl::cispo", clip_ratio_low=1.0)[0]  # a ratio is never below 0
    with pytest.raises(ValueError, match="given the setting '?low'?; needed: one of"):
        core_algos.get_policy_loss_fn("gdpo:cispo low=0.1")


@pytest.mark.parametrize("beta", [None, 0.0, -1.0])
def test_dro_needs_its_coefficient(beta):
    """verl refuses it too; with the word own it is that of the preset."""
    for mode in ("gdpo:verl::dro", "dro"):
        with pytest.raises(ValueError, match="dro_beta"):
            run(mode, dro_beta=beta)
    assert run("gdpo:verl::dro own", dro_beta=beta)[0] == ours("verl::dro", beta=0.5)


def test_the_mean_of_geo_mean_is_that_of_a_micro_batch():
    """As in verl; with the word own, and by the paper's name, it is that of the global batch."""
    info = {"dp_size": 4, "batch_num_tokens": 1000, "global_batch_size": 80}
    assert run("gdpo:verl::geo_mean", info)[0] == run("gdpo:verl::geo_mean")[0]
    for mode in ("gdpo:verl::geo_mean own", "gdpo:gmpo own"):
        torch.testing.assert_close(run(mode, info)[0], run(mode)[0] * 4 * ROWS / 80)


@pytest.mark.parametrize("mode, needed", [
    ("gdpo:nothing", gdpo.losses()), ("gdpo:", []), ("gdpo:dapo token token", gdpo.losses()),
    ("gdpo:dapo nowhere", ["token", "sequence", "sequence_token"]),
    ("gdpo:dapo upper=0.28", ["high", "low", "aggregate"]),
    ("gdpo:dapo beta=0.1", ["the setting kl.beta", "use_kl_loss"]),
    ("gdpo:dapo aggregate=mean", ["token-mean", "token-sum"]), ("nothing", ["vanilla", "gspo"])])
def test_unknown_names_of_losses_are_refused_with_a_list(mode, needed):
    if mode == "gdpo:":
        assert run(mode)[0] == run("gdpo")[0]
        return
    with pytest.raises(ValueError) as error:
        core_algos.get_policy_loss_fn(mode)
    assert all(name in str(error.value) for name in needed)


def test_counts_are_those_of_the_global_batch():
    """The losses and gradients of micro-batches add up to those of the whole."""
    info = {"dp_size": 1, "batch_num_tokens": int(MASK.sum()), "global_batch_size": 7,
            "loss_scale_factor": 9}
    for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
                 "seq-mean-token-sum-norm"):
        given = arrays()
        whole = run("gdpo:verl::gspo", info, loss_agg_mode=mode)[0]
        parts = [run("gdpo:verl::gspo", info, {key: value[rows] for key, value in given.items()},
                     loss_agg_mode=mode)[0] for rows in (slice(0, 3), slice(3, ROWS))]
        torch.testing.assert_close(parts[0] + parts[1], whole)
        four = run("gdpo:verl::gspo", {**info, "dp_size": 4}, loss_agg_mode=mode)[0]
        torch.testing.assert_close(four, 4 * whole)


@pytest.mark.parametrize("mode, missing", [("token-mean", "batch_num_tokens"),
                                           ("seq-mean-token-mean", "global_batch_size")])
def test_ranks_need_counts_of_all(mode, missing):
    info = {"dp_size": 2, "batch_num_tokens": 100, "global_batch_size": 8, missing: None}
    for name in ("gdpo", "vanilla"):  # verl refuses it too
        with pytest.raises(ValueError, match=missing):
            run(name, info, loss_agg_mode=mode)
    run("gdpo", info, loss_agg_mode="token-sum")


def rewards(seed=0):
    """Two rewards as compute_score returns them."""
    generator = np.random.default_rng(seed)
    return {"accuracy": generator.random(ROWS), "format": generator.integers(0, 2, ROWS) * 1.0}


def estimate(columns=None, **algorithm):
    """What verl's compute_advantage does for adv_estimator=gdpo with this configuration."""
    columns = rewards() if columns is None else columns
    scores = torch.zeros(ROWS, WIDTH)
    scores[:, -1] = torch.arange(ROWS) % 3
    batch = {"prompts": torch.zeros(ROWS, 1),
             "attention_mask": torch.cat((torch.ones(ROWS, 1), MASK), 1).long()}
    config = OmegaConf.create({"gdpo_reward_keys": ["accuracy", "format"], **algorithm})
    return core_algos.get_adv_estimator_fn("gdpo")(
        token_level_rewards=scores, response_mask=MASK.long(), index=INDEX, config=config,
        non_tensor_batch=columns, batch=batch)[0]


def expected(estimator, columns=None, **settings):
    """The same by gdpo.advantages."""
    columns = rewards() if columns is None else columns
    values = torch.tensor(np.stack(list(columns.values()), 1), dtype=torch.float32)
    return gdpo.advantages(values, group_size=GROUP, estimator=estimator, tokens=MASK.sum(-1),
                           **settings)[:, None] * MASK


def verls_compute_advantage():
    """compute_advantage of verl's ray_trainer.py, which itself imports the whole of ray.

    Its source is compiled by itself, with the names that it reads.
    """
    path = importlib.util.find_spec("verl.trainer.ppo.ray_trainer").origin
    tree = ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body
                 if isinstance(node, ast.FunctionDef) and node.name == "compute_advantage"]
    names = {"core_algos": core_algos, "AdvantageEstimator": core_algos.AdvantageEstimator,
             "AlgoConfig": AlgoConfig, "DataProto": verl.DataProto, "Optional": Optional}
    exec(compile(tree, path, "exec"), names)
    return names["compute_advantage"]


@pytest.mark.parametrize("name", ["gdpo", core_algos.AdvantageEstimator.GDPO])
def test_verls_trainer_calls_our_advantages(name):
    columns = {key: value.astype(object) for key, value in rewards().items()}
    ones = torch.ones(ROWS, 1, dtype=torch.int64)
    data = verl.DataProto.from_dict(
        {"prompts": ones, "attention_mask": torch.cat((ones, MASK), 1),
         "response_mask": MASK.long(), "token_level_rewards": torch.zeros(ROWS, WIDTH)},
        {"uid": INDEX, **columns})
    config = OmegaConf.create({"gdpo_reward_keys": ["accuracy", "format"],
                               "gdpo_estimator": "trl::gdpo"})
    result = verls_compute_advantage()(data, name, config=config)
    same(result.batch["advantages"], expected("trl::gdpo"))
    same(result.batch["returns"], result.batch["advantages"])


def same(first, second):
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", gdpo.estimators())
def test_every_estimator_can_be_chosen(name):
    same(estimate(gdpo_estimator=name), expected(name))


def test_settings_weights_and_gates_of_estimators():
    same(estimate(gdpo_estimator="trl::gdpo scale.eps=1e-3 scale.ddof=0 missing=zero"),
         expected("trl::gdpo", scale_eps=1e-3, scale_ddof=0, missing="zero"))
    same(estimate(gdpo_estimator="trl::gdpo scale_eps=1e-3 scale.ddof=0 missing.entry=zero "
                                 "renorm.keep_mean=true"),
         expected("trl::gdpo", scale_eps=1e-3, scale_ddof=0, missing="zero",
                  **{"renorm.keep_mean": True}))
    same(estimate(gdpo_reward_weights=[1, 0.5]), expected("verl::gdpo", weights=[1, 0.5]))
    same(estimate(gdpo_estimator="gdpo", gdpo_gates=[["accuracy", "format", 1]]),
         expected("gdpo", gates=[(0, 1, 1.0)]))


def test_one_reward_without_reward_keys():
    """The sum of the token rewards, which is all that verl's trainer v1 hands over."""
    columns = {"score": np.arange(ROWS) % 3 * 1.0}
    same(estimate({}, gdpo_reward_keys=None, gdpo_estimator="trl::grpo"),
         expected("trl::grpo", columns))


@pytest.mark.parametrize("algorithm, columns, needed", [
    ({"gdpo_estimator": "nothing"}, None, gdpo.estimators()),
    ({"gdpo_estimator": "gdpo epsilon=1"}, None, ["eps", "missing"]),
    ({"gdpo_estimator": "gdpo scale.eps=x"}, None, ["scale.eps: given 'x'; needed: a number"]),
    ({"gdpo_estimator": "gdpo scale.eps=x"}, None, [" scale.eps: given 'x'; needed: a number"]),
    ({"gdpo_gates": [["accuracy", "length", 1]]}, None, ["accuracy", "format"]),
    ({"gdpo_constraints": ["length<=1"]}, None, ["accuracy", "format"]),
    ({"gdpo_reward_keys": None}, None, ["gdpo_reward_keys"]), ({}, {"score": []}, ["use_v1"])])
def test_unknown_names_of_estimators_are_refused_with_a_list(algorithm, columns, needed):
    with pytest.raises(ValueError) as error:
        estimate(columns, **algorithm)
    assert all(name in str(error.value) for name in needed)


def test_constraints_move_their_multipliers_and_are_logged():
    class Logger:
        lines = []

        def log(self, data, step):
            self.lines.append((step, data))

    tracking = Tracking.__new__(Tracking)
    tracking.logger = {"list": Logger()}
    lines = ["format>=0.9 scale=0.3"]
    pid = gdpo.PidLagrangian([0.9], scale=0.3)
    for step in range(3):
        columns = rewards(step)
        pid.update(sums=[columns["format"].sum()], counts=[ROWS])
        same(estimate(columns, gdpo_constraints=lines),
             expected("verl::gdpo", columns, constraints=pid.constraints([1])))
        tracking.log({"actor/ppo_kl": 0.0}, step)
    multipliers = [data["gdpo/constraint/format/multiplier"] for _, data in Logger.lines]
    assert len(set(multipliers)) == 3 and multipliers[-1] == pid.multipliers[0]
    assert plugin.constraints()[0].metrics()["constraint/format/multiplier"] == multipliers[-1]
    assert {"actor/ppo_kl", "gdpo/rewards/format/mean", "gdpo/reward_std"} < set(Logger.lines[0][1])
    tracking.log({"actor/ppo_kl": 0.0}, 3)  # nothing is logged twice
    assert Logger.lines[-1][1] == {"actor/ppo_kl": 0.0}


def test_without_a_choice_nothing_is_logged():
    before = Tracking.log
    estimate()
    assert Tracking.log is before and not plugin._measured


def test_other_losses_of_another_signature(monkeypatch):
    verls = core_algos.compute_policy_loss_vanilla

    def changed(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config,
                rollout_is_weights=None, segments=None):
        return verls(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)

    monkeypatch.setattr(core_algos, "compute_policy_loss_vanilla", changed)
    core_algos.POLICY_LOSS_REGISTRY = {**core_algos.POLICY_LOSS_REGISTRY, "vanilla": changed}
    with pytest.warns(UserWarning, match="verl 0.9.1.*verl's own losses are used"):
        plugin.register()
    assert core_algos.get_policy_loss_fn("gdpo") is changed
    assert run("gdpo") == run("vanilla") and run("gdpo:verl::gspo") == run("gspo")
    assert run("gdpo:verl::cispo") == run("cispo")
    for mode in ("gdpo:dapo", "gdpo:vanilla high=0.3"):
        with pytest.raises(ValueError, match="needed: verl 0.9.1"):
            core_algos.get_policy_loss_fn(mode)


def test_advantages_of_another_signature(monkeypatch):
    verls = core_algos.compute_gdpo_outcome_advantage

    def changed(token_level_rewards, response_mask, index, config, non_tensor_batch, batch):
        return verls(token_level_rewards, response_mask, index, config=config,
                     non_tensor_batch=non_tensor_batch, batch=batch)

    monkeypatch.setattr(core_algos, "compute_gdpo_outcome_advantage", changed)
    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "gdpo", changed)
    with pytest.warns(UserWarning, match="verl 0.9.1.*verl's own advantages are used"):
        plugin.register()
    assert core_algos.get_adv_estimator_fn("gdpo") is changed
    torch.testing.assert_close(estimate(), expected("verl::gdpo"))


def test_a_log_of_another_signature(monkeypatch):
    def changed(self, data, step):
        """Another log."""

    monkeypatch.setattr(Tracking, "log", changed)
    with pytest.warns(UserWarning, match="verl 0.9.1.*are not logged"):
        estimate(gdpo_estimator="gdpo")
    assert Tracking.log is changed


def test_a_failing_registration_is_heard(monkeypatch):
    def fails():
        raise RuntimeError("as a test")

    monkeypatch.setattr(plugin, "register", fails)
    with (pytest.warns(UserWarning, match="does not know the names of gdpo.*as a test"),
          pytest.raises(RuntimeError)):
        plugin._register_or_warn()


@pytest.fixture
def entry_point(tmp_path):
    """A folder with the entry point that the wheel has, for PYTHONPATH."""
    metadata = tmp_path / "gdpo-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gdpo\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[verl.plugins]\ngdpo = gdpo.integrations.verl\n")
    return str(tmp_path)


# What verl knows when nothing but verl and gdpo was imported.
KNOWN = ("import gdpo, verl; from verl.trainer.ppo import core_algos; "
         "print('known', 'gdpo:dapo' in core_algos.POLICY_LOSS_REGISTRY, "
         "core_algos.get_adv_estimator_fn('gdpo').__module__); ")


def test_the_entry_point_registers(python, entry_point):
    assert "known True gdpo.integrations.verl" in python(KNOWN, entry_point)


def test_without_verl_it_says_what_is_needed(python):
    """The error of the first import names the requirements."""
    hide = ("sys.meta_path = [finder for finder in sys.meta_path if 'Path' not in str(finder)]; "
            "sys.path_importer_cache.clear()\ntry:\n    import verl\n"
            "except ModuleNotFoundError as error:\n    print(error)")
    assert "pip install --no-deps -r" in python(hide)[0]


def test_train(script):
    """The example of the page runs and learns; its log has all metrics."""
    lines = script()
    steps = [dict(entry.replace("np.float64(", "").replace(")", "").rsplit(":", 1)
                  for entry in line.split(" - ")) for line in lines if line.startswith("step:")]
    for name in ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_loss", "gdpo/ratio",
                 "gdpo/rewards/accuracy/mean", "gdpo/constraint/format/multiplier"):
        assert all(name in step for step in steps), name
    assert float(steps[-1]["gdpo/reward"]) > 2 * float(steps[0]["gdpo/reward"])
    assert len({step["gdpo/constraint/format/multiplier"] for step in steps}) > 3


def test_switched_off_it_leaves_no_trace(python, entry_point):
    lines = python(KNOWN, entry_point, VERL_USE_EXTERNAL_PLUGINS="none")
    assert "known False verl.trainer.ppo.core_algos" in lines


def test_the_lines_of_the_page_are_what_hydra_reads():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    block = next(block for block in page.split("```")[1::2] if "adv_estimator" in block)
    lines = [word for word in shlex.split(block.replace("\\\n", " ")) if "=" in word]
    values = {line.lstrip("+").split("=")[0].split(".")[-1]: value for line, value in zip(
        lines, (override.value() for override in OverridesParser.create().parse_overrides(lines)))}
    assert plugin.Loss(values["loss_mode"]).name in gdpo.losses()
    columns = {key: value for key, value in zip(values["gdpo_reward_keys"], rewards().values())}
    estimate(columns, **{key: value for key, value in values.items() if key.startswith("gdpo_")})
    assert {"loss_mode", "adv_estimator", "gdpo_estimator", "gdpo_constraints"} < set(values)


def whole(*overrides):
    """verl's whole configuration with words of a command line, "+" and inner quotes left out."""
    folder = pathlib.Path(verl.__file__).parent / "trainer" / "config"
    config = OmegaConf.load(folder / "_generated_ppo_trainer.yaml")
    OmegaConf.set_struct(config, False)
    config.trainer.use_v1 = False
    return OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides)))


MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
KEYS = ("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[accuracy,format]")
CORRECTIONS = "algorithm.rollout_correction"


@pytest.mark.parametrize("overrides, words", [
    ([f"{MODE}='gdpo:dpao'"], 'did you mean "dapo"'),
    ([f"{MODE}='gdpo:dapo hgih=0.3'"], 'did you mean "surrogate.high"'),
    ([f"{MODE}='gdpo:dapo high=-2'"], "high: given -2"),
    ([f"{MODE}='gdpo:bypass dpao'"], 'did you mean "dapo"'),
    ([f"{MODE}='gpdo:dapo'"], 'did you mean "gdpo:dapo"'),
    ([f"{MODE}='gdpo:verl::dro'"], "policy_loss.dro_beta: given None"),
    ([*KEYS, "algorithm.gdpo_estimator='trl::gpdo'"], 'did you mean "trl::gdpo"'),
    ([*KEYS, "algorithm.gdpo_estimator='trl::gdpo scale.ep=1'"], 'did you mean "scale.eps"'),
    ([*KEYS, "algorithm.gdpo_estimater=gdpo"], 'did you mean "gdpo_estimator"'),
    ([*KEYS, "algorithm.gdpo_gates=[[acuracy,format,1.0]]"], 'did you mean "accuracy"'),
    ([*KEYS, "algorithm.gdpo_constraints=['fromat>=0.9']"], 'did you mean "format"'),
    ([*KEYS, "algorithm.gdpo_constraints=['format>=0.9 sacle=0.3']"], "constraints: format>=0.9 "),
    ([*KEYS, "trainer.use_v1=True"], "needed: trainer.use_v1=False"),
    (KEYS[:1], "algorithm.gdpo_reward_keys: given none"),
    ([f"{CORRECTIONS}.rollout_is='gdpo:tokn'"], "rollout_is: given 'tokn'"),
    ([f"{CORRECTIONS}.rollout_is='gdpo:importance clip.ih=2'"], 'did you mean "clip.hi"'),
    ([f"{CORRECTIONS}.rollout_rs='gdpo:seq_maen_k1'", f"{CORRECTIONS}.rollout_rs_threshold=2"],
     "rollout_rs: given 'seq_maen_k1'")])
def test_slips_are_told_by_verls_check_of_the_configuration(overrides, words):
    """Before any model is loaded: verl's main calls it first."""
    from verl.utils.config import validate_config
    with pytest.raises(ValueError) as refused:
        validate_config(whole(*overrides), use_reference_policy=False, use_critic=False)
    assert words in str(refused.value)


@pytest.mark.parametrize("overrides", [
    [], [f"{MODE}='gdpo'"], [f"{MODE}='gdpo:bypass'"], [f"{MODE}='gdpo:dapo own'"], [*KEYS],
    [f"{MODE}='gdpo:verl::dro'", "actor_rollout_ref.actor.policy_loss.dro_beta=0.5"],
    [*KEYS, "algorithm.gdpo_estimator='trl::gdpo scale.eps=1e-6'",
     "algorithm.gdpo_gates=[[accuracy,format,1.0]]",
     "algorithm.gdpo_constraints=['format>=0.9 scale=0.3']"],
    [KEYS[0], "algorithm.gdpo_estimator=grpo", "trainer.use_v1=True"],
    [f"{CORRECTIONS}.rollout_is='gdpo:importance statistic=sequence_mean clip.hi=2'",
     f"{CORRECTIONS}.rollout_rs='gdpo:gate estimator=binary_kl max=0.01'"]])
def test_what_fits_passes_the_check(overrides):
    """verl's check itself asks for machines and batches, which the generated file has none of."""
    plugin.check(whole(*overrides))


@pytest.mark.parametrize("mode", [f"gdpo:{n}" for n in gdpo.losses() if n not in OF_TEACHER])
def test_every_loss_passes_the_check(mode):
    plugin.check(whole(f"{MODE}='{mode}'", "actor_rollout_ref.actor.policy_loss.dro_beta=0.5"))


def test_options_of_another_estimator_are_named():
    with pytest.warns(UserWarning, match="gdpo_estimator is not read, because .* is 'gae'"):
        plugin.check(whole("algorithm.gdpo_estimator=gdpo"))


def test_a_check_with_other_parameters_is_left_alone(monkeypatch):
    from verl.utils import config as module

    def validate_config(config):
        return "verl's"
    monkeypatch.setattr(module, "validate_config", validate_config)
    with pytest.warns(UserWarning, match="is said in the first step"):
        plugin._install_check()
    assert module.validate_config is validate_config
