"""Contents of messages, found again in what a template writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burnish.types import Message

_BEGIN, _END = "burnish7begin", "burnish7end"


def marks(messages: Sequence[Message]) -> tuple[str, str]:
    """Two words that stand in no content, to be put around contents."""
    begin, end = _BEGIN, _END
    while any(begin in message.content or end in message.content for message in messages):
        begin, end = begin + "7", end + "7"
    return begin, end


def pieces(text: str, begin: str, end: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text without the marks in it, and whether a part stood between two of them."""
    while text:
        before, _, rest = text.partition(begin)
        content, _, text = rest.partition(end)
        yield before, False
        yield content, True
