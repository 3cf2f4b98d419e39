"""What a trainer's configuration means in calls of this library."""
import dataclasses
import pprint
import textwrap
import types
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from .._losses import ContrastiveLoss, PolicyLoss
from .._names import near
from .._settings import line, value_of, word
from ._options import Options


#: The entropies that an entropy bonus needs.
ENTROPIES = "of the tokens, in nats, with their gradient"


@dataclasses.dataclass(frozen=True)
class Kl:
    """A divergence from another policy, in nats."""

    place: str  #: "loss": a term of the loss, which it has already. "reward": see `Configured.kl`.
    estimator: str  #: As the trainer calls it, such as "low_var_kl".
    coef: float  #: What it is multiplied by.
    against: str = "ref"  #: The other policy.


@dataclasses.dataclass(frozen=True)
class Entropy:
    """The entropy bonus: coef times the mean entropy is subtracted from the loss."""

    coef: float  #: In units of the loss per nat.
    #: "loss": over what the loss is a mean of. "tokens": over the valid tokens. Else verl's name of
    #: the mean that the bonus is in `Configured.more_losses`.
    mean: str
    #: Where the coefficient moves: the settings of `gdpo.AdaptiveEntropy`, which begins with coef.
    adaptive: Optional[Mapping[str, float]] = None


