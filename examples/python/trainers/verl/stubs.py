"""Stands in for packages that verl imports and that a run on one CPU does not call.

Import it before verl. A package that is installed is itself (../stub_packages.py).
"""
import pathlib
import runpy

#: The packages, and why verl's functions run without them.
STUBS = {
    "ray": "it starts processes on other machines, and here all is one process",
    "transformers": "it is imported for names of models and tokenizers, and here is no model of it",
    "datasets": "it reads prompts from files, and here are none",
    "pandas": "it reads prompts from files, and here are none",
    "PIL": "it is for prompts with images",
    # What verl's trainer imports, of which compute_advantage alone is called.
    **{name: "it is for workers, servers and files of the trainer" for name in (
        "torchdata", "tqdm", "peft", "accelerate", "pydantic", "cachetools", "uvicorn",
        "fastapi")},
}

_trainer = "verl", pathlib.Path(__file__).with_name("requirements.txt")
_stubs = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "stub_packages.py"))
_stubs["replace"](STUBS, {"ray": {"remote": _stubs["remote"]}}, trainer=_trainer)
