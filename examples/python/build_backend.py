"""scikit-build-core, with the PyTorch of the environment that the wheel is built for.

pip builds in an isolated environment, whose Python does not see what is installed. Only headers and
libraries of PyTorch are needed, no import of it, so they are looked for in the folders of the
environment itself. Where there is none, PyTorch is a build requirement, which pip installs into the
isolated environment. `python build_backend.py` prints the folder, which CMakeLists.txt asks for.
"""
import importlib.util
import pathlib
import re
import site
import sys
import sysconfig

try:
    from scikit_build_core import build as _backend
    from scikit_build_core.build import *  # noqa: F403
except ImportError:  # CMake needs the folder alone
    _backend = None

#: The oldest release that the wheel is for (_library.py).
OLDEST = (2, 10)


def torch_folder():
    """The folder of PyTorch, as a pathlib.Path; None where there is none of OLDEST or later.

    It is that of this Python, and if it has none, of the environment, in which pip has its own.
    """
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    paths = sysconfig.get_paths()
    for folder in (paths["purelib"], paths["platlib"], *site.getsitepackages(),
                   *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])):
        folders.append(str(pathlib.Path(folder) / "torch"))
    return next((pathlib.Path(folder) for folder in folders if _fits(pathlib.Path(folder))), None)


def _fits(folder):
    """Whether a folder has a PyTorch of OLDEST or later with its headers."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    version = re.search(r"^__version__ *= *['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return (version is not None and (int(version[1]), int(version[2])) >= OLDEST
            and (folder / "include" / "torch" / "csrc" / "stable").is_dir()
            and (folder / "lib" / "libtorch_cpu.so").is_file())


def _missing():
    return [] if torch_folder() else [f"torch>={'.'.join(map(str, OLDEST))}"]


def get_requires_for_build_wheel(config_settings=None):
    """What pip installs to build: PyTorch only where the environment has none."""
    return [*_backend.get_requires_for_build_wheel(config_settings), *_missing()]


def get_requires_for_build_editable(config_settings=None):
    """The same."""
    return [*_backend.get_requires_for_build_editable(config_settings), *_missing()]


if __name__ == "__main__":
    if _missing():
        sys.exit(f"{sys.executable} has no PyTorch {'.'.join(map(str, OLDEST))} or later, whose "
                 "headers are needed: pip install torch")
    print(torch_folder())
