"""What mypy --strict and pyright's strict mode accept: each public name with its type.

The file runs, too. A test asks for every name of gdpo.__all__ and every member of a class in it.
"""
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import jax
import numpy
import torch
from typing_extensions import assert_type

import gdpo

rewards = torch.rand(4, 3)
scores = rewards.sum(dim=1)
mask = torch.ones(4, 3, dtype=torch.bool)
tokens = torch.zeros(4, 3, dtype=torch.int64)
logits = torch.zeros(4, 3, 5, requires_grad=True)
old_logp = torch.full((4, 3), -1.6)
ids = torch.tensor([0, 0, 1, 1])
array = numpy.zeros(4)

# Names and settings.
assert_type(gdpo.estimators(), List[str])
assert_type(gdpo.losses(), List[str])
assert_type(gdpo.contrastive_losses(), List[str])
assert_type(gdpo.token_estimators(), List[str])
assert_type(gdpo.outcome_estimators(), List[str])
assert_type(gdpo.step_estimators(), List[str])
assert_type(gdpo.token_baselines(), List[str])
assert_type(gdpo.value_losses(), List[str])
assert_type(gdpo.whitenings(), List[str])
assert_type(gdpo.prepasses(), List[str])
assert_type(gdpo.shapings(), List[str])
assert_type(gdpo.instruction_set(), str)
assert_type(gdpo.loss_settings("dapo"), List[gdpo.Setting])
assert_type(gdpo.estimator_settings("trl::gdpo")[0].meaning, str)

# Rewards, in the type of the array that is given.
assert_type(gdpo.shape_rewards(scores, "clip min=-1 max=1"), torch.Tensor)
assert_type(gdpo.shape_rewards([0.5, None], ["clip min=-1 max=1"]), torch.Tensor)
running = gdpo.RunningMoments(decay=0.9)
assert_type(running, gdpo.RunningMoments)
assert_type(running.normalize(scores), torch.Tensor)
assert_type((running.mean, running.divisor, running.count), Tuple[float, float, int])
running.update(scores)
assert_type(running.state_dict(), Dict[str, List[float]])
running.load_state_dict(running.state_dict())
scale = gdpo.ReturnScale(gamma=0.99)
assert_type(scale, gdpo.ReturnScale)
assert_type(scale(scores), torch.Tensor)
assert_type((scale.divisor, scale.count), Tuple[float, int])
assert_type(scale.normalize(scores), torch.Tensor)
baseline = gdpo.EmaBaseline(decay=0.95)
assert_type(baseline, gdpo.EmaBaseline)
assert_type(baseline(scores, ids), torch.Tensor)
assert_type(baseline.baselines, List[float])
baseline.load_state_dict(baseline.state_dict())

# Advantages.
assert_type(gdpo.advantages(rewards, group_size=2), torch.Tensor)
assert_type(gdpo.advantages([0.0, 1.0], group_size=2), torch.Tensor)
advantages, report = gdpo.advantages(rewards, group_size=2, report=True)
assert_type(report, gdpo.Report)
assert_type((report["rows"], report.rewards, report.numbers), Tuple[float, int, torch.Tensor])
assert_type(report.names(), List[str])
assert_type(report.to_dict("train/"), Dict[str, float])
assert_type(report.merge(report), gdpo.Report)
assert_type(gdpo.Report.of_numbers(report.numbers), gdpo.Report)
both = gdpo.token_advantages(row_rewards=scores, values=old_logp, mask=mask, gamma=0.99)
assert_type(both, gdpo.AdvantagesAndReturns)
assert_type(both.returns, torch.Tensor)
outcome = gdpo.outcome_advantages(rewards, group_size=2, mask=mask)
assert_type(outcome, gdpo.AdvantagesAndReturns)
with_report = gdpo.outcome_advantages(rewards, group_size=2, mask=mask, report=True)
assert_type(with_report, gdpo.AdvantagesReturnsAndReport)
assert_type(with_report.report, gdpo.Report)
assert_type(gdpo.step_advantages(scores, group_size=4, episode_ids=ids, state_ids=ids),
            torch.Tensor)
assert_type(gdpo.optimal_token_baseline(both.returns, logp=old_logp, group_size=2,
                                        sum_pi_squared=torch.full((4, 3), 0.2), mask=mask),
            torch.Tensor)
explanation = gdpo.explain(rewards, group_size=2, group=1)
assert_type(explanation, gdpo.Explanation)
assert_type(explanation.stages, Dict[str, str])
assert_type((explanation.notes, explanation.over), Tuple[List[str], str])

