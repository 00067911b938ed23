"""The progress bars that transformers shows while it loads and writes weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Hide the progress bars of transformers for loading and writing weights; afterwards they are as before."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
