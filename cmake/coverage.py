#!/usr/bin/env python3
"""Prints how many lines of each room of the library were run by programs built with --coverage.

    coverage.py BUILD GCOV [HEADERS]

BUILD is the folder of the build, where the programs have left what they counted (*.gcda), and GCOV
the program that reads it. A room is a folder of HEADERS, include/gdpo of this tree. A line counts
if the compiler made code of it in any program: not a template that nothing instantiates, nor an
inline function that nothing calls. The lines that no program ran are written to BUILD/not_run.txt.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

DOORS = "front doors"  # what lies in no room


def lines_of(counts, gcov, headers):
    """The lines of headers in a file of counts: (header, line) -> whether it was run."""
    done = subprocess.run([gcov, "--json-format", "--stdout", counts.name], cwd=counts.parent,
                          check=True, capture_output=True, text=True)
    lines = {}
    for file in json.loads(done.stdout)["files"]:
        path = pathlib.Path(counts.parent, file["file"]).resolve()
        if headers in path.parents:
            header = str(path.relative_to(headers))
            for line in file["lines"]:
                place = header, line["line_number"]
                lines[place] = lines.get(place, False) or line["count"] > 0
    return lines


def main(build, gcov, headers):
    build, headers = pathlib.Path(build).resolve(), pathlib.Path(headers).resolve()
    files = sorted(build.rglob("*.gcda"))
    if not files:
        sys.exit(f"coverage.py: {build} has no *.gcda: build with --coverage, and run a test")
    run = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(lambda file: lines_of(file, gcov, headers), files):
            for place, was_run in lines.items():
                run[place] = run.get(place, False) or was_run
    if not run:
        sys.exit(f"coverage.py: no program of {build} has a line of {headers}")
    rooms = collections.defaultdict(list)
    for (header, _), was_run in run.items():
        rooms[header.partition("/")[0] if "/" in header else DOORS].append(was_run)
    print("| room | lines | run | % |")
    print("| --- | --: | --: | --: |")
    for room, lines in [*sorted(rooms.items()), ("all", list(run.values()))]:
        print(f"| {room} | {len(lines)} | {sum(lines)} | {100 * sum(lines) / len(lines):.1f} |")
    not_run = sorted(place for place, was_run in run.items() if not was_run)
    (build / "not_run.txt").write_text(
        "".join(f"{header}:{line}\n" for header, line in not_run), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tree = pathlib.Path(__file__).resolve().parent.parent
    main(*sys.argv[1:3], *(sys.argv[3:] or [tree / "include/gdpo"]))
