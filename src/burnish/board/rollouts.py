"""Recorded responses as the page shows them, by step, group or prompt, and as rows for training."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Literal, TypedDict

from burnish.board.index import IndexEntry, Kind, RolloutIndex
from burnish.board.samples import Group, reading_recorded, shown_group
from burnish.errors import DataError
from burnish.observability.recorder import RecordedLine
from burnish.observability.scored_pairs import PairRule, pairs_of_run
from burnish.types import Json

Form = Literal["best", "pairs"]
"""Rows for training: demonstrations for `burnish sft`, or comparisons for `burnish prefer`."""
PAGE = 48
"""Most responses of a group that are sent at a time."""


@dataclass(frozen=True, slots=True)
class ResponseFilter:
    """A choice of responses. Empty texts choose all, and so do bounds that are infinite.

    status: of the reward. why: the reason for leaving a response out; `kept`: those that were trained on. text: is in
    the prompt or in the response, whatever the case of its letters.
    """

    low: float = -math.inf
    high: float = math.inf
    status: str = ""
    why: str = ""
    domain: str = ""
    text: str = ""

    def admits(self, entry: IndexEntry) -> bool:
        """Return whether a response may be shown, as far as the index knows."""
        is_within = entry.reward is not None and self.low <= entry.reward <= self.high
        if not is_within and (self.low, self.high) != (-math.inf, math.inf):
            return False
        reason = "kept" if entry.kept else entry.why
        wanted = ((self.status, entry.status), (self.why, reason), (self.domain, entry.domain))
        return all(value in ("", own) for value, own in wanted)


class GroupSummary(TypedDict):
    """A group in a list; `spread` is the difference of its highest and its lowest reward."""

    group: int
    prompt: str
    asked: str
    domain: str
    rewards: list[float | None]
    mean: float | None
    spread: float
    tokens: float
    kept: int


class StepPage(TypedDict):
    """Groups of a step, the largest spread first, and the values that its responses can be filtered by."""

    kind: Kind
    step: int
    groups: list[GroupSummary]
    left_out: int
    statuses: list[str]
    reasons: list[str]
    domains: list[str]


class GroupPage(TypedDict):
    """A group with a part of its responses. first: the place of the first one; total: of how many."""

    group: Group
    first: int
    total: int


class Sighting(TypedDict):
    """One prompt in one step."""

    step: int
    group: int
    mean: float | None
    low: float | None
    high: float | None
    tokens: float
    responses: int


def step_page(index: RolloutIndex, kind: Kind, step: int, wanted: ResponseFilter) -> StepPage:
    """Return the groups of a step that have a response to show. DataError if its file is damaged."""
    entries = index.entries(kind, step)
    admitted = _with_text(index, [entry for entry in entries if wanted.admits(entry)], wanted.text)
    groups = [_summary(members) for members in _by_group(admitted)]
    groups.sort(key=lambda group: (-group["spread"], group["group"]))
    return {
        "kind": kind,
        "step": step,
        "groups": groups,
        "left_out": len(entries) - len(admitted),
        "statuses": sorted({entry.status for entry in entries}),
        "reasons": sorted({"kept" if entry.kept else entry.why for entry in entries} - {""}),
        "domains": sorted({entry.domain for entry in entries}),
    }


def group_page(
    index: RolloutIndex, kind: Kind, step: int, group: int, wanted: ResponseFilter, first: int = 0
) -> GroupPage | None:
    """Return a part of a group's responses, from the place `first` on; None if none passes the filter. DataError if a
    line is damaged."""
    members = [entry for entry in index.entries(kind, step) if entry.group_id == group and wanted.admits(entry)]
    with reading_recorded(index.path(kind, step)):
        members = _with_text(index, members, wanted.text)
        lines = index.lines(members[first : first + PAGE])
        return {"group": shown_group(lines), "first": first, "total": len(members)} if lines else None


def sightings(index: RolloutIndex, kind: Kind, prompt_id: str) -> list[Sighting]:
    """Return the steps in which the prompt was sampled, as far as they are indexed, by step."""
    return [_sighting(members) for members in _by_group(index.of_prompt(prompt_id, kind))]


def _with_text(index: RolloutIndex, entries: list[IndexEntry], text: str) -> list[IndexEntry]:
    """The responses that have the text in themselves or in their prompt; this alone reads their lines."""
    if not text:
        return entries
    wanted = text.casefold()
    lines = zip(entries, index.lines(entries), strict=True)
    return [entry for entry, line in lines if wanted in _all_text(line).casefold()]


def _all_text(line: RecordedLine) -> str:
    texts = line.get("token_texts") or [line["response"]]
    prompt = line["prompt"]
    asked = prompt if isinstance(prompt, str) else "\n".join(str(message["content"]) for message in prompt)
    return f"{asked}\n{''.join(texts)}"


def _by_group(entries: Iterable[IndexEntry]) -> list[list[IndexEntry]]:
    groups: dict[tuple[int, int], list[IndexEntry]] = defaultdict(list)
    for entry in entries:
        groups[entry.step, entry.group_id].append(entry)
    return list(groups.values())


def _summary(members: Sequence[IndexEntry]) -> GroupSummary:
    rewards = [entry.reward for entry in members if entry.reward is not None]
    one = members[0]
    return {
        "group": one.group_id,
        "prompt": one.prompt_id,
        "asked": one.asked,
        "domain": one.domain,
        "rewards": [entry.reward for entry in members],
        "mean": fmean(rewards) if rewards else None,
        "spread": max(rewards) - min(rewards) if rewards else 0.0,
        "tokens": fmean(entry.tokens for entry in members),
        "kept": sum(bool(entry.kept) for entry in members),
    }


def _sighting(members: Sequence[IndexEntry]) -> Sighting:
    rewards = [entry.reward for entry in members if entry.reward is not None]
    return {
        "step": members[0].step,
        "group": members[0].group_id,
        "mean": fmean(rewards) if rewards else None,
        "low": min(rewards, default=None),
        "high": max(rewards, default=None),
        "tokens": fmean(entry.tokens for entry in members),
        "responses": len(members),
    }


def rows_of_step(index: RolloutIndex, step: int, form: Form, least: float = -math.inf) -> list[dict[str, Json]]:
    """Make rows of a training step: of each group its best response, if its reward is at least `least`, or its best
    and its worst one. DataError if there are none."""
    if form == "pairs":
        rows = pairs_of_run(index.run_dir, PairRule(), range(step, step + 1)).rows
    else:
        sampled = (entry for entry in index.entries("step", step) if not entry.greedy)
        good = [entry for entry in sampled if entry.reward is not None and entry.reward >= least]
        best = [max(group, key=attrgetter("reward")) for group in _by_group(good)]  # of equal ones the first
        rows = [_demonstration(index, entry) for entry in best]
    if not rows:
        raise DataError(f"step {step} has no such rows", remedy="choose another step, or a lower reward")
    return rows


def _demonstration(index: RolloutIndex, entry: IndexEntry) -> dict[str, Json]:
    """A row with prompt and response; with `messages` where either is a conversation."""
    (line,) = index.lines([entry])
    named = {"id": f"{line['step']}:{line['prompt_id']}", "reward": line["reward"]}
    if isinstance(line["prompt"], str) and not line.get("turns"):
        return {"prompt": line["prompt"], "completion": line["response"], **named}
    asked = line["prompt"] if isinstance(line["prompt"], list) else [{"role": "user", "content": line["prompt"]}]
    said = [message for turn in line.get("turns", ()) for message in turn["messages"]]
    return {"messages": [*asked, *(said or [{"role": "assistant", "content": line["response"]}])], **named}
