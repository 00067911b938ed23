"""Load prompts from data sources, for `burnish rl`, `eval` and `check` (`load_prompts`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from burnish.config.domains import DomainSettings, Split
from burnish.config.schema_data import DataSource, QueryConfig
from burnish.config.schema_rl import RlFields
from burnish.data.chat import AUTO, Encoder, asked_prompt, cut_front, encode_prompt, turns_of, uses_template, written
from burnish.data.conversations import prompt_of, tools_at, without_last_answer
from burnish.data.loaded_sources import LoadedSource, OverLong, RowSet, Understanding, load_sources, require_rows
from burnish.data.overlap import Asked
from burnish.data.preference_rows import BadRow, as_turns, has_prompt, is_transcript, shared_prompt
from burnish.data.rows import Row, describe, over_long_error, reading_row, value_at
from burnish.data.template import ChatFormat, Template, notes_on
from burnish.data.text_documents import cut_query
from burnish.errors import ConfigError, DataError, suggestion
from burnish.types import Json, Message, Prompt, Tokenizer

_ANSWER_CUT = "conversations ended with the assistant's answer, which is not part of the prompt"
_NOTHING_LEFT = "prompts of which truncation left only the text that the chat template adds after them"
_COMMON_BEGINNING = "comparisons, where the prompt is what chosen and rejected both begin with"


ELSEWHERE = "rows of other domains"
"""Reason for leaving out rows when domains share data."""


@dataclass(frozen=True, slots=True)
class DomainRows:
    """Filter for the rows of a domain. names: all domains, if they share the data and each row names its own; None if
    all rows are of this domain."""

    domain: str
    names: Collection[str] | None = None

    @classmethod
    def of(cls, config: RlFields, domain: DomainSettings, split: Split) -> DomainRows | None:
        """The filter for a domain's rows in its data sets; None for a run without domains."""
        if domain.name is None:
            return None
        own = domain.train if split == "train" else domain.eval
        return cls(domain.name, None if own else tuple(config.domains))

    def with_domain(self, prompt: Prompt) -> Prompt | None:
        """Return the prompt if it is of this domain, None if it is of another. DataError for an unknown domain."""
        if self.names is None:
            return replace(prompt, domain=self.domain)
        if prompt.domain not in self.names:
            raise DataError(
                f"prompt {prompt.id} is of the domain {prompt.domain!r}, which is not under `domains`",
                remedy=suggestion(prompt.domain, self.names),
            )
        return prompt if prompt.domain == self.domain else None


@dataclass(frozen=True, slots=True)
class PromptSet(RowSet):
    """Prompts of all sources, with their tokens. whole_tokens: the tokens before they were cut."""

    prompts: tuple[Prompt, ...]
    prompt_tokens: tuple[tuple[int, ...], ...]
    whole_tokens: tuple[tuple[int, ...], ...]

    def asked(self) -> list[Asked]:
        """Each prompt's id and all its tokens, to find duplicates."""
        return [(prompt.id, tokens) for prompt, tokens in zip(self.prompts, self.whole_tokens, strict=True)]


