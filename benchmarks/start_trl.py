"""TRL's `GRPOTrainer` from the start of the interpreter to its first pass that samples (`benchmarks/start.py --trl`).

    python benchmarks/start_trl.py TIMES.json MODEL PROMPTS.jsonl float32

The work is that of `RUN_FILE` in start.py: groups of 8 for 8 prompts, 64 new tokens at most, a KL to the reference in
the loss.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

STAT = Path("/proc/self/stat")


def lengths(completions: list[str], **_: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def main(times: str, model: str, prompts: str, precision: str) -> None:
    rows = [json.loads(line) for line in Path(prompts).read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory(prefix="trl-start-") as output:
        options: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 8, "max_steps": 1}
        options |= {"num_generations": 8, "max_completion_length": 64, "beta": 0.04, "learning_rate": 1e-6}
        options |= {"report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": precision == "bfloat16"}
        settings = GRPOConfig(output_dir=output, model_init_kwargs={"dtype": precision}, **options)
        trainer = GRPOTrainer(model=model, reward_funcs=lengths, args=settings, train_dataset=Dataset.from_list(rows))

        def end(*_: object) -> None:
            began = float(STAT.read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
            spent = [time.clock_gettime(time.CLOCK_BOOTTIME) - began, sum(os.times()[:2])]
            Path(times).write_text(json.dumps({"whole": spent, "phases": {}}), encoding="utf-8")
            os._exit(0)  # the rest is not asked for

        trainer.model.register_forward_hook(end)
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
