"""What a row says is trained on, in its own turn and with the token that ends it, or the row is refused.

The templates are stand-ins that do what those of well-known families do.
"""

import pytest

from burnish.config.schema_data import DataSource
from burnish.data.sft import SftSet, load_sft_examples
from burnish.errors import DataError

from .conftest import trained_pieces

# Thinking stands in turns after the last question only; it is cut out of contents (Qwen3).
QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set c = m.content %}{% set r = m.reasoning_content or '' %}{% if '</think>' in c %}"
    "{% set r = c.split('</think>')[0].split('<think>')[-1].strip() %}{% set c = c.split('</think>')[-1].lstrip() %}"
    "{% endif %}{% if loop.index0 > ns.last and (loop.last or r) %}<think>\n{{ r }}\n</think>\n\n{{ c.lstrip() }}"
    "{% else %}{{ c }}{% endif %}"
    "{% for t in m.tool_calls %}<tool_call>{{ t.function | tojson }}</tool_call>{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Everything up to </think> is cut from an answer (DeepSeek-R1).
R1 = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}<|assistant|>"
    "{{ m.content.split('</think>')[-1] }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
# No token of its own ends a turn (GLM).
GLM = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}{% else %}<|{{ m.role }}|>\n"
    "{{ m.content }}{% for t in m.tool_calls %}<tool_call>{{ t.function | tojson }}</tool_call>{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# One call, without a text beside it (Llama 3.1).
LLAMA = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}<|im_end|>'
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
# The answers of tools stand in the turn that called them, and the next answer has a header again (diffusion_gemma).
GEMMA = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ m.content }}<tool_response|>{% else %}<|turn>{{ m.role }}\n"
    "{{ m.content }}{% for t in m.tool_calls %}<|tool_call>{{ t.function | tojson }}<tool_call|>{% endfor %}"
    "{{ '<|tool_response>' if m.tool_calls else '<turn|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{% for t in m.tool_calls %}{{ t.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
)
# A turn's text stands behind the answers of its tools (a Gemma with marks).
BEHIND = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set c = messages[loop.index0 - 1].content %}"
    "{% if m.role == 'tool' %}{{ m.content }}{% generation %}{{ c }}{% endgeneration %}{% elif m.tool_calls %}"
    "{% generation %}{{ m.tool_calls[0].function | tojson }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)
SPECIALS = (
    *("<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>"),
    *("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
)


def user(content: str = "Hi") -> dict:
    return {"role": "user", "content": content}


def said(content: str = "Yes", *calls: dict, **fields: object) -> dict:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **fields}


def call(**arguments: object) -> dict:
    return {"type": "function", "function": {"name": "add", "arguments": arguments}}


RESULT = {"role": "tool", "content": "42"}
CALLED = '{}{{"name": "add", "arguments": {{}}}}{}'


@pytest.fixture
def load(jsonl, new_tokenizer):
    def _load(template: str, *messages: dict, specials: tuple[str, ...] = SPECIALS) -> tuple[SftSet, list[str]]:
        """The loaded row, and its trained stretches as text."""
        tokenizer = new_tokenizer(template=template, specials=specials)
        loaded = load_sft_examples([DataSource(path=jsonl({"messages": messages}))], tokenizer=tokenizer)
        (example,) = loaded.examples
        return loaded, trained_pieces(example, tokenizer)

    return _load


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (QWEN3, [user(), said(reasoning_content="FIRST"), user(), said()], "str 'FIRST' of its reasoning_content"),
        (QWEN3, [user(), said("<think>\nFIRST\n</think>\n\nA"), user(), said()], "str 'FIRST' of its content"),
        (QWEN3, [user(), said("Yes", reasoning_content="Yes"), user(), said()], "str 'Yes' of its reasoning_content"),
        (R1, [user(), said("<think>\nLong.\n</think>\n\nYes")], "leaves out str 'Long.' of its content"),
        (R1, [user(), said("<think>It is 5.</think>It is 5.")], "leaves out str 'It is 5.' of its content"),
        (LLAMA, [user(), said("", call(a=1), call(a=2)), RESULT], "leaves out str 'add' of its tool call 2"),
        (LLAMA, [user(), said("Look:", call(a=1))], "says str 'Look:', but the chat template leaves it out"),
        (LLAMA.replace("f.arguments", "{}"), [user(), said("", call(a=1))], "'a' of its tool call 1 (add)"),
        ("{{ messages[1].content[:4] }}<|im_end|>", [user("abc"), said("abcdefgh")], "says str 'abcdefgh', but"),
        (MARKED, [user(), said("A", call(a=1))], "'add' of its tool call 1 where nothing is trained on"),
        (R1.replace("content }}{% el", "content[2:] }}{% el"), [user("a|b"), said()], "'a|b' of its content"),
        (BEHIND, [user(), said("Look:", call(a=1)), RESULT], "'Look:' of its content behind a later message"),
    ],
)
def test_what_a_template_leaves_out_of_a_turn_is_refused(load, template: str, messages: list[dict], words: str) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: message \d ") as caught:
        load(template, *messages)
    assert words in str(caught.value)


