"""Arguments that several commands share, with their help texts."""

from __future__ import annotations

from typing import Annotated

import typer

RunFile = Annotated[str, typer.Argument(metavar="FILE", help="Run file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="key.path=value",
        help="Values that override the file, for example rollout.group_size=4 or rewards.0.weight=2.",
        show_default=False,
    ),
]
