"""Choice between equivalent implementations ("ways"): the one that the run began with, else the fastest here.

Ways agree up to rounding, so a choice changes the last bits of sums. A resumed run must therefore make the same choices
(the run's folder keeps them, `burnish.trainers.run_folder`), and so must two runs of one command on one machine
(timings are kept, `burnish.forward.verdicts`). If a choice is no longer possible, the run says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from burnish.forward.quantized_layers import QuantizedLinear
from burnish.forward.race import Contender, RaceResult, race
from burnish.forward.verdicts import VerdictCache, own_cache, sources_digest
from burnish.machine import processor
from burnish.types import PreTrainedModel

_SIZES = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


Timed = Literal["now", "before"]
"""Whether this start has timed the ways, or an earlier one on this machine whose times were kept."""


@dataclass(frozen=True, slots=True)
class PathChoice:
    """The way that a run takes. `outcome` and `timed` are None if nothing was timed; `required`: the run file asked for
    it."""

    path: str
    way: str
    outcome: RaceResult | None = None
    timed: Timed | None = None
    recorded: bool = False
    required: bool = False


class FastPaths:
    """The choices of one start of a run.

    recorded: ways by `path (shape)` with which the run began. cache: None times without keeping. timed: None asks
    `BURNISH_TIMING`; without timing the first way is taken. `notes` are sentences for the user.
    """

    def __init__(
        self,
        recorded: Mapping[str, str] | None = None,
        *,
        cache: VerdictCache | None = None,
        timed: bool | None = None,
        run_race: Callable[[Sequence[Contender]], RaceResult] | None = None,
    ) -> None:
        self._recorded = dict(recorded or {})
        self._cache = own_cache() if cache is None else cache
        self._timed = processor.times_paths() if timed is None else timed
        self._race = run_race or _race_here
        self._choices: dict[str, PathChoice] = {}
        self._timed_now: set[str] = set()
        self.notes: list[str] = []

    def choose(self, path: str, shape: str, ways: Sequence[Contender], *, required: str | None = None) -> str:
        """Name of the way to take. `ways`: equivalent implementations, the plainest last; `path` and `shape`: what is
        computed, and its size. `required` is taken whatever it costs, and timed all the same."""
        entry = f"{path} ({shape})"
        outcome, timed = self._timed_ways(path, shape, ways)
        names = [way.name for way in ways] if outcome is None else list(outcome.seconds)
        before = self._recorded.get(entry)
        chosen = self._choices.get(entry)  # for another model of this shape, with which it shares a record
        if required is not None:
            way = required
        elif before in names:
            way = before
        elif chosen is not None and chosen.way in names:
            way = chosen.way
        else:
            way = names[0] if outcome is None else outcome.winner
        if before is not None and before != way:
            self.notes.append(
                f"this run began with {path} by {before}, and goes on with {way}: its numbers will differ in the last "
                "bits from those of an undisturbed run"
            )
        self._choices[entry] = PathChoice(path, way, outcome, timed, before == way, required is not None)
        return way

    def timings(self, path: str, shape: str, ways: Sequence[Contender]) -> RaceResult | None:
        """Return the time of each way here, kept from before or measured now; None if there is nothing to compare or
        timing is off. Ways that fail are left out, and that is not kept: the next start may have the memory."""
        return self._timed_ways(path, shape, ways)[0]

    def settled(self, path: str, shape: str, decide: Callable[[], str]) -> str:
        """Return the value that the run began with, else the result of `decide`; record it like a choice of way."""
        entry = f"{path} ({shape})"
        way = self._recorded.get(entry) or decide()
        self._choices[entry] = PathChoice(path, way, recorded=entry in self._recorded)
        return way

    def known(self, path: str, shape: str, names: Sequence[str]) -> str | None:
        """The way that `choose` would take without running any: the run began with it, or it was the fastest before.
        None if that is not known."""
        before = self._recorded.get(f"{path} ({shape})")
        if before in names or not self._timed:
            return before if before in names else None
        outcome = self._cache.find(_key(path, shape, names))
        return None if outcome is None else outcome.winner

    def _timed_ways(self, path: str, shape: str, ways: Sequence[Contender]) -> tuple[RaceResult | None, Timed | None]:
        if len(ways) < 2 or not self._timed:
            return None, None
        key = _key(path, shape, [way.name for way in ways])
        known = self._cache.find(key)
        if known is not None:
            return known, "now" if f"{path} ({shape})" in self._timed_now else "before"
        able = [way for way in ways if self._runs(path, way)]
        self._timed_now.add(f"{path} ({shape})")
        if len(able) == len(ways):
            return self._cache.keep(key, self._race(ways)), "now"
        if len(able) > 1:
            return self._race(able), "now"
        only = able[0].name if able else ways[-1].name
        return RaceResult(only, {only: 0.0}), None

    def _runs(self, path: str, way: Contender) -> bool:
        try:
            way.run()
        except Exception as error:  # noqa: BLE001 boundary: code made for another processor may raise anything
            self.notes.append(f"{path} without {way.name}: {failure(error)}")
            return False
        return True

    def way(self, path: str) -> str | None:
        """The way last chosen for this path; None if there was no choice."""
        found = [choice.way for choice in self._choices.values() if choice.path == path]
        return found[-1] if found else None

    @property
    def choices(self) -> tuple[PathChoice, ...]:
        """The choices of this start, in the order in which they were made."""
        return tuple(self._choices.values())

    def record(self) -> dict[str, str]:
        """Return the ways by `path (shape)`, both the recorded ones of the run's beginning and the ones chosen now."""
        return {**self._recorded, **{entry: choice.way for entry, choice in self._choices.items()}}

    def follow(self, recorded: Mapping[str, str]) -> None:
        """Adopt these ways, which other processes of the run have chosen."""
        self._recorded.update(recorded)

    def lines(self, *, verbose: bool = True) -> list[str]:
        """The notes; with `verbose` also a line on what was chosen, by what factor and by whose timing, where there was
        anything to choose."""
        said = dict.fromkeys(in_words(choice) for choice in self.choices if verbose)
        line = f"fast paths: {', '.join(said)}{_by_whose_timing(self.choices)}"
        return [*([line] if said else []), *dict.fromkeys(self.notes)]


