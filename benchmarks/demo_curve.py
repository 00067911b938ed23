"""The picture of the demo: held-out accuracy under the reward, and of the control with shuffled advantages.

    python benchmarks/demo_curve.py --output runs/demo_curve [--seeds 1,2] [--picture docs/images/demo.png]

Runs `burnish demo` for each seed, then `burnish rl` on the same run file with `shuffled_advantages:shuffled_grpo`
(two to three minutes a seed on two cores). Seeds whose runs lie in the output folder already are only drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch

from burnish.cli import main as burnish
from burnish.demo import DemoFolder
from burnish.observability.history import read_history

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Curve = tuple[Sequence[float], Sequence[float]]
CONTROL = "algorithm.estimator=shuffled_advantages:shuffled_grpo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/demo_curve"), help="folder of the runs")
    parser.add_argument("--seeds", default="1", help="seeds, separated by commas")
    parser.add_argument("--picture", type=Path, default=Path("docs/images/demo.png"), help="file to draw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = [run_pair(options.output, int(seed)) for seed in options.seeds.split(",")]
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(pairs, options.picture)
    for number, (reward, control) in enumerate(pairs):
        print(f"run {number}: reward {numbers(reward)}\n       control {numbers(control)}")
    print(options.picture)


def run_pair(output: Path, seed: int) -> tuple[Curve, Curve]:
    """The curve of a demo and of its control."""
    folder, control = DemoFolder(output / f"seed-{seed}"), output / f"seed-{seed}-control"
    if not (folder.rl_run / "report.html").exists():  # the last thing that a demo writes
        check(burnish(["demo", "--output", str(folder.path), "--seed", str(seed)]))
    check(burnish(["rl", str(folder.rl_file), CONTROL, f"output={control}"]))  # a finished run is not repeated
    return curve_of(folder.rl_run), curve_of(control)


def check(exit_code: int) -> None:
    if exit_code:
        raise SystemExit(exit_code)


def curve_of(run: Path) -> Curve:
    """(steps, accuracies) of a run's evaluations."""
    return read_history(run)["eval/accuracy"]


def numbers(curve: Curve) -> str:
    return " ".join(f"{value:.3f}" for value in curve[1])


def draw(pairs: Sequence[tuple[Curve, Curve]], path: Path) -> None:
    """One strong line for the first seed's two runs, faint ones for the others."""
    figure, axes = plt.subplots(figsize=(6.4, 3.4), dpi=110)
    for number, (reward, control) in enumerate(pairs):
        style = {"linewidth": 2.2} if number == 0 else {"linewidth": 1.0, "alpha": 0.4}
        axes.plot(*reward, color="#1b7f5c", label="GRPO" if number == 0 else None, **style)
        label = "control: advantages shuffled" if number == 0 else None
        axes.plot(*control, color="#8a8a8a", linestyle="--", label=label, **style)
    axes.axhline(0.95, color="#bbbbbb", linewidth=0.8, linestyle=":")
    axes.set(xlabel="GRPO step", ylabel="held-out problems right", ylim=(0, 1.02), xlim=(0, None))
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0, decimals=0))
    axes.set_title("burnish demo: two-digit addition, 133k parameters, greedy", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.12))
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
