"""Settings of the runs of a sweep, from the words of the command line, from a file, or from a program.

`seed=0..4` and `algorithm=grpo,rloo` name several values, at commas outside of quotes and brackets. A single value is
an override of all runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.config.yaml_text import parse_yaml, read_run_text
from burnish.errors import ConfigError
from burnish.experiments.runs import short_name

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_ODD = re.compile(r"[^\w.+-]+")
_LONGEST_NAME = 120
_MOST_RUNS = 10_000
_CLOSING = {"[": "]", "{": "}"}
OUTPUT = "output"

Choice = tuple[str, str]
"""Dotted path of a field and its value, as YAML."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of one run of a sweep: overrides as on the command line, and the name of its folder."""

    name: str
    overrides: tuple[str, ...]


def settings_of(
    words: Sequence[str], listed: Sequence[Mapping[str, object]] = (), *, together: bool = False
) -> list[Setting]:
    """The settings of all runs: every combination of the values that `words` (`key=value,value`) name, or with
    `together` the first values of all, the second ones, and so on. Each of `listed` is combined with all of these.

    ConfigError for words that are not overrides, values that do not go together, and a sweep without a choice.
    """
    given: dict[str, list[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{word!r} is not of the form key.path=value", remedy="for example seed=0..4")
        if key in given:
            raise ConfigError(f"{key} is given twice", remedy=f"write its values in one word: {key}=a,b")
        given[key] = list(_values(text))
    # The sweep's folder, which its caller takes from the words.
    if len(given.pop(OUTPUT, [])) > 1 or any(OUTPUT in entry for entry in listed):
        raise ConfigError("output is the folder of the sweep, and each run gets its own below it", remedy="name one")
    fixed = [f"{key}={values[0]}" for key, values in given.items() if len(values) == 1]
    several = {key: values for key, values in given.items() if len(values) > 1}
    chosen = [
        (*first, *second)
        for first in [_choices(entry) for entry in listed] or [()]
        for second in _combined(several, together=together)
    ]
    if not any(chosen):
        raise ConfigError("a sweep needs a field with several values", remedy="for example seed=0..4, or --runs FILE")
    if len(chosen) > _MOST_RUNS:
        raise ConfigError(f"these are {len(chosen):,} runs", remedy=f"sweep over at most {_MOST_RUNS:,}")
    names = _names(chosen)
    return [
        Setting(name, (*fixed, *(f"{key}={value}" for key, value in choices)))
        for name, choices in zip(names, chosen, strict=True)
    ]


def read_listed(path: Path) -> list[Mapping[str, object]]:
    """Read a file of settings: a YAML list with the fields of each run, by dotted path. ConfigError for another."""
    parsed = parse_yaml(read_run_text(path))
    if parsed.problems:
        raise ConfigError(f"{path}: {parsed.problems[0].message}", remedy=parsed.problems[0].remedy)
    data = parsed.data
    if not isinstance(data, list) or not data or not all(isinstance(entry, dict) and entry for entry in data):
        raise ConfigError(f"{path} is not a list of settings", remedy="write a line for each run: `- {seed: 0}`")
    return [entry for entry in data if isinstance(entry, dict)]


def _values(text: str) -> Iterator[str]:
    """The values between commas, with ranges written out."""
    for value in _pieces(text):
        limits = _RANGE.fullmatch(value)
        if limits is None:
            yield value
            continue
        first, last = int(limits[1]), int(limits[2])
        if last < first:
            raise ConfigError(f"{value} is not a range", remedy="write the lower number first, as in 0..4")
        if last - first >= _MOST_RUNS:
            raise ConfigError(f"{value} are more than {_MOST_RUNS:,} values", remedy="sweep over fewer")
        yield from map(str, range(first, last + 1))


def _pieces(text: str) -> list[str]:
    """Cut at commas outside of quotes and brackets."""
    pieces, quote, before = [""], "", ","
    open_brackets: list[str] = []
    for character in text:
        if character == "," and not quote and not open_brackets:
            pieces.append("")
            before = ","
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and before in ",[{: ":  # elsewhere it is an apostrophe
            quote = character
        elif character in _CLOSING:
            open_brackets.append(_CLOSING[character])
        elif open_brackets and character == open_brackets[-1]:
            open_brackets.pop()
        pieces[-1] += character
        before = character
    return [piece.strip() for piece in pieces]


def _choices(entry: Mapping[str, object]) -> tuple[Choice, ...]:
    try:
        return tuple((str(key), json.dumps(value, ensure_ascii=False)) for key, value in entry.items())
    except TypeError as error:
        raise ConfigError(
            f"{entry!r:.80} is not of values for a run file: {error}", remedy="give plain values"
        ) from error


def _combined(several: Mapping[str, Sequence[str]], *, together: bool) -> Iterator[tuple[Choice, ...]]:
    """Every combination of the values of several fields, or with `together` their first values, their second ones."""
    counts = {key: len(values) for key, values in several.items()}
    if together and len(set(counts.values())) > 1:
        listed = ", ".join(f"{key} has {count}" for key, count in counts.items())
        raise ConfigError(f"values that go together must be as many: {listed}", remedy="complete the shorter ones")
    combinations = zip(*several.values(), strict=True) if together else itertools.product(*several.values())
    return (tuple(zip(several, values, strict=True)) for values in combinations)


def _names(chosen: Sequence[tuple[Choice, ...]]) -> list[str]:
    """Names of folders, `algorithm=grpo,seed=0`. A long one is cut, and it ends in a hash where another run has it."""
    fields = list(dict.fromkeys(key for choices in chosen for key, _ in choices))
    short = {key: short_name(key, fields) for key in fields}
    plain = [",".join(f"{short[key]}={_folder_text(value)}" for key, value in choices) for choices in chosen]
    found: dict[tuple[tuple[str, str | float], ...], str] = {}
    for name, choices in zip(plain, chosen, strict=True):
        if len(name) > _LONGEST_NAME or plain.count(name) > 1:
            digest = hashlib.sha256(json.dumps(choices).encode()).hexdigest()[:8]
            name = f"{name[:_LONGEST_NAME]}-{digest}"
        meant = tuple((key, float(value) if _NUMBER.fullmatch(value) else value) for key, value in choices)
        if meant in found:
            raise ConfigError(f"two runs of the sweep are the same: {name}", remedy="give each value once")
        found[meant] = name
    return list(found.values())


def _folder_text(value: str) -> str:
    bare = value.strip("'\"")
    return "-" * bare.startswith("-") + (_ODD.sub("-", bare).strip("-") or "empty")
