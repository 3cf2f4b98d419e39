#!/usr/bin/env python3
"""Tests cmake/coverage.py on made-up headers: coverage_test.py COMPILER GCOV."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMPILER, GCOV = sys.argv[1:]
DOOR = """\
inline int once(int x) {
  if (x > 0) return 1;
  return 2;
}
inline int never_called() { return 3; }
template <class T>
T never_instantiated(T x) {
  return x;
}
"""
ROOM = """\
template <class T>
int sign(T x) {
  if (x > 0)
    return 1;
  return -1;
}
"""
TEST = """\
#include <room/engine/sign.hpp>
#include <door.hpp>
int main() { return once(1) + sign(%s) - 1 - (%s); }
"""
# Two programs: line 4 of sign.hpp is run by the first for int, and line 5 by the second for double.
PROGRAMS = {"first": ("2", "1"), "second": ("-2.0", "-1")}
# The lines 1 to 3 of door.hpp and all of sign.hpp but the line with `template` and the last brace.
WANTED = """\
| room | lines | run | % |
| --- | --: | --: | --: |
| front doors | 3 | 2 | 66.7 |
| room | 4 | {run} | {share} |
| all | 7 | {all} | {all_share} |
"""


def coverage(build, headers):
    return subprocess.run([sys.executable, ROOT / "cmake/coverage.py", build, GCOV, headers],
                          capture_output=True, text=True)


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary).resolve()
        headers, build = folder / "include", folder / "build"
        for path, text in ((headers / "door.hpp", DOOR), (headers / "room/engine/sign.hpp", ROOM)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        build.mkdir()
        nothing = coverage(build, headers)
        assert nothing.returncode == 1 and "has no *.gcda" in nothing.stderr, nothing
        for name, values in PROGRAMS.items():
            (build / f"{name}.cpp").write_text(TEST % values)
            subprocess.run([COMPILER, "--coverage", "-std=c++17", f"-I{headers}", f"{name}.cpp",
                            "-o", name], cwd=build, check=True)
            subprocess.run([f"./{name}"], cwd=build, check=True)
            done = coverage(build, headers)
            run, share = (3, "75.0") if name == "first" else (4, "100.0")
            wanted = WANTED.format(run=run, share=share, all=run + 2,
                                   all_share=f"{100 * (run + 2) / 7:.1f}")
            assert done.stdout == wanted, done.stdout + done.stderr
            not_run = (build / "not_run.txt").read_text().splitlines()
            assert not_run == ["door.hpp:3", "room/engine/sign.hpp:5"][:5 - run], not_run


if __name__ == "__main__":
    main()
