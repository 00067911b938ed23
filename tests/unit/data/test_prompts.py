"""Layouts, roles, ids, templates and lengths of prompts."""

import json

import pytest

from burnish.config.schema_data import DataSource
from burnish.data.prompts import PromptSet, load_prompts
from burnish.errors import DataError
from burnish.types import Message

USER = {"role": "user", "content": "Q"}
SYSTEM = {"role": "system", "content": "S"}
ASSISTANT = {"role": "assistant", "content": "A"}


@pytest.fixture
def load(jsonl, chat_tokenizer):
    def _load(*rows: dict, tokenizer=chat_tokenizer, options: dict | None = None, **fields: object) -> PromptSet:
        return load_prompts([DataSource(path=jsonl(*rows), **fields)], tokenizer=tokenizer, **(options or {}))

    return _load


@pytest.mark.parametrize(
    ("row", "schema", "asked", "answer", "domain"),
    [
        ({"prompt": "Q"}, "prompt", "Q", None, "rows"),
        ({"prompt": "Q", "answer": "A", "domain": "d"}, "prompt", "Q", "A", "d"),
        ({"prompt": "Q", "completion": "C"}, "prompt_completion", "Q", None, "rows"),
        ({"text": "Q"}, "text", "Q", None, "rows"),
        ({"question": "Q", "answer": "#### 3"}, "prompt", "Q", "#### 3", "rows"),
        ({"problem": "Q", "solution": "long", "answer": "A"}, "prompt", "Q", "A", "rows"),
        ({"input": "Q", "target": 4.0}, "prompt", "Q", 4.0, "rows"),
        ({"prompt": [USER]}, "prompt", [USER], None, "rows"),
        ({"prompt": [SYSTEM, USER], "completion": [ASSISTANT]}, "prompt_completion", [SYSTEM, USER], None, "rows"),
        ({"messages": [USER, ASSISTANT]}, "chat", [USER], None, "rows"),
        ({"conversations": [{"from": "human", "value": "Q"}]}, "chat", [USER], None, "rows"),
        ({"prompt": [USER], "data_source": "d", "reward_model": {"ground_truth": "A"}}, "verl", [USER], "A", "d"),
        ({"prompt": "x", "messages": json.dumps([SYSTEM, USER]), "ground_truth": "A", "tag": "t", "domain": "no"},
         "roll", [SYSTEM, USER], "A", "t"),
        ({"prompt": "Q", "chosen": "a", "rejected": "b"}, "preference", "Q", None, "rows"),
    ],
)  # fmt: skip
def test_known_layouts(load, row: dict, schema: str, asked: object, answer: object, domain: str) -> None:
    loaded = load(row)
    (prompt,) = loaded.prompts
    expected = asked if isinstance(asked, str) else tuple(Message(**turn) for turn in asked)
    assert (prompt.text or prompt.messages) == expected
    assert (prompt.answer, prompt.domain, prompt.id) == (answer, domain, "rows:0")
    assert dict(prompt.columns) == row
    assert loaded.understandings[0].reading.schema == schema


def test_columns_by_name_reach_into_nested_values(load) -> None:
    row = {"task": {"ask": "Q", "meta": {"gold": 7}}, "kind": "k"}
    columns = {"prompt": "task.ask", "answer": "task.meta.gold", "domain": "kind"}
    loaded = load(row, columns=columns)
    (prompt,) = loaded.prompts
    assert (prompt.text, prompt.answer, prompt.domain) == ("Q", 7, "k")
    assert loaded.understandings[0].reading.roles == columns


def test_naming_one_column_leaves_the_rest_of_the_layout(load) -> None:
    verl = {"prompt": [USER], "data_source": "d", "reward_model": {"ground_truth": "A"}, "n": 4, "ask": "R"}
    (prompt,) = load(verl, columns={"id": "n", "prompt": "ask"}).prompts
    assert (prompt.id, prompt.text, prompt.answer, prompt.domain) == ("rows:4", "R", "A", "d")
    assert [one.answer for one in load(verl | {"reward_model": {"ground_truth": None}}, verl).prompts] == [None, "A"]
    roll = {"messages": json.dumps([USER]), "ground_truth": "A", "tag": "t", "level": "hard"}
    (prompt,) = load(roll, columns={"domain": "level"}).prompts
    assert (prompt.messages, prompt.answer, prompt.domain) == ((Message(**USER),), "A", "hard")


def test_a_claimed_column_is_not_taken_for_another_role(load) -> None:
    (prompt,) = load({"answer": "Q", "target": "T"}, columns={"prompt": "answer"}).prompts
    assert (prompt.text, prompt.answer) == ("Q", "T")


