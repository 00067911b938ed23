"""The same number of scored samples spent on seven methods: the table of docs/results.md.

    python benchmarks/equal_samples.py additions [--seeds 5] [--output runs/equal_samples]
    python benchmarks/equal_samples.py stories --data DATA_FOLDER

`additions` is the task of `burnish demo`, from its supervised model; `stories` is examples/stories_sentiment, from
stories260k (DATA_FOLDER holds data/tinystories/tinystories.txt and models/stories260k). A method may have 20,480
responses scored, in 40 steps of 512, or all of them before it begins (DPO and the best of each group, offline). Its
learning rate is the best of three, tried with a seed that is not reported. Every result is then measured alike: score
of held-out responses at temperature 1, and their KL to the start. A run that lies in the output folder is only read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import burnish
from burnish.algorithms.statistics import mean_interval
from burnish.cli import main as command
from burnish.demo import DemoFolder
from burnish.observability.history import read_history
from burnish.observability.recorder import read_rollouts

STEPS, SAMPLES, GROUP = 40, 512, 8
TUNING_SEED = 1000


@dataclass(frozen=True)
class Task:
    """What all methods share: where they start, what they are asked, how they are scored."""

    name: str
    start: Path
    train: Path
    held_out: Path
    settings: Mapping[str, Any]

    def run_file(self, **settings: Any) -> dict[str, Any]:
        return {
            "model": {"path": str(self.start), "device": "cpu"},
            "cluster": {"threads": 1},
            "checkpoint": {"every_steps": None},
            "evaluation": {"every_steps": None, "at_start": False},
            **settings,
        }

    def sampled(self, group: int, rate: float, **settings: Any) -> dict[str, Any]:
        """A run file of `burnish rl` that has `SAMPLES` responses scored in each step."""
        rollout = {**self.settings["rollout"], "prompts_per_step": SAMPLES // group, "group_size": group}
        optimization = {"learning_rate": rate, "betas": [0.9, 0.99], **settings.pop("optimization", {})}
        return self.run_file(
            data={"train": str(self.train)},
            rewards=self.settings["rewards"],
            rollout=rollout,
            optimization=optimization,
            **settings,
        )


def additions(output: Path, data: Path | None) -> Task:
    """The demo's model after supervised fine-tuning, made by the demo itself."""
    demo = DemoFolder(output / "demo")
    if not demo.rl_run.exists():
        check(command(["demo", "--output", str(demo.path)]))
    start = sorted((demo.sft_run / "checkpoints").glob("step-*"))[-1] / "policy"
    rollout = {"max_prompt_tokens": 8, "max_response_tokens": 4, "max_batch_rows": 1024}
    settings = {"rewards": "exact", "rollout": rollout, "sft_tokens": 640}
    return Task("additions", start, demo.train, demo.held_out, settings)


def stories(output: Path, data: Path | None) -> Task:
    """The pre-trained story model, asked to go on happily."""
    if data is None:
        raise SystemExit("stories need --data")
    prompts = output / "prompts"
    prepare = runpy.run_path("examples/stories_sentiment/prepare.py")
    prepare["write_prompts"](data / "data/tinystories/tinystories.txt", prompts)
    rewards = [
        "examples/rewards/sentiment.py:sentiment",
        {"name": "repetition", "weight": 0.5, "options": {"n": 2}},
    ]
    rollout = {"max_prompt_tokens": 64, "max_response_tokens": 48}
    settings = {"rewards": rewards, "rollout": rollout, "sft_tokens": 4096}
    return Task("stories", data / "models/stories260k", prompts / "train.jsonl", prompts / "heldout.jsonl", settings)


def online(task: Task, output: Path, seed: int, rate: float, preset: str, group: int = GROUP, **more: Any) -> Path:
    """Train on fresh samples for `STEPS` steps."""
    algorithm = {"preset": preset, **more.pop("algorithm", {})}
    burnish.train(
        task.sampled(group, rate, algorithm=algorithm, steps=STEPS, seed=seed, output=str(output), **more), quiet=True
    )
    return output


def scored_at_start(task: Task, output: Path, seed: int) -> Path:
    """Have all samples scored while the model stays (nearly) as it is."""
    run = output.parent / f"scored-{seed}"
    if not (run / "checkpoints").exists():  # written at the end
        config = task.sampled(GROUP, 1e-12, algorithm={"preset": "dr_grpo", "kl_in": "none"}, steps=STEPS, seed=seed)
        burnish.train({**config, "output": str(run)}, quiet=True)
    return run


