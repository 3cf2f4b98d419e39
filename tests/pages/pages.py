#!/usr/bin/env python3
"""Holds the pages (*.md) and the tree to what a reader expects of them.

    pages.py columns ROOT             no line of a source or page is longer than 100 columns
    pages.py links ROOT               what a page links to exists, the heading of an anchor included
    pages.py names ROOT               what a page writes as code occurs in the sources; each C++
                                      block of a page or a front door is one that the tests build
    pages.py format ROOT CLANG_FORMAT the sources in C++ and CUDA are as clang-format writes them
    pages.py tables PAGE [--write] COMMAND...
                                      the tables that COMMAND prints, each between the comments
                                      <!-- table: NAME --> and <!-- end -->, stand in PAGE; with
                                      --write they are put there
    pages.py rows PAGE [--write] SOURCE
                                      the tables of PAGE are rows of the tables of the same names in
                                      the page SOURCE; with --write they are copied from there
    pages.py pictures FOLDER [--write] COMMAND...
                                      the pictures (*.svg) that COMMAND writes into the folder that
                                      is its last argument are those in FOLDER; with --write they
                                      are put there
    pages.py recorded FILE.json       prints a table of what gdpo_conformance --json has counted
    pages.py released FILE.json       the same for recordings of releases
    pages.py metrics metrics.hpp      prints a table of the metrics, with their comments

    pages.py site ROOT PAGE           prints the page as Doxygen reads it: its formulas, and anchors
                                      that links find on the site
    pages.py built FOLDER             the links of the pages on the site lead somewhere
    pages.py steps PAGE ROOT COPY     copies include/ and tests/ of ROOT to COPY and makes there the
                                      changes that the ```diff blocks of PAGE show

Each prints what it finds, with file and line, and exits with 1 if there is anything.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

COLUMNS = 100
FORMATTED = {".hpp", ".cpp", ".cu"}
SOURCES = FORMATTED | {".cff", ".cmake", ".in", ".json", ".py", ".sh", ".toml", ".yaml", ".yml"}
# Folders whose names begin with a dot, and which are written by people all the same.
HIDDEN = {".ci", ".github"}
# Words that stand in code on a page and not in a source: names of other people's projects, and what
# a reader types or makes up.
FOREIGN = {"benchmark_repetitions", "column_stride", "rollout_data_dir", "rollouts_save_path",
           "save_traces", "uniq"}
# Pages about other people's data and code: what they name stands in no source of ours.
ABOUT_OTHERS = {"examples/data/README.md", "tests/golden/README.md",
                "tests/golden/released/README.md",
                "tests/tool/resolution/logs/README.md"}


def files(root):
    """Every file of the tree that people write: no build output, and no hidden folder but ours."""
    for path in sorted(root.rglob("*")):
        *folders, _ = path.relative_to(root).parts
        hidden = any(folder.startswith(".") and folder not in HIDDEN for folder in folders)
        if path.is_file() and folders[:1] != ["build"] and not hidden and path.name != ".git":
            yield path


def is_source(path):
    if path.suffix == ".json":
        return path.name == "CMakePresets.json"
    return path.suffix in SOURCES or path.name in (
        ".clang-format", ".clang-tidy", "CMakeLists.txt", "dev", "run")


def pages(root):
    return [path for path in files(root) if path.suffix == ".md"]


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")


class Findings:
    def __init__(self, root):
        self.root, self.count = root, 0

    def add(self, path, line, what):
        self.count += 1
        print(f"{path.relative_to(self.root)}:{line}: {what}")


def outside_blocks(lines):
    """(number, line) of a page without its fenced blocks."""
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


# ---- columns ----


def columns(root, found):
    for path in files(root):
        page = path.suffix == ".md"
        if not page and (not is_source(path) or path.suffix == ".json"):
            continue
        for number, line in enumerate(lines_of(path), 1):
            # A row of a table, a link, and a sentence that a compiler must say cannot be broken.
            if page and (line.lstrip().startswith("|") or "](" in line or "://" in line):
                continue
            if line.startswith("// expect: "):
                continue
            if len(line) > COLUMNS:
                found.add(path, number, f"{len(line)} columns, more than {COLUMNS}")


# ---- format ----


def formatted(root, clang_format):
    sources = [path for path in files(root) if path.suffix in FORMATTED]
    return subprocess.run([clang_format, "--dry-run", "--Werror", *sources]).returncode


# ---- links ----


def anchor(heading):
    """The anchor that GitHub makes of a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    return {anchor(line.lstrip("#")) for _, line in outside_blocks(lines_of(path))
            if re.match(r"#+ ", line)}


