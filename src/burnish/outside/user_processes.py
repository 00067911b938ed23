"""Processes that run what comes with a user's files: which environment variables they see, how much of what they print
is forwarded, and calls in a process with a limit on time and memory.

Keys and passwords in the environment of the training process are not passed on. Limits are for programs that may never
end or may use up all memory, such as chat templates and regular expressions.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from burnish.errors import BurnishError
from burnish.outside.supervise import run_program

BURST_BYTES = 1 << 20
BYTES_PER_SECOND = 64 << 10
_CHUNK = 1 << 16
_PROGRAM = "import sys; sys.path[:] = {path!r}; from burnish.outside.user_processes import serve; serve()"
_SLOWER_THAN_ITS_WORK = 6
"""Wall-clock seconds allowed per second of CPU time, because the machine may be busy with other work."""
_NAMES = """
PATH HOME USER LOGNAME SHELL TERM TZ TMPDIR TEMP TMP LANG LANGUAGE
PYTHONPATH PYTHONHOME PYTHONHASHSEED PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX PYTHONWARNINGS PYTHONUTF8
PYTHONIOENCODING PYTHONNOUSERSITE PYTHONUSERBASE PYTHONFAULTHANDLER
VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH
OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS
TOKENIZERS_PARALLELISM CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
XDG_CACHE_HOME XDG_DATA_HOME XDG_CONFIG_HOME
HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_HUB_OFFLINE HF_DATASETS_OFFLINE HF_ENDPOINT
TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE TORCH_HOME NLTK_DATA
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
"""
PASSED = frozenset(_NAMES.split())
"""Variables that every such process gets if they are set, and all that begin with `LC_`. Keys, tokens and
proxies (whose addresses often contain a password) are deliberately missing."""

_UNLESS_SET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # they share the machine with training


def worker_environment(named: Iterable[str], ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of such a process: the variables of `ours` that are in `PASSED` or named."""
    wanted = PASSED.union(named)
    found = {name: value for name, value in ours.items() if name in wanted or name.startswith("LC_")}
    return {**_UNLESS_SET, **found}


def forward(source: int) -> None:
    """Copy `source` to standard error until it ends, then close it: up to 1 MiB at once, then 64 KiB per second.

    Anything beyond that is read and dropped, so that the writer never blocks. A note in the output says how much.
    """
    allowance, left_out, last = float(BURST_BYTES), 0, time.monotonic()
    with open(source, "rb", buffering=0) as output:
        while data := output.read(_CHUNK):
            now = time.monotonic()
            allowance = min(BURST_BYTES, allowance + (now - last) * BYTES_PER_SECOND)
            last = now
            if len(data) > allowance:
                left_out += len(data)
                continue
            allowance -= len(data)
            _write(_omission(left_out) + data)
            left_out = 0
    _write(_omission(left_out))


def _omission(left_out: int) -> bytes:
    if not left_out:
        return b""
    return f"\n[burnish: {left_out:,} bytes that were printed are left out here]\n".encode()


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads the output any more, which must not affect who prints
        while data:
            data = data[os.write(2, data) :]


def call_in_own_process(
    function: str, request: dict[str, Any], *, seconds: int, max_bytes: int | None = None, what: str = "a file"
) -> Any:
    """Call `module:function` with `request` as keyword arguments. Request and result are plain JSON values.

    seconds: limit on CPU time. max_bytes: limit on address space, including what Python itself uses. Raises
    TimeoutError or MemoryError past these limits, BurnishError about `what` if something else kills the process, and
    RuntimeError with the last line that a failing process wrote.
    """
    limits = {"function": function, "seconds": seconds, "max_bytes": max_bytes}
    done = run_program(
        [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
        seconds=seconds * _SLOWER_THAN_ITS_WORK,
        given=json.dumps({**limits, "request": request}).encode(),
    )
    if done.returncode == -signal.SIGXCPU:  # the limit on CPU time
        raise TimeoutError
    if done.returncode < 0:
        number = -done.returncode
        raise BurnishError(
            f"{what} could not be tried: its process was killed by signal {number} ({signal.strsignal(number)})",
            remedy="start again; signal 9 mostly means that memory ran out, so free some before",
        )
    last_line = done.stderr.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
    if last_line.startswith("MemoryError"):
        raise MemoryError
    if done.returncode:
        raise RuntimeError(last_line or f"exit status {done.returncode}")
    return json.loads(done.stdout)


def serve() -> None:
    """Answer one request from standard input on standard output: the body of the separate process."""
    asked = json.load(sys.stdin)
    # At the soft limit the system sends SIGXCPU, which ends Python; the hard one kills whatever survived that.
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"] + 1))
    if asked["max_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (asked["max_bytes"], asked["max_bytes"]))
    module, _, name = asked["function"].partition(":")
    answer = vars(importlib.import_module(module))[name](**asked["request"])
    json.dump(answer, sys.stdout)
