"""What is wrong with a machine or an installation, judged by the facts alone, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.doctor.facts import Facts, Gpus, Kernels, Problem, Processor
from burnish.planning.memory import bytes_in_words

_SMALL_SHARED_MEMORY = 1 << 30
_LITTLE_MEMORY = 2 << 30
_LITTLE_SPACE = {"folder of runs": 5 << 30, "temporary files": 1 << 30}
_SLOWER = 0.9
"""Rate of bfloat16 products over that of float32 ones, below which float32 is the better choice."""
_TURNS_OFF = ("BURNISH_WITHOUT", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def find_problems(facts: Facts) -> tuple[Problem, ...]:
    """The gravest first."""
    found = [
        *_of_packages(facts),
        *_of_processor(facts.processor),
        *_of_memory(facts),
        *(() if facts.kernels is None else _of_kernels(facts.kernels, facts.system.name)),
        *(() if facts.gpus is None else _of_gpus(facts.gpus)),
        *_of_bfloat16(facts),
        *_of_model(facts),
        *_of_sandbox(facts),
        *_of_storage(facts),
    ]
    return tuple(sorted(found, key=lambda problem: ("fatal", "problem", "note").index(problem.weight)))


def _of_packages(facts: Facts) -> Iterator[Problem]:
    for package, version in facts.versions.packages.items():
        if version is None:
            yield Problem(
                f"no-{package}",
                "fatal",
                f"{package} is not installed",
                f"pip install {package} (docs/install.md says which build of PyTorch to take)",
            )
    for package, failure in facts.versions.broken.items():
        if facts.versions.packages.get(package) is not None:
            yield Problem(
                f"broken-{package}",
                "fatal",
                f"{package} is installed and cannot be imported: {failure}",
                f"install {package} anew, in an environment of its own; for PyTorch take the build for this machine",
            )


def _of_processor(processor: Processor) -> Iterator[Problem]:
    if processor.fault is not None:
        yield Problem("setting", "problem", processor.fault, "every run is refused like this until it is mended")
    off = {name: value for name, value in processor.settings.items() if name in _TURNS_OFF}
    off |= {name: value for name, value in processor.settings.items() if (name, value) == ("BURNISH_TIMING", "off")}
    if off and processor.fault is None:
        named = ", ".join(f"{name}={value}" for name, value in off.items())
        yield Problem(
            "turned-off",
            "note",
            f"something is turned off: {named}",
            f"unset {', '.join(off)}, unless it is on purpose",
        )
    threads, cores = processor.threads, processor.allowed_cores
    if threads is not None and threads > cores:
        yield Problem(
            "too-many-threads",
            "problem",
            f"PyTorch takes {threads} threads ({processor.threads_because}), but this process may keep "
            f"{cores} of {processor.cores} cores busy: threads that wait for each other are many times slower",
            f"set OMP_NUM_THREADS={cores}",
        )
    if threads is not None and threads < cores and processor.threads_because != "PyTorch's own choice":
        yield Problem(
            "few-threads",
            "note",
            f"PyTorch takes {threads} of {cores} cores ({processor.threads_because})",
            "unset it, unless other processes need the rest",
        )


def _of_memory(facts: Facts) -> Iterator[Problem]:
    amounts = (facts.system.available_bytes, facts.system.limits.memory_bytes)
    least = min((amount for amount in amounts if amount is not None), default=None)
    if least is not None and least < _LITTLE_MEMORY:
        yield Problem(
            "little-memory",
            "problem",
            f"{bytes_in_words(least)} of memory can be used; Python with PyTorch and a model of some million weights "
            "takes about 1 GiB",
            "end other processes, or raise the container's limit; burnish plan says what a run needs",
        )


def _of_kernels(kernels: Kernels, system: str) -> Iterator[Problem]:
    if kernels.problem is not None and system.startswith("Linux"):
        yield Problem(
            "no-kernels",
            "problem",
            f"kernels in C cannot be used, without which a CPU trains and samples more slowly: {kernels.problem}",
            kernels.remedy or "install gcc, or name another compiler in CC",
        )
    if kernels.cache_problem is not None:
        yield Problem(
            "cache",
            "problem",
            f"{kernels.cache} cannot be used ({kernels.cache_problem}): kernels are built and ways are timed anew at "
            "each start, and two starts may take different ways",
            "make the folder and those above it your own, without write permission for others, or set XDG_CACHE_HOME",
        )
    if kernels.cache is None:
        yield Problem(
            "no-cache",
            "note",
            "there is no home folder: kernels are built and ways are timed anew at each start",
            "set HOME, or XDG_CACHE_HOME to a folder of your own",
        )


def _of_gpus(gpus: Gpus) -> Iterator[Problem]:
    if gpus.failure is not None:
        yield Problem("gpu", "problem", f"PyTorch cannot use the GPU: {gpus.failure}", _driver_remedy(gpus))
    elif gpus.build.startswith(("CUDA", "ROCm")) and not gpus.found:
        yield Problem(
            "no-gpu",
            "problem",
            f"this PyTorch is built for {gpus.build} and sees no GPU, so everything runs on the CPU",
            _driver_remedy(gpus),
        )
    elif gpus.build == "CPU" and gpus.driver is not None:
        yield Problem(
            "unused-gpu",
            "problem",
            f"NVIDIA's driver {gpus.driver} is there, but this PyTorch is built for CPUs",
            "install the build for CUDA (docs/install.md)",
        )
    old = [gpu.name for gpu in gpus.found if not gpu.bfloat16]
    if old:
        yield Problem(
            "gpu-without-bfloat16",
            "note",
            f"{old[0]} has no instructions for bfloat16, which is emulated",
            "set model.dtype: float32",
        )


def _driver_remedy(gpus: Gpus) -> str:
    if gpus.hidden:
        return "look at CUDA_VISIBLE_DEVICES, which is set; or install the build for CPUs, which is much smaller"
    if gpus.driver is None:
        return (
            "install the GPU's driver, or start the container with its GPUs (docker run --gpus all); without a GPU "
            "install the build for CPUs, which is much smaller"
        )
    return f"install a driver for {gpus.build} or newer than {gpus.driver}, or an older build of PyTorch"


def _of_bfloat16(facts: Facts) -> Iterator[Problem]:
    if facts.gpus is not None and facts.gpus.found:
        return
    products = {} if facts.rates is None else facts.rates.products
    if "bfloat16" in products and products["bfloat16"] < _SLOWER * products["float32"]:
        part = products["bfloat16"] / products["float32"]
        yield Problem(
            "slow-bfloat16",
            "note",
            f"bfloat16 products run at {part:.2g} of the rate of float32 ones: here they are emulated",
            "leave model.dtype at float32, unless you lack the memory",
        )


def _of_model(facts: Facts) -> Iterator[Problem]:
    if facts.paths is not None and facts.paths.failed:
        yield Problem(
            "model",
            "problem",
            f"{facts.paths.model} cannot be tried: {facts.paths.not_tried}",
            "mend what it names; burnish plan FILE checks the rest of a run file",
        )


def _of_sandbox(facts: Facts) -> Iterator[Problem]:
    if facts.sandbox.auto is None:
        yield Problem(
            "sandbox",
            "note",
            "no tier of the sandbox confines programs here: the rewards code and sql and the tool python need one",
            "use Linux 6.2 or newer outside of restricted containers, or a server (sandbox.url); burnish sandbox says "
            "what holds",
        )


def _of_storage(facts: Facts) -> Iterator[Problem]:
    for storage in facts.storage:
        needed = _LITTLE_SPACE.get(storage.place)
        if needed is not None and storage.free_bytes < needed:
            yield Problem(
                "full-disk",
                "problem",
                f"{storage.place}: {bytes_in_words(storage.free_bytes)} are free",
                "make room, or write elsewhere: `output` of the run file, TMPDIR for temporary files",
            )
        if storage.place == "shared memory" and storage.total_bytes < _SMALL_SHARED_MEMORY:
            users = list(_users_of_shared_memory(facts))
            if users:
                yield Problem(
                    "shared-memory",
                    "problem",
                    f"/dev/shm has {bytes_in_words(storage.total_bytes)}, which is too little for "
                    f"{', '.join(users)}; nothing else of Burnish uses it",
                    "start the container with more (docker run --shm-size 8g, or --ipc host)",
                )


def _users_of_shared_memory(facts: Facts) -> Iterator[str]:
    there = {extra.name for extra in facts.versions.extras if extra.is_there}
    yield from (word for name, word in (("ray", "Ray"), ("vllm", "vLLM")) if name in there)
    if facts.gpus is not None and len(facts.gpus.found) > 1:
        yield "several GPUs (NCCL)"
