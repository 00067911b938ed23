"""From the peers' results to rows, and from rows to the page."""

from __future__ import annotations

import datetime
import os
import shlex
import statistics
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from floor import step_macs
from lines import write_json
from origin import origin_of, processor
from rates import best_of, rate_at
from settings import AS_IT_COMES, BOUNDED, SWITCHED_OFF
from workloads import Workload

PHASES = ("generate", "logprobs", "values", "update", "other")
GB = 1e9
HEAD = "TRL, head on responses only"
"""TRL with a patch that lets its head score no more positions than it scores where there is Triton."""
BURNISH_LOW_MEMORY = "Burnish, low memory"
TRL_LOW_MEMORY = "TRL, low memory"
TRL = ("TRL", TRL_LOW_MEMORY, "TRL, as written", "TRL with vLLM")
"""Peers that are TRL as it is."""
EXPLANATION = """\
Every row did the same work: the same prompts, and in every step the same response lengths, which are prescribed
(geometric ones are the quantiles of the distribution, in another order in each step). A peer that did anything else is
refused. Seconds are medians over the measured steps, at least three, and three times as many with the tiny model, after
at least one that is not measured. `cpu` is the training process's processor time per step, over all threads; other
work on the machine hardly changes it. `over floor` is the time divided by that of the unavoidable multiply-adds at the
best matrix rate of the precision, the highest in any of the runs above with the same capabilities. `ratio` is Burnish's
tokens per second with default settings divided by the row's: above 1 Burnish is faster. `cpu ratio` is the same per
processor second. Rows that only sample are compared with Burnish's sampling.

Peak memory is that of the whole command, from its start to a saved checkpoint, with every process that it starts
(Burnish's two reward workers, and its tools). It depends on the allocator, so it is compared under the same settings
only: `bounded` are the thresholds that Burnish sets for itself on a CPU, `kept` gives nothing back. `low memory` is
what each side offers for it: TRL with the smallest micro-batch, Burnish with as many tokens of one as these rows have,
and gradient checkpointing on both sides. TRL's is compared with Burnish's defaults, too.

TRL's settings were searched for every workload and precision: rows of a micro-batch, the precision of float32
products where the faster one is as accurate, the allocator, and gradient checkpointing, one after the other until
nothing got faster. In the first workload of a model all values are tried; the search of a later one begins with the
fastest settings of the one before, and tries the neighbouring numbers of rows only. A trial has as many steps as a row,
but no more after 8 s of them, and is given up if the first takes more than 8 s and a quarter more than the least so
far. `TRL` has the fastest of them that lasts a whole run; the overview takes TRL's fastest row, whichever it is. `TRL,
low memory` has the smallest micro-batch and gradient checkpointing; `TRL, as written` leaves everything at TRL's
defaults that the work does not prescribe; `TRL with vLLM` samples by a colocated vLLM. These three are measured in W1,
W3 and W8.

**Two things to know about the ratios to TRL.** TRL pads all responses of a step to the longest one of that step. And
without Triton, as on every CPU, TRL's head scores every position, prompts included: a fallback that does not exist on
a GPU. `TRL, head on responses only` measures what that costs: the same TRL with a patch that lets the head score
responses only. The column of that name has the ratio that would be left, an estimate from the two rows.

W8 and W9 are conversations: both sides call the same function after every turn but the last, and log every step. All
tokens of a response count, answers included. The model's weights alone make turns and calls as they are."""


NOTHING = """\
Nothing has been measured by the present rules yet: one machine and one commit for all rows, settings of TRL that were
searched for, the same prescribed lengths on both sides, at least one step that is not measured and three that are, and
memory over the whole command by the same allocator. Earlier figures broke at least one of them and were removed.
`python benchmarks/peers --help` says how to measure."""


