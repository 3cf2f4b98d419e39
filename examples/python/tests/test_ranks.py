"""Several processes: results are those of one, and what one rank refuses all of them raise.

Groups of two and three processes of gloo run the scenarios of ranks_worker.py once; each test looks
at what became of one of them on every rank.
"""
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import gdpo
from gdpo import _ranks
from ranks_worker import ROWS, SCENARIOS, critic_batch, small_model, tokens, whole_batch

WORKER = pathlib.Path(__file__).with_name("ranks_worker.py")


@pytest.fixture(scope="module", params=[2, 3])
def found(request, tmp_path_factory):
    """Of each scenario what each rank returned, or the words of its error."""
    folder, size = tmp_path_factory.mktemp("ranks"), request.param
    package = str(pathlib.Path(gdpo.__file__).parents[1])
    path = os.pathsep.join([package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    processes = [subprocess.Popen(
        [sys.executable, WORKER, str(rank), str(size), folder], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path}) for rank in range(size)]
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=240)[1])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate()[1])
    files = [folder / f"rank{rank}.pt" for rank in range(size)]
    assert all(file.exists() for file in files), "\n".join(said)
    ranks = [torch.load(file, weights_only=False) for file in files]
    return {name: [rank[name] for rank in ranks] for name in SCENARIOS}


def assert_close(a, b, tolerance):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_advantages_have_the_bits_of_one_process(found):
    """Prompts are split over ranks, which have different numbers of rows, also none."""
    rewards, prompts, keys = whole_batch()
    # In the order of (group, key), in which a spread over ranks changes nothing.
    order = torch.tensor(sorted(range(ROWS), key=lambda i: (int(prompts[i]), int(keys[i]))))
    for name in found["advantages"][0]:
        columns = {"tokens": (torch.arange(ROWS) % 5 + 1)[order]} if name == "verl::gdpo" else {}
        whole = torch.empty(ROWS)
        whole[order], report = gdpo.advantages(
            rewards[order], group_ids=prompts[order], estimator=name, report=True,
            weights=[1.0, 0.5], **columns)
        rows = 0
        for of_rank in found["advantages"]:
            mine, result, numbers = of_rank[name]
            rows += len(mine)
            assert result.dtype == torch.float32
            assert torch.equal(result, whole[mine]), name
            assert torch.equal(numbers, report.numbers), name
        assert rows == ROWS


def test_words_are_ids_on_every_rank(found):
    rewards, prompts, keys = whole_batch()
    whole = gdpo.advantages(rewards, group_ids=prompts)
    for mine, result in (*found["words_as_ids"], *found["arrays_of_numpy"]):
        assert_close(result, whole[mine], 1e-6)  # of float32: groups stand in another order


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 2.0**-42), (torch.float32, 2e-6)])
def test_returns_of_tokens(found, dtype, tolerance):
    """Whitened by the merged moments of all ranks, which agree within 2^-44 relative; with float32
    within its roundings."""
    scores, values, mask = critic_batch()
    _, prompts, _ = whole_batch()
    gae = gdpo.token_advantages(estimator="verl::gae", row_rewards=scores, mask=mask, gamma=0.9,
                                values=values.to(dtype))
    rloo = gdpo.outcome_advantages(scores.to(dtype), estimator="openrlhf::rloo", mask=mask,
                                   group_ids=prompts, tokens_renorm="tokens", report=True)
    for of_rank in found["returns_of_tokens"]:
        mine = of_rank["mine"]
        for ours, whole in zip(of_rank[dtype], (*gae, *rloo[:2])):
            assert ours.dtype == whole.dtype == dtype
            assert_close(ours, whole[mine], tolerance)
            assert not ours[~mask[mine]].any()
        assert_close(of_rank[dtype][4], rloo.report.numbers, 1e-12)


def test_groups_of_one_size(found):
    rewards = torch.cat([rewards for rewards, _, _ in found["groups_of_one_size"]])
    whole = gdpo.advantages(rewards, group_size=4)
    assert torch.equal(torch.cat([a for _, a, _ in found["groups_of_one_size"]]), whole)
    assert torch.equal(torch.cat([a for _, _, a in found["groups_of_one_size"]]), whole)


