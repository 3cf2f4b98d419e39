"""A process in which PyTorch cannot be imported: the page's examples, the names, and the words."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

import gdpo

PACKAGE = pathlib.Path(gdpo.__file__).parent
README = pathlib.Path(__file__).parents[1] / "README.md"
WITHOUT = "import sys\nsys.modules['torch'] = None\n"


def run(script, *arguments, without=WITHOUT):
    """What lines print in such a process, which ends well."""
    done = subprocess.run([sys.executable, "-c", without + script, *arguments], timeout=120,
                          capture_output=True, text=True, env={
                              **os.environ, "PYTHONPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_page():
    """The blocks of its section print what it says that they print."""
    section = re.search(r"^## NumPy and JAX\n(.*?)^## ", README.read_text("utf-8"), re.S | re.M)[1]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.S | re.M)
    said = re.findall(r"^```text\n(.*?)^```$", section, re.S | re.M)
    assert len(blocks) == len(said) == 2
    assert run("\n".join(blocks)) == "".join(said)


def test_names():
    """What needs no PyTorch is there, and the rest says what it needs."""
    words = run("""
import gdpo
from gdpo import *
assert gdpo.__version__ and "jax" in dir(gdpo) and not hasattr(gdpo, "nonsense")
assert "dapo" in losses() and "gdpo" in estimators() and estimator_settings("gdpo")
assert {s.name for s in loss_settings("dapo")} >= {"surrogate.low"} and instruction_set()
assert AdaptiveEntropy(0.1).update(0.5) == 0 and gdpo.prepasses()
given = gdpo.from_config("trl", {"epsilon": 0.3})
assert type(given.loss) is gdpo.numpy.PolicyLoss and "0.3" in given.explain()
for name in ("advantages", "PolicyLoss", "Ranks"):
    try:
        getattr(gdpo, name)
    except ImportError as error:
        print(error)
try:
    from gdpo import count
except ImportError as error:
    print(error)
assert "torch" not in {name.split(".")[0] for name, module in sys.modules.items() if module}
""").splitlines()
    of = "is for PyTorch, which is not installed: pip install 'gdpo[torch]'"
    assert words == [f"gdpo.advantages {of}; gdpo.numpy.advantages is for NumPy",
                     f"gdpo.PolicyLoss {of}; gdpo.numpy.PolicyLoss is for NumPy",
                     f"gdpo.Ranks {of}", f"gdpo.count {of}; gdpo.numpy.count is for NumPy"]


def test_what_is_there():
    """The names without PyTorch are those that the package lists with it, or say what they need."""
    listed = eval(run("import gdpo; print(gdpo.__all__, sorted(gdpo._FOR_TORCH))".replace(
        ", sorted", " + sorted")))
    assert sorted(listed) == sorted([*gdpo.__all__, *gdpo._FOR_TORCH])
    assert bool(gdpo._FOR_TORCH) == bool(gdpo._TORCH_MISSING)
    assert set(gdpo.__all__) <= set(dir(gdpo))


def test_command():
    """python -m gdpo explains a configuration in the same words."""
    script = "import runpy; sys.argv[0] = 'gdpo'; runpy.run_module('gdpo', run_name='__main__')"
    words = ("explain", "--trainer", "trl", "loss_type=grpo", "use_adaptive_entropy=True",
             "beta=0.04")
    said = run(script, *words)
    assert "what this configuration computes" in said
    assert said == run(script, *words, without="import sys\n")


def test_without_jax():
    words = run("sys.modules['jax'] = None\nimport gdpo.numpy\n"
                "try:\n    gdpo.jax\nexcept ImportError as error:\n    print(error)\n"
                "import pydoc\nassert 'numpy' in dir(gdpo) and pydoc.render_doc(gdpo)\n"
                "print(gdpo.numpy.advantages([1.0, 0.0], group_size=2).tolist() != [])")
    assert words == ("gdpo.jax needs JAX, which is not installed: pip install 'gdpo[jax]'\n"
                     "True\n")


def test_old_pytorch_is_none(tmp_path):
    """One that is too old is as good as none, and the words say which is needed."""
    (tmp_path / "torch.py").write_text("__version__ = '2.9.1+cu128'")
    words = run("""
import gdpo, gdpo.numpy
print(gdpo.numpy.advantages([1.0, 0.0], group_size=2).tolist() != [])
try:
    from gdpo import advantages
except ImportError as error:
    print(error)
""", without=f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n").splitlines()
    of = "is for PyTorch 2.10 or later, and this is 2.9.1+cu128: pip install 'torch>=2.10'"
    assert words == ["True", f"gdpo.advantages {of}; gdpo.numpy.advantages is for NumPy"]


def test_broken_pytorch_is_told(tmp_path):
    """One that is installed and does not load is no PyTorch that is missing."""
    (tmp_path / "torch.py").write_text("import missing_part")
    with pytest.raises(AssertionError, match="No module named 'missing_part'"):
        run("import gdpo", without=f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n")
