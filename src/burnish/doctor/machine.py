"""The system, the processor and the file systems, from what Linux says about itself; less is known elsewhere."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from burnish import processor
from burnish.container import Limits, allowed_cores, container_limits
from burnish.doctor.facts import Processor, Storage, System
from burnish.doctor.privacy import hidden
from burnish.errors import ConfigError

CAPABILITIES = {
    "x86_64": ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"),
    "aarch64": ("asimd", "sve", "sve2", "i8mm", "bf16", "svebf16"),
}
"""Names in /proc/cpuinfo of the instructions that matrix products are faster with; `asimd` is NEON."""
SETTINGS = (
    processor.WITHOUT,
    processor.TIMING,
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""The only environment variables whose values are shown: they turn capabilities off, or say how many threads there are.
All are short words and numbers."""
_LONGEST_VALUE = 80
_ARM_CORES = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0b"): "Arm Cortex-A76",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""Implementer and part in /proc/cpuinfo -> name. There, ARM processors have no name of their own."""
SHARED_MEMORY = Path("/dev/shm")


def find_system(root: Path = Path("/")) -> System:
    """`root` is that of the file system, for what is read from files."""
    libc = " ".join(platform.libc_ver()).strip()
    memory = _memory_info(root / "proc/meminfo")
    return System(
        name=f"{platform.system()} {platform.release()} {platform.machine()}",
        distribution=_distribution(),
        libc=libc or None,
        memory_bytes=memory.get("MemTotal", _physical_memory()),
        available_bytes=memory.get("MemAvailable"),
        limits=container_limits(root),
    )


def find_processor(limits: Limits, environment: Mapping[str, str] = os.environ) -> Processor:
    """Without what only PyTorch knows."""
    machine, described = platform.machine(), _described()
    words = set(described.get("flags", described.get("features", "")).split())
    known = CAPABILITIES.get("aarch64" if machine == "arm64" else machine, ())
    return Processor(
        name=_processor_name(described),
        machine=machine,
        cores=os.cpu_count() or 1,
        allowed_cores=allowed_cores(limits),
        capabilities={name: name in words for name in known} if words else {},
        settings={name: hidden(environment[name])[:_LONGEST_VALUE] for name in SETTINGS if environment.get(name)},
        fault=_fault(),
    )


def find_storage(work: Path, mounts: Path = Path("/proc/self/mountinfo")) -> tuple[Storage, ...]:
    """Shared memory, the folder that runs are written to, and that of temporary files, as far as they exist."""
    places = {"shared memory": SHARED_MEMORY, "folder of runs": work, "temporary files": _temporary()}
    return tuple(_storage(name, path, mounts) for name, path in places.items() if path is not None and path.exists())


def threads_because(threads: int, environment: Mapping[str, str] = os.environ) -> str:
    """Why PyTorch takes this many threads."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if environment.get(name, "").strip() == str(threads):
            return f"{name} is {threads}"
    return "PyTorch's own choice"


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:  # not Linux, or a bare container
        return f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else None


def _memory_info(file: Path) -> dict[str, int]:
    """Bytes by name."""
    found = {}
    with suppress(OSError):
        for line in file.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, amount = line.partition(":")
            words = amount.split()
            if len(words) == 2 and words[0].isdigit():
                found[name] = int(words[0]) * 1024
    return found


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _described() -> dict[str, str]:
    """Entries of /proc/cpuinfo by their names in small letters."""
    parts = (line.partition(":") for line in processor.description())
    return {name.strip().lower(): value.strip() for name, _, value in parts}


def _processor_name(described: Mapping[str, str]) -> str:
    if "model name" in described:
        return described["model name"]
    implementer, part = described.get("cpu implementer"), described.get("cpu part")
    if implementer and part:
        return _ARM_CORES.get((implementer, part), f"implementer {implementer}, part {part}")
    return platform.processor() or "unknown"


def _fault() -> str | None:
    """What is wrong with the variables of Burnish's own; a run would refuse them with the same words."""
    try:
        processor.allows("onednn")
        processor.times_paths()
    except ConfigError as error:
        return hidden(f"{error.message}: {error.remedy}")
    return None


def _temporary() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # none that can be written
        return None


def _storage(name: str, path: Path, mounts: Path) -> Storage:
    usage = shutil.disk_usage(path)
    return Storage(name, _file_system(path, mounts), usage.total, usage.free)


def _file_system(path: Path, mounts: Path) -> str | None:
    """Kind of the file system with the longest mount point above the path; of two on one another, the later one."""
    best, kind = -1, None
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            words, kinds = before.split(), after.split()
            if len(words) < 5 or not kinds:
                continue
            point = Path(_unescaped(words[4]))
            if len(point.parts) >= best and _is_below(path.resolve().parts, point.parts):
                best, kind = len(point.parts), kinds[0]
    return kind


def _is_below(path: Sequence[str], folder: Sequence[str]) -> bool:
    return tuple(path[: len(folder)]) == tuple(folder)


def _unescaped(text: str) -> str:
    """Spaces and the like are octal there: `/mnt/my\\040disk`."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text
