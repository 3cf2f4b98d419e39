"""The invented rollouts that make.py hands to the trainers' logging code."""
import math
import uuid
from types import SimpleNamespace as Thing

import numpy as np

BIG = 2**53 + 1  # the first whole number that a double cannot hold
NAMES = ["accuracy", "format", "length"]
NONE = math.nan  # a missing reward; all others are exact in float32, which three trainers log
PROMPTS = [
    'Translate "café, crème" into Chinese;\nkeep the é and end with 中.',
    'Is C:\\temp\\new a path, or a list? Say "path"; or "list".',
    "Add 1,5 and 2,5; reply\nwith one number.",
    'Spell "naïve", then a tab\t, then a comma.',
    '写一句话: say "ok", then stop; never write \\n.',
]
ANSWERS = [
    'It is "咖啡", I think;\nsee C:\\é',
    'No, or; perhaps: "yes" 😀',
    '{"answer": 4, "unit": "中"}',
    'a,b;c\\"d"\u2028e',
]
STEPS = {  # step: {index into PROMPTS: four completions, rewards in the order of NAMES}
    1: {
        0: [(1, 0, 0.5), (0, 1, 0.5), (1, 1, 0.25), (0, 0, 1)],  # the first two: the same sum
        1: [(1, 1, 0.75), (1, 1, 0.5), (0, 1, 0.75), (0, 1, -0.125)],
        2: [(0, 0, 0)] * 4,
    },
    2: {
        0: [(1, 1, 0.5), (1, 0, 0.25), (0, 1, 0.25), (0, 0, 1.25)],  # the last three
        3: [(NONE, 1, 0.25), (1, 1, 0.25), (0, 1, -0.5), (1, 0, -1.5)],
        4: [(1, 1, 1), (1, 1, 1), (1, 0, 1), (0, 1, 1)],
    },
}


def rows_of(step):
    """The twelve completions of a step, prompt by prompt."""
    rows = []
    for group, (prompt, completions) in enumerate(STEPS[step].items()):
        totals = np.nansum(np.array(completions, np.float32), axis=1)
        centered = totals - totals.mean()
        for k, rewards in enumerate(completions):
            rows.append(Thing(
                group=group, k=k, prompt=PROMPTS[prompt], rewards=rewards, total=totals[k],
                answer=f"{ANSWERS[k]} ({step}.{group}.{k})", truth=f"{prompt}; é",
                uid=uuid.UUID(int=step * 10**37 + prompt), id=BIG + 100 * step + 10 * group + k,
                centered=centered[k], advantage=centered[k] / (totals.std(ddof=1) + 1e-4)))
    return rows