def test_a_column_whose_name_has_a_dot_wins(load) -> None:
    (prompt,) = load({"a.b": "flat", "a": {"b": "nested"}}, columns={"prompt": "a.b"}).prompts
    assert prompt.text == "flat"


def test_ids_are_row_numbers_or_a_column_and_equal_texts_stay_two(load) -> None:
    rows = [{"prompt": "same", "key": "x"}, {"prompt": "same", "key": 9}]
    assert [p.id for p in load(*rows).prompts] == ["rows:0", "rows:1"]
    assert [p.id for p in load(*rows, columns={"id": "key"}).prompts] == ["rows:x", "rows:9"]


def test_prompt_template(load) -> None:
    row = {"Body": "Two apples", "Question": "How many?", "Answer": 2.0, "n": {"x": 3}}
    loaded = load(row, prompt_template=r"{Body}. {Question} {n.x} {{raw}} \boxed{}")
    (prompt,) = loaded.prompts
    assert (prompt.text, prompt.answer) == (r"Two apples. How many? 3 {raw} \boxed{}", 2.0)
    assert any("prompt template" in line for line in loaded.lines())


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Q", "answer": "A"},
        {"prompt": "Q", "messages": json.dumps([USER]), "ground_truth": "A", "tag": "t"},
    ],
)
def test_prompt_template_may_name_the_role_which_is_text_beside_a_conversation(load, row: dict) -> None:
    assert load(row, prompt_template="{prompt}\nAnswer:").prompts[0].text == "Q\nAnswer:"


def test_system_prompt_only_where_there_is_none(load) -> None:
    loaded = load({"prompt": "Q"}, {"prompt": [SYSTEM, USER]}, {"prompt": [USER]}, system_prompt="Be brief.")
    brief = Message("system", "Be brief.")
    assert [p.messages[0] for p in loaded.prompts] == [brief, Message(**SYSTEM), brief]
    assert loaded.prompts[0].messages == (brief, Message(**USER))


def test_domain_of_the_source_wins_over_the_recognised_column(load) -> None:
    assert load({"prompt": "Q", "domain": "d"}, domain="mine").prompts[0].domain == "mine"


def test_the_last_answer_is_not_part_of_the_prompt_and_counted(load) -> None:
    loaded = load({"messages": [USER, ASSISTANT, USER, ASSISTANT]}, {"messages": [USER]})
    assert [len(p.messages) for p in loaded.prompts] == [3, 1]
    assert sum(loaded.understandings[0].changed.values()) == 1


# --- lengths --------------------------------------------------------------------------------------------------------


def test_over_long_prompts_are_dropped_and_counted(load) -> None:
    """The others keep the numbers of their rows as ids."""
    loaded = load({"prompt": "123456"}, {"prompt": "12345"}, options={"max_prompt_tokens": 5})
    assert [(p.id, p.text) for p in loaded.prompts] == [("rows:1", "12345")]
    assert list(loaded.understandings[0].skipped.values()) == [1]
    assert "1 of 2 rows used" in loaded.lines()[0]
    assert any("left out: 1 prompts over max_prompt_tokens (5)" in line for line in loaded.lines())


def test_truncation_keeps_the_end_and_the_bos(load, plain_tokenizer, new_tokenizer) -> None:
    options = {"max_prompt_tokens": 4, "over_long": "truncate"}
    loaded = load({"prompt": "123456"}, tokenizer=plain_tokenizer, options=options)
    assert plain_tokenizer.decode(loaded.prompt_tokens[0]) == "3456"
    assert list(loaded.understandings[0].changed.values()) == [1]
    with_bos = new_tokenizer(bos=True)
    tokens = load({"prompt": "123456"}, tokenizer=with_bos, options=options).prompt_tokens[0]
    assert (tokens[0], with_bos.decode(tokens[1:])) == (1, "456")


def test_over_long_can_be_an_error_and_so_is_a_full_context(load) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the prompt has 6 tokens, over max_prompt_tokens 5"):
        load({"prompt": "123456"}, options={"max_prompt_tokens": 5, "over_long": "error"})
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*6 tokens.*context is 6.*no room"):
        load({"prompt": "123456"}, options={"context_tokens": 6})
    with pytest.raises(DataError, match="none of 1 rows can be used: 1 prompts over max_prompt_tokens"):
        load({"prompt": "123456"}, options={"max_prompt_tokens": 5})


def test_several_sources_lie_behind_each_other(jsonl, plain_tokenizer) -> None:
    one = jsonl({"prompt": "a"}, {"prompt": "b"}, name="one.jsonl")
    two = jsonl({"prompt": "c"}, name="two.jsonl")
    sources = [DataSource(path=one, weight=3), DataSource(path=two)]
    loaded = load_prompts(sources, tokenizer=plain_tokenizer)
    assert [p.id for p in loaded.prompts] == ["one:0", "one:1", "two:0"]
    assert (loaded.source_sizes, loaded.weights) == ((2, 1), (3.0, 1.0))
    assert sorted(loaded.sampler(seed=0).take(4, 0)) == sorted([0, 1, 2, loaded.sampler(seed=0).take(4, 0)[-1]])
    assert any("share of the mixture: 75.0%" in line for line in loaded.lines())


