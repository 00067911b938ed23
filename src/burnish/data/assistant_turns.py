"""Loss masks of conversations: the assistant's tokens are trained on, with the token that ends each turn."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter

from burnish.data.chat import encode_bare
from burnish.data.rows import describe
from burnish.data.template import Template
from burnish.data.turn_frame import TurnFrame, shared_length
from burnish.data.written_parts import Part, written_parts
from burnish.errors import DataError
from burnish.types import Message, Tokenizer

Span = tuple[int, int]  # characters [begin, end) of the rendered conversation

_NOT_IN_HISTORY = "prompts with reasoning of earlier turns, which the chat template leaves out"
_HEADED = "conversations with a header after a tool that the generation prompt leaves out; it is not trained on"


def encode_with_turns(
    messages: Sequence[Message],
    template: Template,
    *,
    where: str,
    first_trained: int = 0,
    left_out: Collection[int] = (),
) -> tuple[tuple[int, ...], tuple[bool, ...], list[str]]:
    """Return tokens, loss mask and notes for the user. The mask is True on assistant turns from `first_trained` on,
    except for the messages `left_out`.

    A turn includes the token that ends it, but not the white space that the template writes after that. Tool calls and
    reasoning that the template writes into a turn are part of it.

    A template with `{% generation %}` marks delimits the assistant's text itself. For any other template, the
    conversation is rendered up to each turn. Raises DataError if such a rendering is not a prefix of the whole, or if
    the mask leaves out a part of a trained turn.
    """
    answers = [i for i, message in enumerate(messages) if message.role == "assistant" and i >= first_trained]
    turns = [i for i in answers if i not in left_out]
    if not turns:
        raise DataError(
            f"{where}: the conversation has no assistant turn to train on",
            remedy="remove the row, or add the answer (columns: {completion: ...})",
        )
    whole = template.render(messages, where=where, add_generation_prompt=False)
    parts = written_parts(messages, whole, template, where)
    notes = _check_written(parts, messages, turns, where)
    frame = TurnFrame(template, where)
    if template.has_marks:
        tokens, mask, spans = _by_marks(messages, template, whole, where, first_trained)
        if turns != answers:
            mask, spans = _of_turns(turns, parts, template, whole, mask, spans, where)
    else:
        tokens, mask, spans, of_headers = _by_prefixes(messages, turns, parts, frame, whole)
        notes += of_headers
    if not any(mask):
        raise DataError(
            f"{where}: no token of the conversation is the assistant's", remedy="remove the row, or fix its answers"
        )
    _check_trained(parts, turns, spans, where)
    tokens, mask, of_ends = frame.with_ends(messages, tokens, mask, trim=not template.has_marks)
    return tuple(tokens), tuple(mask), notes + of_ends


def _check_written(parts: Sequence[Part], messages: Sequence[Message], turns: Sequence[int], where: str) -> list[str]:
    """Raise DataError for a part that the template leaves out, except for the thinking of a prompt's turns: it is left
    out when the model is used as well, so the user is only told."""
    notes = []
    for part in (part for part in parts if part.at is None):
        message = messages[part.turn]
        is_thinking = part.name == "reasoning_content" or part.text in message.content.rpartition("</think>")[0]
        if part.turn in turns or not is_thinking:
            raise DataError(
                f"{where}: message {part.turn + 1} ({message.role}): the chat template leaves out "
                f"{describe(part.text)} of its {part.name}",
                remedy="set model.chat_template to one that writes it (for thinking: keep_thinking), or remove it",
            )
        notes = [_NOT_IN_HISTORY]
    return notes


def _check_trained(parts: Sequence[Part], turns: Sequence[int], spans: Sequence[Span], where: str) -> None:
    """Raise DataError for a part of a trained turn that is outside the trained `spans`, or behind the beginning of a
    later message."""
    placed = [(part.at, part) for part in parts if part.at is not None]
    later = {turn: min((at for at, part in placed if part.turn > turn), default=math.inf) for turn in turns}
    for at, part in placed:
        if part.turn not in turns:
            continue
        is_outside = not any(begin <= at < end for begin, end in spans)
        if is_outside or at > later[part.turn]:
            place = "where nothing is trained on" if is_outside else "behind a later message"
            raise DataError(
                f"{where}: message {part.turn + 1} (assistant): the chat template writes {describe(part.text)} of its "
                f"{part.name} {place}",
                remedy="set model.chat_template to one that writes each turn in its place, or change the row",
            )


def _by_marks(
    messages: Sequence[Message], template: Template, whole: str, where: str, first_trained: int
) -> tuple[list[int], list[bool], list[Span]]:
    tokens, mask = template.tokens_and_marks(messages, where=where)
    if first_trained:  # the marks show which tokens the assistant wrote, but not in which turn
        before = template.write(messages[:first_trained], where=where, add_generation_prompt=False)
        known = min(len(encode_bare(before, template.tokenizer)), len(mask))
        mask[:known] = [False] * known
    offsets = template.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    runs = [list(run) for on, run in groupby(zip(mask, offsets, strict=True), key=itemgetter(0)) if on]
    return tokens, mask, [(run[0][1][0], run[-1][1][1]) for run in runs]


def _of_turns(
    turns: Sequence[int],
    parts: Sequence[Part],
    template: Template,
    whole: str,
    mask: Sequence[bool],
    spans: Sequence[Span],
    where: str,
) -> tuple[list[bool], list[Span]]:
    """Keep the marked spans of these turns. DataError where a span is not of a single turn: marks do not say whose."""
    kept = []
    for begin, end in spans:
        within = {part.turn for part in parts if part.at is not None and begin <= part.at < end}
        if len(within) != 1:
            raise DataError(
                f"{where}: the {{% generation %}} marks of the template do not tell the turns of this conversation "
                "apart, so that none can be left out of training",
                remedy="train on all turns, or set model.chat_template to one with marks around each turn",
            )
        if within <= set(turns):
            kept.append((begin, end))
    _, is_kept = _tokens_of_spans(whole, kept, template.tokenizer)
    return [on and keep for on, keep in zip(mask, is_kept, strict=True)], kept


def _by_prefixes(
    messages: Sequence[Message], turns: Sequence[int], parts: Sequence[Part], frame: TurnFrame, whole: str
) -> tuple[list[int], list[bool], list[Span], list[str]]:
    tokenizer = frame.template.tokenizer
    spans = [_turn_span(messages, turn, parts, whole, frame) for turn in turns]
    after_tools = [i for i, turn in enumerate(turns) if turn and messages[turn - 1].role == "tool"]
    headed = [i for i in after_tools if frame.header and whole.startswith(frame.header, spans[i][0])]
    for i in headed:
        spans[i] = (spans[i][0] + len(frame.header), spans[i][1])
    tokens, mask = (_tokens_of_spans if tokenizer.is_fast else _tokens_by_pieces)(whole, spans, tokenizer)
    return tokens, mask, spans, [_HEADED] if headed else []


def _turn_span(messages: Sequence[Message], turn: int, parts: Sequence[Part], whole: str, frame: TurnFrame) -> Span:
    """The characters of one assistant turn, from the end of the generation prompt to the end of the turn."""
    begin = _begin_of_turn(messages[:turn], whole, frame.template, frame.where)
    after = frame.template.write(messages[: turn + 1], where=frame.where, add_generation_prompt=False)
    if begin is not None and whole.startswith(after) and len(after) > begin:
        return begin, len(after)
    span = _span_around(turn, parts, begin, whole, frame)
    if span is None:
        raise DataError(
            f"{frame.where}: the chat template writes the assistant's message {turn + 1} differently when later turns "
            "follow, or after its own generation prompt, so its tokens cannot be identified",
            remedy="set model.chat_template to one with {% generation %} marks around the assistant's turns",
        )
    return span


def _span_around(turn: int, parts: Sequence[Part], begin: int | None, whole: str, frame: TurnFrame) -> Span | None:
    """Find the characters of a turn by its parts, from `begin` (if None, from the header before them) to the token that
    ends it. For a template that writes a turn, or the history before it, differently once others follow."""
    placed = [(part.at, part.turn) for part in parts if part.at is not None]
    own = [at for at, of in placed if of == turn]
    if not own or frame.closing is None:
        return None
    if begin is None:
        header = frame.header.partition("<think>")[0]
        at = whole.rfind(header, max((at for at, of in placed if of < turn), default=0), min(own)) if header else -1
        begin = None if at < 0 else at + len(header)
    ending = str(frame.template.tokenizer.decode([frame.closing]))
    end = whole.find(ending, max(own), min((at for at, of in placed if of > turn), default=len(whole)))
    return None if begin is None or end < 0 else (begin, end + len(ending))


def _begin_of_turn(before: Sequence[Message], whole: str, template: Template, where: str) -> int | None:
    """Find the character at which a turn begins: right after the generation prompt.

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


def _tokens_of_spans(text: str, spans: Sequence[Span], tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Tokens of the text, and whether each begins in one of the spans."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    # A token of zero characters, which some tokenizers make, belongs to no span.
    mask = [
        begin < end and any(first <= begin < last for first, last in spans) for begin, end in encoding["offset_mapping"]
    ]
    return list(encoding["input_ids"]), mask


def _tokens_by_pieces(text: str, spans: Sequence[Span], tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Like `_tokens_of_spans`, for a tokenizer that gives no offsets: each piece is encoded separately."""
    tokens: list[int] = []
    mask: list[bool] = []
    at = 0
    for begin, end in [*spans, (len(text), len(text))]:
        for piece, is_inside in ((text[at:begin], False), (text[begin:end], True)):
            ids = encode_bare(piece, tokenizer) if piece else ()
            tokens += ids
            mask += [is_inside] * len(ids)
        at = end
    return tokens, mask
