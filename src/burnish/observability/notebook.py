"""The live table in a notebook: one output that is replaced, without widgets."""

from __future__ import annotations

import time
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

_LEAST_SECONDS = 0.25
"""Between two pictures: each is sent to the browser and kept in the notebook's file until the next one comes."""
_COLUMNS = 140
_FORMAT = '<pre style="font-family:monospace;line-height:1.3;white-space:pre">{code}</pre>'


class NotebookLive:
    """Has the methods of rich's `Live` that `Display` calls."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._picture: RenderableType = ""
        self._drawn_seconds = 0.0

    def start(self) -> None:
        """Make the output."""
        from IPython.display import HTML, display

        self._handle = display(HTML(""), display_id=True)

    def update(self, picture: RenderableType, *, refresh: bool = False) -> None:
        """Replace the picture, unless the last one is too new; `stop` draws the one that is left out."""
        self._picture = picture
        if time.monotonic() - self._drawn_seconds >= _LEAST_SECONDS:
            self._draw()

    def stop(self) -> None:
        """Draw the last picture, which stays."""
        self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML

        self._drawn_seconds = time.monotonic()
        if self._handle is not None:
            self._handle.update(HTML(as_html(self._picture)))


def as_html(picture: RenderableType) -> str:
    """What a terminal would show, with its colours."""
    console = Console(file=StringIO(), record=True, width=_COLUMNS, force_jupyter=False)
    console.print(picture)
    return console.export_html(inline_styles=True, code_format=_FORMAT)
