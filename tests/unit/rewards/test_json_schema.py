"""The reward `json_schema`: where the JSON of a response is, and schemas that cannot be used."""

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import ConfigError
from burnish.rewards.builtins.json_schema import JsonSchema, read_json
from burnish.rewards.builtins.reading_rows import NoScoreError, fenced_blocks, last_block

pytest.importorskip("jsonschema")

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"}


def scores(response: str, schema: Any = PERSON, **options: Any) -> tuple[float, float]:
    """Whether it parses, and whether it is valid."""
    found = JsonSchema(**options)(response, schema=schema)
    assert found is not None
    assert found.value == found.parts["valid"]
    return found.parts["parses"], found.parts["valid"]


GOOD = '{"name": "Ada", "age": 36}'


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        (GOOD, (1, 1)),
        (f"Here it is:\n```json\n{GOOD}\n```\nDone.", (1, 1)),
        (f'```json\n{{"name": 1}}\n```\nNo:\n```JSON\n{GOOD}\n```', (1, 1)),
        (f'```json\n{GOOD}\n```\nor\n```json\n{{"name": 1}}\n```', (1, 0)),
        (f"```json\n{GOOD}\n```\n```python\nprint(1)\n```\n```\n{{}}\n```", (1, 1)),
        (f"```\n{GOOD}\n```", (1, 1)),
        (f"```json\n{GOOD}", (1, 1)),  # cut off after it was complete
        (f"<think>```json\n{{}}\n```</think>{GOOD}", (1, 1)),
        ('{"name": "Ada", "age": -1}', (1, 0)),
        ('{"name": "Ada", "age": 36, "x": 1}', (1, 0)),
        ('{"name": "Ada", "age": true}', (1, 0)),
        ('{"name": "Ada", "age": NaN}', (0, 0)),
        ('{"name": "Ada", "age": 1e999}', (0, 0)),
        ('{"name": "Ada", "age": -1, "age": 36}', (0, 0)),
        (f"<think>\n```json\n{GOOD}\n```", (0, 0)),
        (f"It is {GOOD}", (0, 0)),
        (f"{GOOD} {GOOD}", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_what_counts_as_the_json_of_a_response(response: str, wanted: tuple[float, float]) -> None:
    assert scores(response) == wanted
    assert scores(response, json.dumps(PERSON)) == wanted


def test_the_whole_response_can_be_required_to_be_json() -> None:
    assert scores(f"<think>x</think>\n{GOOD}\n", whole=True) == (1, 1)
    assert scores(f"```json\n{GOOD}\n```", whole=True) == (0, 0)


def test_blocks_of_other_languages_are_not_its_json() -> None:
    assert last_block("```python\n1\n```", ("json",)) == "```python\n1\n```"
    assert last_block("```json\n1\n```\n```\n2\n```", ("json",)) == "1\n"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```json\n1\n```\n```\n2\n```", [("json", "1\n"), ("", "2\n")]),
        ("``` C++ title=x\n1\n``` That is it.\n2", [("c++", "1\n")]),
        ("  ```\n  1\n```\n2", [("", "  1\n")]),
        ('```\n"""\n    ```\n"""\n```', [("", '"""\n    ```\n"""\n')]),
        ("```\n1\n```python\n2\n```\n3", [("", "1\n```python\n2\n")]),
        ("```\n1", [("", "1")]),
        ("````py\n1\n```\n2\n````\n3", [("py", "1\n```\n2\n")]),
        ("~~~\n1\n~~~~\n2", [("", "1\n")]),
        ("``` no end of line", []),
    ],
)
def test_blocks_between_fences(text: str, blocks: list[tuple[str, str]]) -> None:
    assert fenced_blocks(text) == blocks


def test_long_lines_after_a_fence_take_linear_time() -> None:
    """In quadratic time this test would take minutes."""
    for line in (" " * 200_000, "a" * 200_000):
        assert fenced_blocks(f"```{line}") == []


def test_depth_is_limited() -> None:
    assert scores("[" * 64 + "]" * 64, TREE) == (1, 1)
    assert scores("[" * 65 + "]" * 65, TREE) == (0, 0)
    with pytest.raises(ValueError, match="too deep"):
        read_json("[" * 100_000)


