"""`python -m gdpo explain CONFIG [--trainer NAME]`: what a trainer's configuration computes."""
import importlib
import json
import pathlib
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .configs import TRAINERS, from_config
from .configs._options import flat, words_to_options


def _read(path: pathlib.Path) -> Dict[str, Any]:
    """The options in a file of JSON or YAML.

    Errors: ValueError for a file that holds no mapping, and for YAML without PyYAML.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        options = json.loads(text)
    else:
        try:
            import yaml
        except ImportError:
            raise ValueError(f"gdpo explain: {path}: given YAML, and there is no PyYAML; needed: "
                             "pip install pyyaml, or JSON") from None
        options = yaml.safe_load(text)
    if not isinstance(options, dict):
        raise ValueError(f"gdpo explain: {path}: given no mapping; needed: options by their names")
    return options


def _trainer_of(options: Dict[str, Any]) -> Optional[str]:
    """The trainer that lacks the fewest of these options, and reads the most; None for a tie."""
    scores = []
    for trainer in TRAINERS:
        module = importlib.import_module(f".configs.{trainer}", __package__)
        heads = {name.split(".")[0] for name in (*module.DEFAULTS, *module.IGNORED)}
        lacks = sum(name.split(".")[0] not in heads for name in options)
        scores.append((-lacks, sum(name in module.DEFAULTS for name in options), trainer))
    scores.sort(reverse=True)
    return scores[0][2] if scores[0][:2] > scores[1][:2] else None


_USAGE = f"""usage: python -m gdpo explain CONFIG... [--trainer NAME] [--strict]

Prints what a trainer's configuration computes, in words and formulas.

CONFIG     files of YAML or JSON, and words key=value or --key value, which replace what the files
           say, as in the trainer's own command
--trainer  whose options these are: {", ".join(TRAINERS)}; without it, the one that has most of them
--strict   exit 1 where this library lacks an option that changes the numbers"""


def _ours(words: List[str]) -> Tuple[List[str], Optional[str], bool]:
    """The words that are not ours, --trainer and --strict.

    Errors: ValueError for --trainer without one of the names.
    """
    others, trainer, strict = [], None, False
    left = iter(words)
    for word in left:
        if word == "--strict":
            strict = True
        elif word.partition("=")[0] == "--trainer":
            trainer = word.partition("=")[2] or next(left, "")
            if trainer not in TRAINERS:
                raise ValueError(f"gdpo explain: --trainer: given {trainer!r}; needed: one of "
                                 f"{', '.join(TRAINERS)}")
        else:
            others.append(word)
    return others, trainer, strict


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns its exit status: 0, with --strict perhaps 1, or 2 for mistakes."""
    given_words = list(sys.argv[1:] if arguments is None else arguments)
    if not given_words or "-h" in given_words or "--help" in given_words:
        print(_USAGE)
        return 0 if given_words else 2
    try:
        if given_words[0] != "explain":
            raise ValueError(f"python -m gdpo: given {given_words[0]!r}; needed: explain")
        listed, trainer, strict = _ours(given_words[1:])
        options: Dict[str, Any] = {}
        words: List[str] = []
        for word in listed:
            if "=" not in word and pathlib.Path(word).suffix in (".yaml", ".yml", ".json"):
                options.update(flat(_read(pathlib.Path(word))))
            else:
                words.append(word)
        options.update(flat(words_to_options(words)))
        trainer = trainer or _trainer_of(options)
        if trainer is None:
            raise ValueError(f"gdpo explain: --trainer: needed: one of {', '.join(TRAINERS)}, "
                             "because the options do not say which")
        given = from_config(trainer, options)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(given.explain())
    return 1 if strict and given.unsupported else 0


if __name__ == "__main__":
    sys.exit(main())