# Constraints.
pid = gdpo.PidLagrangian(limits=[0.9], scale=0.3)
assert_type(pid, gdpo.PidLagrangian)
steps = pid.update(sums=[1.0], counts=[4])
assert_type(steps, List[gdpo.PidStep])
assert_type((pid.multipliers, pid.last), Tuple[List[float], List[gdpo.PidStep]])
assert_type(pid.constraints([1]), List[Tuple[int, float, float, float, str]])
assert_type(pid.state_dict(), Dict[str, torch.Tensor])
pid.move(limits=[0.95])
pid.load_state_dict(pid.state_dict())

# Log-probs.
output = gdpo.token_logprobs(logits, tokens, mask=mask, temperature=1.0)
assert_type(output, gdpo.TokenLogprobs)
assert_type((output.logp, output.entropy, output.logsumexp),
            Tuple[torch.Tensor, torch.Tensor, torch.Tensor])

# Pre-passes, counts and losses.
prepared = gdpo.prepare("trl::token_truncate", old_logp=old_logp, rollout_logp=old_logp, mask=mask)
assert_type(prepared, gdpo.Prepared)
assert_type(prepared.weights, Optional[torch.Tensor])
assert_type(prepared.arrays(), Dict[str, torch.Tensor])
counts = 2 * gdpo.count(mask=mask, group_size=2)  # of two micro-batches
assert_type(counts, torch.Tensor)
assert_type(gdpo.count(mask=prepared.mask), torch.Tensor)
assert_type(gdpo.count_group_tokens(mask=mask, group_size=2), torch.Tensor)
policy_loss = gdpo.PolicyLoss("dapo", low=0.2, high=0.28, kl="k3", beta=0.0)
assert_type(policy_loss, gdpo.PolicyLoss)
assert_type(policy_loss.line, str)
loss, metrics = policy_loss(output.logp, old_logp=old_logp, mask=mask, advantages=advantages,
                            counts=counts)
assert_type(loss, torch.Tensor)
assert_type(metrics, gdpo.Metrics)
assert_type(policy_loss.forward(output.logp, mask=mask, advantages=advantages,
                                counts=counts).metrics, gdpo.Metrics)
step = policy_loss.from_logits(logits, tokens, old_logp=old_logp, mask=mask, counts=counts,
                               advantages=advantages)
assert_type((step.loss, step.metrics, step.logp, step.entropies),
            Tuple[torch.Tensor, gdpo.Metrics, torch.Tensor, torch.Tensor])
real = gdpo.ContrastiveLoss("real", tau=0.5, beta=0.0)
assert_type(real, gdpo.ContrastiveLoss)
assert_type(real.line, str)
assert_type(real(output.logp, advantages=advantages, group_size=2, counts=counts,
                 mask=mask).loss, torch.Tensor)
assert_type(real.forward(output.logp, advantages=advantages, group_size=2, counts=counts).metrics,
            gdpo.Metrics)
entropy = gdpo.AdaptiveEntropy(0.0, target=0.2)
assert_type(entropy, gdpo.AdaptiveEntropy)
assert_type((entropy.coef, entropy.update(0.3)), Tuple[float, float])
assert_type(entropy.state_dict(), Dict[str, float])
entropy.load_state_dict(entropy.state_dict())

# Several micro-batches, and ranks.
ranks = gdpo.Ranks()
assert_type(ranks, gdpo.Ranks)
assert_type(gdpo.Ranks.single(), gdpo.Ranks)
assert_type((ranks.rank, ranks.size), Tuple[int, int])
assert_type(gdpo.advantages(rewards, group_ids=ids, keys=torch.arange(4), ranks=ranks),
            torch.Tensor)
assert_type(ranks.merge(gdpo.count(mask=mask)), torch.Tensor)
assert_type(ranks.merge(metrics), gdpo.Metrics)
assert_type(ranks.merge(report), gdpo.Report)
with ranks.agree():
    ranks.agree_on(policy_loss, "run 17")
gathered = ranks.gather_rows(rewards, group_size=2)
assert_type(gathered, gdpo.GatheredRows)
assert_type((gathered.arguments, gathered.own_rows, gathered.own(advantages)),
            Tuple[Dict[str, Any], torch.Tensor, torch.Tensor])
whole = ranks.gather_tokens(logp=old_logp, mask=mask)
assert_type(whole, gdpo.WholeTokens)
assert_type(whole.arrays, Dict[str, torch.Tensor])
assert_type(gdpo.grad_scale("ddp", ranks=ranks), float)
with gdpo.Step([gdpo.count(mask=mask)], ranks=ranks) as one_step:
    assert_type(one_step, gdpo.Step)
    assert_type(one_step.counts, torch.Tensor)
    one_step.add(0, policy_loss(old_logp, advantages=advantages, mask=mask,
                                counts=one_step.counts).metrics)
