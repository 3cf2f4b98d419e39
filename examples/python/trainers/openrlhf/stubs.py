"""Stands in for packages that OpenRLHF imports and that a run on one CPU does not call.

Import it before OpenRLHF. A package that is installed is itself (../stub_packages.py). Of
ray there is `remote`, which leaves a class as it is.
"""
import pathlib
import runpy

#: The packages, and why OpenRLHF's loss and its trainer of the actor run without them.
STUBS = {
    "ray": "it starts processes on other machines, and here all is one process",
    "deepspeed": "it shards a model over GPUs, and the tests step a small one themselves",
    "flash_attn": "it needs a GPU, and here is no attention",
    "peft": "it adapts a model of transformers, and here is none",
    "transformers": "it is imported for models and tokenizers, and here are none of it",
    "datasets": "it reads prompts from files, and here are none",
    "vllm": "it samples, and here log-probs are given",
    "torchdata": "it reads prompts from files, and here are none",
    "tqdm": "it draws progress, and here is nothing to watch",
    "aiohttp": "it asks a server for rewards, and here is none",
    "pylatexenc": "it reads formulas in answers, and here are none",
    "PIL": "it is for prompts with images",
    "optree": "it moves the states of DeepSpeed, and here are none",
}

_trainer = "openrlhf", pathlib.Path(__file__).with_name("requirements.txt")
_stubs = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "stub_packages.py"))
_stubs["replace"](STUBS, {"ray": {"remote": _stubs["remote"]}}, trainer=_trainer)
