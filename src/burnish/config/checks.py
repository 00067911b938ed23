"""Checks for contradictions in run files of any kind, made before anything is loaded. Pure functions of the values;
`checks_rl` and `checks_rm` hold the checks for their own kinds."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config import names
from burnish.config.problems import Problem
from burnish.config.schema_data import DataConfig
from burnish.config.schema_rl import RlFields
from burnish.config.schema_rm import RmFields
from burnish.config.schema_run import RunConfig
from burnish.config.schema_sft import SftFields
from burnish.words import suggestion


def check_sft(config: SftFields) -> list[Problem]:
    """All contradictions in a run file of `burnish sft`."""
    problems = [*held_out(config.data), *known_sinks(config)]
    if config.data.query is not None:
        message = "is set, but supervised fine-tuning trains on entire documents"
        problems.append(Problem("data.query", message, "remove it"))
    steps, warmup = config.steps, config.optimization.warmup_steps
    if steps is not None and warmup > steps:
        problems.append(warmup_too_long(warmup, steps, "steps"))
    return problems


def check_complete(config: RunConfig, kind: str) -> list[Problem]:
    """Missing fields that a run of this kind cannot start without. Only for run files: code may pass data and rewards
    itself."""
    problems = []
    if not config.data.train:
        remedy = "add it, for example `data: {train: train.jsonl}`"
        problems.append(Problem("data.train", f"is empty, and {kind} needs training data", remedy))
    if isinstance(config, RlFields) and not config.rewards:
        remedy = "name at least one, for example `rewards: math` or `rewards: my_reward.py:score`"
        problems.append(Problem("rewards", "is empty, but responses need at least one reward", remedy))
    splits = isinstance(config, RmFields) and config.held_out_fraction > 0
    if not config.data.eval and not splits and "every_steps" in config.evaluation.model_fields_set:
        every = config.evaluation.every_steps
        if every is not None and every != type(config.evaluation)().every_steps:
            message = f"is {every}, but data.eval is empty, so there is nothing to evaluate on"
            remedy = "set data.eval to held-out data, or remove evaluation.every_steps"
            problems.append(Problem("evaluation.every_steps", message, remedy))
    return problems


def warmup_too_long(warmup: int, total: int, product: str) -> Problem:
    message = f"is {warmup}, but the run makes {total} optimizer steps ({product})"
    return Problem("optimization.warmup_steps", message, f"set it to at most {total}")


def held_out(data: DataConfig) -> Iterator[Problem]:
    paths = {source.path for source in data.train if source.split == "train" and source.limit is None}
    for index, source in enumerate(data.eval):
        if source.path in paths and source.split == "train" and source.subset is None and source.limit is None:
            message = f"{source.path!r} is also training data, so the evaluation would not be held out"
            yield Problem(f"data.eval.{index}.path", message, "name another file or split, or set a limit to allow it")


def known_sinks(config: RunConfig) -> Iterator[Problem]:
    """Sinks that are neither built in nor the name of a class."""
    for index, name in enumerate(config.logging.sinks):
        if name in config.logging.sinks[:index]:
            yield Problem(f"logging.sinks.{index}", f"{name!r} is named twice", "keep one of the two")
        if name not in names.SINK_NAMES and not is_function_name(name):
            remedy = suggestion(name, names.SINK_NAMES) + ", or package.module:Class, or path/to/file.py:Class"
            yield Problem(f"logging.sinks.{index}", f"is {name!r}, which is not a sink", remedy)


def is_function_name(value: str) -> bool:
    """Whether the value may be `package.module:name` or `path/to/file.py:name`."""
    place, colon, name = value.rpartition(":")
    is_place = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return bool(colon) and name.isidentifier() and is_place
