"""From a run file to partners: which prompts hold conversations, how calls are read, which templates are refused."""

import string
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from burnish.agents.conversation import ConversingEngine, Talk
from burnish.agents.partner import ToolsAndEnvironment
from burnish.agents.tool_execution import CallLimits
from burnish.config.domains import domain_settings
from burnish.config.loading import load_run_data
from burnish.data.template import ChatFormat
from burnish.errors import BurnishError, ConfigError, DataError
from burnish.models.characters import character_tokenizer
from burnish.models.chat_templates import keep_thinking
from burnish.trainers.rl.setup.conversations import Conversations, open_conversations
from burnish.types import Message, Prompt

PYTHONIC = """{%- for tool in tools or [] -%}{{ tool.function.name }}?{%- endfor -%}
{%- for m in messages -%}{%- if m.role == "assistant" -%}{{ m.content }}
{%- if m.tool_calls -%}[{%- for call in m.tool_calls -%}{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() -%}{{ name }}={{ value | tojson }}
{%- if not loop.last %}, {% endif -%}{%- endfor -%}){%- if not loop.last %}, {% endif -%}{%- endfor -%}]{%- endif -%}$
{%- else -%}>{{ m.content }}<{%- endif -%}{%- endfor -%}"""
# What follows an answer decides how the answer is written.
REWRITES = PYTHONIC.replace("{{ m.content }}", "{%- if not loop.last %}earlier {% endif %}{{ m.content }}", 1)
NO_CALLS = """{%- for m in messages -%}
{%- if m.role == "assistant" -%}{{ m.content }}${%- else -%}>{{ m.content }}<{%- endif -%}{%- endfor -%}"""
UNKNOWN = PYTHONIC.replace("{{ call.function.name }}(", "call {{ call.function.name }} with (")

PARTNERS = """
from burnish.agents.tools.calls import Parsed, ToolCall

class Own:
    def parse(self, text, tools=()):
        return Parsed("", (ToolCall("calculator", {"expression": text}),))

class Wrong:
    def parse(self, text, tools=()):
        return text

class Game:
    def reset(self, **row): ...
    def step(self, action): ...

class Desk:
    def reset(self, **row): ...
    def look(self) -> str:
        "Look."

def look() -> str:
    "Look."
"""
TOOL = {"tools": "{here}/partners.py:look"}


def tokenizer_of(template: str | None) -> Any:
    known = [c for c in string.printable if c not in "$_~"]
    return character_tokenizer(known, eos="$", pad="_", unk="~", chat_template=template)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., tuple[Conversations, str]]]:
    """The conversations of a run file, and what is said of them."""
    (tmp_path / "partners.py").write_text(PARTNERS)
    with ExitStack() as stack:

        def build(conversation: Any, template: str | None = PYTHONIC, **fields: Any) -> tuple[Conversations, str]:
            given = {k: v.format(here=tmp_path) if isinstance(v, str) else v for k, v in (conversation or {}).items()}
            data = {"model": "m", "data": {"train": "a", "chat": "always"}, "rewards": "math", **fields}
            config = load_run_data(data | {"conversation": given or None}, [], "rl").config
            tokenizer = tokenizer_of(template)
            opening = open_conversations(config, domain_settings(config), tokenizer, (tokenizer.eos_token_id,))
            found = stack.enter_context(opening)
            return found, "".join(f"{line}\n" for line in found.lines)

        yield build


def partner(conversations: Conversations, domain: str = "") -> ToolsAndEnvironment:
    found = conversations.by_domain[domain].partner
    assert isinstance(found, ToolsAndEnvironment)
    return found


def test_without_the_section_nothing_is_opened(opened: Callable[..., Any]) -> None:
    conversations, said = opened(None)
    assert conversations.by_domain == {}
    assert said == ""
    engine = object()
    assert conversations.around(engine, 10) is engine
    conversations.add("", SimpleNamespace(prompts=[Prompt("a", text="x")]), ChatFormat("never"))
    assert conversations.talks == {}


