"""Products of a decoding step with each layout of weights: multiply-adds per second by the number of rows.

    python benchmarks/products.py                        # a minute
    python benchmarks/products.py --rows 1 16 64 --output FOLDER/name

Every layout multiplies in turn, by as many matrices as no cache holds. The best of the rounds counts, because other
work on the machine only ever adds time. `read`: the rate at which memory is read, in numbers of the weights.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent / "peers"))
from report import publish
from run_rates import timed

from burnish.rollouts.local.packed_weights import Layout, Product, joined_product

SHAPES = {
    "W1 gate and up": (2816, 512),
    "W1 down": (512, 1408),
    "W1 head": (32000, 512),
    "W10 gate and up": (9728, 896),
    "W10 down": (896, 4864),
}
"""(outputs, inputs) of matrices in the models of `benchmarks/peers`."""
WAYS: dict[str, Layout] = {"C kernels": "panels", "oneDNN": "blocks", "ordinary": "ordinary"}
READ_NUMBERS = 128 << 20
COLD_WEIGHTS = 40_000_000
"""Numbers that are added up, and numbers in the matrices of a shape: more than caches hold."""


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    numbers = torch.ones(READ_NUMBERS)
    read = READ_NUMBERS / statistics.median(timed(numbers.sum, 5))
    rows = [record for name in SHAPES for record in measured(name, options.rows, options.rounds)]
    publish("products", options.output, rows, to_markdown, threads=options.threads, read=read)


@torch.no_grad()
def measured(name: str, rows: list[int], rounds: int) -> list[dict[str, Any]]:
    outputs, inputs = SHAPES[name]
    count = max(2, COLD_WEIGHTS // (outputs * inputs))
    layers = [torch.nn.Linear(inputs, outputs, bias=False) for _ in range(count)]
    products = {way: [joined_product(layer, layout=layout) for layer in layers] for way, layout in WAYS.items()}
    records = []
    for number in rows:
        states = torch.randn(number, inputs)
        times = [{way: seconds(of, states) for way, of in products.items()} for _ in range(rounds + 1)][1:]
        best = {way: min(time[way] for time in times) / count for way in WAYS}
        macs = number * outputs * inputs
        records.append({"shape": name, "rows": number, "rates": {way: macs / spent for way, spent in best.items()}})
        print(records[-1], file=sys.stderr, flush=True)
    return records


def seconds(products: list[Product], states: torch.Tensor) -> float:
    started = time.perf_counter()
    for product in products:
        product(states)
    return time.perf_counter() - started


def to_markdown(report: Mapping[str, Any]) -> str:
    lines = [
        "| matrix | rows | " + " | ".join(WAYS) + " | C kernels / oneDNN |",
        "|---|---:|" + "---:|" * (len(WAYS) + 1),
    ]
    for row in report["rows"]:
        rates = row["rates"]
        cells = [f"{rates[way] / 1e9:.0f}" for way in WAYS] + [f"{rates['C kernels'] / rates['oneDNN']:.2f}"]
        lines.append(f"| {row['shape']} | {row['rows']} | " + " | ".join(cells) + " |")
    return f"""\
# Products of a decoding step

`{report["command"]}` on {report["date"]}: {report["processor"]}, {report["cores"]} cores, {report["threads"]} threads,
load average {report["load_after"]} after. 10^9 multiply-adds per second in float32, with more weights than caches hold.
For comparison with one row, where a product does little but read: adding up numbers of float32 reads
{report["read"] / 1e9:.1f} x 10^9 of them per second from memory.

{chr(10).join(lines)}
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/products"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
