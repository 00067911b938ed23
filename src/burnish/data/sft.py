"""Load supervised examples from data sources, for `burnish sft` (`load_sft_examples`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from burnish.config.schema_data import DataSource
from burnish.data.assistant_turns import encode_with_turns
from burnish.data.chat import AUTO, Encoder, Written, asked_prompt, plain_messages, plain_text, turns_of, uses_template
from burnish.data.conversations import prompt_of, text_or_turns, tools_at
from burnish.data.loaded_sources import LoadedSource, OverLong, RowSet, Understanding, load_sources, require_rows
from burnish.data.overlap import Asked
from burnish.data.rows import Row, over_long_error, reading_row, text_at, value_at, weight_at
from burnish.data.template import ChatFormat, Template, notes_on, refuse_unused_options
from burnish.errors import DataError
from burnish.types import Message, Tokenizer

Encoded = tuple[tuple[int, ...], tuple[bool, ...]]


@dataclass(frozen=True, slots=True)
class _Plain:
    """A text to learn without a chat template, behind a prompt; None in front of a document."""

    prompt: str | None
    text: str

    def whole(self) -> tuple[Written, ...]:
        """The texts that encoding it takes."""
        if self.prompt is None:
            return ((self.text, False),)
        return (self.prompt, False), (self.prompt + self.text, False)


_Read = tuple[str, Row, float, Encoded | _Plain]  # (id, row, weight, what it says)
TrainOn = Literal["all_turns", "last_turn"]


@dataclass(frozen=True, slots=True)
class SftExample:
    """One example. `loss_mask[t]` is True if token t is trained on; never for token 0, which nothing predicts. whole:
    the tokens before the example was cut. weight: the factor of its tokens' losses."""

    id: str
    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    domain: str = "default"
    whole: tuple[int, ...] | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SftSet(RowSet):
    """Examples of all sources."""

    examples: tuple[SftExample, ...]

    def lengths(self) -> list[int]:
        """Tokens of each example."""
        return [len(example.tokens) for example in self.examples]

    def last_tokens(self) -> Counter[int]:
        """The last trained tokens of all examples, which end responses once the model is used."""
        lasts = (len(e.tokens) - 1 - e.loss_mask[::-1].index(True) for e in self.examples)
        return Counter(example.tokens[last] for example, last in zip(self.examples, lasts, strict=True))

    def asked(self) -> list[Asked]:
        """Each example's id and prompt: the tokens before the first trained one, or all tokens of a document, before it
        was cut."""
        firsts = [example.loss_mask.index(True) for example in self.examples]
        return [
            (e.id, e.tokens[:first] if first > 1 else e.whole or e.tokens)
            for e, first in zip(self.examples, firsts, strict=True)
        ]


def load_sft_examples(
    sources: Sequence[DataSource],
    *,
    tokenizer: Tokenizer,
    max_tokens: int | None = None,
    over_long: OverLong = "drop",
    chat: ChatFormat = AUTO,
    train_on: TrainOn = "all_turns",
) -> SftSet:
    """Examples of all sources, encoded with their loss masks.

    The loss covers the completion and an EOS in prompt-completion rows, assistant turns with the tokens that end them
    in conversations, and everything plus an EOS in plain text. Of the turns, those are left out that a message marks so
    (`train: false`, `weight: 0`), and with `train_on` "last_turn" all but the last. Rows of weight 0 are left out and
    counted.
    max_tokens: limit on examples. Longer ones are dropped, truncated at the end (or dropped if that leaves nothing to
    train on) or an error, depending on `over_long`, and counted.
    """
    readers = [_Reader(loaded, tokenizer, chat, train_on) for loaded in load_sources(sources, "examples")]
    parts = [reader.examples(max_tokens, over_long) for reader in readers]
    refuse_unused_options(chat, applied=sum(reader.templated for reader in readers))
    return SftSet(
        examples=tuple(example for part in parts for example in part[0]),
        source_sizes=tuple(len(part[0]) for part in parts),
        weights=tuple(source.weight for source in sources),
        understandings=tuple(part[1] for part in parts),
    )


