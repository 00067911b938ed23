"""Recorded groups as plain data, for the board and the report, and a selection that fits on the report's page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, get_args

from burnish.board.metric_charts import evenly
from burnish.board.turns import ShownTurn, by_text, cut_turns, seconds_by_author, shortened, shown_turns, spoken
from burnish.errors import DataError
from burnish.observability.recorder import RecordedLine, each_rollout, num_sampled, recorded_files, sampled_mask
from burnish.types import Json

TokenNumber = Literal["logprobs", "advantages", "values", "returns", "mismatch", "entropy"]
TOKEN_NUMBERS: tuple[TokenNumber, ...] = get_args(TokenNumber)
"""Fields of a response on the page that have one number per token."""
_NOT_OF_ALL: tuple[TokenNumber, ...] = ("values", "returns", "entropy")
"""Numbers that only some runs record, as `token_values` and the like."""


@dataclass(frozen=True, slots=True)
class PageLimits:
    """Limits of a report page. Whatever the other limits, its rollouts take at most about `total_bytes`."""

    steps: int = 12
    """Number of training steps shown, and number of evaluations."""
    prompts_per_step: int = 12
    responses_per_prompt: int = 32
    total_bytes: int = 3_000_000


Numbers = list[float | str | None]
"""One number per token; text for a number that is not finite, None for a token that the policy did not sample."""


class ShownResponse(TypedDict):
    """A response on the page; numbers of its tokens where they were recorded.

    count: sampled tokens; `given`: tokens of tools and environments, in a response with `turns`. seen: the prompt with
    its environment's additions, if it differs from the group's. seconds: of the turns of each author. mismatch: the
    trainer's log-probability less the sampler's; entropy: of the policy; versions: (first token, version of the
    weights).
    """

    sample: int | str
    tokens: list[str]
    count: int
    reward: float | str | None
    parts: dict[str, float | str]
    finish: str
    status: str
    detail: str
    greedy: bool
    kept: bool | None
    why: str
    advantage: float | str | None
    logprobs: NotRequired[Numbers]
    advantages: NotRequired[Numbers]
    values: NotRequired[Numbers]
    returns: NotRequired[Numbers]
    mismatch: NotRequired[Numbers]
    entropy: NotRequired[Numbers]
    versions: list[list[int]]
    given: NotRequired[int]
    turns: NotRequired[list[ShownTurn]]
    environment: NotRequired[float | str]
    seen: NotRequired[str]
    seconds: NotRequired[dict[str, float]]


class Group(TypedDict):
    """A prompt and its responses; `left_out`: number of further ones. seen: the prompt of a conversation as the policy
    saw it, with the chat template and an environment's additions."""

    id: str
    prompt: Json
    answer: str | None
    domain: str
    left_out: int
    responses: list[ShownResponse]
    seen: NotRequired[str]


class Recorded(TypedDict):
    """The rollouts of a step; `kind` is `step` or `eval`."""

    kind: str
    step: int
    groups: list[Group]


class Samples(TypedDict):
    """Rollouts of the page, and a note on those left out."""

    files: list[Recorded]
    note: str


