"""The doctor's findings as text that can be pasted anywhere, and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from burnish.doctor.facts import FORMAT, Chosen, Facts, Kernels, Problem, Processor, Versions
from burnish.planning.memory import bytes_in_words
from burnish.types import Json

WIDTH = 116
"""Of the text, in characters: it does not follow the terminal, because it is made to be pasted elsewhere."""
LEFT_OUT = "not tried (--quick)"
_PRODUCTS = {"float32": "float32", "float32_fast": "fast float32", "bfloat16": "bfloat16"}
FLOAT32, DECODING = "float32 products", "decoding"
"""Paths that not every model has a choice of, and that everybody asks about."""
WIDTH_OF_FLOAT32, NARROW_WIDTH_OF_FLOAT32 = 512, 128
"""WIDTH and NARROW_WIDTH of `burnish.forward.float32`, which cannot be read where PyTorch does not load."""


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of a name and a text under a title. `note`: a word on all rows."""

    title: str
    rows: tuple[tuple[str, str], ...]
    note: str = ""

    def lines(self, name_width: int) -> Iterator[str]:
        """The rows, aligned; long texts go on under their beginning."""
        indent = " " * (name_width + 4)
        for name, text in self.rows:
            first = f"  {name:<{name_width}}  "
            yield from textwrap.wrap(
                text, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
            ) or [first.rstrip()]


def sections(facts: Facts) -> tuple[Section, ...]:
    """Everything but the problems."""
    found = [
        Section("versions", tuple(_versions(facts.versions))),
        Section("system", tuple(_system(facts))),
        Section("processor", tuple(_processor(facts.processor))),
    ]
    if facts.kernels is not None:
        found.append(Section("kernels in C", tuple(_kernels(facts.kernels))))
    if not facts.versions.broken:
        note = "" if facts.rates is None else f"with {_count(facts.rates.threads, 'thread')}, medians"
        found.append(Section("rates", tuple(_rates(facts)), note))
        found.append(Section("paths of a run", tuple(_paths(facts))))
    found.append(Section("sandbox", tuple(_sandbox(facts))))
    if facts.gpus is not None:
        found.append(Section("GPUs", tuple(_gpus(facts))))
    return tuple(found)


def text_lines(facts: Facts, problems: Sequence[Problem]) -> Iterator[tuple[str, bool]]:
    """The report line by line, each with whether it is a title."""
    found = sections(facts)
    width = max(len(name) for section in found for name, _ in section.rows)
    for section in found:
        yield section.title + (f" ({section.note})" if section.note else ""), True
        yield from ((line, False) for line in section.lines(width))
        yield "", False
    yield "problems", True
    if not problems:
        yield "  none found", False
    for problem in problems:
        yield from ((line, False) for line in _wrapped(f"{problem.weight}: {problem.what}", "  ", "    "))
        yield from ((line, False) for line in _wrapped(f"-> {problem.remedy}", "    ", "       "))


def as_plain(facts: Facts, problems: Sequence[Problem]) -> dict[str, Json]:
    """Plain data: numbers as they are (bytes, seconds, per second), null for what is not known."""
    plain: dict[str, Json] = {"format": FORMAT}
    plain |= dataclasses.asdict(facts)
    plain["problems"] = [dataclasses.asdict(problem) for problem in problems]
    return plain


def _versions(versions: Versions) -> Iterator[tuple[str, str]]:
    commit, changed, _ = (versions.revision or "").partition("+")
    revision = f" (commit {commit[:12]}{', with changes' if changed else ''})" if commit else ""
    yield "burnish", versions.burnish + revision
    yield "python", versions.python
    for package, version in versions.packages.items():
        yield package, versions.broken.get(package, "") or version or "not installed"
    there = [extra for extra in versions.extras if extra.is_there]
    if there:
        yield "extras", ", ".join(f"{extra.name} ({_versions_of(extra.packages)})" for extra in there)
    missing = [f"{extra.name} (for {extra.enables})" for extra in versions.extras if not extra.is_there]
    if missing:
        yield "not installed", "; ".join(missing)


def _versions_of(packages: Mapping[str, str | None]) -> str:
    return ", ".join(str(version) for version in packages.values())


def _system(facts: Facts) -> Iterator[tuple[str, str]]:
    system = facts.system
    yield "system", ", ".join(filter(None, (system.name, system.distribution, system.libc)))
    memory = [] if system.memory_bytes is None else [bytes_in_words(system.memory_bytes)]
    if system.available_bytes is not None:
        memory.append(f"{bytes_in_words(system.available_bytes)} available")
    if system.limits.memory_bytes is not None:
        memory.append(f"limited to {bytes_in_words(system.limits.memory_bytes)} (control group)")
    yield "memory", ", ".join(memory) or "unknown"
    for storage in facts.storage:
        kind = "" if storage.kind is None else f" ({storage.kind})"
        size = f"{bytes_in_words(storage.free_bytes)} of {bytes_in_words(storage.total_bytes)} free"
        yield storage.place, f"{size}{kind}"
    yield (
        "processes",
        "reward workers, candidates and conversations are forked from small warm parents; trainers and rollout workers "
        "are new interpreters",
    )


