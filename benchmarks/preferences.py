"""Steps of DPO next to TRL's DPOTrainer: the same pairs, model and precision; seconds of a step and peak memory.

    python benchmarks/preferences.py --trl PYTHON_WITH_TRL [--model mid] [--pairs 8] [--steps 8] [--rounds 3]

Each measurement is a process of its own; systems take turns, and medians are printed as JSON, one line for each. TRL is
measured with its reference model beside the policy, and with the reference's log-probabilities computed beforehand
(`precompute_ref_log_probs`), as Burnish always does; that time is not part of its steps, as here.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
SYSTEMS = ("burnish", "trl", "trl_precomputed")
PROMPT, RESPONSE = 256, 64
"""Tokens of every prompt, and of every response."""


def write_pairs(file: Path, count: int, vocabulary: int) -> None:
    """Pairs of random words, one token each."""
    draw = random.Random(0)

    def words(length: int) -> str:
        return " ".join(f"w{draw.randrange(8, vocabulary)}" for _ in range(length))

    rows = [
        {"prompt": words(PROMPT) + " ", "chosen": words(RESPONSE), "rejected": words(RESPONSE)} for _ in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run_burnish(task: dict[str, Any]) -> list[float]:
    """Seconds of each step of `burnish prefer`."""
    import burnish

    run = burnish.prefer(
        {
            "output": task["output"],
            "model": {"path": task["model"], "device": "cpu"},
            "data": {"train": task["pairs"], "shuffle": False},
            "losses": "sigmoid",
            "steps": task["steps"],
            "optimization": {"comparisons_per_batch": task["batch"], "learning_rate": 1e-6},
            "checkpoint": {"every_steps": None},
            "cluster": {"threads": task["threads"]},
            "logging": {"sinks": []},
        },
        quiet=True,
    )
    return [float(seconds) for seconds in run.metrics["time/step_seconds"].values]


def run_trl(task: dict[str, Any], *, precompute: bool) -> list[float]:
    """Seconds of each step of TRL's DPOTrainer."""
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    torch.set_num_threads(task["threads"])
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    arguments = DPOConfig(
        output_dir=task["output"],
        per_device_train_batch_size=task["batch"],
        max_steps=task["steps"],
        learning_rate=1e-6,
        max_length=PROMPT + RESPONSE + 8,
        precompute_ref_log_probs=precompute,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=task["steps"],
    )
    trainer = DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32),
        args=arguments,
        train_dataset=load_dataset("json", data_files=task["pairs"], split="train"),
        processing_class=AutoTokenizer.from_pretrained(task["model"]),
        callbacks=[Clock()],
    )
    trainer.train()
    return seconds


def measured(system: str, task: dict[str, Any], interpreter: str) -> dict[str, float]:
    """Median seconds of a step after the first two, and peak memory in MB, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "task.json"
        given.write_text(json.dumps(task | {"output": f"{folder}/run"}), encoding="utf-8")
        done = subprocess.run(
            [interpreter, __file__, "--child", system, str(given)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{system} failed:\n{done.stderr[-3000:]}")
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result


def child(system: str, file: str) -> None:
    """Run one system and print its figures."""
    task = json.loads(Path(file).read_text(encoding="utf-8"))
    seconds = run_burnish(task) if system == "burnish" else run_trl(task, precompute=system == "trl_precomputed")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": statistics.median(seconds[2:]), "peak_mb": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", metavar="PYTHON", help="interpreter with TRL; without it only Burnish is measured")
    parser.add_argument("--model", default="mid", help="tiny or mid (benchmarks/peers/workloads.py)")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of a step")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=2, metavar=("SYSTEM", "TASK"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    sys.path.insert(0, str(PEERS))
    from models import MODELS, write_model

    with tempfile.TemporaryDirectory() as folder:
        model, pairs = Path(folder) / "model", Path(folder) / "pairs.jsonl"
        write_model(given.model, model)
        write_pairs(pairs, given.pairs * given.steps, MODELS[given.model].vocabulary)
        task = {"model": str(model), "pairs": str(pairs), "batch": given.pairs, "steps": given.steps}
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(given.rounds):
            for system in SYSTEMS if given.trl else SYSTEMS[:1]:
                interpreter = sys.executable if system == "burnish" else given.trl
                found.setdefault(system, []).append(measured(system, task | {"threads": given.threads}, interpreter))
        for system, rounds in found.items():
            figures = {key: statistics.median(one[key] for one in rounds) for key in ("seconds", "peak_mb")}
            print(json.dumps({"system": system, **figures}))
    return None


if __name__ == "__main__":
    main()
