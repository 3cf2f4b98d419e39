"""Slips that users make: each is an error that says what is needed, or does what was meant."""
import ast
import copy
import inspect
import math
import pickle
import uuid
import warnings

import numpy as np
import pytest
import torch

import gdpo

LOSS = gdpo.PolicyLoss("dapo")
LOGP = torch.full((2, 3), -1.0)
ARGUMENTS = {"counts": torch.tensor([6.0, 2, 2, 0], dtype=torch.float64),
             "advantages": torch.tensor([1.0, -1.0])}


@pytest.mark.parametrize("slip, words", [
    (lambda: LOSS(LOGP.tolist(), **ARGUMENTS), "gdpo::PolicyLoss: logp: given a list"),
    (lambda: LOSS(LOGP, **{**ARGUMENTS, "advantages": [1.0, 2.0]}),
     "gdpo::PolicyLoss: advantages: given a list; needed: a torch.Tensor"),
    (lambda: LOSS(LOGP, **{**ARGUMENTS, "counts": 6}), "counts: given a int"),
    (lambda: LOSS(LOGP.long(), **ARGUMENTS), "batch.logp: given torch.int64; needed: log-probs"),
    (lambda: LOSS(LOGP, mask=torch.tensor([[0.0, 0.0, -float("inf")]] * 2), **ARGUMENTS),
     "mask: given infinities or NaN"),
    (lambda: LOSS(LOGP, old_logp=LOGP.clone().requires_grad_(), **ARGUMENTS),
     "old_logp: given a tensor that requires a gradient, with logp that does not"),
    (lambda: LOSS.from_logits(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64),
                              old_logp=LOGP.clone().requires_grad_(), **ARGUMENTS),
     "from_logits: old_logp: given a tensor that requires a gradient, with logits that do not"),
    (lambda: gdpo.count(mask=np.ones((2, 3))), "gdpo::count: mask: given a ndarray"),
    (lambda: gdpo.token_logprobs(LOGP.numpy(), torch.zeros(2, dtype=torch.int64)),
     "gdpo::token_logprobs: logits: given a ndarray"),
    (lambda: gdpo.prepare("overlong", mask=[[1]]), "gdpo::prepare: mask: given a list"),
    (lambda: gdpo.prepare("degenerate_groups", mask=torch.ones(2, 3),
                          degenerate=torch.ones(2, device="meta")),
     "gdpo::prepare: degenerate: given a tensor on meta; needed: one on cpu, where mask is"),
    (lambda: gdpo.advantages(LOGP, group_size=2.0),
     "gdpo::advantages: group_size: given 2.0; needed: an integer"),
    (lambda: gdpo.advantages(LOGP, group_size=2, constraints=(1, 0.0, 0.9, 1.0, "at_least")),
     "gdpo::advantages: constraints: given (1, 0.0,"),
    (lambda: gdpo.advantages(LOGP, group_size=2, constraints=[(1, 0.0, 0.9, 1.0, "atleast")]),
     "the bound at_least or at_most"),
    (lambda: gdpo.advantages(LOGP, group_size=2, gates=[("accuracy", "format", 1)]),
     "gates: given [('accuracy', 'format', 1)]; needed: for each gate"),
    (lambda: gdpo.explain(LOGP, group_size=2, group=0, gates=(0, 1, 0.5)),
     "gdpo::explain: gates: given (0, 1, 0.5)"),
    (lambda: gdpo.AdaptiveEntropy("x"), "AdaptiveEntropy: initial: given 'x'; needed: a number"),
    (lambda: gdpo.PidLagrangian("0.9x"), "PidLagrangian: limits: given '0.9x'; needed: a number"),
    (lambda: gdpo.mismatch(rollout_logp=LOGP, old_logp=LOGP, clamp="x"),
     "mismatch: clamp: given 'x'; needed: a number"),
    (lambda: gdpo.diagnose(LOSS(LOGP, **ARGUMENTS).metrics, near_ratio="x"),
     "diagnose: near_ratio: given 'x'; needed: a number"),
    (lambda: gdpo.RunningMoments().update(None), "RunningMoments: values: given None"),
    (lambda: gdpo.shape_rewards(None, "clip min=0 max=1"), "shape_rewards: rewards: given None"),
    (lambda: gdpo.diagnose(gdpo.advantages(LOGP, group_size=2, report=True).report),
     "gdpo::diagnose: metrics: given a Report; needed: a gdpo.Metrics"),
    (lambda: gdpo.PolicyLoss("dapo", kl="k3"), "beta: given none, with kl or against"),
    (lambda: gdpo.PolicyLoss("dapo", against="old"), 'which "dapo" does not have (0: off)'),
    (lambda: gdpo.PolicyLoss("dapo", low=-1.0), "PolicyLoss: low: given -1"),
    (lambda: gdpo.PolicyLoss("dapo", kl_output=(1.0, -1.0), beta=0.1), "kl_output"),
    (lambda: gdpo.PolicyLoss("dapo", level_bounds=(-1.0, 1.0)), "the setting 'level_bounds"),
    (lambda: gdpo.PidLagrangian(1.0).load_state_dict({}), "state: given no set_points"),
    (lambda: gdpo.PidLagrangian(1.0).load_state_dict(gdpo.PidLagrangian([1, 2]).state_dict()),
     "state: given 2 constraints; needed: what state_dict() gave, of 1"),
])
def test_refused(slip, words):
    with pytest.raises(ValueError) as refused:
        slip()
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["low", "surrogate_low", "kl_beta", "entropy_coef",
                                  "aggregate_mode", "level", "name"])
