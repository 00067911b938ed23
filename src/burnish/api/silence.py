"""What other packages print while a call of `burnish` runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """No bars of transformers for weights that are loaded or written; afterwards they are as they were."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
