"""Settings of losses, estimators and others by name, all of them read from the library's lists."""
import collections
import functools
import inspect
import keyword
import math
import numbers
import textwrap
from typing import (TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, Mapping, NamedTuple,
                    Optional, Tuple, TypeVar)

from ._load import ops
from ._names import (contrastive_losses, did_you_mean, estimators, losses, names, our_errors,
                     outcome_estimators, step_estimators, token_baselines, token_estimators,
                     value_losses, whitenings)

if TYPE_CHECKING:
    from ._measured import LossLine

_T = TypeVar("_T", bound=Callable[..., Any])
_NAMES = {"loss": losses, "estimator": estimators, "contrastive": contrastive_losses,
          "token_advantages": token_estimators, "outcome_advantages": outcome_estimators,
          "step_advantages": step_estimators, "token_baseline": token_baselines,
          "value_loss": value_losses, "whitening": whitenings}
# What the library calls the settings of the names that these calls take.
_CALLS = {"advantages": "estimator", "token_advantages": "token_advantages",
          "outcome_advantages": "outcome_advantages", "step_advantages": "step_advantages",
          "optimal_token_baseline": "token_baseline", "whiten": "whitening"}
# The settings that have one list: their class in the stub, and what the library calls them.
_LISTS = {"Pid": ("pid", ""), "Diagnose": ("diagnose", ""),
          "RunningMoments": ("running", "running_moments"),
          "EmaBaseline": ("running", "ema_baseline"), "ReturnScale": ("running", "return_scale")}
_PAIR = "two numbers, LO,HI"
_TYPES = {"number": "float", "integer": "int", "true or false": "bool",
          _PAIR: "Tuple[float, float]"}


class Setting(NamedTuple):
    """A setting of a loss, an estimator, ..., as the library lists it.

        for setting in gdpo.loss_settings("dapo"):
            print(setting.name, setting.value, setting.meaning)
    """

    name: str  #: Such as "surrogate.low"; as a keyword with "_" for the dots, or its end: low.
    kind: str  #: "number", "integer", "true or false", "two numbers, LO,HI", or the words.
    value: str  #: What it is; empty for what sets several settings at once.
    fits: str  #: The numbers that fit; empty for words.
    meaning: str  #: What it means, in a phrase.


def settings_of(what: str, line: str = "") -> List[Setting]:
    """The settings of a "loss", an "estimator", a "contrastive" loss, a "prepass",
    "token_advantages", "outcome_advantages", "step_advantages", a "token_baseline", "value_loss" or
    "whitening" of that line, of "pid" or "diagnose".

    Errors: ValueError for an unknown name or setting, with a list of the known ones.
    """
    with our_errors():
        return [Setting(*row.split("\t")) for row in ops.settings(what, line).split("\n")]


def loss_settings(name: str) -> List[Setting]:
    """The settings of `PolicyLoss(name)`: name, kind, value, what fits, meaning.

        high = {setting.name: setting.value for setting in gdpo.loss_settings("dapo")}[
            "surrogate.high"]

    name: one of `losses()`, perhaps with a level and settings behind it, as in "dapo low=0.1"; or
      one of `contrastive_losses()` or `value_losses()`, for the settings of
      `ContrastiveLoss(name)` or `ValueLoss(name)`.
    Errors: ValueError for an unknown name or setting, with a list of the known ones.
    """
    head = name.strip().split(" ")[0]
    kind = ("contrastive" if head in contrastive_losses() else
            "value_loss" if head in value_losses() else "loss")
    return settings_of(kind, name)


def estimator_settings(name: str, call: str = "advantages") -> List[Setting]:
    """The settings of `advantages(..., estimator=name)`: name, kind, value, what fits, meaning.

        gdpo.estimator_settings("trl::gdpo")
        gdpo.estimator_settings("verl::gae", "token_advantages")

    name: one of `estimators()`, perhaps with settings behind it, as in "trl::gdpo ddof=0".
    call: whose name it is: "advantages", "token_advantages", "outcome_advantages",
      "step_advantages", "optimal_token_baseline" or "whiten".
    Errors: ValueError for an unknown name or setting, with a list of the known ones.
    """
    if call not in _CALLS:
        raise ValueError(f"gdpo.estimator_settings: call: given {call!r}; needed: one of "
                         f"{', '.join(_CALLS)}")
    return settings_of(_CALLS[call], name)


