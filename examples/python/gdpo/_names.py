"""The names of losses, estimators and others, and the words of errors."""
import contextlib
import functools
import re
from typing import Callable, Iterable, Iterator, List

from ._load import CUDA_MISSING, argument_names, ops

#: The version of the library that the operators were compiled of (core/version.hpp).
VERSION: str = ops.version()

# The arrays of a batch, in the order of the operators' arguments (tokens/array_list.hpp).
ARRAYS = tuple(argument_names("count"))

# Those of a value loss, which has another batch.
VALUE_ARRAYS = tuple(argument_names("value_loss")[3:])

# Those of ARRAYS that have one number for each token.
TOKEN_ARRAYS = tuple(a for a in ARRAYS
                     if a not in ("advantages", "row_weights", "group_tokens", "truncated",
                                  "offsets"))


def raise_ours(error: Exception, translate: Callable[[str], str] = str) -> None:
    """Raises what the library refuses as ValueError; PyTorch after 2.10 makes a RuntimeError of it.

    translate: changes the message.
    """
    words = str(error)
    if re.match(r"gdpo::\S+: cudaError", words):  # not a mistake in the arguments
        if "cudaErrorNoKernelImageForDevice" in words:
            raise RuntimeError(f"{words.splitlines()[0]}: this gdpo has no kernels for this GPU; "
                               "CUDAARCHS names those to build for, as in CUDAARCHS='80;90;100' "
                               "pip install ...") from None
        return
    kind = re.match(r"(gdpo::\w+)\(\) Expected a value of type '(.*?)' for argument '(\w+)' but "
                    r"instead found type '(.*?)'", words)
    if kind:
        needed = {"int": "an integer", "float": "a number", "bool": "True or False",
                  "str": "a word"}
        raise ValueError(translate(f"{kind[1]}: {kind[3]}: given a {kind[4]}; needed: "
                                   f"{needed.get(kind[2], kind[2])}")) from None
    if words.startswith("gdpo::"):
        raise ValueError(translate(words.split("\nException raised from")[0])) from None
    operator = re.search(r"gdpo::\w+", words)
    if isinstance(error, NotImplementedError) and operator:
        cuda = f" (this gdpo has no kernels for CUDA: {CUDA_MISSING})" if CUDA_MISSING else (
            " or a CUDA device")
        raise ValueError(f"{operator[0]}: batch: given no tensors that it runs on; needed: dense "
                         f"tensors on the CPU{cuda}, one at least") from None


def number(function: str, name: str, value: object) -> float:
    """A number that is given as one, of any kind but a word."""
    try:
        if not isinstance(value, str):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{function}: {name}: given {value!r}; needed: a number")


@contextlib.contextmanager
def our_errors(translate: Callable[[str], str] = str) -> Iterator[None]:
    """Raises what the library refuses within it as ValueError, see raise_ours."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise_ours(error, translate)
        raise


@functools.lru_cache(maxsize=None)
def names(what: str, rewards: int = 0) -> List[str]:
    """The names of one kind, see gdpo::torch_stable::names."""
    return ops.names(what, rewards).split("\n")


def near(name: str, known: Iterable[str]) -> List[str]:
    """The known names, three at most, that an unknown one may have meant."""
    found = ops.near(name, "\n".join(known))
    return found.split("\n") if found else []


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message that lists the known names, or nothing."""
    found = near(name, known)
    return '; did you mean "' + '" or "'.join(found) + '"?' if found else ""


def estimators() -> List[str]:
    """The names that `advantages` takes, such as "gdpo" and "trl::grpo".

        print(gdpo.estimators())
    """
    return list(names("estimators"))


def losses() -> List[str]:
    """The names that `PolicyLoss` takes, such as "dapo" and "verl::gspo".

        print([name for name in gdpo.losses() if name.startswith("trl::")])
    """
    return list(names("losses"))


def contrastive_losses() -> List[str]:
    """The names that `ContrastiveLoss` takes: "real" and "ms_swift::real".

        print(gdpo.contrastive_losses())
    """
    return list(names("contrastive_losses"))


def value_losses() -> List[str]:
    """The names that `ValueLoss` takes, such as "verl::value_loss".

        print(gdpo.value_losses())
    """
    return list(names("value_losses"))


def whitenings() -> List[str]:
    """The names that `whiten` takes, such as "verl::masked_whiten".

        print(gdpo.whitenings())
    """
    return list(names("whitenings"))


def token_estimators() -> List[str]:
    """The names that `token_advantages` takes, such as "verl::gae".

        print(gdpo.token_estimators())
    """
    return list(names("token_advantages"))


def outcome_estimators() -> List[str]:
    """The names that `outcome_advantages` takes, such as "openrlhf::rloo".

        print(gdpo.outcome_estimators())
    """
    return list(names("outcome_advantages"))


def step_estimators() -> List[str]:
    """The names that `step_advantages` takes, such as "gigpo".

        print(gdpo.step_estimators())
    """
    return list(names("step_advantages"))


def token_baselines() -> List[str]:
    """The names that `optimal_token_baseline` takes, such as "verl::optimal_token_baseline".

        print(gdpo.token_baselines())
    """
    return list(names("token_baselines"))


def instruction_set() -> str:
    """The instructions that operators run on: "v4" (AVX-512), "v3" (AVX2, FMA) or "baseline".

        print(gdpo.instruction_set())
    """
    return ops.instruction_set()


def in_words_of(function: str) -> Callable[[str], str]:
    """Puts the name of a call in place of that of its operator, with which a message begins."""
    return lambda message: re.sub(r"^gdpo::(runtime::)?\w+", function, message)


def with_group_offsets(message: str) -> str:
    """A message whose `offsets` are those of groups, for a call that has those of tokens too."""
    return re.sub(r"^(gdpo::\w+): offsets:", r"\1: group_offsets:", message)


def in_python(function: str, **names: str) -> Callable[[str], str]:
    """Messages of the library in the words of a call in Python.

    names: what the call calls arguments that have other names there, with "_" for the dot.
    """
    of_call = in_words_of(function)

    def argument(found: "re.Match[str]") -> str:
        known = names.get(found[2].replace(".", "_"))
        return found[1] + (known or found[2].replace("batch.", ""))
    inner, of_rank = ": gdpo::advantages_and_returns_into:", r"(?:rank \d+ of \d+: )?"
    return lambda message: re.sub(rf"^(gdpo::\w+: {of_rank})([\w.]+)(?=:)", argument,
                                  of_call(message).replace(inner, ":"))
