"""What a data set writes as a turn arrives as a message with nothing dropped, or is refused where it stands."""

import json

import pytest

from burnish.data.conversations import text_or_turns
from burnish.data.rows import Row
from burnish.data.turns import checked_message
from burnish.errors import DataError
from burnish.types import Message

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
CALLED = {"role": "assistant", "content": ""}
SAID = {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({"role": "user", "content": "Q"}, Message("user", "Q")),
        ({"from": "gpt", "value": "A"}, Message("assistant", "A")),
        ({"from": "observation", "value": "3"}, Message("tool", "3")),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, Message("assistant", "", (CALL,))),
        # the inner form, and arguments as JSON text, which templates would quote twice
        ({**CALLED, "tool_calls": [{"name": "add", "arguments": '{"a": 1, "b": null}'}]},
         Message("assistant", "", (CALL,))),
        ({"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1, "b": null}}'},
         Message("assistant", "", (CALL,))),
        ({**SAID, "reasoning_content": "2+2"}, Message("assistant", "4", reasoning_content="2+2")),
        ({**SAID, "thinking": "2+2"}, Message("assistant", "4", reasoning_content="2+2")),
        ({**SAID, "tool_calls": None, "weight": 1}, Message("assistant", "4")),
        ({"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
         Message("tool", "3", extra={"tool_call_id": "c1", "name": "add"})),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
         Message("user", "ab")),
    ],
)  # fmt: skip
def test_turns(turn: dict, message: Message) -> None:
    assert checked_message(turn, "f:1, message 1") == message


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"role": "assistant", "content": None}, "nothing (null) as content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "nothing (null) as content"),
        ({"role": "user", "content": [{"type": "image"}]}, "not text"),
        ({**CALLED, "tool_calls": [{"function": {"arguments": {}}}]}, "tool call 1 is dict"),
        ({**CALLED, "tool_calls": ["x"]}, "tool call 1 is str"),
        ({**CALLED, "tool_calls": {"name": "f"}}, "not a list"),
        ({**CALLED, "tool_calls": [{"name": "f", "arguments": "{a"}]}, "of f: str '{a' is not JSON"),
        ({**CALLED, "tool_calls": [{"name": "f", "arguments": "[1]"}]}, "as arguments list"),
        ({**SAID, "weight": 0}, "which only supervised examples may be"),
        ({**SAID, "weight": 0.5}, "mark a turn with train: true or false, or weight: 1 or 0"),
        ({**SAID, "train": True, "weight": 0}, "has train bool True, weight int 0"),
        ({**SAID, "function_call": {"name": "f"}}, "write it as tool_calls"),
        ({**SAID, "thinking": "a", "reasoning_content": "b"}, "give the reasoning once"),
        ({**SAID, "reasoning_content": ["a"]}, "reasoning_content list"),
    ],
)
def test_what_cannot_be_carried_is_refused_where_it_stands(turn: dict, words: str) -> None:
    with pytest.raises(DataError, match=r"f:1, message 1") as caught:
        checked_message(turn, "f:1, message 1")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("marks", "trained"),
    [({}, None), ({"train": None}, None), ({"weight": 0}, False), ({"weight": 1}, True)]
    + [({"train": trained}, trained) for trained in (False, True)]
    + [({"train": trained, "weight": int(trained)}, trained) for trained in (False, True)],
)
def test_a_supervised_turn_may_say_whether_it_is_trained_on(marks: dict, trained: bool | None) -> None:
    turn = checked_message({**SAID, **marks}, "f:1, message 1", may_mark=True)
    assert turn == Message("assistant", "4", trained=trained)
    assert turn.to_dict() == SAID  # no template sees the mark


def test_a_message_is_written_out_as_it_was_read() -> None:
    turn = {"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": [CALL], "name": "n"}
    assert checked_message(turn, "f:1").to_dict() == turn
    assert checked_message(turn, "f:1") in {checked_message(turn, "f:2")}  # messages can be compared and collected


ASKED, ANSWERED = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
CONVERSATION = (Message("user", "Q"), Message("assistant", "A"))


@pytest.mark.parametrize(
    ("value", "role", "read"),
    [
        (json.dumps([ASKED, ANSWERED]), "prompt", CONVERSATION),
        (json.dumps([ASKED, ANSWERED], indent=2), "chosen", CONVERSATION),
        (json.dumps([{"from": "gpt", "value": "A"}]), "completion", CONVERSATION[1:]),
        (ANSWERED, "rejected", CONVERSATION[1:]),
        (json.dumps(ANSWERED), "rejected", CONVERSATION[1:]),
        (json.dumps(ASKED), "prompt", CONVERSATION[:1]),
        (json.dumps(ASKED), "chosen", json.dumps(ASKED)),
        ('{"role": "admin"}', "prompt", '{"role": "admin"}'),
        ('[{"a": 1}]', "prompt", '[{"a": 1}]'),
        ('[{"role": "user", "content": "cut o', "prompt", '[{"role": "user", "content": "cut o'),
        (json.dumps([ASKED, ANSWERED]), "completion", json.dumps([ASKED, ANSWERED])),  # an answer that is data itself
        (str([ASKED]), "responses", str([ASKED])),
    ],
)
def test_a_conversation_may_be_a_json_string(value: object, role: str, read: object) -> None:
    assert text_or_turns(value, Row(0, "f:1", {}), "c", role=role) == read


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (str([ASKED, ANSWERED]), r"f:1: column 'c' \(prompt\) holds a conversation as Python prints it.*json.dumps"),
        ("[{'content': 'Q', 'role': 'user'}\n {'content': 'A', 'role': 'assistant'}]", "as Python prints it"),
        ('[{"role": "user", "content": 3}]', r"message 1 \(user\) has int 3 as content, not text"),
        (True, "holds bool True, not text or messages"),
        (None, "holds nothing"),
    ],
)
def test_other_values_are_refused(value: object, words: str) -> None:
    with pytest.raises(DataError, match=f"(?s){words}"):
        text_or_turns(value, Row(0, "f:1", {}), "c", role="prompt")
