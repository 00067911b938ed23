"""Tasks of reasoning-gym (Stojanovski et al. 2025, https://arxiv.org/abs/2505.24760): their rows and their scores. The
only file that imports the package.

As a program (`python -m burnish.data.puzzles`) it makes the rows of a source in a process of its own: some tasks go
through sets of texts, whose order depends on the interpreter's hash seed, and some use the global random numbers.
"""

from __future__ import annotations

import ast
import contextlib
import heapq
import io
import json
import os
import random
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.config import names
from burnish.data.rows import plain_row
from burnish.errors import BurnishError, DataError, did_you_mean, needing

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

PACKAGE = "reasoning-gym"
_OWN = ("size", "seed")
"""Parameters of every task, which belong to the source."""
_NO_TASK = ("composite",)  # a mixture of others, as a source already is
_EVALUATE = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Tasks that call `eval` on an answer, for lists as Python writes them."""
_PARSE = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Tasks that give an answer to SymPy's `parse_expr`, which evaluates it as Python."""
_BOARDS = frozenset({"arc_agi", "rearc"})
"""Tasks that compare a board of tuples with `metadata.output`, which is a list of lists in a row."""
_FUNCTIONS = r"a?(?:sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|Abs|pi"
_POWER = r"\*\*\s*(?:\d{1,2}|\(\s*-?\d{1,2}(?:\s*/\s*\d{1,2})?\s*\))(?!\s*\*\*)(?![\d.])"
_MATHEMATICS = re.compile(rf"(?:{_POWER}|\d{{1,12}}(?:\.\d{{0,12}})?|\b(?:{_FUNCTIONS}|[A-Za-z])\b|[-+/() ]|\*(?!\*))+")
_MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One row. item: question, answer (None if a task only scores), metadata. Its task scores with its parameters."""

    task: str
    parameters: Mapping[str, Any]
    item: Mapping[str, Any]


def make(tasks: Mapping[str, Mapping[str, Any]], *, size: int, seed: int) -> Iterator[Puzzle]:
    """Make `size` puzzles, from each task in proportion to its `weight` (default 1). The puzzles of some tasks depend
    on the interpreter's hash seed, so `sources.puzzle_rows` makes them in a process with a fixed one."""
    order = list(_in_turns({name: _weight(name, given) for name, given in tasks.items()}, size))
    sets = {
        name: _data_set(name, given, size=max(order.count(name), 1), seed=seed * names.PUZZLE_ROWS)
        for name, given in tasks.items()
    }
    made = dict.fromkeys(tasks, 0)
    for name in order:
        number = made[name]
        made[name] += 1
        random.seed(seed * names.PUZZLE_ROWS + number)  # some generators use the global random numbers
        np.random.seed(seed * names.PUZZLE_ROWS + number)
        with _quiet(f"task {name!r} of reasoning-gym cannot make its item {number}"):
            item = sets[name][number]
        yield Puzzle(name, _parameters(tasks[name]), {key: item[key] for key in ("question", "answer", "metadata")})


def known_tasks() -> Sequence[str]:
    """Names of the tasks that a source can have."""
    return sorted(set(_registry()) - set(_NO_TASK))


class Scorer:
    """Scores answers with the tasks' own functions, and raises their exceptions."""

    def __init__(self) -> None:
        _registry()  # so that a missing package is reported at once
        self._sets: dict[str, ProceduralDataset] = {}

    def __call__(self, puzzle: Puzzle, answer: str | None) -> float:
        """The score of an answer (None: there is none), usually 0 to 1. DataError for a task that does not exist."""
        task, item = puzzle.task, puzzle.item
        if task in _PARSE and answer is not None and not is_mathematics(answer):
            answer = None
        if task in _BOARDS:
            output = tuple(map(tuple, item["metadata"]["output"]))
            item = {**item, "metadata": {**item["metadata"], "output": output}}
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(self._set_of(puzzle).score_answer(answer, dict(item)))

    def _set_of(self, puzzle: Puzzle) -> ProceduralDataset:
        key = json.dumps([puzzle.task, puzzle.parameters], sort_keys=True)
        if key not in self._sets:
            self._sets[key] = _data_set(puzzle.task, puzzle.parameters, size=1, seed=0)
            if puzzle.task in _EVALUATE:
                # An answer is untrusted text and must not be executed. Answers that are literals are scored as before.
                vars(sys.modules[type(self._sets[key]).__module__])["eval"] = ast.literal_eval
        return self._sets[key]


