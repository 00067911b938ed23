"""Check of a run against a machine, and the smallest change that makes it fit.

Changes are tried in a fixed order: first the ones that leave a run's numbers as they are (up to rounding), each alone
and then more and more of them together; after that the ones that change the computation, without and with all of the
first. If several fit together, the unneeded ones are dropped. Each is written as words for the command line and
read by the loader of run files, so that whatever a run would refuse is not proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from burnish.config.schema_run import RunConfig
from burnish.errors import ConfigError
from burnish.planning.machines import Machine
from burnish.planning.memory import MemoryItem, Phase, bytes_in, table_of
from burnish.planning.model_facts import ModelFacts, RewardFacts
from burnish.planning.processes import PlannedProcess, seats_of
from burnish.planning.shortages import Shortage, cards_within_reach, shortages

Reload = Callable[[Sequence[str]], RunConfig]
"""The run file with further words of the command line. ConfigError for words that do not fit it."""

COLUMNS: dict[str, tuple[Phase, ...]] = {
    "rollout": ("sampling",),
    "log-probs": ("scoring", "log-probabilities", "reference", "teacher", "values"),
    "update": ("update", "optimizer step", "critic update", "critic's optimizer step"),
    "checkpoint": ("checkpoint", "trial of the first checkpoint"),
}
"""The phases of a step, as few as a table has room for."""
_KINDS = {
    "weights": ("weights", "sampling policy", "version"),
    "masters": ("master weights",),
    "gradients": ("gradients", "exchanged"),
    "Adam": ("moments", "optimizer state", "message with the last"),
    "activations": ("activations", "passes of reward"),
    "logits": ("log-probabilities", "logits of decoding"),
    "KV cache": ("key/value cache", "kept conversations"),
}
_FEWEST_TOKENS, _FEWEST_ROWS = 512, 8


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """The bytes of one kind of tensors in each of `COLUMNS`."""

    kind: str
    num_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Memory of processes with equal needs, by phase. there: bytes of one of their devices; None if that is not
    known."""

    processes: tuple[str, ...]
    on: str
    rows: tuple[MemoryRow, ...]
    peak: tuple[int, ...]
    there: int | None


def memory_tables(seats: Sequence[PlannedProcess], machine: Machine) -> tuple[MemoryTable, ...]:
    """One table for all processes that need the same, where they compute."""
    groups: dict[tuple[MemoryItem, ...], list[PlannedProcess]] = {}
    for seat in seats:
        groups.setdefault(seat.device if seat.gpu is not None else seat.host, []).append(seat)
    return tuple(_table(items, there, machine) for items, there in groups.items() if items)


def _table(items: Sequence[MemoryItem], seats: Sequence[PlannedProcess], machine: Machine) -> MemoryTable:
    of_kind: dict[str, list[MemoryItem]] = {}
    for item in items:
        of_kind.setdefault(kind_of(item), []).append(item)
    gpu = seats[0].gpu
    if gpu is None:
        on, there = "memory of its machine", machine.memory_bytes
    else:
        on, there = "a card", machine.gpu_bytes[gpu] if gpu < len(machine.gpu_bytes) else None
    largest = [max(phases, key=lambda phase: bytes_in(phase, items)) for phases in COLUMNS.values()]

    def columns(some: Sequence[MemoryItem]) -> tuple[int, ...]:
        """Sum the bytes of the phase that needs most in each column."""
        return tuple(bytes_in(phase, some) for phase in largest)

    rows = [MemoryRow(kind, columns(of_kind[kind])) for kind in (*_KINDS, "other") if kind in of_kind]
    return MemoryTable(tuple(seat.name for seat in seats), on, tuple(rows), columns(items), there)


def kind_of(item: MemoryItem) -> str:
    """The kind of tensors that a line of the estimate is about."""
    matching = [kind for kind, parts in _KINDS.items() if any(part in item.name for part in parts)]
    return "other" if not matching else matching[-1]


@dataclass(frozen=True, slots=True)
class Change:
    """Words for the command line, and what they cost."""

    words: tuple[str, ...]
    price: str


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of the check: what the run lacks, if anything, and changes that make it fit (empty if none were found)."""

    lacking: tuple[Shortage, ...]
    changes: tuple[Change, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.lacking

    @property
    def words(self) -> tuple[str, ...]:
        """The changes together, for the command line."""
        return _words(self.changes)


class Fitting:
    """Tries changes of a run on a machine."""

    def __init__(
        self, reload: Reload, facts: ModelFacts, machine: Machine, rewards: Sequence[RewardFacts] = ()
    ) -> None:
        self._reload, self._facts, self._machine, self._rewards = reload, facts, machine, rewards
        self._known: dict[tuple[str, ...], RunConfig | None] = {}

    def search(self, config: RunConfig) -> Fit:
        """The run as it is, and if it does not fit, the smallest change."""
        lacking = self._lacking(config)
        tried = next(filter(self._fits, self._candidates(config)), ()) if lacking else ()
        return Fit(lacking, self._needed(tried))

    def _candidates(self, config: RunConfig) -> Iterator[tuple[Change, ...]]:
        yield from ((change,) for change in same_numbers(config, self._machine))
        yield from self._more_and_more(config, ())
        changing = tuple(other_numbers(config))
        yield from ((change,) for change in changing)
        for change in changing:
            changed = self._changed((change,))
            if changed is not None:
                *_, most = ((change,), *self._more_and_more(changed, (change,)))
                yield most

    def _more_and_more(self, config: RunConfig, before: tuple[Change, ...]) -> Iterator[tuple[Change, ...]]:
        """Yield these changes with one more that keeps the numbers as they are, two more, ..., without refused ones."""
        for change in same_numbers(config, self._machine):
            if self._changed((*before, change)) is not None:
                before = (*before, change)
                yield before

    def _needed(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Drop changes that the run fits without, from the last one back, since the last ones cost most."""
        for change in reversed(changes):
            fewer = tuple(other for other in changes if other is not change)
            if fewer and self._fits(fewer):
                changes = fewer
        return changes

    def _fits(self, changes: Sequence[Change]) -> bool:
        config = self._changed(changes)
        return config is not None and not self._lacking(config)

    def _changed(self, changes: Sequence[Change]) -> RunConfig | None:
        """The run with these changes; None if it would be refused."""
        words = _words(changes)
        if words not in self._known:
            try:
                self._known[words] = self._reload(words)
            except ConfigError:
                self._known[words] = None
        return self._known[words]

    def _lacking(self, config: RunConfig) -> tuple[Shortage, ...]:
        return shortages(config, seats_of(config, self._facts, self._machine, self._rewards), self._machine)


