"""Where a run may write: never over what it reads, and never where starting anew would move away more than a run."""

from __future__ import annotations

from pathlib import Path

from burnish.config.schema import RunConfig
from burnish.errors import ConfigError
from burnish.reading import file_problem

_REMEDY = "set output to a folder of its own, for example runs/first"


def check_output(config: RunConfig) -> None:
    """ConfigError when `output` is no place for a run. Changes nothing; a folder that is not there yet is fine."""
    check_place(config.output)
    folder = Path(config.output).resolve()
    if folder == folder.parent:
        raise ConfigError(f"output {config.output!r} is the root of the file system", remedy=_REMEDY)
    for what, place in (("working folder", Path.cwd()), ("home folder", Path.home())):
        if place.resolve().is_relative_to(folder):
            raise ConfigError(f"output {config.output!r} is or holds the {what} {place}", remedy=_REMEDY)
    for field, path in _read_by(config):
        if Path(path).expanduser().resolve().is_relative_to(folder):
            raise ConfigError(f"output {config.output!r} is or holds {path!r}, which {field} reads", remedy=_REMEDY)


def check_place(output: str) -> None:
    """ConfigError when something other than a folder stands at this path or on the way to it."""
    path = Path(output)
    for place in (path, *path.parents):
        problem = file_problem(place)
        if problem == "is a folder, not a file":
            return
        if problem is None or not problem.startswith("does not exist"):
            found = problem or "is a file, not a folder"
            raise ConfigError(f"output {output!r} cannot be a folder: {place} {found}", remedy=_REMEDY)


def _read_by(config: RunConfig) -> list[tuple[str, str]]:
    """(field, path) of what lies on this machine and is read by the run."""
    found = [("model.path", config.model.path)]
    if config.model.tokenizer is not None:
        found.append(("model.tokenizer", config.model.tokenizer))
    for part, sources in (("train", config.data.train), ("eval", config.data.eval)):
        found += [(f"data.{part}.{number}.path", source.path) for number, source in enumerate(sources)]
    return [(field, path) for field, path in found if file_problem(Path(path).expanduser()) in _PRESENT]


_PRESENT = (None, "is a folder, not a file")
