"""Special capabilities of this machine's processor, and the environment variables that turn them off.

`BURNISH_WITHOUT` is a comma-separated list of capabilities not to use. Tests set it to simulate another processor, and
users can set it when they suspect a fast path. To turn off the C compiler, set `CC=no-such`. With `BURNISH_TIMING=off`
every fast path that computes the same result is taken without being timed (`burnish.forward.fast_paths`).
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from burnish.errors import ConfigError

Capability = Literal[
    "onednn",
    "onednn_bfloat16",
    "medium_float32",
    "bfloat16",
    "varlen_attention",
    "flex_attention",
    "compiled_layers",
    "static_decoder",
]
"""`onednn`: matrix products with weights in blocks; `onednn_bfloat16`: the same for bfloat16; `medium_float32`:
float32 products at PyTorch's "medium"; `bfloat16`: instructions that multiply bfloat16. On a GPU: `varlen_attention`
and `flex_attention`, two ways to attend in packed rows; `compiled_layers`, fused by PyTorch's compiler;
`static_decoder`: decoding steps of fixed shapes."""

WITHOUT, TIMING = "BURNISH_WITHOUT", "BURNISH_TIMING"
REMEDY = "set model.dtype: float32, unless you lack the memory"
_CPU_INFO = Path("/proc/cpuinfo")
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16"})
"""Names of these instructions in /proc/cpuinfo, on x86 and ARM."""
_LIMITS_WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
"""Values of ONEDNN_MAX_CPU_ISA that leave out the instructions for bfloat16."""


def allows(capability: Capability) -> bool:
    """Return whether BURNISH_WITHOUT leaves this capability on. Raises ConfigError if it names an unknown one."""
    names = {name.strip() for name in os.environ.get(WITHOUT, "").split(",")} - {""}
    unknown = sorted(names - set(get_args(Capability)))
    if unknown:
        raise ConfigError(
            f"the environment variable {WITHOUT} names {unknown[0]!r}, which is not a capability",
            remedy=f"use some of {', '.join(get_args(Capability))}, separated by commas",
        )
    return capability not in names


def times_paths() -> bool:
    """Return whether fast paths are timed. Raises ConfigError if BURNISH_TIMING is neither on nor off."""
    value = os.environ.get(TIMING, "on")
    if value not in ("on", "off"):
        raise ConfigError(f"the environment variable {TIMING} is {value!r}", remedy="set it to on or off")
    return value == "on"


def has_onednn() -> bool:
    """Return whether PyTorch offers oneDNN's matrix products with packed weights."""
    import torch  # not at the top, so that `burnish plan` can ask about bfloat16 without loading torch

    if not allows("onednn") or not torch.backends.mkldnn.is_available():
        return False
    try:
        return callable(torch.ops.mkldnn._reorder_linear_weight) and callable(torch.ops.mkldnn._linear_pointwise)
    except AttributeError:  # these operators are private, and some builds of PyTorch do not have them
        return False


def has_onednn_bfloat16() -> bool:
    """Return whether they work for bfloat16, too, which fewer processors support."""
    import torch

    if not has_onednn() or not allows("onednn_bfloat16"):
        return False
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # as above
        return False


def multiplies_bfloat16() -> bool | None:
    """Return whether the processor has instructions for bfloat16, by /proc/cpuinfo; None if that is not available.

    Without them, each product is emulated in float32 with conversions, which takes several times as long.
    """
    if not allows("bfloat16"):
        return False
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _LIMITS_WITHOUT_BFLOAT16:
        return False
    described = description()
    if not described:
        return None
    words = {word for line in described for word in line.lower().split(":", 1)[-1].split()}
    return bool(words & _BFLOAT16_FLAGS)


@cache
def description() -> tuple[str, ...]:
    """Lines of /proc/cpuinfo that identify the first processor, without clock rate and the like; empty if not Linux."""
    try:
        first = _CPU_INFO.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return ()
    kept = ("model name", "flags", "features", "cpu implementer", "cpu part", "cpu variant")
    return tuple(line for line in first if line.lower().startswith(kept))


def identity() -> dict[str, str]:
    """Everything about processor and settings that affects speed, to key stored timings."""
    settings = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "CC", WITHOUT)
    return {
        "machine": platform.machine(),
        "processor": "\n".join(description()) or platform.processor(),
        **{name: os.environ.get(name, "") for name in settings},
    }


def emulation_note() -> str | None:
    """A warning for a bfloat16 model on a CPU that only emulates bfloat16; None if it does not, or if unknown."""
    if multiplies_bfloat16() is not False:
        return None
    return f"bfloat16 is emulated on this processor, several times slower than float32: {REMEDY}"
