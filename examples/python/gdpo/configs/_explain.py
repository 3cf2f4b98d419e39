"""A trainer's configuration in words and formulas."""
import re
import textwrap
from typing import Iterable, List

from .._losses import ContrastiveLoss
from .._settings import values_of
from ._configured import Configured, Entropy
from . import _words_advantage as advantage
from . import _words_loss as words

_WIDTH = 100
_LABEL = 14
# What a line is not broken in: intervals, clips and conditions.
_WHOLE = re.compile(r"\[[^\]]{,40}\]|clip\([^)]*\)|\b\w+ (?:>=|<=|>|<|=) [^\s,)]+")


def explanation(given: Configured) -> str:
    """What a run with this configuration computes, as a text of up to 100 columns."""
    parts: List[str] = [f"{given.release}: what this configuration computes", ""]
    parts += _advantages(given)
    parts += _corrections(given)
    parts += _loss(given)
    if given.value_loss:
        parts += _item("critic", [given.value_loss])
    parts += _calls(given)
    for title, texts in (("You do yourself", given.yours), ("Given and not read", given.unread),
                         ("Not in this library", given.unsupported)):
        if texts:
            parts += ["", f"{title}:"]
            for name, text in texts.items():
                parts += _wrapped(f"{name}: {text}", "  ", " " * 6)
    return "\n".join(parts)


def _wrapped(text: str, first: str, others: str) -> List[str]:
    """The lines of a text, with these blanks in front of the first and of the others."""
    whole = _WHOLE.sub(lambda match: match[0].replace(" ", "\0"), text)
    return [line.replace("\0", " ") for line in textwrap.wrap(
        whole, _WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False,
        break_on_hyphens=False)]


def _item(label: str, lines: Iterable[str]) -> List[str]:
    """A label in front of lines."""
    made: List[str] = []
    for number, line in enumerate(lines):
        first = label.ljust(_LABEL) if number == 0 else " " * _LABEL
        made += _wrapped(line, first, " " * (_LABEL + 2))
    return made


def _advantages(given: Configured) -> List[str]:
    """The stages of the advantages."""
    if given.estimator is None:
        line = given.token_advantage
        return _item("advantages", [f"{line} (of tokens)" if line else
                                    "not in this library, see below"])
    lines = [given.estimator]
    lines += [f"{number}. {step}" for number, step in
              enumerate(advantage.stages(given.estimator, given.weights), 1)]
    lines.append(advantage.edges(given.estimator))
    return _item("advantages", lines)


def _corrections(given: Configured) -> List[str]:
    """The pre-passes."""
    lines: List[str] = []
    for line in given.corrections:
        lines += [line, f"  {words.prepass(line)}"]
    return _item("pre-passes", lines or ["none"])


def _loss(given: Configured) -> List[str]:
    """The parts of the loss."""
    if given.loss is None:
        return _item("loss", ["not in this library, see below"])
    values = values_of(given.loss.line)
    made = _item("loss", [given.loss.line.split(" ")[0]])
    if isinstance(given.loss, ContrastiveLoss):
        made += _item("  of a group", words.contrastive(given.loss))
        made += _item("  divided by", ["the groups"])
    else:
        made += _item("  ratio", [words.ratio(values)])
        made += _item("  each token", [*words.surrogate(values)])
    made += _item("  KL", [words.kl(values) or (
        f"in the reward: {given.kl.coef:g} times {given.kl.estimator}, old_logp against ref_logp"
        if given.kl is not None and given.kl.place == "reward" else
        "in a second loss" if given.kl is not None else "none")])
    if not isinstance(given.loss, ContrastiveLoss):
        made += _item("  divided by", [words.divided_by(values)])
    if given.entropy is not None:
        made += _item("  entropy", [_entropy(given.entropy)])
    for more in given.more_losses:
        values = values_of(more.line)
        coef = float(values["entropy.coef"])
        terms = [words.kl(values)[2:], f"- {coef:g} times the entropy" if coef else ""]
        mean = words.divided_by(values).replace("nothing: ", "")
        made += _item("  plus", [f"a second loss, {'; '.join(filter(None, terms))}, as {mean}"])
    return made


def _entropy(bonus: Entropy) -> str:
    """The entropy bonus."""
    if bonus.mean not in ("loss", "tokens"):
        return "in a second loss"
    over = "over the valid tokens" if bonus.mean == "tokens" else "as the loss"
    if bonus.adaptive is None:
        return f"- {bonus.coef:g} times its mean {over}"
    return (f"- a coefficient that moves from {bonus.coef:g} on, times its mean {over}; 0 where "
            f"that of the step before is above {bonus.adaptive['target']:g}")


def _calls(given: Configured) -> List[str]:
    """The calls, and what they are given."""
    made = ["", "Calls:"]
    lines = []
    if given.estimator is not None:
        extra = "" if given.weights is None else f", weights={list(given.weights)}"
        lines.append(f'gdpo.advantages(rewards, estimator="{given.estimator}"{extra}, ...)')
    if given.token_advantage is not None:
        lines.append(f'gdpo.token_advantages(estimator="{given.token_advantage}", ...)')
    if given.corrections:
        listed = ", ".join(f'"{line}"' for line in given.corrections)
        lines.append(f"gdpo.prepare([{listed}], ...)")
    for loss in [given.loss, *given.more_losses]:
        if loss is not None:
            lines.append(f'gdpo.{type(loss).__name__}("{loss.line}")')
    for line in lines:
        made += _wrapped(line, "  ", " " * 6)
    needed = [f"{name}: {text}" for name, text in given.arrays.items()]
    needed += [f"counts, {name}: {text}" for name, text in given.counts.items()]
    if given.temperature != 1:
        needed.append(f"logits are divided by the temperature {given.temperature:g}")
    if needed:
        made += ["", "Their arguments:"]
        for text in needed:
            made += _wrapped(text, "  ", " " * 6)
    return made
