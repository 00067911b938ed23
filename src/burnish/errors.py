"""The errors that Burnish raises on purpose, and suggestions for misspelt words in their messages.

A message says what is wrong, where (field, file and line, step) and what to do about it. The command line prints such
an error as one message and exits with code 2. Any other exception is a bug in Burnish and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class BurnishError(Exception):
    """Base of all expected errors.

    `remedy` is one sentence that tells the user what to change. `unexpected` marks an error with an unforeseen cause
    (see `burnish.outside.reading`), whose traceback is worth keeping.
    """

    def __init__(self, message: str, *, remedy: str | None = None, unexpected: bool = False) -> None:
        super().__init__(message if remedy is None else f"{message}\n  -> {remedy}")
        self.message = message
        self.remedy = remedy
        self.unexpected = unexpected

    @property
    def line(self) -> str:
        """Message and remedy, as part of a line that says more."""
        return self.message if self.remedy is None else f"{self.message}: {self.remedy}"


class ConfigError(BurnishError):
    """The run file, an override or their combination cannot be used."""


class DataError(BurnishError):
    """A data set cannot be read or understood."""


class ModelError(BurnishError):
    """A model or tokenizer cannot be loaded, or does not fit the run."""


class RewardError(BurnishError):
    """A reward cannot be loaded, or it fails more often than the run allows."""


class SandboxError(BurnishError):
    """The sandbox itself failed, so that a program has no verdict."""


class RolloutError(BurnishError):
    """The rollout engine cannot produce the requested responses."""


class EnvironmentFailedError(BurnishError):
    """The environment of a conversation has failed, which ends the conversation."""


class OutageError(BurnishError):
    """Environments or tools fail more often than the run allows, or no response has a score. That may pass."""


class KernelError(BurnishError):
    """The C kernels cannot be built or loaded on this machine."""


class CheckpointError(BurnishError):
    """A checkpoint cannot be written, found or read, or it does not belong to this run."""


class DifferentRunError(CheckpointError):
    """The folder holds a run of another configuration."""


class OffloadError(BurnishError):
    """State of a role cannot be offloaded (then it stays in memory), or cannot be loaded back."""


class DivergenceError(BurnishError):
    """A loss or gradient is not finite. Raised before the optimizer step, so the weights are still good."""


@contextmanager
def needing(packages: str, kind: type[BurnishError], what: str) -> Iterator[None]:
    """Raise `kind`, saying `what`, if an import in the block fails. packages: what to install, as pip names them."""
    try:
        yield
    except ImportError as error:
        raise kind(f"{what} ({error})", remedy=f"pip install {packages}") from error


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the known word most similar to this one, ignoring case; None if none is similar."""
    folded = {choice.casefold(): choice for choice in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str], then: str = "", *, before: str = "") -> str:
    """`did you mean 'x'?` with the nearest known word, if one is near, and `then`.

    `before` is put in front of the word, such as the folder of a file name.
    """
    near = nearest(word, known)
    return f"did you mean {before + near!r}? {then}".rstrip() if near else then


def suggestion(word: str, known: Iterable[str]) -> str:
    """Remedy for a misspelt word: the nearest known one, and the list of all."""
    names = list(known)
    if not names:
        return "there is nothing to choose from; remove it"
    return did_you_mean(word, names, f"known: {', '.join(names)}")
