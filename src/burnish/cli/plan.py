"""`burnish plan FILE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from burnish.cli.arguments import Overrides, RunFile
from burnish.cli.tables import show_table

if TYPE_CHECKING:
    from burnish.config.loading import LoadedConfig
    from burnish.config.schema import RunConfig
    from burnish.planning.plan import Plan

All = Annotated[bool, typer.Option("--all", help="List every value of the configuration, including defaults.")]

Simulate = Annotated[
    bool, typer.Option("--simulate", help="Simulate the run on other numbers of devices (docs/simulator.md).")
]
Devices = Annotated[
    str | None, typer.Option(help="Numbers of devices to simulate (default: 8,64,1024,10000).", show_default=False)
]
Recorded = Annotated[
    list[str] | None,
    typer.Option("--from", help="Folder of a recorded run to take lengths and times from; may be repeated."),
]
Numbers = Annotated[str | None, typer.Option(help="YAML file of numbers that take precedence over recorded ones.")]
Html = Annotated[str | None, typer.Option(help="Also write the simulated steps as a chart to this file.")]
Steps = Annotated[int | None, typer.Option(help="Steps for hours and cost (default: the run file's).", min=1)]
Price = Annotated[float | None, typer.Option(help="Price of one device (card) for one hour.", min=0, max=1e9)]
On = Annotated[
    str | None, typer.Option(help="Another machine: 8xH100-80GB, 2x8xH100-80GB, 2x24GB or a file.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ResponseTokens = Annotated[
    float | None, typer.Option(help="Mean response length in tokens, for step times.", min=1, show_default=False)
]
Mtbf = Annotated[float | None, typer.Option(help="Mean hours between failures of one device.", min=0)]
Slurm = Annotated[bool, typer.Option("--slurm", help="Print a Slurm batch script that starts the run.")]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(help="Like --slurm, with KEY=VALUE: partition, account, time, nodes ...; may be repeated."),
]


def show_plan(
    file: RunFile,
    overrides: Overrides = None,
    all_values: All = False,
    simulate: Simulate = False,
    devices: Devices = None,
    recorded: Recorded = None,
    numbers: Numbers = None,
    html: Html = None,
    steps: Steps = None,
    price: Price = None,
    mtbf: Mtbf = None,
    on: On = None,
    response_tokens: ResponseTokens = None,
    as_json: AsJson = False,
    slurm: Slurm = False,
    sbatch: Sbatch = None,
) -> None:
    """Show what a run will do, without doing it.

    Shows prompts, rollouts, minibatches, optimizer steps, models and memory,
    and where each value comes from. Nothing is downloaded and no weights are
    loaded: sizes come from the model's config.json. Local data and rewards are
    read, and anything that burnish rl, sft or rm would refuse is refused here
    too. With --on, the plan is for another machine: what fits, with which
    changes, how long it takes and what it costs (docs/plan.md).

    [bold]Examples[/bold]
    burnish plan run.yaml
    burnish plan run.yaml algorithm=dapo rollout.group_size=16
    burnish plan run.yaml --all
    burnish plan run.yaml --on 8xH100-80GB --price 2.5
    burnish plan run.yaml --simulate --from runs/short --devices 8,64
    burnish plan run.yaml --slurm --sbatch=time=24:00:00 > run.sbatch
    """

    from burnish.cli.arguments import load_any_run_file
    from burnish.cli.described_plan import described_lines, json_of
    from burnish.cli.simulated_plan import SimulationOptions, refuse_beside, show_simulation
    from burnish.machine.memory import uncollected

    loaded = load_any_run_file(file, overrides or ())
    described = {"--on": on, "--response-tokens": response_tokens, "--json": as_json}
    if slurm or sbatch:
        refuse_beside("--slurm", {"--simulate": simulate, "--price": price is not None, **described})
        _print_script(loaded.config, file, overrides or (), sbatch or ())
        return
    console = Console()
    options = SimulationOptions(devices, recorded or (), numbers, html, steps, price, mtbf)
    if simulate:
        refuse_beside("--simulate", described)
        show_simulation(loaded, options, console)
        return
    options.refuse_without_simulate()
    notes: list[str] = []
    with uncollected():
        from burnish.api.planning import Assumed, plan_of
        from burnish.planning.machines import described_machine

        machine = None if on is None else described_machine(on)

        def reload(words: Sequence[str]) -> RunConfig:
            return load_any_run_file(file, [*(overrides or ()), *words]).config

        plan = plan_of(loaded, notes, Assumed(response_tokens, price, machine, reload))
    if as_json:
        typer.echo(json.dumps(json_of(plan, loaded, notes), indent=1))
        return
    if machine is not None:
        for line in described_lines(plan, loaded, notes, overrides or ()):
            typer.echo(line)
        return
    _show_lines(plan, console)
    _show_models(plan, loaded, console)
    _show_seats(plan, console)
    _show_values(loaded, console, all_values)
    for warning in (*plan.warnings, *notes):
        console.print(f"[yellow]note[/] {escape(warning)}", soft_wrap=True)


def _print_script(config: RunConfig, file: str, overrides: Sequence[str], options: Sequence[str]) -> None:
    from burnish.planning.slurm import batch_script, read_options

    command = [sys.executable, "-m", "burnish", config.kind, file, *overrides]
    typer.echo(batch_script(config, command, Path.cwd(), read_options(options)), nl=False)


def _show_lines(plan: Plan, console: Console) -> None:
    for topic in dict.fromkeys(line.topic for line in plan.lines):
        rows = [(line.name, line.value, line.because) for line in plan.lines if line.topic == topic]
        show_table(console, ("what", "how many", "because"), rows, title=topic)


def _show_models(plan: Plan, loaded: LoadedConfig, console: Console) -> None:

    from burnish.planning.memory import bytes_in_words

    roles, title = [(role.role, role.because) for role in plan.models], f"models ({loaded.config.model.path})"
    show_table(console, ("model", "why it is loaded"), roles, title=title)
    if not plan.memory:
        return
    rows = [(item.name, bytes_in_words(item.num_bytes), item.formula) for item in plan.memory]
    because = "cache and activations are not needed at the same time"
    rows.append(("together, at most", bytes_in_words(plan.memory_bytes), because))
    show_table(console, ("memory (estimate)", "size", "from"), rows, title="memory")


def _show_seats(plan: Plan, console: Console) -> None:

    from burnish.planning.memory import bytes_in_words

    rows = []
    for seat in plan.seats:
        memory = bytes_in_words(seat.host_bytes) if plan.memory else "unknown"
        if plan.memory and seat.gpu is not None:
            memory += f", GPU {bytes_in_words(seat.device_bytes)}"
        rows.append((seat.name, memory, seat.computes, ", ".join(seat.holds)))
    show_table(console, ("process", "memory, at most", "computes with", "holds"), rows, title="processes")


def _show_values(loaded: LoadedConfig, console: Console, all_values: bool) -> None:
    values = ((path, str(value), loaded.provenance[path]) for path, value in loaded.values().items())
    rows = [(path, origin, value) for path, value, origin in values if all_values or origin != "default"]
    show_table(console, ("field", "from", "value"), rows, title="configuration")
