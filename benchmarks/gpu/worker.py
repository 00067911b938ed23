"""The process that measures. It is warm from row to row, and replaced after a row that failed, hung or killed it: what
such a row leaves on a device is nobody's figure."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from device import Device, RehearsalDevice
from rows import Place, Row, Skipped
from transformers.utils.logging import disable_progress_bar

STARTING_SECONDS = 60.0
"""What a new process may take before its first row: the imports of torch and transformers."""


def measure(row: Row, device: Device) -> dict[str, Any]:
    """What becomes of a row: its `figures` (with a `profile` of some), why it is `skipped`, or its `error`."""
    part = importlib.import_module(f"parts.{row.part}")
    with tempfile.TemporaryDirectory(prefix="burnish-gpu-", ignore_cleanup_errors=True) as folder:
        try:
            device.forget_peak()
            return {"figures": part.measure(row.settings, Place(device, Path(folder)))}
        except Skipped as reason:
            return {"skipped": str(reason)}
        except Exception as error:  # noqa: BLE001 boundary: whatever a row raises is what is known of it
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:600]
            return {"error": f"{type(error).__name__}: {text} ({Path(where.filename).name}:{where.lineno})"}


def serve(connection: Connection, rehearses: bool) -> None:
    """Measure rows until the other side is gone."""
    os.setsid()  # so that it can be ended with all that it starts
    disable_progress_bar()
    device = RehearsalDevice() if rehearses else Device()
    with suppress(EOFError, BrokenPipeError):
        while True:
            connection.send(measure(connection.recv(), device))


class Worker:
    """A process that is started when it is needed."""

    def __init__(self, *, rehearses: bool) -> None:
        self._rehearses = rehearses
        self._process: Any = None
        self._connection: Connection | None = None

    def measure(self, row: Row, seconds: float) -> Mapping[str, Any]:
        """What `measure` says, or the error of a row that took longer or ended the process."""
        connection, is_new = self._connection or self._start(), self._connection is None
        self._connection = connection
        connection.send(row)
        try:
            if connection.poll(seconds + (STARTING_SECONDS if is_new else 0.0)):
                found: dict[str, Any] = connection.recv()
            else:
                found = {"error": f"still running after {seconds:.0f} s"}
        except EOFError:
            self._process.join(5)
            found = {"error": f"its process ended with status {self._process.exitcode}"}
        if "error" in found:
            self.end(seconds=0.0)
        return found

    def end(self, seconds: float = 10.0) -> None:
        """End the process, which has so long to do that by itself, and all that it started."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join(seconds)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
        self._process, self._connection = None, None

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._rehearses), daemon=False)
        self._process.start()
        theirs.close()
        return ours
