"""Requests in a run's folder, as the loop heeds them between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from burnish.observability.control import REQUESTS, is_asked, take
from burnish.trainers.interrupt import StopRequest

_LOOK_SECONDS = 0.2


def forget_requests(run_dir: Path) -> None:
    """Withdraw what was asked of an earlier start of the run."""
    for request in REQUESTS:
        take(run_dir, request)


def heed_requests(
    run_dir: Path, stop: StopRequest, save: Callable[[], object], say: Callable[[str], None]
) -> StopRequest:
    """Save if asked to, wait as long as a pause is asked for, and return `stop`, which may have been requested."""
    waiting = False
    while not stop:
        if take(run_dir, "save"):
            save()
        if take(run_dir, "stop"):
            stop.requested = True
        elif not is_asked(run_dir, "pause"):
            break
        elif not waiting:
            waiting = True
            say(f"paused; remove {run_dir}/control/pause to go on")
        time.sleep(_LOOK_SECONDS if waiting else 0)
    return stop