@functools.lru_cache(maxsize=None)
def keywords(what: str) -> Dict[str, Setting]:
    """What sets a "loss", an "estimator" or a "contrastive" loss of any name: the keyword, and the
    setting that it means.

    A keyword is the end of a setting's name where no other setting ends so, in nine of ten losses
    that have it (the library refuses it in the others, and names both), else the whole name with
    "_" for the dots, as where the end is a word of Python or an argument of the call. Where
    settings of several losses end so, it is listed for the first of them, and means in each loss
    that loss's own. Of bounds it sets both ends.
    """
    found: Dict[str, Setting] = {}
    ends: Dict[str, List[bool]] = {}  # whether the end of that name does, in each
    for name in _NAMES[what]():
        listed = settings_of(what, name)
        pairs = {s.name for s in listed if s.kind == _PAIR}
        count = collections.Counter(".".join(s.name.split(".")[at:]) for s in listed
                                    for at in range(s.name.count(".") + 1))
        for s in listed:
            if s.name != "level" and s.name.rpartition(".")[0] not in pairs:
                found.setdefault(s.name, s)
                alone = count[s.name.rpartition(".")[2]] == 1 and s.name not in pairs
                ends.setdefault(s.name, []).append(alone)
    chosen: Dict[str, Setting] = {}
    for name, s in found.items():
        end = name.rpartition(".")[2]
        short = (sum(ends[name]) >= 0.9 * len(ends[name]) and end not in chosen
                 and not keyword.iskeyword(end) and not (end == "estimator" and what in _CALLS))
        chosen[end if short else name.replace(".", "_")] = s
    return chosen


@functools.lru_cache(maxsize=None)
def whole_names(what: str) -> FrozenSet[str]:
    """The whole names of all settings of that kind, with "_" for the dots."""
    return frozenset(s.name.replace(".", "_") for s in keywords(what).values())


