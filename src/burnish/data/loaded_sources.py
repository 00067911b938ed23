"""Loaded data sources: their rows, layout and ids, shared by prompts, examples and comparisons."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from burnish.config.schema_data import DataSource
from burnish.data.rows import Row, describe, value_at, wrong_value
from burnish.data.samplers import PromptSampler
from burnish.data.schemas import Purpose, Reading, recognise
from burnish.data.sources import Table, read_table, short_name, source_names
from burnish.errors import DataError

OverLong = Literal["drop", "truncate", "error"]
_MEDIA = re.compile(r"(image|video|audio)s?(_\d+)?|multi_?modal_\w+", re.IGNORECASE)
_RATINGS = ("label", "kto_tag", "desirable", "rating", "score", "quality", "reward")
_OF_PROMPTS = re.compile(
    r"article|background|body|choices|context|conversations?|dialogue|document|functions|(\w+_)?history|hypothesis|input|"
    r"instruction|messages|options|passage|persona|premise|problem|prompt|query|question|story|system(_\w+)?|tools|"
    r"(image|picture|photo|video|audio)s?(_\w+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Understanding:
    """Summary of how one source was read. `skipped` and `changed` count rows by reason."""

    source: DataSource
    reading: Reading
    rows: int
    kept: int
    domain: str | None
    share: float | None
    skipped: Mapping[str, int]
    changed: Mapping[str, int]
    columns_left_out: tuple[str, ...]
    hints: tuple[str, ...] = ()
    query: str | None = None

    def lines(self) -> list[str]:
        """The description as lines of text. The first one names the source."""
        source, reading = self.source, self.reading
        used = f"{self.kept:,} of {self.rows:,} rows used" if self.kept != self.rows else f"{self.rows:,} rows"
        lines = [f"{source.path}: {used}, layout {reading.schema}"]
        lines.append("  " + ", ".join(f"{role} <- {column}" for role, column in reading.roles.items()))
        if self.domain is not None:
            lines.append(f"  domain: {self.domain}")
        for label, value in (("prompt template", source.prompt_template), ("system prompt", source.system_prompt)):
            if value is not None:
                lines.append(f"  {label}: {value!r}")
        if self.query is not None:
            lines.append(f"  prompts are queries cut from the documents, {self.query}")
        if source.limit is not None:
            lines.append(f"  limited to the first {source.limit:,} rows")
        if self.share is not None:
            lines.append(f"  share of the mixture: {self.share:.1%}")
        lines += [f"  left out: {count:,} {reason}" for reason, count in self.skipped.items() if count]
        lines += [f"  changed: {count:,} {reason}" for reason, count in self.changed.items() if count]
        lines += [f"  {hint}" for hint in self.hints]
        if self.columns_left_out:
            lines.append(f"  columns without text or numbers, not loaded: {', '.join(self.columns_left_out)}")
        return [line for line in lines if line.strip()]


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """The rows of one source and how they are read.

    The ids of its rows begin with `name`. `own_domain`, the name of the file, is the domain of rows without one.
    `share` is the source's part of the mixture, None if it is the only source.
    """

    source: DataSource
    name: str
    table: Table
    reading: Reading
    share: float | None
    own_domain: str
    purpose: Purpose

    def understanding(self, *, kept: int, skipped: Counter[str], changed: Counter[str]) -> Understanding:
        return Understanding(
            self.source,
            self.reading,
            rows=len(self.table.rows),
            kept=kept,
            domain=self.fixed_domain(),
            share=self.share,
            skipped=dict(skipped),
            changed=dict(changed),
            columns_left_out=self.table.unreadable_columns,
            hints=tuple(f"not used, but looks like {hint}" for hint in self._hints()),
        )

    def _hints(self) -> Iterator[str]:
        """Say what columns without a role look like, if they hold more than one value."""
        rows, roles = self.table.rows, self.reading.roles
        if unused := _unused_parts(rows, roles, self.source.prompt_template):
            yield f"part of the prompt: {', '.join(unused)}"
        for name in _RATINGS if self.purpose == "examples" else ():
            values = {value for row in rows if isinstance(value := row.values.get(name), (int, float))}
            if len(values) > 1 and name not in roles.values():
                yield f"a rating: {name} (all rows are learned alike: remove bad ones, or set columns: {{weight: ...}})"
        if len({str(row.values.get("data_source")) for row in rows}) > 1 and self.fixed_domain() == self.own_domain:
            yield "the domain: data_source (set columns: {domain: data_source})"

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
            remedy = "set domain for the source, or columns: {domain: ...}"
            raise wrong_value(row, self.reading.roles["domain"], "domain", value, "a name", remedy=remedy)
        return self.own_domain if value is None or value == "" else str(value)

    def id_of(self, row: Row) -> str:
        """`<source name>:<row number>`, or the id column's value in place of the number."""
        if "id" not in self.reading.roles:
            return f"{self.name}:{row.number}"
        value = value_at(row, self.reading.roles["id"], role="id")
        if not isinstance(value, (str, int)) or value == "":
            remedy = "name a column of unique ids, or none (then row numbers are used)"
            raise wrong_value(row, self.reading.roles["id"], "id", value, "text or a number", remedy=remedy)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSet:
    """Rows of all sources, one source after another. Source i has `source_sizes[i]`, drawn with weight `weights[i]`."""

    source_sizes: tuple[int, ...]
    weights: tuple[float, ...]
    understandings: tuple[Understanding, ...] = ()

    def __len__(self) -> int:
        return sum(self.source_sizes)

    def sampler(self, *, seed: int, shuffle: bool = True) -> PromptSampler:
        """The resumable order in which rows are drawn, by their number."""
        return PromptSampler(self.source_sizes, self.weights, seed=seed, shuffle=shuffle)

    def lines(self) -> list[str]:
        """Lines for the command line that say how each source was read."""
        return [line for understanding in self.understandings for line in understanding.lines()]


