"""A chat template is a program that comes with a model. Before it is used, it renders a few short conversations in a
separate process. If it never ends or uses too much memory, it is refused there and cannot hang or kill a run.

Some templates leave the thinking out of earlier turns, so a conversation does not only grow: the text of a turn of the
policy changes once later turns follow. Such templates can be changed to keep the thinking. Qwen3 and related models
drop it with a few expressions, which are replaced here. The rest of a template stays as it is, so its prompts are the
ones that the model knows. If the generation prompt itself opens or fills the thinking, the history lacks that part, and
there is no expression whose replacement would write it.
"""

from __future__ import annotations

import json
import re
from functools import cache, partial
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from burnish.errors import ModelError
from burnish.outside.user_processes import call_in_own_process

_SECONDS = 2
_MAX_BYTES = 1 << 30
_MAX_CHARACTERS = 200_000
_TURNS = ("system", "user", "assistant", "user", "assistant")
_REMEDY = "fix its loops and lengths, or set model.chat_template to another one"
_SINCE_QUESTION = r"\bloop\.index0\s*>=?\s*(?:ns\.)?last_(?:user|query)_index\b"
_THINKING = re.compile(r"\bset\s+(\w+)\s*=[^%]*<think>")
"""The variable to which a template assigns the thinking that it finds in the content of a turn."""
_EDITS = (
    # A turn is taken apart into thinking and answer. Left whole, it is written as the policy wrote it.
    (re.compile(r"""(\bif\s+)((["'])</think>\3\s+in\s)"""), r"\1false and \2"),
    # Thinking is only written in turns after the last question.
    (re.compile(_SINCE_QUESTION), "true"),
    # An empty block for thinking is written only in the last turn.
    (re.compile(r"\bloop\.last\s+or\s+\(\s*not\s+loop\.last\s+and\s+(\w+)\s*\)"), r"\1"),
)


def check_template(template: str, tokens: tuple[tuple[str, str], ...], name: str, *, must_parse: bool) -> None:
    """Raise ModelError, beginning with `name`, for a template that does not end, uses too much memory or writes too
    much text. With `must_parse` also if it is not a Jinja template. `tokens`: special tokens that it may use.

    A template may refuse some kinds of conversation: only the ones in the data have to suit it.
    """
    found = _tried(template, tokens, name)
    if found["longest"] > _MAX_CHARACTERS:
        raise ModelError(f"{name} writes {found['longest']:,} characters for five short turns", remedy=_REMEDY)
    if must_parse and found["unreadable"]:
        raise ModelError(f"{name} is not a Jinja template: {found['unreadable']}", remedy="fix that line")


@cache
def _tried(template: str, tokens: tuple[tuple[str, str], ...], name: str) -> Any:
    """Run `try_template` in its own process. Raises ModelError for a template that does not end, or uses too much
    memory."""
    try:
        request = {"template": template, "tokens": dict(tokens)}
        return call_in_own_process(
            f"{__name__}:try_template", request, seconds=_SECONDS, max_bytes=_MAX_BYTES, what=name
        )
    except TimeoutError as error:
        raise ModelError(
            f"{name} does not end: it takes more than {_SECONDS} s for five short turns", remedy=_REMEDY
        ) from error
    except MemoryError as error:
        raise ModelError(
            f"{name} uses more than {_MAX_BYTES >> 30} GiB of memory for five short turns", remedy=_REMEDY
        ) from error
    except RuntimeError as error:
        raise ModelError(f"{name} cannot be tried: {error}", remedy=_REMEDY) from error


def try_template(template: str, tokens: dict[str, str]) -> dict[str, Any]:
    """Render every prefix of the conversation, with and without the system message. Returns the length of the longest
    text (in characters), the number of thoughts written for a turn with one, and why the template is not valid Jinja
    ("" if it is)."""
    try:
        compiled = _environment().from_string(template)
    except jinja2.TemplateSyntaxError as error:
        return {"longest": 0, "thoughts": 0, "unreadable": f"line {error.lineno}: {error.message}"}
    greetings = [{"role": role, "content": "Hello."} for role in _TURNS]
    some = [greetings[begin:end] for begin in (0, 1) for end in range(begin + 1, len(_TURNS) + 1)]
    longest = max(len(_text(compiled, turns, prompt, tokens)) for turns in some for prompt in (False, True))
    contents = ("Hello.", "<think>Hm.</think>Hello.", "Hello.")
    turns = [{"role": role, "content": content} for role, content in zip(_TURNS[1:4], contents, strict=True)]
    return {"longest": longest, "thoughts": _text(compiled, turns, False, tokens).count("<think>"), "unreadable": ""}


def _text(template: jinja2.Template, turns: list[dict[str, str]], prompt: bool, tokens: dict[str, str]) -> str:
    """Render the turns; "" if the template refuses the conversation."""
    try:
        return template.render(messages=turns, add_generation_prompt=prompt, tools=None, documents=None, **tokens)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  boundary: it may refuse such conversations, which may not occur in the data
        return ""


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja, set up as transformers does for chat templates (`transformers.utils.chat_template_utils`), but without
    importing transformers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: form
    return environment


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


class _Generation(Extension):
    """The tag `{% generation %}`, which marks the assistant's text. It renders its content unchanged."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def keep_thinking(template: str) -> str:
    """The template without the expressions that drop thinking; unchanged if none of the known ones is in it.

    A template that writes a block for thinking into every turn (Qwen3.5, GLM) goes on splitting turns, and also writes
    the thinking of earlier turns that have some.
    """
    changed = template
    for expression, replacement in _EDITS:
        changed = expression.sub(replacement, changed)
    thinking = _THINKING.search(template)
    if changed == template or thinking is None or _tried(changed, (), "the chat template")["thoughts"] < 2:
        return changed
    or_any = re.compile(rf"({_SINCE_QUESTION})(?!\s+or\s+{thinking[1]}\b)")
    return or_any.sub(rf"(\1 or {thinking[1]})", template)
