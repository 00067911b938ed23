"""Rewards that are functions of the training program and in no file: `python:NAME` in a configuration.

They cannot be serialised or sent to another process. Their worker is a fork of this one (`burnish.rewards.forking`), so
the functions are in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from burnish.config.names import IN_MEMORY
from burnish.errors import RewardError

Functions = Mapping[str, Callable[..., Any]]
"""`python:NAME` to the function."""

_NONE: Functions = {}
_AT_HAND: ContextVar[Functions] = ContextVar("burnish_functions_at_hand", default=_NONE)


@contextmanager
def functions_at_hand(functions: Functions) -> Iterator[None]:
    """Make `function_named` find these functions in this context, and in workers forked by a pool made within it."""
    before = _AT_HAND.set(functions)
    try:
        yield
    finally:
        _AT_HAND.reset(before)


def function_named(name: str) -> Callable[..., Any]:
    """The function behind `python:NAME`. RewardError in any program but the one that defined it."""
    functions = _AT_HAND.get()
    if name not in functions:
        raise RewardError(
            f"reward {name!r} is a function of the Python program that began this run, and is not in any file",
            remedy=f"start again from that program, with the same function in `rewards`; or write "
            f"{name.removeprefix(IN_MEMORY)!r} into a file and name it as path/to/file.py:function",
        )
    return functions[name]
