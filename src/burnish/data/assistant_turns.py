"""Loss masks of conversations: the assistant's tokens are trained on, with the token that ends each turn."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter

from burnish.data.chat import encode_bare
from burnish.data.rows import common_length, describe
from burnish.data.template import Template
from burnish.data.written_parts import Part, written_parts
from burnish.errors import DataError
from burnish.types import Message, Tokenizer

Span = tuple[int, int]  # characters [begin, end) of the rendered conversation

_NOT_IN_HISTORY = "prompts with reasoning of earlier turns, which the chat template leaves out"
_HEADED = "conversations with a header after a tool that the generation prompt leaves out; it is not trained on"
_ASKED = Message("user", "burnish question")
_SAID = "burnish answer"
_OPEN_TAG = re.compile(r"<[^<>]*$")
_UNENDED = "conversations in which no token ends a turn of the assistant, so the model does not learn to stop there"


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
            f"{where}: the conversation has no assistant turn to train on "
            f"(its roles: {', '.join(dict.fromkeys(message.role for message in messages))})",
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
    # transformers refuses to render an empty conversation, which is what precedes an opening assistant turn
    begin = _begin_of_turn(messages[:turn], whole, frame.template, frame.where) if turn else None
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


@dataclass(frozen=True)
class TurnFrame:
    """Text and tokens that a chat template writes around the assistant's turns: a header, and the token that ends each.
    Errors begin with `where`.

    The model must learn to sample that token, whichever it is. Most templates have a token for it (`<|im_end|>`). In
    others (GLM) a turn is ended by the token that begins the next one (`<|user|>`, `<|observation|>`), and nothing
    follows the last turn.
    """

    template: Template
    where: str

    @cached_property
    def special(self) -> frozenset[int]:
        """Tokens that stand for no text: special tokens and tokens added to the vocabulary."""
        return frozenset(
            (*self.template.tokenizer.all_special_ids, *self.template.tokenizer.get_added_vocab().values())
        )

    @cached_property
    def header(self) -> str:
        """Text in front of an answer to a user; empty if the template refuses such a conversation."""
        begun = self._write(_ASKED, next_turn=True)
        return begun[shared_length(self._write(_ASKED), begun) :]

    @cached_property
    def closing(self) -> int | None:
        """The special token that is written behind an answer, in front of the next question."""
        behind = self._write(_ASKED, Message("assistant", _SAID), _ASKED).partition(_SAID)[2]
        behind = behind.partition(_ASKED.content)[0]  # a small tokenizer may not know its letters
        return next(iter(self.special.intersection(encode_bare(behind, self.template.tokenizer)[:1])), None)

    def with_ends(
        self, messages: Sequence[Message], tokens: Sequence[int], mask: Sequence[bool], *, trim: bool
    ) -> tuple[list[int], list[bool], list[str]]:
        """Return (tokens, mask, notes), with the mask True on the token that ends each run of trained tokens; with
        `trim`, not on white space behind it, which the policy never writes. If the template does not end the last turn,
        its end is added."""
        found, on, notes = list(tokens), list(mask), set[str]()
        for last in [i for i in range(len(on)) if on[i] and on[i + 1 : i + 2] != [True]]:
            end_of_text = next((i for i in range(last, -1, -1) if not self._is_space(found[i])), last)
            said = found[end_of_text]
            if trim and said in self.special and on[end_of_text]:
                on[end_of_text + 1 : last + 1] = [False] * (last - end_of_text)
            if said in (self.template.tokenizer.eos_token_id, self.closing):
                continue
            follows = next((i for i in range(last + 1, len(found)) if not self._is_space(found[i])), None)
            if follows is None and messages[-1].role == "assistant":
                end = self._end_of_last(messages[-1], said)
                found, on = [*found, *end], [*on, *(True for _ in end)]
                added = repr(self.template.tokenizer.decode(end))
                if end:
                    notes.add(f"conversations that the chat template does not end; {added} was added")
                elif said not in self.special:
                    notes.add(_UNENDED)
            elif follows is not None and self._may_end(found[follows]):
                on[end_of_text + 1 : follows + 1] = [True] * (follows - end_of_text)
            elif said not in self.special:
                notes.add(_UNENDED)
        return found, on, sorted(notes)

    def _may_end(self, token: int | None) -> bool:
        """Return whether the token may end a turn: an EOS, or a special token that is not in the assistant's header."""
        header = encode_bare(self.header, self.template.tokenizer)
        return token == self.template.tokenizer.eos_token_id or (token in self.special and token not in header)

    def _end_of_last(self, message: Message, said: int) -> list[int]:
        """Return the tokens to add behind the conversation: the token that would follow it, else an EOS."""
        follows, eos = self._follows(message), self.template.tokenizer.eos_token_id
        if follows is not None and self._may_end(follows):
            return [follows]
        return [] if said in self.special or eos is None else [int(eos)]

    def _follows(self, message: Message) -> int | None:
        """The first token of a further message behind a turn like this one."""
        said = Message("assistant", "" if message.tool_calls else _SAID, tool_calls=message.tool_calls)
        heard = _ASKED
        if message.tool_calls:
            call = message.tool_calls[0]
            heard = Message("tool", _SAID, extra={"tool_call_id": call.get("id"), "name": message.called()[0]})
        ended, going_on = self._write(_ASKED, said), self._write(_ASKED, said, heard)
        rest = going_on[len(ended) :].partition(heard.content)[0] if ended and going_on.startswith(ended) else ""
        tokens = encode_bare(rest, self.template.tokenizer)
        return next((token for token in tokens if not self._is_space(token)), None)

    def _write(self, *messages: Message, next_turn: bool = False) -> str:
        """The conversation as the template writes it; empty if it refuses it."""
        try:
            return self.template.write(messages, where=self.where, add_generation_prompt=next_turn)
        except DataError:
            return ""

    def _is_space(self, token: int) -> bool:
        return token not in self.special and not self.template.tokenizer.decode([token]).strip()


def shared_length(first: str, second: str) -> int:
    """Length of the common beginning of both texts, without a tag that is only partly common."""
    return len(_OPEN_TAG.sub("", first[: common_length(first, second)]))
