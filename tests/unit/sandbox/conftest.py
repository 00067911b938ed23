"""A sandbox of each confined tier that this machine allows."""

from collections.abc import Iterator

import pytest
from confining import where_confined

from burnish.sandbox.job import Limits
from burnish.sandbox.sandbox import Sandbox

LIMITS = Limits(seconds=60.0, processor_seconds=60.0)
"""Far more than anything here needs, because the machine may be busy."""


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with where_confined():
        opened = Sandbox(request.param, limits=LIMITS)
    with opened:
        yield opened
