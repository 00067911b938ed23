"""Predicted against measured step time on this machine.

    python benchmarks/simulator.py                              # one process: about two minutes
    python benchmarks/simulator.py --cpu-seconds                # on a machine that others use too
    python benchmarks/simulator.py --second RUN --samplers 1    # also: a recorded run with two workers

Trains the arithmetic demo's model for a few steps with two sizes of a step, fits the simulator to both, and predicts
the step time of other steps of each, and of a third size that it has not seen. Responses have random lengths: the model
is untrained, and ends each response when it happens to draw the end of the text. The three runs take turns, so that all
of them see the machine as busy as it is. Fitted to the odd steps and compared with the even ones, by their medians.

The cluster's own processes are compared through `--second`, the folder of a run that was recorded with them.
Writes OUTPUT.md and OUTPUT.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from report import publish

from burnish.config.loading import load_run_file
from burnish.config.schema import RlConfig
from burnish.simulation.forecast import forecast
from burnish.simulation.numbers import simulation_settings
from burnish.simulation.recorded import Recording, read_recording
from burnish.simulation.settings import Layout, SimulationSettings

FITTED = (16, 64)
"""Prompts per step of the runs that the simulator is fitted to."""
UNSEEN = 32
TURNS, STEPS_PER_TURN = 3, 5
RUN = """\
output: {output}
seed: 1
model: {{path: {model}, device: cpu}}
data: {{train: {data}}}
rewards: {{name: length, options: {{maximum: 24}}}}
algorithm: {{preset: grpo, kl_in: none}}
steps: {steps}
rollout: {{prompts_per_step: {prompts}, group_size: 16, max_prompt_tokens: 8, max_response_tokens: 40}}
optimization: {{learning_rate: 1e-6, minibatches: 2}}
checkpoint: {{every_steps: null}}
logging: {{sinks: []}}
"""


def main() -> None:
    options = parse()
    if options.cpu_seconds:
        time.perf_counter = time.process_time  # what all of Burnish's own seconds are read from
    sizes = sorted((*FITTED, UNSEEN))
    with tempfile.TemporaryDirectory(prefix="simulator-") as made:
        folder = Path(made)
        for turn in range(TURNS):
            for prompts in sizes:
                train(folder, prompts, STEPS_PER_TURN * (turn + 1))
        runs = {prompts: (config_of(folder, prompts), recorded(folder, prompts)) for prompts in sizes}
        firsts = [some(runs[prompts][1], odd=True) for prompts in FITTED]
        rows = [row(runs[prompts], firsts, seen=prompts in FITTED) for prompts in sizes]
        if options.second is not None:
            rows.append(second_row(runs[FITTED[-1]][0], firsts, options))
    publish(
        "simulator",
        options.output,
        rows,
        to_markdown,
        clock="CPU seconds of the process" if options.cpu_seconds else "wall-clock seconds",
    )


def config_of(folder: Path, prompts: int, steps: int = STEPS_PER_TURN) -> RlConfig:
    """The run file with so many prompts per step; made where there is none."""
    from burnish.demo import DemoFolder, write_data, write_model

    demo, file = DemoFolder(folder / "demo"), folder / f"{prompts}.yaml"
    if not demo.model.exists():
        write_data(demo, 1)
        write_model(demo.model, 1)
    output = folder / f"run-{prompts}"
    text = RUN.format(output=output, model=demo.model, data=demo.train, steps=steps, prompts=prompts)
    file.write_text(text, encoding="utf-8")
    return load_run_file(file, (), "rl").config


def train(folder: Path, prompts: int, steps: int) -> None:
    """Train up to so many steps, going on where the last turn ended."""
    from rich.console import Console

    from burnish.trainers.cluster import train_rl

    train_rl(config_of(folder, prompts, steps), console=Console(file=sys.stderr))


def recorded(folder: Path, prompts: int) -> Recording:
    """All steps but the first of each turn, in which ways to compute are chosen."""
    recording = read_recording(folder / f"run-{prompts}")
    return replace(recording, steps=tuple(step for step in recording.steps if step.step % STEPS_PER_TURN != 1))


def some(recording: Recording, *, odd: bool) -> Recording:
    """Every second step: the odd ones are fitted to, the even ones compared with."""
    return replace(recording, steps=tuple(step for step in recording.steps if (step.step % 2 == 1) is odd))


def row(run: tuple[RlConfig, Recording], fitted: list[Recording], *, seen: bool) -> dict[str, object]:
    """Prediction for a run, and what its steps took that nothing was fitted to."""
    config, recording = run
    settings = simulation_settings(config, fitted)
    steps = some(recording, odd=False).steps if seen else recording.steps
    name = f"{config.rollout.prompts_per_step} prompts per step, {'other steps' if seen else 'not seen'}"
    return compared(name, settings, Layout.together(1), [step.step_seconds for step in steps])


def second_row(config: RlConfig, fitted: list[Recording], options: argparse.Namespace) -> dict[str, object]:
    """The same for a run that was recorded with workers of its own."""
    second = read_recording(options.second)
    prompts = round(second.responses_per_step / config.rollout.group_size)
    typed = {"prompts_per_step": prompts, "max_staleness": options.max_staleness}
    settings = simulation_settings(config, fitted, typed)
    layout = Layout(options.samplers, second.devices)
    return compared(f"{options.second}: {layout}", settings, layout, [step.step_seconds for step in second.steps])


def compared(name: str, settings: SimulationSettings, layout: Layout, measured: list[float]) -> dict[str, object]:
    predicted = forecast(settings, layout).step_seconds
    middle = statistics.median(measured)
    return {
        "name": name,
        "predicted": predicted,
        "measured": middle,
        "least": min(measured),
        "most": max(measured),
        "error": predicted / middle - 1,
    }


def to_markdown(report: Mapping[str, Any]) -> str:
    about = (
        f"`{report['command']}` on {report['date']}: {report['processor']}, one process, load average "
        f"{report['load_after']} after, {report['clock']}. Fitted to the odd steps of runs with {FITTED[0]} and "
        f"{FITTED[1]} prompts. Measured are medians, and the fastest and the slowest step: where these are far apart, "
        "the machine was busy."
    )
    lines = [
        "# Predicted and measured steps",
        "",
        *textwrap.wrap(about, 120),
        "",
        "| run | predicted s | measured s | from to | error |",
        "|---|---:|---:|---:|---:|",
    ]
    for found in report["rows"]:
        spread = f"{found['least']:.3f} to {found['most']:.3f}"
        numbers = f"{found['predicted']:.3f} | {found['measured']:.3f} | {spread} | {found['error']:+.1%}"
        lines.append(f"| {found['name']} | {numbers} |")
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/simulator.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cpu-seconds", action="store_true", help="of this process, in place of wall-clock seconds")
    parser.add_argument("--second", type=Path, help="folder of a run recorded with rollout workers")
    parser.add_argument("--samplers", type=int, default=1, help="its rollout workers (default: 1)")
    parser.add_argument("--max-staleness", type=int, default=1, help="its max_staleness (default: 1)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/simulator"), help="without the ending")
    return parser.parse_args()


if __name__ == "__main__":
    main()
