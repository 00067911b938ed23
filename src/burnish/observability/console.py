"""Progress of a run: a live table on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from io import StringIO
from itertools import accumulate
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from burnish.config.secrets import hidden
from burnish.observability.alarms import Alarm
from burnish.observability.timeline import Processes, nobody

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward/mean", ".3f"),
    ("eval", "eval/reward_mean", ".3f"),
    ("accuracy", "eval/accuracy", ".1%"),
    ("loss", "train/loss", ".4f"),
    ("eval loss", "eval/loss", ".4f"),
    ("eval acc", "eval/token_accuracy", ".1%"),
    ("margin", "preference/margin", ".3f"),
    ("length", "rollout/response_tokens_mean", ".1f"),
    ("KL", "kl/reference", ".3g"),
    ("teacher KL", "kl/teacher_per_token", ".3g"),
    ("entropy", "policy/entropy", ".3f"),
)
"""Heading, metric and format of each column. A metric that the run does not have gets no column."""

FURTHER_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("turns", "conversation/turns_mean", ".2f"),
    ("cut", "rollout/truncated_fraction", ".0%"),
    ("same", "groups/constant_fraction", ".0%"),
    ("grad", "policy/grad_norm", ".3g"),
)
"""Columns of a verbose display, as are those of `FAMILIES`."""

FAMILIES: tuple[tuple[str, str, str, int], ...] = (
    ("reward/domain/", "in ", ".3f", 2),
    ("reward/part/", "", ".3f", 2),
    ("eval/pass@", "pass@", ".1%", 1),
    ("eval/maj@", "maj@", ".1%", 1),
)
"""Metrics with a common prefix, which get further columns: prefix, prefix of the heading, format, and the least number
of such metrics to show them (a single reward part equals the reward itself)."""
_MAX_FAMILY_COLUMNS = 6

SPEEDS: tuple[tuple[str, str], ...] = (
    ("generate", "throughput/generate_tokens_per_second"),
    ("update", "throughput/update_tokens_per_second"),
    ("overall", "throughput/response_tokens_per_second"),
    ("train", "throughput/tokens_per_second"),
)
"""Phase and its throughput metric, in tokens per second."""
OVERALL_SPEEDS = ("throughput/response_tokens_per_second", "throughput/tokens_per_second")
"""The throughput of a whole step, of whichever kind the run is."""

ROUNDING = 1e-6
"""Smaller values are shown as 0: they are the noise of float32."""
_SUM_OVER_TOKENS, _TOKENS = "kl/reference", "rollout/response_tokens_mean"
_LINE_CHARACTERS = 160
"""Of a line without `verbose`, which is read in terminals and logs."""
_VISIBLE_ROWS = 8
_GAP = 2
"""Columns between two columns of the live table."""
_PICTURE_SECONDS = 0.25
"""Least time between two pictures in a notebook: each is sent to the browser and kept in the file until the next."""
_PICTURE_COLUMNS = 140
_PICTURE_FORMAT = '<pre style="font-family:monospace;line-height:1.3;white-space:pre">{code}</pre>'


@dataclass
class Display:
    """Progress, time left, the main metrics, and tokens per second by phase. Use it as a context manager.

    On a terminal and in a notebook, one live table is redrawn. Elsewhere (a log file, CI), one plain line is printed
    for every `plain_every`-th step, for steps with an evaluation and for the last step. `start_step` is where a resumed
    run begins. `clock` returns seconds. On a terminal, the work of other processes is shown as well, and kept up to
    date while this one waits for them. Without `verbose` a line has at most 160 characters.
    """

    console: Console
    total_steps: int
    _: KW_ONLY
    start_step: int = 0
    title: str = ""
    plain_every: int = 1
    clock: Callable[[], float] = time.monotonic
    processes: Processes = nobody
    verbose: bool = False
    _began: float = field(init=False)
    _step: int = field(init=False)
    _phase: str = field(default="", init=False)
    _known: dict[str, float] = field(default_factory=dict, init=False)
    _rows: list[dict[str, float]] = field(default_factory=list, init=False)
    _live: Live | NotebookLive | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._began, self._step, console = self.clock(), self.start_step, self.console
        if console.is_jupyter and not console.quiet:
            self._live = NotebookLive()
        elif console.is_terminal:
            waits = bool(self.processes())  # the work of others changes while nothing happens here
            self._live = Live(
                console=console, auto_refresh=waits, refresh_per_second=1, get_renderable=self._render, transient=False
            )

    def __enter__(self) -> Display:
        self._began = self.clock()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            self._phase = ""
            if kind is None:
                self.processes = nobody  # their last work matters only after a failure
            self._refresh()
            self._live.stop()

    def phase(self, name: str) -> None:
        """Show the current phase of the step; an empty name shows none."""
        self._phase = name
        self._refresh()

    def update(self, step: int, row: Mapping[str, float]) -> None:
        """Show the metrics of a finished step."""
        self._step = step
        self._known |= row
        self._rows = [*self._rows, {**row, "step": step}][-_VISIBLE_ROWS:]
        is_due = step % self.plain_every == 0 or step == self.total_steps
        if self._live is not None:
            self._refresh()
        elif is_due or any(name.startswith("eval/") for name in row):
            line = plain_line(step, self.total_steps, row, self.seconds_left(), verbose=self.verbose)
            self.console.print(line, markup=False, soft_wrap=True)

    def alarm(self, alarm: Alarm) -> None:
        """Print an alarm above the table, where it stays."""
        self.console.print(
            f"[bold yellow]ALARM[/] step {alarm.step}: [bold]{escape(alarm.name)}[/]: {escape(alarm.message)}\n"
            f"  -> {escape(alarm.knob)}",
            highlight=False,
            soft_wrap=True,
        )

    def note(self, text: str) -> None:
        """Print a remark above the table."""
        self.console.print(hidden(text), markup=False, highlight=False, soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Estimate from the mean time of the steps since the start; None before the first."""
        made = self._step - self.start_step
        if made <= 0:
            return None
        return (self.clock() - self._began) / made * (self.total_steps - self._step)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._render(), refresh=True)

    def _render(self) -> RenderableType:
        bar = ProgressBar(self.total_steps, self._step, width=60)
        parts: list[RenderableType] = [self._header(), Padding(bar, (0, 0, 0, 0))]
        if self._rows:
            parts.append(self._table())
        speeds = speed_text(self._known, verbose=self.verbose)
        if speeds:
            parts.append(Text(speeds, style="dim"))
        parts += [Text(line, style="dim") for line in self._others()]
        return Group(*parts)

    def _others(self) -> list[str]:
        """Lines about other processes, one for all that do the same work."""
        names: dict[str, list[str]] = {}
        for process in self.processes():
            names.setdefault(process.standing, []).append(process.name)
        return [f"{', '.join(group)}: {doing}" for doing, group in names.items()]

    def _header(self) -> Text:
        left = self.seconds_left()
        time_left = "" if left is None else f"{duration(left)} left"
        pieces = (self.title, f"step {self._step}/{self.total_steps}", time_left, self._phase)
        return Text(" · ".join(filter(None, pieces)), style="bold")

    def _table(self) -> Table:
        lines = table_of(self._rows, self._known, verbose=self.verbose)
        return rich_table(fitting(lines, self.console.width), header_style="cyan")


