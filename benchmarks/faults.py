"""Runs on several processes, one of which is killed or stopped at a random instant, against the undisturbed run.

    python benchmarks/faults.py                                # 50 workers, 20 trainers, 20 controllers killed: an hour
    python benchmarks/faults.py --workers 5 --stopped 2        # some of it
    python benchmarks/faults.py --output results/faults        # where the page and the numbers go

Each run is a `burnish rl` of its own: GRPO on the arithmetic demo's untrained model, two trainers and two rollout
workers, one step ahead. A victim is drawn, and an instant between the start of the first process and the end of an
undisturbed run. A controller's run is started again with the same command. Afterwards metrics (times aside), rollouts,
weights and optimizer are compared byte by byte, and processes that are left are counted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from report import publish

RUN = """\
output: {output}
seed: 1
model: {{path: {model}, device: cpu}}
data: {{train: {data}}}
rewards: {{name: length, options: {{maximum: 24}}}}
algorithm: {{preset: grpo, kl_in: loss, kl_coef: 0.05}}
steps: 12
max_staleness: 1
cluster: {{trainers: 2, rollout_workers: 2, threads: 1}}
rollout: {{prompts_per_step: 16, group_size: 8, max_prompt_tokens: 8, max_response_tokens: 40}}
optimization: {{learning_rate: 1e-3, minibatches: 2}}
checkpoint: {{every_steps: 3}}
debug: {{plain: true}}
"""
ORDINARY = ("time/", "throughput/")
"""Metrics that differ between any two runs."""
LOSSES = "rollout/lost_workers"
RUN_SECONDS = 300.0
END_SECONDS = 5.0


@dataclass(frozen=True)
class Victim:
    """Which process is hit, with what, and how many runs."""

    name: str
    role: str
    number: signal.Signals
    runs: int


def main() -> None:
    options = parse()
    victims = [
        Victim("rollout worker killed", "rollout-worker", signal.SIGKILL, options.workers),
        Victim("rollout worker stopped", "rollout-worker", signal.SIGSTOP, options.stopped),
        Victim("trainer killed", "trainer", signal.SIGKILL, options.trainers),
        Victim("controller killed", "controller", signal.SIGKILL, options.controllers),
    ]
    luck = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        folder = Path(made)
        write_task(folder)
        plain = undisturbed(folder)
        rows = [trials(folder, victim, plain, luck) for victim in victims if victim.runs]
    publish("faults", options.output, rows, to_markdown, undisturbed_seconds=round(plain["seconds"], 1))


def write_task(folder: Path) -> None:
    """The demo's additions and its untrained model."""
    from burnish.demo import DemoFolder, write_data, write_model

    demo = DemoFolder(folder / "demo")
    write_data(demo, 1)
    write_model(demo.model, 1)


def undisturbed(folder: Path) -> dict[str, Any]:
    """The run that all others are compared with, and how long it takes."""
    run = start(folder, "plain")
    wait_until(lambda: bool(processes_of(run.pid)), 60.0)
    began = time.monotonic()
    if run.wait(RUN_SECONDS):
        raise SystemExit(f"the undisturbed run failed:\n{(folder / 'plain.log').read_text()[-3000:]}")
    return {
        "seconds": time.monotonic() - began,
        "trace": trace(folder / "plain"),
        "steps": step_seconds(folder / "plain"),
    }


def trials(folder: Path, victim: Victim, plain: Mapping[str, Any], luck: random.Random) -> dict[str, Any]:
    """So many runs with such a victim, and what became of them."""
    found: list[dict[str, Any]] = []
    misses = 0
    while len(found) < victim.runs:
        name = f"{victim.role}-{victim.number.name}-{len(found)}"
        outcome = trial(folder, name, victim, luck.uniform(0, plain["seconds"]), plain)
        shutil.rmtree(folder / name, ignore_errors=True)
        if outcome is None:  # the run had ended before
            misses += 1
            continue
        found.append(outcome)
        print(f"{victim.name} {len(found)}/{victim.runs}: {outcome}", file=sys.stderr, flush=True)
    return {
        "name": victim.name,
        "runs": len(found),
        "finished": sum(one["code"] == 0 for one in found),
        "equal": sum(one["equal"] for one in found),
        "left_over": sum(one["left_over"] for one in found),
        "most_added_seconds": round(max(one["added_seconds"] for one in found), 1),
        "ended_before": misses,
    }


