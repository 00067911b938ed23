"""Arguments of a call that a run file cannot hold: rows, loaded models, functions.

Each is replaced by what a run file would say. Rows and models are written to RUN/inputs and named by their paths. A
function that can be imported is named as `package.module:name`. Any other is `python:NAME`, and a text of what it
computes is written, so that a resumed run notices if it is a different function.
"""

from __future__ import annotations

import filecmp
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from burnish.api.functions import importable_name, text_of
from burnish.api.policy import Policy
from burnish.api.run import Run
from burnish.checkpointing.sources import INPUTS_FOLDER, function_file
from burnish.config.names import IN_MEMORY, MODEL_REWARD, PUZZLES
from burnish.config.schema import RewardConfig
from burnish.config.schema_data import DataSource
from burnish.errors import CheckpointError, ConfigError, DataError
from burnish.observability.atomic import write_text_atomically
from burnish.rewards.constructors import FunctionReward, name_of
from burnish.types import Json, Tokenizer

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

Rows = Sequence[Mapping[str, object]]
_TORN = ".inputs-"
_SOURCE_KEYS = set(DataSource.model_fields)


@dataclass(slots=True)
class Inputs:
    """Rows, tables and models to write into `folder` before a run begins, by file name, and the functions.

    `folder` appears in the configuration as it is given.
    """

    folder: Path
    rows: dict[str, Rows] = field(default_factory=dict)
    tables: dict[str, Dataset] = field(default_factory=dict)
    models: dict[str, tuple[PreTrainedModel, Tokenizer]] = field(default_factory=dict)
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rows or self.tables or self.models or self.functions)

    def plain(self, given: Mapping[str, object]) -> dict[str, Json]:
        """Fields of a run file, with everything that a run file cannot hold replaced by plain values."""
        found = dict(given)
        for name, convert in (("model", self._model), ("data", self._data), ("rewards", self._rewards)):
            if name in found:
                found[name] = convert(found[name])
        if isinstance(found.get("domains"), Mapping):
            found["domains"] = {name: self._domain(name, own) for name, own in cast("Any", found["domains"]).items()}
        normalization = found.get("normalization")
        if isinstance(normalization, Mapping):
            found["normalization"] = self._with_sources(normalization, ("prompts", "references"))
        return {name: plain(value) for name, value in found.items()}

    def _model(self, given: object) -> object:
        if isinstance(given, tuple) and len(given) == 2:
            return self._loaded_model(*given)
        if isinstance(given, Mapping) and ("model" in given or _is_model(given.get("path"))):
            if "model" in given and "path" in given:
                raise ConfigError("model has both a loaded model and a path", remedy="give one of the two")
            settings = {name: value for name, value in given.items() if name not in ("model", "path", "tokenizer")}
            return settings | {
                "path": self._loaded_model(given.get("model", given.get("path")), given.get("tokenizer"))
            }
        if _is_model(given):
            raise ConfigError(
                "model is a loaded model without its tokenizer", remedy="give both: model=(model, tokenizer)"
            )
        return given

    def _loaded_model(self, model: object, tokenizer: object) -> str:
        from transformers import PreTrainedModel, PreTrainedTokenizerBase

        if not isinstance(model, PreTrainedModel):
            raise ConfigError(
                f"model is a {type(model).__module__}.{type(model).__qualname__}, not a model of transformers",
                remedy="give a transformers model (of a peft model: model.merge_and_unload()), a folder or a hub name",
            )
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise ConfigError(
                f"the tokenizer that comes with the model is a {type(tokenizer).__qualname__}",
                remedy="give model=(model, tokenizer), both of transformers",
            )
        if any(parameter.is_meta for parameter in model.parameters()):
            raise ConfigError(
                "model has weights on the device `meta`, which have no numbers",
                remedy="load them (from_pretrained without device_map), or give the folder",
            )
        self.models["model"] = (model, tokenizer)
        return str(self.folder / "model")

    def _data(self, given: object) -> object:
        if isinstance(given, Mapping):
            return self._with_sources(given, ("train", "eval"))
        return self._with_sources({"train": given}, ("train",))

    def _domain(self, name: str, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        found = self._with_sources(given, ("train", "eval"), f"{name}-")
        return found | {"rewards": self._rewards(found["rewards"])} if "rewards" in found else found

    def _with_sources(self, given: Mapping[str, object], names: Sequence[str], prefix: str = "") -> dict[str, object]:
        return dict(given) | {name: self._sources(given[name], f"{prefix}{name}") for name in names if name in given}

    def _sources(self, given: object, name: str) -> object:
        """One source or several. A list of dictionaries is rows, unless one of them can be a source."""
        if isinstance(given, (list, tuple)) and any(_is_source(item) for item in given):
            return [self._source(item, f"{name}-{number}") for number, item in enumerate(given, start=1)]
        return self._source(given, name)

    def _source(self, given: object, name: str) -> object:
        if isinstance(given, Mapping):
            return dict(given) | {"path": self._source(given["path"], name)} if "path" in given else dict(given)
        if given is None or isinstance(given, (str, Path)):
            return given
        if _is_dataset(given):
            self.tables[f"{name}.parquet"] = given
            return str(self.folder / f"{name}.parquet")
        if isinstance(given, (list, tuple)):
            if not given:
                return []
            self.rows[f"{name}.jsonl"] = given
            return str(self.folder / f"{name}.jsonl")
        raise DataError(
            f"the data set {name!r} is a {type(given).__module__}.{type(given).__qualname__}",
            remedy="give a path, a list of dictionaries (of a generator: list(rows)), or one split of a data set (a "
            "table of pandas: table.to_dict('records'))",
        )

    def _rewards(self, given: object) -> list[object]:
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        return [self._reward(item) for item in listed]

    def _reward(self, given: object) -> object:
        if isinstance(given, Run):
            return f"{MODEL_REWARD}{given}"  # with the checkpoint that it has chosen
        if isinstance(given, RewardConfig):
            return given.model_dump(mode="json", exclude_unset=True)
        if isinstance(given, FunctionReward):
            config = given.config.model_dump(mode="json", exclude_unset=True)
            return config | {"name": self._function(given.call)}
        if isinstance(given, Mapping) and callable(given.get("name")):
            return dict(given) | {"name": self._function(given["name"])}
        if callable(given):
            return {"name": self._function(given)}
        return given

    def _function(self, call: Callable[..., Any]) -> str:
        """Return the configuration's name of a function; a number distinguishes functions of the same name."""
        found = importable_name(call)
        if found is not None:
            return found
        own, number = name_of(call), 1
        name = f"{IN_MEMORY}{own}"
        while name in self.functions and self.functions[name] is not call:
            number += 1
            name = f"{IN_MEMORY}{own}_{number}"
        self.functions[name] = call
        return name


def write_inputs(inputs: Inputs, *, may_change: bool) -> None:
    """Write what is missing. CheckpointError if a file exists with different content, unless `may_change`."""
    if not inputs:
        return
    folder = inputs.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_TORN) as temporary:
        made = Path(temporary)
        _write_into(made, inputs)
        changed = [str(name) for name in _files_below(made) if _differs(made, folder, name)]
        # What only an earlier model had, such as a chat template, would be read with this one.
        earlier = [Path(model) / inner for model in inputs.models for inner in _files_below(folder / model)]
        changed += [str(name) for name in earlier if not (made / name).exists()]
        if changed and not may_change:
            raise CheckpointError(
                f"{folder} holds different inputs from those of this call: {', '.join(changed)}",
                remedy="to continue the run, give what it began with, or accept the new inputs with "
                "accept_changes=True; otherwise set output to another folder, or start over with fresh=True",
            )
        if changed:
            for model in inputs.models:
                shutil.rmtree(folder / model, ignore_errors=True)
        for name in _files_below(made):
            if changed or not (folder / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(made / name, folder / name)


def remove_torn(folder: Path) -> None:
    """Remove what a killed process has left half written beside the folder of the inputs. The run is locked, so nobody
    is writing it now."""
    for torn in folder.parent.glob(f"{_TORN}*"):
        shutil.rmtree(torn, ignore_errors=True)


def _write_into(folder: Path, inputs: Inputs) -> None:
    from burnish.models.tokenizers import save_tokenizer  # imports torch

    for name, rows in inputs.rows.items():
        write_text_atomically(folder / name, rows_text(rows, name))
    for name, table in inputs.tables.items():
        table.to_parquet(folder / name)
    for name, (model, tokenizer) in inputs.models.items():
        model.save_pretrained(folder / name)
        save_tokenizer(tokenizer, folder / name)
    for name, function in inputs.functions.items():
        file = folder / function_file(name)
        file.parent.mkdir(exist_ok=True)
        write_text_atomically(file, text_of(function))


def rows_text(rows: Rows, name: str) -> str:
    """Rows as the lines of a JSONL file. DataError, naming row and column, for a value that cannot be written."""
    from burnish.data.rows import plain_value

    lines: list[str] = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {number} of {name} is a {type(row).__qualname__}", remedy="give a list of dictionaries"
            )
        cells: list[str] = []
        for column, value in row.items():
            try:
                cell = {str(column): plain_value(value)}
                cells.append(json.dumps(cell, ensure_ascii=False, allow_nan=False)[1:-1])
            except (TypeError, ValueError, RecursionError) as error:
                why = "it contains itself" if isinstance(error, RecursionError) else error
                raise DataError(
                    f"row {number} of {name}: the column {column!r} cannot be written: {why}",
                    remedy="leave it out, or make it text, numbers, lists or dictionaries",
                ) from error
        lines.append(f"{{{', '.join(cells)}}}\n")
    return "".join(lines)


