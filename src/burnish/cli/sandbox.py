"""`burnish sandbox`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from burnish.sandbox.confinement import Tier
    from burnish.sandbox.trial import Attack


def try_sandbox() -> None:
    """Try to break out of the sandbox that runs code from models, and say what holds on this machine.

    Every tier is attacked in the same ways, and the effects are looked for from
    outside. The exit status is 1 if no tier that confines programs holds. The
    weakest, `process`, limits only time and memory; it is shown for comparison.
    """
    from rich.console import Console
    from rich.table import Table

    from burnish.sandbox.confinement import TIERS

    console = Console()
    found = {tier: _attacked(tier) for tier in TIERS}
    table = Table("attack", *TIERS, title="what a program may not do, and whether it is held", title_justify="left")
    tried = [attacks for attacks, _, _ in found.values() if attacks]
    for index, attack in enumerate(tried[0] if tried else ()):
        cells = [_cell(attacks[index]) if attacks else "" for attacks, _, _ in found.values()]
        table.add_row(attack.name, *cells)
    console.print(table)
    for tier, (_, seconds, refused) in found.items():
        console.print(f"{tier}: {refused or f'tried in {seconds:.1f} s'}", markup=False, highlight=False)
    strongest = next((tier for tier in TIERS[:-1] if found[tier][0] and all(one.held for one in found[tier][0])), None)
    if strongest is None:
        console.print("no tier confines programs here: use Linux 6.2 or newer, outside of restricted containers")
        raise typer.Exit(1)
    console.print(f"tier: auto is [bold]{strongest}[/] on this machine")


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


def _cell(attack: Attack) -> str:
    return "held" if attack.held else "[bold red]not held[/]"
