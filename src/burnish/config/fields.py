"""Metadata of the fields of run-file classes: types in words, shorthand forms, dotted paths.

Strict checks of scalars, error messages and the reference page all use this module, so they agree.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from burnish.types import Json

_WORDS: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "any value",
}
Many = Literal["", "N", "NAME"]
_MANY: Mapping[object, Many] = {tuple: "N", dict: "NAME"}
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a section: dotted path (list items as `N`), annotation with its limits, and pydantic's details."""

    path: str
    annotation: object
    info: FieldInfo


@functools.cache
def field_annotations(section: type[BaseModel]) -> dict[str, object]:
    """Field names and their annotations, including limits and shorthand validators."""
    hints = get_type_hints(section, include_extras=True)
    return {name: hints[name] for name in section.model_fields}


@functools.cache
def all_fields(section: type[BaseModel], prefix: str = "") -> tuple[Field, ...]:
    """Fields of a section and of the sections inside it, in the order of their declaration."""
    found: list[Field] = []
    for name, annotation in field_annotations(section).items():
        path = f"{prefix}{name}"
        found.append(Field(path, annotation, section.model_fields[name]))
        inner, many = inner_section(annotation)
        if inner is not None:
            found += all_fields(inner, f"{path}.{many}." if many else f"{path}.")
    return tuple(found)


def inner_section(annotation: object) -> tuple[type[BaseModel] | None, Many]:
    """The section class that a field holds and, if it holds several, their placeholder in a dotted path: `N` for a list
    of sections, `NAME` for sections by name."""
    bare = strip(annotation)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return bare, ""
    for argument in get_args(bare):
        section, many = inner_section(argument)
        if section is not None:
            return section, _MANY.get(get_origin(bare), many)
    return None, ""


def strip(annotation: object) -> object:
    """The type without its `Annotated` wrapper."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def expand(annotation: object, value: Json) -> Json:
    """The value with shorthand forms (`model: path`, `rewards: math`) written out, so that layers merge key by key."""
    for wrapped in _metadata(annotation):
        if isinstance(wrapped, BeforeValidator):
            value = wrapped.func(value)  # type: ignore[call-arg]
    bare = strip(annotation)
    if isinstance(value, dict):
        section, many = inner_section(bare)
        if section is not None and many == "":
            return expand_section(section, value)
        if section is not None and many == "NAME":
            inner = get_args(bare)[1]
            return {name: expand(inner, item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and get_origin(bare) is tuple:
        return [expand(get_args(bare)[0], item) for item in value]
    return value


def expand_section(section: type[BaseModel], data: dict[str, Json]) -> dict[str, Json]:
    """`expand` for every known key of a section. Unknown keys are kept, for validation to report."""
    known = field_annotations(section)
    return {key: expand(known[key], item) if key in known else item for key, item in data.items()}


def describe(annotation: object) -> str:
    """The type in words: `whole number, at least 1`, `one of a, b`, `number above 0, or null`."""
    bare = strip(annotation)
    if _is_union(bare):
        return ", or ".join("null" if arm is type(None) else describe(arm) for arm in get_args(bare))
    limits = _limits(annotation)
    return _kind(bare) + (f", {limits}" if limits else "")


def _kind(bare: object) -> str:
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is Literal:
        words = [str(a) for a in arguments]
        return words[0] if len(words) == 1 else "one of " + ", ".join(words)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of: {describe(arguments[0])}"
    if origin is tuple:
        return f"list of {len(arguments)}: {describe(arguments[0])}"
    if origin is dict:
        keys = "names" if strip(arguments[0]) is str else "steps"
        return f"{keys} with values ({describe(arguments[1])})"
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return "section"
    return _WORDS.get(bare, str(bare))


def _metadata(annotation: object) -> tuple[object, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _limits(annotation: object) -> str:
    words: list[str] = []
    for item in _metadata(annotation):
        for limit in item.metadata if isinstance(item, FieldInfo) else [item]:
            match limit:
                case annotated_types.Ge(ge=low):
                    words.append(f"at least {_in_words(low)}")
                case annotated_types.Gt(gt=low):
                    words.append(f"above {_in_words(low)}")
                case annotated_types.Le(le=high):
                    words.append(f"at most {_in_words(high)}")
                case annotated_types.Lt(lt=high):
                    words.append(f"below {_in_words(high)}")
                case annotated_types.MinLen(min_length=1):
                    words.append("not empty")
    return " and ".join(words)


def _in_words(limit: object) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


def _is_union(bare: object) -> bool:
    return get_origin(bare) in (Union, types.UnionType)


def choices(annotation: object) -> list[str]:
    """The words that a field with a fixed set of words takes; empty for other fields."""
    bare = strip(annotation)
    if get_origin(bare) is Literal:
        return [str(a) for a in get_args(bare)]
    return [word for argument in get_args(bare) for word in choices(argument)] if bare is not None else []


def plain_scalar(annotation: object, value: object) -> object:
    """The value in the field's own type, strictly: text is not a number and true is not 1.

    `yes`/`no`/`on`/`off` become booleans if the field takes only booleans, and `1e4` becomes a whole number if it takes
    only whole numbers. Raises ValueError in words. Everything else is left to pydantic's validation.
    """
    arms = _arms(annotation)
    for arm in arms:
        if get_origin(arm) is tuple and isinstance(value, (list, tuple)):
            return [plain_scalar(get_args(arm)[0], item) for item in value]
        if get_origin(arm) is dict and isinstance(value, dict):
            return {key: plain_scalar(get_args(arm)[1], item) for key, item in value.items()}
    if {bool} <= {*arms} <= {bool, type(None)}:
        return _as_bool(value)
    if not {int, float} & {*arms} or value in choices(annotation):
        return value
    if isinstance(value, (bool, str)) and type(value) not in arms:
        raise ValueError("not a number")
    if float not in arms and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _as_bool(value: object) -> object:
    value = _TRUTH.get(value.lower(), value) if isinstance(value, str) else value
    if value is not None and not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def annotation_at(section: type[BaseModel], path: str) -> object:
    """Annotation of a dotted path (`data.train.0.limit`), or None if there is no such field."""
    annotation: object = section
    for part in path.split("."):
        annotation = next(filter(None, (_inside(arm, part) for arm in _arms(annotation))), None)
    return annotation


def _inside(bare: object, part: str) -> object:
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return field_annotations(bare).get(part)
    if get_origin(bare) is tuple and not (part.isascii() and part.isdigit()):
        return _inside(strip(get_args(bare)[0]), part)
    return get_args(bare)[-1 if get_origin(bare) is dict else 0] if get_origin(bare) in (tuple, dict) else None


def _arms(annotation: object) -> list[object]:
    """The members of a union, or the type itself, without their wrappers."""
    bare = strip(annotation)
    return [strip(arm) for arm in get_args(bare)] if _is_union(bare) else [bare]
