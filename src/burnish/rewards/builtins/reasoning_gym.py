"""Answers to the puzzles of reasoning-gym, scored by the tasks that made them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from burnish.config.names import PUZZLES, UNSOUND_PUZZLES
from burnish.data.puzzles import Puzzle, Scorer, known_tasks
from burnish.errors import BurnishError, ConfigError
from burnish.rewards.builtins.reading_rows import after_thoughts, check_word
from burnish.types import Score

_TAGS = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL)


class ReasoningGym:
    """The score of the row's own task for the answer in a response, usually 0 to 1. None (missing) for a row that is
    not from a source with `reasoning_gym`.

    A response that makes the task's function raise gets 0, and counts in the part `raised`. allow: names of tasks
    whose scores are unsound (`burnish.config.names.UNSOUND_PUZZLES`); a row of any other such task is an error.
    """

    def __init__(
        self,
        extract: Annotated[
            Literal["auto", "tags", "all"],
            "auto (default: in <answer> tags, else all), tags (only there) or all: the text after thinking",
        ] = "auto",
        allow: Annotated[Sequence[str], "names of tasks to use although their scores are unsound (default none)"] = (),
    ) -> None:
        if isinstance(allow, str):
            raise ConfigError(f"option allow of reward {PUZZLES!r} is a text", remedy=f"give a list: allow: [{allow}]")
        self._score = Scorer()
        for task in allow:
            check_word(PUZZLES, "allow", task, tuple(known_tasks()))
        self._extract = extract
        self._refused = UNSOUND_PUZZLES.keys() - set(allow)

    def __call__(
        self,
        response: str,
        answer: Any = None,
        question: str = "",
        metadata: Mapping[str, Any] | None = None,
        reasoning_gym: Mapping[str, Any] | None = None,
    ) -> Score | None:
        if reasoning_gym is None or metadata is None:
            return None
        item = {"question": question, "answer": answer, "metadata": metadata}
        puzzle = Puzzle(reasoning_gym["task"], reasoning_gym["parameters"], item)
        if puzzle.task in self._refused:
            raise ConfigError(
                f"task {puzzle.task!r} of reasoning_gym has unsound scores: {UNSOUND_PUZZLES[puzzle.task]}",
                remedy=f"leave it out of the data, or accept that with options: {{allow: [{puzzle.task}]}}",
            )
        try:
            score = self._score(puzzle, answer_of(response, self._extract))
        except BurnishError:
            raise
        except Exception:  # noqa: BLE001  boundary: the task's function, which this response made raise
            return Score(0.0, {"raised": 1.0})
        return Score(score, {"raised": 0.0})


def answer_of(response: str, extract: str) -> str | None:
    """Extract the answer of a response after its thoughts: the content of its last `<answer>` tags, or all of it. None
    if it has not ended its thoughts, lacks tags that are required, or is blank."""
    said = after_thoughts(response)
    found = _TAGS.findall(said) if extract != "all" else []
    if extract == "tags" and not found:
        return None
    return (found[-1] if found else said).strip() or None
