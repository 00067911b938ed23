"""Hints after an unknown key: the setting that corresponds to a field of TRL, verl, OpenRLHF and similar systems."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel

from burnish.config import fields
from burnish.config.schema_run import RunConfig

TABLE = Path(__file__).with_suffix(".yaml")


def advice(word: str, section: type[BaseModel]) -> str | None:
    """The setting in a run file of this class; None if the word means nothing that it has.

    Two names are called equivalent only if unit and meaning are the same.
    """
    same, differs = _words()
    if word in differs and issubclass(section, RunConfig):
        return differs[word].get(section.kind) or differs[word].get("any")
    known = {field.path for field in fields.iter_fields(section)}
    return f"did you mean {same[word]}? (that is its name here)" if same.get(word) in known else None


@functools.cache
def _words() -> tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]:
    """(field by each of its other names, sentences by kind of run for each of the other words)."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    same = {word: field for field, words in table["same"].items() for word in words}
    return same, {word: entry for entry in table["differs"] for word in entry["words"]}
