"""Write the data of this example that no data set has in the right form: programming tasks and instructions.

    python examples/rlvr_math_code/prepare.py OUTPUT_FOLDER [--mbpp FILE]

Writes OUTPUT_FOLDER/mbpp_{train,test}.jsonl and instructions_{train,test}.jsonl. MBPP comes from the hub, or from a
file with its rows, such as sanitized-mbpp.json of https://github.com/google-research/google-research/tree/master/mbpp.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from instruction_rows import HELD_OUT_TOPICS, TOPICS, rows

from burnish.config.schema_data import DataSource
from burnish.data.sources import read_table

MBPP = "google-research-datasets/mbpp"
MBPP_SPLITS = ("train", "validation", "prompt", "test")
MBPP_TEST = range(11, 511)
"""The tasks that the authors of MBPP keep for testing (https://arxiv.org/abs/2108.07732, section 2.1)."""
INSTRUCTIONS = {"train": 800, "test": 160}


def read_mbpp(file: str | None) -> list[Mapping[str, Any]]:
    """The rows of the file, or of all splits of the sanitized data set on the hub."""
    hub = [DataSource(path=MBPP, subset="sanitized", split=split) for split in MBPP_SPLITS]
    sources = hub if file is None else [DataSource(path=file)]
    return [row.values for source in sources for row in read_table(source).rows]


def programming_task(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of MBPP with the column `call`: how its first test calls the function, without what it should return.

    Only the tests name the function. A prompt with a whole test, as usual, would show a result that could be copied.
    """
    text = row.get("prompt") or row["text"]  # the full data set calls it text
    return {**row, "prompt": text.strip(), "call": first_call(row["code"], row["test_list"][0])}


def first_call(code: str, test: str) -> str:
    """The first call in a test of a function that the code defines. ValueError if there is none."""
    defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(test)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            return ast.unparse(node)
    raise ValueError(f"{test!r} calls none of {', '.join(sorted(defined))}")


def instructions(split: str) -> Iterable[dict[str, Any]]:
    """No topic is in both splits."""
    held_out = split == "test"
    topics = tuple(topic for topic in TOPICS if (topic in HELD_OUT_TOPICS) == held_out)
    return rows(INSTRUCTIONS[split], seed=int(held_out), topics=topics)


def write(path: Path, found: Iterable[Mapping[str, Any]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in found]
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines):,} rows -> {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--mbpp", metavar="FILE", help="file with the rows of MBPP (default: the hub)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        write(arguments.output / f"instructions_{split}.jsonl", instructions(split))
    tasks = [programming_task(row) for row in read_mbpp(arguments.mbpp)]
    for split in ("train", "test"):
        chosen = [task for task in tasks if (task["task_id"] in MBPP_TEST) == (split == "test")]
        write(arguments.output / f"mbpp_{split}.jsonl", chosen)


if __name__ == "__main__":
    main()
