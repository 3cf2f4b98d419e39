"""The library's operators on NumPy arrays, without PyTorch.

`ops` has the interface of torch.ops.gdpo: the same operators from the same object files
(src/arrays.cpp), which take and return arrays of NumPy.
"""
import ast
import ctypes
import functools
import math
import operator
import re
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ._compiled import library

_door = ctypes.CDLL(str(library("_arrays.so")))


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_door, f"gdpo_arrays_{name}")
    function.restype, function.argtypes = result, arguments
    return function


_VALUE, _POINTER, _SIZE = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
_schemas = _function("schemas", ctypes.c_char_p)
_array = _function("array", _VALUE, _POINTER, ctypes.c_int32, ctypes.c_int64, _POINTER, _POINTER)
_read = _function("read", ctypes.c_bool, _VALUE, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER)
_free = _function("free", None, _VALUE)
_string = _function("string", _VALUE, ctypes.c_char_p, _SIZE)
_text = _function("text", _POINTER, _VALUE, _POINTER)
_free_string = _function("free_string", None, _VALUE)
_list = _function("list", _VALUE, _POINTER, _SIZE)
_items = _function("items", _POINTER, _VALUE, _POINTER)
_free_list = _function("free_list", None, _VALUE)
_some = _function("some", _VALUE, _VALUE)
_operator = _function("operator", _POINTER, ctypes.c_char_p)
_call = _function("call", _VALUE, _POINTER, _POINTER, _VALUE, _VALUE)
_threads = _function("threads", ctypes.c_int)
_set_threads = _function("set_threads", None, ctypes.c_int)

# The numbers of element types (torch::headeronly::ScalarType). NumPy has bfloat16 and those of 8
# bits from the package ml_dtypes, by these names.
_TYPES = {"uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6,
          "float64": 7, "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15,
          "float8_e5m2": 23, "float8_e4m3fn": 24, "float8_e5m2fnuz": 25, "float8_e4m3fnuz": 26,
          "uint16": 27, "uint32": 28, "uint64": 29}
_NAMES = {code: name for name, code in _TYPES.items()}


@functools.lru_cache(maxsize=None)
def _code_of(dtype: np.dtype) -> int:
    """The number of an element type; -1 for none. NumPy makes the name of one anew each time."""
    return _TYPES.get(dtype.name, -1)


@functools.lru_cache(maxsize=None)
def _dtype_of(code: int) -> np.dtype:
    name = _NAMES[code]
    if name != "bfloat16" and not name.startswith("float8"):
        return np.dtype(name)
    import ml_dtypes  # an array of this type has come from it
    return np.dtype(getattr(ml_dtypes, name))


def array_of(function: str, name: str, value: Any) -> np.ndarray:
    """The argument `name` as an array on the CPU, without a copy where its memory can be read.

    function: what messages call the call.
    Errors: ValueError for what is no array of numbers.
    """
    if not isinstance(value, np.ndarray):
        value = _converted(function, name, value)
    elif isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{function}: {name}: given a masked array, whose mask nobody reads; "
                         "needed: an array, and its mask as an argument of its own")
    dtype = value.dtype
    if _code_of(dtype) < 0:
        raise ValueError(f"{function}: {name}: given dtype {dtype}; needed: an array of numbers")
    if not dtype.isnative:
        value = value.astype(dtype.newbyteorder("="))
    size = dtype.itemsize
    if not value.flags.aligned or any(step % size for step in value.strides):
        value = value.copy()
    return value


def _converted(function: str, name: str, value: Any) -> np.ndarray:
    if "Tracer" in type(value).__name__:  # of JAX, which need not be imported to say so
        raise ValueError(f"{function}: {name}: given an array that JAX traces; needed: an array of "
                         "numbers (the calls of gdpo.jax take traced ones)")
    error: Optional[Exception] = None
    for how in (np.asarray,) if not hasattr(value, "__dlpack__") else (np.asarray, np.from_dlpack):
        try:
            array = how(value)
            if array.dtype != object:
                return array
        except (BufferError, RuntimeError, TypeError, ValueError) as own:
            error = error or own
    words = str(error) if error else f"given a {type(value).__name__}"
    raise ValueError(f"{function}: {name}: {words}; needed: an array of numbers") from None