def plain(value: object) -> Json:
    """Write paths and runs as text, tuples as lists, at any depth. Other values are left for the checks to refuse."""
    if isinstance(value, (Path, Run)):
        return str(value)
    if isinstance(value, Policy):
        return str(value.folder)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return cast("Json", value)


def _is_source(item: object) -> bool:
    """A mapping with only the keys of a source, including what its rows are; a path; a data set; a list of rows."""
    if isinstance(item, Mapping):
        return ("path" in item or PUZZLES in item) and set(item) <= _SOURCE_KEYS
    return isinstance(item, (str, Path, list, tuple)) or _is_dataset(item)


def _is_dataset(value: object) -> bool:
    """Recognises a data set without importing its package, which takes a second."""
    return type(value).__module__.startswith("datasets.") and type(value).__name__ == "Dataset"


def _is_model(value: object) -> bool:
    """Return whether a value is a torch module, found without importing torch."""
    return any(base.__module__ == "torch.nn.modules.module" for base in type(value).__mro__)


def _files_below(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _differs(made: Path, folder: Path, name: Path) -> bool:
    return (folder / name).exists() and not filecmp.cmp(made / name, folder / name, shallow=False)


def inputs_of(output: str) -> Inputs:
    """Inputs in the folder of the run."""
    return Inputs(Path(output) / INPUTS_FOLDER)
