#!/usr/bin/env python3
"""Watches the functions of trainers that presets were made from.

    drift.py fetch TRAINER FOLDER     puts the newest release of a trainer from PyPI into FOLDER
    drift.py check TRAINER FOLDER     compares the functions in FOLDER, where the trainer's package
                                      is, with those that were recorded, and says which presets to
                                      look at again; exits with 1 if there are any
    drift.py record TRAINER FOLDER    records the functions as they are in FOLDER, once the presets
                                      have been made to agree with them
    drift.py trainers                 the names of the trainers
    drift.py table                    prints the table of the releases on the page
                                      include/gdpo/presets/README.md
    drift.py covered                  looks whether each preset of these trainers, as listed on that
                                      page, has a function that it was made from, and each name in
                                      the record is a preset's (or that of a pre-pass without one,
                                      as prepass::TopEntropy)

The record is drift.json, beside this file. For each trainer it has the functions, each with its
file, its hash and the presets that were made from it; the release that they are of stands in the
header of the trainer's presets. A hash is that of the syntax tree, so comments, docstrings and
layout do not count.

A function with "by" chooses among formulas by the options that are named there, as in

    if self.loss_type == "dapo":

Such a branch has a hash and presets of its own under "branches", here as "loss_type=dapo"; the hash
of the function is then that of what is left without these branches, and that of a branch that of
what is left without the branches in it.
"""
import ast
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import zipfile

PRESETS = pathlib.Path(__file__).resolve().parent.parent / "include/gdpo/presets"
RECORD = pathlib.Path(__file__).resolve().with_name("drift.json")


def recorded_release(trainer):
    """The release that the functions were recorded of, such as "verl 0.9.1"."""
    header = (PRESETS / f"{trainer}.hpp").read_text(encoding="utf-8")
    return re.search(r'\* release = "(.*)";', header)[1]


def form(node):
    """A syntax tree as nested lists, which are the same in every version of Python."""
    if isinstance(node, ast.AST):
        return [type(node).__name__, *([name, form(value)] for name, value in ast.iter_fields(node)
                                       if value is not None and value != [])]
    if isinstance(node, list):
        return [form(entry) for entry in node]
    return repr(node)


def hash_of(nodes):
    """The first 16 hexadecimal digits of the SHA-256 of these syntax trees."""
    return hashlib.sha256(json.dumps(form(nodes)).encode()).hexdigest()[:16]


class WithoutDocstrings(ast.NodeTransformer):
    """Drops the docstrings of functions and classes."""

    def generic_visit(self, node):
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and body
                and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
                and isinstance(body[0].value.value, str)):
            node.body = body[1:] or [ast.Pass()]
        return node


class Branches(ast.NodeTransformer):
    """Takes the branches by some options out of a function and keeps them, as "option=value"."""

    def __init__(self, options):
        self.options = options
        self.of = {}

    def values(self, test):
        """What the test compares an option with; empty where it is another test."""
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Eq, ast.In)):
            return []
        name = getattr(test.left, "attr", getattr(test.left, "id", None))
        against = test.comparators[0]
        entries = against.elts if isinstance(against, (ast.List, ast.Tuple, ast.Set)) else [against]
        strings = [entry.value for entry in entries
                   if isinstance(entry, ast.Constant) and isinstance(entry.value, str)]
        of_option = name in self.options and len(strings) == len(entries)
        return [f"{name}={value}" for value in strings] if of_option else []

    def visit_If(self, node):
        self.generic_visit(node)
        values = self.values(node.test)
        for value in values:
            self.of.setdefault(value, []).append(node.body)
        if values:
            node.test, node.body = ast.Constant(True), [ast.Pass()]
        return node


