"""Read rows from files: JSONL, JSON, CSV, Parquet and plain text, optionally gzipped. Errors name file and line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.data.rows import describe
from burnish.data.text_documents import split_documents
from burnish.errors import DataError, nearest
from burnish.outside.reading import file_problem, read_at_most, reading, reason_of, strict_json

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".txt")
# A CSV cell may hold a whole document; the csv module's own limit is 128 KiB.
_MAX_CSV_FIELD_CHARACTERS = 2**31 - 1
_MAX_BYTES = 1_000_000_000

RawRow = tuple[str, Mapping[str, Any]]  # (its place, `file:line` or `file, row n`; its values as in the file)


def data_suffix(path: Path) -> str:
    """The suffix that names the format, without `.gz`; empty for an unknown format."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def data_stem(path: Path) -> str:
    """File name without the format's suffix and `.gz`."""
    name = path.name[: -len(".gz")] if path.name.lower().endswith(".gz") else path.name
    return name[: -len(suffix)] if (suffix := data_suffix(path)) else name


def read_file(path: Path, *, document_separator: str | None = None, max_bytes: int = _MAX_BYTES) -> Iterator[RawRow]:
    """The rows of one file, in order.

    Raises DataError if the file is missing, broken, not a regular file, in an unknown format, or larger than
    `max_bytes` (unpacked).
    """
    problem = file_problem(path)
    if problem is not None and problem.startswith("does not exist"):
        raise missing_file(path)
    if problem is not None:
        raise DataError(f"{str(path)!r} {problem}", remedy="check data paths: name a regular file or a folder")
    suffix = data_suffix(path)
    if not suffix:
        raise DataError(
            f"{path}: the file name does not show the format",
            remedy=f"use one of {', '.join(SUFFIXES)}, optionally followed by .gz",
        )
    if document_separator is not None and suffix != ".txt":
        raise DataError(
            f"{path}: document_separator is for .txt files, but this is {suffix}", remedy="remove document_separator"
        )
    return _rows(path, suffix, document_separator, max_bytes)


def _rows(path: Path, suffix: str, separator: str | None, max_bytes: int) -> Iterator[RawRow]:
    with reading(f"{path}: reading it as {suffix}", remedy="write the file again, or leave it out"):
        if suffix == ".parquet":
            yield from _read_parquet(path, max_bytes)
        elif suffix == ".txt":
            yield from _read_text(path, _read_str(path, max_bytes), separator)
        else:
            yield from _READERS[suffix](path, _read_str(path, max_bytes))