def test_a_step_is_that_of_one_process(found):
    """Counts are the same, sums within their roundings in another order, gradients in each bit."""
    logp, old_logp, mask = tokens()
    logp.requires_grad_()
    counts = gdpo.count(mask=mask)
    loss, metrics = gdpo.PolicyLoss("dapo")(
        logp, old_logp=old_logp, mask=mask, counts=counts,
        advantages=torch.linspace(-1, 1, ROWS, dtype=torch.float64))
    loss.backward()
    for of_step, result, gradient in found["one_step"]:
        assert torch.equal(of_step, counts)
        assert torch.equal(result, found["one_step"][0][1])
        assert_close(gdpo.Metrics(result)["loss"], metrics["loss"], 1e-12)
        assert gdpo.Metrics(result)["rows"] == ROWS
        assert torch.equal(gradient.reshape(logp.shape), logp.grad)


def test_records_are_merged(found):
    logp, old_logp, mask = tokens()
    counts = gdpo.count(mask=mask)
    _, metrics = gdpo.PolicyLoss("dapo")(logp, old_logp=old_logp, mask=mask, counts=counts,
                                         advantages=torch.ones(ROWS, dtype=torch.float64))
    report = gdpo.mismatch(rollout_logp=old_logp, old_logp=logp, mask=mask)
    size = len(found["records"])
    for of_step, result, mismatch, numbers in found["records"]:
        assert torch.equal(of_step, counts)
        merged = gdpo.Metrics(result)
        for name in ("loss", "clip_fraction.sum", "rows", "normalizer.tokens"):
            assert_close(merged[name], metrics[name], 1e-12)
        # Sums are exact; the places of extremes are those of the ranks' own rows.
        for name in ("k3_kl", "kl", "token_ess", "scored", "ratio_max"):
            assert gdpo.Mismatch(mismatch)[name] == report[name]
        assert numbers.tolist() == [size, size * (size - 1) / 2]


def test_a_critic_is_that_of_one_process(found):
    """Moments merge within 2^-44; the places of extremes are those of the ranks' own rows."""
    values, returns, mask = tokens()
    whole = gdpo.whiten(values, mask, name="verl::masked_whiten")
    loss, metrics = gdpo.ValueLoss(clip=0.3)(
        values, returns=returns, old_values=returns, mask=mask, counts=gdpo.count(mask=mask))
    assert_close(sum(loss for _, _, loss, _ in found["critic"]), float(loss), 1e-12)
    for mine, whitened, _, result in found["critic"]:
        assert_close(whitened, whole[mine], 1e-12)
        assert torch.equal(result, found["critic"][0][3])
        for name, number in gdpo.ValueMetrics(result).items():
            assert_close(number, metrics[name], 1e-12)
    said = words_of(found, "bad_values_of_one_rank")
    assert said[0].startswith("ValueError: gdpo::whiten: mask: given (2, 2); needed: (2, 3)")
    assert all(words.startswith(f"ValueError: gdpo::whiten: rank 0 of {len(said)}: mask: given")
               for words in said[1:]), said


def test_reports_are_merged(found):
    rewards = torch.cat([rewards for rewards, _ in found["reports"]])
    whole = gdpo.advantages(rewards, group_size=4, report=True).report.numbers
    for _, numbers in found["reports"]:
        assert_close(numbers, whole, 1e-12)
        assert torch.equal(numbers, found["reports"][0][1])


def words_of(found, scenario):
    said = found[scenario]
    assert all(isinstance(words, str) for words in said), said
    return said


