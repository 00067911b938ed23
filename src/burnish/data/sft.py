"""Sources to supervised examples: `load_sft_examples` is what `burnish sft` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.config.schema_data import DataSource
from burnish.data.assistant_turns import encode_with_turns
from burnish.data.chat import (
    AUTO,
    PLAIN,
    encode_continuation,
    encode_prompt,
    encode_text,
    plain_messages,
    plain_text,
    turns_of,
    uses_template,
)
from burnish.data.conversations import checked_messages, prompt_of, tools_at
from burnish.data.loaded_sources import LoadedSource, OverLong, load_sources, require_rows
from burnish.data.overlap import Asked
from burnish.data.rows import Row, reading_row, text_at, value_at
from burnish.data.samplers import PromptSampler
from burnish.data.template import ChatFormat, Template, notes_on
from burnish.data.understanding import Understanding
from burnish.errors import DataError
from burnish.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Encoded = tuple[tuple[int, ...], tuple[bool, ...]]
Tools = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class SftExample:
    """One example. `loss_mask[t]` is True where token t is to be predicted from those before it; never for token 0."""

    id: str
    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    domain: str = "default"


@dataclass(frozen=True, slots=True)
class SftSet:
    """Examples of all sources behind each other; source i holds `source_sizes[i]` and is drawn with `weights[i]`."""

    examples: tuple[SftExample, ...]
    source_sizes: tuple[int, ...]
    weights: tuple[float, ...]
    understandings: tuple[Understanding, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def lengths(self) -> list[int]:
        """Tokens of each example."""
        return [len(example.tokens) for example in self.examples]

    def sampler(self, *, seed: int, shuffle: bool = True) -> PromptSampler:
        """The resumable order in which examples are drawn (indices into `examples`)."""
        return PromptSampler(self.source_sizes, self.weights, seed=seed, shuffle=shuffle)

    def asked(self) -> list[Asked]:
        """The tokens before the first trained one of each example; of a document, which asks nothing, all of them."""
        firsts = [example.loss_mask.index(True) for example in self.examples]
        return [
            (e.id, e.tokens[:first] if first > 1 else e.tokens) for e, first in zip(self.examples, firsts, strict=True)
        ]

    def lines(self) -> list[str]:
        """What was understood, for the command line to print."""
        return [line for understanding in self.understandings for line in understanding.lines()]


def load_sft_examples(
    sources: Sequence[DataSource],
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int | None = None,
    over_long: OverLong = "drop",
    chat: ChatFormat = AUTO,
) -> SftSet:
    """Examples of all sources, encoded with their loss masks.

    Prompt-completion rows train the completion and the EOS after it, conversations all of the assistant's turns with
    the tokens that end them, plain text everything and an EOS. max_tokens: longest example; longer ones are dropped,
    truncated (the beginning stays; dropped when nothing to train on is left) or an error, and counted.
    """
    parts = [
        _source_examples(loaded, tokenizer, max_tokens, over_long, chat) for loaded in load_sources(sources, "sft")
    ]
    return SftSet(
        examples=tuple(example for part in parts for example in part[0]),
        source_sizes=tuple(len(part[0]) for part in parts),
        weights=tuple(source.weight for source in sources),
        understandings=tuple(part[1] for part in parts),
    )


def _source_examples(
    loaded: LoadedSource,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int | None,
    over_long: OverLong,
    chat: ChatFormat,
) -> tuple[list[SftExample], Understanding]:
    kept: list[SftExample] = []
    skipped: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for row_id, row in loaded.rows_with_ids():
        with reading_row(row.where):
            tokens, mask = _encode(loaded, row, row_id, tokenizer, chat, changed)
        if max_tokens is not None and len(tokens) > max_tokens:
            tokens, mask = _shortened((tokens, mask), max_tokens, over_long, row)
            counter = changed if any(mask) else skipped
            counter[_reason(max_tokens, over_long, left=any(mask))] += 1
        if any(mask):
            kept.append(SftExample(row_id, tokens, mask, loaded.domain_of(row)))
    require_rows(kept, loaded, skipped)
    return kept, loaded.understanding(kept=len(kept), skipped=skipped, changed=changed)


def _reason(max_tokens: int, over_long: OverLong, *, left: bool) -> str:
    reason = f"examples over max_tokens ({max_tokens:,})"
    if over_long == "drop":
        return reason
    return f"{reason}, cut at the end" if left else f"{reason}, nothing to train on before the cut"


def _shortened(encoded: Encoded, limit: int, over_long: OverLong, row: Row) -> Encoded:
    if over_long == "drop":
        return (), ()
    if over_long == "error":
        raise DataError(
            f"{row.where}: the example has {len(encoded[0]):,} tokens, over max_tokens {limit:,}",
            remedy="raise max_tokens, or set data.over_long to drop or truncate",
        )
    return encoded[0][:limit], encoded[1][:limit]


def _encode(
    loaded: LoadedSource,
    row: Row,
    row_id: str,
    tokenizer: PreTrainedTokenizerBase,
    chat: ChatFormat,
    changed: Counter[str],
) -> Encoded:
    roles, source = loaded.reading.roles, loaded.source
    if "text" in roles and "completion" not in roles:
        if source.system_prompt is not None or source.prompt_template is not None:
            raise DataError(
                f"{source.path}: system_prompt and prompt_template need prompts and completions, but these rows are "
                "plain text",
                remedy="remove them, or name columns: {prompt: ..., completion: ...}",
            )
        text = text_at(row, roles["text"], role="text")
        if not text.strip():
            raise DataError(f"{row.where}: the text is empty", remedy="remove the row, or write what to learn")
        return _encode_document(text, tokenizer, row)
    asked = prompt_of(row, roles, template=source.prompt_template, system_prompt=source.system_prompt)
    template = Template(tokenizer, chat.options, tools_at(row, roles))
    if "completion" not in roles:
        turns = _whole_conversation(asked, row, chat)
        return _encode_turns(turns, template, row, changed, first_trained=0)
    prompt = _as_prompt(row_id, asked, template.tools)
    completion = _completion(row, roles["completion"])
    if chat.chat == "never" or (isinstance(completion, str) and not uses_template(prompt, chat)):
        return _encode_plain_pair(prompt, completion, tokenizer, row)
    answer = (Message("assistant", completion),) if isinstance(completion, str) else completion
    question = turns_of(prompt)
    return _encode_turns((*question, *answer), template, row, changed, first_trained=len(question))


def _encode_turns(
    turns: tuple[Message, ...], template: Template, row: Row, changed: Counter[str], *, first_trained: int
) -> Encoded:
    """The assistant's turns from `first_trained` on, as the policy should have written them."""
    tokens, mask = encode_with_turns(turns, template, where=row.where, first_trained=first_trained)
    changed.update(notes_on(turns, template))
    return _first_untrained(tokens, mask)


