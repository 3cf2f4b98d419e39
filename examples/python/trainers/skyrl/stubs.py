"""Stands in for packages that SkyRL imports and that a run on one CPU does not call.

Import it before SkyRL. A package that is installed is itself (../stub_packages.py). Of
ray there are `remote`, which leaves a class as it is, and `is_initialized`, which says no.
"""
import pathlib
import runpy

#: The packages, and why SkyRL's losses and estimators run without them.
STUBS = {
    "ray": "it shares the registries of losses between processes, and here is one process",
    "pandas": "an environment reads tables with it, and here is none",
    "requests": "an environment asks a server, and here is none",
    "skyrl.backends.backend": "it is the server of Tinker's API, and needs pydantic",
}

_trainer = "skyrl", pathlib.Path(__file__).with_name("requirements.txt")
_stubs = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "stub_packages.py"))
_stubs["replace"](
    STUBS, {"ray": {"remote": _stubs["remote"], "is_initialized": lambda: False}},
    trainer=_trainer)
