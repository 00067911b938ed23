"""Signs of life of a process: two counters, in memory that it shares with the one that started it (on another machine
they come over the network, `burnish.distributed.network`).

A stopped process, or one whose interpreter hangs, beats no more. A process that beats may still wait for something that
never comes, which its second counter, of work done, tells.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable

BEAT_SECONDS = 0.5
SILENT_SECONDS = 12.0
"""Without a beat for this long a process counts as hung. A busy one beats on: PyTorch lets other threads run."""

_COUNTERS = struct.Struct("=QQ")


class Pulse:
    """The counters, seen from either side. `descriptor` is of memory without a name, which ends with its users."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _COUNTERS.size)

    @staticmethod
    def new() -> Pulse:
        descriptor = os.memfd_create("burnish-pulse")
        os.ftruncate(descriptor, _COUNTERS.size)
        return Pulse(descriptor)

    def read(self) -> tuple[int, int]:
        """Beats so far, and pieces of work done so far."""
        beats, done = _COUNTERS.unpack_from(self._memory)
        return beats, done

    def beat(self) -> None:
        beats, done = self.read()
        _COUNTERS.pack_into(self._memory, 0, beats + 1, done)

    def progress(self) -> None:
        """Count a piece of work. From another thread than `beat` a beat may be lost, which the next one makes good."""
        beats, done = self.read()
        _COUNTERS.pack_into(self._memory, 0, beats, done + 1)

    def close(self) -> None:
        """Let go of the memory. Idempotent."""
        if self.descriptor >= 0:
            self._memory.close()
            os.close(self.descriptor)
            self.descriptor = -1


class PulseWatch:
    """Looks at a pulse now and then (`read`), and says for how long each counter has stood still."""

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        self._read = read
        self._seen = read()
        self._beat_at = self._progress_at = time.monotonic()

    def look(self) -> None:
        """Note what has changed since the last look."""
        beats, done = self._read()
        if beats != self._seen[0]:
            self._beat_at = time.monotonic()
        if done != self._seen[1]:
            self._progress_at = time.monotonic()
        self._seen = (beats, done)

    def restart(self) -> None:
        """Count from now on: something new is asked for."""
        self._seen = self._read()
        self._beat_at = self._progress_at = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """Since the last beat, or since something was asked for: it may be stopped before its first beat."""
        return time.monotonic() - self._beat_at

    @property
    def idle_seconds(self) -> float:
        """Since the last piece of work, or since something was asked for."""
        return time.monotonic() - self._progress_at