def say(console: Console, lines: Iterable[str]) -> None:
    """Print lines unchanged: without interpreting markup, and without wrapping."""
    for line in lines:
        console.print(hidden(line), highlight=False, markup=False, soft_wrap=True)


def number_text(value: float, spec: str, terms: float = 1) -> str:
    """Format a number, or a sum of so many. One that is smaller than its rounding reads 0, without a sign."""
    return format(0.0 if abs(value) < ROUNDING * terms else value, f"z{spec}")


def _metric_text(row: Mapping[str, float], name: str, spec: str) -> str:
    return number_text(row[name], spec, row.get(_TOKENS, 1) if name == _SUM_OVER_TOKENS else 1)


def columns_of(known: Mapping[str, float], *, verbose: bool) -> list[tuple[str, str, str]]:
    """(heading, metric, format) of each column for a run with these metrics."""
    shown = [column for column in (*COLUMNS, *(FURTHER_COLUMNS if verbose else ())) if column[1] in known]
    for begin, heading, spec, least in FAMILIES if verbose else ():
        names = sorted((name for name in known if name.startswith(begin)), key=_by_number)
        if len(names) >= least:
            shown += [(heading + name.removeprefix(begin), name, spec) for name in names[:_MAX_FAMILY_COLUMNS]]
    return shown


