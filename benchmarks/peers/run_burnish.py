"""Burnish's side: steps of the loop of `burnish rl`, and a checkpoint after the last one; in conversations, metrics and
rollouts are written at every step. `naive` in the task is `debug.plain`: rows padded, never packed, every prompt read
once per response, all logits at once (see `python benchmarks/peers --help`). `microbatch_tokens` is for little memory:
so many tokens of a micro-batch, and gradient checkpointing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import child
from rich.console import Console
from workloads import KL_COEF, LEARNING_RATE, MAX_PROMPT_TOKENS, Workload, response_lengths

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.observability.metrics import Stopwatch
from burnish.rollouts.local import engine as local_engine
from burnish.rollouts.local.rows import SampledRow, rows_for
from burnish.trainers.outer_loop import save
from burnish.trainers.rl.collection import Collected, Collector
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.parts import open_rl_run

REWARD = Path(__file__).parent / "reward.py"
TOOL = Path(__file__).parent / "look_up.py"


class WatchedCollector:
    """The run's collector, which remembers what it collected."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.engine = collector.engine
        self.domains = collector.domains
        self.patience = collector.patience
        self.seen: list[Collected] = []

    def collect(self, step: int, positions: Mapping[str, int], stopwatch: Stopwatch) -> Collected:
        self.seen.append(self._collector.collect(step, positions, stopwatch))
        return self.seen[-1]


def main() -> None:
    task, workload = child.read_task()
    config = build_config(task, workload)
    if workload.turns is None:
        end_as_planned(workload)
    with open_rl_run(config, Console(quiet=True)) as run:
        result = measure(run, task["warmup"], task["steps"], logged=workload.turns is not None)
        save(run)
    result["settings"] = {"tokens_per_microbatch": config.optimization.tokens_per_microbatch}
    child.report(result, ["burnish", "torch", "transformers"])


def end_as_planned(workload: Workload) -> None:
    """Let the responses of each step have the planned lengths. The engine looks at a row's limit only to end it."""

    def limited(requests: Any, sampling: Any, *, step: int, **where: Any) -> list[SampledRow]:
        rows = rows_for(requests, sampling, step=step, **where)
        for row, length in zip(rows, response_lengths(workload, step - 1), strict=True):
            row.limit = length
        return rows

    local_engine.rows_for = limited


def build_config(task: dict[str, Any], workload: Workload, tool: Path = TOOL) -> RlConfig:
    algorithm: dict[str, Any] = {"preset": "ppo" if workload.ppo else "grpo"}
    if workload.kl:
        algorithm |= {"kl_in": "loss", "kl_coef": KL_COEF}
    else:
        algorithm |= {"kl_in": "none", "kl_coef": 0}
    data: dict[str, Any] = {
        "output": task["output"],
        "model": {"path": task["model"], "dtype": task["precision"], "device": task.get("device", "cpu")},
        "data": {"train": task["prompts"], "shuffle": False, "chat": "always" if workload.turns else "never"},
        "rewards": [f"{REWARD}:score"],
        "algorithm": algorithm,
        "steps": task["warmup"] + task["steps"],
        "rollout": {
            "prompts_per_step": workload.prompts,
            "group_size": workload.group,
            "max_prompt_tokens": MAX_PROMPT_TOKENS,
            "max_response_tokens": workload.max_response,
        },
        "optimization": {
            "learning_rate": LEARNING_RATE,
            "epochs": workload.epochs,
            "minibatches": workload.minibatches,
        },
        "critic": {"learning_rate": LEARNING_RATE} if workload.ppo else {},
        "evaluation": {"at_start": False, "every_steps": None},
        "logging": {"sinks": [], "record_rollouts": workload.turns is not None},
        "debug": {"plain": task["naive"]},
    }
    if task.get("microbatch_tokens"):
        data["model"]["gradient_checkpointing"] = task.get("checkpointing", True)
        data["optimization"]["tokens_per_microbatch"] = task["microbatch_tokens"]
    if workload.turns is not None:
        data["conversation"] = {"tools": [f"{tool}:look_up"], "parser": "hermes", "max_turns": workload.turns.count}
    return load_run_data(data).config


def measure(run: RlRun, warmup: int, steps: int, *, logged: bool) -> dict[str, Any]:
    watched = WatchedCollector(run.supply.collector)
    run.supply.collector = watched  # type: ignore[assignment]
    for _ in range(warmup):
        run.train_step()
    watched.seen.clear()
    before = run.policy.version
    rows = [timed_step(run, logged) for _ in range(steps)]
    rollouts = [[r for group in step.sampled for r in group.rollouts] for step in watched.seen]
    return {
        "seconds": rows,
        "lengths": [[(len(r.prompt_tokens), len(r.response_tokens)) for r in step] for step in rollouts],
        "sampled": [[r.num_sampled() for r in step] for step in rollouts],
        "distinct_prompts": [len({r.prompt_tokens for r in step}) for step in rollouts],
        "optimizer_steps": run.policy.version - before,
    }


def timed_step(run: RlRun, logged: bool) -> dict[str, float]:
    """Seconds by phase as the loop's own stopwatch tells them."""
    started, cpu_started = time.perf_counter(), time.process_time()
    row = run.train_step()
    if logged:
        run.journal.write(run.progress.step, row)
    names = ("generate", "reward", "logprobs", "values", "update", "record")
    seconds = {name: row[f"time/{name}_seconds"] for name in names if f"time/{name}_seconds" in row}
    return seconds | {"step": time.perf_counter() - started, "cpu": time.process_time() - cpu_started}


if __name__ == "__main__":
    main()
