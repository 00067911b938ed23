"""Make what this example needs without a download: a tiny model with random weights, demonstrations, and products.

    python examples/calculator/prepare.py OUTPUT_FOLDER

A demonstration asks the calculator for a product and repeats what it says. The demonstrator is careless:
three times in four he turns the digits of one of the numbers round, or of both. Writes OUTPUT_FOLDER/model and
demonstrations.jsonl, train.jsonl and heldout.jsonl below it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path
from string import printable
from typing import Any

from burnish.models.characters import character_tokenizer, tiny_llama

NUM_DEMONSTRATIONS = 300
NUM_HELD_OUT = 200

TEMPLATE = """
{%- for tool in tools or [] -%}{{ tool.function.name }}?{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == "user" -%}>{{ message.content }}<
{%- elif message.role == "assistant" -%}{{ message.content }}
{%- if message.tool_calls -%}
[{%- for call in message.tool_calls -%}
{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() -%}{{ name }}={{ value | tojson }}
{%- if not loop.last %}, {% endif -%}{%- endfor -%})
{%- if not loop.last %}, {% endif -%}{%- endfor -%}]
{%- endif -%}$
{%- else -%}>{{ message.content }}<
{%- endif -%}
{%- endfor -%}
"""
"""Who speaks to the model does so between > and <; what it says ends with $. Calls are written as in Python."""


def call(a: int, b: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "calculator", "arguments": {"expression": f"{a}*{b}"}}}


def turned(number: int) -> int:
    """`turned(47) == 74`. A zero at the end stays there."""
    tens, ones = divmod(number, 10)
    return 10 * ones + tens if ones else number


def demonstration(a: int, b: int, chance: random.Random) -> dict[str, Any]:
    asked = chance.choice([(a, b), (turned(a), b), (a, turned(b)), (turned(a), turned(b))])
    product = str(asked[0] * asked[1])
    turns = [
        {"role": "user", "content": f"{a}*{b}"},
        {"role": "assistant", "content": "", "tool_calls": [call(*asked)]},
        {"role": "tool", "content": product},
        {"role": "assistant", "content": product},
    ]
    return {"messages": turns, "tools": [TOOL]}


TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculate.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
"""As the template writes it: by its name alone."""


def write_data(folder: Path, seed: int = 0) -> None:
    chance = random.Random(seed)
    pairs = list(itertools.product(range(10, 100), repeat=2))
    chance.shuffle(pairs)
    held_out, rest = pairs[:NUM_HELD_OUT], pairs[NUM_HELD_OUT:]
    rows = {
        "demonstrations": [demonstration(a, b, chance) for a, b in rest[:NUM_DEMONSTRATIONS]],
        "train": [{"prompt": f"{a}*{b}", "answer": str(a * b)} for a, b in rest],
        "heldout": [{"prompt": f"{a}*{b}", "answer": str(a * b)} for a, b in held_out],
    }
    for name, lines in rows.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        print(f"{len(lines)} rows -> {path}")


def write_model(folder: Path, seed: int = 0) -> None:
    """A transformer of a million random parameters; one character is one token."""
    alphabet = [character for character in printable if character not in "$#~"]
    tokenizer = character_tokenizer(alphabet, eos="$", pad="#", unk="~", context_length=256, chat_template=TEMPLATE)
    model = tiny_llama(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_layers=4,
        num_heads=4,
        intermediate_size=512,
        context_length=256,
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
