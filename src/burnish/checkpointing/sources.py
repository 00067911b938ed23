"""The files that a run's results depend on, with the fields of the run file that name them, and checks of `output`: a
run never writes over its inputs, and --fresh must never move away more than a run."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from burnish.config.names import IN_MEMORY
from burnish.config.schema_data import places_of_sources
from burnish.config.schema_run import RunConfig
from burnish.config.section import NamedPlace
from burnish.errors import ConfigError
from burnish.outside.plugins import INSTALLED
from burnish.outside.reading import FOLDER, file_problem, folder_problem
from burnish.types import Json

MODEL_SUFFIXES = (".safetensors", ".json", ".model", ".txt", ".jinja", ".tiktoken", ".py")
"""Files in a model folder that affect its results: weights, configuration, tokenizer, template, code."""
INPUTS_FOLDER = "inputs"
"""Subfolder of a run for inputs that the training program held in memory: rows, a model, sources of its functions."""
_MOST_MODULES = 500

_OUTPUT_REMEDY = "set output to a separate folder, for example runs/first"

Found = Iterator[tuple[str, Path]]


def path_of(place: NamedPlace) -> Path | None:
    """The file or folder on this machine; None if there is none (a hub name, an installed module)."""
    if place.kind == "code":
        file = place.text.rpartition(":")[0]
        return existing(file) if file.endswith(".py") else None
    return existing(place.text)


def with_inputs_moved(data: dict[str, Json], folder: Path) -> dict[str, Json]:
    """A run's configuration, with paths of its own inputs changed if the folder was moved or copied."""
    before = f"{Path(str(data.get('output')))}/{INPUTS_FOLDER}/"
    return {name: _moved(value, before, folder) for name, value in data.items()}


def _moved(value: Json, before: str, folder: Path) -> Json:
    if isinstance(value, str) and value.startswith(before):
        return str(folder / INPUTS_FOLDER / value.removeprefix(before))
    if isinstance(value, dict):
        return {key: _moved(item, before, folder) for key, item in value.items()}
    return [_moved(item, before, folder) for item in value] if isinstance(value, list) else value


def named_files(config: RunConfig) -> dict[str, Path]:
    """`field: file` -> path, for every local file whose content affects what the run learns.

    These are training data, base model and tokenizer, chat template, reward models, and the code of rewards,
    estimators, losses and engines, including the modules that it imports from its own folder. Left out are models and
    data on the hub, and inputs that do not affect learning: evaluation data and sinks.
    """
    return {f"{field}: {path.name}": path for place in read_places(config) for field, path in _files(place)}


def read_places(config: RunConfig) -> Iterator[NamedPlace]:
    """Yield everything that the run learns from, as named in its run file.

    `burnish.trainers.chaining` has already replaced models of other runs by the folders of their checkpoints.
    """
    for place in config.named_places():
        if place.kind == "function":
            text = str(Path(config.output, INPUTS_FOLDER, function_file(place.text)))
            yield NamedPlace(place.field, text, "settings")
        else:
            yield place


def function_file(name: str) -> Path:
    """Path, below `INPUTS_FOLDER`, of the text of the function `python:NAME`."""
    return Path("rewards", name.removeprefix(IN_MEMORY) + ".txt")


