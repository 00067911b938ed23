"""Which tokens are trained on, checked by reading them back as text."""

import re

import pytest
from transformers import PreTrainedTokenizer

from burnish.config.schema_data import DataSource
from burnish.data.sft import SftSet, load_sft_examples
from burnish.data.template import ChatFormat
from burnish.errors import DataError

from .conftest import pieces, trained_pieces

USER = {"role": "user", "content": "Q"}
SYSTEM = {"role": "system", "content": "S"}
A1 = {"role": "assistant", "content": "one"}
A2 = {"role": "assistant", "content": "two"}


@pytest.fixture
def load(jsonl, chat_tokenizer):
    def _load(*rows: dict, tokenizer=chat_tokenizer, options: dict | None = None, **fields: object) -> SftSet:
        return load_sft_examples([DataSource(path=jsonl(*rows), **fields)], tokenizer=tokenizer, **(options or {}))

    return _load


@pytest.mark.parametrize("bos", [False, True])
def test_prompt_completion_trains_the_completion_and_eos(load, new_tokenizer, bos: bool) -> None:
    tokenizer = new_tokenizer(bos=bos, eos=bos)
    (example,) = load({"prompt": "2+2=", "completion": "4"}, tokenizer=tokenizer).examples
    assert pieces(example, tokenizer) == [(False, ("<s>" if bos else "") + "2+2="), (True, "4</s>")]


def test_an_eos_in_the_completion_is_not_doubled(load, plain_tokenizer) -> None:
    (example,) = load({"prompt": "Q", "completion": "A</s>"}, tokenizer=plain_tokenizer).examples
    assert trained_pieces(example, plain_tokenizer) == ["A</s>"]


def test_question_and_answer_rows_are_prompt_completion(load, plain_tokenizer) -> None:
    loaded = load({"question": "Q", "answer": "A"}, tokenizer=plain_tokenizer, prompt_template="{prompt}\n")
    assert pieces(loaded.examples[0], plain_tokenizer) == [(False, "Q\n"), (True, "A</s>")]
    assert loaded.understandings[0].reading.roles["completion"] == "answer"


def test_plain_text_trains_all_but_the_first_token(load, new_tokenizer) -> None:
    for bos, learned in ((True, [(False, "<s>"), (True, "abc</s>")]), (False, [(False, "a"), (True, "bc</s>")])):
        tokenizer = new_tokenizer(bos=bos)
        (example,) = load({"text": "abc"}, tokenizer=tokenizer).examples
        assert pieces(example, tokenizer) == learned


CONVERSATION = {"messages": [SYSTEM, USER, A1, USER, A2]}
EXPECTED = [
    (False, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"),
    (True, "one<|im_end|>"),
    (False, "\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"),
    (True, "two<|im_end|>"),
    (False, "\n"),
]


MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    ("messages", "train_on", "trained"),
    [
        ([USER, A1 | {"train": False}, USER, A2], "all_turns", ["two<|im_end|>"]),
        ([USER, A1 | {"train": True}, USER, A2 | {"train": False}], "all_turns", ["one<|im_end|>"]),
        ([USER, A1 | {"weight": 1}, USER, A2 | {"weight": 0}, USER, A1], "all_turns", ["one<|im_end|>"] * 2),
        ([USER, A1, USER, A2], "last_turn", ["two<|im_end|>"]),
        ([USER, A2], "last_turn", ["two<|im_end|>"]),
        ([A1, USER, A2], "all_turns", ["one<|im_end|>", "two<|im_end|>"]),  # as in ShareGPT
    ],
)
def test_chosen_turns_are_trained_on(load, new_tokenizer, chatml, messages, train_on, trained, marked) -> None:
    tokenizer = new_tokenizer(template=MARKED if marked else chatml)
    (example,) = load({"messages": messages}, tokenizer=tokenizer, options={"train_on": train_on}).examples
    assert trained_pieces(example, tokenizer) == trained
    bare = [{name: turn[name] for name in ("role", "content")} for turn in messages]
    (whole,) = load({"messages": bare}, tokenizer=tokenizer).examples
    assert example.tokens == whole.tokens


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"messages": [USER, A1 | {"train": False}]}, {}, "no assistant turn to train on"),
        ({"messages": [USER | {"train": True}, A1]}, {}, "message 1 (user) is marked as trained on"),
        ({"messages": [USER, A1 | {"weight": 1}, USER, A2]}, {"train_on": "last_turn"}, "message 2 (assistant) is"),
        ({"prompt": [USER, A1 | {"train": True}, USER], "completion": [A2]}, {}, "behind the prompt"),
        ({"prompt": [USER], "completion": [A1 | {"train": False}, A2]}, {"chat": ChatFormat(chat="never")},
         "with data.chat never it is one text"),
    ],
)  # fmt: skip
def test_turns_that_cannot_be_chosen_are_refused(load, row: dict, options: dict, words: str) -> None:
    with pytest.raises(DataError, match=re.escape(words)):
        load(row, options=options)


