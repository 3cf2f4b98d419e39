"""Replaces packages that SkyRL imports and that a comparison on one CPU does not call.

Run it before skyrl is imported. Each name below is a module whose attributes are empty classes,
so that `from name import X`, annotations and base classes work, and nothing else does. Of ray there
are `remote`, which leaves a class as it is, and `is_initialized`, which says no.
"""
import importlib.abc
import importlib.machinery
import sys
import types

#: The packages, and why SkyRL's losses and estimators run without them.
STUBS = {
    "ray": "it shares the registries of losses between processes, and here is one process",
    "pandas": "an environment reads tables with it, and here is none",
    "requests": "an environment asks a server, and here is none",
    "skyrl.backends.backend": "it is the server of Tinker's API, and needs pydantic",
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
        if name not in STUBS and name.split(".")[0] not in STUBS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        if module.__name__ == "ray":
            module.remote, module.is_initialized = _remote, lambda: False


sys.meta_path.insert(0, _Finder())
