"""The rewards in examples: sentiment, what a query may not do, and when its rows are those of another."""

import os
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from confining import where_confined
from hypothesis import given
from hypothesis import strategies as st
from scripts import load_script

from burnish.rewards.loading import RewardSpec, load_reward
from burnish.types import Score

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rewards"


sql, sql_program = load_script(FOLDER / "sql.py"), load_script(FOLDER / "sql_program.py")
same_rows, task_of_row = sql.same_rows, sql.task_of_row


def test_sentiment() -> None:
    pytest.importorskip("vaderSentiment")
    sentiment = load_script(FOLDER / "sentiment.py")
    assert sentiment.sentiment("She was happy and loved it!") > 0.5
    assert sentiment.sentiment("She was sad and hated it.") < -0.5
    story = "It was awful. Everything was horrible. They smiled. All were happy."
    assert sentiment.sentiment(story, last_sentences=2) > 0.5 > sentiment.sentiment(story)
    assert sentiment.ending('One. Two! "Three?" Four', 2) == '"Three?" Four'


@pytest.mark.slow_cases("sql.py:Sql-True")
@pytest.mark.parametrize(("name", "reads_answer"), [("sentiment.py:sentiment", False), ("sql.py:Sql", True)])
def test_a_run_file_can_name_them(name: str, reads_answer: bool) -> None:
    pytest.importorskip("vaderSentiment")
    with where_confined():
        reward = load_reward(RewardSpec(f"{FOLDER}/{name}", "own"))
    assert reward.signature.reads_answer is reads_answer


def test_custom_reward_functions() -> None:
    reward = load_script(FOLDER.parent / "custom_reward" / "reward.py")
    assert reward.solved("ad", "ad") == 1.0
    assert reward.overlap(["da", "d", "add", ""], ["ad"] * 4) == pytest.approx([1.0, 0.5, 2 / 3, 0.0])
    assert reward.Brief(longest=3, cost=0.5)(num_tokens=5) == -1.0
    assert reward.prefix("ad", "ad", 3).token_rewards == (0.5, 0.5, 0.0)
    assert reward.prefix("aa", "ad", 3).token_rewards == (0.5, 0.0, 0.0)
    assert reward.prefix("", "ad", 2).value == 0.0
    assert reward.details("da", "ad", truncated=True).parts == {"length": 1.0, "letters": 1.0, "ended": 0.0}


PEOPLE = "CREATE TABLE people (name TEXT, age INTEGER, height REAL);"
DATA = PEOPLE + "INSERT INTO people VALUES ('Ada', 36, 1.65), ('Bo', 36, 1.7), ('Cy', NULL, 1.8), ('Di', 50, 1.6);"
CONTEXT = {"context": "CREATE TABLE head (age INTEGER, name VARCHAR)"}
COUNT = "SELECT COUNT(*) FROM head WHERE age > 56"


def test_layouts_are_recognised() -> None:
    task = task_of_row(COUNT, CONTEXT, 2)
    assert (task.gold, task.scripts, task.ordered) == (COUNT, (CONTEXT["context"],) * 2, False)
    assert task.fill == sql.Fill((55, 56, 57, 112), (), distinct=False)
    task = task_of_row("VALUES (1)", {"sql_context": ["CREATE TABLE a (b)", "CREATE TABLE c (d)"]}, 0)
    assert task.scripts == ("CREATE TABLE a (b);\nCREATE TABLE c (d)",)
    assert task_of_row("SELECT 1", {"create": "A", "states": ["B", "C"]}, 3).scripts == ("A\n;\nB", "A\n;\nC")
    assert task_of_row(None, CONTEXT, 3) is None
    assert task_of_row(COUNT, {"level": 1}, 3) is None


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
    assert task_of_row(query, {"schema": "X"}, 0).ordered is ordered


def test_values_of_the_gold_query_are_among_the_made_up_ones() -> None:
    query = "SELECT a FROM t WHERE b = 'it''s' AND c LIKE \"%x%\" AND d > 1.5 LIMIT 2"
    fill = task_of_row(query, {"schema": "X"}, 1).fill
    assert fill == sql.Fill((0.5, 1.5, 2.5, 3.0, 1, 2, 4), ("it's", "x"), distinct=True)


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


