"""Read the rows of a `DataSource`: files, a folder, a saved data set, a name on the hub, or generated puzzles."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.config import names
from burnish.config.schema_data import DataSource
from burnish.data.files import RawRow, data_stem, data_suffix, missing_file, read_file
from burnish.data.rows import Row, hint, plain_row, reading_row
from burnish.errors import DataError
from burnish.outside.frames import can_be_read
from burnish.outside.reading import reading
from burnish.outside.supervise import start

if TYPE_CHECKING:
    from datasets import Dataset

_BATCH_ROWS = 1_000
SILENCE_SECONDS = 300.0
"""Longest time that the process may take to start, and for each row. The slowest tasks take about a second a row."""


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one source. `unreadable_columns` have no JSON form (images, audio) and were left out."""

    rows: tuple[Row, ...]
    unreadable_columns: tuple[str, ...] = ()


def read_table(source: DataSource) -> Table:
    """The rows of a source, up to its `limit`. DataError if it cannot be read or is empty."""
    rows: list[Row] = []
    left_out: dict[str, None] = {}
    with reading(f"{source.path}: reading the data set", remedy="check the path, or write the data set again"):
        suffix = ".jsonl" if source.reasoning_gym else _suffix(_place(source), source.split)
        typed, only_text = suffix in ("", ".parquet"), suffix == ".csv"
        for number, (where, raw) in enumerate(islice(_raw_rows(source), source.limit)):
            with reading_row(where):
                values, unreadable = plain_row(raw)
            left_out.update(dict.fromkeys(unreadable))
            rows.append(Row(number, where, values, typed, only_text))
    if not rows:
        raise DataError(f"{source.path}: the data set is empty", remedy="check the path and the split")
    return Table(tuple(rows), tuple(left_out))


def _place(source: DataSource) -> Path:
    """The path of a file or folder; of a folder's subset, the folder in it. DataError if there is none."""
    path = Path(source.path).expanduser()
    if source.subset is None or not path.is_dir():
        return path
    if not (path / source.subset).is_dir():
        raise missing_file(path / source.subset)
    return path / source.subset


def _suffix(path: Path, split: str) -> str:
    """The suffix of the files that hold the rows; empty for rows from Arrow."""
    if not path.is_dir():
        return data_suffix(path)
    return "" if _is_saved(path) else data_suffix(_files_of_split(path, split)[0])


def needs_download(source: DataSource) -> bool:
    """Return whether the path names a data set on the hub rather than a path on this machine."""
    if source.reasoning_gym is not None:
        return False
    path = Path(source.path).expanduser()
    is_local = path.is_dir() or path.is_file() or data_suffix(path) != ""
    return not is_local and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source.path) is not None


