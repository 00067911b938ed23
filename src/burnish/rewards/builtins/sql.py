"""Queries: the rows that a response's SQL gives, against those of the gold query, in SQLite inside the sandbox."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from burnish.errors import ConfigError, SandboxError
from burnish.rewards.builtins import sql_program
from burnish.rewards.builtins.reading_rows import NoScoreError, check_positive, check_word, last_block
from burnish.rewards.builtins.sql_rows import SqlTask, task_of_row
from burnish.sandbox.confinement import TIERS
from burnish.sandbox.job import Limits, Program
from burnish.sandbox.trial import opened
from burnish.types import Score

MAX_ROWS = 10_000
"""Of one result."""
MAX_PERMUTED = 6
"""Columns whose order may be tried."""
_OUTPUT_BYTES = 1 << 23
_LANGUAGES = ("sql", "sqlite", "sqlite3", "postgresql", "mysql")

Row = tuple[Any, ...]
Result = tuple[Row, ...]
Columns = tuple[int, ...]


class Sql:
    """1 if the query of the response gives the rows of the gold query on every database of its row, else 0, with the
    parts `runs` and `equal`. None (missing) for a row without a gold query or a schema. The query is the response's
    last block marked as SQL, else its last block that is not marked, else all of it, after its thoughts.

    gold, schema: the columns of both, if they have other names. fill: how many databases with made-up rows stand for a
    script that leaves tables empty; 0 uses them as they are. empty: what to do with a row whose gold query gives no
    rows on any database, which `SELECT 1 WHERE 0` would pass: an `error`, or `accept`. column_order: whether columns
    have to come in the gold query's order. tolerance: relative and absolute, where a number is not whole. seconds,
    memory_mb: for the query on all databases; seconds less than half of `timeout_seconds`, since the gold query runs
    as well.
    """

    def __init__(
        self,
        gold: str | None = None,
        schema: str | None = None,
        fill: int = 3,
        empty: Literal["error", "accept"] = "error",
        column_order: bool = True,
        tolerance: float = 1e-6,
        tier: str = "auto",
        seconds: float = 4.0,
        memory_mb: int = 256,
    ) -> None:
        check_word("sql", "empty", empty, ("error", "accept"))
        check_word("sql", "tier", tier, ("auto", *TIERS))
        check_positive("sql", seconds=seconds, memory_mb=memory_mb)
        if isinstance(fill, bool) or not isinstance(fill, int) or fill < 0 or tolerance < 0:
            raise ConfigError(
                f"options fill and tolerance of reward 'sql' are {fill!r} and {tolerance!r}", remedy="use 0 or more"
            )
        self._gold, self._schema, self._fill = gold, schema, fill
        self._accepts_empty, self._column_order, self._tolerance = empty == "accept", column_order, tolerance
        limits = Limits(seconds=seconds, processor_seconds=seconds, memory_mb=memory_mb, output_bytes=_OUTPUT_BYTES)
        self._sandbox = opened(tier, limits=limits)
        # The responses of a group come one after another, and have the same gold query.
        self._gold_results = functools.lru_cache(maxsize=64)(self._run_gold)

    def __call__(self, response: str, answer: Any = None, **columns: Any) -> Score | None:
        task = task_of_row(columns, answer, gold=self._gold, schema=self._schema, fill=self._fill)
        if task is None:
            return None
        wanted = self._gold_results(task)
        found = self._run(task, last_block(response, _LANGUAGES))
        complete = len(found) == len(wanted)
        runs = complete and not any(isinstance(result, str) for result in found)
        equal = complete and all(
            not isinstance(result, str)
            and same_rows(
                gold, result, ordered=task.ordered, column_order=self._column_order, tolerance=self._tolerance
            )
            for gold, result in zip(wanted, found, strict=True)
        )
        return Score(float(equal), {"runs": float(runs), "equal": float(equal)})

    def _run_gold(self, task: SqlTask) -> list[Result]:
        """In a sandbox process of its own, which has nothing of any response."""
        found = self._run(task, task.gold)
        broken = next((result for result in found if isinstance(result, str)), None)
        if broken is not None or len(found) != len(task.scripts):
            raise NoScoreError(f"the gold query gives no result: {broken or 'it took too much time, memory or output'}")
        results = [result for result in found if not isinstance(result, str)]
        if not self._accepts_empty and not any(map(_says_something, results)):
            raise NoScoreError(
                "the gold query gives no rows on any database, so that SELECT 1 WHERE 0 would pass; add data to the "
                "row, or set the options fill or empty: accept"
            )
        return results

    def _run(self, task: SqlTask, query: str) -> list[Result | str]:
        """The result of a query on each database, or why there is none; fewer if the process was ended."""
        fill = None if task.fill is None else asdict(task.fill)
        job = {"scripts": task.scripts, "query": query, "rows": MAX_ROWS, "fill": fill}
        try:
            output = self._sandbox.output(Program(_PROGRAM, json.dumps(job)))
        except SandboxError as error:
            raise NoScoreError(str(error)) from error  # of this response alone: the run goes on, and counts it
        answers = [json.loads(line) for line in output.stdout.splitlines(keepends=True) if line.endswith("\n")]
        for answer in answers:
            if "broken" in answer:
                raise NoScoreError(f"the script of a database fails: {answer['broken']}")
        return [_result(answer["rows"]) if "rows" in answer else str(answer["error"]) for answer in answers]


_PROGRAM = Path(sql_program.__file__).read_text(encoding="utf-8")


def same_rows(
    gold: Result, found: Result, *, ordered: bool = False, column_order: bool = True, tolerance: float = 1e-6
) -> bool:
    """Whether two results have the same rows as often: in this order if it counts, else in any. Without column_order
    some order of the columns, the same for all rows, has to do it; only results with few columns have all tried."""
    if len(gold) != len(found):
        return False
    if not gold:
        return True
    width = len(gold[0])
    if len(found[0]) != width:
        return False
    same = _in_order if ordered else _in_any_order
    if column_order or width > MAX_PERMUTED:
        return same(gold, found, tolerance)
    return _in_some_column_order(gold, found, same, tolerance)


def _in_some_column_order(
    gold: Result, found: Result, same: Callable[[Result, Result, float], bool], tolerance: float, begun: Columns = ()
) -> bool:
    """Whether the columns `begun` can be continued to an order in which the results are the same.

    Columns are added one by one, and the rows compared as far as they go: most orders of a wrong result end with their
    first column, where it would take long to try all.
    """
    width = len(begun) + 1
    if width > len(gold[0]):
        return True
    shown = tuple(row[:width] for row in gold)
    return any(
        same(shown, tuple(tuple(row[i] for i in order) for row in found), tolerance)
        and _in_some_column_order(gold, found, same, tolerance, order)
        for order in ((*begun, column) for column in range(len(gold[0])) if column not in begun)
    )


def _in_order(gold: Result, found: Result, tolerance: float) -> bool:
    return all(_same_row(one, other, tolerance) for one, other in zip(gold, found, strict=True))


def _in_any_order(gold: Result, found: Result, tolerance: float) -> bool:
    """Equal rows first, then those that are close: each takes the first one that is left, in the order of values."""
    left, right = Counter(gold) - Counter(found), Counter(found) - Counter(gold)
    waiting = sorted(right.elements(), key=_by_value)
    for row in sorted(left.elements(), key=_by_value):
        close = next((index for index, other in enumerate(waiting) if _same_row(row, other, tolerance)), None)
        if close is None:
            return False
        del waiting[close]
    return True


def _by_value(row: Row) -> list[tuple[str, Any]]:
    """Numbers among themselves, and so on, because Python does not compare them with texts."""
    return [
        ("number" if isinstance(value, (int, float)) else type(value).__name__, value)
        for value in row
        if value is not None
    ]


def _same_row(one: Row, other: Row, tolerance: float) -> bool:
    return all(_same_value(a, b, tolerance) for a, b in zip(one, other, strict=True))


def _same_value(one: Any, other: Any, tolerance: float) -> bool:
    """NULL is NULL alone, a number no text. Whole numbers are compared exactly."""
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    if numbers and (isinstance(one, float) or isinstance(other, float)):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return type(one) is type(other) and bool(one == other)


def _result(rows: Sequence[Sequence[Any]]) -> Result:
    return tuple(tuple(("blob", value["blob"]) if isinstance(value, dict) else value for value in row) for row in rows)


def _says_something(result: Result) -> bool:
    """Whether it has a row with any value that is not NULL."""
    return any(value is not None for row in result for value in row)
