"""The page of what was measured, with the targets beside the figures, and the page of the profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parts import PARTS, peers
from profiling import three_largest
from rows import Row, Target

Record = Mapping[str, Any]
Rows = Mapping[tuple[str, str], Row]

UNITS = {"_share": (100.0, " %", ".1f"), "_bytes": (1 / 2**30, " GiB", ".2f"), "_seconds": (1.0, " s", ".3f")}
"""By the end of a figure's name: factor, unit, digits."""
HEAD = """# On a GPU

Measured by `python benchmarks/gpu` ([what its parts are](../../docs/gpu.md#one-command)). Models are random weights of
a known shape, in bfloat16 unless the row says otherwise. `peak share` counts the operations that the mathematics needs
(nothing that is computed again) against the device's stated rate, `bandwidth share` all weights, keys and values once a
step. Targets stand beside their figures, with what others published.
"""
REHEARSED = "\n**A rehearsal on a CPU at toy size: nothing here is a measurement.**\n"


def results_page(records: Sequence[Record], rows: Rows, *, rehearses: bool) -> str:
    """One section for each commit and machine, the newest first."""
    stamps = list(dict.fromkeys((record["commit"], record["machine"]) for record in reversed(records)))
    pieces = [HEAD, *([REHEARSED] if rehearses else [])]
    if not stamps:
        pieces.append("\nNothing has been measured yet.\n")
    for commit, machine in stamps:
        found = [record for record in records if (record["commit"], record["machine"]) == (commit, machine)]
        versions = "; ".join(dict.fromkeys(record["versions"] for record in found))
        pieces.append(f"\n## {commit}\n\n{machine}; {versions}\n")
        pieces += part_sections(found, rows)
    return "".join(pieces)


def part_sections(records: Sequence[Record], rows: Rows) -> Iterator[str]:
    for part in PARTS:
        own = [record for record in records if record["part"] == part]
        order = {name: number for number, (_, name) in enumerate(key for key in rows if key[0] == part)}
        own.sort(key=lambda record: order.get(record["row"], len(order)))
        if own:
            yield f"\n### {part}\n\n" + "\n".join(part_lines(own, rows)) + "\n"


def part_lines(records: Sequence[Record], rows: Rows) -> Iterator[str]:
    """A table for each kind of row, which is what its figures are; below them what was skipped and what failed."""
    measured = [record for record in records if "figures" in record]
    kinds = dict.fromkeys(shown(record["figures"]) for record in measured)
    for columns in kinds:
        yield "| | " + " | ".join([*map(heading, columns), "target"]) + " |"
        yield "|---|" + "---|" * (len(columns) + 1)
        yield from (line(record, rows) for record in measured if shown(record["figures"]) == columns)
        yield ""
    if records[0]["part"] == "peers":
        yield from (f"- {line}" for line in peers.summary(measured))
    for word in ("skipped", "error"):
        yield from (f"- {record['row']}: {word}: {record[word]}" for record in records if word in record)


def line(record: Record, rows: Rows) -> str:
    figures, row = record["figures"], rows.get((record["part"], record["row"]))
    targets = [] if row is None else [in_words(target, figures) for target in row.targets]
    return f"| {' | '.join([record['row'], *(cell(n, figures[n]) for n in shown(figures)), '<br>'.join(targets)])} |"


def shown(figures: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, value in figures.items() if not isinstance(value, dict))


def heading(name: str) -> str:
    for end in UNITS:
        if name.endswith(end) and end != "_share":
            name = name.removesuffix(end)
    return name.replace("_per_second", "/s").replace("_", " ")


def cell(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{step:g}: {number:g}" for step, number in value)
    if value is None or isinstance(value, str):
        return (value or "").replace("|", "/")
    for end, (factor, unit, digits) in UNITS.items():
        if name.endswith(end):
            return f"{value * factor:{digits}}{unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def in_words(target: Target, figures: Mapping[str, Any]) -> str:
    bounds = ((">=", target.at_least), ("<=", target.at_most))
    wanted = " and ".join(f"{sign} {cell(target.figure, bound)}" for sign, bound in bounds if bound is not None)
    verdict = {True: "reached", False: "**missed**", None: "not measured"}[target.reached(figures)]
    others = f" ({target.published})" if target.published else ""
    return f"{heading(target.figure)} {wanted}: {verdict}{others}"


def profiles_page(records: Sequence[Record]) -> str:
    """What took the time of each row that has a profile: by kernel, and by what the host waited for."""
    pieces = [
        "# Where the time of a step goes\n\nBy `torch.profiler`, of the rows of [gpu.md](gpu.md) that have one.\n"
    ]
    for record in records:
        profile = record.get("figures", {}).get("profile")
        if profile is not None:
            pieces.append(profile_section(record, profile))
    return "".join(pieces)


def profile_section(record: Record, profile: dict[str, Any]) -> str:
    lines = [
        f"\n## {record['row']} ({record['commit']})\n",
        f"{profile['seconds']:.3f} s; kernels run {100 * profile['busy_share']:.0f} % of it. Largest costs: "
        f"{three_largest(profile)}.\n",
    ]
    for name in ("kernels", "waits"):
        if profile[name]:
            lines += [f"| {name} | seconds | calls |", "|---|---|---|"]
            lines += [f"| `{what.replace('|', '/')}` | {took:.4f} | {count} |" for what, took, count in profile[name]]
            lines.append("")
    return "\n".join(lines)