def test_numbers_beyond_floats_are_no_multiple_of_a_fraction() -> None:
    cents = {"type": "number", "multipleOf": 0.01}
    assert scores("0.02", cents) == (1, 1)
    assert scores("1" + "0" * 400, cents) == (1, 0)
    assert scores("1e999", cents) == (0, 0)
    with pytest.raises(NoScoreError, match="cannot be written as JSON"):
        JsonSchema()("1", schema={"multipleOf": float("inf")})


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ("[1, 1.0]", 0),
        ('[1, true, "1", [1], {"a": 1}, null, 0, false]', 1),
        ('[{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]', 0),
        ('[{"a": [1]}, {"a": [true]}]', 1),
        ('[["a,b"], ["a", "b"]]', 1),
    ],
)
def test_items_are_equal_as_json_has_it(items: str, unique: int) -> None:
    assert scores(items, {"uniqueItems": True}) == (1, unique)
    assert scores(items, {"uniqueItems": False}) == (1, 1)
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$ref": "#/definitions/set"}}
    assert scores(f"[{items}]", {**draft, "definitions": {"set": {"uniqueItems": True}}}) == (1, unique)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5]) | st.text("ab", max_size=2),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
        max_leaves=8,
    )
)
def test_uniqueness_is_the_library_s(value: Any) -> None:
    from jsonschema import Draft202012Validator

    schema = {"uniqueItems": True}
    assert scores(json.dumps(value), schema) == (1, Draft202012Validator(schema).is_valid(value))
    assert scores(json.dumps([value, value]), schema) == (1, 0)


def test_where_the_schema_is_from() -> None:
    assert JsonSchema()("1", level=3) is None
    assert JsonSchema()("1", schema=None) is None
    option = JsonSchema(schema={"type": "string"})
    assert getattr(option("1"), "value", None) == 0.0
    assert getattr(option("1", json_schema={"type": "integer"}), "value", None) == 1.0
    assert getattr(option("1", schema={}), "value", None) == 1.0  # anything is valid against this one
    assert getattr(JsonSchema(column="shape")("1", shape=False), "value", None) == 0.0


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "column 'schema' is not valid JSON"),
        ({"type": "numbr"}, "the schema is wrong at type: 'numbr'"),
        ({"pattern": "["}, "the schema is wrong at pattern"),
        ({"properties": {"a": {"type": None}}}, "the schema is wrong at properties/a/type"),
        (7, "a schema must be an object, and this is 7"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "refers to '#/\\$defs/none', which it does not hold"),
        ({"$ref": "#"}, "refers to itself without end"),
    ],
)
def test_a_schema_that_is_wrong_is_an_error_of_the_row(schema: Any, why: str) -> None:
    with pytest.raises(NoScoreError, match=why):
        JsonSchema()("{}", schema=schema)


def test_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        with pytest.raises(NoScoreError, match="which it does not hold, and nothing is fetched"):
            JsonSchema()("{}", schema={"properties": {"a": {"$ref": address}}})
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_references_inside_a_schema_and_to_the_specification_are_followed() -> None:
    bundled = {"$id": "http://example.org/a", "$defs": {"b": {"$id": "b", "type": "number"}}, "$ref": "b"}
    assert scores("1", bundled) == (1, 1)
    assert scores('"1"', bundled) == (1, 0)
    draft = "http://json-schema.org/draft-07/schema#"
    assert scores('{"type": "object"}', {"$schema": draft, "$ref": draft}) == (1, 1)
    assert scores("1", {"$schema": draft, "$ref": draft}) == (1, 0)


def test_a_wrong_schema_among_the_options_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="option schema of reward 'json_schema': the schema is wrong at type"):
        JsonSchema(schema={"type": "numbr"})


@pytest.mark.slow
def test_a_pattern_that_explodes_costs_the_worker_and_no_more(make_scorer, make_items) -> None:
    schema = {"type": "string", "pattern": "^(a+)+$"}
    scorer = make_scorer({"name": "json_schema", "options": {"schema": schema}, "timeout_seconds": 2.0})
    scored = scorer.score(make_items([json.dumps("a" * 40 + "!"), json.dumps("aaa")]))
    assert [(r.status.value, r.reward) for r in scored] == [("timeout", None), ("ok", 1.0)]