def find(tree, path):
    """The function or class of a module by its dotted path; None if there is none."""
    for name in path.split("."):
        inside = [node for node in ast.walk(tree) if getattr(node, "name", None) == name
                  and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
        if not inside:
            return None
        tree = inside[0]
    return tree


def hashes(folder, entry):
    """The hash of a function and those of its branches; None where there is no such function."""
    path = folder / entry["file"]
    tree = path.is_file() and ast.parse(path.read_text(encoding="utf-8"))
    function = tree and find(tree, entry["function"])
    if not function:
        return None, {}
    function = WithoutDocstrings().visit(function)
    branches = Branches(entry.get("by", []))
    function = branches.visit(function)
    return hash_of(function), {value: hash_of(bodies) for value, bodies in branches.of.items()}


def release(folder, package):
    """The release whose metadata lie beside the package, or words that say there are none."""
    found = sorted(folder.glob(f"{package.replace('-', '_')}-*.dist-info"))
    name = f"{package} of {folder}"
    return f"{package} {found[-1].stem.split('-', 1)[1]}" if found else name


def check(trainer, folder):
    """Prints what has changed and which presets to look at; returns those presets."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[trainer]
    given, since = release(folder, recorded["package"]), recorded_release(trainer)
    presets, changes = set(), 0
    for entry in recorded["functions"]:
        now, branches = hashes(folder, entry)
        differ = []
        if now != entry["hash"]:
            differ.append(("is gone" if now is None else "has changed", entry["presets"]))
        for value, branch in entry.get("branches", {}).items():
            if now is not None and branches.get(value) != branch["hash"]:
                what = "has changed" if value in branches else "is gone"
                differ.append((f"{what} where {value}", branch["presets"]))
        for value in sorted(set(branches) - set(entry.get("branches", {}))):
            differ.append((f"has a new branch, where {value}", []))
        for what, of in differ:
            changes += 1
            presets.update(of)
            look = f"look at {', '.join(of)}" if of else "no preset was made from it"
            print(f"{given}: {entry['file']}: {entry['function']} {what} since {since}: {look}")
    if not changes:
        print(f"{given}: the {len(recorded['functions'])} functions that presets were made from "
              f"are those of {since}")
    return sorted(presets)


def record(trainer, folder):
    """Writes the hashes of the functions as they are in `folder`."""
    everything = json.loads(RECORD.read_text(encoding="utf-8"))
    recorded = everything[trainer]
    if release(folder, recorded["package"]) != recorded_release(trainer):
        sys.exit(f"drift.py: the folder has {release(folder, recorded['package'])}, and "
                 f"{trainer}.hpp says {recorded_release(trainer)}: change `release` there first")
    for entry in recorded["functions"]:
        entry["hash"], branches = hashes(folder, entry)
        if entry["hash"] is None:
            sys.exit(f"drift.py: {entry['file']}: there is no {entry['function']}")
        known = entry.get("branches", {})
        gone = sorted(set(known) - set(branches))
        if gone:
            sys.exit(f"drift.py: {entry['function']}: there is no branch where {gone[0]}")
        if "by" in entry:
            entry["branches"] = {value: {"hash": digest, **({"presets": known[value]["presets"]}
                                                            if value in known else {"presets": []})}
                                 for value, digest in sorted(branches.items())}
    RECORD.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def fetch(trainer, folder):
    """Downloads the newest wheel of a trainer and unpacks it into `folder`."""
    package = json.loads(RECORD.read_text(encoding="utf-8"))[trainer]["package"]
    wheels = folder.parent / f"{folder.name}.whl"
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                    "--disable-pip-version-check", "--only-binary", ":all:",
                    "--dest", str(wheels), package], check=True)
    for wheel in wheels.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)


def table():
    """Prints the releases and how many functions of each are watched."""
    print("<!-- table: releases -->\n| presets | release | functions that are watched |\n"
          "| --- | --- | --- |")
    for trainer, recorded in json.loads(RECORD.read_text(encoding="utf-8")).items():
        print(f"| `{trainer}::` | {recorded_release(trainer)} | {len(recorded['functions'])} |")
    print("<!-- end -->")


def covered():
    """Prints the presets that are on one side only, the page or the record; returns them."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    recorded = {preset for trainer in record.values() for entry in trainer["functions"]
                for of in (entry, *entry.get("branches", {}).values()) for preset in of["presets"]}
    listed, kind = set(), ""
    for line in (PRESETS / "README.md").read_text(encoding="utf-8").splitlines():
        cells = re.match(r"\| ([^|]*) \|", line)
        if not cells:
            kind = ""
        elif not kind:
            kind = cells[1]
        elif kind == "`loss_agg_mode`":
            listed.update(f"{name} (aggregate)" for name in re.findall(r"^`([a-z-]+)`$", cells[1]))
        elif kind in ("estimator", "loss", "pre-pass", "token baseline", "value loss"):
            name = cells[1].strip("`")
            if name.split("::")[0] in record and not re.search(r"::v\d", name):
                listed.add(name if kind == "estimator" else f"{name} ({kind})")
    for name in sorted(listed - recorded):
        print(f"{RECORD.name}: no function for {name}")
    recorded = {name for name in recorded if not name.startswith("prepass::")}
    for name in sorted(recorded - listed):
        print(f"{RECORD.name}: {name} is no preset")
    return listed ^ recorded


def main(command, trainer="", folder=""):
    if command == "trainers":
        print("\n".join(json.loads(RECORD.read_text(encoding="utf-8"))))
        return 0
    if command == "table":
        table()
        return 0
    if command == "covered":
        return 1 if covered() else 0
    work = {"check": check, "record": record, "fetch": fetch}[command]
    return 1 if work(trainer, pathlib.Path(folder).absolute()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
