"""Which files a run's numbers depend on, by the field of the run file that names them."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.config.names import MODEL_REWARD
from burnish.config.schema import RlConfig, RunConfig
from burnish.config.schema_data import DataSource
from burnish.config.schema_rm import RmConfig

MODEL_SUFFIXES = (".safetensors", ".json", ".model", ".txt", ".jinja", ".tiktoken", ".py")
"""Files of a model folder that decide what it computes: weights, configuration, tokenizer, template, code."""
_MOST_MODULES = 500
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

Found = Iterator[tuple[str, Path]]


def named_files(config: RunConfig) -> dict[str, Path]:
    """`field: file` to the file itself, for every local file whose content changes what the run learns.

    Training data, base model and tokenizer, chat template, reward models, and the code of rewards, estimators, losses
    and engines with the modules beside it that it imports. What must be fetched from a hub is not among them, nor
    evaluation data and sinks, which change nothing that is learned.
    """
    return {f"{field}: {path.name}": path for field, path in _files(config)}


def _files(config: RunConfig) -> Found:
    yield from _model("model.path", config.model.path, weights=not config.model.from_scratch)
    for field in ("tokenizer", "chat_template"):
        yield from _model(f"model.{field}", getattr(config.model, field), weights=False)
    yield from _data("data.train", config.data.train)
    if isinstance(config, RlConfig):
        yield from _of_rl(config)
    if isinstance(config, RmConfig):
        yield from _model("normalization.policy", config.normalization.policy)
        yield from _data("normalization.prompts", config.normalization.prompts)
        yield from _data("normalization.references", config.normalization.references)


def _of_rl(config: RlConfig) -> Found:
    for index, reward in enumerate(config.rewards):
        field = f"rewards.{index}"
        if reward.name.startswith(MODEL_REWARD):
            yield from _model(field, reward.name.removeprefix(MODEL_REWARD))
        else:
            yield from _code(field, reward.name)
        yield from _options(f"{field}.options", reward.options)
    yield from _code("algorithm.estimator", config.algorithm.estimator)
    yield from _code("algorithm.loss", config.algorithm.loss)
    yield from _code("rollout.engine", config.rollout.engine)
    if config.critic.init not in ("policy", "reward_model"):
        yield from _model("critic.init", config.critic.init)


def _model(field: str, name: str | None, *, weights: bool = True) -> Found:
    """Files of a model folder, of the newest checkpoint of a run's folder its list of hashes, or the file itself."""
    if name is None or "\n" in name or len(name) > 4096 or "\0" in name:
        return
    path = Path(name).expanduser()
    if _is_file(path):
        yield field, path
    elif path.is_dir():
        manifests = sorted(path.glob("checkpoints/step-*/manifest.json"))
        yield from ((f"{field} {manifest.parent.name}", manifest) for manifest in manifests[-1:])
        wanted = [suffix for suffix in MODEL_SUFFIXES if weights or suffix != ".safetensors"]
        yield from ((field, file) for file in sorted(path.iterdir()) if file.suffix in wanted and _is_file(file))


def _data(field: str, sources: Sequence[DataSource]) -> Found:
    for index, source in enumerate(sources):
        path = Path(source.path).expanduser()
        if _is_file(path):
            yield f"{field}.{index}", path
        elif path.is_dir():
            for file in sorted(path.rglob("*")):
                if _is_file(file):
                    yield f"{field}.{index} {file.parent.relative_to(path)}", file


def _options(field: str, options: Mapping[str, Any]) -> Found:
    """Word lists and the like: texts that are the name of a file with a suffix."""
    for name, value in options.items():
        if isinstance(value, str) and Path(value).suffix and len(value) < 4096 and _is_file(Path(value).expanduser()):
            yield f"{field}.{name}", Path(value).expanduser()


def _code(field: str, name: str) -> Found:
    """The file of `path/to/file.py:name` or `package.module:name`, and what it imports from its own folder."""
    place, colon, _ = name.rpartition(":")
    if not colon:
        return
    if place.endswith(".py"):
        path = Path(place).expanduser().resolve()
        first, root = [path] if _is_file(path) else [], path.parent
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
        if not str(root).startswith(_INSTALLED):
            waiting += _imported(file, root)
    for file in seen:
        inner = file.parent.relative_to(root) if file.is_relative_to(root) else file.parent
        yield (field if inner == Path() else f"{field} {inner}"), file


def _module_files(root: Path, parts: Sequence[str]) -> list[Path]:
    """The file of a dotted module below `root` and the `__init__.py` of each package on the way; empty if not there.

    Found by looking, not by importing: importing would run a reward's code in this process.
    """
    if not all(part.isidentifier() for part in parts):
        return []  # no name of a module; the loader refuses it
    packages = [root.joinpath(*parts[:end], "__init__.py") for end in range(1, len(parts))]
    for module in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
        if _is_file(module):
            return [*(package for package in packages if _is_file(package)), module]
    return []


def _imported(file: Path, root: Path) -> list[Path]:
    """Files below `root` that a module imports anywhere in its text; none of one that is no Python."""
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
    """An ordinary file: hashing a pipe would wait for ever."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
