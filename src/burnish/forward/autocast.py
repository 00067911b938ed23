"""Numbers in the dtypes of the run file, whatever the caller of a Python function has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def without_autocast() -> Iterator[None]:
    """The caller's `torch.autocast` is off inside. Kernels take no other dtype than the model's, and sampling and
    training have to compute in the same one."""
    with ExitStack() as stack:
        for device in ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield
