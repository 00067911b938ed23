"""The seam between a loop that trains one model and that model: `open_sft_run` and `open_rm_run` open it through one
of these, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console

from burnish.config.schema import RmConfig, SftConfig
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.models.loading import LoadedModel
from burnish.observability.console import Standing, nobody

Learned = SftConfig | RmConfig
"""Run files of the kinds that train one model on given data."""

ConfigT = TypeVar("ConfigT", bound=Learned)
LearnerT = TypeVar("LearnerT", covariant=True)


@dataclass(frozen=True, slots=True)
class Opened(Generic[LearnerT]):
    """A model, and what gives it an optimizer once the data is read and the number of optimizer steps is known.

    `loaded` has no weights if the model is in other processes; `standing` says what these are doing.
    """

    loaded: LoadedModel
    learner: Callable[[int], LearnerT]
    standing: Standing = nobody


OpenLearner = Callable[[ConfigT, FastPaths, Console, Lanes], AbstractContextManager[Opened[LearnerT]]]
"""Opens the model in this process, and tells the user what was found out about it. Closed with the run."""
