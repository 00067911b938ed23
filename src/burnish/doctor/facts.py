"""What the doctor finds: plain values, of which the text, the JSON and the problems are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from burnish.container import Limits

Weight = Literal["fatal", "problem", "note"]

FORMAT = 1
"""Of the JSON. It rises when a key goes away or changes its meaning; new keys may come at any time."""


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional part of the installation. packages: version by name, None for one that is not there."""

    name: str
    packages: Mapping[str, str | None]
    enables: str

    @property
    def is_there(self) -> bool:
        return None not in self.packages.values()


@dataclass(frozen=True, slots=True)
class Versions:
    """revision: commit of a checkout. packages: those that are always needed, None for one that is not there. broken:
    what importing PyTorch or transformers ended with, by name."""

    burnish: str
    revision: str | None
    python: str
    packages: Mapping[str, str | None]
    extras: tuple[Extra, ...]
    broken: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class System:
    """name: kernel and machine; libc: name and version. Bytes of the whole machine, and None where it does not say."""

    name: str
    distribution: str | None
    libc: str | None
    memory_bytes: int | None
    available_bytes: int | None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Processor:
    """cores: of the machine; allowed_cores: that this process may keep busy. capabilities: instructions that products
    are faster with, empty where the system does not say. vectors: those that PyTorch uses. settings: values of the
    environment variables that turn something off or on; fault: what is wrong with them."""

    name: str
    machine: str
    cores: int
    allowed_cores: int
    capabilities: Mapping[str, bool]
    settings: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None
    vectors: str | None = None
    threads: int | None = None
    threads_because: str | None = None


@dataclass(frozen=True, slots=True)
class Kernels:
    """built: whether kernels in C can be built and loaded, None if that was not tried. problem: why they cannot, or why
    there is no compiler. cache: the folder that keeps them, None without one; cache_problem: why it is not used.
    timings: those that are kept; forgotten: those that were removed first, None if that was not asked for."""

    compiler: str | None
    version: str | None
    built: bool | None
    problem: str | None
    remedy: str | None
    cache: str | None
    cache_problem: str | None
    libraries: int
    timings: int
    forgotten: int | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """Medians of a few repetitions. products: multiply-adds per second by kind, without those that fail.
    medium_is_accurate: whether the faster float32 product loses nothing. Bytes per second of reading memory, seconds of
    starting an interpreter."""

    threads: int
    products: Mapping[str, float]
    medium_is_accurate: bool
    memory_read: float
    process_start: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """One fast path: the way taken, how it compares, whose timing that is (`now`, `before`; None: nothing was timed),
    and the seconds of each way."""

    path: str
    way: str
    words: str
    timed: str | None
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Paths:
    """What a run of this model would take. model: its name and sizes. float32: PyTorch's precision of float32 products.
    attention: in packed rows, None for padded ones. decoder: of the local engine, None where it does not sample.
    not_tried: why there are no choices; failed: whether that is an error."""

    model: str
    choices: tuple[Chosen, ...] = ()
    float32: str | None = None
    attention: str | None = None
    decoder: str | None = None
    notes: tuple[str, ...] = ()
    not_tried: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """auto: the tier that `tier: auto` is, None if none confines. tiers: by name why it is not available, None if it
    is. attacked: whether the tier was attacked, or only started."""

    auto: str | None
    tiers: Mapping[str, str | None]
    attacked: bool


@dataclass(frozen=True, slots=True)
class Storage:
    """A file system: what it is for, its kind (ext4, nfs, tmpfs; None where the system does not say), its bytes."""

    place: str
    kind: str | None
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """capability: that of the architecture, `9.0`."""

    name: str
    capability: str
    total_bytes: int
    free_bytes: int
    bfloat16: bool


@dataclass(frozen=True, slots=True)
class Gpus:
    """build: what this PyTorch is built for (`CPU`, `CUDA 12.8`). driver: version of NVIDIA's
    kernel module, None without one. failure: what PyTorch says when it is asked. hidden: whether CUDA_VISIBLE_DEVICES
    is set, which may hide some."""

    build: str
    driver: str | None
    found: tuple[Gpu, ...] = ()
    failure: str | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything. None: it was left out, or cannot be known without PyTorch."""

    versions: Versions
    system: System
    processor: Processor
    sandbox: Sandbox
    storage: tuple[Storage, ...]
    kernels: Kernels | None = None
    rates: Rates | None = None
    paths: Paths | None = None
    gpus: Gpus | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """name: stays the same from version to version. weight: `fatal` (nothing can run), `problem` (something fails or is
    much slower than it could be), `note` (it may be on purpose)."""

    name: str
    weight: Weight
    what: str
    remedy: str
