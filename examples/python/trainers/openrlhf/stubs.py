"""Replaces packages that OpenRLHF imports and that a comparison on one CPU does not call.

Run it before openrlhf is imported. Each name below is a module whose attributes are empty classes,
so that `from name import X`, annotations and base classes work, and nothing else does. Of ray there
is `remote` too, which leaves a class as it is.
"""
import importlib.abc
import importlib.machinery
import sys
import types

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


class _Anything(type):
    """The class of an empty class, whose attributes are empty classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Stub(types.ModuleType):
    """A module whose attributes are empty classes."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(f"{self.__name__} is a stub and has no {name}")
        return _Anything(name, (), {})


def _remote(decorated=None, **_):
    """ray.remote, with options and without, as a decorator that changes nothing."""
    return decorated if decorated is not None else _remote_with_options


def _remote_with_options(decorated):
    return decorated


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of STUBS and their modules."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in STUBS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        if module.__name__ == "ray":
            module.remote = _remote


sys.meta_path.insert(0, _Finder())
