"""Makes verl importable without the packages of stubs.py."""
import pathlib
import runpy

runpy.run_path(str(pathlib.Path(__file__).parent / "stubs.py"))