@pytest.mark.parametrize("scenario, failed, own, others", [
    ("an_error_of_one_rank", -1, "ValueError: gdpo::runtime::loss: name",
     "ValueError: gdpo::agree: rank {} of {}: gdpo::runtime::loss: name: given 'no'"),
    ("a_fault_of_one_rank", 0, "ZeroDivisionError: a fault of the caller's own",
     "RuntimeError: gdpo::agree: rank {} of {}: ZeroDivisionError: a fault of the caller's own"),
    ("an_error_while_counting", 0, "ValueError: gdpo::count: mask: given a list",
     "ValueError: gdpo::Step: rank {} of {}: gdpo::count: mask: given a list"),
    ("an_error_in_a_step", 0, "KeyError: 'labels'",
     "RuntimeError: gdpo::Step::finish: rank {} of {}: KeyError: 'labels'"),
    ("bad_rewards_of_one_rank", 0, "ValueError: gdpo::advantages: rewards:",
     "ValueError: gdpo::advantages: rank {} of {}: rewards:"),
    ("words_that_are_no_utf8", 0, "OSError: no file", "RuntimeError: gdpo::agree: rank {} of {}: "
     "OSError: no file a?"),
    ("long_words", 0, "ValueError: aé", "ValueError: gdpo::agree: rank {} of {}: ValueError: aéé"),
    ("no_values_on_one_rank", 0, "ValueError: gdpo::token_advantages: rank 0 of",
     "ValueError: gdpo::token_advantages: rank {} of {}: values: given no array"),
])
def test_an_error_of_one_rank_is_raised_on_all(found, scenario, failed, own, others):
    said = words_of(found, scenario)
    failed %= len(said)
    for rank, words in enumerate(said):
        assert words.startswith(own if rank == failed else others.format(failed, len(said))), words


@pytest.mark.parametrize("scenario, needed", [
    ("a_missing_micro_batch",
     "ValueError: gdpo::Step::finish: rank 1 of {}: micro-batches: given no result of number 0"),
    ("other_rewards", "ValueError: gdpo::advantages: rewards: given 1 rewards on rank 0 and 2 on "
     "rank 1; needed: the same rewards on all ranks"),
    ("other_settings", "ValueError: gdpo::advantages: settings: given ... 'gdpo'"),
    ("settings_that_differ", "ValueError: gdpo::agree_on: settings: given ... 3e-06 on rank 0 and "
     "... 6e-06 on rank 1"),
    ("another_call", "ValueError: gdpo::dist: calls: given all_merge on rank 0 and agree_on on "
     "rank 1"),
    ("counts_of_one_rank_alone", "ValueError: gdpo::all_merge: normalizer: given 3 tokens, 1 rows"),
    ("keys_twice", "ValueError: gdpo::advantages: keys: given the key 4 for a row of rank 0 and "
     "one of rank 1"),
    ("settings_of_long_characters", "ValueError: gdpo::agree_on: settings: given 'xé"),
    ("words_and_integers", "ValueError: gdpo::advantages: group_ids: given words on 1 ranks and "
     "integers on "),
    ("tokens_of_other_rows", "ValueError: gdpo::gather_tokens: batch: given 2 rows on rank 0 and 3 "
     "on rank 1"),
])
def test_ranks_that_do_not_fit_together(found, scenario, needed):
    said = words_of(found, scenario)
    assert len(set(said)) == 1
    assert said[0].startswith(needed.format(len(said))), said[0]


def test_settings_that_are_the_same(found):
    assert found["settings_that_are_the_same"] == [None] * len(found["advantages"])


def test_an_error_after_a_step_is_that_of_its_rank_alone(found):
    """And the ranks are in step afterwards."""
    first, *others = found["an_error_after_a_step"]
    assert first == ("late", len(found["advantages"]))
    assert others == [(None, len(found["advantages"]))] * len(others)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_transfer_that_is_interrupted(monkeypatch):
    """It is none that has succeeded, wherever the interrupt comes; and it stays what it is."""
    ranks = gdpo.Ranks.single()

    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt
    ranks._gather = _ranks._GATHER(interrupted)
    ranks._numbers = [0, 1, _ranks.ctypes.cast(ranks._gather, _ranks.ctypes.c_void_p).value]
    with pytest.raises(gdpo.CommunicationError):
        ranks.merge(torch.ones(3))
    gradient = torch.ones(4)
    with pytest.raises(gdpo.CommunicationError):
        gdpo.clip_grad_norm([gradient], 1.0, ranks=ranks)
    assert torch.equal(gradient, torch.ones(4))
    monkeypatch.setattr(_ranks.torch, "frombuffer", interrupted)  # within the transfer
    ranks._group, ranks._calls = None, 0
    ranks._gather = _ranks._GATHER(ranks._all_gather)
    ranks._numbers[2] = _ranks.ctypes.cast(ranks._gather, _ranks.ctypes.c_void_p).value
    with pytest.raises(KeyboardInterrupt):
        ranks.merge(torch.ones(3))


