"""The chart and the table of docs/results.md: a step's time next to TRL's, by workload and processor.

    python benchmarks/step_ratios.py [--picture docs/images/step_ratios.svg]

Reads the overview tables of benchmarks/results/peers*.md and measures nothing. Start it from the repository's root.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path("benchmarks/results")
PAGE = Path("docs/results.md")
MARKS = ("<!-- ratios: made by benchmarks/step_ratios.py -->", "<!-- end of ratios -->")

AS_IT_IS, SWITCHED_OFF = "## As the processor is", "## With avx512 switched off"
PROCESSORS = {
    "AMD Zen 5, AVX-512": ("peers.md", AS_IT_IS),
    "Zen 5 without AVX-512": ("peers.md", SWITCHED_OFF),
    "AMD Zen 3, AVX2": ("peers_avx2.md", AS_IT_IS),
    "Xeon, AVX-512": ("peers_xeon.md", AS_IT_IS),
    "Xeon without AVX-512": ("peers_xeon_avx2.md", SWITCHED_OFF),
}
COLORS = dict(zip(PROCESSORS, ("#1b7f5c", "#6fb79a", "#3c6fb0", "#c8641b", "#e9b183"), strict=True))
WORKLOADS = {
    "W1": "W1: 56M, prompt 32, response 64",
    "W2": "W2: 56M, prompt 256, varying responses",
    "W3": "W3: W1 on 1M parameters",
    "W5": "W5: 56M, prompt 1,024, response 64",
    "W10": "W10: 494M, prompt 64, response 64",
}


@dataclass(frozen=True)
class Row:
    """A workload on a processor; `ratio_of_heads` is the ratio without TRL's fallback for scoring prompts."""

    workload: str
    processor: str
    seconds: float
    trl_seconds: float
    ratio: float
    ratio_of_heads: float
    over_floor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, default=Path("docs/images/step_ratios.svg"), help="file to draw")
    options = parser.parse_args()
    rows = read_rows(RESULTS)
    draw(rows, options.picture)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), to_markdown(rows)), encoding="utf-8")
    print(options.picture, PAGE)


def read_rows(results: Path) -> list[Row]:
    """The float32 rows of all processors, in the order of WORKLOADS, then of PROCESSORS."""
    rows = [
        Row(cells[0], name, *(float(cells[column]) for column in (2, 3, 4, 6, 12)))
        for name, (page, heading) in PROCESSORS.items()
        for cells in overview((results / page).read_text(encoding="utf-8"), heading)
        if cells[1] == "float32"
    ]
    return sorted(rows, key=lambda row: (list(WORKLOADS).index(row.workload), list(PROCESSORS).index(row.processor)))


def overview(text: str, heading: str) -> Iterator[list[str]]:
    """Cells of the rows of the first table below a heading."""
    table = text.partition(f"{heading}\n")[2].partition("\n|")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.split("|")[1:-1]]


def to_markdown(rows: Sequence[Row]) -> str:
    head = "| workload | processor | Burnish, s a step | TRL | times as fast | without TRL's fallback | over floor |"
    lines = [
        f"| {row.workload} | {row.processor} | {row.seconds:.2f} | {row.trl_seconds:.2f} "
        f"| {row.ratio:.2f} | {row.ratio_of_heads:.2f} | {row.over_floor:.2f} |"
        for row in rows
    ]
    return "\n".join([head, "|---|---|---:|---:|---:|---:|---:|", *lines])


def with_table(page: str, table: str) -> str:
    """The page with the table between its two marks. SystemExit if it lacks them."""
    before, first, rest = page.partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if not first or not last:
        raise SystemExit(f"{PAGE} lacks the lines {MARKS[0]!r} and {MARKS[1]!r}")
    return f"{before}{first}\n{table}\n{last}{after}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """A bar for each row, and a line across it where the ratio without TRL's fallback is."""
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "burnish", "font.size": 9}
    figure, axes = plt.subplots(figsize=(8, 6), facecolor="white")
    height = 0.0
    for workload, title in WORKLOADS.items():
        axes.text(0, height, title, va="center", weight="bold")
        for row in (row for row in rows if row.workload == workload):
            height += 1
            axes.barh(height, row.ratio, 0.8, color=COLORS[row.processor])
            axes.plot([row.ratio_of_heads] * 2, [height - 0.4, height + 0.4], color="black", linewidth=1)
            axes.text(max(row.ratio, row.ratio_of_heads) + 0.1, height, f"{row.ratio:.2f}", va="center")
        height += 1.4
    axes.axvline(1, color="#888888", linewidth=0.8, linestyle=":")
    axes.set(yticks=[], xlabel="Burnish's speed as a multiple of TRL 1.16's (line: without TRL's fallback)")
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    axes.legend(handles, list(COLORS), loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
