"""The reward `sql`: whose columns are whose, when two results are equal, and what a query may not do."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import ConfigError, SandboxError
from burnish.rewards.builtins import sql, sql_program
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.builtins.sql import Sql, same_rows
from burnish.rewards.builtins.sql_rows import Fill, is_query, task_of_row
from burnish.types import Score

PEOPLE = "CREATE TABLE people (name TEXT, age INTEGER, height REAL);"
DATA = PEOPLE + "INSERT INTO people VALUES ('Ada', 36, 1.65), ('Bo', 36, 1.7), ('Cy', NULL, 1.8), ('Di', 50, 1.6);"
CONTEXT = {"context": "CREATE TABLE head (age INTEGER, name VARCHAR)"}
COUNT = "SELECT COUNT(*) FROM head WHERE age > 56"


def test_layouts_are_recognised() -> None:
    task = task_of_row(CONTEXT, COUNT, fill=2)
    assert task is not None
    assert (task.gold, task.scripts, task.ordered) == (COUNT, (CONTEXT["context"],) * 2, False)
    assert task.fill == Fill((55, 56, 57, 112), (), distinct=False)
    task = task_of_row({"sql": "VALUES (1)", "sql_context": ["CREATE TABLE a (b)", "CREATE TABLE c (d)"]}, "words")
    assert task is not None
    assert (task.gold, task.scripts) == ("VALUES (1)", ("CREATE TABLE a (b);\nCREATE TABLE c (d)",))
    task = task_of_row({"query": "(SELECT 1)", "create": "A", "states": ["B", "C"]}, None, fill=3)
    assert task is not None
    assert task.scripts == ("A\n;\nB", "A\n;\nC")
    task = task_of_row({"right": "select 1", "ddl": "X"}, "SELECT 2", gold="right", schema="ddl")
    assert task is not None
    assert (task.gold, task.scripts) == ("select 1", ("X",))
    assert task_of_row(CONTEXT, "7") is None
    assert task_of_row({"level": 1}, COUNT) is None
    with pytest.raises(NoScoreError, match="'schema' has to be an SQL script"):
        task_of_row({"schema": 7}, COUNT)


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t union select b from t order  by 1 limit 3", True),
        ("WITH x AS (SELECT a FROM t ORDER BY a) SELECT * FROM x", False),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'order by' FROM t -- ORDER BY a", False),
        ('SELECT "order by" FROM (SELECT 1 ORDER BY 1) /* ORDER BY a */', False),
    ],
)
def test_order_counts_when_the_outermost_statement_orders(query: str, ordered: bool) -> None:
    task = task_of_row({"schema": "X"}, query)
    assert task is not None
    assert task.ordered is ordered


def test_what_begins_as_a_query() -> None:
    assert is_query("-- first\n ( SELECT 1)")
    assert is_query("with x as (select 1) select * from x")
    assert not is_query("What is the selection?")
    assert not is_query("")


def test_values_of_the_gold_query_are_among_the_made_up_ones() -> None:
    task = task_of_row(
        {"schema": "X"}, "SELECT a FROM t WHERE b = 'it''s' AND c LIKE \"%x%\" AND d > 1.5 LIMIT 2", fill=1
    )
    assert task is not None
    assert task.fill == Fill((0.5, 1.5, 2.5, 3.0, 1, 2, 4), ("it's", "x"), distinct=True)


GOLD = ((1, "a"), (2, "b"), (2, "b"), (None, "c"))


@pytest.mark.parametrize(
    ("found", "options", "equal"),
    [
        (GOLD, {}, True),
        (GOLD[::-1], {}, True),
        (GOLD[::-1], {"ordered": True}, False),
        (GOLD, {"ordered": True}, True),
        (GOLD[:3], {}, False),
        ((*GOLD, (1, "a")), {}, False),
        (((1, "a"), (1, "a"), (2, "b"), (None, "c")), {}, False),  # as often
        (((1.0, "a"), (2, "b"), (2.0000001, "b"), (None, "c")), {}, True),
        (((1.0, "a"), (2, "b"), (2.1, "b"), (None, "c")), {}, False),
        ((("1", "a"), (2, "b"), (2, "b"), (None, "c")), {}, False),
        (((1, "a"), (2, "b"), (2, "b"), (0, "c")), {}, False),
        (tuple(row[::-1] for row in GOLD), {}, False),
        (tuple(row[::-1] for row in GOLD), {"column_order": False}, True),
        (tuple(row[::-1] for row in GOLD), {"column_order": False, "ordered": True}, True),
        (tuple((*row, 1) for row in GOLD), {}, False),
    ],
)
def test_equal_results(found: Any, options: dict[str, Any], equal: bool) -> None:
    assert same_rows(GOLD, found, **options) is equal


def test_whole_numbers_are_exact_and_others_close() -> None:
    assert not same_rows(((10**12,),), ((10**12 + 1,),))
    assert same_rows(((1 / 3,),), ((0.333333333,),))
    assert not same_rows(((1 / 3,),), ((0.3334,),))
    assert same_rows(((1e-9,),), ((0,),))
    assert same_rows((), ())


values = st.one_of(st.none(), st.integers(-3, 3), st.floats(-2, 2, width=16), st.sampled_from(["a", "b"]))
results = st.lists(st.tuples(values, values), max_size=6)


@given(results, st.randoms())
def test_the_order_of_rows_changes_no_verdict(rows: list[tuple[Any, Any]], draw: Any) -> None:
    shuffled = draw.sample(rows, len(rows))
    assert same_rows(tuple(rows), tuple(shuffled))
    if rows:
        assert not same_rows(tuple(rows), tuple(shuffled[1:]))
        assert not same_rows(tuple(rows), tuple([*shuffled[1:], (7, 7)]))


few = st.sampled_from([0, 1, 2, 0.5, "a"])
pairs_of_results = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[few] * width), min_size=1, max_size=4).flatmap(
        lambda rows: st.tuples(st.just(rows), st.lists(st.tuples(*[few] * width), min_size=len(rows), max_size=4))
    )
)


@given(pairs_of_results, st.booleans(), st.booleans(), st.randoms())
def test_an_order_of_columns_is_found_if_there_is_one(
    pair: tuple[list[Any], list[Any]], ordered: bool, right: bool, draw: Any
) -> None:
    gold, found = pair
    orders = list(itertools.permutations(range(len(gold[0]))))
    if right:
        order = draw.choice(orders)
        found = [tuple(row[i] for i in order) for row in (gold if ordered else draw.sample(gold, len(gold)))]
    tried = any(
        same_rows(tuple(gold), tuple(tuple(row[i] for i in order) for row in found), ordered=ordered)
        for order in orders
    )
    assert same_rows(tuple(gold), tuple(found), ordered=ordered, column_order=False) is tried
    assert tried or not right


def test_a_wrong_result_takes_a_comparison_for_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not one for each of 720 orders."""
    compared, real = [], sql._in_any_order
    monkeypatch.setattr(sql, "_in_any_order", lambda *given: compared.append(1) or real(*given))
    gold = tuple(tuple(range(row, row + 6)) for row in range(300))
    assert not same_rows(gold, tuple((-1,) * 6 for _ in gold), column_order=False)
    assert len(compared) == 6


