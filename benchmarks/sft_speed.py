"""Steps of supervised fine-tuning next to TRL's SFTTrainer, and packed rows next to padded ones.

    python benchmarks/sft_speed.py --trl PYTHON_WITH_TRL [--model mid] [--steps 8] [--rounds 5]

All systems take the same examples in the same order, the same model and AdamW in float32. Each measurement is a process
of its own; systems take turns, so that a busy machine slows all of them, and ratios are of medians over the rounds.
`burnish` is a run file without further settings, `burnish_padded` the same with packing forbidden, `trl` pads its batch
and `trl_packed` has `packing: true`, which on a CPU lets examples see each other (TRL warns of it).
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
SYSTEMS = ("burnish", "burnish_padded", "trl", "trl_packed")
LENGTHS = (40, 56, 72, 104, 136, 200, 264, 408)
"""Tokens of the examples of every step, in an order of its own: a few long ones among many short, as in chat data."""
PROMPT = 0.25
"""Share of an example's tokens that is its prompt."""
FIRST = 2
"""Steps that are not counted, in which memory is allocated and kernels are chosen."""


def write_examples(file: Path, steps: int, vocabulary: int) -> None:
    """Prompts and completions of random words, one token each; the end of a completion is one more."""
    draw = random.Random(0)

    def words(length: int) -> str:
        return " ".join(f"w{draw.randrange(8, vocabulary)}" for _ in range(length))

    rows = []
    for _ in range(steps):
        for length in draw.sample(LENGTHS, len(LENGTHS)):
            prompt = int(PROMPT * length)
            rows.append({"prompt": words(prompt) + " ", "completion": words(length - prompt - 1)})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run_burnish(task: dict[str, Any], *, packs: bool) -> tuple[list[float], float]:
    """Seconds of each step of `burnish sft`, and the loss of the first."""
    import burnish
    from burnish.forward.packing import Packing

    if not packs:
        Packing.pays = property(lambda _: False)  # type: ignore[assignment]
    run = burnish.sft(
        {
            "output": task["output"],
            "model": {"path": task["model"], "device": "cpu"},
            "data": {"train": task["examples"], "shuffle": False},
            "steps": task["steps"],
            "optimization": {"tokens_per_batch": sum(LENGTHS), "learning_rate": 1e-5, "schedule": "constant"},
            "checkpoint": {"every_steps": None},
            "cluster": {"threads": task["threads"]},
            "logging": {"sinks": []},
        },
        quiet=True,
    )
    examples = {int(count) for count in run.metrics["train/examples"].values}
    assert examples == {len(LENGTHS)}, examples
    seconds = [float(value) for value in run.metrics["time/step_seconds"].values]
    return seconds, float(run.metrics["train/loss"].values[0])


def run_trl(task: dict[str, Any], *, packs: bool) -> tuple[list[float], float]:
    """Seconds of each step of TRL's SFTTrainer, and the loss of the first."""
    import torch
    from datasets import load_dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(task["threads"])
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    class InOrder(SFTTrainer):
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    arguments = SFTConfig(
        output_dir=task["output"],
        # A packed row has as many tokens as a step; one that is cut makes no other step than the others.
        per_device_train_batch_size=1 if packs else len(LENGTHS),
        max_length=sum(LENGTHS) if packs else max(LENGTHS) + 8,
        packing=packs,
        max_steps=task["steps"],
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
    )
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32),
        args=arguments,
        train_dataset=load_dataset("json", data_files=task["examples"], split="train"),
        processing_class=AutoTokenizer.from_pretrained(task["model"]),
        callbacks=[Clock()],
    )
    trainer.train()
    return seconds, float(trainer.state.log_history[0]["loss"])


def measured(system: str, task: dict[str, Any], interpreter: str) -> dict[str, float]:
    """Median seconds of a step, its loss at the first and peak memory in MB, in a process of its own."""
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
    run, packs = (run_burnish, system == "burnish") if system.startswith("burnish") else (run_trl, "packed" in system)
    seconds, loss = run(task, packs=packs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": statistics.median(seconds[FIRST:]), "peak_mb": peak, "first_loss": loss}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", metavar="PYTHON", help="interpreter with TRL; without it only Burnish is measured")
    parser.add_argument("--model", default="mid", help="tiny or mid (benchmarks/peers/workloads.py)")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=2, metavar=("SYSTEM", "TASK"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    sys.path.insert(0, str(PEERS))
    from models import MODELS, write_model

    with tempfile.TemporaryDirectory() as folder:
        model, examples = Path(folder) / "model", Path(folder) / "examples.jsonl"
        write_model(given.model, model)
        write_examples(examples, given.steps, MODELS[given.model].vocabulary)
        task = {"model": str(model), "examples": str(examples), "steps": given.steps, "threads": given.threads}
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(given.rounds):
            for system in SYSTEMS if given.trl else SYSTEMS[:2]:
                interpreter = given.trl if system.startswith("trl") else sys.executable
                found.setdefault(system, []).append(measured(system, task, interpreter))
                print(json.dumps({"measured": system, **found[system][-1]}), flush=True)
    medians = {system: statistics.median(one["seconds"] for one in rounds) for system, rounds in found.items()}
    for system, rounds in found.items():
        row = {"system": system, "seconds": medians[system], "tokens_per_second": sum(LENGTHS) / medians[system]}
        row |= {"times_burnish": medians[system] / medians["burnish"], "rounds": [one["seconds"] for one in rounds]}
        row |= {key: statistics.median(one[key] for one in rounds) for key in ("peak_mb", "first_loss")}
        print(json.dumps(row))
    return None


if __name__ == "__main__":
    main()
