"""What has been measured, by which code and on which machine: one JSON file, written after every row."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lines import write_json
from rows import Row

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = ("src/burnish", "benchmarks/gpu", "benchmarks/peers")
"""Folders that figures depend on."""
PACKAGES = ("torch", "transformers", "triton", "peft", "trl", "vllm")


def commit() -> str:
    """The commit that is checked out; without one, or if what is measured differs from it, a digest of the sources."""
    status = _git("status", "--porcelain", "--", *MEASURED)
    head = _git("rev-parse", "--short=12", "HEAD")
    return head if head and status == "" else f"sources {sources_digest()}"


def _git(*words: str) -> str | None:
    """None where there is no repository: only the files may have been brought to the machine."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def sources_digest() -> str:
    digest = hashlib.sha256()
    for folder in MEASURED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def host() -> str:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GB"


def versions() -> str:
    """Of Python and of the packages that are installed."""
    return ", ".join([f"Python {platform.python_version()}", *_versions()])


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


class Records:
    """Records of all commits and machines in the file; `stamp` is what those of this call have in common."""

    def __init__(self, file: Path, stamp: Mapping[str, str], *, earlier: Path | None = None) -> None:
        """`earlier`: read in place of a file that is not there yet."""
        self._file, self.stamp = file, dict(stamp)
        known = file if file.is_file() or earlier is None else earlier
        self.rows: list[dict[str, Any]] = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else []

    def has(self, row: Row) -> bool:
        """Whether this code measured the row on such a machine. What was skipped is tried again."""
        return any(self._is_of(record, row) and "skipped" not in record for record in self.rows)

    def add(self, row: Row, found: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Write it to the file, in place of an earlier record of the row by the same code on such a machine."""
        record = {"part": row.part, "row": row.name, **found, "seconds": round(seconds, 1), **self.stamp}
        self.rows = [known for known in self.rows if not self._is_of(known, row)] + [record]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, self.rows)
        return record

    def _is_of(self, record: Mapping[str, Any], row: Row) -> bool:
        same_row = (record["part"], record["row"]) == (row.part, row.name)
        return same_row and all(record[name] == self.stamp[name] for name in ("commit", "machine"))
