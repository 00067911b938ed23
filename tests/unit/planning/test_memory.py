"""Bytes by hand."""

from __future__ import annotations

from burnish.planning.memory import bytes_in_words


def test_bytes_in_words() -> None:
    assert [bytes_in_words(n) for n in (12, 2048, 3 * 2**20, 5 * 2**30)] == ["12 B", "2.0 KiB", "3.0 MiB", "5.00 GiB"]
