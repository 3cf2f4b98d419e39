"""The build backend: which PyTorch a wheel is compiled against, and when pip has to install one."""
import importlib.util
import pathlib
import subprocess
import sys
import types

import pytest
import torch

BACKEND = pathlib.Path(__file__).parents[1] / "build_backend.py"


@pytest.fixture
def backend(monkeypatch):
    """The module, in a Python that sees no PyTorch, and an environment without folders."""
    spec = importlib.util.spec_from_file_location("build_backend_of_test", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "_backend", types.SimpleNamespace(
        get_requires_for_build_wheel=lambda settings: ["ninja"],
        get_requires_for_build_editable=lambda settings: ["ninja"]))
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"purelib": "a", "platlib": "b"})
    monkeypatch.setattr(module.site, "getsitepackages", lambda: [])
    monkeypatch.setattr(module.site, "ENABLE_USER_SITE", False)
    return module


def installed(folder, version):
    """A folder with the files of a PyTorch that the backend looks at."""
    inside = folder / "torch"
    (inside / "include" / "torch" / "csrc" / "stable").mkdir(parents=True)
    (inside / "lib").mkdir()
    (inside / "lib" / "libtorch_cpu.so").touch()
    (inside / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
    return inside


@pytest.mark.parametrize("where", ["purelib", "platlib", "site", "user"])
@pytest.mark.parametrize("version", ["2.10.0", "2.15.0+cu130", "3.0.0a0"])
def test_the_environments_own(backend, monkeypatch, tmp_path, where, version):
    """Wherever it is: then pip installs none to build with."""
    found = installed(tmp_path, version)
    if where in ("purelib", "platlib"):
        paths = {"purelib": "a", "platlib": "b", where: str(tmp_path)}
        monkeypatch.setattr(backend.sysconfig, "get_paths", lambda: paths)
    elif where == "site":
        monkeypatch.setattr(backend.site, "getsitepackages", lambda: [str(tmp_path)])
    else:
        monkeypatch.setattr(backend.site, "ENABLE_USER_SITE", True)
        monkeypatch.setattr(backend.site, "getusersitepackages", lambda: str(tmp_path))
    assert backend.torch_folder() == found
    assert backend.get_requires_for_build_wheel() == ["ninja"]
    assert backend.get_requires_for_build_editable() == ["ninja"]


@pytest.mark.parametrize("version", [None, "2.9.1", "1.13.0", "unknown"])
def test_none_that_fits(backend, monkeypatch, tmp_path, version):
    if version:
        installed(tmp_path, version)
    monkeypatch.setattr(backend.site, "getsitepackages", lambda: [str(tmp_path)])
    assert backend.torch_folder() is None
    assert backend.get_requires_for_build_wheel() == ["ninja", "torch>=2.10"]
    assert backend.get_requires_for_build_editable() == ["ninja", "torch>=2.10"]


def test_the_one_that_python_sees_comes_first(backend, monkeypatch, tmp_path):
    """That of pip's isolated environment, where it has installed one."""
    (tmp_path / "seen").mkdir(), (tmp_path / "other").mkdir()
    seen = installed(tmp_path / "seen", "2.12.0")
    installed(tmp_path / "other", "2.11.0")
    monkeypatch.setattr(backend.site, "getsitepackages", lambda: [str(tmp_path / "other")])
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: types.SimpleNamespace(
        submodule_search_locations=[str(seen)]))
    assert backend.torch_folder() == seen


def test_what_cmake_asks():
    """The folder, on one line; and words where there is none."""
    asked = subprocess.run([sys.executable, BACKEND], capture_output=True, text=True)
    assert pathlib.Path(asked.stdout.strip()) == pathlib.Path(torch.__file__).parent
    hidden = ("import runpy, site, sysconfig; site.getsitepackages = lambda: []; "
              "site.ENABLE_USER_SITE = False; "
              "sysconfig.get_paths = lambda: dict(purelib='', platlib=''); "
              f"runpy.run_path({str(BACKEND)!r}, run_name='__main__')")
    asked = subprocess.run([sys.executable, "-I", "-S", "-c", hidden], capture_output=True,
                           text=True)
    assert asked.returncode and "no PyTorch 2.10 or later, whose headers" in asked.stderr


def test_the_oldest_release_is_said_alike():
    """In the backend, in the package and in pyproject.toml."""
    from gdpo._load import OLDEST
    spec = importlib.util.spec_from_file_location("build_backend_of_test", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.OLDEST == OLDEST
    project = BACKEND.with_name("pyproject.toml").read_text(encoding="utf-8")
    assert f'torch = ["torch>={OLDEST[0]}.{OLDEST[1]}"]' in project
