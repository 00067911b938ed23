"""The runs, pictures and numbers of docs/results.md, "Stylistic continuation".

    python benchmarks/stylistic_continuation.py DATA_FOLDER [--style descriptiveness] [--output runs/stylistic]
    python benchmarks/stylistic_continuation.py --draw-only

DATA_FOLDER holds data/tinystories/tinystories.txt and models/stories260k. Labels, reward model, two policies: `policy`
as the example has it, `loose` with a KL target nobody reaches. About half an hour of one CPU core; what lies in the
output folder already is gone on with, not started over. Start it from the repository's root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import torch

from burnish.cli import main as burnish
from burnish.observability.history import read_history
from burnish.observability.recorder import read_rollouts

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

EXAMPLE = Path("examples/stylistic_continuation")
SHOWN = 36
LOOSE = ["algorithm.kl_target=100", "algorithm.kl_coef=0.01"]
POLICIES = {"policy": "KL target 6", "loose": "KL target 100"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder of the real data and models")
    parser.add_argument("--style", default="sentiment")
    parser.add_argument("--output", type=Path, default=Path("runs/stylistic"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"))
    parser.add_argument("--draw-only", action="store_true", help="draw the runs that are there, start none")
    parser.add_argument("--without-loose", action="store_true", help="leave the run with a loose KL out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.draw_only:
        if options.data is None:
            parser.error("name the folder of the data, or use --draw-only")
        run_all(options.data, options.output, options.style, loose=not options.without_loose)
    report(options.output)
    options.pictures.mkdir(parents=True, exist_ok=True)
    draw(options.output, options.style, options.pictures / f"stylistic_{options.style}.png")


def run_all(data: Path, output: Path, style: str, *, loose: bool) -> None:
    model, stories = data / "models/stories260k", data / "data/tinystories/tinystories.txt"
    if not (output / "data" / "heldout_labels.jsonl").exists():
        sys.path.insert(0, str(EXAMPLE))
        from label import prepare

        for line in prepare(str(model), stories, output / "data", style=style, labels=5000):
            print(line)
    given = [f"model.path={model}", "model.device=cpu"]
    labels = [f"data.train={output}/data/labels.jsonl", f"data.eval={output}/data/heldout_labels.jsonl"]
    check(burnish(["rm", str(EXAMPLE / "rm.yaml"), *given, *labels, f"output={output}/rm"]))
    documents = [f"data.train={output}/data/train.txt", f"data.eval={output}/data/heldout.txt"]
    reward = f"rewards.0.name=model:{output}/rm/checkpoints/step-000120/policy"
    for name, overrides in (("policy", []), ("loose", LOOSE)):
        if name == "policy" or loose:
            own = [*given, *documents, reward, f"output={output}/{name}", *overrides]
            check(burnish(["rl", str(EXAMPLE / "rl.yaml"), *own]))


def check(exit_code: int) -> None:
    if exit_code:
        raise SystemExit(exit_code)


def report(output: Path) -> None:
    """Accuracy of the reward model; held-out responses before and after; a few of them to read."""
    rm = read_history(output / "rm")
    low, high, accuracy = (rm[f"eval/{name}"][1][-1] for name in ("accuracy_low", "accuracy_high", "accuracy"))
    print(f"reward model: {accuracy:.1%} of held-out labels ({low:.1%} - {high:.1%}), chance 25 %")
    for name in runs_in(output):
        history = read_history(output / name)
        kl, coef = (history[f"kl/{word}"][1] for word in ("reference", "coef"))
        print(f"{name}: KL over the last ten steps {mean(kl[-10:]):.2f}, coefficient {coef[-1]:.3f}")
        for step in steps_evaluated(output / name):
            rows = sampled(output / name, step)
            parts = {part: mean([row["reward_parts"][part] for row in rows]) for part in rows[0]["reward_parts"]}
            words = " ".join(f"{part} {value:.3f}" for part, value in parts.items())
            incomplete = mean(["incomplete" in row["status_detail"] for row in rows])
            print(f"  step {step}: {words} incomplete {incomplete:.1%} distinct word pairs {distinct(rows):.3f}")
    runs = runs_in(output)
    last = {name: sampled(output / name, steps_evaluated(output / name)[-1]) for name in runs}
    for number, before in list(enumerate(sampled(output / runs[0], 0)))[:SHOWN:3]:
        print(f"...{before['prompt'][-80:]}")
        for name, row in (("untrained", before), *((name, rows[number]) for name, rows in last.items())):
            print(f"    {name:9} {row['reward']:5.2f}  {seen(row)!r}")


def seen(row: dict[str, Any]) -> str:
    """The part of a response that was scored: up to the first full stop at or after position 16."""
    texts: list[str] = row["token_texts"]
    if "." not in texts[16:]:
        return f"{row['response']} (incomplete)"
    stops = texts[: texts.index(".", 16) + 1].count(".")
    return ".".join(row["response"].split(".")[:stops]) + "."


def runs_in(output: Path) -> list[str]:
    return [name for name in POLICIES if (output / name / "metrics.jsonl").exists()]


def steps_evaluated(run: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in (run / "rollouts").glob("eval-*.jsonl"))


def sampled(run: Path, step: int) -> list[dict[str, Any]]:
    """Held-out responses sampled at the temperature of training."""
    return [row for row in read_rollouts(run / "rollouts" / f"eval-{step:06d}.jsonl") if not row["greedy"]]


def distinct(rows: Sequence[dict[str, Any]]) -> float:
    """Different pairs of neighbouring words over all pairs."""
    pairs = [pair for row in rows for pair in pairwise(row["response"].lower().split())]
    return len(set(pairs)) / len(pairs)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def draw(output: Path, style: str, picture: Path) -> None:
    """Learned score, true style, KL and variety over the steps, the tight leash against the loose one."""
    figure, ((score, true), (kl, variety)) = plt.subplots(2, 2, figsize=(10.5, 6.6), sharex=True)
    for name in runs_in(output):
        history, label = read_history(output / name), POLICIES[name]
        score.plot(*history["reward/part/learned"], label=label)
        true.plot(*history[f"reward/part/{style}"], label=label)
        kl.plot(*history["kl/reference"], label=label)
        files = sorted((output / name / "rollouts").glob("step-*.jsonl"))
        shares = [distinct(list(read_rollouts(file))) for file in files]
        variety.plot([int(file.stem.split("-")[1]) for file in files], shares, label=label)
    kl.axhline(6, color="0.5", linestyle=":", linewidth=1)
    for axes, title in (
        (score, "score of the reward model"),
        (true, f"{style} by the rule that gave the labels"),
        (kl, "KL to the untrained policy, nats a response (dotted: the target)"),
        (variety, "distinct word pairs over all pairs of a step"),
    ):
        style_axes(axes, title)
    score.legend(fontsize=8, frameon=False)
    for axes in (kl, variety):
        axes.set_xlabel("step (128 responses)")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    print(picture)


def style_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


if __name__ == "__main__":
    main()
