"""Make the model and data of this example without a download: a tiny model with random weights, and a task.

    python examples/custom_reward/prepare.py OUTPUT_FOLDER

The task: put letters in order. Prompt `da>`, answer `ad`. Writes OUTPUT_FOLDER/model, train.jsonl and heldout.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path

from burnish.models.characters import character_tokenizer, tiny_llama

LETTERS = "abcdefgh"
NUM_LETTERS = 2
NUM_HELD_OUT = 12


def write_model(folder: Path) -> None:
    """A transformer of about 100,000 random parameters; one character is one token."""
    tokenizer = character_tokenizer(LETTERS + ">", eos="$", pad="_", context_length=16)
    model = tiny_llama(
        vocab_size=len(tokenizer),
        context_length=16,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_task(folder: Path) -> None:
    """Every word of two letters, a few of them held out."""
    words = ["".join(letters) for letters in itertools.product(LETTERS, repeat=NUM_LETTERS)]
    random.Random(0).shuffle(words)
    for name, part in (("heldout", words[:NUM_HELD_OUT]), ("train", words[NUM_HELD_OUT:])):
        rows = [{"prompt": word + ">", "answer": "".join(sorted(word))} for word in part]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{name}: {len(rows)} prompts -> {folder / f'{name}.jsonl'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    folder = parser.parse_args().output
    write_model(folder / "model")
    write_task(folder)


if __name__ == "__main__":
    main()
