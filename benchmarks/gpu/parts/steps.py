"""Tokens per second and share of the device's peak: updates by tokens of a micro-batch, and whole steps of a run."""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml
from profiling import profiled, three_largest
from random_batches import causal_pairs, grpo_objective, open_policy, random_batch, sft_objective
from records import ROOT
from rich.console import Console
from rows import Figures, Place, Row, Settings, Target
from shapes import SHAPES, facts, model_fields, pass_flops, weights_made_on, write_prompts, write_shape

from burnish.config.loading import load_run_data
from burnish.models.policy import LocalPolicy
from burnish.models.roles import count_denominators
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.parts import open_rl_run

REWARD = f"{ROOT / 'benchmarks' / 'peers' / 'reward.py'}:score"
TRL = "TRL's own table, 1.7 B: 6.8 % padded, 9.0 % padding-free"
UPDATE = (Target("peak_share", at_least=0.35, published=TRL),)
UPDATE_7B = (Target("peak_share", at_least=0.40, published="torchtitan 8 B on 8 H100: about 36 %"),)
WHOLE_8B = (Target("tokens_per_second", at_least=1600, published="NeMo-RL: 1,562 (on policy) to 2,161 a GPU"),)
SHARED = (Target("times_as_fast", at_least=2.5, published="unsloth-zoo #868: 2.55x"),)
BRIEF_TOKENS = 32
FIRST = (Target("first_step_seconds", at_most=60, published="open-instruct: 2 min"),)


