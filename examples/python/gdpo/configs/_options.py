"""The options of a configuration by dotted names, however it was given."""
import argparse
import dataclasses
import json
import re
import types
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional

from .._names import near

_REFERENCE = re.compile(r"^\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,\s*(.*?)\s*)?\}$")
_NAMES = re.compile(r"[\w-]+(\.[\w-]+)*")


def names_of(text: str) -> FrozenSet[str]:
    """The names in a text, with blanks between."""
    return frozenset(text.split())


def parsed(text: str) -> Any:
    """A value as it is written in a command: none, true, a number, JSON, else the text itself.

    What is in single quotes is a text.
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    known = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in known:
        return known[text.lower()]
    for read in (int, float, json.loads):
        try:
            return read(text)
        except ValueError:
            continue
    if text.startswith("[") and text.endswith("]"):
        return [parsed(part.strip("'\" ")) for part in text[1:-1].split(",") if part.strip()]
    return text


def words_to_options(words: Iterable[str]) -> Dict[str, Any]:
    """The options of `key=value`, `--key=value`, `--key value ...` and `--flag` words.

    Errors: ValueError for a value without a name.
    """
    options: Dict[str, Any] = {}
    name = None
    for word in words:
        head, equals, tail = word.partition("=")
        if word.startswith("--") and not equals:
            name = word
            options[name] = True
        elif equals and _NAMES.fullmatch(head.lstrip("+-")):
            options[head.lstrip("+")] = parsed(tail)
            name = None
        elif name is not None:  # several values of one name are a list
            before, value = options[name], parsed(word)
            options[name] = (value if before is True else
                             [*before, value] if isinstance(before, list) else [before, value])
        else:
            raise ValueError(f"gdpo.from_config: config: given {word!r}; needed: a file, or words "
                             "such as key=value or --key value")
    return options


def flat(config: Any) -> Dict[str, Any]:
    """The options of a mapping, a dataclass or a namespace, nested or not, by dotted names.

    Dashes in front of a name are left out, and those in it are "_". What refers to another option,
    as "${a.b}" or "${oc.select:a.b,default}" does, has the value of that; where there is none, it
    is left out, as are OmegaConf's values that are missing.

    Errors: ValueError for what is none of these.
    """
    found: Dict[str, Any] = {}
    for name, value in _leaves(_plain(config), ""):
        if not name:
            if isinstance(value, Mapping):
                continue
            raise ValueError(f"gdpo.from_config: config: given {value!r}; needed: a mapping, a "
                             "dataclass or a namespace of options")
        found[name] = value
    return {name: value for name, value in ((name, _resolved(value, found))
                                            for name, value in found.items())
            if not (isinstance(value, str) and (value == "???" or value.startswith("${")))}


def _plain(config: Any) -> Any:
    """OmegaConf's containers as dicts, with their references as they were written."""
    if type(config).__module__.split(".")[0] == "omegaconf":
        from omegaconf import OmegaConf
        return OmegaConf.to_container(config, resolve=False)
    return config


def _leaves(value: Any, path: str) -> Iterator[tuple]:
    """The names and values below a path."""
    items: Optional[Mapping[str, Any]] = None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)
                 if hasattr(value, field.name)}
    elif isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        items = vars(value)
    elif isinstance(value, Mapping):
        items = {str(name): value[name] for name in value}
    if items is None or (path and not items):
        yield path, value
        return
    for name, part in items.items():
        name = re.sub(r"^-+", "", name).replace("-", "_")
        yield from _leaves(_plain(part), f"{path}.{name}" if path else name)


def _resolved(value: Any, found: Mapping[str, Any]) -> Any:
    """The value that a reference stands for."""
    for _ in range(8):  # a reference may refer to another one
        match = _REFERENCE.match(value) if isinstance(value, str) else None
        if match is None:
            return value
        name, default = match.groups()
        if name in found:
            value = found[name]
        elif default is not None:
            return parsed(default)
        else:
            return value
    return value


class Options:
    """What a configuration says about the loss, with the trainer's defaults for what it leaves out.

    given: the options by dotted names. defaults: those that are read, with the trainer's defaults.
    """

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.given: Dict[str, Any] = dict(given)
        self._defaults = defaults

    def __getitem__(self, name: str) -> Any:
        default = self._defaults[name]
        if name not in self.given:
            return default
        return _as(default, self.given[name])

    def says(self, name: str) -> bool:
        """Whether the configuration has the option with another value than the default."""
        return name in self.given and self[name] != self._defaults[name]

    def section(self, prefix: str) -> "Section":
        """The options below a name as attributes, as trainers' objects have them."""
        return Section(self, prefix)

    def has_section(self, prefix: str) -> bool:
        """Whether options with a default lie below a name."""
        return any(name.startswith(prefix + ".") for name in self._defaults)

    def known(self, name: str) -> bool:
        """Whether an option of that name is read."""
        return name in self._defaults

    def near(self, name: str) -> List[str]:
        """The options that are read whose names, or the ends of them, are like this one."""
        return near(name, self._defaults)


class Section:
    """Options below a name: `section.loss_mode`, `section.get("loss_mode", default)`."""

    def __init__(self, options: Options, prefix: str) -> None:
        self._options, self._prefix = options, prefix

    def __getattr__(self, name: str) -> Any:
        path = f"{self._prefix}.{name}" if self._prefix else name
        if self._options.known(path):
            return self._options[path]
        if self._options.has_section(path):
            return self._options.section(path)
        raise AttributeError(f"{path} is no option that is read")

    def get(self, name: str, default: Any = None) -> Any:
        """An option, or the default where there is none of that name."""
        return getattr(self, name, default)


def _as(default: Any, value: Any) -> Any:
    """A value as the default has it: what YAML or a command leaves as text is a number there."""
    if not isinstance(value, str) or isinstance(default, str):
        return value
    found = parsed(value)
    if isinstance(default, bool):
        return found if isinstance(found, bool) else value
    if isinstance(default, (int, float)) or default is None:
        return found if isinstance(found, (int, float, list)) or found is None else value
    return value
