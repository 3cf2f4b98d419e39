"""What mypy and pyright refuse: each line that ends with `# refused: MYPY, PYRIGHT`.

These are the codes of the errors that the two must find there, and they may find none elsewhere.
The file does not run.
"""
import torch

import gdpo

rewards = torch.zeros(4, 2)
logp = torch.zeros(4, 3, requires_grad=True)
mask = torch.ones(4, 3)
counts = gdpo.count(mask=mask)
advantages = gdpo.advantages(rewards, group_size=2)
policy_loss = gdpo.PolicyLoss("dapo")
real = gdpo.ContrastiveLoss("real")

# A keyword that a call does not have.
gdpo.advantages(rewards, group_sise=2)  # refused: call-overload, reportCallIssue
gdpo.advantages(rewards, group_size=2, scale_epsilon=0)  # refused: call-overload, reportCallIssue
gdpo.count(masks=mask)  # refused: call-arg, reportCallIssue
gdpo.explain(rewards, group=0, group_size=2, name="a")  # refused: call-arg, reportCallIssue
gdpo.token_advantages(row_rewards=rewards, gama=0.9)  # refused: call-arg, reportCallIssue
gdpo.outcome_advantages(rewards, placment="each")  # refused: call-overload, reportCallIssue
gdpo.prepare("overlong", truncate=mask)  # refused: call-arg, reportCallIssue
gdpo.token_logprobs(logp, mask, temperatur=0.7)  # refused: call-arg, reportCallIssue
gdpo.PolicyLoss("dapo", lo=0.2)  # refused: call-arg, reportCallIssue
gdpo.ContrastiveLoss("real", tua=0.5)  # refused: call-arg, reportCallIssue
policy_loss(logp, counts=counts, advantage=advantages)  # refused: call-arg, reportCallIssue
real(logp, counts=counts, groups=2)  # refused: call-arg, reportCallIssue
gdpo.numpy.count(masks=[1])  # refused: call-arg, reportCallIssue
gdpo.numpy.PolicyLoss("dapo", lo=0.2)  # refused: call-arg, reportCallIssue
gdpo.jax.whiten([1.0], masks=[1])  # refused: call-arg, reportCallIssue
gdpo.jax.ValueLoss()([1.0], counts=counts, return_=[1])  # refused: call-arg, reportCallIssue

# An argument that is missing.
policy_loss(logp, advantages=advantages)  # refused: call-arg, reportCallIssue
gdpo.mismatch(mask=mask)  # refused: call-arg, reportCallIssue

# A value of another type.
policy_loss(logp, counts=[4, 2, 2, 0])  # refused: arg-type, reportArgumentType
gdpo.count(mask=[[1, 1], [1, 0]])  # refused: arg-type, reportArgumentType
gdpo.advantages(rewards, group_size="2")  # refused: call-overload, reportArgumentType
gdpo.PolicyLoss("dapo", low="0.2")  # refused: arg-type, reportArgumentType
gdpo.PolicyLoss("dapo", kl_input=1.0)  # refused: arg-type, reportArgumentType
gdpo.PolicyLoss(0.2)  # refused: arg-type, reportArgumentType
gdpo.diagnose(counts)  # refused: arg-type, reportArgumentType
gdpo.loss_settings(gdpo.PolicyLoss)  # refused: arg-type, reportArgumentType

# A name that is not there.
_, metrics = policy_loss(logp, counts=counts, advantages=advantages)
print(metrics.clip_fraction)  # refused: attr-defined, reportAttributeAccessIssue
metrics.to_dictionary()  # refused: attr-defined, reportAttributeAccessIssue
gdpo.PolicyLos("dapo")  # refused: attr-defined, reportAttributeAccessIssue
print(gdpo.token_logprobs(logp, mask).logprobs)  # refused: attr-defined, reportAttributeAccessIssue
print(gdpo.RunningMoments().std)  # refused: attr-defined, reportAttributeAccessIssue

# A result that is taken for something else.
total: float = gdpo.advantages(rewards, group_size=2)  # refused: assignment, reportAssignmentType
step = policy_loss.from_logits(logp, mask, counts=counts)
print(step.entropy)  # refused: attr-defined, reportAttributeAccessIssue
