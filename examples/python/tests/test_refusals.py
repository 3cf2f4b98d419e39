"""What is refused, word for word: the tables of tests/refusals, which the C++ tests read too.

Where Python knows a way out, it adds it behind the message.
"""
import json
import pathlib

import pytest
import torch

import gdpo
from gdpo._names import our_errors

TABLES = pathlib.Path(__file__).resolve().parents[3] / "tests/refusals"
ABOUT = ("base", "not", "written", "function", "argument", "given", "needed", "cases")


def number(value):
    """NaN and infinities are words in a table, also in its lists."""
    if isinstance(value, list):
        return [number(entry) for entry in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def array(described: dict) -> torch.Tensor:
    dtype = getattr(torch, described.get("dtype", "float64"))
    fill = described.get("fill", 0)
    if "stride" in described:
        return torch.empty_strided(described["shape"], described["stride"], dtype=dtype).fill_(fill)
    if "values" not in described:
        return torch.full(described["shape"], fill, dtype=dtype)
    values = torch.tensor([number(x) for x in described["values"]], dtype=dtype)
    return values.reshape(described.get("shape", values.shape))


def tensor_of(counts: dict) -> torch.Tensor:
    return torch.tensor([number(counts[name]) for name in
                         ("tokens", "rows", "non_empty_rows", "given")], dtype=torch.float64)


def policy_loss(preset, settings, arrays, counts):
    return gdpo.PolicyLoss(preset, **settings)(counts=tensor_of(counts), **arrays)


def count(arrays):
    return gdpo.count(**arrays)


def advantages(preset, settings, constraints, group_size, expected_size, arrays):
    constraints = [(*number(c[:4]), *(c[4:] or ["at_least"])) for c in constraints]
    return gdpo.advantages(estimator=preset, group_size=group_size, constraints=constraints,
                           **arrays, **settings)


def prepare(passes, arrays):
    def value(x):
        return ",".join(map(str, x)) if isinstance(x, list) else x

    return gdpo.prepare([" ".join([p["name"], *(f"{key}={value(x)}" for key, x in p.items()
                                                if key != "name")]) for p in passes], **arrays)


def pid_lagrangian(settings, set_points, arrays):
    limits, scales = ([number(point[k]) for point in set_points] for k in (0, 1))
    return gdpo.PidLagrangian(limits, scale=scales, **settings)


def token_logprobs(temperature, first_token, arrays):
    return gdpo.token_logprobs(temperature=number(temperature), **arrays)


def token_logprobs_backward(temperature, first_token, arrays):
    gradients = [arrays.pop(name, None) for name in ("grad.logp", "grad.entropy")]
    with our_errors():
        return torch.ops.gdpo.token_logprobs_backward(
            *gradients, mask=arrays.pop("mask", None), temperature=number(temperature), **arrays)


def policy_loss_from_logits(preset, settings, temperature, first_token, arrays, counts):
    logits = arrays.pop("logits")
    if logits.is_floating_point():
        logits.requires_grad_()  # without a gradient, from_logits is two other calls
    return gdpo.PolicyLoss(preset, **settings).from_logits(
        logits, temperature=number(temperature), counts=tensor_of(counts), **arrays)


#: For each table the function that messages name, and its call.
CALLS = {"policy_loss": ("gdpo::PolicyLoss", policy_loss), "count": ("gdpo::count", count),
         "advantages": ("gdpo::advantages", advantages), "prepare": ("gdpo::prepare", prepare),
         "pid_lagrangian": ("gdpo::PidLagrangian", pid_lagrangian),
         "token_logprobs": ("gdpo::token_logprobs", token_logprobs),
         "token_logprobs_backward": ("gdpo::token_logprobs_backward", token_logprobs_backward),
         "policy_loss_from_logits": ("gdpo::PolicyLoss.from_logits", policy_loss_from_logits)}


def cases(listed: list, **shared):
    """The cases of a list; an entry with cases of its own is what they share."""
    for entry in listed:
        case = {**shared, **entry}
        if "cases" in case:
            yield from cases(case.pop("cases"), **case)
        else:
            yield case


def tables():
    """Each call of the tables as it is changed, and its message; None where it is right."""
    for table, (function, _) in CALLS.items():
        read = json.loads((TABLES / f"{table}.json").read_text(encoding="utf-8"))
        for base in read["bases"]:
            yield pytest.param(table, read["bases"][base], None, id=f"{table} {base}")
        for case in [*cases(read["cases"]), *cases(read["accepted"])]:
            if any("python" in doors.split() for doors in case.get("not", {})):
                continue
            base = "padded" if "padded" in read["bases"] else next(iter(read["bases"]))
            call = dict(read["bases"][case.get("base", base)])
            changes = {key: change for key, change in case.items() if key not in ABOUT}
            for key, change in changes.items():
                call[key] = {**call[key], **change} if isinstance(change, dict) else change
            message = (f"{case.get('function', function)}: {case['argument']}: given "
                       f"{case['given']}; needed: {case['needed']}" if "argument" in case else None)
            yield pytest.param(table, call, message,
                               id=f"{table} {case.get('argument', 'accepted')} {changes}")


@pytest.mark.parametrize("table, call, message", list(tables()))
def test_refusals(table, call, message):
    arguments = {name: value for name, value in call.items() if name != "outputs"}
    arguments["arrays"] = {name: array(a) for name, a in call["arrays"].items() if a is not None}
    if "settings" in call:
        arguments["settings"] = {name: number(x) for name, x in call["settings"].items()}
    if message is None:
        CALLS[table][1](**arguments)
        return
    with pytest.raises(ValueError) as refused:
        CALLS[table][1](**arguments)
    assert str(refused.value).split("; rewards")[0] == message
