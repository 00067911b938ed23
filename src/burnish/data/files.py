"""Files to rows: JSONL, JSON, CSV, Parquet and plain text, any of them gzipped. Errors name the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.data.rows import describe, nearest
from burnish.data.text_documents import split_documents
from burnish.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".txt")
# A CSV cell may hold a whole document; the csv module's own limit is 128 KiB.
_MAX_CSV_FIELD_CHARACTERS = 2**31 - 1

RawRow = tuple[str, Mapping[str, Any]]  # where it stands, its values as the file gives them


def data_suffix(path: Path) -> str:
    """The suffix that names the format, `.gz` aside; empty when it is none of ours."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def data_stem(path: Path) -> str:
    """File name without the format's suffix and `.gz`."""
    name = path.name[: -len(".gz")] if path.name.lower().endswith(".gz") else path.name
    return name[: -len(suffix)] if (suffix := data_suffix(path)) else name


def read_file(path: Path, *, document_separator: str | None = None) -> Iterator[RawRow]:
    """The rows of one file, in order. DataError for a file that is missing, broken or of a format we do not read."""
    if not path.is_file():
        raise missing_file(path)
    suffix = data_suffix(path)
    if not suffix:
        raise DataError(
            f"{path}: the file name does not tell the format", remedy=f"use one of {', '.join(SUFFIXES)} (or .gz of it)"
        )
    if document_separator is not None and suffix != ".txt":
        raise DataError(
            f"{path}: document_separator is for .txt files, this is {suffix}", remedy="remove document_separator"
        )
    if suffix == ".txt":
        return _read_text(path, document_separator)
    return _READERS[suffix](path)


def missing_file(path: Path) -> DataError:
    """The error for a path where nothing is, with the sibling that was probably meant."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    siblings = sorted(item.name for item in parent.iterdir())
    wanted = path.relative_to(parent).parts[0]
    near = nearest(wanted, siblings)
    hint = f"did you mean {str(parent / near)!r}?" if near else f"{parent} holds {', '.join(siblings[:8]) or 'nothing'}"
    return DataError(f"{path}: no such file or folder", remedy=f"check data paths; {hint}")


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.name.lower().endswith(".gz") else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}", remedy="check the file and its permissions") from error


def _read_str(path: Path) -> str:
    content = _read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: not UTF-8 text (byte {content[error.start]:#04x})", remedy="convert the file to UTF-8"
        ) from error


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    return _json_lines(path, _read_str(path))


def _json_lines(path: Path, text: str) -> Iterator[RawRow]:
    # Not str.splitlines: JSON strings may hold U+2028 and its like, which are no line ends here.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{number}: malformed JSON: {error.msg} at column {error.colno}, near {_near(line, error.pos)}",
                remedy="mend or remove this line; each line must be one JSON object",
            ) from error
        yield f"{path}:{number}", _object(values, f"{path}:{number}")


def _near(line: str, position: int) -> str:
    return repr(line[max(0, position - 20) : position + 20])


def _object(values: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise DataError(
            f"{where}: expected a JSON object with columns, found {describe(values)}", remedy="mend the row"
        )
    return values


def _read_json(path: Path) -> Iterator[RawRow]:
    text = _read_str(path)
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            # JSON lines under the name .json, as many published sets have it.
            return _json_lines(path, text)
        raise DataError(
            f"{path}:{error.lineno}: malformed JSON: {error.msg} at column {error.colno}, near "
            f"{_near(text, error.pos)}",
            remedy="mend the file: a list of objects, or one object per line",
        ) from error
    if isinstance(whole, dict) and len(text.strip().splitlines()) == 1:
        whole = [whole]
    if not isinstance(whole, list):
        raise DataError(
            f"{path}: expected a list of objects, found {describe(whole)}", remedy="save it as [{...}, ...]"
        )
    return ((f"{path}, row {number}", _object(item, f"{path}, row {number}")) for number, item in enumerate(whole))


def _read_csv(path: Path) -> Iterator[RawRow]:
    csv.field_size_limit(_MAX_CSV_FIELD_CHARACTERS)
    reader = csv.reader(io.StringIO(_read_str(path), newline=""), strict=True)
    header = _csv_header(path, reader)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: malformed CSV: {error}", remedy="mend the quoting") from error
        if cells is None:
            return
        if not cells:
            continue
        where = f"{path}:{reader.line_num}"
        if len(cells) != len(header):
            raise DataError(
                f"{where}: {len(cells)} fields, but the header names {len(header)} ({', '.join(header)})",
                remedy="mend the line; fields with commas or line breaks need double quotes",
            )
        yield where, dict(zip(header, cells, strict=True))


def _csv_header(path: Path, reader: Iterable[list[str]]) -> list[str]:
    header = next(iter(reader), [])
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path}:1: the header names {', '.join(twice)} twice", remedy="give each column its own name")
    return header


def _read_parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    source = io.BytesIO(_read_bytes(path)) if path.name.lower().endswith(".gz") else str(path)
    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(source).iter_batches():
            for values in batch.to_pylist():
                yield f"{path}, row {number}", values
                number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}", remedy="write the file anew") from error


def _read_text(path: Path, separator: str | None) -> Iterator[RawRow]:
    for line, document in split_documents(_read_str(path), separator, str(path)):
        yield f"{path}:{line}", {"text": document}


_READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
