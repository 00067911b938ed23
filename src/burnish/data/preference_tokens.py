"""Comparisons to token ids: the prompt as the policy receives it, each response as the policy would sample it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from burnish.data.assistant_turns import encode_with_turns
from burnish.data.chat import Encoder, Written, asked_prompt, cut_front, plain_messages, plain_text
from burnish.data.preference_rows import BadRow, PreferenceRow, Text, Tokens, as_turns, first_question
from burnish.data.template import ChatFormat, Template, notes_on
from burnish.types import Message


@dataclass(frozen=True, slots=True)
class PreferenceExample:
    """A comparison in token ids. `conversation` is the same for rows that begin with the same question. whole_prompt:
    the prompt before it was cut. good: the rating of a single response; None of comparisons. where: file and line."""

    id: str
    prompt_tokens: tuple[int, ...]
    responses_tokens: tuple[tuple[int, ...], ...]
    best: int
    margin: float | None = None
    domain: str = "default"
    tie: bool = False
    conversation: str = ""
    whole_prompt: tuple[int, ...] | None = None
    weight: float = 1.0
    good: bool | None = None
    where: str = field(default="a comparison", compare=False)

    def longest(self) -> int:
        """Tokens of the prompt and the longest response."""
        return len(self.prompt_tokens) + max(len(tokens) for tokens in self.responses_tokens)


def encode_preference(
    row: PreferenceRow, encoder: Encoder, chat: ChatFormat, notes: Counter[str], *, append_eos: bool
) -> PreferenceExample:
    """Encode a row as token ids. `notes` counts rows by remarks for the user on how the chat template writes them.

    Text is encoded plainly, with an EOS after each response (`append_eos`). Conversations go through the chat template,
    each response up to the token that ends its turn; with `chat: always`, so do transcripts and plain text. Token ids
    are unchanged. Raises BadRow if different responses become the same tokens.
    """
    if row.is_tokens:
        prompt, responses = cast("tuple[Tokens, tuple[Tokens, ...]]", (row.prompt, row.responses))
        conversation = " ".join(map(str, prompt))
    else:
        prompt, responses = _encode_texts(row, encoder, chat, notes, append_eos)
        conversation = first_question(row.prompt)  # type: ignore[arg-type]
    if len(set(responses)) < len(responses) and responses.count(responses[row.best]) > 1 and not row.tie:
        raise BadRow(row.where, "different responses become the same tokens", "with identical tokens")
    return PreferenceExample(
        row.id,
        prompt,
        responses,
        row.best,
        row.margin,
        row.domain,
        tie=row.tie,
        conversation=conversation,
        weight=row.weight,
        good=row.good,
        where=row.where,
    )


def fitted(example: PreferenceExample, limit: int, *, bos_token_id: int | None) -> PreferenceExample:
    """Cut the example to `limit` tokens: first the beginning of the prompt (except a leading BOS), then the end of the
    responses. All responses keep the same prompt."""
    longest = max(len(tokens) for tokens in example.responses_tokens)
    room = max(limit - longest, 1)
    prompt = example.prompt_tokens
    prompt = cut_front(prompt, room, bos_token_id) if len(prompt) > room else prompt
    left = limit - len(prompt)
    responses = tuple(tokens[:left] for tokens in example.responses_tokens)
    return replace(example, prompt_tokens=prompt, responses_tokens=responses, whole_prompt=example.prompt_tokens)


def goes_through_template(row: PreferenceRow, chat: ChatFormat) -> bool:
    """True if the row goes through the chat template."""
    conversational = any(not isinstance(text, str) for text in (row.prompt, *row.responses))
    return not row.is_tokens and (chat.chat == "always" or (chat.chat == "auto" and conversational))


def _encode_texts(
    row: PreferenceRow, encoder: Encoder, chat: ChatFormat, changed: Counter[str], append_eos: bool
) -> tuple[Tokens, tuple[Tokens, ...]]:
    prompt, responses = cast("tuple[Text, tuple[Text, ...]]", (row.prompt, row.responses))
    if goes_through_template(row, chat):
        template = Template(encoder.tokenizer, chat.options, row.tools)
        return _by_template(row.where, prompt, responses, template, changed)
    asked = plain_text(asked_prompt(row.id, prompt, row.tools))
    before = encoder.prompt(row.id, (asked, False))
    texts = [one if isinstance(one, str) else plain_messages(one, where=row.where) for one in responses]
    return before, tuple(_encode_plain(asked, before, text, encoder, append_eos) for text in texts)


def plain_texts(row: PreferenceRow, chat: ChatFormat) -> Iterator[Written]:
    """Yield the texts that encoding a row of plain texts takes: its prompt, alone and with each response."""
    prompt = row.prompt
    if isinstance(prompt, str) and not goes_through_template(row, chat):
        yield prompt, False
        yield from ((prompt + response, False) for response in row.responses if isinstance(response, str))


def _encode_plain(prompt: str, before: Tokens, response: str, encoder: Encoder, append_eos: bool) -> Tokens:
    """The response's tokens, encoded with the prompt if that leaves the prompt's tokens unchanged, else alone."""
    tokens = encoder.continuation(before, prompt, response)
    end = encoder.tokenizer.eos_token_id
    if append_eos and end is not None and tokens[-1:] != (end,):
        return (*tokens, end)
    return tokens


def _by_template(
    where: str, prompt: Text, responses: tuple[Text, ...], template: Template, changed: Counter[str]
) -> tuple[Tokens, tuple[Tokens, ...]]:
    turns = as_turns(prompt)
    before: Tokens | None = None
    found: list[Tokens] = []
    notes: set[str] = set()
    for response in responses:
        answer = (Message("assistant", response),) if isinstance(response, str) else response
        stripped = tuple(replace(message, content=message.content.strip()) for message in answer)
        whole = (*turns, *stripped)
        tokens, mask, noted = encode_with_turns(whole, template, where=where, first_trained=len(turns))
        notes.update(noted, notes_on(whole, template))
        first, last = mask.index(True), len(mask) - mask[::-1].index(True)
        # All responses share the first one's prompt. If a token spans the boundary, its text belongs to the response.
        before = tokens[:first] if before is None else before
        found.append(tokens[first:last])
    changed.update(sorted(notes))
    return before or (), tuple(found)
