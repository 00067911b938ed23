"""Hints after an unknown key: the setting that corresponds to a field of TRL, verl, OpenRLHF and similar systems."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path

import yaml

TABLE = Path(__file__).with_suffix(".yaml")
_MARKS = {"rollout": "rl", "optimization.tokens_per_batch": "sft", "optimization.comparisons_per_batch": "rm"}
"""Fields by which run files tell their kind."""


def advice(word: str, fields: Collection[str]) -> str | None:
    """The corresponding setting in a run file with these fields; None if there is none.

    Two names are called equivalent only if unit and meaning are the same.
    """
    same, differs = _words()
    kind = next((kind for mark, kind in _MARKS.items() if mark in fields), "")
    if word in differs and kind:
        return differs[word].get(kind) or differs[word].get("any")
    return f"did you mean {same[word]}? (that is its name here)" if same.get(word) in fields else None


@functools.cache
def _words() -> tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]:
    """(field by each of its other names, sentences by kind of run for each of the other words)."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    same = {word: field for field, words in table["same"].items() for word in words}
    return same, {word: entry for entry in table["differs"] for word in entry["words"]}
