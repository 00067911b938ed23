"""Where the memory of a step goes, and what settings of glibc's allocator do to it and to the step's seconds.

    python benchmarks/heap.py                                  # W1: a quarter of an hour
    python benchmarks/heap.py --workloads W10 --rounds 1       # half an hour
    python benchmarks/heap.py --quick                          # every part once, on next to no work: no measurement

Steps of `benchmarks/peers` as Burnish runs them. Every setting gets a process of its own in each round, so that an hour
in which the machine is slower falls on all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from models import write_model, write_prompts
from parent import run_script
from report import GB, publish
from settings import ALLOCATORS, AS_IT_COMES, BOUNDED, KEPT
from workloads import MODELS, WORKLOADS, Workload, check_same_work, encode, planned_lengths, quick

PEERS = Path(__file__).parent / "peers"
SETTINGS: dict[str, dict[str, str]] = {
    AS_IT_COMES: ALLOCATORS[AS_IT_COMES],
    KEPT: ALLOCATORS[KEPT],
    "pages of 4 KiB": {"THP_MEM_ALLOC_ENABLE": "0"},
    "pages of 2 MiB": {"THP_MEM_ALLOC_ENABLE": "1"},
    "no small blocks kept": {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"}
    | ALLOCATORS[BOUNDED],
}
"""Variables of the process. As it comes, Burnish sets those of `bounded`, and pages of 2 MiB for weights of 512 MiB and
more; beside settings of the user's, such as GLIBC_TUNABLES, it sets none."""
WARMUP = 1
BYTES_A_WEIGHT = 16
"""Weight, gradient and Adam's two moments, in float32."""


def main() -> None:
    options = parse()
    rows = []
    with tempfile.TemporaryDirectory(prefix="heap-") as folder:
        for name in options.workloads:
            workload = quick(WORKLOADS[name]) if options.quick else WORKLOADS[name]
            rows += measured(workload, Path(folder), options)
    publish("heap", options.output, rows, to_markdown, threads=options.threads, rounds=options.rounds)


def measured(workload: Workload, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each setting: seconds of all steps, and of each process the most bytes that it took."""
    model, prompts = folder / workload.model, folder / f"{workload.name}.jsonl"
    write_model(workload.model, model)
    write_prompts(workload, workload.prompts * (WARMUP + options.steps), [], prompts)
    rows = [
        {"workload": workload.name, "setting": setting, "weights_bytes": BYTES_A_WEIGHT * parameters(workload)}
        | {name: [] for name in ("seconds", "peak_bytes", "workers_bytes", "held_bytes", "used_bytes")}
        for setting in options.settings
    ]
    for round_number in range(options.rounds):
        for row in rows:
            print(f"{workload.name} {row['setting']}, round {round_number + 1}", file=sys.stderr, flush=True)
            result = run_steps(workload, model, prompts, SETTINGS[row["setting"]], options)
            row["seconds"] += [round(step["step"], 3) for step in result["seconds"]]
            for name in ("peak_bytes", "workers_bytes", "held_bytes", "used_bytes"):
                row[name].append(result[name])
    return rows


def run_steps(
    workload: Workload, model: Path, prompts: Path, variables: Mapping[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as output:
        task = {
            "workload": encode(workload),
            "model": str(model),
            "prompts": str(prompts),
            "output": output,
            "precision": "float32",
            "threads": options.threads,
            "warmup": WARMUP,
            "steps": options.steps,
            "naive": False,
        }
        result = run_script(PEERS / "run_heap.py", task, environment=variables)
    plan = planned_lengths(workload, prompts, range(WARMUP, WARMUP + options.steps))
    check_same_work("burnish", workload, result, plan)
    return result


def parameters(workload: Workload) -> int:
    return MODELS[workload.model].parameters


def to_markdown(report: Mapping[str, Any]) -> str:
    head = ["workload", "setting", "s a step", "fastest to slowest", "peak", "weights, gradients, Adam"]
    head += ["used besides", "holes", "outside of the heap", "workers"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    lines += [_line(row) for row in report["rows"]]
    return f"""\
# Where the memory of a step goes

`{report["command"]}` on {report["date"]}: {report["processor"]}, {report["cores"]} cores, {report["threads"]} threads,
load average {report["load_after"]} after. float32 and Burnish's defaults. Each setting had {report["rounds"]}
processes, and the settings took turns.

Seconds are the median of all measured steps; GB are medians over the processes. `peak` is of the whole command with a
saved checkpoint and its workers. `weights, gradients, Adam` are 16 bytes for each weight. `used besides` is what
callers of malloc had beyond these at most: activations, logits, larger objects of Python. `holes` is what malloc held
beyond that: freed memory between blocks in use, in pieces too small for the next block. `outside of the heap` is the
rest of the process: code of PyTorch and other libraries, small objects of Python, stacks. `no small blocks kept` is
`{SETTINGS["no small blocks kept"]["GLIBC_TUNABLES"]}` in GLIBC_TUNABLES;
`heap.py` has all settings.

{chr(10).join(lines)}
"""


def _line(row: Mapping[str, Any]) -> str:
    peak, workers, held, used = (
        median_gb(row[name]) for name in ("peak_bytes", "workers_bytes", "held_bytes", "used_bytes")
    )
    weights = row["weights_bytes"] / GB
    parts = [peak, weights, used - weights, held - used, peak - workers - held, workers]
    spread = f"{min(row['seconds']):.2f} to {max(row['seconds']):.2f}"
    words = [row["workload"], row["setting"], f"{statistics.median(row['seconds']):.2f}", spread]
    return "| " + " | ".join([*words, *(f"{part:.2f}" for part in parts)]) + " |"


def median_gb(found: Sequence[int]) -> float:
    return statistics.median(found) / GB


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/heap.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    alone = [name for name, workload in WORKLOADS.items() if workload.prompt_tokens and not workload.turns]
    parser.add_argument("--workloads", nargs="+", choices=alone, default=["W1"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=3, help="processes for each setting (default 3)")
    parser.add_argument("--steps", type=int, default=4, help="measured in each process (default 4)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="one step of next to no work; no measurement")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/heap"), help="without the ending")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.threads = 1, 1, 1
    return options


if __name__ == "__main__":
    main()
