"""The plug-in for slime by its shape: lists of responses, slime's own sum, and its metrics.

slime needs GPUs. Its formulas stand here as they are written in its policy_loss_function.
"""
import importlib.util
import json
import pathlib
import random
import sys
import types

import pytest
import torch

import gdpo
from gdpo.integrations import slime

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.fixture(scope="module")
def train():
    """The module train.py."""
    path = pathlib.Path(__file__).with_name("train.py")
    spec = importlib.util.spec_from_file_location("gdpo_slime_train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def modules(train):
    train.stand_in()


def batch_of(rng, dtype=torch.float32):
    """The logits of packed samples, and the rest of a micro-batch of slime."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    responses = [rng.randint(1, 6) for _ in range(rng.randint(1, 5))]
    totals = [length + rng.randint(1, 4) for length in responses]
    logits = torch.randn(1, sum(totals), 7, generator=generator).double()

    def rows(scale=1.0):
        return [(scale * torch.randn(n, generator=generator).double()).to(dtype)
                for n in responses]

    batch = {"unconcat_tokens": [torch.randint(7, (n,), generator=generator) for n in totals],
             "total_lengths": totals, "response_lengths": responses,
             "loss_masks": [(torch.rand(n, generator=generator) < 0.8).float() for n in responses],
             "advantages": rows(), "log_probs": [row - 2 for row in rows(0.5)],
             "ref_log_probs": [row - 2 for row in rows(0.5)]}
    if rng.random() < 0.3:
        batch["log_probs"] = None
    if rng.random() < 0.3:
        batch["rollout_log_probs"] = [row - 2 for row in rows(0.5)]
    return logits.to(torch.promote_types(dtype, torch.float32)), batch


def slimes(args, batch, logits, reduce, train):
    """Loss, policy loss, clip fraction and KL as slime's options describe them."""
    _, found = train.get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"], response_lengths=batch["response_lengths"])
    logp = torch.cat(found["log_probs"])
    old = torch.cat(batch["log_probs"]).to(logp) if batch["log_probs"] else logp.detach()
    ratio = logp - old
    if args.advantage_estimator == "gspo":
        ratio = torch.cat([((row * mask).sum() / mask.sum().clamp(min=1)).expand_as(row)
                           for row, mask in zip(ratio.split(batch["response_lengths"]),
                                                batch["loss_masks"])])
    ratio, advantages = ratio.exp(), torch.cat(batch["advantages"]).to(logp)
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high) * advantages
    token_loss = torch.maximum(plain, clipped)
    beyond = clipped > plain
    if args.advantage_estimator == "cispo":
        truncated = ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high)
        token_loss, beyond = -truncated.detach() * advantages * logp, truncated != ratio
    elif args.eps_clip_c is not None:
        token_loss = torch.where(advantages < 0, token_loss.minimum(-args.eps_clip_c * advantages),
                                 token_loss)
    entropy = torch.cat(found["entropy"])
    total = reduce(token_loss) - args.entropy_coef * reduce(entropy)
    log = {"pg_loss": reduce(token_loss), "pg_clipfrac": reduce(beyond.to(logp)),
           "entropy_loss": reduce(entropy), "ppo_kl": reduce(old - logp)}
    if args.use_kl_loss:
        d = logp - torch.cat(batch["ref_log_probs"]).to(logp)
        kl = {"k1": d, "k2": d * d / 2}.get(args.kl_loss_type, (-d).exp() - 1 + d)
        if args.kl_loss_type == "low_var_kl":
            kl = kl.clamp(-10, 10)
        log["kl_loss"] = reduce(kl)
        total = total + args.kl_loss_coef * log["kl_loss"]
    return total, {"loss": total, **log}


@pytest.mark.parametrize("estimators, preset", [(["grpo", "gspo"], "trl::grpo"),
                                                (["cispo"], "slime::cispo")])
