"""Burnish's side of `step_shares.py`: steps by the clock, then one under PyTorch's profiler, and its
operations by phase and kind."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import child
import run_burnish
import torch
from rich.console import Console
from run_rates import best_rate, sustained_rate
from torch.profiler import ProfilerActivity, profile, record_function

from burnish.kernels.attention import AttentionKernels
from burnish.kernels.decoding import DecodeKernels
from burnish.kernels.products import ProductKernels
from burnish.kernels.training import TrainKernels
from burnish.observability.metrics import Stopwatch
from burnish.trainers.rl.setup.parts import open_rl_run

KINDS = (
    ("products", ("mm", "addmm", "addmm_", "bmm", "_linear_pointwise", "multiply")),
    (
        "attention",
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_MergedAttention",
            "_MergedAttentionBackward",
            "attend",
            "attend_forward",
            "attend_backward",
        ),
    ),
    (
        "kernels",
        (
            "add_and_normalise",
            "gate",
            "normalise_forward",
            "normalise_backward",
            "rotate_forward",
            "rotate_backward",
            "gate_forward",
            "gate_backward",
        ),
    ),
    ("softmax", ("_softmax", "_log_softmax", "exp", "exp_", "logsumexp")),
    ("optimizer", ("_fused_adamw_", "linalg_vector_norm")),
    (
        "copies",
        ("copy_", "cat", "index", "index_select", "index_copy_", "_index_put_impl_", "gather", "fill_", "index_add_"),
    ),
)
"""Operations by kind; what is in none is `other`. An operation counts for itself, not for those that it calls."""
MARK = "phase: "
READ_BYTES = 1 << 28
SUSTAINED_SECONDS = 3.0


def main() -> None:
    task, workload = child.read_task()
    before = task["warmup"] + task["unwatched"]
    config = run_burnish.build_config(task | {"warmup": before}, workload)
    run_burnish.end_as_planned(workload)
    marking_phases()
    marking_kernels()

    def best_now() -> float:
        return max(best_rate(kind, quick=task["quick"]) for kind in task["kinds"])

    def sustained_now() -> float:
        return max(sustained_rate(kind, 0.0 if task["quick"] else SUSTAINED_SECONDS) for kind in task["kinds"])

    with open_rl_run(config, Console(quiet=True)) as run:
        run_burnish.measure(run, task["warmup"], 0, logged=False)
        rates, sustained, seconds = [best_now()], [sustained_now()], []
        for _ in range(task["unwatched"]):
            seconds += run_burnish.measure(run, 0, 1, logged=False)["seconds"]
            rates.append(best_now())
            sustained.append(sustained_now())
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            result = run_burnish.measure(run, 0, 1, logged=False)
        rates.append(best_now())
        model = run.policy.model  # type: ignore[attr-defined]
        result["weight_bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
        if not model.config.tie_word_embeddings:  # otherwise the head reads the embedding
            result["weight_bytes"] -= model.get_input_embeddings().weight.nbytes  # looked up, not read
    result["shares"] = shares(profiler.events())
    result["step_seconds"] = [step["step"] for step in seconds]
    result["macs_per_second"] = [max(around) for around in itertools.pairwise(rates)]
    result["sustained_macs_per_second"] = sustained
    result["read_bytes_per_second"] = read_rate()
    result["settings"] = {}
    child.report(result, ["burnish", "torch", "transformers"])


def marking_phases() -> None:
    """The loop's own phases become ranges of the profile."""
    unmarked = Stopwatch.phase

    @contextmanager
    def phase(self: Stopwatch, name: str) -> Iterator[None]:
        with unmarked(self, name), record_function(MARK + name):
            yield

    Stopwatch.phase = phase  # type: ignore[method-assign]


def marking_kernels() -> None:
    """What runs in C becomes operations of the profile."""
    _mark(ProductKernels, "multiply", lambda given: "multiply")
    for kernels, names in ((DecodeKernels, ("add_and_normalise", "gate", "attend")), (TrainKernels, ("call",))):
        for name in names:
            _mark(kernels, name, lambda given, name=name: given[0] if name == "call" else name)
    for name in ("forward", "backward"):
        _mark(AttentionKernels, name, lambda given, name=name: f"attend_{name}")


def _mark(kernels: type, method: str, name: Callable[[tuple[Any, ...]], str]) -> None:
    unmarked = getattr(kernels, method)

    def marked(self: Any, *given: Any, **options: Any) -> Any:
        with record_function(f"kernels::{name(given)}"):
            return unmarked(self, *given, **options)

    setattr(kernels, method, marked)


def shares(events: Any) -> dict[str, dict[str, float]]:
    """Seconds of each phase: `all` of it, and by kind of operation."""
    ranges = [(e.time_range.start, e.time_range.end, e.name[len(MARK) :]) for e in events if e.name.startswith(MARK)]
    ranges.sort()
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for start, end, name in ranges:
        found[name]["all"] += (end - start) * 1e-6
    number = 0
    for event in sorted(events, key=lambda e: e.time_range.start):
        while number < len(ranges) and event.time_range.start >= ranges[number][1]:
            number += 1
        if number == len(ranges):
            break
        if event.time_range.start < ranges[number][0] or event.name.startswith(MARK):
            continue
        found[ranges[number][2]][kind(event.name)] += event.self_cpu_time_total * 1e-6
    return {name: dict(seconds) for name, seconds in found.items()}


def kind(operation: str) -> str:
    bare = operation.rsplit("::", 1)[-1]
    return next((name for name, members in KINDS if bare in members), "other")


def read_rate() -> float:
    """Bytes per second of reading memory, the fastest of seven."""
    numbers = torch.ones(READ_BYTES // 4)
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - started)
    return READ_BYTES / min(seconds)


if __name__ == "__main__":
    main()
