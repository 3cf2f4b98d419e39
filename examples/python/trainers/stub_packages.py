"""Stands in for packages that a trainer imports and that a run on one CPU does not call.

The stubs.py of a trainer lists its packages and calls `replace` before the trainer is imported.
Each of them that is not installed becomes a module whose attributes are empty classes, so that
`from name import X`, annotations and base classes work, and nothing else does.
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
    """Finds packages and all modules below them, where nothing else does."""

    def __init__(self, packages, members, trainer):
        self.packages, self.members, self.trainer = packages, members, trainer

    def find_spec(self, name, path=None, target=None):
        if self.trainer and name == self.trainer[0]:
            raise ModuleNotFoundError(f"No module named {name!r}; needed: an environment that has "
                                      f"it, or pip install --no-deps -r {self.trainer[1]}",
                                      name=name)
        top = name.split(".")[0]
        missing = top in self.packages and isinstance(sys.modules.get(top, _Stub(top)), _Stub)
        if not missing and name not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        vars(module).update(self.members.get(module.__name__, {}))


def remote(decorated=None, **_):
    """ray.remote, with options and without, as a decorator that changes nothing."""
    return decorated if decorated is not None else lambda of_options: of_options


def replace(packages, members=None, trainer=None):
    """From now on an import of one of `packages`, by name, that is not installed gives a stub.

    A module of the trainer itself, a name with a dot, is a stub in any case. members: for the names
    of modules, the attributes that they have besides, by name. trainer: the name of the trainer's
    package, and the file of requirements that an error names without it.
    """
    inside = [name for name in packages if "." in name]
    sys.meta_path.insert(0, _Finder(inside, members or {}, None))
    sys.meta_path.append(_Finder([name for name in packages if "." not in name], members or {},
                                 trainer))
