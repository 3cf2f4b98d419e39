"""The parts of a loss and of a pre-pass in words and formulas."""
import math
from typing import Dict, List

from .._contrastive import ContrastiveLoss
from .._settings import loss_settings, settings_of

_KL = {"k1": "-d", "abs": "|d|", "k2": "d^2 / 2", "k3": "e^d - 1 - d", "forward_k1": "d"}
_GRADIENTS = {
    "direct": "", "straight_through_k2": "; its gradient is that of d^2 / 2",
    "score_function": "; its gradient is that of the estimate times log p",
    "importance_weighted": "; with the gradient of r too",
    "importance_weighted_k2": "; its gradient is that of w d^2 / 2, w = the ratio of the token, at "
                              "most {max_weight}"}
_AGAINST = {"ref": "ref_logp", "old": "old_logp", "teacher": "teacher_logp",
            "rollout": "rollout_logp"}
_PAIRS = {"mismatch": ("old_logp", "rollout_logp"), "update": ("logp", "old_logp"),
          "drift": ("logp", "rollout_logp")}
_STATISTICS = {"token": "of each token", "sequence_mean": "of the row, geometric mean",
               "sequence_sum": "of the row, product", "sequence_max": "of the row, largest"}
_MEANS = {"token": "of each token", "sequence_mean": "of the row, mean over its tokens",
          "sequence_sum": "of the row, sum over its tokens", "sequence_max": "of the row, largest"}
_ESTIMATES = {
    "ratio": "p / q", "k1": "log q / p", "k2": "(log p / q)^2 / 2", "k3": "p / q - 1 - log p / q",
    "binary_kl": "KL(q | p) of the sampled token against all others",
    "binary_total_variation": "|p - q|", "probability_gain": "p - q",
    "signed_binary_kl": "KL(q | p) of the sampled token against all others, with the sign of p - q"}
_REACH = {"surrogate": "takes part in the surrogate alone", "mask":
          "what is outside leaves the batch", "surrogate_and_kl":
          "takes part in surrogate and KL", "level": "is part of the ratio of the row",
          "kl": "takes part in the KL alone", "entropy": "takes part in the entropy bonus alone",
          "none": "does nothing"}


def values_of(line: str) -> Dict[str, str]:
    """The settings of a loss with their values."""
    return {s.name: s.value for s in loss_settings(line) if s.value}


def _g(text: str) -> str:
    return f"{float(text):g}"


def _bounded(values: Dict[str, str], name: str, what: str) -> str:
    """Bounds as ", what within [lo, hi]"; "" where there are none."""
    low, high = (float(values.get(f"{name}.{end}", default)) for end, default in
                 (("lo", "-inf"), ("hi", "inf")))
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(low):
        return f", {what} at most {high:g}"
    if math.isinf(high):
        return f", {what} at least {low:g}"
    return f", {what} within [{low:g}, {high:g}]"


def ratio(values: Dict[str, str]) -> str:
    """What the ratio is."""
    level = values["level"]
    if level == "token":
        text = "r = exp(logp - old_logp) of each token"
    else:
        kind = values.get("level.statistic.kind", "mean")
        text = f"r = exp({kind} of logp - old_logp over the row's tokens)"
    if "level.map.low" in values:
        text += (f", the difference of a token at most {_g(values['level.map.high'])} where A > 0, "
                 f"at least -{_g(values['level.map.low'])} where A < 0")
    text += _bounded(values, "level.map", "the difference")
    text += _bounded(values, "level.bounds", "its log")
    return text + ("; its gradient goes to each token" if level == "sequence_token" else "")


def surrogate(values: Dict[str, str]) -> List[str]:
    """What is minimized for each token, as lines."""
    if "surrogate.tau_pos" in values:
        return ["-A (4 / tau) sigmoid(tau (r - 1)), tau = "
                f"{_g(values['surrogate.tau_pos'])} where A > 0, else "
                f"{_g(values['surrogate.tau_neg'])}"]
    if "factor.k_pos" in values:
        return ["-A w logp, w = r^k e^(-lambda (r - 1)) without a gradient, "
                f"k = {_g(values['factor.k_pos'])}, lambda = {_g(values['factor.lambda_pos'])} "
                f"where A >= 0, else {_g(values['factor.k_neg'])} and "
                f"{_g(values['factor.lambda_neg'])}"]
    if "factor.max_ratio" in values:
        low, high = float(values["factor.min_ratio"]), float(values["factor.max_ratio"])
        bounds = f"min(r, {high:g})" if low == 0 else f"clip(r, {low:g}, {high:g})"
        return [f"-A w logp, w = {bounds} without a gradient"]
    if "surrogate.low" not in values:
        return ["-A logp"]
    low, high, delta, dual = (float(values[f"surrogate.{name}"])
                              for name in ("low", "high", "delta", "dual"))
    first = "r" if math.isinf(delta) else f"min(r, {delta:g})"
    if math.isinf(low) and math.isinf(high):
        text = f"-A {first}"
    else:
        ends = (f"{1 - low:g}" if math.isfinite(low) else "0",
                f"{1 + high:g}" if math.isfinite(high) else "inf")
        text = f"max(-A {first}, -A clip(r, {ends[0]}, {ends[1]}))"
    return [text + ("" if math.isinf(dual) else f"; where A < 0 at most -{dual:g} A")]


