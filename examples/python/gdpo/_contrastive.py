"""The loss over groups of rows as a module."""
from typing import TYPE_CHECKING, Any, Optional

import torch

from ._advantages import grouping
from ._library import check_tensors, check_type, refuse_hidden_gradient
from ._load import ops
from ._loss_module import LossModule
from ._measured import Metrics
from ._names import ARRAYS, in_words_of, raise_ours, with_group_offsets
from ._policy_loss import LossAndMetrics, batch_arrays, check_gradient, on_cpu
from ._rows import check_floating
from ._settings import line, takes_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import ContrastiveSettings
    from ._policy_loss import typed_as


@takes_settings("contrastive")
class ContrastiveLoss(LossModule):
    """REAL (arXiv 2602.05630): contrasts the good rows of a group with its bad ones.

        real = gdpo.ContrastiveLoss("real", tau=0.5, beta=0.0)
        loss, metrics = real(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                             group_size=8, counts=gdpo.count(mask=mask, group_size=8))
        loss.backward()

    With S_i the mean over the tokens of row i of logp - old_logp, divided by tau,

        loss = (sum over groups of log(1 + sum of e^S_i over the rows with A_i <= 0)
                                 + log(1 + sum of e^-S_i over the rows with A_i > 0)) / groups
               + KL terms

    with its analytic gradient. Of the advantages the signs alone matter. A group without rows of
    both signs adds 0, and counts.

    name: one of `gdpo.contrastive_losses()`: "real", or "ms_swift::real" with the settings of
      ms-swift's loss_type="real". What you give replaces one of its settings, as a keyword or
      behind the name, as in "real tau=0.3".
    settings: those that `gdpo.loss_settings(name)` lists with their values; each also by its whole
      name, "kl.beta" or kl_beta. Bounds are (lo, hi). The aggregate is that of the KL terms, as
      verl names it, but scale is a factor of the whole loss.
      {settings}

    The formulas stand in include/gdpo/loss/contrastive.hpp. Types of numbers are those of
    PolicyLoss. It runs on the CPU: tensors of a device are copied there, which waits, and loss and
    gradient come back; the metrics stay on the CPU.

    Errors: ValueError, as from PolicyLoss.
    """

    _what = "contrastive"

    def __init__(self, name: str = "real", **settings: "Unpack[ContrastiveSettings]") -> None:
        super().__init__(line("gdpo.ContrastiveLoss", (name,), settings))

    def forward(self, logp: torch.Tensor, *, counts: torch.Tensor,
                advantages: Optional[torch.Tensor] = None,
                token_advantages: Optional[torch.Tensor] = None, group_size: int = 0,
                group_ids: Any = None, group_offsets: Any = None,
                old_logp: Optional[torch.Tensor] = None, ref_logp: Optional[torch.Tensor] = None,
                rollout_logp: Optional[torch.Tensor] = None,
                teacher_logp: Optional[torch.Tensor] = None, mask: Optional[torch.Tensor] = None,
                completion_mask: Optional[torch.Tensor] = None,
                offsets: Optional[torch.Tensor] = None, kl_weights: Optional[torch.Tensor] = None,
                entropies: Optional[torch.Tensor] = None,
                truncated: Optional[torch.Tensor] = None) -> LossAndMetrics:
        """The loss of one (micro-)batch, which may not cut a group.

        logp: log-probs of the tokens under the policy being trained, in nats: (rows, tokens),
          (prompts, completions, tokens), packed (tokens) with offsets, or a nested tensor of
          jagged layout. All arrays of tokens have its shape. Only it gets a gradient.
        counts: those of the whole step, from `count(..., group_size=...)`: the last of them, the
          number of groups, divides the groups, the others the KL terms.
        advantages: (rows), or token_advantages in the shape of logp, whose mean counts.
        One of these says which rows belong together, as for `advantages`: group_size (that many in
          a row), group_ids (rows), integers or strings in any order, or group_offsets (groups + 1).
        old_logp: under the policy that sampled; absent: every S is 0.
        ref_logp, rollout_logp, teacher_logp: for KL terms against them. kl_weights: their factors.
        mask: not 0 at the tokens of the loss; masked tokens may hold anything, even NaN.
          completion_mask: the tokens that lengths count.
        entropies, truncated (rows): for metrics.

        Of the metrics, `policy_loss` is the part of the groups, `ratio` is that of each row,
        e^(tau S), and surrogate and loss of the tokens are not measured.

        Errors: ValueError for types, shapes, devices, groups, counts and settings that do not fit,
        and for other log-probs that require a gradient where logp does not.
        """
        function = "gdpo::ContrastiveLoss"
        check_type(function, "logp", logp)
        check_floating(function, "logp", logp.dtype, logp.is_floating_point())
        refuse_hidden_gradient(logp, "gdpo.ContrastiveLoss")
        check_type(function, "counts", counts)
        arrays = batch_arrays(function, {
            "logp": logp, "old_logp": old_logp, "ref_logp": ref_logp, "rollout_logp": rollout_logp,
            "teacher_logp": teacher_logp, "token_advantages": token_advantages,
            "entropies": entropies, "kl_weights": kl_weights, "mask": mask,
            "completion_mask": completion_mask, "advantages": advantages, "truncated": truncated,
            "offsets": offsets})
        size, ids, group_begins = grouping(function, arrays[0].device, group_size, group_ids,
                                           group_offsets)
        check_tensors(function, {"logp": arrays[0], "counts": counts, "group_ids": ids,
                                 "group_offsets": group_begins})
        check_gradient(function, logp, "logp", dict(zip(ARRAYS, arrays)))
        differentiable = torch.is_grad_enabled() and logp.requires_grad
        try:
            with torch.set_grad_enabled(differentiable):
                loss, _, result = ops.contrastive_loss(
                    self.line, counts.cpu(), differentiable, *on_cpu(arrays), size,
                    *on_cpu((ids, group_begins)))
        except (RuntimeError, ValueError) as error:
            named = in_words_of(function)
            raise_ours(error, lambda message: with_group_offsets(named(message)))
            raise
        return LossAndMetrics(loss.to(logp.device), Metrics(result))

    if TYPE_CHECKING:  # of torch.nn.Module.__call__ type checkers know nothing
        @typed_as(forward)
        def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...
