"""Translation of Pydantic's errors into messages about the run file: field, value, what was expected, what to do."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from burnish.config import fields
from burnish.config.problems import Problem
from burnish.config.schema_run import RunConfig
from burnish.config.section import Section
from burnish.errors import did_you_mean, nearest

WORDS_OF_OTHERS = Path(__file__).with_name("foreign_fields.yaml")
"""The settings that correspond to fields of TRL, verl, OpenRLHF and similar systems."""
_NOWHERE = object()


def explain(
    error: ValidationError, section: type[BaseModel], data: object, provenance: Mapping[str, str]
) -> list[Problem]:
    """One problem per field, in the order of the fields."""
    problems: dict[str, Problem] = {}
    for item in error.errors():
        for problem in _problems(item, section, data, provenance):
            key = f"{problem.field}: {problem.message}" if item["type"] == "problems" else problem.field
            problems.setdefault(key, problem)
    return list(problems.values())


def _problems(
    item: ErrorDetails, section: type[BaseModel], data: object, provenance: Mapping[str, str]
) -> list[Problem]:
    if item["type"] == "problems":
        return [_with_origin(p, provenance) for p in item["ctx"]["problems"]]
    if item["loc"][-1:] == ("[key]",):
        key = str(item["loc"][-2])
        return [_wrong_key(_path(item["loc"][:-1], data).removesuffix(f".{key}"), key, item)]
    path = _path(item["loc"], data, names_a_key=item["type"] in ("missing", "extra_forbidden"))
    if item["type"] == "extra_forbidden":
        return [_unknown_key(path, section, item["input"])]
    if item["type"] == "missing" and isinstance(item["loc"][-1], str):  # not an entry of a list
        return [_missing(path, section)]
    return [_wrong_value(path, item, section)]


def _wrong_key(path: str, key: str, item: ErrorDetails) -> Problem:
    """A key of a section whose keys are names, or steps."""
    if item["type"] == "string_pattern_mismatch":
        message = f"has the key {key!r}, which cannot be part of dotted paths and of the names of metrics"
        return Problem(path, message, "use a name without dots and spaces")
    return Problem(path, f"has the key {key!r}, which is not a step", "use whole numbers from 0 on")


def _path(loc: tuple[int | str, ...], data: object, *, names_a_key: bool = False) -> str:
    """The dotted path in the run file, without the parts that pydantic adds for the members of a union. `names_a_key`:
    the last part is a key, which may be one that the data lack."""
    parts: list[str] = []
    for number, part in enumerate(loc):
        inside = _inside(data, part)
        if inside is _NOWHERE and not (names_a_key and number == len(loc) - 1 and isinstance(data, dict)):
            continue
        data = inside
        parts.append(str(part))
    return ".".join(parts)


def _inside(data: object, part: int | str) -> object:
    if isinstance(data, dict):
        return data.get(part, _NOWHERE)
    if isinstance(data, (list, tuple)) and isinstance(part, int) and part < len(data):
        return data[part]
    return _NOWHERE


def _with_origin(problem: Problem, provenance: Mapping[str, str]) -> Problem:
    origin = provenance.get(problem.field, "")
    if not origin.startswith("preset"):
        return problem
    return Problem(problem.field, f"{problem.message} [value from the {origin}]", problem.remedy)


def _unknown_key(path: str, section: type[BaseModel], value: object) -> Problem:
    parent, _, word = path.rpartition(".")
    inner = section if not parent else fields.inner_section(fields.annotation_at(section, parent))[0]
    if inner is not None and issubclass(inner, Section) and word in inner.not_here:
        return Problem(path, f"is not read by runs of this kind: {inner.not_here[word]}", "remove it")
    hint = _hint(path, section, list(inner.model_fields) if inner else [])
    return Problem(path, "is not a known key", "; ".join([hint, *_hints_inside(value, path, section)][:4]))


def _hints_inside(value: object, path: str, section: type[BaseModel]) -> list[str]:
    """List the settings for fields of another system's section. There a critic's fields are named like the policy's."""
    if not isinstance(value, dict):
        return []
    found = []
    for word, inside in value.items():
        own = [f"critic_{word}"] if "critic" in path else []
        told = next(filter(None, (advice(name, section) for name in [*own, str(word)])), None)
        deeper = _hints_inside(inside, f"{path}.{word}", section)
        found += deeper if isinstance(inside, dict) else [f"{word}: {told}"] if told is not None else []
    return found


