"""A checked configuration as plain data and as YAML, for the folder of the run.

Reading it back gives the same configuration: every field is written, so no preset or default can shift it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.config.schema import RunConfig
from burnish.config.yaml_text import dump_yaml


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain JSON-able data: every field, lists for tuples."""
    return config.model_dump(mode="json")


def to_yaml(config: RunConfig) -> str:
    """YAML that `load_run_file` reads back to an equal configuration."""
    return dump_yaml(to_dict(config))


def flat_values(config: RunConfig) -> dict[str, Any]:
    """Every value by its dotted path (list items by number); an empty list or section counts as a value."""
    return _flat(to_dict(config))


def differences(ours: RunConfig, theirs: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted paths whose values differ, with both values (None where one side has no such value)."""
    left, right = _flat(to_dict(ours)), _flat(to_dict(theirs))
    paths = [*left, *(path for path in right if path not in left)]
    return {p: (left.get(p), right.get(p)) for p in paths if left.get(p) != right.get(p)}


def flat_leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted path, where a list without sections is one value (`stop: [a, b]`), as a reader thinks of it."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, list) and item and all(isinstance(entry, Mapping) for entry in item):
            for number, entry in enumerate(item):
                found |= flat_leaves(entry, f"{path}.{number}")
        elif isinstance(item, Mapping) and item:
            found |= flat_leaves(item, path)
        else:
            found[path] = item
    return found


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[str, Any] = {}
    for key, item in items:
        found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found or {prefix: value}
