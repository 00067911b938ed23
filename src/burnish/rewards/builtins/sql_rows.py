"""What a row says about a query: the gold query, and the databases on which it is compared.

Recognised: b-mc2/sql-create-context (`answer`, `context`), gretelai/synthetic_text_to_sql (`sql`, `sql_context`), and
`query` with `schema` or `create`, each with a list of scripts in `states`, one for each database, if there are several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.rewards.builtins.reading_rows import NoScoreError, first_column, parsed

GOLD_COLUMNS = ("sql", "query")
SCHEMA_COLUMNS = ("schema", "context", "sql_context", "create")
STATES_COLUMN = "states"

# Texts, quoted names, comments, numbers, words, and signs one by one.
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)|(?<![\w.])\d+(?:\.\d+)?(?![\w.])|\w+|\S",
    re.DOTALL,
)
_PER_TABLE = 24


@dataclass(frozen=True, slots=True)
class Fill:
    """What tables that a script leaves empty are filled with. numbers, texts: values next to those of the gold query.
    distinct: no value twice in a column."""

    numbers: tuple[float, ...]
    texts: tuple[str, ...]
    distinct: bool
    per_table: int = _PER_TABLE


@dataclass(frozen=True, slots=True)
class SqlTask:
    """gold: the query. scripts: one for each database. ordered: whether the order of the gold query's rows counts."""

    gold: str
    scripts: tuple[str, ...]
    ordered: bool
    fill: Fill | None


def task_of_row(
    columns: Mapping[str, Any], answer: Any, *, gold: str | None = None, schema: str | None = None, fill: int = 0
) -> SqlTask | None:
    """The task of a row; None if it has no gold query or no schema. NoScoreError for what cannot be read.

    gold, schema: columns to read instead of those that are recognised. fill: databases with made-up rows; 0 for none.
    """
    query = gold_query(columns, answer, gold)
    name, script = first_column(columns, SCHEMA_COLUMNS if schema is None else (schema,))
    states = parsed(columns.get(STATES_COLUMN) or [], STATES_COLUMN) if columns.get(STATES_COLUMN) else []
    if query is None or (script is None and not states):
        return None
    begin = "" if script is None else _script(script, name)
    if not isinstance(states, (list, tuple)):
        raise NoScoreError(f"column {STATES_COLUMN!r} has to be a list of scripts")
    scripts = tuple(f"{begin}\n;\n{_script(state, STATES_COLUMN)}" for state in states) or (begin,) * max(fill, 1)
    tokens = _tokens(query)
    ordered = _is_ordered(tokens)
    return SqlTask(query, scripts, ordered, _fill(tokens, ordered) if fill else None)


def gold_query(columns: Mapping[str, Any], answer: Any, column: str | None = None) -> str | None:
    """The answer if it is a query, else the first of the columns `sql` and `query` that is one."""
    if column is not None:
        value = columns.get(column)
        return None if value is None or value == "" else str(value)
    values = (answer, *(columns.get(name) for name in GOLD_COLUMNS))
    return next((value for value in values if isinstance(value, str) and is_query(value)), None)


def is_query(text: str) -> bool:
    """Whether a text begins as a query does."""
    words = [token.lower() for token in _tokens(text[:2000]) if token != "("]
    return words[:1] in (["select"], ["with"], ["values"])


def _script(value: Any, column: str) -> str:
    """A script may be a list of statements."""
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return ";\n".join(value)
    if not isinstance(value, str):
        raise NoScoreError(f"column {column!r} has to be an SQL script, or a list of statements")
    return value


def _tokens(query: str) -> list[str]:
    return [token for token in _TOKEN.findall(query) if not token.startswith(("--", "/*"))]


def _is_ordered(tokens: list[str]) -> bool:
    """Whether the outermost statement has ORDER BY."""
    depth, before = 0, ""
    for token in map(str.lower, tokens):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0 and (before, token) == ("order", "by"):
            return True
        before = token
    return False


def _fill(tokens: list[str], ordered: bool) -> Fill:
    texts, numbers = [], []
    for token in tokens:
        if token[0] in "'\"":
            texts.append(token[1:-1].replace(token[0] * 2, token[0]).strip("%"))
        elif token[0].isdigit() and len(token) < 16:
            number = float(token) if "." in token else int(token)
            numbers += [number - 1, number, number + 1, 2 * number]
    limited = "limit" in map(str.lower, tokens)
    return Fill(tuple(dict.fromkeys(numbers)), tuple(dict.fromkeys(texts)), distinct=ordered or limited)
