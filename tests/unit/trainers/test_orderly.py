"""What ends a loop is what is shown."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.checkpointing.store import Checkpoint, Pending
from burnish.errors import BurnishError, DivergenceError
from burnish.trainers import outer_loop
from burnish.trainers.outer_loop import Progress, save_and_try, saving_finished_steps


def stub_training(said: list[str], progress: Progress, learners: Any = dict) -> Any:
    journal = SimpleNamespace(display=SimpleNamespace(note=said.append))
    return SimpleNamespace(journal=journal, progress=progress, learners=learners)


@pytest.mark.slow
def test_models_that_cannot_be_asked_any_more_do_not_hide_why_the_run_ends() -> None:
    said: list[str] = []
    training = stub_training(
        said, Progress(3, versions=(1,)), Mock(side_effect=BurnishError("process 'trainer 0' has been ended"))
    )
    with pytest.raises(BurnishError, match="trainer 1 is lost"), saving_finished_steps(training):
        raise BurnishError("trainer 1 is lost")
    assert len(said) == 1
    assert said[0].startswith("nothing more is saved (process 'trainer 0' has been ended")


@pytest.mark.slow
@pytest.mark.parametrize(("pending", "saved"), [(Pending({"loss": 1.0}), False), (None, True)])
def test_weights_whose_evaluation_is_not_finite_are_not_saved(pending, saved, monkeypatch) -> None:
    """The training row of the step is finite; its line was not written yet. Of a step that is complete they are."""
    done: list[Any] = []
    said: list[str] = []
    monkeypatch.setattr(outer_loop, "save", done.append)
    training = stub_training(said, Progress(3, saved_step=2, pending=pending))
    with pytest.raises(DivergenceError), saving_finished_steps(training):
        raise DivergenceError("eval/loss is nan")
    assert bool(done) is saved
    assert ("cannot be trusted" in said[0]) is not saved


def test_the_policy_is_loaded_again_after_the_first_checkpoint_only(tmp_path, monkeypatch) -> None:
    def save(training: Any) -> Checkpoint:
        training.progress.saved_step = 4
        return Checkpoint(4, tmp_path)

    monkeypatch.setattr(outer_loop, "save", save)
    said: list[str] = []
    training = stub_training(said, Progress(4))
    training.saved = Mock(problem=Mock(return_value="warning: it differs"))
    save_and_try(training)
    save_and_try(training)
    assert said == ["warning: it differs"]
    training.saved.problem.assert_called_once_with(tmp_path / "policy")
