"""The pictures of docs/results.md: eight algorithms on real stories, and a random model learning sequences.

    python benchmarks/learning_curves.py DATA_FOLDER [--output runs/learning_curves] [--pictures docs/images]
    python benchmarks/learning_curves.py --draw-only --output runs/learning_curves

DATA_FOLDER holds data/tinystories/tinystories.txt, data/arithmetic_sequence and models/stories260k. Runs the examples
as they are, one run folder each (stories-PRESET, arithmetic-STAGE), about half an hour of one CPU core in
all; runs that lie in the output folder already are only drawn. Start it from the repository's root.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import torch
import yaml

from burnish.cli import main as burnish
from burnish.observability.history import read_history

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

EXAMPLES = Path("examples")
STAGES = ("1_first_term", "2_second_term", "3_whole_answer")
OVERRIDES: Mapping[str, Sequence[str]] = yaml.safe_load((EXAMPLES / "stories_sentiment/algorithms.yaml").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder of the real data and models")
    parser.add_argument("--output", type=Path, default=Path("runs/learning_curves"), help="folder of the runs")
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"), help="folder of the pictures")
    parser.add_argument("--draw-only", action="store_true", help="draw the runs that are there, start none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.draw_only:
        if options.data is None:
            parser.error("name the folder of the data, or use --draw-only")
        run_stories(options.data, options.output)
        run_arithmetic(options.data, options.output)
    options.pictures.mkdir(parents=True, exist_ok=True)
    if any(options.output.glob("stories-*/metrics.jsonl")):
        draw_stories(options.output, options.pictures / "stories.png")
    stages = [options.output / f"arithmetic-{stage}" for stage in STAGES]
    if all((stage / "metrics.jsonl").exists() for stage in stages):
        draw_arithmetic(stages, options.pictures / "arithmetic_sequence.png")


def run_stories(data: Path, output: Path) -> None:
    """One run for each algorithm."""
    example, prompts = EXAMPLES / "stories_sentiment", output / "stories-data"
    prepare = runpy.run_path(str(example / "prepare.py"))
    prepare["write_prompts"](data / "data/tinystories/tinystories.txt", prompts)
    for preset, overrides in OVERRIDES.items():
        given = [
            f"model.path={data / 'models/stories260k'}",
            f"data.train={prompts / 'train.jsonl'}",
            f"data.eval={prompts / 'heldout.jsonl'}",
            f"algorithm.preset={preset}",
            f"output={output / f'stories-{preset}'}",
        ]
        check(burnish(["rl", str(example / "run.yaml"), *given, *overrides]))


def run_arithmetic(data: Path, output: Path) -> None:
    """Three runs, each from the weights of the one before."""
    example, model = EXAMPLES / "arithmetic_sequence", output / "arithmetic-model"
    task = data / "data/arithmetic_sequence"
    runpy.run_path(str(example / "prepare.py"))["build_model_folder"](task / "model", model)
    for stage in STAGES:
        run = output / f"arithmetic-{stage}"
        given = [
            f"model.path={model}",
            f"data.train={task / 'data/train.parquet'}",
            f"data.eval={task / 'data/test.parquet'}",
            f"output={run}",
        ]
        check(burnish(["rl", str(example / f"{stage}.yaml"), *given]))
        model = max((run / "checkpoints").glob("step-*")) / "policy"


def check(exit_code: int) -> None:
    if exit_code:
        raise SystemExit(exit_code)


def draw_stories(output: Path, picture: Path) -> None:
    """Left: sentiment of the sampled training stories; right: reward of held-out stories, before and after."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), width_ratios=(3, 2))
    presets = [preset for preset in OVERRIDES if (output / f"stories-{preset}" / "metrics.jsonl").exists()]
    for row, preset in enumerate(presets):
        history = read_history(output / f"stories-{preset}")
        left.plot(*history["reward/part/sentiment"], label=preset, linewidth=1.4)
        held_out = history["eval/sampled_reward_mean"][1]
        right.plot([held_out[0], held_out[-1]], [row, row], color="0.75", zorder=1)
        right.scatter([held_out[0]], [row], color="0.55", zorder=2)
        right.scatter([held_out[-1]], [row], color=f"C{row}", zorder=2)
        print(f"{preset:22} held-out reward {held_out[0]:.3f} -> {held_out[-1]:.3f}")
    label(left, "step", "sentiment of the stories", "training prompts, temperature 1")
    left.legend(fontsize=8, frameon=False)
    right.set_yticks(range(len(presets)), presets)
    right.invert_yaxis()
    label(right, "mean reward, untrained (grey) and trained", "", "held-out prompts, temperature 1")
    save(figure, picture)


def draw_arithmetic(runs: Sequence[Path], picture: Path) -> None:
    """Right fraction of the answers, as sampled in training, over the steps of the runs one after the other."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    curves = {
        "fraction": ("right fraction, end included", {}),
        "fraction_without_end": ("end not counted (at most 0.76)", {}),
        "solved": ("solved", {"linewidth": 1, "color": "0.6"}),
    }
    done = 0
    for run in runs:
        history = read_history(run)
        for number, (part, (name, style)) in enumerate(curves.items()):
            steps, values = history[f"reward/part/prefix/{part}"]
            style = {"color": f"C{number}", **style}
            axes.plot([done + step for step in steps], values, label=name if done == 0 else None, **style)
        done += int(max(steps))
        axes.axvline(done, color="0.8", linewidth=1)
    axes.axhline(0.2, color="0.5", linestyle=":", linewidth=1)
    axes.set_ylim(0, 1)
    label(axes, "step of the three runs: 1, 3 and 18 tokens an answer", "", "training prompts, temperature 1")
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    save(figure, picture)


def label(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def save(figure: plt.Figure, picture: Path) -> None:
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    print(picture)


if __name__ == "__main__":
    main()