def links(root, found):
    for page in pages(root):
        for number, line in outside_blocks(lines_of(page)):
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                if re.match(r"https?://", target):
                    continue
                name, _, fragment = target.partition("#")
                file = (page.parent / name).resolve() if name else page
                if not file.exists():
                    found.add(page, number, f"{target} does not exist")
                elif fragment and fragment not in anchors(file):
                    found.add(page, number, f"{target}: the page has no such heading")


# ---- site ----


def site(root, page):
    """GitHub's formulas become Doxygen's; headings get labels, and links use them.

    Doxygen wants a picture without its folder. <!-- site: TEXT --> is for the site alone.
    """
    def label(of, heading):
        folder = str(of.relative_to(root).with_suffix("")).lower()
        return re.sub(r"[^a-z0-9]+", "-", f"{folder}-{heading}").strip("-")

    def link(match):
        # Doxygen takes a link that goes over the end of a line for the rest of the page.
        text, (name, _, fragment) = match[2].replace("\n", " "), match[3].partition("#")
        if match[1]:
            return f"![{text}]({pathlib.PurePosixPath(name).name})"
        file = (page.parent / name).resolve() if name else page
        if "://" in name:
            return f"[{text}]({match[3]})"
        if file.suffix == ".hpp":  # Doxygen makes a link of the name
            return str(file.relative_to(root / "include"))
        if file.suffix != ".md":
            return text  # what it names is not on the site
        return f"[{text}]({'#' + label(file, fragment) if fragment else name})"

    def prose(text):
        text = re.sub(r"\$`([^`]+)`\$", r"\\f$\1\\f$", text)
        text = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)
        text = re.sub(r"<!-- site: (.*?) -->", r"\1", text)
        return re.sub(r"^##+ (.*)$", lambda m: f"{m[0]} {{#{label(page, anchor(m[1]))}}}", text,
                      flags=re.M)

    parts = re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for part in parts:
        if part.startswith("```math"):
            part = r"\f[" + part[len("```math"):-len("```")] + r"\f]"
        elif part.startswith("```python"):  # else its words become links to functions of C++
            part = "```{.unparsed}" + part[len("```python"):]
        elif not part.startswith("```"):
            part = prose(part)
        print(part, end="")


def built(folder, found):
    """Each link of the site's pages leads to a file and an anchor that exist."""
    ids = {}
    for page in sorted([*folder.glob("md_*.html"), folder / "index.html"]):
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"^@(?:section|code)\b.*", text, flags=re.M):
            found.add(page, 0, f"{command} is on the page, where Doxygen has lost its way")
        for target in re.findall(r'href="([^"]+)"', text):
            name, _, fragment = target.partition("#")
            # `cmake/dev docs` adds the playground, and the target docs does not.
            if re.match(r"https?:|javascript:|playground\.html$", target):
                continue
            file = folder / name if name else page
            if file.exists() and file not in ids:
                ids[file] = set(re.findall(r'(?:id|name)="([^"]+)"',
                                           file.read_text(encoding="utf-8", errors="replace")))
            if not file.exists() or fragment and fragment not in ids[file]:
                found.add(page, 0, f"{target} leads nowhere")


# ---- names ----


def words(text):
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text))


def path_exists(tree, name):
    """Is there a file or folder whose path ends so? `*` and <...> stand for anything."""
    pattern = re.sub(r"\\\*|<[^>]*>", "[^/]*", re.escape(name.rstrip("/")))
    return any(re.search(f"(^|/){pattern}$", path) for path in tree)


PATH = re.compile(r"[\w./*<>-]+\.(hpp|cpp|cu|cmake|py|sh|md|csv)|[\w./-]+/")


def unknown(code, known, tree):
    """What a piece of code on a page names and no source has."""
    if PATH.fullmatch(code):
        there = code.startswith("build/") or path_exists(tree, code)
        return [] if there else ["no such file"]
    used = words(re.sub(r"(^| )-D(?=[A-Z])|\.<\w+>", " ", code)) - known
    return [f"no source has the word {word}" for word in sorted(used) if len(word) > 2]


def presets(root):
    """The presets of each trainer: the names at run time, and what its header declares."""
    folder = root / "include/gdpo/presets"
    there = {}
    for header in folder.glob("*.hpp"):
        code = re.sub(r"//.*", "", header.read_text("utf-8"))
        named = re.findall(rf'Preset\{{"{header.stem}::(\w+)"', code)
        there[header.stem] = {*named, *re.findall(r"(\w+)\s*(?:=|\{|;)", code)}
    return there


