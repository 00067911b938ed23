"""Python's garbage collector for cycles, paused where it has nothing to collect.

It runs again and again while objects are made, through all existing ones. Importing PyTorch and transformers, or
reading a large tokenizer, makes hundreds of thousands of objects that stay: collection took 30 to 50 % of that time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, lasting: bool = False) -> Iterator[None]:
    """Pause the garbage collector inside; afterwards it runs if it did before.

    lasting: everything that exists afterwards is taken to stay until the process ends, and no later collection goes
    through it. Only for Burnish's own programs: in a user's program it would keep the user's garbage.
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
