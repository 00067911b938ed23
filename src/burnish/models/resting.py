"""State that is offloaded between the phases of a step that need it (`cluster.offload`).

`Resting` holds the tensors of one role. Within `awake()` they are where the role computes; outside of it their memory
is free and their numbers are in memory that the role does not compute in: pinned host memory for tensors of a GPU, a
file for tensors of a CPU. Tensors keep their identity, shape and views, because only their storage is given up:
optimizers, slices of a team, adapters and kernels need to know nothing of it. A tensor that rests has the address 0, so
using it by mistake ends the process instead of giving wrong numbers.

Optimizers, critics and references that `rest` have such state: each of their methods is awake for as long as it runs.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish.errors import OffloadError
from burnish.machine.memory import return_freed_memory
from burnish.models.roles import TrainingState
from burnish.planning.memory import bytes_in_words

BLOCK_BYTES = 1 << 26
"""Size of a block of host memory: 64 MiB."""


class RestingFile:
    """A file without a name in a folder: it is gone when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self.name = f"a file in {folder}"
        self._file, path = tempfile.mkstemp(prefix="resting-", dir=folder)
        os.unlink(path)
        weakref.finalize(self, os.close, self._file)
        self._reserved = 0

    def keep(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """Copy their numbers here, replacing the ones kept before. OSError or RuntimeError if there is no room,
        which is reserved first: a disk that is full says so before anything is written."""
        total = sum(storage.nbytes() for storage in storages)
        if total > self._reserved:
            if sys.platform == "linux":
                os.posix_fallocate(self._file, 0, total)
            self._reserved = total
        place = 0
        for storage in storages:
            numbers, done = _memory_of(storage), 0
            while done < len(numbers):
                done += os.pwrite(self._file, numbers[done:], place + done)
            place += done

    def give_back(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """Copy the numbers back into storages of the same sizes, in the same order."""
        place = 0
        for storage in storages:
            numbers, done = _memory_of(storage), 0
            while done < len(numbers):
                read = os.preadv(self._file, [numbers[done:]], place + done)
                if read == 0:
                    raise OSError(f"the file ends after {place + done} bytes")
                done += read
            place += done

    def after(self) -> None:
        """Called when the storages' own memory has been freed, so that others can have it."""
        return_freed_memory()


class RestingHostMemory:
    """Host memory, pinned if there is a GPU, so that copies are fast and are queued together. It is kept for the next
    time, in blocks: PyTorch rounds pinned memory up to a power of two, up to twice the size of a large tensor."""

    name = "host memory"

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []

    def keep(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """See `RestingFile.keep`. The numbers have arrived when this returns."""
        pinned = torch.cuda.is_available()
        missing = sum(storage.nbytes() for storage in storages) - sum(block.numel() for block in self._blocks)
        for first in range(0, missing, BLOCK_BYTES):
            size = min(BLOCK_BYTES, missing - first)
            self._blocks.append(torch.empty(size, dtype=torch.uint8, pin_memory=pinned))
        for room, numbers in self._pieces(storages):
            room.copy_(numbers, non_blocking=pinned)
        if pinned and storages:
            torch.cuda.synchronize(storages[0].device)  # the role's device

    def give_back(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """See `RestingFile.give_back`. Copies are queued before what reads the numbers, and before the next `keep`."""
        for room, numbers in self._pieces(storages):
            numbers.copy_(room, non_blocking=torch.cuda.is_available())

    def _pieces(self, storages: Sequence[torch.UntypedStorage]) -> Iterator[tuple[Tensor, Tensor]]:
        """(part of a block, the bytes that belong there), one after the other."""
        blocks = iter(self._blocks)
        room = next(blocks, torch.empty(0, dtype=torch.uint8))
        for storage in storages:
            numbers = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            while numbers.numel():
                room = room if room.numel() else next(blocks)
                size = min(room.numel(), numbers.numel())
                yield room[:size], numbers[:size]
                room, numbers = room[size:], numbers[size:]

    def after(self) -> None:
        """See `RestingFile.after`. An engine in another process can have the GPU's memory now."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


RestingPlace = RestingFile | RestingHostMemory
"""Storage for the numbers of offloaded tensors. `name` ends the sentence 'it cannot rest in'."""


def resting_place(device: torch.device, folder: Path) -> RestingPlace:
    """Choose where to offload tensors of `device`. `folder`: on a disk, for tensors in the host's memory."""
    return RestingFile(folder) if device.type == "cpu" else RestingHostMemory()


def _memory_of(storage: torch.UntypedStorage) -> memoryview:
    numbers = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    return memoryview(numbers).cast("B")


class Resting:
    """The tensors of one role, which rest between the phases that need them, from now on.

    tensors: returns the current ones (an optimizer has none before its first step). Their memory must be PyTorch's own
    (`own_memory`). changes: whether phases change the numbers; if not, they are written once.

    If there is no room, the state stays as it is, and OffloadError is raised once; from then on the role stays awake,
    so that its state can still be saved.
    """

    def __init__(
        self, role: str, place: RestingPlace, tensors: Callable[[], Iterable[Tensor]], *, changes: bool = True
    ) -> None:
        self._role = role
        self._place = place
        self._tensors = tensors
        self._changes = changes
        self._asleep: list[tuple[torch.UntypedStorage, int]] = []
        self._kept = False
        self._users = 0
        self._gave_up = False
        self._lock = threading.Lock()  # a reward model may score in a thread while another one evaluates
        self._lie_down()

    @property
    def num_bytes(self) -> int:
        """Bytes offloaded at the moment: 0 while the role is awake."""
        return sum(size for _, size in self._asleep)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Keep the state in its own memory until the outermost of these blocks ends. OffloadError if it cannot be
        brought back or, at the end, offloaded again."""
        with self._lock:
            if self._users == 0:
                self._wake()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._lie_down()

    def copied(self, state: TrainingState) -> TrainingState:
        """The state, with copies of the tensors in it that are offloaded between phases."""
        places = {tensor.data_ptr() for tensor in self._tensors()}

        def copy(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: copy(part) for name, part in value.items()}
            return value.clone() if isinstance(value, Tensor) and value.data_ptr() in places else value

        return {name: copy(part) for name, part in state.items()}

    def _wake(self) -> None:
        try:
            for storage, size in self._asleep:
                storage.resize_(size)
            self._place.give_back([storage for storage, _ in self._asleep])
        except (OSError, RuntimeError) as error:  # PyTorch raises the latter if there is no memory
            raise self._error("cannot come back from", self.num_bytes, error) from error
        self._asleep = []

    def _lie_down(self) -> None:
        if self._gave_up:
            return
        storages = self._storages()
        try:
            if self._changes or not self._kept:
                self._place.keep(storages)
                self._kept = True
        except (OSError, RuntimeError) as error:
            self._gave_up = True
            raise self._error("cannot rest in", sum(storage.nbytes() for storage in storages), error) from error
        # Only now that every number has been written is the memory given up.
        self._asleep = [(storage, storage.nbytes()) for storage in storages]
        for storage in storages:
            storage.resize_(0)
        self._place.after()

    def _storages(self) -> list[torch.UntypedStorage]:
        """The memory of the tensors, each once: tied weights share theirs."""
        all_of_them = [tensor.untyped_storage() for tensor in self._tensors()]
        return list({storage.data_ptr(): storage for storage in all_of_them if storage.nbytes()}.values())

    def _error(self, what: str, num_bytes: int, error: Exception) -> OffloadError:
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())[:200]
        return OffloadError(
            f"cluster.offload: the {self._role} {what} {self._place.name}, which takes {bytes_in_words(num_bytes)}: "
            f"{reason}",
            remedy="make room there, or name fewer roles in cluster.offload",
        )


def rest_frozen(role: str, model: nn.Module, folder: Path) -> Resting:
    """Offload the weights of a model that never trains. OffloadError if there is no room."""
    own_memory(model)
    device = next(model.parameters()).device
    return Resting(role, resting_place(device, folder), model.parameters, changes=False)


def own_memory(module: nn.Module) -> None:
    """Copy weights that are in memory which PyTorch cannot give back, such as a file that is mapped. Call it before
    anything holds a view of them."""
    for parameter in module.parameters():
        if not parameter.untyped_storage().resizable():
            parameter.data = parameter.detach().clone()
