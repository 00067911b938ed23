"""Where figures come from: the commit and the machine of every row, without which figures must not be compared."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("src", "benchmarks", ":!benchmarks/results", "constraints.txt")
"""What of the repository figures depend on."""
CHANGED = "with changes"


def commit() -> str:
    """The commit that is checked out, followed by CHANGED if what is measured differs from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return f"{head} {CHANGED}" if _git("status", "--porcelain", "--", *MEASURED) else head


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {words[0]} failed in {ROOT}: {done.stderr.strip()}; figures need a commit to stand for")
    return done.stdout.strip()


def machine() -> str:
    """Processor, cores, memory, and some letters that are others after a restart: machines whose processors have the
    same name may differ by a factor of two (Linux)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return f"{processor()}, {os.cpu_count()} cores, {memory:.0f} GB [{hashlib.sha256(boot).hexdigest()[:6]}]"


def processor() -> str:
    """Its name (Linux)."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def origin_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """What must be the same for rows to stand in one table."""
    return row["commit"], row["machine"], row["threads"]


def refuse_to_mix(rows: Iterable[Mapping[str, Any]], commit: str, machine: str, threads: int, where: Path) -> None:
    """Raise SystemExit if figures of another commit, machine or number of threads are among the rows."""
    for row in rows:
        for what, found, wanted in zip(
            ("commit", "machine", "threads"), origin_of(row), (commit, machine, threads), strict=True
        ):
            if found != wanted:
                raise SystemExit(
                    f"{where} has rows of {what} {found!r}, and this run is of {wanted!r}: figures of both must not "
                    "stand in one table. Measure everything again without --add, or write elsewhere with --output"
                )
