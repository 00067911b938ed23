"""A sandbox of each confined tier that this machine allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burnish.sandbox.job import Limits
from burnish.sandbox.parent import TierRefusedError
from burnish.sandbox.sandbox import Sandbox

LIMITS = Limits(seconds=60.0, processor_seconds=60.0)
"""Far more than anything here needs, because the machine may be busy."""


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    try:
        opened = Sandbox(request.param, limits=LIMITS)
    except TierRefusedError as error:
        pytest.skip(str(error).splitlines()[0])
    with opened:
        yield opened
