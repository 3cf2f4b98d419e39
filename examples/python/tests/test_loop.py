"""The example of a whole loop learns, and its lines do not depend on the number of processes."""
import os
import pathlib
import socket
import subprocess
import sys

import gdpo

LOOP = pathlib.Path(__file__).parents[1] / "training/loop.py"


def lines_of(processes):
    """What the loop prints with so many processes."""
    package = str(pathlib.Path(gdpo.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [package, *filter(None, [os.environ.get("PYTHONPATH")])]), "OMP_NUM_THREADS": "1"}
    ranks = [{}]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks = [{"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": port} for rank in range(processes)]
    running = [subprocess.Popen([sys.executable, LOOP, "--steps", "12"], text=True,
                                stdout=subprocess.PIPE, env={**environment, **rank})
               for rank in ranks]
    said = [process.communicate(timeout=240)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    assert not any(said[1:])
    return said[0].splitlines()


def test_the_loop_learns_and_its_lines_are_those_of_one_process():
    lines = lines_of(1)
    assert len(lines) == 12
    words, ends = ([float(line.split()[at]) for line in lines] for at in (3, 5))
    assert words[-1] > 4 * words[0] and words[-1] > 0.5, lines
    assert min(ends[6:]) > 0.5, lines
    assert lines_of(2) == lines