def test_tools_are_offered_and_said(opened: Callable[..., Any]) -> None:
    conversations, said = opened(
        {"tools": "calculator", "max_turns": 5, "max_turn_tokens": 7, "max_open": 9, "in_rounds": True}
    )
    assert [schema["function"]["name"] for schema in conversations.offered("")] == ["calculator"]
    assert said == "conversation: tools calculator (calls are read as pythonic); at most 5 turns\n"
    talk = conversations.by_domain[""]
    assert (talk.turns, talk.turn_tokens, talk.in_rounds, talk.open) == (5, 7, True, 9)
    assert isinstance(conversations.around(object(), 10), ConversingEngine)


def test_a_tool_has_the_limits_of_the_run_file(opened: Callable[..., Any]) -> None:
    slow = {"calculator": {"timeout_seconds": 7, "concurrency": 2}}
    of_tool, of_all = ({"call_timeout_seconds": 5, "max_open": 9} | {"tools": tool} for tool in (slow, "calculator"))
    for given, limits in ((of_tool, CallLimits(7.0, 2)), (of_all, CallLimits(5.0, 9))):
        assert partner(opened(given)[0]).tool("calculator").limits == limits  # type: ignore[union-attr]


def test_what_depends_on_timing_is_said(opened: Callable[..., Any]) -> None:
    _, said = opened({"environment": "{here}/partners.py:Game"})
    assert "environment " in said
    assert "conversation.in_rounds: true makes them equal" in said


@pytest.mark.slow
def test_a_parser_of_ones_own(opened: Callable[..., Any]) -> None:
    conversations, said = opened({"tools": "calculator", "parser": "{here}/partners.py:Own"})
    assert partner(conversations).parser.parse("1+1").calls[0].arguments == {"expression": "1+1"}  # type: ignore[union-attr]
    assert "partners.py:Own" in said
    conversations, _ = opened({"tools": "calculator", "parser": "{here}/partners.py:Wrong"}, UNKNOWN)
    with pytest.raises(BurnishError, match=r"partners.py:Wrong' returned 'a text'"):
        partner(conversations).parser.parse("a text")  # type: ignore[union-attr]


def test_a_game_needs_no_parser(opened: Callable[..., Any]) -> None:
    conversations, _ = opened({"environment": "{here}/partners.py:Game"}, NO_CALLS)
    assert partner(conversations).parser is None
    assert partner(conversations).answers_text


@pytest.mark.parametrize(
    ("conversation", "template", "kind", "why"),
    [
        ({"tools": "calculator"}, None, DataError, "has no chat template"),
        ({"tools": "calculator"}, NO_CALLS, DataError, "leaves it out"),
        ({"tools": "calculator"}, UNKNOWN, ConfigError, "no parser of tool calls"),
        ({"tools": "calculator"}, REWRITES, ConfigError, "writes a turn that calls a tool differently"),
        ({"environment": "{here}/partners.py:Game"}, REWRITES, ConfigError, "writes a turn differently"),
        ({"tools": "calculator", "parser": "hermess"}, PYTHONIC, ConfigError, "did you mean 'hermes'"),
        ({"tools": "calculator", "parser": "{here}/partners.py:None"}, PYTHONIC, ConfigError, "has no None"),
        ({"tools": {"python": {"seconds": "5"}}}, PYTHONIC, ConfigError, "seconds is '5'\n  -> write a finite n"),
        ({"tools": {"mcp": {"command": "npx x"}}}, PYTHONIC, ConfigError, "is 'npx x'\n  -> write a list of: text"),
        ({**TOOL, "environment": "{here}/partners.py:Desk"}, PYTHONIC, ConfigError, "two tools named 'look'"),
        ({"environment": "{here}/partners.py:Game", "environment_options": {"x": 1}}, PYTHONIC, ConfigError, "options"),
    ],
)
def test_what_cannot_be_used_is_refused(opened, conversation, template, kind, why) -> None:
    with pytest.raises(kind, match=why):
        opened(conversation, template)


