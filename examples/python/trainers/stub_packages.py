"""Replaces packages that a trainer imports and that a comparison on one CPU does not call.

The stubs.py of a trainer lists its packages and calls `replace` before the trainer is imported.
Each package becomes a module whose attributes are empty classes, so that `from name import X`,
annotations and base classes work, and nothing else does.
"""
import importlib.abc
import importlib.machinery
import sys
import types


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
    """Finds packages and all modules below them."""

    def __init__(self, packages, members):
        self.packages, self.members = packages, members

    def find_spec(self, name, path=None, target=None):
        if name not in self.packages and name.split(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        vars(module).update(self.members.get(module.__name__, {}))


def remote(decorated=None, **_):
    """ray.remote, with options and without, as a decorator that changes nothing."""
    return decorated if decorated is not None else lambda of_options: of_options


def replace(packages, members=None):
    """From now on an import of one of `packages`, by name, gives a stub.

    members: for the names of modules, the attributes that they have besides, by name.
    """
    sys.meta_path.insert(0, _Finder(packages, members or {}))
