"""Forecast of a run on given devices: step time, waits, staleness, hours, money, and the best layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from burnish.errors import ConfigError
from burnish.simulation.schedule import PlayedStep, Timeline, play
from burnish.simulation.settings import Failures, Layout, SimulationSettings

PLAYED_STEPS = 6
"""Number of steps that are averaged, after the pipeline has filled."""
_SEARCH_STEPS = 3
"""Number of averaged steps when layouts are only compared."""
_FASTER = 0.9
"""Doubling the devices counts as faster if a step takes at most this part of the time."""
_MAX_DOUBLINGS = 20
_FIRST_TRIES = (0.125, 0.25, 0.4, 0.55, 0.75)
"""Fractions of sampling devices with which the search for the best split begins."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The run on one layout. Means over steps with a full pipeline; `max_staleness` is the one that was simulated."""

    layout: Layout
    max_staleness: int
    step_seconds: float
    trainer_wait_seconds: float
    """Seconds of a step for which trainers wait for samples; 0 for colocated devices, which sample themselves."""
    tail_wait_seconds: float
    """Seconds of a step in which the trainers wait only for the last 5 % of the responses."""
    sampler_idle_fraction: float
    """Fraction of the sampling devices' time in which they neither sample nor train."""
    staleness: dict[int, float]
    """Steps behind -> share of the responses."""
    tokens_per_second_per_device: float
    goodput: float
    """Share of the time that is not lost to failures and checkpoints; 1 if no failures are simulated."""
    best_checkpoint_steps: int | None
    """Steps between checkpoints that lose the least time (Young, 1974); None without failures."""
    hours: float
    money: float | None
    timeline: Timeline


def forecast(settings: SimulationSettings, layout: Layout, *, num_steps: int = PLAYED_STEPS) -> Forecast:
    """Play the layout and sum up the last `num_steps` steps. Raises ConfigError like `play`."""
    skip = settings.max_staleness + 2  # steps in which the pipeline fills
    timeline = play(settings, layout, skip + num_steps)
    first, steps = timeline.steps[skip - 1], timeline.steps[skip:]
    step_seconds = (steps[-1].updated - first.updated) / len(steps)
    goodput, failures = goodput_of(settings, layout, step_seconds), settings.failures
    hours = settings.steps * step_seconds / goodput / 3600
    price = settings.price_per_device_hour
    return Forecast(
        layout=layout,
        max_staleness=settings.max_staleness,
        step_seconds=step_seconds,
        trainer_wait_seconds=0.0 if layout.colocated else _mean([step.waited for step in steps]),
        tail_wait_seconds=_mean([min(step.waited, step.ready - step.nearly_ready) for step in steps]),
        sampler_idle_fraction=_idle_fraction(settings, timeline, layout),
        staleness=_staleness(steps),
        tokens_per_second_per_device=settings.tokens_per_step / step_seconds / layout.devices,
        goodput=goodput,
        best_checkpoint_steps=None if failures is None else best_checkpoint_steps(failures, layout, step_seconds),
        hours=hours,
        money=None if price is None else hours * layout.devices * price,
        timeline=timeline,
    )


def best_split(settings: SimulationSettings, devices: int) -> Forecast:
    """Find the split into a sampling and a training pool with the shortest step.

    Tries some splits, then the neighbourhood of the best one. Raises ConfigError for fewer devices than an engine and a
    trainer need.
    """
    size = settings.devices_per_engine
    most = (devices - 1) // size
    if most < 1:
        raise ConfigError(
            f"{devices} devices cannot hold an engine of {size} and a trainer",
            remedy="simulate more devices, or lower devices_per_engine",
        )
    near = {min(max(1, round(part * devices / size)), most) for part in _FIRST_TRIES}
    tried: dict[int, float] = {}
    width = max(1, devices // size // 10)
    while True:
        for engines in near - tried.keys():
            layout = Layout(engines * size, devices - engines * size)
            tried[engines] = forecast(settings, layout, num_steps=_SEARCH_STEPS).step_seconds
        best = min(tried, key=lambda engines: (tried[engines], engines))
        near = {n for n in (best - width, best + width) if 1 <= n <= most}
        if near <= tried.keys():
            if width <= max(1, best // 8):
                return forecast(settings, Layout(best * size, devices - best * size))
            width = max(1, width // 2)


def synchronous(settings: SimulationSettings) -> SimulationSettings:
    """The same settings, with every batch sampled by the current weights."""
    return replace(settings, max_staleness=0, window=0, partial=False)


def knee(settings: SimulationSettings) -> Forecast:
    """Find the colocated layout beyond which a synchronous step hardly gets faster: doubling it saves less than 10 %.

    The rest of a step is the latency of the longest response and the fixed part of training.
    """
    alone = synchronous(settings)
    here = forecast(alone, Layout.together(settings.devices_per_engine), num_steps=_SEARCH_STEPS)
    for _ in range(_MAX_DOUBLINGS):
        there = forecast(alone, Layout.together(2 * here.layout.devices), num_steps=_SEARCH_STEPS)
        if there.step_seconds > _FASTER * here.step_seconds:
            return here
        here = there
    return here


def least_step_seconds(settings: SimulationSettings) -> float:
    """Least time of a synchronous step on any devices: the longest response alone on its engine, and fixed costs."""
    longest = settings.decoding.seconds(settings.lengths.longest, 1, settings.prompt_tokens)
    fixed = settings.logprobs.fixed_seconds + settings.update.fixed_seconds + settings.push.fixed_seconds
    return settings.prefill_seconds + longest + settings.reward_seconds + fixed + settings.other_seconds


def goodput_of(settings: SimulationSettings, layout: Layout, step_seconds: float) -> float:
    """Share of the time in which the run makes progress.

    Training stops for each checkpoint. A failure among the trainers costs the restart and, on average, half of the
    steps between two checkpoints, which are trained again. The engine of a failed sampler is away for the restart; its
    responses are sampled elsewhere, so the pool is smaller for a while (taken to slow the step in proportion).
    """
    failures = settings.failures
    if failures is None:
        return 1.0
    between = (settings.checkpoint_every_steps or settings.steps) * step_seconds
    trainer_rate = layout.trainers / (failures.mtbf_hours * 3600)
    cost = trainer_rate * (failures.restart_seconds + between / 2) + failures.checkpoint_seconds / between
    if not layout.colocated:
        away = failures.restart_seconds / (failures.mtbf_hours * 3600)  # of the time, for each device
        cost += min(1.0, settings.devices_per_engine * away)
    return 1 / (1 + cost)


def best_checkpoint_steps(failures: Failures, layout: Layout, step_seconds: float) -> int:
    """sqrt(2 x seconds of a checkpoint x mean time between failures of the trainers), in steps.

    https://doi.org/10.1145/361147.361115
    """
    mean_time = failures.mtbf_hours * 3600 / layout.trainers
    return max(1, round(math.sqrt(2 * failures.checkpoint_seconds * mean_time) / step_seconds))


def _idle_fraction(settings: SimulationSettings, timeline: Timeline, layout: Layout) -> float:
    if not layout.colocated:
        return timeline.sampler_idle_fraction
    trained = settings.training_seconds(layout.trainers) * len(timeline.steps)
    return max(0.0, timeline.sampler_idle_fraction - trained / timeline.steps[-1].updated)


def _staleness(steps: Sequence[PlayedStep]) -> dict[int, float]:
    counts = sum((step.staleness for step in steps), Counter[int]())
    return {behind: counts[behind] / counts.total() for behind in sorted(counts)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