def _key(path: str, shape: str, names: Sequence[str]) -> dict[str, object]:
    """Everything that the outcome of a race depends on."""
    return {
        "path": path,
        "shape": shape,
        "ways": list(names),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "float32": torch.get_float32_matmul_precision(),
        "sources": sources_digest(),
        **processor.identity(),
    }


def _race_here(ways: Sequence[Contender]) -> RaceResult:
    """With one thread, measure its CPU time, which other processes do not disturb. With several threads, or a GPU,
    measure wall-clock time."""
    counts_own_time = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return race(ways, clock=time.thread_time if counts_own_time else time.perf_counter)


def in_words(choice: PathChoice) -> str:
    """`decoding by C kernels (2.1x the model's own)`, `float32 products by highest (medium is 13 % slower)`."""
    text = f"{choice.path} by {choice.way}"
    remarks = _comparisons(choice.way, choice.outcome) if choice.outcome is not None else []
    if choice.required:
        remarks.append("required")
    if choice.recorded:
        remarks.append("as the run began")
    return f"{text} ({', '.join(remarks)})" if remarks else text


def _by_whose_timing(choices: Sequence[PathChoice]) -> str:
    now = dict.fromkeys(choice.path for choice in choices if choice.timed == "now")
    if not any(choice.timed == "before" for choice in choices):
        return "; timed now" if now else ""
    return f"; timed now: {', '.join(now)}; the others timed before" if now else "; timed before"


def _comparisons(way: str, outcome: RaceResult) -> list[str]:
    """The way compared with the plainest; if it is the plainest, all others compared with it."""
    names = list(outcome.seconds)
    if way not in outcome.seconds or len(names) < 2:
        return []
    if way != names[-1]:
        return [f"{outcome.seconds[names[-1]] / outcome.seconds[way]:.2f}x {names[-1]}"]
    return [_compared(name, outcome.seconds[name] / outcome.seconds[way]) for name in names[:-1]]


def _compared(name: str, times_as_long: float) -> str:
    percent = round(100 * (times_as_long - 1))
    if percent == 0:
        return f"{name}: no faster here"
    return f"{name}: {percent} % slower here" if percent > 0 else f"{name}: only {-percent} % faster here"


def failure(error: Exception) -> str:
    """Describe on one line why the trial of a way failed."""
    return f"the trial ended with {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def shape_of(model: PreTrainedModel) -> str:
    """Sizes of a model that speed depends on, in words that are the same in every run."""
    settings = model.config.get_text_config().to_dict()
    sizes = [f"{name} {settings[name]}" for name in _SIZES if settings.get(name) is not None]
    weight = model.get_input_embeddings().weight
    bits = {f"{module.bits} bits" for module in model.modules() if isinstance(module, QuantizedLinear)}
    return ", ".join([*sizes, f"embedding {tuple(weight.shape)}", str(weight.dtype).removeprefix("torch."), *bits])


def shape_on_device(model: PreTrainedModel) -> str:
    """`shape_of` with the device, on another of which another way may be the fastest."""
    where = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device.type
    return f"{shape_of(model)}, {where}"
