"""The board in a terminal: runs, curves, groups, responses. The only file that imports textual."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from rich.console import Group as Lines
from rich.markup import escape
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Header, Static

from burnish.board.answers import READING_SECONDS
from burnish.board.curves import charts_of
from burnish.board.index import Kind
from burnish.board.metric_charts import evenly
from burnish.board.rollouts import GroupSummary, ResponseFilter, group_page, step_page
from burnish.board.runs import Runs, WatchedRun
from burnish.board.samples import ShownResponse
from burnish.errors import BurnishError
from burnish.observability.console import duration

_UPDATE_SECONDS = 1.0
_SPARK_COLUMNS = 48
_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
_SHOWN_CONTROLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Control characters -> pictures of them: what a policy writes must not control the terminal."""


def sparkline(values: Sequence[float], columns: int) -> str:
    """Draw values as bars of eight heights, from the lowest to the highest; a bar is the mean of a stretch."""
    if not values:
        return ""
    count = min(columns, len(values))
    cuts = pairwise(evenly(range(len(values) + 1), count + 1))
    means = [sum(values[start:stop]) / (stop - start) for start, stop in cuts]
    low, high = min(means), max(means)
    height = (high - low) or 1.0
    return "".join(_BARS[round((mean - low) / height * (len(_BARS) - 1))] for mean in means)


class WatchApp(App[None]):
    """The runs below some folders. With a single run it begins with its curves."""

    TITLE = "burnish watch"
    BINDINGS: ClassVar = [Binding("q", "quit", "quit")]

    def __init__(self, runs: Runs) -> None:
        super().__init__()
        self.runs = runs

    def on_mount(self) -> None:
        self.push_screen(RunList(self.runs))
        if len(self.runs.by_name) == 1:
            self.push_screen(RunCurves(next(iter(self.runs.by_name.values()))))


class Level(Screen[None]):
    """A table of which a row leads to the next level; escape leads back."""

    BINDINGS: ClassVar = [Binding("escape", "back", "back")]
    COLUMNS: ClassVar[tuple[str, ...]] = ()

    def compose(self) -> ComposeResult:
        yield Header()
        table: DataTable[str | Text] = DataTable(cursor_type="row")
        table.add_columns(*self.COLUMNS)
        yield table
        yield Footer()

    def on_mount(self) -> None:
        self.update()
        self.set_interval(_UPDATE_SECONDS, self.update)

    def update(self) -> None:
        """Read what is new and show it, with the cursor where it was."""

    def show(self, rows: Sequence[tuple[str, Sequence[str | Text]]]) -> None:
        """Show rows, each with its key."""
        table = self.query_one(DataTable)
        before = table.cursor_row
        table.clear()
        for key, cells in rows:
            table.add_row(*cells, key=key)
        table.move_cursor(row=min(before, max(0, len(rows) - 1)))

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()


class RunList(Level):
    """Runs with their states."""

    COLUMNS = ("run", "state", "step", "age", "left", "score", "alarms")

    def __init__(self, runs: Runs) -> None:
        super().__init__()
        self.runs = runs

    def update(self) -> None:
        self.runs.scan()
        self.runs.refresh(READING_SECONDS)
        now = time.time()
        self.show([(run.name, _cells(run, now)) for run in self.runs.by_name.values()])

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.app.push_screen(RunCurves(self.runs.by_name[str(event.row_key.value)]))


class RunCurves(Level):
    """The curves of a run, one a row."""

    COLUMNS = ("chart", "line", "latest", "curve")
    BINDINGS: ClassVar = [Binding("g", "groups('step')", "groups"), Binding("e", "groups('eval')", "evaluation")]

    def __init__(self, run: WatchedRun) -> None:
        super().__init__()
        self.run = run

    def update(self) -> None:
        self.run.refresh(time.monotonic() + READING_SECONDS)
        name, state, step, age, left, _, _ = _cells(self.run, time.time())
        self.title = f"{name} · {state} · step {step} · {age} ago" + (f" · {left} left" if left else "")
        rows = []
        for chart in charts_of([self.run.table])["charts"]:
            for line in chart["lines"]:
                values = self.run.table.columns[line["metric"]].values
                cells = (chart["title"], line["label"], f"{values[-1]:.4g}", sparkline(values, _SPARK_COLUMNS))
                rows.append((line["metric"], [_text(cell) for cell in cells]))
        self.show(rows)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_groups("step")

    def action_groups(self, kind: Kind) -> None:
        if steps := list(self.run.index.files(kind)):
            self.app.push_screen(StepGroups(self.run, kind, steps[-1]))
        else:
            self.notify("no such rollouts were recorded")


