"""Every public name has a docstring that tells of its arguments and shows a call, and that runs."""
import importlib
import importlib.util
import pathlib
import re

import pytest
import torch

DOCS = pathlib.Path(__file__).parents[1] / "docs"


def load(path):
    """The module in a file that is not in the path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docstrings = load(DOCS / "docstrings.py")
PRELUDE = compile(docstrings.PRELUDE.read_text(encoding="utf-8"), docstrings.PRELUDE, "exec")


def run(name, *examples):
    """Runs examples one after the other behind the tensors that they use."""
    names = {"__name__": "example"}
    exec(PRELUDE, names)
    for example in examples:
        exec(compile(example, f"the example of gdpo.{name}", "exec"), names)
    return names


@pytest.mark.parametrize("example", docstrings.examples(), ids=lambda example: example.name)
def test_example(example, capsys):
    run(example.name, example.before, example.lines)
    assert "nan" not in re.findall(r"\w+", capsys.readouterr().out)


@pytest.mark.parametrize("name", ("numpy", "jax"))
def test_examples_of_arrays(name):
    """Those of gdpo.numpy and gdpo.jax, with the tensors as arrays."""
    module = importlib.import_module(f"gdpo.{name}")
    shown = docstrings.examples(module)
    assert {example.name for example in shown} >= {
        named for named in module.__all__ if hasattr(docstrings.gdpo, named) and
        getattr(module, named).__module__ == module.__name__
        and not named.startswith("Advantages")}
    for example in shown:
        names = {key: value.detach().numpy() if isinstance(value, torch.Tensor) else value
                 for key, value in run(example.name).items()}
        exec(compile(f"import gdpo.{name}\n{example.before}\n{example.lines}",
                     f"the example of gdpo.{name}.{example.name}", "exec"), names)
    lacking = [named.name for named in docstrings.public(module)
               if not named.doc and named.name != "Metrics"]
    assert lacking == []


def test_every_public_name_is_documented():
    """A docstring, an example or that of its class, and a word about each argument."""
    assert docstrings.lacking() == {}


def test_order_of_a_step(capsys):
    """The example on the first page of the site, and every public function stands on it or below
    a name that does."""
    page = (DOCS / "index.rst").read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", page, re.M)
    assert len(blocks) == 1
    names = run("index", docstrings.textwrap.dedent(blocks[0]))
    assert len(names["metrics"].to_dict()) > 5
    linked = set(re.findall(r":py:obj:`gdpo\.(\w+)", page))
    assert linked and linked <= set(docstrings.gdpo.__all__)


def test_lacks_are_found():
    """A name without a docstring, without an example, and with an argument that nobody explains."""
    def lacks(doc, function):
        named = docstrings.Named("f", function, doc)
        return docstrings._lacks(named, {"f": doc})
    text = "Adds.\n\n    gdpo.f(1, other=2)\n\nother: a number."
    assert lacks("", lambda other: 0) == "no docstring"
    assert lacks("Adds.\n\nother: a number.", lambda other: 0) == "no example"
    assert lacks(text, lambda other, more: 0) == "nothing about more"
    assert lacks(text, lambda other: 0) == ""


def test_parts():
    """Examples, formulas, arguments and settings are told apart."""
    doc = ("One.\n\n    gdpo.f(1)\n\n    gdpo.f(2)\n\nWith\n\n    a = b of c\n\n"
           "x: first. y, z: the\n  others.\nMore words. Errors: none.\nsettings: these.\n"
           "  low (a.low): the\n    bound; a number.\n  of (b.of): whose; one | two.\n\nReturns 1.")
    parts = docstrings.parts(doc, ("x", "y", "z", "settings"))
    assert [(part.kind, part.text) for part in parts] == [
        ("text", "One."), ("example", "gdpo.f(1)\n\ngdpo.f(2)"), ("text", "With"),
        ("formula", "a = b of c"), ("text", "first."), ("text", "the others."),
        ("text", "More words."), ("text", "Errors: none."), ("text", "these."),
        ("settings", "low (a.low): the bound; a number.\nof (b.of): whose; one | two."),
        ("text", "Returns 1.")]
    assert [part.names for part in parts if part.names] == [("x",), ("y", "z"), ("settings",)]
    assert docstrings.setting("of (b.of): whose; one | two.") == (
        "of", "b.of", "whose", "one | two")


def test_settings_of_all_calls_are_read():
    """Each line that gdpo._settings.text_of writes is one setting of the table of the site."""
    for what in docstrings.gdpo._settings._NAMES:
        doc = f"About.\n\nsettings: these.\n  {docstrings.gdpo._settings.text_of(what)}"
        *_, part = docstrings.parts(doc, ("settings",))
        read = [docstrings.setting(line) for line in part.text.split("\n")]
        assert [setting[:2] for setting in read] == [
            (name, s.name) for name, s in docstrings.gdpo._settings.keywords(what).items()]
