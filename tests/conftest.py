"""Shared fixtures: where the optional real data lies, and quiet, deterministic torch."""

import gc
import importlib
import importlib.util
import os
import resource
import shlex
import shutil
import sys
import time

# Before torch is imported, here and in every process that a test starts: models of a few thousand parameters are
# fastest on one thread, and tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Every fast path that computes the same is taken: what a clock says must not decide what is tested.
os.environ.setdefault("BURNISH_TIMING", "off")

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples on every run and machine: a test that fails can be run again and fails again.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

pytest_plugins = ["timekeeping"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What imports and collection make stays to the end: looking through it for garbage takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_cases(items)
    skip_without_compiler(items)


def mark_cases(items: list[pytest.Item]) -> None:
    """`slow_cases("ID", ...)` marks these cases of a parametrized test as slow, `matrix_cases` as matrix; an id may be
    a pattern, as of file names, and "*" for a whole file. All cases of the matrix are slow. Guards stay in the default
    run."""
    from timekeeping import read_guards  # not above: pytest rewrites the assertions of a plugin before its first import

    guards = read_guards()
    for item in items:
        if item.nodeid in guards:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
            continue
        case = item.nodeid.partition("[")[2].removesuffix("]")
        for name, mark in (("slow_cases", "slow"), ("matrix_cases", "matrix")):
            marker = item.get_closest_marker(name)
            for pattern in () if marker is None else marker.args:
                if fnmatchcase(case, pattern):
                    item.add_marker(mark)
        if item.get_closest_marker("matrix"):
            item.add_marker("slow")


def skip_without_compiler(items: list[pytest.Item]) -> None:
    """Tests of kernels need a C compiler that can build them; everything else has to pass without one."""
    marked = [item for item in items if item.get_closest_marker("compiler")]
    if not marked:
        return
    import torch

    from burnish.errors import KernelError
    from burnish.kernels.build import load_library

    try:
        load_library("decode.c", torch.float32)
    except KernelError as error:
        if shutil.which("gcc") and not os.environ.get("CC"):
            return  # GCC has to be able to; the tests will say what is wrong
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=error.message))


INSTRUCTION_SETS = {
    "native": ("", ()),
    "avx512f": ("-march=x86-64 -mavx512f -mfma", ("avx512f", "fma")),
    "16 lanes": ("-march=x86-64 -mavx2 -mfma -DLANES=16", ("avx2", "fma")),
    "avx2": ("-march=x86-64 -mavx2 -mfma", ("avx2", "fma")),
    "avx": ("-march=x86-64 -mavx", ("avx",)),
    "sse2": ("-march=x86-64", ("sse2",)),
}
"""Words in CC, and what /proc/cpuinfo has to name for a processor to run what is built so. `16 lanes` computes what
avx512f does, with two registers of AVX2 for each of its own."""


@pytest.fixture(
    scope="module",
    params=[
        name if name in ("native", "avx2") else pytest.param(name, marks=pytest.mark.slow) for name in INSTRUCTION_SETS
    ],
)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """A test module's kernels are built for each instruction set that this processor has, by default only for its own
    and AVX2."""
    from burnish.kernels.attention import attention_kernels
    from burnish.kernels.build import find_compilers
    from burnish.kernels.decoding import decode_kernels
    from burnish.kernels.products import product_kernels, quantized_kernels
    from burnish.kernels.training import train_kernels

    words, needed = INSTRUCTION_SETS[request.param]
    flags = Path("/proc/cpuinfo").read_text().split() if needed else []
    if not set(needed) <= set(flags):
        pytest.skip(f"this processor does not run {request.param}")
    kinds = (attention_kernels, decode_kernels, product_kernels, quantized_kernels, train_kernels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", f"{shlex.join(find_compilers()[0])} {words}")
        for kind in kinds:
            kind.cache_clear()
        yield request.param
    for kind in kinds:
        kind.cache_clear()


REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with `data/` and `models/` of real material; tests that need it skip when it is absent."""
    folder = Path(os.environ.get("BURNISH_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data at {folder} (set BURNISH_DATA)")
    return folder


@pytest.fixture(scope="session")
def at_hand(shared_dir: Path) -> Callable[[str], Path]:
    """Finds a file or folder of the real material; skips the test where it is absent."""

    def find(name: str) -> Path:
        path = shared_dir / name
        if not path.exists():
            pytest.skip(f"no {path}")
        return path

    return find


@pytest.fixture(scope="session")
def stories_model(at_hand: Callable[[str], Path]) -> Path:
    """The small real pre-trained model, where it is at hand."""
    return at_hand("models/stories260k")


@pytest.fixture(scope="session")
def stories(at_hand: Callable[[str], Path]) -> Path:
    """The stories that this model has learned, where they are at hand."""
    return at_hand("data/tinystories/tinystories.txt")


@pytest.fixture(scope="session")
def gone() -> Callable[..., bool]:
    """Waits until no process has this id, and says whether that came to pass: `gone(pid, seconds=20.0)`."""

    def wait(pid: int, seconds: float = 20.0) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.05)
        return False

    return wait


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Any]:
    """One for all role processes that tests start by hand."""
    from burnish.distributed.fork_server import ForkServer

    with ForkServer() as shared:
        yield shared


@pytest.fixture
def beyond_a_thousand() -> Iterator[None]:
    """The next descriptors are above 1,023, which is as far as `select` goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lets the worker of `rollout.engine: vllm` find a package `vllm` that has no model. Returns the file that lists
    its calls."""
    package = tmp_path / "packages" / "vllm"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "unit" / "rollouts" / "vllm" / "fake_vllm.py", package / "__init__.py")
    path = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    calls = tmp_path / "vllm-calls"
    monkeypatch.setenv("FAKE_VLLM_CALLS", str(calls))
    return calls


@pytest.fixture(scope="module")
def make_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Any]]:
    """Imports a module with this name and source text, which only its folder on the module path makes known to other
    processes."""
    folders: list[str] = []

    def make(name: str, source: str) -> Any:
        folder = tmp_path_factory.mktemp(name)
        (folder / f"{name}.py").write_text(source)
        sys.path.append(str(folder))
        folders.append(str(folder))
        return importlib.import_module(name)

    yield make
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope="session")
def save_tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Saves a random Llama of one layer with a tokenizer of single characters, `$` its end and `_` its padding, and
    returns the folder; keyword arguments are those of `tiny_llama`."""

    from tiny_models import save_llama

    from burnish.models.characters import character_tokenizer  # torch, which many tests do without

    def save(alphabet: str, **sizes: Any) -> Path:
        small = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_length": 32, "seed": 1}
        folder, tokenizer = tmp_path_factory.mktemp("tiny-llama"), character_tokenizer(alphabet, eos="$", pad="_")
        return save_llama(folder, tokenizer, **(small | sizes))

    return save


@pytest.fixture
def stub_judge() -> Iterator[Callable[..., Any]]:
    """Starts endpoints that judge by a rule: `stub_judge(rule, fault)`."""
    from stub_judge import StubJudge

    started: list[Any] = []

    def start(*arguments: Any, **settings: Any) -> Any:
        started.append(StubJudge(*arguments, **settings))
        return started[-1]

    yield start
    for stub in started:
        stub.close()
