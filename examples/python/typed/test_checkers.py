"""mypy --strict and pyright's strict mode over what users write; `cmake/dev python docs` runs this.

They accept the blocks of the page, the examples of docstrings, loop.py and accepted.py, and refuse
each line of refused.py for the reason that it states.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import gdpo

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parent
sys.path.insert(0, str(PACKAGE / "docs"))

import docstrings  # noqa: E402  (its folder is now in the path)

REFUSED = re.compile(r"# refused: ([\w-]+), (\w+)$")
#: What mypy asks of torch, which is not ours: that its functions have types.
MYPY = "[mypy]\nstrict = True\nuntyped_calls_exclude = torch\n"
#: What of strict mode is not about types (pages use what a loop has made behind it), or is about
#: those of torch, whose members have none in part.
NOT_STRICT = {"reportUnknownMemberType": False, "reportUnusedVariable": False,
              "reportPossiblyUnboundVariable": False}


def page() -> str:
    """The blocks of the page of the package, one after the other."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```\n", text, re.S | re.M))


def from_docstrings() -> str:
    """The examples of docstrings behind their prelude, each in a function of its own."""
    text = docstrings.PRELUDE.read_text(encoding="utf-8")
    for name, lines, before in docstrings.examples():
        body = docstrings.textwrap.indent("\n".join(filter(None, (before, lines))), "    ")
        text += f"\n\ndef example_of_{name.replace('.', '_')}() -> None:\n{body}\n"
    return text


FILES = {"page.py": page(), "from_docstrings.py": from_docstrings(),
         "loop.py": (PACKAGE / "training/loop.py").read_text(encoding="utf-8"),
         **{name: (HERE / name).read_text(encoding="utf-8")
            for name in ("accepted.py", "refused.py")}}


def of_mypy(folder: pathlib.Path) -> list:
    (folder / "mypy.ini").write_text(MYPY, encoding="utf-8")
    out = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--output", "json",
         "--cache-dir", ".mypy", *FILES], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "MYPYPATH": str(pathlib.Path(gdpo.__file__).parents[1])
             if "site-packages" not in gdpo.__file__ else ""})
    assert out.returncode in (0, 1) and not out.stderr, out.stdout + out.stderr
    errors = [json.loads(line) for line in out.stdout.splitlines()]
    return [(error["file"], error["line"], error["code"], error["message"])
            for error in errors if error["severity"] == "error"]


def of_pyright(folder: pathlib.Path) -> list:
    (folder / "pyrightconfig.json").write_text(json.dumps({
        "include": list(FILES), "typeCheckingMode": "strict", **NOT_STRICT,
        "extraPaths": [str(pathlib.Path(gdpo.__file__).parents[1])]}), encoding="utf-8")
    out = subprocess.run([sys.executable, "-m", "pyright", "--outputjson", "--pythonpath",
                          sys.executable], cwd=folder, capture_output=True, text=True)
    assert out.returncode in (0, 1), out.stdout + out.stderr
    report = json.loads(out.stdout)
    assert report["summary"]["filesAnalyzed"] == len(FILES)
    return [(pathlib.Path(error["file"]).name, error["range"]["start"]["line"] + 1,
             error.get("rule", ""), error["message"])
            for error in report["generalDiagnostics"] if error["severity"] != "information"]


CHECKERS = (of_mypy, of_pyright)


@pytest.fixture(scope="module", params=range(len(CHECKERS)), ids=("mypy", "pyright"))
def checked(request, tmp_path_factory):
    """The number of a checker, and what it has found: file, line, code and message."""
    folder = tmp_path_factory.mktemp("checked")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return request.param, CHECKERS[request.param](folder)


@pytest.mark.parametrize("name", [name for name in FILES if name != "refused.py"])
def test_accepted(checked, name):
    _, errors = checked
    lines = FILES[name].splitlines()
    assert not [f"{line}: {lines[line - 1].strip()}: {message} [{code}]"
                for file, line, code, message in errors if file == name]


def test_refused(checked):
    """Each line that says so, for its reason, and no other line."""
    number, errors = checked
    expected = {}
    for line, text in enumerate(FILES["refused.py"].splitlines(), 1):
        found = REFUSED.search(text)
        if found:
            expected[line] = found[number + 1]
    assert expected
    codes = {}
    for file, line, code, _ in errors:
        if file == "refused.py":
            codes.setdefault(line, set()).add(code)
    assert {line: code for line, code in expected.items() if code not in codes.get(line, ())} == {}
    assert {line: found for line, found in codes.items() if line not in expected} == {}
    assert codes.keys() == expected.keys()


def test_package():
    """mypy in its normal mode over the package itself."""
    out = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(PACKAGE / "pyproject.toml"),
         "--cache-dir", os.devnull, str(PACKAGE / "gdpo")], capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


def test_complete(capsys):
    """pyright knows the type of every name that the package exports for users.

    Plug-ins for trainers are not among them: trainers give them objects without types.
    """
    # This way of running pyright reads no *.pth.
    out = subprocess.run([sys.executable, "-m", "pyright", "--pythonpath", sys.executable,
                          "--verifytypes", "gdpo", "--ignoreexternal", "--outputjson"],
                         capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(
                             [str(pathlib.Path(gdpo.__file__).parents[1]), *sys.path])})
    report = json.loads(out.stdout)["typeCompleteness"]
    score = 100 * report["completenessScore"]
    with capsys.disabled():
        print(f"\npyright --verifytypes: {score:.1f} %, plug-ins for trainers included")
    names = [symbol for symbol in report["symbols"] if symbol["isExported"]
             and not symbol["name"].startswith(("gdpo.integrations", "gdpo.__main__"))]
    assert len(names) > len(gdpo.__all__)
    unknown = {symbol["name"]: [found["message"] for found in symbol["diagnostics"]]
               for symbol in names if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]}
    assert unknown == {}
