"""Which tokens of a conversation the assistant wrote. These are trained on, with the token that ends each turn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.data.chat import encode_bare
from burnish.data.rows import describe
from burnish.data.template import Template
from burnish.data.turn_ends import TurnEnds, closing_of, header_of, shared_length, special_tokens
from burnish.data.written_parts import Part, written_parts
from burnish.errors import DataError
from burnish.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters [begin, end) of the rendered conversation

_CALL_BEGINNING = 64
"""Number of leading characters by which a turn's first tool call is found in another rendering."""
_EMPTY_THINKING = re.compile(r"\s*(?:<think>\s*</think>)?\s*")
_NOT_IN_HISTORY = "prompts with reasoning of earlier turns, which the chat template leaves out"
_BARE_HEADER = (
    "conversations in which the template heads an answer after a tool, as its generation prompt does not; the header "
    "is not trained on"
)


@dataclass(frozen=True, slots=True)
class EncodedTurns:
    """A conversation in tokens. mask: which are trained on. notes: what the user should know about it."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    notes: tuple[str, ...] = ()


def encode_with_turns(
    messages: Sequence[Message], template: Template, *, where: str, first_trained: int = 0
) -> EncodedTurns:
    """The conversation, with a mask that is True on the assistant's turns from turn `first_trained` on.

    A turn includes the token that ends it, but not the white space that the template writes after that. Tool calls and
    reasoning that the template writes into a turn are part of it.

    A template with `{% generation %}` marks says itself what the assistant wrote. For any other template, the
    conversation is rendered up to each turn. Raises DataError if such a rendering is not a prefix of the whole, and if
    a part of a trained turn is not among what is trained on.
    """
    turns = [i for i, message in enumerate(messages) if message.role == "assistant" and i >= first_trained]
    if not turns:
        raise DataError(
            f"{where}: the conversation has no assistant turn to train on",
            remedy="remove the row, or add the answer (columns: {completion: ...})",
        )
    whole = template.render(messages, where=where, add_generation_prompt=False)
    parts = written_parts(messages, whole, template, where)
    notes = _check_written(parts, messages, turns, where)
    if template.has_marks:
        tokens, mask, spans = _by_marks(messages, template, whole, where, first_trained)
    else:
        tokens, mask, spans, of_headers = _by_prefixes(messages, turns, parts, template, whole, where)
        notes += of_headers
    if not any(mask):
        raise DataError(
            f"{where}: no token of the conversation is the assistant's", remedy="remove the row, or fix its answers"
        )
    _check_trained(parts, turns, spans, where)
    tokens, mask, of_ends = TurnEnds(template, where).trained(messages, tokens, mask)
    return EncodedTurns(tuple(tokens), tuple(mask), (*notes, *of_ends))


def _check_written(parts: Sequence[Part], messages: Sequence[Message], turns: Sequence[int], where: str) -> list[str]:
    """Raises DataError for a part that the template leaves out. Notes where it leaves the thinking of a prompt's turns
    out, as it does when the model is used."""
    notes = []
    for part in (part for part in parts if part.at is None):
        if part.name == "reasoning_content" and part.turn not in turns:
            notes = [_NOT_IN_HISTORY]
        elif messages[part.turn].role == "assistant":
            raise DataError(
                f"{where}: message {part.turn + 1} (assistant): the chat template leaves out {describe(part.text)} of "
                f"its {part.name}",
                remedy="set model.chat_template to one that writes it (for thinking, keep_thinking may do), or remove "
                "it from the data",
            )
    return notes


def _check_trained(parts: Sequence[Part], turns: Sequence[int], spans: Sequence[Span], where: str) -> None:
    """Raises DataError for a part of a trained turn that stands outside of `spans`, which are trained on, or behind
    the beginning of another message."""
    first_of_later = _first_of_later(parts)
    for part in parts:
        if part.at is None or part.turn not in turns:
            continue
        if not any(begin <= part.at < end for begin, end in spans):
            what = "not where the assistant's turns are, so it would not be trained on"
        elif part.at > first_of_later[part.turn]:
            what = "behind a later message"
        else:
            continue
        raise DataError(
            f"{where}: message {part.turn + 1} (assistant): the chat template writes {describe(part.text)} of its "
            f"{part.name} {what}",
            remedy="set model.chat_template to one that writes each turn in its place, or change the row",
        )


def _first_of_later(parts: Sequence[Part]) -> dict[int, float]:
    """By message: the first character that a later message has written."""
    found: dict[int, float] = {}
    first = math.inf
    for part in reversed(parts):
        found.setdefault(part.turn, first)
        first = first if part.at is None else min(first, part.at)
    return found


def _by_marks(
    messages: Sequence[Message], template: Template, whole: str, where: str, first_trained: int
) -> tuple[list[int], list[bool], list[Span]]:
    tokens, mask = template.tokens_and_marks(messages, where=where)
    if first_trained:  # the marks show which tokens the assistant wrote, but not in which turn
        before = template.write(messages[:first_trained], where=where, add_generation_prompt=False)
        known = min(len(encode_bare(before, template.tokenizer)), len(mask))
        mask[:known] = [False] * known
    offsets = template.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return tokens, mask, _joined(span for span, on in zip(offsets, mask, strict=True) if on)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, with those that touch as one."""
    found: list[Span] = []
    for begin, end in spans:
        touches = found and begin <= found[-1][1]
        found[-1:] = [(found[-1][0], end)] if touches else [*found[-1:], (begin, end)]
    return found


