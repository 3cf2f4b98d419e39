"""What calls measure, as mappings, and the losses as lines of settings; without PyTorch."""
import collections.abc
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, NamedTuple, Sequence, TypeVar

from ._load import doubles, is_tensor, on_cpu, ops_for
from ._names import names, our_errors
from ._numbers import NumbersByName, shown, wrapped
from ._settings import configured, described, keywords, whole_names

if TYPE_CHECKING:
    import torch

_M = TypeVar("_M", bound="Measured")


class LossLine:
    """A loss whose settings are those of a line."""

    _what: ClassVar[str]  # what the library calls settings of this kind

    def __init__(self, text: str) -> None:
        super().__init__()
        #: The loss in one line, as the operator takes it.
        self.line: str = configured(self._what, text)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("name", "level") or name in keywords(self._what) or name in whole_names(
                self._what):
            kind = type(self).__name__
            raise AttributeError(f"gdpo.{kind}: {name} is set when the loss is made: "
                                 f"{kind}(..., {name}={value!r})")
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        return wrapped(described(self._what, self.line))


class Measured(NumbersByName):
    """What a loss call measured, a mapping; the numbers are read when the first is asked for.

    result: the numbers as a tensor or an array, or a mapping that has all of them.
    """

    #: What the library calls the list of the names.
    kind: ClassVar[str]
    _map: ClassVar[str]  # the operator that gives a trainer's keys
    _merge: ClassVar[str]  # the operator that merges two
    _such_as = "clip_fraction.sum"

    def __init__(self, result: Any) -> None:
        # Trainers rebuild a mapping in what a module returns from its items.
        if not is_tensor(result) and isinstance(result, collections.abc.Mapping):
            result = doubles([float(result[name]) for name in self.names()])
        #: The numbers, float64, in the order of names(): a tensor; of gdpo.numpy and gdpo.jax an
        #: array.
        self.result: "torch.Tensor" = result

    @classmethod
    def names(cls) -> List[str]:
        """The names of the numbers, in their order."""
        return list(names(cls.kind))

    def _tensor(self) -> "torch.Tensor":
        return self.result

    def mean(self, name: str) -> float:
        """The mean of a metric over the valid tokens; 0 where none was counted."""
        count = self[name + ".count"]
        return self[name + ".sum"] / count if count > 0 else 0.0

    def _keys(self, prefix: str) -> Dict[str, float]:
        keys, values = getattr(ops_for(self.result), self._map)(on_cpu(self.result), prefix)
        return dict(zip(keys.split("\n"), values.tolist())) if keys else {}

    def to_dict(self, prefix: str = "") -> Dict[str, float]:
        """The metrics under a trainer's keys, each after `prefix`."""
        return self._keys(prefix)

    def merge(self: _M, other: Any) -> _M:
        """These metrics and the other's, of two micro-batches or ranks of one step, on the CPU.

        Errors: ValueError where they were divided by different counts, or by fewer tokens or rows
        than both hold.
        """
        if not isinstance(other, type(self)):
            raise ValueError(f"gdpo.{type(self).__name__}.merge: other: given a "
                             f"{type(other).__name__}; needed: a gdpo.{type(self).__name__}")
        with our_errors():
            return type(self)(getattr(ops_for(self.result), self._merge)(
                on_cpu(self.result), on_cpu(other.result)))

    def __repr__(self) -> str:
        numbers = {"loss": self["loss"], **self.to_dict()}
        return shown(f"gdpo.{type(self).__name__}",
                     (f"{key}: {value:.6g}" for key, value in numbers.items()))


class Metrics(Measured):
    """What a loss call measured, a mapping; the numbers are read when the first is asked for.

    `metrics["clip_fraction.sum"]` is one number, `dict(metrics)` has all, and `names()` lists them:
    loss, policy_loss, kl_loss, entropy_loss, the counts (normalizer.tokens, ...), and for each
    metric of the library's LossMetrics its sum, count, min, max, row_sum, rows, row_min and
    row_max. `mean(name)` is sum / count. What only the library's metrics::All keeps, such as ranges
    over tokens, is not measured: its count is 0.

        loss, metrics = gdpo.PolicyLoss("dapo")(
            logp, old_logp=old_logp, mask=mask, advantages=advantages, counts=counts)
        print(metrics["loss"], metrics.mean("ratio"), metrics.to_dict("train/"))

    result: the numbers as a tensor, or a mapping that has all of them.
    """

    kind: ClassVar[str] = "result"
    _map, _merge = "metrics_map", "merge_results"

    def to_dict(self, prefix: str = "") -> Dict[str, float]:
        """The metrics under the keys that TRL and ms-swift log, each after `prefix`.

        Such as kl, entropy, clip_ratio/region_mean, completions/mean_length; the loss is not among
        them. Not inside of a function that torch.compile traces whole.
        """
        return self._keys(prefix)


