"""The demo's additions, learned by a student of half the size from a reward, from the demo's trained model as its
teacher, or from itself with the answer in view: the table of docs/results.md.

    python benchmarks/teachers.py [--seeds 5] [--output runs/teachers]

All methods begin with the same student, which has seen the forgetful demonstrations, and make 60 steps of 1,024
responses or texts. The student of `sdft` has also learned to copy an answer that stands in front of the problem, and
teaches itself with it there. The learning rate of each is the best of three, tried with a seed that is not reported.
Every fifth step is measured alike: greedy answers to the demo's 500 held-out problems. A run that lies in the output
folder is only read.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import burnish
from burnish.algorithms.statistics import mean_interval
from burnish.cli import main as command
from burnish.demo import DemoFolder, write_model

STEPS, EVERY, ROWS, TOKENS = 60, 5, 1024, 10
TUNING_SEED = 1000
CLOSE = 0.95
"""Share of right answers whose step is noted."""


@dataclass(frozen=True)
class Method:
    """A way to learn. kind: of run; data: a file of the demo; fields: of the run file, besides what all share; teacher:
    its fields, None without one."""

    kind: str
    data: str
    rates: tuple[float, float, float]
    fields: Mapping[str, Any] = field(default_factory=dict)
    teacher: Mapping[str, str] | None = field(default_factory=dict)


def responses(groups: int) -> dict[str, Any]:
    """Responses of one step, `groups` to a prompt."""
    shape = {"prompts_per_step": ROWS // groups, "group_size": groups}
    return {"rollout": {**shape, "max_prompt_tokens": 8, "max_response_tokens": 4, "max_batch_rows": ROWS}}


RATES = (5e-4, 1e-3, 2e-3)
HINT = "{answer}={prompt}"
METHODS: Mapping[str, Method] = {
    "GRPO": Method(
        "rl",
        "train",
        RATES,
        {**responses(16), "rewards": "exact", "algorithm": {"preset": "grpo", "kl_in": "none"}},
        teacher=None,
    ),
    "opd": Method("rl", "train", RATES, {**responses(1), "algorithm": "opd"}),
    "opd, whole distributions": Method(
        "rl", "train", RATES, {**responses(1), "algorithm": "opd"}, {"compare": "vocabulary"}
    ),
    "sdft": Method("rl", "train", RATES, {**responses(1), "algorithm": "opd"}, {"path": "policy", "prompt": HINT}),
    "distill, own samples (gkd)": Method(
        "distill", "demonstrations", RATES, {"divergence": "reverse_kl", "sampled_share": 1.0}
    ),
    "distill, half own samples": Method(
        "distill", "demonstrations", RATES, {"divergence": "jsd", "sampled_share": 0.5}
    ),
    "distill, demonstrations": Method("distill", "demonstrations", RATES, {"divergence": "forward_kl"}),
}


def start_of(demo: DemoFolder, output: Path, *, hinted: bool = False) -> Path:
    """The student after the demo's supervised half. hinted: with as many problems again, behind their answers."""
    student, run = output / "student", output / ("hinted_start" if hinted else "start")
    given: dict[str, Any] = {"output": str(run), "model.path": str(student)}
    if hinted:
        copied = {"path": str(demo.train), "prompt_template": HINT, "columns": {"completion": "answer"}}
        given |= {"data.train": [str(demo.demonstrations), copied], "optimization.tokens_per_batch": 64 * (10 + 14)}
    if not student.exists():
        size = write_model(student, seed=0, hidden_size=48, intermediate_size=160)
        print(json.dumps({"student": size}), flush=True)
    if not (run / "finished.json").exists():
        burnish.sft(str(demo.sft_file), **given, quiet=True)
    return checkpoints(run)[-1]


def trained(demo: DemoFolder) -> Path:
    """The demo's model at the end."""
    return checkpoints(demo.rl_run)[-1]


