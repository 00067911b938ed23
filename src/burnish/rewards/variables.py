"""The environment variables that a run file names for a reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from burnish.errors import ConfigError


def check_environment(named: Iterable[str], label: str, ours: Mapping[str, str]) -> None:
    """ConfigError if the run file names a variable for this reward that is not set."""
    missing = [name for name in named if name not in ours]
    if missing:
        raise ConfigError(
            f"reward {label!r} needs the environment variable {missing[0]}, which is not set",
            remedy=f"set it where the run is started, or remove {missing[0]} from the reward's `environment`",
        )
