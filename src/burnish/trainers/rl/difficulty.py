"""Choice of the prompts to sample and the groups to train on, by equal rewards and by pass rates of prompts.

Batches are collected one after another, possibly ahead of training, and each with the rates that the batches before it
have shown. A checkpoint holds the rates by the steps that were trained on. It also holds the batches that were
collected and not yet trained on (`burnish.trainers.rl.supply`); they are counted again when they are read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.checkpointing.chaining import is_run
from burnish.checkpointing.run import RunDirectory
from burnish.config.domains import at_step, stages
from burnish.config.schema_domains import DifficultyConfig
from burnish.errors import ConfigError
from burnish.observability.recorder import recorded_files, recorded_rollout
from burnish.outside.reading import reading
from burnish.rewards.success import Success
from burnish.types import Rollout, RolloutGroup

if TYPE_CHECKING:
    from burnish.trainers.outer_loop import Progress

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


class PassRates:
    """Pass rates of the prompts in the domains that filter by difficulty."""

    def __init__(self, windows: Mapping[str, int], progress: Progress) -> None:
        """windows: for each domain that filters, how many of the newest responses to a prompt count."""
        self.windows = windows
        self._progress = progress
        self._trained: dict[Key, Seen] = {}
        self._now: dict[Key, Seen] = {}
        self._ahead: list[tuple[int, Key, str]] = []
        """Outcomes observed since the last step that was trained on, in order."""
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
        """Make permanent what the steps that were trained on have shown."""
        trained = [entry for entry in self._ahead if entry[0] <= self._progress.step]
        for entry in trained:
            self._add(self._trained, *entry)
        self._ahead = self._ahead[len(trained) :]

    def _add(self, known: dict[Key, Seen], step: int, key: Key, solved: str) -> None:
        earlier = known[key].solved if key in known else ""
        known[key] = Seen((earlier + solved)[-self.windows[key[0]] :], step)


@dataclass(frozen=True, slots=True)
class Filter:
    """Rules for which prompts of a domain are sampled, and which of their groups are trained on.

    turn_gamma: discount of an estimator that compares turns, for which responses with the same score teach if their
    returns from some turn on differ. None for others. trained_parts: labels of the reward parts, for an estimator that
    compares these: responses of equal sums teach if their parts differ. Empty for others.
    """

    dynamic: bool
    difficulty: DifficultyConfig | None
    success: Success | None
    turn_gamma: float | None = None
    trained_parts: tuple[str, ...] = ()

    def asks_for(self, seen: Seen | None, step: int) -> bool:
        """Return whether to sample a prompt with this pass rate. None: no response to it has been judged yet."""
        if self.difficulty is None or seen is None or self._inside(seen.share, step):
            return True
        again = self.difficulty.again_after
        return again is not None and step - seen.step >= again

    def why_left_out(self, group: RolloutGroup, step: int) -> str:
        """Why a group with at least one reward is not trained on; empty if it is."""
        rewards = [r.reward for r in group.samples() if r.reward is not None]
        # Siblings whose reward failed do not count as different.
        is_constant = self.dynamic and len(set(rewards)) < 2
        if is_constant and not (self._teaches_by_turn(group) or self._teaches_by_part(group)):
            return "group without signal"
        if self.difficulty is None:
            return ""
        least, solved = self.difficulty.min_spread, self.solved(group)
        if least is not None and _deviation(rewards) < least:
            return "spread of rewards below min_spread"
        return "" if not solved or self._inside(sum(solved) / len(solved), step) else "solved share outside of keep"

    def _teaches_by_turn(self, group: RolloutGroup) -> bool:
        """Return whether the discounted returns from some turn on differ within the group."""
        if self.turn_gamma is None:
            return False
        by_number: dict[int, set[float]] = {}
        for rollout in (r for r in group.samples() if r.token_rewards is not None):
            paid, following = rollout.token_rewards or (), 0.0
            for number, turn in reversed(list(enumerate(rollout.policy_turns()))):
                following = sum(paid[turn.start : turn.stop]) + self.turn_gamma * following
                by_number.setdefault(number, set()).add(round(following, 9))
        return any(len(returns) > 1 for returns in by_number.values())

    def _teaches_by_part(self, group: RolloutGroup) -> bool:
        """Return whether some trained part of the reward differs within the group."""
        scored = [rollout.reward_parts for rollout in group.samples() if rollout.reward is not None]
        return any(len({parts.get(label) for parts in scored}) > 1 for label in self.trained_parts)

    def solved(self, group: RolloutGroup) -> list[bool]:
        """Return the verdicts on the responses that can be judged, True for a solved one."""
        if self.success is None:
            return []
        judged = [self.success.solved(rollout) for rollout in group.samples()]
        return [solved for solved in judged if solved is not None]

    def _inside(self, share: float, step: int) -> bool:
        assert self.difficulty is not None
        low, high = at_step(stages(self.difficulty.keep), step)
        return low <= share <= high


def recorded_files_of(folder: str, field: str) -> list[Path]:
    """The training rollouts of another run, oldest first. ConfigError if `field`, which names it, names none."""
    path = Path(folder).expanduser()
    files = [*recorded_files(path / "rollouts").values()]
    if not is_run(path) or not files:
        lacks = "has no recorded training rollouts" if is_run(path) else "is not the folder of a run"
        raise ConfigError(
            f"{field} is {folder!r}, which {lacks}",
            remedy="name the folder of a run, with its config.yaml and rollouts/step-*.jsonl, or remove it",
        )
    return files


def recorded_outcomes(
    folder: str, field: str, success: Success, *, domain: str, prompt_ids: Collection[str]
) -> list[tuple[str, bool]]:
    """Prompt id and verdict of each training response of another run to these prompts of a domain, oldest first.

    A prompt's id is unique only within a domain. If that run has domains, only a domain of the same name counts.
    ConfigError if nothing was recorded that helps, or if a file is damaged.
    """
    files = recorded_files_of(folder, field)
    has_domains = bool(RunDirectory(Path(folder).expanduser()).read_config().get("domains"))
    found = []
    for of, rollout in (one for file in files for one in _sampled(file)):
        if rollout.prompt_id in prompt_ids and (of == domain or not has_domains):
            solved = success.solved(rollout)
            found += [] if solved is None else [(rollout.prompt_id, solved)]
    if not found:
        raise ConfigError(
            f"{field} is {folder!r}, which has recorded no response that could be judged to a training prompt of the "
            f"domain {domain!r} ({success})",
            remedy="name a run of the same data and rewards, whose domains have the same names, or remove it",
        )
    return found


def _sampled(file: Path) -> Iterator[tuple[str, Rollout]]:
    """The domain and the response of each line of recorded training rollouts, without the greedy ones."""
    remedy = "remove the line, or name another run in difficulty.recorded"
    with reading(f"{file}: reading recorded rollouts", ConfigError, remedy=remedy), file.open(encoding="utf-8") as text:
        lines = list(text)
    for number, line in enumerate(lines, start=1):
        with reading(f"{file}:{number}: reading a recorded rollout", ConfigError, remedy=remedy):
            row = json.loads(line)
            of, greedy, rollout = str(row["domain"]), bool(row["greedy"]), recorded_rollout(row)
        if not greedy:
            yield of, rollout


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation over the group (of a population)."""
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
