"""The reward models of a run in a separate process, behind the protocol through which the scorer asks them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from burnish.distributed.peers import Peer, RoleLostError
from burnish.errors import RewardError
from burnish.observability.timeline import WorkSpan
from burnish.rewards.inputs import Item
from burnish.rewards.outcome import Outcome

ROLE = "reward_model"
"""What the process holds: a `burnish.rewards.model_reward.RewardModels`."""
_HOUR = 3600.0


class RewardModelProcess:
    """`ScoringModels` in another process. A context manager, which ends it.

    The models are frozen, so that nothing but time is lost with their process: it is started again, and asked for the
    same scores.

    process: the first one. start: makes it again; None where it is not this side's to start. restarts: how often in an
    hour. seconds: how long a request may take. say: tells the user what became of it.
    """

    def __init__(
        self,
        process: Peer,
        start: Callable[[threading.Event], Peer] | None,
        *,
        restarts: int,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._process: Peer | None = process
        self.name = process.name
        self._start = start
        self._restarts = restarts
        self._seconds = seconds
        self._say = say
        self._started_again: list[float] = []
        self._closed = threading.Event()
        self._lock = threading.Lock()
        """Around `_process` and `_closed`, which change together. A start that is in progress is then given up."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        """Asks, and starts again, so that there is never more than one of the processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._closed.set()
            if self._process is not None:
                self._process.close()  # whoever waits for its scores gets an error
        self._thread.shutdown(wait=False)

    def begin(self, label: str, items: Sequence[Item]) -> Callable[[], list[Outcome]]:
        """See `ScoringModels`. Scoring begins at once, or when what was begun before is done. Raises RewardError when
        the process is lost more often than it may be, and RoleLostError where nobody starts it again."""
        return self._thread.submit(self._outcomes, label, list(items)).result

    @property
    def standing(self) -> str:
        """See `WorkingProcess`."""
        return "is started again" if self._process is None else self._process.standing

    def take_spans(self) -> Sequence[WorkSpan]:
        """See `WorkingProcess`."""
        return () if self._process is None else self._process.take_spans()

    def _outcomes(self, label: str, items: list[Item]) -> list[Outcome]:
        message = ("call", ROLE, "outcomes", (label, items), dict[str, object]())
        while True:
            try:
                return self._present().ask(message, what=f"reward {label!r}", seconds=self._seconds)
            except RoleLostError as error:
                self._lose(label, error)

    def _present(self) -> Peer:
        """The process, made again if there is none."""
        if self._process is None:
            assert self._start is not None, "it is let go of only where it can be started again"
            process = self._start(self._closed)
            with self._lock:
                self._process = process
                if self._closed.is_set():
                    process.close()  # the run has ended meanwhile
        return self._process

    def _lose(self, label: str, error: RoleLostError) -> None:
        """Let go of a lost process. Raises what ends the run if it is not to be started again."""
        if self._start is None or self._closed.is_set():
            raise error
        now = time.monotonic()
        self._started_again = [moment for moment in self._started_again if now - moment < _HOUR]
        if len(self._started_again) >= self._restarts:
            raise RewardError(
                f"reward {label!r} cannot be scored: {error.message}; it is not started again: {self._restarts} "
                "restarts an hour is the limit (cluster.restarts)",
                remedy="if it ends: mostly too little memory, of which its option tokens_per_microbatch takes less; if "
                "it does not answer: raise cluster.stall_seconds",
            ) from error
        self._started_again.append(now)
        self._say(f"{error.message}; it is started again, and asked for the same scores: nothing to do")
        with self._lock:
            self._process = None