def existing(text: str) -> Path | None:
    """The file or folder that a text names; None if it does not exist, or the text cannot be a path."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # `~user` for a user that does not exist
        return None
    return path if file_problem(path) in (None, FOLDER) else None


def _files(place: NamedPlace) -> Found:
    if place.kind == "code":
        yield from _code(place.field, place.text)
        return
    path = path_of(place)
    if path is None or (place.kind == "option" and not path.suffix):
        return
    if not path.is_dir():
        yield place.field, path
    elif place.kind == "data":
        for file in _listed(path, "**/*"):
            yield f"{place.field} {file.parent.relative_to(path)}", file
    elif place.kind != "option":
        wanted = [suffix for suffix in MODEL_SUFFIXES if place.kind == "model" or suffix != ".safetensors"]
        yield from ((place.field, file) for file in _listed(path, "*") if file.suffix in wanted)


def _listed(folder: Path, pattern: str) -> list[Path]:
    """Regular files in a folder; none if it cannot be read, which is reported where the folder is needed."""
    try:
        return [file for file in sorted(folder.glob(pattern)) if _is_file(file)]
    except OSError:
        return []


def _code(field: str, name: str) -> Found:
    """The file of `path/to/file.py:name` or `package.module:name`, and the files it imports from its own folder."""
    place, colon, _ = name.rpartition(":")
    if not colon:
        return
    if place.endswith(".py"):
        path = existing(place)
        if path is None:
            return
        path = path.resolve()
        first, root = [path], path.parent
    else:
        root = next((Path(entry) for entry in sys.path if _module_files(Path(entry), place.split("."))), Path())
        first = _module_files(root, place.split("."))
    seen: dict[Path, None] = {}
    waiting = list(first)
    while waiting and len(seen) < _MOST_MODULES:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen[file] = None
        if not str(root).startswith(INSTALLED):
            waiting += _imported(file, root)
    for file in seen:
        inner = file.parent.relative_to(root) if file.is_relative_to(root) else file.parent
        yield (field if inner == Path() else f"{field} {inner}"), file


def _module_files(root: Path, parts: Sequence[str]) -> list[Path]:
    """The file of a module below `root`, and the `__init__.py` of each parent package; empty if it does not exist.

    Files are searched for rather than imported, because importing would run a reward's code in this process.
    """
    if not all(part.isidentifier() for part in parts):
        return []  # not the name of a module; loading it will raise an error
    packages = [root.joinpath(*parts[:end], "__init__.py") for end in range(1, len(parts))]
    for module in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
        if _is_file(module):
            return [*(package for package in packages if _is_file(package)), module]
    return []


def _imported(file: Path, root: Path) -> list[Path]:
    """List the files below `root` that a module imports anywhere in its source; empty if it is not Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[Path] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found += _module_files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else root
            parts = [] if node.module is None else node.module.split(".")
            if parts:
                found += _module_files(base, parts)
            for alias in node.names:
                found += _module_files(base, [*parts, alias.name])
    return found


def _is_file(path: Path) -> bool:
    """Return whether this is a regular file. Hashing a pipe would wait for ever."""
    return file_problem(path) is None


def check_output(config: RunConfig) -> None:
    """Raise ConfigError if a run cannot write to `output`. Changes nothing. The folder need not exist yet."""
    check_place(config.output)
    folder = Path(config.output).resolve()
    if folder == folder.parent:
        raise ConfigError(f"output {config.output!r} is the root of the file system", remedy=_OUTPUT_REMEDY)
    for what, place in (("working folder", Path.cwd()), ("home folder", Path.home())):
        if place.resolve().is_relative_to(folder):
            raise ConfigError(f"output {config.output!r} is or contains the {what} {place}", remedy=_OUTPUT_REMEDY)
    for read in _places_read(config):
        path = path_of(read)
        if path is None or path.resolve().is_relative_to(folder / INPUTS_FOLDER):  # the run's own, from memory
            continue
        if path.resolve().is_relative_to(folder):
            raise ConfigError(
                f"output {config.output!r} is or contains {str(path)!r}, which {read.field} reads",
                remedy=_OUTPUT_REMEDY,
            )


def check_place(output: str) -> None:
    """Raise ConfigError if this path, or one of its parents, exists and is not a folder."""
    path = Path(output)
    for place in (path, *path.parents):
        problem = folder_problem(place)
        if problem is None:
            return
        if not problem.startswith("does not exist"):
            raise ConfigError(f"output {output!r} cannot be a folder: {place} {problem}", remedy=_OUTPUT_REMEDY)


def _places_read(config: RunConfig) -> Iterator[NamedPlace]:
    """Yield the places that the run reads. For a checkpoint of another run (`runs/sft@best`) this is its whole folder.

    Options of rewards are left out, because a reward may also write to the files that they name.
    """
    for place in (*read_places(config), *places_of_sources(config.named_sources("eval"))):
        if place.kind in ("model", "settings"):
            yield place._replace(text=str(split_choice(place.text)[0]))
        elif place.kind != "option":
            yield place


def split_choice(path: str) -> tuple[Path, str | None]:
    """Split `runs/sft@best` into (folder, choice). An existing folder with an @ in its name has no choice."""
    before, at, choice = path.rpartition("@")
    if not at or os.path.isdir(Path(path).expanduser()):
        return Path(path).expanduser(), None
    return Path(before).expanduser(), choice
