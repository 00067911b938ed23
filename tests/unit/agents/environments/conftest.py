"""What tests of environments share."""

import pytest


@pytest.fixture(autouse=True)
def _no_program_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session looks for programs that its process has left. This process here has those of other tests, which must
    neither count nor be collected."""
    monkeypatch.setattr("burnish.agents.environments.session.has_children", lambda: False)
