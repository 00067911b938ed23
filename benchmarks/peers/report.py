"""From the peers' results to rows, and from rows to Markdown."""

from __future__ import annotations

import datetime
import os
import statistics
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from floor import step_macs
from lines import write_json
from workloads import WORKLOADS, Workload, response_moments

PHASES = ("generate", "logprobs", "values", "update", "other")
GB = 1e9
EXPLANATION = """\
Seconds are medians over the steps after the warm-up. `cpu` is the training process's processor time per step, over all
threads; other work on the machine hardly changes it. `over floor` is the time divided by that of the unavoidable
multiply-adds at the best matrix rate of the precision. `ratio` is Burnish's tokens per second `as it comes`, with
default settings, divided by the row's: above 1 Burnish is faster. `cpu ratio` is the same per processor second of
whole steps. Rows that only sample are compared with Burnish's sampling. Peak memory is the training process's, without
Burnish's two reward workers. Settings: `allocator` lets glibc keep freed memory; `fast float32` uses the faster matrix
product if it is as accurate (vLLM: `allocator` is also compiled instead of eager). Every row has the same number of
prompts, responses and optimizer steps, and response lengths with the same mean within four standard errors. TRL's
micro-batch was searched only among the sizes of `--trl-microbatches` in the commands above; with a single size, a
faster one may exist. TRL pads all responses of a step to the longest one, and without Triton, as on a CPU, its head
scores every position, including the prompts. W8 and W9 are conversations: both sides call the same function after
every turn but the last, and log every step. All tokens of a response count, answers included. The model's weights
alone make turns and calls as they are, nothing is forced, and every response has the same prompt tokens, sampled
tokens and tokens in all on both sides. Burnish's tools run in processes of their own, which its peak memory leaves
out."""


