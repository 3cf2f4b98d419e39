"""What calls read of rows besides arrays: ids, groups, weights and gates; without PyTorch."""
import hashlib
import math
import operator
import uuid
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from ._load import is_tensor

_T = TypeVar("_T")


def plain(array: Any) -> Any:
    """The array of what wraps one, such as a pandas.Series; one of Python's objects as a list."""
    if not is_tensor(array) and hasattr(array, "to_numpy"):
        array = array.to_numpy()
    if getattr(getattr(array, "dtype", None), "kind", "") in ("O", "U", "S"):
        return array.tolist()
    return array


def with_nan(rewards: Any) -> Any:
    """The rewards with NaN for None in lists: a reward function has not scored the completion."""
    rewards = plain(rewards)
    if not isinstance(rewards, (list, tuple)):
        return rewards
    return [math.nan if entry is None else with_nan(entry) for entry in rewards]


_NAMES_OF_ROWS = (str, bytes, uuid.UUID)


def names_rows(array: Any) -> bool:
    """Whether ids are strings, bytes or UUIDs."""
    array = plain(array)
    return isinstance(array, (list, tuple)) and any(isinstance(i, _NAMES_OF_ROWS) for i in array)


def _hashed(entry: Any) -> int:
    """63 bits that are the same in every process."""
    word = entry if isinstance(entry, bytes) else str(entry).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(word, digest_size=8, person=type(entry).__name__.encode()[:16])
    return int.from_bytes(digest.digest(), "big") >> 1


def numbered(function: str, name: str, array: Any, everywhere: bool = False) -> Any:
    """Ids with integers for strings, bytes and UUIDs, by their first appearance: equal ones have
    equal numbers. Others are as they were given.

    everywhere: by hashes instead, because other processes have some of the rows.
    """
    array = plain(array)
    if isinstance(array, (list, tuple)) and any(isinstance(i, _NAMES_OF_ROWS) for i in array):
        for row, entry in enumerate(array):
            if not isinstance(entry, _NAMES_OF_ROWS):
                raise ValueError(f"{function}: {name}: given {entry!r} in row {row}, among "
                                 "strings; needed: integers or strings, one for each row")
        numbers: Dict[Any, int] = {}
        array = [_hashed(entry) if everywhere else numbers.setdefault(entry, len(numbers))
                 for entry in array]
    return array


def size_of_groups(function: str, group_size: Any) -> int:
    """The argument group_size as a number of Python."""
    try:
        group_size = operator.index(group_size)
        if not -2**63 <= group_size < 2**63:
            raise TypeError
    except TypeError:
        raise ValueError(f"{function}: group_size: given {group_size!r}; needed: an integer"
                         ) from None
    return group_size


def warn_of_completions(function: str, shape: Tuple[int, ...], group_size: int) -> None:
    """Warns where the second axis of rewards may be that of completions."""
    if len(shape) == 2 and shape[1] == group_size > 1 and shape[0] % group_size == 0:
        warnings.warn(f"{function}: rewards: shape {shape} is read as {shape[0]} rows with "
                      f"{group_size} rewards each; if it is {shape[0]} prompts with {group_size} "
                      f"completions each, give rewards.reshape(-1), else "
                      f"weights=[1] * {group_size}, which says so", stacklevel=4)


def of_rows(rewards: Any) -> Callable[[str], str]:
    """Puts behind a message about rows what the rows of these rewards are, where there may be
    doubt: a second axis is that of rewards, not of completions."""
    def translate(message: str) -> str:
        shape = tuple(rewards.shape)
        if len(shape) < 2 or shape[-1] < 2 or not (" rows" in message or "(rows)" in message):
            return message
        if len(shape) == 2:
            return (f"{message}; rewards of shape {shape} are {shape[0]} rows with {shape[1]} "
                    f"rewards each, and rewards.reshape(-1) are {math.prod(shape)} rows with one")
        return f"{message}; rewards.flatten(0, {len(shape) - 2}) makes rows of completions"
    return translate


def required(function: str, name: str, array: Optional[_T]) -> _T:
    """The same array, which may not be absent: raises ValueError for None."""
    if array is None:
        raise ValueError(f"{function}: {name}: given None; needed: an array of numbers")
    return array


def reward_count(rewards: Any) -> int:
    """How many rewards a row has: of (rows) one."""
    return rewards.shape[1] if rewards.ndim == 2 else 1


def weights_of(function: str, weights: Optional[Sequence[float]]) -> Optional[List[float]]:
    """The weights of the rewards as numbers."""
    try:
        return None if weights is None else [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise ValueError(f"{function}: weights: given {weights!r}; needed: a number for each "
                         "reward") from None


def flat(function: str, gates: Sequence[Tuple[int, int, float]]) -> Optional[List[float]]:
    """The numbers of all gates in one list; None where there are none."""
    try:
        return [float(number) for reward, condition, threshold in gates
                for number in (reward, condition, threshold)] if gates else None
    except (TypeError, ValueError):
        raise ValueError(f"{function}: gates: given {gates!r}; needed: for each gate (reward, "
                         "condition, threshold), the first two by their numbers") from None


def limits_of(constraints: Sequence[Tuple[int, float, float, float, str]]
               ) -> Optional[List[float]]:
    """The numbers of all constraints in one list; None where there are none."""
    numbers: List[float] = []
    try:
        for reward, multiplier, limit, scale, bound in constraints:
            if bound not in ("at_least", "at_most"):
                raise ValueError
            numbers += [float(reward), float(multiplier), float(limit), float(scale),
                        float(bound == "at_least")]
    except (TypeError, ValueError):
        raise ValueError(f"gdpo::advantages: constraints: given {constraints!r}; needed: for each "
                         "constraint (reward, multiplier, limit, scale, bound), the reward by its "
                         "number and the bound at_least or at_most") from None
    return numbers or None


def check_floating(function: str, name: str, dtype: object, floating: bool) -> None:
    """Raises ValueError unless log-probs, or values, are of a floating-point type."""
    if not floating:
        what = "log-probs" if name == "logp" else name
        raise ValueError(f"{function}: batch.{name}: given {dtype}; needed: {what} of a "
                         "floating-point type")


def check_mask(function: str, finite: bool) -> None:
    """Raises ValueError for a mask with numbers that are not finite."""
    if not finite:
        raise ValueError(f"{function}: mask: given infinities or NaN; needed: not 0 at the tokens "
                         "of the loss, and 0 elsewhere (a mask that is added to scores is none)")


def check_counted(function: str, mask: object, logp: object, offsets: object) -> None:
    """Raises ValueError where nothing says how many tokens the rows have."""
    if mask is None and logp is None and offsets is None:
        raise ValueError(f"{function}: batch: given no array of tokens and no offsets; needed: a "
                         "mask, offsets or log-probs, which say how many tokens the rows have")


def check_given(given: object) -> None:
    """Raises ValueError for a count of one's own beside groups."""
    if given:
        raise ValueError("gdpo::count: given: given a number beside groups; needed: one of the "
                         "two, because the number of groups stands there")


def check_step_ids(function: str, episode_ids: object, state_ids: object) -> None:
    """Raises ValueError unless both are given."""
    if episode_ids is None or state_ids is None:
        name = "episode_ids" if episode_ids is None else "state_ids"
        raise ValueError(f"{function}: {name}: given None; needed: an integer for each step")