def kl(values: Dict[str, str]) -> str:
    """The KL term; "" where there is none."""
    beta = float(values["kl.beta"])
    if not beta:
        return ""
    other = _AGAINST[values["kl.against"]]
    gradient = _GRADIENTS[values["kl.gradient"]].format(max_weight=_g(values["kl.max_weight"]))
    bounds = _bounded(values, "kl.input", "d") + _bounded(values, "kl.output", "the value")
    if values["kl.factor"] == "teacher_gate":
        gradient += f"; times sigmoid({_g(values['kl.gate_beta'])} d) without a gradient"
    times = "r " if values["kl.gradient"] == "importance_weighted" else ""
    estimate = _KL[values["kl.estimator"]]
    return f"+ {beta:g} {times}({estimate}), d = {other} - logp{bounds}{gradient}"


def divided_by(values: Dict[str, str]) -> str:
    """What a loss is divided by."""
    mode, over = values["aggregate.mode"], values["aggregate.over"]
    count = {"tokens": "tokens", "rows": "rows", "non_empty_rows": "rows with a token",
             "given": "the count given (see below)"}[over]
    rows = values["aggregate.row_count_eps"]
    plus = "" if float(rows) == 0 else f" + {float(rows):g}"
    if mode == "token-sum":
        return "nothing: the sum over the tokens"
    if mode == "token-mean":
        return f"the sum over the tokens / {count}"
    if mode == "seq-mean-token-mean":
        return f"the sum over the rows of (sum over its tokens / (its tokens{plus})) / {count}"
    if mode == "seq-mean-token-sum-norm":
        constant = float(values["aggregate.constant"])
        length = f"{constant:g}" if constant else "the padded width"
        return f"the sum over the tokens / ({count} * {length})"
    return f"the sum over the tokens / {count}"


def contrastive(loss: ContrastiveLoss) -> List[str]:
    """REAL in formulas."""
    tau = _g(values_of(loss.line)["tau"])
    return [f"S = mean of logp - old_logp over the row's tokens / {tau}",
            "of each group log(1 + sum of e^S where A <= 0) + log(1 + sum of e^-S where A > 0)"]


def prepass(line: str) -> str:
    """What a pre-pass does."""
    name = line.split(" ")[0]
    if name == "overlong":
        return "rows that hit the length limit leave the batch"
    if name == "top_entropy":
        share = 1 - float(line.split(" ")[1])
        part = "entropy bonus" if "reach=entropy" in line else "surrogate"
        return f"the {part} keeps the {share:.3g} of the tokens with the largest entropies"
    values = {s.name: s.value for s in settings_of("prepass", line) if s.value}
    if "of" in values:
        part = " of the entropies" if values["reach"] == "entropy" else ""
        return f"the weights{part} so far are divided by their mean over {values['of']}"
    if "gamma" in values:
        return _future(values)
    if "share" in values:
        return _covariance(values)
    parts = []
    if any(key.endswith("clip.hi") for key in values):
        parts.append(_weight(_below(values, "importance")))
    if any(key.endswith("estimator") for key in values):
        parts.append(_gate(_below(values, "gate"), bool(parts)))
    reach = values.get("reach", values.get("gate.reach", values.get("importance.reach", "")))
    means = values.get("mean_one.of")
    if means:
        parts.append(f"divided by their mean over {means}")
    return f"{', '.join(parts)}; {_REACH[reach]}" if reach in _REACH else ", ".join(parts)


def _below(values: Dict[str, str], part: str) -> Dict[str, str]:
    """The settings of one part of a pre-pass, by their names in it."""
    own = {key[len(part) + 1:]: value for key, value in values.items()
           if key.startswith(part + ".")}
    return own or values


def _weight(values: Dict[str, str]) -> str:
    """A weight."""
    top, bottom = _PAIRS[values["pair"]]
    return (f"weight exp({top} - {bottom}) {_STATISTICS[values['statistic']]}"
            + _bounded(values, "clamp", "the log") + _bounded(values, "clip", "the weight"))


def _gate(values: Dict[str, str], weighs: bool) -> str:
    """A gate."""
    top, bottom = _PAIRS[values["pair"]]
    low, high = float(values["min"]), float(values["max"])
    ends = (f"at most {high:g}" if math.isinf(low) else
            f"at least {low:g}" if math.isinf(high) else f"within [{low:g}, {high:g}]")
    words = _STATISTICS if values["estimator"] == "ratio" else _MEANS
    level = words[values["statistic"]]
    text = (f"{'only' if weighs else 'kept'} where {_ESTIMATES[values['estimator']]} {level}"
            f"{',' if ',' in level else ''} is {ends} (p = e^{top}, q = e^{bottom})")
    return text + {"negative_advantage": ", or A >= 0", "outward":
                   ", or the update does not go further away"}.get(values["when"], "")


def _future(values: Dict[str, str]) -> str:
    """FIPO."""
    text = (f"weight exp(sum of {float(values['gamma']):.4g}^k (logp - old_logp) over this and "
            "later tokens)" + _bounded(values, "clip", "the weight"))
    if math.isfinite(float(values["safety"])):
        text += f", at most 1 where the ratio is above {_g(values['safety'])} and A < 0"
    return text + f"; {_REACH[values['reach']]}"


def _covariance(values: Dict[str, str]) -> str:
    """Clip-Cov and KL-Cov."""
    share = f"the share {float(values['share']):g} of the tokens"
    if values["pick"] == "top":
        return f"the KL term is that of {share} with the largest covariance of A and logp"
    return (f"{share}, drawn from those whose covariance of A and logp is within "
            f"[{_g(values['min'])}, {_g(values['max'])}], leave the surrogate")