assert_type((one_step.metrics, one_step.report), Tuple[gdpo.Metrics, Optional[gdpo.Report]])
given_step = gdpo.Step([])
given_step.set_given(2.0)
assert_type(given_step.finish(), gdpo.Metrics)
plan = gdpo.plan(4, mini_batches=2)
assert_type(plan, gdpo.Plan)
assert_type((plan.steps, plan.rows(0), plan.dropped(0)), Tuple[int, torch.Tensor, torch.Tensor])
packing = gdpo.pack([1, 2, 3], 4)
assert_type(packing, gdpo.Packing)
assert_type((packing.rows(0), packing.offsets(0), packing.tokens(0), packing.waste),
            Tuple[torch.Tensor, torch.Tensor, int, float])
chosen = gdpo.select_groups(rewards, group_size=2)
assert_type(chosen, gdpo.SelectedGroups)
assert_type((chosen.rows, chosen.verdicts), Tuple[torch.Tensor, List[str]])
clipped = gdpo.clip_grad_norm([torch.ones(3)], 1.0)
assert_type(clipped, gdpo.ClippedGradient)
assert_type((clipped.norm, clipped.take_step), Tuple[float, bool])
gdpo.polyak([torch.ones(3)], [torch.zeros(3)], 0.5)
try:
    ranks.agree_on("settings")
except gdpo.CommunicationError as error:
    assert_type(error, gdpo.CommunicationError)

# The critic.
value_loss = gdpo.ValueLoss("verl::value_loss", clip=0.2)
assert_type(value_loss, gdpo.ValueLoss)
of_critic = value_loss(old_logp, old_values=old_logp, returns=both.returns, mask=mask,
                       counts=2 * gdpo.count(mask=mask))
assert_type((of_critic.loss, of_critic.metrics), Tuple[torch.Tensor, gdpo.ValueMetrics])
assert_type(of_critic.metrics.names(), List[str])
assert_type(of_critic.metrics.mean("error"), float)
assert_type(of_critic.metrics.to_dict("critic/"), Dict[str, float])
assert_type(of_critic.metrics.explained_variance(1e-5), float)
assert_type(of_critic.metrics.merge(of_critic.metrics), gdpo.ValueMetrics)
assert_type(gdpo.whiten(both.advantages, mask, name="verl::masked_whiten"), torch.Tensor)

# What was measured.
assert_type((metrics["loss"], metrics.mean("ratio")), Tuple[float, float])
assert_type((metrics.names(), metrics.result), Tuple[List[str], torch.Tensor])
assert_type(dict(metrics), Dict[str, float])
assert_type(metrics.to_dict("train/"), Dict[str, float])
assert_type(metrics.merge(metrics), gdpo.Metrics)
found = gdpo.mismatch(old_logp=old_logp, rollout_logp=old_logp, mask=mask)
assert_type(found, gdpo.Mismatch)
assert_type((found["k3_kl"], found.names(), found.data, found.cpu()),
            Tuple[float, List[str], torch.Tensor, torch.Tensor])
assert_type(dict(found), Dict[str, float])
assert_type(found.to_dict("verl"), Dict[str, float])
assert_type(found.merge(found), gdpo.Mismatch)
findings = gdpo.diagnose(metrics, report, found, later_step=True, clip_fraction_max=0.3)
assert_type(findings, List[gdpo.Finding])
assert_type([finding.figure for finding in findings], List[float])

# A trainer's configuration.
given = gdpo.from_config("trl", {"loss_type": "dapo"})
assert_type(given, gdpo.Configured)
assert_type(given.explain(), str)
assert_type((given.estimator, given.corrections), Tuple[Optional[str], Tuple[str, ...]])
assert_type(given.loss, Union[gdpo.PolicyLoss, gdpo.ContrastiveLoss, None])
assert_type(given.unsupported, Mapping[str, str])

# Arrays of NumPy, and objects of which nothing is known, as they come from other libraries.
of_numpy = gdpo.advantages(array, group_size=2)
numpy_mean: Any = of_numpy.mean()

# The calls without PyTorch.
table = numpy.zeros((4, 3))
array_counts = gdpo.numpy.count(mask=numpy.ones((4, 3)))
of_arrays = gdpo.numpy.PolicyLoss("dapo", low=0.1)(table, advantages=array, counts=array_counts)
assert_type(of_arrays, gdpo.numpy.PolicyLossAndGradients)
assert_type(of_arrays.metrics, gdpo.Metrics)
assert_type(gdpo.numpy.token_advantages(row_rewards=array, values=table, gamma=0.9),
            gdpo.numpy.AdvantagesAndReturns)
assert_type(gdpo.jax.count(mask=numpy.ones((4, 3))), jax.Array)
of_jax = gdpo.jax.PolicyLoss("dapo", low=0.1)(table, advantages=array, counts=array_counts)
assert_type(of_jax, gdpo.jax.LossAndMetrics)
assert_type(gdpo.jax.token_advantages(row_rewards=array, values=table, gamma=0.9),
            gdpo.jax.AdvantagesAndReturns)
