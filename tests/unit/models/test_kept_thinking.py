"""Templates that leave the thinking out of earlier turns, and what is left of that."""

from typing import Any

import jinja2
import pytest

from burnish.config.schema_data import ModelConfig
from burnish.errors import ModelError
from burnish.models.characters import character_tokenizer
from burnish.models.chat_templates import keep_thinking
from burnish.models.tokenizers import chat_template_for, load_tokenizer

# In the manner of Qwen3: thinking stands only in the turns since the last question.
SINCE_QUESTION = """
{%- set ns = namespace(last_query_index=0) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set ns.last_query_index = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- set content = m.content -%}{%- set reasoning_content = '' -%}
{%- if '</think>' in content -%}
{%- set reasoning_content = content.split('</think>')[0].split('<think>')[-1] -%}
{%- set content = content.split('</think>')[-1] -%}
{%- endif -%}
{%- if m.role != 'assistant' -%}<{{ m.role }}>{{ m.content }}
{%- elif loop.index0 > ns.last_query_index -%}
{%- if loop.last or (not loop.last and reasoning_content) -%}
<assistant><think>{{ reasoning_content }}</think>{{ content }}
{%- else -%}<assistant>{{ content }}{%- endif -%}
{%- else -%}<assistant>{{ content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}"""
# In the manner of DeepSeek-R1: no earlier turn has any.
NEVER = """
{%- for m in messages -%}<{{ m.role }}>
{%- set content = m.content -%}
{%- if "</think>" in content -%}{%- set content = content.split("</think>")[-1] -%}{%- endif -%}{{ content }}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}"""
# In the manner of Qwen3.5: each turn since the last question has a place for thinking, which may stay empty.
ALWAYS_A_PLACE = SINCE_QUESTION.replace("loop.last or (not loop.last and reasoning_content)", "true")
# In the manner of GLM-4.5: each turn has one, which is empty before the last question.
PLACE_IN_ALL = ALWAYS_A_PLACE.replace("query_index -%}\n", "query_index and reasoning_content -%}\n").replace(
    "<assistant>{{ content }}", "<assistant><think></think>{{ content }}"
)
USER, THOUGHT, PLAIN = ("user", "u"), ("assistant", "<think>t</think>a"), ("assistant", "b")


def written(template: str, *turns: tuple[str, str], opens: bool = False) -> str:
    messages = [{"role": role, "content": content} for role, content in turns]
    return jinja2.Environment().from_string(template).render(messages=messages, add_generation_prompt=opens)


@pytest.mark.parametrize("template", [SINCE_QUESTION, NEVER])
@pytest.mark.parametrize("turns", [(THOUGHT, USER), (PLAIN, USER), (THOUGHT, USER, PLAIN, USER, THOUGHT, USER)])
def test_earlier_turns_stay_as_they_were(template: str, turns: tuple[tuple[str, str], ...]) -> None:
    kept, history = keep_thinking(template), [USER]
    assert written(kept, USER, opens=True) == written(template, USER, opens=True)
    for turn in turns:
        before = written(kept, *history, opens=turn[0] == "assistant")
        history.append(turn)
        assert written(kept, *history) == before + (turn[1] if turn[0] == "assistant" else f"<user>{turn[1]}")


@pytest.mark.parametrize(
    ("template", "plain"),
    [(ALWAYS_A_PLACE, "<assistant>b"), (PLACE_IN_ALL, "<assistant><think></think>b"), (SINCE_QUESTION, "<assistant>b")],
)
def test_a_turn_has_its_own_thought_once_and_no_other_than_the_template_writes(template: str, plain: str) -> None:
    turns, kept = (USER, THOUGHT, USER, PLAIN, USER), keep_thinking(template)
    assert written(kept, *turns) == f"<user>u<assistant><think>t</think>a<user>u{plain}<user>u"
    assert plain in written(template, *turns)


@pytest.mark.parametrize(
    ("condition", "changed"),
    [
        ("loop.index0 > ns.last_user_index and m.thought", "true and m.thought"),
        ("(keeps or loop.index0 > last_query_index) and m.thought", "(keeps or true) and m.thought"),
        ("(loop.index0 >= ns.last_query_index)", "(true)"),
    ],
)
def test_what_stands_around_a_condition_stays(condition: str, changed: str) -> None:
    assert keep_thinking(f"{{% if {condition} %}}a{{% endif %}}") == f"{{% if {changed} %}}a{{% endif %}}"


@pytest.mark.parametrize("template", [SINCE_QUESTION, NEVER])
def test_the_template_itself_forgets(template: str) -> None:
    assert "<think>t" not in written(template, USER, THOUGHT, USER)


@pytest.mark.parametrize("template", [SINCE_QUESTION, NEVER, ALWAYS_A_PLACE, PLACE_IN_ALL, "{{ messages[0].content }}"])
def test_a_changed_template_is_not_changed_again(template: str) -> None:
    assert keep_thinking(keep_thinking(template)) == keep_thinking(template)


def tokenizer_of(template: Any) -> Any:
    tokenizer = character_tokenizer("ab", eos="$", pad="_")
    tokenizer.chat_template = template
    return tokenizer


def test_all_templates_of_a_tokenizer_are_changed() -> None:
    assert chat_template_for(tokenizer_of(NEVER), "keep_thinking") == keep_thinking(NEVER)
    several = {"default": NEVER, "tool_use": "{{ 1 }}"}
    assert chat_template_for(tokenizer_of(several), "keep_thinking") == {
        "default": keep_thinking(NEVER),
        "tool_use": "{{ 1 }}",
    }


def test_without_a_template_there_is_nothing_to_change() -> None:
    with pytest.raises(ModelError, match="is keep_thinking, but the tokenizer has no chat template"):
        chat_template_for(tokenizer_of(None), "keep_thinking")


def test_the_run_file_names_it(tmp_path: Any) -> None:
    tokenizer_of(NEVER).save_pretrained(tmp_path)
    loaded = load_tokenizer(ModelConfig(path="m", tokenizer=str(tmp_path), chat_template="keep_thinking"))
    assert loaded.chat_template == keep_thinking(NEVER)