def test_a_query_that_names_all_values_leaves_others_to_fill_a_table_with() -> None:
    query = f"SELECT * FROM t WHERE a IN ({', '.join(map(str, range(1, 60)))})"
    task = task_of_row({"schema": "CREATE TABLE t (a INTEGER, b INTEGER PRIMARY KEY)"}, query, fill=1)
    assert task is not None
    assert task.fill is not None
    connection, was_filled = sql_program.database(task.scripts[0], 0, asdict(task.fill))
    assert was_filled
    assert 24 <= connection.execute("SELECT COUNT(*) FROM t WHERE b IS NOT NULL").fetchone()[0] <= 36


def test_a_fraction_in_the_query_is_no_number_of_a_row() -> None:
    schema = "CREATE TABLE t (id INTEGER PRIMARY KEY, price REAL)"
    task = task_of_row({"schema": schema}, "SELECT id FROM t WHERE price > 2.5", fill=1)
    assert task is not None
    assert task.fill is not None
    connection, was_filled = sql_program.database(task.scripts[0], 0, asdict(task.fill))
    assert was_filled
    assert connection.execute("SELECT COUNT(*) FROM t WHERE price > 2.5").fetchone()[0] > 0


def test_json_may_be_read_as_a_table_and_nothing_be_written() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a)")
    query = (
        "SELECT each.value, tree.key FROM json_each('[1, 2]') each, json_tree('{\"x\": 1}') tree WHERE tree.key = 'x'"
    )
    assert sql_program.answered(connection, query, 9) == {"rows": [[1, "x"], [2, "x"]]}
    for query in ("INSERT INTO t SELECT value FROM json_each('[1]')", "SELECT * FROM pragma_table_info('t')"):
        assert "not authorized" in sql_program.answered(connection, query, 9)["error"]
    named_alike = sqlite3.connect(":memory:")
    named_alike.execute("CREATE TABLE json_each (a)")
    assert sql_program.answered(named_alike, "SELECT COUNT(*) FROM json_each", 9) == {"rows": [[0]]}


