"""The list of a checkpoint's files with sizes and hashes, which shows whether it is complete and undamaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from burnish.observability.atomic import fsync_file, fsync_folder
from burnish.reading import UnreadableError, file_problem, read_json

MANIFEST = "manifest.json"
FORMAT = 1


def seal(folder: Path, step: int, hashed: Mapping[str, str] | None = None) -> None:
    """Hash every file below `folder`, write the manifest, and force all of it to disk.

    hashed: file -> SHA-256 of the bytes that were written, of files that need not be read again.
    """
    known = hashed or {}
    files = {(name := _relative(path, folder)): _fingerprint(path, known.get(name)) for path in _files(folder)}
    content = {"format": FORMAT, "step": step, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
    # Everything must be on disk before the folder gets its final name. Otherwise a power failure could leave a
    # checkpoint with that name and empty files.
    for path in [*_files(folder), folder / MANIFEST]:
        fsync_file(path)
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        fsync_folder(inner)
    fsync_folder(folder)


def verify(folder: Path, step: int) -> str | None:
    """None for a complete checkpoint of that step, else what is wrong with it."""
    if not os.path.lexists(folder / MANIFEST):
        return f"{folder} has no {MANIFEST}"
    try:
        content = read_json(folder / MANIFEST)
    except UnreadableError as error:
        return f"{folder / MANIFEST} {error}"
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        return f"{folder / MANIFEST} is not a manifest"
    if content.get("format") != FORMAT:
        return f"{folder / MANIFEST} has format {content.get('format')!r}, but this version reads {FORMAT}"
    if content.get("step") != step:
        return f"{folder} holds step {content.get('step')!r}"
    return next((problem for item in content["files"].items() if (problem := _check(folder, *item))), None)


def _check(folder: Path, relative: str, expected: object) -> str | None:
    path = folder / relative
    if not isinstance(expected, dict) or set(expected) != {"size", "sha256"}:
        return f"{folder / MANIFEST} has a broken entry for {relative!r:.200}"
    problem = file_problem(path)
    if problem is not None:
        return f"{path} {'is missing' if problem == 'does not exist' else problem}"
    try:
        size = path.stat().st_size
        if size != expected["size"]:
            return f"{path} has {size} bytes instead of {expected['size']}"
        if _fingerprint(path)["sha256"] != expected["sha256"]:
            return f"{path} does not have the content that was saved"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def _fingerprint(path: Path, known: str | None = None) -> dict[str, int | str]:
    return {"size": path.stat().st_size, "sha256": _sha256(path) if known is None else known}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
