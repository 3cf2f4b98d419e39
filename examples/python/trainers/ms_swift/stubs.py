"""Stands for the two packages that ms-swift's Megatron trainer imports, for its loss function.

`megatron` (Megatron-Core) needs GPUs and Apex to be built, and `mcore_bridge` needs the former. The
loss function of the trainer calls only `mpu.get_data_parallel_world_size` and `mpu.
get_data_parallel_group` of them, which the tests define. Everything else is an empty class
(../stub_packages.py).
"""
import pathlib
import runpy

# ms-swift compares the version of the first and logs both.
_stubs = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "stub_packages.py"))
_stubs["replace"](
    ("megatron", "mcore_bridge"),
    {name: {"__version__": "0.16.0"} for name in ("megatron.core", "mcore_bridge")})
