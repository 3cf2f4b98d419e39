"""Trainers' configurations as calls of this library, and what is said about them."""
import argparse
import dataclasses
import json
import re
import types

import pytest
import torch
import trainer_configs

import gdpo
from gdpo.__main__ import main
from gdpo._prepare import prepasses
from gdpo._settings import estimator_settings, loss_settings, settings_of
from gdpo.configs import TRAINERS
from gdpo.configs._options import Options, flat, parsed, words_to_options

SHORT = {"verl": {"A.": "actor_rollout_ref.actor.", "L.": "actor_rollout_ref.actor.policy_loss.",
                  "R.": "algorithm.rollout_correction."},
         "openrlhf": {"--V.": "--algo.advantage."}}


def cases():
    """Trainer, words of a command, and what they mean, of each configuration."""
    found = []
    for trainer in TRAINERS:
        text = getattr(trainer_configs, trainer.upper())
        for block in re.split(r"\n(?=\S)", text.strip()):
            name, _, rest = block.partition("\n")
            options, _, expected = " ".join(rest.split()).partition("=> ")
            found.append(pytest.param(
                trainer, options, [part.strip() for part in expected.split("|")],
                id=f"{trainer}: {name}"))
    return found


def words_of(trainer, options):
    """The words of a command, with the whole names of options."""
    words = []
    for word in options.split():
        short = next((s for s in SHORT.get(trainer, {}) if word.startswith(s)), None)
        if word != "-":
            words.append((word if short is None else SHORT[trainer][short] + word[len(short):]
                          ).replace("~", " "))
    return words


def from_words(trainer, options, **more):
    return gdpo.from_config(trainer, words_to_options(words_of(trainer, options)), **more)


def values(line):
    """The settings of a loss with their values."""
    return {s.name: s.value for s in loss_settings(line) if s.value}


@pytest.mark.parametrize("trainer, options, expected", cases())
def test_configuration(trainer, options, expected):
    """The presets, or the option that is refused by its name."""
    given = from_words(trainer, options)
    estimator, losses, corrections, lacks = expected
    assert (given.estimator or given.token_advantage or "-") == estimator
    if given.estimator is not None:
        assert estimator_settings(given.estimator)
    if given.token_advantage is not None:
        assert estimator_settings(given.token_advantage, "token_advantages")
    made = [loss.line for loss in (given.loss, *given.more_losses) if loss is not None]
    wanted = [] if losses == "-" else losses.split(" + ")
    assert len(made) == len(wanted)
    for ours, theirs in zip(made, wanted):
        assert ours.split(" ")[0] == theirs.split(" ")[0]
        assert values(ours) == values(theirs)
    assert list(given.corrections) == ([] if corrections == "-" else corrections.split(", "))
    for line in given.corrections:
        name = line.split(" ")[0]
        assert name in prepasses()
        assert name in ("overlong", "top_entropy") or settings_of("prepass", line)
    names = [] if lacks == "-" else lacks.split(" ")
    assert list(given.unsupported) == names
    if names:
        with pytest.raises(ValueError) as error:
            from_words(trainer, options, strict=True)
        assert all(f"  {name}: " in str(error.value) for name in names)
    else:
        from_words(trainer, options, strict=True)


@pytest.mark.parametrize("trainer, options, expected", cases())
def test_explanation(trainer, options, expected):
    """All of a configuration is in its text, which has no line of more than 100 columns."""
    given = from_words(trainer, options)
    text = given.explain()
    assert text.startswith(given.release)
    assert all(len(line) <= 100 or " " not in line.strip() for line in text.split("\n"))
    flat_text = " ".join(text.split())
    for line in (given.estimator, given.token_advantage, given.value_loss, *given.corrections):
        assert line is None or line in flat_text
    for loss in (given.loss, *given.more_losses):
        assert loss is None or loss.line in flat_text
    for name in (*given.yours, *given.unread, *given.unsupported):
        assert f"{name}: " in text
    assert "None" not in text.replace("given None", "")