@pytest.fixture(scope="module")
def made() -> Callable[..., Sql]:
    """Makes the reward, on a machine with a tier that confines."""

    def make(**options: Any) -> Sql:
        try:
            return Sql(**{"seconds": 60.0, **options})
        except SandboxError as error:
            pytest.skip(str(error).splitlines()[0])

    return make


@pytest.fixture(scope="module")
def reward(made: Callable[..., Sql]) -> Callable[..., Score]:
    sql = made()

    def call(response: str, answer: Any = None, **columns: Any) -> Score:
        score = sql(response, answer, **columns)
        assert score is not None
        return score

    return call


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT name FROM people WHERE age = 36", 1.0),
        ("```sql\nselect p.name as who from people p where p.age = 36 order by name desc;\n```", 1.0),
        ("<think>```sql\nSELECT 1\n```</think>```\nSELECT name FROM people WHERE age < 40\n```", 1.0),
        ("SELECT DISTINCT age FROM people WHERE age = 36", 0.0),
        ("SELECT name, age FROM people WHERE age = 36", 0.0),
        ("SELECT name FROM people", 0.0),
        ("SELECT 1 WHERE 0", 0.0),
    ],
)
def test_rows_of_the_database_are_compared(reward: Callable[..., Score], query: str, value: float) -> None:
    score = reward(query, "SELECT name FROM people WHERE age = 36", schema=DATA)
    assert (score.value, dict(score.parts)) == (value, {"runs": 1.0, "equal": value})


def test_order_null_and_floats(reward: Callable[..., Score]) -> None:
    by_height = "SELECT name FROM people ORDER BY height"
    assert reward("SELECT name FROM people ORDER BY height ASC", by_height, schema=DATA).value == 1.0
    assert reward("SELECT name FROM people ORDER BY name", by_height, schema=DATA).value == 0.0
    unknown = "SELECT name FROM people WHERE age IS NULL"
    assert reward("SELECT name FROM people WHERE age = NULL", unknown, schema=DATA).value == 0.0
    mean = "SELECT AVG(height) FROM people"
    assert reward("SELECT SUM(height) / COUNT(height) FROM people", mean, schema=DATA).value == 1.0


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM people",
        "INSERT INTO people VALUES ('Ed', 1, 1) RETURNING name",
        "CREATE TABLE x (y)",
        "DROP TABLE people",
        "ATTACH '/tmp/burnish-sql-attached' AS other",
        "VACUUM INTO '/tmp/burnish-sql-attached'",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_table_info('people')",
        "SELECT load_extension('x')",
        "SELECT writefile('/tmp/burnish-sql-attached', 'x')",
        "BEGIN",
        "SELECT 1; SELECT name FROM people",
        "SELECT zeroblob(1000000000)",
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 20000) SELECT x FROM r",
        "-- nothing",
        "",
        "words",
        "SELECT '\ud800'",
    ],
)
def test_a_query_can_only_read(reward: Callable[..., Score], query: str) -> None:
    score = reward(query, "SELECT name FROM people", schema=DATA)
    assert dict(score.parts) == {"runs": 0.0, "equal": 0.0}
    assert not os.path.exists("/tmp/burnish-sql-attached")
    assert reward("SELECT name FROM people", "SELECT name FROM people", schema=DATA).value == 1.0


def test_a_query_without_end_is_stopped_and_scores_0(made: Callable[..., Sql]) -> None:
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT COUNT(*) FROM r"
    sql = made(seconds=1.0)
    score = sql(endless, "SELECT name FROM people", schema=DATA)
    assert score is not None
    assert score.value == 0.0
    with pytest.raises(NoScoreError, match="too much time, memory or output"):
        sql("SELECT 1", endless, schema=DATA)


def test_made_up_rows_tell_queries_apart_that_are_equal_on_empty_tables(reward: Callable[..., Score]) -> None:
    assert reward("SELECT count(1) FROM head WHERE 57 <= age", COUNT, **CONTEXT).value == 1.0
    for wrong in ("> 57", "< 56", ">= 56", "IS NOT NULL"):
        assert reward(f"SELECT COUNT(*) FROM head WHERE age {wrong}", COUNT, **CONTEXT).value == 0.0, wrong
    for trivial in ("SELECT 0", "SELECT 1", "SELECT NULL", "SELECT 1 WHERE 0", "SELECT COUNT(*) FROM head"):
        assert reward(trivial, COUNT, **CONTEXT).value == 0.0, trivial
    names = "SELECT name FROM head WHERE name = 'Bob' ORDER BY age DESC LIMIT 1"
    assert reward("SELECT name FROM head WHERE name LIKE 'bob' ORDER BY -age LIMIT 1", names, **CONTEXT).value == 1.0


