"""The numbers of a simulation, each from the first that has it: a file of numbers, a recorded run, the run file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from burnish.config.explain import explain
from burnish.config.problems import Problem, named, raise_problems
from burnish.config.schema import RlConfig
from burnish.config.section import NonNegativeInt, PositiveInt, Section
from burnish.config.yaml_text import parse_yaml, read_run_text
from burnish.errors import ConfigError
from burnish.simulation.fit import fit_decoding, fit_phase
from burnish.simulation.lengths import Lengths, LogNormalLengths, RecordedLengths
from burnish.simulation.recorded import Recording
from burnish.simulation.settings import Decoding, Failures, Phase, SimulationSettings

Amount = Annotated[float, Field(ge=0)]


class LengthsSection(Section):
    """Recorded `values`, or `median` or `mean` with `sigma` and `longest`."""

    values: tuple[PositiveInt, ...] = ()
    median: Amount | None = None
    mean: Amount | None = None
    sigma: Amount | None = None
    longest: PositiveInt | None = None

    def lengths(self) -> Lengths:
        """Make the distribution. ConfigError if it is not given, or given twice."""
        if self.values:
            return RecordedLengths.of(self.values)
        if self.sigma is not None and self.longest is not None:
            if self.median is not None and self.mean is None:
                return LogNormalLengths(self.median, self.sigma, self.longest)
            if self.mean is not None and self.median is None:
                return LogNormalLengths.with_mean(self.mean, self.sigma, self.longest)
        raise ConfigError(
            "lengths does not say what they are",
            remedy="give `values`, or `median` or `mean` with `sigma` and `longest`",
        )


class DecodingSection(Section):
    """See `Decoding`."""

    base_seconds: Amount
    row_seconds: Amount = 0.0
    context_seconds: Amount = 0.0


class FailuresSection(Section):
    """See `Failures`."""

    mtbf_hours: Amount
    restart_seconds: Amount = 300.0
    checkpoint_seconds: Amount = 30.0


class PhaseSection(Section):
    """See `Phase`."""

    fixed_seconds: Amount = 0.0
    divided_seconds: Amount = 0.0


def _fitted(value: object) -> object:
    """The two terms of a phase, fitted if it is given by the number of devices: `{8: 3.2, 16: 2.1}`."""
    if not isinstance(value, dict) or not value or not all(key.isdigit() for key in value):
        return value
    points = [(int(devices), seconds) for devices, seconds in value.items()]
    for devices, seconds in points:
        if devices == 0 or type(seconds) not in (int, float) or seconds < 0:
            reason = f"{seconds!r} on {devices} devices, but it takes 0 seconds or more, on 1 device or more"
            raise PydanticCustomError("unusable", "{reason}", {"reason": reason})
    return asdict(fit_phase(points))


PhaseNumbers = Annotated[PhaseSection, BeforeValidator(_fitted)]


class NumbersFile(Section):
    """A file of numbers: fields of `SimulationSettings`. Only the given ones are used."""

    prompts_per_step: PositiveInt = 1
    group_size: PositiveInt = 1
    devices_per_engine: PositiveInt = 1
    rows_per_engine: PositiveInt = 1
    stream: PositiveInt = 1
    checkpoint_every_steps: PositiveInt = 1
    max_staleness: NonNegativeInt = 0
    window: NonNegativeInt = 0
    seed: NonNegativeInt = 0
    other_seconds: Amount = 0.0
    prompt_tokens: Amount = 0.0
    prefill_seconds: Amount = 0.0
    reward_seconds: Amount = 0.0
    price_per_device_hour: Amount = 0.0
    partial: bool = False
    update: PhaseNumbers = PhaseSection()
    logprobs: PhaseNumbers = PhaseSection()
    push: PhaseNumbers = PhaseSection()
    lengths: LengthsSection = LengthsSection()
    decoding: DecodingSection = DecodingSection(base_seconds=0.0)
    failures: FailuresSection = FailuresSection(mtbf_hours=0.0)


_SECTIONS = {"update": Phase, "logprobs": Phase, "push": Phase, "decoding": Decoding, "failures": Failures}


def read_numbers(path: Path) -> dict[str, object]:
    """Read fields of SimulationSettings from a file (YAML).

    Raises one ConfigError for all problems: unknown keys, and values of the wrong kind or out of range.
    """
    parsed = parse_yaml(read_run_text(path))
    data, problems, found = parsed.data or {}, list(parsed.problems), dict[str, object]()
    if not isinstance(data, dict):
        data, problems = {}, [Problem("", "it is not a section of `key: value`", "see docs/simulator.md")]
    try:
        given = NumbersFile.model_validate(data)
        plain = given.model_dump(exclude_unset=True)
        found = plain | {name: kind(**plain[name]) for name, kind in _SECTIONS.items() if name in plain}
        found |= {"lengths": given.lengths.lengths()} if "lengths" in plain else {}
    except ValidationError as error:
        problems += named(explain(error, NumbersFile, data, {}))
    except ConfigError as error:
        problems.append(Problem("lengths", error.message, error.remedy or "change them"))
    raise_problems(problems, source=str(path), where={key: f"{path}:{n}" for key, n in parsed.lines.items()})
    return found


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
