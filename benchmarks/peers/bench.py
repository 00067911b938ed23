"""What is measured of one workload at one precision, a cell of the tables: Burnish, TRL in several ways, samplers."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from models import write_model, write_prompts
from parent import ScriptFailed, run_script
from report import BURNISH_LOW_MEMORY, HEAD, TRL_LOW_MEMORY, build_row
from search import Trial, by_speed, search
from settings import (
    AS_IT_COMES,
    BOUNDED,
    KEPT,
    TrlSettings,
    as_written,
    environment,
    low_memory,
    replaced,
    search_space,
)
from turn_models import write_turn_model
from workloads import Workload, check_same_work, encode, planned_lengths

HERE = Path(__file__).parent
VLLM = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in one process, whose memory is then all of it
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
START = TrlSettings(rows=8, matmul="medium", allocator=KEPT)
"""Where the search begins: what was fastest when nothing was searched."""
VLLM_SECONDS = 900.0
"""TRL with vLLM is ended after this time and the 20-fold of TRL's: it has not started."""


@dataclass
class Cell:
    """Figures of one workload at one precision. `failed`: peer and reason of what did not run."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    tried: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """Where things lie, and how much is measured.

    short_steps: measured steps of the tiny model, in place of `steps`. interpreters: by peer; `trl_vllm` is the one of
    TRL with vLLM. stamp: what every record says of where it comes from. fast_is_accurate: whether the faster float32
    product is as accurate as the usual one here. trl_rows: micro-batches to try. enough_seconds: measured time after
    which a trial ends.
    thorough: names of workloads for which TRL is searched; in the others it is measured only as the search starts.
    every_way: names of those for which TRL is also measured with little memory, as written and with vLLM.
    own_cache: keep built kernels and chosen paths to this run. Choices that another day's trial made are not part of
    a measurement; a quick run, which measures nothing, need not compile everything again.
    """

    folder: Path
    warmup: int
    steps: int
    short_steps: int
    interpreters: Mapping[str, str]
    stamp: Mapping[str, Any]
    fast_is_accurate: bool
    trl_rows: tuple[int, ...]
    enough_seconds: float
    thorough: frozenset[str]
    every_way: frozenset[str]
    own_cache: bool

    def prepare(self, workload: Workload, questions: list[str]) -> None:
        """Model and prompts, one prompt for every one that any step draws, so that none comes twice."""
        if not self.model(workload).exists():
            if workload.turns is None:
                write_model(workload.model, self.model(workload))
            else:
                write_turn_model(workload.model, workload.turns, self.model(workload))
        count = workload.prompts * (self.warmup + self.steps_of(workload))
        write_prompts(workload, count, questions, self.prompts(workload))

    def steps_of(self, workload: Workload) -> int:
        """Measured steps. Those of the tiny model are so short that a handful of them says more about the machine."""
        return self.short_steps if workload.model == "tiny" else self.steps

    def warm_up(self, workload: Workload, precision: str) -> None:
        """Let Burnish build its kernels and choose its paths once for each kind of run, as on a machine where it has
        run before. The compiler's memory is not part of any row."""
        warm = self.folder / f"{self.model(workload).name}-{precision}-{workload.ppo}.warm"
        if not warm.exists():
            say(f"{workload.name} {precision} Burnish, not measured: kernels and paths")
            self.run("burnish", workload, precision, AS_IT_COMES, naive=False)
            warm.touch()

    def model(self, workload: Workload) -> Path:
        return self.folder / f"{workload.model}{'' if workload.turns is None else '-turns'}"

    def prompts(self, workload: Workload) -> Path:
        return self.folder / f"{workload.name}.jsonl"

    def run(
        self,
        peer: str,
        workload: Workload,
        precision: str,
        allocator: str,
        *,
        timeout: float | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """One peer's result, after making sure that it did the planned work. `more` goes into the task as it is."""
        task = {
            "workload": encode(workload),
            "model": str(self.model(workload)),
            "prompts": str(self.prompts(workload)),
            "output": tempfile.mkdtemp(dir=self.folder),
            "precision": precision,
            "threads": self.stamp["threads"],
            "warmup": self.warmup,
            "steps": self.steps_of(workload),
            **more,
        }
        switched_off = tuple(self.stamp["switched_off"])
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")} if self.own_cache else {}
        result = run_script(
            HERE / f"run_{'trl' if peer == 'trl_vllm' else peer}.py",
            task,
            interpreter=self.interpreters[peer],
            environment=VLLM | environment(allocator, switched_off) | cache,
            timeout=timeout,
        )
        if "avx512" in switched_off and result["capability"] == "AVX512":
            raise ValueError(f"{peer} used AVX-512, which was to be switched off")
        done = len(result["lengths"])
        if done < task["steps"] and "enough_seconds" not in task:
            raise ValueError(f"{peer} measured {done} steps of {task['steps']} in {workload.name}")
        plan = planned_lengths(workload, self.prompts(workload), range(self.warmup, self.warmup + done))
        check_same_work(peer, workload, result, plan)
        return result


def measure(bench: Bench, workload: Workload, precision: str, near: TrlSettings | None = None) -> Cell:
    """One cell. Burnish comes first, and last with every allocator that a row of TRL had. near: settings from which
    TRL's are searched, the fastest of another workload of this model."""
    cell = Cell()
    bench.warm_up(workload, precision)
    measured = _Measuring(bench, workload, precision, cell)
    measured.add("Burnish", "burnish", AS_IT_COMES, "defaults", naive=False)
    if workload.ppo:
        measured.add("Burnish (naive)", "burnish", AS_IT_COMES, "debug.plain", naive=True)
    elif "trl" in bench.interpreters:
        _measure_trl(measured, near)
    if not (
        workload.kl or workload.ppo or workload.turns
    ):  # W4 and W7 sample what W2 does; no call holds conversations
        _measure_samplers(measured)
    for allocator in dict.fromkeys(row["allocator"] for row in cell.rows if row["peer"].startswith("TRL")):
        if allocator not in (AS_IT_COMES, BOUNDED):  # as it comes, Burnish sets the thresholds of `bounded` itself
            measured.add("Burnish", "burnish", allocator, "defaults", naive=False)
    return cell


@dataclass
class _Measuring:
    """A cell that is being filled."""

    bench: Bench
    workload: Workload
    precision: str
    cell: Cell

    @property
    def label(self) -> dict[str, Any]:
        return {**self.bench.stamp, "workload": self.workload.name, "precision": self.precision}

    def add(self, name: str, peer: str, allocator: str, words: str, **more: Any) -> dict[str, Any]:
        """Measure a row, and return it."""
        result = self.bench.run(peer, self.workload, self.precision, allocator, **more)
        label = {**self.label, "peer": name, "settings": words, "allocator": allocator}
        row = build_row(label, self.workload, result)
        self.cell.rows.append(row)
        say(f"{self.workload.name} {self.precision} {name} ({words}): {row['step_seconds']:.2f} s")
        return row

    def try_to_add(self, name: str, peer: str, allocator: str, words: str, **more: Any) -> dict[str, Any] | None:
        """Measure a row, or note why it cannot be."""
        try:
            return self.add(name, peer, allocator, words, **more)
        except (ScriptFailed, ValueError) as error:
            reason = error.reason if isinstance(error, ScriptFailed) else str(error)
            self.cell.failed.append({**self.label, "peer": name, "settings": words, "reason": reason})
            say(f"{self.workload.name} {self.precision} {name} ({words}) failed: {reason}")
            return None


def _measure_trl(measured: _Measuring, near: TrlSettings | None) -> None:
    """TRL with the fastest settings found, and otherwise."""
    bench, workload = measured.bench, measured.workload
    space = search_space(
        workload.rows,
        precision=measured.precision,
        fast_is_accurate=bench.fast_is_accurate,
        rows=bench.trl_rows,
    )
    wanted = near or START
    matmul = wanted.matmul if wanted.matmul in space["matmul"] else space["matmul"][0]
    start = replaced(wanted, rows=wanted.rows if wanted.rows in space["rows"] else space["rows"][-1], matmul=matmul)
    if workload.name not in bench.thorough:
        _add_trl(measured.add, "TRL", "trl", start)
        return
    trials = search(space, start, partial(_try, measured), near=near is not None)
    measured.cell.tried += [{**measured.label, **as_record(trial)} for trial in trials]
    row, fastest = _add_fastest(measured, by_speed(trials, start))
    took = sum(row["all_step_seconds"])
    _add_trl(measured.try_to_add, HEAD, "trl", replaced(fastest, response_head=True))
    if workload.name not in bench.every_way:
        return
    _add_low_memory(measured, low_memory(space))
    _add_trl(measured.try_to_add, "TRL, as written", "trl", as_written(workload.rows))
    with_vllm = replaced(fastest, vllm=True)
    _add_trl(measured.try_to_add, "TRL with vLLM", "trl_vllm", with_vllm, timeout=VLLM_SECONDS + 20 * took)


def _add_fastest(measured: _Measuring, by_speed: list[TrlSettings]) -> tuple[dict[str, Any], TrlSettings]:
    """TRL's row with the first settings that last: a whole run may need memory that a trial of fewer steps does not."""
    for settings in by_speed[:-1]:
        row = _add_trl(measured.try_to_add, "TRL", "trl", settings)
        if row is not None:
            return row, settings
    return _add_trl(measured.add, "TRL", "trl", by_speed[-1]), by_speed[-1]


def _add_low_memory(measured: _Measuring, settings: TrlSettings) -> None:
    """Both sides with little memory: as many tokens of a micro-batch as these rows of TRL have, and checkpointing."""
    _add_trl(measured.try_to_add, TRL_LOW_MEMORY, "trl", settings)
    tokens = settings.rows * measured.workload.row_tokens
    words = f"{tokens:,} tokens, checkpointing"
    measured.add(BURNISH_LOW_MEMORY, "burnish", AS_IT_COMES, words, naive=False, microbatch_tokens=tokens)


def _add_trl(add: Callable[..., Any], name: str, peer: str, settings: TrlSettings, **more: Any) -> Any:
    return add(name, peer, settings.allocator, settings.words(), settings=dataclasses.asdict(settings), **more)


def _try(measured: _Measuring, settings: TrlSettings, give_up_seconds: float | None) -> Trial:
    """One trial of the search."""
    enough = measured.bench.enough_seconds
    give_up_seconds = give_up_seconds and max(give_up_seconds, enough)  # short first steps say little, and cost little
    more = {"give_up_seconds": give_up_seconds, "enough_seconds": enough}
    try:
        result = measured.bench.run(
            "trl",
            measured.workload,
            measured.precision,
            settings.allocator,
            settings=dataclasses.asdict(settings),
            **more,
        )
    except ScriptFailed as error:
        say(f"{measured.workload.name} {measured.precision} TRL ({settings.words()}) failed: {error.reason}")
        return Trial(settings, None, None, error.reason)
    tokens = sum(response for step in result["lengths"] for _, response in step)
    seconds = sum(step["step"] for step in result["seconds"])
    speed = tokens / seconds if seconds else None
    say(
        f"{measured.workload.name} {measured.precision} TRL ({settings.words()}): "
        + (f"given up after {result['first_seconds']:.2f} s" if speed is None else f"{speed:,.0f} tokens/s")
    )
    return Trial(settings, result["first_seconds"], speed)


def as_record(trial: Trial) -> dict[str, Any]:
    return {
        "settings": trial.settings.words(),
        "first_seconds": trial.first_seconds,
        "tokens_per_second": trial.tokens_per_second,
        "failed": trial.failed,
    }


def _measure_samplers(measured: _Measuring) -> None:
    """Sampling alone: as it comes, and as fast as it goes."""
    measured.try_to_add("transformers.generate", "generate", AS_IT_COMES, "highest", matmul="highest")
    if measured.precision == "float32" and measured.bench.fast_is_accurate:
        measured.try_to_add("transformers.generate", "generate", KEPT, "medium", matmul="medium")
    if "vllm" in measured.bench.interpreters:
        measured.try_to_add("vLLM", "vllm", AS_IT_COMES, "eager", compiled=False)
        measured.try_to_add("vLLM", "vllm", KEPT, "compiled", compiled=True)


def cells(workloads: list[Workload], precisions: list[str], *, quick: bool) -> Iterator[tuple[Workload, str]]:
    """What is measured; the tiny model in float32 only, but for one cell of a quick run."""
    for workload in workloads:
        for precision in precisions:
            if precision == "float32" or workload.model != "tiny" or (quick and workload.name == "W1"):
                yield workload, precision


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