def test_policy_loss(record, seeds, train, estimators, preset):
    """Beside slime's formulas, as they are written, with all options that the plug-in reads."""
    for seed in seeds:
        rng = random.Random(seed)
        logits, batch = batch_of(rng, DTYPES[seed % 3])
        args = types.SimpleNamespace(**{
            **vars(train.ARGS), "eps_clip": rng.choice([0.1, 0.2]),
            "eps_clip_high": rng.choice([0.2, 0.28]), "eps_clip_c": rng.choice([None, 3.0]),
            "use_kl_loss": rng.random() < 0.5, "kl_loss_coef": rng.choice([0.01, 0.5]),
            "kl_loss_type": rng.choice(["k1", "k2", "k3", "low_var_kl"]),
            "entropy_coef": rng.choice([0.0, 0.01]),
            "advantage_estimator": rng.choice(estimators),
            "calculate_per_token_loss": rng.random() < 0.5})
        if preset == "slime::cispo" and seed % 4 == 0:  # without a bound below, and a wide one
            args.eps_clip, args.eps_clip_high = rng.choice([1.0, 1.5]), 4.0
        reduce = train.sample_mean(batch, args.calculate_per_token_loss)
        ours_at, theirs_at = (logits.clone().requires_grad_(True) for _ in range(2))
        loss, log = slime.policy_loss(args, batch, ours_at, reduce)
        own, own_log = slimes(args, batch, theirs_at, reduce, train)
        [gradient] = torch.autograd.grad(loss, ours_at)
        [own_gradient] = torch.autograd.grad(own, theirs_at)
        name, key = "policy_loss_function", ("slime formulas", "policy_loss_function", preset)
        record.batch(*key)
        terms = own_gradient.abs().sum().item()
        record.close(*key, "loss", [loss.item(), terms], [own.item(), terms], 1e-5,
                     f"{name} {seed} {args}")
        record.close(*key, "gradient", gradient, own_gradient, 1e-5, f"{name} {seed} {args}")
        for metric, value in own_log.items():
            record.close(*key, "metrics", log[metric], value, 1e-5, f"{metric} {seed} {args}")


# What slime itself computed, as float64.
GOLDEN = pathlib.Path(__file__).parents[4] / "tests" / "golden" / "slime.loss.json"
ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"


def recorded(*scenarios):
    """The recorded cases of scenarios such as "tis", with slime's options."""
    for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]:
        scenario = case["name"].split("/")[1].rsplit("_", 1)[0]
        if scenario in scenarios:
            params = case["params"]
            options = {name: value for name, value in params.items() if name in (
                "advantage_estimator", "eps_clip", "eps_clip_high", "eps_clip_c", "use_kl_loss",
                "kl_loss_type", "kl_loss_coef", "tis_clip_low", "tis_clip", "opsm_delta",
                "calculate_per_token_loss")}
            yield pytest.param(case, {
                **options, "use_opsm": "opsm_delta" in params, "use_tis": "tis_clip" in params,
                "custom_tis_function_path": ICEPOP if params.get("tis_function") == "icepop"
                else None}, id=case["name"].split("/")[1])


def batch_recorded(case, names):
    """A micro-batch of a recorded case: all its rows, with responses as wide as they are stored."""
    inputs = {name: torch.tensor(rows, dtype=torch.float64)
              for name, rows in case["inputs"].items()}
    rows, width = inputs["logp"].shape
    if inputs["advantages"].dim() == 1:
        inputs["advantages"] = inputs["advantages"][:, None].expand(rows, width)
    batch = {"unconcat_tokens": [None] * rows, "total_lengths": [width] * rows,
             "response_lengths": [width] * rows,
             **{name: list(inputs[ours]) for name, ours in names.items()}}
    return batch, inputs["logp"].reshape(-1).clone().requires_grad_()


RECORDED = {"log_probs": "old_logp", "rollout_log_probs": "rollout_logp",
            "ref_log_probs": "ref_logp", "advantages": "advantages",
            "loss_masks": "response_mask"}


