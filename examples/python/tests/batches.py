"""Random batches in one padded form, and the layouts in which a loss may be given them."""
import dataclasses
from typing import Dict, Optional

import torch

import gdpo
import reference

#: The arrays that have one number for each token; the others have one for each row.
PER_TOKEN = ("logp", "old_logp", "ref_logp", "rollout_logp", "teacher_logp", "token_advantages",
             "weights", "kl_weights", "entropy_weights", "segments", "mask", "entropies",
             "completion_mask")


@dataclasses.dataclass
class Batch:
    """A padded batch in float64: a bool mask (rows, tokens), and arrays by name."""

    mask: torch.Tensor
    arrays: Dict[str, torch.Tensor]

    def counts(self, given: float = 0.0) -> reference.Counts:
        return reference.count(self.mask, given)


def random_batch(seed: int, rows: Optional[int] = None, width: Optional[int] = None, *,
                 spread: float = 0.4, dtype: torch.dtype = torch.float64,
                 full: bool = False) -> Batch:
    """Log-probs around -1.5 whose log ratios have that spread, rounded to `dtype`.

    About one row in five is empty and one token in four is masked, unless `full`.
    """
    g = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(1, 10, (), generator=g)) if rows is None else rows
    width = int(torch.randint(1, 71, (), generator=g)) if width is None else width

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    def rounded(array):
        return array.to(dtype).double()

    mask = uniform(rows, width) > 0.25
    mask[uniform(rows) < 0.2] = False
    if full:
        mask[:] = True
    logp = rounded(-1.5 + 0.5 * normal(rows, width))
    arrays = {"logp": logp, "old_logp": rounded(logp + spread * normal(rows, width)),
              "advantages": rounded(normal(rows)), "row_weights": rounded(uniform(rows)),
              "token_advantages": rounded(normal(rows, width)),
              "weights": rounded(2 * uniform(rows, width)),
              "kl_weights": rounded(2 * uniform(rows, width)),
              "segments": torch.randint(0, 3, (rows, width), generator=g).cumsum(1),
              "entropies": rounded(uniform(rows, width))}
    for other in ("ref_logp", "rollout_logp", "teacher_logp"):
        arrays[other] = rounded(logp + spread * normal(rows, width))
    arrays["entropy_weights"] = rounded(2 * uniform(rows, width))
    return Batch(mask, arrays)


def packed(batch: Batch, lengths: torch.Tensor, offsets: torch.dtype = torch.int64) -> dict:
    """The arrays with the first `lengths` tokens of each row behind each other, and offsets."""
    keep = torch.arange(batch.mask.shape[1])[None] < lengths[:, None]
    result = {name: array[keep] if name in PER_TOKEN else array
              for name, array in {**batch.arrays, "mask": batch.mask}.items()}
    result["offsets"] = torch.cat([torch.zeros(1), lengths.cumsum(0)]).to(offsets)
    return result


def call(loss: gdpo.PolicyLoss, counts: reference.Counts, arrays: dict):
    """The loss, its gradient by `logp` and its metrics, from arrays as PolicyLoss takes them."""
    arrays = dict(arrays)
    logp = arrays.pop("logp").detach().clone().requires_grad_()
    result = loss(logp, counts=torch.tensor(counts, dtype=torch.float64), **arrays)
    result.loss.backward()
    return result.loss.detach(), logp.grad, result.metrics


def expected(settings: reference.Settings, counts: reference.Counts, batch: Batch,
             names: tuple) -> tuple:
    """The reference: loss, gradient and the sum of the absolute terms, with those arrays only."""
    logp = batch.arrays["logp"].clone().requires_grad_()
    arrays = {name: batch.arrays[name] for name in names}
    result = reference.policy_loss(settings, counts, batch.mask, logp, **arrays)
    result.loss.backward()
    return result.loss.detach(), logp.grad, result.absolute
