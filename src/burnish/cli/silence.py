"""What other packages print while a command runs."""

from __future__ import annotations


def silence_transformers() -> None:
    """A command shows its own progress: no bars of transformers for weights that are loaded or written.

    A setting of the whole process, so it belongs to the commands; a program that uses Burnish decides by itself.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