def _by_prefixes(
    messages: Sequence[Message], turns: Sequence[int], parts: Sequence[Part], template: Template, whole: str, where: str
) -> tuple[list[int], list[bool], list[Span], list[str]]:
    tokenizer = template.tokenizer
    spans = [_turn_span(messages, turn, parts, whole, template, where) for turn in turns]
    after_tools = [i for i, turn in enumerate(turns) if turn and messages[turn - 1].role == "tool"]
    header = header_of(template, where) if after_tools else ""
    bare = [i for i in after_tools if header and whole.startswith(header, spans[i][0])]
    for i in bare:
        spans[i] = (spans[i][0] + len(header), spans[i][1])
    if tokenizer.is_fast:
        tokens, owner = _tokens_of_spans(whole, spans, tokenizer)
    else:
        tokens, owner = _tokens_by_pieces(whole, spans, tokenizer)
    return tokens, _without_trailing_space(tokens, owner, tokenizer), spans, [_BARE_HEADER] if bare else []


def _turn_span(
    messages: Sequence[Message], turn: int, parts: Sequence[Part], whole: str, template: Template, where: str
) -> Span:
    """The characters of one assistant turn, from the end of the generation prompt to the end of the turn."""
    begin = _begin_of_turn(messages[:turn], whole, template, where)
    after = template.write(messages[: turn + 1], where=where, add_generation_prompt=False)
    if begin is not None:
        if whole.startswith(after) and len(after) > begin:
            return begin, len(after)
        end = _end_of_history(messages[turn], after, whole, begin)
        if end is not None:
            return begin, end
    framed = _span_in_frame(turn, parts, whole, template, where)
    if framed is not None:
        return framed
    raise DataError(
        f"{where}: the chat template writes the assistant's message {turn + 1} differently when later turns follow, or "
        "after its own generation prompt, so its tokens cannot be identified",
        remedy="set model.chat_template to one with {% generation %} marks around the assistant's turns",
    )


def _span_in_frame(turn: int, parts: Sequence[Part], whole: str, template: Template, where: str) -> Span | None:
    """The characters between the header of the assistant's turns and what ends them, around the parts of this turn. For
    a template that writes the history before the turn differently once later turns follow."""
    placed = [(part.at, part.turn) for part in parts if part.at is not None]
    own = [at for at, of in placed if of == turn]
    header, closing = header_of(template, where).partition("<think>")[0], closing_of(template, where)
    if not (own and header and closing):
        return None
    begin = whole.rfind(header, max((at for at, of in placed if of < turn), default=0), min(own))
    end = whole.find(closing, max(own), min((at for at, of in placed if of > turn), default=len(whole)))
    return (begin + len(header), end + len(closing)) if begin >= 0 and end >= 0 else None


def _begin_of_turn(before: Sequence[Message], whole: str, template: Template, where: str) -> int | None:
    """Where a turn begins: right after the generation prompt.

    Some generation prompts open a thinking block, or open and close an empty one, which the turn fills or leaves out.
    Then the turn begins where it differs from that prompt, or with the tag in which it does. None if the two do not
    even share the header of the turn.
    """
    prompt = template.write(before, where=where, add_generation_prompt=True)
    if whole.startswith(prompt):
        return len(prompt)
    shared = shared_length(prompt, whole)
    bare = template.write(before, where=where, add_generation_prompt=False) if before else ""
    return shared if whole.startswith(bare) and shared > len(bare) else None


def _end_of_history(message: Message, after: str, whole: str, begin: int) -> int | None:
    """End of a turn that the template writes differently once it is history (without its thinking, for example).

    The answer of the turn, with all that follows it in the rendering `after`, must be found unchanged in the whole,
    with nothing in front of it but white space and an empty thinking block.
    """
    content = message.content.rpartition("</think>")[2].strip()
    start = begin + len(_EMPTY_THINKING.match(whole, begin)[0])  # type: ignore[index]  # it matches nothing as well
    if content:
        at = after.rfind(content)
    else:  # only tool calls: find them by the text at `start`
        at = after.rfind(whole[start : start + _CALL_BEGINNING]) if message.tool_calls else -1
    if at < 0:
        return None
    wanted = after[at:]
    return start + len(wanted) if whole.startswith(wanted, start) else None


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
    special = special_tokens(tokenizer)
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