def _processor(processor: Processor) -> Iterator[tuple[str, str]]:
    yield "name", f"{processor.name} ({processor.machine})"
    allowed = "" if processor.allowed_cores == processor.cores else f", of which {processor.allowed_cores} may be used"
    yield "cores", f"{processor.cores}{allowed}"
    if processor.threads is not None:
        yield "threads", f"{processor.threads} ({processor.threads_because}); cluster.threads sets those of a cluster"
    if processor.capabilities:
        yield "has", ", ".join(name for name, has in processor.capabilities.items() if has) or "none of these"
        lacks = [name for name, has in processor.capabilities.items() if not has]
        yield "lacks", ", ".join(lacks) or "nothing of interest"
    if processor.vectors is not None:
        yield "PyTorch uses", processor.vectors
    yield "environment", ", ".join(f"{name}={value}" for name, value in processor.settings.items()) or "nothing set"


def _kernels(kernels: Kernels) -> Iterator[tuple[str, str]]:
    yield "compiler", kernels.version or kernels.compiler or f"none: {kernels.problem}"
    if kernels.built is None:
        yield "usable", LEFT_OUT if kernels.problem is None else "no"
    else:
        yield "usable", "yes" if kernels.built else f"no: {kernels.problem}"
    if kernels.cache is None:
        yield "kept in", "nowhere, because there is no home folder"
    elif kernels.cache_problem is not None:
        yield "kept in", f"{kernels.cache}, which cannot be used: {kernels.cache_problem}"
    else:
        kept = f"{_count(kernels.libraries, 'library', 'libraries')}, {_count(kernels.timings, 'timing')} of ways"
        yield "kept in", f"{kernels.cache}: {kept}"
    if kernels.forgotten is not None:
        yield "forgotten", f"{_count(kernels.forgotten, 'timing')} (--fresh)"


def _rates(facts: Facts) -> Iterator[tuple[str, str]]:
    rates = facts.rates
    if rates is None:
        yield "all", _left_out(facts)
        return
    accurate = "as accurate as the usual ones" if rates.medium_is_accurate else "less accurate, so never used"
    for kind, rate in rates.products.items():
        remark = f" ({accurate})" if kind == "float32_fast" else ""
        yield f"{_PRODUCTS[kind]} products", f"{rate / 1e9:.3g} G multiply-adds per second{remark}"
    yield "memory, read", f"{rates.memory_read / 1e9:.3g} GB per second"
    yield "start of Python", f"{rates.process_start:.2g} s"


def _paths(facts: Facts) -> Iterator[tuple[str, str]]:
    paths = facts.paths
    if paths is None:
        yield "model", _left_out(facts)
        return
    yield "model", paths.model
    if paths.not_tried is not None:
        yield "not tried", paths.not_tried
        return
    chosen = {choice.path: _way(choice) for choice in paths.choices}
    if FLOAT32 not in chosen:
        yield (
            FLOAT32,
            f"{paths.float32}; others are tried for float32 models of width {WIDTH_OF_FLOAT32} and more (Llama's "
            f"architecture: {NARROW_WIDTH_OF_FLOAT32}), without a GPU",
        )
    yield from chosen.items()
    if paths.decoder is not None and DECODING not in chosen:
        yield DECODING, f"{paths.decoder}; others are tried for Llama's architecture, without debug.plain"
    padded = "padded: packed ones were off (debug.plain, a reward model), or changed this model's numbers"
    yield "training rows", padded if paths.attention is None else f"packed, attention by {paths.attention}"
    yield from (("note", note) for note in paths.notes)


def _way(choice: Chosen) -> str:
    way = choice.words.removeprefix(f"{choice.path} by ")
    if choice.timed is not None:
        return f"{way}, timed {choice.timed}"
    if choice.path == FLOAT32 and choice.way == "highest":
        return f"{way}; the faster ones are turned off, or less accurate here"
    return way


def _left_out(facts: Facts) -> str:
    return LEFT_OUT if facts.processor.fault is None else "not tried, because every run is refused: see the problems"


def _sandbox(facts: Facts) -> Iterator[tuple[str, str]]:
    sandbox = facts.sandbox
    how = "held against all attacks" if sandbox.attacked else "could be started, and was not attacked"
    yield "tier: auto", "none that confines programs" if sandbox.auto is None else f"{sandbox.auto}, which {how}"
    yield from ((tier, reason) for tier, reason in sandbox.tiers.items() if reason is not None)


def _gpus(facts: Facts) -> Iterator[tuple[str, str]]:
    assert facts.gpus is not None
    yield "PyTorch is for", facts.gpus.build
    yield "NVIDIA's driver", facts.gpus.driver or "none"
    if not facts.gpus.found:
        yield "found", facts.gpus.failure or "none"
    for number, gpu in enumerate(facts.gpus.found):
        memory = f"{bytes_in_words(gpu.free_bytes)} of {bytes_in_words(gpu.total_bytes)} free"
        yield f"GPU {number}", f"{gpu.name}, {memory}, capability {gpu.capability}"


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"
