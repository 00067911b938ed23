"""Every field of every run file, given values at the limits: taken, or refused by name; never a bare exception."""

import copy
from typing import Any

import pytest
import yaml

from burnish.config import fields
from burnish.config.kinds import all_kinds
from burnish.config.loading import load_run_data
from burnish.errors import ConfigError

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.0, -0.5, 1e-45, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "1", "x", "\0", "\ud800", "~nobody/x", "a" * 5_000, "a\nb"),
    *([], [[]], [None], [1], ["x"], {}, {"": 1}, {"x": None}, {1: 2}, {"path": []}, {"name": None}, [{"path": {}}]),
]
WRITTEN = ("", "=", "[", "{", "'", "!!int x", "*a", "&a", "1e400", "[1", "{a: ", "\0", "\udcff", "- -", "? ?")
SECTIONS = {kind.name: kind.section for kind in all_kinds()}
BASE = {"output": "run", "model": "./model", "data": {"train": "train.jsonl"}}
OWN: dict[str, dict[str, Any]] = {
    "rl": {"rewards": "math"},
    "sft": {},
    "distill": {"teacher": "./teacher"},
    "rm": {},
    "prefer": {"losses": "sigmoid"},
}
ITEMS = {"rewards": {"name": "math"}, "losses": {"name": "sigmoid"}}
CASES = [(kind, field.path) for kind in SECTIONS for field in fields.all_fields(SECTIONS[kind])]


def placed(kind: str, path: str, value: Any) -> dict[str, Any]:
    """A run file in which the field has the value; of a list its first item."""
    data: dict[str, Any] = copy.deepcopy({**BASE, **OWN[kind]})
    target: Any = data
    *parents, last = path.split(".")
    for part, following in zip(parents, [*parents, last][1:], strict=True):
        if part == "N":
            target = target[0]
            continue
        inner = target.get(part)
        if following == "N":
            target[part] = [ITEMS.get(part, {"path": "item.jsonl"})]
        elif not isinstance(inner, dict):
            target[part] = {"path": inner} if isinstance(inner, str) else {}
        target = target[part]
    target[last] = value
    return data


def refusal(data: dict[str, Any], kind: str, *words: str) -> str | None:
    """What is said against a run file; None when it is taken. Anything but a ConfigError fails the test."""
    try:
        load_run_data(data, list(words), kind)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SECTIONS))
def test_is_taken_or_refused_by_name(kind: str) -> None:
    for path in (path for of, path in CASES if of == kind):
        for value in VALUES:
            said = refusal(placed(kind, path, value), kind)
            names = [part for part in path.split(".") if part != "N"]  # the field, or a section around it
            assert said is None or any(name in said for name in names), (path, value, said)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SECTIONS))
def test_overrides_are_taken_or_refused_in_words(kind: str) -> None:
    for path in (path for of, path in CASES if of == kind):
        for value in WRITTEN:
            said = refusal(copy.deepcopy({**BASE, **OWN[kind]}), kind, f"{path.replace('.N', '.0')}={value}")
            assert said is None or "-> " in said, (path, value, said)


def test_the_table_holds_every_section() -> None:
    assert len(CASES) > 200
    assert yaml.safe_dump(placed("rl", "data.train.N.limit", 3)).count("limit: 3") == 1
