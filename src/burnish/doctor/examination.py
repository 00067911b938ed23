"""Gathers the facts in the order in which they depend on each other, and leaves out what needs a PyTorch that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from burnish.config.schema import RunConfig
from burnish.doctor.facts import Facts, Processor, Sandbox
from burnish.doctor.machine import find_processor, find_storage, find_system, threads_because
from burnish.doctor.privacy import hidden
from burnish.doctor.versions import find_versions
from burnish.errors import SandboxError
from burnish.planning.memory import Trained


def examine(about: Trained | Path | None = None, *, quick: bool = False, fresh: bool = False) -> Facts:
    """Everything about this machine. about: the run or the model folder whose paths are tried; None takes a small
    model. quick: measure, build and try nothing. fresh: forget the timings that are kept."""
    versions, system = find_versions(), find_system()
    facts = Facts(
        versions=versions,
        system=system,
        processor=find_processor(system.limits),
        sandbox=find_sandbox(attacks=not quick),
        storage=find_storage(nearest_folder(Path(about.output) if isinstance(about, RunConfig) else Path.cwd())),
    )
    if versions.broken:
        return facts
    return _with_pytorch(facts, about, quick=quick, fresh=fresh)


def find_sandbox(*, attacks: bool) -> Sandbox:
    """The tier that `auto` is, and why those before it are not. Without attacks, the strongest that can be started."""
    from burnish.sandbox.confinement import TIERS
    from burnish.sandbox.sandbox import Sandbox as Opened
    from burnish.sandbox.trial import attack

    found: dict[str, str | None] = {}
    for tier in TIERS[:-1]:
        try:
            with Opened(tier) as sandbox:
                fallen = [one.name for one in attack(sandbox) if not one.held] if attacks else []
        except SandboxError as error:
            found[tier] = hidden(str(error).splitlines()[0])
            continue
        found[tier] = f"does not hold: {', '.join(fallen)}" if fallen else None
        if not fallen:
            return Sandbox(tier, found, attacks)
    return Sandbox(None, found, attacks)


def nearest_folder(path: Path) -> Path:
    """The path itself, or the first folder above it that exists."""
    path = path.expanduser().absolute()
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))


def _with_pytorch(facts: Facts, about: Trained | Path | None, *, quick: bool, fresh: bool) -> Facts:
    from burnish.doctor.compiling import find_kernels, forget_timings
    from burnish.doctor.devices import find_gpus

    facts = replace(facts, processor=_as_pytorch_sees_it(facts.processor), gpus=find_gpus())
    forgotten = forget_timings() if fresh else None
    if facts.processor.fault is None and not quick:
        from burnish.doctor.choices import asked_about, find_paths  # slow to import
        from burnish.doctor.rates import measure_rates

        facts = replace(facts, rates=measure_rates(facts.system.available_bytes), paths=find_paths(asked_about(about)))
    return replace(facts, kernels=replace(find_kernels(builds=not quick), forgotten=forgotten))


def _as_pytorch_sees_it(processor: Processor) -> Processor:
    import torch

    threads = torch.get_num_threads()
    return replace(
        processor,
        vectors=torch.backends.cpu.get_cpu_capability(),
        threads=threads,
        threads_because=threads_because(threads),
    )