def missing_file(path: Path) -> DataError:
    """The error for a path that does not exist, with the sibling that was probably meant."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    siblings = sorted(item.name for item in parent.iterdir())
    wanted = path.relative_to(parent).parts[0]
    near = nearest(wanted, siblings)
    hint = f"did you mean {str(parent / near)!r}?" if near else f"{parent} holds {', '.join(siblings[:8]) or 'nothing'}"
    return DataError(f"{path}: no such file or folder", remedy=f"check data paths; {hint}")


def _read_bytes(path: Path, max_bytes: int) -> bytearray:
    """The content, unpacked. Reading stops shortly after `max_bytes`, so a zip bomb cannot fill the memory."""
    packed = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as stream:
            content = read_at_most(stream, max_bytes)
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", remedy="change its permissions") from error
    except (OSError, EOFError, zlib.error) as error:
        what = "cannot be read as gzip" if packed else "cannot be read"
        raise DataError(f"{path}: {what}: {error}", remedy="check the file, or write it again") from error
    if len(content) > max_bytes:
        raise too_large(path, "unpacked, " if packed else "", max_bytes)
    return content


def too_large(path: Path, how: str, max_bytes: int) -> DataError:
    """The error for a file above the limit. `how` says how its bytes are counted."""
    return DataError(
        f"{path}: {how}it has more than max_bytes ({max_bytes:,} bytes)",
        remedy="raise max_bytes of this source (data.train.0.max_bytes) if memory allows, or split the file",
    )


def _read_str(path: Path, max_bytes: int) -> str:
    content = _read_bytes(path, max_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # If there is a byte order mark, `error.start` refers to a copy of the bytes without it: `error.object`.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: not UTF-8 text (byte {error.object[error.start]:#04x})", remedy="convert the file to UTF-8"
        ) from error


def _json_lines(path: Path, text: str) -> Iterator[RawRow]:
    # Not str.splitlines, which also splits at U+2028 and similar characters: JSON strings may contain them.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            values = parse_json(line, where)
        except json.JSONDecodeError as error:
            raise _malformed(where, error, "fix or remove this line; each line must be one JSON object") from error
        yield where, _object(values, where)


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text, more strictly than `json.loads`.

    Raises JSONDecodeError for malformed text, and DataError for what Python accepts but cannot be kept faithfully:
    repeated keys, NaN, numbers that overflow, extreme nesting, lone surrogates.
    """
    try:
        values = strict_json(text)
        if "\\u" in text:  # only an escape can give a lone surrogate, which fails to encode
            json.dumps(values, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except UnicodeEncodeError as error:
        surrogate = f"\\u{ord(error.object[error.start]):04x}"
        raise DataError(
            f"{where}: {surrogate} is half a character (a lone surrogate), near {_near(error.object, error.start)}",
            remedy="remove it, or write the whole pair",
        ) from error
    except (RecursionError, ValueError) as error:
        why = "lists or objects are nested too deeply" if isinstance(error, RecursionError) else error
        raise DataError(f"{where}: malformed JSON: {why}", remedy="fix or remove it") from error
    return values


def _malformed(where: str, error: json.JSONDecodeError, remedy: str) -> DataError:
    place = f"at column {error.colno}, near {_near(error.doc, error.pos)}"
    return DataError(f"{where}: malformed JSON: {error.msg} {place}", remedy=remedy)


def _near(line: str, position: int) -> str:
    return repr(line[max(0, position - 20) : position + 20])


def _object(values: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise DataError(f"{where}: expected a JSON object with columns, found {describe(values)}", remedy="fix the row")
    return values


def _read_json(path: Path, text: str) -> Iterator[RawRow]:
    try:
        whole = parse_json(text, str(path))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            # Many published data sets are JSON lines in a file called .json.
            return _json_lines(path, text)
        remedy = "fix the file: a list of objects, or one object per line"
        raise _malformed(f"{path}:{error.lineno}", error, remedy) from error
    if isinstance(whole, dict) and len(text.strip().splitlines()) == 1:
        whole = [whole]
    if not isinstance(whole, list):
        raise DataError(
            f"{path}: expected a list of objects, found {describe(whole)}", remedy="save it as [{...}, ...]"
        )
    return ((f"{path}, row {number}", _object(item, f"{path}, row {number}")) for number, item in enumerate(whole))


def _read_csv(path: Path, text: str) -> Iterator[RawRow]:
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}:{line}: malformed CSV: it contains a NUL character", remedy="write the file as UTF-8")
    csv.field_size_limit(_MAX_CSV_FIELD_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = _csv_header(path, reader)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: malformed CSV: {error}", remedy="fix the quoting") from error
        if cells is None:
            return
        if not cells:
            continue
        where = f"{path}:{reader.line_num}"
        if len(cells) != len(header):
            raise DataError(
                f"{where}: {len(cells)} fields, but the header names {len(header)} ({', '.join(header)})",
                remedy="fix the line; fields with commas or line breaks need double quotes",
            )
        yield where, dict(zip(header, cells, strict=True))


def _csv_header(path: Path, reader: Iterable[list[str]]) -> list[str]:
    header = next(iter(reader), [])
    _refuse_repeats(f"{path}:1", header)
    if len(header) == 1 and (sign := next((sign for sign in ";\t" if sign in header[0]), "")):
        raise DataError(
            f"{path}:1: the header {header[0]!r} has {sign!r}, not commas", remedy="separate columns by commas"
        )
    return header


def _refuse_repeats(where: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where}: it names {', '.join(twice)} twice", remedy="give each column its own name")


def _read_parquet(path: Path, max_bytes: int) -> Iterator[RawRow]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    packed = path.name.lower().endswith(".gz")
    number = num_bytes = 0
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(_read_bytes(path, max_bytes)) if packed else str(path))
        _refuse_repeats(str(path), file.schema_arrow.names)
        groups = file.metadata
        claimed = sum(groups.row_group(i).total_byte_size for i in range(groups.num_row_groups))
        if claimed > max_bytes:
            raise too_large(path, "unpacked, ", max_bytes)
        # The claim in the file's metadata may be wrong, so the actual size is checked as well.
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
            num_bytes += batch.nbytes
            if num_bytes > max_bytes:
                raise too_large(path, "unpacked, ", max_bytes)
            for values in batch.to_pylist():
                yield f"{path}, row {number}", values
                number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a readable Parquet file: {reason_of(error)}", remedy="write the file again"
        ) from error


_PARQUET_ROWS = 8_192


def _read_text(path: Path, text: str, separator: str | None) -> Iterator[RawRow]:
    if "\r" not in (separator or "").replace(r"\r", "\r"):  # a separator that names them wants them as they are
        text = text.replace("\r\n", "\n")
    for line, document in split_documents(text, separator, str(path)):
        yield f"{path}:{line}", {"text": document}


_READERS: dict[str, Callable[[Path, str], Iterator[RawRow]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
}