def test_a_critic_of_the_plugin():
    """verl's estimators over tokens and value loss by the names that the plug-in takes."""
    critic = {"critic.enable": True, "critic.cliprange_value": 0.2, "algorithm.gamma": 0.99}
    given = gdpo.from_config("verl", {
        **critic, "algorithm.adv_estimator": "gdpo",
        "algorithm.gdpo_estimator": "verl::gae lambda=0.9",
        "critic.loss_agg_mode": "gdpo:token-sum delta=10"}, strict=True)
    assert given.token_advantage == "verl::gae lambda=0.9 gamma=0.99" and given.estimator is None
    assert given.value_loss == "verl::value_loss clip=0.2 aggregate=token-sum delta=10"
    plain = gdpo.from_config("verl", {**critic, "algorithm.adv_estimator": "gae"}, strict=True)
    assert plain.token_advantage == "verl::gae gamma=0.99 lambda=1"
    assert plain.value_loss == "verl::value_loss clip=0.2"
    for line in (given.value_loss, plain.value_loss):
        assert gdpo.ValueLoss(line).line == line


def test_there_are_enough_of_each():
    counts = {trainer: len(re.split(r"\n(?=\S)", getattr(trainer_configs, trainer.upper()).strip()))
              for trainer in TRAINERS}
    assert all(count >= 30 for count in counts.values()), counts


NESTED = {"algorithm": {"adv_estimator": "grpo", "rollout_correction": {"rollout_is": "token"}},
          "actor_rollout_ref": {"actor": {"clip_ratio_high": "0.28", "use_kl_loss": True,
                                          "kl_loss_coef": "1e-3", "optim": {"lr": 1e-6}},
                                "rollout": {"n": 8, "temperature": 0.9}}}


def as_namespace(value):
    return types.SimpleNamespace(**{key: as_namespace(part) for key, part in value.items()}
                                 ) if isinstance(value, dict) else value


@pytest.mark.parametrize("config", [
    NESTED, flat(NESTED), as_namespace(NESTED), argparse.Namespace(**flat(NESTED)),
    {f"--{name.replace('_', '-')}": value for name, value in flat(NESTED).items()}])
def test_every_form_of_a_configuration_is_the_same(config):
    given = gdpo.from_config("verl", config, strict=True)
    assert given.loss.line == gdpo.from_config("verl", NESTED).loss.line
    assert "surrogate.high=0.28" in given.loss.line and "kl.beta=0.001" in given.loss.line
    assert given.corrections == ("verl::token_is clip.hi=2.0",)
    assert given.temperature == 0.9


def test_dataclasses_and_references():
    @dataclasses.dataclass
    class Actor:
        clip_ratio_high: float = 0.3
        loss_agg_mode: str = "${oc.select:trainer.mode,seq-mean-token-mean}"
        strategy: str = "???"

    config = {"algorithm": {"adv_estimator": "grpo", "gamma": "${algorithm.lam}", "lam": 1.0},
              "actor_rollout_ref": {"actor": Actor()}}
    given = gdpo.from_config("verl", config, strict=True)
    assert given.aggregate == "seq-mean-token-mean" and "surrogate.high=0.3" in given.loss.line


def test_what_the_trainer_does_not_read_is_said():
    given = from_words("verl", "algorithm.adv_estimator=gdpo A.clip_ratio=0.1 "
                       "algorithm.norm_adv_by_std_in_grpo=False algorithm.gdpo_reward_keys=[a,b]")
    assert set(given.unread) == {"actor_rollout_ref.actor.clip_ratio",
                                 "algorithm.norm_adv_by_std_in_grpo"}
    assert "0.2 and 0.2" in given.unread["actor_rollout_ref.actor.clip_ratio"]
    assert not gdpo.from_config("trl", {"epsilon": 0.2, "loss_type": "sapo"}).unread
    assert set(gdpo.from_config("trl", {"epsilon": 0.3, "loss_type": "sapo"}).unread) == {"epsilon"}


@pytest.mark.parametrize("trainer, option, near", [
    ("verl", "actor_rollout_ref.actor.kl_loss_coeff", "actor_rollout_ref.actor.kl_loss_coef"),
    ("verl", "algorithm.adv_estimater", "algorithm.adv_estimator"),
    ("verl", "algoritm.adv_estimator", "algorithm.adv_estimator"),
    ("trl", "epsilon_hi", "epsilon_high"), ("trl", "learning_rat", "learning_rate"),
    ("ms_swift", "fipo_detach_weight", None), ("ms_swift", "loss_typ", "loss_type"),
    ("openrlhf", "init_kl_coef", "algo.kl.init_coef"),
    ("openrlhf", "advantage_estimator", "algo.advantage.estimator"),
    ("openrlhf", "actor.eps_clip_low_hig", "actor.eps_clip_low_high")])
