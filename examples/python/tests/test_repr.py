"""What repr shows of the public objects: settings and main numbers, on lines of 100 columns."""
import math

import pytest
import torch

import gdpo

LOGP = torch.full((2, 3), -1.0)
LOSS = gdpo.PolicyLoss("dapo", beta=0.0)
MEASURED = LOSS(LOGP, counts=gdpo.count(logp=LOGP), advantages=torch.tensor([1.0, -1.0]))
REPORT = gdpo.advantages([[1.0, 0], [0, 1], [1, 1], [0, 0]], group_ids=[0, 0, 1, 1], report=True)
OBJECTS = {
    "PolicyLoss": (LOSS, ["'dapo'", "surrogate_high=0.28", "kl_input=(-inf, inf)",
                          "aggregate_padded_width=False"]),
    "ContrastiveLoss": (gdpo.ContrastiveLoss("real", tau=0.3), ["'real'", "tau=0.3"]),
    "Metrics": (MEASURED.metrics, ["loss: 0", "completions/mean_length: 3"]),
    "LossAndMetrics": (MEASURED, ["loss=tensor(0.)", "metrics=gdpo.Metrics("]),
    "ValueLoss": (gdpo.ValueLoss(clip=0.3), ["'verl::value_loss'", "clip=0.3", "half=True"]),
    "ValueMetrics": (gdpo.ValueLoss(clip=float("inf"))(
        LOGP, returns=LOGP, counts=gdpo.count(mask=LOGP)).metrics, ["loss: 0", "vf_loss: 0"]),
    "Report": (REPORT.report, ["rows: 4", "groups: 2", "rewards.1.values.mean: 0.5"]),
    "AdvantagesAndReport": (REPORT, ["report=gdpo.Report("]),
    "Mismatch": (gdpo.mismatch(rollout_logp=LOGP, old_logp=LOGP), ["scored: 6", "k3_kl: 0"]),
    "PidLagrangian": (gdpo.PidLagrangian([0.9, 0.5], scale=0.3, kp=3, form="velocity"),
                      ["limits=[0.9, 0.5]", "scale=[0.3, 0.3]", "kp=3", "form='velocity'",
                       "multipliers [0.0, 0.0]"]),
    "AdaptiveEntropy": (gdpo.AdaptiveEntropy(0.0, target=0.3), ["target=0.3", "coef 0"]),
    "RunningMoments": (gdpo.RunningMoments(decay=0.9), ["decay=0.9", "eps=1e-08", "0 numbers",
                                                         "mean 0"]),
    "EmaBaseline": (gdpo.EmaBaseline("prime_rl::rae"), ["'prime_rl::rae'", "decay=0.95",
                                                        "0 roles"]),
    "ReturnScale": (gdpo.ReturnScale(), ["gamma=0.99", "divisor "]),
    "Prepared": (gdpo.prepare("trl::token_truncate", rollout_logp=LOGP - 2, old_logp=LOGP,
                              mask=torch.tensor([[1, 1, 0]] * 2)),
                 ["mask: 4 of 6 tokens", "weights: 1 to 3", "entropy_threshold: inf"]),
    "Explanation": (gdpo.explain([1.0, 0], group_size=2, group=0), ["group 0 of 1"]),
    "Configured": (gdpo.from_config("trl", {"epsilon": 0.3, "epsilonn": 1}),
                   ["estimator='trl::grpo'", "surrogate_low=0.3", "unsupported={'epsilonn'"]),
    "AdvantagesAndReturns": (gdpo.token_advantages(row_rewards=[1.0, 0], values=LOGP, mask=LOGP),
                             ["advantages=tensor(", "returns=tensor("]),
    "AdvantagesReturnsAndReport": (gdpo.outcome_advantages([1.0, 0], group_size=2, mask=LOGP,
                                                           report=True), ["report=gdpo.Report("]),
    "TokenLogprobs": (gdpo.token_logprobs(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)),
                      ["logp=tensor([-1.3863])"]),
    "Ranks": (gdpo.Ranks.single(), ["rank 0 of 1"]),
    "GatheredRows": (gdpo.Ranks.single().gather_rows([1.0, 0], group_size=2), ["own_rows=tensor("]),
    "WholeTokens": (gdpo.Ranks.single().gather_tokens(mask=LOGP), ["own_places=tensor("]),
    "Step": (gdpo.Step([gdpo.count(mask=LOGP)]), ["6 tokens", "2 rows"]),
    "Plan": (gdpo.plan(8, mini_batches=2), ["2 steps"]),
    "Packing": (gdpo.pack([3, 2, 4], 6), ["of 3 rows", "9 tokens"]),
    "SelectedGroups": (gdpo.select_groups([1.0, 0, 1, 1], group_size=2), ["verdicts=["]),
    "ClippedGradient": (gdpo.clip_grad_norm([torch.ones(4)], 1.0), ["norm=2.0"]),
    "PidStep": (gdpo.PidLagrangian(1.0).last[0], ["multiplier=0.0"]),
    "Setting": (gdpo.loss_settings("dapo")[0], ["name='level'"]),
    "Finding": (gdpo.Finding("ratio_one", "", 1.0, 0.5, "text", "cause"), ["figure=1.0"])}


@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_shown(name):
    shown, words = repr(OBJECTS[name][0]), OBJECTS[name][1]
    assert type(OBJECTS[name][0]).__name__ == name
    assert all(word in shown for word in words), shown
    if not isinstance(OBJECTS[name][0], tuple) or name == "Prepared":
        assert max(map(len, shown.split("\n"))) <= 100


def test_all_that_is_public_is_shown():
    """A new class needs its line above."""
    classes = {name for name in gdpo.__all__ if isinstance(getattr(gdpo, name), type)
               and not issubclass(getattr(gdpo, name), Exception)}
    assert classes <= set(OBJECTS)


@pytest.mark.parametrize("line", [*gdpo.losses(), *gdpo.contrastive_losses(),
                                  *gdpo.value_losses(), "dapo sequence",
                                  "grpo kl=k1+ beta=0.5 kl.input=-3,3", "gspo bounds=-1,inf"])
def test_a_loss_shows_what_makes_it_again(line):
    """All settings with their values, also those that it got by its name."""
    kind = ("ContrastiveLoss" if line in gdpo.contrastive_losses() else
            "ValueLoss" if line in gdpo.value_losses() else "PolicyLoss")
    if line.endswith("dr_grpo"):
        line += " constant=5"  # which it does not have by its name
    loss = getattr(gdpo, kind)(line)
    again = eval(repr(loss), {kind: getattr(gdpo, kind), "inf": math.inf})
    assert gdpo.loss_settings(again.line) == gdpo.loss_settings(loss.line)
    assert repr(again) == repr(loss)
    assert repr(loss).count("=") == sum(
        not s.name.endswith((".lo", ".hi")) and bool(s.value) or s.kind == "two numbers, LO,HI"
        for s in gdpo.loss_settings(line))


def test_in_a_module():
    """Losses are shown within what holds them, as modules are."""
    shown = repr(torch.nn.ModuleDict({"loss": LOSS}))
    assert "(loss): PolicyLoss(\n" in shown and "surrogate_high=0.28" in shown
