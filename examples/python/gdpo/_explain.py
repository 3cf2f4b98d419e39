"""One group's numbers on their way from rewards to advantages."""
import operator
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from ._advantages import batch_of
from ._load import ops
from ._names import our_errors
from ._rows import flat, of_rows, weights_of
from ._settings import line, takes_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import EstimatorSettings


class Explanation:
    """One group of a call of `advantages`, stage by stage; str() gives it as a table.

        explanation = gdpo.explain(rewards, group_size=8, group=3)
        for name, formula in explanation.stages.items():
            print(name, formula)
        print(explanation.advantage, explanation.columns[0]["std"])

    The numbers are members, as the library's Explanation has them
    (include/gdpo/advantage/explanation.hpp): lists with one number for each member of the group
    (`rows`, `used`, `excluded`, `penalty`, `sum`, `advantage`), or one for each member and reward,
    member by member (`rewards`, `gated`, `known`), and single numbers (`group`, `equal`,
    `renorm_mean`, `renorm_std`, ...). NaN: the member has no such number.
    """

    def __init__(self, text: str, lines: str, numbers: List[float]) -> None:
        self._text = text
        #: The formula of each stage, by its name: "gate", "missing", "baseline", "scale", ...
        self.stages: Dict[str, str] = {}
        #: What was special in this group, a sentence each.
        self.notes: List[str] = []
        #: What the second normalization runs over: "none", "batch", "group" or "tokens".
        self.over: str = ""
        #: For each reward that counts, or for the weighted sum, its numbers by name: reward,
        #: weight, n, mean, std, equal; and one for each member: values, baseline, spread,
        #: multiplier, standardized, weighted.
        self.columns: List[Dict[str, Any]] = []
        #: All numbers that are not of a column, by name; they are members, too.
        self.numbers: Dict[str, Any] = {}
        at = 0
        for kind, *words in (row.split("\t") for row in lines.split("\n")):
            if kind == "numbers":
                name, length = words[0], int(words[1])
                value: Any = numbers[at] if length < 0 else numbers[at:at + length]
                at += abs(length)
                self._set(name, value)
            elif kind == "stage":
                self.stages[words[0]] = words[1]
            elif kind == "note":
                self.notes.append(words[0])
            else:
                self.over = words[0]

    _INTEGERS = ("group", "groups", "rows", "reward", "n")
    _FLAGS = ("used", "excluded", "equal", "sums_first")

    def _set(self, name: str, value: Any) -> None:
        place, member = self.numbers, name
        if name.startswith("columns."):
            index, member = int(name.split(".")[1]), name.split(".")[2]
            if index == len(self.columns):
                self.columns.append({})
            place = self.columns[index]
        kind = int if member in self._INTEGERS else bool if member in self._FLAGS else float
        place[member] = [kind(x) for x in value] if isinstance(value, list) else kind(value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["numbers"][name]
        except KeyError:
            raise AttributeError(f"an Explanation has no {name}") from None

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text


@takes_settings("estimator")
def explain(rewards: Any, *, group: int, estimator: str = "gdpo", group_size: int = 0,
            group_ids: Any = None, group_offsets: Any = None,
            weights: Optional[Sequence[float]] = None,
            gates: Sequence[Tuple[int, int, float]] = (), tokens: Any = None, valid: Any = None,
            baseline: Any = None, row_weights: Any = None, penalty: Any = None,
            reward_names: Sequence[str] = (),
            **settings: "Unpack[EstimatorSettings]") -> Explanation:
    """One group of a call of `advantages`: every number between its rewards and its advantages.

        print(gdpo.explain(rewards, estimator="trl::gdpo", group_size=8, group=3))

    group: which, from 0 on; of group_ids by ascending id, of strings by their first appearance.
      reward_names: one for each reward, for the table. The others are those of `advantages`,
      without constraints and rollouts.
    The whole batch is computed again, on the CPU: it is for a look at a run.
    settings: as in `advantages`.
      {settings}

    Errors: ValueError as of `advantages`, and for a group that there is not.
    """
    function = "gdpo::explain"
    text = line(function, (estimator,), settings)
    try:
        group = operator.index(group)
    except TypeError:
        raise ValueError(f"{function}: group: given {group!r}; needed: an integer") from None
    values, groups, columns = batch_of(
        function, rewards, (group_size, group_ids, group_offsets), tokens=tokens, valid=valid,
        baseline=baseline, row_weights=row_weights, penalty=penalty,
        by_reward=bool(weights is not None or gates or reward_names))
    arrays = [None if a is None else a.cpu() for a in columns]
    size, ids, offsets = groups
    with our_errors(of_rows(values)):
        table, lines, numbers = ops.explain(
            values.cpu(), text, group, list(reward_names), size,
            None if ids is None else ids.cpu(), None if offsets is None else offsets.cpu(),
            weights_of(function, weights), flat(function, gates), *arrays)
    return Explanation(table, lines, numbers.tolist())
