"""Everything that a machine with a GPU is asked, part by part.

    python benchmarks/gpu tests exact                 # does it compute the right numbers?
    python benchmarks/gpu steps decode peers memory   # how fast, in how much memory?
    python benchmarks/gpu learn vllm several          # does it learn, with vLLM, on several GPUs?
    python benchmarks/gpu all --rehearse              # the same calls at toy size on a CPU: figures say nothing

A part takes at most eight minutes, each of its rows has a deadline, and a row that fails is recorded with its error.
Rows that the same code has measured on such a machine are not measured again, so a call goes on where an earlier one
ended. gpu.json has all records, gpu.md is the page, gpu_profiles.md says where the time of each step went.

Nothing is downloaded: models are random weights of a known shape. A machine without a package registry needs some
wheels (docs/gpu.md).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "peers")]  # lines, and the workloads of the peers
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from device import Device, RehearsalDevice  # noqa: E402
from page import profiles_page, results_page  # noqa: E402
from parts import PARTS, rows_of  # noqa: E402
from records import RESULTS, ROOT, Records, commit, host, versions  # noqa: E402
from worker import Worker  # noqa: E402

REHEARSAL_SECONDS = 300.0
"""A row's deadline in a rehearsal, which may share its cores with anything."""
PART_SECONDS = 480.0
"""Of one part in one call. What is left is measured by the next call."""
REHEARSAL = ROOT / "build" / "gpu-rehearsal"


def main() -> int:
    options = parse()
    if options.rehearse:  # as in the tests: what a clock says is not what is tried
        os.environ |= {"BURNISH_TIMING": "off", "OMP_NUM_THREADS": "1"}
    device = RehearsalDevice() if options.rehearse else Device()
    stamp = {
        "commit": commit(),
        "machine": f"{device.title()}; {host()}",
        "versions": f"driver {device.driver()}, {versions()}",
    }
    if options.rehearse:
        records = Records(options.out / "gpu.json", stamp)
        records.rows = []
    else:
        records = Records(options.out / "gpu.json", stamp, earlier=RESULTS / "gpu.json")
    parts = PARTS if "all" in options.parts else options.parts
    worker, end = Worker(rehearses=options.rehearse), time.monotonic() + 60 * options.minutes
    try:
        whole = [measure_part(part, records, worker, end, rehearses=options.rehearse) for part in parts]
    finally:
        worker.end()
        write_pages(records, options.out, rehearses=options.rehearse)
    return 0 if all(whole) else 1


def measure_part(part: str, records: Records, worker: Worker, end: float, *, rehearses: bool) -> bool:
    """Measure the rows that are missing and whose deadlines are before the part's, and before `end`. Returns whether
    none of them failed."""
    end, failed = min(end, time.monotonic() + (math.inf if rehearses else PART_SECONDS)), False
    for row in rows_of(part, rehearses=rehearses):
        if records.has(row) or time.monotonic() + row.seconds > end:
            why = "measured before" if records.has(row) else "no time left in this call"
            print(f"{part}: {row.name}: {why}", flush=True)
            continue
        started = time.monotonic()
        found = worker.measure(row, REHEARSAL_SECONDS if rehearses else row.seconds)
        record = records.add(row, found, time.monotonic() - started)
        failed = failed or "error" in record
        said = record.get("error") or record.get("skipped") or ", ".join(first_figures(record["figures"]))
        print(f"{part}: {row.name}: {said} [{record['seconds']} s]", flush=True)
    return not failed


def first_figures(figures: dict[str, object]) -> list[str]:
    shown = [(name, value) for name, value in figures.items() if not isinstance(value, (dict, list))]
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown[:4]]


def write_pages(records: Records, folder: Path, *, rehearses: bool) -> None:
    rows = {(row.part, row.name): row for part in PARTS for row in rows_of(part, rehearses=rehearses)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.md").write_text(results_page(records.rows, rows, rehearses=rehearses), encoding="utf-8")
    (folder / "gpu_profiles.md").write_text(profiles_page(records.rows), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "all"], metavar="PART", help=", ".join([*PARTS, "all"]))
    parser.add_argument("--rehearse", action="store_true", help="run every row once at toy size on the CPU")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of the whole call (default: 8 for each part)")
    parser.add_argument("--out", type=Path, help=f"folder of what is written (default {RESULTS.relative_to(ROOT)})")
    options = parser.parse_args()
    options.out = options.out or (REHEARSAL if options.rehearse else RESULTS)
    if options.rehearse and options.out.resolve() == RESULTS:
        parser.error("a rehearsal measures nothing, so it writes nothing into the results")
    if not options.rehearse and Device().count() == 0:
        parser.error("PyTorch sees no CUDA device: --rehearse runs the same calls on the CPU")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
