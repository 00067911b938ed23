"""Columns without a role: media are refused, and columns that look like part of the prompt are reported."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from burnish.data.rows import Row, describe
from burnish.errors import DataError

_MEDIA = re.compile(r"(image|video|audio)s?(_\d+)?|multi_?modal_\w+", re.IGNORECASE)
_OF_PROMPTS = re.compile(
    "article|background|body|choices|context|conversations?|dialogue|document|functions|history|hypothesis|input|"
    "instruction|messages|options|passage|persona|premise|problem|prompt|query|question|story|system|system_prompt|tools|"
    r"(image|picture|photo|video|audio)s?(_\w+)?",
    re.IGNORECASE,
)


def check_media(rows: Sequence[Row]) -> None:
    """Raise DataError for a row with a picture, a video or a sound: its prompt would be trained on without it."""
    for row in rows:
        for name, value in row.values.items():
            if _is_filled(value) and (_MEDIA.fullmatch(name) or _is_stored_medium(value)):
                raise DataError(
                    f"{row.where}: column {name!r} holds pictures, video or sound, which Burnish does not read: "
                    f"{describe(value)}",
                    remedy="leave such rows out, or remove the column to learn the text alone",
                )


def unused_parts(rows: Sequence[Row], roles: Mapping[str, str], template: str | None) -> list[str]:
    """Columns that look like part of the prompt and have no role, unless a used column already holds their text."""
    first = rows[0].values
    used = {column.partition(".")[0] for column in roles.values()}
    known = json.dumps([first.get(column) for column in used])
    names = dict.fromkeys(name for row in rows for name in row.values if _OF_PROMPTS.fullmatch(name))
    return [
        name
        for name in names
        if name not in used and f"{{{name}" not in (template or "")
        if any(_is_filled(row.values.get(name)) for row in rows)
        if not (isinstance(first.get(name), str) and json.dumps(first[name])[1:-1] in known)
    ]


def _is_filled(value: object) -> bool:
    return any(map(_is_filled, value)) if isinstance(value, list) else isinstance(value, (str, Mapping)) and bool(value)


def _is_stored_medium(value: object) -> bool:
    """True if the value is a picture or sound as tables store them (`bytes` and `path`), or a list of such."""
    first = value[0] if isinstance(value, list) else value
    return isinstance(first, Mapping) and set(first) == {"bytes", "path"} and any(first.values())
