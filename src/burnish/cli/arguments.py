"""Arguments that several commands share, with their help texts, and run files of any kind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from burnish.config.secrets import hidden_name
from burnish.errors import ConfigError, DataError

if TYPE_CHECKING:
    from burnish.config.kinds import Kind
    from burnish.config.loading import LoadedConfig
    from burnish.config.schema_data import DataSource

RunFile = Annotated[str, typer.Argument(metavar="FILE", help="Run file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="key.path=value",
        help="Values that override the file, for example rollout.group_size=4 or rewards.0.weight=2.",
        show_default=False,
    ),
]
ModelOrRun = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|RUN", help="Model folder, hub name or run (runs/first@500, @best).", show_default=False
    ),
]
RlRunFolder = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run of `rl`.", show_default=False)]
Host = Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs a key.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65_535)]
AnswerSeed = Annotated[int, typer.Option(help="Sampling seed.", min=0)]
_SECRET_CHARACTERS = 16


def secret_in(variable: str | None) -> str | None:
    """The secret that an environment variable holds; None without a variable. ConfigError if it holds none."""
    if variable is None:
        return None
    secret = os.environ.get(variable, "").strip()  # as clients do
    if len(secret) < _SECRET_CHARACTERS or not secret.isascii() or not secret.isprintable():
        raise ConfigError(
            f"the environment variable {hidden_name(variable)} holds no token",
            remedy=f"set it to a secret of {_SECRET_CHARACTERS} characters or more, as `openssl rand -hex 32` gives",
        )
    return secret


def load_any_run_file(file: str, overrides: Sequence[str]) -> LoadedConfig:
    """Load a run file of any kind.

    Its keys decide which. If they fit several kinds, the plainest is chosen, unless the training data are rows of
    another one alone, or only another one can use the values.
    """
    from burnish.config.kinds import PLAINEST, all_kinds, find_kind
    from burnish.config.loading import kind_of_file, load_run_file

    name = kind_of_file(file, overrides)
    others = [kind for kind in all_kinds() if kind.rows and kind.name != name] if name == PLAINEST else []
    try:
        loaded = load_run_file(file, overrides, name)
    except ConfigError:
        for other in others:
            with suppress(ConfigError):
                return load_run_file(file, overrides, other.name)
        raise
    for other in others:
        if any(_are_only(source, other, find_kind(name)) for source in loaded.config.data.train[:1]):
            return load_run_file(file, overrides, other.name)
    return loaded


def _are_only(source: DataSource, kind: Kind, other: Kind) -> bool:
    """Return whether the rows are for runs of this kind and not of the other. False for data that cannot be read, which
    is reported when they are read next."""
    from burnish.data.schemas import recognise
    from burnish.data.sources import needs_download, read_table

    if kind.rows is None or other.rows is None or needs_download(source):
        return False
    with suppress(DataError):
        rows = read_table(source.model_copy(update={"limit": 1})).rows
        recognise(rows, source, kind.rows)
        try:
            recognise(rows, source, other.rows)
        except DataError:
            return True
    return False