@pytest.mark.parametrize("case, options", list(recorded(
    "grpo", "gspo", "cispo", "asym_kl3", "dual", "dual1.2", "kl1", "kl2", "tis", "icepop", "opsm",
    "gspo_opsm")))
def test_recorded(record, train, monkeypatch, case, options):
    """Loss, gradient and metrics that slime itself had, with use_tis and use_opsm too."""
    names = {name: ours for name, ours in RECORDED.items() if ours in case["inputs"]}
    batch, logp = batch_recorded(case, names)
    width = batch["response_lengths"][0]

    def own(logits, **_):
        return None, {"log_probs": list(logits.split(width)),
                      "entropy": list(torch.zeros_like(logits).split(width))}

    monkeypatch.setattr(sys.modules["slime.backends.megatron_utils"].loss,
                        "get_log_probs_and_entropy", own)
    args = types.SimpleNamespace(**{**vars(train.ARGS), **options})
    loss, log = slime.policy_loss(args, batch, logp,
                                  train.sample_mean(batch, args.calculate_per_token_loss))
    [gradient] = torch.autograd.grad(loss, logp)
    steps = case["params"]["step_global_batch_size"]  # slime divides by it afterwards
    kind = ("use_tis" if options["use_tis"] else "use_opsm" if options["use_opsm"] else
            options["advantage_estimator"])
    key = ("slime, recorded", "policy_loss_function", kind)
    record.batch(*key)
    expected = case["expected"]

    def close(what, ours, number, context=""):
        record.close(*key, what, ours, torch.tensor(number, dtype=torch.float64), 1e-9, context)

    close("loss", loss / steps, expected["loss"])
    close("gradient", gradient / steps, expected["grad_logp"])
    for name, value in expected["metrics"].items():
        close("metrics", log[name], value, name)


def test_corrections_multiply_and_reach_the_surrogate_alone(train):
    """Weights of tis and opsm are multiplied; the KL term and the counts stay whole."""
    for seed in range(60):
        rng = random.Random(seed)
        logits, batch = batch_of(rng, torch.float64)
        batch["log_probs"] = batch["log_probs"] or [row + 0.1 for row in batch["advantages"]]
        batch["rollout_log_probs"] = [row + rng.uniform(-0.5, 0.5) for row in batch["log_probs"]]
        args = types.SimpleNamespace(**{
            **vars(train.ARGS), "use_tis": seed % 2 == 0, "use_opsm": seed % 3 == 0,
            "tis_clip_low": 0.8, "tis_clip": 1.2, "opsm_delta": 0.1, "use_kl_loss": True,
            "kl_loss_coef": 0.5, "custom_tis_function_path": ICEPOP if seed % 4 == 0 else None})
        reduce = train.sample_mean(batch)
        got, log = slime.policy_loss(args, batch, logits, reduce)
        _, found = train.get_log_probs_and_entropy(
            logits, args=args, unconcat_tokens=batch["unconcat_tokens"],
            total_lengths=batch["total_lengths"], response_lengths=batch["response_lengths"])
        rows = zip(found["log_probs"], batch["log_probs"], batch["rollout_log_probs"],
                   batch["advantages"], batch["ref_log_probs"], batch["loss_masks"])
        terms = []
        for logp, old, rollout, advantages, ref, mask in rows:
            ratio, weight = (logp - old).exp(), torch.ones_like(logp)
            if args.use_tis:
                sampled = (old - rollout).exp()
                inside = (sampled >= 0.8) & (sampled <= 1.2)
                weight = torch.where(inside, sampled, 0.0) if seed % 4 == 0 else \
                    sampled.clamp(0.8, 1.2)
            drift = ((old - logp) * mask).sum() / mask.sum().clamp(min=1)
            if args.use_opsm:
                weight = torch.where((advantages < 0) & (drift > 0.1), 0.0, weight)
            surrogate = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.28) * advantages)
            terms.append(surrogate * weight + 0.5 * ((ref - logp).exp() - 1 - (ref - logp)))
        torch.testing.assert_close(got, reduce(torch.cat(terms)), rtol=1e-9, atol=1e-9)
        assert {"tis", "tis_abs", "tis_clipfrac", "ois"} <= set(log) or not args.use_tis
        assert ("opsm_clipfrac" in log) == args.use_opsm