def word(value: object) -> str:
    """A value as the library reads it from a line."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    try:
        if isinstance(value, (list, tuple)):
            return ",".join(word(part) for part in value)
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def line(function: str, words: Tuple[Any, ...], settings: Mapping[str, object]) -> str:
    """The line of these words and settings for the library; None is no setting.

    words: the first of them may be a line with settings itself, which stand before the others.
    Errors: ValueError for a name that is near to an argument of the call. What is no setting the
    library refuses.
    """
    if not all(isinstance(given, str) for given in words):
        raise ValueError(f"{function}: name: given {words[0]!r}; needed: a name, and perhaps "
                         "settings behind it, NAME SETTING=VALUE")
    head: List[str] = words[0].split()
    tail: List[str] = []
    while head and "=" in head[-1]:
        tail.insert(0, head.pop())
    if settings and function in _TAKERS:
        what, arguments = _TAKERS[function]
        for name in settings.keys() - all_words(what):
            meant = did_you_mean(name, arguments)
            if meant:
                raise ValueError(f"{function}: {name}: given {settings[name]!r}; needed: an "
                                 f"argument or a setting of this call{meant}")
            settings = {**settings, name: str(settings[name])}  # for the library to refuse
    given = [f"{name}={word(value)}" for name, value in settings.items() if value is not None]
    return " ".join([*head, *words[1:], *tail, *given])


# Of the calls that take settings: whose they are, and the names of the other arguments.
_TAKERS: Dict[str, Tuple[str, List[str]]] = {}


@functools.lru_cache(maxsize=None)
def all_words(what: str) -> FrozenSet[str]:
    """All that a setting of any name may be called: its name or an end of it, with dots or "_"."""
    ends = {setting.name.split(".", at)[at] for name in _NAMES[what]()
            for setting in settings_of(what, name) for at in range(setting.name.count(".") + 1)}
    return frozenset(ends | {end.replace(".", "_") for end in ends})


@functools.lru_cache(maxsize=1024)
def configured(what: str, text: str, whole: bool = True) -> str:
    """A line with the names that settings have in the library, which has checked it.

    whole: else what several settings decide together is not checked, because others will follow.
    Errors: ValueError, which calls settings as the line does.
    """
    with our_errors():
        return ops.configure(what, text, whole)


def said(what: str, text: str) -> Dict[str, str]:
    """What a line sets: the names in the library, and the values. It need not be the whole line."""
    return dict(word.split("=", 1) for word in configured(what, text, False).split() if "=" in word)


def described(what: str, text: str, given: Optional[Mapping[str, str]] = None) -> List[str]:
    """The name in a line, and all of its settings with their values, as arguments of its call.

    given: values that replace those of the line, by the names in the library.
    """
    listed = settings_of(what, text)
    kinds = {s.name: s.kind for s in listed}
    values = {s.name: (given or {}).get(s.name, s.value) for s in listed if s.value}
    words = [repr(text.split(" ")[0])] if text else []
    for name, value in values.items():
        owner, _, end = name.rpartition(".")
        if kinds[name] == "true or false":
            value = value.title()
        elif kinds[name] not in ("number", "integer"):
            value = repr(value)
        if kinds.get(owner) != _PAIR:
            words.append(f"{name.replace('.', '_')}={value}")
        elif end == "lo":
            words.append(f"{owner.replace('.', '_')}=({value}, {values[owner + '.hi']})")
    return words


def _annotation(setting: Setting) -> str:
    return _TYPES.get(setting.kind, "str")


def takes_settings(what: str) -> Callable[[_T], _T]:
    """Gives a function, or a class, with `**settings` the keywords of all losses or estimators.

    The function calls `line` by its name in messages, "gdpo::NAME", the class "gdpo.NAME".

    They are in its signature, and in its text in place of {settings}: both are for help() and
    editors, because the library itself looks for a setting when it is given.
    """
    def change(taker: _T) -> _T:
        function: Any = taker.__init__ if isinstance(taker, type) else taker  # type: ignore[misc]
        signature = inspect.signature(function)
        *before, rest = signature.parameters.values()
        title = f"gdpo.{taker.__name__}" if isinstance(taker, type) else f"gdpo::{taker.__name__}"
        # The call for NumPy has the name of that for PyTorch, and no argument that it lacks.
        _TAKERS.setdefault(title, (what, [p.name for p in before if p.name != "self"]))
        own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None,
                                 annotation=f"Optional[{_annotation(s)}]")
               for name, s in keywords(what).items()]
        function.__signature__ = signature.replace(parameters=[*before, *own, rest])
        if taker.__doc__:  # python -OO has none
            taker.__doc__ = taker.__doc__.replace("{settings}", text_of(what))
        return taker
    return change


def text_of(what: str, indent: str = "      ") -> str:
    """The keywords of all names of a kind for help(): what each means and what fits."""
    rows = []
    for name, s in keywords(what).items():
        fits = s.fits or s.kind
        rows.append(textwrap.fill(f"{name} ({s.name}): {s.meaning}; {fits}.", 100,
                                  initial_indent=indent, subsequent_indent=indent + "  ",
                                  break_long_words=False, break_on_hyphens=False))
    return "\n".join(rows).lstrip()


#: The arrays of weights, with the words of Reach that write each.
REACHED_BY = {"weights": {"surrogate", "surrogate_and_kl"},
              "kl_weights": {"kl", "surrogate_and_kl"}, "entropy_weights": {"entropy"},
              "level_log_weights": {"level"}}
#: The reach of pre-passes that `settings_of` lacks.
_REACH = {"overlong": "mask", "degenerate_groups": "mask", "top_entropy": "surrogate"}


def prepasses() -> List[str]:
    """The names that `prepare` takes; "top_entropy" is followed by a blank and its quantile.

        print([name for name in gdpo.prepasses() if name.startswith("verl::")])
    """
    return [*_REACH, *names("prepasses")]


@functools.lru_cache(maxsize=256)
def reaches_of(line: str) -> FrozenSet[str]:
    """The words of Reach that a pre-pass has, two for a weight with a mask."""
    name, *settings = line.split(" ")
    if name in _REACH:
        said = [each[len("reach="):] for each in settings if each.startswith("reach=")]
        return frozenset(said or [_REACH[name]])
    return frozenset(setting.value for setting in settings_of("prepass", line)
                     if setting.name.split(".")[-1] == "reach")


def makes(array: str, passes: Tuple[str, ...]) -> bool:
    """Whether one of the pre-passes writes this array of weights."""
    return any(REACHED_BY[array] & reaches_of(line) for line in passes)


def check_kl(text: str) -> None:
    """Raises ValueError for a policy loss that says what its KL term is and has none."""
    given = said("loss", text)
    if "kl.beta" not in given and given.keys() & {"kl", "kl.estimator", "kl.against"} and (
            float(values_of(text)["kl.beta"]) == 0):
        raise ValueError("gdpo.PolicyLoss: beta: given none, with kl or against; needed: the "
                         f"coefficient of the KL term, which \"{text.split()[0]}\" does not have "
                         "(0: off)")


@functools.lru_cache(maxsize=256)
def values_of(line: str) -> Dict[str, str]:
    """The settings of a loss, by its name or its line, with their values."""
    return {s.name: s.value for s in loss_settings(line) if s.value}


def has_entropy(line: str) -> bool:
    """Whether a loss, by its line, has an entropy bonus."""
    return float(values_of(line)["entropy.coef"]) != 0


def value_of(loss: "LossLine", setting: str) -> str:
    """The value that a setting has in a loss, by its name in the library."""
    return values_of(loss.line)[setting]


def has_kl(loss: "LossLine") -> bool:
    """Whether the loss has a KL term."""
    return float(value_of(loss, "kl.beta")) != 0


def refuse_teacher(door: str, argument: str, line: str) -> None:
    """Raises ValueError for a loss whose KL term reads a teacher, where there is none.

    Those that do by their name, distillation and SDAR, are that term alone, and 0 everywhere once a
    plug-in has set its beta to 0.
    """
    if values_of(line)["kl.against"] == "teacher":
        raise ValueError(f"gdpo.integrations.{door}: {argument}: given {line!r}, whose KL term "
                         "reads a teacher's log-probs; needed: another loss, because a loss gets "
                         "none of them here")


def is_cispo(name: str) -> bool:
    """Whether a loss, by its name or its line, is one of those called cispo.

    Their clip is that of a factor, min_ratio and max_ratio, in place of low, high, delta and dual.
    torchrl's loss of that name is none of them.
    """
    return (name.split(" ")[0].split("::")[-1] == "cispo"
            and "factor.max_ratio" in values_of(name))


# The bounds whose clipped tokens the clip metrics count, and what switches each of them off.
_CLIPS = {"surrogate.low": math.inf, "surrogate.high": math.inf, "factor.min_ratio": 0.0,
          "factor.max_ratio": math.inf, "factor.positive_max": math.inf,
          "factor.negative_max": math.inf}


def has_clip(loss: "LossLine") -> bool:
    """Whether the loss clips ratios, so that its clip metrics say something."""
    values = values_of(loss.line)
    return any(float(values[name]) != off for name, off in _CLIPS.items() if name in values)


def ratio_bounds(low: float, high: float) -> Dict[str, float]:
    """The bounds of a loss called cispo for a ratio between 1 - low, at least 0, and 1 + high."""
    return {"factor.min_ratio": max(0.0, 1.0 - low), "factor.max_ratio": 1.0 + high}


def _member(declared: str, meaning: str) -> str:
    """A member of the stub with its comment, which is above it where the line would be too long."""
    if len(declared) + len(meaning) + 4 <= 100:
        return f"{declared}  # {meaning}\n"
    return textwrap.fill(meaning, 100, initial_indent="    # ",
                         subsequent_indent="    # ") + f"\n{declared}\n"


def stub() -> str:
    """The keywords as types, for editors and type checkers: _keywords.pyi holds this text."""
    text = ('"""The settings of losses and estimators as keywords, for type checkers.\n\n'
            'Made from the library\'s lists: python -m gdpo._settings > gdpo/_keywords.pyi\n"""\n'
            "from typing import Optional, Tuple, TypedDict\n\nimport torch\n")
    for what in _NAMES:
        title = what.title().replace("_", "")
        text += f"\n\nclass {title}Settings(TypedDict, total=False):\n"
        seen = set()
        for name, s in keywords(what).items():
            for each in (name, s.name.replace(".", "_")):
                if each not in seen:
                    text += _member(f"    {each}: Optional[{_annotation(s)}]", s.meaning)
                seen.add(each)
    for title, listed in _LISTS.items():
        text += f"\n\nclass {title}Settings(TypedDict, total=False):\n"
        for s in settings_of(*listed):
            if s.kind != "true or false":  # those are arguments of the call
                text += _member(f"    {s.name}: {_annotation(s)}", s.meaning)
    from ._policy_loss import ARRAYS_BESIDE_LOGITS  # which imports this module
    return text + "\n\nclass ArraysBesideLogits(TypedDict, total=False):\n" + "".join(
        f"    {name}: Optional[torch.Tensor]\n" for name in ARRAYS_BESIDE_LOGITS)


if __name__ == "__main__":
    print(stub(), end="")
