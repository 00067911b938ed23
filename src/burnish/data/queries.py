"""Queries cut from documents: the part between two given texts, such as full stops."""

from __future__ import annotations

from collections.abc import Callable


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