def test_a_loss_is_set_when_it_is_made(name):
    with pytest.raises(AttributeError, match=f"gdpo.PolicyLoss: {name} is set when the loss is"):
        setattr(gdpo.PolicyLoss("dapo"), name, 0.3)


@pytest.mark.parametrize("merge", [
    lambda: LOSS(LOGP, **ARGUMENTS).metrics.merge(None),
    lambda: gdpo.advantages([1.0], group_size=1, report=True).report.merge({}),
    lambda: gdpo.mismatch(rollout_logp=LOGP, old_logp=LOGP).merge(LOGP)])
def test_what_does_not_merge(merge):
    with pytest.raises(ValueError, match="merge: other: given a .*; needed: a gdpo"):
        merge()


def test_a_kl_term_that_is_off_on_purpose():
    assert gdpo.PolicyLoss("dapo", kl="k3", beta=0.0).line.endswith("kl=k3 kl.beta=0")
    assert gdpo.PolicyLoss("grpo", kl="k1")  # it has a coefficient of its own


def test_settings_are_numbers_of_any_library():
    for number in (np.float64(0.25), np.float32(0.25), torch.tensor(0.25)):
        assert gdpo.PolicyLoss("dapo", low=number).line == "dapo surrogate.low=0.25"
        pair = dict(rewards=[1.0, 0.0], group_size=2)
        assert gdpo.advantages(**pair, scale_eps=number).tolist() == gdpo.advantages(
            **pair, scale_eps=0.25).tolist()
    for number in (0, np.int64(0)):
        assert gdpo.advantages(**pair, scale_ddof=number).tolist() == [
            pytest.approx(a) for a in gdpo.advantages(**pair, scale_ddof=0).tolist()]


def test_settings_are_those_that_the_loss_was_made_with():
    loss = gdpo.PolicyLoss("grpo", beta=0.01)
    with pytest.raises(AttributeError, match=r"PolicyLoss\(..., beta=0.5\)"):
        loss.beta = 0.5
    assert copy.deepcopy(loss).line == pickle.loads(pickle.dumps(loss)).line == loss.line


def test_one_constraint_needs_no_lists():
    pid = gdpo.PidLagrangian(1.0)
    pid.update(sums=torch.tensor(0.5), counts=1)
    other = gdpo.PidLagrangian([1.0])
    other.update(sums=[0.5], counts=[1])
    assert pid.last == other.last


def test_none_in_a_list_is_a_missing_reward():
    """As in TRL, whose reward functions return None where they do not apply."""
    nan = float("nan")
    for estimator in ("gdpo", "trl::grpo"):
        assert torch.equal(
            gdpo.advantages([[1., None], [0, 1], [None, 2], [1, 0]], group_size=2,
                            estimator=estimator),
            gdpo.advantages([[1., nan], [0, 1], [nan, 2], [1, 0]], group_size=2,
                            estimator=estimator))
    assert torch.equal(gdpo.advantages([1, None, 0], group_size=3),
                       gdpo.advantages([1, nan, 0], group_size=3))


