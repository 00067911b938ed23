"""How a step's time and memory grow with the size of everything; fails where something grows faster than it should.

    python benchmarks/scaling.py                 # ten minutes of one core
    python benchmarks/scaling.py --quick         # two minutes: one round, without the largest value of each axis
    python benchmarks/scaling.py --axes "response length" vocabulary
    python benchmarks/scaling.py --measured benchmarks/results/scaling.json      # judge and draw again, measure nothing

Steps of the loop of `burnish rl` (GRPO with a reference) on random Llamas with responses of an exact length, along
seven axes around one small base (scaling_axes.py), each point in processes of its own (scaling_point.py). Writes
OUTPUT.json, OUTPUT.md and OUTPUT.png; exit code 1 and a line for each bound that is broken.

What grows how. Seconds are those of the processor (`--clock wall` takes the others), which other work on the machine
moves less, and the lowest of all rounds, since other work only ever adds; the rounds go over all points one after the
other, so that a slow spell does not hit one point only. Bytes are a phase's peak above what is resident between steps.
  response length  update and log-probabilities: linear in tokens, attention's quadratic part small. Sampling: every
                   token reads the keys before it, so between linear and quadratic. Memory: sampling's keys and values
                   linear; the update's constant while a response fits into a micro-batch.
  prompt length    at most linear, with the responses as a fixed cost: a prompt is read once for its group.
  group size, prompts per step
                   linear in responses, a fixed cost where prompts are shared. Memory constant: more of them are more
                   micro-batches and more batches of sampling, not larger ones.
  vocabulary       head, embedding and their optimizer linear, the trunk a fixed cost. Memory linear: their gradients.
  width, depth     linear in parameters or less: small products use a processor worse. Memory linear: gradients.

The exponent is that of `fixed + factor * size ** exponent`, since steps, tokens and micro-batches have fixed costs
that would hide growth in a straight log-log line; of a plain power for memory meant to be constant. Other memory is a
peak: there the fixed part may also be another moment's, which what grows overtakes; the form that fits better counts.
A bound is broken when the whole interval of the exponent (two standard errors) lies above it; unclear, which is told
but no failure, when the exponent does and the interval reaches below.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from lines import write_json
from origin import processor
from parent import run_script

from scaling_axes import AXES, Axis, Finding, examine
from scaling_page import draw, to_markdown

HERE = Path(__file__).parent


def main() -> None:
    options = parse()
    axes = [axis for axis in AXES if axis.name in options.axes]
    if options.measured:
        report = json.loads(options.measured.read_text(encoding="utf-8"))
        axes = [axis for axis in axes if axis.name in report["axes"]]
    else:
        load_before = os.getloadavg()[0]
        measured = measure(axes, options)
        report = {"about": about(options, load_before), "axes": measured}
    findings = [finding for axis in axes for finding in examine(axis, report["axes"][axis.name], options.clock)]
    write(report, axes, findings, options)
    raise SystemExit(tell(findings))


def measure(axes: Sequence[Axis], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The measured points of each axis. A point that several axes share is measured once a round."""
    series = {axis.name: axis.points(options.quick) for axis in axes}
    distinct = {json.dumps(point): point for points in series.values() for point in points}
    results: dict[str, list[dict[str, Any]]] = {key: [] for key in distinct}
    for number in range(options.rounds):
        for key, point in distinct.items():
            task = {"point": point, "threads": options.threads, "steps": options.steps, "memory": number == 0}
            results[key].append(run_script(HERE / "scaling_point.py", task, environment={}))
            say(f"round {number + 1}: {key} {results[key][-1]['seconds']['cpu']['step']}")
    return {name: [together(p, results[json.dumps(p)]) for p in points] for name, points in series.items()}


def together(point: Mapping[str, int], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One measured point: the lowest seconds of all steps of all rounds, the first round's memory."""
    clocks = rounds[0]["seconds"]
    return {
        "point": dict(point),
        "parameters": rounds[0]["parameters"],
        "macs": rounds[0]["macs"],
        "bytes": rounds[0]["bytes"],
        "seconds": {
            clock: {phase: min(min(r["seconds"][clock][phase]) for r in rounds) for phase in phases}
            for clock, phases in clocks.items()
        },
        "all_step_seconds": {clock: [r["seconds"][clock]["step"] for r in rounds] for clock in clocks},
    }


def about(options: argparse.Namespace, load_before: float) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", "benchmarks/scaling.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "threads": options.threads,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "rounds": options.rounds,
        "steps": options.steps,
        "note": options.note,
    }


def write(report: Mapping[str, Any], axes: Sequence[Axis], findings: Sequence[Finding], options: Any) -> None:
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output.with_suffix(".json"), report)
    draw(report, axes, findings, options.clock, output.with_suffix(".png"))
    text = to_markdown(report, axes, findings, options.clock, output.with_suffix(".png").name)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def tell(findings: Sequence[Finding]) -> int:
    """The exit code, after a line for each finding that is not within its bound."""
    for finding in findings:
        if finding.verdict == "unclear":
            say(f"unclear  {finding}: more --rounds or a quieter machine would tell")
    broken = [finding for finding in findings if finding.verdict == "broken"]
    for finding in broken:
        say(f"BROKEN   {finding}")
    say(f"{len(broken)} of {len(findings)} bounds broken")
    return 1 if broken else 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [axis.name for axis in AXES]
    parser.add_argument("--axes", nargs="+", choices=names, default=names, metavar="AXIS", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="one round, without the largest value of each axis")
    parser.add_argument("--rounds", type=int, help="times that all points are measured (default 2, quick 1)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a point in a round (default 2)")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="the seconds that are fitted")
    parser.add_argument("--threads", type=int, default=1, help="threads of the measured process (default 1)")
    parser.add_argument("--measured", type=Path, help="a JSON file written before: judge its points again")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/scaling"), help="without the ending")
    parser.add_argument("--note", default="", help="a sentence for the page, such as what else the machine was doing")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 1 if options.quick else 2
    if options.rounds < 1 or options.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    return options


if __name__ == "__main__":
    main()
