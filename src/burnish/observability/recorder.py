"""Records every rollout of a run on disk, also if a filter or a failed reward kept it out of the update."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from burnish.errors import BurnishError
from burnish.observability.atomic import disk_errors, write_text_atomically
from burnish.types import Json, Prompt, RewardStatus, Rollout, RolloutGroup, RowKey

RecordedLine = dict[str, Any]
"""A line of a rollout file as it was read. Its fields are not checked."""
DecodeTokens = Callable[[Sequence[int]], Sequence[str]]
"""Converts token ids to one text per token."""


@dataclass(frozen=True, slots=True)
class RolloutNote:
    """Results of the trainer for a rollout after sampling. Per-token fields have one value per response token.

    `token_entropy` is of the policy that the first update on the rollout began with, 0 for tokens not trained on.
    `kept` says whether it was part of the update. If not, `dropped_because` says why ("constant group", "truncated").
    """

    kept: bool = True
    dropped_because: str = ""
    advantage: float | None = None
    token_advantages: tuple[float, ...] | None = None
    old_logprobs: tuple[float, ...] | None = None
    ref_logprobs: tuple[float, ...] | None = None
    teacher_logprobs: tuple[float, ...] | None = None
    token_values: tuple[float, ...] | None = None
    token_returns: tuple[float, ...] | None = None
    token_entropy: tuple[float, ...] | None = None


_OF_ROLLOUT = ("kept", "dropped_because", "advantage")
_TOKEN_FIELDS = [field.name for field in fields(RolloutNote) if field.name not in _OF_ROLLOUT]
_NAME = re.compile(r"(step|eval)-\d{6,}\.jsonl")

Notes = Mapping[RowKey, RolloutNote]
TokenValues = Mapping[RowKey, Sequence[float]]
"""The critic's values before each response token."""


class RolloutRecorder:
    """Writes `rollouts/step-000123.jsonl` and `rollouts/eval-000123.jsonl`, with one line per rollout.

    A file is written at once, after the advantages of its step are known. Writing it again replaces it, so a resumed
    run that repeats a step leaves the same files as an uninterrupted one, except for the times of turns.
    """

    def __init__(self, folder: Path, decode_tokens: DecodeTokens | None = None) -> None:
        self._folder = folder
        self._decode_tokens = decode_tokens

    def record(self, step: int, groups: Sequence[RolloutGroup], notes: Notes | None = None) -> Path:
        """Write all training rollouts of a step. Rollouts without a note count as not kept."""
        return self._write("step", step, groups, notes or {}, {})

    def record_evaluation(self, step: int, groups: Sequence[RolloutGroup], values: TokenValues | None = None) -> Path:
        """Write the evaluation rollouts after `step` steps, with the critic's values if there is a critic."""
        return self._write("eval", step, groups, None, values or {})

    def discard_after(self, step: int) -> None:
        """Remove files of later steps, which a killed run wrote after the checkpoint that it resumes from."""
        for path in self._folder.glob("*.jsonl"):
            if _NAME.fullmatch(path.name) and step_of(path) > step:
                try:
                    path.unlink()
                except OSError as error:
                    raise BurnishError(
                        f"cannot remove {path}, which the run has to write again: {error.strerror}",
                        remedy="remove it yourself, then start again",
                    ) from error

    def _write(
        self, kind: str, step: int, groups: Sequence[RolloutGroup], notes: Notes | None, values: TokenValues
    ) -> Path:
        path = self._folder / f"{kind}-{step:06d}.jsonl"
        lines = [_dump(self._entry(step, *item, notes, values)) for item in _rollouts(groups)]
        with disk_errors(f"write {path}", path.parent):
            write_text_atomically(path, "".join(lines))  # at once, so that a killed run leaves no partial file
        return path

    def _entry(
        self, step: int, prompt: Prompt, rollout: Rollout, greedy: bool, notes: Notes | None, values: TokenValues
    ) -> dict[str, Json]:
        entry: dict[str, Json] = {"step": step, **prompt_fields(prompt), **rollout.to_dict(), "greedy": greedy}
        if self._decode_tokens is not None:
            entry["token_texts"] = list(self._decode_tokens(rollout.response_tokens))
            if rollout.turns:  # an environment may have added to the prompt of the row
                entry["prompt_text"] = "".join(self._decode_tokens(rollout.prompt_tokens))
        key = rollout.key
        if notes is not None and not greedy:
            entry |= _note_fields(notes.get(key), rollout)
        if key in values:
            entry["token_values"] = list(values[key])
        return entry


