"""Queries: the rows that a response's SQL gives, against those of the gold query, in SQLite inside the sandbox.

    rewards: {name: "examples/rewards/sql.py:Sql", options: {seconds: 4}, timeout_seconds: 10}

It reads the rows of b-mc2/sql-create-context (`answer`, `context`) as they are, those of
gretelai/synthetic_text_to_sql (`sql`, `sql_context`) with `columns: {answer: sql}`, and your own with a script in
`schema`. A column `states`, a list of scripts, gives several databases: each runs after the schema, and both queries
have to agree on all of them.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from burnish.errors import SandboxError
from burnish.rewards.builtins.reading_rows import last_block
from burnish.sandbox.job import Limits, Program
from burnish.sandbox.trial import opened
from burnish.types import Score

SCHEMA_COLUMNS = ("schema", "context", "sql_context", "create")
MAX_ROWS = 10_000
"""Of one result."""
TOLERANCE = 1e-6
"""Relative and absolute, where a number is not whole."""
PER_TABLE = 24

Row = tuple[Any, ...]
Result = tuple[Row, ...]

_PROGRAM = Path(__file__).with_name("sql_program.py").read_text(encoding="utf-8")
# Texts, quoted names, comments, numbers, words, and signs one by one.
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)|(?<![\w.])\d+(?:\.\d+)?(?![\w.])|\w+|\S",
    re.DOTALL,
)


class NoVerdictError(Exception):
    """The row cannot judge a response: its script fails, or its gold query gives nothing to compare with."""


@dataclass(frozen=True)
class Fill:
    """Made-up rows for tables that a script leaves empty. numbers, texts: values next to those of the gold query.
    distinct: no value twice in a column, so that the order of rows has no ties."""

    numbers: tuple[float, ...]
    texts: tuple[str, ...]
    distinct: bool
    per_table: int = PER_TABLE


@dataclass(frozen=True)
class Task:
    """scripts: one for each database. ordered: whether the order of the gold query's rows counts."""

    gold: str
    scripts: tuple[str, ...]
    ordered: bool
    fill: Fill | None


class Sql:
    """1 if the query gives the rows of the gold query on every database of its row, else 0, with the parts `runs` and
    `equal`; None (missing) for a row without a gold query or a schema. The query is the response's last block marked as
    SQL, else its last block that is not marked, else all of it, after its thoughts.

    fill: how many databases with made-up rows stand for a script that leaves tables empty, where every COUNT(*) would
    be 0 and most queries equal; 0 uses it as it is. accept_empty: a gold query without rows, which `SELECT 1 WHERE 0`
    would pass, is otherwise an error of its row. tier: of the sandbox (docs/sandbox.md). seconds, memory_mb: for the
    query on all databases; seconds less than half of `timeout_seconds`, since the gold query runs as well: a query that
    is stopped gets 0, but a reward that is stopped has no score.
    """

    def __init__(
        self,
        fill: int = 3,
        accept_empty: bool = False,
        tier: str = "auto",
        seconds: float = 4.0,
        memory_mb: int = 256,
    ) -> None:
        self._fill, self._accept_empty = fill, accept_empty
        limits = Limits(seconds=seconds, processor_seconds=seconds, memory_mb=memory_mb, output_bytes=1 << 23)
        self._sandbox = opened(tier, limits=limits)
        # The responses of a group come one after another, and have the same gold query.
        self._gold_results = functools.lru_cache(maxsize=64)(self._run_gold)

    def __call__(self, response: str, answer: Any = None, **columns: Any) -> Score | None:
        task = task_of_row(answer, columns, self._fill)
        if task is None:
            return None
        wanted = self._gold_results(task)
        found = self._run(task, last_block(response, ("sql", "sqlite")))
        results = [result for result in found if not isinstance(result, str)]
        runs = len(results) == len(wanted)
        equal = runs and all(
            same_rows(gold, result, ordered=task.ordered) for gold, result in zip(wanted, results, strict=True)
        )
        return Score(float(equal), {"runs": float(runs), "equal": float(equal)})

    def _run_gold(self, task: Task) -> list[Result]:
        """In a sandbox process of its own, which has nothing of any response."""
        found = self._run(task, task.gold)
        results = [result for result in found if not isinstance(result, str)]
        if len(results) != len(task.scripts):
            broken = next((result for result in found if isinstance(result, str)), "too much time, memory or output")
            raise NoVerdictError(f"the gold query gives no result: {broken}")
        if not self._accept_empty and all(value is None for result in results for row in result for value in row):
            raise NoVerdictError("the gold query gives no rows, so SELECT 1 WHERE 0 would pass: add data to the row")
        return results

    def _run(self, task: Task, query: str) -> list[Result | str]:
        """The result of a query on each database, or why there is none; fewer if the process was ended."""
        fill = None if task.fill is None else asdict(task.fill)
        job = {"scripts": task.scripts, "query": query, "rows": MAX_ROWS, "fill": fill}
        try:
            output = self._sandbox.output(Program(_PROGRAM, json.dumps(job)))
        except SandboxError as error:
            raise NoVerdictError(str(error)) from error  # of this response alone: the run goes on, and counts it
        answers = [json.loads(line) for line in output.stdout.splitlines(keepends=True) if line.endswith("\n")]
        for answer in answers:
            if "broken" in answer:
                raise NoVerdictError(f"the script of a database fails: {answer['broken']}")
        return [_result(answer["rows"]) if "rows" in answer else str(answer["error"]) for answer in answers]


