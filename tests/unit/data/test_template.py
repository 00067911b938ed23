"""Chat templates get their options, tools and calls; what they would leave out in silence is refused."""

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from burnish.config.domains import domain_settings
from burnish.config.loading import load_run_data
from burnish.config.schema import RmConfig
from burnish.config.schema_data import DataSource
from burnish.data.chat import encode_prompt
from burnish.data.preferences import load_preferences
from burnish.data.prompts import load_prompts
from burnish.data.sft import load_sft_examples
from burnish.data.template import ChatFormat, template_reads
from burnish.errors import BurnishError, DataError
from burnish.trainers.rl.setup.feeds import load_prompt_set
from burnish.types import Message, Prompt

from .conftest import trained_pieces

_SAID = (
    "{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>{% endfor %}"
    "<|im_end|>"
)


def qwen_like(*, marked: bool = False) -> str:
    """Tools, calls, reasoning of the last turn only, an option for the generation prompt; with or without marks."""
    said = "{% generation %}" + _SAID + "{% endgeneration %}" if marked else _SAID
    return (
        "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
        "{% if m.role == 'assistant' %}" + said + "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
    )


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"a": {"type": "number"}}}}
USER = {"role": "user", "content": "1+2?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
RESULT = {"role": "tool", "content": "3"}
ANSWER = {"role": "assistant", "content": "It is 3."}
CONVERSATION = {"messages": [USER, CALL, RESULT, ANSWER], "tools": [TOOL]}


@pytest.fixture
def full(new_tokenizer):
    return new_tokenizer(template=qwen_like())


def sft_text(path: str, tokenizer, chat: ChatFormat | None = None) -> tuple[str, list[str]]:
    """(the whole text, its trained pieces)."""
    (example,) = load_sft_examples([DataSource(path=path)], tokenizer=tokenizer, chat=chat or ChatFormat()).examples
    return tokenizer.decode(example.tokens), trained_pieces(example, tokenizer)


def test_the_loss_covers_the_call(jsonl, full) -> None:
    text, trained = sft_text(jsonl(CONVERSATION), full)
    assert trained == ['<call>add{"a": 1, "b": 2}</call><|im_end|>', "It is 3.<|im_end|>"]
    assert '"name": "add", "parameters"' in text


def test_reasoning_is_trained_on_where_the_template_writes_it(jsonl, full) -> None:
    row = {"messages": [USER, ANSWER, USER, ANSWER | {"reasoning_content": "new"}]}
    _, trained = sft_text(jsonl(row), full)
    assert trained == ["It is 3.<|im_end|>", "<think>new</think>It is 3.<|im_end|>"]


def test_parquet_and_jsonl_give_the_same_tokens(jsonl, full, tmp_path) -> None:
    now = CALL | {"tool_calls": [{"name": "now", "arguments": {"zone": "x"}}]}
    rows = [CONVERSATION, {"messages": [USER, now], "tools": [TOOL]}]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "folder").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "folder" / "train.parquet")
    (tmp_path / "folder" / "notes.json").write_text("{}")
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": datasets.Dataset(table)}).save_to_disk(tmp_path / "splits")
    first, *others = [
        [example.tokens for example in load_sft_examples([DataSource(path=path)], tokenizer=full).examples]
        for path in (jsonl(*rows), *(str(tmp_path / name) for name in ("rows.parquet", "folder", "saved", "splits")))
    ]
    # The table fills b: null into the second call, and zone: null into the first.
    assert others == [first] * 4


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [USER, CALL]}, "message 2 (assistant) has tool_calls, but the chat template leaves it out"),
        ({"messages": [USER, ANSWER | {"reasoning_content": "r"}]}, "message 2 (assistant) has reasoning_content"),
        ({"messages": [USER, ANSWER], "tools": [TOOL]}, "tools are offered, but the chat template leaves it out"),
    ],
)
def test_what_a_template_does_not_read_is_refused(jsonl, chat_tokenizer, row: dict, words: str) -> None:
    path = jsonl(row)
    with pytest.raises(DataError, match=r"rows\.jsonl:1") as caught:
        load_sft_examples([DataSource(path=path)], tokenizer=chat_tokenizer)
    assert words in str(caught.value)
    (chosen, rejected) = row["messages"], [USER, {"role": "assistant", "content": "no"}]
    pair = jsonl({"chosen": chosen, "rejected": rejected, "tools": row.get("tools")}, name="pairs.jsonl")
    config = RmConfig.model_validate({"model": "m", "data": {"train": pair}})
    with pytest.raises(DataError, match="leaves it out"):
        load_preferences(config.data.train, config, tokenizer=chat_tokenizer, max_tokens=100)


