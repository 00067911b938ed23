"""Versions, facts about the machine, and problems with either, each with its remedy.

Each topic yields rows to show and problems, in any order. Nothing private is in them (`hidden`).
"""

from __future__ import annotations

import getpass
import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from burnish import __version__
from burnish.errors import ConfigError, KernelError, SandboxError
from burnish.machine import processor
from burnish.machine.resources import allowed_cores, container_limits, free_memory
from burnish.outside.plugins import installed_version
from burnish.planning.memory import bytes_in_words

NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "datasets", "peft")
OPTIONAL = [
    "ray",
    "vllm",
    "starlette",
    "uvicorn",
    "mcp",
    "websockets",
    "reasoning-gym",
    "langdetect",
    "jsonschema",
    "wandb",
    "mlflow-skinny",
    "trackio",
    "matplotlib",
    "textual",
]
"""Packages of the extras."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
TURN_OFF = (processor.WITHOUT, processor.TIMING, "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Besides the variables for threads the only environment variables whose values are shown: short words and numbers."""
DRIVER, SHARED_MEMORY = Path("/proc/driver/nvidia/version"), Path("/dev/shm")
_SMALL_SHARED_MEMORY, _LITTLE_MEMORY = 1 << 30, 2 << 30
_LITTLE_SPACE = {"folder of runs": 5 << 30, "temporary files": 1 << 30}
_USUAL_NAMES = frozenset({"root", "localhost", "user", "linux", "ubuntu", "debian"})
"""Names of users and machines that are ordinary words of messages, and therefore not hidden."""

Weight = Literal["fatal", "problem", "note"]


@dataclass(frozen=True, slots=True)
class MachineProblem:
    """A problem that was found. name: the same in every version. weight: `fatal` (nothing can run), `problem`
    (something fails or is much slower than it could be), `note` (it may be on purpose)."""

    name: str
    weight: Weight
    what: str
    remedy: str


Finding = tuple[str, str] | MachineProblem
"""Name and text of a row, or a problem."""


@dataclass(slots=True)
class Report:
    """Rows of text by their names, and the problems, the gravest first."""

    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    problems: list[MachineProblem] = field(default_factory=list)

    def add(self, rows: dict[str, str], findings: Iterable[Finding]) -> None:
        for finding in findings:
            if isinstance(finding, MachineProblem):
                self.problems.append(finding)
                self.problems.sort(key=lambda problem: ("fatal", "problem", "note").index(problem.weight))
            else:
                rows[finding[0]] = finding[1]

    @property
    def refuses_runs(self) -> bool:
        """True if no run can start here."""
        return any(problem.weight == "fatal" or problem.name == "setting" for problem in self.problems)


def examine(runs: Path, *, quick: bool = False, fresh: bool = False) -> Report:
    """Examine everything but the fast paths. runs: the folder to write to. quick: build and try nothing. fresh: forget
    the kept timings of paths. Checks that need PyTorch are left out if PyTorch does not load."""
    report = Report()
    versions = {name: installed_version(name) for name in (*NEEDED, *OPTIONAL)}
    failures = {name: failure for name in ("torch", "transformers") if (failure := _import_failure(name)) is not None}
    report.add(report.versions, of_packages(versions, failures))
    report.add(report.machine, of_system())
    if not failures:
        report.add(report.machine, [*of_threads(), *of_gpus(), *of_kernels(builds=not quick)])
    sharing = [package for package in ("ray", "vllm") if versions[package]]
    sharing += ["several GPUs (NCCL)"] if "GPU 1" in report.machine else []
    report.add(report.machine, of_storage(runs, sharing))
    report.add(report.machine, of_settings(has_gpu="GPU 0" in report.machine))
    if fresh:
        from burnish.forward.verdicts import own_cache

        report.machine["timings"] = f"{own_cache().forget()} forgotten (--fresh)"
    if not quick:
        report.add(report.machine, of_sandbox())
    return report


def hidden(text: str) -> str:
    """One line without the home folder (`~`), the user's name as a part of paths, and the name of the machine."""
    text, home, host = " ".join(text.split()), os.path.expanduser("~"), socket.gethostname()
    users, hosts = {Path(home).name}, {host, host.partition(".")[0]}
    with suppress(OSError, KeyError):  # a container may run under a number without a name
        users.add(getpass.getuser())
    for folder in sorted({home, os.path.realpath(home)} - {"/", "~"}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])", "~", text)
    patterns = [(name, rf"(?<=/){re.escape(name)}(?![\w.-])", "USER") for name in users]
    patterns += [(name, rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "HOST") for name in hosts]
    for name, pattern, shown in sorted(patterns, key=lambda one: len(one[0]), reverse=True):
        if len(name) >= 3 and name.lower() not in _USUAL_NAMES:
            text = re.sub(pattern, shown, text)
    return text