def load_prompts(
    sources: Sequence[DataSource],
    *,
    tokenizer: Tokenizer,
    max_prompt_tokens: int | None = None,
    over_long: OverLong = "drop",
    chat: ChatFormat = AUTO,
    context_tokens: int | None = None,
    room: int = 1,
    query: QueryConfig | None = None,
    rows: DomainRows | None = None,
    offered: tuple[Mapping[str, Json], ...] = (),
) -> PromptSet:
    """Prompts of all sources, encoded.

    max_prompt_tokens: limit on prompts. Longer ones are dropped, truncated (keeping the end and a leading BOS) or an
    error, depending on `over_long`, and counted.
    context_tokens: length of the model's context. A prompt that leaves no room for `room` tokens of a response is
    always an error.
    query: cut a query from each row of layout `text`. Rows without one are left out and counted.
    rows: keep only the rows of a domain; there may be none.
    offered: schemas of tools that every prompt offers, in front of its row's own.
    """
    parts = [
        _source_prompts(
            _Reader(loaded, chat, rows), tokenizer, max_prompt_tokens, over_long, context_tokens, room, query, offered
        )
        for loaded in load_sources(sources, "prompts")
    ]
    # A source of shared data may have no row of this domain, or none that was kept.
    used = [(source, *part) for source, part in zip(sources, parts, strict=True) if part[0]]
    ours = [
        understanding for _, understanding in parts if understanding.kept or set(understanding.skipped) - {ELSEWHERE}
    ]
    return PromptSet(
        prompts=tuple(prompt for _, kept, _ in used for prompt, _, _ in kept),
        prompt_tokens=tuple(tokens for _, kept, _ in used for _, tokens, _ in kept),
        whole_tokens=tuple(whole for _, kept, _ in used for _, _, whole in kept),
        source_sizes=tuple(len(kept) for _, kept, _ in used),
        weights=tuple(source.weight for source, _, _ in used),
        understandings=tuple(ours),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of the prompts of one source, or of the ones that belong to a domain (`only`). skipped, changed: how many
    rows, by reason."""

    loaded: LoadedSource
    chat: ChatFormat
    only: DomainRows | None
    skipped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)

    def prompts(self) -> Iterator[tuple[Row, Prompt]]:
        """Yield the prompts with their rows."""
        for row_id, row in self.loaded.rows_with_ids():
            read = self._prompt(row_id, row)
            prompt = read if self.only is None else self.only.with_domain(read)
            if prompt is None:
                self.skipped[ELSEWHERE] += 1
            else:
                yield row, prompt

    def understanding(self, kept: int) -> Understanding:
        """Summarise the source, of whose prompts so many are used."""
        found = self.loaded.understanding(kept=kept, skipped=self.skipped, changed=self.changed)
        return found if self.only is None else replace(found, domain=self.only.domain)

    def _prompt(self, row_id: str, row: Row) -> Prompt:
        roles = self.loaded.reading.roles
        with reading_row(row.where):
            asked = self._asked(row)
            answer = value_at(row, roles["answer"], role="answer") if "answer" in roles else None
            domain, tools = self.loaded.domain_of(row), tools_at(row, roles)
            if not isinstance(asked, str):
                messages = without_last_answer(asked)
                if not any(message.role != "system" for message in messages):
                    raise DataError(f"{row.where}: the conversation asks nothing", remedy="it needs a user turn")
                if len(messages) != len(asked):
                    self.changed[_ANSWER_CUT] += 1
                asked = messages
            return replace(asked_prompt(row_id, asked, tools), answer=answer, domain=domain, columns=row.values)

    def _asked(self, row: Row) -> str | tuple[Message, ...]:
        """The prompt of a row. For a comparison, it is the one that `burnish rm` would use, in the same form."""
        loaded = self.loaded
        if loaded.reading.schema != "preference":
            return prompt_of(row, loaded.reading.roles, loaded.source)
        try:
            asked, in_turns = shared_prompt(loaded, row)
        except BadRow as error:
            raise DataError(error.message, remedy="fix or remove the row") from error
        if not has_prompt(loaded):
            self.changed[_COMMON_BEGINNING] += 1
        transcript = self.chat.chat == "always" and isinstance(asked, str) and is_transcript(asked)
        return as_turns(asked) if transcript or (in_turns and self.chat.chat == "auto") else asked


_Encoded = list[tuple[Prompt, tuple[int, ...], tuple[int, ...]]]  # (prompt, tokens, tokens before they were cut)


def _source_prompts(
    reader: _Reader,
    tokenizer: Tokenizer,
    max_prompt_tokens: int | None,
    over_long: OverLong,
    context_tokens: int | None,
    room: int,
    query: QueryConfig | None,
    offered: tuple[Mapping[str, Json], ...],
) -> tuple[_Encoded, Understanding]:
    loaded, chat, skipped, changed = reader.loaded, reader.chat, reader.skipped, reader.changed
    cuts = query if loaded.reading.schema == "text" and loaded.source.prompt_template is None else None
    kept: _Encoded = []

    def asked() -> Iterator[tuple[Row, Prompt]]:
        """Yield the prompts, as queries if documents are cut into these, with all tools that they offer."""
        for row, prompt in reader.prompts():
            cut = prompt if cuts is None else _cut_prompt(prompt, cuts, tokenizer, max_prompt_tokens, chat)
            if cut is not None:
                yield row, replace(cut, tools=(*offered, *cut.tools)) if offered else cut
            elif cuts is not None:
                skipped[_no_query_reason(cuts, max_prompt_tokens)] += 1

    for row, prompt, whole in _encoded(asked(), tokenizer, chat):
        tokens: tuple[int, ...] | None = whole
        if max_prompt_tokens is not None and len(whole) > max_prompt_tokens:
            tokens = _shorten(whole, max_prompt_tokens, over_long, row, tokenizer)
            counter = skipped if tokens is None else changed
            note = ", cut at the beginning" if over_long == "truncate" else ""
            counter[f"prompts over max_prompt_tokens ({max_prompt_tokens:,}){note}"] += 1
            if tokens is not None and _nothing_left(prompt, tokens, tokenizer, chat):
                changed[_NOTHING_LEFT] += 1
        if tokens is None:
            continue
        _check_context(tokens, context_tokens, room, row)  # after truncation, which may have made the prompt fit
        if uses_template(prompt, chat):
            changed.update(notes_on(turns_of(prompt), Template(tokenizer, chat.options, prompt.tools)))
        kept.append((prompt, tokens, whole))
    if not skipped[ELSEWHERE]:
        require_rows(kept, loaded, skipped)
    understanding = reader.understanding(len(kept))
    return kept, understanding if cuts is None else replace(understanding, query=_cut_description(cuts))


def _encoded(
    asked: Iterator[tuple[Row, Prompt]], tokenizer: Tokenizer, chat: ChatFormat
) -> Iterator[tuple[Row, Prompt, tuple[int, ...]]]:
    """The rows and prompts with their tokens, many encoded together."""
    encoder = Encoder(tokenizer)
    rows = ((row, prompt, reading_row(row.where)(written)(prompt, tokenizer, chat)) for row, prompt in asked)
    for row, prompt, text in encoder.announced(rows, lambda one: one[2:]):
        yield row, prompt, reading_row(row.where)(encoder.prompt)(prompt.id, text)


def _cut_prompt(
    prompt: Prompt, query: QueryConfig, tokenizer: Tokenizer, limit: int | None, chat: ChatFormat
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


def _shorten(
    tokens: tuple[int, ...], limit: int, over_long: OverLong, row: Row, tokenizer: Tokenizer
) -> tuple[int, ...] | None:
    if over_long == "drop":
        return None
    if over_long == "error":
        raise over_long_error(row.where, "the prompt has", len(tokens), "rollout.max_prompt_tokens", limit)
    return cut_front(tokens, limit, tokenizer.bos_token_id)


def _nothing_left(prompt: Prompt, tokens: tuple[int, ...], tokenizer: Tokenizer, chat: ChatFormat) -> bool:
    """True if truncation left nothing of the last message: another message would leave the same tokens."""
    *before, last = turns_of(prompt)
    other = replace(last, content=last.content + ("y" if last.content.endswith("x") else "x"))
    left = tokens[1:] if tokens[0] == tokenizer.bos_token_id else tokens
    asked = replace(prompt, text=None, messages=(*before, other))
    return uses_template(prompt, chat) and encode_prompt(asked, tokenizer, chat)[-len(left) :] == left


def _check_context(tokens: Sequence[int], context_tokens: int | None, room: int, row: Row) -> None:
    if context_tokens is not None and len(tokens) + room > context_tokens:
        what = "a response" if room == 1 else f"the {room:,} tokens that every response has with rollout.ignore_eos"
        raise DataError(
            f"{row.where}: the prompt has {len(tokens):,} tokens, but the model's context is {context_tokens:,}, which "
            f"leaves no room for {what}",
            remedy="lower rollout.max_prompt_tokens, or use a model with a longer context",
        )


def read_prompts(
    sources: Sequence[DataSource], of: DomainRows | None = None
) -> tuple[list[Prompt], list[Understanding]]:
    """Read the prompts of all sources (with `of`, of one domain), and summarise each source. No tokenizer is used, so
    no length limit applies."""
    readers = [_Reader(loaded, AUTO, of) for loaded in load_sources(sources, "prompts")]
    found = [[prompt for _, prompt in reader.prompts()] for reader in readers]
    summaries = [reader.understanding(len(prompts)) for reader, prompts in zip(readers, found, strict=True)]
    return list(chain.from_iterable(found)), summaries


def check_golds(domain: DomainSettings, sources: Sequence[DataSource], prompts: Sequence[Prompt]) -> None:
    """Raise DataError for a gold answer that is an object, which the reward `math` cannot compare with. The prompts
    come from the sources."""
    judges = [reward for reward in domain.rewards if reward.name == "math"]
    for prompt in prompts:
        held = prompt.answer if isinstance(prompt.answer, list) else [prompt.answer]
        gold = next((entry for entry in held if isinstance(entry, Mapping)), None)
        if gold is not None and any(reward.scores(prompt.domain) for reward in judges):
            raise _object_error(prompt, gold, sources)


def _object_error(prompt: Prompt, gold: Mapping[str, Json], sources: Sequence[DataSource]) -> DataError:
    for loaded in load_sources(sources, "prompts"):  # a prompt does not know its line
        for row_id, row in loaded.rows_with_ids():
            if row_id == prompt.id:
                column = loaded.reading.roles["answer"]
                entries = " or ".join(f"{column}.{name}" for name in gold if gold is prompt.answer)
                return DataError(
                    f"{row.where}: column {column!r} (answer) holds {describe(gold)}, with which the reward math "
                    "cannot compare a response",
                    remedy="name the entry, or the column, that holds the answer with columns: {answer: ...}"
                    + (f", such as {entries}" if entries else ""),
                )
    raise AssertionError("the prompt is of these sources")


def check_bound_rewards(config: RlFields, prompts: Sequence[Prompt]) -> None:
    """Raise ConfigError for a reward bound to a domain that no training prompt belongs to, and for prompts that no
    reward scores. Only for runs without a `domains` section, where rows name the domains: with one, the names in the
    run file have been compared with each other."""
    if config.domains or config.teaches_alone:
        return
    found = {prompt.domain for prompt in prompts}
    for reward in config.all_rewards:
        for name in (name for name in reward.domains if name not in found):
            raise ConfigError(
                f"reward {reward.log_label!r} is for the domain {name!r}, but no training prompt belongs to it",
                remedy=suggestion(name, found),
            )
    for name in sorted(found):
        if not any(reward.scores(name) for reward in config.all_rewards):
            raise ConfigError(
                f"prompts belong to the domain {name!r}, but no reward is for it",
                remedy="name it under `domains` of a reward, or leave the `domains` of a reward empty",
            )
