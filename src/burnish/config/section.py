"""Base class, number types and shorthand forms of all sections of a run file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_core import PydanticCustomError

from burnish.config import fields
from burnish.config.problems import Problem

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
"""Number of things held or drawn at once. Above a million no machine would reach the first step."""
Processes = Annotated[int, Field(ge=1, le=4_096)]
"""Number of processes of a run, or of parts dealt to them, up to far more than has been tried."""
Threads = Annotated[int, Field(ge=1, le=1_024)]
Passes = Annotated[int, Field(ge=1, le=10_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
DecayRate = Annotated[float, Field(ge=0.0, lt=1.0)]
Seconds = Annotated[float, Field(ge=0.001, le=1_000_000)]
"""A time limit. The upper bound (11 days) is one that timers of operating systems still accept."""
Temperature = Annotated[float, Field(ge=0.001)]
"""Dividing logits by a lower one overflows to infinity."""
VariableName = Annotated[str, Field(pattern=r"^[^=\s\x00]+$")]
"""Name of an environment variable."""

_MAX_WHOLE_NUMBER = 2**63 - 1
_FLOAT32 = (1e-30, 1e30)
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4_096, 255


IsSet = Callable[[str, str], bool]
"""(section, field) to whether an override sets the field, whole or in part."""


class NamedPlace(NamedTuple):
    """A field that names something to read, and its value. `function`: one of the program that trains; `option`: any
    text, which may be a file's path; `settings`: a model folder without its weights, or a single file. role: what a
    path that may name a run is used as, which decides which of that run's weights are taken."""

    field: str
    text: str
    kind: Literal["model", "settings", "data", "code", "function", "option"]
    role: Literal["weights", "reward", "critic"] | None = None


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after loading, numbers are strict. Validators
    are built when a section is first validated: a command imports the sections of all kinds and reads a file of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)
    not_here: ClassVar[Mapping[str, str]] = {}
    """Fields that the section has in run files of another command, with the reason why not here."""

    @field_validator("*", mode="before")
    @classmethod
    def _plain_scalars(cls, value: object, info: ValidationInfo) -> object:
        annotation = fields.field_annotations(cls)[str(info.field_name)]
        if fields.inner_section(annotation)[0] is None:  # a section checks its own fields
            _refuse_unusable(value)
        return fields.plain_scalar(annotation, value)


def _refuse_unusable(value: object) -> None:
    """Refuse text and numbers that no file, tensor or timer could hold, in any field."""
    match value:
        case dict():
            _refuse_unusable([*value, *value.values()])
        case list() | tuple():
            for item in value:
                _refuse_unusable(item)
        case bool():
            return
        case int() if abs(value) > _MAX_WHOLE_NUMBER:
            raise _unusable(f"whole numbers are at most {_MAX_WHOLE_NUMBER:,}")
        case float() if math.isfinite(value) and value != 0 and not _FLOAT32[0] <= abs(value) <= _FLOAT32[1]:
            raise _unusable("float32 numbers must be between {:g} and {:g} (or 0)".format(*_FLOAT32))
        case str() if "\0" in value:
            raise _unusable("it contains a NUL character")
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            raise _unusable("it contains a lone surrogate (half a character), which cannot be written to a file")


def _usable_path(path: str) -> str:
    """The path, unchanged. Opens nothing: whether the path exists is checked where it is read."""
    if not path.strip():
        raise _unusable("it is empty")
    if path != path.strip():
        raise _unusable("it begins or ends with a space")
    if any(character < " " for character in path):
        raise _unusable("it contains a line break or another control character")
    encoded = os.fsencode(path)
    if len(encoded) > _MAX_PATH_BYTES or any(len(part) > _MAX_NAME_BYTES for part in encoded.split(b"/")):
        raise _unusable("it is too long for a path")
    if path.startswith("~"):
        _home_path(path)
    return path


def _home_path(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # what expanduser raises for an unknown user
        raise _unusable(f"no user on this machine has the home folder {path.partition('/')[0]}") from None


def _written_in_full(path: str) -> str:
    """An output path without `~`: it is shown, compared and stored as written, so `~` cannot be expanded in it."""
    if path.startswith("~"):
        raise _unusable(f"~ is not expanded to a home folder here: write {_home_path(path)}")
    return path


def _unusable(reason: str) -> PydanticCustomError:
    return PydanticCustomError("unusable", "{reason}", {"reason": reason})


def _usable_url(url: str) -> str:
    """The address, unchanged. A password in it would be written to many places."""
    if re.fullmatch(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/@?#:]+)(:\d{1,5})?(/[^\s@?#]*)?", url) is None:
        raise _unusable("write http://HOST:PORT/v1, without @, ? and #; a key belongs in an environment variable")
    return url


PathText = Annotated[str, AfterValidator(_usable_path)]
Url = Annotated[str, AfterValidator(_usable_url)]
OutputPath = Annotated[PathText, AfterValidator(_written_in_full)]


def refuse(problems: Sequence[Problem]) -> None:
    """Raise all problems together through pydantic, which allows only one message per error."""
    if problems:
        text = "; ".join(f"{p.field}: {p.message} ({p.remedy})" for p in problems)
        raise PydanticCustomError("problems", "{text}", {"text": text, "problems": problems})


def refused_word(word: str, reason: str) -> WrapValidator:
    """Refuse a word of other systems that has no counterpart, with the reason."""

    def check(value: object, validate: ValidatorFunctionWrapHandler) -> object:
        if value == word:
            raise _unusable(reason)
        return validate(value)

    return WrapValidator(check)


def as_list(value: object) -> object:
    return value if isinstance(value, (list, tuple)) else [value]


def shorthand(field: str) -> BeforeValidator:
    """Take text in place of a section as the value of this field."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, str) else value)