def test_opsm_with_the_log_probs_of_the_sampler(train):
    """With use_rollout_logprobs the sampler's log-probs are the old ones, of the drift too."""
    logits, batch = batch_of(random.Random(3), torch.float64)
    batch["log_probs"] = batch["rollout_log_probs"] = [row - 1 for row in batch["advantages"]]
    args = types.SimpleNamespace(**{**vars(train.ARGS), "use_opsm": True, "opsm_delta": 0.0})
    expected = slime.policy_loss(args, batch, logits, train.sample_mean(batch))
    batch["log_probs"], args.use_rollout_logprobs = None, True
    got = slime.policy_loss(args, batch, logits, train.sample_mean(batch))
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1]["opsm_clipfrac"], expected[1]["opsm_clipfrac"])


@pytest.mark.parametrize("name", gdpo.losses())
def test_every_loss_by_its_name(train, name):
    """The path is looked up as slime's load_function does."""
    if name in ("distillation", "ms_swift::sdar"):  # the plug-in has no log-probs of a teacher
        with pytest.raises(ValueError, match="batch.teacher_logp: given no array"):
            train.main(f"gdpo.integrations.slime.{name}", steps=1)
        return
    log = train.main(f"gdpo.integrations.slime.{name}", steps=2)
    assert {"loss", "pg_loss", "entropy_loss", "pg_clipfrac", "ppo_kl", "gdpo/ratio"} <= set(log[0])
    assert log[0]["gdpo/ratio"] == pytest.approx(1.0)
    settings = {setting.name for setting in gdpo.loss_settings(name)}
    if any(setting.startswith("factor.") for setting in settings):
        # A step does not lower this loss, whose weights are constants for the gradient. Where they
        # are 1 at ratio 1, the gradient is that of the clipped ratio, and so the first step is.
        # (The ratio that is logged may be that of rows.)
        if settings & {"factor.decay", "factor.tau_pos"}:  # where they are not
            assert log[1]["ppo_kl"] != pytest.approx(0.0)
            return
        plain = train.main("gdpo.integrations.slime.dapo", steps=2)
        assert plain[1]["ppo_kl"] != pytest.approx(0.0)
        assert log[1]["ppo_kl"] == pytest.approx(plain[1]["ppo_kl"], rel=1e-5)
        return
    assert log[1]["pg_loss"] < log[0]["pg_loss"]  # a KL term against the old policy grows from 0


def test_mistakes(train):
    with pytest.raises(AttributeError, match='the losses are grpo, dapo.*did you mean "dapo"'):
        train.main("gdpo.integrations.slime.dapoo")
    with pytest.raises(ValueError, match="given 'dapoo'; needed: one of grpo.*did you mean"):
        slime.loss("dapoo")
    with pytest.raises(ValueError, match="aggregate: .*slime averages"):
        slime.loss("dapo", aggregate="token-mean")
    with pytest.raises(ValueError, match="aggregate.scale: .*slime averages"):
        slime.loss("dapo", **{"aggregate.scale": 2})
    with pytest.raises(ValueError, match="surrogate.low: given -1"):
        slime.loss("dapo", **{"surrogate.low": -1})


