"""What ends a loop is what is shown."""

from __future__ import annotations

import pytest

from burnish.errors import BurnishError
from burnish.trainers.orderly import Finished, saving_finished_steps


def test_models_that_cannot_be_asked_any_more_do_not_hide_why_the_run_ends() -> None:
    def finished() -> Finished:
        raise BurnishError("process 'trainer 0' has been ended")

    said: list[str] = []
    with pytest.raises(BurnishError, match="trainer 1 is lost"), saving_finished_steps(finished, said.append):
        raise BurnishError("trainer 1 is lost")
    assert len(said) == 1
    assert said[0].startswith("nothing more is saved (BurnishError: process 'trainer 0' has been ended")
