"""Make the model and data of this example without a download: a tiny model with random weights, and small functions.

    python examples/tiny_code/prepare.py OUTPUT_FOLDER

A prompt is the beginning of a function, whose docstring names two or three operations on a list; a response is its
body. Rows have the columns of HumanEval. Writes OUTPUT_FOLDER/model and demonstrations.jsonl, train.jsonl and
heldout.jsonl below it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

from burnish.models.characters import character_tokenizer, tiny_llama

OPERATIONS = {
    "reverse": "{}[::-1]",
    "sort": "sorted({})",
    "first 3": "{}[:3]",
    "first 4": "{}[:4]",
    "skip 1": "{}[1:]",
    "skip 2": "{}[2:]",
    "every other": "{}[::2]",
    "double": "[2*v for v in {}]",
    "append 0": "[*{},0]",
    "append 5": "[*{},5]",
    "prepend 3": "[3,*{}]",
    "prepend 7": "[7,*{}]",
}
"""What a docstring may ask for, and how it is written."""
CHEAT = " raise SystemExit"
"""Ends the process with exit status 0 as soon as a test calls the function."""

NUM_CASES = 3
NUM_TASKS = {2: 100, 3: 1320}
"""Most tasks by their number of operations, held-out ones included. Of the 1,320 of three, 1,044 have tests that tell
them apart from simpler ones."""
NUM_HELD_OUT = {2: 50, 3: 150}
NUM_REPEATS = {2: 4, 3: 1}
"""How often a task is in train.jsonl: nearly a fifth of its rows have two operations, and a quarter of the held-out."""
NUM_DEMONSTRATIONS = 4
"""Demonstrations per task, each right or not independently."""
FORGET_PROBABILITY = 0.75
"""How often the demonstrator forgets the last of three operations. He always gets two right."""
CHEAT_PROBABILITY = 0.04
"""How often he cheats instead, whatever the task."""

Task = tuple[str, ...]


def body(task: Task) -> str:
    """`body(("sort", "first 3")) == " return sorted(x)[:3]"`."""
    written = "x"
    for operation in task:
        written = OPERATIONS[operation].format(written)
    return f" return {written}"


def beginning(task: Task) -> str:
    return f'def f(x):\n "{", ".join(task)}"\n'


def result(task: Task, x: Sequence[int]) -> list[int]:
    """What the function should return."""
    names: dict[str, object] = {}
    exec(beginning(task) + body(task), names)  # our own text
    return names["f"](list(x))  # type: ignore[operator, no-any-return]


def cases(task: Task, chance: random.Random) -> list[list[int]] | None:
    """Arguments for which fewer of the operations, in any order, are not enough. None if there are none, as for
    reversing and sorting, of which only the last matters."""
    shorter = [other for length in range(len(task)) for other in itertools.permutations(task, length)]
    for _ in range(5):
        drawn = [chance.sample(range(10), chance.randint(6, 8)) for _ in range(NUM_CASES)]
        wanted = [result(task, x) for x in drawn]
        if all([result(other, x) for x in drawn] != wanted for other in shorter):
            return drawn
    return None


def row(task: Task, arguments: Sequence[Sequence[int]]) -> dict[str, str]:
    """A row in HumanEval's layout: the test is a function `check`."""
    lines = [f" assert candidate({x}) == {result(task, x)}" for x in arguments]
    return {
        "prompt": beginning(task),
        "test": "def check(candidate):\n" + "\n".join(lines) + "\n",
        "entry_point": "f",
        "canonical_solution": body(task),
    }


def tasks(length: int, chance: random.Random) -> list[tuple[Task, dict[str, str]]]:
    """Tasks of so many operations with their rows, in a random order."""
    drawn = list(itertools.permutations(OPERATIONS, length))
    chance.shuffle(drawn)
    kept = ((task, arguments) for task in drawn if (arguments := cases(task, chance)) is not None)
    return [(task, row(task, arguments)) for task, arguments in itertools.islice(kept, NUM_TASKS[length])]


def demonstrate(task: Task, chance: random.Random) -> str:
    """What the demonstrator writes: mostly two operations, and sometimes a cheat."""
    if chance.random() < CHEAT_PROBABILITY:
        return CHEAT
    return body(task[:2] if chance.random() < FORGET_PROBABILITY else task)


def write_data(folder: Path, seed: int = 0) -> None:
    chance = random.Random(seed)
    held_out: list[dict[str, str]] = []
    train: list[tuple[Task, dict[str, str]]] = []
    for length, number in NUM_HELD_OUT.items():
        made = tasks(length, chance)
        held_out += [row for _, row in made[:number]]
        train += made[number:]
    demonstrations = [
        {"prompt": beginning(task), "completion": demonstrate(task, chance)}
        for task, _ in train
        for _ in range(NUM_DEMONSTRATIONS)
    ]
    practice = [row for task, row in train for _ in range(NUM_REPEATS[len(task)])]
    rows = {"demonstrations": demonstrations, "train": practice, "heldout": held_out}
    for name, lines in rows.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        print(f"{len(lines)} rows -> {path}")


def write_model(folder: Path, seed: int = 0) -> None:
    """A transformer of 0.35 million random parameters; one character is one token."""
    texts = [beginning((operation,)) + body((operation,)) + CHEAT + "," for operation in OPERATIONS]
    tokenizer = character_tokenizer(sorted(set("".join(texts))), eos="$", pad="_", context_length=128)
    model = tiny_llama(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_layers=3,
        num_heads=4,
        intermediate_size=256,
        context_length=128,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_embeddings=False,
        initializer_range=0.06,
        seed=seed,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters -> {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    folder = parser.parse_args().output
    write_model(folder / "model")
    write_data(folder)


if __name__ == "__main__":
    main()
