"""Which files of a model's folder hold its weights."""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "model.safetensors.index.json"


def files_of_weights(folder: Path) -> list[Path]:
    """The safetensors files that loading reads: the usual one, or those that an index names. Some folders have all
    weights a second time under another name."""
    index, whole = folder / INDEX, folder / "model.safetensors"
    if whole.is_file():
        return [whole]
    if index.is_file():
        try:
            return sorted(
                {folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # loading reports it
    return sorted(folder.glob("*.safetensors"))
