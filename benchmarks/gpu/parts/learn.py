"""Does it learn there what it learns on a CPU? Accuracies on held-out problems, and the curve."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from demo_runs import calculator_folder, changed, demo_folder, read_file, shortened
from records import ROOT
from rows import Figures, Place, Row, Settings, Target
from shapes import SHAPES, model_fields, write_shape

import burnish
from burnish.demo import ALPHABET
from burnish.models.characters import character_tokenizer
from burnish.observability.history import read_rows

DEMO_ON_CPU, CALCULATOR_ON_CPU = 0.996, 0.965
"""Reached on CPUs by the same files (docs/demo.md, docs/results.md)."""
ACCURACY = "eval/accuracy"
POINTS = 0.02
"""By which an accuracy may differ."""


def rows(toy: bool) -> list[Row]:
    if toy:
        rollout = {"prompts_per_step": 2, "group_size": 2, "max_response_tokens": 4}
        few = {"sft_steps": 2, "rl_steps": 1, "held_out": 2, "rows": 80, "rollout": rollout}
        return [
            learn_row("demo", few | {"dtype": "float32"}),
            learn_row("calculator", few | {"dtype": "float32"}),
            learn_row("large", few | {"dtype": "float32", "shape": "toy llama"}),
        ]
    return [
        learn_row("demo", {"dtype": "float32"}, DEMO_ON_CPU),
        learn_row("demo", {"dtype": "bfloat16"}, DEMO_ON_CPU),
        learn_row("large", {"dtype": "bfloat16", "shape": "100m", "sft_steps": 800}, DEMO_ON_CPU, seconds=240),
        learn_row("calculator", {"dtype": "float32"}, CALCULATOR_ON_CPU, seconds=240),
        learn_row("demo", {"dtype": "float32", "device": "cpu"}, DEMO_ON_CPU, seconds=300),
    ]


def learn_row(task: str, settings: Settings, on_cpu: float = 0.0, *, seconds: float = 180) -> Row:
    """on_cpu: 0 for a row without a target."""
    words = [task, settings.get("shape", ""), settings["dtype"], settings.get("device", "")]
    reaches = Target("solved_share", at_least=on_cpu - POINTS, published=f"on CPUs {100 * on_cpu:.1f} %")
    targets = (reaches,) if on_cpu else ()
    return Row("learn", ", ".join(filter(None, words)), {"task": task, **settings}, seconds, targets)


def measure(settings: Settings, place: Place) -> Figures:
    make = {"demo": demo_files, "calculator": calculator_files, "large": large_files}[settings["task"]]
    sft, rl = make(settings, place.folder)
    rl = changed(rl, rollout=settings.get("rollout", {}))
    device = settings.get("device", place.device.name)
    demonstrated, demonstrating = train("sft", sft, settings, place.folder / "sft", device)
    start = {"path": str(demonstrated.output)}
    final, training = train("train", rl | {"model": start}, settings, place.folder / "rl", device)
    found = read_rows(final.output / "metrics.jsonl")
    curve = [[int(row["step"]), round(row[ACCURACY], 4)] for row in found if ACCURACY in row]
    return {
        "solved_share": curve[-1][1],
        "solved_before_share": curve[0][1],
        "sft_seconds": demonstrating,
        "rl_seconds": training,
        "curve": curve,
    }


def train(kind: str, file: dict[str, Any], settings: Settings, output: Path, device: str) -> tuple[burnish.Run, float]:
    steps = settings.get("sft_steps" if kind == "sft" else "rl_steps")
    evaluated = {"evaluation": {"max_prompts": settings["held_out"]}} if "held_out" in settings else {}
    model = {"device": device, "dtype": settings["dtype"]}
    file = shortened(changed(file, output=str(output), model=model, **evaluated), steps)
    started = time.perf_counter()
    run = burnish.sft(file, quiet=True) if kind == "sft" else burnish.train(file, quiet=True)
    return run, time.perf_counter() - started


def demo_files(settings: Settings, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    demo = demo_folder(folder, settings.get("rows"))
    sft = changed(read_file(demo.sft_file), evaluation={"every_steps": None})
    return sft, read_file(demo.rl_file)


def large_files(settings: Settings, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The demo's task for a model that is thousands of times as large, whose learning rates are smaller."""
    sft, rl = demo_files(settings, folder)
    tokenizer = character_tokenizer(ALPHABET, eos="<eos>", pad="<pad>", context_length=64)
    model = write_shape(SHAPES[settings["shape"]] | {"vocab_size": len(tokenizer)}, folder / "large", tokenizer)
    slower = {"learning_rate": 3e-4, "tokens_per_batch": 2560}
    return changed(sft, model=model_fields(model), optimization=slower), changed(
        rl, optimization={"learning_rate": 2e-5}
    )


def calculator_files(settings: Settings, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    task, example = calculator_folder(folder / "task", settings.get("rows")), ROOT / "examples" / "calculator"
    sft = changed(
        read_file(example / "sft.yaml"),
        model={"path": str(task / "model")},
        data={"train": str(task / "demonstrations.jsonl")},
    )
    data = {"train": str(task / "train.jsonl"), "eval": str(task / "heldout.jsonl")}
    return sft, changed(read_file(example / "rl.yaml"), data=data)