@pytest.mark.parametrize("slip, meant", [
    (lambda: gdpo.PolicyLoss("dpao"), "dapo"),
    (lambda: gdpo.PolicyLoss("DAPO"), "dapo"),
    (lambda: gdpo.PolicyLoss("verl:vanilla"), "verl::vanilla"),
    (lambda: gdpo.PolicyLoss("dapo", "tokn"), "token"),
    (lambda: gdpo.PolicyLoss("dapo", levl="token"), "level"),
    (lambda: gdpo.PolicyLoss("dapo", lwo=0.1), "surrogate.low"),
    (lambda: gdpo.PolicyLoss("dapo hgih=0.3"), "surrogate.high"),
    (lambda: gdpo.PolicyLoss("dapo", lwo=None), "surrogate.low"),
    (lambda: gdpo.PolicyLoss("dapo", aggregate="token_mean"), "token-mean"),
    (lambda: gdpo.PolicyLoss("dapo", kl="low_var", beta=0.1), "low_var_kl"),
    (lambda: gdpo.ContrastiveLoss("rael"), "real"),
    (lambda: gdpo.ContrastiveLoss(tua=0.5), "tau"),
    (lambda: LOSS.from_logits(LOGP, LOGP, counts=LOGP, old_lgp=LOGP), "old_logp"),
    (lambda: gdpo.loss_settings("dpao"), "dapo"),
    (lambda: gdpo.advantages([1, 0], group_size=2, estimator="rlo"), "rloo"),
    (lambda: gdpo.advantages([1, 0], group_size=2, estimator="trl:gdpo"), "trl::gdpo"),
    (lambda: gdpo.advantages([1, 0], groupsize=2), "group_size"),
    (lambda: gdpo.advantages([1, 0], group_size=2, groups_ids=None), "group_ids"),
    (lambda: gdpo.advantages([1, 0], group_size=2, scale_ep=1e-4), "scale.eps"),
    (lambda: gdpo.advantages([1, 0], group_size=2, renorm="btach"), "batch"),
    (lambda: gdpo.advantages([1, 0], group_size=2, rollout_ids=[0, 1], take="lst"), "last"),
    (lambda: gdpo.explain([1, 0], group_size=2, group=0, estimator="gpdo"), "gdpo"),
    (lambda: gdpo.token_advantages(estimator="verl::gea", mask=LOGP, row_rewards=[1, 0]),
     "verl::gae"),
    (lambda: gdpo.token_advantages(mask=LOGP, row_rewards=[1, 0], gama=1), "returns.gamma"),
    (lambda: gdpo.token_advantages(mask=LOGP, row_reward=[1, 0]), "row_rewards"),
    (lambda: gdpo.outcome_advantages([1, 0], group_size=2, mask=LOGP, estimator="openrlhf::rlo"),
     "openrlhf::rloo"),
    (lambda: gdpo.step_advantages([1, 0], group_size=2, episode_ids=[0, 1], state_ids=[0, 0],
                                  omga=1), "omega"),
    (lambda: gdpo.optimal_token_baseline(-LOGP, logp=LOGP, sum_pi_squared=-LOGP, group_size=2,
                                         tial="raw"), "tail"),
    (lambda: gdpo.shape_rewards([1.0], "soft_overlog max_length=2"), "soft_overlong"),
    (lambda: gdpo.prepare("trl::token_truncat", mask=LOGP), "trl::token_truncate"),
    (lambda: gdpo.mismatch(rollout_logp=LOGP, old_logp=LOGP, keys="verll"), "verl"),
    (lambda: gdpo.mismatch(rollout_logp=LOGP, old_logp=LOGP, token_lo=0.5), "token_low"),
    (lambda: gdpo.diagnose(LOSS(LOGP, **ARGUMENTS).metrics, near_ratoi=0.1), "near_ratio"),
    (lambda: gdpo.PidLagrangian(1.0, kpp=1), "kp"),
    (lambda: gdpo.AdaptiveEntropy(targt=0.2), "target"),
    (lambda: gdpo.RunningMoments(dcay=0.9), "decay"),
    (lambda: gdpo.EmaBaseline("prime_rl::rea"), "prime_rl::rae"),
    (lambda: gdpo.ReturnScale(gama=0.9), "gamma"),
    (lambda: gdpo.from_config("ms-swift", {}), "ms_swift"),
])
def test_did_you_mean(slip, meant):
    """A name that is near to a known one, with None for its value too."""
    with pytest.raises((ValueError, TypeError), match=f'did you mean "{meant}"'):
        slip()


