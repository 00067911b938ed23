"""The board's page about given runs as one file that needs no server: what `burnish report` writes.

Where the page would ask a server, it looks into the data that the file holds (`page/snapshot.js`). It loads nothing
from the network, and the text of prompts and responses is embedded as data and never parsed as HTML.
"""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from burnish.board.answers import Board, Query
from burnish.board.curves import charts_of, points
from burnish.board.runs import Runs, WatchedRun
from burnish.board.samples import PageLimits, sample_rollouts
from burnish.board.tables import MetricTable
from burnish.errors import DataError
from burnish.observability.atomic import write_text_atomically, writing
from burnish.observability.sinks import METRICS_FILE

MAX_POINTS = 800
"""Most points of a line; the board itself shows more."""
_TIMELINES = (1, 3, 10)
"""Numbers of steps that the page has a timeline of; it offers no others."""
_POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:\">"
)


def write_report(*run_dirs: Path, out: Path | None = None, limits: PageLimits | None = None) -> Path:
    """Write the page and return its path. By default it is `report.html` in the folder of a single run, and
    `comparison.html` beside the first of several folders.

    `limits` bounds the size of the page, for all runs together. If there are more steps or prompts, they are sampled
    evenly, and the page says so. Raises DataError if a folder is not a run's, and BurnishError if the page cannot be
    written.
    """
    first, limits = run_dirs[0], limits or PageLimits()
    path = out or (first / "report.html" if len(run_dirs) == 1 else first.parent / "comparison.html")
    runs = {name: _read_run(name, folder) for name, folder in zip(run_names(run_dirs), run_dirs, strict=True)}
    share = replace(limits, total_bytes=limits.total_bytes // len(runs))
    page = _page(" · ".join(runs), _snapshot(Board(Runs((), runs)), share))
    with writing(path):
        write_text_atomically(path, page)
    return path


def run_names(run_dirs: Sequence[Path]) -> list[str]:
    """Name each run by the end of its path, long enough to tell the runs apart."""
    parts = [folder.resolve().parts for folder in run_dirs]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(own[-count:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    twice = max(run_dirs, key=lambda folder: parts.count(folder.resolve().parts))
    raise DataError(f"the same run is given twice: {twice}", remedy="give each run once")


def _read_run(name: str, folder: Path) -> WatchedRun:
    """Read a run's metrics. DataError if the folder is not a run's, or if they are damaged."""
    run = WatchedRun.at(name, folder)
    run.refresh()
    if run.table.problem:
        raise DataError(f"{folder}/{run.table.problem}", remedy="fix the file (one line per step, in order)")
    if not run.table.steps:
        raise DataError(
            f"{folder} has no {METRICS_FILE} with at least one step", remedy="give the folder of a run (its `output`)"
        )
    return run


def _snapshot(board: Board, limits: PageLimits) -> dict[str, object]:
    """Gather what the page may ask for."""
    runs, now = board.runs.by_name, time.time()
    charts = charts_of([run.table for run in runs.values()])
    metrics = {line["metric"] for chart in charts["charts"] for line in chart["lines"]}
    listed = {"runs": [run.summary(now) for run in runs.values()], "heads": {n: run.head() for n, run in runs.items()}}
    return {
        "runs": {"roots": [], "control": False, "now": now, **listed},
        "charts": charts,
        "lines": {name: _lines(run.table, metrics) for name, run in runs.items()},
        "configurations": board.configurations(Query({"run": list(runs)})),
        "details": {name: _details(board, run, limits) for name, run in runs.items()},
    }


def _lines(table: MetricTable, metrics: Iterable[str]) -> dict[str, object]:
    """Points of these metrics by step, and the places of these steps on the other axes."""
    drawn = {name: points(table, name, most=MAX_POINTS) for name in metrics if name in table.columns}
    steps = {step for part in drawn.values() for step in part["steps"]}
    places = zip(table.steps, table.tokens, table.seconds, strict=True)
    return {"drawn": drawn, "places": {step: place for step, *place in places if step in steps}}


def _details(board: Board, run: WatchedRun, limits: PageLimits) -> dict[str, object]:
    query = {"run": [run.name]}
    samples = sample_rollouts(run.folder / "rollouts", limits)
    recorded = [(f"{one['kind']}s", one["step"]) for one in samples["files"]]
    return {
        **board.run(Query(query)),
        **{kinds: [step for own, step in recorded if own == kinds] for kinds in ("steps", "evals")},
        "remarks": [remark for remark in (samples["note"], _thinned(len(run.table.steps))) if remark],
        "pictures": board.pictures(Query(query)),
        "timelines": {count: board.timeline(Query({**query, "steps": [str(count)]})) for count in _TIMELINES},
        "rollouts": samples["files"],
    }


def _thinned(rows: int) -> str:
    if rows <= MAX_POINTS:
        return ""
    return f"Curves show and smooth at most {MAX_POINTS} of {rows:,} steps, with extremes; {METRICS_FILE} has all."


def _page(title: str, data: object) -> str:
    """The board's page with its styles, its scripts and the data in it."""
    page = _asset("board.html").replace("burnish board</title>", f"{html.escape(title)} · burnish</title>")
    *before, last = re.findall(r'<script src="/(.+?)" defer>', page)
    page = re.sub(r'<script src="/.+? defer></script>\n', "", page)
    page = re.sub(r'<link rel="stylesheet" href="/(.+?)">', lambda link: f"<style>{_asset(link[1])}</style>", page)
    scripts = "".join(f"<script>{_asset(name)}</script>\n" for name in (*before, "snapshot.js", last))
    held = f'<script type="application/json" id="snapshot">{script_json(data)}</script>\n'
    first, end = '<meta charset="utf-8">\n', "</body>"
    return page.replace(first, f"{first}{_POLICY}\n").replace(end, f"{held}{scripts}{end}")


def script_json(value: object) -> str:
    """Write JSON that is safe inside a <script> element: no character in it can end the element or start markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":  # the last two end a line in older JavaScript
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return files("burnish.board").joinpath("page", name).read_text(encoding="utf-8")
