"""Pre-passes: what is decided from whole rows or the batch before the loss."""
from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Union

import torch

from ._library import check_tensors
from ._load import ops
from ._names import ARRAYS, did_you_mean, our_errors
from ._numbers import shown
from ._policy_loss import batch_arrays
from ._settings import REACHED_BY, prepasses, reaches_of
from ._settings import makes as _makes

makes = torch.compiler.assume_constant_result(_makes)


class Prepared(NamedTuple):
    """What pre-passes decided, in the shape of the tokens; `arrays()` goes into PolicyLoss.

        prepared = gdpo.prepare("trl::token_truncate", old_logp=old_logp,
                                rollout_logp=rollout_logp, mask=mask)
        loss, metrics = gdpo.PolicyLoss("dapo")(
            logp, old_logp=old_logp, advantages=advantages, **prepared.arrays(),
            counts=gdpo.count(mask=prepared.mask))
    """

    mask: torch.Tensor  #: uint8, the tokens that are left.
    # Each is None unless it was given or a pre-pass makes it: a loss is faster without weights.
    weights: Optional[torch.Tensor]  #: Factors of the surrogate; 1 at masked tokens.
    kl_weights: Optional[torch.Tensor]  #: Factors of the KL terms; 1 at masked tokens.
    #: Factors of the entropies, 1 at masked tokens; of "reach=entropy".
    entropy_weights: Optional[torch.Tensor]
    #: Logs of the weights of the ratio, 0 at masked tokens; of "reach=level".
    level_log_weights: Optional[torch.Tensor]
    entropy_threshold: torch.Tensor  #: Of "top_entropy", in nats; else infinite.

    def arrays(self) -> Dict[str, torch.Tensor]:
        """Mask and weights, to be given to PolicyLoss: `policy_loss(logp, **prepared.arrays())`."""
        arrays = {name: getattr(self, name) for name in ("mask", *REACHED_BY)}
        return {name: array for name, array in arrays.items() if array is not None}

    def __repr__(self) -> str:
        words = [f"mask: {int(self.mask.count_nonzero())} of {self.mask.numel()} tokens"]
        words += [f"{name}: {float(array.min()):.6g} to {float(array.max()):.6g}"
                  for name, array in self.arrays().items() if name != "mask" and array.numel()]
        words.append(f"entropy_threshold: {float(self.entropy_threshold):.6g}")
        return shown("gdpo.Prepared", words)


def made(array: Optional[torch.Tensor]) -> torch.Tensor:
    """An array of `Prepared` that one of the pre-passes makes, so that it is there."""
    assert array is not None
    return array


def _check_names(passes: Iterable[str]) -> None:
    for line in passes:
        name = line.split(" ")[0]
        if name not in prepasses():
            known = ", ".join(prepasses()).replace("top_entropy", "top_entropy QUANTILE")
            raise ValueError(f"gdpo::prepare: passes: given {line!r}; needed: one of {known}"
                             f"{did_you_mean(name, prepasses())}")


def check_lines(passes: Iterable[str]) -> None:
    """Raises ValueError for lines of `prepare` with unknown names or settings."""
    passes = list(passes)
    _check_names(passes)
    for line in passes:
        reaches_of(line)


