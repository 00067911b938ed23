"""Queries cut from documents: the part between two texts that mark ends of sentences."""

from __future__ import annotations

from collections.abc import Callable


def cut_query(document: str, *, start_text: str | None, end_text: str, fits: Callable[[str], bool]) -> str | None:
    """The part of a document that begins after the first `start_text` (white space left out) and ends with the last
    `end_text` with which it still `fits`. None when there is no such part.

    Without a start_text the query begins with the document. With full stops for both a query is a row of whole
    sentences, and the policy begins one: how the prompts of https://arxiv.org/abs/1909.08593 were cut from books. There
    the texts were single tokens; here they are texts, so that a full stop inside a larger token counts as well.
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
