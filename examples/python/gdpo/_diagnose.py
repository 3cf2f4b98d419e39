"""What the numbers of a step say about the mistakes that runs usually fail by."""
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence

from ._load import ops
from ._measured import Metrics, Report
from ._mismatch import Mismatch
from ._names import our_errors
from ._settings import word

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import DiagnoseSettings


class Finding(NamedTuple):
    """Something about a step that usually means a mistake; str() gives it as a sentence.

        names = [finding.name for finding in gdpo.diagnose(metrics)]
    """

    name: str  #: What it is; the names are listed at `diagnose`.
    subject: str  #: The input or the reward that it is about; empty: the whole batch.
    figure: float  #: What was measured.
    bound: float  #: The threshold that the figure has crossed.
    text: str  #: A sentence with the figure.
    cause: str  #: The usual cause.

    def __str__(self) -> str:
        about = f"{self.name} {self.subject}".strip()
        return f"{about}: {self.text} Usual cause: {self.cause}"


def diagnose(metrics: Optional[Metrics] = None, report: Optional[Report] = None,
             mismatch: Optional[Mismatch] = None, *, reward_names: Sequence[str] = (),
             first_step: bool = False, later_step: bool = False, whole_step: bool = False,
             log_ratio_surrogate: bool = False,
             **thresholds: "Unpack[DiagnoseSettings]") -> List[Finding]:
    """Findings about a step: an empty list where nothing is suspicious.

        for finding in gdpo.diagnose(metrics, report, reward_names=["right", "short"],
                                     later_step=True, clip_fraction_max=0.3):
            print(finding)

    metrics: of PolicyLoss, merged over micro-batches and ranks. report: of `advantages`. mismatch:
      of `gdpo.mismatch`. One of them at least.
    first_step: there was no update since the rollout, so that ratios should be 1. later_step:
      there was one, so that they should not. Neither: it is not known.
    whole_step: the metrics are of all micro-batches and ranks of a step, so that they hold as many
      tokens and rows as were counted.
    log_ratio_surrogate: the surrogate is 0 where the ratio is 1, as in "trinity::sppo".
    reward_names: one for each reward.
    thresholds: first_step_ratio (0.1), clip_fraction_min (0), clip_fraction_max (0.25), near_ratio
      (0.1), positive_logp (0.05), dead_groups (0.5), truncated (1), entropy_floor (0.05 nats),
      first_entropy (nats; 0: not known), entropy_share (0.06), rollout_kl (0.1 nats),
      mult_prob_error (1.05), effective_sample_size (0.3), dropped (0.5).

    The findings are counts, non_finite, positive_logp, first_step_ratio, ratio_one, swapped_logp,
    clip_fraction, kl_zero, no_effect, all_truncated, entropy_collapse, dead_groups, silent_reward,
    missing_rollout, rollout_mismatch, effective_sample_size and dropped; include/gdpo/diagnose.hpp
    of the C++ library says what each compares, and where the thresholds are from.

    Errors: ValueError for thresholds out of range and names that do not fit.
    """
    for name, value, kind in (("metrics", metrics, Metrics), ("report", report, Report),
                              ("mismatch", mismatch, Mismatch)):
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"gdpo::diagnose: {name}: given a {type(value).__name__}; needed: a "
                             f"gdpo.{kind.__name__}")
    if metrics is None and report is None and mismatch is None:
        raise ValueError("gdpo::diagnose: metrics, report, mismatch: given none; needed: one of "
                         "them at least")
    settings = " ".join(f"{name}={word(bool(value))}" for name, value in (
        ("first_step", first_step), ("later_step", later_step), ("whole_step", whole_step),
        ("log_ratio_surrogate", log_ratio_surrogate)))
    settings += "".join(f" {name}={word(value)}" for name, value in thresholds.items())
    with our_errors():
        lines = ops.diagnose(None if metrics is None else metrics.result.detach().cpu(),
                             None if report is None else report.numbers, settings,
                             list(reward_names), None if mismatch is None else mismatch.cpu())
    findings = []
    for line in lines.split("\n") if lines else []:
        name, subject, figure, bound, text, cause = line.split("\t")
        findings.append(Finding(name, subject, float(figure), float(bound), text, cause))
    return findings