# --- what is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "fields", "words"),
    [
        ([{"Question": "Q", "Body": "B"}], {}, ["no known layout", "Question, Body", "prompt_template"]),
        ([{"question": "I", "input": "X"}], {}, ["question and input could each be the prompt"]),
        ([{"prompt": "Q"}], {"columns": {"prompt": "promt"}}, ["no column 'promt'", "did you mean 'prompt'"]),
        ([{"prompt": "Q"}], {"columns": {"promt": "prompt"}}, ["unknown role 'promt'", "did you mean 'prompt'"]),
        ([{"prompt": "Q"}, {"q": "x"}], {}, ["rows.jsonl:2", "no column 'prompt'", "the row has q"]),
        ([{"prompt": "Q", "answer": 1}, {"prompt": "R"}], {}, ["rows.jsonl:2", "no column 'answer'"]),
        ([{"prompt": 3}], {}, ["rows.jsonl:1", "'prompt' (prompt) holds int 3, not text"]),
        ([{"prompt": None}], {}, ["rows.jsonl:1", "nothing (null)"]),
        ([{"prompt": "  "}], {}, ["rows.jsonl:1", "the prompt is empty"]),
        ([{"prompt": []}], {}, ["not a list of messages"]),
        ([{"messages": "no json"}], {}, ["text but not a JSON list of messages"]),
        ([{"messages": '[{"role": "user", "content": "a", "content": "b"}]'}], {}, ["'content' appears twice"]),
        ([{"prompt": '[{"role": "user", "content": "a", "content": "b"}]'}], {}, ["'content' appears twice"]),
        ([{"prompt": "Q", "reward_model": '{"ground_truth": "2"}'}], {}, ["answer cannot be found", "columns: {"]),
        ([{"prompt": "Q", "tools": "calculator"}], {}, ["not a JSON list of tools", "json.dumps"]),
        ([{"messages": [{"content": "x"}]}], {}, ["message 1 has no role"]),
        ([{"messages": [{"role": "user", "content": [{"type": "image"}]}]}], {}, ["message 1 (user)", "not text"]),
        ([{"messages": ["x"]}], {}, ["message 1 is str 'x', not an object"]),
        ([{"messages": [SYSTEM, ASSISTANT]}], {}, ["the conversation asks nothing"]),
        ([{"chosen": "a", "rejected": "b"}], {}, ["no common beginning", "name the column of the prompt"]),
        ([{"prompt": "Q", "n": "1"}, {"prompt": "Q", "n": "1"}], {"columns": {"id": "n"}}, ["rows.jsonl:2", "id '1'"]),
        ([{"prompt": "Q", "n": None}], {"columns": {"id": "n"}}, ["(id) holds nothing"]),
        ([{"prompt": "Q", "domain": ["x"]}], {}, ["(domain) holds list"]),
        ([{"prompt": "Q"}], {"prompt_template": "{promt}"}, ["names the column 'promt'", "did you mean 'prompt'"]),
        ([{"prompt": [USER]}], {"prompt_template": "{prompt}"}, ["uses column 'prompt', which holds list"]),
        ([{"prompt": "Q"}], {"schema_name": "verl"}, ["no column for answer (layout verl)"]),
        ([{"prompt": "Q"}], {"schema_name": "chat"}, ["no column for messages (layout chat)"]),
        ([{"a": "Q", "b": "R"}], {"columns": {"prompt": "a", "messages": "b"}}, ["both prompt and messages"]),
        ([{"prompt": "Q", "d": "R"}], {"columns": {"domain": "d"}, "domain": "x"}, ["both domain and columns.domain"]),
    ],
)
def test_bad_rows_and_columns_are_told(load, rows: list[dict], fields: dict, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        load(*rows, **fields)
    assert all(word in str(caught.value) for word in words), caught.value
    assert caught.value.remedy


def test_no_sources_is_an_error(plain_tokenizer) -> None:
    with pytest.raises(DataError, match="no data set is given"):
        load_prompts([], tokenizer=plain_tokenizer)


def test_room_for_a_response_of_a_fixed_length(load) -> None:
    assert load({"prompt": "123456"}, options={"context_tokens": 10, "room": 4})
    with pytest.raises(DataError, match=r"no room for the 5 tokens that every response has with rollout\.ignore_eos"):
        load({"prompt": "123456"}, options={"context_tokens": 10, "room": 5})
