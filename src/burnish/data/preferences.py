"""Load comparisons from data sources, for `burnish rm` (`load_preferences`)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from burnish.config.schema_data import DataSource
from burnish.data.chat import AUTO
from burnish.data.loaded_sources import LoadedSource, OverLong, RowSet, Understanding, load_sources, require_rows
from burnish.data.overlap import Asked
from burnish.data.preference_rows import BadRow, PreferenceRow, RowRules, read_row
from burnish.data.preference_tokens import PreferenceExample, encode_preference, fitted
from burnish.data.rows import reading_row
from burnish.data.template import ChatFormat
from burnish.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ties = Literal["error", "drop", "half"]
BadRows = Literal["error", "drop"]


@dataclass(frozen=True, slots=True)
class PreferenceSet(RowSet):
    """Comparisons of all sources."""

    examples: tuple[PreferenceExample, ...]

    def asked(self) -> list[Asked]:
        """The prompt of each comparison."""
        return [(example.id, example.prompt_tokens) for example in self.examples]

    def split(self, held_out_fraction: float, *, seed: int) -> tuple[PreferenceSet, PreferenceSet]:
        """(training, held out), split by conversation.

        Rows that begin with the same question stay together, so that no question is in both parts. The side of a
        conversation depends only on its first question and the seed. Raises DataError if a source has nothing on one
        side.
        """
        sides = [is_held_out(example.conversation, held_out_fraction, seed=seed) for example in self.examples]
        parts = [self._part(sides, held_out=held_out) for held_out in (False, True)]
        for part, name in zip(parts, ("training", "held-out"), strict=True):
            if 0 in part.source_sizes:
                raise DataError(
                    f"held_out_fraction {held_out_fraction:g} leaves no {name} comparison in a source",
                    remedy="use more data, another fraction, or data.eval",
                )
        return parts[0], parts[1]

    def _part(self, sides: Sequence[bool], *, held_out: bool) -> PreferenceSet:
        sizes, start = [], 0
        for size in self.source_sizes:
            sizes.append(sum(side is held_out for side in sides[start : start + size]))
            start += size
        kept = tuple(example for example, side in zip(self.examples, sides, strict=True) if side is held_out)
        return PreferenceSet(kept, source_sizes=tuple(sizes), weights=self.weights)


def is_held_out(conversation: str, fraction: float, *, seed: int) -> bool:
    """A biased coin that falls the same way for every row of a conversation, on every machine."""
    digest = hashlib.sha256(f"{seed}:{conversation}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def load_preferences(
    sources: Sequence[DataSource],
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int | None = None,
    over_long: OverLong = "drop",
    chat: ChatFormat = AUTO,
    candidates: int | None = None,
    ties: Ties = "error",
    bad_rows: BadRows = "error",
    append_eos: bool = True,
    label_pad_token_id: int | None = None,
) -> PreferenceSet:
    """Comparisons of all sources, encoded.

    max_tokens: limit on a prompt together with its longest response. Longer comparisons are dropped, truncated or an
    error (`over_long`), and counted. Truncation removes the beginning of the prompt first (except a leading BOS), then
    the end of the responses.
    candidates: number of responses that each row must have (None: as many as the first row of its source).
    bad_rows: whether rows with equal or empty responses raise DataError with file and line, or are dropped and counted.
    """
    rules = RowRules(candidates=candidates, tokenizer=tokenizer, label_pad_token_id=label_pad_token_id)
    limits = _Limits(tokenizer, max_tokens, over_long, chat, ties, bad_rows, append_eos)
    parts = [_source_examples(loaded, rules, limits) for loaded in load_sources(sources, "preferences")]
    return PreferenceSet(
        examples=tuple(example for part in parts for example in part[0]),
        source_sizes=tuple(len(part[0]) for part in parts),
        weights=tuple(source.weight for source in sources),
        understandings=tuple(part[1] for part in parts),
    )


def count_comparisons(
    sources: Sequence[DataSource], *, candidates: int | None = None, ties: Ties = "error", bad_rows: BadRows = "error"
) -> int:
    """Number of comparisons that `load_preferences` would find, and its errors, as far as that needs no tokenizer."""
    rules, skipped = RowRules(candidates=candidates), Counter[str]()
    found = (_comparisons(one, rules, ties, bad_rows, skipped) for one in load_sources(sources, "preferences"))
    return sum(1 for rows in found for _ in rows)


@dataclass(frozen=True, slots=True)
class _Limits:
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int | None
    over_long: OverLong
    chat: ChatFormat
    ties: Ties
    bad_rows: BadRows
    append_eos: bool


def _source_examples(
    loaded: LoadedSource, rules: RowRules, limits: _Limits
) -> tuple[list[PreferenceExample], Understanding]:
    kept: list[PreferenceExample] = []
    skipped: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for read in _comparisons(loaded, rules, limits.ties, limits.bad_rows, skipped):
        with reading_row(read.where):
            example = encode_preference(read, limits.tokenizer, limits.chat, append_eos=limits.append_eos)
        fitting = _fit(example, read, limits, skipped, changed)
        if fitting is not None:
            kept.append(fitting)
    require_rows(kept, loaded, skipped)
    return kept, loaded.understanding(kept=len(kept), skipped=skipped, changed=changed)


def _comparisons(
    loaded: LoadedSource, rules: RowRules, ties: Ties, bad_rows: BadRows, skipped: Counter[str]
) -> Iterator[PreferenceRow]:
    """The rows to learn from. Those that are left out are counted in `skipped`."""
    for row_id, row in loaded.rows_with_ids():
        try:
            with reading_row(row.where):
                read = read_row(loaded, row_id, row, rules)
        except BadRow as error:
            if bad_rows == "error":
                raise
            skipped[error.reason] += 1
            continue
        rules = rules.after(read)
        if read.tie and ties == "error":
            raise DataError(
                f"{read.where}: the responses are tied, so none is the best",
                remedy="set ties: drop to leave such rows out, or ties: half to train on them as half a win for each",
            )
        if read.tie and ties == "drop":
            skipped["tied"] += 1
            continue
        yield read


def _fit(
    example: PreferenceExample,
    read: PreferenceRow,
    limits: _Limits,
    skipped: Counter[str],
    changed: Counter[str],
) -> PreferenceExample | None:
    """The example within the limit, or None if it is dropped."""
    limit = limits.max_tokens
    if limit is None or example.longest() <= limit:
        return example
    reason = f"comparisons over max_tokens ({limit:,})"
    if limits.over_long == "error":
        raise DataError(
            f"{read.where}: prompt and response have {example.longest():,} tokens, over max_tokens {limit:,}",
            remedy="raise max_tokens, or set data.over_long to drop or truncate",
        )
    if limits.over_long == "drop":
        skipped[reason] += 1
        return None
    cut = fitted(example, limit, bos_token_id=limits.tokenizer.bos_token_id)
    if len(set(cut.responses_tokens)) < len(cut.responses_tokens):
        skipped[f"{reason}, equal before the cut"] += 1
        return None
    changed[f"{reason}, cut at the beginning of the prompt"] += 1
    return cut
