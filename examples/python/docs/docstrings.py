"""Reads the docstrings of the package: its public names, and the parts of their texts.

The tests of docstrings run the examples that this finds, the checkers of types read them, and
conf.py makes the pages of them.
"""
import inspect
import pathlib
import re
import textwrap
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import gdpo

#: The tensors that examples use.
PRELUDE = pathlib.Path(__file__).with_name("prelude.py")
_ERRORS = re.compile(r"(?<=[.:;)]) (?=Errors: )")
_SETTING_BEGINS = re.compile(r"\w+ \([\w.]+\): ")
_SETTING = re.compile(r"(\w+) \(([\w.]+)\): (.*); ([^;]*)\.$")


class Part(NamedTuple):
    """A part of a docstring."""

    kind: str  #: "text", "example" (lines of Python), "formula" or "settings".
    text: str  #: Of one paragraph without line breaks, or lines as they are.
    names: Tuple[str, ...] = ()  #: The arguments that a text is about.


class Named(NamedTuple):
    """A public name and what it stands for."""

    name: str  #: Within gdpo, such as "Metrics.mean".
    value: Any
    doc: str  #: Without indentation; empty where there is none.


def parameters(value: Any) -> List[str]:
    """The names of the arguments of a function or class, as they are written."""
    function = value.__init__ if inspect.isclass(value) else value
    function = getattr(function, "fget", None) or getattr(function, "__func__", function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return []
    count = code.co_argcount + code.co_kwonlyargcount + sum(
        bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    return list(code.co_varnames[:count])


def members(kind: type) -> Iterator[Tuple[str, Any]]:
    """The public members of a class of the package that are functions or properties."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("gdpo"):
            continue
        for name, value in vars(base).items():
            if name in seen or (name.startswith("_") and name != "__call__"):
                continue
            if name == "extra_repr":  # which torch.nn.Module asks for
                continue
            seen.add(name)
            if inspect.isroutine(value) or isinstance(value, property):
                yield name, value


def public(module: Any = gdpo) -> Iterator[Named]:
    """Every public name of the package, members of a class behind it.

    But those with underscores, such as __version__, which Python's conventions explain. Of another
    module, gdpo.numpy or gdpo.jax, those that it defines.
    """
    for name in module.__all__:
        value = getattr(module, name)
        if name.startswith("__") or (module is not gdpo and value.__module__ != module.__name__):
            continue
        yield Named(name, value, inspect.getdoc(value) or "")
        if inspect.isclass(value):
            for member, function in members(value):
                yield Named(f"{name}.{member}", function, inspect.getdoc(function) or "")


def parts(doc: str, arguments: Tuple[str, ...] = ()) -> List[Part]:
    """The parts of a docstring in their order.

    arguments: names of which a line that begins with some of them and a colon tells.
    """
    found: List[Part] = []
    for block in re.split(r"\n\s*\n", doc.rstrip()):
        if block.startswith("    ") or _is_example(block):
            found.append(_indented(textwrap.dedent(block)))
        elif block.strip():
            found += _paragraphs(block, arguments)
    return _joined(found)


def _is_example(block: str) -> bool:
    """Whether lines are an example without its indentation, which Python takes off a docstring
    that has no other lines behind the first."""
    try:
        return "gdpo." in block and bool(compile(block, "docstring", "exec"))
    except SyntaxError:
        return False


def _indented(text: str) -> Part:
    """Lines behind a blank one, further in: an example, or a formula, which is not Python."""
    if "gdpo." in text:
        return Part("example", text)
    try:
        compile(text, "docstring", "exec")
    except SyntaxError:
        return Part("formula", text)
    return Part("example", text)


def _joined(found: List[Part]) -> List[Part]:
    """The same with examples that a blank line divides in one."""
    result: List[Part] = []
    for part in found:
        if result and part.kind == result[-1].kind != "text":
            part = Part(part.kind, f"{result.pop().text}\n\n{part.text}")
        result.append(part)
    return result


def _paragraphs(block: str, arguments: Tuple[str, ...]) -> List[Part]:
    """Lines without a blank one among them: those of arguments and settings apart."""
    texts: List[str] = []
    settings: Dict[int, List[str]] = {}  # by the number of texts before them
    begins = re.compile(rf"(?:{_names(arguments)}): ") if arguments else re.compile(r"(?!)")
    about_arguments = any(begins.match(line) for line in block.split("\n"))
    for line in block.split("\n"):
        inside = line.startswith(" ")
        if inside and _SETTING_BEGINS.match(line.strip()):
            settings.setdefault(len(texts), []).append(line.strip())
        elif inside and len(texts) in settings:
            settings[len(texts)][-1] += " " + line.strip()
        elif not texts or len(texts) in settings or (not inside and (
                begins.match(line) or line.startswith(("Errors: ", "Returns ")) or (
                    about_arguments and texts[-1].endswith(".") and line[0].isupper()))):
            texts.append(line.strip())
        else:
            texts[-1] += " " + line.strip()
    result = []
    for number, text in enumerate(texts, 1):
        result += [_part(piece, begins) for piece in _pieces(text, begins)]
        if number in settings:
            result.append(Part("settings", "\n".join(settings[number])))
    return result


def _names(arguments: Tuple[str, ...]) -> str:
    """A pattern of some of the arguments, as in "mask, offsets"."""
    one = "|".join(map(re.escape, arguments))
    return rf"(?:{one})(?:(?:, and |, or |, | and | or )(?:{one}))*(?: \(rows\))?"


def _pieces(text: str, begins: "re.Pattern[str]") -> List[str]:
    """A text cut where its sentences begin to tell of other arguments or of errors."""
    pieces = []
    for piece in _ERRORS.split(text):
        at = 0
        for found in re.finditer(r"(?<=[.;]) (?=\w)", piece):
            if begins.match(piece, found.end()):
                pieces.append(piece[at:found.start()])
                at = found.end()
        pieces.append(piece[at:])
    return pieces


def _part(text: str, begins: "re.Pattern[str]") -> Part:
    found = begins.match(text)
    if not found:
        return Part("text", text)
    names = re.findall(r"\w+", re.sub(r" (?:and|or) |\(rows\)", " ", found[0]))
    rest = text[found.end():]
    return Part("text", f"(rows) {rest}" if "(rows)" in found[0] else rest, tuple(names))


def setting(line: str) -> Optional[Tuple[str, str, str, str]]:
    """Keyword, whole name, meaning and what fits, from a line of a part "settings"."""
    found = _SETTING.match(line)
    return (found[1], found[2], found[3], found[4]) if found else None


def example_of(doc: str) -> str:
    """The lines of Python of a docstring, empty where there are none."""
    return "\n\n".join(part.text for part in parts(doc) if part.kind == "example")


class Example(NamedTuple):
    """The example of a public name."""

    name: str
    lines: str
    before: str  #: The example of the class that it is a member of, which runs first.


def examples(module: Any = gdpo) -> List[Example]:
    """The examples of all public names."""
    found: List[Example] = []
    of_class: Dict[str, str] = {}
    for name, _, doc in public(module):
        lines = example_of(doc)
        owner, _, member = name.partition(".")
        if not member:
            of_class[owner] = lines
        if lines:
            found.append(Example(name, lines, of_class[owner] if member else ""))
    return found


def _lacks(named: Named, texts: Dict[str, str]) -> str:
    """What a public name lacks, in words; empty for nothing. texts: the docstrings of all."""
    owner, _, member = named.name.partition(".")
    if not named.doc:
        return "no docstring"
    if not example_of(texts[owner]):
        return "no example"
    if inspect.isclass(named.value) and f"gdpo.{owner}(" not in texts[owner]:
        return ""  # others make it, and the user reads it
    # What it refers to: a class with what its object is called with.
    text = named.doc + texts[owner] + "".join(
        texts[other] + texts.get(f"{other}.forward", "") for other in
        re.findall(r"(?:as in|as for|as from|those of) `?(?:gdpo\.)?(\w+)", named.doc)
        if other in texts)
    unnamed = [argument for argument in parameters(named.value)
               if argument not in ("self", "cls") and not re.search(rf"\b{argument}\b", text)]
    return f"nothing about {', '.join(unnamed)}" if unnamed else ""


def lacking() -> Dict[str, str]:
    """What public names lack, by their names: a docstring, an example, or words about an argument.

    A member needs no example of its own where its class has one.
    """
    names = list(public())
    texts = {named.name: named.doc for named in names}
    found = {named.name: _lacks(named, texts) for named in names}
    return {name: words for name, words in found.items() if words}
