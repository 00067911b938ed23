"""Where the time of a step goes: phases, kinds of operation, and what the processor could not do faster.

    python benchmarks/step_shares.py                                     # ten minutes or so
    python benchmarks/step_shares.py --workloads W1 --precisions float32
    python benchmarks/step_shares.py --switch-off avx512 --output benchmarks/results/shares_avx2
    python benchmarks/step_shares.py --quick       # every part of this program, in a minute or two: no measurement

Steps of `benchmarks/peers` as Burnish runs them: some by the clock, then one under PyTorch's profiler, which costs some
per cent itself. Writes OUTPUT.md and OUTPUT.json.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from bench import cells
from floor import step_macs
from lines import write_json
from models import write_model, write_prompts
from origin import CHANGED, commit, machine
from parent import run_script
from rates import kinds_at, measure_rates
from settings import AS_IT_COMES, SWITCHED_OFF, environment
from workloads import WORKLOADS, Workload, check_same_work, encode, planned_lengths, quick

PEERS = Path(__file__).parent / "peers"
RESULTS, QUICK_RESULTS = Path("benchmarks/results/shares"), Path("build/shares-quick")
COLUMNS = ("products", "attention", "kernels", "softmax", "copies", "optimizer", "other")
UNWATCHED = 3
"""Steps by the clock."""
EXPLANATION = """\
`step` is the median of three steps without the profiler. The other tables are of one step with it. Seconds. `floor`:
the phase's unavoidable multiply-adds at the best matrix rate. Where the rate of products stands beside that of memory,
it was measured before and after every step, because some machines are faster at one time than at another; elsewhere
once. `reading`: the time to read the weights once for each token of the longest response at the measured memory rate;
sampling is hardly faster, however few rows are left. `products` to `other`: operations by kind, each without the
operations that it calls. `kernels` are norms, rotations and gates in C (attention kernels are in `attention`); `copies`
are conversions, gathering and filling; `other` is every other operation; `between` is time in no operation, which is
Python's."""


