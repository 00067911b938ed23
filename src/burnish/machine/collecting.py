"""Python's search for garbage in cycles, paused where there is none to find.

Python searches again and again while objects are made, through all that there are. Importing PyTorch and transformers,
or reading a large tokenizer, makes hundreds of thousands of objects that stay: the searches were 30 to 50 % of that
time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, lasting: bool = False) -> Iterator[None]:
    """Inside, Python does not search for garbage. Afterwards it does if it did before.

    lasting: everything that exists afterwards is taken for what stays until the process ends, and no later search goes
    through it. Only for programs of our own: in a user's program it would keep the user's garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if lasting:
            gc.freeze()
        if was_enabled:
            gc.enable()
