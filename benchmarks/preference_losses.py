"""What five losses on preferences learn from human comparisons: the table and the curves of docs/preferences.md.

    python benchmarks/preference_losses.py DATA_FOLDER [--losses sigmoid ipo] [--seeds 5] [--output runs/preferences]
    burnish table runs/preferences/runs --by losses --figure curves.svg

DATA_FOLDER has `data/hh_rlhf` and `models/stories260k`. A quarter of the comparisons is held out, split by
conversation. All losses begin with the model fine-tuned on the better responses of the rest. The learning rate of each
is the best of three, or of four if an edge of the three is best: tried with a seed that is not reported, measured on a
quarter of the rest, from a start that has not seen that quarter. Prints one line of JSON for each loss. A run takes
about a minute of one core; one that lies in the output folder is only read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import burnish
from burnish.algorithms.statistics import mean_interval
from burnish.data.preference_rows import first_question
from burnish.data.preferences import is_held_out
from burnish.data.rows import common_length
from burnish.observability.history import read_history

LOSSES = ("sigmoid", "ipo", "simpo", "kto", "orpo")
RATES = (1e-4, 3e-4, 1e-3)
BEYOND = {1e-4: 3e-5, 1e-3: 3e-3}
"""The rate that is tried too if one at the edge is the best."""
HELD_OUT, EVERY = 0.25, 20
SPLIT_SEED, TUNING_SEED = 0, 1000
PROMPT_CHARACTERS = 250
"""End of a conversation that is kept: about what fits into the 128 tokens of a run."""
TURN = "\n\nAssistant:"
FIGURES = ("accuracy", "accuracy_low", "accuracy_high", "length_rule_accuracy", "loss", "chosen_logprob")
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Split:
    """A folder with comparisons to train on, held-out ones, and a model fine-tuned on the former."""

    folder: Path

    @property
    def train(self) -> Path:
        return self.folder / "train.jsonl"

    @property
    def held_out(self) -> Path:
        return self.folder / "held_out.jsonl"

    @property
    def start(self) -> Path:
        return self.folder / "sft"


def read_pairs(file: Path) -> list[Row]:
    """The comparisons, each with its prompt and the question that its conversation begins with."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    rows = []
    for chosen, rejected in ((pair["chosen"], pair["rejected"]) for pair in pairs):
        end = chosen[: common_length(chosen, rejected)].rindex(TURN) + len(TURN)
        row = {"chosen": chosen[end:], "rejected": rejected[end:]}
        if chosen != rejected and all(text.strip() for text in row.values()):
            prompt = chosen[:end]
            rows.append({**row, "prompt": prompt[-PROMPT_CHARACTERS:], "question": first_question(prompt)})
    return rows


def write_split(folder: Path, rows: Sequence[Row], seed: int) -> tuple[Split, list[Row]]:
    """Split the comparisons by conversation, as `held_out_fraction` does. Also returns those to train on."""
    split = Split(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sides = [is_held_out(row["question"], HELD_OUT, seed=seed) for row in rows]
    parts = [[row for row, side in zip(rows, sides, strict=True) if side is held_out] for held_out in (False, True)]
    for file, part in zip((split.train, split.held_out), parts, strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return split, parts[0]


def fine_tune(model: Path, split: Split) -> None:
    """Make the start: four passes over the better responses of the training part."""
    if (split.start / "finished.json").exists():
        return
    columns = {"schema_name": "prompt_completion", "columns": {"completion": "chosen"}}
    train, held_out = ({"path": str(file), **columns} for file in (split.train, split.held_out))
    burnish.sft(
        {
            "output": str(split.start),
            "model": {"path": str(model), "device": "cpu"},
            "data": {"train": train, "eval": held_out, "over_long": "truncate", "chat": "never"},
            "max_tokens": 384,
            "optimization": {"learning_rate": 2e-3, "tokens_per_batch": 4096, "epochs": 4, "schedule": "linear"},
            "evaluation": {"every_steps": 50, "max_prompts": None},
            "checkpoint": {"every_steps": None},
            "cluster": {"threads": 1},
            "logging": {"sinks": []},
        },
        quiet=True,
    )


def history(loss: str, split: Split, seed: int, rate: float, output: Path) -> Mapping[str, Sequence[float]]:
    """Train in two passes over the comparisons with one loss. Returns the metrics of all evaluations."""
    finished = output / "finished.json"
    if not finished.exists():
        config: dict[str, Any] = {
            "output": str(output),
            "seed": seed,
            "model": {"path": str(split.start), "device": "cpu"},
            "data": {"train": str(split.train), "eval": str(split.held_out), "over_long": "truncate", "chat": "never"},
            "max_tokens": 128,
            "bad_rows": "drop",
            "losses": loss,
            "optimization": {"learning_rate": rate, "comparisons_per_batch": 32, "epochs": 2, "warmup_steps": 5},
            "evaluation": {"every_steps": EVERY},
            "checkpoint": {"every_steps": None},
            "cluster": {"threads": 1},
            "logging": {"sinks": []},
        }
        burnish.prefer(config, quiet=True)
        if not finished.exists():
            raise SystemExit(f"{output} was stopped")
    return {name.removeprefix("eval/"): values for name, (_, values) in read_history(output).items()}


def tried_rates(loss: str, tuning: Split, output: Path) -> dict[float, float]:
    """The mean accuracy over all evaluations with each learning rate, the best one last."""

    def tried(rate: float) -> float:
        found = history(loss, tuning, TUNING_SEED, rate, output / "tuning" / f"{loss}-{rate:g}")
        return statistics.mean(found["accuracy"][1:])

    means = {rate: tried(rate) for rate in RATES}
    best = max(means, key=lambda rate: means[rate])
    if best in BEYOND:
        means[BEYOND[best]] = tried(BEYOND[best])
    return dict(sorted(means.items(), key=lambda item: item[1]))


def row_of(loss: str, tuning: Split, split: Split, output: Path, seeds: int) -> dict[str, Any]:
    """Choose the learning rate, then train with each seed."""
    tried = tried_rates(loss, tuning, output)
    rate = list(tried)[-1]
    runs = [history(loss, split, seed, rate, output / "runs" / f"{loss}-{rate:g}-{seed}") for seed in range(seeds)]
    finals = {name: [run[name][-1] for run in runs] for name in FIGURES}
    return {
        "losses": loss,
        "learning_rate": rate,
        "tried": {f"{one:g}": round(value, 4) for one, value in tried.items()},
        "start": {name: round(runs[0][name][0], 4) for name in FIGURES},
        "accuracy": interval(finals["accuracy"]),
        **{name: round(statistics.mean(values), 4) for name, values in finals.items() if name != "accuracy"},
    }


def interval(values: Sequence[float]) -> list[float | None]:
    """Mean and half the width of its 95 % interval over the seeds."""
    found = mean_interval(values)
    return [round(found.mean, 4), None if found.half_width is None else round(found.half_width, 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES), metavar="LOSS")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/preferences"))
    given = parser.parse_args()
    rows = read_pairs(given.folder / "data/hh_rlhf/harmless-base_test.jsonl.gz")
    split, rest = write_split(given.output / "split", rows, SPLIT_SEED)
    tuning, _ = write_split(given.output / "split_tuning", rest, TUNING_SEED)
    for one in (tuning, split):
        fine_tune(given.folder / "models/stories260k", one)
    for loss in given.losses:
        print(json.dumps(row_of(loss, tuning, split, given.output, given.seeds)), flush=True)


if __name__ == "__main__":
    main()