def names(root, found):
    there = presets(root)
    known, tree = set(FOREIGN), set()
    for path in files(root):
        name = path.relative_to(root)
        tree |= {str(name), *(str(parent) for parent in name.parents)}
        known |= words(path.name)
        if is_source(path):
            known |= words(path.read_text(encoding="utf-8"))
        elif path.suffix == ".csv":
            known |= words(lines_of(path)[0])
    for page in pages(root):
        if str(page.relative_to(root)) in ABOUT_OTHERS:
            continue
        for number, line in outside_blocks(lines_of(page)):
            formulas_out = "" if line.startswith("<!--") else re.sub(r"\$`[^`]+`\$", "", line)
            for code in re.findall(r"`([^`]+)`", formulas_out):
                for what in unknown(code, known, tree):
                    found.add(page, number, f"`{code}`: {what}")
        for number, line in enumerate(lines_of(page), 1):
            for trainer, preset in re.findall(r"\b(\w+)::(\w+)\b(?!::)", line):
                if preset not in there.get(trainer, {preset}):
                    found.add(page, number, f"{trainer}::{preset}: no such preset")
        shown(page, lines_of(page), known, found)
    for header in sorted((root / "include").rglob("*.hpp")):
        lines = lines_of(header)
        for number, line in enumerate(lines, 1):
            for name in re.findall(r"[\w/]+\.(?:hpp|cpp|cu|md)\b", line.partition("//")[2]):
                if not path_exists(tree, name):
                    found.add(header, number, f"{name}: no such file")
        if header.parent == root / "include/gdpo":  # a front door
            shown(header, [line[3:].removeprefix(" ") if line.startswith("///") else ""
                           for line in lines], known, found)


def shown(path, lines, known, found):
    """The blocks of a page or a front door: C++ is built, commands name programs that exist."""
    kind = None
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            kind = line[3:].strip() if kind is None else None
            if kind == "cpp" and not lines[number - 2].startswith("<!-- build: "):
                found.add(path, number, "a C++ block without a comment <!-- build: name ... -->")
        elif kind == "sh":
            command = line.split(" #")[0]
            for word in re.findall(r"(?:build/[\w/]+/|--target )([\w-]+)", command):
                if word not in known and not words(word) <= known:
                    found.add(path, number, f"{word}: no source has this program")
            for option in re.findall(r"(?:^|\s)--([a-z][a-z-]+)", command):
                if not words(option.replace("-", " ")) <= known:
                    found.add(path, number, f"--{option}: no source has this option")


# ---- tables ----


def counted(path, table, kinds):
    """What gdpo_conformance has counted, by trainer: cases compared, and recorded, of each kind."""
    by_source, everything = {}, {}
    for line in json.loads(path.read_text(encoding="utf-8"))["functions"]:
        cases = line["passed"] + line["failed"] + line["unsupported"]
        for of in (by_source.setdefault(line["source"], {}), everything):
            passed, all_cases = of.get(line["kind"], (0, 0))
            of[line["kind"]] = (passed + line["passed"], all_cases + cases)
    print(f"<!-- table: {table} -->")
    print("| recorded from | compared, all equal | of | " + " | ".join(kinds) + " |")
    print("| --- " * (3 + len(kinds)) + "|")
    for source, of in [*sorted(by_source.items()), ("all", everything)]:
        passed, cases = (sum(counts) for counts in zip(*of.values()))
        cells = ["{}/{}".format(*of[kind]) if kind in of else "" for kind in kinds]
        print(f"| {source} | {passed} | {cases} | {' | '.join(cells)} |")
    print("<!-- end -->")


def recorded(path):
    """The recordings of tests/golden."""
    counted(path, "recorded", ["advantage", "loss", "kl", "aggregate", "pid"])


def released(path):
    """Those of tests/golden/released."""
    counted(path, "released", ["advantage", "loss", "kl", "aggregate", "logp"])


MEMBER = re.compile(r"((?:\s*///(?!<).*\n)*)\s*Metric (\w+);(?: *///<(.*))?")
METRIC = re.compile(r'\{"\w+", &M::(\w+), (\w+)(.*?)\}(?=,\s*\{"\w+", &M::|;)', re.S)


def metrics(path):
    """The metrics of loss/metrics.hpp: members with their comments, and the lines of the list."""
    text = path.read_text(encoding="utf-8")
    members = text[text.index("struct LossMetrics {"):text.index("struct Key {")]
    comments = {name: " ".join((before.replace("///", "") + (after or "")).split())
                for before, name, after in MEMBER.findall(members)}
    print("<!-- table: metrics -->")
    print("| member | is | kept by | keys |")
    print("| --- | --- | --- | --- |")
    for member, kind, rest in METRIC.findall(text[text.index("Facts list[] = {"):]):
        kept_by = ("always" if kind == "OfRow" else
                   "All" if re.search(r"\bAll\b", rest) else "All, Means")
        keys = ", ".join(f"`{key}`" for key in re.findall(r'"([^"]+)"', rest))
        comment = comments[member].rstrip(".").replace("|", "\\|")
        print(f"| `{member}` | {comment} | {kept_by} | {keys} |")
    print("<!-- end -->")


