"""The program that answers a query on databases in memory. It runs in the sandbox, as text: its only imports are
Python's own.

Standard input: a JSON object with `scripts`, one for each database; `query`; `rows`, the most that a result may have;
and `fill`, as `Fill` in sql.py has it. Standard output: one JSON object for each database, with `rows` or with `error`.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import sys
from typing import Any

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_SHARED = 8
"""Values that all columns of a kind may have, so that tables can be joined."""
_FEW = 4
_MOST_BYTES = 1 << 24
"""Of one value, so that one call of zeroblob does not take all memory."""


def main() -> None:
    job = json.load(sys.stdin)
    answer: dict[str, Any] = {}
    before, was_filled = None, False
    for number, script in enumerate(job["scripts"]):
        if was_filled or script != before:  # otherwise it is the same database again
            try:
                connection, was_filled = database(script, number, job["fill"])
            except (sqlite3.Error, sqlite3.Warning) as error:
                answer = {"broken": str(error)}
            else:
                answer = answered(connection, job["query"], job["rows"])
                connection.close()
        before = script
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def database(script: str, number: int, fill: dict[str, Any] | None) -> tuple[sqlite3.Connection, bool]:
    """A database after its script, with made-up rows in tables that the script leaves empty, and whether it has any."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA temp_store = MEMORY")  # there is no folder for other files
    connection.executescript(script)
    if not fill:
        return connection, False
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    empty = [table for table in (quoted(name) for (name,) in names.fetchall()) if is_empty(connection, table)]
    for table in empty:
        fill_table(connection, table, random.Random(f"{number}/{table}"), fill)
    return connection, bool(empty)


def is_empty(connection: sqlite3.Connection, table: str) -> bool:
    return not connection.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0]


def fill_table(connection: sqlite3.Connection, table: str, draw: random.Random, fill: dict[str, Any]) -> None:
    """Rows of values that the query names and of others, the same for the same script and number."""
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    # Tables have different numbers of rows, so that a count of the wrong one, or a number for all, is found out.
    count = draw.randint(fill["per_table"], fill["per_table"] * 3 // 2)
    values = [drawn(kind.upper(), bool(key), count, draw, fill) for _, _, kind, _, _, key in columns]
    names, places = ", ".join(quoted(column[1]) for column in columns), ", ".join("?" * len(columns))
    for row in zip(*values, strict=True):
        connection.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({places})", row)


def drawn(kind: str, is_key: bool, count: int, draw: random.Random, fill: dict[str, Any]) -> list[Any]:
    """Values for one column of a table: those of the query if they fit, and others. Without repeats for a key, and if
    the order of rows counts, so that none are tied; else few, so that groups have several rows."""
    named, others = pools(kind, fill)
    if is_key and "INT" in kind:  # SQLite takes no fraction for a row's number
        named = [value for value in named if float(value).is_integer()]
    if is_key or fill["distinct"]:
        return draw.sample([*named, *others][:count], count)
    others = [*draw.sample(others[:_SHARED], _FEW), *[None] * draw.randint(0, 1)]
    return [draw.choice(named if named and draw.random() < 0.5 else others) for _ in range(count)]


def pools(kind: str, fill: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Values of the query for a column of this declared type, and at least as many others as a table has rows."""
    count, named = fill["per_table"], fill["texts"]
    # The query may name any of the others: what is left has to be enough.
    many = 2 * count + len(fill["numbers"]) + len(fill["texts"])
    others: list[Any]
    if "INT" in kind or any(word in kind for word in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
        named, others = fill["numbers"], list(range(1, many))
    elif "DATE" in kind or "TIME" in kind:
        others = [f"20{10 + day:02}-{day % 12 + 1:02}-{day % 28 + 1:02}" for day in range(many)]
    else:
        named = named or [str(number) for number in fill["numbers"]]
        others = [chr(ord("A") + number % 26) + chr(ord("a") + number // 26) for number in range(many)]
    return named, [value for value in others if value not in named]


def answered(connection: sqlite3.Connection, query: str, most: int) -> dict[str, Any]:
    """The rows of one statement that only reads."""
    connection.text_factory = lambda data: data.decode(errors="replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    with contextlib.suppress(sqlite3.Error):  # a script may have tables of these names
        # SQLite sets these up at their first use, by what looks to the authorizer like a write.
        connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")
    connection.set_authorizer(only_reading)
    try:
        cursor = connection.execute(query)
        rows = cursor.fetchmany(most + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        return {"error": f"{error}" or type(error).__name__}
    if cursor.description is None:
        return {"error": "no query"}
    if len(rows) > most:
        return {"error": f"more than {most} rows"}
    return {"rows": [[plain(value) for value in row] for row in rows]}


def only_reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Deny all that is not part of a SELECT: writes, ATTACH, PRAGMA, transactions, extensions."""
    harmless = action in _READING or (action == sqlite3.SQLITE_FUNCTION and second != "load_extension")
    return sqlite3.SQLITE_OK if harmless else sqlite3.SQLITE_DENY


def plain(value: Any) -> Any:
    return {"blob": value.hex()} if isinstance(value, bytes) else value


def quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


if __name__ == "__main__":
    main()
