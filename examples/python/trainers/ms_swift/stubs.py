"""Stands for the two packages that ms-swift's Megatron trainer imports, for its loss function.

`megatron` (Megatron-Core) needs GPUs and Apex to be built, and `mcore_bridge` needs the former. The
loss function of the trainer calls only `mpu.get_data_parallel_world_size` and `mpu.
get_data_parallel_group` of them, which the tests define. Everything else is an empty class.
"""
import importlib.abc
import importlib.machinery
import sys
import types


class Empty(type):
    """The class of classes that have any attribute, which is again such a class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Module(types.ModuleType):
    """A module that has any attribute, and any module below it."""

    __path__ = []
    __version__ = "0.16.0"  # ms-swift logs it

    def __getattr__(self, name):
        return getattr(Empty, name) if name.startswith("__") else Empty(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the two packages as such modules."""

    NAMES = ("megatron", "mcore_bridge")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
