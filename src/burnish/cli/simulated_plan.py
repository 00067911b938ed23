"""`burnish plan FILE --simulate`: what the run would take on other numbers of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from burnish.cli.tables import show_table
from burnish.config.loading import LoadedConfig
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.observability.atomic import write_text_atomically, writing
from burnish.simulation.forecast import Forecast, best_split, forecast, knee, least_step_seconds, synchronous
from burnish.simulation.gantt import page, seconds_in_words
from burnish.simulation.numbers import read_numbers, simulation_settings
from burnish.simulation.recorded import METRICS_FILE, Recording, read_recording
from burnish.simulation.settings import Failures, Layout, SimulationSettings

DEVICES = "8,64,1024,10000"
_MAX_DEVICES = 1_000_000


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The words of the command line that belong to `--simulate`; `price` also to plans without it."""

    devices: str | None
    recorded: Sequence[str]
    numbers: str | None
    html: str | None
    steps: int | None
    price: float | None
    mtbf: float | None

    def refuse_without_simulate(self) -> None:
        """Raise ConfigError if one of them was given without `--simulate`."""
        words = ("devices", "numbers", "html", "steps", "mtbf")
        given = [f"--{word}" for word in words if getattr(self, word) is not None]
        given += ["--from"] if self.recorded else []
        if given:
            raise ConfigError(f"{', '.join(given)} has no effect without --simulate", remedy="add --simulate")


def refuse_beside(option: str, others: Mapping[str, object]) -> None:
    """Raise ConfigError if one of the words that mean nothing beside this option was given."""
    given = [word for word, value in others.items() if value]
    if given:
        raise ConfigError(f"{', '.join(given)} has no effect with {option}", remedy="leave out one of them")


def show_simulation(loaded: LoadedConfig, options: SimulationOptions, console: Console) -> None:
    """Simulate and print. Raises ConfigError and DataError for options, folders and files that cannot be used."""
    config = loaded.of(RlConfig)
    counts = _device_counts(options.devices or DEVICES)
    recordings = _recordings(config, options)
    settings = _settings(config, recordings, options)
    _show_sources(settings, recordings, options, console)
    forecasts = [one for devices in counts for one in _forecasts(settings, devices)]
    _show_forecasts(settings, forecasts, console)
    _show_failures(settings, forecasts, console)
    _show_staleness(forecasts, console)
    _show_knee(settings, knee(settings), console)
    if options.html is not None:
        path = Path(options.html)
        with writing(path):
            write_text_atomically(path, page(f"Plan of {config.output}", settings, forecasts))
        console.print(f"chart  {options.html}", markup=False, highlight=False, soft_wrap=True)


def _device_counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isdecimal() and 1 <= int(word) <= _MAX_DEVICES)]
    if wrong:
        raise ConfigError(
            f"--devices: {wrong[0]!r} is not a number of devices", remedy=f"for example --devices {DEVICES}"
        )
    return sorted({int(word) for word in words})


def _recordings(config: RlConfig, options: SimulationOptions) -> list[Recording]:
    """The runs that were named, or the run file's own if it has begun and no numbers were given."""
    folders = [Path(folder) for folder in options.recorded]
    if not folders and options.numbers is None and (Path(config.output) / METRICS_FILE).is_file():
        folders = [Path(config.output)]
    return [read_recording(folder) for folder in folders]


def _settings(config: RlConfig, recordings: Sequence[Recording], options: SimulationOptions) -> SimulationSettings:
    typed = {} if options.numbers is None else read_numbers(Path(options.numbers))
    settings = simulation_settings(config, recordings, typed)
    if options.steps is not None:
        settings = replace(settings, steps=options.steps)
    if options.price is not None:
        settings = replace(settings, price_per_device_hour=options.price)
    if options.mtbf is not None:
        failures = replace(settings.failures or Failures(options.mtbf), mtbf_hours=options.mtbf)
        settings = replace(settings, failures=failures)
    return settings


def _forecasts(settings: SimulationSettings, devices: int) -> Iterator[Forecast]:
    """Yield the forecasts of synchronous training on all devices, and of two pools split best, as far as they fit."""
    yield forecast(synchronous(settings), Layout.together(devices))
    overlaps = settings.max_staleness or settings.window or settings.partial
    if devices > settings.devices_per_engine:
        yield best_split(settings if overlaps else replace(settings, max_staleness=1), devices)


