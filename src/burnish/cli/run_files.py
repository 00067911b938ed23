"""Load a run file of any kind, for commands that accept all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from burnish.errors import ConfigError, DataError

if TYPE_CHECKING:
    from burnish.config.loading import LoadedConfig
    from burnish.config.schema_data import DataSource


def load_any_run_file(file: str, overrides: Sequence[str]) -> LoadedConfig:
    """Load a run file of `rl`, `sft` or `rm`.

    Its keys decide which. If they fit both sft and rm, it is rm if the training data are comparisons, or if only rm can
    use its values.
    """
    from burnish.config.loading import kind_of_file, load_run_file

    kind = kind_of_file(file, overrides)
    try:
        loaded = load_run_file(file, overrides, kind)
    except ConfigError:
        if kind == "sft":
            with suppress(ConfigError):
                return load_run_file(file, overrides, "rm")
        raise
    if kind == "sft" and any(_are_only_comparisons(source) for source in loaded.config.data.train[:1]):
        return load_run_file(file, overrides, "rm")
    return loaded


def _are_only_comparisons(source: DataSource) -> bool:
    """Whether the rows are comparisons and not examples for sft. False for data that cannot be read, which is reported
    when they are read next."""
    from burnish.data.schemas import recognise
    from burnish.data.sources import needs_download, read_table

    if needs_download(source):
        return False
    try:
        rows = read_table(source.model_copy(update={"limit": 1})).rows
        recognise(rows, source, "preferences")
    except DataError:
        return False
    try:
        recognise(rows, source, "sft")
    except DataError:
        return True
    return False