def source_names(sources: Sequence[DataSource]) -> list[str]:
    """A short, unique name per source. Prompt ids begin with it, so it depends only on the run file."""
    names = [short_name(source) for source in sources]
    # Equal names get their parent folder; names that are still equal are numbered.
    names = [
        short_name(source, parents=1) if names.count(name) > 1 else name
        for source, name in zip(sources, names, strict=True)
    ]
    return [f"{name}#{names[:i].count(name) + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def short_name(source: DataSource, *, parents: int = 0) -> str:
    """The name of the file or data set, behind so many parent folders."""
    path = Path(source.path)
    if data_suffix(path):
        return "/".join((*path.parts[-1 - parents : -1], data_stem(path)))
    parts = [*path.parts[-1 - parents :], *([source.subset] if source.subset else [])]
    if source.split != "train":
        parts.append(source.split)
    return "/".join(part for part in parts if part != "/")


def _raw_rows(source: DataSource) -> Iterator[RawRow]:
    if source.reasoning_gym is not None:
        return puzzle_rows(source)
    path = _place(source)
    if path.is_dir():
        return _folder_rows(path, source)
    if needs_download(source):
        return _hub_rows(source)
    return _single_file(path, source)


def _single_file(path: Path, source: DataSource) -> Iterator[RawRow]:
    """The rows of a single file. It has no splits or subsets, so choosing one is an error."""
    for name, chosen in (("split", None if source.split == "train" else source.split), ("subset", source.subset)):
        if chosen is not None and path.is_file():
            raise DataError(
                f"{path}: {name} is {chosen!r}, but this is a single file, which would be read whole",
                remedy=f"remove {name}, or name the file that holds it",
            )
    return _file_rows(path, source)


def _file_rows(path: Path, source: DataSource) -> Iterator[RawRow]:
    return read_file(path, document_separator=source.document_separator, max_bytes=source.max_bytes)


def _folder_rows(folder: Path, source: DataSource) -> Iterator[RawRow]:
    if _is_saved(folder):
        return _saved_rows(folder, source)
    files = _files_of_split(folder, source.split)
    return (row for file in files for row in _file_rows(file, source))


def _is_saved(folder: Path) -> bool:
    """Return whether the folder was written by `save_to_disk` of `datasets`."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _files_of_split(folder: Path, split: str) -> list[Path]:
    """Data files in a folder (and its `data` folder) whose names contain the split; all if no name contains one."""
    found = [file for place in (folder, folder / "data") for file in sorted(place.glob("*")) if data_suffix(file)]
    found += [file for file in sorted((folder / split).glob("*")) if data_suffix(file)]
    if not found:
        raise DataError(f"{folder}: the folder has no data file", remedy="name a file, or another folder")
    chosen = [file for file in found if _names_split(file, split) or file.parent == folder / split]
    if not chosen and split == "train" and not any(_names_split(file, word) for file in found for word in _SPLITS):
        chosen = found
    if not chosen:
        names = ", ".join(str(file.relative_to(folder)) for file in found[:8])
        raise DataError(
            f"{folder}: no data file for split {split!r}; the files are {names}",
            remedy="set split, or name the file itself",
        )
    if len({data_suffix(file) for file in chosen}) > 1:
        names = ", ".join(str(file.relative_to(folder)) for file in chosen[:8])
        raise DataError(f"{folder}: files of different formats for split {split!r}: {names}", remedy="name one file")
    return chosen


_SPLITS = ("train", "test", "valid", "validation", "eval", "dev")


def _names_split(file: Path, split: str) -> bool:
    return re.search(rf"(^|[-_.]){re.escape(split)}([-_.]|$)", data_stem(file)) is not None


def _saved_rows(folder: Path, source: DataSource) -> Iterator[RawRow]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}: the saved data set cannot be read: {error}", remedy="save it again") from error
    if isinstance(saved, datasets.DatasetDict):
        if source.split not in saved:
            raise DataError(
                f"{folder}: no split {source.split!r}; the splits are {', '.join(saved)}{hint(source.split, saved)}",
                remedy="set split",
            )
        saved = saved[source.split]
    elif source.split not in ("train", str(saved.split)):
        raise DataError(
            f"{folder}: this saved data set has no splits, but split is {source.split!r}", remedy="remove split"
        )
    return _numbered(str(folder), saved)


def _numbered(name: str, rows: Dataset) -> Iterator[RawRow]:
    """The rows as they are stored. Decoding pictures and sounds, which are refused, would need further packages."""
    batches = rows.with_format("arrow").iter(batch_size=_BATCH_ROWS)
    return (
        (f"{name}, row {number}", row) for number, row in enumerate(r for batch in batches for r in batch.to_pylist())
    )


def _hub_rows(source: DataSource) -> Iterator[RawRow]:
    import datasets

    try:
        loaded = datasets.load_dataset(source.path, source.subset, split=source.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        local_remedy = missing_file(Path(source.path)).remedy
        raise DataError(
            f"{source.path}: no local file or folder, and the hub data set (subset {source.subset!r}, split "
            f"{source.split!r}) cannot be loaded: {error}",
            remedy=f"check path, subset, split and the network; if it should be local: {local_remedy}",
        ) from error
    return _numbered(source.path, loaded)


def puzzle_rows(source: DataSource) -> Iterator[RawRow]:
    """The rows of a source with `reasoning_gym`, up to its limit: question, answer, metadata, domain, and in the column
    `reasoning_gym` the task and its parameters."""
    count = source.size if source.limit is None else min(source.size, source.limit)
    asked = {"tasks": source.reasoning_gym, "size": source.size, "seed": source.seed, "count": count}
    for number, line in enumerate(_lines(json.dumps(asked))):
        row = json.loads(line)
        if "error" in row:
            raise DataError(row["error"], remedy=row["remedy"])
        task = row.pop("task")
        made_by = {"task": task, "parameters": row.pop("parameters")}
        yield f"{source.path}, row {number} ({task})", {**row, "domain": task, names.PUZZLES: made_by}


def _lines(asked: str) -> Iterator[bytes]:
    """Yield the output of the process line by line. DataError if it dies or falls silent."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "burnish.data.puzzles"]
    reading, writing = os.pipe()
    with open(reading, "rb"), tempfile.TemporaryFile() as given:
        given.write(asked.encode())
        given.seek(0)
        with open(writing, "wb"):
            process = start(command, stdin=given, stdout=writing, environment=environment)
        try:
            rest = b""
            while part := _part(reading):
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
            if (status := process.status(SILENCE_SECONDS)) != 0:  # None: it has closed its output, and goes on
                raise DataError(
                    f"the process that makes the rows of reasoning_gym has ended with status {status}",
                    remedy="what it printed says why",
                )
        finally:
            process.end()


def _part(descriptor: int) -> bytes:
    if not can_be_read(descriptor, SILENCE_SECONDS):
        raise DataError(
            f"reasoning_gym has made no row for {SILENCE_SECONDS:.0f} seconds",
            remedy="choose easier parameters, or remove the task that takes so long",
        )
    return os.read(descriptor, 1 << 20)
