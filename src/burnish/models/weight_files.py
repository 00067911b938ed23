"""Whether the weight files of a model folder are whole, as far as their headers and lengths tell; nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.errors import ModelError
from burnish.reading import reading

_INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
_REMEDY = "copy the model's files again"


def check_weight_files(folder: Path) -> None:
    """ModelError for a shard that the index names and that is not there, and for a file that was cut short."""
    index = folder / _INDEX
    if index.is_file():
        with reading(f"{index}: reading it", ModelError, remedy=_REMEDY):
            for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
                if not (folder / name).is_file():
                    raise ModelError(f"{index} names {name}, which is not there", remedy=_REMEDY)
    for file in sorted(folder.glob("*.safetensors")):
        with reading(f"{file}: reading its header", ModelError, remedy=_REMEDY):
            _check_length(file)


def _check_length(file: Path) -> None:
    """The header is 8 bytes of length (little endian) and that much JSON, which gives the end of each tensor behind it:
    https://github.com/huggingface/safetensors"""
    present = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length < min(_MAX_HEADER_BYTES, present):
            raise ModelError(f"{file} cannot be loaded: it is cut off in its header", remedy=_REMEDY)
        header: dict[str, Any] = json.loads(stream.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    wanted = 8 + length + max(ends, default=0)
    if present < wanted:
        raise ModelError(f"{file} is cut short: {present:,} bytes of {wanted:,}", remedy=_REMEDY)
