"""What a program costs in the sandbox, by tier and processes, and what many leave behind of which some never end.

    python benchmarks/sandbox.py                               # all tiers that this machine allows: some minutes
    python benchmarks/sandbox.py --tiers landlock --processes 1 2 4
    python benchmarks/sandbox.py --output results/sandbox      # where the page and the numbers go

The programs are the 164 solutions of HumanEval with their tests, if `BURNISH_DATA` names a folder with
`data/humaneval/HumanEval.jsonl.gz`, else as many small functions with three calls each. Processor time is that of the
sandbox's processes and of this one, less that of a sandbox which only starts. Afterwards 1,000 programs run, of which
100 hang (half compute, half sleep) and all try to leave a file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import secrets
import statistics
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from report import publish

from burnish.rewards.builtins.code import program
from burnish.rewards.builtins.code_tests import task_of_row
from burnish.sandbox.confinement import TIERS, Tier
from burnish.sandbox.job import AssertTests, Case, FunctionTests, Limits, ProgramTests, Verdict
from burnish.sandbox.kernel import prctl
from burnish.sandbox.parent import TierRefusedError
from burnish.sandbox.sandbox import Sandbox

Job = FunctionTests | AssertTests | ProgramTests

GENERATED = 164
PLACES = ("/tmp", "/var/tmp", "/dev/shm", ".")
"""Where a program may think of leaving a file."""
PATIENT = Limits(seconds=60.0, processor_seconds=60.0)
END_SECONDS = 5.0
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER: whatever a sandbox forgets becomes a child of this process


def main() -> None:
    options = parse()
    prctl(_ADOPT_ORPHANS, 1)
    source, jobs = human_eval() or ("small functions", generated())
    rows = []
    for tier in options.tiers:
        try:
            rows += [speed(tier, count, jobs, options.repeats) for count in options.processes]
            rows.append(survived(tier, max(options.processes), options.programs, options.hanging))
        except TierRefusedError as error:
            rows.append({"tier": tier, "kind": "refused", "why": str(error).splitlines()[0]})
    publish("sandbox", options.output, rows, to_markdown, programs=source)


def human_eval() -> tuple[str, list[Job]] | None:
    file = Path(os.environ.get("BURNISH_DATA", "."), "data/humaneval/HumanEval.jsonl.gz")
    if not file.exists():
        return None
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    tasks = [(row, task_of_row(row, None)) for row in rows]
    return "HumanEval", [task.make(program(row["canonical_solution"], task)) for row, task in tasks if task is not None]


def generated() -> list[Job]:
    return [
        FunctionTests(
            f"def f(items): return sorted(item * {k} for item in items)",
            "f",
            tuple(Case(([3, 1, n],), sorted([3 * k, k, n * k])) for n in range(3)),
        )
        for k in range(1, GENERATED + 1)
    ]


def speed(tier: Tier, processes: int, jobs: Sequence[Job], repeats: int) -> dict[str, Any]:
    """Programs per second with so many at once, and what one costs."""
    at_start, _, _ = judged(tier, processes, jobs, 0)
    spent, seconds, verdicts = judged(tier, processes, jobs, repeats)
    row = {
        "tier": tier,
        "kind": "speed",
        "processes": processes,
        "programs": len(jobs),
        "passed": statistics.mean(passed(verdicts)),
        "per_second": round(len(jobs) / statistics.median(seconds), 1),
        "all_seconds": [round(value, 3) for value in seconds],
        "processor_ms": round(1000 * (spent - at_start) / (len(jobs) * repeats), 2),
    }
    print(row, file=sys.stderr, flush=True)
    return row


def run_all(sandbox: Sandbox, jobs: Sequence[Job]) -> list[Verdict]:
    """Verdicts of as many programs at once as there are processes."""
    with ThreadPoolExecutor(sandbox.processes) as threads:
        return list(threads.map(sandbox.run, jobs))


def judged(tier: Tier, processes: int, jobs: Sequence[Job], repeats: int) -> tuple[float, list[float], list[Verdict]]:
    """Processor seconds of a sandbox from start to end, which begins with some programs for each of its warm parents;
    seconds and verdicts of the repeats."""
    before = processor_seconds()
    seconds: list[float] = []
    verdicts: list[Verdict] = []
    with Sandbox(tier, processes=processes, limits=PATIENT) as sandbox:
        run_all(sandbox, jobs[: 2 * processes])
        for _ in range(repeats):
            began = time.monotonic()
            verdicts += run_all(sandbox, jobs)
            seconds.append(time.monotonic() - began)
    return processor_seconds() - before, seconds, verdicts


def survived(tier: Tier, processes: int, programs: int, hanging: int) -> dict[str, Any]:
    """What is there after so many programs that was not there before."""
    mark = f"left-{secrets.token_hex(8)}"
    leave = "".join(
        f"try: open({os.path.join(place, mark)!r}, 'w').close()\nexcept OSError: pass\n" for place in PLACES
    )
    every = programs // hanging if hanging else programs + 1
    endings = ("while True: pass\n", "import time\nwhile True: time.sleep(60)\n")
    jobs = [
        ProgramTests(
            leave + ("print(int(input()) + 1)\n" if n % every else endings[n // every % 2]), ((f"{n}\n", f"{n + 1}\n"),)
        )
        for n in range(programs)
    ]
    descriptors, began = len(os.listdir("/proc/self/fd")), time.monotonic()
    with Sandbox(tier, processes=processes, limits=Limits(seconds=1.0, processor_seconds=2.0)) as sandbox:
        verdicts = run_all(sandbox, jobs)
    seconds = time.monotonic() - began
    while descendants() and time.monotonic() - began - seconds < END_SECONDS:
        time.sleep(0.05)
    row = {
        "tier": tier,
        "kind": "survived",
        "processes": processes,
        "programs": programs,
        "hanging": sum(verdict.status == "timed_out" for verdict in verdicts),
        "passed": sum(passed(verdicts)),
        "seconds": round(seconds, 1),
        "left_processes": len(descendants()),
        "left_files": sum(Path(place, mark).exists() for place in PLACES),
        "left_descriptors": len(os.listdir("/proc/self/fd")) - descriptors,
    }
    for place in PLACES:
        Path(place, mark).unlink(missing_ok=True)
    print(row, file=sys.stderr, flush=True)
    return row


def passed(verdicts: Sequence[Verdict]) -> list[bool]:
    return [verdict.status == "passed" for verdict in verdicts]


def processor_seconds() -> float:
    """Of this process, and of all that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def descendants() -> list[int]:
    """Processes that this one, or one below it, has started and not yet seen the end of."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):  # it has just ended
                continue
    found = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return sorted(found - {os.getpid()})


def to_markdown(report: Mapping[str, Any]) -> str:
    about = (
        f"`{report['command']}` on {report['date']}: {report['processor']}, load average {report['load_after']} after. "
        f"Programs: {report['programs']}. Processor time per program is that of all processes, less that of a sandbox "
        "which only starts; seconds are medians over repeats."
    )
    rows = report["rows"]
    lines = ["# What a program costs in the sandbox", "", *textwrap.wrap(about, 120), ""]
    lines += ["| tier | at once | programs/s | processor ms each | pass |", "|---|---:|---:|---:|---:|"]
    for row in (row for row in rows if row["kind"] == "speed"):
        numbers = f"{row['processes']} | {row['per_second']} | {row['processor_ms']} | {row['passed']:.1%}"
        lines.append(f"| {row['tier']} | {numbers} |")
    lines += ["", "## What is left", ""]
    lines += ["Programs of which some never end, stopped after one second each. All try to leave a file.", ""]
    head = "| tier | programs | stopped | passed | seconds | processes left | files left | descriptors left |"
    lines += [head, "|---|---:|---:|---:|---:|---:|---:|---:|"]
    fields = ("programs", "hanging", "passed", "seconds", "left_processes", "left_files", "left_descriptors")
    for row in (row for row in rows if row["kind"] == "survived"):
        lines.append(f"| {row['tier']} | {' | '.join(str(row[field]) for field in fields)} |")
    lines += [f"\n`{row['tier']}` is not possible here: {row['why']}" for row in rows if row["kind"] == "refused"]
    return "\n".join(lines) + "\n"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/sandbox.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS), help="default: all")
    parser.add_argument(
        "--processes", nargs="+", type=int, default=sorted({1, cores}), help="at once (default: 1, and all cores)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="of all programs (default: 3)")
    parser.add_argument("--programs", type=int, default=1000, help="of which some hang (default: 1,000)")
    parser.add_argument("--hanging", type=int, default=100, help="how many of those (default: 100)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/sandbox"), help="without the ending")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
