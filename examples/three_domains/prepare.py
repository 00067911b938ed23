"""Make what this example needs without a download: a tiny model with random weights, data, and demonstrations.

    python examples/three_domains/prepare.py OUTPUT_FOLDER

Writes OUTPUT_FOLDER/model; train and held-out additions; held-out puzzles that the run file's training puzzles do not
ask; and demonstrations of someone who makes the same mistake three times in four, so that there is something left for
rewards to teach.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

from burnish.config.loading import load_run_file
from burnish.config.schema_data import DataSource
from burnish.data.conversations import fill_template
from burnish.data.loaded_sources import load_sources
from burnish.models.characters import character_tokenizer, tiny_llama

RUN_FILE = Path(__file__).parent / "rl.yaml"
NUM_ADDITIONS = 5000
NUM_HELD_OUT = 200
NUM_DEMONSTRATIONS = 4
"""Demonstrations of each problem, each with or without the mistake independently. With one, the model would memorise
which problems are shown right."""
MISTAKE = 0.75
"""How often the demonstrator makes the mistake, where it makes a difference."""

Row = dict[str, Any]


def addition(a: int, b: int) -> Row:
    """The answer has the ones first, so that carries flow in the direction of writing."""
    return {"prompt": f"{a:02d}+{b:02d}=", "answer": f"{a + b:03d}"[::-1], "terms": [a, b]}


def forget_carry(row: Row) -> str:
    """The sum without the carry out of the ones."""
    a, b = row["terms"]
    return f"{(a // 10 + b // 10) * 10 + (a + b) % 10:03d}"[::-1]


def swap_ends(row: Row) -> str:
    """The word with only its first and last letter exchanged."""
    word = row["metadata"]["word"]
    return f"{word[-1]}{word[1:-1]}{word[0]}"


def forget_sign(row: Row) -> str:
    """The result without the minus of a negative one."""
    return str(row["answer"]).removeprefix("-")


MISTAKES: Mapping[str, Callable[[Row], str]] = {"sums": forget_carry, "words": swap_ends, "chains": forget_sign}


def additions() -> tuple[list[Row], list[Row]]:
    """Some of the 10,000 additions of two digits: for training, and held out."""
    rows = [addition(a, b) for a, b in itertools.product(range(100), repeat=2)]
    random.Random(0).shuffle(rows)
    return rows[NUM_HELD_OUT:][:NUM_ADDITIONS], rows[:NUM_HELD_OUT]


def puzzles(source: DataSource) -> tuple[list[Row], list[Row]]:
    """The puzzles that a run trains on, and as many others as are held out, none of which it trains on."""
    train = _puzzles(source)
    asked = {row["prompt"] for row in train}
    others = _puzzles(source.model_copy(update={"seed": source.seed + 1}))
    unseen = {row["prompt"]: row for row in others if row["prompt"] not in asked}
    return train, list(unseen.values())[:NUM_HELD_OUT]


def _puzzles(source: DataSource) -> list[Row]:
    template = source.prompt_template
    assert template is not None
    (loaded,) = load_sources([source], "prompts")
    return [{"prompt": fill_template(template, row, loaded.reading.roles), **row.values} for row in loaded.table.rows]


def demonstrations(rows: Iterable[Row], mistake: Callable[[Row], str], chance: random.Random) -> list[Row]:
    return [
        {"prompt": row["prompt"], "completion": mistake(row) if chance.random() < MISTAKE else row["answer"]}
        for row in rows
        for _ in range(NUM_DEMONSTRATIONS)
    ]


def write_model(folder: Path) -> None:
    """A transformer of about 450,000 random parameters; one character is one token."""
    tokenizer = character_tokenizer(digits + ascii_letters + "+-= ", eos="$", pad="_", context_length=32)
    model = tiny_llama(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_layers=3,
        context_length=32,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_embeddings=False,
        initializer_range=0.06,  # the usual 0.02 is for wide models, and starts this one slowly
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_lines(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} rows -> {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    folder = parser.parse_args().output
    domains = load_run_file(str(RUN_FILE)).config.domains
    chance, shown = random.Random(1), []
    for name, mistake in MISTAKES.items():
        train, held_out = additions() if name == "sums" else puzzles(domains[name].train[0])
        if name == "sums":
            write_lines(folder / "sums.jsonl", train)
        write_lines(folder / f"{name}_held_out.jsonl", held_out)
        shown += demonstrations(train, mistake, chance)
    write_lines(folder / "demonstrations.jsonl", shown)
    write_model(folder / "model")


if __name__ == "__main__":
    main()
