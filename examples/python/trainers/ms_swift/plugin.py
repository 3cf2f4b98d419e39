"""The file for --external_plugins: two reward functions, and the two lines that install ours."""
from swift.rewards import ORM, orms

from gdpo.integrations import ms_swift


class Parity(ORM):
    """How large a part of the completion's digits is even."""

    def __call__(self, completions, **kwargs):
        digits = [[int(c) for c in text if c.isdigit()] for text in completions]
        return [sum(d % 2 == 0 for d in row) / max(len(row), 1) for row in digits]


class Short(ORM):
    """1 where the completion ended by itself in fewer than ten characters."""

    def __call__(self, completions, **kwargs):
        return [float(len(text.replace(" ", "")) < 10) for text in completions]


orms["parity"], orms["short"] = Parity, Short

# Constraints have the names under which the log shows the rewards: rewards/Short/mean.
ms_swift.install(loss="dapo", estimator="gdpo", constraints=["Short>=0.6 scale=0.3"])
