"""Forwards what code from outside prints to standard error, with a limit on the rate."""

from __future__ import annotations

import contextlib
import os
import time

BURST_BYTES = 1 << 20
BYTES_PER_SECOND = 64 << 10
_CHUNK = 1 << 16


def forward(source: int, target: int = 2) -> None:
    """Copy `source` to `target` until it ends: up to 1 MiB at once, then 64 KiB per second.

    Anything beyond that is read and dropped, so that the writer never blocks. A note in the output says how much.
    """
    allowance, left_out, last = float(BURST_BYTES), 0, time.monotonic()
    while data := os.read(source, _CHUNK):
        now = time.monotonic()
        allowance = min(BURST_BYTES, allowance + (now - last) * BYTES_PER_SECOND)
        last = now
        if len(data) > allowance:
            left_out += len(data)
            continue
        allowance -= len(data)
        _write(target, _omission(left_out) + data)
        left_out = 0
    _write(target, _omission(left_out))


def _omission(left_out: int) -> bytes:
    if not left_out:
        return b""
    return f"\n[burnish: {left_out:,} bytes that were printed are left out here]\n".encode()


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads the output any more, which must not affect who prints
        while data:
            data = data[os.write(target, data) :]