def _words(changes: Sequence[Change]) -> tuple[str, ...]:
    """Join the words of changes. Later words replace earlier ones of the same field."""
    by_field = {word.partition("=")[0]: word for change in changes for word in change.words}
    return tuple(by_field.values())


def same_numbers(config: RunConfig, machine: Machine) -> Iterator[Change]:
    """Yield changes that leave the numbers as they are, up to rounding."""
    yield from _smaller_passes(config)
    if not config.model.gradient_checkpointing:
        yield Change(("model.gradient_checkpointing=true",), "about a third more computation")
    yield from _offloads(config)
    within_reach = cards_within_reach(config, machine)
    if within_reach < len(machine.gpu_bytes):
        yield Change(("cluster.backend=ray",), "processes on all nodes, started by Ray (or torchrun)")
        within_reach = len(machine.gpu_bytes)
    yield from _fewer_processes(config, within_reach)
    workers = config.cluster.num_processes - config.cluster.trainers
    most = within_reach - workers
    trainers = max((count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= most), default=1)
    if config.cluster.trainers > 1 and config.cluster.sharding != "full":
        yield Change(("cluster.sharding=optimizer",), "weights are exchanged too, once an optimizer step")
    if config.cluster.num_lanes > config.cluster.trainers:
        yield Change((f"cluster.lanes={config.cluster.trainers}",), "a step is summed in another order")
    if trainers > config.cluster.trainers:
        lanes = max(trainers, -(-config.cluster.num_lanes // trainers) * trainers)
        words = (f"cluster.trainers={trainers}", f"cluster.lanes={lanes}", "cluster.sharding=optimizer")
        yield Change(words, "more cards; a step is summed in another order (lanes)")


def _fewer_processes(config: RunConfig, most: int) -> Iterator[Change]:
    """Yield changes that leave at most `most` processes: first fewer rollout workers, then fewer trainers."""
    cluster = config.cluster
    others = cluster.num_processes - cluster.trainers - config.cluster.num_workers
    if not 0 < most < cluster.num_processes:
        return
    lanes = f"cluster.lanes={cluster.num_lanes}"
    if config.cluster.num_workers and most > cluster.trainers + others:
        yield Change((f"cluster.rollout_workers={most - cluster.trainers - others}", lanes), "fewer workers")
    for trainers in range(cluster.trainers - 1, 0, -1):
        workers = min(config.cluster.num_workers, most - trainers - others)
        if cluster.num_lanes % trainers == 0 and workers >= min(1, config.cluster.num_workers):
            fewer = (f"cluster.trainers={trainers}", f"cluster.rollout_workers={workers}")
            yield Change((*fewer[: 1 + bool(workers)], lanes), "fewer processes")
            return


def _smaller_passes(config: RunConfig) -> Iterator[Change]:
    """Yield changes to a half, a quarter, ... of a micro-batch's tokens, and of the rows decoded at the same time."""
    tokens, rows = config.optimization.microbatch_tokens, config.engine.rows
    while (tokens := tokens // 2) >= _FEWEST_TOKENS:
        yield Change((f"optimization.tokens_per_microbatch={tokens}",), "smaller passes")
    while (rows := rows // 2) >= _FEWEST_ROWS:
        yield Change((f"rollout.max_batch_rows={rows}",), "fewer responses are sampled at the same time")


def _offloads(config: RunConfig) -> Iterator[Change]:
    """Yield changes that offload the optimizer's state, then more roles."""
    before: list[str] = list(config.cluster.offload)
    for role in table_of(config).may_rest(config):
        if role not in before:
            before.append(role)
            yield Change((f"cluster.offload=[{','.join(before)}]",), "state travels to the host's memory and back")


def other_numbers(config: RunConfig) -> Iterator[Change]:
    """Yield changes that alter the computation, the mildest first."""
    if config.model.dtype == "float32":
        yield Change(("model.dtype=bfloat16",), "activations and weights of passes are rounded")
    if config.cluster.trainers > 1:
        yield Change(("cluster.sharding=full",), "weights are exchanged in every pass; equal up to rounding")
    if config.model.lora is None:
        dtype = ("model.dtype=bfloat16",) if config.model.dtype == "float32" else ()
        lora = (*dtype, "model.lora.rank=16")
        yield Change(lora, "only adapters are trained")
        yield Change((*lora, "model.quantization=int8"), "only adapters are trained, on weights in 8 bits")
        yield Change((*lora, "model.quantization=nf4"), "only adapters are trained, on weights in 4 bits")
    elif config.model.quantization != "nf4":
        yield Change(("model.quantization=int8",), "adapters learn on weights in 8 bits")
        yield Change(("model.quantization=nf4",), "adapters learn on weights in 4 bits")