PARTS = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}{% endfor %}"
FIRST_PART = "{% if m.content[0].type == 'text' %}{{ m.content[0]['text'] }}{% endif %}"


@pytest.mark.parametrize(
    "write", [PARTS, FIRST_PART, "{% if m.role == 'user' %}" + PARTS + "{% else %}{{ m.content.strip() }}{% endif %}"]
)
@pytest.mark.parametrize("system", [(), ({"role": "system", "content": "Be kind."},)])
def test_a_template_that_reads_contents_only_in_parts_gets_parts(jsonl, new_tokenizer, write: str, system) -> None:
    """As templates of models that see pictures do: of a plain text they write nothing, or refuse it."""
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n" + write + "<|im_end|>{% endfor %}"
    opening = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    path = jsonl({"messages": [*system, USER, ANSWER]})
    text, trained = sft_text(path, new_tokenizer(template=turns + opening))
    assert "1+2?<|im_end|>" in text
    assert ("Be kind." in text) == bool(system)
    assert trained == ["It is 3.<|im_end|>"]


def test_a_turn_whose_role_the_template_skips_is_refused(new_tokenizer) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    prompt = Prompt("p", messages=(Message("developer", "be brief"), Message("user", "Q")))
    with pytest.raises(DataError, match=r"message 1 has the role 'developer', but the chat template leaves such"):
        encode_prompt(prompt, new_tokenizer(template=template))


@pytest.mark.parametrize("write", ["m.content | upper", "m.content | tojson", "m.content | trim", "m.content[::-1]"])
def test_a_template_may_write_a_content_in_its_own_way(new_tokenizer, write: str) -> None:
    tokenizer = new_tokenizer(template="{% for m in messages %}{{ " + write + " }}{% endfor %}")
    assert encode_prompt(Prompt("p", messages=(Message("user", 'say "é"\n now '),)), tokenizer)


def test_plain_text_cannot_hold_calls_or_tools(jsonl, chat_tokenizer) -> None:
    for row in ({"messages": [USER, CALL, RESULT]}, {"prompt": "Q", "tools": [TOOL]}):
        with pytest.raises(DataError, match="which only a chat template can write"):
            load_prompts([DataSource(path=jsonl(row))], tokenizer=chat_tokenizer, chat=ChatFormat("never"))


def test_tools_that_are_not_schemas_are_refused(jsonl, full) -> None:
    for tools in (["hammer"], "hammer", 3, [{}]):
        with pytest.raises(DataError, match=r"rows\.jsonl:1: column 'tools'"):
            load_prompts([DataSource(path=jsonl({"messages": [USER], "tools": tools}))], tokenizer=full)


def test_options_reach_the_template_and_misspelt_ones_are_refused(full, chat_tokenizer) -> None:
    prompt = Prompt("p", messages=(Message("user", "Q"),))
    short = encode_prompt(prompt, full, ChatFormat(options={"enable_thinking": False}))
    assert full.decode(short).endswith("<|im_start|>assistant\n<think></think>")
    assert full.decode(encode_prompt(prompt, full)).endswith("<|im_start|>assistant\n")
    with pytest.raises(DataError, match=r"'enable_thinkin'.*does not read\n.*did you mean 'enable_thinking'"):
        encode_prompt(prompt, full, ChatFormat(options={"enable_thinkin": False}))
    with pytest.raises(DataError, match="it takes no option at all"):
        encode_prompt(prompt, chat_tokenizer, ChatFormat(options={"messages": []}))


