"""Jobs, limits and verdicts as JSON, between a `RemoteSandbox` and the server. Every field is checked on arrival."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from burnish.errors import SandboxError
from burnish.sandbox.job import AssertTests, Case, FunctionTests, Limits, Output, ProgramTests, Status, Verdict
from burnish.sandbox.wire import NotPlainError, decode, encode

PROTOCOL = 2
"""Of `/judge`; the client and the server have to have the same."""
_TOO_LARGE = 1e15
"""For any number of a message but the values of cases."""
Job = FunctionTests | AssertTests | ProgramTests
_KINDS: Mapping[str, type[Job]] = {"functions": FunctionTests, "asserts": AssertTests, "programs": ProgramTests}


class BadMessageError(Exception):
    """A malformed message; the text names the offending field."""


def plain_job(job: Job) -> dict[str, Any]:
    """The fields of a job, and its kind. SandboxError for a case with values that are not plain."""
    plain: dict[str, Any] = {"kind": next(name for name, kind in _KINDS.items() if isinstance(job, kind))}
    plain |= {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    if isinstance(job, FunctionTests):
        try:
            plain["cases"] = [_plain_case(case) for case in job.cases]
        except NotPlainError as error:
            raise SandboxError(
                f"a case for {job.entry!r} cannot be sent: {error}",
                remedy="give numbers, texts, lists, sets and dictionaries",
            ) from error
    return plain


def _plain_case(case: Case) -> dict[str, Any]:
    values = {"arguments": list(case.arguments), "named": dict(case.named), "expected": case.expected}
    return {name: encode(value) for name, value in values.items()} | {"wrapped": case.wrapped}


def job_of(data: Any) -> Job:
    """The job of `plain_job`. BadMessageError for anything else."""
    kind = _field(data, "kind", str)
    code = _field(data, "code", str)
    if kind == "programs":
        pairs = tuple((_text(a), _text(b)) for a, b in _lists(data, "pairs", 2))
        return ProgramTests(code, pairs, _field(data, "until_failure", bool))
    if kind == "asserts":
        texts = tuple(_text(text) for text in _field(data, "texts", list))
        return AssertTests(code, texts, _field(data, "prelude", str), _field(data, "entry", str, type(None)))
    if kind == "functions":
        cases = tuple(_case(case) for case in _field(data, "cases", list))
        return FunctionTests(code, _field(data, "entry", str), cases, _number(data, "tolerance"))
    raise BadMessageError(f"kind is {kind!r}, not one of {', '.join(_KINDS)}")


def limits_of(data: Any) -> Limits:
    """The limits of a message. BadMessageError unless all are there, above 0 and below 1e15."""
    found = {}
    for field in dataclasses.fields(Limits):
        types = (int, float) if isinstance(field.default, float) else (int,)
        value = _field(data, field.name, *types)
        if not 0 < value < _TOO_LARGE:
            raise BadMessageError(f"limits.{field.name} is {value!r:.20}")
        found[field.name] = value
    return Limits(**found)


def exceeded(limits: Limits, most: Limits) -> str:
    """The name of the first limit that is above `most`; "" if none is."""
    names = [field.name for field in dataclasses.fields(Limits)]
    return next((name for name in names if getattr(limits, name) > getattr(most, name)), "")


def verdict_of(data: Any) -> Verdict:
    """The verdict that `dataclasses.asdict` made plain; a server of ours has none of another grade than `split`.
    BadMessageError for anything else."""
    status, grade = _field(data, "status", str), _field(data, "grade", str)
    passed, total = _field(data, "passed", int), _field(data, "total", int)
    # All tests passed if and only if that is its status, and there is at least one.
    counts_fit = 0 <= passed <= total and total > 0 and (status == "passed") == (passed == total)
    if status not in get_args(Status) or grade != "split" or not counts_fit:
        raise BadMessageError(f"a verdict that cannot be: {status}, {grade}, {passed} of {total}")
    return Verdict(status, passed, total, _number(data, "seconds"), _field(data, "detail", str))  # type: ignore[arg-type]


def output_of(data: Any) -> Output:
    """The output in an answer of SandboxFusion's schema, whose `run_result` must be there."""
    result = _field(data, "run_result", dict)
    status = _field(result, "status", str)
    timed_out = status == "TimeLimitExceeded"
    if status not in ("Finished", "TimeLimitExceeded"):
        raise BadMessageError(f"run_result.status is {status!r}")
    code = _field(result, "return_code", int, type(None))
    # The schema lets a server leave the time out.
    seconds = 0.0 if _field(result, "execution_time") is None else _number(result, "execution_time")
    texts = [_field(result, name, str, type(None)) or "" for name in ("stdout", "stderr")]
    return Output(texts[0], texts[1], -9 if code is None else code, seconds, timed_out)


def _case(data: Any) -> Case:
    try:
        values = {name: decode(_field(data, name)) for name in ("arguments", "named", "expected")}
    except NotPlainError as error:
        raise BadMessageError(f"a case: {error}") from error
    if type(values["arguments"]) is not list or type(values["named"]) is not dict:
        raise BadMessageError("a case has a list of arguments, and a dictionary of named ones")
    return Case(tuple(values["arguments"]), values["expected"], values["named"], _field(data, "wrapped", bool))


def _field(data: Any, name: str, *types: type) -> Any:
    if type(data) is not dict or name not in data:
        raise BadMessageError(f"there is no {name!r}")
    if types and type(data[name]) not in types:
        raise BadMessageError(f"{name}: expected {types[0].__name__}, got {type(data[name]).__name__}")
    return data[name]


def _number(data: Any, name: str) -> float:
    value = _field(data, name, float, int)
    if not 0 <= value < _TOO_LARGE:
        raise BadMessageError(f"{name} is {value!r:.20}")
    return float(value)


def _lists(data: Any, name: str, length: int) -> list[list[Any]]:
    found = _field(data, name, list)
    if any(type(item) is not list or len(item) != length for item in found):
        raise BadMessageError(f"{name} must contain only lists of length {length}")
    return found


def _text(value: Any) -> str:
    if type(value) is not str:
        raise BadMessageError(f"expected a string, got {type(value).__name__}")
    return value