def load_sources(sources: Sequence[DataSource], purpose: Purpose) -> list[LoadedSource]:
    """Rows and layouts of all sources. DataError if there is no source, or one cannot be read or recognised."""
    if not sources:
        raise DataError("no data set is given", remedy="set data.train (or data.eval) to a path")
    total = sum(source.weight for source in sources)
    loaded = []
    for source, name in zip(sources, source_names(sources), strict=True):
        table = read_table(source)
        _check_media(table.rows)
        reading = recognise(table.rows, source, purpose)
        share = source.weight / total if len(sources) > 1 else None
        loaded.append(LoadedSource(source, name, table, reading, share, short_name(source), purpose))
    return loaded


def require_rows(kept: Sequence[object], loaded: LoadedSource, skipped: Counter[str]) -> None:
    """Raise DataError if every row of a source was left out."""
    if not kept:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        raise DataError(
            f"{loaded.source.path}: none of {len(loaded.table.rows):,} rows can be used: {reasons}",
            remedy="raise the limit on tokens, or set data.over_long: truncate",
        )


def _check_media(rows: Sequence[Row]) -> None:
    """Raise DataError for a row with a picture, a video or a sound: its prompt would be trained on without it."""
    for row in rows:
        for name, value in row.values.items():
            if _is_filled(value) and (_MEDIA.fullmatch(name) or _is_stored_medium(value)):
                raise DataError(
                    f"{row.where}: column {name!r} holds pictures, video or sound, which Burnish does not read: "
                    f"{describe(value)}",
                    remedy="leave such rows out, or remove the column to learn the text alone",
                )


def _unused_parts(rows: Sequence[Row], roles: Mapping[str, str], template: str | None) -> list[str]:
    """Columns that look like part of the prompt and have no role, unless a used column already holds their text."""
    first = rows[0].values
    used = {column.partition(".")[0] for column in roles.values()}
    known = json.dumps([first.get(column) for column in used])
    names = dict.fromkeys(name for row in rows for name in row.values if _OF_PROMPTS.fullmatch(name))
    return [
        name
        for name in names
        if name not in used and f"{{{name}" not in (template or "")
        if any(_is_filled(row.values.get(name)) for row in rows)
        if not (isinstance(first.get(name), str) and json.dumps(first[name])[1:-1] in known)
    ]


def _is_filled(value: object) -> bool:
    return any(map(_is_filled, value)) if isinstance(value, list) else isinstance(value, (str, Mapping)) and bool(value)


def _is_stored_medium(value: object) -> bool:
    """True if the value is a picture or sound as tables store them (`bytes` and `path`), or a list of such."""
    first = value[0] if isinstance(value, list) else value
    return isinstance(first, Mapping) and set(first) == {"bytes", "path"} and any(first.values())
