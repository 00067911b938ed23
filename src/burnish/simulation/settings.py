"""Settings of a simulation: costs of sampling and training, and their layout on devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from burnish.errors import ConfigError
from burnish.simulation.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Decoding:
    """Seconds that one engine needs for one token of each of its rows:

        base_seconds + rows x row_seconds + context x context_seconds

    where `context` is the number of prompt and response tokens of all rows together. The first term is for reading the
    weights, the second for the matrix products, the third for reading keys and values.
    """

    base_seconds: float
    row_seconds: float = 0.0
    context_seconds: float = 0.0

    def seconds(self, tokens: float, rows: int, context: float) -> float:
        """Seconds for `tokens` more tokens of each row, with growing contexts."""
        first = self.base_seconds + rows * self.row_seconds + context * self.context_seconds
        return tokens * first + self.context_seconds * rows * tokens * (tokens - 1) / 2

    def tokens(self, seconds: float, rows: int, context: float) -> float:
        """Tokens of each row in that time: the inverse of `seconds`, which is quadratic in tokens."""
        half = self.context_seconds * rows / 2
        linear = self.base_seconds + rows * self.row_seconds + context * self.context_seconds - half
        if half == 0.0:
            return seconds / linear
        return 2 * seconds / (linear + math.sqrt(linear * linear + 4 * half * seconds))


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds of a phase on N devices: `fixed_seconds + divided_seconds / N`."""

    fixed_seconds: float = 0.0
    divided_seconds: float = 0.0

    def seconds(self, devices: int) -> float:
        return self.fixed_seconds + self.divided_seconds / devices


@dataclass(frozen=True, slots=True)
class Failures:
    """Rate and cost of failures of devices.

    A failed trainer sends all trainers back to the last checkpoint. A failed sampler is only away for
    `restart_seconds`: its responses are sampled again elsewhere.
    """

    mtbf_hours: float
    """Mean time between failures of one device."""
    restart_seconds: float = 300.0
    checkpoint_seconds: float = 30.0
    """Time for which training stops to write one checkpoint."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Everything but the devices. Seconds are wall-clock, tokens are of responses unless said otherwise.

    Numbers from files are checked where they are read. Raises ConfigError, naming the field, for the others.
    """

    prompts_per_step: int
    group_size: int
    steps: int
    lengths: Lengths
    decoding: Decoding
    update: Phase
    """Optimizer steps of one step of the loop, by the number of training devices."""
    logprobs: Phase = Phase()
    """Log-probabilities and values before the update, by the number of training devices."""
    push: Phase = Phase()
    """Time from updated weights to engines that sample with them, by the number of sampling devices."""
    other_seconds: float = 0.0
    """Seconds of a step that the above do not cover: recording, logging, building the batch."""
    prompt_tokens: float = 0.0
    """Mean prompt length, part of the context of every row."""
    prefill_seconds: float = 0.0
    """Time for which a joining response stops its engine: its prompt, or its share of a shared one."""
    reward_seconds: float = 0.0
    """Time from the end of a response to its score."""
    devices_per_engine: int = 1
    rows_per_engine: int = 256
    """Responses that an engine decodes at the same time; further ones wait."""
    max_staleness: int = 0
    """The batch of step s is sampled with the weights after step max(0, s - 1 - max_staleness)."""
    window: int = 0
    """Groups that may overtake a slow one, as in other trainers; with 0, batches keep their order."""
    partial: bool = False
    """True if engines take new weights in the middle of responses."""
    stream: int = 1
    """Number of parts of a batch that are trained on one by one, as their groups become ready."""
    checkpoint_every_steps: int | None = None
    price_per_device_hour: float | None = None
    failures: Failures | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.decoding.base_seconds + self.decoding.row_seconds <= 0:
            raise ConfigError("decoding takes no time at all", remedy="give decoding.base_seconds or row_seconds")
        if self.failures is not None:
            _check_finite("failures.mtbf_hours", self.failures.mtbf_hours)
            if self.failures.mtbf_hours == 0:
                remedy = "give the mean hours between failures of one device"
                raise ConfigError("failures.mtbf_hours is 0", remedy=remedy)
        if self.price_per_device_hour is not None:
            _check_finite("price_per_device_hour", self.price_per_device_hour)

    @property
    def responses_per_step(self) -> int:
        return self.prompts_per_step * self.group_size

    @property
    def tokens_per_step(self) -> float:
        return self.responses_per_step * self.lengths.mean

    def training_seconds(self, devices: int) -> float:
        """Seconds of one step on the training devices."""
        return self.logprobs.seconds(devices) + self.update.seconds(devices) + self.other_seconds


@dataclass(frozen=True, slots=True)
class Layout:
    """Devices that sample and devices that train: the same ones (`colocated`), or two pools."""

    samplers: int
    trainers: int
    colocated: bool = False

    @classmethod
    def together(cls, devices: int) -> Layout:
        return cls(devices, devices, colocated=True)

    @property
    def devices(self) -> int:
        return self.trainers if self.colocated else self.samplers + self.trainers

    def __str__(self) -> str:
        return "colocated" if self.colocated else f"{self.samplers} sample, {self.trainers} train"


def _check_finite(name: str, value: float) -> None:
    """Refuse infinity and NaN, which pass the command line's check for numbers of at least 0."""
    if not math.isfinite(value):
        raise ConfigError(f"{name} is {value:g}", remedy="give a number of at least 0")