def test_an_unknown_option_is_named(trainer, option, near):
    said = gdpo.from_config(trainer, {option: 1}).unsupported[option]
    assert said.startswith("no option of this release")
    assert (near is None and "did you mean" not in said) or f"did you mean {near}" in said


@pytest.mark.parametrize("trainer, option", [
    ("verl", "actor_rollout_ref.actor.optim.lr"), ("verl", "trainer.total_epochs"),
    ("verl", "actor_rollout_ref.actor.megatron.override_transformer_config.x"),
    ("verl", "algorithm._target_"), ("verl", "critic.model.path"), ("verl", "reward.num_workers"),
    ("trl", "learning_rate"), ("trl", "dataset_name"), ("trl", "model_init_kwargs.dtype"),
    ("ms_swift", "lora_rank"), ("ms_swift", "vllm_mode"), ("ms_swift", "reward_funcs"),
    ("openrlhf", "actor.adam.lr"), ("openrlhf", "vllm.num_engines"), ("openrlhf", "local_rank"),
    ("openrlhf", "critic.muon.lr"), ("openrlhf", "ds.zero_stage")])
def test_what_does_not_concern_the_loss_is_ignored(trainer, option):
    plain, given = (gdpo.from_config(trainer, config) for config in ({}, {option: 1}))
    assert dict(given.unsupported) == dict(plain.unsupported)
    assert given.loss.line == plain.loss.line


def test_what_is_left_to_the_caller_is_said():
    """All of it, where one option leaves two things."""
    given = from_words("verl", "algorithm.adv_estimator=grpo R.bypass_mode=true A.use_kl_loss=true "
                       "R.loss_type=reinforce R.rollout_is=sequence R.rollout_rs=token_k2 "
                       "R.rollout_rs_threshold=0.1")
    about = given.yours["algorithm.rollout_correction.rollout_rs"]
    assert "gdpo.prepare once" in about and "bypass_mode" in about
    assert "second loss" in given.yours["actor_rollout_ref.actor.use_kl_loss"]
    both = from_words("verl", "algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=true "
                      "algorithm.kl_ctrl.type=adaptive A.use_kl_loss=true")
    assert both.kl.place == "loss" and both.estimator == "verl::grpo penalty.coef=0.001"
    assert set(both.yours) == {"algorithm.kl_ctrl.type"}


def test_mistakes():
    with pytest.raises(ValueError, match="gdpo.from_config: trainer: given 'ppo'; needed: one of"):
        gdpo.from_config("ppo", {})
    with pytest.raises(ValueError, match="gdpo.from_config: config: given 3; needed: "):
        gdpo.from_config("verl", 3)
    with pytest.raises(ValueError, match="gdpo.from_config: trl: "):
        gdpo.from_config("trl", {"loss_type": "dapo", "epsilon": "wide"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        gdpo.from_config("trl", {}).estimator = "grpo"
    with pytest.raises(TypeError):
        gdpo.from_config("trl", {}).unsupported["beta"] = "no"


def test_the_calls_run():
    """What a configuration gives goes into the calls as it is."""
    torch.manual_seed(7)
    given = gdpo.from_config("trl", {
        "loss_type": "dapo", "beta": 0.1, "use_vllm": True, "off_policy_mask_threshold": 0.5,
        "mask_truncated_completions": True, "reward_weights": [1, 0.5]}, strict=True)
    logp = (torch.randn(8, 5) - 2).requires_grad_()
    old, ref, sampled = (logp.detach() + 0.1 * torch.randn(8, 5) for _ in range(3))
    advantages = gdpo.advantages(torch.rand(8, 2), group_size=4, estimator=given.estimator,
                                 weights=given.weights)
    truncated = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0])
    prepared = gdpo.prepare(given.corrections, logp=logp.detach(), old_logp=old,
                            rollout_logp=sampled, truncated=truncated, advantages=advantages,
                            mask=torch.ones(8, 5))
    counts = gdpo.count(mask=prepared.mask)
    counts[3] = counts[0]
    loss, metrics = given.loss(logp, old_logp=old, ref_logp=ref, advantages=advantages,
                               counts=counts, **prepared.arrays())
    loss.backward()
    assert logp.grad[0].abs().sum() == 0 and logp.grad[1:].abs().sum() > 0
    assert metrics["kl_loss"] != 0


