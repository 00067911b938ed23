"""Where the time of a whole step of conversations goes: the loop's own share beside sampling and training.

Part of `python benchmarks/conversation.py`. The steps are those of W8 in `benchmarks/peers`: a tiny model whose every
turn calls a function. Its call takes microseconds, so nearly all of the time in which conversations wait for it is the
loop's own: messages to the processes of the tools and back, and the milliseconds in which answers are gathered. The
function gives the same few hundred answers again and again, as games do, so the share is also measured with one whose
answers are all new.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from models import write_prompts
from rich.console import Console
from run_burnish import TOOL, build_config
from turn_models import write_turn_model
from workloads import WORKLOADS

from burnish.machine.memory import uncollected
from burnish.rollouts.engine import OnFinished
from burnish.rollouts.local.engine import LocalEngine
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.parts import open_rl_run
from burnish.types import Rollout

WORKLOAD = WORKLOADS["W8"]
TOOL_ANEW = Path(__file__).parent / "look_up_anew.py"
OTHERS = ("sampling", "training")
"""The parts of a step that are not the loop's own."""


def measure_steps(steps: int) -> dict[str, Any]:
    """Median seconds and shares of each part, over `steps` steps after one that is not counted. Also the loop's own
    shares if no answer is the same as an earlier one."""
    with uncollected(lasting=True):  # as the command does
        pass
    measured = list(steps_with(TOOL, steps))
    shares = [{name: seconds / sum(step.values()) for name, seconds in step.items()} for step in measured]
    own, own_anew = own_shares(measured), own_shares(list(steps_with(TOOL_ANEW, steps)))
    return {
        "workload": WORKLOAD.title,
        "steps": steps,
        "step_seconds": round(statistics.median(sum(step.values()) for step in measured), 3),
        "seconds": {name: round(statistics.median(step[name] for step in measured), 4) for name in measured[0]},
        "shares": {name: round(statistics.median(step[name] for step in shares), 4) for name in measured[0]},
        "own_share": round(statistics.median(own), 4),
        "own_shares": [round(share, 4) for share in own],
        "own_share_anew": round(statistics.median(own_anew), 4),
        "own_shares_anew": [round(share, 4) for share in own_anew],
    }


def steps_with(tool: Path, steps: int) -> Iterator[dict[str, float]]:
    """The seconds of each step's parts in a run whose tool is in this file, without those of the first step."""
    assert WORKLOAD.turns is not None
    with tempfile.TemporaryDirectory(prefix="turns-") as name:
        folder = Path(name)
        write_turn_model(WORKLOAD.model, WORKLOAD.turns, folder / "model")
        write_prompts(WORKLOAD, WORKLOAD.prompts * (steps + 1), [], folder / "prompts.jsonl")
        task = {
            "output": str(folder / "run"),
            "model": str(folder / "model"),
            "prompts": str(folder / "prompts.jsonl"),
            "precision": "float32",
            "naive": False,
            "warmup": 1,
            "steps": steps,
        }
        with watched_engine() as watch, open_rl_run(build_config(task, WORKLOAD, tool), Console(quiet=True)) as run:
            timed_step(run, watch)
            for _ in range(steps):
                yield timed_step(run, watch)


def own_shares(steps: Sequence[Mapping[str, float]]) -> list[float]:
    """Of each step, the share that is neither sampling nor training."""
    return [1 - sum(step[name] for name in OTHERS) / sum(step.values()) for step in steps]


@dataclass(slots=True)
class Watch:
    """Seconds in the engine, without those in which it told of turns that had ended."""

    seconds: float = 0.0


@contextmanager
def watched_engine() -> Iterator[Watch]:
    """Count the time of the local engine's calls."""
    watch, generate = Watch(), LocalEngine.generate

    def watched(engine: LocalEngine, *given: Any, on_finished: OnFinished, **named: Any) -> list[Rollout]:
        def tell(rollouts: Sequence[Rollout]) -> None:
            told = time.perf_counter()
            on_finished(rollouts)
            watch.seconds -= time.perf_counter() - told

        started = time.perf_counter()
        rollouts = generate(engine, *given, on_finished=tell, **named)
        watch.seconds += time.perf_counter() - started
        return rollouts

    with patch.object(LocalEngine, "generate", watched):
        yield watch


def timed_step(run: RlRun, watch: Watch) -> dict[str, float]:
    """Seconds of a step by part; together they are all of it, the line of metrics included."""
    watch.seconds = 0.0
    started = time.perf_counter()
    row = run.train_step()
    written = time.perf_counter()
    run.journal.write(run.progress.step, row)
    ended = time.perf_counter()
    parts = {
        "sampling": watch.seconds,
        "training": row["time/logprobs_seconds"] + row["time/update_seconds"],
        "waiting for answers": row["time/answers_seconds"],
        "turns": row["time/generate_seconds"] - watch.seconds - row["time/answers_seconds"],
        "rewards": row["time/reward_seconds"],
        "records and metrics": row["time/record_seconds"] + ended - written,
    }
    return parts | {"everything else": ended - started - sum(parts.values())}


def to_lines(row: Mapping[str, Any]) -> list[str]:
    """The Markdown table of what `measure_steps` returns."""
    lines = ["| part of a step | ms | share |", "|---|---:|---:|"]
    for name, seconds in row["seconds"].items():
        lines.append(f"| {name} | {1e3 * seconds:,.0f} | {row['shares'][name]:.1%} |")
    lines.append(f"| all of it | {1e3 * row['step_seconds']:,.0f} | |")
    return [
        *lines,
        f"| **the loop's own: all but {' and '.join(OTHERS)}** | | **{row['own_share']:.1%}** |",
        f"| the same, if no answer comes again | | {row['own_share_anew']:.1%} |",
    ]


def spread(shares: Sequence[float]) -> str:
    return f"{min(shares):.1%} to {max(shares):.1%}"
