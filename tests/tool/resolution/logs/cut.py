"""Runs single functions out of a trainer's source file, with stand-ins for what they use."""
import __future__
import ast
import contextlib

import numpy as np


def find(path, dotted):
    """The syntax tree of a definition: a function, a class, a method or a nested function."""
    node = ast.parse(path.read_text("utf-8"))
    for name in dotted.split("."):
        node = next(n for n in ast.walk(node) if getattr(n, "name", None) == name)
    return node


def run(nodes, path, space):
    module = ast.fix_missing_locations(ast.Module(nodes, []))
    exec(compile(module, str(path), "exec", __future__.annotations.compiler_flag), space)


def trainer_of(path, owner, methods, space):
    """An object of a class that has these methods of the trainer's class, and nothing else."""
    space["Base"] = type("Base", (), {"log": lambda *_: None})
    nodes = [find(path, f"{owner}.{name}") for name in methods]
    run([ast.ClassDef(owner, [ast.Name("Base", ast.Load())], [], nodes, [])], path, space)
    return space[owner]()


class Tensor(np.ndarray):
    """As much of a torch tensor as the loggers use."""
    cpu = to_padded_tensor = lambda self, **_: self
    sum = lambda self, axis=None, dim=None, **_: np.ndarray.sum(self, dim if axis is None else axis)


def tensor(values, kind=np.float32):
    return np.array(values, dtype=kind).view(Tensor)


@contextlib.contextmanager
def nothing(*_, **__):
    yield
