"""`burnish sandbox`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.cli.arguments import Port, secret_in
from burnish.cli.tables import show_table

if TYPE_CHECKING:
    from burnish.sandbox.confinement import Tier
    from burnish.sandbox.trial import Attack


commands = typer.Typer(
    rich_markup_mode="rich", add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
)
"""`burnish sandbox`, which tries the sandbox, and its subcommand `serve`."""

Host = Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")]
Processes = Annotated[int, typer.Option(help="Jobs to run at the same time.", min=1, max=1_024)]
Queue = Annotated[int, typer.Option(help="Jobs that may wait; more are refused with status 503.", min=0)]
TierName = Annotated[
    str, typer.Option("--tier", help="auto, namespaces, landlock, or process, which confines nothing.")
]
Seconds = Annotated[float, typer.Option(help="Longest time that a job can request.", min=0.1, max=3_600.0)]
Memory = Annotated[int, typer.Option(help="Most memory that a job can request.", min=16)]
_HELD = {True: "held", False: "not held"}
TokenVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds the token, of 16 characters or more.")
]


@commands.callback(invoke_without_command=True)
def try_sandbox(context: typer.Context) -> None:
    """Try to break out of the sandbox for models' code, and show what holds on this machine.

    Every tier faces the same attacks, and their effects are checked from
    outside. The exit status is 1 if no tier that confines programs holds. The
    weakest, `process`, limits only time and memory; it is shown for comparison.

    [bold]burnish sandbox serve[/bold] runs programs for other machines.
    """
    if context.invoked_subcommand is not None:
        return

    from burnish.sandbox.confinement import TIERS

    console = Console()
    found = {tier: _attacked(tier) for tier in TIERS}
    tried = [attacks for attacks, _, _ in found.values() if attacks]
    rows = [
        (attack.name, *(_HELD[attacks[index].held] if attacks else "" for attacks, _, _ in found.values()))
        for index, attack in enumerate(tried[0] if tried else ())
    ]
    show_table(console, ("attack", *TIERS), rows, title="what a program may not do, and whether it is held")
    for tier, (_, seconds, refused) in found.items():
        console.print(f"{tier}: {refused or f'tried in {seconds:.1f} s'}", markup=False, highlight=False)
    strongest = next((tier for tier in TIERS[:-1] if found[tier][0] and all(one.held for one in found[tier][0])), None)
    if strongest is None:
        console.print("no tier confines programs here: use Linux 6.2 or newer, outside of restricted containers")
        raise typer.Exit(1)
    console.print(f"tier: auto is [bold]{strongest}[/] on this machine")


@commands.command("serve")
def serve_sandbox(
    host: Host = "127.0.0.1",
    port: Port = 8080,
    processes: Processes = 2,
    queue: Queue = 64,
    tier: TierName = "auto",
    most_seconds: Seconds = 60.0,
    most_memory_mb: Memory = 2_048,
    token_variable: TokenVariable = None,
) -> None:
    """Run programs and tests for other machines, over HTTP.

    It implements SandboxFusion's API (POST /run_code), and judges whole jobs for
    [bold]sandbox: {url: ...}[/bold] in a run file (POST /judge).

    [bold]Examples[/bold]
    burnish sandbox serve --processes 8
    SECRET=... burnish sandbox serve --host 0.0.0.0 --token-variable SECRET
    """

    from burnish.outside.listening import listening, url_of
    from burnish.sandbox.job import Limits
    from burnish.sandbox.server import SandboxService, check_address, serve
    from burnish.sandbox.trial import opened

    most = Limits(seconds=most_seconds, processor_seconds=most_seconds, memory_mb=most_memory_mb)
    service = SandboxService(processes=processes, queue=queue, most=most, token=secret_in(token_variable))
    check_address(host, service.token)  # before the attacks, which take seconds
    with listening(host, port) as listener, opened(tier, processes=processes) as sandbox:
        url = url_of(listener, host)
        Console().print(f"tier {sandbox.tier}, {processes} at a time: {url}", highlight=False, markup=False)
        serve(sandbox, service, listener)


def _attacked(tier: Tier) -> tuple[list[Attack], float, str]:
    """The attacks on a tier, how long they took, and why there are none."""
    from burnish.errors import SandboxError
    from burnish.sandbox.sandbox import Sandbox
    from burnish.sandbox.trial import attack

    began = time.monotonic()
    try:
        with Sandbox(tier) as sandbox:
            return attack(sandbox), time.monotonic() - began, ""
    except SandboxError as error:
        return [], time.monotonic() - began, str(error).splitlines()[0]
