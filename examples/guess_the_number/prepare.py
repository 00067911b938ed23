"""Make what this example needs without a download: a tiny model with random weights, demonstrations, and games.

    python examples/guess_the_number/prepare.py OUTPUT_FOLDER

The demonstrator knows what hints are for, but rarely halves what is left: mostly he goes on by one, or has forgotten
what he was told. Writes OUTPUT_FOLDER/model and demonstrations.jsonl, train.jsonl and heldout.jsonl below it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from string import printable
from typing import Any

from burnish.models.characters import character_tokenizer, tiny_llama

sys.path.append(str(Path(__file__).parent))
from environment import LARGEST, GuessTheNumber

NUM_DEMONSTRATIONS = 3000
NUM_GAMES = {"train": 200, "heldout": 300}
"""Rows are all alike: the number is drawn when a game begins, from its seed."""
PROMPT = "Play! "
HALVES, FORGETS = 0.15, 0.25
"""How often the demonstrator halves what is left, or guesses anything. Otherwise he goes on by one."""

TEMPLATE = """
{%- for message in messages -%}
{%- if message.role == "user" -%}>{{ message.content }}<
{%- else -%}{{ message.content }}$
{%- endif -%}
{%- endfor -%}
"""
"""Who speaks to the model does so between > and <; what it says ends with $."""


def next_guess(last: int | None, hint: str, low: int, high: int, chance: random.Random) -> int:
    """What the demonstrator guesses; `low` and `high` are what he could know."""
    luck = chance.random()
    if last is None or luck < FORGETS:
        return chance.randint(1, LARGEST)
    if luck < FORGETS + HALVES:
        return (low + high) // 2
    return min(max(last + (1 if hint == "higher" else -1), 1), LARGEST)


def demonstration(chance: random.Random) -> dict[str, Any]:
    game = GuessTheNumber()
    turns = [{"role": "user", "content": PROMPT + game.reset(number=chance.randint(1, LARGEST))}]
    last, hint, low, high, over = None, "", 1, LARGEST, False
    while not over:
        last = next_guess(last, hint, low, high, chance)
        turns.append({"role": "assistant", "content": str(last)})
        hint, _, found, out, _ = game.step(str(last))
        turns.append({"role": "user", "content": hint})
        low, high = (max(low, last + 1), high) if hint == "higher" else (low, min(high, last - 1))
        high, low, over = max(low, high), min(low, high), found or out
    return {"messages": turns[:-1]}


def write_data(folder: Path, seed: int = 0) -> None:
    chance = random.Random(seed)
    rows = {"demonstrations": [demonstration(chance) for _ in range(NUM_DEMONSTRATIONS)]}
    rows |= {name: [{"prompt": PROMPT}] * number for name, number in NUM_GAMES.items()}
    for name, lines in rows.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        print(f"{len(lines)} rows -> {path}")


def write_model(folder: Path, seed: int = 0) -> None:
    """A transformer of 0.4 million random parameters; one character is one token."""
    alphabet = [character for character in printable if character not in "$#~"]
    tokenizer = character_tokenizer(alphabet, eos="$", pad="#", unk="~", context_length=192, chat_template=TEMPLATE)
    model = tiny_llama(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_layers=3,
        num_heads=4,
        intermediate_size=256,
        context_length=192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
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
