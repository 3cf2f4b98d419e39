"""Finds PyTorch, where it is installed, and loads the operators for it, or else those for NumPy."""
from typing import Any, List

from ._compiled import FOLDER, library

OLDEST = (2, 10)


def _too_old(version: str) -> bool:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < OLDEST


torch: Any = None
#: Why nothing here is for PyTorch, behind that word; or nothing.
TORCH_MISSING = ""
try:
    import torch
    if _too_old(torch.__version__):
        needed = ".".join(map(str, OLDEST))
        TORCH_MISSING = (f" {needed} or later, and this is {torch.__version__}: pip install "
                         f"'torch>={needed}'")
        torch = None
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    TORCH_MISSING = ", which is not installed: pip install 'gdpo[torch]'"


def _cuda_missing() -> str:
    """Loads the kernels for CUDA; why there are none, or nothing.

    They are in a library of their own, because it needs libtorch_cuda. It is loaded with any
    PyTorch for CUDA: whether there is a device is not asked here, because the answer may change
    (CUDA_VISIBLE_DEVICES), and the question may keep CUDA out of processes that are forked later.
    Without a device nothing calls it.
    """
    if torch.version.cuda is None:
        return "this PyTorch is not for CUDA"
    kernels = FOLDER / "_cuda.so"
    if not kernels.exists():
        return "it was built without nvcc"
    try:
        torch.ops.load_library(kernels)
    except OSError as error:  # the CPU still works
        return f"{kernels} does not load: {error.__cause__ or error}"
    return ""


ops: Any
if torch is None:
    from ._ndarrays import argument_names, ops
    CUDA_MISSING = "there is no PyTorch"
else:
    torch.ops.load_library(library("_operators.so"))
    ops = torch.ops.gdpo
    CUDA_MISSING = _cuda_missing()

    def argument_names(name: str) -> List[str]:
        """The names of the arguments of an operator."""
        return [a.name for a in getattr(ops, name).default._schema.arguments]


def is_tensor(array: object) -> bool:
    """Whether it is one of PyTorch's."""
    return torch is not None and isinstance(array, torch.Tensor)


def ops_for(array: object) -> Any:
    """The operators for a tensor, or for an array of NumPy."""
    if is_tensor(array):
        return ops
    from ._ndarrays import ops as of_arrays  # loaded when it is first needed
    return of_arrays


def on_cpu(numbers: Any) -> Any:
    """The same numbers on the CPU, as `ops_for` them reads them; float64 of an array."""
    if is_tensor(numbers):
        return numbers.detach().cpu()
    import numpy
    return numpy.asarray(numbers, dtype=numpy.float64)


def doubles(numbers: List[Any]) -> Any:
    """Numbers, in lists of any depth, as a tensor, or without PyTorch as an array."""
    if torch is not None:
        return torch.tensor(numbers, dtype=torch.float64)
    import numpy
    return numpy.array(numbers, dtype=numpy.float64)
