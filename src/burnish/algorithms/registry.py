"""Rows of the tables of estimators, losses, aggregations and KL estimators, and their lookup by name.

A row holds a pure function and its description. A name is either a key of a table or a plugin,
`package.module:function` or `path/to/file.py:function`. Nothing registers itself on import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from burnish.errors import ConfigError, suggestion
from burnish.outside.plugins import import_place


@dataclass(frozen=True)
class Formula:
    """A function with its summary in a line, its source, and the formula itself. alias: another name than its own."""

    function: Callable[..., Any]
    summary: str
    source: str
    formula: str
    alias: str = ""

    @property
    def name(self) -> str:
        return self.alias or self.function.__name__

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the positional parameters, in order: the tensors that the function takes."""
        return tuple(p.name for p in _parameters(self.function) if p.kind is not inspect.Parameter.KEYWORD_ONLY)

    @property
    def optional_inputs(self) -> frozenset[str]:
        """The tensors among `inputs` that the function does not require."""
        return frozenset(
            p.name for p in _parameters(self.function) if p.name in self.inputs and p.default is not p.empty
        )

    @property
    def options(self) -> dict[str, object]:
        """Keyword-only numbers that a run file may set, with their defaults."""
        return {p.name: p.default for p in _keywords(self.function) if p.default is not inspect.Parameter.empty}

    @property
    def required_options(self) -> tuple[str, ...]:
        """Keyword-only numbers without a default, which a run file must set."""
        return tuple(p.name for p in _keywords(self.function) if p.default is inspect.Parameter.empty)

    @property
    def option_names(self) -> tuple[str, ...]:
        return (*self.options, *self.required_options)

    def check_options(self, given: Mapping[str, object], at: str = "") -> None:
        """Raise ConfigError for an unknown option, for a required one that is missing, and for a value of another kind
        than the default (null, text or true for a number). `at`: where they are set, as messages begin."""
        for name in sorted(given.keys() - self.option_names):
            raise ConfigError(f"{at}{self.name!r} has no option {name!r}", remedy=suggestion(name, self.option_names))
        for name in (name for name in self.required_options if name not in given):
            raise ConfigError(f"{at}{self.name!r} needs the option {name!r}", remedy=f"set {name} to a number")
        for name, value in given.items():
            wanted = _KINDS.get(type(self.options.get(name)))
            if wanted not in (None, _KINDS.get(type(value))):
                shown = "null" if value is None else f"{value!r:.60}"
                raise ConfigError(f"{at}{name} of {self.name!r} is {shown}", remedy=f"give {wanted}, or leave it out")


RowT = TypeVar("RowT", bound=Formula)
_KINDS = {bool: "true or false", str: "text", int: "a number", float: "a number"}
ARXIV = "https://arxiv.org/abs/"


def by_name(*rows: RowT) -> dict[str, RowT]:
    """Make a table of the rows."""
    return {row.name: row for row in rows}


def find_row(name: str, table: Mapping[str, RowT], kind: str) -> RowT:
    """Find the row called `name`. Raises ConfigError with the nearest name if there is none."""
    if name not in table:
        remedy = suggestion(name, table)
        raise ConfigError(f"unknown {kind} {name!r}", remedy=remedy)
    return table[name]


def load_function(name: str, kind: str) -> Callable[..., Any]:
    """Load the function named by `package.module:function` or `path/to/file.py:function`. Raises a ConfigError that
    says which part cannot be found."""
    module_name, _, function_name = name.rpartition(":")
    if not module_name or not function_name:
        remedy = "write it as path/to/file.py:function or package.module:function"
        raise ConfigError(f"{kind} {name!r} is incomplete", remedy=remedy)
    module = import_place(module_name, f"{kind} is {name!r}")
    functions = {key: value for key, value in vars(module).items() if inspect.isroutine(value)}
    if function_name not in functions:
        raise ConfigError(
            f"module {module_name!r} has no function {function_name!r} (for {kind} {name!r})",
            remedy=suggestion(function_name, [key for key in functions if not key.startswith("_")]),
        )
    return functions[function_name]


def plugin_row(make: Callable[..., RowT], name: str, kind: str, **fields: object) -> RowT:
    """The row of a plugin, with the first line of its docstring as the summary. Raises like `load_function`."""
    function = load_function(name, kind)
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    return make(function, summary, name, "see its source", alias=name, **fields)


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    variadic = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if variadic:
        name = f"{function.__module__}:{function.__qualname__}"
        raise ConfigError(
            f"function {name!r} takes {variadic[0]}, so its signature does not say what it needs",
            remedy="name every parameter: tensors first, numbers after a bare *",
        )
    return parameters


def _keywords(function: Callable[..., object]) -> list[inspect.Parameter]:
    return [p for p in _parameters(function) if p.kind is inspect.Parameter.KEYWORD_ONLY]
