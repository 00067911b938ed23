"""A plan for a machine that is not here, as plain text of 80 columns; and any plan as JSON."""

from __future__ import annotations

import dataclasses
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from burnish.api.planning import time_lines
from burnish.config.loading import LoadedConfig
from burnish.planning.fitting import COLUMNS, Fit, MemoryTable
from burnish.planning.machines import Machine
from burnish.planning.memory import bytes_in_words
from burnish.planning.plan import Plan
from burnish.planning.shortages import Shortage
from burnish.planning.timing import RunTime
from burnish.types import Json

FORMAT = 1
"""Of the JSON. It rises when a key goes away or changes its meaning; new keys may come at any time."""
WIDTH = 80
"""Of the text, in characters. It does not follow the terminal."""
_NAME, _KIND, _COLUMN = 24, 16, 12
_OF_CHANGED = ("one step", "tokens a second", "whole run", "cost")


def described_lines(plan: Plan, loaded: LoadedConfig, notes: Sequence[str], overrides: Sequence[str]) -> Iterator[str]:
    """The plan for a machine that is not here. overrides: words that the command line has already."""
    assert plan.machine is not None
    yield from _wrapped(f"{loaded.source} on {_in_words(plan.machine)}")
    for topic in dict.fromkeys(line.topic for line in plan.lines):
        if not topic.startswith("memory of"):  # the tables have it in full
            yield ""
            yield topic
            for line in plan.lines:
                if line.topic == topic:
                    yield from _row(line.name, f"{line.value}  ({line.because})")
    if plan.time is not None:
        yield from _row("from", plan.time.source)
    for table in plan.tables:
        yield ""
        yield from _table(table)
    if plan.fit is not None:
        yield ""
        yield from _fit(plan.fit, plan.machine)
        if plan.fit.changes:
            words = [loaded.source, *overrides, *plan.fit.words]
            yield from _continued([f"  burnish {loaded.config.kind}", *map(shlex.quote, words)])
        if plan.changed_time is not None:
            for line in time_lines(plan.changed_time):
                if line.name in _OF_CHANGED:
                    yield from _row(line.name, line.value)
    for note in (*plan.warnings, *notes):
        yield from _wrapped(f"note: {note}")


def _in_words(machine: Machine) -> str:
    if not machine.gpu_bytes:
        return f"{machine.name}: {machine.cores} cores"
    count, each = len(machine.gpu_bytes), bytes_in_words(machine.gpu_bytes[0])
    return f"{machine.name} (cards: {count}, nodes: {machine.nodes}, to plan with: {each} of each card)"


def _table(table: MemoryTable) -> Iterator[str]:
    """The memory of some processes by phase and by kind of tensors, in GiB."""
    yield from _wrapped(f"memory of {_named(table.processes)}, in GiB ({table.on})")
    yield " " * _KIND + "".join(f"{name:>{_COLUMN}}" for name in COLUMNS)
    for row in table.rows:
        yield f"  {row.kind:<{_KIND - 2}}" + _numbers(row.num_bytes)
    yield f"  {'together':<{_KIND - 2}}" + _numbers(table.peak)
    if table.there is not None:
        there = table.there / 2**30
        words = "fits" if max(table.peak) <= table.there else f"lacks {max(table.peak) / 2**30 - there:,.2f}"
        yield f"  of {there:,.2f}: {words}"


def _numbers(num_bytes: Iterable[int]) -> str:
    return "".join(f"{number / 2**30:>{_COLUMN},.2f}" if number else f"{'-':>{_COLUMN}}" for number in num_bytes)


def _named(processes: Sequence[str]) -> str:
    """`trainer 0 to trainer 7` and the like."""
    return processes[0] if len(processes) == 1 else f"{processes[0]} to {processes[-1]} ({len(processes)} alike)"


def _fit(fit: Fit, machine: Machine) -> Iterator[str]:
    if fit.fits:
        yield f"fits {machine.name}"
        return
    yield f"does not fit {machine.name}"
    alike: dict[tuple[int, int], list[Shortage]] = {}
    for shortage in fit.lacking:
        alike.setdefault((shortage.needed, shortage.there), []).append(shortage)
    for first, *others in alike.values():
        further = f" ({len(others)} more lack the same)" if others else ""
        yield from _wrapped(f"  {first}{further}")
    if not fit.changes:
        yield from _wrapped("no change that is known here makes it fit: take more or larger cards, or a smaller model")
        return
    yield "fits with"
    for change in fit.changes:
        yield from _row(" ".join(change.words), change.price)


def _continued(words: Sequence[str]) -> list[str]:
    """A command over as many lines as it takes."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines.append("     ")
        lines[-1] += f" {word}"
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _row(name: str, text: str) -> Iterator[str]:
    first = f"  {name:<{_NAME}}  "
    if len(first) > _NAME + 4:  # the name is longer than its column
        yield from _wrapped(f"  {name}")
        first = " " * (_NAME + 4)
    yield from textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * (_NAME + 4))


def _wrapped(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, subsequent_indent="    ")


def json_of(plan: Plan, loaded: LoadedConfig, notes: Sequence[str]) -> dict[str, Json]:
    """The whole plan in plain values: bytes, seconds, names."""
    found = dataclasses.asdict(plan)
    for seat, read in zip(found["seats"], plan.seats, strict=True):
        seat["host_bytes"], seat["device_bytes"] = read.host_bytes, read.device_bytes
    if plan.fit is not None:
        found["fit"] |= {"fits": plan.fit.fits, "words": plan.fit.words, "said": [str(s) for s in plan.fit.lacking]}
    for name, time in (("time", plan.time), ("changed_time", plan.changed_time)):
        if time is not None:
            found[name] |= _computed(time)
    return {
        "format": FORMAT,
        "run_file": loaded.source,
        **found,
        "columns": list(COLUMNS),
        "memory_bytes": plan.memory_bytes,
        "notes": list(notes),
        "configuration": loaded.values(),
    }


def _computed(time: RunTime) -> dict[str, Json]:
    """Sums and rates that follow from the phases."""
    return {name: getattr(time, name) for name in ("step_seconds", "run_seconds", "tokens_per_second", "cost")}
