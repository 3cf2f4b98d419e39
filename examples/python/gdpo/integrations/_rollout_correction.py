"""verl's rollout correction: its options computed by `gdpo.prepare`, and what it logs with them."""
from typing import Any, Dict, NamedTuple, Optional, Sequence, Union

import torch

from .. import mismatch, prepare
from .._prepare import made
from ..configs._verl_correction import bounds, names_in, rejection_lines, weight_lines


class Correction(NamedTuple):
    """What corrects for the sampler's log-probs, all of it without a gradient."""

    weights: Optional[torch.Tensor]  #: (rows, tokens) Factors of the loss; 0 at masked tokens.
    mask: torch.Tensor  #: (rows, tokens) The tokens that are left, in the type of the given mask.
    metrics: Dict[str, float]  #: Under verl's keys, which begin with rollout_corr/.


def rollout_correction(old_log_prob: torch.Tensor, rollout_log_prob: torch.Tensor,
                       response_mask: torch.Tensor, *, rollout_is: Optional[str] = None,
                       rollout_is_threshold: Union[str, float, None] = 2.0,
                       rollout_is_batch_normalize: bool = False,
                       rollout_rs: Union[str, Sequence[str], None] = None,
                       rollout_rs_threshold: Union[str, float, None] = None) -> Correction:
    """Weights and mask of verl's algorithm.rollout_correction, computed by `gdpo.prepare`.

    old_log_prob: (rows, tokens) in nats, of the policy whose ratio to the sampler's
      rollout_log_prob is the weight: the old one, or the current one in bypass mode.
    response_mask: (rows, tokens), not 0 at the tokens that count.
    rollout_is: "token" or "sequence" (the product of the row's ratios), or a line of
      `gdpo.prepare` with its settings, such as "importance statistic=sequence_mean clip.hi=2", but
      without reach=level, because the weights multiply the loss. In front may stand "gdpo:".
    rollout_is_threshold: the largest weight, or "LOW_HIGH": the weights outside are 0 (IcePop).
    rollout_is_batch_normalize: divides the weights by their mean over all ranks, of tokens, or of
      rows for "sequence". As in verl, one of at most 1e-8 divides nothing.
    rollout_rs: rejections, one, several with commas, or a list: token_k1, token_k2, token_k3, and
      seq_sum, seq_mean and seq_max of them, but no seq_max_k1; or lines of `gdpo.prepare` that can
      be a mask, such as "gate estimator=binary_kl max=0.01". A token stays if all of them keep it.
    rollout_rs_threshold: for each of verl's names, with commas between, or one for all: the largest
      k2 or k3, and for k1 bounds "LOW_HIGH" of e^k1, or HIGH alone for 1/HIGH and HIGH.

    Tokens whose log ratio is NaN are dropped, and so is the row of one in a statistic of rows.

    Errors: ValueError for unknown names, and for thresholds that are missing or do not fit.
    """
    arrays = {"old_logp": old_log_prob.detach(), "rollout_logp": rollout_log_prob.detach(),
              "mask": response_mask}
    weights, raw, mean, of = None, None, None, "tokens"
    if rollout_is is not None and rollout_is_threshold is not None:
        lines, of = weight_lines(rollout_is, rollout_is_threshold)
        prepared = prepare(lines, **arrays)
        of_tokens = prepared.weights  # None where all lines are masks
        if of_tokens is None:
            of_tokens = torch.ones_like(response_mask, dtype=torch.promote_types(
                old_log_prob.dtype, torch.float32))
        weights = raw = _at_tokens(of_tokens, prepared.mask)  # also what lines take out
        if rollout_is_batch_normalize:
            mean = _mean_weight(raw, response_mask, of)
            weights = _normalized(raw, mean, response_mask, of)
    kept = {name: prepare([f"{line} reach=mask"], **arrays).mask != 0
            for name, line in rejection_lines(rollout_rs, rollout_rs_threshold).items()}
    mask = response_mask.clone()
    for keeps in kept.values():
        mask = torch.where(keeps, mask, torch.zeros_like(mask))
    if not len(response_mask):
        return Correction(weights, mask, {})
    return Correction(weights, mask, {
        **_report(raw, mean, arrays, of, rollout_is_threshold),
        **_log_of_rejections(kept, mask, response_mask)})


