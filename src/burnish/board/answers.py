"""Answers to the requests of the board's page, as data that JSON can hold."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypedDict, TypeVar, get_args

from burnish.board.configuration import configuration_table, masked_text
from burnish.board.curves import Axis, charts_of, points
from burnish.board.index import FOLDER, Kind, own_folder
from burnish.board.pictures import response_charts
from burnish.board.rollouts import Form, ResponseFilter, group_page, rows_of_step, sightings, step_page
from burnish.board.runs import Runs, RunSummary, WatchedRun
from burnish.board.timeline import picture_of
from burnish.errors import DataError
from burnish.observability.atomic import PRIVATE, disk_errors
from burnish.observability.control import REQUESTS, Request, ask, take
from burnish.outside.listening import RefusedError, wrong
from burnish.outside.reading import reading
from burnish.types import Json

T = TypeVar("T", bound=str)
_SCAN_SECONDS, _REFRESH_SECONDS = 5.0, 0.1
READING_SECONDS = 0.4
"""Longest time for which one request reads metrics; with the next one it goes on."""
NOTES_FILE = "notes.jsonl"
_MOST_CHARACTERS = 4_000
_TIMELINE_STEPS = 20
INDEXING_SECONDS = 0.5
"""Longest time for which one request indexes files; the page asks again until none is left."""


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a request, by name. RefusedError, which names the parameter, for a value that cannot be."""

    values: Mapping[str, Sequence[str]]

    def text(self, name: str) -> str:
        return self.values[name][-1] if name in self.values else ""

    def many(self, name: str) -> Sequence[str]:
        return self.values.get(name, ())

    def number(self, name: str, default: float) -> float:
        """Return the number; `default` if it is not given."""
        text = self.text(name)
        try:
            value = float(text) if text else default
        except ValueError as error:
            raise wrong(name, f"{name} has to be a number") from error
        if text and not math.isfinite(value):
            raise wrong(name, f"{name} has to be finite")
        return value

    def whole(self, name: str, default: int) -> int:
        """Return the whole number; `default` if it is not given."""
        text = self.text(name)
        if text and not (text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 16):
            raise wrong(name, f"{name} has to be a whole number")
        return int(text) if text else default

    def choice(self, name: str, known: tuple[T, ...]) -> T:
        """Return one of these words; the first one if none is given."""
        for word in known:
            if word == (self.text(name) or known[0]):
                return word
        raise wrong(name, f"{name} has to be one of {', '.join(known)}")


