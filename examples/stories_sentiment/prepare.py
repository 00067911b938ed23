"""Cut prompts from real stories: the beginning of each paragraph, to be continued by the policy.

    python examples/stories_sentiment/prepare.py STORIES.txt OUTPUT_FOLDER

STORIES.txt is plain text with blank lines between paragraphs. Writes train.jsonl and heldout.jsonl. A hash of its text
puts each paragraph into one of them, so running again gives the same split.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

MIN_WORDS, PROMPT_WORDS = 24, 10


def beginnings(text: str) -> list[str]:
    """The first words of every paragraph that is long enough to be cut in the middle."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    words = (paragraph.split(" ") for paragraph in dict.fromkeys(paragraphs))
    return [" ".join(row[:PROMPT_WORDS]) for row in words if len(row) >= MIN_WORDS]


def held_out(prompt: str) -> bool:
    return hashlib.blake2b(prompt.encode(), digest_size=1).digest()[0] < 64


def write_prompts(stories: Path, output: Path) -> dict[str, int]:
    """Write both files; how many prompts each holds."""
    prompts = list(dict.fromkeys(beginnings(stories.read_text(encoding="utf-8"))))
    output.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for name, wanted in (("train", False), ("heldout", True)):
        chosen = [prompt for prompt in prompts if held_out(prompt) == wanted]
        lines = "".join(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in chosen)
        (output / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        counts[name] = len(chosen)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    for name, count in write_prompts(arguments.stories, arguments.output).items():
        print(f"{name}: {count} prompts -> {arguments.output / f'{name}.jsonl'}")


if __name__ == "__main__":
    main()
