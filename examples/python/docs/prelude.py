"""What the examples of the package's docstrings begin with: a step of four prompts."""
import torch

import gdpo

torch.manual_seed(0)
prompts, completions, width, vocabulary = 4, 8, 6, 11
rows = prompts * completions                            # 8 completions of each prompt in a row

# What the environment says: two rewards of each completion, and their sum.
rewards = torch.rand(rows, 2).round(decimals=1)         # (rows, rewards)
scores = rewards.sum(dim=1)                             # (rows)

# What was sampled, and what models say of it, in nats.
lengths = torch.randint(2, width + 1, (rows,))          # tokens of each completion
mask = torch.arange(width) < lengths[:, None]           # (rows, tokens), True where there is one
tokens = torch.randint(vocabulary, (rows, width))
logits = torch.randn(rows, width, vocabulary, requires_grad=True)
logp, entropies, _ = gdpo.token_logprobs(logits, tokens, mask=mask)
logp = logp.detach().requires_grad_()                        # the policy being trained
old_logp = logp.detach() - 0.05 * torch.rand(rows, width)    # the policy before this step
ref_logp = logp.detach() - 0.2 * torch.rand(rows, width)     # the reference
rollout_logp = old_logp + 0.02 * torch.randn(rows, width)    # the sampling engine
values = torch.rand(rows, width)                             # a critic before each token

# The step itself.
advantages, report = gdpo.advantages(rewards, group_size=completions, report=True)
returns = gdpo.token_advantages(row_rewards=scores, values=values, mask=mask).returns
counts = gdpo.count(mask=mask)
loss, metrics = gdpo.PolicyLoss("dapo")(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                                        counts=counts)

# Agents: two roles; tasks whose episodes have two steps each, in one of three states.
agents = torch.arange(rows) % 2
tasks = torch.arange(prompts).repeat_interleave(completions)
episodes = torch.arange(rows // 2).repeat_interleave(2)
states = torch.randint(3, (rows,))
ended = torch.arange(rows) % 2 == 1
