"""Training state on disk without pickle: tensors in one safetensors file, everything else in one JSON file.

Reading gives back exactly what was written: dtypes and shapes of tensors, ints as dictionary keys, tuples, floats to
the last bit (including nan and infinities), bytes and numpy arrays. Tensors are read to the CPU. A value of any other
type is refused by name.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file
from torch import Tensor

from burnish.checkpointing.store import reading_own
from burnish.checkpointing.tensor_file import write_tensors
from burnish.errors import CheckpointError
from burnish.outside.reading import read_json, reading
from burnish.types import Json


def write_state(folder: Path, name: str, state: Mapping[str, object]) -> dict[str, str]:
    """Write `name.json` and `name.safetensors`; return file -> SHA-256 of the ones hashed while being written.

    Tensors are written from where they are, so nothing may change them meanwhile. CheckpointError for a value that
    cannot be stored exactly.
    """
    tensors: dict[str, Tensor] = {}
    plain = _encode(state, name, tensors)
    sha256 = write_tensors(folder / f"{name}.safetensors", tensors)
    text = json.dumps(plain, allow_nan=False, ensure_ascii=True)
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return {f"{name}.safetensors": sha256}


def read_state(folder: Path, name: str) -> dict[str, Any]:
    """Read a state that `write_state` wrote. Raises CheckpointError if the files are missing or damaged."""
    with reading_own(f"{name} in {folder}"):
        plain = read_json(folder / f"{name}.json")
        tensors = load_file(folder / f"{name}.safetensors")
        state = _decode(plain, tensors)
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}, not names and values")
        return state


def restoring(folder: Path) -> AbstractContextManager[None]:
    """Let errors name the checkpoint while a run is restored from it.

    Its files may be undamaged and still not have the content that this version expects.
    """
    remedy = "use the version that made it, or remove that folder; then the run resumes from the one before it"
    return reading(f"{folder}: restoring the run from it", CheckpointError, remedy=remedy)


def _encode(value: object, where: str, tensors: dict[str, Tensor]) -> Json:
    if isinstance(value, Tensor):
        return {"$tensor": _add_tensor(value, tensors)}
    if isinstance(value, numpy.ndarray):
        return {"$array": _add_tensor(torch.from_numpy(numpy.ascontiguousarray(value)), tensors)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, tensors)
    # `type` instead of `isinstance` from here on: a subclass would be read back as its base class.
    if type(value) is list:
        return [_encode(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [_encode(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]}
    return _encode_scalar(value, where)


def _encode_mapping(value: Mapping[object, object], where: str, tensors: dict[str, Tensor]) -> Json:
    items = [(key, _encode(item, f"{where}[{key!r}]", tensors)) for key, item in value.items()]
    named = {key: item for key, item in items if isinstance(key, str) and type(key) is str and not key.startswith("$")}
    if len(named) == len(items):
        return named
    return {"$dict": [[_encode(key, f"key of {where}", tensors), item] for key, item in items]}


def _encode_scalar(value: object, where: str) -> Json:
    if type(value) is float and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or (isinstance(value, (bool, int, float, str)) and type(value) in (bool, int, float, str)):
        return value
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    raise CheckpointError(
        f"cannot save {where}: a checkpoint cannot hold a {type(value).__module__}.{type(value).__qualname__} exactly",
        remedy="use only tensors, numpy arrays, numbers, strings, bytes, lists, tuples and dictionaries",
    )


def _add_tensor(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    """Add the tensor to `tensors` and return its name."""
    name = str(len(tensors))
    tensors[name] = tensor
    return name


def _decode(value: object, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$tensor": name}:
            return tensors[name]
        case {"$array": name}:
            return tensors[name].numpy()
        case {"$tuple": items}:
            return tuple(_decode(item, tensors) for item in items)
        case {"$dict": pairs}:
            return {_decode(key, tensors): _decode(item, tensors) for key, item in pairs}
        case {"$float": text}:
            return float(text)
        case {"$bytes": text}:
            return base64.b64decode(text)
    return {key: _decode(item, tensors) for key, item in value.items()}
