"""What a reward prints: handed on to standard error, but not by the gigabyte."""

from __future__ import annotations

import contextlib
import os
import time

BURST_BYTES = 1 << 20
BYTES_PER_SECOND = 64 << 10
_CHUNK = 1 << 16


def forward(source: int, target: int = 2) -> None:
    """Copies `source` to `target` until its end: up to a mebibyte at once and 64 KiB a second after that. What is more
    is read and left out, and the output says how much that was."""
    allowance, left_out, last = float(BURST_BYTES), 0, time.monotonic()
    while data := os.read(source, _CHUNK):
        now = time.monotonic()
        allowance = min(BURST_BYTES, allowance + (now - last) * BYTES_PER_SECOND)
        last = now
        if len(data) > allowance:
            left_out += len(data)
            continue
        allowance -= len(data)
        _write(target, _note(left_out) + data)
        left_out = 0
    _write(target, _note(left_out))


def _note(left_out: int) -> bytes:
    if not left_out:
        return b""
    return f"\n[burnish: {left_out:,} bytes that a reward printed are left out here]\n".encode()


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more; the reward must not notice
        while data:
            data = data[os.write(target, data) :]
