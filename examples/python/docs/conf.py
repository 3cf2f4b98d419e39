"""The site of the Python package, which `cmake/dev python docs` builds with Sphinx.

A page for each module of the package, from the docstrings of its public names. These are plain
text; `to_rst` makes of it what Sphinx reads.
"""
import importlib
import inspect
import pathlib
import re
import shutil
import sys
from typing import Any, Dict, List

from sphinx.pycode import ModuleAnalyzer

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

import docstrings  # noqa: E402  (it stands beside this file)
import gdpo  # noqa: E402

project = "gdpo"
html_title = "gdpo for Python"
extensions = ["sphinx.ext.autodoc", "myst_nb"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_css_files = ["site.css"]
html_static_path = ["_static"]
templates_path: List[str] = []
exclude_patterns = ["_static"]
pygments_style = "friendly"
nitpicky = False
smartquotes = False  # strings in docstrings keep their quotes
# Signatures: an argument a line, types by their short names.
maximum_signature_line_length = 80
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
# The notebook runs from top to bottom, and the site is not built where a cell fails.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True

#: The titles of the pages, in the order of a step as in index.rst. Modules that are not in it
#: follow, each with its name as the title.
TITLES = {
    "_running": "Rewards", "_advantages": "Advantages",
    "_token_advantages": "Advantages of tokens and steps", "_whiten": "Whitening",
    "_constraint": "Constraints",
    "_logprobs": "Log-probs", "_prepare": "Pre-passes", "_policy_loss": "Policy loss and counts",
    "_contrastive": "Contrastive loss", "_value_loss": "Value loss", "_step": "A step",
    "_update": "Around the loss",
    "_ranks": "Ranks", "_entropy": "Adaptive entropy", "_diagnose": "Diagnosis",
    "_mismatch": "Sampler and trainer", "_explain": "One group in detail",
    "_measured": "What calls measure",
    "configs": "A trainer's configuration", "_settings": "Settings", "_names": "Names"}
#: The modules with the calls for other arrays, which have a page each.
DOORS = {"numpy": "NumPy", "jax": "JAX"}


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_|`])", r"\\\1", text)


def _inline(text: str) -> str:
    """A sentence with its words in backticks as code, and as links where they are public names."""
    pieces = re.split(r"`([^`]+)`", text)
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = re.sub(
                r"arXiv\\? (\d{4}\.\d{5})", r"`arXiv \1 <https://arxiv.org/abs/\1>`__",
                _escaped(piece))
            continue
        name = re.sub(r"^gdpo\.|\(.*$", "", piece)
        known = name.split(".")[0] in gdpo.__all__ and re.fullmatch(r"[\w.]+", name)
        pieces[at] = f":py:obj:`{piece} <gdpo.{name}>`" if known else f"``{piece}``"
    # RST wants no letter right behind markup.
    return "".join(piece if at % 2 == 0 or not pieces[at + 1][:1].isalnum() else piece + "\\ "
                   for at, piece in enumerate(pieces))


def _settings_table(lines: List[str]) -> List[str]:
    """The settings of a call: keyword and whole name, what it means, what fits."""
    table = [".. list-table::", "   :header-rows: 1", "   :class: settings", "",
             "   * - keyword", "     - the setting", "     - what it means", "     - what fits"]
    for line in lines:
        found = docstrings.setting(line)
        if found is None:
            raise ValueError(f"no setting as gdpo._settings.text_of writes it: {line}")
        keyword, name, meaning, fits = found
        table += [f"   * - ``{keyword}``", f"     - ``{name}``", f"     - {_escaped(meaning)}",
                  f"     - {_escaped(fits)}"]
    return [*table, ""]


def to_rst(doc: str, arguments: List[str]) -> List[str]:
    """A docstring of plain text in the words of Sphinx."""
    result: List[str] = []
    for part in docstrings.parts(doc, tuple(arguments)):
        if part.kind == "settings":
            result += _settings_table(part.text.split("\n"))
        elif part.kind in ("example", "formula"):
            result += [f".. code-block:: {'python' if part.kind == 'example' else 'text'}", "",
                       *("   " + line for line in part.text.split("\n")), ""]
        elif part.names:
            result += [", ".join(f"``{name}``" for name in part.names),
                       f"   {_inline(part.text)}", ""]
        else:
            result += [_inline(part.text.replace("Errors: ", "")) if not part.text.startswith(
                "Errors: ") else f"**Errors:** {_inline(part.text[len('Errors: '):])}", ""]
    return result


def _process(app: Any, what: str, name: str, value: Any, options: Any, lines: List[str]) -> None:
    if what not in ("attribute", "data") and lines:
        lines[:] = to_rst("\n".join(lines), docstrings.parameters(value))
    elif lines:  # the comment of a member
        lines[:] = [_inline(" ".join(line.strip() for line in lines)), ""]


def _own_signatures() -> None:
    """Shows each function as it is written: the settings are in a table below, and overloads, which
    are for type checkers, say the same once more."""
    doors = [importlib.import_module(f"gdpo.{door}") for door in DOORS]
    for name, value, _ in (named for module in (gdpo, *doors)
                           for named in docstrings.public(module)):
        function: Any = value.__init__ if inspect.isclass(value) else value
        if "__signature__" in getattr(function, "__dict__", {}):
            del function.__signature__
        if "." not in name:
            analyzer = ModuleAnalyzer.for_module(value.__module__)
            analyzer.analyze()
            analyzer.overloads.clear()


def _pages() -> Dict[str, List[str]]:
    """The public names by the modules that define them, in the order of the pages."""
    found: Dict[str, List[str]] = {}
    for name, value, _ in docstrings.public():
        if "." in name:
            continue
        module = value.__module__.removeprefix("gdpo.").split(".")[0]
        found.setdefault(module, []).append(name)
    for module, names in found.items():  # first what the module is called by
        names.sort(key=lambda name: name.lower() != module.replace("_", ""))
    order = list(TITLES)
    return dict(sorted(found.items(), key=lambda page: (
        order.index(page[0]) if page[0] in order else len(order), page[0])))


def _directive(name: str, module: Any = gdpo) -> List[str]:
    value = getattr(module, name)
    if not inspect.isclass(value):
        return [f".. autofunction:: {module.__name__}.{name}", ""]
    has_call = "__call__" in vars(value)
    return [f".. autoclass:: {module.__name__}.{name}", "   :members:",
            "   :inherited-members: tuple,Module,Mapping", "   :exclude-members: extra_repr",
            *(["   :special-members: __call__"] if has_call else []), ""]


def _generate() -> None:
    """Writes the pages of the modules, and the table of all names, into the folder `reference`."""
    folder = HERE / "reference"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    listed = [".. list-table::", "   :class: settings", ""]
    for module, names in _pages().items():
        heading = TITLES.get(module, module.strip("_").replace("_", " ").capitalize())
        about = inspect.getdoc(sys.modules[f"gdpo.{module}"]) or ""
        page = [heading, "=" * len(heading), "", *to_rst(about.split("\n\n")[0], []),
                ".. py:currentmodule:: gdpo", ""]
        for name in names:
            page += _directive(name)
            value = getattr(gdpo, name)
            first = docstrings.parts(inspect.getdoc(value) or "")[0].text
            listed += [f"   * - :py:obj:`gdpo.{name}`", f"     - {_inline(first)}"]
        (folder / f"{module.strip('_')}.rst").write_text("\n".join(page), encoding="utf-8")
    for door, heading in DOORS.items():
        module = importlib.import_module(f"gdpo.{door}")
        page = [heading, "=" * len(heading), "", *to_rst(inspect.getdoc(module) or "", []),
                f".. py:currentmodule:: gdpo.{door}", ""]
        for name in module.__all__:
            if getattr(module, name).__module__ == module.__name__:
                page += _directive(name, module)
        (folder / f"{door}.rst").write_text("\n".join(page), encoding="utf-8")
    (folder / "names.txt").write_text("\n".join(listed), encoding="utf-8")
    (folder / "pages.txt").write_text("\n".join(
        [".. toctree::", "   :caption: The calls", "   :hidden:", "",
         *(f"   /reference/{module.strip('_')}" for module in (*_pages(), *DOORS))]),
        encoding="utf-8")


def setup(app: Any) -> None:
    """Prepares the pages, and connects what reads docstrings."""
    _own_signatures()
    _generate()
    app.connect("autodoc-process-docstring", _process)
