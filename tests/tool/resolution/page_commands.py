"""Runs a command of the tool's page on the log of a trainer, and compares all numbers.

    page_commands.py TOOL PAGE LOGS NAME

The command is the block of PAGE behind the comment <!-- log: NAME --> (with a second word `total`
where the log has the sum of the rewards alone). It runs in the folder LOGS as it stands, with the
tool's folder in PATH, and has to give the numbers that the tool gives for expected.csv, the rewards
that the log was made from. Exits with 77, which ctest takes for skipped, where the command needs a
Python package that is not there.
"""
import json
import math
import os
import pathlib
import re
import subprocess
import sys

TOLERANCE = 1e-9  # sums are the same numbers, possibly in another order


def shell(command, folder, tool):
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder,
                          env={**os.environ, "PATH": path}, capture_output=True, text=True)


def report(command, folder, tool):
    done = shell(command + " --json -", folder, tool)
    if done.returncode != 0 or done.stderr:
        sys.exit(f"{command}\nstatus {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def differences(actual, wanted, where):
    """Where two JSON values differ. The names of files, rewards and columns may."""
    if where.split("/")[-1] in ("file", "rewards", "batch_columns"):
        return
    if isinstance(wanted, dict):
        named_by_reward = where.split("/")[-1] in ("per_reward", "reward_mean", "reward_std")
        if not named_by_reward and list(actual) != list(wanted):
            yield f"{where}: {list(actual)} instead of {list(wanted)}"
        elif len(actual) != len(wanted):
            yield f"{where}: {len(actual)} rewards instead of {len(wanted)}"
        for name, one, other in zip(wanted, actual.values(), wanted.values()):
            yield from differences(one, other, f"{where}/{name}")
    elif isinstance(wanted, list):
        if len(actual) != len(wanted):
            yield f"{where}: {len(actual)} entries instead of {len(wanted)}"
        for i, (one, other) in enumerate(zip(actual, wanted)):
            yield from differences(one, other, f"{where}/{i}")
    elif isinstance(wanted, float) and isinstance(actual, (int, float)):
        if not math.isclose(actual, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{where}: {actual} instead of {wanted}"
    elif actual != wanted:
        yield f"{where}: {actual} instead of {wanted}"


def main(tool, page, logs, name):
    tool, logs = pathlib.Path(tool), pathlib.Path(logs)
    block = re.search(rf"<!-- log: {name}( total)? -->\n```sh\n(.*?)\n```",
                      pathlib.Path(page).read_text("utf-8"), re.DOTALL)
    total, command = block.groups()
    if "pyarrow" in command:
        try:
            import pyarrow  # noqa: F401  the command needs it, not this program
        except ImportError:
            print("skipped: the command needs the Python package pyarrow")
            sys.exit(77)
        # The message for a parquet file is a conversion too: the same on one line.
        refused = shell("gdpo-resolution completions_00001.parquet --group g --rewards r",
                        logs / name / "completions", tool)
        line = re.search(r"run: (.*) \| gdpo-resolution", refused.stderr).group(1)
        command_of_message = line.replace("'completions_00001.parquet'",
                                          f"{name}/completions/*.parquet")
        options = command[command.index("gdpo-resolution"):]
        commands = [command, f"{command_of_message} | {options}"]
    else:
        commands = [command]
    file, rewards = (("expected_total.csv", "total") if total else
                     ("expected.csv", "accuracy,format,length"))
    wanted = report(f"gdpo-resolution {file} --batch step --group prompt_index "
                    f"--rewards {rewards}", logs, tool)
    assert (wanted["completions"], wanted["groups"], wanted["batches"]) == (24, 6, 2)
    for command in commands:
        found = list(differences(report(command, logs, tool), wanted, name))
        if found:
            sys.exit("\n".join([command, *found]))


main(*sys.argv[1:])