def sample_rollouts(folder: Path, limits: PageLimits) -> Samples:
    """Select the rollouts that fit on the page; empty if nothing was recorded."""
    every = [[*recorded_files(folder, evaluation=evaluation).items()] for evaluation in (False, True)]
    chosen = [file for files in every for file in evenly(files, limits.steps)]
    shown: list[Recorded] = []
    dropped_prompts, dropped_responses = 0, 0
    for step, path in chosen:
        with reading_recorded(path):
            groups = lines_by_group(each_rollout(path))
            kept = _fit(groups, limits, limits.total_bytes // len(chosen))
        dropped_prompts += len(groups) - len(kept)
        dropped_responses += sum(group["left_out"] for group in kept)
        shown.append({"kind": path.name.split("-")[0], "step": step, "groups": kept})
    note = _left_out_note(len(chosen), sum(map(len, every)), dropped_prompts, dropped_responses)
    return {"files": shown, "note": note}


def lines_by_group(lines: Iterable[RecordedLine]) -> list[list[RecordedLine]]:
    """Gather recorded responses by group, in their order."""
    groups: dict[int, list[RecordedLine]] = {}
    for line in lines:
        groups.setdefault(line["group_id"], []).append(line)
    return list(groups.values())


def shown_group(lines: Sequence[RecordedLine], *, left_out: int = 0) -> Group:
    """Make the group of these responses as the page shows it."""
    first = lines[0]
    group: Group = {
        "id": first["prompt_id"],
        "prompt": first["prompt"],
        "answer": None if first["answer"] is None else str(first["answer"]),
        "domain": first["domain"],
        "left_out": left_out,
        "responses": [_compact(line) for line in lines],
    }
    for line, response in zip(lines, group["responses"], strict=True):
        if "prompt_text" in line:
            seen = shortened(line["prompt_text"])
            if group.setdefault("seen", seen) != seen:
                response["seen"] = seen
    return group


@contextmanager
def reading_recorded(path: Path) -> Iterator[None]:
    """Turn errors of reading a file that holds no rollouts, or cannot be read, into a DataError that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(
            f"{path} is not a file of recorded rollouts: {error!r}", remedy="remove it, or record that step again"
        ) from error


def _compact(line: RecordedLine) -> ShownResponse:
    """Keep only the fields that the page shows, with numbers rounded to a few digits."""
    branch = line.get("branch")
    entry: ShownResponse = {
        "sample": f"{line['sample_index']}, branch {branch + 1}" if branch else line["sample_index"],
        "tokens": line["token_texts"] if "token_texts" in line else [line["response"]],
        "count": num_sampled(line),
        "reward": _short(line["reward"]),
        "parts": {name: _short(part) for name, part in line["reward_parts"].items()},
        "finish": line["finish_reason"],
        "status": line["status"],
        "detail": line["status_detail"][:500],
        "greedy": line["greedy"],
        "kept": line.get("kept"),
        "why": line.get("dropped_because", ""),
        "advantage": _short(line.get("advantage")),
        "versions": line.get("versions") or [[0, line["policy_version"]]],
    }
    if line.get("turns"):
        _add_turns(entry, line)
    if "token_texts" in line:
        _add_numbers(entry, line)
    return entry


def _add_turns(entry: ShownResponse, line: RecordedLine) -> None:
    entry["turns"] = shown_turns(line)
    entry["given"] = len(line["response_tokens"]) - entry["count"]
    if "token_texts" not in line:
        entry["tokens"], entry["turns"] = spoken(line), by_text(entry["turns"])
    if totals := seconds_by_author(line):
        entry["seconds"] = {author: _short(seconds, 3) for author, seconds in totals.items()}
    if line.get("environment_reward") is not None:
        entry["environment"] = _short(line["environment_reward"])


def _add_numbers(entry: ShownResponse, line: RecordedLine) -> None:
    """Add the recorded numbers of the tokens that the policy sampled."""
    sampled = sampled_mask(line)

    def of_tokens(name: str) -> Numbers:
        return [_short(value, 3) if own else None for value, own in zip(line[name], sampled, strict=True)]

    entry["logprobs"] = of_tokens("rollout_logprobs")
    if "token_advantages" in line:
        advantages = of_tokens("token_advantages")
        # A single value for all tokens is shown as the response's advantage.
        if len({repr(value) for value in advantages if value is not None}) > 1:
            entry["advantages"] = advantages
    for name in _NOT_OF_ALL:
        if f"token_{name}" in line:
            entry[name] = of_tokens(f"token_{name}")
    if "old_logprobs" in line:
        pairs = zip(line["old_logprobs"], line["rollout_logprobs"], sampled, strict=True)
        entry["mismatch"] = [_gap(old, own) if mine else None for old, own, mine in pairs]


def _gap(old: float | str, sampled: float | str) -> float | None:
    """The trainer's log-probability less the sampler's; None if one of them was not finite, and recorded as text."""
    return None if isinstance(old, str) or isinstance(sampled, str) else _short(old - sampled, 3)


def _fit(groups: Sequence[Sequence[RecordedLine]], limits: PageLimits, budget: int) -> list[Group]:
    """Pick groups evenly within the budget. If even one group is too large, it gets fewer responses."""

    @cache
    def shown(number: int) -> tuple[Group, int]:
        lines = groups[number]
        picked = evenly(lines, limits.responses_per_prompt)
        group = shown_group(picked, left_out=len(lines) - len(picked))
        return group, _size(group)

    for count in range(min(len(groups), limits.prompts_per_step), 0, -1):
        picked = [shown(number) for number in evenly(range(len(groups)), count)]
        if sum(size for _, size in picked) <= budget:
            return [group for group, _ in picked]
    return [_shrink(shown(0)[0], budget)] if groups else []


def _shrink(group: Group, budget: int) -> Group:
    """Fit a single group into the budget, with fewer responses or in the end with one response cut short."""
    for count in range(len(group["responses"]) - 1, 0, -1):
        fewer = _fewer(group, count)
        if _size(fewer) <= budget:
            return fewer
    one = _fewer(group, 1)
    share = budget / max(_size(one), 1)
    if "seen" in one:
        one["seen"] = shortened(one["seen"], int(len(one["seen"]) * share))
    return {**one, "responses": [_cut(one["responses"][0], share)]}


def _fewer(group: Group, count: int) -> Group:
    picked = evenly(group["responses"], count)
    return {**group, "responses": picked, "left_out": group["left_out"] + len(group["responses"]) - len(picked)}


def _cut(response: ShownResponse, share: float) -> ShownResponse:
    keep = max(1, int(len(response["tokens"]) * share))
    cut: ShownResponse = {**response, "tokens": [*response["tokens"][:keep], " […cut for this page]"]}
    for name in TOKEN_NUMBERS:
        if name in cut:
            cut[name] = cut[name][:keep]
    if "turns" in cut:
        cut["turns"] = cut_turns(cut["turns"], keep, share)
    if "seen" in cut:
        cut["seen"] = shortened(cut["seen"], int(len(cut["seen"]) * share))
    return cut


def _size(group: Group) -> int:
    return len(json.dumps(group, ensure_ascii=False).encode("utf-8", errors="replace"))


def _short(value: Any, digits: int = 4) -> Any:
    """Round a float to `digits` significant digits. Numbers that are not finite were recorded as text and stay text."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _left_out_note(files_shown: int, files_recorded: int, prompts: int, responses: int) -> str:
    left_out = []
    if files_shown < files_recorded:
        left_out.append(f"{files_shown} of {files_recorded} recorded steps")
    if prompts:
        left_out.append(f"{prompts} prompts fewer than those steps have")
    if responses:
        left_out.append(f"{responses} responses fewer than those prompts have")
    if not left_out:
        return ""
    return f"To keep this page small, it shows {', '.join(left_out)}, evenly spread; rollouts/ has all of them."