@dataclass(frozen=True)
class Work:
    """A minibatch: GRPO's has groups of eight on prompts of `prompt` tokens; SFT's has rows by themselves."""

    loss: str = "grpo"
    prompts: int = 16
    group: int = 8
    prompt: int = 512
    response: int = 512
    shared: bool = True

    def sizes(self) -> dict[str, Any]:
        """Arguments of `random_batch` and `causal_pairs`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "loss"}

    @property
    def tokens(self) -> int:
        """That a pass reads: each shared prompt once."""
        rows = self.prompts * self.group
        return (self.prompts if self.shared else rows) * self.prompt + rows * self.response


WORKS = {
    "grpo": Work(),
    "grpo, prompts not shared": Work(shared=False),
    "sft": Work("sft", prompts=64, group=1, prompt=32, response=992),
    "long prompts": Work(prompts=8, prompt=2048),
    "long prompts, not shared": Work(prompts=8, prompt=2048, shared=False),
    "toy": Work(prompts=2, group=2, prompt=8, response=8),
    "toy, not shared": Work(prompts=2, group=2, prompt=8, response=8, shared=False),
    "toy sft": Work("sft", prompts=4, group=1, prompt=4, response=8),
}


def rows(toy: bool) -> list[Row]:
    if toy:
        return [
            update_row("toy", "toy", 64),
            update_row("toy", "toy sft", 64, checkpointing=True),
            shared_row("toy", "toy", "toy, not shared", 64),
            whole_row("toy", prompts=2, group=2, prompt=8, response=4, lora=True),
            Row("steps", "first step, toy", {"kind": "first", "shape": "toy"}, 60, FIRST),
        ]
    most_important = [
        update_row("0.5b", "grpo", 16_384, UPDATE),
        update_row("1.7b", "grpo", 16_384, UPDATE),
        update_row("7b", "grpo", 16_384, UPDATE_7B, checkpointing=True, lora=True),
        shared_row("4b", "long prompts", "long prompts, not shared", 16_384),
        whole_row("8b", lora=True, targets=WHOLE_8B),
        whole_row("0.5b"),
        whole_row("1.7b"),
        Row("steps", "first step, 0.5b", {"kind": "first", "shape": "0.5b"}, 120, FIRST),
    ]
    large = [("grpo", 4096), ("grpo", 65_536), ("sft", 16_384)]
    found = [*most_important, *(update_row("7b", *work, checkpointing=True, lora=True) for work in large)]
    for shape in ("0.5b", "1.7b"):
        found += [update_row(shape, "grpo", tokens) for tokens in (2048, 4096, 8192, 32_768, 65_536)]
        for work in ("grpo, prompts not shared", "sft"):
            found += [update_row(shape, work, tokens) for tokens in (2048, 4096, 16_384, 65_536)]
    return found


def update_row(shape: str, work: str, tokens: int, targets: tuple[Target, ...] = (), **model: bool) -> Row:
    name = ", ".join([f"update {shape}", work, f"{tokens:,} tokens", *model])
    settings = {"kind": "update", "shape": shape, "work": work, "tokens": tokens, **model}
    return Row("steps", name, settings, 120, targets)


def shared_row(shape: str, work: str, other: str, tokens: int) -> Row:
    settings = {"kind": "shared", "shape": shape, "work": work, "other": other, "tokens": tokens, "lora": True}
    return Row("steps", f"{shape} lora, shared prompts against prompts of their own", settings, 120, SHARED)


def whole_row(shape: str, *, lora: bool = False, targets: tuple[Target, ...] = (), **sizes: int) -> Row:
    settings = {"kind": "whole", "shape": shape, "lora": lora, "sizes": sizes}
    return Row("steps", f"whole step {shape}{' lora' if lora else ''}", settings, 240, targets)


def measure(settings: Settings, place: Place) -> Figures:
    kinds = {"update": update, "shared": shared, "whole": whole, "first": first_step}
    return kinds[settings["kind"]](settings, place)


def update(settings: Settings, place: Place) -> Figures:
    """One optimizer step, its passes and its step apart; then once more under the profiler."""
    shape, work = SHAPES[settings["shape"]], WORKS[settings["work"]]
    policy = policy_of(settings, place)
    batch = random_batch(shape["vocab_size"], **work.sizes())
    objective = grpo_objective() if work.loss == "grpo" else sft_objective()
    policy.update(batch, objective)  # compiles, and makes the optimizer's state
    place.device.forget_peak()
    passes = partial(policy.accumulate, batch, objective, count_denominators(batch))
    times = [(place.device.seconds(passes), place.device.seconds(policy.settle)) for _ in range(2)]
    passes_seconds, optimizer_seconds = (statistics.median(each) for each in zip(*times, strict=True))
    peak = place.device.allocated_peak()
    found = profiled(place.device, partial(policy.update, batch, objective))
    seconds = passes_seconds + optimizer_seconds
    return {
        "peak_share": share_of_peak(settings, work, place, seconds),
        "tokens_per_second": work.tokens / seconds,
        "passes_seconds": passes_seconds,
        "optimizer_seconds": optimizer_seconds,
        "allocated_bytes": peak,
        "largest_costs": three_largest(found),
        "attention": policy.loaded.paths.way("packed attention") or "the only one",
        "profile": found,
    }


def policy_of(settings: Settings, place: Place) -> LocalPolicy:
    return open_policy(
        write_shape(SHAPES[settings["shape"]], place.folder),
        place.device,
        settings["tokens"],
        lora=settings.get("lora", False),
        gradient_checkpointing=settings.get("checkpointing", False),
    )


def share_of_peak(settings: Settings, work: Work, place: Place, seconds: float) -> float | None:
    """Operations that the mathematics needs: what is computed again is not counted. The backward pass takes twice the
    forward pass; of frozen matrices, once."""
    peaks, sizes = place.device.peaks(), facts(SHAPES[settings["shape"]])
    if peaks is None:
        return None
    rows, pairs = work.prompts * work.group, causal_pairs(**work.sizes())
    scored = rows * work.response
    products = pass_flops(sizes, tokens=work.tokens, scored=scored, pairs=0)
    attention = pass_flops(sizes, tokens=0, scored=0, pairs=pairs)
    return ((2 if settings.get("lora") else 3) * products + 3 * attention) / seconds / peaks[0]


def shared(settings: Settings, place: Place) -> Figures:
    """The same responses once on prompts that their groups share, once on prompts of their own."""
    vocabulary = SHAPES[settings["shape"]]["vocab_size"]
    policy, objective = policy_of(settings, place), grpo_objective()
    seconds, peaks = [], []
    for name in (settings["work"], settings["other"]):
        step = partial(policy.update, random_batch(vocabulary, **WORKS[name].sizes()), objective)
        step()
        place.device.forget_peak()
        seconds.append(min(place.device.seconds(step) for _ in range(2)))
        peaks.append(place.device.allocated_peak())
    return {
        "times_as_fast": seconds[1] / seconds[0],
        "shared_seconds": seconds[0],
        "own_seconds": seconds[1],
        "shared_bytes": peaks[0],
        "own_bytes": peaks[1],
    }


def run_data(settings: Settings, place: Place, *, steps: int, **changes: Any) -> dict[str, Any]:
    """A run file of GRPO on random prompts; responses of random weights end by length only."""
    sizes = {"prompts": 8, "group": 8, "prompt": 512, "response": 512, **settings.get("sizes", {})}
    shape = SHAPES[settings["shape"]]
    model = write_shape(shape, place.folder / "model")
    prompts = write_prompts(place.folder / "prompts.jsonl", shape["vocab_size"], 4 * sizes["prompts"], sizes["prompt"])
    return {
        "output": str(place.folder / settings.get("output", "run")),
        "model": {
            **model_fields(model),
            "dtype": settings.get("dtype", "bfloat16"),
            "device": place.device.name,
            **({"lora": {}, "gradient_checkpointing": True} if settings.get("lora") else {}),
        },
        "data": {"train": str(prompts), "chat": "never"},
        "rewards": [REWARD],
        "algorithm": {"preset": "grpo", "kl_in": "none"},
        "steps": steps,
        "rollout": {
            "prompts_per_step": sizes["prompts"],
            "group_size": sizes["group"],
            "max_prompt_tokens": sizes["prompt"],
            "max_response_tokens": sizes["response"],
        },
        "optimization": {"learning_rate": 1e-8, "tokens_per_microbatch": settings.get("tokens", 16_384)},
        "evaluation": {"at_start": False, "every_steps": None},
        "checkpoint": {"every_steps": None},
        "logging": {"sinks": [], "record_rollouts": False},
        **changes,
    }


def whole(settings: Settings, place: Place) -> Figures:
    """A step of the loop of `burnish rl`, with the times that the run itself tells. The profile is of a step with brief
    responses: each token is thousands of kernels, and a million of them take minutes to add up."""
    with warm_run(settings, place) as run:
        row, rollout = run.train_step(), run.config.rollout
        peak = place.device.allocated_peak()
    del run
    brief = settings["sizes"] | {"response": min(BRIEF_TOKENS, rollout.max_response_tokens)}
    with warm_run(settings | {"sizes": brief, "output": "brief"}, place) as run:
        found = profiled(place.device, run.train_step)
    prompts = rollout.prompts_per_step * rollout.group_size * rollout.max_prompt_tokens
    names = ("step", "generate", "reward", "logprobs", "update", "decode")
    return {
        "tokens_per_second": (prompts + row["rollout/response_tokens_sum"]) / row["time/step_seconds"],
        **{f"{name}_seconds": row.get(f"time/{name}_seconds", 0.0) for name in names},
        "allocated_bytes": peak,
        "largest_costs": three_largest(found),
        "profile": found,
    }


@contextmanager
def warm_run(settings: Settings, place: Place) -> Iterator[RlRun]:
    """A run after its first step, which compiles and fetches memory."""
    config = load_run_data(run_data(settings, place, steps=3)).config
    with weights_made_on(place.device.name), open_rl_run(config, Console(quiet=True)) as run:
        run.train_step()
        place.device.forget_peak()
        yield run


def first_step(settings: Settings, place: Place) -> Figures:
    """From the command to the first step's metrics."""
    data = run_data(settings | {"sizes": {"prompts": 2, "group": 4, "prompt": 16, "response": 16}}, place, steps=1)
    file, metrics = place.folder / "run.yaml", place.folder / "run" / "metrics.jsonl"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "burnish", "rl", str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
            time.sleep(0.05)
        seconds = time.perf_counter() - started
        said, _ = process.communicate()
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace")[-500:])
    return {"first_step_seconds": seconds, "command_seconds": time.perf_counter() - started}
