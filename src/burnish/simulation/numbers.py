"""The numbers of a simulation, each from the first that has it: a file of numbers, a recorded run, the run file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burnish.config.problems import Problem, raise_problems
from burnish.config.schema import RlConfig
from burnish.config.yaml_text import parse_yaml, read_run_text
from burnish.errors import ConfigError
from burnish.simulation.fit import fit_decoding, fit_phase
from burnish.simulation.lengths import Lengths, LogNormalLengths, RecordedLengths
from burnish.simulation.recorded import Recording
from burnish.simulation.settings import Decoding, Failures, Phase, SimulationSettings
from burnish.types import Json
from burnish.words import suggestion

_COUNTS = (
    "devices_per_engine",
    "rows_per_engine",
    "stream",
    "checkpoint_every_steps",
    "prompts_per_step",
    "group_size",
)
_COUNTS_FROM_0 = ("max_staleness", "window", "seed")
_SECONDS = ("other_seconds", "prompt_tokens", "prefill_seconds", "reward_seconds", "price_per_device_hour")
_PHASES = ("update", "logprobs", "push")
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "lengths": ("median", "mean", "sigma", "longest", "values"),
    "decoding": ("base_seconds", "row_seconds", "context_seconds"),
    "failures": ("mtbf_hours", "restart_seconds", "checkpoint_seconds"),
}
_PHASE_KEYS = ("fixed_seconds", "divided_seconds")
KNOWN = (*_COUNTS, *_COUNTS_FROM_0, *_SECONDS, "partial", *_PHASES, *_SECTIONS)
"""Keys of a file of numbers."""


@dataclass(slots=True)
class _Reader:
    """A file of numbers and the problems found in it."""

    data: Mapping[str, Json]
    problems: list[Problem] = field(default_factory=list)

    def number(self, key: str, value: Json, least: float) -> float:
        if type(value) in (int, float) and isinstance(value, int | float) and least <= value < float("inf"):
            return value
        self.problems.append(Problem(key, f"{key} is {value!r}", f"give a number of at least {least:g}"))
        return max(least, 1.0)

    def section(self, name: str) -> dict[str, Json]:
        value = self.data.get(name, {})
        if isinstance(value, dict):
            return value
        self.problems.append(Problem(name, f"{name} is {value!r}", "give a section of `key: value`"))
        return {}

    def unknown(self, section: Mapping[str, Json], known: Sequence[str], above: str = "") -> None:
        for key in section:
            if key not in known:
                self.problems.append(Problem(above + key, f"{above}{key} is not known", suggestion(key, known)))


def read_numbers(path: Path) -> dict[str, object]:
    """Read fields of SimulationSettings from a file (YAML).

    Raises one ConfigError for all problems: unknown keys, and values of the wrong kind or out of range.
    """
    parsed = parse_yaml(read_run_text(path))
    data = parsed.data if isinstance(parsed.data, dict) else {}
    reader = _Reader(data, list(parsed.problems))
    if parsed.data is not None and not isinstance(parsed.data, dict):
        reader.problems.append(Problem("", "it is not a section of `key: value`", "see docs/simulator.md"))
    reader.unknown(data, KNOWN)
    found = dict(_fields(reader))
    raise_problems(reader.problems, source=str(path), where={key: f"{path}:{n}" for key, n in parsed.lines.items()})
    return found


def _fields(reader: _Reader) -> Iterator[tuple[str, object]]:
    for keys, least, kind in ((_COUNTS, 1, int), (_COUNTS_FROM_0, 0, int), (_SECONDS, 0, float)):
        for key in keys:
            if key in reader.data:
                number = reader.number(key, reader.data[key], least)
                if kind is int and number != int(number):
                    reader.problems.append(Problem(key, f"{key} is {number}", "give a whole number"))
                yield key, kind(number)
    if "partial" in reader.data:
        if not isinstance(reader.data["partial"], bool):
            reader.problems.append(Problem("partial", f"partial is {reader.data['partial']!r}", "give true or false"))
        yield "partial", reader.data["partial"] is True
    for name in _PHASES:
        if name in reader.data:
            yield name, _phase(reader, name)
    if "lengths" in reader.data:
        yield "lengths", _lengths(reader)
    if "decoding" in reader.data:
        yield "decoding", Decoding(**_values(reader, "decoding", required=("base_seconds",)))
    if "failures" in reader.data:
        yield "failures", Failures(**_values(reader, "failures", required=("mtbf_hours",)))


def _values(reader: _Reader, name: str, required: Sequence[str]) -> dict[str, float]:
    """Read the numbers of a section. Missing and wrong ones are noted as problems, and 1 stands in for them."""
    section, known = reader.section(name), _SECTIONS[name]
    reader.unknown(section, known, f"{name}.")
    for key in required:
        if key not in section:
            reader.problems.append(Problem(name, f"{name}.{key} is missing", "add it"))
    given = {key: reader.number(f"{name}.{key}", section[key], 0) for key in known if key in section}
    return dict.fromkeys(required, 1.0) | given


def _phase(reader: _Reader, name: str) -> Phase:
    """`{fixed_seconds: 2, divided_seconds: 10}`, or measured seconds by the number of devices: `{8: 3.2, 16: 2.1}`."""
    section = reader.section(name)
    if not any(key in _PHASE_KEYS for key in section) and section and all(key.isdigit() for key in section):
        points = [(int(key), reader.number(f"{name}.{key}", value, 0)) for key, value in section.items()]
        if min(devices for devices, _ in points) > 0:
            return fit_phase(points)
        reader.problems.append(Problem(name, f"{name} has seconds on 0 devices", "count devices from 1"))
        return Phase()
    reader.unknown(section, _PHASE_KEYS, f"{name}.")
    return Phase(**{key: reader.number(f"{name}.{key}", section[key], 0) for key in _PHASE_KEYS if key in section})


def _lengths(reader: _Reader) -> Lengths:
    """Recorded `values`, or `median` or `mean` with `sigma` and `longest`."""
    section = reader.section("lengths")
    reader.unknown(section, _SECTIONS["lengths"], "lengths.")
    values = section.get("values")
    if isinstance(values, list) and values:
        return RecordedLengths.of([int(reader.number("lengths.values", value, 1)) for value in values])
    named = [key for key in ("median", "mean") if key in section]
    if len(named) != 1 or "sigma" not in section or "longest" not in section:
        remedy = "give `values`, or `median` or `mean` with `sigma` and `longest`"
        reader.problems.append(Problem("lengths", "lengths does not say what they are", remedy))
        return RecordedLengths((1,))
    of, sigma, longest = (reader.number(f"lengths.{key}", section[key], 1e-3) for key in (named[0], "sigma", "longest"))
    try:
        if named[0] == "median":
            return LogNormalLengths(of, sigma, int(longest))
        return LogNormalLengths.with_mean(of, sigma, int(longest))
    except ConfigError as error:
        reader.problems.append(Problem("lengths", error.message, error.remedy or "change them"))
        return RecordedLengths((1,))


def recorded_numbers(recordings: Sequence[Recording], wanted: int) -> dict[str, object]:
    """Derive fields from recorded runs; several runs give seconds by number of devices.

    Work that divides, and everything besides sampling and training, is scaled from the recorded number of responses to
    the number of the simulated step (`wanted`).
    """
    steps = [step for recording in recordings for step in recording.steps]
    responses = sum(len(step.responses) for step in steps)
    scale = wanted / (responses / len(steps))
    return {
        "lengths": RecordedLengths.of([tokens for recording in recordings for tokens in recording.lengths]),
        "decoding": fit_decoding([step.decoded for step in steps]),
        "prompt_tokens": sum(recording.prompt_tokens for recording in recordings) / len(recordings),
        "prefill_seconds": sum(step.prefill_seconds for step in steps) / responses,
        "reward_seconds": sum(step.reward_seconds for step in steps) / len(steps),
        "other_seconds": scale * sum(step.other_seconds for step in steps) / len(steps),  # mostly writing responses
        "update": _recorded_phase(recordings, "update_seconds", wanted),
        "logprobs": _recorded_phase(recordings, "logprobs_seconds", wanted),
        "push": fit_phase([(recording.devices, recording.mean("push_seconds")) for recording in recordings]),
    }


def _recorded_phase(recordings: Sequence[Recording], name: str, responses: int) -> Phase:
    """Fit a phase. Seconds of runs with different sizes of steps are first scaled to their mean size."""
    size = sum(recording.responses_per_step for recording in recordings) / len(recordings)
    scales = [size / recording.responses_per_step for recording in recordings]
    points = [(r.devices, r.mean(name) * scale) for r, scale in zip(recordings, scales, strict=True)]
    phase = fit_phase(points)
    return Phase(phase.fixed_seconds, phase.divided_seconds * responses / size)


def simulation_settings(
    config: RlConfig, recordings: Sequence[Recording] = (), typed: Mapping[str, object] | None = None
) -> SimulationSettings:
    """Combine the settings of a run: `typed` numbers win over recorded ones, and these over the run file.

    Raises ConfigError if the lengths of responses, or the seconds of decoding and updating, are not known.
    """
    found: dict[str, object] = {
        "prompts_per_step": config.rollout.prompts_per_step,
        "group_size": config.rollout.group_size,
        "rows_per_engine": config.rollout.max_batch_rows,
        "max_staleness": config.max_staleness,
        "partial": config.partial,
        "steps": config.steps,
        "checkpoint_every_steps": config.checkpoint.every_steps,
        "seed": config.seed,
    }
    typed = typed or {}
    if recordings:
        prompts, group = (typed.get(name, found[name]) for name in ("prompts_per_step", "group_size"))
        assert isinstance(prompts, int)
        assert isinstance(group, int)
        found |= recorded_numbers(recordings, prompts * group)
    found |= typed
    missing = [name for name in ("lengths", "decoding", "update") if name not in found]
    if missing:
        raise ConfigError(
            f"nothing says what these are: {', '.join(missing)}",
            remedy="give a recorded run (--from RUN) or a file of numbers (--numbers FILE, see docs/simulator.md)",
        )
    return SimulationSettings(**found)  # type: ignore[arg-type]  # each value was checked where it was read
