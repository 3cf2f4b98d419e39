"""Numbers under their names, as a mapping that is read from its tensor, or array, once."""
import collections.abc
import textwrap
from typing import (TYPE_CHECKING, Any, ClassVar, Dict, Iterable, Iterator, List, Optional,
                    Tuple)

from ._names import near

if TYPE_CHECKING:
    import torch


def shown(title: str, words: Iterable[str], end: str = ")") -> str:
    """A repr: "title(word, word)" on one line, or on several of at most 100 columns.

    A word with several lines has lines of its own.
    """
    words = list(words)
    text = f"{title}({', '.join(words)}{end}"
    if len(text) <= 100 and "\n" not in text:
        return text
    return f"{title}(\n{textwrap.indent(wrapped(words), '  ')}\n{end}"


def wrapped(words: Iterable[str], width: int = 96) -> str:
    """Words with ", " between them, on lines of at most `width` columns where they are shorter."""
    lines = [""]
    for word in words:
        joined = f"{lines[-1]}, {word}" if lines[-1] else word
        if lines[-1] and ("\n" in joined or len(joined) >= width):  # a comma may follow
            lines[-1] += ","
            lines.append(word)
        else:
            lines[-1] = joined
    return "\n".join(lines)


class NumbersByName(collections.abc.Mapping[str, float]):
    """A mapping of names to numbers, which a tensor holds: `report["rows"]`, `dict(report)`.

    All numbers are read at once, when the first one is asked for; for a tensor on a device that
    waits for it. Mappings are equal that have the same numbers, as dicts are, and NaN is equal to
    nothing.
    """

    _read: Optional[Tuple[Any, Dict[str, float]]] = None  # the tensor, and its numbers
    _such_as: ClassVar[str]  # a name

    def names(self) -> List[str]:
        """The names of the numbers, in their order."""
        raise NotImplementedError

    def _tensor(self) -> "torch.Tensor":
        """What holds the numbers."""
        raise NotImplementedError

    def _values_of(self, tensor: "torch.Tensor") -> Dict[str, float]:
        return dict(zip(self.names(), tensor.tolist()))

    def _all(self) -> Dict[str, float]:
        tensor = self._tensor()
        if self._read is None or self._read[0] is not tensor:
            self._read = tensor, self._values_of(tensor)
        return self._read[1]

    def __getitem__(self, name: str) -> float:
        try:
            return self._all()[name]
        except KeyError:
            meant = near(str(name), self.names()) or [self._such_as]
            raise KeyError(f"{name}: not among the names() of gdpo.{type(self).__name__}, such as "
                           f"{' or '.join(meant)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_read"}

    def _shown(self, names: Iterable[str]) -> str:
        return shown(f"gdpo.{type(self).__name__}", (f"{name}: {self[name]:.6g}" for name in names))