def test_a_kl_term_with_another_mean_is_a_second_loss():
    """The mean over tokens of k2, where the loss is a mean over rows."""
    torch.manual_seed(8)
    given = from_words("openrlhf", "--V.estimator rloo --algo.kl.use_loss --algo.kl.estimator k2 "
                       "--actor.loss_agg_mode seq-mean-token-mean --algo.kl.init_coef 0.5")
    assert not given.unsupported and values(given.loss.line)["kl.beta"] == "0"
    logp, ref = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    term, _ = given.more_losses[0](logp, ref_logp=ref, mask=mask, counts=gdpo.count(mask=mask))
    of_tokens = ((logp - ref) ** 2 / 2).clamp(max=10)
    torch.testing.assert_close(term, 0.5 * (of_tokens * mask).sum() / mask.sum())


@pytest.mark.parametrize("text, value", [
    ("none", None), ("True", True), ("3", 3), ("1e-3", 0.001), ("[1, 2]", [1, 2]),
    ("[a,b]", ["a", "b"]), ('["a"]', ["a"]), ("token-mean", "token-mean"), ("0.5_5.0", "0.5_5.0"),
    ("'0.01,0.5_2'", "0.01,0.5_2")])
def test_values_of_a_command(text, value):
    assert parsed(text) == value and type(parsed(text)) is type(value)


def test_words_of_a_command():
    assert words_to_options(["a.b=1", "+c=x", "--d", "--e", "1", "2", "--f=g", "--h", "none"]) == {
        "a.b": 1, "c": "x", "--d": True, "--e": [1, 2], "--f": "g", "--h": None}
    with pytest.raises(ValueError, match="given 'x'"):
        words_to_options(["x"])
    assert Options({"a": "1e-3"}, {"a": 0.5})["a"] == 0.001
    assert Options({"a": "nan_value"}, {"a": "x"})["a"] == "nan_value"


def test_the_command(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(NESTED), encoding="utf-8")
    assert main(["explain", str(file), "--strict"]) == 0
    printed = capsys.readouterr().out
    assert printed == gdpo.from_config("verl", NESTED).explain() + "\n"
    words = ["explain", str(file), "algorithm.adv_estimator=remax", "--trainer=verl", "--strict"]
    assert main(words) == 1
    assert "given remax" in capsys.readouterr().out
    assert main(["explain", "--actor.eps_clip", "0.1", "--algo.advantage.estimator", "rloo"]) == 0
    assert "OpenRLHF" in capsys.readouterr().out
    assert main(["explain", "loss_type=sapo"]) == 2
    assert "--trainer" in capsys.readouterr().err
    for trainer, words in (("TRL", ["loss_type=dapo", "model_name_or_path=x", "num_generations=8"]),
                           ("ms-swift", ["loss_type=dapo", "rlhf_type=grpo", "lora_rank=8"])):
        assert main(["explain", *words]) == 0
        assert capsys.readouterr().out.startswith(trainer)
    assert main(["explain", "--trainer", "ppo"]) == 2 and main(["help"]) == 2
    assert main([]) == 2 and main(["--help"]) == 0
    assert main(["explain", str(tmp_path / "missing.json"), "--trainer", "trl"]) == 2


def test_a_file_of_yaml(tmp_path, capsys):
    yaml = pytest.importorskip("yaml")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(NESTED), encoding="utf-8")
    assert main(["explain", str(file)]) == 0
    assert "verl::token_is clip.hi=2.0" in capsys.readouterr().out


def test_an_entropy_bonus():
    """Its mean, its arrays and its words, where it is in the loss, in a second one, and moves."""
    given = from_words("openrlhf", "--V.estimator rloo --actor.entropy_coef 0.01")
    assert given.entropy == gdpo.configs.Entropy(0.01, "tokens")
    assert "- 0.01 times its mean over the valid tokens" in given.explain()
    given = from_words("verl", "algorithm.adv_estimator=grpo A.entropy_coeff=0.01")
    assert given.entropy == gdpo.configs.Entropy(0.01, "loss")
    assert "gradient" in given.arrays["entropies"]
    given = from_words("verl", "algorithm.adv_estimator=grpo A.entropy_coeff=0.01 L.loss_mode=sapo "
                       "A.loss_agg_mode=token-sum")
    assert given.entropy == gdpo.configs.Entropy(0.01, "token-sum")
    words = " ".join(given.explain().split())
    assert "entropy in a second loss" in words and (
        "a second loss, - 0.01 times the entropy, as the sum over the tokens" in words)
    given = from_words("trl", "use_adaptive_entropy=true entropy_coef=0.01 entropy_target=0.3")
    assert given.entropy.coef == 0.01 and given.entropy.adaptive == {
        "target": 0.3, "delta": 0.005, "min_coef": 0.0, "max_coef": 1.0}
    assert "0 where that of the step before is above 0.3" in " ".join(given.explain().split())
    given = from_words("trl", "entropy_coef=0.01 entropy_target=0.3")
    assert set(given.unread) == {"entropy_target"} and given.entropy.adaptive is None


