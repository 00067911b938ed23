"""Arguments that several commands share, with their help texts."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from burnish.config.secrets import hidden_name
from burnish.errors import ConfigError

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