def recorded_files(folder: Path, *, evaluation: bool = False) -> dict[int, Path]:
    """Find the files with a run's rollouts of training, or of evaluation, by step and in order. Others are ignored."""
    found = folder.glob("eval-*.jsonl" if evaluation else "step-*.jsonl")
    return dict(sorted((step_of(path), path) for path in found if _NAME.fullmatch(path.name)))


def step_of(path: Path) -> int:
    """The step in the name of a rollout file."""
    return int(path.stem.split("-")[-1])


def read_rollouts(path: Path) -> list[RecordedLine]:
    """Read the lines of a rollout file as dictionaries."""
    return list(each_rollout(path))


def each_rollout(path: Path) -> Iterator[RecordedLine]:
    """Yield the lines of a rollout file one by one: all lines of a long step can take gigabytes."""
    with path.open("rb") as file:
        yield from map(rollout_of, file)


def rollout_of(line: bytes) -> RecordedLine:
    """Parse a line of a rollout file, two to three times as fast as `json` does. JSONDecodeError if it is damaged."""
    parsed: RecordedLine
    try:
        parsed = from_json(line)
    except ValueError:
        parsed = json.loads(line)  # raises what is said of damaged JSON elsewhere
    return parsed


def recorded_rollout(line: RecordedLine) -> Rollout:
    """Restore the rollout of a line, which has more, such as the prompt. Numbers that are not finite were recorded as
    text."""
    row = {field.name: line[field.name] for field in fields(Rollout) if field.name in line}
    return Rollout.from_dict({**row, "rollout_logprobs": map(float, line["rollout_logprobs"])})


def sampled_mask(line: RecordedLine) -> list[bool]:
    """Mask of a recorded response's tokens that the policy sampled, unlike tokens of tools and environments."""
    turns = line.get("turns")
    if not turns:
        return [True] * len(line["response_tokens"])
    return [turn["author"] == "policy" for turn in turns for _ in range(turn["start"], turn["stop"])]


def num_sampled(line: RecordedLine) -> int:
    """Number of a recorded response's tokens that the policy sampled."""
    return sum(sampled_mask(line))


def _rollouts(groups: Sequence[RolloutGroup]) -> Iterator[tuple[Prompt, Rollout, bool]]:
    for group in groups:
        for rollout in group.rollouts:
            yield group.prompt, rollout, False
        if group.greedy is not None:
            yield group.prompt, group.greedy, True


def prompt_fields(prompt: Prompt) -> dict[str, Json]:
    """Fields of a line about its prompt."""
    asked: Json = prompt.text if prompt.messages is None else [message.to_dict() for message in prompt.messages]
    return {"prompt": asked, "answer": prompt.answer, "domain": prompt.domain}


def _note_fields(note: RolloutNote | None, rollout: Rollout) -> dict[str, Json]:
    if note is None:
        failed = rollout.status is not RewardStatus.OK
        why = f"reward {rollout.status.value}" if failed else "not in the update"
        note = RolloutNote(kept=False, dropped_because=why)
    entry: dict[str, Json] = {name: getattr(note, name) for name in _OF_ROLLOUT}
    for name in _TOKEN_FIELDS:
        values: Sequence[float] | None = getattr(note, name)
        if values is None:
            continue
        if len(values) != len(rollout.response_tokens):
            raise ValueError(
                f"note of group {rollout.group_id}, sample {rollout.sample_index}: {name} has {len(values)} entries, "
                f"but the response has {len(rollout.response_tokens)} tokens"
            )
        entry[name] = list(values)
    return entry


def _dump(entry: dict[str, Json]) -> str:
    """One line of strict JSON. Numbers that are not finite become strings, as do values of unknown types."""
    try:
        return json.dumps(entry, ensure_ascii=False, allow_nan=False, default=str) + "\n"
    except ValueError:
        return json.dumps(_name_non_finite(entry), ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _name_non_finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _name_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_name_non_finite(item) for item in value]
    return value