def test_the_cause_of_an_error_is_kept():
    cause = OSError("the cause")
    with pytest.raises(ValueError) as raised, gdpo.Ranks().agree():
        raise ValueError("the error") from cause
    assert raised.value.__cause__ is cause


def test_a_rank_that_does_not_come(found):
    first, *others = found["a_rank_that_does_not_come"]
    assert first.startswith("CommunicationError: gdpo.Ranks: rank 0 of"), first
    assert "waited 1." in first
    assert others == [None] * len(others)


def test_context_parallel(found):
    """A loss by sequences of rows whose tokens are on several ranks, in the order of the ranks or
    as ring attention deals them: loss, metrics and gradient of one process, in every bit."""
    size = len(found["parts_of_rows"])
    logp, old_logp, mask = tokens(width=6 * size)
    logp.requires_grad_()
    loss, metrics = gdpo.PolicyLoss("verl::gspo")(
        logp, old_logp=old_logp, mask=mask, counts=gdpo.count(mask=mask),
        advantages=torch.linspace(-1, 1, ROWS, dtype=torch.float64))
    loss.backward()
    for of_rank in found["parts_of_rows"]:
        assert set(of_rank) == {"consecutive", "ring"}
        for places, gradient, result in of_rank.values():
            assert torch.equal(gradient, logp.grad[:, places])
            assert torch.equal(result, metrics.result)


def test_context_parallel_of_packed_tokens(found):
    whole, _, _ = found["packed_parts"][0]
    size = len(found["packed_parts"])
    lengths = [sum(i + r + 1 for r in range(size)) for i in range(5)]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    logp = whole.clone().requires_grad_()
    loss, _ = gdpo.PolicyLoss("dapo sequence")(
        logp, offsets=offsets, counts=gdpo.count(logp=logp, offsets=offsets),
        advantages=torch.linspace(-1, 1, 5, dtype=torch.float64))
    loss.backward()
    for rank, (_, gathered, gradient) in enumerate(found["packed_parts"]):
        assert torch.equal(gathered, whole)
        mine = torch.cat([torch.arange(i + rank + 1) + offsets[i] + sum(i + r + 1 for r in
                                                                       range(rank))
                          for i in range(5)])
        assert torch.equal(gradient, logp.grad[mine])


def test_the_norm_of_shards(found):
    for rank, (clipped, same, whole, shards, in_full) in enumerate(found["clipped_shards"]):
        norm = torch.stack([part.double().square().sum() for part in whole]).sum().sqrt().item()
        assert_close(clipped.norm, norm, 1e-12)
        assert clipped == found["clipped_shards"][0][0]
        assert (clipped.clipped, clipped.equal_ranks) == (True, 0)
        for part, shard in zip(whole, shards):
            assert_close(shard, part.chunk(len(found["clipped_shards"]))[rank] * (1.5 / norm), 1e-6)
        full = torch.stack([part.double().square().sum() for part in whole[:2]]).sum().sqrt().item()
        assert_close(same.norm, full, 1e-12)  # each counts once, though all ranks have it
        assert same.differing_ranks == 0
        for part, scaled in zip(whole, in_full):
            assert_close(scaled, part * (1.5 / full), 1e-6)


@pytest.mark.parametrize("scenario", ["gradient_of_ddp", "gradient_of_fsdp",
                                      "gradient_of_deepspeed_arithmetic"])