def table_of(
    rows: Sequence[Mapping[str, float]], known: Mapping[str, float] | None = None, *, verbose: bool = True
) -> list[list[str]]:
    """Make the headings and the cells of each row. known: metrics with a column; by default, all of the rows."""
    known = {name: value for row in rows for name, value in row.items()} if known is None else known
    shown = columns_of(known, verbose=verbose)
    headings = ["step", *(heading for heading, _, _ in shown)]
    cells = ([_metric_text(row, name, spec) if name in row else "" for _, name, spec in shown] for row in rows)
    return [headings, *([str(row["step"]), *texts] for row, texts in zip(rows, cells, strict=True))]


def fitting(lines: Sequence[Sequence[str]], width: int) -> list[Sequence[str]]:
    """Leave out the last columns if the width has no room for them: no name and no number is shortened."""
    ends = accumulate(max(map(len, column)) + _GAP for column in zip(*lines, strict=True))
    count = sum(end - _GAP <= width for end in ends)
    return [cells[: max(count, 1)] for cells in lines]


def rich_table(lines: Sequence[Sequence[str]], *, header_style: str = "table.header") -> Table:
    """Format headings and rows of cells for a terminal."""
    table = Table(box=None, pad_edge=False, header_style=header_style)
    for heading in lines[0]:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in lines[1:]:
        table.add_row(*cells)
    return table


def _by_number(name: str) -> tuple[int, str]:
    """Sort key that puts pass@2 before pass@16."""
    digits = name.rpartition("@")[2]
    return (int(digits) if digits.isdigit() else 0, name)


def plain_line(
    step: int, total_steps: int, row: Mapping[str, float], seconds_left: float | None, *, verbose: bool = False
) -> str:
    """Format one line with all columns of a row of the table. Intervals have to give way in one that is too long."""
    ends = (speed_text(row, verbose=verbose), "" if seconds_left is None else f"{duration(seconds_left)} left")

    def line(told: Callable[[Mapping[str, float], str, str], str]) -> str:
        cells = [f"{heading} {told(row, name, spec)}" for heading, name, spec in columns_of(row, verbose=verbose)]
        return "  ".join(piece for piece in (f"step {step}/{total_steps}", *cells, *ends) if piece)

    whole = line(with_interval)
    return whole if verbose or len(whole) <= _LINE_CHARACTERS else line(_metric_text)


def with_interval(row: Mapping[str, float], name: str, spec: str) -> str:
    """Format a metric with its 95 % interval, if it has one; empty if it was not measured."""
    if name not in row:
        return ""
    ends = [number_text(row[end], spec) for end in (f"{name}_low", f"{name}_high") if end in row]
    return _metric_text(row, name, spec) + (f" ({' to '.join(ends)})" if ends else "")


def speed_text(row: Mapping[str, float], *, verbose: bool) -> str:
    """ "tok/s 1.2k", or "tok/s generate 1.2k, update 3.4k" if verbose; empty if nothing was measured."""
    if not verbose:
        return "".join([f"tok/s {_short(row[name])}" for name in OVERALL_SPEEDS if name in row][:1])
    speeds = [f"{phase} {_short(row[name])}" for phase, name in SPEEDS if name in row]
    return f"tok/s {', '.join(speeds)}" if speeds else ""


def duration(seconds: float) -> str:
    """ "2h 05m", "3m 20s" or "12s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def _short(number: float) -> str:
    return f"{number / 1000:.1f}k" if number >= 1000 else f"{number:.0f}"


class NotebookLive:
    """The live table in a notebook: one output that is replaced, without widgets. It has the methods of rich's `Live`
    that `Display` calls."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._picture: RenderableType = ""
        self._drawn_seconds = 0.0

    def start(self) -> None:
        """Create the output."""
        from IPython.display import HTML, display

        self._handle = display(HTML(""), display_id=True)

    def update(self, picture: RenderableType, *, refresh: bool = False) -> None:
        """Replace the picture, unless the last one is too recent; `stop` draws a skipped one."""
        self._picture = picture
        if time.monotonic() - self._drawn_seconds >= _PICTURE_SECONDS:
            self._draw()

    def stop(self) -> None:
        """Draw the last picture, which stays."""
        self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML

        self._drawn_seconds = time.monotonic()
        if self._handle is not None:
            self._handle.update(HTML(as_html(self._picture)))


def as_html(picture: RenderableType) -> str:
    """Render as HTML what a terminal would show, with its colours."""
    console = Console(file=StringIO(), record=True, width=_PICTURE_COLUMNS, force_jupyter=False)
    console.print(picture)
    return console.export_html(inline_styles=True, code_format=_PICTURE_FORMAT)
