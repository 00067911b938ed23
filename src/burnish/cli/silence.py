"""Turn off what other packages print while a command runs."""

from __future__ import annotations


def silence_transformers() -> None:
    """Turn off transformers' progress bars for loading and saving weights, because a command shows its own progress.

    The setting affects the whole process. So only commands change it, and programs that use Burnish decide themselves.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
