"""Notes what each test costs: CPU seconds of the test and of every process it starts, and seconds by the clock.

`--record FILE` writes one JSON object per case, and one per fixture that several cases share: `name`, `cpu` (CPU
seconds, children included), `seconds` (by the clock) and `waited` (seconds in which the test was neither computing nor
queueing for a processor). `--limits` fails the run if a case, or all of them together, cost more than the default run
allows.
"""

import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

CASE_LIMIT = 2.0
"""CPU seconds of one default case. A case is marked `slow` above 0.3; the rest is for slower machines."""
RUN_LIMIT = 360.0
"""CPU seconds of all default cases together: 300, and 60 for the rehearsal of all that a GPU will be asked."""
GUARDS = Path(__file__).parent.parent / "guards.txt"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Moment:
    """Readings of the clocks at one instant, in seconds."""

    clock: float
    cpu: float
    queued: float


# Bound here: a test may replace `Path.open` or `os.open`, and its case ends while they are replaced.
_open, _read, _close, _list = os.open, os.read, os.close, os.listdir


def read_proc(path: str) -> str:
    """The text of a small file below /proc. OSError if its process has ended."""
    descriptor = _open(path, os.O_RDONLY)
    try:
        return _read(descriptor, 1 << 16).decode()
    finally:
        _close(descriptor)


def descendants_cpu(pid: int | str) -> float:
    """CPU seconds of the living descendants of a process, and of what these have reaped."""
    total = 0.0
    try:
        listed = [read_proc(f"/proc/{pid}/task/{task}/children").split() for task in _list(f"/proc/{pid}/task")]
    except OSError:  # it ended while we looked
        return 0.0
    for child in chain.from_iterable(listed):
        try:
            fields = read_proc(f"/proc/{child}/stat").rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(ticks) for ticks in fields[11:15]) / TICKS + descendants_cpu(child)
    return total


def read_clocks() -> Moment:
    """Read the clock, the CPU seconds of this process and its descendants, and its seconds in the run queue."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + reaped.ru_utime + reaped.ru_stime + descendants_cpu("self")
    queued = int(read_proc("/proc/self/schedstat").split()[1]) / 1e9
    return Moment(time.perf_counter(), cpu, queued)


class Timekeeper:
    """Measures the phases of each case, and shared fixtures apart from the case that happens to set them up."""

    def __init__(self) -> None:
        self._shared: list[tuple[str, float, float, float]] = []
        self._costs = [0.0, 0.0, 0.0]

    @contextmanager
    def _measured(self, sign: int = 1) -> Iterator[list[float]]:
        before, spent = read_clocks(), [0.0, 0.0, 0.0]
        yield spent
        after = read_clocks()
        cpu, clock = after.cpu - before.cpu, after.clock - before.clock
        spent[:] = [cpu, clock, max(0.0, clock - cpu - (after.queued - before.queued))]
        self._costs = [cost + sign * part for cost, part in zip(self._costs, spent, strict=True)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._costs, self._shared = [0.0, 0.0, 0.0], []
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        with self._measured():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        with self._measured():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        with self._measured():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        with self._measured(sign=-1) as spent:
            value = yield
        self._shared.append((f"{request.node.nodeid}[fixture {fixturedef.argname}]", *spent))
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append(("costs", [(item.nodeid, *self._costs), *self._shared]))
        return report


def read_guards(path: Path = GUARDS) -> set[str]:
    """Names of the cases that may cost more, one for a promise of the README: lines of `name  # promise`."""
    lines = (line.partition("  # ")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def find_excesses(rows: list[dict[str, Any]], guards: set[str]) -> list[str]:
    """What costs more than the default run allows, a line each."""
    found = [
        f"{row['name']} takes {row['cpu']:.1f} CPU seconds, at most {CASE_LIMIT:g} are allowed: mark it slow"
        for row in rows
        if row["cpu"] > CASE_LIMIT and row["name"] not in guards
    ]
    total = sum(row["cpu"] for row in rows)
    if total > RUN_LIMIT:
        found.append(f"all default cases take {total:.0f} CPU seconds, at most {RUN_LIMIT:g} are allowed")
    return found


class Record:
    """Gathers the costs of all test processes, and writes or judges them when the run ends."""

    def __init__(self, path: Path | None, *, judged: bool) -> None:
        self._path, self._judged = path, judged
        self._rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, costs in report.user_properties:
            if key == "costs" and report.when == "teardown":
                self._rows += [dict(zip(("name", "cpu", "seconds", "waited"), row, strict=True)) for row in costs]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._path is not None:
            ordered = sorted(self._rows, key=lambda row: -row["cpu"])
            self._path.write_text("".join(json.dumps(row) + "\n" for row in ordered))
        if self._judged and find_excesses(self._rows, read_guards()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        excesses = find_excesses(self._rows, read_guards()) if self._judged else []
        total = sum(row["cpu"] for row in self._rows)
        terminalreporter.section(f"{total:.0f} CPU seconds, {len(excesses)} above the limits")
        for line in excesses:
            terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("timekeeping")
    group.addoption("--record", type=Path, help="write what each case cost to this file, as JSON lines")
    group.addoption("--limits", action="store_true", help="fail if a default case, or the whole, costs too much")


def pytest_configure(config: pytest.Config) -> None:
    path, judged = config.getoption("--record"), config.getoption("--limits")
    if path is None and not judged:
        return
    config.pluginmanager.register(Timekeeper())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(path, judged=judged))