@pytest.mark.slow
@given(results, st.randoms())
def test_the_order_of_rows_changes_no_verdict(rows: list[tuple[Any, Any]], draw: Any) -> None:
    shuffled = draw.sample(rows, len(rows))
    assert same_rows(tuple(rows), tuple(shuffled))
    if rows:
        assert not same_rows(tuple(rows), tuple(shuffled[1:]))
        assert not same_rows(tuple(rows), tuple([*shuffled[1:], (7, 7)]))


@pytest.mark.parametrize(
    ("query", "schema", "rows"),
    [
        # It names all small values: others are left to fill the table with.
        (
            f"SELECT * FROM t WHERE a IN ({', '.join(map(str, range(1, 60)))})",
            "CREATE TABLE t (a INTEGER, b INTEGER PRIMARY KEY)",
            "SELECT COUNT(*) FROM t WHERE b IS NOT NULL",
        ),
        # A fraction is no number of a row.
        (
            "SELECT id FROM t WHERE price > 2.5",
            "CREATE TABLE t (id INTEGER PRIMARY KEY, price REAL)",
            "SELECT COUNT(*) FROM t",
        ),
    ],
)
def test_empty_tables_are_filled(query: str, schema: str, rows: str) -> None:
    task = task_of_row(query, {"schema": schema}, 1)
    connection, was_filled = sql_program.database(task.scripts[0], 0, asdict(task.fill))
    assert was_filled
    assert 24 <= connection.execute(rows).fetchone()[0] <= 36


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
def made() -> Callable[..., Any]:
    """Makes the reward, on a machine with a tier that confines."""

    def make(**options: Any) -> Any:
        with where_confined():
            return sql.Sql(**{"seconds": 60.0, **options})

    return make


@pytest.fixture(scope="module")
def reward(made: Callable[..., Any]) -> Callable[..., Score]:
    judge = made()

    def call(response: str, answer: Any = None, **columns: Any) -> Score:
        score = judge(response, answer, **columns)
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


@pytest.mark.slow
def test_a_query_without_end_is_stopped_and_scores_0(made: Callable[..., Any]) -> None:
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT COUNT(*) FROM r"
    judge = made(seconds=1.0)
    score = judge(endless, "SELECT name FROM people", schema=DATA)
    assert score is not None
    assert score.value == 0.0
    with pytest.raises(sql.NoVerdictError, match="too much time, memory or output"):
        judge("SELECT 1", endless, schema=DATA)


@pytest.mark.slow
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
]


@pytest.mark.slow
def test_made_up_rows_are_telling(reward: Callable[..., Score]) -> None:
    """One wrong variant, the one without the condition on the state, is not told apart."""
    wrong = [(query, gold) for gold, queries, _ in VARIANTS for query in queries]
    passed = [query for query, gold in wrong if reward(query, gold, schema=MANAGEMENT).value == 1.0]
    assert (len(passed), len(wrong)) == (1, 18), passed
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


@pytest.mark.slow
def test_rows_that_cannot_be_compared(made: Callable[..., Any]) -> None:
    judge = made(fill=0)
    assert judge("SELECT 1", None, **CONTEXT) is None
    with pytest.raises(sql.NoVerdictError, match="the script of a database fails: near"):
        judge("SELECT 1", "SELECT 1", schema="CREATE TABL x")
    with pytest.raises(sql.NoVerdictError, match="the gold query gives no result: no such table: x"):
        judge("SELECT 1", "SELECT a FROM x", schema=PEOPLE)
    nobody = "SELECT name FROM people WHERE age > 99"
    with pytest.raises(sql.NoVerdictError, match="so SELECT 1 WHERE 0 would pass"):
        judge("SELECT 1 WHERE 0", nobody, schema=DATA)
    assert made(fill=0, accept_empty=True)("SELECT 1 WHERE 0", nobody, schema=DATA).value == 1.0


@pytest.mark.slow
def test_tables_have_different_numbers_of_rows(reward: Callable[..., Score]) -> None:
    schema = "CREATE TABLE singer (name VARCHAR); CREATE TABLE concert (id INTEGER)"
    gold = "SELECT COUNT(*) FROM singer"
    assert reward("SELECT COUNT(*) FROM singer s", gold, schema=schema).value == 1.0
    for wrong in ("SELECT COUNT(*) FROM concert", *(f"SELECT {number}" for number in range(24, 37))):
        assert reward(wrong, gold, schema=schema).value == 0.0
