"""The options of the reward `judge`, checked when the run starts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.config.section import NonNegativeInt, PositiveInt, Seconds, Section
from burnish.errors import ConfigError, suggestion
from burnish.outside.reading import reading
from burnish.rewards.judging.verdicts import AnswerFormat, Scale, UnreadableVerdictError

Form = Literal["score", "rubric", "pairwise", "steps"]
NonNegative = Annotated[float, Field(ge=0)]
TEMPLATE_SUFFIXES = (".txt", ".md")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a rubric. A negative weight is for what a good response does not do."""

    name: str
    weight: float
    text: str


class JudgeOptions(Section, defer_build=False):  # its signature lists the options
    """Options of a judge in a run file; docs/judge.md describes them. ConfigError if some exclude each other."""

    url: Annotated[str | None, "OpenAI-compatible endpoint, up to and with /v1 (this or model_path is required)"] = None
    model: Annotated[str | None, "the endpoint's name of the model (required with url)"] = None
    model_path: Annotated[str | None, "folder of a model that this process loads, in place of an endpoint"] = None
    device: Annotated[str, "of that model: auto (default), cpu, cuda:1 ..."] = "auto"
    dtype: Annotated[Literal["float32", "bfloat16"], "of that model: float32 (default) or bfloat16"] = "float32"
    key_variable: Annotated[str | None, "name of the environment variable that holds the endpoint's key"] = None
    form: Annotated[Form, "score (default), rubric, pairwise or steps"] = "score"
    template: Annotated[
        str | None, "the question, as text or the path of a .txt or .md file, with {prompt}, {response}, {COLUMN}"
    ] = None
    system: Annotated[str | None, "the system message"] = None
    reference: Annotated[bool, "show the row's answer to the judge"] = False
    scale: Annotated[Any, "[lowest, highest] (default [1, 10]) or {WORD: number from 0 to 1}"] = (1, 10)
    answer_format: Annotated[AnswerFormat, "of the verdict: json (default), tag or last_line"] = "json"
    criteria: Annotated[Any, "of a rubric: a list of {name, weight, text}, or the column that holds one"] = None
    one_call: Annotated[bool, "ask for all criteria at once (default true), or for each on its own"] = True
    opponents: Annotated[PositiveInt, "pairwise: how many others of its group each response meets"] = 7
    step_pattern: Annotated[str, "steps: regular expression between two steps (default: a blank line)"] = r"\n\s*\n"
    max_steps: Annotated[PositiveInt, "steps: at most this many, the last of which is all the rest"] = 64
    # A whole number stays an int, because it is part of the cache key.
    temperature: Annotated[NonNegativeInt | NonNegative, "of the judge"] = 0.0
    max_tokens: Annotated[PositiveInt, "of an answer"] = 1024
    seed: Annotated[int | None, "sent with each request"] = None
    extra: Annotated[dict[str, Any] | None, "further fields of the request; null removes one"] = None
    concurrency: Annotated[PositiveInt, "requests on their way at the same time, at most"] = 16
    requests_per_minute: Annotated[PositiveInt | None, "at most (default: no limit)"] = None
    tokens_per_minute: Annotated[PositiveInt | None, "of prompts and answers, at most (default: no limit)"] = None
    retries: Annotated[NonNegativeInt, "after connection errors, timeouts, 429 and 5xx"] = 4
    request_timeout_seconds: Annotated[Seconds | None, "for one request (default: what is left of timeout_seconds)"] = (
        None
    )
    cache: Annotated[str | None, "folder of verdicts, which any number of runs may share (default: none)"] = None
    price_in: Annotated[NonNegative | None, "of a million tokens of prompts, for judge/cost"] = None
    price_out: Annotated[NonNegative | None, "of a million tokens of answers"] = None
    labels: Annotated[str | None, "column with a human's score of the row's response, for burnish check"] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_place()
        self._check_form()
        self._check_effect()
        self.read_scale()
        return self

    def __call__(self, response: str) -> None:
        """A judge is not called like a function: `Judges` asks it for many responses at once."""
        raise NotImplementedError

    def read_scale(self) -> Scale:
        """The scale of the scores."""
        try:
            return Scale.of(self.scale)
        except ValueError as error:
            raise _wrong("scale", self.scale, f"{error}; write [1, 10], or labels with numbers from 0 to 1") from None

    def read_template(self) -> str | None:
        """The text of the template: the option itself, or the file that it names."""
        given = self.template
        if given is None or "\n" in given or not given.endswith(TEMPLATE_SUFFIXES):
            return given
        path = Path(given).expanduser()
        if not path.is_file():
            raise _wrong(
                "template", given, f"there is no such file in {Path.cwd()}; write its path, or the text itself"
            )
        with reading(f"the template of a judge, {path}", ConfigError):
            return path.read_text(encoding="utf-8")

    def read_criteria(self) -> tuple[Criterion, ...]:
        """The criteria of the rubric; none if a column holds them or there is no rubric."""
        if self.criteria is None or isinstance(self.criteria, str):
            return ()
        return criteria_of(self.criteria)

    def _check_place(self) -> None:
        if (self.url is None) == (self.model_path is None):
            raise ConfigError(
                "reward 'judge' needs one of the options url and model_path",
                remedy="name an OpenAI-compatible endpoint (url: http://localhost:8000/v1), or a model's folder",
            )
        if self.url is None:
            return
        if not re.match(r"https?://[^/\s]+", self.url):
            raise _wrong("url", self.url, "write the address with http:// or https://, up to and with /v1")
        if "?" in self.url or "#" in self.url:  # what follows them would swallow the path of the request
            raise ConfigError(
                "option url of reward 'judge' has a ? or #",
                remedy="write it up to and with /v1; a key belongs in the environment variable that key_variable names",
            )
        if "@" in self.url.split("/")[2]:  # not shown, because it holds a password
            raise ConfigError(
                "option url of reward 'judge' holds a name or password",
                remedy="put the key into an environment variable, and name it in key_variable",
            )
        if not self.model:
            raise ConfigError("reward 'judge' needs the option model", remedy="write the endpoint's name of the model")

    def _check_form(self) -> None:
        if (self.criteria is not None) != (self.form == "rubric"):
            raise ConfigError(
                f"reward 'judge' has the form {self.form!r} and {'no ' if self.criteria is None else ''}criteria",
                remedy="criteria belong to form: rubric, and a rubric needs them",
            )
        for name in self.extra or ():
            if name in ("model", "messages", "stream", "n"):
                raise _wrong("extra", name, "leave it out: the judge sets it itself, or needs exactly one whole answer")
            if name in type(self).model_fields and getattr(self, name) != type(self).model_fields[name].default:
                raise _wrong("extra", name, f"set it once: option {name} is {getattr(self, name)!r}")
        try:
            json.dumps(self.extra)
        except (TypeError, ValueError):
            raise _wrong("extra", self.extra, "use values that JSON can hold") from None
        if self.form == "pairwise" and self.labels is not None:
            raise _wrong("labels", self.labels, "remove it: a human's score of one response says nothing about a pair")
        several = self.form == "steps" or (self.form == "rubric" and self.one_call)
        if several and self.answer_format == "last_line":
            raise _wrong("answer_format", self.answer_format, "use json or tag, which can hold several scores")
        try:
            if re.compile(self.step_pattern).match(""):
                raise _wrong("step_pattern", self.step_pattern, "write one that needs a character between two steps")
        except re.error as error:
            raise _wrong("step_pattern", self.step_pattern, f"write a regular expression ({error})") from None
        self.read_criteria()

    def _check_effect(self) -> None:
        """Raise ConfigError for an option that is set and would have no effect."""
        place = "url" if self.url is not None else "model_path"
        for name, field in type(self).model_fields.items():
            if getattr(self, name) == field.default:
                continue
            if place not in _PLACES.get(name, ("url", "model_path")):
                raise _wrong(name, getattr(self, name), f"remove it: with {place} it does nothing")
            if self.form not in _FORMS.get(name, (self.form,)):
                raise _wrong(name, getattr(self, name), f"remove it: it does nothing in the form {self.form!r}")