LOADERS = {
    "rl": lambda config, full: load_prompt_set(config, domain_settings(config)[0], full, None, "train"),
    "sft": lambda config, full: load_sft_examples(config.data.train, tokenizer=full, chat=ChatFormat.of(config.data)),
    "rm": lambda config, full: load_preferences(config.data.train, config, tokenizer=full, max_tokens=99),
}


@pytest.mark.parametrize("chat", ["auto", "never", "always"])
@pytest.mark.parametrize("kind", LOADERS)
def test_options_without_a_template_that_is_applied_are_refused(jsonl, full, kind: str, chat: str) -> None:
    def load(*rows: dict) -> None:
        data = {"train": jsonl(*rows), "template_options": {"enable_thinking": False}, "chat": chat}
        run = {"model": "m", "data": data} | ({"rewards": "length"} if kind == "rl" else {})
        LOADERS[kind](load_run_data(run, (), kind).config, full)

    plain = {"prompt": "Q", "chosen": "A", "rejected": "B"} if kind == "rm" else {"prompt": "Q", "completion": "A"}
    if chat == "always":
        load(plain)
        return
    with pytest.raises(BurnishError, match=r"data.template_options is set, but no chat template is applied"):
        load(plain)
    if chat == "auto" and kind == "sft":
        load(plain, {"prompt": [USER], "completion": [ANSWER]})


def test_fields_without_effect_and_todays_date_are_told(jsonl, new_tokenizer, chatml) -> None:
    dated = new_tokenizer(template=chatml + "{% if date_string is not defined %}{{ strftime_now('%d') }}{% endif %}")
    path = jsonl({"messages": [USER | {"lang": "en"}]})
    lines = "\n".join(load_prompts([DataSource(path=path)], tokenizer=dated).lines())
    assert "1 conversations with fields that the chat template does not read: lang" in lines
    assert "today's date" in lines
    fixed = load_prompts([DataSource(path=path)], tokenizer=dated, chat=ChatFormat(options={"date_string": "1"}))
    assert "today's date" not in "\n".join(fixed.lines())


def test_what_a_template_reads_is_found_however_it_is_written() -> None:
    assert template_reads("{% generation %}{{ m['name'] }}{% endgeneration %}{% break_ %}") is None  # not Jinja
    reads = template_reads("{% generation %}{{ m['a'] }}{{ m.b }}{{ m.get('c') }}{% endgeneration %}{{ d }}")
    assert reads is not None
    assert {"a", "b", "c"} <= reads.attributes
    assert reads.variables == {"m", "d"}


HISTORIES = [
    [USER],
    [{"role": "system", "content": "S"}, USER, ANSWER, USER],
    [USER, CALL, RESULT],
    [USER, ANSWER | {"reasoning_content": "r"}, USER],
]


@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("marked", [False, True])
def test_sft_and_rl_render_a_history_alike(jsonl, new_tokenizer, history, tools, options, marked) -> None:
    tokenizer, chat = new_tokenizer(template=qwen_like(marked=marked)), ChatFormat(options=options)
    source = DataSource(path=jsonl({"messages": history, "tools": tools}))
    asked = load_prompts([source], tokenizer=tokenizer, chat=chat)
    row = {"prompt": history, "completion": [ANSWER], "tools": tools}
    (example,) = load_sft_examples([DataSource(path=jsonl(row))], tokenizer=tokenizer, chat=chat).examples
    prompt = tokenizer.decode(asked.prompt_tokens[0]).removesuffix("<think></think>")
    whole = tokenizer.decode(example.tokens)
    assert whole.startswith(prompt)
    first = example.loss_mask.index(True)
    assert tokenizer.decode(example.tokens[:first]) == prompt  # the loss begins where the policy begins to write