def build_row(label: Mapping[str, str], workload: Workload, result: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """What one peer took for one workload: medians over its steps. `label` has workload, precision, peer, settings;
    `rate` is the best matrix rate at this precision, in multiply-adds per second."""
    seconds = result["seconds"]
    tokens = [sum(response for _, response in step) for step in result["lengths"]]
    phases = {name: statistics.median(_phase(step, name) for step in seconds) for name in PHASES}
    macs = [step_macs(workload, step) for step in result["lengths"]]
    samples_only = result["optimizer_steps"] is None
    floors = [(m["generate"] if samples_only else sum(m.values())) / rate for m in macs]
    step_seconds = [step["step"] for step in seconds]
    sampled = result["sampled"] if workload.turns is not None else None
    return {
        **label,
        "samples_only": samples_only,
        "step_seconds": statistics.median(step_seconds),
        "cpu_seconds": statistics.median(step["cpu"] for step in seconds),
        "all_step_seconds": step_seconds,
        "phase_seconds": phases,
        "tokens_per_second": statistics.median(n / s for n, s in zip(tokens, step_seconds, strict=True)),
        "tokens_per_cpu_second": statistics.median(n / step["cpu"] for n, step in zip(tokens, seconds, strict=True)),
        "generated_tokens_per_second": statistics.median(
            n / step["generate"] for n, step in zip(tokens, seconds, strict=True)
        ),
        "floor_seconds": statistics.mean(floors),
        "over_floor": statistics.median(s / f for s, f in zip(step_seconds, floors, strict=True)),
        "peak_bytes": result["peak_bytes"],
        "responses": sum(map(len, result["lengths"])),
        "response_tokens_mean": sum(tokens) / sum(map(len, result["lengths"])),
        "sampled_tokens_mean": None if sampled is None else statistics.mean(statistics.mean(step) for step in sampled),
        "optimizer_steps": result["optimizer_steps"],
        "chosen": result["settings"],
        "versions": result["versions"],
    }


def _phase(step: Mapping[str, float], name: str) -> float:
    if name == "other":
        return step["step"] - sum(step.get(known, 0.0) for known in PHASES if known != "other")
    return step.get(name, 0.0)


def add_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """`ratio`: tokens per second of Burnish as it comes over this row's; above 1 Burnish is faster. Rows that only
    sample are compared with Burnish's sampling phase."""
    own = {
        (row["workload"], row["precision"]): row
        for row in rows
        if row["peer"] == "Burnish" and row["settings"] == "as it comes"
    }
    for row in rows:
        burnish = own.get((row["workload"], row["precision"]))
        key = "generated_tokens_per_second" if row["samples_only"] else "tokens_per_second"
        row["ratio"] = None if burnish is None else burnish[key] / row[key]
        whole = burnish is not None and not row["samples_only"]
        row["cpu_ratio"] = burnish["tokens_per_cpu_second"] / row["tokens_per_cpu_second"] if whole else None


def to_markdown(report: Mapping[str, Any]) -> str:
    lines = ["# Burnish and its peers on one machine", ""]
    for run in report["runs"]:
        lines += _origin(run["about"], run["rates"])
    lines += ["", f"Versions: {_versions(report['rows'])}", "", *textwrap.wrap(EXPLANATION, 119)]
    lines += ["", "## The fastest rows measured", "", *_best(report["rows"])]
    for name in dict.fromkeys(row["workload"] for row in report["rows"]):
        mean, _ = response_moments(WORKLOADS[name])
        turns = WORKLOADS[name].turns
        sampled = "" if turns is None else f" {turns.sampled} of them are sampled and trained on, the rest is answers."
        lines += ["", f"## {name}: {WORKLOADS[name].title}", "", f"Expected response tokens: {mean:.1f}.{sampled}", ""]
        lines += _table([row for row in report["rows"] if row["workload"] == name])
    return "\n".join(lines) + "\n"


def _origin(about: Mapping[str, Any], rates: Mapping[str, Any]) -> list[str]:
    """Where the rows of one run come from."""
    measured = ", ".join(
        f"{name} {rate / 1e9:.0f} ({rates['rms_error'][name]:.1e})" for name, rate in rates["macs_per_second"].items()
    )
    as_accurate = "as" if rates["fast_is_accurate"] else "not as"
    words = [
        f"- `{about['command']}` on {about['date']}: {about['processor']}, {about['threads']} threads, load average",
        f"{about['load_before']:.1f} before and {about['load_after']:.1f} after.",
        f"Matrix rate in 10^9 multiply-adds per second (relative root-mean-square error): {measured}; the faster",
        f"float32 is {as_accurate} accurate here.",
        about["note"],
        *about["left_out"],
    ]
    return textwrap.wrap(" ".join(filter(None, words)), 119, subsequent_indent="  ", break_on_hyphens=False)


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["precision", "peer", "settings", "s/step", "cpu", *PHASES, "tokens/s", "sampled/s", "peak GB"]
    head += ["over floor", "ratio", "cpu ratio", "responses", "tokens each", "updates"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 3 + "---:|" * (len(head) - 3)]
    for row in rows:
        cells = [row["precision"], row["peer"], row["settings"], f"{row['step_seconds']:.2f}"]
        cells += [f"{row['cpu_seconds']:.2f}"]
        cells += [f"{row['phase_seconds'][name]:.2f}" for name in PHASES]
        cells += [f"{row['tokens_per_second']:,.0f}", f"{row['generated_tokens_per_second']:,.0f}"]
        cells += [f"{row['peak_bytes'] / GB:.2f}", f"{row['over_floor']:.2f}"]
        cells += ["-" if row[name] is None else f"{row[name]:.2f}" for name in ("ratio", "cpu_ratio")]
        cells += [str(row["responses"])]
        written = row.get("sampled_tokens_mean")  # rows of older runs have none
        each = f"{row['response_tokens_mean']:.1f}" + ("" if written is None else f" ({written:.1f} sampled)")
        cells += [each, "-" if row["samples_only"] else str(row["optimizer_steps"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _best(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each peer's fastest row here against Burnish's, by tokens per second; not the best that any of them can do."""
    lines = ["| workload | precision | peer | settings | tokens/s | Burnish's | Burnish is faster by |"]
    lines.append("|" + "---|" * 4 + "---:|" * 3)
    best: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in rows:
        key = (row["workload"], row["precision"], row["peer"])
        if key not in best or row["tokens_per_second"] > best[key]["tokens_per_second"]:
            best[key] = row
    for (workload, precision, peer), row in best.items():
        if peer != "Burnish":
            name = "generated_tokens_per_second" if row["samples_only"] else "tokens_per_second"
            own = max(
                r[name] for r in rows if (r["workload"], r["precision"], r["peer"]) == (workload, precision, "Burnish")
            )
            cells = [workload, precision, peer, row["settings"], f"{row[name]:,.0f}", f"{own:,.0f}"]
            lines.append("| " + " | ".join([*cells, f"{own / row[name]:.2f}"]) + " |")
    return lines


def _versions(rows: Sequence[Mapping[str, Any]]) -> str:
    named = (f"{row['peer']} ({', '.join(f'{k} {v}' for k, v in row['versions'].items())})" for row in rows)
    return "; ".join(dict.fromkeys(named))


def processor() -> str:
    """Its name (Linux)."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def publish(
    program: str,
    output: Path,
    rows: Sequence[Mapping[str, Any]],
    to_markdown: Callable[[dict[str, Any]], str],
    **facts: Any,
) -> None:
    """Write OUTPUT.json, and OUTPUT.md made from it by `to_markdown`, and print that: the rows, further facts, and what
    was run, when and on what."""
    report = {
        "command": " ".join(["python", f"benchmarks/{program}.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_after": round(os.getloadavg()[0], 1),
        **facts,
        "rows": list(rows),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output.with_suffix(".json"), report)
    output.with_suffix(".md").write_text(to_markdown(report), encoding="utf-8")
    print(to_markdown(report))