def build_row(label: Mapping[str, str], workload: Workload, result: Mapping[str, Any]) -> dict[str, Any]:
    """What one peer took for one workload: medians over its steps. `label` has workload, precision, peer, settings,
    allocator, and where the figures come from (commit, machine, threads, switched_off)."""
    seconds = result["seconds"]
    tokens = [sum(response for _, response in step) for step in result["lengths"]]
    phases = {name: statistics.median(_phase(step, name) for step in seconds) for name in PHASES}
    macs = [step_macs(workload, step) for step in result["lengths"]]
    samples_only = result["optimizer_steps"] is None
    step_seconds = [step["step"] for step in seconds]
    sampled = result["sampled"] if workload.turns is not None else None
    return {
        **label,
        "title": workload.title,
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
        "unavoidable_macs": [m["generate"] if samples_only else sum(m.values()) for m in macs],
        "peak_bytes": result["peak_bytes"],
        "workers_bytes": result["workers_bytes"],
        "capability": result["capability"],
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


def add_floors(rows: Sequence[dict[str, Any]], runs: Sequence[Mapping[str, Any]]) -> None:
    """`over_floor`: the time over that of the unavoidable multiply-adds at the best rate that any run measured with the
    same capabilities of the processor."""
    for row in rows:
        alike = [run["rates"] for run in runs if run["switched_off"] == row["switched_off"]]
        rate = rate_at(best_of(alike), row["precision"])
        steps = zip(row["all_step_seconds"], row["unavoidable_macs"], strict=True)
        row["over_floor"] = statistics.median(seconds * rate / macs for seconds, macs in steps)


def add_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """`ratio`: tokens per second of Burnish as it comes over this row's; above 1 Burnish is faster. Rows that only
    sample are compared with Burnish's sampling phase. `memory_ratio`: Burnish's peak over the row's, by the same
    allocator settings; None where Burnish was not measured with them."""
    for row in rows:
        burnish = own_row(rows, row, AS_IT_COMES)
        key = "generated_tokens_per_second" if row["samples_only"] else "tokens_per_second"
        row["ratio"] = None if burnish is None else burnish[key] / row[key]
        whole = burnish is not None and not row["samples_only"]
        row["cpu_ratio"] = burnish["tokens_per_cpu_second"] / row["tokens_per_cpu_second"] if whole else None
        alike = own_row(rows, row, AS_IT_COMES if row["allocator"] == BOUNDED else row["allocator"])
        comparable = alike is not None and whole and row["peer"].startswith("TRL") and row["allocator"] != AS_IT_COMES
        row["memory_ratio"] = alike["peak_bytes"] / row["peak_bytes"] if comparable else None


def own_row(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], allocator: str) -> Mapping[str, Any] | None:
    """Burnish's row of the same cell, with this allocator."""
    return next(
        (r for r in rows if r["peer"] == "Burnish" and cell(r) == cell(row) and r["allocator"] == allocator), None
    )


