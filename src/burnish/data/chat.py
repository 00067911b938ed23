"""Prompts to token ids: plain text through the tokenizer alone, conversations through the chat template.

Special tokens are added exactly once. For plain text, the tokenizer adds its own (BOS, if the model has one), but never
an EOS at the end of a prompt. A chat template writes its own, so the tokenizer adds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from burnish.data.rows import check_length, describe
from burnish.data.template import ChatFormat, Template
from burnish.errors import DataError
from burnish.outside.reading import reading
from burnish.types import Message, Prompt, Tokenizer

_Row = TypeVar("_Row")
Tokens = tuple[int, ...]
Written = tuple[str, bool]
"""A text, and whether the chat template wrote it, with its special tokens."""

ENCODED_AT_ONCE, _CHARACTERS_AT_ONCE = 1_000, 1_000_000
"""Rows and characters after which texts are encoded: of long documents, few are held at a time."""
AUTO = ChatFormat()
PLAIN = ChatFormat("never")


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, chat: ChatFormat = AUTO) -> tuple[int, ...]:
    """Token ids that the policy continues.

    `auto` uses the chat template for conversations and leaves text plain. `always` makes text a user turn. `never`
    writes a conversation as the contents of its turns, separated by blank lines. What the template writes ends with the
    generation prompt, the beginning of the assistant's turn. Raises DataError for a tokenizer without a template, a
    template that refuses the conversation, or a prompt of zero tokens.
    """
    return Encoder(tokenizer).prompt(prompt.id, written(prompt, tokenizer, chat))


def written(prompt: Prompt, tokenizer: Tokenizer, chat: ChatFormat) -> Written:
    """The text of the prompt, and whether the chat template wrote it."""
    if not uses_template(prompt, chat):
        return plain_text(prompt), False
    template = Template(tokenizer, chat.options, prompt.tools)
    return template.render(turns_of(prompt), where=f"prompt {prompt.id}", add_generation_prompt=True), True


def uses_template(prompt: Prompt, chat: ChatFormat) -> bool:
    """Return whether the prompt goes through the chat template."""
    return chat.chat == "always" or (chat.chat == "auto" and prompt.messages is not None)


def encode_response(prompt: Prompt, text: str, tokenizer: Tokenizer, chat: ChatFormat = AUTO) -> Tokens:
    """Token ids that the policy would sample to answer the prompt with this text (no EOS is added)."""
    if uses_template(prompt, chat):
        return encode_bare(text, tokenizer)
    return Encoder(tokenizer).continuation(encode_prompt(prompt, tokenizer, PLAIN), plain_text(prompt), text)


class Encoder:
    """Encodes texts, and together the ones that are announced, which takes a fraction of the time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[Written, Tokens] = {}

    def announce(self, texts: Iterable[Written]) -> None:
        """Encode these texts, and forget the ones before. If one cannot be encoded, none is: `tokens` says which."""
        self._known = {}
        with suppress(DataError), reading("encoding texts together"):
            for bare, some in groupby(sorted(set(texts), key=itemgetter(1)), key=itemgetter(1)):
                together = list(some)
                found = _encode_together([text for text, _ in together], self.tokenizer, bare=bare)
                self._known.update(zip(together, found, strict=True))

    def announced(self, rows: Iterable[_Row], texts_of: Callable[[_Row], Iterable[Written]]) -> Iterator[_Row]:
        """Yield the rows, with the texts of many announced at a time, of fewer if they are long."""
        some: list[_Row] = []
        texts: list[Written] = []
        characters = 0
        for row in rows:
            own = list(texts_of(row))
            some.append(row)
            texts += own
            characters += sum(len(text) for text, _ in own)
            if len(some) == ENCODED_AT_ONCE or characters > _CHARACTERS_AT_ONCE:
                self.announce(texts)
                yield from some
                some, texts, characters = [], [], 0
        self.announce(texts)
        yield from some

    def tokens(self, text: str, *, by_template: bool = False) -> Tokens:
        """Tokens of a text, without special tokens if the chat template has written them."""
        known = self._known.get((text, by_template))
        if known is not None:
            return known
        return encode_bare(text, self.tokenizer) if by_template else encode_text(text, self.tokenizer)

    def prompt(self, prompt_id: str, said: Written) -> Tokens:
        """Tokens of a prompt. DataError if there are none."""
        tokens = self.tokens(said[0], by_template=said[1])
        if not tokens:
            raise DataError(f"prompt {prompt_id}: the tokenizer turns it into zero tokens", remedy="remove the row")
        return tokens

    def continuation(self, before: Tokens, prompt: str, text: str) -> Tokens:
        """Tokens of a text that continues a plain prompt with the tokens `before`.

        Prompt and text are encoded together, because some tokenizers put a space before a text on its own. If a token
        then spans the boundary, the text is encoded alone: the prompt must keep the tokens that the policy will be
        given.
        """
        joined = self.tokens(prompt + text)
        return joined[len(before) :] if joined[: len(before)] == before else encode_bare(text, self.tokenizer)