@dataclass(slots=True)
class _Reader:
    """Reads and encodes the examples of one source. `skipped` and `changed` count its rows by reason, `templated` those
    that go through the chat template."""

    loaded: LoadedSource
    tokenizer: Tokenizer
    chat: ChatFormat
    train_on: TrainOn
    skipped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    templated: int = 0

    def examples(self, max_tokens: int | None, over_long: OverLong) -> tuple[list[SftExample], Understanding]:
        """The examples, and a summary of how the source was read. DataError if there are none."""
        kept: list[SftExample] = []
        for row_id, row, weight, (tokens, mask) in self._encoded():
            whole = tokens
            if max_tokens is not None and len(tokens) > max_tokens:
                tokens, mask = _shorten((tokens, mask), max_tokens, over_long, row)
                counter = self.changed if any(mask) else self.skipped
                counter[_reason(max_tokens, over_long, left=any(mask))] += 1
            if any(mask):
                kept.append(SftExample(row_id, tokens, mask, self.loaded.domain_of(row), whole, weight))
        require_rows(kept, self.loaded, self.skipped)
        return kept, self.loaded.understanding(kept=len(kept), skipped=self.skipped, changed=self.changed)

    def _encoded(self) -> Iterator[tuple[str, Row, float, Encoded]]:
        """The rows with their tokens, plain texts of many rows encoded together."""
        encoder = Encoder(self.tokenizer)
        for row_id, row, weight, said in encoder.announced(self._read(), _plain_texts):
            with reading_row(row.where):
                tokens = _encode_plain(row_id, said, encoder, row) if isinstance(said, _Plain) else said
            yield row_id, row, weight, tokens

    def _read(self) -> Iterator[_Read]:
        roles = self.loaded.reading.roles
        for row_id, row in self.loaded.rows_with_ids():
            with reading_row(row.where):
                weight = weight_at(row, roles["weight"], may_be_zero=True) if "weight" in roles else 1.0
                if weight == 0:
                    self.skipped["rows of weight 0"] += 1
                    continue
                said = self._said(row_id, replace(row, may_mark=True))
            yield row_id, row, weight, said

    def _said(self, row_id: str, row: Row) -> Encoded | _Plain:
        """The content of a row, encoded if it goes through the chat template."""
        roles, chat = self.loaded.reading.roles, self.chat
        if "text" in roles and "completion" not in roles:
            return _Plain(None, self._document(row))
        asked = prompt_of(row, roles, self.loaded.source)
        template = Template(self.tokenizer, chat.options, tools_at(row, roles))
        if "completion" not in roles:
            return self._encode_turns(_whole_conversation(asked, row, chat), template, row, first_trained=0)
        prompt = asked_prompt(row_id, asked, template.tools)
        completion = _completion(row, roles["completion"])
        if chat.chat == "never" or (isinstance(completion, str) and not uses_template(prompt, chat)):
            if not isinstance(completion, str) and _left_out(completion, self.train_on, row, 0):
                raise DataError(
                    f"{row.where}: turns of the completion are not to be trained on (their marks, or train_on "
                    f"{self.train_on}), but with data.chat never it is one text",
                    remedy="set data.chat: auto, or put these turns into the prompt",
                )
            text = completion if isinstance(completion, str) else plain_messages(completion, where=row.where)
            return _Plain(plain_text(prompt), text)
        answer = (Message("assistant", completion),) if isinstance(completion, str) else completion
        question = turns_of(prompt)
        if question[-1].role == "assistant":
            self.changed["prompts that end with the assistant's turn, so the completion is learned as another"] += 1
        return self._encode_turns((*question, *answer), template, row, first_trained=len(question))

    def _document(self, row: Row) -> str:
        roles, source = self.loaded.reading.roles, self.loaded.source
        if source.system_prompt is not None or source.prompt_template is not None or {"system", "history"} & set(roles):
            raise DataError(
                f"{source.path}: system prompts, histories and prompt_template need prompts and completions, but these "
                "rows are plain text",
                remedy="remove them, or name columns: {prompt: ..., completion: ...}",
            )
        text = text_at(row, roles["text"], role="text")
        if not text.strip():
            raise DataError(f"{row.where}: the text is empty", remedy="remove the row, or write what to learn")
        return text

    def _encode_turns(self, turns: tuple[Message, ...], template: Template, row: Row, *, first_trained: int) -> Encoded:
        """The conversation in token ids, with the assistant's turns from `first_trained` on marked for training."""
        self.templated += 1
        left_out = _left_out(turns, self.train_on, row, first_trained)
        tokens, mask, notes = encode_with_turns(
            turns, template, where=row.where, first_trained=first_trained, left_out=left_out
        )
        self.changed.update(notes + notes_on(turns, template))
        return _without_first(tokens, mask)


