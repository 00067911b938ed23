"""The problems in a run file, collected so that all of them are shown at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from burnish.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to change: its field (a dotted path; "" for the whole file), what is wrong, and what to do.

    `place` says where it is, if that is not where the field is in the run file.
    """

    field: str
    message: str
    remedy: str
    place: str = ""


def raise_problems(problems: Sequence[Problem], *, source: str, where: dict[str, str] | None = None) -> None:
    """Raise one ConfigError that shows all problems, or return if there are none.

    `where` gives the place of each field (`run.yaml:7`, `command line`). Fields without one are placed in `source`.
    """
    if not problems:
        return
    places = where or {}
    texts = [f"{p.place or place_of(p.field, places, source)}: {p.message}" for p in problems]
    if len(problems) == 1:
        raise ConfigError(texts[0], remedy=problems[0].remedy)
    lines = [f"{len(problems)} problems in {source}:"]
    for number, (text, problem) in enumerate(zip(texts, problems, strict=True), start=1):
        lines += [f"  {number}. {text}", f"     -> {problem.remedy}"]
    raise ConfigError("\n".join(lines))


def named(problems: Iterable[Problem]) -> list[Problem]:
    """The problems with each field's name at the start of its message; places are added in front of it."""
    return [replace(p, message=f"{p.field} {p.message}") if p.field else p for p in problems]


def place_of(field: str, places: dict[str, str], source: str) -> str:
    """Place of a field, or of the nearest enclosing key that has one; else `source`."""
    parts = field.split(".")
    enclosing = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((places[key] for key in enclosing if key in places), source)
