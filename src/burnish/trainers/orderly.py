"""However the loop of a run ends, the steps that it has finished are saved."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from burnish.checkpointing.pending import Pending
from burnish.errors import BurnishError, CheckpointError
from burnish.plugins import describe_failure, is_out_of_memory


@dataclass(frozen=True, slots=True)
class Finished:
    """How far a run has come, as far as it can be saved.

    `step` is the last finished one, `saved_step` that of the newest checkpoint. `weights_moved`: optimizer steps of
    the step after it were begun, so that the weights are those of neither. `pending`: what is still to be done about
    `step`.
    """

    step: int
    saved_step: int | None
    weights_moved: bool
    pending: Pending | None
    save: Callable[[], None]

    def hindrance(self) -> str:
        """Why it cannot be saved as it is; empty when it can."""
        if self.weights_moved:
            return f"step {self.step + 1} was stopped in the middle of its updates, so its weights belong to no step"
        if self.pending is not None and not self.pending.is_finite():
            return f"the metrics of step {self.step} are not all finite, so its weights are not to be trusted"
        return ""


@contextmanager
def saving_finished_steps(finished: Callable[[], Finished], say: Callable[[str], None]) -> Iterator[None]:
    """Around the loop of a run: when anything but Ctrl-C ends it, save its last finished step, say so, and let the
    exception go on. A save that fails as well is told, and does not take the place of the first error.

    A CheckpointError saves nothing: the folder is not ours any more, or has just refused a checkpoint.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, SystemExit) as error:  # boundary: whatever ends the loop, finished steps are worth keeping
        _free_memory(error)
        told = _keep(finished())
        if told:
            say(told)
        raise


@contextmanager
def naming_memory_errors() -> Iterator[None]:
    """Around a whole command: memory that cannot be had becomes one BurnishError that says what to lower."""
    try:
        yield
    except BurnishError:
        raise
    except Exception as error:  # boundary: each library has its own word for it
        if not is_out_of_memory(error):
            raise
        detail = str(error).strip().partition("\n")[0]
        raise BurnishError(
            f"memory ran out{f': {detail}' if detail else ''}",
            remedy="lower optimization.tokens_per_microbatch or what is sampled at once (rollout.max_batch_rows), free "
            "memory, or take a smaller model; `burnish plan` estimates what a run needs",
        ) from error


def _keep(state: Finished) -> str:
    """Save what can be saved; what to tell about it."""
    saved = state.saved_step
    newest = "there is no checkpoint" if saved is None else f"the newest checkpoint is that of step {saved}"
    hindrance = state.hindrance()
    if hindrance:
        return f"{hindrance}; nothing is saved, {newest}"
    if state.step in (0, saved):
        return ""
    try:
        state.save()
    except Exception as error:  # noqa: BLE001  boundary: why the run stopped matters more than why this save failed
        return f"step {state.step} could not be saved either ({describe_failure(error)}); {newest}"
    return f"step {state.step} is saved; the same command goes on from there"


def _free_memory(error: BaseException) -> None:
    """The frames of the failed call hold its tensors, and saving needs memory too."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
