"""Every error that Burnish raises on purpose.

A message names what is wrong, where (field, file and line, step) and what to do about it. The command line turns
each of these into one message and exit code 2; anything else is a defect of Burnish and keeps its traceback.
"""

from __future__ import annotations


class BurnishError(Exception):
    """Base of all expected errors. `remedy` is one sentence that tells the user what to change; `unexpected` marks an
    error whose cause nobody foresaw (`burnish.reading`), so that its traceback is worth keeping."""

    def __init__(self, message: str, *, remedy: str | None = None, unexpected: bool = False) -> None:
        super().__init__(message if remedy is None else f"{message}\n  -> {remedy}")
        self.message = message
        self.remedy = remedy
        self.unexpected = unexpected


class ConfigError(BurnishError):
    """The run file, an override or their combination cannot be used."""


class DataError(BurnishError):
    """A data set cannot be read or understood."""


class ModelError(BurnishError):
    """A model folder or a tokenizer cannot be loaded or does not fit the run."""


class RewardError(BurnishError):
    """A reward cannot be loaded, or fails more often than the run allows."""


class RolloutError(BurnishError):
    """The rollout engine cannot produce what was asked for."""


class KernelError(BurnishError):
    """Code in C for this machine cannot be built or loaded."""


class CheckpointError(BurnishError):
    """A checkpoint cannot be written, found, read or does not belong to this run."""


class DivergenceError(BurnishError):
    """A loss or gradient is not finite; raised before the optimizer step would spoil the weights."""
