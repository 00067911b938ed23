"""Resolve the `path` of a run file to something that can be loaded, with errors that say what is wrong with it.

Headers and lengths show if a folder's weight files are complete. Nothing is loaded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from burnish.errors import ModelError, did_you_mean
from burnish.outside.reading import INDEX, file_problem, files_of_weights, reading

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_OPENED = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MAX_HEADER_BYTES = 100_000_000
_REMEDY = "copy the model's files again"
_FLOATS = ("F", "BF")


def resolve_source(path: str, *, field: str) -> str:
    """The folder as a string, or the hub name itself. Raises ModelError for a folder that does not exist.

    `owner/model` counts as a hub name unless there is a local folder `owner`. In that case a misspelt folder is far
    more likely.
    """
    folder = Path(path).expanduser()
    problem = file_problem(folder)
    if problem == "is a folder, not a file":
        return str(folder)
    if problem is None:
        raise ModelError(f"{field} {path!r} is a file", remedy="name the folder that holds config.json and the weights")
    if not problem.startswith("does not exist"):
        raise ModelError(
            f"{field} {path!r} {problem.replace('a file', 'a folder')}",
            remedy="name the folder that holds config.json and the weights",
        )
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or ("/" in path and folder.parent.is_dir())
    if looks_local or not _HUB_NAME.fullmatch(path):
        raise ModelError(
            f"{field} {path!r} does not exist",
            remedy="give a folder with config.json, or a hub name like owner/model" + nearest_folder_hint(path),
        )
    return path


def nearest_folder_hint(path: str) -> str:
    """`; did you mean ...?` with the most similar sibling folder, or an empty text."""
    folder = Path(path).expanduser()
    if folder.is_dir() or not folder.parent.is_dir():
        return ""
    siblings = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()]
    near = did_you_mean(folder.name, siblings, before=f"{folder.parent}{os.sep}")
    return f"; {near}" if near else ""


def check_model_folder(source: str, *, needs_weights: bool) -> None:
    """Raise ModelError if a local folder lacks config.json or safetensors weights, or if they cannot be read. A hub
    name always passes."""
    folder = Path(source)
    if not folder.is_dir():
        return
    with reading(f"model folder {source!r}: looking through it", ModelError, remedy="check its permissions"):
        _check_entries(folder)
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelError(
            f"model folder {source!r} holds an adapter (adapter_config.json), not a model",
            remedy="merge it into its base model once, and save that: peft's merge_and_unload, then save_pretrained",
        )
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"model folder {source!r} has no config.json",
            remedy="point model.path at the folder that save_pretrained wrote" + _inner_hint(folder),
        )
    if not needs_weights:
        return
    if any(folder.glob("*.safetensors")):
        return check_weight_files(folder)
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"model folder {source!r} has only pickle weights ({pickles[0]}); loading a pickle can run any code",
            remedy="if you trust it, convert it once: from_pretrained(...).save_pretrained(folder)",
        )
    raise ModelError(
        f"model folder {source!r} has no weights (*.safetensors)",
        remedy="add the weights, or set model.from_scratch: true to start from random ones",
    )


def _check_entries(folder: Path) -> None:
    """Raise ModelError for a pipe, device, folder or broken link where loading would open a file."""
    for file in sorted(folder.iterdir()):
        problem = file_problem(file)
        if problem is not None and file.suffix in _OPENED:
            raise ModelError(f"model folder {str(folder)!r}: {file.name} {problem}", remedy="put the file itself there")


def _inner_hint(folder: Path) -> str:
    inner = sorted(entry.parent for entry in folder.glob("*/config.json"))
    return f"; did you mean {str(inner[0])!r}?" if inner else ""


def check_weight_files(folder: Path) -> None:
    """Raise ModelError for a shard that the index names but does not exist, and for a truncated file."""
    index = folder / INDEX
    if index.is_file():
        with reading(f"{index}: reading it", ModelError, remedy=_REMEDY):
            for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
                if not (folder / name).is_file():
                    raise ModelError(f"{index} names {name}, which does not exist", remedy=_REMEDY)
    for file in sorted(folder.glob("*.safetensors")):
        with reading(f"{file}: reading its header", ModelError, remedy=_REMEDY):
            _check_file(file)


def _check_file(file: Path) -> None:
    """Compare the file's length with its header: 8 bytes (little endian) for the length of a JSON text, which has the
    end offset of each tensor (https://github.com/huggingface/safetensors)."""
    present = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length < min(_MAX_HEADER_BYTES, present):
            raise ModelError(f"{file} cannot be loaded: it is cut off in its header", remedy=_REMEDY)
        tensors = _header(file, stream.read(length))
    wanted = 8 + length + max((end for _, end in tensors.values()), default=0)
    if present < wanted:
        raise ModelError(f"{file} is cut short: {present:,} bytes of {wanted:,}", remedy=_REMEDY)


def weight_bytes(source: str) -> int | None:
    """Size of a local folder's weight files; None for a name on the hub, and for files that cannot be read, which
    loading them reports."""
    folder = Path(source)
    try:
        return sum(file.stat().st_size for file in files_of_weights(folder)) if folder.is_dir() else None
    except OSError:
        return None


def check_number_types(folder: Path, parameters: Collection[str]) -> None:
    """Raise ModelError for a tensor of one of the `parameters` that is not floating-point: loading would silently turn
    complex numbers, integers and booleans into floats. Other tensors may have such types: old files have masks and
    positions next to the weights."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            tensors = _header(file, stream.read(int.from_bytes(stream.read(8), "little")))
        for name, (kind, _) in tensors.items():
            if name in parameters and not kind.startswith(_FLOATS):
                raise ModelError(
                    f"{file} holds {name} as {kind}, but weights must be floating-point numbers, because config.json "
                    "has no quantization",
                    remedy="save the model in float32 or bfloat16",
                )


def _header(file: Path, content: bytes) -> dict[str, tuple[str, int]]:
    """Number type of each tensor and its end offset after the header. ModelError for a damaged header."""
    try:
        header: Any = json.loads(content)
    except (ValueError, RecursionError):
        header = None
    if isinstance(header, dict):
        header.pop("__metadata__", None)
        tensors = [_tensor(described) for described in header.values()]
        if None not in tensors:
            return dict(zip(header, (tensor for tensor in tensors if tensor is not None), strict=True))
    raise ModelError(f"{file} cannot be loaded: its header is damaged, or it is not a safetensors file", remedy=_REMEDY)


def _tensor(described: object) -> tuple[str, int] | None:
    match described:
        case {"dtype": str(kind), "data_offsets": [int(), int(end)]}:
            return kind, end
    return None
