"""What losses on preferences learn from human comparisons: the table of docs/preferences.md.

    python benchmarks/preference_losses.py DATA_FOLDER [--losses sigmoid simpo kto orpo ipo]

DATA_FOLDER has `data/hh_rlhf` and `models/stories260k`. Prints one line of JSON for each loss: the held-out accuracy
with its interval and the better responses' log-probability, before and after two passes; a minute on one core each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import burnish

NAMES = ("accuracy", "accuracy_low", "accuracy_high", "length_rule_accuracy", "chosen_logprob")


def figures_of(folder: Path, loss: str, output: str) -> dict[str, dict[str, float]]:
    """Train with one loss; the figures before and after."""
    run = burnish.prefer(
        {
            "output": output,
            "model": {"path": str(folder / "models/stories260k"), "device": "cpu"},
            "data": {
                "train": str(folder / "data/hh_rlhf/harmless-base_test.jsonl.gz"),
                "over_long": "truncate",
                "chat": "never",
            },
            "held_out_fraction": 0.25,
            "max_tokens": 128,
            "bad_rows": "drop",
            "losses": loss,
            "optimization": {"learning_rate": 1e-3, "comparisons_per_batch": 32, "epochs": 2, "warmup_steps": 5},
            "evaluation": {"every_steps": None},
            "checkpoint": {"every_steps": None},
            "cluster": {"threads": 1},
            "logging": {"sinks": []},
        },
        quiet=True,
    )
    rows = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        when: {name: round(row[f"eval/{name}"], 4) for name in NAMES}
        for when, row in (("before", rows[0]), ("after", rows[-1]))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--losses", nargs="+", default=["sigmoid", "simpo", "kto", "orpo", "ipo"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs:
        for loss in given.losses:
            print(json.dumps({"loss": loss, **figures_of(given.folder, loss, f"{runs}/{loss}")}), flush=True)


if __name__ == "__main__":
    main()