def main() -> None:
    options = parse()
    switched_off = sorted(set(options.switch_off))
    variables = environment(AS_IT_COMES, tuple(switched_off))
    origin = {
        "commit": commit(),
        "machine": machine(),
        "threads": options.threads,
        "switched_off": switched_off,
    }
    if not options.quick and origin["commit"].endswith(CHANGED):
        raise SystemExit("what is measured differs from its commit: commit it, so that the figures stand for something")
    rates, tables = measure_rates(options.threads, variables, quick=options.quick), []
    with tempfile.TemporaryDirectory(prefix="shares-") as folder:
        chosen = [quick(WORKLOADS[name]) if options.quick else WORKLOADS[name] for name in options.workloads]
        for workload, precision in cells(chosen, options.precisions, quick=options.quick):
            print(f"{workload.name} {precision}", file=sys.stderr, flush=True)
            tables.append(measure(workload, precision, Path(folder), rates, options, variables))
    report = {
        "command": " ".join(["python", "benchmarks/step_shares.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        **origin,
        "load_after": os.getloadavg()[0],
        "rates": rates,
        "tables": tables,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output.with_suffix(".json"), report)
    options.output.with_suffix(".md").write_text(to_markdown(report), encoding="utf-8")
    print(to_markdown(report))


def measure(
    workload: Workload,
    precision: str,
    folder: Path,
    rates: Mapping[str, Any],
    options: argparse.Namespace,
    variables: Mapping[str, str],
) -> dict[str, Any]:
    """One workload at one precision: seconds of a step, and by phase of each column of the page. `variables` are
    added to the environment."""
    model = folder / workload.model
    if not model.exists():
        write_model(workload.model, model)
    prompts = folder / f"{workload.name}.jsonl"
    warmup = 1
    before = warmup + UNWATCHED
    write_prompts(workload, workload.prompts * (before + 1), [], prompts)
    task = {
        "workload": encode(workload),
        "model": str(model),
        "prompts": str(prompts),
        "output": tempfile.mkdtemp(dir=folder),
        "precision": precision,
        "kinds": kinds_at(rates, precision),
        "threads": options.threads,
        "quick": options.quick,
        "warmup": warmup,
        "unwatched": UNWATCHED,
        "steps": 1,
        "naive": False,
    }
    result = run_script(PEERS / "run_shares.py", task, environment=variables)
    check_same_work("burnish", workload, result, planned_lengths(workload, prompts, range(before, before + 1)))
    macs = step_macs(workload, result["lengths"][0])
    *by_step, rate = result["macs_per_second"]  # the last one is of the step with the profiler
    longest = max(response for _, response in result["lengths"][0])
    reading = longest * result["weight_bytes"] / result["read_bytes_per_second"]
    return {
        "workload": workload.name,
        "title": workload.title,
        "precision": precision,
        "step": statistics.median(result["step_seconds"]),
        "floor": statistics.median(sum(macs.values()) / around for around in by_step),
        "over_floor": statistics.median(
            seconds * around / sum(macs.values())
            for seconds, around in zip(result["step_seconds"], by_step, strict=True)
        ),
        "macs_per_second": [*by_step, rate],
        "sustained_macs_per_second": result["sustained_macs_per_second"],
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
        f"`{report['command']}` on {report['date']}: commit {report['commit']}, {report['machine']}, "
        f"{report['threads']} threads, load average {report['load_after']:.1f} after. Matrix rate in 10^9 "
        f"multiply-adds per second: {rates}."
    )
    if report["switched_off"]:
        about += f" Switched off: {', '.join(report['switched_off'])} (settings.py says how)."
    lines = ["# Where a step's time goes", "", *textwrap.wrap(about, 120), "", *textwrap.wrap(EXPLANATION, 120), ""]
    lines += ["| workload | precision | step | floor | step / floor |", "|---|---|---:|---:|---:|"]
    for table in report["tables"]:
        name, step, floor = f"{table['workload']} | {table['precision']}", table["step"], table["floor"]
        over = table.get("over_floor", step / floor)  # pages of before had one rate for all steps
        lines.append(f"| {name} | {step:.2f} | {floor:.2f} | {over:.2f} |")
    for table in report["tables"]:
        lines += ["", f"## {table['workload']}, {table['precision']}: {table['title']}", ""]
        lines += [f"Memory is read at {table['read_bytes_per_second'] / 1e9:.0f} GB/s{_products(table)}.", ""]
        lines += rows(table["phases"])
    return "\n".join(lines) + "\n"


def _products(table: Mapping[str, Any]) -> str:
    rates = [rate / 1e9 for rate in table.get("macs_per_second", ())]
    sustained = [rate / 1e9 for rate in table.get("sustained_macs_per_second", ())]
    if not rates:
        return ""
    text = f", products are {min(rates):.0f} to {max(rates):.0f} x 10^9 multiply-adds per second"
    if sustained:
        text += f", and {min(sustained):.0f} to {max(sustained):.0f} sustained over three seconds"
    return text


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
    alone = [name for name, workload in WORKLOADS.items() if workload.prompt_tokens and not workload.turns]
    parser.add_argument("--workloads", nargs="+", choices=alone, default=["W1", "W2", "W3", "W5", "W10"])
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, help="default: all cores; quick: 1")
    parser.add_argument("--switch-off", nargs="+", choices=SWITCHED_OFF, default=[], help="measure without these")
    parser.add_argument("--quick", action="store_true", help="run every part once, on next to no work; no measurement")
    parser.add_argument("--output", type=Path, help=f"without the ending (default {RESULTS}, quick {QUICK_RESULTS})")
    options = parser.parse_args()
    options.threads = options.threads or (1 if options.quick else os.cpu_count())
    options.output = options.output or (QUICK_RESULTS if options.quick else RESULTS)
    if options.quick and options.output.resolve().parent == RESULTS.resolve().parent:
        parser.error(f"--quick measures nothing, so it writes nothing into {RESULTS.parent}")
    return options


if __name__ == "__main__":
    main()