@pytest.mark.parametrize("mapping, slip, meant", [
    (lambda: LOSS(LOGP, **ARGUMENTS).metrics, "clip_fraction.sums", "clip_fraction.sum"),
    (lambda: LOSS(LOGP, **ARGUMENTS).metrics, "los", "loss"),
    (lambda: gdpo.advantages([1, 0], group_size=2, report=True).report, "row", "rows"),
    (lambda: gdpo.mismatch(rollout_logp=LOGP, old_logp=LOGP), "k3_lk", "k3_kl")])
def test_did_you_mean_a_number(mapping, slip, meant):
    with pytest.raises(KeyError, match=f"{slip}: not among the names.., such as {meant}"
                       .replace("names..", "names.* of gdpo.[A-Z]\\w+")):
        mapping()[slip]


FOUR = [1.0, 0.0, 0.5, 0.25]
UUIDS = [uuid.UUID(int=k) for k in (7, 3)]


@pytest.mark.parametrize("ids", [
    ["a", "b", "a", "b"], ("b", "a", "b", "a"), [b"x", b"y", b"x", b"y"], UUIDS * 2,
    [str(each) for each in UUIDS] * 2, np.array(["a", "b"] * 2), np.array([b"a", b"b"] * 2),
    np.array(UUIDS * 2, dtype=object), np.array(["a", "b"] * 2, dtype=object),
    np.array([4, 3] * 2, dtype=object), np.array([1, 0] * 2)], ids=repr)
def test_ids_of_rows(ids):
    """Equal strings are one group, whatever holds them, as equal numbers are."""
    mask = torch.ones(4, 3)
    calls = (lambda ids: gdpo.advantages(FOUR, group_ids=ids),
             lambda ids: gdpo.advantages(FOUR, group_size=4, rollout_ids=ids),
             lambda ids: gdpo.outcome_advantages(FOUR, group_ids=ids, mask=mask).advantages,
             lambda ids: gdpo.shape_rewards(FOUR, "relative_length", group_ids=ids, lengths=FOUR),
             lambda ids: gdpo.count(mask=mask, group_ids=ids),
             lambda ids: gdpo.count_group_tokens(mask=mask, group_ids=ids),
             lambda ids: gdpo.optimal_token_baseline(mask, logp=-mask, sum_pi_squared=mask / 2,
                                                     group_ids=ids),
             lambda ids: gdpo.ContrastiveLoss("real beta=0")(
                 -mask, advantages=torch.tensor(FOUR) - 0.4, group_ids=ids,
                 counts=gdpo.count(mask=mask, group_ids=ids)).loss,
             lambda ids: gdpo.step_advantages(FOUR, episode_ids=ids, state_ids=[0] * 4,
                                              group_size=4),
             lambda ids: gdpo.step_advantages(FOUR, episode_ids=range(4), state_ids=ids,
                                              group_size=4))
    for call in calls:
        assert torch.equal(call(ids), call([0, 1, 0, 1]))