def trial(folder: Path, name: str, victim: Victim, at: float, plain: Mapping[str, Any]) -> dict[str, Any] | None:
    """One run with one fault, `at` seconds after the first of its processes has appeared."""
    run = start(folder, name)
    wait_until(lambda: bool(processes_of(run.pid)) or run.poll() is not None, 60.0)
    time.sleep(at)
    mine = processes_of(run.pid)
    targets = [run.pid] if victim.role == "controller" else [pid for pid, role in mine.items() if victim.role in role]
    if not targets or run.poll() is not None:
        run.wait(RUN_SECONDS)
        return None
    target = random.Random(at).choice(sorted(targets))
    try:
        os.kill(target, victim.number)
    except ProcessLookupError:
        return None
    left_over = 0
    if victim.role == "controller":
        run.wait(RUN_SECONDS)
        left_over = living(mine, END_SECONDS)
        run = start(folder, name)
    known = mine | processes_of(run.pid)
    code = run.wait(RUN_SECONDS)
    left_over += living(known, END_SECONDS)
    equal = code == 0 and trace(folder / name) == plain["trace"]
    # A step that is made again after a resume counts with its last time.
    slowest = max(step_seconds(folder / name), default=0.0) - max(plain["steps"])
    if not equal:
        print((folder / f"{name}.log").read_text()[-3000:], file=sys.stderr)
    return {"at": round(at, 2), "code": code, "equal": equal, "left_over": left_over, "added_seconds": slowest}


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """The run in a process of its own, which goes on where an earlier one of this name ended."""
    file = folder / f"{name}.yaml"
    demo = folder / "demo"
    file.write_text(RUN.format(output=folder / name, model=model_of(demo), data=data_of(demo)), encoding="utf-8")
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "burnish", "rl", str(file)], stdout=log, stderr=log, start_new_session=True
        )


def model_of(demo: Path) -> Path:
    from burnish.demo import DemoFolder

    return DemoFolder(demo).model


def data_of(demo: Path) -> Path:
    from burnish.demo import DemoFolder

    return DemoFolder(demo).train


def processes_of(controller: int) -> dict[int, str]:
    """Process ids of a run's trainers and rollout workers, with what names their role on the command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended
            continue
        if parent == controller and "burnish.distributed.server" in command:
            found[int(folder.name)] = Path(command.rpartition("'")[0]).name
    return found


def living(processes: Mapping[int, str], seconds: float) -> int:
    """How many of them are still there after so many seconds."""
    there = lambda: [pid for pid in processes if Path(f"/proc/{pid}/cmdline").exists() and is_ours(pid)]  # noqa: E731
    wait_until(lambda: not there(), seconds)
    return len(there())


def is_ours(pid: int) -> bool:
    try:
        return b"burnish.distributed.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def trace(folder: Path) -> dict[str, Any]:
    """What a run leaves behind and no fault may change: metrics, rollouts, and the newest checkpoint, as hashes."""
    rows = rows_of(folder)
    kept = [{k: v for k, v in row.items() if not k.startswith(ORDINARY) and k != LOSSES} for row in rows]
    newest = max((folder / "checkpoints").glob("step-??????"))
    files = [*newest.rglob("*.safetensors"), newest / "training_state.json", *folder.glob("rollouts/*")]
    hashes = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}
    return {"metrics": kept, "files": hashes}


def step_seconds(folder: Path) -> list[float]:
    return [row["time/step_seconds"] for row in rows_of(folder) if "time/step_seconds" in row]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def to_markdown(report: Mapping[str, Any]) -> str:
    about = (
        f"`{report['command']}` on {report['date']}: {report['processor']}, load average {report['load_after']} after. "
        f"The undisturbed run takes {report['undisturbed_seconds']} s, from its first process to its last checkpoint. "
        "Equal: metrics (times aside), rollouts, weights and optimizer state are those of the undisturbed run, byte by "
        f"byte. Left over: processes still there {END_SECONDS:g} s after the end of the controller. Added: the slowest "
        "step of all runs, less the slowest undisturbed one."
    )
    head = "| fault | runs | finished | equal | left over | added s |"
    lines = ["# Faults at random instants", "", *textwrap.wrap(about, 120), "", head, "|---|---:|---:|---:|---:|---:|"]
    for row in report["rows"]:
        numbers = [row[key] for key in ("runs", "finished", "equal", "left_over", "most_added_seconds")]
        lines.append(f"| {row['name']} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines) + "\n"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/faults.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=50, help="runs with a rollout worker killed (default: 50)")
    parser.add_argument("--stopped", type=int, default=5, help="with one stopped by SIGSTOP (default: 5)")
    parser.add_argument("--trainers", type=int, default=20, help="with a trainer killed (default: 20)")
    parser.add_argument("--controllers", type=int, default=20, help="with the controller killed (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of victims and instants (default: 1)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/faults"), help="without the ending")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
