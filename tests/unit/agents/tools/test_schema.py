"""JSON schemas of Python functions."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Annotated, Any, Dict, List, Literal, Optional, Union  # noqa: UP035

import pytest
import transformers
from packaging.version import Version
from transformers.utils import get_json_schema

from burnish.agents.tools.calculator import calculator
from burnish.agents.tools.schema import schema_of
from burnish.errors import ConfigError


def weather(city: str, days: int = 1, unit: Literal["celsius", "kelvin"] = "celsius") -> dict[str, float]:
    """Look up the weather.

    It is a forecast, so it may be wrong.

    Args:
        city: The city, such as Rome.
        days: How many days
            from today on.
        unit: Unit: of the temperatures.

    Returns:
        Temperature of each day.

    Raises:
        ValueError: if the city is not known.
    """
    return {}


async def hints(
    a: bool,
    b: float | None,
    c: int | str,
    d: list[int],
    e: dict[str, list[str]],
    f: tuple[int, str],
    g: Any,
    h: list,
    i: Optional[list[int]] = None,  # noqa: UP045
    j: Union[int, list[str]] = 0,  # noqa: UP007
    *,
    k: List[int],  # noqa: UP006
    l: Dict[str, Any],  # noqa: UP006, E741
    m: Literal[1, "a", None] = 1,
) -> None:
    """Use all hints.

    Args:
        a: A.
        b: B.
        c: C.
        d: D.
        e: E.
        f: F.
        g: G.
        h: H.
        i: I.
        j: J.
        k: K.
        l: L.
        m: M.
    """


def no_parameters() -> object:
    """Do nothing."""
    return None


class Shop:
    def buy(self, item: str) -> str:
        """Buy something.

        Args:
            item: What to buy.
        """
        return item


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="it wrote results of None otherwise")
@pytest.mark.parametrize("function", [weather, hints, no_parameters, Shop().buy, calculator])
def test_schemas_equal_those_of_transformers(function: Callable[..., Any]) -> None:
    assert schema_of(function) == get_json_schema(function)


def test_a_schema() -> None:
    unit = {"type": "string", "enum": ["celsius", "kelvin"], "description": "Unit: of the temperatures."}
    properties = {
        "city": {"type": "string", "description": "The city, such as Rome."},
        "days": {"type": "integer", "description": "How many days from today on."},
        "unit": unit,
    }
    returned = {"additionalProperties": {"type": "number"}, "description": "Temperature of each day."}
    function = {
        "name": "forecast",
        "description": "Look up the weather.\n\nIt is a forecast, so it may be wrong.",
        "parameters": {"type": "object", "properties": properties, "required": ["city"]},
        "return": {"type": "object", **returned},
    }
    assert schema_of(weather, name="forecast") == {"type": "function", "function": function}


def test_methods() -> None:
    assert schema_of(Shop.buy, method=True) == schema_of(Shop().buy)
    with pytest.raises(ConfigError, match=r"'self' of the tool 'buy' has no type hint(.|\n)*method of an object"):
        schema_of(Shop.buy)


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    inner: Any = schema_of(function)["function"]
    return inner["parameters"]["properties"]


def test_descriptions_may_be_missing_or_have_types() -> None:
    def half(a: int, b: Annotated[int, "ignored"]) -> int:
        """Halve.

        Args:
            a (int, optional): The first.
        """
        return a

    def none(a: int) -> int:
        """Halve."""
        return a

    number = {"type": "integer", "description": ""}
    assert properties(half) == {"a": number | {"description": "The first."}, "b": number}
    assert properties(none) == {"a": number}


def test_wrapped_functions_keep_their_schema() -> None:
    @functools.wraps(weather)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return weather(*args, **kwargs)

    assert schema_of(wrapper) == schema_of(weather)


class Colour(enum.Enum):
    RED = "red"


def no_docstring(a: int) -> None:
    pass


def no_hint(a) -> None:  # type: ignore[no-untyped-def]
    """Do."""


def stars(*numbers: int) -> None:
    """Do."""


def positional(a: int, /) -> None:
    """Do."""


def misspelt(number: int) -> None:
    """Do.

    Args:
        numbr: A.
    """


def prose(a: int) -> None:
    """Do.

    Args:
        the number to use
    """


def a_set(a: set[int]) -> None:
    """Do."""


def a_tuple(a: tuple[int, ...]) -> None:
    """Do."""


def keys(a: dict[int, str]) -> None:
    """Do."""


def inner(a: list[Colour | None]) -> None:
    """Do."""


def unknown(a: Absent) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_docstring, r"the tool 'no_docstring' has no description\n  -> say in its docstring"),
        (no_hint, r"the parameter 'a' of the tool 'no_hint' has no type hint\n  -> write a: TYPE"),
        (stars, r"the parameter 'numbers' of the tool 'stars' cannot be given by name \(\*numbers"),
        (positional, r"the parameter 'a' of the tool 'positional' cannot be given by name"),
        (misspelt, r"describes 'numbr', which is not one of its parameters\n  -> did you mean 'number'\?"),
        (prose, r"the tool 'prose' has the line 'the number to use' under 'Args:'"),
        (a_set, r"'a' of the tool 'a_set' has the type hint set\[int\](.|\n)*use list"),
        (a_tuple, r"tuple\[int, \.\.\.\](.|\n)*use list for any number"),
        (keys, r"dict\[int, str\](.|\n)*keys are always texts"),
        (inner, r"'a' of the tool 'inner' has the type hint Colour"),
        (unknown, r"the type hints of the tool 'unknown' cannot be read: NameError"),
    ],
)
def test_errors_name_function_parameter_and_remedy(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        schema_of(function)
    assert caught.value.remedy
