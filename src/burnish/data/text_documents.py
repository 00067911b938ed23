"""Plain text files: where one document ends and the next begins."""

from __future__ import annotations

import re
from collections.abc import Iterator

from burnish.errors import DataError

END_OF_TEXT = "<|endoftext|>"


def split_documents(text: str, separator: str | None, where: str) -> Iterator[tuple[int, str]]:
    """(first line counted from 1, document) for each document that is not blank; outer blank space is cut off.

    `separator` is a regular expression, matched across lines. Without one: `<|endoftext|>` where the file has it,
    else two blank lines where it has those, else one blank line, else the end of each line.
    """
    pattern = _compile(separator, where) if separator is not None else default_separator(text)
    start, line = 0, 1
    for begin, end in [*_gaps(pattern, text), (len(text), len(text))]:
        piece = text[start:begin]
        if piece.strip():
            lead = len(piece) - len(piece.lstrip())
            yield line + piece.count("\n", 0, lead), piece.strip()
        line += text.count("\n", start, end)
        start = end


def default_separator(text: str) -> re.Pattern[str]:
    """The separator that the text itself suggests (see `split_documents`)."""
    body = text.strip()
    if END_OF_TEXT in body:
        return re.compile(re.escape(END_OF_TEXT))
    for blank in (r"\n(?:[ \t]*\n){2,}", r"\n[ \t]*\n"):
        if re.search(blank, body):
            return re.compile(blank)
    return re.compile(r"\n")


def _gaps(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    return [match.span() for match in pattern.finditer(text)]


def _compile(separator: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(separator, re.MULTILINE)
    except re.error as error:
        raise DataError(
            f"{where}: document_separator {separator!r} is not a regular expression: {error}",
            remedy=r"write a blank line as '\n\n'; escape characters like ( and * with a backslash",
        ) from error
