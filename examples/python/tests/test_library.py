"""The library file: what it needs from the system, and the instruction sets it chooses from."""
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch

import gdpo
from gdpo._names import near

FOLDER = pathlib.Path(gdpo.__file__).parent
#: The operators, and their kernels for CUDA where nvcc built them.
LIBRARIES = [path for path in (FOLDER / "_operators.so", FOLDER / "_cuda.so") if path.exists()]
#: The C functions of libtorch's stable ABI, and the system's libraries.
ALLOWED = re.compile(r"aoti_torch_\w+|torch_\w+|_ITM_\w+|__gmon_start__|__cxa_\w+|"
                     r"\w+@(GLIBC|GLIBCXX|CXXABI|GCC)_[\w.]+")
#: Python, and C++ classes of PyTorch, which change from release to release.
FORBIDDEN = re.compile(r"Py[A-Z_]|_ZNK?2at|_ZNK?3c10|_ZNK?5torch")


@pytest.fixture(params=LIBRARIES, ids=lambda path: path.name)
def library(request) -> pathlib.Path:
    return request.param


def lines_of(library: pathlib.Path, *command) -> list:
    """What a tool of binutils prints, a list of words for each line."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    out = subprocess.run([*command, str(library)], capture_output=True, text=True, check=True)
    return [line.split() for line in out.stdout.splitlines()]


def test_undefined_symbols(library):
    """One file serves every Python and every PyTorch from 2.10 on, because it needs only these."""
    symbols = [words[-1] for words in lines_of(library, "nm", "-D", "--undefined-only")]
    assert any(symbol.startswith("aoti_torch_") for symbol in symbols)
    strange = [symbol for symbol in symbols
               if not ALLOWED.fullmatch(re.sub("@@", "@", symbol)) or FORBIDDEN.search(symbol)]
    assert strange == []


def test_needed_libraries(library):
    """PyTorch's are there when the library is loaded; the others belong to the system."""
    needed = [re.search(r"\[(.*)\]", " ".join(words)).group(1)
              for words in lines_of(library, "readelf", "-d") if "(NEEDED)" in words]
    assert set(needed) <= {"libtorch_cpu.so", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1",
                           "libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2",
                           "ld-linux-aarch64.so.1"} | (
        {"libtorch_cuda.so", "librt.so.1", "libdl.so.2"} if library.name == "_cuda.so" else set())


def test_stored_code_of_another_release(monkeypatch):
    """torch.compile stores code by a key that changes with the numbers that a result has."""
    config = torch.compiler.config
    tag = config.cache_key_tag
    assert " gdpo:" in tag
    monkeypatch.setattr(gdpo._library, "names", lambda *what: ["loss", "one_more"])
    with config.patch(cache_key_tag="own"):
        gdpo._library._tag_compile_cache()
        assert config.cache_key_tag.startswith("own gdpo:")
        assert config.cache_key_tag[len("own"):] not in tag


def test_kernels_for_cuda_load():
    """Their library loads and registers where PyTorch has libtorch_cuda, without a device too."""
    if gdpo._load.CUDA_MISSING:
        pytest.skip(f"no kernels for CUDA: {gdpo._load.CUDA_MISSING}")
    for name in ("policy_loss", "policy_loss_forward", "policy_loss_from_logits",
                 "policy_loss_from_logits_", "token_logprobs", "token_logprobs_backward", "count",
                 "advantages", "scaled", "scale_"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"gdpo::{name}", "CUDA")


def test_no_path_of_the_build_machine(library):
    """A path in the file would be searched on the machines of all users."""
    assert not [words for words in lines_of(library, "readelf", "-d")
                if "(RPATH)" in words or "(RUNPATH)" in words]


def test_version():
    """That of the header that was compiled, which is also that of the wheel (pyproject.toml)."""
    header = pathlib.Path(__file__).parents[3] / "include" / "gdpo" / "core" / "version.hpp"
    numbers = re.findall(r"#define GDPO_VERSION_\w+ (\d+)", header.read_text(encoding="utf-8"))
    assert gdpo.__version__ == ".".join(numbers) and len(numbers) == 3
    for installed in importlib.metadata.distributions(name="gdpo"):  # none in a source tree
        assert installed.version == gdpo.__version__


def test_names_that_are_near():
    """Slips of one letter find the name; what is like none of them finds none."""
    for names in (gdpo.losses(), gdpo.estimators(), gdpo.prepasses()):
        for name in names:
            assert name in near(name + "x", names) and name in near(name.upper(), names)
            swapped = name[:-2] + name[-1] + name[-2]
            assert name in near(swapped, names) or swapped in names
        assert near("nothing of the kind", names) == near("", names) == []
    assert near("b.lwo", ["a.low", "a.high"]) == ["a.low"]
    assert near("dapo", []) == []


def test_public_names():
    """What __all__ promises is there, and the lists of names are those of the operators."""
    assert all(hasattr(gdpo, name) for name in gdpo.__all__)
    assert "grpo" in gdpo.losses() and "gdpo" in gdpo.estimators()
    for names in (gdpo.losses(), gdpo.estimators()):
        assert len(set(names)) == len(names)
    gdpo.losses().clear()  # a list of the caller's own
    assert gdpo.losses()


