"""Fingerprints of what a run's results depend on besides its run file: contents of files and versions of packages.

A checkpoint holds the fingerprints of the start that made it. A resumed run compares them with its own, so that it does
not silently continue as a different run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import TypedDict

import torch

from burnish import __version__
from burnish.checkpointing.sources import named_files
from burnish.checkpointing.store import FINGERPRINT_FILE, reading_own
from burnish.config.schema import RunConfig
from burnish.data import puzzles
from burnish.errors import CheckpointError
from burnish.outside.plugins import installed_version
from burnish.outside.reading import read_json
from burnish.types import Json

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "jinja2", "peft", "mpmath")

_PIECE_BYTES, _LEAST_BYTES = 16 << 20, 1 << 16
"""Bytes read and hashed at a time: after each piece a thread may have to wait some milliseconds for Python's lock."""


class FileContent(TypedDict):
    """Size and hash of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """`files`: `field: file` -> size and sha256. `versions`: package -> version. `machine`: what affects rounding."""

    files: Mapping[str, FileContent]
    versions: Mapping[str, str]
    machine: Mapping[str, str]

    @staticmethod
    def of(config: RunConfig) -> Fingerprints:
        """Take the current fingerprints: read all files that the run depends on completely."""
        return FingerprintsInProgress(config).result()

    @staticmethod
    def read(folder: Path) -> Fingerprints | None:
        """The fingerprints in a checkpoint; None for one made before they existed. CheckpointError if damaged."""
        path = folder / FINGERPRINT_FILE
        if not os.path.lexists(path):
            return None
        with reading_own(str(path)):
            content = read_json(path)
            files = {
                str(name): FileContent(bytes=int(entry["bytes"]), sha256=str(entry["sha256"]))
                for name, entry in content["files"].items()
            }
            return Fingerprints(files, _read_texts(content["versions"]), _read_texts(content["machine"]))

    def dump(self) -> str:
        """The text of `fingerprints.json`."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def changes(self, now: Fingerprints) -> list[str]:
        """One line for each file and package that has changed; empty if none has."""
        files = [
            f"{name}: {_file_change(self.files.get(name), now.files.get(name))}"
            for name in sorted(self.files.keys() | now.files.keys())
            if self.files.get(name) != now.files.get(name)
        ]
        return files + _list_differences(self.versions, now.versions)

    def machine_changes(self, now: Fingerprints) -> list[str]:
        """List changes that may affect the last bits of sums, but do not prevent resuming."""
        return _list_differences(self.machine, now.machine)


class FingerprintsInProgress:
    """Current fingerprints, whose files a thread reads while the program goes on: hashing does not hold Python's lock,
    and a large model takes seconds."""

    def __init__(self, config: RunConfig) -> None:
        draws_puzzles = any(one.reasoning_gym is not None for one in config.named_sources("train").values())
        self._versions = _versions((*PACKAGES, puzzles.PACKAGE) if draws_puzzles else PACKAGES)
        self._machine = _machine()
        self._files: Future[dict[str, FileContent]] = Future()
        # A daemon, so that a program that ends early does not wait for it.
        Thread(target=self._read, args=(named_files(config),), name="fingerprints", daemon=True).start()

    def result(self) -> Fingerprints:
        """Wait for the last file."""
        return Fingerprints(self._files.result(), self._versions, self._machine)

    def _read(self, files: Mapping[str, Path]) -> None:
        try:
            found = {name: _fingerprint(path) for name, path in files.items()}
        except BaseException as error:  # noqa: BLE001 whatever it is belongs to whoever waits
            self._files.set_exception(error)
        else:
            self._files.set_result({name: content for name, content in found.items() if content is not None})


def contents_of(config: RunConfig, field: str) -> dict[str, str]:
    """SHA-256 of each local file that a field names."""
    files = {name: path for name, path in named_files(config).items() if name.startswith(f"{field}: ")}
    return {path.name: found["sha256"] for path in files.values() if (found := _fingerprint(path)) is not None}


def refuse_changes(run_dir: Path, changes: list[str]) -> None:
    """Raise CheckpointError that lists the changes, if there are any."""
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        raise CheckpointError(
            f"{run_dir} was trained with files or versions that differ from the current ones:\n{listed}",
            remedy="restore them, continue with the current ones (--accept-changes or accept_changes=True; then no "
            "single run can reproduce the results), set `output` to another folder, or start over with --fresh "
            "(fresh=True)",
        )


def _read_texts(entries: Mapping[str, Json]) -> dict[str, str]:
    return {str(name): str(value) for name, value in entries.items()}


def _list_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {before.get(name, 'none')} before, {now.get(name, 'none')} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _file_change(before: FileContent | None, now: FileContent | None) -> str:
    if now is None:
        return "does not exist any more"
    if before is None:
        return "did not exist before"
    if before["bytes"] != now["bytes"]:
        return f"{before['bytes']:,} bytes before, {now['bytes']:,} now"
    return f"different content of the same size ({now['bytes']:,} bytes)"


def _fingerprint(path: Path) -> FileContent | None:
    """Size and hash; None for a file that cannot be read, which is reported where it is needed."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb", buffering=0) as file:
            piece = memoryview(bytearray(min(_PIECE_BYTES, max(_LEAST_BYTES, os.fstat(file.fileno()).st_size))))
            while count := file.readinto(piece):
                digest.update(piece[:count])
                size += count
        return {"bytes": size, "sha256": digest.hexdigest()}
    except OSError:
        return None


def _versions(packages: Sequence[str]) -> dict[str, str]:
    versions = {name: installed_version(name) for name in packages}
    own = {"burnish": __version__, "python": platform.python_version()}
    return own | {name: version for name, version in versions.items() if version is not None}


def _machine() -> dict[str, str]:
    return {
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
    }