def _show_sources(
    settings: SimulationSettings, recordings: Sequence[Recording], options: SimulationOptions, console: Console
) -> None:
    decoding, lengths = settings.decoding, settings.lengths
    rows = []
    for recording in recordings:
        steps = f"{len(recording.steps)} steps on {recording.devices} device{'s' if recording.devices > 1 else ''}"
        rows.append(("recorded run", f"{recording.folder}: {steps}"))
    if options.numbers is not None:
        rows.append(("numbers", options.numbers))
    rows.append(("responses per step", f"{settings.responses_per_step:,}"))
    rows.append(("response tokens", f"mean {lengths.mean:,.0f}, longest {lengths.longest:,}"))
    row, context = seconds_in_words(decoding.row_seconds), f"{decoding.context_seconds * 1e9:.3g} ns"
    words = f"{seconds_in_words(decoding.base_seconds)} + rows x {row} + context tokens x {context}"
    rows.append(("one token of each row", words))
    for name, phase in (("update", settings.update), ("log-probabilities", settings.logprobs), ("push", settings.push)):
        fixed, divided = seconds_in_words(phase.fixed_seconds), seconds_in_words(phase.divided_seconds)
        rows.append((name, f"{fixed} + {divided} / devices"))
    rows.append(("other work of a step", seconds_in_words(settings.other_seconds)))
    rows.append(("devices per engine", str(settings.devices_per_engine)))
    show_table(console, ("what", "value"), rows, title="simulated from")
    if recordings and not (decoding.base_seconds and decoding.row_seconds):
        console.print(
            "[yellow]note[/] the recorded steps are too much alike to tell the cost of a pass from the cost of its "
            "rows; record a second run with another rollout.prompts_per_step and give both with --from",
            soft_wrap=True,
        )


def _show_forecasts(settings: SimulationSettings, forecasts: Sequence[Forecast], console: Console) -> None:
    headings = ["devices", "sample+train", "step", "wait", "tail", "idle", "tok/s/dev", "hours"]
    if settings.price_per_device_hour is not None:
        headings.append("cost")
    rows = []
    for one in forecasts:
        row = [
            f"{one.layout.devices:,}",
            "all" if one.layout.colocated else f"{one.layout.samplers}+{one.layout.trainers}",
            seconds_in_words(one.step_seconds),
            "" if one.layout.colocated else seconds_in_words(one.trainer_wait_seconds),
            seconds_in_words(one.tail_wait_seconds),
            f"{one.sampler_idle_fraction:.0%}",
            f"{one.tokens_per_second_per_device:,.1f}",
            f"{one.hours:,.2f}",
        ]
        money = [] if one.money is None else [f"{one.money:,.0f}" if one.money >= 1000 else f"{one.money:.2f}"]
        rows.append([*row, *money])
    show_table(console, headings, rows, title="what a step takes, and hours and cost of the run")
    console.print(
        "all: the same devices sample, then train (synchronous). wait: trainers for samples; tail: only for the last "
        f"5 % of the responses. idle: of the sampling devices' time. hours: {settings.steps:,} steps.",
        highlight=False,
    )


def _show_failures(settings: SimulationSettings, forecasts: Sequence[Forecast], console: Console) -> None:
    if settings.failures is None:
        return
    rows = []
    for one in forecasts:
        split = "all" if one.layout.colocated else f"{one.layout.samplers}+{one.layout.trainers}"
        rows.append((f"{one.layout.devices:,}", split, f"{one.goodput:.1%}", str(one.best_checkpoint_steps)))
    headings = ("devices", "sample+train", "goodput", "best checkpoint.every_steps")
    show_table(console, headings, rows, title=f"with a failure per device every {settings.failures.mtbf_hours:g} h")


def _show_staleness(forecasts: Sequence[Forecast], console: Console) -> None:
    for one in forecasts:
        if not one.layout.colocated:
            shares = ", ".join(f"{share:.0%} by {behind}" for behind, share in one.staleness.items())
            line = (
                f"staleness on {one.layout.devices:,} devices, in steps: {shares} (max_staleness {one.max_staleness})"
            )
            console.print(line, highlight=False, soft_wrap=True)


def _show_knee(settings: SimulationSettings, at: Forecast, console: Console) -> None:
    least = seconds_in_words(least_step_seconds(settings))
    console.print(
        f"knee: beyond {at.layout.devices:,} devices ({seconds_in_words(at.step_seconds)} a step), twice as many make "
        f"a synchronous step less than 10 % faster. With the longest response, no number goes below {least}.",
        highlight=False,
        soft_wrap=True,
    )
    if not (settings.max_staleness or settings.window or settings.partial):
        console.print(
            "[yellow]note[/] two pools are simulated with max_staleness 1; the run file says 0", soft_wrap=True
        )
