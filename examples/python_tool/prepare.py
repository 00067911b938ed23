"""Make what this example needs without a download: a tiny model with random weights, demonstrations, and questions.

    python examples/python_tool/prepare.py OUTPUT_FOLDER

A question is about a word of random digits. A demonstration writes an expression, reads its value, and repeats it. The
demonstrator mixes up two of the questions, more often than not. Writes OUTPUT_FOLDER/model and demonstrations.jsonl,
train.jsonl and heldout.jsonl below it.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from string import digits, printable
from typing import Any

from burnish.models.characters import character_tokenizer, tiny_llama

QUESTIONS = {
    "turn": "'{}'[::-1]",
    "sort": "''.join(sorted('{}'))",
    "most": "max('{}')",
}
"""What may be asked about a word, and the expression that answers it."""
MIXED_UP = {"sort": "turn", "most": "sort"}
"""Questions that the demonstrator takes for others, with `MISTAKE` as probability."""
MISTAKE = 0.7
NUM_DEMONSTRATIONS = 1000
NUM_ROWS = {"train": 2000, "heldout": 200}

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
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
    },
}
"""As the template writes it: by its name alone."""


def answer(question: str, word: str) -> str:
    """`answer("turn", "472") == "274"`."""
    return str(eval(QUESTIONS[question].format(word)))  # our own text


def draw(chance: random.Random) -> tuple[str, str]:
    return chance.choice(list(QUESTIONS)), "".join(chance.choices(digits, k=4))


def demonstration(chance: random.Random) -> dict[str, Any]:
    question, word = draw(chance)
    asked = MIXED_UP.get(question, question) if chance.random() < MISTAKE else question
    function = {"name": "python", "arguments": {"code": QUESTIONS[asked].format(word)}}
    # The tool shows the value as a notebook does, with quotation marks.
    value = answer(asked, word)
    turns = [
        {"role": "user", "content": f"{question} {word}"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": repr(value)},
        {"role": "assistant", "content": value},
    ]
    return {"messages": turns, "tools": [TOOL]}


def row(chance: random.Random) -> dict[str, str]:
    question, word = draw(chance)
    return {"prompt": f"{question} {word}", "answer": answer(question, word)}


def write_data(folder: Path, seed: int = 0) -> None:
    chance = random.Random(seed)
    rows: dict[str, list[dict[str, Any]]] = {name: [row(chance) for _ in range(n)] for name, n in NUM_ROWS.items()}
    rows["demonstrations"] = [demonstration(chance) for _ in range(NUM_DEMONSTRATIONS)]
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
