"""Load a run file of any kind, for commands that accept all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from burnish.errors import ConfigError, DataError

if TYPE_CHECKING:
    from burnish.config.kinds import Kind
    from burnish.config.loading import LoadedConfig
    from burnish.config.schema_data import DataSource


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
