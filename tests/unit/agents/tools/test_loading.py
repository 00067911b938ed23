"""Tools named by a run file."""

from __future__ import annotations

import asyncio

import pytest

from burnish.agents.tools.loading import load_tools
from burnish.errors import ConfigError

OWN_CODE = '''
"""Tools of a user."""
import math

def double(number: int) -> int:
    """Double a number."""
    return 2 * number

async def wait(seconds: float) -> str:
    """Wait."""
    return "waited"

def calculator(expression: str) -> str:
    """Another one."""

def numbers(end: int):
    """Count."""
    yield from range(end)

def _private() -> int: ...
class Box: ...
twice = double
sine = math.sin
five = 5
'''


def test_tools_are_loaded_in_their_order(place: str) -> None:
    wait, calculator, double, twice = load_tools([f"{place}:wait", "calculator", f"{place}:double", f"{place}:twice"])
    assert [tool.name for tool in (wait, calculator, double, twice)] == ["wait", "calculator", "double", "twice"]
    assert asyncio.run(wait.function(seconds=1.0)) == "waited"  # type: ignore[arg-type]
    assert calculator.function(expression="6 * 7") == "42"
    assert double.function(number=2) == 4
    assert twice.schema["function"]["name"] == "twice"  # type: ignore[index, call-overload]


def test_modules_can_be_named() -> None:
    (tool,) = load_tools(["burnish.agents.tools.calculator:calculator"])
    assert tool == load_tools(["calculator"])[0]
    assert load_tools([]) == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("calculater", r"tools has 'calculater', which is not a built-in tool\n  -> did you mean 'calculator'\?"),
        (":double", "which is not a built-in tool"),
        ("PLACE:dubble", r"has no dubble\n  -> did you mean 'double'\? it has double, wait"),
        ("PLACE:Box", "which is not a function but a class"),
        ("PLACE:sine", "which is not a function but a builtin_function_or_method"),
        ("PLACE:numbers", "which is a generator"),
        ("absent/file.py:f", "there is no file 'absent/file.py'"),
        ("no_such_module_here:f", "cannot import module"),
    ],
)
def test_errors_say_what_to_do(place: str, entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_tools([entry.replace("PLACE", place)])
    assert caught.value.remedy


def test_two_tools_of_one_name(place: str) -> None:
    with pytest.raises(ConfigError, match=r"domains\.x\.tools has two tools named 'calculator'"):
        load_tools(["calculator", f"{place}:calculator"], where="domains.x.tools")