@dataclass(slots=True)
class Board:
    """Runs, and the answers about them. `control`: requests may be passed on to them."""

    runs: Runs
    control: bool = False
    _scanned: float = -math.inf
    _refreshed: float = -math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def summaries(self) -> list[RunSummary]:
        """Return the rows of the list of runs, after reading what is new."""
        with self._lock:  # of all that reads tables, which grow here
            now = time.monotonic()
            if now - self._scanned > _SCAN_SECONDS:
                self.runs.scan()
                self._scanned = now
            if now - self._refreshed > _REFRESH_SECONDS:
                self.runs.refresh(READING_SECONDS)
                self._refreshed = time.monotonic()
            return [run.summary(time.time()) for run in self.runs.by_name.values()]

    def overview(self, query: Query) -> object:
        """Return all runs with their heads."""
        summaries = self.summaries()
        heads = {run.name: run.head() for run in self.runs.by_name.values()}
        roots = [str(root) for root in self.runs.roots]
        return {"roots": roots, "control": self.control, "runs": summaries, "heads": heads, "now": time.time()}

    def charts(self, query: Query) -> object:
        """Return the charts of the named runs."""
        with self._lock:
            return charts_of([run.table for run in self._named(query)])

    def points(self, query: Query) -> object:
        """Return the points of the named metrics, by run and metric."""
        axis: Axis = query.choice("axis", get_args(Axis))
        first, last = query.number("from", -math.inf), query.number("to", math.inf)
        wanted = partial(points, axis=axis, after=query.whole("after", -1), first=first, last=last)
        with self._lock:
            return {
                run.name: {name: wanted(run.table, name) for name in query.many("metric")} for run in self._named(query)
            }

    def run(self, query: Query) -> dict[str, object]:
        """Return what does not change with every step: alarms, notes, environment and recorded steps."""
        run = self._one(query)
        return {
            "alarms": list(map(asdict, run.table.alarms)),
            "notes": read_notes(run.folder),
            "environment": masked_text(run.folder / "environment.json") or "",
            "steps": list(run.index.files("step")),
            "evals": list(run.index.files("eval")),
        }

    def timeline(self, query: Query) -> object:
        """Return which process was at work when: in `steps` steps up to `step`, or up to the newest one."""
        run, wanted = self._one(query), min(max(1, query.whole("steps", 3)), _TIMELINE_STEPS)
        newest = run.table.steps[-1] if run.table.steps else 0
        last = min(query.whole("step", newest), newest)
        with reading(f"{run.folder}: reading the timeline"):
            return {"step": last, "newest": newest, **picture_of(run.folder, last - wanted + 1, last)}

    def pictures(self, query: Query) -> object:
        """Return the charts of a run's recorded responses, which reads some of its files."""
        run = self._one(query)
        with reading(f"{run.folder}: reading recorded responses"):
            return response_charts(run.folder, critic="critic/value_mean" in run.table.columns)

    def configurations(self, query: Query) -> object:
        """Return the fields in which the named runs differ from the defaults or from each other, and their files."""
        found = [run.configuration() for run in self._named(query)]
        return {"rows": configuration_table(found), "texts": {one.name: one.text or "" for one in found}}

    def groups(self, query: Query) -> object:
        """Return the groups of a step."""
        kind, step = self._place(query)
        return step_page(self._one(query).index, kind, step, _filter(query))

    def group(self, query: Query) -> object:
        """Return responses of a group."""
        kind, step = self._place(query)
        group, first = query.whole("group", 0), max(0, query.whole("first", 0))
        found = group_page(self._one(query).index, kind, step, group, _filter(query), first)
        if found is None:
            raise RefusedError(404, f"step {step} has no such group, or none of its responses passes the filter")
        return found

    def prompt(self, query: Query) -> object:
        """Return one prompt in all steps that are indexed, and how many are not yet."""
        kind: Kind = query.choice("kind", get_args(Kind))
        index = self._one(query).index
        missing, until = index.missing(kind), time.monotonic() + INDEXING_SECONDS  # many files take long to list
        while missing and time.monotonic() < until:
            index.add(kind, missing.pop())
        return {"sightings": sightings(index, kind, query.text("prompt")), "missing": len(missing)}

    def export(self, query: Query) -> list[dict[str, Json]]:
        """Return rows for training, from one step."""
        form: Form = query.choice("form", get_args(Form))
        return rows_of_step(self._one(query).index, query.whole("step", 0), form, query.number("least", -math.inf))

    def note(self, body: Mapping[str, Json]) -> object:
        """Keep a note in the run's folder."""
        run, group = self._find(body.get("run")), body.get("group")
        text, step, kind = body.get("text"), body.get("step"), body.get("kind", "step")
        if not isinstance(text, str) or type(step) is not int or kind not in get_args(Kind):
            raise wrong("text", "a note has a text, a step, and kind step or eval")
        return add_note(run.folder, text, str(kind), step, group if type(group) is int else None)

    def request(self, body: Mapping[str, Json]) -> object:
        """Ask a run for something, or take it back (`on: false`)."""
        if not self.control:
            raise RefusedError(403, "this board only reads; start it with --control to send requests to runs")
        run = self._find(body.get("run"))
        for request in REQUESTS:
            if request == body.get("request"):
                _pass_on(run.folder, request, on=body.get("on") is not False)
                return {"ok": True}
        raise wrong("request", f"request has to be one of {', '.join(REQUESTS)}")

    def _named(self, query: Query) -> list[WatchedRun]:
        return [self._find(name) for name in query.many("run")]

    def _one(self, query: Query) -> WatchedRun:
        return self._find(query.text("run"))

    def _find(self, name: object) -> WatchedRun:
        """Find a run by its name. Names are compared with those of runs that were found, and never opened."""
        run = self.runs.by_name.get(name) if isinstance(name, str) else None
        if run is None:
            raise RefusedError(404, f"there is no run {name!r:.120} here")
        return run

    def _place(self, query: Query) -> tuple[Kind, int]:
        return query.choice("kind", get_args(Kind)), max(0, query.whole("step", 0))


def _filter(query: Query) -> ResponseFilter:
    texts = {name: query.text(name) for name in ("status", "why", "domain", "text")}
    return ResponseFilter(query.number("low", -math.inf), query.number("high", math.inf), **texts)


def _pass_on(folder: Path, request: Request, *, on: bool) -> None:
    try:
        (ask if on else take)(folder, request)
    except OSError as error:
        remedy = "start the board as the owner of that folder"
        raise DataError(f"cannot write below {folder}: {error.strerror}", remedy=remedy) from error


class Note(TypedDict):
    """A remark on a step, or on one of its groups; written: local time with its offset."""

    text: str
    kind: str
    step: int
    group: int | None
    written: str


def read_notes(run_dir: Path) -> list[Note]:
    """Read the notes on a run, oldest first. DataError if a line is damaged."""
    path = run_dir / FOLDER / NOTES_FILE
    if path.is_symlink() or path.parent.is_symlink() or not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", remedy="fix or remove it") from error


def add_note(run_dir: Path, text: str, kind: str, step: int, group: int | None) -> Note:
    """Append a note. DataError if it is empty or too long, or if the folder cannot be written to."""
    if not text.strip() or len(text) > _MOST_CHARACTERS:
        raise DataError(
            f"a note has 1 to {_MOST_CHARACTERS:,} characters", remedy="write it shorter, or write something"
        )
    note: Note = {"text": text.strip(), "kind": kind, "step": step, "group": group, "written": _now()}
    path = run_dir / FOLDER / NOTES_FILE
    with disk_errors(f"write {path}", path.parent, DataError):
        own_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
    return note


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
