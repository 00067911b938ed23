"""Equal functions have equal texts, other ones other texts."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from burnish.api.functions import importable_name, text_of


def make(limit: Any) -> Callable[[str], float]:
    def capped(response: str) -> float:
        return min(len(response), limit)

    return capped


def test_a_closure_shows_its_values() -> None:
    assert text_of(make(3)) == text_of(make(3))
    assert text_of(make(3)) != text_of(make(4))
    assert "limit = 3" in text_of(make(3))


def test_lambdas_do_not_depend_on_where_they_stand() -> None:
    first = lambda response: len(response) > 2  # noqa: E731
    same, steps = (lambda response: len(response) > 2), 50
    other = lambda response: len(response) > 3  # noqa: E731
    assert steps == 50
    assert text_of(first) == text_of(same)
    assert text_of(first) != text_of(other)


def test_a_function_that_it_calls_belongs_to_it() -> None:
    def calling(helper: Callable[[str], float]) -> Callable[[str], float]:
        return lambda response: helper(response)

    assert text_of(calling(make(3))) != text_of(calling(make(4)))


def test_sets_have_one_text_whatever_their_order() -> None:
    assert text_of(make({"a", "b", "c"})) == text_of(make({"c", "b", "a"}))
    assert text_of(make({"a"})) != text_of(make({"b"}))


def test_partials_methods_and_objects() -> None:
    class Near:
        def __init__(self, target: int) -> None:
            self.target = target

        def __call__(self, response: str) -> float:
            return -abs(len(response) - self.target)

        def score(self, response: str) -> float:
            return self(response)

    assert text_of(Near(3)) == text_of(Near(3)) != text_of(Near(4))
    assert text_of(Near(3).score) != text_of(Near(4).score)
    assert text_of(functools.partial(round, ndigits=1)) != text_of(functools.partial(round, ndigits=2))


def test_what_cannot_be_compared_is_named_by_its_class() -> None:
    assert text_of(make(object())) == text_of(make(object()))
    assert "a builtins.object, whose content is not compared" in text_of(make(object()))


def test_functions_of_a_module_are_importable_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_rewards.py").write_text("def score(response): return 1.0\nalias = lambda response: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import some_rewards  # type: ignore[import-not-found]

    try:
        assert importable_name(some_rewards.score) == "some_rewards:score"
        assert importable_name(some_rewards.alias) is None
        assert importable_name(make(3)) is None
        assert importable_name(len) is None
        monkeypatch.setattr(some_rewards, "score", make(3))
        assert importable_name(some_rewards.score) is None
    finally:
        del sys.modules["some_rewards"]
