#!/usr/bin/env python3
"""Holds what hosts and tools read of the tree to what the tree has.

    workflows.py files ROOT    the YAML of .github, .pre-commit-config.yaml and CITATION.cff can be
                               read. Workflows call nothing but cmake/dev, with commands that its
                               help names and variables that it reads; they take no right that a job
                               does not list, have limits of time, and pin actions to commits. Forms
                               of issues are complete, and versions are those of the tree
    workflows.py audit ROOT    zizmor finds nothing in .github
    workflows.py pages ROOT    the shell blocks of pages call cmake/dev with such commands, too

Each prints what it finds and exits with 1 if there is anything. Without PyYAML, or zizmor, it says
that nothing was tested.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # pages.py lies in the source tree
import pages  # noqa: E402  after the line above

try:
    import yaml
except ImportError:
    yaml = None

PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*")
FORM_ITEMS = {"checkboxes", "dropdown", "input", "markdown", "textarea"}


# ---- commands ----


class Commands:
    """What may follow cmake/dev, by its help, the presets and the folders of trainers."""

    def __init__(self, root):
        self.words = {}     # of a command: the words that may come next
        self.open = set()   # commands that take arguments
        self.trainers = {path.parent.name for path in
                         root.glob("examples/python/trainers/*/README.md")}
        name = None
        said = subprocess.run([root / "cmake/dev", "help"], check=True, text=True,
                              capture_output=True).stdout
        for line in said.splitlines():
            begins = re.match(r"  ([a-z][a-z-]*)((?: \S+)*)(?:  |$)", line)
            listed = re.match(r" {28}([a-z]+)  ", line)  # a stage of the command above
            if begins:
                name, rest = begins[1], begins[2].split()
                words = self.words.setdefault(name, set())
                words |= {word for word in rest[:1] if word.islower()}
                if any(not word.islower() for word in rest):
                    self.open.add(name)
            elif listed:
                self.words[name].add(listed[1])
        for name, word in re.findall(r'"([a-z-]+) ([a-z]+)\b[^"\n]*"', said):
            self.words.get(name, set()).add(word)
        presets = json.loads((root / "CMakePresets.json").read_text())["configurePresets"]
        self.words["test"] |= {preset["name"] for preset in presets if not preset.get("hidden")}

    def complaint(self, name="help", word=None, *others):
        """What is wrong with the words after cmake/dev, or None."""
        if name not in self.words:
            return f"cmake/dev help names no command {name}"
        words = self.words[name]
        if word is None or word in words:
            if word == "trainer" and (not others or others[0] not in self.trainers):
                return f"given {others[:1]}; needed: one of {sorted(self.trainers)}"
            return None
        if name not in self.open:
            return f"{name} takes no {word}" if words else f"{name} takes no argument"
        if words and not word.startswith("-"):
            return f"given {name} {word}; needed: one of {sorted(words)}, or an option"
        return None


def variables(root):
    """The words of what reads the environment."""
    readers = [root / "cmake/dev", root / ".ci/run", *root.glob("cmake/*.sh")]
    return set().union(*(pages.words(path.read_text(encoding="utf-8")) for path in readers))


# ---- workflows ----


def run_complaints(run, commands):
    for line in run.strip().split("\n"):
        if not re.fullmatch(r"cmake/dev( [\w./=-]+)*", line):
            yield f"`{line}` is not a plain call of cmake/dev"
        elif complaint := commands.complaint(*line.split()[1:]):
            yield f"`{line}`: {complaint}"


def workflow_complaints(text, commands, known):
    flow = yaml.safe_load(text)
    if flow.get("permissions") != {}:
        yield "needed: `permissions: {}`, so that a job has the rights that it lists, and no others"
    if "concurrency" not in flow:
        yield "needed: concurrency, so that a push ends the run of the one before, or waits for it"
    for line in re.findall(r"uses: .*", text):
        if not PINNED.fullmatch(line):
            yield f"{line}: needed: the commit of the action, and its version in a comment"
    for name, job in flow["jobs"].items():
        for needed in ("permissions", "timeout-minutes"):
            if needed not in job:
                yield f"{name}: needed: {needed}"
        environments = [flow.get("env", {}), job.get("env", {})]
        for step in job["steps"]:
            environments.append(step.get("env", {}))
            for complaint in run_complaints(step["run"], commands) if "run" in step else ():
                yield f"{name}: {complaint}"
            if step.get("uses", "").startswith("actions/checkout@") and \
                    step.get("with", {}).get("persist-credentials") is not False:
                yield f"{name}: needed: persist-credentials: false"
        for variable in sorted(set().union(*environments) - known):
            yield f"{name}: nothing that cmake/dev runs reads {variable}"


# ---- other files ----


def no_complaints(text):
    yaml.safe_load(text)
    return ()


def form_complaints(text):
    form = yaml.safe_load(text)
    for needed in ("name", "description", "body"):
        if not form.get(needed):
            yield f"needed: {needed}"
    names = set()
    for item in form.get("body", ()):
        if item.get("type") not in FORM_ITEMS:
            yield f"given type {item.get('type')}; needed: one of {sorted(FORM_ITEMS)}"
        elif item["type"] != "markdown":
            name = item.get("id")
            if not name or name in names:
                yield f"id {name}: needed: an id that no other item has"
            names.add(name)
            if not item.get("attributes", {}).get("label"):
                yield f"id {name}: needed: a label"


def citation_complaints(text, header):
    citation = yaml.safe_load(text)
    version = ".".join(re.findall(r"^#define GDPO_VERSION_\w+ (\d+)$", header, re.M))
    if citation.get("version") != version:
        yield f"given version {citation.get('version')}; core/version.hpp has {version}"
    for needed in ("cff-version", "message", "title", "authors"):
        if not citation.get(needed):
            yield f"needed: {needed}"


def hook_complaints(text, tools):
    versions = set(re.findall(r"^[\w-]+==\S+$", tools, re.M))
    for repository in yaml.safe_load(text)["repos"]:
        for hook in repository["hooks"]:
            for package in set(hook["additional_dependencies"]) - versions:
                yield f"{hook['id']}: {package} is not the version of cmake/lint_tools.txt"


def check_files(root, found):
    def text_of(name):
        return (root / name).read_text(encoding="utf-8")

    commands, known = Commands(root), variables(root)
    header, tools = text_of("include/gdpo/core/version.hpp"), text_of("cmake/lint_tools.txt")
    checks = {
        ".github/workflows": lambda text: workflow_complaints(text, commands, known),
        ".github/ISSUE_TEMPLATE": form_complaints,
        ".github/ISSUE_TEMPLATE/config.yml": no_complaints,
        ".github/dependabot.yml": no_complaints,
        ".pre-commit-config.yaml": lambda text: hook_complaints(text, tools),
        "CITATION.cff": lambda text: citation_complaints(text, header)}
    for name in checks:
        if not (root / name).exists():
            found.add(root / name, 0, "is missing")
    for path in pages.files(root):
        if path.suffix not in {".cff", ".yaml", ".yml"}:
            continue
        name, folder = (str(part.relative_to(root)) for part in (path, path.parent))
        check = checks.get(name) or checks.get(folder)
        if not check:
            found.add(path, 0, "no check reads this file")
            continue
        try:
            for complaint in check(path.read_text(encoding="utf-8")):
                found.add(path, 0, complaint)
        except yaml.YAMLError as error:
            found.add(path, 0, f"this is no YAML: {error}")


# ---- pages ----


def calls(lines):
    """(line, words) of each call of cmake/dev in the shell blocks of a page."""
    kind = None
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            kind = line[3:].strip() if kind is None else None
        elif kind == "sh":
            called = re.match(r"(?:\w+=\S* )*cmake/dev\b([^|>&;#\\]*)", line)
            if called:
                yield number, called[1].split()


def check_pages(root, found):
    commands = Commands(root)
    for page in pages.pages(root):
        for number, words in calls(pages.lines_of(page)):
            if complaint := commands.complaint(*words):
                found.add(page, number, complaint)


# ---- all ----


def audit(root):
    zizmor = shutil.which(root / "build/python/bin/zizmor") or shutil.which("zizmor")
    if not zizmor:
        print("THE WORKFLOWS ARE NOT AUDITED: no zizmor in build/python")
        return 0
    return subprocess.run([zizmor, "--offline", "--quiet", root / ".github"]).returncode


def main(command, root):
    root = pathlib.Path(root).resolve()
    if command == "audit":
        return audit(root)
    if command == "files" and not yaml:
        print("THE WORKFLOWS ARE NOT TESTED: no PyYAML in build/python")
        return 0
    found = pages.Findings(root)
    {"files": check_files, "pages": check_pages}[command](root, found)
    return 1 if found.count else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