TABLE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.S)


def tables(page, command, write):
    made = {m[1]: m[0] for m in TABLE.finditer(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout)}
    text = page.read_text(encoding="utf-8")
    there = {m[1]: m[0] for m in TABLE.finditer(text)}
    absent = sorted(made.keys() - there.keys())
    if absent or not made:
        print(f"{page}: no place for the tables {absent}" if absent else f"{command}: no table")
        return 1
    differ = [name for name in made if made[name] != there[name]]
    if write:
        page.write_text(TABLE.sub(lambda m: made.get(m[1], m[0]), text), encoding="utf-8")
        return 0
    for name in differ:
        print(f"{page}: the table {name} is not what {command[0]} prints (--write mends it)")
        for line in sorted(set(made[name].split("\n")) ^ set(there[name].split("\n"))):
            print(("  now  " if line in made[name].split("\n") else "  page ") + line)
    return 1 if differ else 0


# ---- rows ----


def first_cell(line):
    return line.split(" | ")[0]


def rows(page, source, write):
    whole = {m[1]: {first_cell(line): line for line in m[0].split("\n")}
             for m in TABLE.finditer(source.read_text(encoding="utf-8"))}
    text = page.read_text(encoding="utf-8")
    wrong = [] if TABLE.search(text) else ["no table"]

    def copied(table):
        lines = table[0].split("\n")
        for i, line in enumerate(lines):
            row = whole.get(table[1], {}).get(first_cell(line))
            if row is None:
                wrong.append(f"{source} has no such row in a table {table[1]}: {line}")
            elif row != line:
                lines[i] = row
                if not write:
                    wrong.append(f"the table {table[1]} differs from {source} (--write mends it)\n"
                                 f"  there {row}\n  here  {line}")
        return "\n".join(lines)

    text = TABLE.sub(copied, text)
    if write:
        page.write_text(text, encoding="utf-8")
    for what in wrong:
        print(f"{page}: {what}")
    return 1 if wrong else 0


# ---- pictures ----


def pictures(folder, command, write):
    def all_of(where):
        return {path.name: path.read_text(encoding="utf-8") for path in where.glob("*.svg")}

    with tempfile.TemporaryDirectory() as made_in:
        subprocess.run([*command, made_in], check=True, stdout=subprocess.DEVNULL)
        made = all_of(pathlib.Path(made_in))
    there = all_of(folder)
    if write:
        for name in there.keys() - made.keys():
            (folder / name).unlink()
        for name, text in made.items():
            (folder / name).write_text(text, encoding="utf-8")
        return 0
    differ = sorted(name for name in made.keys() | there.keys()
                    if made.get(name) != there.get(name))
    for name in differ:
        print(f"{folder / name}: {command[0]} draws "
              f"{'no such picture' if name not in made else 'it differently'} (--write mends it)")
    return 1 if differ or not made else 0


# ---- steps ----


def steps(page, root, copy):
    """Makes the changes of a page. A block is "--- file", lines that stand there, and new ones."""
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("include", "tests"):
        shutil.copytree(root / folder, copy / folder, ignore=shutil.ignore_patterns("golden"))
    blocks = re.findall(r"```diff\n--- (\S+)\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    for file, block in blocks:
        lines = block.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        text = (copy / file).read_text(encoding="utf-8")
        if text.count(before) != 1:
            print(f"{page}: these lines stand {text.count(before)} times in {file}:\n{before}")
            return 1
        (copy / file).write_text(text.replace(before, after), encoding="utf-8")
    return 0 if blocks else 1


def main(command, *arguments):
    checks = {"columns": columns, "links": links, "names": names, "built": built}
    prints = {"recorded": recorded, "released": released, "metrics": metrics, "site": site}
    if command in checks:
        root = pathlib.Path(*arguments).resolve()
        found = Findings(root)
        checks[command](root, found)
        return 1 if found.count else 0
    if command in prints:
        prints[command](*(pathlib.Path(argument).resolve() for argument in arguments))
        return 0
    if command == "format":
        return formatted(*map(pathlib.Path, arguments))
    if command in ("tables", "rows", "pictures"):
        page, *other = arguments
        write = other[0] == "--write"
        other = other[1:] if write else other
        if command == "rows":
            return rows(pathlib.Path(page), pathlib.Path(*other), write)
        return {"tables": tables, "pictures": pictures}[command](pathlib.Path(page), other, write)
    if command == "steps":
        return steps(*map(pathlib.Path, arguments))
    sys.exit(f"pages.py: no command {command}; without arguments it prints what there is")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
