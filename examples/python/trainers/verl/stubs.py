"""Stands in for packages that verl imports and that a comparison on one CPU does not call.

Run it before verl is imported. Each name below is a module whose attributes are empty classes, so
that `from name import X`, annotations and base classes work, and nothing else does.
"""
import importlib.abc
import importlib.machinery
import sys
import types

#: The packages, and why verl's functions run without them.
STUBS = {
    "ray": "it starts processes on other machines, and here all is one process",
    "transformers": "it is imported for names of models and tokenizers, and here is no model of it",
    "datasets": "it reads prompts from files, and here are none",
    "pandas": "it reads prompts from files, and here are none",
    "PIL": "it is for prompts with images",
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


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of STUBS and their modules."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in STUBS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        """There is nothing in it to run."""


sys.meta_path.insert(0, _Finder())