MANAGEMENT = """
CREATE TABLE department (department_id INTEGER, name VARCHAR, budget_in_billions DECIMAL, num_employees INTEGER);
CREATE TABLE management (department_id INTEGER, head_id INTEGER, temporary_acting VARCHAR);
CREATE TABLE head (head_id INTEGER PRIMARY KEY, name VARCHAR, born_state VARCHAR, age INTEGER);
"""
JOINED = "FROM department AS d JOIN management AS m ON d.department_id = m.department_id JOIN head AS h USING (head_id)"
# A gold query, wrong variants of it, and the same query written in another way.
VARIANTS: list[tuple[str, list[str], list[str]]] = [
    (
        "SELECT name, born_state, age FROM head ORDER BY age",
        [
            "SELECT name, born_state, age FROM head",
            "SELECT name, born_state, age FROM head ORDER BY age DESC",
            "SELECT name, born_state, age FROM head ORDER BY name",
        ],
        ["SELECT h.name,h.born_state,h.age FROM head h ORDER BY h.age ASC"],
    ),
    (
        "SELECT MAX(budget_in_billions), MIN(budget_in_billions) FROM department",
        [
            "SELECT MIN(budget_in_billions), MAX(budget_in_billions) FROM department",
            "SELECT MAX(num_employees), MIN(num_employees) FROM department",
        ],
        ["SELECT max(d.budget_in_billions), min(d.budget_in_billions) FROM department d"],
    ),
    (
        "SELECT AVG(num_employees) FROM department WHERE department_id BETWEEN 10 AND 15",
        [
            "SELECT AVG(num_employees) FROM department WHERE department_id BETWEEN 10 AND 14",
            "SELECT AVG(num_employees) FROM department WHERE department_id > 10 AND department_id <= 15",
            "SELECT SUM(num_employees) FROM department WHERE department_id BETWEEN 10 AND 15",
        ],
        ["SELECT AVG(num_employees) FROM department WHERE department_id >= 10 AND department_id <= 15"],
    ),
    (
        "SELECT name FROM head WHERE born_state <> 'California'",
        [
            "SELECT name FROM head",
            "SELECT name FROM head WHERE born_state = 'California'",
            "SELECT DISTINCT name FROM head WHERE born_state <> 'California'",
        ],
        ["SELECT name FROM head WHERE NOT born_state = 'California'"],
    ),
    (
        f"SELECT DISTINCT d.name {JOINED} WHERE h.born_state = 'Alabama'",
        [
            f"SELECT d.name {JOINED} WHERE h.born_state = 'Alabama'",
            f"SELECT DISTINCT d.name {JOINED}",
            f"SELECT DISTINCT d.name {JOINED.replace('m.department_id', 'm.head_id')} WHERE h.born_state = 'Alabama'",
        ],
        [
            "SELECT DISTINCT name FROM department WHERE department_id IN (SELECT department_id FROM management "
            "WHERE head_id IN (SELECT head_id FROM head WHERE born_state = 'Alabama'))"
        ],
    ),
    (
        "SELECT born_state FROM head GROUP BY born_state HAVING COUNT(*) >= 3",
        [
            "SELECT born_state FROM head GROUP BY born_state HAVING COUNT(*) > 3",
            "SELECT born_state FROM head GROUP BY born_state",
            "SELECT born_state FROM head GROUP BY born_state HAVING COUNT(*) >= 2",
        ],
        ["SELECT born_state FROM head GROUP BY 1 HAVING COUNT(*) > 2"],
    ),
    (
        "SELECT COUNT(DISTINCT temporary_acting) FROM management",
        ["SELECT COUNT(temporary_acting) FROM management", "SELECT COUNT(*) FROM management"],
        ["SELECT COUNT(*) FROM (SELECT DISTINCT temporary_acting FROM management WHERE temporary_acting IS NOT NULL)"],
    ),
    (
        "SELECT COUNT(*) FROM department WHERE NOT department_id IN (SELECT department_id FROM management)",
        [
            "SELECT COUNT(*) FROM department",
            "SELECT COUNT(*) FROM department WHERE department_id IN (SELECT department_id FROM management)",
        ],
        ["SELECT COUNT(*) FROM department d WHERE NOT d.department_id IN (SELECT m.department_id FROM management m)"],
    ),
    (
        "SELECT name FROM head WHERE age > 50 AND born_state = 'Ohio'",
        [
            "SELECT name FROM head WHERE age > 50",
            "SELECT name FROM head WHERE age > 50 OR born_state = 'Ohio'",
            "SELECT name FROM head WHERE age >= 50 AND born_state = 'Ohio'",
            "SELECT name FROM head WHERE born_state = 'Ohio'",
        ],
        ["SELECT name FROM head WHERE born_state = 'Ohio' AND NOT age <= 50"],
    ),
    (
        "SELECT name FROM department ORDER BY num_employees DESC LIMIT 3",
        [
            "SELECT name FROM department ORDER BY num_employees LIMIT 3",
            "SELECT name FROM department ORDER BY num_employees DESC LIMIT 2",
            "SELECT name FROM department ORDER BY budget_in_billions DESC LIMIT 3",
        ],
        ["SELECT name FROM department ORDER BY -num_employees LIMIT 3"],
    ),
    (
        "SELECT born_state, COUNT(*) FROM head GROUP BY born_state ORDER BY COUNT(*) DESC LIMIT 1",
        ["SELECT born_state, COUNT(*) FROM head GROUP BY born_state ORDER BY COUNT(*) LIMIT 1"],
        ["SELECT born_state, COUNT(*) c FROM head GROUP BY born_state ORDER BY c DESC LIMIT 1"],
    ),
]