def is_mathematics(text: str) -> bool:
    """Return whether a text has only numbers, single letters, common functions and small powers, so that evaluating it
    can neither run code nor take for ever."""
    return len(text) <= _MOST_CHARACTERS and _MATHEMATICS.fullmatch(text.strip()) is not None


def _registry() -> Mapping[str, tuple[type, type]]:
    with needing("'burnish[reasoning-gym]'", DataError, "reasoning_gym needs the package reasoning-gym"):
        from reasoning_gym.factory import DATASETS
    return DATASETS


def _data_set(name: str, given: Mapping[str, Any], *, size: int, seed: int) -> ProceduralDataset:
    """A task with its parameters. DataError for a name or a parameter that does not exist, or a value it refuses."""
    known = known_tasks()
    if name not in known:
        near = did_you_mean(name, known)
        raise DataError(
            f"reasoning_gym has no task {name!r}", remedy=near or f"the {len(known)} tasks are {', '.join(known)}"
        )
    kind, config = _registry()[name]
    parameters = _parameters(given)
    takes = [field.name for field in fields(config) if field.init and field.name not in _OWN]
    for key in parameters:
        if key not in takes:
            takes = ["weight", *takes]
            own = "it belongs to the source, next to reasoning_gym" if key in _OWN else ""
            raise DataError(
                f"task {name!r} of reasoning_gym has no parameter {key!r}",
                remedy=own or did_you_mean(key, takes, f"it has {', '.join(takes)}"),
            )
    with _quiet(f"task {name!r} of reasoning_gym refuses its parameters"):
        data_set: ProceduralDataset = kind(config(**parameters, size=size, seed=seed))
    return data_set


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != "weight"}


def _weight(name: str, given: Mapping[str, Any]) -> float:
    weight = given.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not weight > 0:
        raise DataError(f"weight of task {name!r} is {weight!r}", remedy="give a number above 0, such as 2")
    return float(weight)


def _in_turns(weights: Mapping[str, float], size: int) -> Iterator[str]:
    """Yield names in proportion to their weights at every point: the k-th of a name comes at (k + 1/2) / weight."""
    due = [(0.5 / weight, place, name) for place, (name, weight) in enumerate(weights.items())]
    heapq.heapify(due)
    for _ in range(size):
        time, place, name = due[0]
        heapq.heapreplace(due, (time + 1 / weights[name], place, name))
        yield name


@contextlib.contextmanager
def _quiet(what: str) -> Iterator[None]:
    """Boundary to the package: turn whatever it raises into a DataError, and drop its output and warnings."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise DataError(f"{what}: {type(error).__name__}: {error}", remedy="change or remove the task") from error


def main() -> None:
    """Read `{"tasks", "size", "seed", "count"}` from standard input; write the first `count` puzzles, one a line, and
    `{"error", "remedy"}` if something is wrong."""
    asked = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # what the package prints, from wherever, is not a row
        try:
            for number, puzzle in enumerate(make(asked["tasks"], size=asked["size"], seed=asked["seed"])):
                if number == asked["count"]:
                    break
                row, unreadable = plain_row(puzzle.item)
                if unreadable:
                    raise DataError(
                        f"task {puzzle.task!r} of reasoning_gym has values without a JSON form in {unreadable}"
                    )
                out.write(json.dumps({**row, "task": puzzle.task, "parameters": puzzle.parameters}) + "\n")
        except BurnishError as error:
            out.write(json.dumps({"error": error.message, "remedy": error.remedy}) + "\n")


if __name__ == "__main__":
    main()
