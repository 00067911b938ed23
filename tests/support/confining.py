"""Machines on which programs can be confined."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from burnish.errors import SandboxError


@contextmanager
def where_confined() -> Iterator[None]:
    """Skips the test on a machine without a tier that confines."""
    try:
        yield
    except SandboxError as error:
        pytest.skip(str(error).splitlines()[0])
