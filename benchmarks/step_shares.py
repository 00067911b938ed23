"""Where the time of a step goes: phases, kinds of operation, and what the processor could not do faster.

    python benchmarks/step_shares.py                                     # W1, W2, W3 and W7: a quarter of an hour
    python benchmarks/step_shares.py --workloads W1 --precisions float32

Steps of `benchmarks/peers` as Burnish runs them, the last of them under PyTorch's profiler. Writes OUTPUT.md and
OUTPUT.json. The profiler costs some per cent itself.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from floor import step_macs
from lines import write_json
from models import write_model, write_prompts
from parent import run_script
from report import processor
from workloads import WORKLOADS, Workload, check_same_work

PEERS = Path(__file__).parent / "peers"
COLUMNS = ("products", "attention", "kernels", "softmax", "copies", "optimizer", "other")
EXPLANATION = """\
Seconds. `floor`: the phase's unavoidable multiply-adds at the best matrix rate measured here. `reading`: the time to
read the weights once for each token of the longest response at the measured memory rate; sampling cannot be faster,
however few rows are left. `products` to `other`: operations by kind, each without the operations that it calls.
`kernels` are norms, rotations and gates in C (attention kernels are in `attention`); `copies` are conversions,
gathering and filling; `other` is every other operation; `between` is time in no operation, which is Python's."""


def main() -> None:
    options = parse()
    rates = run_script(PEERS / "run_rates.py", {"threads": options.threads}, environment={})
    tables = []
    with tempfile.TemporaryDirectory(prefix="shares-") as folder:
        for name in options.workloads:
            workload = WORKLOADS[name]
            for precision in options.precisions if workload.model != "tiny" else ["float32"]:
                print(f"{name} {precision}", file=sys.stderr, flush=True)
                tables.append(measure(workload, precision, Path(folder), rates, options.threads))
    report = {
        "command": " ".join(["python", "benchmarks/step_shares.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "threads": options.threads,
        "load_after": os.getloadavg()[0],
        "rates": rates,
        "tables": tables,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output.with_suffix(".json"), report)
    options.output.with_suffix(".md").write_text(to_markdown(report), encoding="utf-8")
    print(to_markdown(report))


def measure(workload: Workload, precision: str, folder: Path, rates: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """One workload at one precision: by phase the seconds of each column of the page."""
    model = folder / f"{workload.model}-{'geometric' if workload.geometric else 'exact'}"
    if not model.exists():
        write_model(workload.model, workload.geometric, model)
    prompts = folder / f"{workload.name}.jsonl"
    warmup = 1
    write_prompts(workload, workload.prompts * (warmup + 1), [], prompts)
    task = {
        "workload": workload.name,
        "model": str(model),
        "prompts": str(prompts),
        "output": tempfile.mkdtemp(dir=folder),
        "precision": precision,
        "fast_matmul": False,
        "threads": threads,
        "warmup": warmup,
        "steps": 1,
        "naive": False,
    }
    result = run_script(PEERS / "run_shares.py", task, environment={})
    check_same_work("burnish", workload, result, 1)
    names = ["float32", "float32_fast"] if precision == "float32" and rates["fast_is_accurate"] else [precision]
    rate = max(rates["macs_per_second"][name] for name in names)
    macs = step_macs(workload, result["lengths"][0])
    longest = max(response for _, response in result["lengths"][0])
    reading = longest * result["weight_bytes"] / result["read_bytes_per_second"]
    return {
        "workload": workload.name,
        "title": workload.title,
        "precision": precision,
        "read_bytes_per_second": result["read_bytes_per_second"],
        "phases": {
            phase: seconds
            | {"floor": macs.get(phase, 0.0) / rate, "reading": reading if phase == "generate" else 0.0}
            | {"between": seconds["all"] - sum(seconds.get(name, 0.0) for name in COLUMNS)}
            for phase, seconds in result["shares"].items()
            if phase in macs
        },
    }


def to_markdown(report: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in report["rates"]["macs_per_second"].items())
    about = (
        f"`{report['command']}` on {report['date']}: {report['processor']}, {report['threads']} threads, load average "
        f"{report['load_after']:.1f} after. Matrix rate in 10^9 multiply-adds per second: {rates}."
    )
    lines = ["# Where a step's time goes", "", *textwrap.wrap(about, 120), "", *textwrap.wrap(EXPLANATION, 120)]
    for table in report["tables"]:
        lines += ["", f"## {table['workload']}, {table['precision']}: {table['title']}", ""]
        lines += [f"Memory is read at {table['read_bytes_per_second'] / 1e9:.0f} GB/s.", ""]
        lines += rows(table["phases"])
    return "\n".join(lines) + "\n"


def rows(phases: Mapping[str, Mapping[str, float]]) -> Sequence[str]:
    head = ["phase", "seconds", "floor", "reading", *COLUMNS, "between"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for phase, seconds in phases.items():
        numbers = [seconds["all"], seconds["floor"], seconds["reading"]]
        numbers += [seconds.get(name, 0.0) for name in (*COLUMNS, "between")]
        lines.append(f"| {phase} | " + " | ".join(f"{number:.2f}" for number in numbers) + " |")
    return lines


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/step_shares.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    without_questions = [name for name, workload in WORKLOADS.items() if workload.prompt_tokens is not None]
    parser.add_argument("--workloads", nargs="+", choices=without_questions, default=["W1", "W2", "W3", "W7"])
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/shares"), help="without the ending")
    return parser.parse_args()


if __name__ == "__main__":
    main()