def _as_prompt(row_id: str, asked: str | tuple[Message, ...], tools: Tools) -> Prompt:
    if isinstance(asked, str):
        return Prompt(row_id, text=asked, tools=tools)
    return Prompt(row_id, messages=asked, tools=tools)


def _completion(row: Row, column: str) -> str | tuple[Message, ...]:
    value = value_at(row, column, role="completion")
    if isinstance(value, list):
        return checked_messages(value, row, column)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    text = text_at(row, column, role="completion")
    if not text.strip():
        raise DataError(f"{row.where}: the completion is empty", remedy="remove the row, or write what to learn")
    return text


def _whole_conversation(asked: str | tuple[Message, ...], row: Row, chat: ChatFormat) -> tuple[Message, ...]:
    if isinstance(asked, str) or chat.chat == "never":
        raise DataError(
            f"{row.where}: a conversation can only be trained on through a chat template, and data.chat is {chat.chat}",
            remedy="set data.chat: auto, or name columns: {prompt: ..., completion: ...}",
        )
    return asked


def _encode_plain_pair(
    prompt: Prompt, completion: str | tuple[Message, ...], tokenizer: PreTrainedTokenizerBase, row: Row
) -> Encoded:
    before = encode_prompt(prompt, tokenizer, PLAIN)
    text = completion if isinstance(completion, str) else plain_messages(completion, where=row.where)
    answer = _ended(encode_continuation(before, plain_text(prompt), text, tokenizer), tokenizer, row)
    return _first_untrained((*before, *answer), (False,) * len(before) + (True,) * len(answer))


def _encode_document(text: str, tokenizer: PreTrainedTokenizerBase, row: Row) -> Encoded:
    tokens = _ended(encode_text(text, tokenizer), tokenizer, row)
    return _first_untrained(tokens, (True,) * len(tokens))


def _ended(tokens: tuple[int, ...], tokenizer: PreTrainedTokenizerBase, row: Row) -> tuple[int, ...]:
    """The tokens with an EOS at their end, unless the text brought one."""
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError(
            f"{row.where}: the tokenizer has no EOS token, so a model could not learn to stop",
            remedy="use a tokenizer with an eos_token",
        )
    return tokens if tokens and tokens[-1] == end else (*tokens, end)


def _first_untrained(tokens: tuple[int, ...], mask: tuple[bool, ...]) -> Encoded:
    return tokens, (False, *mask[1:])