def checkpoints(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/step-*/policy"))


def train(demo: DemoFolder, start: Path, name: str, seed: int, rate: float, output: Path) -> None:
    method = METHODS[name]
    tokens = {} if method.kind == "rl" else {"tokens_per_batch": ROWS * TOKENS}
    config = {
        "output": str(output),
        "seed": seed,
        "model": {"path": str(start), "device": "cpu"},
        "data": {"train": str(getattr(demo, method.data))},
        "steps": STEPS,
        "optimization": {"learning_rate": rate, "betas": [0.9, 0.99], "schedule": "constant", **tokens},
        "checkpoint": {"every_steps": EVERY, "keep": STEPS},
        "evaluation": {"every_steps": None, "at_start": False},
        "cluster": {"threads": 1},
        "logging": {"sinks": []},
        **method.fields,
        **({} if method.teacher is None else {"teacher": {"path": str(trained(demo)), **method.teacher}}),
    }
    getattr(burnish, "train" if method.kind == "rl" else method.kind)(config, quiet=True)


def accuracy(policy: Path, demo: DemoFolder, hint: str = "{prompt}", name: str = "accuracy") -> float:
    """The share of held-out problems answered correctly."""
    file = policy.parent / f"{name}.json"
    if not file.exists():
        rollout = {"max_prompt_tokens": 10, "max_response_tokens": 4, "max_batch_rows": ROWS}
        found = burnish.evaluate(
            {
                "output": str(policy.parent / "measured"),
                "model": {"path": str(policy), "device": "cpu"},
                "data": {"train": str(demo.train), "eval": {"path": str(demo.held_out), "prompt_template": hint}},
                "rewards": "exact",
                "rollout": rollout,
                "evaluation": {"max_prompts": None},
                "cluster": {"threads": 1},
            },
            quiet=True,
        )
        file.write_text(json.dumps(found.metrics["eval/accuracy"]), encoding="utf-8")
    return float(json.loads(file.read_text(encoding="utf-8")))


def curve(demo: DemoFolder, start: Path, output: Path, name: str, seed: int, rate: float) -> list[float]:
    """Held-out accuracy after every fifth step."""
    folder = output / f"{name.replace(', ', '-').replace(' ', '_')}-{rate:g}-{seed}"
    if not (folder / "finished.json").exists():
        train(demo, start, name, seed, rate, folder)
    return [accuracy(policy, demo) for policy in checkpoints(folder)]


def row_of(demo: DemoFolder, start: Path, output: Path, name: str, seeds: int) -> dict[str, Any]:
    """Choose the learning rate by the mean accuracy over all steps, then repeat with each seed."""
    rates = METHODS[name].rates
    tried = {rate: statistics.mean(curve(demo, start, output, name, TUNING_SEED, rate)) for rate in rates}
    rate = max(tried, key=lambda one: tried[one])
    curves = [curve(demo, start, output, name, seed, rate) for seed in range(seeds)]
    reached = [next((EVERY * (at + 1) for at, value in enumerate(one) if value >= CLOSE), None) for one in curves]
    return {
        "method": name,
        "learning_rate": rate,
        "tried": {str(one): round(value, 4) for one, value in tried.items()},
        **{f"step {step}": interval([one[step // EVERY - 1] for one in curves]) for step in (10, 20, 30, 60)},
        f"steps to {CLOSE}": reached,
    }


def interval(values: Sequence[float]) -> list[float | None]:
    """Mean and half the width of its 95 % interval over the seeds."""
    found = mean_interval(values)
    return [round(found.mean, 4), None if found.half_width is None else round(found.half_width, 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/teachers"))
    given = parser.parse_args()
    demo = DemoFolder(given.output / "demo")
    if not demo.rl_run.exists() and command(["demo", "--output", str(demo.path)]):
        raise SystemExit(1)
    start = start_of(demo, given.output)
    teacher = accuracy(trained(demo), demo)
    print(json.dumps({"teacher": teacher, "start": accuracy(start, demo)}), flush=True)
    for name in given.methods:
        begun = start
        if name == "sdft":
            begun = start_of(demo, given.output, hinted=True)
            found = {"start": accuracy(begun, demo), "behind the answer": accuracy(begun, demo, HINT, "hinted")}
            print(json.dumps(found), flush=True)
        print(json.dumps(row_of(demo, begun, given.output, name, given.seeds)), flush=True)


if __name__ == "__main__":
    main()
