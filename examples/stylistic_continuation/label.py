"""Label the best of four continuations of real story beginnings, as annotators did in 2019.

    python examples/stylistic_continuation/label.py MODEL_FOLDER STORIES.txt OUTPUT_FOLDER [--style descriptiveness]

STORIES.txt is plain text with blank lines between paragraphs. Writes train.txt and heldout.txt (a hash of its text puts
each paragraph into one of them), and labels.jsonl and heldout_labels.jsonl: token ids in the schema of the published
labels (`query`, `sample0` .. `sample3`, `best`). The preset oai_2019 cuts a query from a paragraph. A sample is 24
tokens of the untrained model at temperature 0.7. The best sample is the one that the style's rule scores highest. Rows
in which two share the highest score are left out. Start it from the repository's root.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from burnish.config.presets import PRESETS
from burnish.config.schema_data import DataSource, ModelConfig, QueryConfig
from burnish.data.prompts import load_prompts
from burnish.models.loading import LoadedModel, load_model
from burnish.rewards.loading import find_reward
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.types import Rollout, RolloutRequest

CANDIDATES = 4
STYLES = {
    "sentiment": "examples/rewards/sentiment.py:sentiment",
    "descriptiveness": "examples/stylistic_continuation/styles.py:descriptiveness",
}
"""The rules, as a run file names them."""
PRESET = PRESETS["oai_2019"].values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the pre-trained model")
    parser.add_argument("stories", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--style", choices=list(STYLES), default="sentiment")
    parser.add_argument("--labels", type=int, default=5000, help="comparisons to ask for (about a tenth held out)")
    options = parser.parse_args()
    for line in prepare(options.model, options.stories, options.output, style=options.style, labels=options.labels):
        print(line)


def prepare(model: str, stories: Path, output: Path, *, style: str, labels: int) -> Iterator[str]:
    """Write the four files; yields a line about each pair."""
    output.mkdir(parents=True, exist_ok=True)
    loaded = load_model(ModelConfig(path=model))
    text = stories.read_text(encoding="utf-8")
    paragraphs = list(dict.fromkeys(" ".join(part.split()) for part in text.split("\n\n") if part.strip()))
    for name, label_file, wanted, count in (
        ("train", "labels", False, labels - labels // 10),
        ("heldout", "heldout_labels", True, labels // 10),
    ):
        documents = output / f"{name}.txt"
        documents.write_text("\n\n".join(p for p in paragraphs if held_out(p) == wanted) + "\n", encoding="utf-8")
        queries = read_queries(documents, loaded)
        rows = list(label(sample(queries, loaded, count), find_reward(STYLES[style])))
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (output / f"{label_file}.jsonl").write_text(lines, encoding="utf-8")
        kept = f"{label_file}.jsonl: {len(rows)} of {count} comparisons have one best"
        yield f"{documents}: {len(queries)} queries; {kept}"


def held_out(text: str) -> bool:
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] < 51


def read_queries(documents: Path, loaded: LoadedModel) -> tuple[tuple[int, ...], ...]:
    """Token ids of the queries that `burnish rl` cuts from the same file."""
    source = DataSource(path=str(documents))
    limit = PRESET["rollout.max_prompt_tokens"]
    query = QueryConfig(**PRESET["data.query"])
    return load_prompts([source], tokenizer=loaded.tokenizer, max_prompt_tokens=limit, query=query).prompt_tokens


def sample(queries: Sequence[tuple[int, ...]], loaded: LoadedModel, count: int) -> Iterator[tuple[Rollout, ...]]:
    """`count` sets of continuations, cycling through the queries with fresh noise each time."""
    engine = LocalEngine.of(loaded, max_batch_rows=256)
    sampling = Sampling(
        PRESET["rollout.max_response_tokens"], temperature=PRESET["rollout.temperature"], ignore_eos=True
    )
    requests = [
        RolloutRequest.of(
            f"query {n % len(queries)}", n, queries[n % len(queries)], tuple(range(first, first + CANDIDATES))
        )
        for n in range(count)
        for first in [n // len(queries) * CANDIDATES]
    ]
    rollouts = engine.generate(requests, sampling, seed=0, step=0)
    for start in range(0, len(rollouts), CANDIDATES):
        yield tuple(rollouts[start : start + CANDIDATES])


def label(sets: Iterator[tuple[Rollout, ...]], rule: Callable[[str], float]) -> Iterator[dict[str, object]]:
    """One row for each set that has a single best member."""
    for rollouts in sets:
        scores = [rule(rollout.response) for rollout in rollouts]
        if scores.count(max(scores)) > 1 or len({rollout.response_tokens for rollout in rollouts}) < CANDIDATES:
            continue
        samples = {f"sample{n}": list(rollout.response_tokens) for n, rollout in enumerate(rollouts)}
        yield {"query": list(rollouts[0].prompt_tokens), **samples, "best": scores.index(max(scores))}


if __name__ == "__main__":
    main()
