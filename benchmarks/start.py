"""How long `burnish rl FILE` takes until the first token is sampled, and where that time goes.

    python benchmarks/start.py                                # a random model of Qwen2.5-0.5B's shape: some minutes
    python benchmarks/start.py --against CHECKOUT/src         # another version, in turns with this one
    python benchmarks/start.py --trl PYTHON_WITH_TRL          # TRL's GRPOTrainer, in turns with this one
    python benchmarks/start.py --model FOLDER --precision bfloat16 --repeats 5
    python benchmarks/start.py --forget                       # also the first start, which times the ways that agree
    python benchmarks/start.py --output FOLDER/name           # where the page and the numbers go

Each start is a fresh process with default settings (start_watched.py), which ends after the first token. Choices
between ways that agree are kept in a cache of this benchmark's own, and one start per version fills it, which also puts
the files into memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from report import publish

HERE = Path(__file__).resolve().parent
VOCABULARY, WORDS = 151_936, 151_643
"""Rows of the embedding, and tokens that the tokenizer has."""
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
}
RUN_FILE = """\
output: {output}
model: {{path: {model}, dtype: {precision}, device: cpu}}
data: {{train: {prompts}, chat: never}}
rewards: ["{reward}:score"]
algorithm: {{preset: grpo, kl_in: loss, kl_coef: 0.04}}
steps: 1
rollout: {{prompts_per_step: 8, group_size: 8, max_prompt_tokens: 64, max_response_tokens: 64}}
optimization: {{learning_rate: 1.0e-6}}
evaluation: {{at_start: false, every_steps: null}}
"""


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="burnish-start-") as name:
        work = Path(name)
        model = options.model or write_model(work / "model")
        prompts = write_prompts(work / "prompts.jsonl")
        versions = {"this": HERE.parent / "src"} | ({"other": options.against} if options.against else {})
        first = {label: start(work, source, options, model, prompts, label) for label, source in versions.items()}
        starts: dict[str, list[dict[str, Any]]] = {label: [] for label in versions}
        for _ in range(options.repeats):  # in turns, so that a slow spell of the machine hits all versions
            for label, source in versions.items():
                starts[label].append(start(work, source, options, model, prompts, label))
            if options.trl:
                starts.setdefault("TRL", []).append(start_trl(work, options, model, prompts))
    rows = [row for label, found in starts.items() for row in rows_of(label, found)]
    if options.forget:
        rows += [row for label in versions for row in rows_of(f"{label}, first start", [first[label]])]
    publish("start", options.output, rows, to_markdown, precision=options.precision, repeats=options.repeats)


def write_model(folder: Path, shape: Mapping[str, Any] = SHAPE) -> Path:
    """Random weights in bfloat16, and a tokenizer of byte pairs, in the Hugging Face layout."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(**shape, eos_token_id=0, pad_token_id=0, bos_token_id=None)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_pairs(), eos_token="<end>", pad_token="<end>")
    tokenizer.save_pretrained(folder)
    return folder


def byte_pairs() -> Any:
    """A tokenizer as large as Qwen's, whose merges are random: each joins two tokens that were there before."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    draw = random.Random(0)
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {"<end>": 0} | {sign: number for number, sign in enumerate(signs, start=1)}
    parts, merges = list(signs), []
    while len(words) < WORDS:
        left, right = draw.choice(parts), draw.choice(parts)
        if len(left + right) <= 12 and left + right not in words:
            words[left + right] = len(words)
            merges.append((left, right))
            parts.append(left + right)
    tokenizer = Tokenizer(models.BPE(words, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_prompts(file: Path) -> Path:
    """1,000 short sums."""
    lines = (json.dumps({"prompt": f"{n} + {n * 7 % 100} ="}) + "\n" for n in range(1_000))
    file.write_text("".join(lines), encoding="utf-8")
    return file


def start(
    work: Path, source: Path, options: argparse.Namespace, model: Path, prompts: Path, label: str
) -> dict[str, Any]:
    """One start of a version in a fresh process and a new folder."""
    output, times = work / "run", work / "times.json"
    shutil.rmtree(output, ignore_errors=True)
    run_file = work / "run.yaml"
    reward = HERE / "peers" / "reward.py"
    text = RUN_FILE.format(output=output, model=model, precision=options.precision, prompts=prompts, reward=reward)
    run_file.write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(source.resolve()), "XDG_CACHE_HOME": str(work / f"cache {label}")}
    subprocess.run(
        [sys.executable, str(HERE / "start_watched.py"), str(times), "rl", str(run_file)],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return read(times, label)


def start_trl(work: Path, options: argparse.Namespace, model: Path, prompts: Path) -> dict[str, Any]:
    """One start of TRL's trainer with the same model and prompts, in a fresh process."""
    times = work / "times.json"
    command = [options.trl, HERE / "start_trl.py", times, model, prompts, options.precision]
    subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return read(times, "TRL")


def read(times: Path, label: str) -> dict[str, Any]:
    """What a start has written, said as well."""
    found: dict[str, Any] = json.loads(times.read_text(encoding="utf-8"))
    seconds, cpu = found["whole"]
    print(f"{label}: {seconds:.1f} s, {cpu:.1f} processor seconds", file=sys.stderr, flush=True)
    return found


def rows_of(version: str, starts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for the whole, and one per phase, longest first: medians over starts."""
    names = dict.fromkeys(name for found in starts for name in found["phases"])
    rows = [row_of(version, "whole", [found["whole"] for found in starts])]
    phases = [row_of(version, name, [found["phases"].get(name, [0.0, 0.0]) for found in starts]) for name in names]
    return rows + sorted(phases, key=lambda row: -row["cpu"])


def row_of(version: str, phase: str, spent: Sequence[Sequence[float]]) -> dict[str, Any]:
    seconds, cpu = (round(statistics.median(column), 3) for column in zip(*spent, strict=True))
    return {"version": version, "phase": phase, "seconds": seconds, "cpu": cpu}


def to_markdown(report: Mapping[str, Any]) -> str:
    versions = list(dict.fromkeys(row["version"] for row in report["rows"]))
    spent = {(row["version"], row["phase"]): row for row in report["rows"]}
    phases = list(dict.fromkeys(row["phase"] for row in report["rows"]))
    head = "".join(f" {version}: seconds | processor seconds |" for version in versions)
    lines = [f"| phase |{head}", "|---|" + "---:|" * 2 * len(versions)]
    for phase in phases:
        cells = [spent.get((version, phase)) for version in versions]
        text = "".join(f" {row['seconds']:.2f} | {row['cpu']:.2f} |" if row else "  |  |" for row in cells)
        lines.append(f"| {phase} |{text}")
    return f"""\
# From the command to the first token

`{report["command"]}` on {report["date"]}: {report["processor"]}, {report["cores"]} cores, load average
{report["load_after"]} after. `burnish rl` in {report["precision"]}: medians of {report["repeats"]} starts, with the
files in memory and choices between ways that agree known from before. Processor seconds are those of the command's
process, of which several may run at once.

{chr(10).join(lines)}
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a model; default: a random one is made")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="folder `src` of another version")
    parser.add_argument("--trl", type=Path, help="an interpreter with TRL 1.16")
    parser.add_argument("--forget", action="store_true", help="show the first start, too")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/start"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
