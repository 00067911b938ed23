"""Checks from headers and lengths whether a model folder's weight files are complete. Nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from burnish.errors import ModelError
from burnish.reading import reading
from burnish.weight_folder import INDEX, files_of_weights

_MAX_HEADER_BYTES = 100_000_000
_REMEDY = "copy the model's files again"


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
    """A file starts with 8 bytes (little endian) for the length of its JSON header, which has the end offset of each
    tensor (https://github.com/huggingface/safetensors)."""
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


_FLOATS = ("F", "BF")


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
