#!/usr/bin/env python3
"""What the kernels of cuda_bench wait for: counters of Nsight Compute, one launch each, as a table.

    profile_kernels.py --bench build/cuda/bench/cuda_bench --out FOLDER

Runs ncu on the first call of some figures. FOLDER gets ncu's reports (*.ncu-rep, for the Nsight
Compute window), all counters as text (profile.csv), and what ncu printed (profile.log).

Columns of the table: "of peak" is the traffic with device memory, and "issue" the cycles in which a
scheduler issues an instruction, both as shares of what the device can do. "waits" are the reasons
for which warps stand still, the most frequent first, in waiting warps per issue. "nan" means that
this version of ncu does not give the counter.

Exit status: 0; 1 if ncu fails; 77 if there is no ncu, or if it may not read the counters.
"""
import argparse
import csv
import pathlib
import re
import shutil
import subprocess
import sys

# Figures of cuda_bench, and the kernels of their first call that are profiled.
RUNS = [
    ("GRPO with KL, metrics::None, 64M tokens in rows of 4096", ["LossKernel", "FinishRows"]),
    ("GRPO with KL, metrics::None, 64M tokens in rows of 512", ["LossKernel"]),
    ("GRPO with KL, 64M tokens in rows of 4096", ["LossKernel", "FinishRows"]),
    ("fused, in place, bfloat16, V = 152064", ["LogitsLossKernel"]),
    ("GDPO, groups of 8", ["CombineWindow"]),
]
# Counters that are asked for by name, because the full set differs between versions of ncu.
METRICS = ["gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
           "smsp__inst_executed.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "smsp__issue_active.avg.pct_of_peak_sustained_active",
           "sm__warps_active.avg.pct_of_peak_sustained_active", "lts__t_sector_hit_rate.pct"]
# Units that ncu prints, in seconds or bytes.
SCALES = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
          "s": 1.0, "second": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
# The counters of reasons to wait. "selected" is the warp that issues, which does not wait.
STALL = re.compile(r"^smsp__average_warps_issue_stalled_(?!selected_)(\w+)(?<!_not_issued)"
                   r"_per_issue_active\.ratio$")


def rows_of(report):
    """The launches in ncu's CSV, whose first line has names and whose second line has units.

    A launch maps each name to a text, or to a number in seconds, bytes, per cent or pieces.
    """
    lines = list(csv.reader(line for line in report.splitlines() if line.startswith('"')))
    if len(lines) < 3:
        return []
    names, units = lines[0], lines[1]

    def value(text, unit):
        try:
            return float(text.replace(",", "")) * SCALES.get(unit, 1.0)
        except ValueError:
            return text

    return [{name: value(*cell) for name, *cell in zip(names, line, units)} for line in lines[2:]]


def number(row, name):
    x = row.get(name)
    return x if isinstance(x, float) else float("nan")


def line_of(row, kernel, figure):
    seconds = number(row, "gpu__time_duration.sum")
    read, written = number(row, "dram__bytes_read.sum"), number(row, "dram__bytes_write.sum")
    matches = [(x, STALL.match(name)) for name, x in row.items() if isinstance(x, float)]
    waits = sorted(((x, match.group(1)) for x, match in matches if match), reverse=True)
    cells = [f"{kernel}: {figure}",
             f"{1e6 * seconds:.1f}",
             f"{1e-6 * read:.1f} + {1e-6 * written:.1f}",
             f"{1e-9 * (read + written) / seconds:.0f}",
             f"{number(row, 'dram__throughput.avg.pct_of_peak_sustained_elapsed'):.0f} %",
             f"{number(row, 'smsp__issue_active.avg.pct_of_peak_sustained_active'):.0f} %",
             f"{number(row, 'smsp__inst_executed.sum'):.4g}",
             f"{number(row, 'launch__registers_per_thread'):.0f}",
             f"{number(row, 'sm__warps_active.avg.pct_of_peak_sustained_active'):.0f} %",
             f"{number(row, 'lts__t_sector_hit_rate.pct'):.0f} %",
             ", ".join(f"{reason} {x:.2f}" for x, reason in waits[:4])]
    return "| " + " | ".join(cells) + " |"


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="cuda_bench")
    parser.add_argument("--out", required=True, help="an existing folder for ncu's reports")
    options = parser.parse_args()
    if shutil.which("ncu") is None:
        print("ncu (Nsight Compute) is not in the path: nothing is profiled")
        return 77

    print("| kernel: figure | us | MB read + written | GB/s | of peak | issue | instructions "
          "| registers | occupancy | L2 hits "
          "| waits |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    failures, folder = 0, pathlib.Path(options.out)
    log_file, csv_file = (open(folder / name, "w")  # noqa: SIM115  to the end of the program
                          for name in ("profile.log", "profile.csv"))
    for i, (figure, kernels) in enumerate(RUNS):
        report = folder / f"profile_{i}.ncu-rep"
        report.unlink(missing_ok=True)
        status, log = run(["ncu", "--force-overwrite", "--export", str(report), "--set", "full",
                           "--metrics", ",".join(METRICS), "--clock-control", "none",
                           "--kernel-name-base", "demangled",
                           "--kernel-name", f"regex:.*({'|'.join(kernels)}).*",
                           "--launch-count", str(len(kernels)),
                           options.bench, "--repeats", "1", "--figure", figure])
        print(log, file=log_file, flush=True)
        complaints = "\n".join(line for line in log.splitlines()
                               if line.startswith(("==ERROR==", "==WARNING==")))
        if "ERR_NVGPUCTRPERM" in log or "LibraryNotLoaded" in log:
            print("ncu may not read the counters of this device:\n" + complaints)
            return 77
        launches = []
        if report.exists():
            _, text = run(["ncu", "--import", str(report), "--csv", "--page", "raw",
                           "--print-units", "base", "--print-kernel-base", "demangled"])
            print(text, file=csv_file, flush=True)
            launches = rows_of(text)
        for kernel in kernels:
            found = [row for row in launches
                     if re.search(rf"\b{kernel}\b", str(row.get("Kernel Name")))]
            if found:
                print(line_of(found[0], kernel, figure), flush=True)
            else:
                failures += 1
                print(f"NOT PROFILED: {kernel} of \"{figure}\" "
                      f"(ncu's exit status {status}; all of it in profile.log):\n{complaints}",
                      flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
