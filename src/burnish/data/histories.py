"""Encoding of whole conversations. Text from tools and environments never becomes control tokens, whatever it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from burnish.data.chat import encode_bare, turns_of
from burnish.data.rows import describe
from burnish.data.template import Template
from burnish.errors import DataError
from burnish.types import Json, Message, Prompt, Tokenizer

_BEGIN, _END = "burnish7begin", "burnish7end"


class PlainEncoder:
    """Encodes text without control tokens: `<|im_end|>` becomes the tokens of its characters.

    Tokens added to a tokenizer's vocabulary have a meaning for the model that text from outside must not be able to
    express, even if they are not special (`<tool_call>`). A fast tokenizer is used without them. Text that still
    becomes a control token (as with a tokenizer of single characters, one of which ends a turn) is left out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = frozenset([*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()])
        self._control -= {tokenizer.unk_token_id}
        self._backend = _without_added_tokens(tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of the text, none of them a control token. Raises DataError for a character that the tokenizer does
        not know, if it has no unknown token."""
        if not text:
            return ()
        tokens: Sequence[int] = (
            encode_bare(text, self._tokenizer) if self._backend is None else self._encode_backend(text)
        )
        return tuple(token for token in tokens if token not in self._control)

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> tuple[int, ...]:
        """Tokens of a text in pieces, as `pieces` gives them: a piece between marks is from outside."""
        encoded = (self.encode(text) if is_plain else encode_bare(text, self._tokenizer) for text, is_plain in pieces)
        return tuple(token for tokens in encoded for token in tokens)

    def control_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Keep only the control tokens."""
        return [token for token in tokens if token in self._control]

    def _encode_backend(self, text: str) -> Sequence[int]:
        try:
            ids: Sequence[int] = self._backend.encode(text, add_special_tokens=False).ids
        # Boundary to the tokenizer's own code, which raises bare Exceptions for characters that it does not know.
        except Exception as error:
            raise DataError(
                f"the tokenizer cannot encode {describe(text)}: {error}",
                remedy="use a tokenizer that knows these characters, or that has an unknown token",
            ) from error
        return ids


def _without_added_tokens(tokenizer: Tokenizer) -> Any:
    """The tokenizer's own backend without its added tokens; None for a tokenizer in Python, which splits at them."""
    if not tokenizer.is_fast:
        return None
    import tokenizers

    written = json.loads(tokenizer.backend_tokenizer.to_str())
    written["added_tokens"] = []
    written["post_processor"] = None  # it may name tokens that are gone
    return tokenizers.Tokenizer.from_str(json.dumps(written))


def marks(messages: Sequence[Message]) -> tuple[str, str]:
    """Two words that occur in no content, to mark where contents begin and end."""
    begin, end = _BEGIN, _END
    while any(begin in message.content or end in message.content for message in messages):
        begin, end = begin + "7", end + "7"
    return begin, end


def pieces(text: str, begin: str, end: str) -> Iterator[tuple[str, bool]]:
    """Split a text at its marks; True for a part that stood between two of them."""
    while text:
        before, _, rest = text.partition(begin)
        content, _, text = rest.partition(end)
        yield before, False
        yield content, True


Opening = str | Sequence[Mapping[str, Json]]
Heard = Mapping[int, int]
"""Messages of tools and environments: number of the message, from 0 -> character at which their text begins in it."""
_WORD = "burnish word"


def opened(prompt: Prompt, opening: Opening) -> tuple[tuple[Message, ...], dict[int, int]]:
    """Add the opening of an environment to the conversation of a prompt: text behind the user's last message, or
    further messages. Also return where it begins."""
    messages = turns_of(prompt)
    if not isinstance(opening, str):
        added = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in opening)
        return (*messages, *added), {len(messages) + index: 0 for index in range(len(added))}
    *before, last = messages
    if last.role != "user":
        return (*messages, Message("user", opening)), {len(messages): 0}
    return (*before, replace(last, content=last.content + opening)), {len(before): len(last.content)}


@dataclass(frozen=True)
class HistoryEncoder:
    """Encodes conversations with the chat template, without control tokens in messages of tools and environments.

    options: arguments of the template. plain: encodes such messages; None makes one, with a copy of the tokenizer.
    """

    tokenizer: Tokenizer
    options: Mapping[str, Any] = field(default_factory=dict)
    plain: InitVar[PlainEncoder | None] = None
    _plain: PlainEncoder = field(init=False, repr=False)

    def __post_init__(self, plain: PlainEncoder | None) -> None:
        object.__setattr__(self, "_plain", plain or PlainEncoder(self.tokenizer))

    def encode(
        self, messages: Sequence[Message], heard: Heard, tools: Sequence[Mapping[str, Any]], *, where: str
    ) -> tuple[int, ...]:
        """Encode the messages and the beginning of the policy's turn, with no control token in `heard` text. Raises
        DataError, beginning with `where`, if the template or the tokenizer refuses them."""
        template = Template(self.tokenizer, self.options, tuple(tools))

        def write(some: Sequence[Message]) -> str:
            return template.render(some, where=where, add_generation_prompt=True)

        written = write(messages)
        tokens = encode_bare(written, self.tokenizer)
        if not heard:
            return tokens
        harmless = encode_bare(write(_changed(messages, heard, lambda text: _WORD)), self.tokenizer)
        unknown = self.tokenizer.unk_token  # it also stands for other text, so counting it proves nothing
        is_named = unknown is not None and any(unknown in messages[at].content[start:] for at, start in heard.items())
        if not is_named and self._plain.control_tokens(tokens) == self._plain.control_tokens(harmless):
            return tokens
        begin, end = marks(messages)

        def between(text: str) -> str:
            """Put marks around the text, inside its outer white space, which many templates remove."""
            core = text.strip()
            return text.replace(core, begin + core + end, 1) if core else text

        marked = write(_changed(messages, heard, between))
        if marked.replace(begin, "").replace(end, "") == written:
            return self._plain.encode_pieces(pieces(marked, begin, end))
        raise DataError(
            f"{where}: the chat template changes what is said in it, and special tokens stand in that",
            remedy="set model.chat_template to one that writes the contents of messages as they are",
        )


def _changed(messages: Sequence[Message], heard: Heard, change: Callable[[str], str]) -> tuple[Message, ...]:
    """Apply `change` to the text of tools and environments."""
    found = list(messages)
    for number, start in heard.items():
        content = found[number].content
        found[number] = replace(found[number], content=content[:start] + change(content[start:]))
    return tuple(found)
