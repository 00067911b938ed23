"""The first simulated steps as a chart on one HTML page: no scripts, nothing fetched, light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from burnish.simulation.forecast import Forecast
from burnish.simulation.settings import SimulationSettings

_SHOWN_STEPS = 8
_SHOWN_ENGINES = 8
_LEFT, _WIDTH, _ROW, _BAR = 130, 1040, 26, 18
_TICKS = 8


def page(title: str, settings: SimulationSettings, forecasts: Sequence[Forecast]) -> str:
    """The page: a chart for each forecast, with its numbers above it."""
    template = Template(files("burnish.simulation").joinpath("gantt.html").read_text(encoding="utf-8"))
    sections = "\n".join(_section(settings, one) for one in forecasts)
    return template.substitute(title=escape(title), sections=sections)


def _section(settings: SimulationSettings, one: Forecast) -> str:
    numbers = (
        ("step", seconds_in_words(one.step_seconds)),
        ("trainers wait", seconds_in_words(one.trainer_wait_seconds)),
        ("of it for the last 5 %", seconds_in_words(min(one.tail_wait_seconds, one.trainer_wait_seconds))),
        ("samplers idle", f"{one.sampler_idle_fraction:.0%}"),
        ("tokens/s per device", f"{one.tokens_per_second_per_device:,.1f}"),
        (f"{settings.steps:,} steps", f"{one.hours:,.1f} h"),
    )
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in numbers)
    heading = f"{one.layout.devices:,} devices: {one.layout}, max_staleness {one.max_staleness}"
    return f"<section><h2>{escape(heading)}</h2><div class='numbers'>{cells}</div>{chart(settings, one)}</section>"


def chart(settings: SimulationSettings, one: Forecast) -> str:
    """Draw trainers and some engines as rows, with time from left to right. The shade of a bar shows its step."""
    steps = one.timeline.steps[:_SHOWN_STEPS]
    end = steps[-1].updated
    engines = sorted({span.engine for span in one.timeline.spans})[:_SHOWN_ENGINES]
    rows = {engine: row for row, engine in enumerate(engines, start=1)}
    height = (len(engines) + 1) * _ROW + 30
    label = f"Timeline of {len(steps)} steps"
    lines = [f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" role="img" aria-label="{label}">']
    lines += _axis(end, height)
    lines.append(_text("trainers", 0))
    lines += (_text(f"engine {engine + 1}", rows[engine]) for engine in engines)
    for step in steps:
        seconds = settings.training_seconds(one.layout.trainers)
        begin = max(step.began, step.updated - seconds)
        hint = f"step {step.step}: trained {begin:,.1f} to {step.updated:,.1f} s, waited {step.waited:,.1f} s"
        lines.append(_bar("train", step.step, begin, step.updated, 0, end, hint))
    for span in one.timeline.spans:
        if span.engine in rows and span.start < end:
            hint = f"batch of step {span.step}: sampled {span.start:,.1f} to {span.end:,.1f} s"
            lines.append(_bar("sample", span.step, span.start, min(span.end, end), rows[span.engine], end, hint))
    return "".join([*lines, "</svg>"])


def _axis(end: float, height: int) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        x = _LEFT + _WIDTH * tick / _TICKS
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 22}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{height - 8}">{seconds_in_words(end * tick / _TICKS)}</text>'


def _text(words: str, row: int) -> str:
    return f'<text x="0" y="{row * _ROW + _BAR - 3}">{escape(words)}</text>'


def _bar(kind: str, step: int, start: float, stop: float, row: int, end: float, hint: str) -> str:
    x, width = _LEFT + _WIDTH * start / end, max(1.0, _WIDTH * (stop - start) / end)
    shade = "even" if step % 2 == 0 else "odd"
    box = f'<rect class="{kind} {shade}" x="{x:.1f}" y="{row * _ROW + 2}" width="{width:.1f}" height="{_BAR}" rx="3">'
    name = f'<text class="step" x="{x + 4:.1f}" y="{row * _ROW + _BAR - 3}">{step}</text>' if width > 18 else ""
    return f"{box}<title>{escape(hint)}</title></rect>{name}"


def seconds_in_words(seconds: float) -> str:
    """`12.3 ms`, `4.56 s`, `123 s`, `1.5 h`."""
    if seconds < 0.1 and seconds > 0:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 10_000:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds / 3600:,.1f} h"
