"""The files that type checkers read, as far as no checker is needed: see ../typed."""
import ast
import inspect
import pathlib
import re
import runpy

import pytest

import gdpo

TYPED = pathlib.Path(__file__).parents[1] / "typed"
ACCEPTED = TYPED / "accepted.py"
#: Words whose types have unknown parts where nothing stands behind them in brackets.
BARE = re.compile(r"\b(?:dict|list|tuple|set|Dict|List|Tuple|Callable|Mapping|Sequence)\b(?!\[)")


def members(kind):
    """The public methods and properties of a class of the package, with those of its bases."""
    return {name for base in kind.__mro__ if base.__module__.startswith("gdpo")
            for name, value in vars(base).items()
            if not name.startswith("_") and name != "extra_repr"
            and (inspect.isroutine(value) or isinstance(value, property))}


def functions():
    """Each public function and method, and the functions of properties, by their names."""
    for name in gdpo.__all__:
        value = getattr(gdpo, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for member in {*members(value), "__init__", "__call__"}:
                function = inspect.getattr_static(value, member, None)
                function = getattr(function, "fget", getattr(function, "__func__", function))
                if inspect.isfunction(function) and function.__module__.startswith("gdpo"):
                    yield f"{name}.{member}", function


def test_accepted_runs():
    runpy.run_path(str(ACCEPTED))


def test_accepted_has_every_name():
    """Each public name, and each member of its classes."""
    names = {node.attr for node in ast.walk(ast.parse(ACCEPTED.read_text(encoding="utf-8")))
             if isinstance(node, ast.Attribute)}
    lacking = {name for name in gdpo.__all__ if not name.startswith("__")} - names
    for name in gdpo.__all__:
        value = getattr(gdpo, name)
        if inspect.isclass(value):
            lacking |= {f"{name}.{member}" for member in members(value) - names}
    assert lacking == set()


def test_signatures_are_typed():
    """Every argument and result has an annotation, and no collection without what is in it."""
    lacking = {}
    for name, function in functions():
        code = function.__code__
        count = code.co_argcount + code.co_kwonlyargcount
        arguments = [a for a in code.co_varnames[:count] if a not in ("self", "cls")]
        told = function.__annotations__
        words = [argument for argument in [*arguments, "return"] if argument not in told]
        words += [f"{argument}: {type_}" for argument, type_ in told.items()
                  if BARE.search(getattr(type_, "__name__", "") if inspect.isclass(type_)
                                 else str(type_))]
        if words:
            lacking[name] = words
    assert lacking == {}


def overloads():
    """For each public function with overloads: its name, itself, and what each of them takes."""
    for name, function in functions():
        tree = ast.parse(inspect.getsource(inspect.getmodule(function)))
        classes = {node.name: {field.target.id for field in node.body} for node in ast.walk(tree)
                   if isinstance(node, ast.ClassDef)
                   and all(isinstance(field, ast.AnnAssign) for field in node.body)}
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                 and node.name == function.__name__
                 and any(getattr(mark, "id", "") == "overload" for mark in node.decorator_list)]
        if found and inspect.isfunction(getattr(gdpo, name, None)):
            yield name, function, [
                {a.arg for a in (*node.args.args, *node.args.kwonlyargs)} | (
                    classes[re.search(r"Unpack\[(\w+)\]", ast.unparse(node.args.kwarg))[1]]
                    if node.args.kwarg else set()) for node in found]


@pytest.mark.parametrize("name, function, taken", list(overloads()),
                         ids=[name for name, *_ in overloads()])
def test_overloads_take_all_arguments(name, function, taken):
    """Checkers read the overloads, which have to have every argument of the function."""
    code = function.__code__
    arguments = set(code.co_varnames[:code.co_argcount + code.co_kwonlyargcount])
    assert all(each == arguments for each in taken), [each ^ arguments for each in taken]


def test_refused_states_reasons():
    """Each call of refused.py below its preparations ends with the codes of both checkers."""
    lines = (TYPED / "refused.py").read_text(encoding="utf-8").splitlines()
    refused = [line for line in lines if "  # refused:" in line]
    assert len(refused) > 25
    assert all(re.search(r"  # refused: [a-z-]+, report[A-Z]\w+$", line) for line in refused)


@pytest.mark.parametrize("call", [line.partition("  # refused:")[0] for line in (
    TYPED / "refused.py").read_text(encoding="utf-8").splitlines() if "call-arg" in line])
def test_refused_keywords_fail(call):
    """A keyword that checkers refuse, or one that they miss, Python or the library refuses, too."""
    names = {"gdpo": gdpo}
    text = (TYPED / "refused.py").read_text(encoding="utf-8")
    exec(text[:text.index("# A keyword that a call does not have.")], names)
    with pytest.raises((TypeError, ValueError)):
        exec(call, names)