def of_packages(versions: Mapping[str, str | None], failures: Mapping[str, str]) -> Iterator[Finding]:
    """Versions of packages, and problems with them. failures: why installed packages cannot be imported."""
    from burnish.checkpointing.run import git_revision

    commit = git_revision(Path(__file__).parent)
    yield "burnish", __version__ + (f" (commit {commit})" if commit else "")
    yield "python", platform.python_version()
    for name, version in versions.items():
        if version is not None:
            yield name, failures.get(name, version)
            if name in failures:
                remedy = f"reinstall {name} in a separate environment; for PyTorch take this machine's build"
                yield MachineProblem(f"broken-{name}", "fatal", f"{name} cannot be imported: {failures[name]}", remedy)
        elif name in NEEDED:
            remedy = f"pip install {name} (docs/install.md says which build of PyTorch to take)"
            yield MachineProblem(f"no-{name}", "fatal", f"{name} is not installed", remedy)
    yield "not installed", ", ".join(name for name, version in versions.items() if version is None) or "nothing"


def of_system() -> Iterator[Finding]:
    """System, processor and memory."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    with suppress(OSError, KeyError):  # not Linux, or a bare container
        system += f", {platform.freedesktop_os_release()['PRETTY_NAME']}"
    yield "system", system
    about = [line.partition(":")[2].strip() for line in processor.description() if "model name" in line]
    yield "processor", about[0] if about else platform.processor() or platform.machine()
    amounts = [amount for amount in (container_limits().memory_bytes, free_memory()) if amount is not None]
    if amounts:
        usable = bytes_in_words(min(amounts))
        yield "memory", f"{usable} can be used"
        if min(amounts) < _LITTLE_MEMORY:
            what = f"{usable} of memory can be used; PyTorch and a model of some million weights take about 1 GiB"
            remedy = "end other processes, or raise the container's limit; burnish plan says what a run needs"
            yield MachineProblem("little-memory", "problem", what, remedy)


def of_settings(*, has_gpu: bool) -> Iterator[Finding]:
    """Environment variables that turn something off or say how many threads there are."""
    values = {name: hidden(os.environ[name])[:80] for name in (*TURN_OFF, *THREADS) if os.environ.get(name)}
    yield "environment", ", ".join(f"{name}={value}" for name, value in values.items()) or "nothing set"
    try:
        processor.allows("onednn")
        processor.times_paths()
    except ConfigError as error:
        what = hidden(f"{error.message}: {error.remedy}")
        yield MachineProblem("setting", "problem", what, "every run is refused like this until it is fixed")
        return
    off = {name: value for name, value in values.items() if name in TURN_OFF and value != "on"}
    if off:
        what = "something is turned off: " + ", ".join(f"{name}={value}" for name, value in off.items())
        yield MachineProblem("turned-off", "note", what, f"unset {', '.join(off)}, unless it is on purpose")
    if not has_gpu and processor.multiplies_bfloat16() is False:
        what = "bfloat16 is emulated on this processor, several times slower than float32"
        yield MachineProblem("slow-bfloat16", "note", what, processor.REMEDY)


def of_threads() -> Iterator[Finding]:
    """PyTorch's threads, and the cores that this process may keep busy."""
    import torch

    threads, cores, all_cores = torch.get_num_threads(), allowed_cores(), os.cpu_count() or 1
    variable = next((name for name in THREADS if os.environ.get(name, "").strip() == str(threads)), None)
    because = f"{variable} is {threads}" if variable else "PyTorch's own choice"
    capability = torch.backends.cpu.get_cpu_capability()
    yield "threads", f"{threads} ({because}) on {cores} of {all_cores} cores; PyTorch uses {capability}"
    if threads > cores:
        yield MachineProblem(
            "too-many-threads",
            "problem",
            f"PyTorch takes {threads} threads ({because}), but this process may keep {cores} of {all_cores} cores "
            "busy: threads that wait for each other are many times slower",
            f"set OMP_NUM_THREADS={cores}",
        )
    if threads < cores and variable:
        what = f"PyTorch takes {threads} of {cores} cores ({because})"
        yield MachineProblem("few-threads", "note", what, f"unset {variable}, unless other processes need the rest")


def of_kernels(*, builds: bool) -> Iterator[Finding]:
    """The C compiler and the folder for kernels. builds: build and load them all, half a minute at the first time."""
    import torch

    from burnish.kernels.build import SOURCES, cache_folder, compiler_version, find_compilers, load_library
    from burnish.machine.private_folders import private_folder

    if platform.system() != "Linux":  # elsewhere no kernels are built
        return
    folder, anew = cache_folder(), "kernels are built and paths are timed anew at each start"
    if folder is None:
        remedy = "set HOME, or XDG_CACHE_HOME to a folder of your own"
        yield MachineProblem("no-cache", "note", f"there is no home folder: {anew}", remedy)
    else:
        try:
            with private_folder(folder):
                pass
        except OSError as error:
            what = f"burnish in ~/.cache or XDG_CACHE_HOME cannot be used ({error.strerror}): {anew}"
            remedy = "make it and the folders above it your own, not writable for others, or set XDG_CACHE_HOME"
            yield MachineProblem("cache", "problem", what, remedy)
    try:
        version = compiler_version(find_compilers()[0]).decode(errors="replace").splitlines()
        yield "compiler", hidden(version[0]) if version else "unknown"
        for source in SOURCES if builds else ():
            load_library(source, torch.float32)
    except KernelError as error:
        what = f"kernels in C cannot be used, without which a CPU is much slower: {hidden(error.message)}"
        yield MachineProblem(
            "no-kernels", "problem", what, error.remedy or "install gcc, or name another compiler in CC"
        )


