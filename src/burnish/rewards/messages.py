"""The messages that a worker may send, and the checks on them.

The worker runs the user's code, so the training process does not trust it. An answer is one of the classes below, made
of plain numbers and strings, or reading it raises GarbledError.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from burnish.outside.frames import GarbledError
from burnish.rewards.inputs import Signature
from burnish.rewards.outcome import Outcome
from burnish.types import RewardStatus, Score

_ENDINGS = {status.value: status for status in RewardStatus if status is not RewardStatus.PENDING}


@dataclass(frozen=True, slots=True)
class Ready:
    """The rewards are loaded. signatures: by the number of the reward."""

    signatures: dict[int, Signature]

    def plain(self) -> list[Any]:
        return ["ready", [[index, asdict(signature)] for index, signature in self.signatures.items()]]


@dataclass(frozen=True, slots=True)
class Refused:
    """A reward cannot be loaded: the name of the error's class, its message, its remedy, and the causing traceback."""

    kind: str
    text: str
    remedy: str | None
    cause: str

    def plain(self) -> list[Any]:
        return ["refused", self.kind, self.text, self.remedy, self.cause]


@dataclass(frozen=True, slots=True)
class Violation:
    """The reward breaks its contract, so the run must stop."""

    task: int
    text: str
    remedy: str | None

    def plain(self) -> list[Any]:
        return ["violation", self.task, self.text, self.remedy]


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of one response of a task."""

    task: int
    item: int
    outcome: Outcome

    def plain(self) -> list[Any]:
        score = self.outcome.score
        content = None if score is None else [score.value, dict(score.parts), score.token_rewards]
        return ["outcome", self.task, self.item, self.outcome.status.value, content, self.outcome.detail]


@dataclass(frozen=True, slots=True)
class Idle:
    """The task is done."""

    task: int

    def plain(self) -> list[Any]:
        return ["idle", self.task]


Answer = Ready | Refused | Violation | Judged | Idle


def read_answer(plain: Any) -> Answer:
    """Parse an answer from JSON values. GarbledError if they are not a valid answer."""
    match plain:
        case ["outcome", int(task), int(item), str(status), score, str(detail)] if status in _ENDINGS:
            return Judged(task, item, Outcome(_ENDINGS[status], _score(status, score), detail))
        case ["idle", int(task)]:
            return Idle(task)
        case ["ready", list(listed)]:
            return Ready(dict(_signature(entry) for entry in listed))
        case ["refused", str(kind), str(text), str() | None as remedy, str(cause)]:
            return Refused(kind, text, remedy, cause)
        case ["violation", int(task), str(text), str() | None as remedy]:
            return Violation(task, text, remedy)
    raise GarbledError(f"{plain!r:.80}")


def _score(status: str, plain: Any) -> Score | None:
    match plain:
        case None if status != RewardStatus.OK.value:
            return None
        case [value, dict(parts), list() | None as tokens] if status == RewardStatus.OK.value:
            numbers = [value, *parts.values(), *(tokens or ())]
            # `type` instead of `isinstance`, which would let True and whole numbers pass.
            if all(type(number) is float and math.isfinite(number) for number in numbers):
                return Score(value, parts, None if tokens is None else tuple(tokens))
    raise GarbledError(f"the status {status!r} with the score {plain!r:.80}")


def _signature(plain: Any) -> tuple[int, Signature]:
    match plain:
        case [
            int(index),
            {
                "label": str(label),
                "required": list(required),
                "optional": list(optional),
                "options": list(options),
                "takes_columns": bool(takes_columns),
                "batched": bool(batched),
                "asynchronous": bool(asynchronous),
                "system": str(system),
            },
        ] if all(isinstance(name, str) for name in (*required, *optional, *options)):
            names = (tuple(required), tuple(optional), tuple(options))
            return index, Signature(label, *names, takes_columns, batched, asynchronous, system)
    raise GarbledError(f"the signature {plain!r:.80}")
