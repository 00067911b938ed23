"""Steps of supervised fine-tuning, DPO, KTO and distillation next to TRL's trainers: seconds of a step, peak memory.

    python benchmarks/trl_trainers.py sft dpo kto distillation --trl PYTHON_WITH_TRL [--model mid] [--rounds 3]

All systems take the same rows in the same order, the same model and AdamW in float32. Each measurement is a process of
its own; systems take turns, so that a busy machine slows all of them, and ratios are of medians over the rounds.
Burnish runs with its defaults; `burnish_padded` (sft) forbids packing. TRL runs

- `trl`: with its defaults,
- `trl_fast`: without gradient checkpointing, with faster float32 products where the processor has them, as Burnish
  uses them, and an allocator that gives no memory back,
- `trl_fast_rows`: the same with the smallest micro-batch,
- `trl_small`: with gradient checkpointing, the smallest micro-batch and Burnish's own settings of the allocator,
- `trl_packed` (sft): as `trl_fast`, with `packing: true`, which on a CPU lets examples see each other (TRL warns).

Reference log-probabilities of DPO and KTO are computed beforehand in all but the first, as in Burnish, and that time is
part of no step. In `distillation` the student samples a response to every prompt and learns the reverse KL from a
teacher of its size (`sampled_share: 1`; TRL's DistillationTrainer with `beta` 1); no response ends by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from settings import ALLOCATORS, AS_IT_COMES, BOUNDED, KEPT

LENGTHS = (40, 56, 72, 104, 136, 200, 264, 408)
"""sft: tokens of the examples of every step, in an order of its own: a few long ones among many short, as in chat
data. A quarter of each is its prompt."""
ROWS, PROMPT, RESPONSE = 4, 256, 64
"""dpo, kto, distillation: rows of a step, tokens of every prompt and of every response."""
FIRST = 2
"""Steps that are not counted, in which memory is allocated and kernels are chosen."""

Row = dict[str, Any]
Words = Callable[[int], str]


def sft_rows(words: Words, draw: random.Random, steps: int) -> Iterator[Row]:
    """Prompts and completions; the end of a completion is one more token."""
    for _ in range(steps):
        for length in draw.sample(LENGTHS, len(LENGTHS)):
            yield {"prompt": words(length // 4) + " ", "completion": words(length - length // 4 - 1)}


def pairs(words: Words, _: random.Random, steps: int) -> Iterator[Row]:
    for _ in range(ROWS * steps):
        yield {"prompt": words(PROMPT) + " ", "chosen": words(RESPONSE - 1), "rejected": words(RESPONSE - 1)}


def rated(words: Words, _: random.Random, steps: int) -> Iterator[Row]:
    """As many responses as `pairs` has, every second one good."""
    for row in range(2 * ROWS * steps):
        yield {"prompt": words(PROMPT) + " ", "completion": words(RESPONSE - 1), "label": row % 2 == 0}


def prompts(words: Words, _: random.Random, steps: int) -> Iterator[Row]:
    """Of a whole row, Burnish takes only the prompt as well."""
    for _ in range(ROWS * steps):
        yield {"prompt": words(PROMPT) + " ", "completion": words(RESPONSE - 1)}


@dataclass(frozen=True)
class Comparison:
    """What is measured under a name.

    rows: writes the data; `batch` of them make a step, of so many tokens. kind, file, counted: of Burnish's run, what
    its file has besides the common fields, and the metric that counts the rows of a step. trainer, arguments, tuned:
    TRL's, with the arguments of every system, and those of all but the first. fewest: rows of TRL's smallest
    micro-batch.
    """

    rows: Callable[[Words, random.Random, int], Iterator[Row]]
    batch: int
    tokens: int
    kind: str
    file: Row
    counted: str
    trainer: str
    arguments: Row
    tuned: Row
    fewest: int = 1


@dataclass(frozen=True)
class Setting:
    """A system of TRL: arguments, environment, PyTorch's precision of float32 products; small: micro-batches of the
    fewest rows."""

    arguments: Row
    allocator: str = AS_IT_COMES
    matmul: str = "highest"
    small: bool = False


COMPARISONS = {
    "sft": Comparison(
        sft_rows,
        len(LENGTHS),
        sum(LENGTHS),
        "sft",
        {"optimization": {"tokens_per_batch": sum(LENGTHS)}},
        "train/examples",
        "SFT",
        {"max_length": max(LENGTHS) + 8},
        {},
    ),
    "dpo": Comparison(
        pairs,
        ROWS,
        2 * ROWS * (PROMPT + RESPONSE),
        "prefer",
        {"losses": "sigmoid", "optimization": {"comparisons_per_batch": ROWS}},
        "train/comparisons",
        "DPO",
        {"max_length": PROMPT + RESPONSE},
        {"precompute_ref_log_probs": True},
    ),
    "kto": Comparison(
        rated,
        2 * ROWS,
        2 * ROWS * (PROMPT + RESPONSE),
        "prefer",
        {"losses": "kto", "optimization": {"comparisons_per_batch": 2 * ROWS}},
        "train/comparisons",
        "KTO",
        {"max_length": PROMPT + RESPONSE},
        {"precompute_ref_log_probs": True},
        fewest=2,  # its estimate of the KL pairs each prompt with another response of the micro-batch
    ),
    "distillation": Comparison(
        prompts,
        ROWS,
        ROWS * (PROMPT + RESPONSE),
        "distill",
        {
            **{"divergence": "reverse_kl", "sampled_share": 1.0, "max_tokens": PROMPT + RESPONSE},
            "optimization": {"tokens_per_batch": ROWS * (PROMPT + RESPONSE)},
        },
        "train/examples",
        "Distillation",
        {"max_completion_length": RESPONSE, "beta": 1.0, "top_k": 0},
        {},
    ),
}
TRL = {
    "trl": Setting({}),
    "trl_fast": Setting({"gradient_checkpointing": False}, KEPT, "medium"),
    "trl_fast_rows": Setting({"gradient_checkpointing": False}, KEPT, "medium", small=True),
    "trl_small": Setting({}, BOUNDED, "medium", small=True),
}
# A packed row has as many tokens as a step; one that is cut makes no other step than the others.
PACKED = {"packing": True, "max_length": sum(LENGTHS), "per_device_train_batch_size": 1}
ONLY_SFT = {"trl_packed": Setting({"gradient_checkpointing": False, **PACKED}, KEPT, "medium")}


def systems(comparison: Comparison) -> dict[str, Setting | None]:
    """Measured systems, with the setting of each of TRL's."""
    burnish: dict[str, Setting | None] = {"burnish": None}
    if comparison.kind == "sft":
        return {**burnish, "burnish_padded": None, **TRL, **ONLY_SFT}
    return {**burnish, **TRL}