def test_made_up_rows_are_telling(reward: Callable[..., Score]) -> None:
    """One wrong variant, the one without the condition on the state, is not told apart."""
    wrong = [(query, gold) for gold, queries, _ in VARIANTS for query in queries]
    passed = [query for query, gold in wrong if reward(query, gold, schema=MANAGEMENT).value == 1.0]
    assert (len(passed), len(wrong)) == (1, 29), passed
    right = [(query, gold) for gold, _, queries in VARIANTS for query in queries]
    assert [query for query, gold in right if reward(query, gold, schema=MANAGEMENT).value == 0.0] == []


def test_several_databases_all_have_to_agree(reward: Callable[..., Score]) -> None:
    states = [
        "INSERT INTO people VALUES ('Ada', 36, 1.65)",
        "INSERT INTO people VALUES ('Ada', 36, 1.65), ('Bo', 20, 1.7)",
    ]
    gold = "SELECT name FROM people WHERE age > 30"
    assert reward("SELECT name FROM people WHERE age > 25", gold, schema=PEOPLE, states=states).value == 1.0
    assert reward("SELECT name FROM people", gold, schema=PEOPLE, states=states).value == 0.0
    assert reward("SELECT name FROM people", gold, schema=PEOPLE, states=states[:1]).value == 1.0


def test_rows_that_cannot_be_compared(made: Callable[..., Sql]) -> None:
    sql = made(fill=0)
    assert sql("SELECT 1", "7", **CONTEXT) is None
    with pytest.raises(NoScoreError, match="the script of a database fails: near"):
        sql("SELECT 1", "SELECT 1", schema="CREATE TABL x")
    with pytest.raises(NoScoreError, match="the gold query gives no result: no such table: x"):
        sql("SELECT 1", "SELECT a FROM x", schema=PEOPLE)
    nobody = "SELECT name FROM people WHERE age > 99"
    with pytest.raises(NoScoreError, match="so that SELECT 1 WHERE 0 would pass"):
        sql("SELECT 1 WHERE 0", nobody, schema=DATA)
    accepting = made(fill=0, empty="accept")("SELECT 1 WHERE 0", nobody, schema=DATA)
    assert accepting is not None
    assert accepting.value == 1.0


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"option empty of reward 'sql' is 'eror'(?s:.*)did you mean 'error'"):
        Sql(empty="eror")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="option seconds of reward 'sql' is 0"):
        Sql(seconds=0)
    with pytest.raises(ConfigError, match="options fill and tolerance"):
        Sql(fill=-1)


def test_tables_have_different_numbers_of_rows(reward: Callable[..., Score]) -> None:
    schema = "CREATE TABLE singer (name VARCHAR); CREATE TABLE concert (id INTEGER)"
    gold = "SELECT COUNT(*) FROM singer"
    assert reward("SELECT COUNT(*) FROM singer s", gold, schema=schema).value == 1.0
    for wrong in ("SELECT COUNT(*) FROM concert", *(f"SELECT {number}" for number in range(24, 37))):
        assert reward(wrong, gold, schema=schema).value == 0.0
