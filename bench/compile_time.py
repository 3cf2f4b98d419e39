#!/usr/bin/env python3
"""What including gdpo costs the compiler, compared with a file that uses Eigen alone.

Prints the user time and the peak memory of -O2. The files take turns, so that a machine that slows
down slows all of them; each figure is the smallest of the rounds.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

FILES = {
    "<Eigen/Core> and one row-wise sum": """
#include <Eigen/Core>
Eigen::ArrayXd sums(const Eigen::ArrayXXd& rewards) { return rewards.rowwise().sum(); }
""",
    "<gdpo/advantages.hpp> and a call": """
#include <gdpo/advantages.hpp>
std::vector<double> of(const double* rewards, gdpo::index_t rows) {
  return gdpo::advantages(gdpo::view(rewards, rows, 2), gdpo::groups_of(4));
}
""",
    "<gdpo/gdpo.hpp>, advantages and one loss": """
#include <gdpo/gdpo.hpp>
Eigen::ArrayXd of(const Eigen::ArrayXXd& rewards) {
  return gdpo::advantages(rewards, gdpo::groups_of(4));
}
gdpo::LossResult of(const gdpo::TokenBatch<float>& batch, gdpo::View<float, 2> gradient) {
  return gdpo::grpo_loss(batch, gdpo::count(batch), gradient);
}
""",
}


def compile_once(command):
    """Runs the compiler: user seconds, and the peak memory in MB of its largest process.

    Where the compiler fails, prints its messages and exits.
    """
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    messages = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}\n{messages}")
    return usage.ru_utime, usage.ru_maxrss / 1000


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--include", action="append", default=[],
                        help="a folder of headers; may be given again")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    figures = {name: [] for name in FILES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for i, (name, text) in enumerate(FILES.items()):
                source = pathlib.Path(folder) / f"{i}.cpp"
                source.write_text(text)
                figures[name].append(compile_once(
                    [options.compiler, "-std=c++17", "-O2",
                     *(f"-I{path}" for path in options.include),
                     "-c", str(source), "-o", f"{folder}/object.o"]))

    eigen = min(seconds for seconds, _ in next(iter(figures.values())))
    print("| file | user time, s | above Eigen's, s | peak memory, MB |\n|---|---|---|---|")
    for name, runs in figures.items():
        seconds, peak = min(s for s, _ in runs), min(p for _, p in runs)
        print(f"| {name} | {seconds:.2f} | {seconds - eigen:.2f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
