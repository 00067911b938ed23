"""Load prompts from data sources, for `burnish rl`, `eval` and `check` (`load_prompts`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from burnish.config.schema_data import DataSource, QueryConfig
from burnish.data.chat import AUTO, encode_prompt, turns_of, uses_template
from burnish.data.conversations import prompt_of, tools_at, without_last_answer
from burnish.data.overlap import Asked
from burnish.data.preference_rows import BadRow, is_transcript, shared_prompt, transcript_messages
from burnish.data.queries import cut_query
from burnish.data.rows import Row, describe, reading_row, value_at
from burnish.data.samplers import PromptSampler
from burnish.data.schemas import Purpose, Reading, recognise
from burnish.data.sources import Table, default_domain, read_table, source_names
from burnish.data.template import ChatFormat, Template, notes_on
from burnish.data.understanding import Understanding
from burnish.errors import DataError
from burnish.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OverLong = Literal["drop", "truncate", "error"]

_ANSWER_CUT = "conversations ended with the assistant's answer, which is not part of the prompt"
_COMMON_BEGINNING = "comparisons, where the prompt is what chosen and rejected both begin with"


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of all sources, concatenated, with their tokens.

    Source i has `source_sizes[i]` consecutive prompts and is drawn with weight `weights[i]`.
    """

    prompts: tuple[Prompt, ...]
    prompt_tokens: tuple[tuple[int, ...], ...]
    source_sizes: tuple[int, ...]
    weights: tuple[float, ...]
    understandings: tuple[Understanding, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def sampler(self, *, seed: int, shuffle: bool = True) -> PromptSampler:
        """The resumable order in which prompts are drawn (indices into `prompts`)."""
        return PromptSampler(self.source_sizes, self.weights, seed=seed, shuffle=shuffle)

    def asked(self) -> list[Asked]:
        """Each prompt's id and tokens, to find duplicates."""
        return [(prompt.id, tokens) for prompt, tokens in zip(self.prompts, self.prompt_tokens, strict=True)]

    def lines(self) -> list[str]:
        """How the data were read, for the command line to print."""
        return [line for understanding in self.understandings for line in understanding.lines()]


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """The rows of one source and how they are read.

    The ids of its rows begin with `name`. `own_domain` is the domain of rows without one. `share` is the source's part
    of the mixture, None if it is the only source.
    """

    source: DataSource
    name: str
    table: Table
    reading: Reading
    share: float | None
    own_domain: str

    def understanding(self, *, kept: int, skipped: Counter[str], changed: Counter[str]) -> Understanding:
        return Understanding(
            path=self.source.path,
            name=self.name,
            rows=len(self.table.rows),
            kept=kept,
            schema=self.reading.schema,
            roles=self.reading.roles,
            domain=self.fixed_domain(),
            prompt_template=self.source.prompt_template,
            system_prompt=self.source.system_prompt,
            limit=self.source.limit,
            share=self.share,
            skipped=dict(skipped),
            changed=dict(changed),
            columns_left_out=self.table.unreadable_columns,
        )

    def fixed_domain(self) -> str | None:
        """The domain of all rows, or None where each row names its own."""
        if self.source.domain is not None:
            return self.source.domain
        return None if "domain" in self.reading.roles else self.own_domain

    def domain_of(self, row: Row) -> str:
        fixed = self.fixed_domain()
        if fixed is not None:
            return fixed
        value = value_at(row, self.reading.roles["domain"], role="domain")
        if isinstance(value, (Sequence, dict)) and not isinstance(value, str):
            raise DataError(
                f"{row.where}: column {self.reading.roles['domain']!r} (domain) holds {describe(value)}, not a name",
                remedy="set domain for the source, or columns: {domain: ...}",
            )
        return self.own_domain if value is None or value == "" else str(value)

    def id_of(self, row: Row) -> str:
        """`<source name>:<row number>`, or the id column's value in place of the number."""
        if "id" not in self.reading.roles:
            return f"{self.name}:{row.number}"
        value = value_at(row, self.reading.roles["id"], role="id")
        if not isinstance(value, (str, int)) or value == "":
            raise DataError(
                f"{row.where}: column {self.reading.roles['id']!r} (id) holds {describe(value)}, not text or a number",
                remedy="name a column of unique ids, or none (then row numbers are used)",
            )
        return f"{self.name}:{value}"

    def rows_with_ids(self) -> Iterator[tuple[str, Row]]:
        """Each row with its id. DataError for a repeated id."""
        seen: dict[str, str] = {}
        for row in self.table.rows:
            row_id = self.id_of(row)
            if row_id in seen:
                raise DataError(
                    f"{row.where}: id {row_id.removeprefix(self.name + ':')!r} was already used at {seen[row_id]}",
                    remedy="make ids unique, or remove columns.id (then row numbers are used)",
                )
            seen[row_id] = row.where
            yield row_id, row


def load_sources(sources: Sequence[DataSource], purpose: Purpose) -> list[LoadedSource]:
    """Rows and layouts of all sources. DataError if there is no source, or one cannot be read or recognised."""
    if not sources:
        raise DataError("no data set is given", remedy="set data.train (or data.eval) to a path")
    total = sum(source.weight for source in sources)
    loaded = []
    for source, name in zip(sources, source_names(sources), strict=True):
        table = read_table(source)
        reading = recognise(table.rows, source, purpose)
        share = source.weight / total if len(sources) > 1 else None
        loaded.append(LoadedSource(source, name, table, reading, share, default_domain(source)))
    return loaded


def load_prompts(
    sources: Sequence[DataSource],
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int | None = None,
    over_long: OverLong = "drop",
    chat: ChatFormat = AUTO,
    context_tokens: int | None = None,
    query: QueryConfig | None = None,
) -> PromptSet:
    """Prompts of all sources, encoded.

    max_prompt_tokens: limit on prompts. Longer ones are dropped, truncated (keeping the end and a leading BOS) or an
    error, depending on `over_long`, and counted.
    context_tokens: length of the model's context. A prompt that leaves no room for a response is always an error.
    query: cut a query from each row of layout `text`. Rows without one are left out and counted.
    """
    parts = [
        _source_prompts(loaded, tokenizer, max_prompt_tokens, over_long, chat, context_tokens, query)
        for loaded in load_sources(sources, "prompts")
    ]
    return PromptSet(
        prompts=tuple(prompt for part in parts for prompt, _ in part[0]),
        prompt_tokens=tuple(tokens for part in parts for _, tokens in part[0]),
        source_sizes=tuple(len(part[0]) for part in parts),
        weights=tuple(source.weight for source in sources),
        understandings=tuple(part[1] for part in parts),
    )


_Encoded = list[tuple[Prompt, tuple[int, ...]]]


def _source_prompts(
    loaded: LoadedSource,
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int | None,
    over_long: OverLong,
    chat: ChatFormat,
    context_tokens: int | None,
    query: QueryConfig | None,
) -> tuple[_Encoded, Understanding]:
    cuts = query if loaded.reading.schema == "text" and loaded.source.prompt_template is None else None
    kept: _Encoded = []
    skipped: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for row_id, row in loaded.rows_with_ids():
        prompt = _prompt(loaded, row_id, row, changed, chat)
        if cuts is not None:
            cut = _cut_prompt(prompt, cuts, tokenizer, max_prompt_tokens, chat)
            if cut is None:
                skipped[_no_query_reason(cuts, max_prompt_tokens)] += 1
                continue
            prompt = cut
        tokens: tuple[int, ...] | None
        with reading_row(row.where):
            tokens = encode_prompt(prompt, tokenizer, chat)
        if max_prompt_tokens is not None and len(tokens or ()) > max_prompt_tokens:
            tokens = _shorten(tokens or (), max_prompt_tokens, over_long, row, tokenizer)
            counter = skipped if tokens is None else changed
            counter[f"prompts over max_prompt_tokens ({max_prompt_tokens:,})" + _cut_note(over_long)] += 1
        if tokens is None:
            continue
        _check_context(tokens, context_tokens, row)  # after truncation, which may have made the prompt fit
        if uses_template(prompt, chat):
            changed.update(notes_on(turns_of(prompt), Template(tokenizer, chat.options, prompt.tools)))
        kept.append((prompt, tokens))
    require_rows(kept, loaded, skipped)
    understanding = loaded.understanding(kept=len(kept), skipped=skipped, changed=changed)
    return kept, understanding if cuts is None else replace(understanding, query=_cut_description(cuts))


def _cut_prompt(
    prompt: Prompt, query: QueryConfig, tokenizer: PreTrainedTokenizerBase, limit: int | None, chat: ChatFormat
) -> Prompt | None:
    def fits(text: str) -> bool:
        return limit is None or len(encode_prompt(replace(prompt, text=text), tokenizer, chat)) <= limit

    if prompt.text is None:
        raise DataError(
            f"prompt {prompt.id!r} is a conversation, but a query can only be cut from text",
            remedy="remove data.query, or the system_prompt of this source",
        )
    text = cut_query(prompt.text, start_text=query.start_text, end_text=query.end_text, fits=fits)
    return None if text is None else replace(prompt, text=text)


def _no_query_reason(query: QueryConfig, limit: int | None) -> str:
    within = "" if limit is None else f" within max_prompt_tokens ({limit:,})"
    return f"documents without a query {_cut_description(query)}{within}"


def _cut_description(query: QueryConfig) -> str:
    start = "the beginning" if query.start_text is None else repr(query.start_text)
    return f"between {start} and {query.end_text!r}"


def _prompt(loaded: LoadedSource, row_id: str, row: Row, changed: Counter[str], chat: ChatFormat) -> Prompt:
    with reading_row(row.where):
        return _read_prompt(loaded, row_id, row, changed, chat)


def _read_prompt(loaded: LoadedSource, row_id: str, row: Row, changed: Counter[str], chat: ChatFormat) -> Prompt:
    roles = loaded.reading.roles
    asked = _prompt_of_row(loaded, row, changed, chat)
    answer = value_at(row, roles["answer"], role="answer") if "answer" in roles else None
    domain, tools = loaded.domain_of(row), tools_at(row, roles)
    if isinstance(asked, str):
        return Prompt(row_id, text=asked, answer=answer, domain=domain, columns=row.values, tools=tools)
    messages = without_last_answer(asked)
    if not any(message.role != "system" for message in messages):
        raise DataError(f"{row.where}: the conversation asks nothing", remedy="it needs a user turn")
    if len(messages) != len(asked):
        changed[_ANSWER_CUT] += 1
    return Prompt(row_id, messages=messages, answer=answer, domain=domain, columns=row.values, tools=tools)


def _prompt_of_row(
    loaded: LoadedSource, row: Row, changed: Counter[str], chat: ChatFormat
) -> str | tuple[Message, ...]:
    """The prompt in a row. For a comparison it is the prompt that `burnish rm` would use, in the same form."""
    source = loaded.source
    if loaded.reading.schema != "preference":
        return prompt_of(row, loaded.reading.roles, template=source.prompt_template, system_prompt=source.system_prompt)
    try:
        asked = shared_prompt(loaded, row)
    except BadRow as error:
        raise DataError(error.message, remedy="fix or remove the row") from error
    if "prompt" not in loaded.reading.roles and source.prompt_template is None:
        changed[_COMMON_BEGINNING] += 1
    return (
        transcript_messages(asked)
        if chat.chat == "always" and isinstance(asked, str) and is_transcript(asked)
        else asked
    )


def _cut_note(over_long: OverLong) -> str:
    return ", cut at the beginning" if over_long == "truncate" else ""


def _shorten(
    tokens: tuple[int, ...], limit: int, over_long: OverLong, row: Row, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...] | None:
    if over_long == "drop":
        return None
    if over_long == "error":
        raise DataError(
            f"{row.where}: the prompt has {len(tokens):,} tokens, over max_prompt_tokens {limit:,}",
            remedy="raise rollout.max_prompt_tokens, or set data.over_long to drop or truncate",
        )
    if tokens[0] == tokenizer.bos_token_id and limit > 1:
        # The model was trained with BOS at the beginning of every text, so a text without it is out of distribution.
        return (tokens[0], *tokens[len(tokens) - limit + 1 :])
    return tokens[len(tokens) - limit :]


def _check_context(tokens: Sequence[int], context_tokens: int | None, row: Row) -> None:
    if context_tokens is not None and len(tokens) >= context_tokens:
        raise DataError(
            f"{row.where}: the prompt has {len(tokens):,} tokens, but the model's context is {context_tokens:,}, which "
            "leaves no room for a response",
            remedy="lower rollout.max_prompt_tokens, or use a model with a longer context",
        )


def require_rows(kept: Sequence[Any], loaded: LoadedSource, skipped: Counter[str]) -> None:
    """Raises DataError if every row of a source was left out."""
    if not kept:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        raise DataError(
            f"{loaded.source.path}: none of {len(loaded.table.rows):,} rows can be used: {reasons}",
            remedy="raise the limit on tokens, or set data.over_long: truncate",
        )


def read_prompts(sources: Sequence[DataSource]) -> tuple[list[Prompt], list[Understanding]]:
    """All prompts of all sources, and how each source was read. No tokenizer is used, so no length limit applies."""
    prompts: list[Prompt] = []
    understandings = []
    for loaded in load_sources(sources, "prompts"):
        changed: Counter[str] = Counter()
        rows = [_prompt(loaded, row_id, row, changed, AUTO) for row_id, row in loaded.rows_with_ids()]
        prompts += rows
        understandings.append(loaded.understanding(kept=len(rows), skipped=Counter(), changed=changed))
    return prompts, understandings
