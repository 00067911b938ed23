"""Tensors written into a safetensors file as they are, one after the other, and hashed on the way.

`safetensors.torch.save_file` wants all tensors contiguous, on the CPU and without shared memory at the same time, so
views, tensors of a GPU and tensors that share memory would all have to be copied first. The header depends only on
names, shapes and types. So here tensors are written from where they are, and ones that need a copy go through one
buffer of `BLOCK_BYTES`. The file has the same bytes (https://github.com/huggingface/safetensors#format): the length of
the header (8 bytes, little-endian), the header as JSON, padded with spaces to a multiple of 8 bytes, and the numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from burnish.errors import CheckpointError
from burnish.observability.atomic import PRIVATE

BLOCK_BYTES = 16 << 20
"""Bytes that are written and hashed at a time, and the most that is copied."""

NAMES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's names of types, in the order in which the library writes them: wide ones first, so that numbers lie at
multiples of their size."""
_ORDER = {dtype: place for place, dtype in enumerate(NAMES)}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write the file, and return its SHA-256. Nothing may change the tensors meanwhile.

    This takes `BLOCK_BYTES` of additional memory, or none if all tensors are contiguous and on the CPU.
    Raises CheckpointError for a type that the format does not have, and OSError as files do.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise CheckpointError(
                f"cannot save tensor {name!r} in {path}: safetensors files have no type {tensor.dtype}",
                remedy=f"use one of {', '.join(str(dtype).removeprefix('torch.') for dtype in NAMES)}",
            )
    ordered = dict(sorted(tensors.items(), key=lambda item: (_ORDER[item[1].dtype], item[0])))
    digest = hashlib.sha256()
    # Hashing and writing take about the same time, and both let other threads run.
    with open(path, "wb", opener=_private) as file, ThreadPoolExecutor(1, "hashing") as hashing:
        for block in _blocks(ordered):
            hashed = hashing.submit(digest.update, block)
            file.write(block)
            hashed.result()  # before the next block may take the buffer
    return digest.hexdigest()


def _private(path: str, flags: int) -> int:
    """Open a file for its owner only, as the library does."""
    return os.open(path, flags, PRIVATE)


def _blocks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of the file. Each block is valid until the next one is asked for."""
    yield _header(tensors)
    buffer: Tensor | None = None
    for tensor in tensors.values():
        for piece in _pieces(tensor.detach()):
            if _lies_as_in_the_file(piece):
                yield _bytes_of(piece)
                continue
            if buffer is None:
                buffer = torch.empty(BLOCK_BYTES, dtype=torch.uint8)
            room = buffer[: piece.nbytes].view(piece.dtype).view(piece.shape)
            yield _bytes_of(room.copy_(piece))


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """The length of the header, and the header."""
    entries: dict[str, dict[str, object]] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor's numbers in the order of the file, in views of at most `BLOCK_BYTES`; none of an empty tensor."""
    if tensor.nbytes <= BLOCK_BYTES:
        if tensor.numel():
            yield tensor
        return
    rows = BLOCK_BYTES // (tensor.itemsize * math.prod(tensor.shape[1:]))
    if rows:
        yield from tensor.split(rows)
        return
    for row in tensor:
        yield from _pieces(row)


def _lies_as_in_the_file(tensor: Tensor) -> bool:
    """Return whether the file can take the tensor's memory as it is. A lazy conjugate stores its unconjugated
    number."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.as_strided((tensor.numel(),), (1,))  # `reshape` leaves a single number its stride
    return flat.view(torch.uint8).numpy().data