def of_gpus(driver: Path = DRIVER) -> Iterator[Finding]:
    """Yield the platform PyTorch is built for, and the GPUs that it sees. An error of the driver becomes a problem."""
    import torch

    build = next((f"{kind} {of}" for kind, of in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip)) if of), "")
    version = _driver_version(driver)
    yield "PyTorch is for", (build or "CPU") + (f"; NVIDIA's driver {version}" if version else "")
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for index in range(count):
            yield from _of_gpu(index)
    except Exception as error:  # noqa: BLE001 boundary: drivers
        what = f"PyTorch cannot use the GPU: {hidden(f'{type(error).__name__}: {error}')[:300]}"
        yield MachineProblem("gpu", "problem", what, _driver_remedy(build, version))
        return
    if build and not count:
        what = f"this PyTorch is built for {build} and sees no GPU, so everything runs on the CPU"
        yield MachineProblem("no-gpu", "problem", what, _driver_remedy(build, version))
    elif version and not count:
        what = f"NVIDIA's driver {version} is there, but this PyTorch is built for CPUs"
        yield MachineProblem("unused-gpu", "problem", what, "install the build for CUDA (docs/install.md)")


def _of_gpu(index: int) -> Iterator[Finding]:
    import torch

    about, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
    memory = f"{bytes_in_words(free)} of {bytes_in_words(total)} free"
    yield f"GPU {index}", f"{about.name}, {memory}, capability {about.major}.{about.minor}"
    if about.major < 8:  # before Ampere
        what = f"{about.name} has no instructions for bfloat16, which is emulated"
        yield MachineProblem("gpu-without-bfloat16", "note", what, "set model.dtype: float32")


def _driver_version(file: Path) -> str | None:
    """Version of NVIDIA's driver; None without it."""
    try:
        found = re.search(r"\b\d+\.\d+(\.\d+)*\b", file.read_text(errors="replace").partition("\n")[0])
    except OSError:
        return None
    return found[0] if found else "unknown"


def _driver_remedy(build: str, driver: str | None) -> str:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return "look at CUDA_VISIBLE_DEVICES, which is set; or install the build for CPUs, which is much smaller"
    if driver is None:
        return (
            "install the GPU's driver, or start the container with its GPUs (docker run --gpus all); without a GPU "
            "install the build for CPUs, which is much smaller"
        )
    return f"install a driver for {build} or newer than {driver}, or an older build of PyTorch"


def of_storage(runs: Path, sharing: Sequence[str]) -> Iterator[Finding]:
    """Free space, and shared memory for the packages that use it (`sharing`)."""
    runs = runs.expanduser().absolute()
    places = {"folder of runs": next(folder for folder in (runs, *runs.parents) if folder.is_dir())}
    with suppress(OSError):  # no folder for temporary files that can be written
        places["temporary files"] = Path(tempfile.gettempdir())
    for place, folder in places.items():
        free = shutil.disk_usage(folder).free
        yield place, f"{bytes_in_words(free)} free"
        if free < _LITTLE_SPACE[place]:
            remedy = "make room, or write elsewhere: `output` of the run file, TMPDIR for temporary files"
            yield MachineProblem("full-disk", "problem", f"{place}: {bytes_in_words(free)} are free", remedy)
    shared = shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.is_dir() else None
    if sharing and shared is not None and shared < _SMALL_SHARED_MEMORY:
        what = f"{SHARED_MEMORY} has {bytes_in_words(shared)}, which is too little for {', '.join(sharing)}"
        remedy = "start the container with more (docker run --shm-size 8g, or --ipc host)"
        yield MachineProblem("shared-memory", "problem", f"{what}; nothing else of Burnish uses it", remedy)


def of_sandbox() -> Iterator[Finding]:
    """The strongest tier of the sandbox that holds against all attacks."""
    from burnish.sandbox.trial import strongest

    try:
        with strongest() as sandbox:
            yield "sandbox", f"{sandbox.tier}, which held against all attacks"
    except SandboxError as error:
        what = f"{hidden(error.message)}; the reward code and the tool python need one"
        remedy = "use Linux 6.2 or newer outside of restricted containers, or a server (sandbox.url)"
        yield MachineProblem("sandbox", "note", what, remedy)


def _import_failure(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 boundary: a package with missing libraries may raise anything
        return hidden(f"{type(error).__name__}: {error}")[:300]
    return None