def _hint(path: str, section: type[BaseModel], siblings: list[str]) -> str:
    parent, _, word = path.rpartition(".")
    prefix = f"{parent}." if parent else ""
    everywhere = {f.path for f in fields.all_fields(section)}
    elsewhere = [p for p in everywhere if p.rpartition(".")[2] == word]
    told = None if elsewhere else advice(word, section)  # before a field that is only spelt like it
    if told is not None:
        return told
    near = nearest(word, siblings)
    if near is not None:
        return f"did you mean {prefix}{near}?"
    leaf = word if elsewhere else nearest(word, {p.rpartition(".")[2] for p in everywhere})
    alike = sorted(p for p in everywhere if p.rpartition(".")[2] == leaf)
    if alike:
        return f"did you mean {' or '.join(alike)}?"
    return f"known here: {', '.join(siblings)}"


def _missing(path: str, section: type[BaseModel]) -> Problem:
    expected = _expected(path, section)
    example = {"model": " (for example `model: path/to/model`)"}.get(path, "")
    return Problem(path, "is missing", f"add it: {expected}{example}")


def _wrong_value(path: str, item: ErrorDetails, section: type[BaseModel]) -> Problem:
    annotation = fields.annotation_at(section, path)
    value = item["input"]
    known = fields.choices(annotation) if annotation is not None else []
    shown = "is empty (null)" if value is None else f"is {_shortened(repr(value))}"
    if item["type"] == "finite_number":
        shown += ", not a finite number"
    if item["type"] == "unusable":
        shown += f": {item['ctx']['reason']}"
    remedy = f"expected: {_expected(path, section)}"
    hint = did_you_mean(value, known) if isinstance(value, str) else ""
    if hint:
        remedy = f"{hint} {remedy}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and "text" in remedy:
        remedy += f' (put it in quotes: "{value}")'
    elif isinstance(value, str) and "number" in remedy and "text" not in remedy:
        remedy += " (a number without quotes and units)"
    return Problem(path, shown, remedy)


def _shortened(text: str, width: int = 120) -> str:
    return text if len(text) <= width else f"{text[:width]}..."


def _expected(path: str, section: type[BaseModel]) -> str:
    annotation = fields.annotation_at(section, path)
    if annotation is None:
        return "another value"
    inner, many = fields.inner_section(annotation)
    if inner is None or many:
        return fields.describe(annotation)
    required = [name for name, info in inner.model_fields.items() if info.is_required()]
    return "a section with keys such as " + ", ".join(required or list(inner.model_fields)[:4])


def advice(word: str, section: type[BaseModel]) -> str | None:
    """The setting in a run file of this class; None if the word means nothing that it has.

    Two names are called equivalent only if unit and meaning are the same.
    """
    same, differs = _words()
    if word in differs and issubclass(section, RunConfig):
        return differs[word].get(section.kind) or differs[word].get("any")
    known = {field.path for field in fields.all_fields(section)}
    return f"did you mean {same[word]}? (that is its name here)" if same.get(word) in known else None


@functools.cache
def _words() -> tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]:
    """(field by each of its other names, sentences by kind of run for each of the other words)."""
    table = yaml.safe_load(WORDS_OF_OTHERS.read_text(encoding="utf-8"))
    same = {word: field for field, words in table["same"].items() for word in words}
    return same, {word: entry for entry in table["differs"] for word in entry["words"]}
