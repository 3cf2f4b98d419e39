"""What the comparisons with the trainers' own code share: a record of the worst differences.

At the end pytest prints the record, which is the table in README.md.
"""
import math
import os
import subprocess
import sys

import pytest
import torch

#: How many random batches each function of a trainer is compared on.
BATCHES = 200
#: How many a trainer's estimators are compared on together, with rewards of every kind.
BATCHES_OF_ANY = 1000


def any_rewards(rng, rows, columns, huge):
    """Rewards of every kind that a function may return, (rows, columns) of float32, and weights.

    They are multiples of 1/8 with constant groups, among them NaN (a function that returned None),
    infinities of both signs, tiny numbers, and in the first column numbers as large as `huge`: two
    that cancel would leave the rounding of what else is in the sum. The weights are of both signs
    and 0. All are few bits long, so that sums and means of equal rewards are exact in the trainer.
    """
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    rewards = torch.randint(-16, 17, (rows, columns), generator=generator) / 8.0
    if rng.random() < 0.4:
        rewards = (rewards > 0).float()  # as checkers give them
    if rng.random() < 0.3:
        rewards[: rows // 2] = rewards[:1]
    if rng.random() < 0.3:
        rewards[:, rng.randrange(columns)] = 0.5
    share = rng.choice([0.0, 0.03, 0.15, 0.5])
    kinds = rng.sample([math.inf, -math.inf, math.nan, 2.0 ** -90, huge], rng.randint(1, 5))
    for row in range(rows):
        for column in range(columns):
            if rng.random() < share:
                kind = rng.choice(kinds)
                rewards[row, column] = 0.0 if kind == huge and column > 0 else kind
        if rng.random() < share / 2:
            rewards[row] = math.nan
    weights = [rng.choice([1.0, 1.0, 0.0, -1.0, 0.25, 2.0]) for _ in range(columns)]
    return rewards, torch.tensor(weights)


def adds_infinities(rewards, weights):
    """Whether the weighted sum of some row is inf - inf."""
    terms = rewards * weights
    return bool(((terms == math.inf).any(1) & (terms == -math.inf).any(1)).any())


class Record:
    """The worst differences between a trainer's functions and ours over all batches."""

    def __init__(self):
        self.rows = {}
        self.batches = {}

    def batch(self, trainer, function, presets):
        """Counts one batch on which `function` ran beside `presets` (names in one string)."""
        key = (trainer, function, presets)
        self.batches[key] = self.batches.get(key, 0) + 1
        self.rows.setdefault(key, {})

    def close_to_any(self, trainer, function, presets, ours, theirs, context, may_differ=None):
        """`close` of advantages that may be NaN, infinite, or a float's largest number.

        Those are to be the same ones, except where may_differ (rows) allows it.
        """
        most = torch.finfo(torch.float32).max
        ours, theirs = ours.double(), theirs.double()
        largest = theirs.isfinite() & (theirs.abs() >= most)  # of a trainer's float64
        theirs = torch.where(largest, theirs.clamp(-most, most), theirs)
        special = ~theirs.isfinite() | largest
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        if may_differ is not None:
            same = same | may_differ
        assert bool(same[special].all()), (
            f"{trainer} {function} beside {presets}: ours {ours.tolist()}, theirs "
            f"{theirs.tolist()}; {context}")
        self.close(trainer, function, presets, "advantages", ours[~special], theirs[~special], 1e-6,
                   context)

    def close(self, trainer, function, presets, what, ours, theirs, tolerance, context=""):
        """Holds ours to theirs, and keeps the difference.

        what: "advantages", "loss", "gradient" or "metrics". The difference is the largest of all
        elements, relative to the largest magnitude in theirs; of advantages and metrics relative to
        1 where that is larger. NaN equals NaN; an infinity equals itself.
        """
        ours = torch.as_tensor(ours).detach().double().reshape(-1)
        theirs = torch.as_tensor(theirs).detach().double().reshape(-1)
        assert ours.shape == theirs.shape, (what, ours.shape, theirs.shape, context)
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        apart = torch.where(same, 0.0, (ours - theirs).abs())
        magnitude = theirs[theirs.isfinite()].abs().max().item() if theirs.isfinite().any() else 0.0
        floor = 1.0 if what in ("advantages", "metrics") else 1e-12
        worst = apart.max().item() / max(magnitude, floor) if len(apart) else 0.0
        row = self.rows.setdefault((trainer, function, presets), {})
        row[what] = max(row.get(what, 0.0), worst) if not math.isnan(worst) else worst
        assert worst <= tolerance, (
            f"{trainer} {function} beside {presets}: {what} differ by {worst:.2e}, tolerance "
            f"{tolerance:g}; ours {ours.tolist()[:8]}, theirs {theirs.tolist()[:8]}; {context}")


_record = Record()
_KINDS = ("advantages", "loss", "gradient", "metrics")


@pytest.fixture(scope="session")
def record():
    """The record of this run."""
    return _record


class AnyRewards:
    """any_rewards, and how many batches of them a trainer is compared on."""

    batches = BATCHES_OF_ANY
    adds_infinities = staticmethod(adds_infinities)

    def __call__(self, *arguments, **named):
        return any_rewards(*arguments, **named)


@pytest.fixture(name="any_rewards", scope="session")
def _any_rewards():
    """Rewards of every kind."""
    return AnyRewards()


@pytest.fixture
def python(request):
    """Runs a script in another process, after the stubs.py beside the test; gives what it prints.

    The script has the modules runpy and sys. path: a folder that is searched for modules before all
    others. environment: more variables.
    """
    stubs = f"import runpy, sys; runpy.run_path({str(request.path.with_name('stubs.py'))!r}); "

    def run(script, path="", **environment):
        paths = os.pathsep.join(entry for entry in (path, *sys.path) if entry)
        return subprocess.run(
            [sys.executable, "-c", stubs + script], check=True, capture_output=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **environment}
        ).stdout.splitlines()
    return run


@pytest.fixture
def script(request):
    """Runs the train.py beside the test as a user does, and gives what it prints."""
    def run(path="", **environment):
        paths = os.pathsep.join(entry for entry in (path, *sys.path) if entry)
        done = subprocess.run(
            [sys.executable, str(request.path.with_name("train.py"))], capture_output=True,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths,
                            **environment})
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()
    return run


@pytest.fixture(scope="session")
def seeds():
    """The seeds of the random batches of one comparison."""
    return range(BATCHES)


@pytest.fixture(autouse=True)
def one_thread():
    """The tests run on one thread, because they are small and machines are shared."""
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter):
    if not _record.rows:
        return
    write = terminalreporter.write_line
    write(f"| trainer | function | compared with | batches | {' | '.join(_KINDS)} |")
    write("|---" * (4 + len(_KINDS)) + "|")
    for (trainer, function, presets), worst in _record.rows.items():
        shown = [f"{worst[kind]:.0e}" if kind in worst else "" for kind in _KINDS]
        batches = _record.batches.get((trainer, function, presets), 0)
        write(f"| {trainer} | `{function}` | {presets} | {batches} | {' | '.join(shown)} |")