class _Memory:
    """The memory of an array that the library has made, which NumPy reads."""

    __slots__ = ("_handle", "__array_interface__")

    def __init__(self, handle: int, interface: Dict[str, Any]) -> None:
        self._handle, self.__array_interface__ = handle, interface

    def __del__(self, free: Callable[[int], None] = _free) -> None:
        free(self._handle)


def _from_handle(handle: int) -> np.ndarray:
    """The array of a handle, which it then owns."""
    data, code, rank = ctypes.c_void_p(), ctypes.c_int32(), ctypes.c_int64()
    sizes, strides = ctypes.c_void_p(), ctypes.c_void_p()
    owned = _read(handle, *map(ctypes.byref, (data, code, rank, sizes, strides)))
    dtype = _dtype_of(code.value)

    def integers(at: ctypes.c_void_p) -> Tuple[int, ...]:
        return tuple((ctypes.c_int64 * rank.value).from_address(at.value)) if at.value else ()
    shape = integers(sizes)
    if math.prod(shape) == 0:
        _free(handle)
        return np.empty(shape, dtype)
    plain = dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")
    array = np.asarray(_Memory(handle, {
        "version": 3, "shape": shape, "typestr": plain.str, "data": (data.value, False),
        "strides": tuple(step * dtype.itemsize for step in integers(strides))})).view(dtype)
    return array if owned else array.copy()  # the memory of an argument is the caller's


def _bits(number: float) -> int:
    return struct.unpack("=Q", struct.pack("=d", number))[0]


class _Argument(NamedTuple):
    """An argument of an operator."""

    name: str
    kind: str  #: "Tensor", "str", "int", "float" or "bool".
    is_list: bool
    optional: bool
    default: Any  #: `_NEEDED` for none.


_NEEDED = object()
_DECLARED = re.compile(r"(\w+)(?:\(\w!\))?(\[\])?(\?)?(?: (\w+))?(?:=(.*))?$")
_WANTED = {"int": "an integer", "float": "a number", "bool": "True or False", "str": "a word"}


def _declared(text: str) -> _Argument:
    found = _DECLARED.match(text)
    assert found, text
    kind, is_list, optional, name, default = found.groups()
    return _Argument(name or "", kind, bool(is_list), bool(optional),
                     _NEEDED if default is None else ast.literal_eval(default))


class Operator:
    """An operator of the library: its arguments by place or name; its results, arrays and others.

    Errors: ValueError with the library's message, which names the argument.
    """

    def __init__(self, schema: str) -> None:
        found = re.match(r"(\w+)\((.*)\) -> (.*)$", schema)
        assert found, schema
        self.name, arguments, results = found.groups()
        self.arguments = [_declared(text) for text in arguments.split(", ") if text]
        self._tuple = results.startswith("(")
        self.results = [_declared(text) for text in results.strip("()").split(", ") if text]
        self._operator = _operator(self.name.encode())
        self._places = {a.name: place for place, a in enumerate(self.arguments)}
        self._defaults = [a.default for a in self.arguments]

    def __call__(self, *given: Any, **named: Any) -> Any:
        values = [*given, *self._defaults[len(given):]]
        if len(given) > len(self.arguments):
            raise TypeError(f"gdpo::{self.name} takes {len(self.arguments)} arguments, and "
                            f"{len(given)} were given")
        for name, value in named.items():
            place = self._places.get(name, -1)
            if place < len(given):
                raise TypeError(f"gdpo::{self.name}: {name}: given, and no argument that is left")
            values[place] = value
        # First what may raise, for all arguments; then the handles, which the operator takes.
        read = [None if value is None and argument.optional else self._read(argument, value)
                for argument, value in zip(self.arguments, values)]
        size = max(len(read), len(self.results), 1)
        stack = (ctypes.c_uint64 * size)()
        for place, (argument, value) in enumerate(zip(self.arguments, read)):
            if value is not None:
                packed = _packed(argument, value)
                stack[place] = _some(packed) if argument.optional else packed
        error = _call(self._operator, stack, len(read), len(self.results))
        if error:
            words = _string_of(error)
            raise (ValueError if words.startswith("gdpo::") else RuntimeError)(words)
        unpacked = [_unpacked(result, stack[place]) for place, result in enumerate(self.results)]
        return tuple(unpacked) if self._tuple and unpacked else unpacked[0] if unpacked else None

    def _read(self, argument: _Argument, value: Any) -> Any:
        """A value in the type of the argument, as `_packed` takes it."""
        if argument.is_list:
            alone = argument._replace(is_list=False)
            return [self._read(alone, each) for each in value]
        try:
            if argument.kind == "Tensor":
                if value is None or value is _NEEDED:
                    raise TypeError
                return array_of(f"gdpo::{self.name}", argument.name, value)
            if argument.kind == "int":
                return operator.index(value)
            if argument.kind == "float":
                return _bits(value)
            if argument.kind == "bool" and isinstance(value, (bool, np.bool_)):
                return bool(value)
            if argument.kind == "str" and isinstance(value, str):
                return value.encode()
        except (TypeError, UnicodeEncodeError, struct.error):
            pass
        if value is _NEEDED:
            raise TypeError(f"gdpo::{self.name}: {argument.name}: needed, and not given")
        raise ValueError(f"gdpo::{self.name}: {argument.name}: given a {type(value).__name__}; "
                         f"needed: {_WANTED.get(argument.kind, 'an array of numbers')}")


