"""The parts of a loss and of a pre-pass in words and formulas."""
import math
from typing import Dict, List

from .._losses import ContrastiveLoss
from .._settings import settings_of, values_of

_KL = {"k1": "-d", "abs": "|d|", "k2": "d^2 / 2", "k3": "e^d - 1 - d", "forward_k1": "d"}
_GRADIENTS = {
    "direct": "", "straight_through_k2": "; its gradient is that of d^2 / 2",
    "score_function": "; its gradient is that of the estimate times log p",
    "importance_weighted": "; with the gradient of r too",
    "importance_weighted_k2": "; its gradient is that of w d^2 / 2, w = the ratio of the token, at "
                              "most {max_weight}",
    "clipped_importance_weighted": ", w = min(r, {max_weight}); with the gradient of w too"}
_AGAINST = {"ref": "ref_logp", "old": "old_logp", "teacher": "teacher_logp",
            "rollout": "rollout_logp", "data": "0"}
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
    text, factor = _term(_numbers(values, "surrogate")), _factor(_numbers(values, "factor"))
    if not factor:
        return [text]
    weighed = text.replace("logp", "w logp") if text.endswith("logp") else f"w ({text})"
    return [f"{weighed}, w = {factor} without a gradient"]


def _numbers(values: Dict[str, str], part: str) -> Dict[str, float]:
    """The settings of a part of a loss, by their names in it."""
    return {name[len(part) + 1:]: float(value) for name, value in values.items()
            if name.startswith(part + ".")}


def _gate_of_soft(has: Dict[str, float]) -> str:
    """SAPO's gate, but for its front."""
    return (f"(4 / tau) sigmoid(tau (r - 1)), tau = {has['tau_pos']:g} where A > 0, else "
            f"{has['tau_neg']:g}")


def _clip(low: float, high: float) -> str:
    """r, within bounds."""
    if math.isinf(high):
        return "r" if low == 0 else f"max(r, {low:g})"
    return f"min(r, {high:g})" if low == 0 else f"clip(r, {low:g}, {high:g})"


def _term(has: Dict[str, float]) -> str:
    """The surrogate, by its settings."""
    if "tau_pos" in has:
        return f"-A {_gate_of_soft(has)}"
    if "epsilon" in has:
        most = 1 + has["epsilon"]
        return f"-A log r where r is within [{1 / most:g}, {most:g}], else 0"
    if "floor" in has:
        return "-logp" if has["floor"] <= 0 else f"-logp, at least {has['floor']:g}"
    if "low" not in has:
        return "-A logp"
    least, dual = 1 - has["low"], has.get("dual", math.inf)
    most = 1 + has.get("high", math.inf)
    ends = f"{least:g}" if math.isfinite(least) else "0", f"{most:g}"
    first = "r" if math.isinf(has.get("delta", math.inf)) else f"min(r, {has['delta']:g})"
    clipped = f"-A clip(r, {ends[0]}, {ends[1]})"
    if has.keys() == {"low", "high"}:
        return clipped
    text = (f"-A {first}" if least <= 0 and math.isinf(most) else
            f"max(-A {first}, {clipped})")
    if "high" not in has:
        text = f"-A logp where A > 0, else {text}"
    return text + ("" if math.isinf(dual) else f"; where A < 0 at most -{dual:g} A")


def _factor(has: Dict[str, float]) -> str:
    """The factor of the surrogate, by its settings; "" for none and where it is 1."""
    if "k_pos" in has:
        return (f"r^k e^(-lambda (r - 1)) where k = {has['k_pos']:g}, lambda = "
                f"{has['lambda_pos']:g} for A >= 0, else {has['k_neg']:g} and "
                f"{has['lambda_neg']:g},")
    if "tau_pos" in has:
        return _gate_of_soft(has) + ","
    if "decay" in has:
        part = "" if has["decay"] == 1 else f"{has['decay']:g} "
        return f"p (1 - {part}p), p = e^logp," if has["decay"] else "e^logp"
    if "threshold" in has:
        positive, negative = (
            f"{least:g}" if least == most else _clip(least, most) for least, most in (
                (has[f"{sign}_min"], has[f"{sign}_max"]) for sign in ("positive", "negative")))
        return f"{positive} where A > {has['threshold']:g}, else {negative},"
    if "low_prime" in has:
        return _ring(has)
    return _clip(has["min_ratio"], has["max_ratio"]) if has else ""


def _ring(has: Dict[str, float]) -> str:
    """The weight of factor::Ring."""
    least, most = has["min_ratio"], has["max_ratio"]
    text = "" if least == most == 1 else _clip(least, most)
    if math.isfinite(has["temp"]):
        text = " ".join(filter(None, [text, f"e^(A / {has['temp']:g})"]))
    if all(math.isinf(has[name]) for name in ("low", "high")):
        return text
    parts = [f"r is within [{max(0.0, 1 - has['low']):g}, {1 + has['high']:g}]"]
    if math.isfinite(has["low_prime"]):
        parts.append(f"r <= {1 - has['low_prime']:g} and A >= 0")
    if math.isfinite(has["high_prime"]):
        parts.append(f"r >= {1 + has['high_prime']:g} and A <= 0")
    return f"{text or '1'} where {' or '.join(parts)}, else 0,"


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
    times = {"importance_weighted": "r ", "clipped_importance_weighted": "w "}.get(
        values["kl.gradient"], "")
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
