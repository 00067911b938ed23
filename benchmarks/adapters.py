"""Steps of `burnish rl` that train adapters (LoRA) on weights as they are, of 8 bits and of 4: seconds and memory.

    python benchmarks/adapters.py                         # random models of Qwen2.5's shapes, 0.5 B and 1.5 B
    python benchmarks/adapters.py --models 0.5B --weights float32 nf4 --steps 5
    python benchmarks/adapters.py --output FOLDER/name    # where the page and the numbers go

4 prompts x 4 responses, up to 64 tokens each, GRPO with a reference; the first step does not count. Memory is that of
the whole command with its reward processes, from the start to the saved checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from memory import PeakMemory
from report import publish

from start import SHAPE, write_model, write_prompts

HERE = Path(__file__).resolve().parent
SHAPES: dict[str, Mapping[str, Any]] = {
    "0.5B": SHAPE,
    "1.5B": {
        **SHAPE,
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
}
WEIGHTS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "nf4": {"quantization": "nf4"},
    "nf4, bfloat16": {"quantization": "nf4", "dtype": "bfloat16"},
}
"""Fields of `model`."""
PHASES = ("generate", "update", "step")


def main() -> None:
    options = parse()
    rows = []
    for model in options.models:
        with tempfile.TemporaryDirectory(prefix="burnish-adapters-") as name:
            work = Path(name)
            folder, prompts = write_model(work / "model", SHAPES[model]), write_prompts(work / "prompts.jsonl")
            for weights in options.weights:
                row = {"model": model, "weights": weights} | measured(work, folder, prompts, weights, options)
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
    publish("adapters", options.output, rows, to_markdown, steps=options.steps)


def measured(work: Path, model: Path, prompts: Path, weights: str, options: argparse.Namespace) -> dict[str, float]:
    """Medians of seconds over the steps after the first, and the highest memory in GB."""
    output = work / f"run {weights}"
    (work / "reward.py").write_text("def score(response):\n    return len(response) % 5\n", encoding="utf-8")
    fields = {
        "output": str(output),
        "model": {"path": str(model), "device": "cpu", "lora": {"rank": options.rank}, **WEIGHTS[weights]},
        "data": {"train": str(prompts), "chat": "never"},
        "rewards": [f"{work / 'reward.py'}:score"],
        "algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.04},
        "steps": options.steps + 1,
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_prompt_tokens": 64, "max_response_tokens": 64},
        "optimization": {"learning_rate": 1e-5},
        "evaluation": {"at_start": False, "every_steps": None},
    }
    run_file = work / "run.yaml"
    run_file.write_text(json.dumps(fields), encoding="utf-8")  # JSON is YAML
    environment = os.environ | {"PYTHONPATH": str(HERE.parent / "src")}
    with (output.parent / "said.txt").open("wb") as said:
        command = [sys.executable, "-m", "burnish", "rl", str(run_file)]
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        with PeakMemory(process.pid) as memory:
            if process.wait():
                raise SystemExit((output.parent / "said.txt").read_text(encoding="utf-8"))
    lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines][1:]
    seconds = {name: statistics.median(step[f"time/{name}_seconds"] for step in steps) for name in PHASES}
    return {name: round(value, 2) for name, value in seconds.items()} | {"gb": round(memory.all_bytes / 1e9, 2)}


def to_markdown(report: Mapping[str, Any]) -> str:
    lines = ["| model | weights | step, s | sampling, s | update, s | memory, GB |", "|---|---|---:|---:|---:|---:|"]
    for row in report["rows"]:
        seconds = f"{row['step']:.1f} | {row['generate']:.1f} | {row['update']:.1f}"
        lines.append(f"| {row['model']} | {row['weights']} | {seconds} | {row['gb']:.1f} |")
    return f"""\
# Adapters on weights of 32, 16, 8 and 4 bits

`{report["command"]}`
on {report["date"]}: {report["processor"]}, {report["cores"]} cores, load average {report["load_after"]} after. Random
models of Qwen2.5's shapes with a vocabulary of 151,936; 4 prompts x 4 responses of up to 64 tokens, GRPO with a
reference. Medians of {report["steps"]} steps after the first. Memory is the most that the whole command held at a time,
reward processes included, from its start to the saved checkpoint. 1 GB is 10^9 bytes.

{chr(10).join(lines)}
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--weights", nargs="+", default=list(WEIGHTS), choices=list(WEIGHTS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/adapters"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