_PLACES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("device", "dtype"), ("model_path",)),
    **dict.fromkeys(("model", "key_variable", "extra", "concurrency", "requests_per_minute"), ("url",)),
    **dict.fromkeys(("tokens_per_minute", "retries", "request_timeout_seconds"), ("url",)),
}
"""Options that apply only with `url`, or only with `model_path`."""
_FORMS: Mapping[str, tuple[str, ...]] = {
    "opponents": ("pairwise",),
    "scale": ("score", "rubric", "steps"),
    "step_pattern": ("steps",),
    "max_steps": ("steps",),
    "one_call": ("rubric",),
}
"""Options that apply only in some forms."""


def criteria_of(given: object) -> tuple[Criterion, ...]:
    """Read criteria from a list of texts or of mappings with `text` (or `criterion`), `weight` (or `points`; 1) and
    `name` (its number). ConfigError for anything else, for a repeated name, and if no weight is positive."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or not given:
        raise _wrong("criteria", given, 'write a list: [{name: clear, weight: 2, text: "It is easy to follow."}]')
    criteria = [_criterion(entry, number) for number, entry in enumerate(given, 1)]
    names = [criterion.name for criterion in criteria]
    if len(set(names)) < len(names):
        raise _wrong("criteria", names, "give each criterion its own name")
    if not any(criterion.weight > 0 for criterion in criteria):
        raise _wrong("criteria", [c.weight for c in criteria], "give at least one of them a weight above 0")
    return tuple(criteria)


def _criterion(entry: object, number: int) -> Criterion:
    if isinstance(entry, str):
        entry = {"text": entry}
    if not isinstance(entry, Mapping):
        raise _wrong("criteria", entry, "write each as text, or as a mapping with name, weight and text")
    known = {"name", "weight", "points", "text", "criterion"}
    text = entry.get("text", entry.get("criterion"))
    weight = entry.get("weight", entry.get("points", 1.0))
    name = entry.get("name", str(number))
    for key in entry:
        if key not in known:
            raise _wrong("criteria", key, suggestion(str(key), sorted(known)))
    if not isinstance(text, str) or not text.strip():
        raise _wrong("criteria", entry, "give each its text")
    if not isinstance(name, str) or not 0 < len(name) <= 60 or not name.isprintable() or '"' in name:
        raise _wrong("criteria", name, "give each a name of 1 to 60 printable characters without quotation marks")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight == 0:
        raise _wrong("criteria", weight, "make each weight a number other than 0")
    return Criterion(name, float(weight), text.strip())


def label_value(scale: Scale, value: object) -> float:
    """Convert a human's label: a number stays as it is (in CSV files it is text), a word is read on the judge's scale.
    ValueError otherwise."""
    number = value
    if isinstance(value, str):
        try:
            return scale.read(value)
        except UnreadableVerdictError:
            with suppress(ValueError):
                number = json.loads(value.strip().lower())
    if isinstance(number, (bool, int, float)) and math.isfinite(number):
        return float(number)
    raise ValueError(f"it holds {value!r}")


def _wrong(name: str, value: object, remedy: str) -> ConfigError:
    return ConfigError(f"option {name} of reward 'judge' is {value!r}", remedy=remedy)