def prepare(passes: Union[str, Sequence[str]], *, logp: Optional[torch.Tensor] = None,
            old_logp: Optional[torch.Tensor] = None, rollout_logp: Optional[torch.Tensor] = None,
            mask: Optional[torch.Tensor] = None, offsets: Optional[torch.Tensor] = None,
            advantages: Optional[torch.Tensor] = None,
            token_advantages: Optional[torch.Tensor] = None,
            weights: Optional[torch.Tensor] = None, kl_weights: Optional[torch.Tensor] = None,
            entropy_weights: Optional[torch.Tensor] = None,
            entropies: Optional[torch.Tensor] = None, tags: Optional[torch.Tensor] = None,
            truncated: Optional[torch.Tensor] = None,
            segments: Optional[torch.Tensor] = None, degenerate: Optional[torch.Tensor] = None,
            groups: Optional[torch.Tensor] = None,
            level_log_weights: Optional[torch.Tensor] = None,
            teacher_logp: Optional[torch.Tensor] = None) -> Prepared:
    """Runs pre-passes over a batch; count and PolicyLoss then take what it returns.

        prepared = gdpo.prepare(["verl::token_is clip.hi=2", "top_entropy 0.8"], mask=mask,
                                old_logp=old_logp, rollout_logp=rollout_logp, entropies=entropies)
        counts = gdpo.count(mask=prepared.mask)

    passes: at most twelve, a weight with a mask being two. Names of `prepasses()`, or one name,
      with settings behind it as in "trl::token_truncate clip.hi=2". The rollout corrections of
      trainers, such as "trl::token_truncate", "ms_swift::sequence_mask" and "open_instruct::rho",
      mostly compare old_logp, or logp where that is absent, with rollout_logp; some compare logp
      with one of them. Their caps are the trainers' (TRL 3, ms-swift and open-instruct 2).
      "overlong" drops the rows that `truncated` (rows) marks from loss and counts (DAPO),
      "degenerate_groups" those that `degenerate` (rows) marks. "top_entropy 0.8" keeps the
      surrogate of the upper fifth of `entropies` (tokens, nats). A correction of your own is a line
      with its settings, whose words include/gdpo/loss/README.md lists, such as "importance
      pair=drift clip.hi=3" or "gate estimator=binary_kl statistic=sequence_mean max=0.01
      reach=mask"; "mean_one" divides the weights so far by their mean. With "reach=level" a weight
      is part of the ratio, at levels of sequences or segments; with "reach=entropy" it weighs the
      entropies, as in ["top_entropy 0.8", "top_entropy 0.8 reach=entropy", "mean_one
      reach=entropy"], which makes the bonus one over the upper fifth too. For statistics over
      segments, `segments` (tokens) has ids whose runs are one segment; for those over groups,
      `groups` (rows) has equal numbers within a group. "teacher_ratio" (RLSD) and "teacher_prefix"
      (IW-OPD) weigh tokens by how `teacher_logp` differs from the log-probs that sampled them.
      "trinity::clip_b" (Clip-B) drops tokens with a negative advantage whose update would lower the
      entropy most; it reads `entropies`. "trinity::clip_v" (Clip-V) also reads `tags`, its center.
    mask, weights, kl_weights, entropy_weights, level_log_weights: those that there are already;
      masks are combined, weights multiplied, logs added.
    The arrays are those of PolicyLoss; none gets a gradient. Those of a GPU are read there, on the
    current stream, and nothing waits; packed tokens then need an array besides `offsets`.

    Call it before count. Errors: ValueError for unknown names, missing arrays and shapes that do
    not fit.
    """
    passes = [passes] if isinstance(passes, str) else list(passes)
    _check_names(passes)
    arrays = batch_arrays("gdpo::prepare", {
        "logp": logp, "old_logp": old_logp, "rollout_logp": rollout_logp, "mask": mask,
        "offsets": offsets, "advantages": advantages, "token_advantages": token_advantages,
        "weights": weights, "kl_weights": kl_weights, "entropy_weights": entropy_weights,
        "entropies": entropies, "tags": tags, "truncated": truncated, "segments": segments,
        "level_log_weights": level_log_weights, "teacher_logp": teacher_logp})
    check_tensors("gdpo::prepare", {**dict(zip(ARRAYS, arrays)), "degenerate": degenerate,
                                     "groups": groups})
    with torch.no_grad(), our_errors():
        prepared = Prepared(*ops.prepare(passes, degenerate, groups, *arrays))
        given = dict(zip(ARRAYS, arrays))
        unmade: Dict[str, Any] = {name: None for name in REACHED_BY if given[name] is None
                                  and not makes(name, tuple(passes))}
        return prepared._replace(**unmade)
