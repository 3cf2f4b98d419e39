"""What the comparisons with the trainers' own code share: a record of the worst differences.

At the end pytest prints the record, which is the table in README.md.
"""
import math

import pytest
import torch

#: How many random batches each function of a trainer is compared on.
BATCHES = 200


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


@pytest.fixture(autouse=True)
def one_thread():
    """The tests run on one thread, because they are small and machines are shared."""
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter):
    if not _record.rows:
        return
    write = terminalreporter.write_line
    write(f"| trainer | function | beside | batches | {' | '.join(_KINDS)} |")
    write("|---" * (4 + len(_KINDS)) + "|")
    for (trainer, function, presets), worst in _record.rows.items():
        shown = [f"{worst[kind]:.0e}" if kind in worst else "" for kind in _KINDS]
        batches = _record.batches.get((trainer, function, presets), 0)
        write(f"| {trainer} | `{function}` | {presets} | {batches} | {' | '.join(shown)} |")