def test_marks_around_several_turns_leave_none_out(load, new_tokenizer) -> None:
    template = "{% generation %}{% for m in messages %}{{ m['content'] }}{% endfor %}{% endgeneration %}"
    with pytest.raises(DataError, match="do not tell the turns of this conversation apart"):
        load(CONVERSATION, tokenizer=new_tokenizer(template=template), options={"train_on": "last_turn"})


def test_rows_have_weights(load, plain_tokenizer) -> None:
    rows = [{"prompt": "Q", "completion": "A", "weight": weight} for weight in (2, 0, 0.5)]
    loaded = load(*rows, tokenizer=plain_tokenizer)
    assert [example.weight for example in loaded.examples] == [2.0, 0.5]
    assert "  left out: 1 rows of weight 0" in loaded.lines()
    named = [{"text": "abc", "quality": 3}]
    assert load(*named, tokenizer=plain_tokenizer, columns={"weight": "quality"}).examples[0].weight == 3.0
    assert load({"text": "abc"}, tokenizer=plain_tokenizer).examples[0].weight == 1.0


@pytest.mark.parametrize("weight", [-1, None, "1", True])
def test_a_weight_that_is_none_is_refused(load, plain_tokenizer, weight: object) -> None:
    with pytest.raises(DataError, match=r"'weight' \(weight\) holds .*\n.*a weight is a number at least 0"):
        load({"prompt": "Q", "completion": "A", "weight": weight}, tokenizer=plain_tokenizer)


class LetterTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python, which tells no offsets: one token a character."""

    def __init__(self, **options: object) -> None:
        self._known = ["</s>", "<|im_end|>", *map(chr, range(10, 128))]
        super().__init__(eos_token="</s>", additional_special_tokens=["<|im_end|>"], **options)

    @property
    def vocab_size(self) -> int:
        return len(self._known)

    def get_vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self._known)}

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self._known.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self._known[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


def test_chat_trains_every_assistant_turn_and_its_end(load, new_tokenizer, chatml) -> None:
    """Also where the template marks its turns, and with a tokenizer that tells no offsets."""
    letters = LetterTokenizer(chat_template=chatml)
    assert not letters.is_fast
    for tokenizer in (new_tokenizer(template=chatml), new_tokenizer(template=MARKED), letters):
        (example,) = load(CONVERSATION, tokenizer=tokenizer).examples
        assert pieces(example, tokenizer) == EXPECTED


def test_a_template_that_rewrites_history_still_finds_the_turns(load, new_tokenizer) -> None:
    # An empty thinking block before the last answer only, as thinking models write it.
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if loop.last and m['role'] == 'assistant' %}<think></think>{% endif %}{{ m['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = new_tokenizer(template=template)
    (example,) = load(CONVERSATION, tokenizer=tokenizer).examples
    assert trained_pieces(example, tokenizer) == ["one<|im_end|>", "<think></think>two<|im_end|>"]


def test_a_filled_thinking_block_is_trained_on(load, new_tokenizer) -> None:
    # The generation prompt closes an empty thinking block; the answer at hand has something in it.
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}"
    )
    tokenizer = new_tokenizer(template=template)
    answers = (A1 | {"content": f"<think>{thought}</think>A"} for thought in ("", "hm"))
    rows = [{"messages": [USER, answer]} for answer in answers]
    examples = load(*rows, tokenizer=tokenizer).examples
    assert [trained_pieces(e, tokenizer) for e in examples] == [["A<|im_end|>"], ["hm</think>A<|im_end|>"]]


def test_a_template_that_cannot_be_cut_is_told(load, new_tokenizer) -> None:
    template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    said = r"rows\.jsonl:1: the chat template writes.*message 3 differently.*\n.*generation"
    with pytest.raises(DataError, match=said):
        load({"messages": [SYSTEM, USER, A1, USER]}, tokenizer=new_tokenizer(template=template))


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("completion", [[A2], "two"])
def test_conversational_completion_trains_only_the_completion(load, new_tokenizer, chatml, completion, marked) -> None:
    tokenizer = new_tokenizer(template=MARKED if marked else chatml)
    (example,) = load({"prompt": [USER, A1, USER], "completion": completion}, tokenizer=tokenizer).examples
    assert trained_pieces(example, tokenizer) == ["two<|im_end|>"]


def test_text_pairs_become_turns_when_asked(load, chat_tokenizer) -> None:
    row = {"prompt": "Q", "completion": "two"}
    for options, fields in (({"chat": ChatFormat("always")}, {}), ({}, {"system_prompt": "S"})):
        (example,) = load(row, options=options, **fields).examples
        assert trained_pieces(example, chat_tokenizer) == ["two<|im_end|>"]
    (example,) = load(row, options={"chat": ChatFormat("never")}).examples
    assert trained_pieces(example, chat_tokenizer) == ["two</s>"]


def test_over_long_examples(load, plain_tokenizer) -> None:
    rows = [{"prompt": asked, "completion": said} for asked, said in (("12", "345"), ("1234", "5"), ("1", "2"))]

    def run(over_long: str) -> SftSet:
        return load(*rows, tokenizer=plain_tokenizer, options={"max_tokens": 4, "over_long": over_long})

    dropped = run("drop")
    assert [e.id for e in dropped.examples] == ["rows:2"]
    assert dropped.understandings[0].skipped == {"examples over max_tokens (4)": 2}
    cut = run("truncate")
    assert [trained_pieces(e, plain_tokenizer) for e in cut.examples] == [["34"], ["2</s>"]]
    assert cut.understandings[0].changed == {"examples over max_tokens (4), cut at the end": 1}
    assert sum(cut.understandings[0].skipped.values()) == 1
    assert cut.lengths() == [4, 3]
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the example has 6 tokens, over max_tokens 4"):
        run("error")


@pytest.mark.parametrize(
    ("row", "fields", "words"),
    [
        ({"messages": [USER]}, {}, ["rows.jsonl:1", "no assistant turn"]),
        ({"messages": [USER, A1], "completion": "A"}, {}, ["could each be what to learn", "{completion: completion}"]),
        ({"messages": [USER, A1], "q": "Q"}, {"prompt_template": "{q}"}, ["no completion to train on"]),
        ({"prompt": "Q"}, {}, ["no column for completion", "the columns are prompt"]),
        ({"problem": "Q", "solution": "S", "answer": "A"}, {}, ["answer and solution could each be the completion"]),
        ({"prompt": "Q", "completion": None}, {}, ["rows.jsonl:1", "(completion) holds nothing"]),
        ({"text": 3}, {}, ["(text) holds int 3"]),
        ({"text": "x"}, {"system_prompt": "S"}, ["these rows are plain text"]),
        ({"prompt": [USER], "reward_model": {"ground_truth": "A"}}, {}, ["layout verl have no completion"]),
        ({"chosen": "a", "rejected": "b"}, {}, ["have no completion"]),
    ],
)
def test_rows_that_cannot_be_trained_on(load, row: dict, fields: dict, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        load(row, **fields)
    assert all(word in str(caught.value) for word in words), caught.value


def test_no_eos_and_no_template(load, new_tokenizer) -> None:
    with pytest.raises(DataError, match="no EOS token"):
        load({"text": "x"}, tokenizer=new_tokenizer(eos_token=None))
    with pytest.raises(DataError, match="has no chat template"):
        load(CONVERSATION, tokenizer=new_tokenizer())
    with pytest.raises(DataError, match=r"through a chat template, and data\.chat is never"):
        load(CONVERSATION, options={"chat": ChatFormat("never")})
