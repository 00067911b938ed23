"""Which tokens of a conversation the assistant wrote. These are trained on, with the token that ends each turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.data.chat import encode_bare
from burnish.data.template import Template
from burnish.errors import DataError
from burnish.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters [begin, end) of the rendered conversation

_CALL_BEGINNING = 64
"""Number of leading characters by which a turn's first tool call is found in another rendering."""


def encode_with_turns(
    messages: Sequence[Message], template: Template, *, where: str, first_trained: int = 0
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """(tokens, loss_mask). The mask is True on the assistant's turns, from turn `first_trained` on.

    A turn includes the token that ends it, but not the white space that the template writes after that. Tool calls and
    reasoning that the template writes into a turn are part of it.

    A template with `{% generation %}` marks says itself what the assistant wrote. For any other template, the
    conversation is rendered up to each turn. Raises DataError if such a rendering is not a prefix of the whole.
    """
    turns = [i for i, message in enumerate(messages) if message.role == "assistant" and i >= first_trained]
    if not turns:
        raise DataError(
            f"{where}: the conversation has no assistant turn to train on",
            remedy="remove the row, or add the answer (columns: {completion: ...})",
        )
    if template.has_marks:
        tokens, mask = _by_marks(messages, template, where, first_trained)
    else:
        tokens, mask = _by_prefixes(messages, turns, template, where)
    if not any(mask):
        raise DataError(
            f"{where}: no token of the conversation is the assistant's", remedy="remove the row, or fix its answers"
        )
    return tuple(tokens), tuple(mask)


def _by_marks(
    messages: Sequence[Message], template: Template, where: str, first_trained: int
) -> tuple[list[int], list[bool]]:
    tokens, mask = template.tokens_and_marks(messages, where=where)
    if first_trained:  # the marks show which tokens the assistant wrote, but not in which turn
        before = template.render(messages[:first_trained], where=where, add_generation_prompt=False)
        known = min(len(encode_bare(before, template.tokenizer)), len(mask))
        mask[:known] = [False] * known
    return tokens, mask


def _by_prefixes(
    messages: Sequence[Message], turns: Sequence[int], template: Template, where: str
) -> tuple[list[int], list[bool]]:
    tokenizer = template.tokenizer
    whole = template.render(messages, where=where, add_generation_prompt=False)
    spans = [_turn_span(messages, turn, whole, template, where) for turn in turns]
    if tokenizer.is_fast:
        tokens, owner = _tokens_of_spans(whole, spans, tokenizer)
    else:
        tokens, owner = _tokens_by_pieces(whole, spans, tokenizer)
    return tokens, _without_trailing_space(tokens, owner, tokenizer)


def _turn_span(messages: Sequence[Message], turn: int, whole: str, template: Template, where: str) -> Span:
    """The characters of one assistant turn, from the end of the generation prompt to the end of the turn."""
    begin = _begin_of_turn(messages[:turn], whole, template, where)
    after = template.render(messages[: turn + 1], where=where, add_generation_prompt=False)
    if begin is not None:
        if whole.startswith(after) and len(after) > begin:
            return begin, len(after)
        end = _end_of_history(messages[turn], after, whole, begin)
        if end is not None:
            return begin, end
    raise DataError(
        f"{where}: the chat template writes the assistant's message {turn + 1} differently when later turns follow, or "
        "after its own generation prompt, so its tokens cannot be identified",
        remedy="set model.chat_template to one with {% generation %} marks around the assistant's turns",
    )


def _begin_of_turn(before: Sequence[Message], whole: str, template: Template, where: str) -> int | None:
    """Where a turn begins: right after the generation prompt.

    Some generation prompts open and close an empty thinking block, which the turn fills. Then the turn begins where it
    differs from that prompt. None if the two do not even share the header of the turn.
    """
    prompt = template.render(before, where=where, add_generation_prompt=True)
    differing = (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b)
    shared = next(differing, min(len(prompt), len(whole)))
    if shared == len(prompt):
        return shared
    bare = template.render(before, where=where, add_generation_prompt=False) if before else ""
    return shared if whole.startswith(bare) and shared > len(bare) else None


def _end_of_history(message: Message, after: str, whole: str, begin: int) -> int | None:
    """End of a turn that the template writes differently once it is history (without its thinking, for example).

    The content of the turn, with all that follows it in the rendering `after`, must be found unchanged at `begin`.
    """
    content = message.content.strip()
    if content:
        at = after.rfind(content)
    else:  # only tool calls: find them by the text at `begin`
        at = after.rfind(whole[begin : begin + _CALL_BEGINNING]) if message.tool_calls else -1
    if at < 0:
        return None
    wanted = after[at:]
    has_calls = all(name in wanted for name in message.called())
    return begin + len(wanted) if has_calls and whole.startswith(wanted, begin) else None


def _tokens_of_spans(
    text: str, spans: Sequence[Span], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int | None]]:
    """Tokens of the text, and for each token the index of the span that it begins in."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    owner = [_span_of(begin, end, spans) for begin, end in encoding["offset_mapping"]]
    return list(encoding["input_ids"]), owner


def _span_of(begin: int, end: int, spans: Sequence[Span]) -> int | None:
    # A token of zero characters, which some tokenizers make, belongs to no span.
    return next((i for i, (first, last) in enumerate(spans) if first <= begin < last and end > begin), None)


def _tokens_by_pieces(
    text: str, spans: Sequence[Span], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int | None]]:
    """Like `_tokens_of_spans`, for a tokenizer that gives no offsets: each piece is encoded separately."""
    tokens: list[int] = []
    owner: list[int | None] = []
    at = 0
    for number, (begin, end) in enumerate([*spans, (len(text), len(text))]):
        for piece, mine in ((text[at:begin], None), (text[begin:end], number)):
            ids = encode_bare(piece, tokenizer) if piece else ()
            tokens += ids
            owner += [mine] * len(ids)
        at = end
    return tokens, owner


def _without_trailing_space(
    tokens: Sequence[int], owner: Sequence[int | None], tokenizer: PreTrainedTokenizerBase
) -> list[bool]:
    """Mask of the tokens in a span, without the white space after the special token that ends a turn.

    The policy stops at that token, so it never writes what the template puts after it.
    """
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    mask = [number is not None for number in owner]
    for last in [i for i, number in enumerate(owner) if number is not None and owner[i + 1 : i + 2] != [number]]:
        i = last
        while (
            i > 0 and owner[i] == owner[last] and tokens[i] not in special and not tokenizer.decode([tokens[i]]).strip()
        ):
            i -= 1
        if tokens[i] in special and owner[i] == owner[last]:
            mask[i + 1 : last + 1] = [False] * (last - i)
    return mask