def groups_of(run: Path) -> list[list[dict[str, Any]]]:
    """The recorded responses of a run, by step and prompt."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in sorted((run / "rollouts").glob("step-*.jsonl")):
        for row in read_rollouts(file):
            groups.setdefault((file.stem, row["prompt_id"]), []).append(row)
    return list(groups.values())


def offline_dpo(task: Task, output: Path, seed: int, rate: float) -> Path:
    """DPO on the best and the worst response of each group."""
    pairs = output.parent / f"pairs-{output.name}.jsonl"
    pairs.unlink(missing_ok=True)
    run = scored_at_start(task, output, seed)
    with contextlib.redirect_stdout(sys.stderr):
        check(command(["pairs", str(run), "--out", str(pairs)]))
    optimization = {"learning_rate": rate, "betas": [0.9, 0.99], "comparisons_per_batch": 32, "epochs": 2}
    data = {"train": str(pairs), "chat": "never"}
    config = task.run_file(data=data, losses="sigmoid", max_tokens=128, seed=seed, optimization=optimization)
    burnish.prefer({**config, "output": str(output), "held_out_fraction": 0.02}, quiet=True)
    return output


def offline_best(task: Task, output: Path, seed: int, rate: float) -> Path:
    """Supervised fine-tuning on the best response of each group that has a best one."""
    rows = []
    for group in groups_of(scored_at_start(task, output, seed)):
        best = max(group, key=lambda row: row["reward"])
        if best["reward"] > min(row["reward"] for row in group):
            rows.append({"prompt": best["prompt"], "completion": best["response"]})
    file = output.parent / f"best-{output.name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    optimization = {"learning_rate": rate, "betas": [0.9, 0.99], "tokens_per_batch": task.settings["sft_tokens"]}
    config = task.run_file(data={"train": str(file), "chat": "never"}, seed=seed, max_tokens=128, steps=2 * STEPS)
    burnish.sft({**config, "output": str(output), "optimization": optimization}, quiet=True)
    return output


@dataclass(frozen=True)
class Method:
    train: Callable[..., Path]
    rates: tuple[float, ...]


FREE = {"kl_in": "none"}
"""No pull to the start, so that methods differ in how they learn and not in how they are held back."""

METHODS: Mapping[str, Method] = {
    "DPO, offline": Method(offline_dpo, (1e-5, 3e-5, 1e-4)),
    "best of 8, offline": Method(offline_best, (3e-4, 1e-3, 3e-3)),
    "best of 8, each step": Method(partial(online, preset="best_of_n", algorithm=FREE), (5e-4, 1e-3, 2e-3)),
    "online DPO": Method(partial(online, preset="online_dpo"), (5e-4, 1e-3, 2e-3)),
    "PPO": Method(partial(online, preset="ppo", group=1, algorithm=FREE), (2e-4, 5e-4, 1e-3)),
    "PPO, critic at 1e-3": Method(
        partial(online, preset="ppo", group=1, algorithm=FREE, critic={"learning_rate": 1e-3}), (2e-4,)
    ),
    "GRPO": Method(partial(online, preset="grpo", algorithm=FREE, optimization={"minibatches": 2}), (2e-4, 5e-4, 1e-3)),
    "RLOO": Method(partial(online, preset="rloo", algorithm=FREE), (5e-4, 1e-3, 2e-3)),
}


def measure(task: Task, policy: Path, output: Path) -> dict[str, float]:
    """Score of held-out responses and their KL to the start, by a step of distillation that changes nothing."""
    if not (output / "metrics.jsonl").exists():
        config = task.sampled(1, 1e-12, algorithm="opd", steps=1, seed=0)
        burnish.train(
            {
                **config,
                "model": {"path": str(policy), "device": "cpu"},
                "teacher": {"path": str(task.start)},
                "data": {"train": str(task.held_out)},
                "output": str(output),
            },
            quiet=True,
        )
    history = read_history(output)
    parts = {name: values[1][0] for name, values in history.items() if name.startswith("reward/part/")}
    return {"score": history["reward/mean"][1][0], **parts, "kl": history["kl/teacher"][1][0]}


def figures_of(task: Task, output: Path, method: str, seed: int, rate: float) -> dict[str, float]:
    folder = output / f"{method.replace(', ', '-').replace(' ', '_')}-{rate:g}-{seed}"
    if not (folder / "measured" / "metrics.jsonl").exists():
        METHODS[method].train(task, folder, seed, rate)
    policy = sorted(folder.glob("checkpoints/step-*/policy"))[-1]
    return measure(task, policy, folder / "measured")


def row_of(task: Task, output: Path, method: str, seeds: int) -> dict[str, Any]:
    """Choose the learning rate, then repeat with each seed."""
    tried = {rate: figures_of(task, output, method, TUNING_SEED, rate) for rate in METHODS[method].rates}
    rate = max(tried, key=lambda one: tried[one]["score"])
    repeats = [figures_of(task, output, method, seed, rate) for seed in range(seeds)]
    return {
        "method": method,
        "learning_rate": rate,
        "tried": {str(one): round(figures["score"], 4) for one, figures in tried.items()},
        **{name: interval([repeat[name] for repeat in repeats]) for name in repeats[0]},
    }


def interval(values: Sequence[float]) -> list[float | None]:
    """Mean and half the width of its 95 % interval over the seeds."""
    found = mean_interval(values)
    return [round(found.mean, 4), None if found.half_width is None else round(found.half_width, 4)]


def check(exit_code: int) -> None:
    if exit_code:
        raise SystemExit(exit_code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("additions", "stories"))
    parser.add_argument("--data", type=Path, help="folder of the real data and models")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/equal_samples"))
    given = parser.parse_args()
    output = given.output / given.task
    output.mkdir(parents=True, exist_ok=True)
    task = {"additions": additions, "stories": stories}[given.task](output, given.data)
    print(json.dumps({"method": "start", **measure(task, task.start, output / "start")}), flush=True)
    for method in given.methods:
        print(json.dumps(row_of(task, output, method, given.seeds)), flush=True)


if __name__ == "__main__":
    main()