def cell(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What rows that are compared have in common."""
    return *origin_of(row), tuple(row["switched_off"]), row["workload"], row["precision"]


def to_markdown(report: Mapping[str, Any]) -> str:
    """The page. Only what has the origin of the newest run is on it; what has another one is counted."""
    lines = ["# Burnish and its peers on one machine", ""]
    if not report["rows"]:
        return "\n".join([*lines, *textwrap.wrap(NOTHING, 119)]) + "\n"
    origin = origin_of(report["runs"][-1])
    shown = {key: [r for r in report[key] if origin_of(r) == origin] for key in ("runs", "rows", "tried", "failed")}
    lines += [f"Commit {origin[0]}, {origin[1]}, {origin[2]} threads.", ""]
    for run in shown["runs"]:
        lines += _origin(run)
    hidden = len(report["rows"]) - len(shown["rows"])
    if hidden:
        lines += ["", f"{hidden} rows of other commits, machines or numbers of threads are not shown."]
    lines += ["", *textwrap.wrap(f"Versions: {_versions(shown['rows'])}", 119)]
    for paragraph in EXPLANATION.split("\n\n"):
        lines += ["", *textwrap.wrap(paragraph, 119, break_on_hyphens=False)]
    variants = dict.fromkeys(tuple(row["switched_off"]) for row in shown["rows"])
    for switched_off in sorted(variants):
        lines += _variant({key: _of_variant(shown[key], switched_off) for key in shown}, switched_off)
    return "\n".join(lines) + "\n"


def _of_variant(records: Sequence[Mapping[str, Any]], switched_off: tuple[str, ...]) -> list[Mapping[str, Any]]:
    return [record for record in records if tuple(record["switched_off"]) == switched_off]


def _variant(shown: Mapping[str, Sequence[Mapping[str, Any]]], switched_off: tuple[str, ...]) -> list[str]:
    """Everything that was measured with the same capabilities of the processor."""
    rows = shown["rows"]
    lines = ["", f"## {_title(switched_off)}", ""]
    if switched_off:
        lines += [*textwrap.wrap(_not_such_a_machine(rows, switched_off), 119), ""]
    lines += [*_summary(rows), "", *_memory(rows)]
    if shown["failed"]:
        lines += ["", "What did not run:", ""]
        lines += [
            f"- {r['workload']} {r['precision']}, {r['peer']} ({r['settings']}): {r['reason']}" for r in shown["failed"]
        ]
    for name in dict.fromkeys(row["workload"] for row in rows):
        lines += _workload(
            [r for r in rows if r["workload"] == name], [t for t in shown["tried"] if t["workload"] == name]
        )
    return lines


def _title(switched_off: tuple[str, ...]) -> str:
    return f"With {', '.join(switched_off)} switched off" if switched_off else "As the processor is"


def _not_such_a_machine(rows: Sequence[Mapping[str, Any]], switched_off: tuple[str, ...]) -> str:
    variables = {k: v for name in switched_off for k, v in SWITCHED_OFF[name].items()}
    seen = ", ".join(sorted({row["capability"] for row in rows}))
    return (
        f"The same machine, on which libraries were told not to use what the processor has, by "
        f"{', '.join(f'`{k}={v}`' for k, v in variables.items())} for every peer; PyTorch then says {seen}. A machine "
        "without these instructions has other caches, clocks and memory, so this is not a measurement of one."
    )


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a cell: what the ratios are."""
    head = ["workload", "precision", "Burnish s/step", "TRL s/step", "ratio", "cpu ratio", "head on responses only"]
    head += ["low memory", "as written", "with vLLM", "sampling: vLLM", "sampling: generate", "over floor"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for members in _cells(rows).values():
        first = members[0]
        trl = _fastest(members, *TRL)
        peers = [_fastest(members, name) for name in (*TRL[1:], "vLLM", "transformers.generate")]
        cells = [first["workload"], first["precision"], f"{first['step_seconds']:.2f}"]
        cells += [
            _number(trl, "step_seconds"),
            _number(trl, "ratio"),
            _number(trl, "cpu_ratio"),
            _without_fallback(members),
        ]
        cells += [_number(row, "ratio") for row in peers]
        lines.append("| " + " | ".join([*cells, f"{first['over_floor']:.2f}"]) + " |")
    return lines


def _memory(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Peaks under the same allocator, for each row of TRL that has one: to Burnish's defaults, and what TRL needs with
    little memory to what Burnish then needs."""
    head = ["workload", "precision", "Burnish's row", "TRL's row", "allocator"]
    head += ["Burnish GB", "of it workers", "TRL GB", "Burnish / TRL", "Burnish s/step", "TRL s/step"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 5 + "---:|" * 6]
    for row in rows:
        if row["memory_ratio"] is not None and row["peer"] != HEAD:
            own = own_row(rows, row, AS_IT_COMES if row["allocator"] == BOUNDED else row["allocator"])
            frugal = [r for r in rows if r["peer"] == BURNISH_LOW_MEMORY and cell(r) == cell(row)]
            for burnish in [own, *(frugal if row["peer"] == TRL_LOW_MEMORY else [])]:
                assert burnish is not None, "the ratio was made from it"
                cells = [row["workload"], row["precision"], burnish["peer"], row["peer"], row["allocator"]]
                peaks = burnish["peak_bytes"], burnish["workers_bytes"], row["peak_bytes"]
                cells += [f"{peak / GB:.2f}" for peak in peaks] + [f"{burnish['peak_bytes'] / row['peak_bytes']:.2f}"]
                cells += [f"{burnish['step_seconds']:.2f}", f"{row['step_seconds']:.2f}"]
                lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cells(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(cell(row), []).append(row)
    return found


def _fastest(rows: Sequence[Mapping[str, Any]], *peers: str) -> Mapping[str, Any] | None:
    return max((row for row in rows if row["peer"] in peers), key=lambda row: row["tokens_per_second"], default=None)


def _number(row: Mapping[str, Any] | None, key: str) -> str:
    return "-" if row is None or row[key] is None else f"{row[key]:.2f}"


def _workload(rows: Sequence[Mapping[str, Any]], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every row of a workload, what the fallback of TRL's head costs, and every setting of TRL that was tried."""
    first = rows[0]
    tokens = f"Tokens of a response: {first['response_tokens_mean']:.1f} on average"
    if first["sampled_tokens_mean"] is not None:
        tokens += f", of which {first['sampled_tokens_mean']:.1f} are sampled and trained on, the rest is answers"
    lines = ["", f"### {first['workload']}: {first['title']}", "", tokens + ".", "", *_table(rows)]
    for members in _cells(rows).values():
        lines += _fallback(members)
    if tried:
        lines += [
            "",
            "Tried for TRL:",
            "",
            "| precision | settings | first step, s | tokens/s |",
            "|---|---|---:|---:|",
        ]
        lines += [
            f"| {t['precision']} | {t['settings']} | {_number(t, 'first_seconds')} | {_speed(t)} |" for t in tried
        ]
    return lines


def _fallback(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of TRL's step its head spends on positions that are no responses."""
    trl, left = _fastest(rows, *TRL), _left_by_fallback(rows)
    if trl is None or left is None or trl["ratio"] is None:
        return []
    sentence = (
        f"{trl['precision']}: {1 - left:.0%} of TRL's step is the head's work on other positions than responses. "
        f"Without this fallback the ratio of {trl['ratio']:.2f} would be {_without_fallback(rows)}."
    )
    return ["", *textwrap.wrap(sentence, 119, break_on_hyphens=False)]


def _without_fallback(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ratio to TRL's fastest row, were its step shorter by the same share as with the searched settings."""
    trl, left = _fastest(rows, *TRL), _left_by_fallback(rows)
    return "-" if trl is None or left is None or trl["ratio"] is None else f"{trl['ratio'] * left:.2f}"


def _left_by_fallback(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The part of a step of TRL that is left with the patched head, by rows with the same settings."""
    searched, patched = _fastest(rows, "TRL"), _fastest(rows, HEAD)
    return None if searched is None or patched is None else patched["step_seconds"] / searched["step_seconds"]


def _speed(trial: Mapping[str, Any]) -> str:
    if trial["failed"]:
        return f"failed: {trial['failed']}"
    return "given up" if trial["tokens_per_second"] is None else f"{trial['tokens_per_second']:,.0f}"


def _origin(run: Mapping[str, Any]) -> list[str]:
    """Where the rows of one run come from."""
    rates = run["rates"]
    measured = ", ".join(
        f"{name} {rate / 1e9:.0f} ({rates['rms_error'][name]:.1e})" for name, rate in rates["macs_per_second"].items()
    )
    as_accurate = "as" if rates["fast_is_accurate"] else "not as"
    words = [
        f"- `{run['command']}` on {run['date']}: load average {run['load_before']:.1f} before and",
        f"{run['load_after']:.1f} after. Matrix rate in 10^9 multiply-adds per second (relative root-mean-square",
        f"error): {measured}; the faster float32 is {as_accurate} accurate here.",
        run["note"],
        *run["left_out"],
    ]
    return textwrap.wrap(" ".join(filter(None, words)), 119, subsequent_indent="  ", break_on_hyphens=False)


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["precision", "peer", "settings", "allocator", "s/step", "fastest, slowest", "cpu", *PHASES, "tokens/s"]
    head += ["sampled/s", "peak GB", "over floor", "ratio", "cpu ratio", "responses", "updates"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 4 + "---:|" * (len(head) - 4)]
    for row in rows:
        cells = [row["precision"], row["peer"], row["settings"], row["allocator"], f"{row['step_seconds']:.2f}"]
        cells += [f"{min(row['all_step_seconds']):.2f}, {max(row['all_step_seconds']):.2f}"]
        cells += [f"{row['cpu_seconds']:.2f}"]
        cells += [f"{row['phase_seconds'][name]:.2f}" for name in PHASES]
        cells += [f"{row['tokens_per_second']:,.0f}", f"{row['generated_tokens_per_second']:,.0f}"]
        cells += [f"{row['peak_bytes'] / GB:.2f}", f"{row['over_floor']:.2f}"]
        cells += [_number(row, "ratio"), _number(row, "cpu_ratio"), str(row["responses"])]
        cells += ["-" if row["samples_only"] else str(row["optimizer_steps"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _versions(rows: Sequence[Mapping[str, Any]]) -> str:
    named = (f"{row['peer']} ({', '.join(f'{k} {v}' for k, v in row['versions'].items())})" for row in rows)
    return "; ".join(dict.fromkeys(named))


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
        "command": shlex.join(["python", f"benchmarks/{program}.py", *sys.argv[1:]]),
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