def run_burnish(task: Row, comparison: Comparison, *, packs: bool) -> tuple[list[float], float]:
    """Seconds of each step, and the loss of the first."""
    import burnish
    from burnish.forward.packing import Packing

    if not packs:
        Packing.pays = property(lambda _: False)  # type: ignore[assignment]
    optimization = {"learning_rate": 1e-6, "schedule": "constant", **comparison.file["optimization"]}
    run = getattr(burnish, comparison.kind)(
        {
            "output": task["output"],
            "model": {"path": task["model"], "device": "cpu"},
            "data": {"train": task["rows"], "shuffle": False},
            "steps": task["steps"],
            "checkpoint": {"every_steps": None},
            "cluster": {"threads": task["threads"]},
            "logging": {"sinks": []},
            **comparison.file,
            "optimization": optimization,
            **({"teacher": task["teacher"]} if comparison.kind == "distill" else {}),
        },
        quiet=True,
    )
    found = {int(count) for count in run.metrics[comparison.counted].values}
    assert found == {comparison.batch}, found
    seconds = [float(value) for value in run.metrics["time/step_seconds"].values]
    return seconds, float(run.metrics["train/loss"].values[0])


def run_trl(task: Row, comparison: Comparison, setting: Setting) -> tuple[list[float], float]:
    """Seconds of each step, and the loss of the first."""
    import torch
    import trl
    from datasets import load_dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    torch.set_num_threads(task["threads"])
    torch.set_float32_matmul_precision(setting.matmul)
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    class InOrder(getattr(trl, f"{comparison.trainer}Trainer")):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    def model(folder: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    rows = comparison.fewest if setting.small else comparison.batch
    common = {
        "output_dir": task["output"],
        "max_steps": task["steps"],
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": comparison.batch // rows,
        "bf16": False,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
    }
    tuned = {} if setting is TRL["trl"] else comparison.tuned
    own = {**common, **comparison.arguments, **tuned, **setting.arguments}
    data = load_dataset("json", data_files=task["rows"], split="train")
    trainer = InOrder(
        model=model(task["model"]),
        args=getattr(trl, f"{comparison.trainer}Config")(**own),
        train_dataset=data.remove_columns("completion") if comparison.kind == "distill" else data,
        processing_class=AutoTokenizer.from_pretrained(task["model"]),
        callbacks=[Clock()],
        **({"teacher_model": model(task["teacher"])} if comparison.kind == "distill" else {}),
    )
    trainer.train()
    return seconds, float(trainer.state.log_history[0]["loss"])


def measured(system: str, setting: Setting | None, task: Row, interpreter: str) -> dict[str, float]:
    """Median seconds of a step, its loss at the first and peak memory in MB, in a process of its own."""
    environment = {**os.environ, **({} if setting is None else ALLOCATORS[setting.allocator])}
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "task.json"
        given.write_text(json.dumps(task | {"output": f"{folder}/run"}), encoding="utf-8")
        command = [interpreter, __file__, task["comparison"], "--child", system, str(given)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"{system} failed:\n{done.stderr[-3000:]}")
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result


def child(system: str, file: str) -> None:
    """Run one system and print its figures."""
    task = json.loads(Path(file).read_text(encoding="utf-8"))
    comparison = COMPARISONS[task["comparison"]]
    setting = systems(comparison)[system]
    if setting is None:
        seconds, loss = run_burnish(task, comparison, packs=system == "burnish")
    else:
        seconds, loss = run_trl(task, comparison, setting)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": statistics.median(seconds[FIRST:]), "peak_mb": peak, "first_loss": loss}))


def write_task(folder: Path, name: str, model: str, steps: int, threads: int) -> Row:
    """Write the models and the rows that all systems get."""
    from models import MODELS, write_model

    draw = random.Random(0)

    def words(length: int) -> str:
        return " ".join(f"w{draw.randrange(8, MODELS[model].vocabulary)}" for _ in range(length))

    folder.mkdir()
    write_model(model, folder / "model")
    if COMPARISONS[name].kind == "distill":
        write_model(model, folder / "teacher", seed=1)
    rows = COMPARISONS[name].rows(words, draw, steps)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    places = {"model": str(folder / "model"), "teacher": str(folder / "teacher"), "rows": str(folder / "rows.jsonl")}
    return {**places, "comparison": name, "steps": steps, "threads": threads}


def summary(name: str, found: dict[str, list[dict[str, float]]]) -> Iterator[Row]:
    """The medians of each system, and the time relative to Burnish's."""
    medians = {system: statistics.median(one["seconds"] for one in rounds) for system, rounds in found.items()}
    for system, rounds in found.items():
        tokens_per_second = COMPARISONS[name].tokens / medians[system]
        row: Row = {"system": system, "seconds": medians[system], "tokens_per_second": tokens_per_second}
        row |= {"times_burnish": medians[system] / medians["burnish"], "rounds": [one["seconds"] for one in rounds]}
        yield row | {key: statistics.median(one[key] for one in rounds) for key in ("peak_mb", "first_loss")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "comparisons", nargs="+", choices=COMPARISONS, metavar="COMPARISON", help=", ".join(COMPARISONS)
    )
    parser.add_argument("--trl", metavar="PYTHON", help="interpreter with TRL; without it only Burnish is measured")
    parser.add_argument("--model", default="mid", help="tiny or mid (benchmarks/peers/workloads.py)")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=2, metavar=("SYSTEM", "TASK"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in given.comparisons}
    with tempfile.TemporaryDirectory() as folder:
        tasks = {
            name: write_task(Path(folder) / name, name, given.model, given.steps, given.threads)
            for name in given.comparisons
        }
        for _ in range(given.rounds):
            for name, task in tasks.items():
                for system, setting in systems(COMPARISONS[name]).items():
                    interpreter = sys.executable if setting is None else given.trl
                    if interpreter is not None:
                        figures = measured(system, setting, task, interpreter)
                        found[name].setdefault(system, []).append(figures)
                        print(json.dumps({"comparison": name, "system": system, **figures}), flush=True)
    for name in found:
        for row in summary(name, found[name]):
            print(json.dumps({"medians": name, **row}))
    return None


if __name__ == "__main__":
    main()
