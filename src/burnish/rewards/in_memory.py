"""Rewards that are functions of the program that trains and stand in no file: `python:NAME` in a configuration.

They cannot be written down or sent to another process. Their worker is a fork of this one (`burnish.rewards.forking`),
in which they are at hand as they are here.
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
    """Within this context, and in workers forked by a pool that was made within it, these names lead to functions."""
    before = _AT_HAND.set(functions)
    try:
        yield
    finally:
        _AT_HAND.reset(before)


def function_named(name: str) -> Callable[..., Any]:
    """The function behind `python:NAME`. RewardError where the program that had it is not the one that asks."""
    functions = _AT_HAND.get()
    if name not in functions:
        raise RewardError(
            f"reward {name!r} is a function of the Python program that began this run, and is not in any file",
            remedy=f"start again from that program, with the same function in `rewards`; or write "
            f"{name.removeprefix(IN_MEMORY)!r} into a file and name it as path/to/file.py:function",
        )
    return functions[name]
