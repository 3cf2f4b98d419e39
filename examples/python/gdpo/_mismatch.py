"""The mismatch report: how far the sampling engine's log-probs are from the trainer's."""
from typing import Dict, List, Optional

import torch

from ._load import CUDA_MISSING, ops
from ._names import our_errors
from ._numbers import NumbersByName
from ._policy_loss import batch_arrays
from ._settings import word


class Mismatch(NumbersByName):
    """What `mismatch` measured, a mapping: counts, exact sums and extremes with their places.

        found = gdpo.mismatch(old_logp=old_logp, rollout_logp=rollout_logp, mask=mask)
        print(found["k3_kl"], found["ratio_max"], found["ratio_max.row"])
        both = found.merge(gdpo.mismatch(old_logp=old_logp, rollout_logp=rollout_logp, mask=mask))
        logged = both.to_dict("verl", prefix="rollout/")

    `report["k3_kl"]` is one number, `dict(report)` has all, and `names()` lists them: counts
    ("scored", "missing"), metrics ("kl", "k3_kl", "token_ess", "chi2_token", "mean_ppl_ratio", ...)
    and extremes ("ratio_max", with "ratio_max.row" and "ratio_max.token").
    include/gdpo/mismatch.hpp has their formulas.

    The report of tensors on a CUDA device stays there until it is read: numbers, to_dict, merge and
    repr copy it to the CPU, once, which waits for the device.
    """

    _such_as = "k3_kl"

    def __init__(self, data: torch.Tensor) -> None:
        #: The report as bytes, uint8, about 9 kB, on the device of the batch: what ranks may gather
        #: before they merge.
        self.data = data
        self._on_cpu: Optional[torch.Tensor] = None

    def cpu(self) -> torch.Tensor:
        """`data` on the CPU. The first call waits for the device."""
        if self._on_cpu is None:
            self._on_cpu = self.data.cpu()
        return self._on_cpu

    def names(self) -> List[str]:
        """The names of the numbers."""
        return list(self._all())

    def _tensor(self) -> torch.Tensor:
        return self.cpu()

    def _values_of(self, tensor: torch.Tensor) -> Dict[str, float]:
        return self.to_dict()

    def to_dict(self, keys: str = "", prefix: str = "", positions: int = 0) -> Dict[str, float]:
        """The numbers, each name after `prefix`.

        keys: whose, "verl" or "verl_sequence", "ms_swift" or "ms_swift_sequence", "nemo_rl",
          "openrlhf", "skyrl", "trl", "unsloth"; the numbers are the trainer's if `mismatch` was
          given the same. Empty: all numbers under the library's names.
        positions: rows x width of the trainer's arrays, for SkyRL's numbers over padding.
        """
        with our_errors():
            lines, values = ops.mismatch_map(self.cpu(), keys, prefix, positions)
        return dict(zip(lines.split("\n"), values.tolist())) if lines else {}

    def merge(self, other: "Mismatch") -> "Mismatch":
        """The report of this batch and of the other's, on the CPU. It has the bits of one report of
        all rows, in any order.

        Errors: ValueError where their settings differ.
        """
        if not isinstance(other, Mismatch):
            raise ValueError(f"gdpo.Mismatch.merge: other: given a {type(other).__name__}; needed: "
                             "a gdpo.Mismatch")
        with our_errors():
            return Mismatch(ops.merge_mismatch(self.cpu(), other.cpu()))

    def __repr__(self) -> str:
        return self._shown(("scored", "missing", "k3_kl", "token_ess", "ratio_min", "ratio_max",
                            "dropped_share"))


def _readable(array: torch.Tensor) -> torch.Tensor:
    """The array where an operator reads it: on a CUDA device that has kernels, or on the CPU."""
    return array if array.device.type == "cuda" and not CUDA_MISSING else array.cpu()


def mismatch(*, rollout_logp: torch.Tensor, old_logp: Optional[torch.Tensor] = None,
             logp: Optional[torch.Tensor] = None, mask: Optional[torch.Tensor] = None,
             offsets: Optional[torch.Tensor] = None, weights: Optional[torch.Tensor] = None,
             completion_mask: Optional[torch.Tensor] = None, keys: str = "", bound: float = 2.0,
             first_row: int = 0, **settings: float) -> Mismatch:
    """How far the log-probs of sampler and trainer are apart, in one report.

        prepared = gdpo.prepare("trl::token_truncate", old_logp=old_logp,
                                rollout_logp=rollout_logp, mask=mask)
        print(gdpo.mismatch(old_logp=old_logp, rollout_logp=rollout_logp, mask=prepared.mask,
                            weights=prepared.weights, completion_mask=mask, keys="trl"))

    rollout_logp, old_logp or else logp: (rows, tokens), or packed with offsets, in nats. NaN in
      rollout_logp: the sampling engine gave none; it is counted and left out.
    mask, weights: those of `prepare`, if there was a correction, with completion_mask the mask
      before it; the report then says what the correction has dropped.
    keys, bound: whose conventions (`Mismatch.to_dict`), and the trainer's threshold of ratios.
    first_row: what is added to the rows of extremes, for micro-batches.
    settings: token_low, token_high, row_low, row_high (bounds beyond which ratios are counted),
      clamp (nats), count_eps, ess_eps, empty_rows.

    Arrays of a CUDA device are read there, by the CUDA stream that is current, and nothing waits;
    `Mismatch.data` stays on it. Those of another device are copied to the CPU. Errors: ValueError
    for missing arrays, shapes that do not fit and unknown words.
    """
    arrays = batch_arrays("gdpo::mismatch", {
        "logp": logp, "old_logp": old_logp, "rollout_logp": rollout_logp, "mask": mask,
        "offsets": offsets, "weights": weights, "completion_mask": completion_mask})
    arrays = [None if array is None else _readable(array.detach()) for array in arrays]
    line = " ".join(f"{name}={word(value)}" for name, value in settings.items())
    with torch.no_grad(), our_errors():
        return Mismatch(ops.mismatch(keys, float(bound), line, first_row, *arrays))
