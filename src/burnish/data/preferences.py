"""Load comparisons from data sources, for `burnish rm` and `burnish prefer` (`load_preferences`)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from burnish.config.schema_data import DataSource
from burnish.data.chat import Encoder
from burnish.data.loaded_sources import LoadedSource, RowSet, Understanding, load_sources, require_rows
from burnish.data.overlap import Asked
from burnish.data.preference_rows import BadRow, PreferenceRow, PreferenceRules, read_row
from burnish.data.preference_tokens import (
    PreferenceExample,
    encode_preference,
    fitted,
    goes_through_template,
    plain_texts,
)
from burnish.data.rows import over_long_error, reading_row
from burnish.data.template import ChatFormat, refuse_unused_options
from burnish.errors import ConfigError, DataError
from burnish.types import Tokenizer

if TYPE_CHECKING:
    from burnish.config.schema_rm import ComparedFields


@dataclass(frozen=True, slots=True)
class PreferenceSet(RowSet):
    """Comparisons of all sources."""

    examples: tuple[PreferenceExample, ...]

    def asked(self) -> list[Asked]:
        """The prompt of each comparison, before it was cut."""
        return [(example.id, example.whole_prompt or example.prompt_tokens) for example in self.examples]

    def last_tokens(self) -> Counter[int]:
        """The last tokens of all responses."""
        return Counter(tokens[-1] for example in self.examples for tokens in example.responses_tokens)

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
    """Flip a biased coin that gives the same side for every row of a conversation, on every machine."""
    digest = hashlib.sha256(f"{seed}:{conversation}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def load_preferences(
    sources: Sequence[DataSource], config: ComparedFields, *, tokenizer: Tokenizer, max_tokens: int
) -> PreferenceSet:
    """Comparisons of all sources, read and encoded as the run file says.

    max_tokens: limit on a prompt together with its longest response. Longer comparisons are dropped, truncated or an
    error (`data.over_long`), and counted. Truncation removes the beginning of the prompt first (except a leading BOS),
    then the end of the responses.
    """
    loaded, templated = load_sources(sources, "preferences"), Counter[str]()
    parts = [_source_examples(one, config, tokenizer, max_tokens, templated) for one in loaded]
    refuse_unused_options(ChatFormat.of(config.data), applied=templated.total())
    if config.label_pad_token_id is not None and all(part[1].reading.schema != "token_labels" for part in parts):
        raise ConfigError(
            f"label_pad_token_id is {config.label_pad_token_id}, but no source of the data holds token ids",
            remedy="remove it (it names the padding of label files: query, sample0, sample1, best)",
        )
    return PreferenceSet(
        examples=tuple(example for part in parts for example in part[0]),
        source_sizes=tuple(len(part[0]) for part in parts),
        weights=tuple(source.weight for source in sources),
        understandings=tuple(part[1] for part in parts),
    )


def count_comparisons(sources: Sequence[DataSource], config: ComparedFields) -> int:
    """Count the comparisons that `load_preferences` would find, with its errors, as far as that needs no tokenizer."""
    rules, skipped = PreferenceRules(config.candidates), Counter[str]()
    found = (_comparisons(one, rules, config, skipped) for one in load_sources(sources, "preferences"))
    return sum(1 for rows in found for _ in rows)


def _source_examples(
    loaded: LoadedSource, config: ComparedFields, tokenizer: Tokenizer, max_tokens: int, templated: Counter[str]
) -> tuple[list[PreferenceExample], Understanding]:
    kept: list[PreferenceExample] = []
    skipped: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    chat, over_long = ChatFormat.of(config.data), config.data.over_long
    reason = f"comparisons over max_tokens ({max_tokens:,})"
    rules, encoder = PreferenceRules(config.candidates, tokenizer, config.label_pad_token_id), Encoder(tokenizer)
    for read in encoder.announced(_comparisons(loaded, rules, config, skipped), partial(plain_texts, chat=chat)):
        templated[loaded.source.path] += goes_through_template(read, chat)
        try:
            with reading_row(read.where):
                example = encode_preference(read, encoder, chat, changed, append_eos=config.append_eos)
        except BadRow as error:
            _leave_out(error, config, skipped)
            continue
        longest = example.longest()
        if longest > max_tokens:
            if over_long == "error":
                raise over_long_error(read.where, "prompt and response have", longest, "max_tokens", max_tokens)
            if over_long == "drop":
                skipped[reason] += 1
                continue
            example = fitted(example, max_tokens, bos_token_id=tokenizer.bos_token_id)
            if len(set(example.responses_tokens)) < len(example.responses_tokens):
                skipped[f"{reason}, equal before the cut"] += 1
                continue
            changed[f"{reason}, cut at the beginning of the prompt"] += 1
        kept.append(example)
    require_rows(kept, loaded, skipped)
    return kept, loaded.understanding(kept=len(kept), skipped=skipped, changed=changed)


def _comparisons(
    loaded: LoadedSource, rules: PreferenceRules, config: ComparedFields, skipped: Counter[str]
) -> Iterator[PreferenceRow]:
    """Yield the rows to learn from, and count the others in `skipped`."""
    for row_id, row in loaded.rows_with_ids():
        try:
            with reading_row(row.where):
                read = read_row(loaded, row_id, row, rules)
        except BadRow as error:
            _leave_out(error, config, skipped)
            continue
        rules = rules.after(read)
        if read.tie and config.ties == "error":
            raise DataError(
                f"{read.where}: the responses are tied, so none is the best",
                remedy="set ties: drop to leave such rows out, or ties: half to train on them as half a win for each",
            )
        if read.tie and config.ties == "drop":
            skipped["tied"] += 1
            continue
        yield read


def _leave_out(error: BadRow, config: ComparedFields, skipped: Counter[str]) -> None:
    """Count a bad row or raise its error, as the run file says."""
    if config.bad_rows == "error":
        raise error
    skipped[error.reason] += 1
