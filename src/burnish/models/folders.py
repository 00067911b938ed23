"""Turns the `path` of a run file into something that can be loaded, with errors that say what is wrong with it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from burnish.errors import ModelError
from burnish.models.weight_files import check_weight_files
from burnish.reading import file_problem, reading
from burnish.words import did_you_mean

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_OPENED = (".json", ".safetensors", ".model", ".txt", ".jinja", ".py")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


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