def _packed(argument: _Argument, value: Any) -> int:
    """A value as the stable ABI has it."""
    if argument.is_list:
        alone = argument._replace(is_list=False)
        items = (ctypes.c_uint64 * len(value))(*(_packed(alone, each) for each in value))
        return _list(items, len(value))
    if argument.kind == "Tensor":
        rank, size = value.ndim, value.itemsize
        integers = ctypes.c_int64 * rank
        return _array(value.ctypes.data, _code_of(value.dtype), rank, integers(*value.shape),
                      integers(*(step // size for step in value.strides)))
    if argument.kind == "str":
        return _string(value, len(value))
    return value & 0xFFFFFFFFFFFFFFFF


def _string_of(handle: int) -> str:
    size = ctypes.c_size_t()
    text = _text(handle, ctypes.byref(size))
    words = ctypes.string_at(text, size.value).decode(errors="replace")
    _free_string(handle)
    return words


def _unpacked(result: _Argument, value: int) -> Any:
    """What a value of the stable ABI holds, which then is Python's."""
    if result.is_list:
        size = ctypes.c_size_t()
        items = _items(value, ctypes.byref(size))
        held = list((ctypes.c_uint64 * size.value).from_address(items)) if size.value else []
        _free_list(value)
        alone = result._replace(is_list=False)
        return [_unpacked(alone, each) for each in held]
    if result.kind == "Tensor":
        return _from_handle(value)
    if result.kind == "str":
        return _string_of(value)
    if result.kind == "float":
        return struct.unpack("=d", struct.pack("=Q", value))[0]
    if result.kind == "bool":
        return bool(value & 0xFF)
    return value - 2**64 if value >= 2**63 else value


class _Operators:
    """The operators by their names."""

    def __init__(self) -> None:
        for schema in _schemas().decode().splitlines():
            made = Operator(schema)
            setattr(self, made.name, made)


ops: Any = _Operators()


def argument_names(name: str) -> List[str]:
    """The names of the arguments of an operator."""
    return [argument.name for argument in getattr(ops, name).arguments]


def get_num_threads() -> int:
    """The number of threads of a call of gdpo.numpy and gdpo.jax.

        print(gdpo.numpy.get_num_threads())

    At first it is the environment variable OMP_NUM_THREADS, or else that of the processor.
    """
    return _threads()


def set_num_threads(number: int) -> None:
    """Sets the number of threads of a call of gdpo.numpy and gdpo.jax. No result depends on it.

        gdpo.numpy.set_num_threads(2)

    number: at least 1; the thread that calls is one of them.
    Errors: ValueError for another number.
    """
    try:
        threads = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        threads = 0
    if not 1 <= threads <= 2**15:
        raise ValueError(f"gdpo.numpy.set_num_threads: number: given {number!r}; needed: an "
                         "integer, at least 1")
    _set_threads(threads)