# Thinking is left out of what is not the last turn.
FORGETS = PYTHONIC.replace(
    "{{ m.content }}",
    "{%- set content = m.content -%}{%- if not loop.last and '</think>' in content -%}"
    "{%- set content = content.split('</think>')[-1] -%}{%- endif -%}{{ content }}",
    1,
)
# The same, as templates say it that are known to do so.
KNOWN = FORGETS.replace("not loop.last and ", "")


@pytest.mark.slow_cases("template2-set conversation.trajectory: fork, which gives each history its own row")
@pytest.mark.parametrize(
    ("template", "remedy"),
    [
        (KNOWN, "set model.chat_template: keep_thinking, the same template"),
        (FORGETS, "set conversation.trajectory: fork, which gives each history its own row"),
        (REWRITES, "set conversation.trajectory: fork, which gives each history its own row"),
    ],
)
def test_what_can_be_done_about_a_template_that_forgets(opened: Callable[..., Any], template: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match="differently from what the policy was given and wrote") as caught:
        opened({"environment": "{here}/partners.py:Game"}, template)
    assert str(caught.value.remedy).startswith(remedy)


@pytest.mark.parametrize("template", [KNOWN, FORGETS, REWRITES])
def test_a_template_that_forgets_can_be_used_with_forks(opened: Callable[..., Any], template: str) -> None:
    game = {"environment": "{here}/partners.py:Game", "trajectory": "fork"}
    conversations, said = opened(game, template)
    assert partner(conversations).rewriting == {"user"}
    assert "after messages of the role user the chat template rewrites earlier turns" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conversation", "template"),
    [
        ({"environment": "{here}/partners.py:Game"}, keep_thinking(KNOWN)),
        ({"tools": "calculator", "trajectory": "fork"}, PYTHONIC),
    ],
)
def test_forks_are_not_made_without_need(opened: Callable[..., Any], conversation: Any, template: str) -> None:
    """By a template whose thinking is kept, and by one that rewrites nothing."""
    conversations, said = opened(conversation, template)
    assert partner(conversations).rewriting == frozenset()
    assert "anew" not in said


def prompts(*found: Prompt) -> Any:
    return SimpleNamespace(prompts=found)


def held(domain: str) -> Conversations:
    return Conversations({domain: Talk(None, 3)})  # type: ignore[arg-type]


def test_prompts_of_a_domain_with_conversations_hold_them() -> None:
    conversations = held("game")
    first, second = Prompt("a:1", text="x", domain="game"), Prompt("b:1", messages=(Message("user", "y"),))
    conversations.add("game", prompts(first), ChatFormat("always"))
    conversations.add("plain", prompts(second), ChatFormat("auto"))
    conversations.add("game", prompts(first), ChatFormat("always"))  # the same row, to be evaluated
    assert {name: prompt for name, (_, prompt) in conversations.talks.items()} == {"a:1": first}


def test_plain_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="prompt a:1 is plain text, but a conversation needs a chat template"):
        held("game").add("game", prompts(Prompt("a:1", text="x")), ChatFormat("auto"))


@pytest.mark.parametrize("order", [("game", "game"), ("game", "plain"), ("plain", "game")])
def test_two_prompts_of_one_id_are_refused_if_one_holds_a_conversation(order: tuple[str, str]) -> None:
    """An engine is told ids alone."""
    conversations = held("game")
    conversations.add(order[0], prompts(Prompt("a:1", text="x", domain=order[0])), ChatFormat("always"))
    with pytest.raises(ConfigError, match="two prompts have the id 'a:1'"):
        conversations.add(order[1], prompts(Prompt("a:1", text="y", domain=order[1])), ChatFormat("always"))


def test_two_prompts_of_one_id_without_conversations_are_fine() -> None:
    conversations = held("game")
    for domain in ("plain", "other"):
        conversations.add(domain, prompts(Prompt("a:1", text="x", domain=domain)), ChatFormat("always"))
