"""JSON in a response against the JSON Schema of its row (https://json-schema.org), by the package jsonschema."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Annotated, Any

from burnish.errors import ConfigError, RewardError, needing
from burnish.outside.reading import strict_json
from burnish.rewards.builtins.reading_rows import NoScoreError, after_thoughts, last_block, parsed
from burnish.types import Score

SCHEMA_COLUMNS = ("json_schema", "schema")
MAX_DEPTH = 64
"""Levels of a response's JSON. Below this the validator cannot run out of Python's stack, unless a schema refers to
itself without end."""


class JsonSchema:
    """1 if the JSON of the response is valid against the schema, else 0, with the parts `parses` and `valid`. None
    (missing) for a row without a schema.

    schema: default for rows without one, an object or JSON text. column: the column with the schema; by default
    `json_schema` or `schema`. whole: the response after its thoughts must be JSON and nothing else; otherwise its
    last block marked as JSON counts, else its last block that is not marked, else all of it.
    """

    def __init__(
        self,
        schema: Annotated[Any, "for rows without their own: an object, or JSON text"] = None,
        column: Annotated[str | None, "the column with the schema (default json_schema, else schema)"] = None,
        whole: Annotated[bool, "the whole response must be JSON, without a block or a word around it"] = False,
    ) -> None:
        with needing("'burnish[json-schema]'", RewardError, "reward 'json_schema' needs the package jsonschema"):
            import jsonschema  # noqa: F401  reported here, before anything is sampled
        self._schema, self._columns, self._whole = schema, SCHEMA_COLUMNS if column is None else (column,), whole
        if schema is not None:
            try:
                _validator(_canonical(schema, "schema"))
            except NoScoreError as error:
                raise ConfigError(f"option schema of reward 'json_schema': {error}") from error

    def __call__(self, response: str, **columns: Any) -> Score | None:
        name, value = self._found(columns)
        if value is None:
            return None
        validator = _validator(_canonical(value, name))
        text = after_thoughts(response) if self._whole else last_block(response, ("json",))
        try:
            found = read_json(text)
        except ValueError:
            return Score(0.0, {"parses": 0.0, "valid": 0.0})
        valid = float(_is_valid(validator, found, name))
        return Score(valid, {"parses": 1.0, "valid": valid})

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid against the schema of the option."""
        return _is_valid(_validator(_canonical(self._schema, "schema")), value, "schema")

    def _found(self, columns: dict[str, Any]) -> tuple[str, Any]:
        """Find the schema and its column. `{}` and `true` are schemas as well, which accept everything."""
        for name in self._columns:
            if columns.get(name) is not None and columns[name] != "":
                return name, columns[name]
        return "schema", self._schema


def read_json(text: str) -> Any:
    """The value of a JSON text, as `strict_json` reads it. ValueError, too, for more than `MAX_DEPTH` levels."""
    try:
        value = strict_json(text)
    except RecursionError:
        raise ValueError("too deep") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError("too deep")


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    return iter(value if isinstance(value, list) else ())


def _canonical(schema: Any, column: str) -> str:
    try:
        return json.dumps(parsed(schema, column), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NoScoreError(f"the schema in {column!r} cannot be written as JSON: {error}") from error


@functools.lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """Check a schema, including its references, and return its validator. NoScoreError for an invalid schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import extend, validator_for
    from jsonschema_specifications import REGISTRY

    schema = json.loads(text)
    if not isinstance(schema, (dict, bool)):
        raise NoScoreError(f"a schema must be an object, and this is {text:.100}")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        place = "/".join(map(str, error.absolute_path))
        raise NoScoreError(f"the schema is wrong{' at ' + place if place else ''}: {error.message:.300}") from error
    _check_references(schema, kind.META_SCHEMA["$schema"])
    # With a `$schema`, the library would replace our extended class by its own.
    if isinstance(schema, dict):
        schema.pop("$schema", None)
    # With this registry a reference leads to the schema itself or to the specification; nothing is fetched.
    return extend(kind, {"uniqueItems": _unique_items})(schema, registry=REGISTRY)


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """`uniqueItems` in about the time of writing the array as JSON; the library compares each pair of objects."""
    from jsonschema.exceptions import ValidationError

    if wanted is True and isinstance(instance, list) and len(set(map(_as_text, instance))) < len(instance):
        yield ValidationError("an item is there twice")


def _as_text(value: Any) -> str:
    """Canonical text: equal for 1 and 1.0 and for any order of keys, as in JSON Schema, but not for 1 and true."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_as_text(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_as_text, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _check_references(schema: Any, specification: str) -> None:
    """Raise NoScoreError for a reference that cannot be resolved, even if no response reaches it."""
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    root = specification_with(specification).create_resource(schema)
    todo = [(root, REGISTRY.resolver_with_root(root))]
    while todo:
        resource, resolver = todo.pop()
        for word in ("$ref", "$dynamicRef"):
            target = resource.contents.get(word) if isinstance(resource.contents, dict) else None
            try:
                if isinstance(target, str):
                    resolver.lookup(target)
            except Unresolvable as error:
                raise NoScoreError(
                    f"the schema refers to {target!r}, which it does not hold, and nothing is fetched"
                ) from error
        todo += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _is_valid(validator: Any, value: Any, column: str) -> bool:
    try:
        return bool(validator.is_valid(value))
    except OverflowError:  # an integer of hundreds of digits against a multipleOf that is not whole
        return False
    except RecursionError as error:
        raise NoScoreError(f"the schema in {column!r} refers to itself without end") from error