def test_engines_that_average(found, scenario):
    """grad_scale makes their gradient that of one batch of all rows, within 1e-12: its products are
    of doubles, and its sums have some hundred terms."""
    states = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    targets = torch.randint(5, (12, 4), generator=torch.Generator().manual_seed(9))
    mask = torch.arange(4) < torch.arange(12)[:, None] % 4 + 1
    model = small_model()
    logp = torch.log_softmax(model(states), -1).gather(-1, targets[..., None])[..., 0]
    loss, _ = gdpo.PolicyLoss("dapo")(logp, mask=mask, counts=gdpo.count(mask=mask),
                                      advantages=torch.linspace(-1, 2, 12, dtype=torch.float64))
    loss.backward()
    for of_rank in found[scenario]:
        assert not isinstance(of_rank, str), of_rank
        gradients = {name.removeprefix("module."): gradient for name, gradient in of_rank.items()}
        assert set(gradients) == {name for name, _ in model.named_parameters()}
        for name, parameter in model.named_parameters():
            assert_close(gradients[name], parameter.grad, 1e-12)


def test_shards_of_fsdp(found):
    for clipped, scaled, whole in found["fsdp_clips_its_shards"]:
        norm = torch.stack([g.square().sum() for g in whole.values()]).sum().sqrt().item()
        assert_close(clipped.norm, norm, 1e-12)
        for name, gradient in whole.items():
            assert_close(scaled[name], gradient * (0.5 / norm), 1e-12)


def test_one_process():
    """Without torch.distributed everything works as with one rank."""
    ranks = gdpo.Ranks()
    assert (ranks.rank, ranks.size) == (0, 1)
    rewards, prompts, keys = whole_batch()
    assert torch.equal(gdpo.advantages(rewards, group_ids=prompts, ranks=ranks),
                       gdpo.advantages(rewards, group_ids=prompts))
    counts = gdpo.count(mask=torch.ones(2, 3))
    assert torch.equal(ranks.merge(counts), counts)
    with pytest.raises(ZeroDivisionError), ranks.agree():
        raise ZeroDivisionError
    with pytest.raises(TypeError, match="cannot be pickled"):
        __import__("copy").copy(ranks)


@pytest.mark.parametrize("slip, words", [
    (lambda: gdpo.Ranks(2), "group: given 2; needed: a process group"),
    (lambda: gdpo.Ranks(deadline="5"), "deadline: given '5'; needed: a number"),
    *((lambda call=call: call(ranks=1), "ranks: given 1; needed: a gdpo.Ranks") for call in (
        lambda **k: gdpo.advantages([1.0], group_size=1, **k),
        lambda **k: gdpo.token_advantages(row_rewards=[1.0], values=torch.ones(1, 2), **k),
        lambda **k: gdpo.outcome_advantages([1.0], group_size=1, mask=torch.ones(1, 2), **k),
        lambda **k: gdpo.whiten(torch.ones(2), **k), lambda **k: gdpo.Step([], **k),
        lambda **k: gdpo.clip_grad_norm([], 1.0, **k),
        lambda **k: gdpo.RunningMoments().update([1.0], **k))),
    (lambda: gdpo.Ranks().gather_rows([1.0], group_size=1).own(torch.ones(2)),
     "all_rows: given 2 rows; needed: a tensor of the 1 rows"),
    (lambda: gdpo.Ranks(deadline=0), "deadline: given 0; needed: seconds"),
    (lambda: gdpo.Ranks().merge([1.0]), "record: given a list; needed: counts"),
    (lambda: gdpo.Ranks().gather_tokens(logp=torch.zeros(1, 2), advantages=torch.zeros(1)),
     "gather_tokens: advantages: given, and not an array of tokens"),
    (lambda: gdpo.advantages([1.0], group_size=1, keys=[1]), "keys: given, without ranks"),
    (lambda: gdpo.advantages([1.0], group_size=1, keys=[1], ranks=gdpo.Ranks()),
     "keys without group_ids"),
    (lambda: gdpo.advantages([1.0], group_ids=[1], rollout_ids=[1], ranks=gdpo.Ranks()),
     "rollout_ids: given, with ranks"),
    (lambda: gdpo.grad_scale("fdsp", ranks=2), "engine: given 'fdsp'; needed: one of sum, ddp"),
    (lambda: gdpo.grad_scale("ddp", ranks=0), "ranks: given 0"),
    (lambda: gdpo.grad_scale("ddp", ranks=2.0), "ranks: given a float; needed: an integer"),
])
def test_slips(slip, words):
    with pytest.raises(ValueError) as refused:
        slip()
    assert words in str(refused.value)