def _plain_texts(read: _Read) -> tuple[Written, ...]:
    """The texts that encoding a row takes, if it is not encoded already."""
    return read[3].whole() if isinstance(read[3], _Plain) else ()


def _reason(max_tokens: int, over_long: OverLong, *, left: bool) -> str:
    reason = f"examples over max_tokens ({max_tokens:,})"
    if over_long == "drop":
        return reason
    return f"{reason}, cut at the end" if left else f"{reason}, nothing to train on before the cut"


def _shorten(encoded: Encoded, limit: int, over_long: OverLong, row: Row) -> Encoded:
    if over_long == "drop":
        return (), ()
    if over_long == "error":
        raise over_long_error(row.where, "the example has", len(encoded[0]), "max_tokens", limit)
    return encoded[0][:limit], encoded[1][:limit]


def _left_out(turns: Sequence[Message], train_on: TrainOn, row: Row, first_trained: int) -> set[int]:
    """Number the assistant's turns from `first_trained` on that are not trained on. DataError for another message that
    is marked to be trained on."""
    answers = [i for i, turn in enumerate(turns) if turn.role == "assistant" and i >= first_trained]
    wanted = answers[-1:] if train_on == "last_turn" else answers
    for i, turn in enumerate(turns):
        if turn.trained and i not in wanted:
            raise DataError(
                f"{row.where}: message {i + 1} ({turn.role}) is marked as trained on, but only the assistant's turns "
                f"behind the prompt can be, and train_on is {train_on}",
                remedy="remove the mark (train, weight) of this message"
                + ("" if train_on == "all_turns" else ", or set train_on: all_turns"),
            )
    return {i for i in answers if i not in wanted or turns[i].trained is False}


def _completion(row: Row, column: str) -> str | tuple[Message, ...]:
    value = value_at(row, column, role="completion")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    said = text_or_turns(value, row, column, role="completion")
    if isinstance(said, str) and not said.strip():
        raise DataError(f"{row.where}: the completion is empty", remedy="remove the row, or write what to learn")
    return said


def _whole_conversation(asked: str | tuple[Message, ...], row: Row, chat: ChatFormat) -> tuple[Message, ...]:
    if isinstance(asked, str) or chat.chat == "never":
        raise DataError(
            f"{row.where}: a conversation can only be trained on through a chat template, and data.chat is {chat.chat}",
            remedy="set data.chat: auto, or name columns: {prompt: ..., completion: ...}",
        )
    return asked


def _encode_plain(row_id: str, plain: _Plain, encoder: Encoder, row: Row) -> Encoded:
    """The tokens of a pair, trained on behind the prompt, or of a document."""
    before = () if plain.prompt is None else encoder.prompt(row_id, (plain.prompt, False))
    answer = _with_eos(encoder.continuation(before, plain.prompt or "", plain.text), encoder.tokenizer, row)
    return _without_first((*before, *answer), (False,) * len(before) + (True,) * len(answer))


def _with_eos(tokens: tuple[int, ...], tokenizer: Tokenizer, row: Row) -> tuple[int, ...]:
    """The tokens with an EOS at the end, unless the text already ends with one."""
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError(
            f"{row.where}: the tokenizer has no EOS token, so the model could not learn to stop",
            remedy="use a tokenizer with an eos_token",
        )
    return tokens if tokens and tokens[-1] == end else (*tokens, end)


def _without_first(tokens: tuple[int, ...], mask: tuple[bool, ...]) -> Encoded:
    return tokens, (False, *mask[1:])