class StepGroups(Level):
    """The groups of a step, the largest spread first; the arrows walk the steps."""

    COLUMNS = ("prompt", "mean", "spread", "kept", "rewards", "question")
    BINDINGS: ClassVar = [Binding("left", "walk(-1)", "earlier"), Binding("right", "walk(1)", "later")]

    def __init__(self, run: WatchedRun, kind: Kind, step: int) -> None:
        super().__init__()
        self.run = run
        self.kind: Kind = kind
        self.step = step

    def on_mount(self) -> None:
        self.update()

    def update(self) -> None:
        self.title = f"{self.run.name} · {'step' if self.kind == 'step' else 'evaluation after step'} {self.step}"
        try:
            page = step_page(self.run.index, self.kind, self.step, ResponseFilter())
        except BurnishError as error:
            self.notify(escape(str(error)), severity="error")
            return
        self.show([(str(group["group"]), _group_cells(group)) for group in page["groups"]])

    def action_walk(self, by: int) -> None:
        steps = list(self.run.index.files(self.kind))
        place = steps.index(self.step) + by if self.step in steps else 0
        if 0 <= place < len(steps):
            self.step = steps[place]
            self.update()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        try:
            self.app.push_screen(GroupResponses(self.run, self.kind, self.step, int(str(event.row_key.value))))
        except BurnishError as error:
            self.notify(escape(str(error)), severity="error")


class GroupResponses(Screen[None]):
    """The responses of a group, tokens coloured by advantage."""

    BINDINGS: ClassVar = [Binding("escape", "app.pop_screen", "back")]

    def __init__(self, run: WatchedRun, kind: Kind, step: int, group: int) -> None:
        super().__init__()
        self.title = f"{run.name} · step {step} · group {group}"
        self.page = group_page(run.index, kind, step, group, ResponseFilter())

    def compose(self) -> ComposeResult:
        yield Header()
        with VerticalScroll():
            if self.page is not None:
                group = self.page["group"]
                asked = group["prompt"] if isinstance(group["prompt"], str) else group.get("seen", "")
                yield Static(_text(asked, "bold"))
                yield Static(_text(f"{group['id']}  answer {group['answer']}\n", "dim"))
                for response in group["responses"]:
                    yield Static(_response(response))
        yield Footer()


def _plain(text: str) -> str:
    return text.translate(_SHOWN_CONTROLS)


def _text(text: str, style: str = "") -> Text:
    return Text(_plain(text), style)


def _cells(run: WatchedRun, now: float) -> list[str | Text]:
    found = run.summary(now)
    step = f"{found['step']:,}" + (f" / {found['total']:,}" if found["total"] else "")
    values = list(found["values"].items())[:2]
    score = "  ".join(f"{name.rpartition('/')[2]} {latest:.4g}" for name, (_, latest) in values)
    age = duration(now - found["changed"]) if found["changed"] else ""
    left = "" if found["left"] is None else duration(found["left"])
    cells = [found["name"], found["state"], step, age, left, score, str(found["alarms"] or "")]
    return [_text(cell) for cell in cells]


def _group_cells(group: GroupSummary) -> list[str | Text]:
    mean = "" if group["mean"] is None else f"{group['mean']:.4g}"
    rewards = sparkline([0.0 if reward is None else reward for reward in group["rewards"]], 16)
    asked = " ".join(group["asked"].split())[-80:]
    cells = (group["prompt"], mean, f"{group['spread']:.4g}", str(group["kept"]), rewards, asked)
    return [_text(cell) for cell in cells]


def _response(response: ShownResponse) -> Lines:
    ended = f"{response['finish']} after {response['count']}"
    facts = [f"#{response['sample']}", f"reward {response['reward']}", ended, response["why"]]
    advantages = response.get("advantages") or [response["advantage"]] * len(response["tokens"])
    text = Text()
    for token, advantage in zip(response["tokens"], advantages, strict=True):
        better = isinstance(advantage, float) and advantage > 0
        text.append(_plain(token), style="" if not isinstance(advantage, float) else "green" if better else "red")
    return Lines(_text("  ".join(facts), "bold reverse"), text, Text(""))