@pytest.mark.parametrize("name, words", [
    ("up_grpo", "-A logp where A > 0, else max(-A r, -A clip(r, 0.8, inf)); where A < 0 at most"),
    ("torchrl::cispo", "-A clip(r, 0.8, 1.2) KL"), ("skyrl::cross_entropy", "-logp KL"),
    ("prime_rl::ipo", "-A r KL"), ("trinity::sppo", "-A log r where r is within [0.769231, 1.3]"),
    ("topr", "-A w logp, w = 1 where A > 0, else min(r, 1), without a gradient"),
    ("trinity::sapo", "-A w logp, w = (4 / tau) sigmoid(tau (r - 1)), tau = 1 where A > 0, else"),
    ("trinity::sft_phi", "-w logp, w = p (1 - p), p = e^logp, without a gradient"),
    ("trinity::sft floor=0.1", "-logp, at least 0.1"), ("trinity::rec", "each token -A logp KL"),
    ("trinity::rec factor.low=0.2 factor.high=0.3 factor.low_prime=0.5",
     "w = 1 where r is within [0.8, 1.3] or r <= 0.5 and A >= 0, else 0, without a gradient"),
    ("trinity::rec temp=2 max_ratio=3", "-A w logp, w = clip(r, 1, 3) e^(A / 2) without"),
    ("vespo", "w = r^k e^(-lambda (r - 1)) where k = 2, lambda = 3 for A >= 0, else 3 and 2,")])
def test_formulas_of_losses(name, words):
    line = f"gdpo:{name.replace(' ', ' own ', 1) if ' ' in name else name + ' own'}"
    given = gdpo.from_config("verl", {"algorithm.adv_estimator": "grpo",
                                      "actor_rollout_ref.actor.policy_loss.loss_mode": line})
    assert words in " ".join(given.explain().split())


@pytest.mark.parametrize("name", gdpo.losses())
def test_every_loss_has_a_formula(name):
    """Of a loss that reads a teacher, which no trainer's configuration chooses, there is none."""
    constant = " constant=64" if name.endswith("dr_grpo") else ""
    given = gdpo.from_config("verl", {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.actor.policy_loss": {"loss_mode": f"gdpo:{name} own{constant}"}})
    assert ("each token" in given.explain()) != (name in ("distillation", "ms_swift::sdar"))


def test_an_adaptive_bonus_over_the_tokens_of_high_entropy():
    """The calls that are named give the mean over those tokens, from the second step on."""
    torch.manual_seed(9)
    given = from_words("trl", "use_adaptive_entropy=true top_entropy_quantile=0.2 "
                       "entropy_coef=0.01 entropy_target=10 loss_type=bnpo", strict=True)
    controller = gdpo.AdaptiveEntropy(given.entropy.coef, **given.entropy.adaptive)
    entropies = torch.rand(4, 5, dtype=torch.float64, requires_grad=True)
    logp, mask = torch.full((4, 5), -1.0, dtype=torch.float64), torch.ones(4, 5)
    prepared = gdpo.prepare(given.corrections, logp=logp, entropies=entropies.detach(), mask=mask)
    high = entropies.detach() >= prepared.entropy_threshold
    assert high.sum() == 4
    for coef in (0.0, 0.015):
        assert controller.coef == coef
        entropies.grad = None
        loss = gdpo.PolicyLoss(given.loss.line, entropy_coef=controller.coef)
        value, _ = loss(logp, advantages=torch.zeros(4), entropies=entropies,
                        counts=gdpo.count(mask=mask), **prepared.arrays())
        torch.testing.assert_close(value, -coef * entropies.detach()[high].mean())
        if coef:
            value.backward()
            torch.testing.assert_close(entropies.grad, -coef / 4 * high.double())
        controller.update(entropies.detach()[high].mean())
