"""What the losses share: modules that are made from a line, and what a call measured."""
from typing import Any, ClassVar, Dict, List, Mapping, TypeVar, Union

import torch

from ._load import ops
from ._names import names, our_errors
from ._numbers import NumbersByName, shown, wrapped
from ._settings import configured, described, keywords, whole_names

_M = TypeVar("_M", bound="Measured")


class LossModule(torch.nn.Module):
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
        super().__setattr__(name, value)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return wrapped(described(self._what, self.line))


class Measured(NumbersByName):
    """What a loss call measured, a mapping; the numbers are read when the first is asked for.

    result: the numbers as a tensor, or a mapping that has all of them.
    """

    #: What the library calls the list of the names.
    kind: ClassVar[str]
    _map: ClassVar[str]  # the operator that gives a trainer's keys
    _merge: ClassVar[str]  # the operator that merges two
    _such_as = "clip_fraction.sum"

    def __init__(self, result: Union[torch.Tensor, Mapping[str, float]]) -> None:
        # Trainers rebuild a mapping in what a module returns from its items.
        if not isinstance(result, torch.Tensor):
            result = torch.tensor([float(result[name]) for name in self.names()],
                                  dtype=torch.float64)
        #: The numbers, float64, in the order of names().
        self.result = result

    @classmethod
    def names(cls) -> List[str]:
        """The names of the numbers, in their order."""
        return list(names(cls.kind))

    def _tensor(self) -> torch.Tensor:
        return self.result

    def mean(self, name: str) -> float:
        """The mean of a metric over the valid tokens; 0 where none was counted."""
        count = self[name + ".count"]
        return self[name + ".sum"] / count if count > 0 else 0.0

    def _on_cpu(self) -> torch.Tensor:
        return self.result.detach().cpu()

    def _keys(self, prefix: str) -> Dict[str, float]:
        keys, values = getattr(ops, self._map)(self._on_cpu(), prefix)
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
            return type(self)(getattr(ops, self._merge)(self._on_cpu(), other._on_cpu()))

    def __repr__(self) -> str:
        numbers = {"loss": self["loss"], **self.to_dict()}
        return shown(f"gdpo.{type(self).__name__}",
                     (f"{key}: {value:.6g}" for key, value in numbers.items()))
