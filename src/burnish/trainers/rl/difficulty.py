"""How often prompts are solved, as their newest responses show, and which of them are worth sampling.

Batches are collected one after another, possibly ahead of training, so what is known when one is collected follows from
the batches before it. A checkpoint holds what the steps that were trained on have shown; batches that were collected
and not yet trained on are in it as well (`burnish.trainers.rl.supply`), and are counted again when they are read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from burnish.config.domains import at_step, stages
from burnish.config.schema_domains import DifficultyConfig
from burnish.errors import ConfigError
from burnish.observability.recorder import read_rollouts, recorded_files
from burnish.rewards.success import Success
from burnish.trainers.outer_loop import Progress
from burnish.types import Rollout, RolloutGroup

_OF_ROLLOUT = [field.name for field in fields(Rollout)]
"""A recorded line has more, such as the prompt."""
Key = tuple[str, str]
"""Domain and prompt id."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest responses to a prompt: whether each was solved, `1` or `0`, oldest first; and the step of the last."""

    solved: str
    step: int

    @property
    def share(self) -> float:
        return self.solved.count("1") / len(self.solved)

    def with_newer(self, solved: str, step: int, window: int) -> Seen:
        return Seen((self.solved + solved)[-window:], step)


class PassRates:
    """What is known of each prompt of the domains that filter by difficulty."""

    def __init__(self, windows: Mapping[str, int], progress: Progress) -> None:
        """windows: for each domain that filters, how many of the newest responses to a prompt count."""
        self.windows = windows
        self._progress = progress
        self._trained: dict[Key, Seen] = {}
        self._now: dict[Key, Seen] = {}
        self._ahead: list[tuple[int, Key, str]] = []
        """What was observed since the last step that was trained on, in order."""
        self._lock = threading.Lock()  # a batch may be collected while a checkpoint is written

    def of(self, domain: str, prompt_id: str) -> Seen | None:
        return self._now.get((domain, prompt_id))

    def observe(self, step: int, domain: str, prompt_id: str, solved: Sequence[bool]) -> None:
        """Responses to this prompt were collected for this step."""
        if domain not in self.windows or not solved:
            return
        entry = step, (domain, prompt_id), "".join("1" if one else "0" for one in solved)
        with self._lock:
            self._settle()
            self._ahead.append(entry)
            self._add(self._now, *entry)

    def begin_with(self, domain: str, recorded: Iterable[tuple[str, bool]]) -> None:
        """Responses of another run, oldest first: prompt id, and whether it was solved."""
        for prompt_id, solved in recorded:
            for known in (self._trained, self._now):
                self._add(known, 0, (domain, prompt_id), "1" if solved else "0")

    def state_dict(self) -> dict[str, object]:
        with self._lock:
            self._settle()
            return {"seen": [[*key, seen.solved, seen.step] for key, seen in sorted(self._trained.items())]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._trained = {(domain, prompt): Seen(solved, step) for domain, prompt, solved, step in state["seen"]}
        self._now, self._ahead = dict(self._trained), []

    def _settle(self) -> None:
        """Keep for good what the steps that were trained on have shown."""
        trained = [entry for entry in self._ahead if entry[0] <= self._progress.step]
        for entry in trained:
            self._add(self._trained, *entry)
        self._ahead = self._ahead[len(trained) :]

    def _add(self, known: dict[Key, Seen], step: int, key: Key, solved: str) -> None:
        known[key] = known.get(key, Seen("", 0)).with_newer(solved, step, self.windows[key[0]])


@dataclass(frozen=True, slots=True)
class Filter:
    """Which prompts of a domain are sampled, and which of their groups are trained on."""

    dynamic: bool
    difficulty: DifficultyConfig | None
    success: Success | None

    def asks_for(self, seen: Seen | None, step: int) -> bool:
        """Whether to sample a prompt of which this is known."""
        if self.difficulty is None or seen is None or self._inside(seen.share, step):
            return True
        again = self.difficulty.again_after
        return again is not None and step - seen.step >= again

    def keeps(self, group: RolloutGroup, step: int) -> bool:
        """Whether a group with at least one reward is trained on."""
        rewards = [r.reward for r in group.rollouts if r.reward is not None]
        if self.dynamic and len(set(rewards)) < 2:  # siblings whose reward failed do not count as different
            return False
        if self.difficulty is None:
            return True
        least, solved = self.difficulty.min_spread, self.solved(group)
        if least is not None and _deviation(rewards) < least:
            return False
        return not solved or self._inside(sum(solved) / len(solved), step)

    def solved(self, group: RolloutGroup) -> list[bool]:
        """Whether each response that can be judged is solved."""
        if self.success is None:
            return []
        judged = [self.success.solved(rollout) for rollout in group.rollouts]
        return [solved for solved in judged if solved is not None]

    def _inside(self, share: float, step: int) -> bool:
        assert self.difficulty is not None
        low, high = at_step(stages(self.difficulty.keep), step)
        return low <= share <= high


def recorded_outcomes(folder: str, field: str, success: Success) -> Iterable[tuple[str, bool]]:
    """Prompt id and verdict of each training response that a run recorded, in order. ConfigError if there is none."""
    files = [file for file in recorded_files(Path(folder).expanduser() / "rollouts") if file.name.startswith("step-")]
    found = []
    for line in (line for file in files for line in read_rollouts(file) if not line["greedy"]):
        solved = success.solved(Rollout.from_dict({name: line[name] for name in _OF_ROLLOUT if name in line}))
        if solved is not None:
            found.append((str(line["prompt_id"]), solved))
    if not found:
        raise ConfigError(
            f"{field} is {folder!r}, which has no recorded training rollouts that {success} could judge",
            remedy="name the folder of a run with rollouts/step-*.jsonl and the same rewards, or remove it",
        )
    return found


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation over the group (of a population)."""
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
