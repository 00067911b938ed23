"""Split plain text files into documents, and cut queries from documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from burnish.errors import DataError
from burnish.outside.user_processes import call_in_own_process

END_OF_TEXT = "<|endoftext|>"


def split_documents(text: str, separator: str | None, where: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, document) for each document that is not blank, without outer white space.

    Lines are counted from 1. `separator` is a regular expression, matched across lines. Without one, documents are
    separated by `<|endoftext|>` if the file has it, else by two blank lines, else by one, else by each line end.
    """
    if separator is None:
        gaps = find_gaps(default_separator(text).pattern, text)
    else:
        gaps = _custom_gaps(separator, text, where)
    start, line = 0, 1
    for begin, end in [*gaps, (len(text), len(text))]:
        piece = text[start:begin]
        if piece.strip():
            lead = len(piece) - len(piece.lstrip())
            yield line + piece.count("\n", 0, lead), piece.strip()
        line += text.count("\n", start, end)
        start = end


def default_separator(text: str) -> re.Pattern[str]:
    """The separator that the content of the file suggests (see `split_documents`)."""
    body = text.strip()
    if END_OF_TEXT in body:
        return re.compile(re.escape(END_OF_TEXT))
    for blank in (r"\n(?:[ \t]*\n){2,}", r"\n[ \t]*\n"):
        if re.search(blank, body):
            return re.compile(blank)
    return re.compile(r"\n")


def find_gaps(separator: str, text: str) -> list[tuple[int, int]]:
    """Find the matches of the expression: [begin, end) of each, in characters."""
    return [match.span() for match in re.compile(separator, re.MULTILINE).finditer(text)]


def _custom_gaps(separator: str, text: str, where: str) -> list[tuple[int, int]]:
    """The gaps for an expression from a run file. Matching it may never end (`(a+)+$`), hence the separate process."""
    if _compile(separator, where).fullmatch("") is not None:
        raise DataError(
            f"{where}: document_separator {separator!r} matches the empty text between any two letters",
            remedy="write the text that separates two documents, for example '\\n\\n'",
        )
    seconds = _SECONDS + len(text) // _CHARACTERS_A_SECOND
    request = {"separator": separator, "text": text}
    try:
        gaps = call_in_own_process(f"{__name__}:find_gaps", request, seconds=seconds, what=where)
    except TimeoutError as error:
        raise DataError(
            f"{where}: document_separator {separator!r} did not finish the file within {seconds} s",
            remedy="write a simpler expression, without a repetition inside a repetition",
        ) from error
    return [(begin, end) for begin, end in gaps]


_SECONDS = 3
_CHARACTERS_A_SECOND = 5_000_000


def _compile(separator: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(separator, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise DataError(
            f"{where}: document_separator {separator!r} is not a regular expression: {error}",
            remedy=r"write a blank line as '\n\n'; escape characters like ( and * with a backslash",
        ) from error


def cut_query(document: str, *, start_text: str | None, end_text: str, fits: Callable[[str], bool]) -> str | None:
    """The longest part of a document that begins after the first `start_text`, ends with an `end_text`, and `fits`.

    White space after `start_text` is left out. Without `start_text` the query begins with the document. None if there
    is no such part.

    With full stops for both, a query is a series of whole sentences, and the policy starts a new one. The prompts of
    https://arxiv.org/abs/1909.08593 were cut from books in this way. There the marks were single tokens. Here they are
    text, so a full stop inside a longer token counts as well.
    """
    body = document
    if start_text is not None:
        _, found, after = document.partition(start_text)
        if not found:
            return None
        body = after.lstrip()
    query, end = None, 0
    while (place := body.find(end_text, end)) >= 0:
        end = place + len(end_text)
        if not fits(body[:end]):
            break
        query = body[:end]
    return query