def is_ours(*options: Union[str, Sequence[str], None]) -> bool:
    """Whether one of the values of rollout_is and rollout_rs begins with "gdpo:"."""
    return any(name.startswith("gdpo:") for option in options for name in names_in(option))


def _at_tokens(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The values of the tokens of a mask; 0 elsewhere, whatever stands there."""
    return torch.where(mask != 0, values, torch.zeros_like(values))


def _normalized(weights: torch.Tensor, mean: float, mask: torch.Tensor, of: str) -> torch.Tensor:
    """Weights divided by their mean, which the library takes of the batch, and not of all ranks."""
    if mean <= 1e-8:
        return weights
    if _has_ranks():
        return weights / mean
    divided = prepare(f"mean_one of={of}", old_logp=torch.zeros_like(weights), mask=mask,
                      weights=weights).weights
    return _at_tokens(made(divided), mask)


def _has_ranks() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _mean_weight(weights: torch.Tensor, mask: torch.Tensor, of: str) -> float:
    """The mean of weights over tokens, or over rows with a token, of all ranks."""
    valid = (mask != 0).sum(-1) if of == "rows" else mask != 0
    values = weights.sum(-1) / valid.clamp(min=1) if of == "rows" else weights
    total = torch.stack((values.double().sum(), (valid != 0).sum().double()))
    if _has_ranks():
        torch.distributed.all_reduce(total)
    return (total[0] / total[1].clamp(min=1)).item()


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of a mask; verl adds 1e-8 to their number."""
    return _at_tokens(values, mask).sum() / ((mask != 0).sum() + 1e-8)


def _report(raw: Optional[torch.Tensor], mean: Optional[float], arrays: Dict[str, Any],
            of: str, threshold: Union[str, float, None]) -> Dict[str, float]:
    """The report of the library under verl's keys, of the weights before they are normalized."""
    low, high = bounds("rollout_is_threshold", 2.0 if raw is None or threshold is None else
                       threshold)
    low = min(1 / high, high) if low is None else low
    keys = "verl_sequence" if of == "rows" else "verl"
    log = mismatch(keys=keys, weights=raw, token_low=low, token_high=high, row_low=low,
                   row_high=high, **arrays).to_dict(keys)
    if raw is not None and isinstance(threshold, str) and "_" in threshold:
        zeros = _mean((raw == 0).to(raw.dtype), arrays["mask"])
        log["rollout_corr/rollout_is_oob_ratio"] = zeros.item()
    if mean is not None:
        log["rollout_corr/rollout_is_batch_norm_factor"] = mean if mean > 1e-8 else 1.0
    return log


def _log_of_rejections(kept: Dict[str, torch.Tensor], left: torch.Tensor, mask: torch.Tensor
                       ) -> Dict[str, float]:
    """The shares of tokens, and of rows with a token, that each rejection and all took from."""
    log, valid = {}, mask != 0
    for name, keeps in kept.items():
        taken = valid & ~keeps
        log[f"rollout_corr/rollout_rs_{name}_masked_fraction"] = _mean(taken.double(), mask).item()
        log[f"rollout_corr/rollout_rs_{name}_seq_masked_fraction"] = (
            taken.any(-1).sum() / valid.any(-1).sum().clamp(min=1)).item()
    if kept:
        taken = valid & (left == 0)
        log["rollout_corr/rollout_rs_masked_fraction"] = _mean(taken.double(), mask).item()
        log["rollout_corr/rollout_rs_seq_masked_fraction"] = taken.any(-1).double().mean().item()
    return log
