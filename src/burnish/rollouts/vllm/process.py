"""The engine's handle on its worker process: start it, push weights to it, ask it, end it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from burnish.errors import RolloutError
from burnish.models.weights import in_chunks
from burnish.outside.frames import GarbledError, ask, pair, send_frame
from burnish.outside.plugins import describe_exit
from burnish.outside.supervise import holding_back_stop_signals, run_program, start

SCRIPT = Path(__file__).with_name("worker.py")
Message = dict[str, Any]
"""A JSON object. worker.py describes each kind."""

CHUNK_BYTES = 256 << 20
"""Weights in the shared memory at a time (a larger tensor is sent alone)."""

_ALIGNMENT = 64
_LOG_TAIL_LINES = 12
_LOOK_SECONDS = 120.0  # an interpreter on a slow network disk starts slowly


class WorkerLost(Exception):
    """The worker died, did not answer in time or sent an invalid answer. The message says which."""


class WorkerFault(Exception):
    """The worker is alive and reports that a request failed."""


class EngineProcess:
    """A worker in its own session. All of its output goes to `log`, none to ours."""

    def __init__(self, python: str, log: Path, *, script: Path = SCRIPT) -> None:
        """Start the worker. Raises RolloutError if its interpreter cannot be started or the log cannot be opened."""
        self._log = log
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            try:
                output = theirs.enter_context(_open_log(log))
                self._log_start = output.tell()
                self._socket, socket_of_worker = theirs.enter_context(pair())
                self._memory = os.memfd_create("burnish-weights")
                ours.callback(os.close, self._memory)  # unless the process starts
                self._start(python, script, (socket_of_worker.fileno(), self._memory), output)
            except OSError as error:
                raise RolloutError(
                    f"cannot start {python} with its log in {log}: {error}",
                    remedy="fix rollout.vllm.python, move away whatever is at the path of the log, or raise the limits "
                    "of processes and open files (ulimit -u, ulimit -n)",
                ) from error
            ours.pop_all()

    def _start(self, python: str, script: Path, descriptors: tuple[int, int], output: BinaryIO) -> None:
        with holding_back_stop_signals():
            self._process = start(
                [python, str(script), *map(str, descriptors), str(os.getpid())],
                stdout=output,
                stderr=output,
                descriptors=descriptors,
                environment=worker_environment(python),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: Message, *, seconds: float) -> Message:
        """Send a message and return the answer. WorkerLost if there is none within this many seconds, WorkerFault if it
        is an error, RolloutError if the worker refuses."""
        try:
            answer = ask(self._socket, json.dumps(message).encode(), seconds=seconds)
        except TimeoutError as error:
            raise WorkerLost(f"did not answer {message['kind']!r} within {seconds:g} seconds") from error
        except EOFError as error:
            raise WorkerLost(self._epitaph()) from error
        except (GarbledError, MemoryError) as error:
            raise WorkerLost(f"sent an answer that is not a message ({error})") from error
        if "refused" in answer:
            raise RolloutError(
                f"the vLLM worker refuses {message['kind']!r}: {answer['refused']}",
                remedy="its weights must be those of the last sync(): this is a bug in Burnish, please report it",
            )
        if "error" in answer:
            raise WorkerFault(str(answer["error"]))
        return answer

    def push(
        self, weights: Iterable[tuple[str, Tensor]], version: int, *, seconds: float, base: int | None = None
    ) -> int:
        """Send the weights through the shared memory: all of them, or the changes since version `base`. Returns their
        number of bytes. Raises as `ask` does."""
        try:
            self._socket.settimeout(None)
            send_frame(self._socket, json.dumps({"kind": "push", "version": version, "base": base}).encode())
        except EOFError as error:
            raise WorkerLost(self._epitaph()) from error
        total = 0
        for chunk in in_chunks(weights, CHUNK_BYTES, _aligned_bytes):
            self._push_chunk(chunk, seconds)
            total += sum(tensor.nbytes for _, tensor in chunk)
            del chunk  # before the next one takes memory
        answer = self.ask({"kind": "chunk", "tensors": []}, seconds=seconds)
        if answer.get("version") != version:
            raise WorkerLost(f"has version {answer.get('version')!r} after version {version} was pushed")
        return total

    def kill(self) -> None:
        """Kill the worker and everything that it started. Idempotent."""
        self._process.end()
        self._socket.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def log_tail(self) -> str:
        """The last lines that this worker printed, or why they cannot be read."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._log_start)
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError as error:  # the log was removed, but the worker's failure must still be reported
            lines = [f"(cannot read {self._log}: {error.strerror})"]
        return "\n".join(f"    {line}" for line in lines[-_LOG_TAIL_LINES:])

    def _push_chunk(self, chunk: Sequence[tuple[str, Tensor]], seconds: float) -> None:
        size = sum(_aligned_bytes(tensor) for _, tensor in chunk)
        if os.fstat(self._memory).st_size < size:
            os.ftruncate(self._memory, size)
        entries, offset = [], 0
        with mmap.mmap(self._memory, size) as memory:
            for name, tensor in chunk:
                _write(tensor, memory, offset)
                dtype = str(tensor.dtype).removeprefix("torch.")
                entries.append({"name": name, "dtype": dtype, "shape": list(tensor.shape), "offset": offset})
                offset += _aligned_bytes(tensor)
        self.ask({"kind": "chunk", "bytes": size, "tensors": entries}, seconds=seconds)

    def _epitaph(self) -> str:
        """Describe how the worker ended. It has closed its end of the socket, so it should be ending."""
        status = self._process.status(5.0)
        return "closed its connection without ending" if status is None else f"ended ({describe_exit(status)})"


def worker_environment(python: str) -> dict[str, str]:
    """Return this process's environment, without its module path if the interpreter differs. vLLM runs in one process,
    logs only warnings and stays off the network: all its files are in the given folder. Variables that are already set
    keep their values, except the one for a single process."""
    inherited = dict(os.environ)
    if python != sys.executable:
        for name in ("PYTHONPATH", "PYTHONHOME"):
            inherited.pop(name, None)
    quiet = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**quiet, **inherited, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def has_vllm(python: str) -> bool:
    """Return whether this interpreter finds the vllm package. OSError if it cannot be started or does not end."""
    # The current folder is left out, because it may contain another `vllm` and the worker does not look there either.
    program = (
        "import sys; del sys.path[0]; from importlib.util import find_spec; "
        "found = find_spec('vllm'); sys.exit(found is None or found.origin is None)"
    )
    try:
        done = run_program([python, "-c", program], seconds=_LOOK_SECONDS, environment=worker_environment(python))
    except TimeoutError as error:
        raise TimeoutError(f"it did not say within {_LOOK_SECONDS:g} seconds whether it has vllm") from error
    return done.returncode == 0


def _open_log(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600), "ab")


def _write(tensor: Tensor, memory: mmap.mmap, offset: int) -> None:
    target = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    target.copy_(tensor.detach().reshape(-1))


def _aligned_bytes(tensor: Tensor) -> int:
    return -(-max(tensor.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
