"""The progress bars that transformers shows while it loads and writes weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Hide them for a while; afterwards they are as before."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    hide_loading_bars()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def hide_loading_bars() -> None:
    """Hide them for good: for a command, which shows its own progress, and for the processes that it starts. A program
    that uses Burnish decides by itself."""
    from transformers.utils import logging

    logging.disable_progress_bar()
