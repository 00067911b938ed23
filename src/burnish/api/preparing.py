"""From the arguments of a call to a checked configuration, as a run file would give it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from burnish.api.inputs import Inputs, inputs_of, plain
from burnish.checkpointing.run import RunDirectory
from burnish.config.loading import LoadedConfig, kind_of_data, load_run_data, load_run_file
from burnish.config.schema import RunConfig
from burnish.config.yaml_text import parse_yaml, read_run_text
from burnish.errors import ConfigError

Given = Mapping[str, object] | RunConfig | str | Path
"""A run: the fields of a run file as a dictionary, a typed configuration, or the path of a run file."""

RUNS_FOLDER = Path("runs")


@contextmanager
def prepared_run(
    kind: str, given: Given, fields: Mapping[str, object], caller: str, *, folder_name: str | None = None
) -> Iterator[tuple[LoadedConfig, Inputs]]:
    """The call as a run: its checked configuration, and the inputs that still have to be written. Without an `output`
    it gets a new folder, which is removed if an error ends the call before the run has begun there."""
    output = fields.get("output", output_of(given))
    if output is not None:
        inputs = inputs_of(str(output))
        yield prepare(kind, given, fields, inputs, caller), inputs
        return
    fresh = _fresh_folder(folder_name or kind)
    inputs = inputs_of(str(fresh))
    try:
        yield prepare(kind, given, {**fields, "output": str(fresh)}, inputs, caller), inputs
    except BaseException:
        if not RunDirectory(fresh).begun():
            shutil.rmtree(fresh, ignore_errors=True)
        raise


def prepare(kind: str, given: Given, fields: Mapping[str, object], inputs: Inputs, caller: str) -> LoadedConfig:
    """Check the run as the command line would, and collect its `inputs`. `fields` override it as overrides do there:
    dictionaries are merged, and a name may have dots. ConfigError that lists every problem."""
    try:
        if isinstance(given, (str, Path)):
            return load_run_file(given, as_overrides(inputs.plain(fields)), kind)
        data = _data_of(given)
        if not isinstance(data, Mapping):
            raise ConfigError(
                f"{caller} got a {type(given).__qualname__}",
                remedy="give a dictionary with the fields of a run file, a typed configuration, or the path of a run "
                "file",
            )
        # In this order, rows and models in `fields` replace those in `data`. Rewards are replaced as a whole.
        plain = inputs.plain({name: value for name, value in data.items() if name != "rewards" or name not in fields})
        return load_run_data(plain, as_overrides(inputs.plain(fields)), kind, source=caller)
    except RecursionError as error:
        raise ConfigError(
            f"{caller}: a list or dictionary contains itself, or is nested too deeply", remedy="give plain values"
        ) from error


def kind_of(given: Given, fields: Mapping[str, object]) -> str:
    """Of which kind the run is: by its type, or by the keys of its data and of `fields`."""
    return given.kind if isinstance(given, RunConfig) else kind_of_data(_data_of(given), fields)


def as_overrides(fields: Mapping[str, object]) -> list[str]:
    """Plain values as command-line overrides."""
    return [f"{name}={_as_yaml(name, value)}" for name, value in fields.items()]


def next_folder(kind: str) -> Path:
    """`runs/rl-001`, or the next free number. Does not create it."""
    return next(folder for folder in _numbered(kind) if not folder.exists())


def _fresh_folder(kind: str) -> Path:
    for folder in _numbered(kind):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count has no end")


def _numbered(kind: str) -> Iterator[Path]:
    return (RUNS_FOLDER / f"{kind}-{number:03d}" for number in itertools.count(1))


def output_of(given: Given) -> object:
    """Return the `output` that a call sets; None if it sets none."""
    data = _data_of(given)
    return data.get("output") if isinstance(data, Mapping) else None  # `prepare` refuses anything else


def _data_of(given: Given) -> object:
    """The fields of a run file, as far as they are set. A path is read."""
    if isinstance(given, RunConfig):
        return given.model_dump(mode="json", exclude_unset=True)
    return parse_yaml(read_run_text(Path(given))).data if isinstance(given, (str, Path)) else given


def _as_yaml(name: str, value: object) -> str:
    """JSON, which YAML reads as the same value."""
    try:
        return json.dumps(plain(value), ensure_ascii=False)
    except TypeError as error:
        raise ConfigError(f"{name} is not a value for a run file: {error}", remedy="give plain values") from error