@pytest.mark.parametrize("given, message", [
    ({"rewards": [["a"]]}, "rewards: .*needed: an array of numbers"),
    ({"rewards": np.array(["a"])}, "rewards: .*needed: an array of numbers"),
    ({"rewards": None}, "rewards: given None; needed: an array of numbers"),
    ({"rewards": [[1., 2], [3]]}, "rewards: .*needed: an array of numbers"),
    ({"group_ids": ["a", "b", None, "a"], "group_size": 0},
     "group_ids: given None in row 2, among strings; needed: integers or strings"),
    ({"group_ids": [1, "b", 1, "b"], "group_size": 0}, "group_ids: given 1 in row 0, among str"),
    ({"group_ids": [0, None, 0, 1], "group_size": 0}, "group_ids: .*needed: an array of numbers"),
    ({"group_ids": ["a"] * 8, "group_size": 0},
     r"groups: given 8 ids; .*; rewards of shape \(4, 2\) are 4 rows with 2 rewards each, and "
     r"rewards.reshape\(-1\) are 8 rows with one"),
    ({"rewards": torch.rand(3, 8), "group_size": 8},
     r".*a multiple of 8 rows.*; rewards of shape \(3, 8\) are 3 rows with 8 rewards each"),
    ({"rewards": torch.rand(2, 4, 3)}, r"rewards: given \(2, 4, 3\).*rewards.flatten\(0, 1\)"),
    ({"rewards": torch.rand(2, 4), "group_size": 2, "tokens": [1] * 8},
     r".*tokens: given 8 entries.*rewards.reshape\(-1\) are 8 rows with one"),
    ({"valid": [1, None, 1, 1]}, "valid: .*needed: an array of numbers"),
    ({"baseline": [None] * 4}, "baseline: .*needed: an array of numbers"),
    ({"group_size": "4"}, "group_size: given '4'; needed: an integer"),
    ({"group_size": 4.0}, "group_size: given 4.0; needed: an integer"),
    ({"weights": {"a": 1.}}, "weights: given .*; needed: a number for each reward"),
    ({"weights": ["a", "b"]}, "weights: given .*; needed: a number for each reward"),
    ({"weights": 2}, "weights: given 2; needed: a number for each reward"),
])
def test_messages_name_the_argument(given, message):
    arguments = {"rewards": torch.rand(4, 2), "group_size": 4, **given}
    with pytest.raises(ValueError, match=f"^gdpo::advantages: {message}"):
        gdpo.advantages(arguments.pop("rewards"), **arguments)


def test_prompts_and_completions_are_not_taken_for_rewards_in_silence():
    """(prompts, completions) of one reward may look like (rows, rewards); weights say which."""
    rewards = torch.rand(8, 4, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"\(8, 4\) is read as 8 rows with 4 rewards each; if it "
                                         r"is 8 prompts .* give rewards.reshape\(-1\)"):
        read = gdpo.advantages(rewards, group_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(gdpo.advantages(rewards, group_size=4, weights=[1] * 4), read)
        gdpo.advantages(rewards, group_size=2)
        gdpo.advantages(rewards.reshape(-1), group_size=4)
        gdpo.advantages(rewards[:, :1], group_size=1)


def test_rewards_of_objects_and_of_what_wraps_an_array():
    """Arrays of objects, with None in them, and what has to_numpy, such as pandas.Series."""
    class Series:
        def to_numpy(self):
            return np.array([1.0, None, 0.5, 0.25], dtype=object)

    want = gdpo.advantages([1.0, None, 0.5, 0.25], group_size=4)
    assert torch.equal(gdpo.advantages(Series(), group_size=4), want)
    assert gdpo.advantages(Series().to_numpy(), group_size=4).tolist() == want.tolist()
    assert gdpo.advantages([True, False], group_size=2).tolist() == gdpo.advantages(
        [1, 0], group_size=2).tolist()
    nested = [[1.0, None], (0.5, 1), [None, 2], [1, None]]
    assert torch.equal(gdpo.advantages(nested, group_size=4), gdpo.advantages(
        torch.tensor([[math.nan if x is None else x for x in row] for row in nested],
                     dtype=torch.float64), group_size=4))


def test_types_of_advantages_name_its_arguments():
    """Type checkers read the overloads, whose keywords are a list of their own."""
    source = ast.parse(inspect.getsource(inspect.getmodule(gdpo.advantages)))
    arguments, = (node for node in ast.walk(source)
                  if isinstance(node, ast.ClassDef) and node.name == "_Arguments")
    listed = [each.target.id for each in arguments.body]
    *overloads, function = (node for node in source.body if isinstance(node, ast.FunctionDef)
                            and node.name == "advantages")
    assert listed == [each.arg for each in function.args.kwonlyargs if each.arg != "report"]
    assert all(each.args.kwarg.annotation.value == "Unpack[_Arguments]" for each in overloads)
    assert len(overloads) > 3


def test_unknown_keywords_of_calls_are_named():
    for call in (lambda: LOSS(LOGP, old_lgp=LOGP, **ARGUMENTS),
                 lambda: gdpo.ContrastiveLoss()(LOGP, old_lgp=LOGP, counts=ARGUMENTS["counts"])):
        with pytest.raises(TypeError, match="old_lgp"):
            call()