@dataclasses.dataclass(frozen=True, repr=False)
class Configured:
    """A trainer's configuration as calls of this library, from `from_config`.

        given = gdpo.from_config("trl", {"loss_type": "dapo", "epsilon_high": 0.28}, strict=True)
        assert given.estimator is not None and given.loss is not None
        advantages = gdpo.advantages(rewards, group_size=8, estimator=given.estimator)
        counts[3] = counts[0]                           # num_items_in_batch: see given.counts
        loss, metrics = given.loss(logp, old_logp=old_logp, mask=mask, advantages=advantages,
                                   counts=counts)

    `print(given.explain())` says all of it in words and formulas.
    """

    trainer: str  #: Such as "verl".
    release: str  #: The release whose options these are, such as "verl 0.9.1".
    #: For `gdpo.advantages(estimator=...)`, with its settings. None: see `unsupported`.
    estimator: Optional[str] = None
    #: For `gdpo.advantages(weights=...)`: one for each reward; None: 1 each.
    weights: Optional[Tuple[float, ...]] = None
    #: For `gdpo.token_advantages(estimator=...)`, with its settings. None: there is one advantage a
    #: row.
    token_advantage: Optional[str] = None
    #: The loss. None: see `unsupported`.
    loss: Optional[Union[PolicyLoss, ContrastiveLoss]] = None
    #: Losses of the same batch that are added to it.
    more_losses: Tuple[PolicyLoss, ...] = ()
    #: For `gdpo.prepare`, in this order.
    corrections: Tuple[str, ...] = ()
    #: The divergence from the reference: that of the loss, where reward and loss have one. Of place
    #: "reward", the estimator takes it off the reward: give `gdpo.advantages(penalty=...)` the sum
    #: over the tokens of each row.
    kl: Optional[Kl] = None
    entropy: Optional[Entropy] = None  #: The entropy bonus.
    aggregate: str = ""  #: What the loss is averaged over, as verl names it.
    #: The counts that divide, by their names in `gdpo.count`, and what they have to be here.
    counts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Arguments of the calls that the trainer's way needs, and what they have to be here.
    arrays: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: The critic's loss, a line for `ValueLoss`.
    value_loss: Optional[str] = None
    temperature: float = 1.0  #: Of the logits, for `gdpo.token_logprobs`.
    #: What the trainer does besides and you do in its place: a sentence for each option.
    yours: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Options that were given and that the trainer does not read here: a sentence for each.
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Options that change the numbers and that this library lacks: a sentence for each.
    unsupported: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def explain(self) -> str:
        """What a run with this configuration computes, in words and formulas."""
        from ._explain import explanation
        return explanation(self)

    def __repr__(self) -> str:
        """What differs from the default, each on a line."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value and value != 0:
                continue
            if value != field.default:
                plain = dict(value) if isinstance(value, Mapping) else value
                text = pprint.pformat(plain, width=80, sort_dicts=False)
                words.append(f"{field.name}={text}")
        return "gdpo.Configured(\n" + textwrap.indent(",\n".join(words), "  ") + "\n)"


class Draft:
    """A `Configured` in the making; the modules of the trainers fill it."""

    def __init__(self, trainer: str, release: str, options: Options) -> None:
        self.options = options
        self.fields: Dict[str, Any] = {"trainer": trainer, "release": release}
        self.counts: Dict[str, str] = {}
        self.arrays: Dict[str, str] = {}
        self.corrections: List[str] = []
        self.yours: Dict[str, str] = {}
        self.unread: Dict[str, str] = {}
        self.unsupported: Dict[str, str] = {}

    def lacks(self, option: str, why: str) -> None:
        """Names an option that this library lacks; the sentence begins with its value."""
        value = self.options[option] if self.options.known(option) else None
        given = f"given {value}: " if value is not None else ""
        self.unsupported[option] = given + why

    def reads_not(self, names: Iterable[str], why: str) -> None:
        """Names the options among these that were given another value than the default's."""
        for name in names:
            if self.options.says(name):
                self.unread[name] = f"given {self.options[name]}: {why}"

    def unknown(self, name: str, others: Iterable[str] = ()) -> None:
        """Names an option that the trainer does not have in a section of the loss.

        others: options that it has, and that do not concern the loss.
        """
        meant = self.options.near(name) or near(name, others)
        self.unsupported[name] = ("no option of this release" + (
            f"; did you mean {' or '.join(meant)}?" if meant else ""))

    def make_loss(self, option: str, name: str, level: Optional[str], settings: Mapping[str, Any]
                  ) -> Optional[PolicyLoss]:
        """A policy loss, or None and a sentence about the option where the settings do not fit."""
        try:
            return PolicyLoss(name, level, **{key: value for key, value in settings.items()
                                              if value is not None})
        except ValueError as error:
            self.lacks(option, reason(error))
            return None

    def set_loss(self, option: str, name: str, level: Optional[str], settings: Mapping[str, Any]
                 ) -> Optional[PolicyLoss]:
        """Makes the loss, as `make_loss`, and says what it is averaged over."""
        loss = self.make_loss(option, name, level, settings)
        self.fields["loss"] = loss
        if loss is not None:
            self.fields["aggregate"] = value_of(loss, "aggregate.mode")
        return loss

    def set_token_advantage(self, estimator: str, values: str, penalized: bool) -> None:
        """Sets the estimator of token advantages, a line with its settings.

        values: what they are, of a critic; empty: it has none. penalized: whether a KL is taken off
        the rewards.
        """
        call = "of gdpo.token_advantages: "
        self.fields["token_advantage"] = estimator
        self.arrays["row_rewards"] = call + "the reward of each row, for its last token"
        if values:
            self.arrays["values"] = call + values
        if penalized:
            self.arrays["logp, ref_logp"] = call + "log-probs of old policy and reference"
        self.arrays["token_advantages"] = "of the loss: what gdpo.token_advantages returns"

    def add_terms_alone(self, option: str, terms: Mapping[str, Any], aggregate: str,
                        constant: Optional[float] = None) -> None:
        """Adds a loss that is a KL term against the reference, an entropy bonus or both.

        For terms whose mean is not that of the loss. terms: their settings.
        """
        loss = self.make_loss(option, "distillation", None, {
            "kl.against": "ref", "kl.beta": 0.0, "aggregate": aggregate,
            "aggregate.constant": constant, **terms})
        if loss is not None:
            self.fields["more_losses"] = (*self.fields.get("more_losses", ()), loss)

    def add_entropy(self, coef: float, mean: str, tokens: str) -> Dict[str, Any]:
        """The settings of the entropy bonus.

        mean: as in `Entropy`. tokens: the count that divides it where mean is "tokens".
        """
        if not coef:
            return {}
        self.fields["entropy"] = Entropy(float(coef), mean)
        self.arrays["entropies"] = ENTROPIES
        if mean == "tokens":
            self.counts["tokens"] = tokens
        return {"entropy.coef": float(coef),
                "entropy.mean": "tokens" if mean == "tokens" else "loss"}

    def done(self) -> Configured:
        """The result."""
        maps: Dict[str, Any] = {name: types.MappingProxyType(getattr(self, name)) for name in (
            "counts", "arrays", "yours", "unread", "unsupported")}
        return Configured(**self.fields, **maps, corrections=tuple(self.corrections))


def reason(error: ValueError) -> str:
    """What an error of this library says, without the name of the call."""
    return str(error).partition(": ")[2] or str(error)


def estimator_line(name: str, **settings: Any) -> str:
    """An estimator with its settings in one line; None is no setting."""
    return line("gdpo.from_config", (name,), {key.replace("__", "."): value
                                              for key, value in settings.items()})


def prepass_line(name: str, **settings: Any) -> str:
    """A pre-pass with its settings in one line; None is no setting."""
    return " ".join([name, *(f"{key.replace('__', '.')}={word(value)}"
                             for key, value in settings.items() if value is not None)])
