"""However the loop of a run ends, its finished steps are saved."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from burnish.checkpointing.pending import Pending
from burnish.errors import BurnishError, CheckpointError, DivergenceError
from burnish.plugins import describe_failure, is_out_of_memory


@dataclass(frozen=True, slots=True)
class Finished:
    """How far a run has come, as far as it can be saved.

    `step` is the last finished step, `saved_step` that of the newest checkpoint. `weights_moved`: the next step has
    begun its optimizer steps, so the weights belong to neither. `pending`: what `step` still needs.
    """

    step: int
    saved_step: int | None
    weights_moved: bool
    pending: Pending | None
    save: Callable[[], None]

    def hindrance(self, *, diverged: bool) -> str:
        """Why it cannot be saved as it is; empty if it can. `diverged`: a number that is not finite ended the run."""
        if self.weights_moved:
            return f"step {self.step + 1} was stopped in the middle of its updates, so its weights belong to no step"
        if self.pending is not None and (diverged or not self.pending.is_finite()):  # before its line was written
            return f"the metrics of step {self.step} are not all finite, so its weights cannot be trusted"
        return ""


@contextmanager
def saving_finished_steps(finished: Callable[[], Finished], say: Callable[[str], None]) -> Iterator[None]:
    """Around the loop of a run: if anything except Ctrl-C ends it, save its last finished step, say so, and re-raise.
    If that save fails too, this is reported, but the first error is still the one raised.

    After a CheckpointError nothing is saved: the folder is no longer ours, or has just refused a checkpoint.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, SystemExit) as error:  # boundary: whatever ends the loop, finished steps are worth keeping
        _free_memory(error)
        told = _keep(finished, diverged=isinstance(error, DivergenceError))
        if told:
            say(told)
        raise


@contextmanager
def naming_memory_errors() -> Iterator[None]:
    """Around a whole command: running out of memory becomes one BurnishError that says what to lower."""
    try:
        yield
    except BurnishError:
        raise
    except Exception as error:  # boundary: each library has its own exception for it
        if not is_out_of_memory(error):
            raise
        detail = str(error).strip().partition("\n")[0]
        raise BurnishError(
            f"memory ran out{f': {detail}' if detail else ''}",
            remedy="lower optimization.tokens_per_microbatch or the number of sequences sampled at once "
            "(rollout.max_batch_rows), free memory, or use a smaller model; `burnish plan` estimates what a run needs",
        ) from error


def _keep(finished: Callable[[], Finished], *, diverged: bool) -> str:
    """Save what can be saved, and return what to say about it."""
    try:
        state = finished()
    except Exception as error:  # noqa: BLE001  boundary: a model in a process that is lost too cannot be asked
        return f"nothing more is saved ({describe_failure(error)})"
    saved = state.saved_step
    newest = "there is no checkpoint" if saved is None else f"the newest checkpoint is of step {saved}"
    hindrance = state.hindrance(diverged=diverged)
    if hindrance:
        return f"{hindrance}; nothing is saved, {newest}"
    if state.step in (0, saved):
        return ""
    try:
        state.save()
    except Exception as error:  # noqa: BLE001  boundary: why the run stopped matters more than why this save failed
        return f"step {state.step} could not be saved either ({describe_failure(error)}); {newest}"
    return f"step {state.step} is saved; the same command continues from there"


def _free_memory(error: BaseException) -> None:
    """The frames of the failed call hold its tensors, and saving needs memory too."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