@pytest.mark.parametrize("write", ["m.content | upper", "m.content | tojson", "m.content | trim"])
def test_a_template_may_write_a_content_in_its_own_way(load, write: str) -> None:
    content = 'say "é" <b>\n</b>now 👍 '
    _, trained = load(QWEN3.replace("{{ c.lstrip() }}", "{{ " + write + " }}"), user(), said(content))
    assert "NOW" in trained[0].upper()


@pytest.mark.parametrize("content", ["\n\nYes", "<think>\n\n</think>\n\nYes", " Yes"])
def test_earlier_turns_may_begin_with_space_or_an_empty_thought(load, content: str) -> None:
    _, trained = load(QWEN3, user(), said(content), user(), said(content))
    assert [text.replace("<think>\n\n</think>", "").strip() for text in trained] == ["Yes<|im_end|>"] * 2


def test_a_turn_is_found_where_later_turns_change_the_history_before_it(load) -> None:
    """Qwen3.5 has an empty thought in all turns after the last question."""
    history = QWEN3.replace("(loop.last or r)", "true")
    _, (first, *later) = load(history, user(), said("Look:", call(a=1)), RESULT, said("42."), user(), said("Bye"))
    assert first.startswith("Look:<tool_call>")
    assert later == ["42.<|im_end|>", "<think>\n\n</think>\n\nBye<|im_end|>"]


def test_a_prompt_is_without_the_thinking_that_the_template_leaves_out_and_says_so(jsonl, new_tokenizer) -> None:
    row = {"prompt": [user(), said(reasoning_content="FIRST"), user()], "completion": [said("Bye")]}
    *_, line = load_sft_examples([DataSource(path=jsonl(row))], tokenizer=new_tokenizer(template=QWEN3)).lines()
    assert "changed: 1 prompts with reasoning of earlier turns, which the chat template leaves out" in line


@pytest.mark.parametrize(
    ("template", "specials", "messages", "trained", "note"),
    [
        (GLM, SPECIALS, [user(), said()], ["\nYes<|user|>"], "does not end; '<|user|>' was added"),
        (GLM, SPECIALS, [user(), said("A"), user(), said("B"), user()], ["\nA<|user|>", "\nB<|user|>"], ""),
        (GLM, SPECIALS, [user(), said("", call()), RESULT, said("", call())],
         ["\n" + CALLED.format("<tool_call>", "</tool_call>") + "<|observation|>"] * 2, "'<|observation|>' was added"),
        (GLM, (), [user(), said("A"), user(), said("B")], ["\nA", "\nB</s>"], "no token ends a turn of the assistant"),
        (MARKED, (), [user(), said("A")], ["A<|im_end|>"], ""),  # the end stands behind the mark
        (GEMMA, SPECIALS, [user(), said("", call()), RESULT, said("42.")],
         [CALLED.format("<|tool_call>", "<tool_call|>") + "<|tool_response>", "42.<turn|>"], "it is not trained on"),
    ],
)  # fmt: skip
def test_the_token_that_ends_a_turn_is_trained(load, template, specials, messages, trained, note) -> None:
    loaded, found = load(template, *messages, specials=specials)
    assert found == trained
    assert note in "\n".join(loaded.lines())
    assert bool(note) == any("changed" in line for line in loaded.lines())


@pytest.mark.parametrize(
    ("write", "written"),
    [
        ("t.function.arguments", '{"a": true, "b": "x\'y"}'),  # Mistral: a mapping would be written as Python does
        ("'```' + t.function.arguments", '```{"a": true, "b": "x\'y"}'),  # DeepSeek: a mapping is refused
        ("t.function.arguments | tojson", '{"a": true, "b": "x\'y"}'),
        ("t.function.arguments.b", "x'y"),
    ],
)
@pytest.mark.parametrize(("begin", "end"), [("", ""), ("{% generation %}", "{% endgeneration %}")])
def test_arguments_are_given_as_the_template_wants_them(load, write: str, written: str, begin: str, end: str) -> None:
    template = (
        f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{% if m.role == 'assistant' %}}{begin}"
        f"{{% for t in m.tool_calls %}}{{{{ t.function.name }}}} {{{{ {write} }}}}{{% endfor %}}<|im_end|>{end}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    arguments = {"b": "x'y"} if write.endswith(".b") else {"a": True, "b": "x'y"}
    _, trained = load(template, user(), said("", call(**arguments)))
    assert trained == [f"add {written}<|im_end|>"]