def test_import_leaves_cuda_alone():
    """A process may still be forked, and its children use CUDA: nothing has asked for devices."""
    path = os.pathsep.join(filter(None, sys.path))
    asks = ("import torch, gdpo; assert not torch.cuda._is_in_bad_fork() and "
            "not torch.cuda.is_initialized(); import os; pid = os.fork(); "
            "os._exit(torch.cuda._is_in_bad_fork()) if pid == 0 else None; "
            "assert os.waitpid(pid, 0)[1] == 0")
    subprocess.run([sys.executable, "-c", asks], check=True, timeout=120,
                   env={**os.environ, "PYTHONPATH": path})


def test_errors_of_the_cuda_runtime():
    """They are no mistakes in the arguments: RuntimeError, with what to do where it is known."""
    raise_ours = gdpo._names.raise_ours
    raise_ours(RuntimeError("gdpo::cuda: cudaErrorIllegalAddress: an illegal memory access"))
    with pytest.raises(RuntimeError, match="CUDAARCHS names those to build for"):
        raise_ours(RuntimeError("gdpo::cuda: cudaErrorNoKernelImageForDevice: no kernel image"))
    with pytest.raises(ValueError):
        raise_ours(RuntimeError("gdpo::cuda::Scratch: scratch: given 1; needed: 2"))


# Instruction sets.

COMPUTE = """
import sys, torch, gdpo
torch.set_num_threads(1)
g = torch.Generator().manual_seed(91)
logp = -2 * torch.rand(40, 70, generator=g)
others = [logp + 0.3 * torch.randn(40, 70, generator=g) for _ in range(2)]
logp.requires_grad_()
mask = torch.rand(40, 70, generator=g) > 0.2
advantages = torch.randn(40, generator=g)
results = [gdpo.instruction_set()]
for name in ("grpo", "gspo", "ms_swift::bnpo", "verl::vanilla", "verl::gspo"):
    logp.grad = None
    loss, metrics = gdpo.PolicyLoss(name, beta=0.1)(
        logp, counts=gdpo.count(mask=mask), mask=mask, old_logp=others[0], ref_logp=others[1],
        advantages=advantages)
    loss.backward()
    results += [loss.detach(), logp.grad.clone(), metrics.result]
logits = (4 * torch.randn(12, 300, generator=g)).requires_grad_()
out = gdpo.token_logprobs(logits, torch.arange(12))
(out.logp.sum() + out.entropy.sum()).backward()
results += [out.logp.detach(), out.entropy.detach(), out.logsumexp, logits.grad]
rewards = torch.randn(60, 3, generator=g)
for name in ("gdpo", "grpo", "rloo", "verl::gpg"):
    results += [gdpo.advantages(rewards, estimator=name, group_size=5)]
results += [gdpo.advantages(rewards, group_size=5, report=True).report.numbers]
arrays = dict(old_logp=others[0], rollout_logp=others[1], mask=mask)
results += gdpo.prepare(["trl::sequence_truncate", "mean_one"], **arrays).arrays().values()
results += [torch.tensor(list(gdpo.mismatch(**arrays).to_dict().values()))]
results += [*gdpo.token_advantages(rewards=others[0], values=others[1], mask=mask)]
results += [*gdpo.outcome_advantages(rewards[:40], group_size=5, mask=mask)]
results += [gdpo.optimal_token_baseline(
    others[0], logp=others[1], sum_pi_squared=torch.rand(40, 70, generator=g), group_size=5,
    mask=mask)]
torch.save(results, sys.argv[1])
"""
INSTRUCTION_SETS = ("baseline", "v3", "v4")


@pytest.fixture(scope="module")
def by_set(tmp_path_factory):
    """The results of COMPUTE with GDPO_INSTRUCTION_SET for each instruction set, by its name."""
    folder = tmp_path_factory.mktemp("sets")
    path = os.pathsep.join(filter(None, sys.path))
    children = {name: subprocess.Popen(
        [sys.executable, "-c", COMPUTE, str(folder / name)],
        env={**os.environ, "GDPO_INSTRUCTION_SET": name, "PYTHONPATH": path})
        for name in INSTRUCTION_SETS}
    assert [child.wait(120) for child in children.values()] == [0, 0, 0]
    return {name: torch.load(folder / name) for name in INSTRUCTION_SETS}


def runs(name: str) -> bool:
    """Whether this processor has an instruction set, by what the kernel says."""
    needed = {"baseline": set(), "v3": {"avx2", "fma", "bmi1", "bmi2"},
              "v4": {"avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}}
    try:
        flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    except OSError:
        pytest.skip("no /proc/cpuinfo")
    return needed[name] <= flags


def test_instruction_sets(by_set):
    """GDPO_INSTRUCTION_SET is the newest that is taken; without it, the processor's highest."""
    highest = "baseline"
    for name in INSTRUCTION_SETS:
        highest = name if runs(name) else highest
        assert by_set[name][0] == highest
    if "GDPO_INSTRUCTION_SET" not in os.environ:
        assert gdpo.instruction_set() == highest


def test_bits_of_v3_and_v4(by_set):
    """Registers of 8 and of 16 numbers add in the same order."""
    for one, other in zip(by_set["v3"][1:], by_set["v4"][1:]):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_baseline(by_set):
    """Without FMA the rounding differs: 1e-6 of each number, and of the largest of its array."""
    for one, other in zip(by_set["baseline"][1:], by_set["v4"][1:]):
        finite = other[other.isfinite()].abs()
        torch.testing.assert_close(one, other, rtol=1e-6, equal_nan=True,
                                   atol=1e-6 * min(1.0, finite.max().item()))