@pytest.mark.parametrize("options, message", [
    ({"use_tis": True, "use_rollout_logprobs": True}, "use_tis: given True; needed: False with"),
    ({"use_tis": True}, "rollout_log_probs: given none.*because of use_tis"),
    ({"use_tis": True, "custom_tis_function_path": "mine.tis"}, "given mine.tis.*icepop_function"),
    ({"get_mismatch_metrics": True}, "get_mismatch_metrics: given True; needed: use_tis"),
    ({"use_unbiased_kl": True}, "use_unbiased_kl: given True"),
    ({"pg_loss_type": "cispo"}, "pg_loss_type: given cispo"),
    ({"use_kl_loss": True, "kl_loss_coef": 0.1}, "ref_log_probs: given none")])
def test_what_it_does_not_have_raises(train, options, message):
    logits, batch = batch_of(random.Random(0))
    batch["ref_log_probs"] = batch["rollout_log_probs"] = None
    args = types.SimpleNamespace(**{**vars(train.ARGS), **options})
    with pytest.raises(ValueError, match=message):
        slime.policy_loss(args, batch, logits, train.sample_mean(batch))


def test_context_parallelism_raises(train):
    train.stand_in(context_parallel=2)
    logits, batch = batch_of(random.Random(0))
    with pytest.raises(ValueError, match="context-parallel-size: given 2; needed: 1"):
        slime.policy_loss(train.ARGS, batch, logits, train.sample_mean(batch))


PATH = "--custom-loss-function-path"
OURS = "gdpo.integrations.slime"


@pytest.fixture
def script(train, monkeypatch, tmp_path):
    """Runs a script in the way of slime's train.py by the plug-in's main; what it got."""
    got = []
    arguments = types.ModuleType("slime.utils.arguments")
    monkeypatch.setitem(sys.modules, "slime.utils", types.ModuleType("slime.utils"))
    monkeypatch.setitem(sys.modules, "slime.utils.arguments", arguments)
    sys.modules["slime.utils"].arguments = arguments
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "got", types.SimpleNamespace(append=got.append))
    (tmp_path / "beside.py").write_text("number = 3\n")
    (tmp_path / "train.py").write_text(
        "import sys, got, beside\nfrom slime.utils.arguments import parse_args\n"
        "if __name__ == '__main__':\n    got.append((parse_args(), sys.argv[1:], beside.number))\n")

    def run(*words, **options):
        arguments.parse_args = lambda: types.SimpleNamespace(**{**vars(train.ARGS), **options})
        monkeypatch.setattr(sys, "argv", ["slime", str(tmp_path / "train.py"), *words])
        got.clear()
        slime.main()
        return got
    return run


@pytest.mark.parametrize("words", [
    [], [PATH, f"{OURS}.policy_loss"], [f"{PATH}={OURS}.verl::vanilla", "--other", "1"],
    [PATH, "math.exp"]])
def test_main_runs_the_script(script, words):
    """With its options, and with its folder where Python looks for modules."""
    [(args, given, number)] = script(*words)
    assert given == words and number == 3 and args.eps_clip == 0.2


@pytest.mark.parametrize("words, options, error, message", [
    ([PATH, f"{OURS}.dapoo"], {}, AttributeError, 'did you mean "dapo"'),
    ([f"{PATH}={OURS}.dapoo"], {}, AttributeError, 'did you mean "dapo"'),
    ([PATH, "gdpo.integrations.slmie.dapo"], {}, ModuleNotFoundError, "slmie"),
    ([PATH, f"{OURS}.dapo"], {"use_unbiased_kl": True}, ValueError, "use_unbiased_kl"),
    ([PATH, f"{OURS}.dapo"], {"context_parallel_size": 2}, ValueError, "context-parallel-size"),
    ([PATH, f"{OURS}.policy_loss"], {"pg_loss_type": "cispo"}, ValueError, "pg_loss_type"),
    ([PATH, f"{OURS}.policy_loss"], {"eps_clip": -0.1}, ValueError, "low: given -0.1")])
def test_main_tells_slips_before_the_script_trains(script, words, options, error, message):
    with pytest.raises(error, match=message):
        script(*words, **options)


def test_main_without_a_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["slime"])
    with pytest.raises(SystemExit, match="given no script"):
        slime.main()