def plain_text(prompt: Prompt) -> str:
    """The prompt without a chat template. DataError if it has tools or tool calls, which only a template can write."""
    if prompt.tools:
        raise DataError(
            f"prompt {prompt.id} offers tools, its row's or the conversation's, which only a chat template can write",
            remedy="set data.chat: always (conversations: auto), or rename the column `tools` if it is something else",
        )
    if prompt.text is not None:
        return prompt.text
    return plain_messages(prompt.messages or (), where=f"prompt {prompt.id}")


def plain_messages(messages: Sequence[Message], *, where: str) -> str:
    """The contents of the turns, separated by blank lines. DataError if a turn has tool calls or reasoning."""
    for message in messages:
        if message.tool_calls or message.reasoning_content:
            what = "tool_calls" if message.tool_calls else "reasoning_content"
            raise DataError(
                f"{where}: a turn of the role {message.role} has {what}, which only a chat template can write",
                remedy="set data.chat: auto, or write it into the content",
            )
    return "\n\n".join(message.content for message in messages)


def asked_prompt(row_id: str, asked: str | tuple[Message, ...], tools: Sequence[Mapping[str, Any]] = ()) -> Prompt:
    """The prompt of a row, whose text or conversation is `asked`."""
    if isinstance(asked, str):
        return Prompt(row_id, text=asked, tools=tuple(tools))
    return Prompt(row_id, messages=asked, tools=tuple(tools))


def turns_of(prompt: Prompt) -> tuple[Message, ...]:
    """The prompt as a conversation. Plain text becomes one user turn."""
    return prompt.messages if prompt.messages is not None else (Message("user", prompt.text or ""),)


def cut_front(tokens: Tokens, limit: int, bos_token_id: int | None) -> Tokens:
    """The last `limit` tokens, behind a leading BOS: the model was trained with one at the beginning of every text."""
    if tokens[0] == bos_token_id and limit > 1:
        return (tokens[0], *tokens[len(tokens) - limit + 1 :])
    return tokens[len(tokens) - limit :]


def encode_text(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens of plain text with the special tokens that the tokenizer puts before it, but none after it."""
    tokens = _ids(text, tokenizer, add_special_tokens=True)
    if not tokens or tokens[-1] not in tokenizer.all_special_ids:
        return tuple(tokens)
    bare = list(encode_bare(text, tokenizer))
    added = len(tokens) - len(bare)
    for start in range(added + 1):
        if tokens[start : start + len(bare)] == bare:
            return tuple(tokens[: start + len(bare)])
    # The text has other tokens next to special ones than alone. Keep the tokenizer's version, without its EOS.
    while added > 0 and tokens and tokens[-1] == tokenizer.eos_token_id:
        tokens.pop()
    return tuple(tokens)


def _encode_together(texts: list[str], tokenizer: Tokenizer, *, bare: bool) -> list[Tokens]:
    """Tokens of each text, as `encode_bare` or `encode_text` gives them."""
    for text in texts:
        check_length(text)
    found = tokenizer(texts, add_special_tokens=not bare, verbose=False)["input_ids"]
    special = set() if bare else set(tokenizer.all_special_ids)
    pairs = zip(texts, found, strict=True)
    return [encode_text(text, tokenizer) if special.intersection(ids[-1:]) else tuple(ids) for text, ids in pairs]


def encode_bare(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens of the text alone, with no special tokens added."""
    return tuple(_ids(text, tokenizer, add_special_tokens=False))


def _ids(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    check_length(text)
    try:
        # verbose=False: no warning about long texts, because callers compare lengths with the run's own limits.
        return list(tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
    # Boundary to the tokenizer's own code, which raises bare Exceptions for characters that it does not know.
    except Exception as error:
        raise DataError(
            f"the tokenizer cannot encode {describe(text)}: {error}",
            remedy="use a tokenizer that knows these characters, or remove the row",
        ) from error


def text_of_tokens(tokenizer: Tokenizer) -> Callable[[int], str]:
    """Return a function from a token's id to the text it stands for within a sequence. A token that is only part of a
    character gives the tokenizer's replacement character.

    Many tokenizers (SentencePiece) drop the leading space of a token that is decoded alone, so each token is decoded
    twice in a row, and the second copy is returned.
    """

    @cache
    def text(token: int) -> str:
        alone, twice = str(tokenizer.decode([token])), str(tokenizer.decode([token, token]))
        return twice[len(alone) :] if twice.startswith(alone) else alone

    return text
