"""What ends a loop is what is shown."""

from __future__ import annotations

import pytest

from burnish.checkpointing.pending import Pending
from burnish.errors import BurnishError, DivergenceError
from burnish.trainers.orderly import Finished, saving_finished_steps


def test_models_that_cannot_be_asked_any_more_do_not_hide_why_the_run_ends() -> None:
    def finished() -> Finished:
        raise BurnishError("process 'trainer 0' has been ended")

    said: list[str] = []
    with pytest.raises(BurnishError, match="trainer 1 is lost"), saving_finished_steps(finished, said.append):
        raise BurnishError("trainer 1 is lost")
    assert len(said) == 1
    assert said[0].startswith("nothing more is saved (BurnishError: process 'trainer 0' has been ended")


@pytest.mark.parametrize(("pending", "saved"), [(Pending({"loss": 1.0}), False), (None, True)])
def test_weights_whose_evaluation_is_not_finite_are_not_saved(pending: Pending | None, saved: bool) -> None:
    """The training row of the step is finite; its line was not written yet. Of a step that is complete they are."""
    done: list[int] = []
    said: list[str] = []

    def finished() -> Finished:
        return Finished(3, 2, False, pending, lambda: done.append(3))

    with pytest.raises(DivergenceError), saving_finished_steps(finished, said.append):
        raise DivergenceError("eval/loss is nan")
    assert bool(done) is saved
    assert ("cannot be trusted" in said[0]) is not saved