def task_of_row(gold: Any, columns: Mapping[str, Any], fill: int) -> Task | None:
    """The task of a row; None if it has no gold query or no database. fill: 0 to leave empty tables empty."""
    schema = next((columns[name] for name in SCHEMA_COLUMNS if columns.get(name)), None)
    states = columns.get("states") or []
    if not gold or (schema is None and not states):
        return None
    begin = _script(schema or "")
    scripts = tuple(f"{begin}\n;\n{_script(state)}" for state in states) or (begin,) * max(fill, 1)
    tokens = [token for token in _TOKEN.findall(str(gold)) if not token.startswith(("--", "/*"))]
    ordered = _is_ordered(tokens)
    return Task(str(gold), scripts, ordered, _filling(tokens, ordered) if fill else None)


def _script(value: Any) -> str:
    """A script may be a list of statements."""
    return value if isinstance(value, str) else ";\n".join(value)


def _is_ordered(tokens: Sequence[str]) -> bool:
    """Whether the outermost statement has ORDER BY."""
    depth, before = 0, ""
    for token in map(str.lower, tokens):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0 and (before, token) == ("order", "by"):
            return True
        before = token
    return False


def _filling(tokens: Sequence[str], ordered: bool) -> Fill:
    texts, numbers = [], []
    for token in tokens:
        if token[0] in "'\"":
            texts.append(token[1:-1].replace(token[0] * 2, token[0]).strip("%"))
        elif token[0].isdigit() and len(token) < 16:
            number = float(token) if "." in token else int(token)
            numbers += [number - 1, number, number + 1, 2 * number]
    limited = "limit" in map(str.lower, tokens)
    return Fill(tuple(dict.fromkeys(numbers)), tuple(dict.fromkeys(texts)), distinct=ordered or limited)


def same_rows(gold: Result, found: Result, *, ordered: bool = False) -> bool:
    """Whether two results have the same rows as often, in this order if it counts. Columns count in their order."""
    if len(gold) != len(found) or (gold and len(gold[0]) != len(found[0])):
        return False
    if ordered:
        return all(map(_same_row, gold, found))
    left, right = Counter(gold) - Counter(found), Counter(found) - Counter(gold)
    waiting = sorted(right.elements(), key=_by_value)
    for row in sorted(left.elements(), key=_by_value):  # equal rows are gone: each takes the first that is close
        close = next((index for index, other in enumerate(waiting) if _same_row(row, other)), None)
        if close is None:
            return False
        del waiting[close]
    return True


def _by_value(row: Row) -> list[tuple[str, Any]]:
    """Numbers among themselves, and so on, because Python does not compare them with texts."""
    return [("number" if isinstance(v, (int, float)) else type(v).__name__, v) for v in row if v is not None]


def _same_row(one: Row, other: Row) -> bool:
    return all(map(_same_value, one, other))


def _same_value(one: Any, other: Any) -> bool:
    """NULL is NULL alone, a number no text. Whole numbers are compared exactly."""
    if {type(one), type(other)} in ({float}, {float, int}):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(one) is type(other) and bool(one == other)


def _result(rows: Sequence[Sequence[Any]]) -> Result:
    return tuple(tuple(("blob", value["blob"]) if isinstance(value, dict) else value for value in row) for row in rows)
