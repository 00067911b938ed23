"""Models with a process of their own work while the loop asks others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Beside:
    """Which models those are (`reference`, `critic`), and a thread for each; none where all share their processes."""

    models: tuple[str, ...] = ()
    threads: ThreadPoolExecutor | None = None

    def begin(self, model: str, call: Callable[[], Result]) -> Callable[[], Result]:
        """What waits for the result of a call to this model. The call is made now if the model has its own process,
        and else when the result is asked for, because it would be in the way of what its process does until then."""
        return call if self.threads is None or model not in self.models else self.threads.submit(call).result


ALONE = Beside()
"""No model has a process of its own."""