class ValueMetrics(Measured):
    """What a call of ValueLoss measured, a mapping that is read when a number is asked for.

        _, metrics = gdpo.ValueLoss(clip=float("inf"))(values, returns=returns, counts=counts,
                                                       mask=mask)
        print(metrics.mean("error"), metrics.explained_variance(), metrics.to_dict("critic/"))

    `metrics["clip_fraction.sum"]` is one number, and `names()` lists them: loss, the counts
    (normalizer.tokens, ...), and sum, count, ... of value_loss (that of each token), value, error
    (value - return) and clip_fraction; and the moments of the returns and of the residuals, return
    - value. They are members of the library's ValueMetrics; `mean(name)` is sum / count. What only
    the library's metrics::All keeps, ranges over tokens, is not measured.
    """

    kind: ClassVar[str] = "value_result"
    _map, _merge = "value_metrics_map", "merge_value_results"

    def explained_variance(self, eps: float = 0.0) -> float:
        """The share of the spread of the returns that the values explain: 1 - Var(R - v) / Var(R).

        eps: added to Var(R); verl's is 1e-5. Both variances are of samples. 1 where all residuals
        are equal, 0 for values that are all equal, below 0 for worse ones; NaN with fewer than two
        tokens, where an input is not finite, and with eps 0 where all returns are equal.
        """
        with our_errors():
            return ops_for(self.result).explained_variance(on_cpu(self.result), eps)

    def to_dict(self, prefix: str = "") -> Dict[str, float]:
        """The metrics under the keys that verl logs, each after `prefix` (verl's is "critic/"):
        vf_loss, the mean over the tokens, vf_clipfrac, vpred_mean and vf_explained_var.

        What is unknown has no key. Not inside of a function that torch.compile traces whole.
        """
        return self._keys(prefix)


class Report(NumbersByName):
    """What a call of `advantages` saw of the whole batch, a mapping.

    `report["rows"]` is one number, `dict(report)` has all, and `names()` lists them; they are
    members of the library's GroupReport: counts of rows, groups and missing rewards, and the
    moments of the reward sums, of the groups' standard deviations and of each reward.

        advantages, report = gdpo.advantages(rewards, group_size=8, report=True)
        print(report["groups"], report["rewards.0.values.mean"])
        logged = report.to_dict("train/", ["right", "short"])
    """

    _such_as = "rows"

    def __init__(self, numbers: Any, rewards: int) -> None:
        self._numbers = numbers
        #: How many rewards a row has.
        self.rewards = rewards

    @classmethod
    def of_numbers(cls, numbers: Any) -> "Report":
        """The report whose numbers these are."""
        rewards = 0
        while len(names("report", rewards)) < len(numbers):
            rewards += 1
        return cls(numbers, rewards)

    @property
    def numbers(self) -> "torch.Tensor":
        """The numbers, float64 on the CPU, in the order of names().

        For rewards on a device they are computed when they are first asked for, which waits for it.
        """
        if callable(self._numbers):
            self._numbers = self._numbers()
        return self._numbers

    def names(self) -> List[str]:
        """The names of the numbers, in their order."""
        return list(names("report", self.rewards))

    def _tensor(self) -> "torch.Tensor":
        return self.numbers

    def __repr__(self) -> str:
        first = self.names().index("reward_sums.n")
        means = [f"rewards.{k}.values.mean" for k in range(self.rewards)]
        return self._shown([*self.names()[:first], "reward_sums.mean", "group_stds.mean", *means])

    def to_dict(self, prefix: str = "", reward_names: Sequence[str] = (), *,
                zero_std: str = "groups", std: str = "batch") -> Dict[str, float]:
        """The rewards under the keys that TRL and ms-swift log, each after `prefix`.

        reward_names: one for each reward; without them they are numbered. zero_std: what has no
        spread counts by "groups", "batch" or "sum". std: "batch" or "mean_of_groups". Which trainer
        logs what: GroupReport::to_map in include/gdpo/advantage/report.hpp.
        """
        with our_errors():
            keys, values = ops_for(self.numbers).report_map(
                on_cpu(self.numbers), prefix, list(reward_names), zero_std, std)
        return dict(zip(keys.split("\n"), values.tolist())) if keys else {}

    def merge(self, other: "Report") -> "Report":
        """The report of this micro-batch or rank and of the other's."""
        if not isinstance(other, Report):
            raise ValueError(f"gdpo.Report.merge: other: given a {type(other).__name__}; needed: a "
                             "gdpo.Report")
        with our_errors():
            return Report(ops_for(self.numbers).merge_reports(
                on_cpu(self.numbers), on_cpu(other.numbers)), self.rewards)


class AdvantagesAndReport(NamedTuple):
    """What `advantages` returns with report=True."""

    advantages: Any  #: (rows)
    report: Report
