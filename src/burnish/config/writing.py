"""A checked configuration as plain data, and as values by their dotted paths."""

from __future__ import annotations

from burnish.config.schema import RunConfig
from burnish.types import Json


def to_dict(config: RunConfig) -> dict[str, Json]:
    """Every field as plain data for JSON, with lists instead of tuples."""
    return config.model_dump(mode="json")


def flat_values(config: RunConfig) -> dict[str, Json]:
    """Every value by its dotted path (list items by number); an empty list or section counts as a value."""
    return _flat(to_dict(config))


def _flat(value: Json, prefix: str = "") -> dict[str, Json]:
    items: list[tuple[str, Json]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = [(str(number), item) for number, item in enumerate(value)]
    found: dict[str, Json] = {}
    for key, item in items:
        found |= _flat(item, f"{prefix}.{key}" if prefix else key)
    return found or {prefix: value}
