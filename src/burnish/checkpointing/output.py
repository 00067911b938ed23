"""Where a run may write: never over what it reads, and never where --fresh would move away more than a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from burnish.checkpointing.chaining import split_choice
from burnish.checkpointing.sources import INPUTS_FOLDER, Place, of_sources, read_places
from burnish.config.schema import RunConfig
from burnish.errors import ConfigError
from burnish.reading import FOLDER, file_problem

_REMEDY = "set output to a separate folder, for example runs/first"


def check_output(config: RunConfig) -> None:
    """ConfigError if a run cannot write to `output`. Changes nothing. The folder need not exist yet."""
    check_place(config.output)
    folder = Path(config.output).resolve()
    if folder == folder.parent:
        raise ConfigError(f"output {config.output!r} is the root of the file system", remedy=_REMEDY)
    for what, place in (("working folder", Path.cwd()), ("home folder", Path.home())):
        if place.resolve().is_relative_to(folder):
            raise ConfigError(f"output {config.output!r} is or contains the {what} {place}", remedy=_REMEDY)
    for read in _places_read(config):
        path = read.path()
        if path is None or path.resolve().is_relative_to(folder / INPUTS_FOLDER):  # the run's own, from memory
            continue
        if path.resolve().is_relative_to(folder):
            raise ConfigError(
                f"output {config.output!r} is or contains {str(path)!r}, which {read.field} reads", remedy=_REMEDY
            )


def check_place(output: str) -> None:
    """ConfigError if this path, or one of its parents, exists and is not a folder."""
    path = Path(output)
    for place in (path, *path.parents):
        problem = file_problem(place)
        if problem == FOLDER:
            return
        if problem is None or not problem.startswith("does not exist"):
            found = problem or "is a file, not a folder"
            raise ConfigError(f"output {output!r} cannot be a folder: {place} {found}", remedy=_REMEDY)


def _places_read(config: RunConfig) -> Iterator[Place]:
    """What the run reads. For a checkpoint of another run (`runs/sft@best`) this is the whole run folder.

    Options of rewards are left out, because a reward may also write to what they name.
    """
    for place in (*read_places(config), *of_sources(config.named_sources("eval"))):
        if place.kind in ("model", "settings"):
            yield replace(place, text=str(split_choice(place.text)[0]))
        elif place.kind != "option":
            yield place
